//! The rings between workers.
//!
//! Every ordered pair of workers has a bounded single-producer ring for packets, one for packets of
//! latency, and one for spent frame buffers in return, so that a worker which only receives does not run
//! dry while the one that sends piles buffers up.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell::Doorbell;
use flow::DropReason;
use netio::{Frame, FramePool, MAX_FRAME, SMALL_BUFFER, Service, Waker};
use rtrb::{Consumer, Producer, RingBuffer};
use steer::{Backlog, BacklogLimits, WorkerId};

use crate::BATCH;

/// Slots of a ring beyond the backlog limit, for fences, buckets and markers,
/// which must never be refused.
pub const CONTROL_RESERVE: usize = 1024;

/// Slots of a ring for packets of latency, as many as their receive queue has.
pub const LATENCY_SLOTS: usize = 512;

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
///
/// Packets of latency have a ring of their own, with a backlog of its own. All other packets and all
/// control items share one, in which they keep their order. A control item proves the same about the
/// packets of both before it: the sender publishes the ring of latency before the other one, and a receiver
/// that takes a control item first takes all that waits in the ring of latency.
#[derive(Debug)]
pub struct Link<I> {
    /// Packets of bulk and control items to the peer.
    to: Outgoing<I>,
    /// Packets of latency to the peer.
    to_latency: Outgoing<I>,
    /// Packets of bulk and control items from the peer.
    from: Consumer<I>,
    /// Packets of latency from the peer.
    from_latency: Consumer<I>,
    /// Spent buffers to the peer.
    spent_to: Producer<Frame>,
    /// Spent buffers from the peer.
    spent_from: Consumer<Frame>,
    wakeup: Wakeup,
    owed_small: usize,
    owed_large: usize,
}

/// The writing end of a ring, and what is staged for it.
#[derive(Debug)]
struct Outgoing<I> {
    ring: Producer<I>,
    backlog: Backlog,
    staged: Vec<I>,
    /// Number of the next item that is staged.
    next: u64,
    /// Packets to the peer that count as several, until it has taken them: their
    /// numbers, and as how many more than one.
    heavy: VecDeque<(u64, usize)>,
    /// Sum of what `heavy` counts.
    extra: usize,
}

/// Makes both ends of the rings between two workers, `slots` entries each way and
/// [`LATENCY_SLOTS`] more for packets of latency.
pub fn connect<I>(
    slots: usize,
    (a, wake_a): (WorkerId, &Wakeup),
    (b, wake_b): (WorkerId, &Wakeup),
    limits: impl Fn(WorkerId) -> BacklogLimits,
) -> [(WorkerId, Link<I>); 2] {
    let (a_to, b_from) = RingBuffer::new(slots);
    let (b_to, a_from) = RingBuffer::new(slots);
    let (a_to_latency, b_from_latency) = RingBuffer::new(LATENCY_SLOTS);
    let (b_to_latency, a_from_latency) = RingBuffer::new(LATENCY_SLOTS);
    let (a_spent_to, b_spent_from) = RingBuffer::new(slots);
    let (b_spent_to, a_spent_from) = RingBuffer::new(slots);
    let link = |[to, to_latency]: [_; 2],
                [from, from_latency]: [_; 2],
                spent,
                (peer, wakeup): (_, &Wakeup)| {
        let (spent_to, spent_from) = spent;
        Link {
            to: Outgoing::new(to, limits(peer)),
            to_latency: Outgoing::new(to_latency, limits_of_latency(limits(peer))),
            from,
            from_latency,
            spent_to,
            spent_from,
            wakeup: wakeup.clone(),
            owed_small: 0,
            owed_large: 0,
        }
    };
    let at_a = link(
        [a_to, a_to_latency],
        [a_from, a_from_latency],
        (a_spent_to, a_spent_from),
        (b, wake_b),
    );
    let at_b = link(
        [b_to, b_to_latency],
        [b_from, b_from_latency],
        (b_spent_to, b_spent_from),
        (a, wake_a),
    );
    // Each link leads to the other worker.
    [(b, at_a), (a, at_b)]
}

