//! From verdict to wire: which port a frame leaves by, and one queue of frames
//! for each port and worker.

use fib::HardwareAddress;
use flow::{Counters, DropReason, HashKey};
use netio::{Frame, FramePool, PortId, TxQueue, TxRefusal, TxReport};
use wire::icmp_error::Message;

use crate::egress::bridge::{Bridge, BridgeDecision, OutputPorts};
use crate::egress::icmp_errors::{IcmpAnswers, Names, Speaker};
use crate::egress::path_mtu::{self, Shortened};
use crate::egress::port_set::PortSet;
use crate::egress::stations::{StationLimits, StationUpdate};

/// Frames that are gathered before they are sent on their own accord; a turn
/// sends what is left in any case.
const FLUSH_AT: usize = 64;

/// The next link of a frame that a router passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextLink {
    /// Station of the router there.
    pub from: HardwareAddress,
    /// Station of the next hop.
    pub to: HardwareAddress,
    /// Bytes of the longest packet that the route lets by, if it says so.
    pub mtu: Option<u32>,
}

impl NextLink {
    /// Makes a frame one of the next link, a hop further.
    #[inline(always)]
    fn apply(self, frame: &mut Frame) {
        let bytes = frame.bytes_mut();
        wire::set_stations(bytes, self.from, self.to);
        if let Some(packet) = bytes.get_mut(usize::from(wire::ETHERNET_LEN)..) {
            let was_left = wire::take_hop(packet);
            debug_assert!(was_left, "a router looks at the time to live before");
        }
    }
}

/// How a frame goes to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// The time, nanoseconds, if its sender may be told that it is too long.
    pub answer_ns: Option<u64>,
    /// The changes of a router.
    pub next_link: Option<NextLink>,
}

/// The output side of one worker.
#[derive(Default)]
pub struct Outputs {
    ports: Vec<Output>,
    bridge: Bridge,
    answers: IcmpAnswers,
    /// The pieces of a frame that was too long, while they are sent.
    pieces: Vec<Frame>,
    refused: RefusedFrames,
}

/// Frames that no port takes, until they are dropped.
type RefusedFrames = Vec<(Frame, DropReason)>;

#[derive(Default)]
struct Output {
    queue: Option<Box<dyn TxQueue>>,
    pending: Vec<Frame>,
    /// Longest packet that the port takes behind the link header, bytes.
    mtu: Option<u32>,
    sent: Sent,
}

/// The frames that a port has sent through one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames.
    pub frames: u64,
    /// Bytes, link header included.
    pub bytes: u64,
}

impl Sent {
    /// Adds what else went out.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

impl Outputs {
    /// Outputs for `ports` ports, none of them open, of a bridge that remembers so many stations.
    /// `key` is a secret.
    pub fn new(ports: usize, stations: StationLimits, key: HashKey) -> Self {
        let open = |_| Output { pending: Vec::with_capacity(FLUSH_AT), ..Output::default() };
        Self {
            ports: (0..ports).map(open).collect(),
            bridge: Bridge::new(ports, stations, key),
            ..Self::default()
        }
    }

    /// Opens or closes this worker's queue of a port.
    pub fn set(&mut self, port: PortId, queue: Option<Box<dyn TxQueue>>) {
        if let Some(output) = self.ports.get_mut(usize::from(port.0)) {
            output.queue = queue;
        }
    }

    /// Sets the longest packet that each port takes, bytes behind the link header, where that is known.
    pub fn set_mtus(&mut self, mtus: &[Option<u32>]) {
        for (output, mtu) in self.ports.iter_mut().zip(mtus) {
            output.mtu = *mtu;
        }
    }

    /// The longest packet that a port takes, bytes behind the link header, if that is known.
    pub fn mtu(&self, port: PortId) -> Option<u32> {
        self.ports.get(usize::from(port.0))?.mtu
    }

    /// The frames that were sent by each port.
    pub fn sent(&self) -> Vec<Sent> {
        self.ports.iter().map(|port| port.sent).collect()
    }

    /// A frame that no port takes, and why; it is to be dropped.
    pub fn take_refused(&mut self) -> Option<(Frame, DropReason)> {
        self.refused.pop()
    }

    /// Queues a frame for the port or ports that the bridge chooses.
    pub fn forward(
        &mut self,
        frame: Frame,
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        match self.output_ports(&frame, now_ns) {
            Ok(ports) => self.send(frame, ports, now_ns, pool, counters),
            Err(reason) => self.refused.push((frame, reason)),
        }
    }

    /// Queues a frame for ports that the bridge has chosen.
    pub fn send(
        &mut self,
        frame: Frame,
        ports: OutputPorts,
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        match ports {
            OutputPorts::One(port) => {
                let options = SendOptions { answer_ns: Some(now_ns), next_link: None };
                self.queue(port, frame, options, pool, counters);
            }
            OutputPorts::Many(ports) => self.flood(frame, ports, pool, counters),
        }
    }

