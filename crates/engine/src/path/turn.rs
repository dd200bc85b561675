//! The steps of a turn. The worker takes them in their order, with its commands and queues in
//! between. The other steps are in [`crate::path::peers`] and [`crate::path::upkeep`].

use flow::{DropReason, Timestamp};
use netio::{Frame, PortError, RxQueue};
use ruleset::LogId;

use crate::path::PacketPath;
use crate::path::recent_drops::RecentDrop;

impl PacketPath {
    /// Begins a turn.
    pub(crate) fn begin_turn(&mut self, now: Timestamp) {
        self.recent_drops.begin(now);
        self.begin_replication(now);
    }

    /// Takes up to `batch` frames from a queue into free buffers.
    ///
    /// # Errors
    /// [`PortError`] if the queue has failed. Frames that were received before are in `frames`.
    pub(crate) fn receive(
        &mut self,
        queue: &mut dyn RxQueue,
        frames: &mut Vec<Frame>,
        batch: usize,
    ) -> Result<usize, PortError> {
        queue.receive(frames, batch, &mut self.pool)
    }

    /// Hands steered packets to the other workers, and processes this worker's own.
    pub(crate) fn process_received(&mut self, now: Timestamp) {
        // The other workers can begin at once.
        self.buckets.flush();
        self.process_batch(now);
    }

    /// Counts frames that a queue has dropped, because they were too long.
    pub(crate) fn count_too_long(&mut self, frames: u64) {
        self.counters.drop_packets(DropReason::FrameTooLong, frames);
    }

    /// Counts a wake-up by another worker.
    pub(crate) fn count_wakeup(&mut self) {
        self.counters.softnet.received_rps += 1;
    }

    /// Sends all frames that are on their way out.
    pub(crate) fn send(&mut self) {
        self.forwarder.flush(&mut self.pool, &mut self.counters);
        self.drop_refused();
    }

    /// Sends everything that the turn leads to, and tells of packets that rules want in the log.
    pub(crate) fn end_turn(&mut self, now: Timestamp, mut log: impl FnMut(LogId, Box<RecentDrop>)) {
        self.remove_aliases();
        self.send();
        self.send_departures(now);
        if let Some(rules) = &mut self.rules {
            rules.take_logged().for_each(|(id, line)| log(id, line));
        }
        self.buckets.flush();
    }

    /// True if an item of another worker or an answer of the host waits, or something for one has not found room.
    pub(crate) fn has_work(&self) -> bool {
        let has_answers = self.host_questions.as_ref().is_some_and(|it| it.has_news());
        has_answers || self.has_returned_receipt() || self.buckets.has_work()
    }
}
