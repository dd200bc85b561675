//! PPTP calls: the messages on the control connection, and packets of GRE version 1 between the
//! ends.

use std::time::Duration;

use lab::{Family, Random};
use wire::build::Tcp;
use wire::{TcpFlags, Transport, dissect, protocol};

use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Server, Side, Step};
use crate::scenario::trackers::{BATCH, Comparison, Observation};

pub const PPTP: Comparison = Comparison {
    name: "pptp",
    seeds: 1000,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_tcp_loose".to_owned(), 1)],
    generate,
    rule,
    rules: &[SEGMENTS, ROLES, SEVERAL],
    // Some rules show only in the lists.
    lists_alike: |observations| {
        rule(observations).is_none() && ends_what_it_has_heard_of(observations)
    },
    expected: None,
};

const PORTS: [u16; 2] = [40000, 1723];
/// The call ids of the client and of the server, which may be equal. Not 0: the kernel uses it for
/// an id that it has not seen yet, and then ends calls that were never announced.
const IDS: [[u16; 3]; 2] = [[5, 6, 0x0105], [9, 6, 0xfff5]];

/// Kinds of control messages (RFC 2637 section 1.4).
const START: u8 = 1;
const STARTED: u8 = 2;
const STOP: u8 = 3;
const STOPPED: u8 = 4;
const OUTGOING: u8 = 7;
const OUTGOING_REPLY: u8 = 8;
const INCOMING: u8 = 9;
const INCOMING_REPLY: u8 = 10;
const CONNECTED: u8 = 11;
const CLEAR: u8 = 12;
const DISCONNECT: u8 = 13;
/// The length of each kind in bytes.
const LENGTHS: [usize; 16] = [12, 156, 156, 16, 16, 16, 20, 168, 32, 220, 24, 28, 16, 148, 40, 24];
/// The kinds that the opener of the control connection sends if it is the PNS.
const OF_CLIENT: [u8; 7] = [START, STOP, OUTGOING, INCOMING_REPLY, CLEAR, 5, 15];
const OF_SERVER: [u8; 8] =
    [STARTED, STOPPED, OUTGOING_REPLY, INCOMING, CONNECTED, DISCONNECT, 6, 14];

struct Talk<'a> {
    ends: Ends,
    random: &'a mut Random,
    /// The next sequence numbers, by [`Side`].
    next: [u32; 2],
    /// The ids of the current call.
    pns: u16,
    pac: u16,
    steps: Vec<Step>,
}

fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let ends = Ends::of(seed % BATCH, Family::V4);
    let [pns, pac] = IDS.map(|ids| random.one_of(&ids));
    let mut talk = Talk { ends, random: &mut random, next: [0; 2], pns, pac, steps: Vec::new() };
    talk.all();
    let steps = talk.steps;
    let Some(Step::Send(_, flow)) = steps.first().cloned() else { panic!("nothing is said") };
    Dialogue { seed, ends, flow, steps }
}

