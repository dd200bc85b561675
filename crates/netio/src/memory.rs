//! Ports in memory, for tests, benchmarks and the demo.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Frame, FramePool, PortError, PortId, RxQueue, TxQueue, TxRefusal, TxReport, Waker};

/// A receive queue that is fed by a function of this program.
///
/// It never blocks: it yields frames until the function has no more, and is then
/// [`PortError::Finished`].
pub struct Source {
    port: PortId,
    generate: Box<Generator>,
    sequence: u64,
}

type Generator = dyn FnMut(&mut FramePool) -> Option<Frame> + Send;

impl Source {
    /// Yields the frames that `generate` builds from buffers of the pool, until it returns `None`.
    /// The source sets port and sequence number of the frames.
    pub fn generate(
        port: PortId,
        generate: impl FnMut(&mut FramePool) -> Option<Frame> + Send + 'static,
    ) -> Self {
        Self { port, generate: Box::new(generate), sequence: 0 }
    }

    /// Yields these frames, with their own time stamps and offloads.
    pub fn frames<I>(port: PortId, frames: I) -> Self
    where
        I: IntoIterator<Item = Frame>,
        I::IntoIter: Send + 'static,
    {
        let mut frames = frames.into_iter();
        Self::generate(port, move |_| frames.next())
    }

    /// Yields copies of these packets, link header first. Packets longer than
    /// [`MAX_FRAME`](crate::MAX_FRAME) bytes are left out.
    pub fn packets<I>(port: PortId, packets: I) -> Self
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
        I::IntoIter: Send + 'static,
    {
        let mut packets = packets.into_iter();
        Self::generate(port, move |pool| {
            packets.by_ref().find_map(|packet| pool.copy_of(packet.as_ref()))
        })
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Source").field("port", &self.port).finish_non_exhaustive()
    }
}

impl RxQueue for Source {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        for count in 0..max {
            let Some(mut frame) = (self.generate)(pool) else {
                return if count == 0 { Err(PortError::Finished) } else { Ok(count) };
            };
            frame.port = self.port;
            frame.sequence = self.sequence;
            self.sequence += 1;
            frames.push(frame);
        }
        Ok(max)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A transmit queue that keeps all frames. Clones share the same frames, so a test keeps one clone
/// and gives the other away.
#[derive(Clone, Debug, Default)]
pub struct Sink {
    frames: Arc<Mutex<Vec<Frame>>>,
}

impl Sink {
    /// An empty sink.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes out the frames that were sent so far, in the order of sending.
    pub fn take(&self) -> Vec<Frame> {
        std::mem::take(&mut *self.frames.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TxQueue for Sink {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        _pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let report = sent(frames);
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).append(frames);
        Ok(report)
    }
}

/// A transmit queue that only counts, for benchmarks: buffers go straight back to
/// the pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl TxQueue for Discard {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let report = sent(frames);
        frames.drain(..).for_each(|frame| pool.give_back(frame));
        Ok(report)
    }
}

fn sent(frames: &[Frame]) -> TxReport {
    TxReport {
        sent: frames.len() as u64,
        sent_bytes: frames.iter().map(|frame| frame.len() as u64).sum(),
        ..TxReport::default()
    }
}

/// A cable: frames that enter the transmit queue come out of the receive queue as frames of `port`.
/// The cable holds at most `capacity` frames and refuses more. Dropping the transmit queue finishes
/// the receive queue. After the receive queue was dropped, the transmit queue reports that its port
/// is gone.
///
/// # Errors
/// The system's error when the process is out of file descriptors.
pub fn channel(port: PortId, capacity: usize) -> io::Result<(ChannelTx, ChannelRx)> {
    let (sender, receiver) = mpsc::sync_channel(capacity);
    let waker = Waker::new()?;
    let transmit = ChannelTx { sender: Some(sender), waker: waker.clone(), refused: Vec::new() };
    Ok((transmit, ChannelRx { port, receiver, waker, sequence: 0 }))
}

/// The sending end of a [`channel`].
#[derive(Debug)]
pub struct ChannelTx {
    /// `None` only while the queue is dropped.
    sender: Option<SyncSender<Frame>>,
    waker: Waker,
    /// Frames that the last call has not sent, until somebody takes them.
    refused: Vec<(Frame, TxRefusal)>,
}

impl TxQueue for ChannelTx {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        self.refused.drain(..).for_each(|(frame, _)| pool.give_back(frame));
        let mut report = TxReport::default();
        for frame in frames.drain(..) {
            let length = frame.len() as u64;
            let Some(sender) = &self.sender else { continue };
            match sender.try_send(frame) {
                Ok(()) => {
                    report.sent += 1;
                    report.sent_bytes += length;
                }
                Err(TrySendError::Full(frame)) => {
                    report.refused_full += 1;
                    self.refused.push((frame, TxRefusal::Full));
                }
                Err(TrySendError::Disconnected(frame)) => {
                    report.refused_gone += 1;
                    self.refused.push((frame, TxRefusal::Gone));
                }
            }
        }
        if report.refused_gone > 0 && report.sent + report.refused_full == 0 {
            return Err(PortError::Gone { interface: "channel".into() });
        }
        if report.sent > 0 {
            self.waker.wake();
        }
        Ok(report)
    }

    fn take_refused(&mut self) -> Option<(Frame, TxRefusal)> {
        self.refused.pop()
    }
}

impl Drop for ChannelTx {
    fn drop(&mut self) {
        // Close first: the woken receiver must find the end, not an empty queue.
        self.sender = None;
        self.waker.wake();
    }
}

/// The receiving end of a [`channel`].
#[derive(Debug)]
pub struct ChannelRx {
    port: PortId,
    receiver: Receiver<Frame>,
    waker: Waker,
    sequence: u64,
}

impl RxQueue for ChannelRx {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        _pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        let mut silenced = false;
        let mut count = 0;
        while count < max {
            match self.receiver.try_recv() {
                Ok(mut frame) => {
                    frame.port = self.port;
                    frame.sequence = self.sequence;
                    self.sequence += 1;
                    frames.push(frame);
                    count += 1;
                }
                // The bell stays on while frames wait. Only this place silences it, and then looks
                // at the queue once more.
                Err(TryRecvError::Empty) if !silenced => {
                    self.waker.clear();
                    silenced = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if count == 0 => return Err(PortError::Finished),
                Err(TryRecvError::Disconnected) => {
                    self.waker.wake();
                    break;
                }
            }
        }
        // Frames came after the bell was silenced, and some of them are left.
        if silenced && count == max && max > 0 {
            self.waker.wake();
        }
        Ok(count)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.waker.as_fd())
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
