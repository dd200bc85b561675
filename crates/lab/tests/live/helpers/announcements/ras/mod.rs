//! H.323 endpoints and gatekeepers: their RAS messages, and the packets that follow.

mod message;

use std::net::IpAddr;
use std::time::Duration;

use lab::{Family, Random};
use wire::{Transport, dissect};

use self::message::{
    ADMISSION_CONFIRM, ADMISSION_REQUEST, Additions, Address, GATEKEEPER_CONFIRM,
    GATEKEEPER_REQUEST, INFO_REQUEST, INFO_REQUEST_RESPONSE, LOCATION_CONFIRM, LOCATION_REQUEST,
    MORE, REGISTRATION_CONFIRM, REGISTRATION_REQUEST, UNREGISTRATION_CONFIRM,
    UNREGISTRATION_REQUEST, ends_early, is, is_extended, is_whole,
};
use super::conversation::{CONTROL, Talk};
use super::h323_conversation::{Connection, SOUND, message as call_message, octets};
use crate::scenario::h323::SIGNALLING;
use crate::scenario::payload;
use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Server, Side};
use crate::scenario::trackers::outcome::{Class, Outcome};
use crate::scenario::trackers::{BATCH, Comparison, Observation, Unlike};

pub const RAS: Comparison = Comparison {
    name: "ras",
    seeds: 4000,
    pause: |_| Duration::ZERO,
    turns_after: Some(Duration::from_secs(2)),
    // The kernel trusts gatekeepers.
    tunables: |_| tunables(1),
    generate,
    rule,
    rules: &[CUT, LAST, MANY, UNASKED, ALONE, NOT_SHORTER, A_DAY, LONGER, NOBODY],
    lists_alike,
    expected: Some(expected),
};

/// The same with gatekeepers that the gateway does not trust.
pub const DOUBTED: Comparison = Comparison {
    name: "ras, doubted",
    seeds: 1000,
    tunables: |_| tunables(0),
    rule: |observations| doubted(observations).or_else(|| rule(observations)),
    rules: &[THIRD],
    expected: Some(|observations, unlike, line| {
        of_third(observations, unlike, line).or_else(|| expected(observations, unlike, line))
    }),
    ..RAS
};

fn tunables(trusted: u64) -> Vec<(String, u64)> {
    vec![
        ("nf_conntrack_tcp_loose".to_owned(), 1),
        ("stateway_expect_third_parties".to_owned(), trusted),
    ]
}

/// The pairs of request and answer.
const EXCHANGES: [(u8, u8); 8] = [
    (GATEKEEPER_REQUEST, GATEKEEPER_CONFIRM),
    (REGISTRATION_REQUEST, REGISTRATION_CONFIRM),
    (REGISTRATION_REQUEST, REGISTRATION_CONFIRM),
    (REGISTRATION_REQUEST, REGISTRATION_CONFIRM),
    (UNREGISTRATION_REQUEST, UNREGISTRATION_CONFIRM),
    (ADMISSION_REQUEST, ADMISSION_CONFIRM),
    (LOCATION_REQUEST, LOCATION_CONFIRM),
    (INFO_REQUEST, INFO_REQUEST_RESPONSE),
];

const PORT: u16 = 1719;
/// The first announced port, and the number of ports that a dialogue may announce. Each dialogue of
/// a batch has its own ports: the kernel drops a packet that announces the same as another
/// connection.
const FIRST: u16 = 20000;
const PORTS_OF_ONE: u16 = 40;

fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = if random.once_in(4) { Family::V6 } else { Family::V4 };
    let mut talk = Talk::of(seed, family, random);
    let first = FIRST + (seed % BATCH) as u16 * PORTS_OF_ONE;
    talk.first = first;
    if talk.random.once_in(40) {
        return crowd(talk);
    }
    for number in 0..talk.random.between(1, 5) {
        // The gatekeeper may have named another address.
        let elsewhere = number > 0 && talk.random.once_in(5);
        let ports = if elsewhere { [CONTROL + 1, talk.any_port()] } else { [CONTROL, PORT] };
        let asker = if number > 0 && talk.random.once_in(8) { Server } else { Client };
        // Avoids that two connections announce the same port.
        talk.first = if elsewhere { first + PORTS_OF_ONE / 2 } else { first };
        let (request, answer) = talk.random.one_of(&EXCHANGES);
        tell(&mut talk, asker, ports, request);
        if !talk.random.once_in(8) {
            let from = if talk.random.once_in(15) { asker } else { asker.other() };
            let any = talk.random.once_in(12);
            let answer = if any { talk.random.one_of(&EXCHANGES).1 } else { answer };
            tell(&mut talk, from, ports, answer);
        }
    }
    if talk.random.once_in(3) {
        call(&mut talk);
    }
    talk.end()
}