impl Talk<'_> {
    fn all(&mut self) {
        let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
        self.segment(Client, syn, b"");
        self.next[0] = 1;
        self.segment(Server, syn.with(ack), b"");
        self.next[1] = 1;
        self.segment(Client, ack, b"");
        self.say(Client, START);
        self.say(Server, STARTED);
        for _ in 0..self.random.between(1, 3) {
            let call = if self.random.once_in(3) {
                [(Server, INCOMING), (Client, INCOMING_REPLY), (Server, CONNECTED)]
            } else {
                [(Client, OUTGOING), (Server, OUTGOING_REPLY), (Client, 15)]
            };
            let rest = [(Client, CLEAR), (Server, DISCONNECT), (Client, STOP), (Server, STOPPED)];
            for (from, kind) in call.into_iter().chain(rest) {
                if !self.random.once_in(12) {
                    self.say(from, kind);
                }
                for _ in 0..self.random.between(0, 2) {
                    self.frames();
                }
                // Continues with the next call on the same control connection, now or after it was
                // stopped.
                if kind == DISCONNECT && self.random.once_in(2) {
                    break;
                }
            }
            if self.random.once_in(3) {
                [self.pns, self.pac] = IDS.map(|ids| self.random.one_of(&ids));
            }
            if self.random.once_in(3) {
                self.say(Client, START);
                self.say(Server, STARTED);
            }
        }
    }

    /// Sends a message, sometimes another or a damaged one, and sometimes twice.
    fn say(&mut self, from: Side, kind: u8) {
        let (mut from, mut kind) = (from, kind);
        match self.random.between(0, 49) {
            0 => from = from.other(),
            1..=3 => {
                let kinds: &[u8] = if from == Client { &OF_CLIENT } else { &OF_SERVER };
                kind = self.random.one_of(kinds);
            }
            _ => {}
        }
        let mut bytes = self.message(kind);
        match self.random.between(0, 59) {
            0 => bytes.truncate(self.random.between(1, bytes.len() - 1)),
            1 => bytes.extend(self.message(kind)),
            2 => {
                let at = self.random.between(2, 9);
                bytes[at] ^= 1 << self.random.between(0, 7);
            }
            _ => {}
        }
        self.segment(from, TcpFlags::ACK, &bytes);
        if self.random.once_in(12) {
            // Another flag distinguishes the copy from the first.
            self.segment(from, TcpFlags::ACK.with(TcpFlags::PSH), &bytes);
        }
        self.next[from as usize] += bytes.len() as u32;
    }

    fn message(&mut self, kind: u8) -> Vec<u8> {
        let length = LENGTHS[usize::from(kind)];
        let mut bytes = vec![0; length];
        bytes[..2].copy_from_slice(&(length as u16).to_be_bytes());
        bytes[3] = 1;
        bytes[4..8].copy_from_slice(&[0x1a, 0x2b, 0x3c, 0x4d]);
        bytes[9] = kind;
        // The ids that the message has, and the offset of its result.
        let (pns, pac) = (self.pns, self.pac);
        let (ids, result): (&[u16], usize) = match kind {
            STARTED => (&[], 14),
            STOPPED => (&[], 12),
            OUTGOING | CONNECTED | CLEAR => (&[pns], 0),
            INCOMING | DISCONNECT => (&[pac], 0),
            OUTGOING_REPLY => (&[pac, pns], 16),
            INCOMING_REPLY => (&[pns, pac], 16),
            _ => (&[], 0),
        };
        for (id, place) in ids.iter().zip([12, 14]) {
            let wrong = matches!(kind, OUTGOING_REPLY | INCOMING_REPLY | CONNECTED)
                && self.random.once_in(25);
            let id = if wrong { self.random.one_of(&IDS[place / 13]) } else { *id };
            bytes[place..place + 2].copy_from_slice(&id.to_be_bytes());
        }
        if result > 0 {
            bytes[result] = if self.random.once_in(12) { 2 } else { 1 };
        }
        bytes
    }

    /// Sends a GRE packet, mostly with the receiver's id.
    fn frames(&mut self) {
        let from = self.random.one_of(&Side::BOTH);
        let own = [self.pns, self.pac];
        let id = match self.random.between(0, 9) {
            0 => own[from as usize],
            1 => self.random.one_of(&IDS[from.other() as usize]),
            _ => own[from.other() as usize],
        };
        let [high, low] = id.to_be_bytes();
        let length = self.random.between(4, 20) as u8;
        let mut gre = vec![0x30, 1, 0x88, 0x0b, 0, length, high, low, 0, 0, 0, 1];
        gre.extend(self.random.bytes(length.into()));
        let mut frame = Vec::new();
        self.ends.from(from).transport(protocol::GRE, &gre, &mut frame);
        self.steps.push(Step::Send(from, frame));
    }

    fn segment(&mut self, from: Side, flags: TcpFlags, payload: &[u8]) {
        let tcp = Tcp {
            source_port: PORTS[from as usize],
            destination_port: PORTS[from.other() as usize],
            sequence: self.next[from as usize],
            acknowledgment: self.next[from.other() as usize],
            flags,
            window: 60000,
            options: &[],
        };
        let mut frame = Vec::new();
        self.ends.from(from).tcp(&tcp, payload, &mut frame);
        self.steps.push(Step::Send(from, frame));
    }
}

/// Segments of a stream need not end where messages end.
const SEGMENTS: &str = "messages may begin and end anywhere in segments";
/// The kernel takes the opener of the control connection for the PNS.
const ROLES: &str = "the messages show which end is the PNS, and both may stop";
/// The kernel knows only the last call and applies all messages to it.
const SEVERAL: &str = "a control connection carries calls with several ids";