/// No more packets may wait than there are slots, so each that is admitted fits.
fn limits_of_latency(limits: BacklogLimits) -> BacklogLimits {
    BacklogLimits { max_backlog: limits.max_backlog.min(LATENCY_SLOTS as u32), ..limits }
}

impl<I: Freight> Outgoing<I> {
    /// The weight of what is staged or in the ring.
    fn queued(&mut self) -> usize {
        let items = self.ring.buffer().capacity() - self.ring.slots() + self.staged.len();
        let taken = self.next - items as u64;
        while let Some((_, extra)) = self.heavy.pop_front_if(|(number, _)| *number < taken) {
            self.extra -= extra;
        }
        items + self.extra
    }

    fn stage(&mut self, item: I) {
        let extra = item.weight() - 1;
        if extra > 0 {
            self.heavy.push_back((self.next, extra));
            self.extra += extra;
        }
        self.next += 1;
        self.staged.push(item);
    }

    /// Publishes what fits. True if nothing is left.
    fn publish(&mut self) -> bool {
        let fits = self.staged.len().min(self.ring.slots());
        if let Ok(chunk) = self.ring.write_chunk_uninit(fits) {
            chunk.fill_from_iter(self.staged.drain(..fits));
        }
        self.staged.is_empty()
    }
}

impl<I> Outgoing<I> {
    fn new(ring: Producer<I>, limits: BacklogLimits) -> Self {
        let staged = Vec::with_capacity(BATCH);
        Self {
            ring,
            backlog: Backlog::new(limits),
            staged,
            next: 0,
            heavy: VecDeque::new(),
            extra: 0,
        }
    }
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
    pub fn admit(
        &mut self,
        service: Service,
        flow_hash: impl FnOnce() -> u64,
    ) -> Result<(), DropReason> {
        let to = self.outgoing(service);
        let queued = to.queued();
        to.backlog.admit(queued, flow_hash)
    }

    const fn outgoing(&mut self, service: Service) -> &mut Outgoing<I> {
        match service {
            Service::Bulk => &mut self.to,
            Service::Latency => &mut self.to_latency,
        }
    }

    /// The weight of what is staged or in the rings.
    #[cfg(test)]
    pub fn queued(&mut self) -> usize {
        self.to.queued() + self.to_latency.queued()
    }

    /// Stages a control item. It is never refused: a ring has [`CONTROL_RESERVE`] slots that packets can
    /// not use, and what does not fit stays staged, in order, until it does.
    pub fn stage(&mut self, item: I) {
        self.to.stage(item);
    }

    /// Stages a packet that was admitted.
    pub fn stage_packet(&mut self, service: Service, packet: I) {
        self.outgoing(service).stage(packet);
    }

    /// True if there is room for news that may be told later: they leave half of
    /// [`CONTROL_RESERVE`] to what must not wait.
    pub fn has_room_for_news(&self) -> bool {
        self.to.ring.slots() > self.to.staged.len() + CONTROL_RESERVE / 2
    }

    /// Publishes what is staged in one go and wakes the peer if it sleeps.
    pub fn flush(&mut self) {
        if !self.has_staged() {
            return;
        }
        if self.to_latency.publish() {
            self.to.publish();
        }
        self.wakeup.ring();
    }

    /// True while something is staged that did not fit.
    pub fn has_staged(&self) -> bool {
        !self.to.staged.is_empty() || !self.to_latency.staged.is_empty()
    }

    /// The number of items from the peer that wait.
    pub fn waiting(&self) -> usize {
        self.from.slots() + self.from_latency.slots()
    }

    /// The number of packets of latency among them.
    pub fn latency_slots(&self) -> usize {
        self.from_latency.slots()
    }

    /// The next packet of latency from the peer, who is owed the buffers that come with it.
    pub fn take_latency(&mut self) -> Option<I> {
        let item = self.from_latency.pop().ok()?;
        item.frames(|frame| self.owe(frame));
        Some(item)
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
        self.to.backlog.set_limits(limits);
        self.to_latency.backlog.set_limits(limits_of_latency(limits));
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