    /// Queues a frame for a port, whatever stations the bridge knows.
    #[inline(always)]
    pub fn send_by(
        &mut self,
        port: PortId,
        frame: Frame,
        options: SendOptions,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        self.queue(port, frame, options, pool, counters);
    }

    /// Queues a frame for a port whose link and route take one of its length.
    #[inline]
    pub fn send_fitting(
        &mut self,
        port: PortId,
        frame: Frame,
        next_link: NextLink,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        match self.ports.get_mut(usize::from(port.0)).filter(|output| output.queue.is_some()) {
            Some(output) => output.push(frame, Some(next_link), &mut self.refused, pool, counters),
            None => self.refused.push((frame, DropReason::NoOutputPort)),
        }
    }

    /// Drops a frame for a reason, and tells its sender if there is something to tell.
    pub fn refuse(
        &mut self,
        frame: Frame,
        reason: DropReason,
        answer: Option<(Message, u64)>,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        if let Some((message, now_ns)) = answer {
            self.tell(&frame, message, Speaker::Gateway, now_ns, pool, counters);
        }
        self.refused.push((frame, reason));
    }

    /// Tells the sender of a packet why that does not go on, as far as it may be told.
    pub fn tell(
        &mut self,
        frame: &Frame,
        message: Message,
        speaker: Speaker,
        now_ns: u64,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        let answer = match speaker {
            Speaker::Gateway => self.answers.about(frame, message, now_ns, pool),
            Speaker::Receiver => self.answers.of_receiver(frame, message, now_ns, pool),
        };
        if let Some(answer) = answer {
            self.answer(answer, pool, counters);
        }
    }

    /// The ports that the bridge chooses for a frame, which is copied to those that are open if its
    /// station is not known.
    ///
    /// # Errors
    /// Why it goes nowhere.
    #[inline]
    pub fn output_ports(&self, frame: &Frame, now_ns: u64) -> Result<OutputPorts, DropReason> {
        match self.bridge.decide(frame, now_ns) {
            BridgeDecision::Port(port) => Ok(OutputPorts::One(port)),
            BridgeDecision::Flood => {
                let ports = (0..).map(PortId).zip(&self.ports);
                let is_meant = |(port, output): &(PortId, &Output)| {
                    *port != frame.port && output.queue.is_some()
                };
                let ports: PortSet = ports.filter(is_meant).map(|(port, _)| port).collect();
                if ports.is_empty() {
                    Err(DropReason::NoOutputPort)
                } else {
                    Ok(OutputPorts::Many(ports))
                }
            }
            BridgeDecision::Drop(reason) => Err(reason),
        }
    }

    /// Has a bridge note where the sender of a frame is, see [`Bridge::learn`].
    #[inline]
    pub fn learn(&mut self, frame: &Frame, now_ns: u64, tell: impl FnOnce(StationUpdate) -> bool) {
        self.bridge.learn(frame, now_ns, tell);
    }

    /// True if a bridge has to be told where the senders of frames are.
    #[inline]
    pub const fn learns(&self) -> bool {
        self.bridge.learns()
    }

    /// Has a bridge note what another worker has heard.
    pub fn learn_from_peer(&mut self, heard: StationUpdate) {
        self.bridge.learn_from_peer(heard);
    }

    /// A piece of the stations that a bridge knows, see [`Bridge::known_stations`].
    pub fn known_stations(
        &self,
        from: usize,
        budget: usize,
    ) -> (Vec<StationUpdate>, Option<usize>) {
        self.bridge.known_stations(from, budget)
    }

    /// Sends errors in these names from now on, by port.
    pub fn set_names(&mut self, names: impl Iterator<Item = Names>) {
        self.answers.set_names(names);
    }

    fn answer(&mut self, answer: Frame, pool: &mut FramePool, counters: &mut Counters) {
        if let Some(back) = self.ports.get_mut(usize::from(answer.port.0)) {
            counters.output.icmp_out_msgs += 1;
            back.push(answer, None, &mut self.refused, pool, counters);
        }
    }

    fn flood(
        &mut self,
        frame: Frame,
        ports: PortSet,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        let mut copies: u64 = 0;
        for port in ports.iter() {
            copies += 1;
            match pool.duplicate(&frame) {
                // Nobody knows that the station is behind this port: no error is due.
                Some(copy) => self.queue(port, copy, SendOptions::default(), pool, counters),
                None => counters.drop_packet(DropReason::NoBuffer),
            }
        }
        counters.output.flood_copies += copies.saturating_sub(1);
        pool.give_back(frame);
    }