/// Announces more than the gateway expects at a time.
fn crowd(mut talk: Talk) -> Dialogue {
    let first = talk.first;
    talk.datagram(
        Client,
        (CONTROL, PORT),
        &message::registration_request(&[], &[], Additions::NONE),
    );
    for number in 0..talk.random.between(30, 40) as u16 {
        let named = Address::new(talk.ends.server, first + number % PORTS_OF_ONE);
        talk.datagram(Server, (PORT, CONTROL), &message::admission_confirm(&named));
    }
    for _ in 0..4 {
        talk.first = first + talk.random.between(0, 36) as u16;
        somebody(&mut talk);
    }
    talk.end()
}

/// Opens a connection that may have been announced, also to another host.
fn somebody(talk: &mut Talk) {
    let (from, port) = (talk.random.one_of(&Side::BOTH), talk.any_port());
    let ends = talk.ends;
    if talk.random.once_in(4) {
        *end(&mut talk.ends, from.other()) = ends.router(from.other());
    }
    if talk.random.once_in(4) {
        talk.somebody_sends(from, port, SOUND);
    } else {
        talk.somebody_connects(from, port);
    }
    talk.ends = ends;
}

fn end(ends: &mut Ends, side: Side) -> &mut IpAddr {
    if side == Client { &mut ends.client } else { &mut ends.server }
}

/// Makes a call to a port that may have been announced, and opens H.245 at a port announced in the
/// call.
fn call(talk: &mut Talk) {
    let (from, port) = (talk.random.one_of(&Side::BOTH), talk.any_port());
    let mut call = Connection::open(talk, from, port);
    // The call announces other ports.
    talk.first += PORTS_OF_ONE / 4;
    // The caller speaks first.
    for speaker in [from, from.other()] {
        let message = call_message(talk, speaker, &SIGNALLING);
        call.say(talk, speaker, &message);
    }
    for _ in 0..2 {
        talk.somebody_comes();
    }
}

/// Sends a message, rarely damaged, twice or with another of its kind, and lets a packet follow.
fn tell(talk: &mut Talk, from: Side, ports: [u16; 2], kind: u8) {
    let ports = (ports[from as usize], ports[from.other() as usize]);
    let mut message = of_kind(talk, from, kind);
    match talk.random.between(0, 49) {
        0 | 1 => message.truncate(talk.random.between(1, message.len() - 1)),
        2 => message.extend(MORE),
        _ => {}
    }
    talk.datagram(from, ports, &message);
    if talk.random.once_in(10) {
        if talk.random.once_in(4) {
            message = of_kind(talk, from, kind);
        }
        talk.datagram(from, ports, &message);
    }
    for _ in 0..talk.random.between(0, 2) {
        somebody(talk);
    }
}

fn of_kind(talk: &mut Talk, from: Side, kind: u8) -> Vec<u8> {
    let [first, second] = [(); 2].map(|()| some_address(talk, from));
    let (before, of) = match talk.random.between(0, 19) {
        0..=3 => (talk.random.between(1, 3), from),
        4 => (talk.random.between(8, 14), from.other()),
        _ => (0, from),
    };
    let mut several: Vec<Address> = (0..before).map(|_| some_address(talk, of)).collect();
    several.push(some_address(talk, from));
    if !talk.random.once_in(4) {
        several.push(Address::new(talk.ends.address(from), talk.any_port()));
    }
    match kind {
        GATEKEEPER_REQUEST => message::gatekeeper_request(&first),
        GATEKEEPER_CONFIRM => message::gatekeeper_confirm(&first),
        REGISTRATION_REQUEST => {
            let itself = Address::new(talk.ends.address(from), CONTROL);
            message::registration_request(&several, &[itself], additions(talk))
        }
        REGISTRATION_CONFIRM => message::registration_confirm(&several, additions(talk)),
        UNREGISTRATION_REQUEST => message::unregistration_request(&several),
        UNREGISTRATION_CONFIRM => message::unregistration_confirm(),
        ADMISSION_REQUEST => message::admission_request(&first, &second),
        ADMISSION_CONFIRM => message::admission_confirm(&first),
        LOCATION_REQUEST => message::location_request(&first),
        LOCATION_CONFIRM => message::location_confirm(&first, &second),
        INFO_REQUEST => message::info_request(),
        _ => message::info_request_response(&first, &several),
    }
}

