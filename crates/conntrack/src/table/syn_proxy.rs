//! Connections that the SYN proxy has opened.

use flow::{FlowKey, KeyedPacket, Timestamp};

use super::{Hit, Table};
use crate::connection::Status;
use crate::proto::State;
use crate::proto::tcp::TcpState;
use crate::syn_proxy::Proxied;
use crate::{Context, Direction};

impl Table {
    /// The state of the SYN proxy for the connection of a packet, and the direction of the
    /// packet (for an ICMP error, that of the quoted packet). `None` for connections that the
    /// proxy did not open. Costs one test if it has opened none.
    #[inline]
    pub fn proxied(
        &self,
        keyed: &KeyedPacket,
        hash: u64,
        now: Timestamp,
    ) -> Option<(Direction, &Proxied)> {
        if !self.slab.has_proxied() {
            return None;
        }
        let Hit { slot, direction } = self.look_up(keyed, hash)?;
        let entry = &self.slab[slot];
        if !entry.head.status.has(Status::PROXIED) || entry.is_over(now) {
            return None;
        }
        Some((direction, self.slab.proxied(slot)?))
    }

    /// Ends a connection that its ends have closed, because its opener was promised another.
    pub fn end_closed(&mut self, key: &FlowKey, hash: u64, context: &mut Context<'_>) {
        if let Some(slot) = self.slot_of(key, hash)
            && let State::Tcp(tcp) = &self.slab[slot].body.state
            && matches!(tcp.state(), TcpState::TimeWait | TcpState::Close)
        {
            self.close(slot, context);
        }
    }

    /// Sets the state of the SYN proxy for the connection of a packet; without effect if there
    /// is no such connection.
    pub fn set_proxied(
        &mut self,
        keyed: &KeyedPacket,
        hash: u64,
        proxied: Proxied,
        context: &mut Context<'_>,
    ) {
        if let Some(Hit { slot, .. }) = self.look_up(keyed, hash) {
            self.slab.set_proxied(slot, proxied);
            self.note_change(slot, context);
        }
    }

    /// The flow of packets in the opposite direction to `keyed`, and the hash of its key as the
    /// table needs it. If the connection is translated, they have another key.
    pub fn way_back(&self, keyed: &KeyedPacket, hash: u64) -> Option<(KeyedPacket, u64)> {
        let Hit { slot, direction } = self.look_up(keyed, hash)?;
        let back = KeyedPacket { sender: keyed.sender.opposite(), ..*keyed };
        Some(match (self.slab.translation(slot), direction) {
            (None, _) => (back, hash),
            (Some(translation), Direction::Original) => {
                (translation.reply(), translation.hash.into())
            }
            (Some(_), Direction::Reply) => (self.original(slot), self.slab.hash_of(slot).into()),
        })
    }
}
