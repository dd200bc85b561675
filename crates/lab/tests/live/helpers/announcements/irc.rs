//! Direct connections that IRC clients offer each other, and the packets that follow.

use std::time::Duration;

use lab::{Family, Random};

use super::conversation::{Talk, opens};
use crate::scenario::payload;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Server, Side};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{Comparison, Observation, Unlike, expected_port};

/// The kernel's helper reads only IPv4.
pub const IRC: Comparison = Comparison {
    name: "irc",
    seeds: 3000,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_tcp_loose".to_owned(), 1)],
    generate,
    rule,
    rules: &[REGISTERED, PRIVILEGED, LINES, PREFIX, TEXT, KIND, BLANKS, NUMBERS],
    lists_alike: |_| true,
    expected: Some(expected),
};

fn generate(seed: u64) -> Dialogue {
    let mut talk = Talk::of(seed, Family::V4, Random::new(seed));
    // Any host may accept an offer, so clients that share an address offer different ports.
    talk.first += 1000 * u16::from(talk.ends.number(Server) as u8);
    talk.connect(6667);
    let first = match talk.random.between(0, 29) {
        0 => "POST / HTTP/1.1\r\n",
        1 => "USER a 0 * :a\r\n",
        _ => "NICK a\r\n",
    };
    talk.say(Client, first.as_bytes());
    talk.say(Client, b"USER a 0 * :a\r\n");
    talk.say(Server, b":x 001 a :Welcome\r\n");
    if talk.random.once_in(20) {
        many(&mut talk);
    }
    for _ in 0..talk.random.between(2, 6) {
        let from = talk.random.one_of(&[Client, Client, Client, Client, Client, Server]);
        say(&mut talk, from);
        for _ in 0..talk.random.between(0, 2) {
            talk.somebody_comes();
        }
    }
    talk.end()
}

/// Makes more offers than the gateway expects at a time.
fn many(talk: &mut Talk) {
    let ports = talk.first + 100..talk.first + 110;
    for port in ports.clone() {
        let address = talk.ends.number(Client);
        let offer = format!("PRIVMSG b :\x01DCC SEND file {address} {port}\x01\r\n");
        talk.say(Client, offer.as_bytes());
    }
    for port in ports {
        talk.somebody_connects(Server, port);
    }
}

/// Sends a line, rarely two or one in two segments, mostly correct.
fn say(talk: &mut Talk, from: Side) {
    let mut text = offer(talk).into_bytes();
    match talk.random.between(0, 49) {
        0 | 1 => {
            let at = talk.random.between(0, text.len() - 1);
            text[at] = talk.random.one_of(b" :\x01\"0129\rxP\n");
        }
        2 => drop(text.splice(..0, *b"PING x\r\n")),
        3 => drop(text.splice(..0, *b"\r\n")),
        4 => text.extend(offer(talk).into_bytes()),
        5..=7 => {
            let at = talk.random.between(1, text.len() - 1);
            talk.say(from, &text[..at]);
            text.drain(..at);
        }
        _ => {}
    }
    talk.say(from, &text);
}

fn offer(talk: &mut Talk) -> String {
    let listener = if talk.random.once_in(12) { Server } else { Client };
    let address = talk.ends.number(listener);
    let port = u64::from(talk.any_port());
    let random = &mut talk.random;
    let mut seldom = |usual: &[&str], unusual: &[&str]| {
        let choices = if random.once_in(20) { unusual } else { usual };
        random.one_of(choices).to_owned()
    };
    let command =
        seldom(&["PRIVMSG"], &["privmsg", "NOTICE", ":a!b@c PRIVMSG", "TOPIC", " PRIVMSG"]);
    let target = seldom(&["bob", "#c", "#c,bob"], &["#c:*.org", "", "b "]);
    let start =
        seldom(&[":\x01DCC"], &["\x01DCC", ":look \x01DCC", ":\x01dcc", ":DCC", ":\x01PING"]);
    let kind = seldom(
        &["SEND", "SEND", "CHAT", "MOVE", "TSEND", "SCHAT"],
        &["send", "RESUME", "ACCEPT", "XMIT", "SENDS", "SEND "],
    );
    let name = seldom(&["chat", "file.txt", "\"a\""], &["\"a b\"", "a b", "", "\"a", "7"]);
    let end = seldom(&["\x01\r\n", " 1234\x01\r\n", " 1234 7\x01\n"], &["\r\n", "x\r\n", "\x01"]);
    let blank = seldom(&[" "], &["  ", "", "\t", "-"]);
    let too_much = 1 << 32;
    let address = seldom(
        &[&address.to_string()],
        &["0", "", "0x1", &format!("0{address}"), &(too_much + address).to_string()],
    );
    let port = seldom(
        &[&port.to_string()],
        &["0", "65535", "65536", "", "-1", &(port + 65536).to_string(), &format!("0{port}")],
    );
    format!("{command} {target} {start} {kind} {name} {address}{blank}{port}{end}")
}

