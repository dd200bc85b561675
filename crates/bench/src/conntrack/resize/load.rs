//! The load on a gateway whose tables grow: established flows that send numbered packets at a
//! steady pace, and new flows as fast as the gateway takes them.
//!
//! A numbered packet has a due time, whether a worker polls then or not. So the lateness of a
//! worker counts, as it would for a packet that waits in the ring of a card.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use engine::{OpenPort, PortOpener};
use netio::{Checksum, Frame, FramePool, PortError, RxQueue, TxQueue, TxReport, clock};

use super::stalls::Stalls;
use crate::traffic::{Payload, Pen, Segment};

/// Flows that are established all the time.
pub const ESTABLISHED: u32 = 1000;
/// The first of the flows that come and go; their clients have other ports.
const FIRST_NEW: u32 = 1 << 16;
/// Time between two numbered packets, in nanoseconds: 100 a second of each flow.
const PACE_NS: u64 = 10_000;
/// Payload of an established flow, in each direction.
const PAYLOAD: Payload = [100, 1000];
/// Segments that open a flow.
const HANDSHAKE: u32 = 3;
/// The largest number of packets on their way: half of a backlog, so that none may be refused. New
/// flows leave a part of it to the established ones.
const WINDOW: u64 = 400;
const WINDOW_OF_NEW: u64 = 256;
/// New flows whose segments come together: first all SYNs, then the segments that answer them.
const TOGETHER: u32 = 16;
/// Marks the packets of new flows in [`Frame::sequence`]. For other packets it is the number among
/// all numbered packets.
const OF_NEW: u64 = 1 << 63;

/// The state that the ports and the benchmark share.
pub struct Shared {
    /// The time at which the first numbered packet is due.
    begin_ns: u64,
    produced: AtomicU64,
    taken: AtomicU64,
    /// The number of new flows that may be opened so far.
    allowed: AtomicU32,
    /// Packets of new flows that came out.
    new_taken: AtomicU64,
    /// By established flow: the number that has to come out next. A flow has one worker, so only
    /// one thread writes each.
    next: Vec<AtomicU32>,
    disorder: AtomicU64,
    phase: AtomicUsize,
    stalls: Vec<Stalls>,
    over: AtomicBool,
}

impl Shared {
    /// The state for `phases` phases.
    pub fn new(phases: usize) -> Self {
        Self {
            begin_ns: clock::monotonic_nanoseconds(),
            produced: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            allowed: AtomicU32::new(0),
            new_taken: AtomicU64::new(0),
            next: (0..ESTABLISHED).map(|_| AtomicU32::new(0)).collect(),
            disorder: AtomicU64::new(0),
            phase: AtomicUsize::new(0),
            stalls: (0..phases).map(|_| Stalls::default()).collect(),
            over: AtomicBool::new(false),
        }
    }

    /// Allows `flows` new flows in all, including earlier ones.
    pub fn allow(&self, flows: u32) {
        self.allowed.store(flows, Ordering::Relaxed);
    }

    /// New flows whose handshakes came out.
    pub fn opened(&self) -> u32 {
        (self.new_taken.load(Ordering::Relaxed) / u64::from(HANDSHAKE)) as u32
    }

    /// True once every established flow has finished its handshake.
    pub fn is_established(&self) -> bool {
        self.next.iter().all(|next| next.load(Ordering::Relaxed) >= HANDSHAKE)
    }

    /// Counts everything from now on for this phase.
    pub fn enter(&self, phase: usize) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    pub fn stalls(&self, phase: usize) -> &Stalls {
        &self.stalls[phase]
    }

    /// Stops the load.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Packets that went in, that came out, and that were not the next of their flow.
    pub fn books(&self) -> [u64; 3] {
        [&self.produced, &self.taken, &self.disorder].map(|counter| counter.load(Ordering::Relaxed))
    }

    fn of_phase(&self) -> &Stalls {
        &self.stalls[self.phase.load(Ordering::Relaxed)]
    }

    /// The moment at which a numbered packet is due.
    fn due_ns(&self, number: u64) -> u64 {
        self.begin_ns + number * PACE_NS
    }
}

/// The established flow that sends a numbered packet. Clients of established flows have even
/// addresses.
fn established(number: u64) -> u32 {
    (number % u64::from(ESTABLISHED)) as u32
}

/// The input port.
pub struct In(pub Arc<Shared>);

impl PortOpener for In {
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let queue = |queue| LoadRx {
            shared: self.0.clone(),
            queues: rx_queues as u64,
            number: queue as u64,
            opening: Opening { next: queue as u32, ..Opening::default() },
            pen: Pen::new(PAYLOAD),
            turned: None,
        };
        let rx = (0..rx_queues).map(|at| Box::new(queue(at)) as Box<dyn RxQueue>).collect();
        let tx = (0..tx_queues).map(|_| self.open_tx()).collect::<Result<_, _>>()?;
        Ok(OpenPort { rx, tx })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(netio::memory::Discard))
    }
}

/// The output port.
pub struct Out(pub Arc<Shared>);

