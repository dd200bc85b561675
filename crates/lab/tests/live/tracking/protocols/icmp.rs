//! ICMP and ICMPv6: queries, errors about flows of every kind, and messages that stay on the link.

use lab::{Family, Random};
use wire::protocol;

use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Side, Step, interrupt, packet};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{A_SECOND_IS_OVER, BATCH, Comparison, Observation};

pub const ICMP: Comparison = Comparison {
    name: "icmp",
    seeds: 2000,
    pause: |_| A_SECOND_IS_OVER,
    turns_after: None,
    tunables,
    generate,
    rule,
    rules: &[QUOTED, KEY, TERMINATION],
    lists_alike: |_| true,
    expected: None,
};

fn tunables(batch: u64) -> Vec<(String, u64)> {
    let all =
        [("icmp_timeout", 30), ("icmpv6_timeout", 40), ("checksum", u64::from(batch % 4 != 3))];
    all.map(|(name, value)| (format!("nf_conntrack_{name}"), value)).into()
}

/// The flow that a dialogue is about.
#[derive(Clone, Copy)]
struct Flow {
    protocol: u8,
    /// The ports, or the type of the query and its identifier.
    numbers: [u16; 2],
}

impl Flow {
    fn pick(random: &mut Random, family: Family) -> Self {
        let (icmp, questions) = questions(family);
        let protocol = random.one_of(&[
            icmp,
            icmp,
            protocol::UDP,
            protocol::TCP,
            protocol::SCTP,
            protocol::GRE,
            253,
        ]);
        let first = match protocol {
            protocol if protocol == icmp => random.one_of(questions).into(),
            _ => random.bits() as u16,
        };
        Self { protocol, numbers: [first, random.bits() as u16] }
    }

    /// A packet of the flow without its IP header.
    fn payload(&self, from: Side) -> Vec<u8> {
        let [a, b] = if from == Client { self.numbers } else { [self.numbers[1], self.numbers[0]] };
        let ports = [a.to_be_bytes(), b.to_be_bytes()].concat();
        match self.protocol {
            protocol::ICMP | protocol::ICMPV6 => {
                let question = self.numbers[0] as u8;
                let id = self.numbers[1].to_be_bytes();
                let kind = if from == Client { question } else { answer(question) };
                vec![kind, 0, 0, 0, id[0], id[1], 0, 1, 0x2e, 0x2e, 0x2e, 0x2e]
            }
            protocol::TCP => {
                // An ACK, from which the trackers pick up a connection.
                let rest = [0, 0, 0, 9, 0, 0, 0, 9, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0];
                [&ports[..], &rest].concat()
            }
            protocol::UDP => [&ports[..], &[0, 12, 0, 0], b"data"].concat(),
            // A heartbeat.
            protocol::SCTP => [&ports[..], &[0, 0, 0, 7, 0, 0, 0, 0, 4, 0, 0, 4]].concat(),
            protocol::GRE => vec![0, 0, 8, 0, 0x45, 0, 0, 0],
            _ => b"something".to_vec(),
        }
    }
}

/// The ICMP protocol of a family and its query types.
fn questions(family: Family) -> (u8, &'static [u8]) {
    match family {
        Family::V4 => (protocol::ICMP, &[8, 13, 15, 17]),
        Family::V6 => (protocol::ICMPV6, &[128, 139]),
    }
}

fn answer(question: u8) -> u8 {
    match question {
        8 => 0,
        other => other + 1,
    }
}

fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = random.one_of(&[Family::V4, Family::V6]);
    let ends = Ends::of(seed % BATCH, family);
    let flow = Flow::pick(&mut random, family);
    let plain = |from: Side| {
        let mut frame = Vec::new();
        ends.from(from).transport(flow.protocol, &flow.payload(from), &mut frame);
        frame
    };
    let extended = |from: Side| {
        let mut frame = Vec::new();
        let payload = [&extension(flow.protocol)[..], &flow.payload(from)].concat();
        ends.from(from).transport(DESTINATION_OPTIONS, &payload, &mut frame);
        frame
    };
    let mut steps = Vec::new();
    let first = if random.once_in(8) { Side::Server } else { Client };
    steps.push(Step::Send(first, plain(first)));
    for _ in 0..random.between(1, 7) {
        let from = random.one_of(&Side::BOTH);
        let step = match random.between(0, 9) {
            0 if family == Family::V6 => Step::Send(from, extended(from)),
            0..=3 => Step::Send(from, plain(from)),
            4 | 5 => odd_message(&mut random, &ends, from),
            _ => error(&mut random, &ends, &plain(from), from),
        };
        steps.push(step);
    }
    Dialogue { seed, ends, flow: plain(Client), steps: interrupt(&mut random, steps) }
}

const DESTINATION_OPTIONS: u8 = 60;
const FRAGMENT: u8 = 44;