    /// Queues a frame for a port. In line, because a frame is copied when it is handed to a
    /// function.
    #[inline(always)]
    fn queue(
        &mut self,
        port: PortId,
        frame: Frame,
        options: SendOptions,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        let Some(output) = self.ports.get_mut(usize::from(port.0)).filter(|o| o.queue.is_some())
        else {
            return self.refused.push((frame, DropReason::NoOutputPort));
        };
        let of_route = options.next_link.and_then(|next_link| next_link.mtu);
        let fits = |mtu: Option<u32>| mtu.is_none_or(|mtu| !path_mtu::is_exceeded(mtu, &frame));
        if fits(output.mtu) && fits(of_route) {
            return output.push(frame, options.next_link, &mut self.refused, pool, counters);
        }
        self.queue_shortened(port, frame, options, pool, counters);
    }

    /// Queues what is to be sent instead of a frame that is too long for its port or route.
    #[cold]
    #[inline(never)]
    fn queue_shortened(
        &mut self,
        port: PortId,
        mut frame: Frame,
        options: SendOptions,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        let Some(output) = self.ports.get_mut(usize::from(port.0)) else { return };
        let of_route = options.next_link.and_then(|next_link| next_link.mtu);
        let mtu = output.mtu.into_iter().chain(of_route).min().unwrap_or(u32::MAX);
        match path_mtu::shorten(&mut frame, mtu, pool, &mut self.pieces) {
            Shortened::Pieces => {
                // A super-packet with shorter segments is still one.
                if self.pieces.len() > 1 {
                    counters.output.frag_oks += 1;
                    counters.output.frag_creates += self.pieces.len() as u64;
                }
                for piece in self.pieces.drain(..) {
                    output.push(piece, options.next_link, &mut self.refused, pool, counters);
                }
            }
            Shortened::MayNotBeCut { mtu } => {
                counters.output.frag_fails += 1;
                let answer = options.answer_ns.map(|now_ns| (Message::TooBig { mtu }, now_ns));
                self.refuse(frame, DropReason::FragNeeded, answer, pool, counters);
            }
            Shortened::CanNotBeCut => self.refused.push((frame, DropReason::OutputTooLong)),
        }
    }

    /// Sends everything that is queued.
    pub fn flush(&mut self, pool: &mut FramePool, counters: &mut Counters) {
        for output in &mut self.ports {
            if !output.pending.is_empty() {
                output.flush(&mut self.refused, pool, counters);
            }
        }
    }
}

impl Output {
    /// Queues a frame of the right length. In line, because a frame is copied when it is handed to
    /// a function.
    #[inline(always)]
    fn push(
        &mut self,
        mut frame: Frame,
        next_link: Option<NextLink>,
        refused: &mut RefusedFrames,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        if let Some(next_link) = next_link {
            next_link.apply(&mut frame);
        }
        self.pending.push(frame);
        if self.pending.len() >= FLUSH_AT {
            self.flush(refused, pool, counters);
        }
    }

    #[inline(never)]
    fn flush(
        &mut self,
        refused: &mut RefusedFrames,
        pool: &mut FramePool,
        counters: &mut Counters,
    ) {
        let Some(queue) = &mut self.queue else {
            refused.extend(self.pending.drain(..).map(|frame| (frame, DropReason::NoOutputPort)));
            return;
        };
        let queued = self.pending.len() as u64;
        let result = queue.transmit(&mut self.pending, pool);
        let is_broken = result.is_err();
        let nothing_sent = TxReport { refused_gone: queued, ..TxReport::default() };
        let report = result.unwrap_or(nothing_sent);
        self.sent.add(&Sent { frames: report.sent, bytes: report.sent_bytes });
        counters.transmitted += report.sent;
        counters.transmitted_bytes += report.sent_bytes;
        if report.sent < queued {
            take_unsent(&mut **queue, report, refused, counters);
        }
        if is_broken {
            // The receive side of the port notices the same and has it opened
            // again; until then its output is closed.
            self.queue = None;
        }
    }
}

/// Takes the frames that a queue has refused, and counts those that it has not kept.
#[cold]
fn take_unsent(
    queue: &mut dyn TxQueue,
    mut report: TxReport,
    refused: &mut RefusedFrames,
    counters: &mut Counters,
) {
    while let Some((frame, why)) = queue.take_refused() {
        *report.refused_mut(why) = report.refused_mut(why).saturating_sub(1);
        refused.push((frame, reason_of(why)));
    }
    for why in [TxRefusal::Full, TxRefusal::TooLong, TxRefusal::Invalid, TxRefusal::Gone] {
        counters.drop_packets(reason_of(why), *report.refused_mut(why));
    }
}

const fn reason_of(why: TxRefusal) -> DropReason {
    match why {
        TxRefusal::Full => DropReason::OutputFull,
        TxRefusal::TooLong => DropReason::OutputTooLong,
        TxRefusal::Invalid => DropReason::OutputInvalid,
        TxRefusal::Gone => DropReason::NoOutputPort,
    }
}

#[cfg(test)]
#[path = "outputs_tests.rs"]
mod tests;
