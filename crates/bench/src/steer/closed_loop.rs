//! Clients and servers that cost next to nothing: a receive queue and transmit queues that form a
//! closed loop.
//!
//! A flow is a TCP connection whose ends send one byte by turns. Each frame that leaves through a
//! [`LoopTx`] comes back through a [`LoopRx`] as the next segment of its flow. Only the number of
//! the flow travels between the two, over a ring for each pair. So the loop has no lock and makes
//! no system call for a packet.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::{OpenPort, PortOpener};
use netio::memory::Discard;
use netio::{Checksum, Frame, FramePool, PortError, RxQueue, TxQueue, TxReport, clock};
use rtrb::{Consumer, Producer, RingBuffer};

use super::stack::Stack;
use crate::traffic::{Payload, Pen, Segment, Sender};

/// One byte each way.
const PAYLOAD: Payload = [1, 1];
/// Segments of the handshake.
const HANDSHAKE: u32 = 3;
/// Numbers of flows that a transmit queue hands back at once.
const RELEASE: usize = 8;
/// Packets between two looks at the thread's clock.
const NOTE_EVERY: u64 = 256;

/// The properties of a frame in [`Frame::sequence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label {
    /// Position among the frames of its flow, from 0.
    number: u32,
    flow: u16,
    /// The receive queue of the flow.
    queue: u8,
    /// True for a request, on which the server has to work.
    request: bool,
}

impl Label {
    fn pack(self) -> u64 {
        u64::from(self.number)
            | u64::from(self.flow) << 32
            | u64::from(self.queue) << 48
            | u64::from(self.request) << 56
    }

    fn unpack(sequence: u64) -> Self {
        Self {
            number: sequence as u32,
            flow: (sequence >> 32) as u16,
            queue: (sequence >> 48) as u8,
            request: sequence >> 56 != 0,
        }
    }
}

/// The counters of one worker's queues. Only one thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    /// Frames that came back.
    pub returned: AtomicU64,
    /// Transactions at the last look at the clock.
    pub transactions: AtomicU64,
    /// CPU time of the worker at that moment, in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Frames whose number is not above that of their flow's last frame.
    pub reordered: AtomicU64,
    /// Numbers that were left out.
    pub skipped: AtomicU64,
}

/// The benchmark's end of the loop.
pub struct Loop {
    /// Starts flows: one ring for each receive queue.
    pub seeds: Vec<Producer<u16>>,
    /// The counters of each worker.
    pub tallies: Vec<Arc<Tally>>,
    /// Frames that each receive queue has sent in.
    pub injected: Vec<Arc<AtomicU64>>,
    /// Set to end the load.
    pub over: Arc<AtomicBool>,
}

/// The two ports of the loop: frames that come in by the first leave by the second.
pub fn connect(
    flows: u16,
    window: u16,
    queues: usize,
    workers: usize,
    stack: Stack,
) -> (Loop, InPort, OutPort) {
    let slots = usize::from(flows) * usize::from(window);
    let over = Arc::new(AtomicBool::new(false));
    let mut control =
        Loop { seeds: Vec::new(), tallies: Vec::new(), injected: Vec::new(), over: over.clone() };
    let mut receive: Vec<LoopRx> = Vec::new();
    for queue in 0..queues as u8 {
        let (seed, seeded) = RingBuffer::new(slots);
        let injected = Arc::new(AtomicU64::new(0));
        control.seeds.push(seed);
        control.injected.push(injected.clone());
        receive.push(LoopRx::new(queue, flows, seeded, injected, over.clone()));
    }
    let mut transmit = Vec::new();
    for _ in 0..workers {
        let tally = Arc::new(Tally::default());
        control.tallies.push(tally.clone());
        let mut back = Vec::new();
        for queue in &mut receive {
            let (to, from) = RingBuffer::new(slots);
            queue.rings.push(from);
            back.push(Return { to, pending: Vec::with_capacity(RELEASE) });
        }
        transmit.push(LoopTx {
            back,
            next: vec![0; usize::from(flows)],
            stack,
            tally,
            noted: 0,
            transactions: 0,
        });
    }
    (control, InPort(receive), OutPort(transmit))
}

