//! Work that is done a little in each turn: time-outs, limits that others share, and free memory. A
//! replay does it at certain times of the capture instead. The end of a worker is here, too.

use std::time::Duration;

use conntrack::Cursor;
use flow::Timestamp;
use steer::BucketId;

use crate::path::reassembly::EXPIRE_DATAGRAMS;
use crate::path::{PacketPath, TimeSource};

/// Connections that expire in one turn at most, so that expiry never holds up a
/// batch of packets.
const EXPIRE_BUDGET: usize = 64;
/// Places of a table that are looked at in one go when connections are ended.
const PLACES_AT_ONCE: u32 = 256;
/// Buckets whose timer wheels are turned in one turn.
const EXPIRE_BUCKETS: usize = 4;

/// How often a worker looks for memory that it does not need, and for expectations that have
/// expired.
const TRIM_EVERY: Duration = Duration::from_secs(1);
/// Bytes of frames that have to be freed before the allocator is told again to return free memory.
/// It is not worth the time for fewer.
const WORTH_RETURNING: i64 = 2 << 20;

/// How far the upkeep of a worker has come.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// The bucket whose timers are turned next.
    expire_at: usize,
    /// When the pool is trimmed next.
    trim_at: Timestamp,
    /// There may be expectations whose time is over.
    expire_expectations: bool,
    /// Most bytes in frames since memory was last returned to the system, as
    /// [`netio::FramePool::trim`] counts.
    most_bytes: i64,
}

/// The result of upkeep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkept {
    /// More datagrams may have timed out, or more changes of connections wait for a peer, so the
    /// worker does not sleep over them.
    pub has_more: bool,
    /// A lot of memory was freed. The allocator keeps it, and to make it return it is no work for
    /// the packet path.
    pub has_freed_much: bool,
}

impl PacketPath {
    /// Turns the timers of a few buckets, gives up a few datagrams, and frees buffers that a burst
    /// has left.
    pub(crate) fn upkeep(&mut self, now: Timestamp) -> Upkept {
        if self.time == TimeSource::Frame {
            return Upkept::default();
        }
        let has_more = self.expire_datagrams(now) >= EXPIRE_DATAGRAMS;
        self.repay_limits(now);
        self.forwarder.expire(now.as_nanos(), &mut self.pool, &mut self.counters);
        self.drop_refused();
        for _ in 0..EXPIRE_BUCKETS {
            self.upkeep.expire_at = (self.upkeep.expire_at + 1) % self.buckets.count();
            self.expire_bucket(BucketId(self.upkeep.expire_at as u16), EXPIRE_BUDGET, now);
        }
        let mut has_freed_much = false;
        if now >= self.upkeep.trim_at {
            self.upkeep.trim_at = now.after(TRIM_EVERY);
            has_freed_much = self.upkeep.note_bytes(self.pool.trim());
            self.upkeep.expire_expectations = true;
        }
        if self.upkeep.expire_expectations {
            let mut context = self.tracking.context(now, &mut self.counters);
            let sink = &mut context.expectation_events;
            self.upkeep.expire_expectations = context.expectations.expire(now, sink);
        }
        let has_more = self.send_changes(now) || has_more;
        Upkept { has_more, has_freed_much }
    }

    fn expire_bucket(&mut self, id: BucketId, budget: usize, now: Timestamp) {
        if let Some(bucket) = self.buckets.get_mut(id) {
            self.tracking.expire(bucket, budget, now, &mut self.counters);
        }
    }

    /// Turns the timers of all buckets: replay, where memory must be returned at
    /// the same time however many workers there are.
    pub(crate) fn expire_all(&mut self, now: Timestamp) {
        while self.expire_datagrams(now) > 0 {}
        for bucket in self.buckets.owned_mut() {
            self.tracking.expire(bucket, usize::MAX, now, &mut self.counters);
        }
    }

    /// Ends connections, at least one and not many more than `wanted` if there
    /// are any; returns how many.
    pub(crate) fn end_connections(&mut self, wanted: usize, now: Timestamp) -> usize {
        let mut ended = 0;
        for bucket in self.buckets.owned_mut() {
            let mut next = Some(Cursor::default());
            while let Some(from) = next.filter(|_| ended < wanted) {
                let mut context = self.tracking.context(now, &mut self.counters);
                let (count, rest) =
                    bucket.connections.flush(from, PLACES_AT_ONCE, |_| true, &mut context);
                ended += count;
                next = rest;
            }
            ended += self.tracking.flush_inside(bucket, now, &mut self.counters);
        }
        ended
    }

    /// Gives up the datagrams that have timed out, and drops the others, because the capture ends.
    pub(crate) fn end_capture(&mut self, now: Timestamp) {
        while self.expire_datagrams(now) > 0 {}
        self.end_datagrams();
    }

    /// Drops everything that waits in this worker, because the worker ends.
    pub(crate) fn end(&mut self) {
        self.end_datagrams();
        self.end_openings();
        self.end_host_questions();
        self.forwarder.end(&mut self.pool, &mut self.counters);
        self.drop_refused();
    }
}

impl Upkeep {
    /// Takes note of the bytes that frames take. True if it is worth the while to return what was
    /// freed since the last time.
    fn note_bytes(&mut self, bytes: i64) -> bool {
        self.most_bytes = self.most_bytes.max(bytes);
        let is_worth_it = self.most_bytes - bytes >= WORTH_RETURNING;
        if is_worth_it {
            self.most_bytes = bytes;
        }
        is_worth_it
    }
}
