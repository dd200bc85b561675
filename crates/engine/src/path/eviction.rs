//! Eviction: connections that give way where a limit leaves no room for another.

use conntrack::syn_proxy::Screening;
use conntrack::{Shortage, Tracked, Verdict};
use flow::Timestamp;

use crate::path::packet::Packet;
use crate::path::{PacketPath, TimeSource};

/// Connections that give way to other workers in one turn at most.
const EVICT_AT_ONCE: usize = 64;

impl PacketPath {
    /// Has a connection of another bucket give way for a packet that its own bucket has
    /// refused, and judges the packet again.
    ///
    /// A replay does without, because its result must not depend on which buckets share a worker.
    #[cold]
    pub(super) fn make_room_for(
        &mut self,
        packet: &Packet,
        mut tracked: Tracked,
        shortage: Shortage,
        now: Timestamp,
    ) -> Tracked {
        if self.time == TimeSource::Turn
            && self.evict_somewhere(shortage, now)
            && let Some(bucket) = self.buckets.get_mut(packet.bucket)
        {
            tracked = self.tracking.track(bucket, packet, Screening::Off, now, &mut self.counters);
        }
        // The second look may find another limit in the way than the first.
        if matches!(tracked.verdict, Verdict::NoRoom(_)) {
            self.counters.conntrack.insert_failed += 1;
            self.counters.conntrack.drop += 1;
        }
        tracked
    }

    /// If other workers lack parts of `nf_conntrack_max`, or of the limit of a zone, that this worker
    /// holds, a bounded number of its connections give way.
    pub(super) fn repay_limits(&mut self, now: Timestamp) {
        self.make_room_inside(EVICT_AT_ONCE, now);
        for _ in 0..EVICT_AT_ONCE {
            if !self.tracking.limits().is_overdrawn() {
                break;
            }
            self.tracking.limits_mut().repay();
            if !self.evict_somewhere(Shortage::Table, now) {
                break;
            }
        }
        for _ in 0..EVICT_AT_ONCE {
            let Some(zone) = self.tracking.limits_mut().overdrawn_zone() else { break };
            if !self.evict_somewhere(Shortage::Zone(zone), now) {
                self.tracking.limits_mut().pass_over_zone();
                break;
            }
        }
    }

    /// Ends the first candidate of the next bucket that has one; false if no bucket of this
    /// worker has. Takes the same time however many buckets there are.
    fn evict_somewhere(&mut self, shortage: Shortage, now: Timestamp) -> bool {
        // A connection inside a tunnel gives way before one outside.
        if shortage == Shortage::Table && self.evict_inside(now) {
            return true;
        }
        let Some(id) = self.tracking.next_to_give_way(shortage) else { return false };
        let mut context = self.tracking.context(now, &mut self.counters);
        let bucket = self.buckets.get_mut(id);
        let evicted = bucket.is_some_and(|it| it.connections.evict(shortage, &mut context));
        debug_assert!(evicted, "{id} has said that it has somebody");
        evicted
    }
}

#[cfg(test)]
#[path = "eviction_tests.rs"]
mod tests;
