//! Requests for files by TFTP, and answers from other ports.

use std::time::Duration;

use super::conversation::{CONTROL, Talk};
use crate::scenario::payload;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Server, Side};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{Comparison, Observation, Unlike};

pub const TFTP: Comparison = Comparison {
    name: "tftp",
    seeds: 2000,
    pause: |_| Duration::ZERO,
    turns_after: Some(Duration::from_secs(2)),
    tunables: |_| vec![("nf_conntrack_udp_timeout".to_owned(), 30)],
    generate,
    rule,
    rules: &[REQUEST, SERVER],
    lists_alike: |_| true,
    expected: Some(expected),
};

const PORT: u16 = 69;
/// The number of client ports. Each asks for its own file.
const FILES: usize = 3;
const DATA: &[u8] = b"\0\x03\0\x01data";

fn generate(seed: u64) -> Dialogue {
    let mut talk = Talk::new(seed);
    for number in 0..talk.random.between(1, 6) {
        let port = CONTROL + talk.random.between(0, FILES - 1) as u16;
        let message = message(&mut talk);
        if number > 0 && talk.random.once_in(8) {
            talk.datagram(Server, (PORT, port), &message);
        } else {
            talk.datagram(Client, (port, PORT), &message);
        }
        for _ in 0..talk.random.between(0, 3) {
            let from = talk.random.one_of(&[Server, Server, Server, Client]);
            let port = CONTROL + talk.random.between(0, FILES) as u16;
            talk.somebody_sends(from, port, DATA);
        }
    }
    talk.end()
}

/// A message of a client (RFC 1350 section 5, RFC 2347), mostly a request.
fn message(talk: &mut Talk) -> Vec<u8> {
    let random = &mut talk.random;
    let opcode = if random.once_in(5) { random.between(0, 6) } else { random.between(1, 2) };
    let name = random.one_of(&["file", "/a/rather/long/name.img", "x"]);
    let mode = random.one_of(&["octet", "NetASCII", "mail"]);
    let mut message = vec![0, opcode as u8];
    for text in [name, mode] {
        message.extend(text.bytes());
        message.push(0);
    }
    match random.between(0, 19) {
        0..=3 => message.extend(b"tsize\x000\0blksize\x001428\0"),
        // Without its end, or almost empty.
        4 => message.truncate(message.len() - random.between(1, mode.len() + 2)),
        5 => message.truncate(random.between(1, 3)),
        6 => message[0] = 1,
        7 => drop(message.drain(2..2 + name.len())),
        _ => {}
    }
    message
}

/// The kernel takes any packet with the opcode of a request for one, from either end.
const REQUEST: &str = "a request has a file name and a mode";
const SERVER: &str = "a server sends no requests";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let last = observations.last()?;
    match (last.kernel.class, last.ours.class) {
        (Class::Related, Class::New) => expected(observations, Unlike::OnlyKernel, ""),
        _ => None,
    }
}

fn expected(observations: &[Observation<'_>], unlike: Unlike, _: &str) -> Option<&'static str> {
    let asks = |is_such: &dyn Fn(Side, &[u8]) -> bool| {
        let said = observations.iter().map(|it| (it.from, payload(it.frame)));
        let mut requests = said.filter(|(_, it)| matches!(it[..], [0, 1 | 2, ..]));
        requests.any(|(from, it)| is_such(from, &it))
    };
    let is_incomplete = |text: &[u8]| {
        let mut texts = text[2..].split_inclusive(|&byte| byte == 0);
        ![texts.next(), texts.next()]
            .iter()
            .all(|text| text.is_some_and(|text| text.len() > 1 && text.ends_with(&[0])))
    };
    if unlike != Unlike::OnlyKernel {
        None
    } else if asks(&|from, _| from == Server) {
        Some(SERVER)
    } else {
        asks(&|_, text| is_incomplete(text)).then_some(REQUEST)
    }
}
