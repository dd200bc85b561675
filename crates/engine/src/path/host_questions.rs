//! Answers packets for a port of the host that nobody has.
//!
//! The host's kernel gets no packet for a translation address that might be one of a translated
//! connection, so it can not refuse those that are not. The gateway refuses them in its place, if
//! the host has no socket for them. A thread of the gateway asks the kernel about that, and the
//! packet waits here for the answer. Workers never wait.
//!
//! Everything is bounded: a packet that finds no room, or comes too soon after many others, gets no
//! answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use flow::{KeyedPacket, Timestamp};
use netio::{Checksum, PortId};
use wire::control_segment::{ControlSegment, MAX_FRAME};
use wire::icmp_error::{Message, network_of_answered};
use wire::{Family, TcpFlags, TcpInfo, Transport, checksum, protocol};

use crate::egress::allowance::Allowance;
use crate::egress::icmp_errors::Speaker;
use crate::egress::original_ends::original_ends;
use crate::egress::recent_answers::{RecentAnswers, fold};
use crate::path::PacketPath;
use crate::path::host_flows::Sign;
use crate::path::packet::Packet;
use crate::rings::link::Wakeup;

/// Most packets of a worker that wait for an answer.
pub const MAX_WAITING: usize = 64;
/// Most questions of a worker in a second.
pub const QUESTIONS_PER_SECOND: u64 = 1000;
/// Most questions of all workers that the thread has not taken yet.
const MAX_ASKED: usize = 256;
/// The time for which a worker asks no more about a flow of the host.
const FLOW_REMEMBERED: Duration = Duration::from_secs(1);
/// The same about packets to a destination of which the host has all.
const DESTINATION_REMEMBERED: Duration = Duration::from_millis(100);
/// Flows of the host that a worker remembers, and destinations: 2 to this power.
const FLOW_BITS: u32 = 10;
const DESTINATION_BITS: u32 = 7;

/// Codes for a port that nobody has (RFC 792; RFC 4443 section 3.1).
const PORT_UNREACHABLE: u8 = 3;
const PORT_UNREACHABLE_V6: u8 = 4;

/// States of a packet that waits.
const UNANSWERED: u8 = 0;
const NOTHING: u8 = 1;
const FLOW: u8 = 2;
const DESTINATION: u8 = 3;

/// A packet for an address of the host that belongs to no connection of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToHost {
    /// The port that it came in by.
    pub port: PortId,
    /// Its source. It has the family of the destination.
    pub source: SocketAddr,
    /// Its destination.
    pub destination: SocketAddr,
    /// Its protocol: TCP or UDP.
    pub protocol: u8,
    /// It opens a TCP connection.
    pub opens: bool,
}

/// The part that the host has in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPart {
    /// Nobody on the host has its port, and the host has not got it. It would refuse it.
    Nothing,
    /// The packet's flow is the host's, or nobody knows.
    Flow,
    /// The same holds for all packets like it that come in by its port to its destination.
    Destination,
}

/// The question what part the host has in a packet. It has to be answered.
#[derive(Debug)]
pub struct HostQuestion {
    /// The packet.
    pub packet: ToHost,
    place: usize,
    answers: Arc<Answers>,
}

/// Lets workers ask what part the host has in packets.
#[derive(Clone, Debug)]
pub struct HostAsker(SyncSender<HostQuestion>);

/// The answers to the questions of a worker.
#[derive(Debug)]
struct Answers {
    /// For each packet that waits.
    answers: [AtomicU8; MAX_WAITING],
    /// Some may have come since the worker looked last.
    is_news: AtomicBool,
    wakeup: Wakeup,
}

/// The part of a worker: its packets that wait, and flows that need no question.
pub struct HostQuestions {
    asker: HostAsker,
    answers: Arc<Answers>,
    waiting: Box<[Option<Packet>]>,
    /// How many wait.
    count: usize,
    allowance: Allowance,
    /// Flows of the host, and until when they are remembered.
    flows: RecentAnswers<KeyedPacket, Timestamp>,
    /// Destinations of which the host has all packets, and until when they are remembered.
    destinations: RecentAnswers<HostDestination, Timestamp>,
}

/// The common part of packets that are all the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostDestination {
    input: PortId,
    end: SocketAddr,
    protocol: u8,
    opens: bool,
}

impl HostAsker {
    /// Creates an asker whose questions come out at the other end.
    pub fn new() -> (Self, Receiver<HostQuestion>) {
        let (asked, questions) = sync_channel(MAX_ASKED);
        (Self(asked), questions)
    }

