//! Connections inside tunnels.
//!
//! If the rules also judge the packets inside a tunnel, the connections of those packets are
//! here and not among those of the bucket, so neither can be mistaken for the other. Each
//! tunnel has a number in the bucket, which takes the place of the zone in the keys of its
//! packets. So a packet inside one tunnel never meets a connection inside another.
//!
//! Numbers without connections are used again. There are at most twice as many numbers as
//! connections, apart from a few, so the limit of connections bounds the memory.

use std::collections::{BTreeMap, BTreeSet};

use flow::{FlowKey, Timestamp, Zone};

use super::Table;

/// Numbers that a bucket gives out before it looks for unused ones.
const FEW: usize = 64;
/// How many numbers there are.
const NUMBERS: usize = 1 << 16;

/// The properties that connections inside one tunnel share: the key of the tunnel's own
/// connection, and the VLAN inside the tunnel.
pub type Passage = (FlowKey, u16);

/// The connections of one bucket that are inside tunnels.
#[derive(Debug)]
pub struct Inside {
    /// The connections. The zone in their keys is [a number](Inside::number).
    pub connections: Table,
    numbers: BTreeMap<Passage, u16>,
    /// Unused numbers below the length of [`Inside::numbers`].
    free: Vec<u16>,
    /// New passages until it is looked which numbers are used.
    until_look: usize,
}

impl Inside {
    /// No connections.
    pub fn new(now: Timestamp) -> Self {
        let (connections, numbers) = (Table::new(now), BTreeMap::new());
        Self { connections, numbers, free: Vec::new(), until_look: FEW }
    }

    /// The number of a passage; `None` if all numbers are in use by connections inside other
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
    /// The key of a connection, in the addresses of its originator's packets.
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
