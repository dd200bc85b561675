//! A global limit, handed out in leases.
//!
//! Two workers run at half speed if every packet touches a shared counter. So a worker takes
//! many units from the pool at a time, spends them without touching the pool, and gives back
//! the units that it does not need. Leased units count inside the cap, so the sum that all
//! workers hold can never exceed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The pool behind the leases; clones share it.
#[derive(Clone, Debug)]
pub struct LeasePool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    cap: AtomicU64,
    /// The announced cap, which may be lower than the present one.
    planned: AtomicU64,
    leased: AtomicU64,
    /// Units that are missing from the floors of leases.
    owed: AtomicU64,
    alarm: Alarm,
}

/// Counts how often units have come to be missing in any of several pools. A worker that finds
/// the count unchanged need not check its leases. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Alarm(Arc<AtomicU64>);

impl Alarm {
    /// How often a lease was owed more than before, or a lower cap took effect. The count rises
    /// after the event itself is visible.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// A worker's share of a pool. A lease that is dropped returns all its units, those that are spent
/// too; an owner whose spent units are gone for good [surrenders](Lease::surrender) them before.
#[derive(Debug)]
pub struct Lease {
    pool: LeasePool,
    /// Units taken from the pool and not spent.
    spare: u64,
    /// Units spent.
    used: u64,
    /// Units asked for at a time.
    quantum: u64,
    /// Units that this lease is granted before any other gets more than its floor.
    floor: u64,
    /// Units of the floor that the pool did not have.
    owed: u64,
}

impl LeasePool {
    /// A pool of `cap` units.
    pub fn new(cap: u64) -> Self {
        Self::with_alarm(cap, Alarm::default())
    }

    /// A pool of `cap` units that rings an alarm when units are missing.
    pub fn with_alarm(cap: u64, alarm: Alarm) -> Self {
        let [leased, owed] = [AtomicU64::new(0), AtomicU64::new(0)];
        let [cap, planned] = [AtomicU64::new(cap), AtomicU64::new(cap)];
        Self { shared: Arc::new(Shared { cap, planned, leased, owed, alarm }) }
    }

    /// The limit, units.
    pub fn cap(&self) -> u64 {
        self.shared.cap.load(Ordering::Relaxed)
    }

    /// The limit that [`LeasePool::plan_cap`] has announced. Floors and quanta have to fit it.
    pub fn planned_cap(&self) -> u64 {
        self.shared.planned.load(Ordering::Relaxed)
    }

    /// Announces another limit. A higher one takes effect at once. A lower one takes effect
    /// with [`LeasePool::repay_over_cap`]; before that call every lease should get a floor and a
    /// quantum that fit the new limit. Otherwise one lease may hold spare units that the others
    /// lack, and these give up entries for which there would be room.
    pub fn plan_cap(&self, cap: u64) {
        self.shared.planned.store(cap, Ordering::Relaxed);
        self.shared.cap.fetch_max(cap, Ordering::Relaxed);
    }

    /// Puts the announced limit into effect. The pool takes nothing away when more than that is
    /// leased; it refuses new leases until enough has come back.
    pub fn repay_over_cap(&self) {
        self.shared.cap.store(self.planned_cap(), Ordering::Relaxed);
        self.shared.alarm.ring();
    }

    /// Units that are leased, spent or not.
    pub fn leased(&self) -> u64 {
        self.shared.leased.load(Ordering::Relaxed)
    }

    /// True if no unit is left.
    pub fn is_used_up(&self) -> bool {
        self.leased() + self.owed() >= self.cap()
    }

    /// A lease that asks for `quantum` units at a time. With a quantum of 0 it takes exactly
    /// the units that it spends, returns those that are released, and never holds spare units.
    pub fn lease(&self, quantum: u64) -> Lease {
        self.lease_with_floor(quantum, 0)
    }