/// The kernel reads offers whatever the client sent before.
const REGISTERED: &str = "offers count only from a client that has registered";
const PRIVILEGED: &str = "no connection is expected at a port below 1024";
/// The kernel takes each segment for a line.
const LINES: &str = "a line may begin inside a segment, and end in another";
const PREFIX: &str = "a line may begin with the name of its sender";
/// The kernel looks for them only at the start of the text.
const TEXT: &str = "requests between clients may follow text";
const KIND: &str = "the kind of an offer may be in lower case";
/// The kernel takes the text between the next two blanks for the name.
const BLANKS: &str = "several blanks count as one, and in quotes they belong to a name";
/// The kernel takes the low bits.
const NUMBERS: &str = "addresses have 32 bits and ports 16";

/// The kernel drops the second offer. This is so rare that no seed of the usual run shows it.
const AGAIN: &str = "a client may offer the same port through two servers";
/// The kernel accepts any number of offers in a line. This is rare as well.
const ONE: &str = "a line has one offer";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let last = observations.last()?;
    if last.kernel.class == Class::Lost && last.log.contains("cannot add expectation") {
        return Some(AGAIN);
    }
    announced_by_one(observations, last.is_announced_only_to_us()?, opens(last.frame)?)
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
    let mut said: Vec<String> = observations
        .iter()
        .filter(|it| it.from == Client && opens(it.frame).is_none())
        .map(|it| String::from_utf8(payload(it.frame)).expect("only ASCII is said"))
        .filter(|text| !text.is_empty())
        .collect();
    // Without repeated segments.
    said.dedup();
    let stream = said.concat();
    let lines = stream.split_inclusive('\n').filter(|line| line.contains(&port.to_string()));
    // The number of segments that are this line.
    let whole = |line: &str| said.iter().filter(|text| *text == line).count();
    let in_lines =
        lines.clone().all(|line| lines.clone().filter(|it| *it == line).count() == whole(line));
    let mut numbers = stream.split(|character: char| !character.is_ascii_digit());
    // The number of an address from 192.0.2.0 on plus 2^32, or a port cut to 16 bits.
    let is_long = |number: u64| number > 65535 && number as u16 == port;
    let too_much =
        stream.contains("7516193") || numbers.any(|number| number.parse().is_ok_and(is_long));
    let any = |mark: &str| lines.clone().any(|line| line.contains(mark));
    let is_odd = |line: &str| {
        let mut words = line.split_once("DCC ").map_or("", |(_, offer)| offer).split(' ');
        let [name, address] = [words.nth(1), words.next()].map(Option::unwrap_or_default);
        let is_open =
            name.starts_with('"') && name[1..].find('"').map(|at| at + 2) != Some(name.len());
        is_open || name.is_empty() || address.is_empty() || line.trim_end().contains('\r')
    };
    if !ours && !stream.starts_with("NICK a") {
        Some(REGISTERED)
    } else if !ours && port < 1024 {
        Some(PRIVILEGED)
    } else if !ours && too_much {
        Some(NUMBERS)
    } else if !ours && lines.clone().any(|line| line.matches("DCC ").count() > 1) {
        Some(ONE)
    } else if !in_lines {
        Some(LINES)
    } else if ours && lines.clone().any(|line| line.starts_with(':')) {
        Some(PREFIX)
    } else if ours && any(" \u{1}") {
        Some(TEXT)
    } else if ours && any(" send ") {
        Some(KIND)
    } else {
        lines.clone().any(is_odd).then_some(BLANKS)
    }
}
