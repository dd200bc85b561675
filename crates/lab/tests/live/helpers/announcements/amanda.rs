//! Streams that an Amanda client announces to its server, and the connections that follow.

use std::time::Duration;

use super::conversation::{CONTROL, Talk, opens};
use crate::scenario::payload;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Server, Side};
use crate::scenario::trackers::{Comparison, Observation, Unlike, expected_port};

pub const AMANDA: Comparison = Comparison {
    name: "amanda",
    seeds: 4000,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_tcp_loose".to_owned(), 1)],
    generate,
    rule,
    rules: &[HEAD, LINE, WORDS, NUMBERS, REST, END, PRIVILEGED],
    lists_alike: |_| true,
    expected: Some(expected),
};

const PORT: u16 = 10080;
const STREAMS: [&str; 4] = ["DATA", "MESG", "INDEX", "STATE"];

/// The opener is the backup server, and the other end Amanda's client.
fn generate(seed: u64) -> Dialogue {
    let mut talk = Talk::new(seed);
    send(&mut talk, Client, "Amanda 2.4 REQ HANDLE 000-0 SEQ 1\nSERVICE sendbackup\n");
    for _ in 0..talk.random.between(1, 4) {
        let from = talk.random.one_of(&[Server, Server, Server, Server, Client]);
        // Repeated ports: otherwise there would be more than the gateway expects at a time.
        talk.first = talk.random.one_of(&[20000, 20000, 20002]);
        let text = reply(&mut talk);
        send(&mut talk, from, &text);
        for _ in 0..talk.random.between(0, 4) {
            talk.somebody_comes();
        }
    }
    talk.end()
}

fn send(talk: &mut Talk, from: Side, text: &str) {
    let ports = [CONTROL, PORT];
    let ports = (ports[from as usize], ports[from.other() as usize]);
    talk.datagram(from, ports, text.as_bytes());
}

fn reply(talk: &mut Talk) -> String {
    const HEAD: &str = "Amanda 2.4 REP HANDLE 000-0 SEQ 1\n";
    if talk.random.once_in(10) {
        return HEAD.replace("REP", "ACK");
    }
    let mut names = STREAMS.to_vec();
    if talk.random.once_in(10) {
        talk.random.shuffle(&mut names);
    }
    names.truncate(talk.random.between(1, 4));
    let mut line = if talk.random.once_in(20) {
        talk.random.one_of(&["connect", "CONNECT ", "OPTIONS; CONNECT", "CONNECTED", " CONNECT"])
    } else {
        "CONNECT"
    }
    .to_owned();
    for name in names {
        let port = u64::from(talk.any_port());
        let random = &mut talk.random;
        let name = match random.between(0, 59) {
            0 => random.one_of(&["data", "OTHER", "XDATA", "METADATA", "", "DATA DATA"]),
            _ => name,
        };
        let port = match random.between(0, 39) {
            0 => random.one_of(&["0", "-1", "65536", "x", "", "0x10", "655360"]).to_owned(),
            1 => (port + 65536).to_string(),
            2 => (10 * port).to_string(),
            3 => format!(" {port}"),
            4 => format!("{port}x"),
            _ => port.to_string(),
        };
        line += &format!(" {name} {port}");
    }
    let end = match talk.random.between(0, 39) {
        0 => "",
        1 => " \n",
        2 => " ",
        3..6 => "\r\n",
        _ => "\n",
    };
    let (before, behind) = match talk.random.between(0, 19) {
        0 => ("OPTIONS a=DATA 20000;\n", ""),
        1 => ("CONNECT OTHER 1\n", ""),
        2 => ("", "CONNECT DATA 20000\n"),
        _ => ("", "OPTIONS features=ff;\n"),
    };
    let mut text = format!("{HEAD}{before}{line}{end}{behind}").into_bytes();
    if talk.random.once_in(30) {
        let at = talk.random.between(0, text.len() - 1);
        text[at] = talk.random.one_of(b" \nC0129xD");
    }
    String::from_utf8(text).expect("only ASCII is written")
}

