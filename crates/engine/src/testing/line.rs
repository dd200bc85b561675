//! For tests: a line into a worker or out of it.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netio::{Frame, FramePool, PortError, RxQueue, TxQueue, TxReport};

/// The frames on a line. Clones share them.
#[derive(Clone, Default)]
pub struct Line(pub Arc<Mutex<VecDeque<Frame>>>);

impl Line {
    /// Puts frames on the line.
    pub fn put(&self, frames: impl IntoIterator<Item = Frame>) {
        self.lock().extend(frames);
    }

    /// Takes all frames off the line.
    pub fn take_all(&self) -> Vec<Frame> {
        self.lock().drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Frame>> {
        // The frames are whole between any two steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RxQueue for Line {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        _: &mut FramePool,
    ) -> Result<usize, PortError> {
        let mut waiting = self.lock();
        let count = max.min(waiting.len());
        frames.extend(waiting.drain(..count));
        Ok(count)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl TxQueue for Line {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        _: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let report = TxReport { sent: frames.len() as u64, ..TxReport::default() };
        self.put(frames.drain(..));
        Ok(report)
    }
}
