//! Connections that the SYN proxy has opened.

use flow::{FlowKey, KeyedPacket, Timestamp};

use super::{Met, Table};
use crate::Direction;
use crate::entry::Status;
use crate::syn_proxy::Proxied;

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

    /// Keeps what the SYN proxy has to know of a connection; without effect if there is
    /// no such connection.
    pub fn set_proxied(&mut self, key: &FlowKey, hash: u64, proxied: Proxied) {
        if let Some(slot) = self.slot_of(key, hash) {
            self.slab.set_proxied(slot, proxied);
        }
    }
}