fn additions(talk: &mut Talk) -> Additions {
    let random = &mut talk.random;
    let some: &[u32] = if random.once_in(8) { &[1, 20, 90_000] } else { &[60, 256, 3600, 86_400] };
    let seconds = (!random.once_in(3)).then(|| random.one_of(some));
    Additions { seconds, few: random.once_in(12) }
}

/// The address of the sender or of another host, with a port.
fn some_address(talk: &mut Talk, from: Side) -> Address {
    let port = if talk.random.once_in(20) { 0 } else { talk.any_port() };
    let host = match talk.random.between(0, 11) {
        0 => talk.ends.address(from.other()),
        1 | 2 => talk.ends.router(from),
        3 => return Address::of_others(talk, port),
        _ => talk.ends.address(from),
    };
    Address::new(host, port)
}

const THIRD: &str = "no host may announce another unless the operator trusts gatekeepers";
/// The kernel reads addresses until the data ends, which is before or behind the correct place.
const CUT: &str = "a truncated message announces nothing";
/// The kernel skips the octets of timeToLive twice, and so believes that the message is truncated.
const LAST: &str = "timeToLive may be the last but one";
const MANY: &str = "more than ten addresses of an endpoint are read";
/// The kernel has one timeout for both ends, whoever sends the confirmation.
const UNASKED: &str = "a confirmation counts only if its receiver has asked for it";
/// The kernel applies the previous confirmation.
const ALONE: &str = "a confirmation does not apply to another's message";
const NOT_SHORTER: &str = "a connection is not kept for less than its protocol says";
const LONGER: &str = "a confirmation sets the time for which calls are expected";
const NOBODY: &str = "port 0 announces nothing";
const A_DAY: &str = "a registration lasts a day at most";

/// Kernels of 2026 do the same.
const NO_THIRD: &str = "a gatekeeper named by another may not name a third";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let (last, before) = observations.split_last()?;
    let bytes = payload(last.frame);
    if is(&bytes, REGISTRATION_CONFIRM) {
        return of_confirmation(before, last, &bytes);
    }
    let timeout_s = |said: Outcome| said.entry.map(|it| it.timeout_s);
    let [kernel, ours] = [last.kernel, last.ours].map(timeout_s);
    if is(&bytes, UNREGISTRATION_REQUEST) && last.kernel.class == last.ours.class && kernel < ours {
        return Some(NOT_SHORTER);
    }
    match (last.kernel.class, last.ours.class) {
        (Class::Related, Class::New) => expected(observations, Unlike::OnlyKernel, ""),
        (Class::New, Class::Related) => expected(observations, Unlike::OnlyOurs, ""),
        _ => None,
    }
}

