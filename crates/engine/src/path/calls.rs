//! Ends the connections of calls. A worker sees a call end on its control connection, and the
//! owners of the buckets end the call's connections.

use flow::Timestamp;

use crate::path::PacketPath;

impl PacketPath {
    /// Ends the connections of ended calls in the buckets of this worker. True if there were any.
    /// If a bucket moves meanwhile, its next owner ends them.
    #[inline]
    pub(crate) fn end_calls(&mut self, now: Timestamp) -> bool {
        self.tracking.expectations().has_calls_over() && self.end_calls_slowly(now)
    }

    #[cold]
    fn end_calls_slowly(&mut self, now: Timestamp) -> bool {
        let mut worked = false;
        for call in self.tracking.expectations().calls_over() {
            let id = self.hasher.bucket_of_key(&call);
            if let Some(bucket) = self.buckets.get_mut(id) {
                let hash = self.hasher.table_hash(&call);
                let mut context = self.tracking.context(now, &mut self.counters);
                bucket.connections.end_call(&call, hash, &mut context);
                worked = true;
            }
        }
        worked
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