    /// The part of a worker that is woken by `wakeup`.
    pub fn of_worker(&self, wakeup: &Wakeup) -> HostQuestions {
        let answers = Answers {
            answers: [const { AtomicU8::new(UNANSWERED) }; MAX_WAITING],
            is_news: AtomicBool::new(false),
            wakeup: wakeup.clone(),
        };
        HostQuestions {
            asker: self.clone(),
            answers: Arc::new(answers),
            waiting: std::iter::repeat_with(|| None).take(MAX_WAITING).collect(),
            count: 0,
            allowance: Allowance::new(QUESTIONS_PER_SECOND, MAX_WAITING as u64),
            flows: RecentAnswers::new(FLOW_BITS),
            destinations: RecentAnswers::new(DESTINATION_BITS),
        }
    }
}

impl ToHost {
    /// A packet of UDP, or a segment of TCP that is no reset; `None` for others.
    fn of(packet: &Packet) -> Option<Self> {
        let network = &packet.network;
        let (protocol, ports, opens) = match &network.transport {
            Transport::Tcp(tcp) if !tcp.flags.contains(TcpFlags::RST) => {
                let has = |flag| tcp.flags.contains(flag);
                let opens = has(TcpFlags::SYN) && !has(TcpFlags::ACK);
                (protocol::TCP, (tcp.source_port, tcp.destination_port), opens)
            }
            Transport::Udp { source_port, destination_port, .. } => {
                (protocol::UDP, (*source_port, *destination_port), false)
            }
            _ => return None,
        };
        Some(Self {
            port: packet.frame.port,
            source: SocketAddr::new(network.source_ip(), ports.0),
            destination: SocketAddr::new(network.destination_ip(), ports.1),
            protocol,
            opens,
        })
    }

    fn destination(&self) -> HostDestination {
        let Self { port, destination, protocol, opens, .. } = *self;
        HostDestination { input: port, end: destination, protocol, opens }
    }
}

impl HostDestination {
    /// The destination as a number for [`RecentAnswers::place`].
    fn folded(&self) -> u64 {
        fold(wire::mapped(self.end.ip())) ^ u64::from(self.end.port()) << 32
    }
}

impl HostQuestion {
    /// Answers it, and wakes the worker.
    pub fn answer(self, part: HostPart) {
        let answer = match part {
            HostPart::Nothing => NOTHING,
            HostPart::Flow => FLOW,
            HostPart::Destination => DESTINATION,
        };
        self.answers.answers[self.place].store(answer, Ordering::Release);
        self.answers.is_news.store(true, Ordering::Release);
        self.answers.wakeup.ring();
    }
}

impl HostQuestions {
    /// A place for one more packet to wait; `None` if it is not to be asked about.
    fn place(
        &mut self,
        (keyed, hash): (KeyedPacket, u64),
        packet: &ToHost,
        now: Timestamp,
    ) -> Option<usize> {
        let flow = self.flows.place(hash);
        let destination = packet.destination();
        let found = self.destinations.place(destination.folded());
        if flow.is_some_and(|(flow, until)| flow == keyed && now < until)
            || found.is_some_and(|(found, until)| found == destination && now < until)
        {
            return None;
        }
        let place = self.waiting.iter().position(Option::is_none)?;
        self.allowance.take(now.as_nanos()).then_some(place)
    }

    /// Asks about a packet, which waits from then on.
    fn ask(&mut self, question: ToHost, place: usize, packet: &mut Packet) -> bool {
        self.answers.answers[place].store(UNANSWERED, Ordering::Relaxed);
        let question = HostQuestion { packet: question, place, answers: self.answers.clone() };
        let is_asked = self.asker.0.try_send(question).is_ok();
        if is_asked {
            self.waiting[place] = Some(packet.take());
            self.count += 1;
        }
        is_asked
    }

    /// True if answers wait to be taken.
    pub fn has_news(&self) -> bool {
        self.count > 0 && self.answers.is_news.load(Ordering::Acquire)
    }

    /// Takes a packet that was answered, and the part that the host has in it.
    fn take(&mut self, place: usize) -> Option<(Packet, HostPart)> {
        let part = match self.answers.answers[place].load(Ordering::Acquire) {
            NOTHING => HostPart::Nothing,
            FLOW => HostPart::Flow,
            DESTINATION => HostPart::Destination,
            _ => return None,
        };
        let packet = self.waiting[place].take()?;
        self.count -= 1;
        Some((packet, part))
    }

    /// Asks no more about packets like this one for a while.
    fn remember(&mut self, packet: &Packet, part: HostPart, now: Timestamp) {
        match part {
            HostPart::Nothing => {}
            HostPart::Flow => {
                if let Some((keyed, hash)) = packet.looked_up() {
                    *self.flows.place(hash) = Some((keyed, now.after(FLOW_REMEMBERED)));
                }
            }
            HostPart::Destination => {
                if let Some(to_host) = ToHost::of(packet) {
                    let destination = to_host.destination();
                    let until = now.after(DESTINATION_REMEMBERED);
                    *self.destinations.place(destination.folded()) = Some((destination, until));
                }
            }
        }
    }
}