/// The kernel does not check this.
const HEAD: &str = "a reply begins with the word for a reply";
/// The kernel accepts the streams anywhere in the reply.
const LINE: &str = "the streams have a separate line";
/// The kernel finds names inside words.
const WORDS: &str = "the names of streams are whole words, with any number of blanks between";
/// The kernel takes the first five digits and their low bits.
const NUMBERS: &str = "ports have 16 bits";
/// The kernel searches the names in its own order, and stops at the first one without a port.
const REST: &str = "a stream without a port does not hide those behind it";
const END: &str = "the line of the streams may be the last, without a line end";

const PRIVILEGED: &str = "no connection is expected at a port below 1024";

/// The kernel removes expectations in the order of their names. This is so rare that no seed of the
/// usual run shows it.
const ORDER: &str = "more than four streams displace the first in the line";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let last = observations.last()?;
    announced_by_one(observations, last.is_announced_only_to_us()?, opens(last.frame)?)
}

fn expected(observations: &[Observation<'_>], unlike: Unlike, line: &str) -> Option<&'static str> {
    announced_by_one(observations, unlike.is_only_ours()?, expected_port(line))
}

/// The rule by which only we expect a connection at a port, or only the kernel does.
fn announced_by_one(
    observations: &[Observation<'_>],
    more: bool,
    port: u16,
) -> Option<&'static str> {
    if !more && (1..1024).contains(&port) {
        return Some(PRIVILEGED);
    }
    let (port, long) = (port.to_string(), (u32::from(port) + 65536).to_string());
    let of_server = observations.iter().filter(|it| it.from == Server && opens(it.frame).is_none());
    let said = of_server
        .map(|it| String::from_utf8(payload(it.frame)).expect("only ASCII is said"))
        .filter(|text| text.contains("CONNECT "));
    let said: Vec<String> = said.collect();
    let mut about_it = said.iter().filter(|text| text.contains(&port) || text.contains(&long));
    let mut ports: Vec<&str> = said.iter().flat_map(|text| text.split_ascii_whitespace()).collect();
    ports.retain(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    ports.sort_unstable();
    ports.dedup();
    about_it.find_map(|text| odd(text, Some(more))).or_else(|| {
        // An expectation that only one of both has may have displaced it.
        said.iter().filter(|_| ports.len() > 4).find_map(|text| odd(text, None))
    })
}

/// The rule by which we expect more than the kernel from a reply, or less.
fn odd(text: &str, more: Option<bool>) -> Option<&'static str> {
    let (before, line) = text.split_once("CONNECT ")?;
    let line = line.split_inclusive('\n').next()?;
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let ports = words.iter().skip(1).step_by(2).map(|word| word.parse::<u32>().unwrap_or(0));
    let names = words.iter().filter_map(|word| STREAMS.iter().position(|name| name == word));
    let is_pair = |pair: &[&str]| pair.len() == 2 && STREAMS.contains(&pair[0]);
    let is_reply = text.starts_with("Amanda ") && text.split(' ').nth(2) == Some("REP");
    let reasons = [
        (!is_reply, Some(false), HEAD),
        (!before.ends_with('\n'), more, LINE),
        (ports.clone().any(|port| port > 65535), Some(false), NUMBERS),
        (!line.ends_with('\n'), Some(true), END),
        (ports.clone().any(|port| port == 0), Some(true), REST),
        (ports.clone().any(|port| (1..1024).contains(&port)), Some(false), PRIVILEGED),
        (!words.chunks(2).all(is_pair), more, WORDS),
        (!names.is_sorted(), None, ORDER),
    ];
    let fits = |&&(is, then, _): &&(bool, Option<bool>, _)| is && (more.is_none() || more == then);
    reasons.iter().find(fits).map(|(.., reason)| *reason)
}
