//! Connections that FTP announces: the dialogue on the control connection, and the connections that
//! follow.

use std::time::Duration;

use lab::Family;

use super::conversation::Talk;
use crate::scenario::payload;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Server, Side};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{Comparison, Observation, Unlike};

pub const FTP: Comparison = Comparison {
    name: "announced",
    seeds: 1000,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_tcp_loose".to_owned(), 1)],
    generate,
    rule,
    rules: &[INSIDE, REFUSED, BEGIN, ASKED, PRIVILEGED],
    lists_alike: |_| true,
    expected: Some(expected),
};

/// One dialogue of this many has a truncated segment. The kernel drops it, and the player needs a
/// timeout to notice that.
const CUT_IN: u64 = 250;

fn generate(seed: u64) -> Dialogue {
    let mut talk = Talk::new(seed);
    ftp(&mut talk, seed.is_multiple_of(CUT_IN));
    talk.end()
}

fn ftp(talk: &mut Talk, cut: bool) {
    talk.connect(21);
    if talk.random.once_in(20) {
        talk.first = 1000;
    }
    begin(talk);
    for _ in 0..talk.random.between(2, 6) {
        let from = talk.random.one_of(&[Client, Server]);
        let line = line(talk, from);
        if names_server(&line) && !talk.random.once_in(10) {
            let ask = talk.random.one_of(&[&b"PASV\r\n"[..], b"EPSV\r\n", b"epsv\r\n"]);
            talk.say(Client, ask);
        }
        talk.say(from, &line);
        for _ in 0..talk.random.between(0, 2) {
            talk.somebody_comes();
        }
    }
    if cut {
        talk.say(Client, b"NOOP\r\n");
        let line = line(talk, Client);
        let end = talk.random.between(1, line.len() - 1);
        talk.say(Client, &line[..end]);
    }
}

/// The beginning of a dialogue, rarely in another protocol.
fn begin(talk: &mut Talk) {
    let greeting = talk.random.one_of(&[&b"220 ready\r\n"[..], b"220-a\r\n b\r\n220 c\r\n"]);
    let (greets, is_ftp) = (!talk.random.once_in(30), !talk.random.once_in(20));
    if greets {
        talk.say(Server, greeting);
    }
    let first = [&b"USER a\r\n"[..], b"FEAT\r\n", b"auth x\r\n"];
    let others = [&b"POST / HTTP/1.1\r\n"[..], b"\r\n", b"NOOPS\r\n"];
    let first = talk.random.one_of(if is_ftp { &first } else { &others });
    talk.say(Client, first);
    talk.say(Server, b"530 no\r\n");
}

/// True for replies that name the port where the server listens.
fn names_server(line: &[u8]) -> bool {
    line.starts_with(b"227 ") || line.starts_with(b"229 ")
}

/// A line, rarely two, mostly correct.
fn line(talk: &mut Talk, from: Side) -> Vec<u8> {
    let mut line = honest_line(talk, from);
    match talk.random.between(0, 59) {
        0..=3 => line.make_ascii_lowercase(),
        4 => {
            let at = talk.random.between(0, line.len() - 1);
            line[at] = talk.random.one_of(b" ,|()0129\rxP\n");
        }
        // The next segment continues this line.
        5..=9 => line.truncate(line.len() - 1),
        10..=13 => line.splice(..0, *b"200 x\r\n").for_each(drop),
        14 | 15 => line = honest_line(talk, from.other()),
        _ => {}
    }
    line
}

