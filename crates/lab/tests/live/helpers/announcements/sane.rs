//! Pictures that a scanner's host announces, and the connections that follow.

use std::time::Duration;

use super::conversation::{Talk, opens};
use crate::scenario::payload;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Server, Side};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{Comparison, Observation, Unlike, expected_port};

pub const SANE: Comparison = Comparison {
    name: "sane",
    seeds: 3000,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_tcp_loose".to_owned(), 1)],
    generate,
    rule,
    rules: &[BEGIN, TURNS, NOBODY, PRIVILEGED],
    lists_alike: |_| true,
    expected: Some(expected),
};

/// The number of a request (SANE 1.05, section 5.2).
const START: u32 = 7;
/// The version of the protocol: 1.0.3.
const VERSION: u32 = 0x0100_0003;

fn generate(seed: u64) -> Dialogue {
    let mut talk = Talk::new(seed);
    talk.connect(6566);
    if !talk.random.once_in(20) {
        // Ends with the name of its user.
        let init = [words(&[0, VERSION, 2]), b"a\0".to_vec()].concat();
        say(&mut talk, Client, &init);
        say(&mut talk, Server, &words(&[0, VERSION]));
    }
    for _ in 0..talk.random.between(2, 6) {
        let request = request(&mut talk);
        say(&mut talk, Client, &request);
        if !talk.random.once_in(20) {
            let reply = reply(&mut talk);
            say(&mut talk, Server, &reply);
        }
        for _ in 0..talk.random.between(0, 2) {
            talk.somebody_comes();
        }
    }
    talk.end()
}

/// Sends bytes, rarely in two segments.
fn say(talk: &mut Talk, from: Side, mut bytes: &[u8]) {
    if talk.random.once_in(15) {
        let (first, rest) = bytes.split_at(talk.random.between(1, bytes.len() - 1));
        talk.say(from, first);
        bytes = rest;
    }
    talk.say(from, bytes);
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn request(talk: &mut Talk) -> Vec<u8> {
    let number = match talk.random.between(0, 9) {
        0 | 1 => talk.random.between(0, 10) as u32,
        2 => START << talk.random.between(0, 29),
        _ => START,
    };
    // A random handle makes each request unique.
    let mut request = words(&[number, talk.random.bits() as u32]);
    match talk.random.between(0, 19) {
        0 => request.truncate(talk.random.between(4, 7)),
        1 => request.push(0),
        2 => request.extend(words(&[START, 5])),
        _ => {}
    }
    request
}

fn reply(talk: &mut Talk) -> Vec<u8> {
    let port = u32::from(talk.any_port());
    let status = if talk.random.once_in(8) { talk.random.between(1, 11) as u32 } else { 0 };
    let port = match talk.random.between(0, 29) {
        0 => 0,
        1 => port | 1 << talk.random.between(16, 31),
        2 => port.swap_bytes(),
        _ => port,
    };
    let mut reply = words(&[status, port, 0x1234, 0]);
    match talk.random.between(0, 19) {
        0 => reply.truncate(talk.random.between(4, 15)),
        1 => reply.extend(words(&[0, port + 1])),
        2 => drop(reply.splice(..0, words(&[0]))),
        _ => {}
    }
    reply
}

/// The kernel reads requests whatever the client sent before.
const BEGIN: &str = "a client begins with SANE_NET_INIT";
/// The kernel takes any eight bytes in a segment for a request, and any segment for a reply.
const TURNS: &str = "requests and replies take turns, and may come in pieces";
const PRIVILEGED: &str = "no connection is expected at a port below 1024";
/// To the kernel, port 0 replaces the earlier announcement.
const NOBODY: &str = "port 0 announces nothing";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let Observation { kernel, ours, frame, .. } = observations.last()?;
    opens(frame)?;
    match (kernel.class, ours.class) {
        (Class::New, Class::Related) => expected(observations, Unlike::OnlyOurs, ""),
        (Class::Related, Class::New) => expected(observations, Unlike::OnlyKernel, ""),
        _ => None,
    }
}

fn expected(observations: &[Observation<'_>], unlike: Unlike, line: &str) -> Option<&'static str> {
    let mut said: Vec<(Side, Vec<u8>)> = observations
        .iter()
        .map(|it| (it.from, payload(it.frame)))
        .filter(|(_, bytes)| !bytes.is_empty())
        .collect();
    // Without repeated segments.
    said.dedup();
    let in_turns = said.windows(2).all(|pair| pair[0].0 != pair[1].0);
    let names = |is_such: fn(u8, u8) -> bool| {
        said.iter().any(|(from, bytes)| {
            *from == Server
                && matches!(bytes[..], [0, 0, 0, 0, 0, 0, high, low, ..] if is_such(high, low))
        })
    };
    let begins = said.first().is_some_and(|(_, first)| first.starts_with(&[0, 0, 0, 0, 1]));
    match unlike {
        Unlike::OnlyKernel if !begins => Some(BEGIN),
        Unlike::OnlyKernel if line.contains(" dport=0 ") => Some(NOBODY),
        Unlike::OnlyKernel if !line.is_empty() && expected_port(line) < 1024 => Some(PRIVILEGED),
        Unlike::OnlyOurs | Unlike::OnlyKernel if !in_turns => Some(TURNS),
        Unlike::OnlyOurs if names(|high, low| (high, low) == (0, 0)) => Some(NOBODY),
        Unlike::OnlyOurs if names(|high, _| high < 4) => Some(PRIVILEGED),
        _ => None,
    }
}