    /// A lease that is granted `floor` units before any other gets more than its own floor, so
    /// that one worker can not starve another. When the pool has nothing left, it owes the
    /// units: the other leases [are overdrawn](Lease::is_overdrawn) until they have given up as
    /// much. The sum of all floors must be inside the cap.
    pub fn lease_with_floor(&self, quantum: u64, floor: u64) -> Lease {
        let mut lease = Lease { pool: self.clone(), spare: 0, used: 0, quantum, floor: 0, owed: 0 };
        lease.set_floor(floor);
        lease
    }

    /// Takes up to `wanted` units, as many as the cap allows if `kept` units stay in the pool.
    fn take(&self, wanted: u64, kept: u64) -> u64 {
        let mut granted = 0;
        // Relaxed: the counter guards no other memory, only its own sum.
        let _ = self.shared.leased.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |leased| {
            granted = wanted.min(self.cap().saturating_sub(leased + kept));
            (granted > 0).then(|| leased + granted)
        });
        granted
    }

    fn owed(&self) -> u64 {
        self.shared.owed.load(Ordering::Relaxed)
    }

    fn give_back(&self, units: u64) {
        self.shared.leased.fetch_sub(units, Ordering::Relaxed);
    }
}

impl Lease {
    /// Spends `units`; false, with nothing spent, when the pool can not cover them.
    #[must_use]
    #[inline]
    pub fn spend(&mut self, units: u64) -> bool {
        if self.spare < units && !self.refill(units) {
            return false;
        }
        self.spare -= units;
        self.used += units;
        true
    }