fn honest_line(talk: &mut Talk, from: Side) -> Vec<u8> {
    let speaker = if talk.random.once_in(8) { from.other() } else { from };
    let (address, v4) = (talk.ends.address(speaker), talk.ends.family == Family::V4);
    let port = talk.any_port();
    let numbers = format!("{address},{},{}", port >> 8, port & 0xff).replace('.', ",");
    let choices = match (from, v4) {
        (Client, true) => ["USER a", "NOOP", "PORT {n}", "PORT {n}", "EPRT |1|{a}|{p}|"],
        (Client, false) => ["USER a", "EPSV ALL", "EPRT |2|{a}|{p}|", "EPRT !2!{a}!{p}!", "EPSV"],
        (Server, true) => ["200 ok", "227 Mode ({n}).", "227 {n}", "229 (|||{p}|)", "331 a"],
        (Server, false) => ["200 ok", "229 E (|||{p}|)", "229 E (!!!{p}!)", "214 a", "331 a"],
    };
    let begins_several = from == Server && talk.random.once_in(25);
    let choices = if begins_several { ["214-a"; 5] } else { choices };
    let mut text = talk.random.one_of(&choices).to_owned();
    for (name, value) in [("{n}", numbers), ("{a}", address.to_string()), ("{p}", port.to_string())]
    {
        text = text.replace(name, &value);
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Receive offload puts several lines into one segment, so we read the lines inside a segment too.
/// The kernel reads only its start.
const INSIDE: &str = "a line may start inside a segment";
/// The kernel drops a command that it can not read. We leave that to the server.
const REFUSED: &str = "the receiver refuses a malformed command";

/// The kernel reads commands whatever was said first, and by whichever end.
const BEGIN: &str = "commands count only after a greeting and a first command of FTP";
const ASKED: &str = "a reply counts only once, after a request, and not inside another";
const PRIVILEGED: &str = "no connection is expected at a port below 1024";

/// This is so rare that no seed of the usual run shows it.
const BYTES: &str = "the numbers of PORT and 227 are bytes; the kernel takes larger ones";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let Observation { kernel, ours, .. } = observations.last()?;
    match (kernel.class, ours.class) {
        (Class::Lost, Class::Established) => Some(REFUSED),
        (Class::Established, Class::Lost) if any(observations, inside) => Some(INSIDE),
        (Class::New, Class::Related) => expected(observations, Unlike::OnlyOurs, ""),
        (Class::Related, Class::New) => expected(observations, Unlike::OnlyKernel, ""),
        _ => None,
    }
}

/// The rule for an expectation that only one of both has: an announcement that only one of both
/// reads replaces an earlier expectation.
fn expected(observations: &[Observation<'_>], unlike: Unlike, _: &str) -> Option<&'static str> {
    if unlike == Unlike::Time {
        return None;
    }
    if !is_begun(observations) {
        return (unlike == Unlike::OnlyKernel).then_some(BEGIN);
    }
    if any(observations, inside) {
        Some(INSIDE)
    } else if any(observations, too_much) {
        Some(BYTES)
    } else if is_unasked(observations) {
        Some(ASKED)
    } else {
        any(observations, is_privileged).then_some(PRIVILEGED)
    }
}

/// The payloads of the dialogue without repeated segments.
fn said(observations: &[Observation<'_>]) -> Vec<(Side, Vec<u8>)> {
    let mut said: Vec<(Side, Vec<u8>)> = observations
        .iter()
        .map(|it| (it.from, payload(it.frame)))
        .filter(|(_, bytes)| !bytes.is_empty())
        .collect();
    said.dedup();
    said
}

/// True if both ends have begun as FTP does.
fn is_begun(observations: &[Observation<'_>]) -> bool {
    let said = said(observations);
    let [(Server, greeting), (Client, first), ..] = &said[..] else { return false };
    let words: [&[u8]; 3] = [b"USER", b"FEAT", b"auth"];
    greeting.starts_with(b"220") && words.iter().any(|word| first.starts_with(word))
}

/// True if the server has named a port without a request, or inside a reply.
fn is_unasked(observations: &[Observation<'_>]) -> bool {
    let said = said(observations);
    let (mut asked, mut line) = (0, Vec::new());
    for (from, text) in &said {
        if *from == Server && text.windows(4).any(|it| it == b"214-") {
            return true;
        }
        if *from == Server && names_server(text) {
            if asked == 0 {
                return true;
            }
            asked -= 1;
        }
        if *from == Client {
            line.extend_from_slice(text);
            let words = [b"PASV\r\n", b"EPSV\r\n"];
            asked += usize::from(words.iter().any(|word| line.eq_ignore_ascii_case(*word)));
            if line.ends_with(b"\n") {
                line.clear();
            }
        }
    }
    false
}

/// True for a text that names one of the ports from 1000 on.
fn is_privileged(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let ports = 1000..1004_u16;
    ports
        .clone()
        .any(|port| text.contains(&format!("|{port}|")) || text.contains(&format!("!{port}!")))
        || ports.clone().any(|port| text.contains(&format!(",{},{}", port >> 8, port & 0xff)))
}

fn any(observations: &[Observation<'_>], is: fn(&[u8]) -> bool) -> bool {
    observations.iter().any(|it| is(&payload(it.frame)))
}

/// True if a line starts inside a segment.
fn inside(text: &[u8]) -> bool {
    text.iter().position(|&byte| byte == b'\n').is_some_and(|at| at + 1 < text.len())
}

/// True if a number exceeds a byte.
fn too_much(text: &[u8]) -> bool {
    let mut numbers = text.split(|byte| !byte.is_ascii_digit());
    text.contains(&b',') && numbers.any(|number| number > b"255" && number.len() > 2)
}
