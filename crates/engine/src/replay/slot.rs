//! Frames between a replay and its workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netio::{Frame, FramePool, PortError, RxQueue, TxQueue, TxReport};

/// Frames on their way into or out of the workers.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot(Arc<Mutex<Vec<Frame>>>);

impl Slot {
    pub fn frames(&self) -> MutexGuard<'_, Vec<Frame>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RxQueue for Slot {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        _max: usize,
        _pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        // Appending leaves both lists their memory, and a replay allocates nothing for a packet.
        let mut waiting = self.frames();
        let count = waiting.len();
        frames.append(&mut waiting);
        Ok(count)
    }

    fn wait_handle(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl TxQueue for Slot {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        _pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let sent_bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        let report = TxReport { sent: frames.len() as u64, sent_bytes, ..TxReport::default() };
        self.frames().append(frames);
        Ok(report)
    }
}
