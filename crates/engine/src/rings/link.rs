//! The rings between workers.
//!
//! Every ordered pair of workers has a bounded single-producer ring for packets
//! and one for spent frame buffers in return, so that a worker which only
//! receives does not run dry while the one that sends piles buffers up.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell::Doorbell;
use flow::DropReason;
use netio::{Frame, FramePool, MAX_FRAME, SMALL_BUFFER, Waker};
use rtrb::{Consumer, Producer, RingBuffer};
use steer::{Backlog, BacklogLimits, WorkerId};

use crate::BATCH;

/// Slots of a ring beyond the backlog limit, for fences, buckets and markers,
/// which must never be refused.
pub const CONTROL_RESERVE: usize = 1024;

/// How a worker is woken.
#[derive(Clone, Debug)]
pub struct Wakeup {
    bell: Arc<Doorbell>,
    waker: Arc<Waker>,
}

impl Wakeup {
    /// A wake-up for a new worker.
    pub fn new(waker: Waker) -> Self {
        Self { bell: Arc::new(Doorbell::new()), waker: Arc::new(waker) }
    }

    /// Wakes the worker if it sleeps.
    pub fn ring(&self) {
        if self.bell.ring() {
            self.waker.wake();
        }
    }

    /// The doorbell, for the worker itself.
    pub fn bell(&self) -> &Doorbell {
        &self.bell
    }

    /// The event to wait on, for the worker itself.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// An entry of a ring.
pub trait Freight {
    /// How many packets it counts as where a limit bounds how many may wait, at least 1.
    fn weight(&self) -> usize;

    /// Calls `each` for every frame that it carries.
    fn frames(&self, each: impl FnMut(&Frame));
}

/// One worker's ends of its rings to and from a peer.
#[derive(Debug)]
pub struct Link<I> {
    /// Packets and control items to the peer.
    to: Producer<I>,
    /// Packets and control items from the peer.
    pub from: Consumer<I>,
    /// Spent buffers to the peer.
    spent_to: Producer<Frame>,
    /// Spent buffers from the peer.
    spent_from: Consumer<Frame>,
    wakeup: Wakeup,
    backlog: Backlog,
    staged: Vec<I>,
    /// Number of the next item that is staged.
    next: u64,
    /// Packets to the peer that count as several, until it has taken them: their
    /// numbers, and as how many more than one.
    heavy: VecDeque<(u64, usize)>,
    /// Sum of what `heavy` counts.
    extra: usize,
    owed_small: usize,
    owed_large: usize,
}

/// Makes both ends of the rings between two workers, `slots` entries each way.
pub fn connect<I>(
    slots: usize,
    (a, wake_a): (WorkerId, &Wakeup),
    (b, wake_b): (WorkerId, &Wakeup),
    limits: impl Fn(WorkerId) -> BacklogLimits,
) -> [(WorkerId, Link<I>); 2] {
    let (a_to, b_from) = RingBuffer::new(slots);
    let (b_to, a_from) = RingBuffer::new(slots);
    let (a_spent_to, b_spent_from) = RingBuffer::new(slots);
    let (b_spent_to, a_spent_from) = RingBuffer::new(slots);
    let link = |to, from, spent_to, spent_from, (peer, wakeup): (WorkerId, &Wakeup)| Link {
        to,
        from,
        spent_to,
        spent_from,
        wakeup: wakeup.clone(),
        backlog: Backlog::new(limits(peer)),
        staged: Vec::with_capacity(BATCH),
        next: 0,
        heavy: VecDeque::new(),
        extra: 0,
        owed_small: 0,
        owed_large: 0,
    };
    // Each link leads to the other worker.
    [
        (b, link(a_to, a_from, a_spent_to, a_spent_from, (b, wake_b))),
        (a, link(b_to, b_from, b_spent_to, b_spent_from, (a, wake_a))),
    ]
}

impl<I: Freight> Link<I> {
    /// Asks the peer's backlog for room for one packet of a flow. The hash of the
    /// flow is asked only where the flow limit applies.
    ///
    /// A packet may enter while less than the limit waits, whatever its own
    /// [weight](Freight::weight): a datagram in more fragments than the limit has to get
    /// through too.
    ///
    /// # Errors
    /// The reason when the backlog is full or the flow has more than its share.
    pub fn admit(&mut self, flow_hash: impl FnOnce() -> u64) -> Result<(), DropReason> {
        let queued = self.queued();
        self.backlog.admit(queued, flow_hash)
    }

    /// The weight of what is staged or in the ring.
    pub fn queued(&mut self) -> usize {
        let items = self.to.buffer().capacity() - self.to.slots() + self.staged.len();
        let taken = self.next - items as u64;
        while let Some((_, extra)) = self.heavy.pop_front_if(|(number, _)| *number < taken) {
            self.extra -= extra;
        }
        items + self.extra
    }

    /// Stages a packet that was admitted, or a control item. A control item is never refused: a
    /// ring has [`CONTROL_RESERVE`] slots that packets can not use, and what does not fit stays
    /// staged, in order, until it does.
    pub fn stage(&mut self, item: I) {
        let extra = item.weight() - 1;
        if extra > 0 {
            self.heavy.push_back((self.next, extra));
            self.extra += extra;
        }
        self.next += 1;
        self.staged.push(item);
    }

    /// True if there is room for news that may be told later: they leave half of
    /// [`CONTROL_RESERVE`] to what must not wait.
    pub fn has_room_for_news(&self) -> bool {
        self.to.slots() > self.staged.len() + CONTROL_RESERVE / 2
    }

    /// Publishes what is staged in one go and wakes the peer if it sleeps.
    pub fn flush(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let fits = self.staged.len().min(self.to.slots());
        if let Ok(chunk) = self.to.write_chunk_uninit(fits) {
            chunk.fill_from_iter(self.staged.drain(..fits));
        }
        self.wakeup.ring();
    }

    /// True while something is staged that did not fit.
    pub fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// The next item from the peer, who is owed the buffers that come with it.
    pub fn take(&mut self) -> Option<I> {
        let item = self.from.pop().ok()?;
        item.frames(|frame| self.owe(frame));
        Some(item)
    }

    /// Notes that a frame came from the peer, who is owed a buffer of its size if it is
    /// one of those that frames come in.
    ///
    /// Buffers beyond those that the ring back can carry in one go are not owed. If an output
    /// keeps its frames, there are no buffers to return, and the debt must not add up.
    fn owe(&mut self, frame: &Frame) {
        let owed = match frame.footprint() {
            SMALL_BUFFER => &mut self.owed_small,
            MAX_FRAME => &mut self.owed_large,
            _ => return,
        };
        *owed = (*owed + 1).min(self.spent_to.buffer().capacity());
    }

    /// Sends back buffers that are owed and takes those that came back.
    pub fn exchange_buffers(&mut self, pool: &mut FramePool) {
        while let Ok(frame) = self.spent_from.pop() {
            pool.give_back(frame);
        }
        for (owed, length) in
            [(&mut self.owed_small, SMALL_BUFFER), (&mut self.owed_large, MAX_FRAME)]
        {
            for _ in 0..(*owed).min(self.spent_to.slots()) {
                let Some(frame) = pool.take_free(length) else { break };
                *owed -= 1;
                // There is room: the loop is bounded by the free slots.
                let _ = self.spent_to.push(frame);
            }
        }
    }

    /// Applies changed limits.
    pub fn set_limits(&mut self, limits: BacklogLimits) {
        self.backlog.set_limits(limits);
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
