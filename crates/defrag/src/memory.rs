//! The limits on fragment memory, for each family.
//!
//! The limits `ipfrag_high_thresh` and `ip6frag_high_thresh` hold for the whole
//! gateway. Workers spend from leases that count inside them; a quarter of each
//! limit is divided evenly as floors, so that a worker whose fragments are few
//! can always take them in while another is flooded.

use flow::{Lease, LeasePool};
use wire::Family;

use crate::Settings;

/// The part of a limit that is divided as floors: 1 / `FLOOR_SHARE`.
const FLOOR_SHARE: u64 = 4;
/// A worker asks for 1 / `QUANTUM_SHARE` of its even share at a time ...
const QUANTUM_SHARE: u64 = 16;
/// ... but for no more than this, bytes.
const LARGEST_QUANTUM: u64 = 256 << 10;

/// The index into pairs by family: 0 for IPv4, 1 for IPv6.
pub(crate) const fn family_index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

/// The fragment memory of the gateway. Clones share it.
#[derive(Clone, Debug)]
pub struct Pools {
    pools: [LeasePool; 2],
}

impl Pools {
    /// Pools with the limits of the settings.
    pub fn new(settings: &Settings) -> Self {
        Self { pools: settings.families().map(|family| LeasePool::new(family.high_thresh)) }
    }

    /// Announces changed limits. If a limit falls, workers that hold more evict in their next
    /// calls of [`crate::Reassembler::expire`].
    pub fn apply(&self, settings: &Settings) {
        for (pool, family) in self.pools.iter().zip(settings.families()) {
            pool.plan_cap(family.high_thresh);
        }
    }

    /// Puts lower limits into effect. To be called when all workers have
    /// [fitted](Memory::set_workers) their leases to them.
    pub fn repay(&self) {
        self.pools.iter().for_each(LeasePool::repay_over_cap);
    }

    /// The share of one of `workers` workers (at least 1).
    pub fn memory(&self, workers: u32) -> Memory {
        Memory {
            leases: self
                .pools
                .each_ref()
                .map(|pool| pool.lease_with_floor(quantum(pool, workers), floor(pool, workers))),
            pools: self.clone(),
        }
    }

    /// Bytes that the workers have leased, spent or not.
    pub fn leased(&self, family: Family) -> u64 {
        self.pools[family_index(family)].leased()
    }
}

fn floor(pool: &LeasePool, workers: u32) -> u64 {
    pool.planned_cap() / FLOOR_SHARE / u64::from(workers.max(1))
}

fn quantum(pool: &LeasePool, workers: u32) -> u64 {
    (pool.planned_cap() / QUANTUM_SHARE / u64::from(workers.max(1))).min(LARGEST_QUANTUM)
}

/// The share of a worker in the fragment memory.
#[derive(Debug)]
pub struct Memory {
    leases: [Lease; 2],
    pools: Pools,
}

impl Memory {
    /// Adapts floors and quanta to a number of workers and to changed limits.
    pub fn set_workers(&mut self, workers: u32) {
        for (lease, pool) in self.leases.iter_mut().zip(&self.pools.pools) {
            lease.set_floor(floor(pool, workers));
            lease.set_quantum(quantum(pool, workers));
        }
    }

    /// Bytes that the worker holds.
    pub fn used(&self, family: Family) -> u64 {
        self.leases[family_index(family)].used()
    }

    #[inline]
    pub(crate) fn lease(&mut self, family: Family) -> &mut Lease {
        &mut self.leases[family_index(family)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_lease_follows_workers_and_limits() {
        const KIB: u64 = 1 << 10;
        let mut settings = Settings::default();
        settings.v4.high_thresh = 1024 * KIB;
        let pools = Pools::new(&settings);
        let mut memory = pools.memory(1);
        let leased = || pools.leased(Family::V4);
        assert_eq!(leased(), 256 * KIB, "the floor: a quarter");
        assert!(memory.lease(Family::V4).spend(256 * KIB + 1));
        assert_eq!(leased(), (256 + 64) * KIB, "a sixteenth at a time");
        memory.lease(Family::V4).release(256 * KIB + 1);

        memory.set_workers(16);
        assert_eq!(leased(), (16 + 4) * KIB, "what a smaller pocket does not hold went back");
        assert!(memory.lease(Family::V4).spend(20 * KIB + 1));
        assert_eq!(leased(), (20 + 4) * KIB);
        memory.lease(Family::V4).release(20 * KIB + 1);

        settings.v4.high_thresh = 4 * 1024 * KIB;
        pools.apply(&settings);
        pools.repay();
        memory.set_workers(2);
        assert!(memory.lease(Family::V4).spend(512 * KIB + 1));
        assert_eq!(leased(), (512 + 128) * KIB);
    }
}