/// The input port.
pub struct InPort(Vec<LoopRx>);

impl PortOpener for InPort {
    fn open(&mut self, _rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let rx = self.0.drain(..).map(|queue| Box::new(queue) as Box<dyn RxQueue>).collect();
        let tx = (0..tx_queues).map(|_| Box::new(Discard) as Box<dyn TxQueue>).collect();
        Ok(OpenPort { rx, tx })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(Discard))
    }
}

/// The output port.
pub struct OutPort(Vec<LoopTx>);

impl PortOpener for OutPort {
    fn open(&mut self, _rx_queues: usize, _tx_queues: usize) -> Result<OpenPort, PortError> {
        let tx = self.0.drain(..).map(|queue| Box::new(queue) as Box<dyn TxQueue>).collect();
        Ok(OpenPort { rx: Vec::new(), tx })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Err(PortError::Finished)
    }
}

/// The frames of a flow's two ends, without their numbers.
struct Conversation {
    said: u32,
    frames: [Vec<u8>; 2],
}

/// A receive queue that yields the next segment of each flow whose number has come back.
struct LoopRx {
    queue: u8,
    rings: Vec<Consumer<u16>>,
    /// The ring that was read last.
    turn: usize,
    conversations: Vec<Conversation>,
    pen: Pen,
    injected: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl LoopRx {
    fn new(
        queue: u8,
        flows: u16,
        seeded: Consumer<u16>,
        injected: Arc<AtomicU64>,
        over: Arc<AtomicBool>,
    ) -> Self {
        let mut pen = Pen::new(PAYLOAD);
        let mut frame = |flow, step| pen.frame(&Segment::talk(flow, step, PAYLOAD)).to_vec();
        let conversations = (0..u32::from(flows)).map(|flow| {
            // In every other flow the server speaks first.
            let (client, server) = (flow & 1, 1 - (flow & 1));
            Conversation { said: 0, frames: [frame(flow, client), frame(flow, server)] }
        });
        let conversations = conversations.collect();
        Self { queue, rings: vec![seeded], turn: 0, conversations, pen, injected, over }
    }

    /// The next frame of a flow.
    fn next(&mut self, flow: u16, pool: &mut FramePool) -> Option<Frame> {
        let conversation = &mut self.conversations[usize::from(flow)];
        let number = conversation.said;
        conversation.said += 1;
        let mut request = false;
        let mut frame = if number < HANDSHAKE {
            let segment = Segment::handshake(flow.into())[number as usize];
            pool.copy_of(self.pen.frame(&segment))?
        } else {
            let segment = Segment::talk(flow.into(), number - HANDSHAKE, PAYLOAD);
            request = segment.sender == Sender::Client;
            let frame = &mut conversation.frames[segment.sender as usize];
            segment.write_numbers(frame);
            pool.copy_of(frame)?
        };
        // As from an interface that has verified the checksum.
        frame.offload.checksum = Checksum::Verified;
        frame.sequence = Label { number, flow, queue: self.queue, request }.pack();
        Some(frame)
    }
}

impl RxQueue for LoopRx {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        let mut count = 0;
        if self.over.load(Ordering::Relaxed) {
            return Ok(0);
        }
        // One number from each ring by turns, as from a wire that they share.
        let mut empty = 0;
        while count < max && empty < self.rings.len() {
            self.turn = (self.turn + 1) % self.rings.len();
            if let Ok(flow) = self.rings[self.turn].pop() {
                frames.extend(self.next(flow, pool));
                count += 1;
                empty = 0;
            } else {
                empty += 1;
            }
        }
        let injected = self.injected.load(Ordering::Relaxed) + count as u64;
        self.injected.store(injected, Ordering::Relaxed);
        Ok(count)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The way of flow numbers back to a receive queue.
struct Return {
    to: Producer<u16>,
    pending: Vec<u16>,
}

impl Return {
    fn flush(&mut self) {
        let room = self.to.slots().min(self.pending.len());
        if let Ok(chunk) = self.to.write_chunk_uninit(room) {
            chunk.fill_from_iter(self.pending.drain(..room));
        }
    }
}

/// A transmit queue with the servers behind it. The work on a request happens here, on the CPU of
/// the worker that owns its flow.
struct LoopTx {
    /// By receive queue.
    back: Vec<Return>,
    /// The next expected number of each flow.
    next: Vec<u32>,
    stack: Stack,
    tally: Arc<Tally>,
    transactions: u64,
    /// Frames since the last look at the clock.
    noted: u64,
}

impl LoopTx {
    fn take(&mut self, frame: &Frame) {
        let Label { number, flow, queue, request } = Label::unpack(frame.sequence);
        let next = &mut self.next[usize::from(flow)];
        if number < *next {
            add(&self.tally.reordered, 1);
        } else {
            if number > *next {
                add(&self.tally.skipped, u64::from(number - *next));
            }
            *next = number + 1;
        }
        if request {
            self.stack.work();
            self.transactions += 1;
        }
        let back = &mut self.back[usize::from(queue)];
        back.pending.push(flow);
        if back.pending.len() >= RELEASE {
            back.flush();
        }
    }