/// A destination options header with padding.
fn extension(protocol: u8) -> [u8; 8] {
    [protocol, 0, 1, 4, 0, 0, 0, 0]
}

/// Queries and answers with random types, codes and identifiers, and messages that stay on the
/// link.
fn odd_message(random: &mut Random, ends: &Ends, from: Side) -> Step {
    let kinds: &[u8] = match ends.family {
        Family::V4 => &[0, 1, 2, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 18, 19, 30, 40, 42, 255],
        Family::V6 => &[
            0, 5, 100, 127, 128, 129, 130, 131, 132, 133, 134, 135, 136, 138, 139, 140, 141, 143,
            144, 150, 151, 152, 153, 154, 200, 255,
        ],
    };
    let rest = [0, random.one_of(&[0, 1]), 0, 1];
    let mut frame = Vec::new();
    let code = random.one_of(&[0, 0, 1]);
    let body = random.bytes(24);
    ends.from(from).icmp(random.one_of(kinds), code, rest, &body, &mut frame);
    Step::Send(from, frame)
}

const ERRORS_V4: [u8; 5] = [3, 4, 5, 11, 12];
const ERRORS_V6: [u8; 4] = [1, 2, 3, 4];

/// An error about a packet `from` a side. Half of the errors are wrong in one of many ways.
fn error(random: &mut Random, ends: &Ends, about: &[u8], from: Side) -> Step {
    let kinds: &[u8] = if ends.family == Family::V4 { &ERRORS_V4 } else { &ERRORS_V6 };
    let mut quoted = about[14..].to_vec();
    let mut to = ends.address(from);
    let ip = if ends.family == Family::V4 { 20 } else { 40 };
    if random.once_in(2) {
        match random.between(0, 11) {
            // Goes to another host than the sender of the packet.
            0 => to = ends.router(from),
            1 => quoted.truncate(random.between(0, quoted.len())),
            2 => quoted.truncate(ip + random.one_of(&[0, 4, 7, 8])),
            // Quotes a later fragment, options or another version.
            3 if ip == 20 => quoted[7] = 3,
            4 if ip == 20 => quoted[0] = random.one_of(&[0x46, 0x44, 0x4f]),
            5 => quoted[0] ^= 0x20,
            // Quotes another flow, with another port or identifier.
            6 => {
                let at = ip + random.between(0, 7);
                quoted[at.min(about.len() - 15)] ^= 1;
            }
            7 => quoted[ip - 1] ^= 1,
            8..=10 if ip == 40 => {
                let mut header = extension(quoted[6]);
                quoted[6] = random.one_of(&[DESTINATION_OPTIONS, FRAGMENT]);
                if quoted[6] == FRAGMENT {
                    // The whole packet, the first fragment, or a later one.
                    header[2..4].copy_from_slice(&random.one_of(&[[0, 0], [0, 1], [0, 8]]));
                }
                quoted.splice(40..40, header);
            }
            // An error about an error.
            _ => {
                let mut inner = Vec::new();
                packet(ends.router(from.other()), ends.address(from))
                    .icmp_error(kinds[0], 1, [0; 4], &quoted, &mut inner);
                quoted = inner[14..].to_vec();
            }
        }
    }
    // From a router on the path, or from the other end.
    let source = random.one_of(&[ends.router(from.other()), ends.address(from.other())]);
    let mut frame = Vec::new();
    packet(source, to).icmp_error(
        random.one_of(kinds),
        random.between(0, 4) as u8,
        [0; 4],
        &quoted,
        &mut frame,
    );
    if random.once_in(16) {
        frame[14 + ip + 2] ^= 1;
    }
    Step::Send(from.other(), frame)
}

/// The kernel checks neither the version nor the length of a quoted header.
const QUOTED: &str = "a quoted header has a valid version and length";
/// The kernel has one entry for all tunnels between two hosts.
const KEY: &str = "a quote of GRE has to include the key";
/// RFC 4286 section 5 has three messages. The kernel knows two of them.
const TERMINATION: &str = "a multicast router's termination also stays on the link";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let Observation { frame, ours, .. } = observations.last()?;
    let (four, quoted) = if frame[12] == 8 { (true, 42) } else { (false, 62) };
    let kind = frame[quoted - 8];
    if !four && kind == 153 {
        return Some(TERMINATION);
    }
    let is_error = if four { ERRORS_V4.contains(&kind) } else { ERRORS_V6.contains(&kind) };
    let first = *frame.get(quoted).filter(|_| is_error)?;
    let fits = if four { first >> 4 == 4 && first & 15 >= 5 } else { first >> 4 == 6 };
    let protocol = frame.get(quoted + if four { 9 } else { 6 });
    match ours.class {
        Class::Invalid if !fits => Some(QUOTED),
        Class::Invalid if protocol == Some(&protocol::GRE) => Some(KEY),
        _ => None,
    }
}
