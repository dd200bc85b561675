//! Rates and quotas, exact over all workers.
//!
//! A rate is kept as the time up to which it is used up. A packet passes only while that time is
//! not in the future, and moves it on by its cost. This is a token bucket in one number, so all
//! workers can share it without a lock. A packet over the limit only reads the number. A packet
//! within the limit writes it, so writes are at most as frequent as the rate allows.
//!
//! Of a quota, workers take pieces, because every packet uses some of it. A worker that finds
//! nothing left takes back what the others have not used, so no byte is refused that would fit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flow::Timestamp;

use crate::model::{Quota, Rate};

/// The largest piece of a quota that a worker takes, in bytes.
const QUOTA_PIECE: u64 = 64 << 10;

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
}

impl SharedRate {
    pub fn new(rate: &Rate) -> Self {
        Self { costs: Costs::of(rate), over: rate.over, used_until: AtomicU64::new(0) }
    }

    /// True if the rule goes on.
    #[inline]
    pub fn matches(&self, bytes: u64, now: Timestamp) -> bool {
        let cost = self.costs.of_packet(bytes);
        take(&self.used_until, cost, self.costs.most, now) != self.over
    }

    /// The cost that could pass now, nanoseconds.
    pub fn credit(&self, now: Timestamp) -> u64 {
        credit(self.used_until.load(Ordering::Relaxed), self.costs.most, now)
    }

    /// Goes on with a credit.
    pub fn set_credit(&self, credit: u64, now: Timestamp) {
        self.used_until.store(with_credit(credit, self.costs.most, now), Ordering::Relaxed);
    }

    /// As [`matches`](Self::matches), but uses nothing of the rate.
    pub fn would_match(&self, bytes: u64, now: Timestamp) -> bool {
        let mut used_until = self.used_until.load(Ordering::Relaxed);
        let cost = self.costs.of_packet(bytes);
        take_alone(&mut used_until, cost, self.costs.most, now) != self.over
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

/// As [`take`], for a number that nobody else writes meanwhile.
pub(super) fn take_alone(used_until: &mut u64, cost: u64, most: u64, now: Timestamp) -> bool {
    let now = SHIFT + now.as_nanos();
    let used = (*used_until).max(now - most.min(SHIFT)).saturating_add(cost);
    if used <= now {
        *used_until = used;
    }
    used <= now
}

/// The cost that a rate which is used up to a time could let pass now, nanoseconds.
pub(super) fn credit(used_until: u64, most: u64, now: Timestamp) -> u64 {
    (SHIFT + now.as_nanos()).saturating_sub(used_until).min(most)
}

/// The time up to which a rate is used up that could let such a cost pass now.
pub(super) fn with_credit(credit: u64, most: u64, now: Timestamp) -> u64 {
    SHIFT + now.as_nanos() - credit.min(most).min(SHIFT)
}

/// How far a quota is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaProgress {
    /// Bytes that may be used in all, since loading.
    pub all: u64,
    /// Bytes of them that are not used.
    pub left: u64,
    /// A packet did not fit.
    pub is_used_up: bool,
}

/// A quota that all workers share.
#[derive(Debug)]
pub(super) struct SharedQuota {
    over: bool,
    /// True from the first packet on that did not fit.
    used_up: AtomicBool,
    pieces: Mutex<Pieces>,
}

/// The parts of a quota that are not used.
#[derive(Debug)]
struct Pieces {
    /// Bytes that may be used in all, since loading.
    all: u64,
    /// Bytes that no worker has taken.
    left: u64,
    /// By worker that has taken some: bytes that it has not used. Another worker only takes all
    /// of them back.
    taken: Vec<Arc<AtomicU64>>,
}

impl SharedQuota {
    pub fn new(quota: &Quota) -> Self {
        // The packet that reaches the quota is within it, as in the kernel.
        let left = quota.bytes.saturating_sub(quota.used);
        let pieces = Mutex::new(Pieces { all: left, left, taken: Vec::new() });
        Self { over: quota.over, used_up: AtomicBool::new(false), pieces }
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is used.
    pub fn progress(&self) -> QuotaProgress {
        let pieces = self.pieces();
        let taken: u64 = pieces.taken.iter().map(|spare| spare.load(Ordering::Relaxed)).sum();
        let is_used_up = self.used_up.load(Ordering::Relaxed);
        QuotaProgress { all: pieces.all, left: pieces.left + taken, is_used_up }
    }

    /// Goes on from there. No worker has used any of it yet.
    pub fn go_on_from(&self, progress: &QuotaProgress) {
        let mut pieces = self.pieces();
        pieces.taken.iter().for_each(|spare| spare.store(0, Ordering::Relaxed));
        (pieces.all, pieces.left) = (progress.all, progress.left);
        self.used_up.store(progress.is_used_up, Ordering::Relaxed);
    }

    /// Begins the quota anew with `bytes` behind those that were `used` since loading.
    pub fn reset(&self, bytes: u64, used: u64) {
        let mut pieces = self.pieces();
        let all = used.saturating_add(bytes);
        // Bytes that packets use meanwhile are gone from what is left.
        pieces.left = (pieces.left + all).saturating_sub(pieces.all);
        pieces.all = all;
        self.used_up.store(false, Ordering::Relaxed);
    }
}

/// A worker's end of a quota.
#[derive(Debug)]
pub(super) struct QuotaLease {
    shared: Arc<SharedQuota>,
    /// Bytes that were taken and not used.
    spare: Arc<AtomicU64>,
    used: u64,
}

impl QuotaLease {
    pub fn new(shared: Arc<SharedQuota>) -> Self {
        let spare = Arc::new(AtomicU64::new(0));
        shared.pieces().taken.push(spare.clone());
        Self { shared, spare, used: 0 }
    }