    /// Asks the pool for the missing units; true if `units` can be spent now.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, units: u64) -> bool {
        self.fill_to_floor();
        let short = units.saturating_sub(self.spare);
        self.spare += self.pool.take(short.max(self.quantum), self.pool.owed());
        self.spare >= units
    }

    /// Returns spent units. When more than two quanta are spare, those below the floor not
    /// counted, the lease gives the surplus back to the pool at once, so that it does not
    /// starve other workers.
    #[inline]
    pub fn release(&mut self, units: u64) {
        debug_assert!(units <= self.used, "released more than was spent");
        let units = units.min(self.used);
        self.used -= units;
        self.spare += units;
        if self.spare > self.reserve() + 2 * self.quantum {
            self.keep_spare(self.reserve() + self.quantum);
        }
    }

    /// True if this lease holds more than its floor while the pool lacks units for floors or
    /// has leased more than its cap. Its owner should then release some units and
    /// [settle](Lease::repay).
    pub fn is_overdrawn(&self) -> bool {
        self.spare + self.used > self.floor
            && self.pool.leased() + self.pool.owed() > self.pool.cap()
    }

    /// Gives the spare units above the floor back if the pool lacks units, and takes the units
    /// that its own floor lacks.
    pub fn repay(&mut self) {
        if self.is_overdrawn() {
            self.keep_spare(self.reserve());
        }
        self.fill_to_floor();
    }

    /// Gives the spare units above the floor back.
    pub fn give_back(&mut self) {
        self.keep_spare(self.reserve());
    }

    /// Changes how many units the lease asks for at a time. With a smaller quantum it gives
    /// back the surplus.
    pub fn set_quantum(&mut self, quantum: u64) {
        self.quantum = quantum;
        self.keep_spare(self.reserve() + quantum);
    }

    /// Changes the floor.
    pub fn set_floor(&mut self, floor: u64) {
        self.floor = floor;
        self.fill_to_floor();
    }

    fn fill_to_floor(&mut self) {
        let missing = self.floor.saturating_sub(self.spare + self.used);
        if missing == 0 && self.owed == 0 {
            return;
        }
        let granted = self.pool.take(missing, 0);
        self.spare += granted;
        let owed = missing - granted;
        // The addition wraps round when the debt falls.
        self.pool.shared.owed.fetch_add(owed.wrapping_sub(self.owed), Ordering::Relaxed);
        if owed > self.owed {
            self.pool.shared.alarm.ring();
        }
        self.owed = owed;
    }

    /// Spare units that belong to the floor.
    #[inline]
    fn reserve(&self) -> u64 {
        self.floor.saturating_sub(self.used)
    }

    #[cold]
    #[inline(never)]
    fn keep_spare(&mut self, units: u64) {
        let surplus = self.spare.saturating_sub(units);
        self.spare -= surplus;
        self.pool.give_back(surplus);
    }

    /// Another lease of the same pool that asks for as many units at a time, without a floor.
    pub fn another(&self) -> Self {
        self.pool.lease(self.quantum)
    }

    /// The pool of this lease.
    pub fn pool(&self) -> &LeasePool {
        &self.pool
    }

    /// Units spent and not released.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Units held but not spent.
    pub fn spare(&self) -> u64 {
        self.spare
    }

    /// Gives up `units` of the spent ones without returning them to the pool. A bucket that
    /// changes its worker takes its entries' units along, and its new worker must
    /// [`Lease::adopt`] them. Units that nobody adopts stay spent.
    pub fn surrender(&mut self, units: u64) {
        debug_assert!(units <= self.used, "surrendered more than was spent");
        self.used -= units.min(self.used);
        self.fill_to_floor();
    }

    /// Takes over units that another lease of the same pool surrendered.
    pub fn adopt(&mut self, units: u64) {
        self.used += units;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.give_back(self.spare + self.used);
        self.pool.shared.owed.fetch_sub(self.owed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_never_exceed_the_cap() {
        let pool = LeasePool::new(10);
        let (mut a, mut b) = (pool.lease(4), pool.lease(4));
        let spent_a = (0..20).filter(|_| a.spend(1)).count();
        let spent_b = (0..20).filter(|_| b.spend(1)).count();
        assert_eq!((spent_a, spent_b), (10, 0));
        a.release(10);
        assert!(pool.leased() <= 8, "surplus went back: {}", pool.leased());
        assert!(b.spend(1));
        drop((a, b));
        assert_eq!(pool.leased(), 0);
    }

    #[test]
    fn two_leases_together_stay_inside_the_cap() {
        let pool = LeasePool::new(10);
        let (mut a, mut b) = (pool.lease(8), pool.lease(8));
        assert!(a.spend(1) && b.spend(1));
        assert_eq!((a.spare(), b.spare(), pool.leased()), (7, 1, 10));
        assert!(!b.spend(3), "only what the pool still has");
        assert_eq!(b.used(), 1);
    }

    #[test]
    fn units_that_travel_stay_counted() {
        let pool = LeasePool::new(10);
        let (mut a, mut b) = (pool.lease(1), pool.lease(1));
        assert!(a.spend(6));
        a.surrender(6);
        b.adopt(6);
        drop(a);
        assert_eq!(pool.leased(), 6);
        assert!(!b.spend(5));
        drop(b);
        assert_eq!(pool.leased(), 0);
    }

    #[test]
    fn a_lower_cap_refuses_until_units_return() {
        let pool = LeasePool::new(4);
        let mut lease = pool.lease(1);
        assert!((0..4).all(|_| lease.spend(1)));
        pool.plan_cap(2);
        assert_eq!((pool.cap(), pool.planned_cap()), (4, 2));
        pool.repay_over_cap();
        lease.release(1);
        assert_eq!(lease.spare(), 1);
        lease.release(3);
        assert!(lease.spend(1));
        assert!(pool.leased() <= 2);
    }

    #[test]
    fn a_floor_is_owed_by_those_who_hold_more_than_theirs() {
        let pool = LeasePool::new(100);
        let mut greedy = pool.lease(10);
        assert!(greedy.spend(100));
        let mut modest = pool.lease_with_floor(10, 20);
        assert!(!modest.spend(1), "nothing is there");
        assert!(greedy.is_overdrawn() && !modest.is_overdrawn());
        greedy.release(20);
        greedy.repay();
        assert!(!greedy.is_overdrawn());
        assert!(!greedy.spend(1), "it is owed to the other");
        assert!(modest.spend(20), "all of the floor");
        assert!(!modest.spend(1), "and no more");
        modest.release(20);
        assert_eq!((modest.spare(), pool.leased()), (20, 100), "the floor is kept");
        drop(modest);
        assert!(greedy.spend(20));
        drop(greedy);
        assert_eq!((pool.leased(), pool.owed()), (0, 0));
    }
}