/// The rule for an expectation that differs.
fn expected(observations: &[Observation<'_>], unlike: Unlike, line: &str) -> Option<&'static str> {
    let any = |kind: u8, is_such: &dyn Fn(&Observation<'_>, &[u8]) -> bool| {
        let mut said = observations.iter().map(|it| (it, payload(it.frame)));
        said.any(|(it, bytes)| is(&bytes, kind) && is_such(it, &bytes))
    };
    let registers = |is_such: fn(&[u8]) -> bool| any(REGISTRATION_REQUEST, &|_, it| is_such(it));
    let elsewhere = |it: &Observation<'_>, _: &[u8]| {
        let (from, to) = ends(it.frame);
        ![from.1, to.1].contains(&PORT)
    };
    match unlike {
        Unlike::OnlyKernel if line.contains(" dport=0 ") => Some(NOBODY),
        Unlike::OnlyKernel if registers(|it| !is_whole(it)) => Some(CUT),
        Unlike::OnlyKernel => any(GATEKEEPER_CONFIRM, &elsewhere).then_some(NO_THIRD),
        Unlike::OnlyOurs if registers(ends_early) => Some(LAST),
        // The number of addresses is behind the protocol identifier.
        Unlike::OnlyOurs => {
            let many = |it: &[u8]| it.get(12).is_some_and(|&number| number > 10);
            registers(many).then_some(MANY)
        }
        Unlike::Time => any(REGISTRATION_CONFIRM, &|_, _| true).then_some(LONGER),
    }
}

/// The rule for a connection to a host that a gatekeeper has named and that is neither end.
fn doubted(observations: &[Observation<'_>]) -> Option<&'static str> {
    let last = observations.last()?;
    let (_, (visited, _)) = ends(last.frame);
    let only_kernel = last.is_announced_only_to_us() == Some(false);
    (only_kernel && !is_end(observations, visited)).then_some(THIRD)
}

fn of_third(observations: &[Observation<'_>], unlike: Unlike, line: &str) -> Option<&'static str> {
    let mut hosts = line.split(' ').filter_map(|field| field.strip_prefix("dst="));
    let host = hosts.next().and_then(|host| host.parse().ok())?;
    (unlike == Unlike::OnlyKernel && !is_end(observations, host)).then_some(THIRD)
}

fn is_end(observations: &[Observation<'_>], host: IpAddr) -> bool {
    let (client, server) = ends(observations[0].frame);
    [client.0, server.0].contains(&host)
}

/// False if the kernel keeps a connection other than the first for less than its protocol says
/// ([`NOT_SHORTER`]). Only the lists show that.
fn lists_alike(observations: &[Observation<'_>]) -> bool {
    !observations.iter().any(|it| {
        let (from, to) = ends(it.frame);
        is(&payload(it.frame), REGISTRATION_CONFIRM) && ![from.1, to.1].contains(&PORT)
    })
}

/// The rule for another remaining time after a confirmation.
fn of_confirmation(
    before: &[Observation<'_>],
    last: &Observation<'_>,
    bytes: &[u8],
) -> Option<&'static str> {
    let [kernel, ours] = [last.kernel, last.ours].map(|said| said.entry.map(|it| it.timeout_s));
    let (kernel, ours) = (kernel?, ours?);
    let (from, to) = ends(last.frame);
    let of_both = |it: &&Observation<'_>| [(from, to), (to, from)].contains(&ends(it.frame));
    let said = before.iter().filter(of_both).map(|it| (it.from, payload(it.frame)));
    let said: Vec<(Side, Vec<u8>)> = said.collect();
    let registers = |bytes: &[u8]| is(bytes, REGISTRATION_REQUEST);
    let asked = said.iter().rposition(|(_, bytes)| registers(bytes) && is_whole(bytes));
    let since = asked.map_or(&said[..], |at| &said[at..]);
    let any = |is_such: &dyn Fn(&[u8]) -> bool| since.iter().any(|(_, bytes)| is_such(bytes));
    let asked = since.first().filter(|_| asked.is_some());
    let is_asked = asked.is_some_and(|(from, it)| *from != last.from && says_where(it, to.0));
    if !is_whole(bytes) || any(&|it| registers(it) && !is_whole(it)) {
        Some(CUT)
    } else if ends_early(bytes) && kernel < ours || asked.is_some_and(|(_, it)| ends_early(it)) {
        Some(LAST)
    } else if kernel < ours && ours <= 120 {
        Some(NOT_SHORTER)
    } else if !is_asked || any(&|it| is(it, UNREGISTRATION_REQUEST)) {
        Some(UNASKED)
    } else if !is_extended(bytes) && any(&|it| is(it, REGISTRATION_CONFIRM)) {
        Some(ALONE)
    } else {
        (kernel > ours && ours > 86_000).then_some(A_DAY)
    }
}

/// True if an endpoint announces a port of its own for calls.
fn says_where(bytes: &[u8], host: IpAddr) -> bool {
    let host = octets(host);
    bytes.windows(host.len() + 2).any(|window| {
        let (named, port) = window.split_at(host.len());
        let port = u16::from_be_bytes([port[0], port[1]]);
        named == host && port != 0 && port != CONTROL
    })
}

/// The source and the destination of a packet.
fn ends(frame: &[u8]) -> ((IpAddr, u16), (IpAddr, u16)) {
    let network = dissect(frame).unwrap().network.unwrap();
    let (source_port, destination_port) = match network.transport {
        Transport::Udp { source_port, destination_port, .. } => (source_port, destination_port),
        _ => (0, 0),
    };
    ((network.source_ip(), source_port), (network.destination_ip(), destination_port))
}
