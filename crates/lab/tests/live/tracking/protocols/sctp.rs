//! SCTP.

use lab::{Family, Random};
use wire::build::sctp::{chunk, init, packet};
use wire::protocol;
use wire::sctp::chunk_type as of;

use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Server, Side, Step, interrupt};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{A_SECOND_IS_OVER, BATCH, Comparison, Observation};

pub const SCTP: Comparison = Comparison {
    name: "sctp",
    seeds: 1500,
    pause: |_| A_SECOND_IS_OVER,
    turns_after: None,
    tunables,
    generate,
    rule,
    rules: &[ANEW, ZERO, SHUTDOWN_ACK, ANSWER, FORGED_INIT, HEARTBEATS, REFLECTED],
    lists_alike: |_| true,
    expected: None,
};

fn tunables(_: u64) -> Vec<(String, u64)> {
    let timers = [
        ("closed", 30),
        ("cookie_wait", 40),
        ("cookie_echoed", 50),
        ("established", 210),
        ("shutdown_sent", 60),
        ("shutdown_recd", 70),
        ("shutdown_ack_sent", 80),
        ("heartbeat_sent", 90),
    ];
    timers.map(|(state, time)| (format!("nf_conntrack_sctp_timeout_{state}"), time)).into()
}

/// The verification tags of packets to the client and to the server.
const TO_CLIENT: u32 = 0xc1;
const TO_SERVER: u32 = 0x5e;
const PORTS: [u16; 2] = [5000, 53];

/// A packet without its ports.
type Line = (Side, Vec<u8>);

fn one(tag: u32, kind: u8) -> Vec<u8> {
    packet(tag, &[chunk(kind, 0, b"value")])
}

fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = random.one_of(&[Family::V4, Family::V6]);
    let ends = Ends::of(seed % BATCH, family);
    let mut lines = converse(&mut random);
    if !seed.is_multiple_of(3) {
        mistreat(&mut lines, &mut random);
    }
    let frame = |(from, packet): &Line| {
        let mut bytes = packet.clone();
        bytes[..2].copy_from_slice(&PORTS[*from as usize].to_be_bytes());
        bytes[2..4].copy_from_slice(&PORTS[from.other() as usize].to_be_bytes());
        let mut frame = Vec::new();
        ends.from(*from).transport(protocol::SCTP, &bytes, &mut frame);
        frame
    };
    let steps = lines.iter().map(|line| Step::Send(line.0, frame(line))).collect();
    let flow = frame(&(Client, init(0, of::INIT, TO_CLIENT)));
    Dialogue { seed, ends, flow, steps: interrupt(&mut random, steps) }
}

/// A conversation of two honest ends.
fn converse(random: &mut Random) -> Vec<Line> {
    let mut lines: Vec<Line> = match random.between(0, 9) {
        0 | 1 => vec![
            (Client, init(0, of::INIT, TO_CLIENT)),
            (Server, init(0, of::INIT, TO_SERVER)),
            (Client, init(TO_SERVER, of::INIT_ACK, TO_CLIENT)),
            (Server, init(TO_CLIENT, of::INIT_ACK, TO_SERVER)),
            (Server, one(TO_CLIENT, of::COOKIE_ECHO)),
            (Client, one(TO_SERVER, of::COOKIE_ACK)),
        ],
        // A heartbeat on a further path of an association.
        2 => vec![
            (Client, one(TO_SERVER, of::HEARTBEAT)),
            (Server, one(TO_CLIENT, of::HEARTBEAT_ACK)),
        ],
        // An out-of-the-blue packet and its answer (RFC 9260 section 8.4).
        3 => {
            let answer = chunk(of::SHUTDOWN_COMPLETE, 1, &[]);
            return vec![
                (Client, one(TO_SERVER, of::SHUTDOWN_ACK)),
                (Server, packet(TO_SERVER, &[answer])),
            ];
        }
        _ => vec![
            (Client, init(0, of::INIT, TO_CLIENT)),
            (Server, init(TO_CLIENT, of::INIT_ACK, TO_SERVER)),
            (Client, one(TO_SERVER, of::COOKIE_ECHO)),
            (Server, one(TO_CLIENT, of::COOKIE_ACK)),
        ],
    };
    let tag = |from| if from == Client { TO_SERVER } else { TO_CLIENT };
    for _ in 0..random.between(0, 4) {
        let from = random.one_of(&Side::BOTH);
        let both = packet(tag(from), &[chunk(of::SACK, 0, &[0; 12]), chunk(of::DATA, 3, b"data")]);
        match random.between(0, 2) {
            0 => lines.push((from, one(tag(from), of::DATA))),
            1 => lines.push((from, both)),
            _ => {
                lines.push((from, one(tag(from), of::HEARTBEAT)));
                lines.push((from.other(), one(tag(from.other()), of::HEARTBEAT_ACK)));
            }
        }
    }
    let from = random.one_of(&Side::BOTH);
    let back = from.other();
    // Both ends have restarted without packets through us.
    if random.once_in(12) {
        lines.push((from, one(tag(from) + 1, of::HEARTBEAT)));
        lines.push((back, one(tag(back) + 1, of::HEARTBEAT_ACK)));
        lines.push((from, one(tag(from) + 1, of::DATA)));
        return lines;
    }
    match random.between(0, 2) {
        0 => lines.push((from, one(tag(from), of::ABORT))),
        // The answer reflects the tag of the packet that it answers.
        1 => lines.push((from, packet(tag(back), &[chunk(of::ABORT, 1, &[])]))),
        _ => lines.extend([
            (from, one(tag(from), of::SHUTDOWN)),
            (back, one(tag(back), of::SHUTDOWN_ACK)),
            (from, one(tag(from), of::SHUTDOWN_COMPLETE)),
        ]),
    }
    if random.once_in(8) {
        lines.push((from, init(0, of::INIT, tag(back))));
    }
    lines
}