    /// True if the rule goes on.
    pub fn matches(&mut self, bytes: u64) -> bool {
        // A quota that is used up stays so, also for packets that would still fit.
        let fits = !self.is_used_up() && (self.spend(bytes) || self.spend_of_all(bytes));
        if fits {
            self.used += bytes;
        }
        fits != self.shared.over
    }

    /// True if the rule would go on for a packet that uses nothing.
    pub fn would_match(&self) -> bool {
        self.is_used_up() == self.shared.over
    }

    fn is_used_up(&self) -> bool {
        self.shared.used_up.load(Ordering::Relaxed)
    }

    /// Uses bytes of this worker's piece.
    fn spend(&self, bytes: u64) -> bool {
        let less = |spare: u64| spare.checked_sub(bytes);
        self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Uses bytes that this worker has to take first, from the others too if need be.
    #[cold]
    fn spend_of_all(&self, bytes: u64) -> bool {
        let mut pieces = self.shared.pieces();
        let Pieces { left, taken, .. } = &mut *pieces;
        *left += self.spare.swap(0, Ordering::Relaxed);
        if *left < bytes {
            *left += taken.iter().map(|spare| spare.swap(0, Ordering::Relaxed)).sum::<u64>();
        }
        let Some(rest) = left.checked_sub(bytes) else {
            self.shared.used_up.store(true, Ordering::Relaxed);
            return false;
        };
        // The last bytes go in small pieces, so that workers seldom have to take them back.
        let piece = (rest / (4 * taken.len() as u64)).min(QUOTA_PIECE);
        *left = rest - piece;
        self.spare.store(piece, Ordering::Relaxed);
        true
    }

    /// Bytes of the quota that this worker has used.
    pub fn used(&self) -> u64 {
        self.used
    }
}

impl Drop for QuotaLease {
    fn drop(&mut self) {
        let mut pieces = self.shared.pieces();
        pieces.taken.retain(|spare| !Arc::ptr_eq(spare, &self.spare));
        pieces.left += self.spare.swap(0, Ordering::Relaxed);
    }
}
