//! H.323 calls: the messages in which the ends announce ports for H.245 and for media, and the
//! packets that follow.

use std::time::Duration;

use lab::{Family, Random};
use wire::{Transport, dissect};

use super::conversation::{Talk, opens};
use super::h323_conversation::{Connection, SOUND, framed, header, message, octets};
use crate::scenario::h323::{CONTROL, ONLY_KERNEL, ONLY_OURS, SIGNALLING};
use crate::scenario::payload;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Server, Side};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{Comparison, Observation, Unlike, expected_port};

pub const H323: Comparison = Comparison {
    name: "h323",
    seeds: 2000,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_tcp_loose".to_owned(), 1)],
    generate,
    rule,
    rules: &[FIRST, ADDITIONS, OTHERS, PIECES],
    lists_alike: |_| true,
    expected: Some(expected),
};

/// The first port that call signalling announces, and the first that H.245 announces.
const SIGNALLED: u16 = 20000;
const CONTROLLED: u16 = 21000;
/// In one dialogue of this many, both ends announce the same port. The kernel drops the packet, and
/// the player needs a timeout to notice that.
const DROPPED_IN: u64 = 500;
fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = if random.once_in(10) { Family::V6 } else { Family::V4 };
    let mut talk = Talk::of(seed, family, random);
    talk.connect(1720);
    let mut control: Option<Connection> = None;
    // Rarely the called end speaks first.
    let mut first = Some(if talk.random.once_in(20) { Server } else { Client });
    for _ in 0..talk.random.between(2, 6) {
        let from = talk.random.one_of(&Side::BOTH);
        talk.first = SIGNALLED;
        if talk.random.once_in(3) {
            let control = control.get_or_insert_with(|| {
                let (opener, port) = (talk.random.one_of(&Side::BOTH), talk.any_port());
                Connection::open(&mut talk, opener, port)
            });
            talk.first = if seed.is_multiple_of(DROPPED_IN) { SIGNALLED } else { CONTROLLED };
            for piece in pieces(&mut talk, from, &CONTROL) {
                control.say(&mut talk, from, &piece);
            }
        } else {
            let from = first.take().unwrap_or(from);
            for piece in pieces(&mut talk, from, &SIGNALLING) {
                talk.say(from, &piece);
            }
        }
        for _ in 0..talk.random.between(0, 3) {
            talk.first = talk.random.one_of(&[SIGNALLED, SIGNALLED, CONTROLLED]);
            somebody(&mut talk);
        }
    }
    talk.end()
}

fn somebody(talk: &mut Talk) {
    if talk.random.once_in(3) {
        return talk.somebody_comes();
    }
    let (from, port) = (talk.random.one_of(&Side::BOTH), talk.any_port());
    talk.somebody_sends(from, port, SOUND);
}

/// A message, rarely two or one in two segments, mostly correct.
fn pieces(talk: &mut Talk, from: Side, usual: &[&str]) -> Vec<Vec<u8>> {
    let only_one = [&ONLY_OURS[..], &ONLY_KERNEL].concat();
    let messages = if talk.random.once_in(12) { &only_one } else { usual };
    let mut bytes = message(talk, from, messages);
    match talk.random.between(0, 59) {
        0 => bytes.extend(message(talk, from, messages)),
        1 => {
            let rest = bytes.split_off(talk.random.between(1, bytes.len() - 1));
            return vec![bytes, rest];
        }
        2 => {
            let rest = bytes.split_off(4);
            return vec![bytes, rest];
        }
        3 => {
            let at = talk.random.between(0, 3);
            bytes[at] ^= 1 << talk.random.between(0, 7);
        }
        _ => {}
    }
    vec![bytes]
}

/// The kernel reads the messages of both ends at once.
const FIRST: &str = "the opener of the connection speaks first";
/// The kernel stops at additions that it does not know, even absent ones.
const ADDITIONS: &str = "additions of later versions are skipped";
/// The kernel reads on.
const OTHERS: &str = "parts behind H.235 tokens or for other networks than IP are not read";
/// The kernel takes each segment for whole messages, or for the header of one.
const PIECES: &str = "messages may begin and end anywhere in segments";

/// The kernel drops the second. This is so rare that no seed of the usual run shows it.
const AGAIN: &str = "two connections may announce the same address and port";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let last = observations.last()?;
    if last.kernel.class == Class::Lost && last.log.contains("cannot process") {
        return Some(AGAIN);
    }
    announced_by_one(observations, last.is_announced_only_to_us()?, visits(last.frame)?)
}

fn expected(observations: &[Observation<'_>], unlike: Unlike, line: &str) -> Option<&'static str> {
    announced_by_one(observations, unlike.is_only_ours()?, expected_port(line))
}

/// The rule by which only we expect a connection at a port, or only the kernel does.
fn announced_by_one(
    observations: &[Observation<'_>],
    ours: bool,
    port: u16,
) -> Option<&'static str> {
    let heard = observations.iter().map(|it| (it, payload(it.frame)));
    let said: Vec<_> = heard.filter(|(_, bytes)| bytes.len() > SOUND.len()).collect();
    let only_one: &[&str] = if ours { &ONLY_OURS } else { &ONLY_KERNEL };
    let mut announcing = said.iter().filter(|(it, bytes)| names(bytes, it.frame, port));
    let is_whole = |bytes: &[u8]| bytes[..4] == header(bytes.len());
    let mut signalling = said.iter().filter(|(it, _)| is_signalling(it.frame));
    if !ours && signalling.next().is_some_and(|(it, _)| it.from == Server) {
        Some(FIRST)
    } else if announcing.any(|(_, bytes)| only_one.iter().any(|message| is(bytes, message))) {
        Some(if ours { ADDITIONS } else { OTHERS })
    } else if said.iter().any(|(_, bytes)| !is_whole(bytes)) {
        Some(PIECES)
    } else {
        None
    }
}

/// True for a segment of the call signalling connection.
fn is_signalling(frame: &[u8]) -> bool {
    match dissect(frame).unwrap().network.unwrap().transport {
        Transport::Tcp(tcp) => [tcp.source_port, tcp.destination_port].contains(&1720),
        _ => false,
    }
}

/// True if the sender of the frame announces this port, or the other port of its pair.
fn names(bytes: &[u8], frame: &[u8], port: u16) -> bool {
    let network = dissect(frame).unwrap().network.unwrap();
    let address = octets(network.source_ip());
    let is_named = |window: &[u8]| {
        let (start, end) = window.split_at(address.len());
        start == address && u16::from_be_bytes([end[0], end[1]]) | 1 == port | 1
    };
    bytes.windows(address.len() + 2).any(is_named)
}

/// True if a packet starts with the message, apart from addresses and ports.
fn is(bytes: &[u8], message: &str) -> bool {
    let message = framed(message);
    bytes.len() >= message.len() && bytes[..10] == message[..10]
}

/// The port to which a packet opens a connection.
fn visits(frame: &[u8]) -> Option<u16> {
    match dissect(frame).ok()?.network?.transport {
        Transport::Udp { destination_port, .. } => Some(destination_port),
        _ => opens(frame),
    }
}