    fn note(&mut self, frames: u64) {
        add(&self.tally.returned, frames);
        self.noted += frames;
        if self.noted >= NOTE_EVERY {
            self.noted = 0;
            self.tally.transactions.store(self.transactions, Ordering::Relaxed);
            self.tally.cpu_ns.store(clock::thread_nanoseconds(), Ordering::Relaxed);
        }
    }
}

/// Only one thread writes a counter, so it needs no locked instruction.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

impl TxQueue for LoopTx {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let mut report = TxReport::default();
        for frame in frames.drain(..) {
            report.sent += 1;
            report.sent_bytes += frame.len() as u64;
            self.take(&frame);
            pool.give_back(frame);
        }
        for back in &mut self.back {
            back.flush();
        }
        self.note(report.sent);
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_what_it_was() {
        for label in [
            Label { number: u32::MAX, flow: 699, queue: 1, request: true },
            Label { number: 0, flow: u16::MAX, queue: u8::MAX, request: false },
        ] {
            assert_eq!(Label::unpack(label.pack()), label);
        }
    }

    #[test]
    fn a_segment_that_leaves_comes_back_as_the_next_one() {
        let (mut control, mut input, mut output) = connect(2, 1, 1, 1, Stack::NONE);
        let (mut rx, mut tx) = (input.0.remove(0), output.0.remove(0));
        let (mut pool, mut frames) = (FramePool::new(8, 0), Vec::new());
        control.seeds[0].push(1).unwrap();
        for number in 0..6 {
            assert_eq!(rx.receive(&mut frames, 64, &mut pool).unwrap(), 1);
            assert_eq!(rx.receive(&mut frames, 64, &mut pool).unwrap(), 0, "one is outstanding");
            let expected = match number {
                0..3 => Segment::handshake(1)[number],
                _ => Segment::talk(1, number as u32 - 3, PAYLOAD),
            };
            assert_eq!(frames[0].bytes(), Pen::new(PAYLOAD).frame(&expected));
            tx.transmit(&mut frames, &mut pool).unwrap();
        }
        let tally = &control.tallies[0];
        assert_eq!(tally.returned.load(Ordering::Relaxed), 6);
        assert_eq!(tally.reordered.load(Ordering::Relaxed), 0);
        assert_eq!(tally.skipped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn frames_out_of_order_and_missing_are_counted() {
        let (control, _, mut output) = connect(1, 1, 1, 1, Stack::NONE);
        let mut pool = FramePool::new(8, 0);
        let mut frames: Vec<Frame> = [0, 2, 1, 3]
            .into_iter()
            .map(|number| {
                let mut frame = pool.copy_of(&[0; 60]).unwrap();
                frame.sequence = Label { number, flow: 0, queue: 0, request: false }.pack();
                frame
            })
            .collect();
        output.0[0].transmit(&mut frames, &mut pool).unwrap();
        let tally = &control.tallies[0];
        assert_eq!(tally.reordered.load(Ordering::Relaxed), 1);
        assert_eq!(tally.skipped.load(Ordering::Relaxed), 1);
    }
}
