//! Rates and quotas, exact over all workers.
//!
//! A rate is kept as the time up to which it is used up. A packet passes only while that time is
//! not in the future, and moves it on by its cost. This is a token bucket in one number, so all
//! workers can share it without a lock. A packet over the limit only reads the number. A packet
//! within the limit writes it, so writes are at most as frequent as the rate allows. Where that is
//! more than once in 100 µs, a worker takes credit for several packets at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flow::{Lease, LeasePool, Timestamp};

use crate::model::{Quota, Rate};

/// A worker takes credit for at most one second divided by this number.
const CREDIT_PER_SECOND: u64 = 10_000;
/// The largest number of bytes of a quota that a worker holds unused.
const QUOTA_QUANTUM: u64 = 64 << 10;

/// Costs of a rate, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// The cost of a packet; `None` for a rate of bytes.
    packet: Option<u64>,
    /// The period, in which `amount` bytes pass.
    period: u64,
    amount: u64,
    /// The cost of the largest burst.
    pub most: u64,
}

impl Costs {
    /// Costs of a rate that lets everything pass.
    pub const NONE: Self = Self { packet: Some(0), period: 0, amount: 1, most: 0 };

    /// Computes the costs as the kernel does, so that both allow the same packets.
    pub fn of(rate: &Rate) -> Self {
        let period = u64::try_from(rate.period.as_nanos()).unwrap_or(u64::MAX);
        let amount = rate.amount.max(1);
        if rate.in_bytes {
            let all = u128::from(period) * (u128::from(amount) + u128::from(rate.burst));
            let most = u64::try_from(all / u128::from(amount)).unwrap_or(u64::MAX / 4);
            return Self { packet: None, period, amount, most };
        }
        let packet = period / amount;
        let most = packet.saturating_mul(rate.burst);
        Self { packet: Some(packet), period, amount, most }
    }

    /// The costs of one worker's share: a worker sees only a part of the packets for an element.
    pub fn shared(self, workers: u64) -> Self {
        let packet = self.packet.map(|packet| packet.saturating_mul(workers));
        let most = self.most.max(packet.unwrap_or(0));
        Self { packet, period: self.period.saturating_mul(workers), amount: self.amount, most }
    }

    #[inline]
    pub fn of_packet(&self, bytes: u64) -> u64 {
        if let Some(packet) = self.packet {
            return packet;
        }
        (u128::from(self.period) * u128::from(bytes) / u128::from(self.amount)) as u64
    }
}

/// Offset of all times, nanoseconds, so that credit from before the start is not negative.
const SHIFT: u64 = 1 << 62;

/// A rate that all workers share.
#[derive(Debug)]
pub(super) struct SharedRate {
    costs: Costs,
    over: bool,
    used_until: AtomicU64,
    /// Packets of credit that a worker takes at a time.
    quantum: u64,
}

impl SharedRate {
    pub fn new(rate: &Rate, workers: u64) -> Self {
        let costs = Costs::of(rate);
        let per_second = rate.amount / rate.period.as_secs().max(1);
        let most = if rate.in_bytes || workers < 2 { 1 } else { rate.burst / (2 * workers) };
        let quantum = (per_second / CREDIT_PER_SECOND).clamp(1, most.max(1));
        Self { costs, over: rate.over, used_until: AtomicU64::new(0), quantum }
    }
}

/// A worker's end of a rate.
#[derive(Debug)]
pub(super) struct RateLease {
    shared: Arc<SharedRate>,
    /// Packets that may pass before the worker takes more.
    credit: u64,
}

impl RateLease {
    pub fn new(shared: Arc<SharedRate>) -> Self {
        Self { shared, credit: 0 }
    }

    /// True if the rule goes on.
    #[inline]
    pub fn matches(&mut self, bytes: u64, now: Timestamp) -> bool {
        self.passes(bytes, now) != self.shared.over
    }

    /// As [`matches`](Self::matches), but uses nothing of the rate.
    pub fn would_match(&self, bytes: u64, now: Timestamp) -> bool {
        let SharedRate { costs, used_until, over, .. } = &*self.shared;
        let mut used_until = used_until.load(Ordering::Relaxed);
        let cost = costs.of_packet(bytes);
        (self.credit > 0 || take_alone(&mut used_until, cost, costs.most, now)) != *over
    }

    fn passes(&mut self, bytes: u64, now: Timestamp) -> bool {
        if self.credit > 0 {
            self.credit -= 1;
            return true;
        }
        let SharedRate { costs, used_until, quantum, .. } = &*self.shared;
        let cost = costs.of_packet(bytes);
        if take(used_until, cost.saturating_mul(*quantum), costs.most, now) {
            self.credit = quantum - 1;
            return true;
        }
        *quantum > 1 && take(used_until, cost, costs.most, now)
    }
}

/// Moves the time on by a cost, unless it would then be in the future.
fn take(used_until: &AtomicU64, cost: u64, most: u64, now: Timestamp) -> bool {
    let now = SHIFT + now.as_nanos();
    let mut before = used_until.load(Ordering::Relaxed);
    loop {
        let used = before.max(now - most.min(SHIFT)).saturating_add(cost);
        if used > now {
            return false;
        }
        // Relaxed: the number guards no other memory.
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        match used_until.compare_exchange_weak(before, used, success, failure) {
            Ok(_) => return true,
            Err(other) => before = other,
        }
    }
}

/// As [`take`], for an element of a set, which belongs to one worker.
pub(super) fn take_alone(used_until: &mut u64, cost: u64, most: u64, now: Timestamp) -> bool {
    let now = SHIFT + now.as_nanos();
    let used = (*used_until).max(now - most.min(SHIFT)).saturating_add(cost);
    if used <= now {
        *used_until = used;
    }
    used <= now
}

/// A worker's end of a quota. When it ends, only what it has not used goes back to the pool.
#[derive(Debug)]
pub(super) struct QuotaLease {
    lease: Lease,
    over: bool,
    used_up: bool,
}

impl QuotaLease {
    /// The pool of a quota.
    pub fn pool(quota: &Quota) -> LeasePool {
        // The packet that reaches the quota is over it, as in the kernel.
        LeasePool::new(quota.bytes.saturating_sub(quota.used))
    }

    pub fn new(pool: &LeasePool, quota: &Quota, workers: u64) -> Self {
        let share = quota.bytes / (16 * workers);
        let quantum = if workers < 2 { 0 } else { share.min(QUOTA_QUANTUM) };
        Self { lease: pool.lease(quantum), over: quota.over, used_up: false }
    }

    /// True if the rule goes on.
    pub fn matches(&mut self, bytes: u64) -> bool {
        // A quota that is used up stays so, also for packets that would still fit.
        self.used_up = self.used_up || !self.lease.spend(bytes);
        self.used_up == self.over
    }

    /// True if the rule would go on for a packet that uses nothing.
    pub fn would_match(&self) -> bool {
        self.used_up == self.over
    }

    /// Makes the quota usable again, as far as its pool goes.
    pub fn reset(&mut self) {
        self.used_up = false;
    }

    /// Bytes of the quota that this worker has used.
    pub fn used(&self) -> u64 {
        self.lease.used()
    }
}

impl Drop for QuotaLease {
    fn drop(&mut self) {
        // A lease that ends returns what it has spent too: connections end, but bytes that have
        // passed stay used.
        self.lease.surrender(self.lease.used());
    }
}
