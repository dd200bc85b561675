//! The load on a gateway whose tables grow: established flows that send numbered packets at
//! a steady pace, and new flows as fast as it takes them.
//!
//! A numbered packet has a moment at which it is due, whoever polls then or not: what a
//! worker is late counts, as it would for a packet that waits in the ring of a card.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use engine::{OpenPort, PortOpener};
use netio::{Checksum, Frame, FramePool, PortError, RxQueue, TxQueue, TxReport, clock};

use super::stalls::Stalls;
use crate::traffic::{Payload, Pen, Segment};

/// Flows that are established all the time.
pub const ESTABLISHED: u32 = 1000;
/// The first flow of those that come and go; their clients have other ports.
const FIRST_NEW: u32 = 1 << 16;
/// Time between two numbered packets, nanoseconds: 100 a second of each flow.
const PACE_NS: u64 = 10_000;
/// What an established flow says at a time.
const PAYLOAD: Payload = [100, 1000];
/// Segments that open a flow.
const HANDSHAKE: u32 = 3;
/// Most packets under way: half of a backlog, so that none may be refused. New flows leave
/// a part of it to the established ones.
const WINDOW: u64 = 400;
const WINDOW_OF_NEW: u64 = 256;
/// New flows whose segments come together: first all SYNs, then what answers them.
const TOGETHER: u32 = 16;
/// Marks the packets of new flows in [`Frame::sequence`]; of the others it is the number
/// among all numbered packets.
const OF_NEW: u64 = 1 << 63;

/// What the ports and the benchmark share.
pub struct Shared {
    /// When the first numbered packet is due.
    begin_ns: u64,
    produced: AtomicU64,
    taken: AtomicU64,
    /// New flows that may be opened, all in all.
    allowed: AtomicU32,
    /// Packets of new flows that came out.
    new_taken: AtomicU64,
    /// By established flow: the number that has to come out next. A flow has one worker, so
    /// nobody else writes.
    next: Vec<AtomicU32>,
    disorder: AtomicU64,
    phase: AtomicUsize,
    stalls: Vec<Stalls>,
    over: AtomicBool,
}

impl Shared {
    /// For so many phases.
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

    /// Lets so many new flows be opened, those before included.
    pub fn allow(&self, flows: u32) {
        self.allowed.store(flows, Ordering::Relaxed);
    }

    /// New flows whose handshakes came out.
    pub fn opened(&self) -> u32 {
        (self.new_taken.load(Ordering::Relaxed) / u64::from(HANDSHAKE)) as u32
    }

    /// True once every established flow is one.
    pub fn is_established(&self) -> bool {
        self.next.iter().all(|next| next.load(Ordering::Relaxed) >= HANDSHAKE)
    }

    /// What happens from now on belongs to this phase.
    pub fn enter(&self, phase: usize) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    pub fn stalls(&self, phase: usize) -> &Stalls {
        &self.stalls[phase]
    }

    /// No more packets from now on.
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

/// An established flow of the order in which they speak; its clients are those with even
/// addresses.
fn established(number: u64) -> u32 {
    (number % u64::from(ESTABLISHED)) as u32
}

/// The port that packets come in by.
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

/// The port that all of them leave by.
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
    /// Of these flows, which are `queues` apart.
    first: u32,
    count: u32,
    /// Segments that were sent.
    sent: u32,
    /// The first of the next ones.
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
    /// Of the next numbered packet.
    number: u64,
    opening: Opening,
    pen: Pen,
    /// CPU time and time when it was polled last.
    turned: Option<[u64; 2]>,
}

impl LoadRx {
    /// From one time that the queue is polled to the next is a turn of its worker.
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
        // Taken first: what goes through between the two only adds.
        let taken = shared.taken.load(Ordering::SeqCst);
        let under_way = shared.produced.load(Ordering::SeqCst).saturating_sub(taken);
        let room = |window: u64| max.min(window.saturating_sub(under_way) as usize);
        let before = frames.len();
        // Half of a batch at most: where a worker gets little of its CPU, new flows come too.
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

/// A transmit queue that checks what comes out.
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
