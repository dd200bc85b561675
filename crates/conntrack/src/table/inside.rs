//! Connections inside tunnels.
//!
//! Where the packet that a tunnel carries is judged as well, its connection lies here and not
//! among those of the bucket, so neither can be taken for the other. Each tunnel has a number in
//! the bucket, which stands for the zone in the keys of what it carries. So no connection inside
//! one tunnel is met from another.
//!
//! Numbers that no connection has any more are used again. Which these are is looked for after as
//! many new passages as there were connections, but for a few, so the limit of connections bounds
//! the memory; and earlier where numbers run out.

use std::collections::{BTreeMap, BTreeSet};

use flow::{FlowKey, Timestamp, Zone};

use super::Table;

/// New passages that a bucket always takes before it looks again which numbers are used.
const FEW: usize = 64;
/// How many numbers there are.
const NUMBERS: usize = 1 << 16;

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
    /// New passages until it is looked which numbers are used.
    until_look: usize,
}

impl Inside {
    /// There are none.
    pub fn new(now: Timestamp) -> Self {
        let (connections, numbers) = (Table::new(now), BTreeMap::new());
        Self { connections, numbers, free: Vec::new(), until_look: FEW }
    }

    /// The number of a passage; `None` if none is left, and so many connections are inside other
    /// tunnels.
    pub fn number(&mut self, passage: Passage) -> Option<Zone> {
        if let Some(&number) = self.numbers.get(&passage) {
            return Some(Zone(number));
        }
        if self.until_look == 0 {
            self.forget_unused();
            let used = self.numbers.len();
            self.until_look = FEW.max(used.min(NUMBERS - used));
        }
        self.until_look -= 1;
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
