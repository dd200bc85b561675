//! Connections inside tunnels.
//!
//! Where the packet that a tunnel carries is judged as well, its connection lies here and not
//! among those of the bucket, so neither can be taken for the other. Each tunnel has a number in
//! the bucket, which stands for the zone in the keys of what it carries. So no connection inside
//! one tunnel is met from another.
//!
//! Numbers that no connection has any more are used again. There are never more than twice as
//! many as connections, but for a few, so the limit of connections bounds the memory.

use std::collections::{BTreeMap, BTreeSet};

use flow::{FlowKey, Timestamp, Zone};

use super::Table;

/// Numbers that a bucket may give before it looks which are used.
const FEW: usize = 64;

/// What connections inside have in common: the tunnel's own connection, by the packets of its
/// originator, and inside that the VLAN.
pub type Passage = (FlowKey, u16);

/// The connections of one bucket that are inside tunnels.
#[derive(Debug)]
pub struct Inside {
    /// The connections. The zone of their keys is [a number](Inside::number).
    pub connections: Table,
    numbers: BTreeMap<Passage, u16>,
    /// Numbers below that of [`Inside::numbers`] that nobody has.
    free: Vec<u16>,
}

impl Inside {
    /// There are none.
    pub fn new(now: Timestamp) -> Self {
        Self { connections: Table::new(now), numbers: BTreeMap::new(), free: Vec::new() }
    }

    /// The number of a passage; `None` if none is left, and so many connections are inside other
    /// tunnels.
    pub fn number(&mut self, passage: Passage) -> Option<Zone> {
        if let Some(&number) = self.numbers.get(&passage) {
            return Some(Zone(number));
        }
        if self.numbers.len() >= FEW.max(2 * self.connections.len()) {
            self.forget_unused();
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None => u16::try_from(self.numbers.len()).ok()?,
        };
        self.numbers.insert(passage, number);
        Some(Zone(number))
    }

    fn forget_unused(&mut self) {
        let used: BTreeSet<u16> = self.connections.zones_of_all().map(|zone| zone.0).collect();
        let free = &mut self.free;
        self.numbers.retain(|_, number| {
            let is_used = used.contains(number);
            if !is_used {
                free.push(*number);
            }
            is_used
        });
    }
}

impl Table {
    /// The flow of a connection, as packets of its originator name it.
    pub fn flow_of(&self, id: crate::ConnectionId) -> FlowKey {
        self.original(id.0).key
    }

    fn zones_of_all(&self) -> impl Iterator<Item = Zone> {
        (0..self.slab.slots()).filter_map(|slot| Some(self.slab.live(slot)?.head.key.zone))
    }
}

#[cfg(test)]
#[path = "inside_tests.rs"]
mod tests;
