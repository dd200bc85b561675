//! The table keeps forwarding decisions beside its connections.

use flow::{Class, Endpoint, KeyedPacket, Timestamp};

use super::{Hit, Table};
use crate::connection::Status;
use crate::nat::Translation;
use crate::{ConnectionId, Direction, Forwarding, Guess, Tracked};

/// Connections for which nothing is recorded, because a stage must see each of their packets.
const UNUSUAL: Status = Status::HAS_HELPER.with(Status::PROXIED).with(Status::FRESH);

impl Table {
    /// Invalidates all records, unless the last call gave the same generation. A worker calls this
    /// before [`Table::forwarding`] and [`Table::record`], because rules, routes or neighbours
    /// may have changed and the table may have come from another worker.
    #[inline]
    pub fn begin_generation(&mut self, worker_generation: u64) {
        self.slab.forwardings.begin(worker_generation);
    }

    /// The slot in which the connection of a flow most likely is.
    pub fn guess(&self, hash: u64) -> Guess {
        self.index.guess(hash as u32).map_or(Guess::NONE, Guess)
    }

    /// The decision recorded for packets of this flow and direction; `None` if the guess is wrong
    /// or the connection has expired.
    #[inline]
    pub fn forwarding(
        &self,
        guess: Guess,
        packet: &KeyedPacket,
        now: Timestamp,
    ) -> Option<Forwarding> {
        let Hit { slot, direction } = self.guessed(guess, packet)?;
        let is_live = !self.slab[slot].is_over(now);
        self.slab.forwardings.get(slot, direction).filter(|_| is_live)
    }

    /// The translated source and destination of a TCP segment or UDP datagram, in this order;
    /// `None` if its connection is not translated.
    #[inline]
    pub fn ends_behind(&self, tracked: &Tracked) -> Option<[Endpoint; 2]> {
        let (Some(ConnectionId(slot)), Some(direction)) = (tracked.connection, tracked.direction)
        else {
            return None;
        };
        let Translation { leaves_as, .. } = self.slab.translation(slot)?;
        Some(match direction {
            Direction::Original => {
                let KeyedPacket { key, sender } = leaves_as;
                [key.endpoint(*sender), key.endpoint(sender.opposite())]
            }
            Direction::Reply => {
                let head = &self.slab[slot].head;
                let originator = head.originator();
                [head.key.endpoint(originator.opposite()), head.key.endpoint(originator)]
            }
        })
    }

    /// Records the decision for further packets of this flow and direction. Nothing is recorded
    /// before the connection has seen a reply, nor if a stage must see each of its packets:
    /// because of a helper, of shifted sequence numbers, of the SYN proxy or of a tunnel.
    #[inline]
    pub fn record(&mut self, tracked: &Tracked, forwarding: Forwarding) {
        if let (Some(ConnectionId(slot)), Some(direction)) = (tracked.connection, tracked.direction)
            && tracked.class == Class::Established
            && tracked.has_seen_reply()
            && !tracked.status.has(UNUSUAL)
            && !self.slab[slot].head.key.is_tunnel()
        {
            self.slab.forwardings.set(slot, direction, forwarding);
        }
    }
}