impl PortOpener for Out {
    fn open(&mut self, _rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let tx = (0..tx_queues).map(|_| self.open_tx()).collect::<Result<_, _>>()?;
        Ok(OpenPort { rx: Vec::new(), tx })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(LoadTx(self.0.clone())))
    }
}

/// New flows that are being opened.
#[derive(Default)]
struct Opening {
    /// The first of the flows at work, which are `queues` apart.
    first: u32,
    count: u32,
    /// Segments that were sent of them.
    sent: u32,
    /// The first flow of the next group.
    next: u32,
}

impl Opening {
    fn next(&mut self, queues: u32, allowed: u32) -> Option<Segment> {
        if self.sent == self.count * HANDSHAKE {
            let left = allowed.checked_sub(self.next + 1)? / queues + 1;
            let count = left.min(TOGETHER);
            *self = Self { first: self.next, count, sent: 0, next: self.next + count * queues };
        }
        let flow = self.first + self.sent % self.count * queues;
        let step = self.sent / self.count;
        self.sent += 1;
        Some(Segment::handshake(FIRST_NEW + flow)[step as usize])
    }
}

/// A receive queue with its part of the flows. Each worker polls one.
struct LoadRx {
    shared: Arc<Shared>,
    queues: u64,
    /// The number of the next numbered packet.
    number: u64,
    opening: Opening,
    pen: Pen,
    /// CPU time and time of the last poll, in nanoseconds.
    turned: Option<[u64; 2]>,
}

impl LoadRx {
    /// A turn of a worker lasts from one poll of the queue to the next.
    fn turn(&mut self, now_ns: u64) {
        let turned = [clock::thread_nanoseconds(), now_ns];
        if let Some([cpu_ns, passed_ns]) = self.turned {
            self.shared.of_phase().turn(turned[0] - cpu_ns, turned[1] - passed_ns);
        }
        self.turned = Some(turned);
    }

    fn numbered(&mut self, pool: &mut FramePool) -> Option<Frame> {
        let said = (self.number / u64::from(ESTABLISHED)) as u32;
        let flow = 2 * established(self.number);
        let segment = match said.checked_sub(HANDSHAKE) {
            None => Segment::handshake(flow)[said as usize],
            Some(step) => Segment::talk(flow, step, PAYLOAD),
        };
        let number = self.number;
        self.number += self.queues;
        self.frame(&segment, number, pool)
    }

    fn frame(&mut self, segment: &Segment, sequence: u64, pool: &mut FramePool) -> Option<Frame> {
        let mut frame = pool.copy_of(self.pen.frame(segment))?;
        // As from an interface that has verified the checksum.
        frame.offload.checksum = Checksum::Verified;
        frame.sequence = sequence;
        Some(frame)
    }
}

impl RxQueue for LoadRx {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        let now_ns = clock::monotonic_nanoseconds();
        self.turn(now_ns);
        if self.shared.over.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let shared = self.shared.clone();
        // This is read first. Packets that go through between the two reads only add to it.
        let taken = shared.taken.load(Ordering::SeqCst);
        let under_way = shared.produced.load(Ordering::SeqCst).saturating_sub(taken);
        let room = |window: u64| max.min(window.saturating_sub(under_way) as usize);
        let before = frames.len();
        // At most half of a batch, so that new flows get a share where a worker gets little of its
        // CPU.
        let most = room(WINDOW).min(max / 2);
        while frames.len() - before < most && shared.due_ns(self.number) <= now_ns {
            frames.extend(self.numbered(pool));
        }
        let (queues, allowed) = (self.queues as u32, shared.allowed.load(Ordering::Relaxed));
        while frames.len() - before < room(WINDOW_OF_NEW)
            && let Some(segment) = self.opening.next(queues, allowed)
        {
            frames.extend(self.frame(&segment, OF_NEW, pool));
        }
        let count = frames.len() - before;
        shared.produced.fetch_add(count as u64, Ordering::SeqCst);
        Ok(count)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A transmit queue that checks the packets that come out.
struct LoadTx(Arc<Shared>);

impl LoadTx {
    fn take(&self, frame: &Frame, now_ns: u64) {
        let Self(shared) = self;
        if frame.sequence == OF_NEW {
            shared.new_taken.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let number = frame.sequence;
        let said = (number / u64::from(ESTABLISHED)) as u32;
        let expected = shared.next[established(number) as usize].swap(said + 1, Ordering::Relaxed);
        shared.disorder.fetch_add(u64::from(said != expected), Ordering::Relaxed);
        shared.of_phase().packet(now_ns.saturating_sub(shared.due_ns(number)));
    }
}

impl TxQueue for LoadTx {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let (mut report, now_ns) = (TxReport::default(), clock::monotonic_nanoseconds());
        for frame in frames.drain(..) {
            report.sent += 1;
            report.sent_bytes += frame.len() as u64;
            self.take(&frame, now_ns);
            pool.give_back(frame);
        }
        self.0.taken.fetch_add(report.sent, Ordering::SeqCst);
        Ok(report)
    }
}
