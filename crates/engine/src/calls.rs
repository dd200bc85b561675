//! Calls that end where their control connection is seen to end, and their connections where
//! their bucket is.

use flow::Timestamp;

use crate::worker::Worker;

impl Worker {
    /// Ends the connections of calls that are over, in the buckets of this worker; true if
    /// there were any. A bucket that moves has them ended by its next owner.
    #[inline]
    pub(crate) fn end_calls(&mut self, now: Timestamp) -> bool {
        self.tracking.expectations.has_calls_over() && self.end_calls_slowly(now)
    }

    #[cold]
    fn end_calls_slowly(&mut self, now: Timestamp) -> bool {
        let mut worked = false;
        for call in self.tracking.expectations.calls_over() {
            let id = self.hasher.bucket_of_key(&call);
            if let Some(bucket) = self.ownership.get_mut(id) {
                let hash = self.hasher.table_hash(&call);
                let mut context = self.tracking.context(now, &mut self.counters);
                bucket.connections.end_call(&call, hash, &mut context);
                worked = true;
            }
        }
        worked
    }
}