/// The kernel applies every notice to the last call that it knows. This is so rare that no seed of
/// the usual run shows it.
const UNANSWERED: &str = "a requested call ends with the session, and not with another call";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let messages: Vec<(Side, Vec<u8>)> = observations
        .iter()
        .filter_map(|it| Some((it.from, payload(it.frame)?)))
        .filter(|(_, bytes)| !bytes.is_empty())
        .collect();
    let is_whole = |bytes: &[u8]| {
        let length = bytes.get(..2).map(|word| usize::from(u16::from_be_bytes([word[0], word[1]])));
        length == Some(bytes.len())
            && bytes.get(9).map(|&kind| LENGTHS[usize::from(kind % 16)]) == length
            && bytes[2..9] == [0, 1, 0x1a, 0x2b, 0x3c, 0x4d, 0]
    };
    let from_other = |from: Side, kind: u8| {
        let own: &[u8] = if from == Client { &OF_SERVER } else { &OF_CLIENT };
        own.contains(&kind)
    };
    if messages.iter().any(|(_, bytes)| !is_whole(bytes)) {
        return Some(SEGMENTS);
    }
    if messages.iter().any(|(from, bytes)| from_other(*from, bytes[9])) {
        return Some(ROLES);
    }
    let ids = |kinds: &[u8], place: usize| {
        let of_kind = messages.iter().filter(|(_, bytes)| kinds.contains(&bytes[9]));
        let mut ids: Vec<_> = of_kind.map(|(_, bytes)| bytes[place..place + 2].to_vec()).collect();
        ids.sort();
        ids.dedup();
        ids.len()
    };
    let pns = ids(&[OUTGOING, INCOMING_REPLY, CLEAR], 12);
    let pac = ids(&[INCOMING, OUTGOING_REPLY, DISCONNECT], 12);
    if pns > 1 || pac > 1 || is_another_answered(messages.iter().map(|(_, bytes)| bytes[9])) {
        return Some(SEVERAL);
    }
    let mut asked = false;
    let ends_unanswered = |(_, bytes): &(Side, Vec<u8>)| {
        asked = match bytes[9] {
            OUTGOING | INCOMING => true,
            OUTGOING_REPLY | CONNECTED => false,
            DISCONNECT | STOP => return asked,
            _ => asked,
        };
        false
    };
    messages.iter().any(ends_unanswered).then_some(UNANSWERED)
}

/// True if an end offered a call between the request for another call and its answer, or the other
/// way round.
fn is_another_answered(mut kinds: impl Iterator<Item = u8>) -> bool {
    let mut asked = None;
    kinds.any(|kind| match kind {
        OUTGOING | INCOMING => {
            asked = Some(kind);
            false
        }
        OUTGOING_REPLY => asked == Some(INCOMING),
        INCOMING_REPLY => asked == Some(OUTGOING),
        _ => false,
    })
}

/// False if a call ends while the kernel lacks one of its ids. The kernel stores 0 for such an id.
/// It then also ends connections that were never announced, because their sender's id is 0 too.
fn ends_what_it_has_heard_of(observations: &[Observation<'_>]) -> bool {
    let (mut confirmed, mut pns, mut pac) = (false, None, None);
    observations.iter().filter_map(|it| payload(it.frame)).all(|bytes| {
        let [.., kind, _, _] = *bytes.get(..12).unwrap_or(&[0; 12]) else { return true };
        let id = |place: usize| bytes.get(place..place + 2).map(<[u8]>::to_vec);
        let done = |place: usize| bytes.get(place) == Some(&1);
        match kind {
            STARTED => confirmed = done(14),
            STOP => confirmed = false,
            OUTGOING if confirmed => pns = id(12),
            INCOMING if confirmed => pac = id(12),
            OUTGOING_REPLY if confirmed && done(16) && pns == id(14) => pac = id(12),
            INCOMING_REPLY if done(16) && pac == id(14) => pns = id(12),
            DISCONNECT => return pns.is_some() && pac.is_some(),
            _ => {}
        }
        true
    })
}

/// The payload of a TCP segment; none for GRE.
fn payload(frame: &[u8]) -> Option<Vec<u8>> {
    let network = dissect(frame).unwrap().network.unwrap();
    let Transport::Tcp(tcp) = network.transport else { return None };
    Some(frame[usize::from(network.transport_offset) + usize::from(tcp.header_len)..].to_vec())
}