impl PacketPath {
    /// Has the host's kernel asked about a packet that is the host's own. True if the packet waits
    /// for the answer; the host has its own copy in any case.
    #[cold]
    pub(super) fn ask_host(&mut self, packet: &mut Packet, now: Timestamp) -> bool {
        let Some(questions) = &mut self.host_questions else { return false };
        let (Some(flow), Some(question)) = (packet.looked_up(), ToHost::of(packet)) else {
            return false;
        };
        let Some(place) = questions.place(flow, &question, now) else { return false };
        if !may_be_answered(packet) {
            return false;
        }
        questions.ask(question, place, packet)
    }

    /// Refuses the packets that the host would refuse, and lets go of the others. True if there was
    /// anything.
    pub(crate) fn take_host_answers(&mut self, now: Timestamp) -> bool {
        let Some(questions) = &mut self.host_questions else { return false };
        if !questions.has_news() {
            return false;
        }
        questions.answers.is_news.swap(false, Ordering::AcqRel);
        for place in 0..MAX_WAITING {
            let answered = self.host_questions.as_mut().and_then(|it| it.take(place));
            let Some((packet, part)) = answered else { continue };
            if let Some(questions) = &mut self.host_questions {
                questions.remember(&packet, part, now);
            }
            if part == HostPart::Nothing && self.is_nobodys(&packet, now) {
                self.refuse_for_host(&packet, now);
            }
            self.pool.give_back(packet.frame);
        }
        true
    }

    /// Lets go of the packets that wait, because the worker ends.
    pub(super) fn end_host_questions(&mut self) {
        let Some(questions) = self.host_questions.take() else { return };
        questions.waiting.into_iter().flatten().for_each(|it| self.pool.give_back(it.frame));
    }

    /// True if a packet still belongs to no connection, as far as this worker can say.
    fn is_nobodys(&self, packet: &Packet, now: Timestamp) -> bool {
        let (Some((keyed, hash)), Some(bucket)) =
            (packet.looked_up(), self.buckets.get(packet.bucket))
        else {
            return false;
        };
        let sign = Sign::of(&packet.network.transport);
        bucket.aliases.owner(&keyed, hash).is_none()
            && !bucket.host_flows.knows(&keyed, hash, sign, now)
            && self.is_untracked_local(packet, now)
    }

    /// Answers a packet as the host does for a port that nobody has (RFC 9293 section 3.10.7.1,
    /// RFC 1122 section 3.2.2.1, RFC 4443 section 3.1).
    fn refuse_for_host(&mut self, packet: &Packet, now: Timestamp) {
        let port = packet.frame.port;
        let Self { forwarder, pool, counters, .. } = self;
        if let Some(segment) = reset(packet) {
            let mut bytes = [0; MAX_FRAME];
            if let Some(length) = segment.write(packet.frame.bytes(), &mut bytes)
                && let Some(mut frame) = pool.copy_of(&bytes[..length])
            {
                frame.port = port;
                frame.offload.checksum = Checksum::Verified;
                counters.output.tcp_resets += 1;
                forwarder.send_made(port, frame, pool, counters);
            }
            return;
        }
        let code = match packet.network.family {
            Family::V4 => PORT_UNREACHABLE,
            Family::V6 => PORT_UNREACHABLE_V6,
        };
        let message = Message::Unreachable { code };
        let (speaker, now_ns) = (Speaker::Receiver, now.as_nanos());
        forwarder.tell(&packet.frame, message, speaker, now_ns, pool, counters);
    }
}

/// The reset that answers a packet, if it is a TCP segment.
fn reset(packet: &Packet) -> Option<ControlSegment> {
    let Transport::Tcp(tcp) = &packet.network.transport else { return None };
    ControlSegment::reset(tcp, length_of_text(packet, tcp))
}

/// The length of a segment's text, bytes.
pub(super) fn length_of_text(packet: &Packet, tcp: &TcpInfo) -> u32 {
    let text = u32::from(packet.network.transport_offset) + u32::from(tcp.header_len);
    packet.network.end.saturating_sub(text)
}

/// True for a packet that a host may answer: it came whole, as it was sent, from one host to one
/// other, and its checksum is right.
fn may_be_answered(packet: &Packet) -> bool {
    let is_intact = match packet.frame.offload.checksum {
        Checksum::Complete => checksum::verify_transport(packet.frame.bytes(), &packet.network),
        Checksum::Verified | Checksum::Partial { .. } => true,
        Checksum::Cut => false,
    };
    is_intact
        && packet.pieces.is_none()
        && original_ends(&packet.frame) == wire::Readdress::default()
        && network_of_answered(packet.frame.bytes()).is_some()
}

#[cfg(test)]
#[path = "host_questions_tests.rs"]
mod tests;
