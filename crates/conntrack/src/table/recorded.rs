//! What was decided for the packets of a connection is kept beside it.

use flow::{Class, Endpoint, KeyedPacket, Timestamp};

use super::{Met, Table};
use crate::entry::Status;
use crate::slab::Translation;
use crate::{ConnectionId, Direction, Forwarding, Guess, Tracked};

/// Connections for which nothing is recorded: somebody has to look at each of their packets.
const WATCHED: Status = Status::WATCHED.with(Status::PROXIED).with(Status::FRESH);

impl Table {
    /// Has everything that was recorded before hold no longer, unless this was called for the
    /// same `reason` before. To be called before [`Table::forwarding`]: what decisions are made
    /// from may have changed, and the table may have come to another worker.
    #[inline]
    pub fn begin_generation(&mut self, reason: u64) {
        self.slab.recorded.begin(reason);
    }

    /// Where the connection of a flow most likely lies.
    pub fn guess(&self, hash: u64) -> Guess {
        self.index.guess(hash as u32).map_or(Guess::NONE, Guess)
    }

    /// What was recorded for packets of this flow and direction, if their connection lies where
    /// it was guessed and its time is not over.
    #[inline]
    pub fn forwarding(
        &self,
        guess: Guess,
        packet: &KeyedPacket,
        now: Timestamp,
    ) -> Option<Forwarding> {
        let Met { slot, direction } = self.guessed(guess, packet)?;
        let is_live = !self.slab[slot].head.is_expired(now);
        self.slab.recorded.get(slot, direction).filter(|_| is_live)
    }

    /// The ends that a TCP segment or UDP datagram of a translated connection leaves with, the
    /// source first; `None` if its connection is not translated.
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

    /// Records how packets like this one are forwarded from now on. Without effect unless its
    /// connection has seen a reply and nobody has to look at each of its packets: a connection
    /// with a helper or shifted numbers, one that the SYN proxy has opened, a part of a tunnel.
    #[inline]
    pub fn record(&mut self, tracked: &Tracked, forwarding: Forwarding) {
        if let (Some(ConnectionId(slot)), Some(direction)) = (tracked.connection, tracked.direction)
            && tracked.class == Class::Established
            && tracked.has_seen_reply()
            && !tracked.status.has(WATCHED)
            && !self.slab[slot].head.key.is_tunnel()
        {
            self.slab.recorded.set(slot, direction, forwarding);
        }
    }
}