/// Loses, repeats, reorders and forges packets.
fn mistreat(lines: &mut Vec<Line>, random: &mut Random) {
    for _ in 0..random.between(1, 3) {
        let at = random.between(0, lines.len() - 1);
        match random.between(0, 4) {
            0 if lines.len() > 1 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => {
                let next = (at + 1) % lines.len();
                lines.swap(at, next);
            }
            3 => {
                let kinds = [of::DATA, of::INIT, of::ABORT, of::SHUTDOWN, of::HEARTBEAT, 63];
                let tag = random.one_of(&[0, 7, TO_CLIENT, TO_SERVER]);
                let from = random.one_of(&Side::BOTH);
                lines.insert(at, (from, init(tag, random.one_of(&kinds), 9)));
            }
            _ => lines[at].1[7] = random.bits() as u8,
        }
    }
}

/// These are the differences that the documentation of our tracker lists.
const ANEW: &str = "after the end an INIT opens a new association";
const ZERO: &str = "only an INIT may have a tag of zero";
const SHUTDOWN_ACK: &str = "the tag of a SHUTDOWN ACK is verified";
const ANSWER: &str = "an INIT ACK answers an INIT";
const FORGED_INIT: &str = "an INIT does not invalidate the tags";
const HEARTBEATS: &str = "heartbeats correct both tags";
const REFLECTED: &str = "only the answer to a SHUTDOWN ACK reflects its tag";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    use Class::{Established, Invalid, New};

    let (last, before) = observations.split_last()?;
    let packets: Vec<Heard<'_>> = before.iter().map(Heard::of).collect();
    let had = |what: &dyn Fn(&Heard<'_>) -> bool| packets.iter().any(what);
    let foreign = |tag| tag != TO_CLIENT && tag != TO_SERVER;
    let forged_init = had(&|heard| heard.kind == of::INIT && foreign(heard.word(12)));
    let amid = before
        .windows(2)
        .any(|pair| pair[0].ours.entry.is_some() && Heard::of(&pair[1]).kind == of::INIT);
    let foreign_heartbeat = had(&|heard| heard.kind == of::HEARTBEAT && foreign(heard.tag));
    let Heard { kind, tag, .. } = Heard::of(last);
    // The kernel has forgotten one tag, as it does when heartbeats correct the other.
    let forgotten = last.log.contains(" vs 0 ") && had(&|heard| heard.kind == of::HEARTBEAT_ACK);
    let out_of_the_blue =
        before.iter().any(|it| it.ours.class == New && Heard::of(it).kind == of::SHUTDOWN_ACK);
    match (kind, last.ours.class, last.kernel.class) {
        (of::INIT, New, _) => Some(ANEW),
        (kind, Invalid, _) if tag == 0 && kind != of::INIT => Some(ZERO),
        (of::SHUTDOWN_ACK, Invalid, _) => Some(SHUTDOWN_ACK),
        (of::INIT_ACK, Invalid, New | Established) => Some(ANSWER),
        _ if out_of_the_blue => Some(REFLECTED),
        // The kernel's new state makes the following packets differ.
        _ if forged_init => Some(FORGED_INIT),
        _ if foreign_heartbeat || forgotten => Some(HEARTBEATS),
        (_, Established, Invalid) if amid => Some(FORGED_INIT),
        _ => None,
    }
}

/// A packet, described by its first chunk.
struct Heard<'a> {
    tag: u32,
    kind: u8,
    /// The bytes from the common header on, without the ports.
    bytes: &'a [u8],
}

impl<'a> Heard<'a> {
    fn of(observation: &Observation<'a>) -> Self {
        let header = if observation.frame[12] == 8 { 34 } else { 54 };
        let bytes = &observation.frame[header + 4..];
        let heard = Self { tag: 0, kind: bytes[8], bytes };
        Self { tag: heard.word(0), ..heard }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(*self.bytes[at..].first_chunk().unwrap())
    }
}
