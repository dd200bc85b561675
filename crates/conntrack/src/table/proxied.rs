//! Connections that the SYN proxy has opened.

use flow::{FlowKey, KeyedPacket, Timestamp};

use super::{Met, Table};
use crate::entry::Status;
use crate::proto::State;
use crate::proto::tcp::TcpState;
use crate::syn_proxy::Proxied;
use crate::{Context, Direction};

impl Table {
    /// What the SYN proxy knows of the connection of a packet, and the direction of the
    /// packet (for an ICMP error: of what it quotes). `None` for connections that it did
    /// not open; costs one test while there are none that it did.
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
        let Met { slot, direction } = self.look_up(keyed, hash)?;
        let head = &self.slab[slot].head;
        if !head.status.has(Status::PROXIED) || head.is_expired(now) {
            return None;
        }
        Some((direction, self.slab.proxied(slot)?))
    }

    /// Ends what is left of a connection that its ends have closed: its opener has been
    /// promised another.
    pub fn end_closed(&mut self, key: &FlowKey, hash: u64, context: &mut Context<'_>) {
        if let Some(slot) = self.slot_of(key, hash)
            && let State::Tcp(tcp) = &self.slab[slot].body.state
            && matches!(tcp.state(), TcpState::TimeWait | TcpState::Close)
        {
            self.close(slot, context);
        }
    }

    /// Keeps what the SYN proxy has to know of a connection; without effect if there is
    /// no such connection.
    pub fn set_proxied(&mut self, key: &FlowKey, hash: u64, proxied: Proxied) {
        if let Some(slot) = self.slot_of(key, hash) {
            self.slab.set_proxied(slot, proxied);
        }
    }
}
