//! Zones that rules give to packets, for both directions or for one.

use std::time::Duration;

use flow::{Zone, ZonePair};
use lab::{Family, Random, Result};
use wire::dissect;

use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Side, Step};
use crate::scenario::trackers::kernel::Kernel;
use crate::scenario::trackers::outcome::{Class, Way};
use crate::scenario::trackers::stateway::Given;
use crate::scenario::trackers::{BATCH, Comparison, Observation};

const ZONED: Comparison = Comparison {
    name: "zoned",
    seeds: 1500,
    pause: |_| Duration::ZERO,
    turns_after: None,
    tunables: |_| vec![("nf_conntrack_checksum".to_owned(), 1)],
    generate,
    rule,
    rules: &[REPLIES, PORTS],
    lists_alike: |observations| !has_a_flow_twice(observations),
    expected: None,
};

/// The zones by TTL or hop limit.
const ZONES: [(u8, &str, ZonePair); 5] = [
    (71, "original zone set 1", one_way(1, 0)),
    (72, "reply zone set 1", one_way(0, 1)),
    (73, "zone set 1", one_way(1, 1)),
    (74, "original zone set 2", one_way(2, 0)),
    (75, "reply zone set 2", one_way(0, 2)),
];
const TTLS: [u8; 6] = [64, 71, 72, 73, 74, 75];

const fn one_way(original: u16, reply: u16) -> ZonePair {
    ZonePair { original: Zone(original), reply: Zone(reply) }
}

fn zones(ttl: u8) -> ZonePair {
    ZONES.iter().find(|(of, ..)| *of == ttl).map(|(.., zones)| *zones).unwrap_or_default()
}

pub fn compare() -> Result<()> {
    let kernel = Kernel::new()?;
    kernel.set_zones(&ZONES.map(|(ttl, zone, _)| (ttl, zone)))?;
    ZONED.run_with(&kernel, Given::zones(zones))
}

/// One dialogue of this many has a packet that the kernel refuses. The player needs a timeout to
/// notice that.
const REFUSED_IN: u64 = 50;

/// Datagrams between two ends, and errors about them. The packets of an end mostly have the same
/// zones.
fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = random.one_of(&[Family::V4, Family::V6]);
    let ends = Ends::of(seed % BATCH, family);
    let usual = [random.one_of(&TTLS), random.one_of(&TTLS)];
    let datagram = |from: Side, ttl: u8| {
        let ports = [2000, 53];
        let mut frame = Vec::new();
        let builder = ends.from(from).ttl(ttl);
        builder.udp(ports[from as usize], ports[from.other() as usize], b"data", &mut frame);
        frame
    };
    let (mut steps, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..random.between(4, 12) {
        let from = random.one_of(&Side::BOTH);
        let ttl = if random.once_in(8) { random.one_of(&TTLS) } else { usual[from as usize] };
        let mut frame = datagram(from, ttl);
        if random.once_in(5) {
            let about = datagram(from.other(), 64);
            let kind = if family == Family::V4 { 3 } else { 1 };
            frame.clear();
            ends.from(from).ttl(ttl).icmp_error(kind, 1, [0; 4], &about[14..], &mut frame);
        } else if seed.is_multiple_of(REFUSED_IN) || !is_refused((from, zones(ttl)), &sent) {
            sent.push((from, zones(ttl)));
        } else {
            continue;
        }
        steps.push(Step::Send(from, frame));
    }
    // An unused flow: a lookup names no direction, so it could not choose between two zones.
    let mut flow = Vec::new();
    ends.from(Client).udp(9, 9, b"", &mut flow);
    Dialogue { seed, ends, flow, steps }
}

/// True if the connection that this datagram opens may share a flow with another.
fn is_refused((from, zones): (Side, ZonePair), sent: &[(Side, ZonePair)]) -> bool {
    sent.iter().any(|&(side, before)| match side == from {
        true => zones.reply == before.reply && zones.original != before.original,
        false => zones.reply == before.original && zones.reply != before.reply,
    })
}

/// The kernel looks for replies only in the second zone, and opens a connection with the same flow.
const REPLIES: &str = "a reply in the first of its zones belongs to the connection there";
/// If no rule translates, the kernel drops the packet, or has the flow twice.
const PORTS: &str = "a connection gets another port if its flow is taken";

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let (last, before) = observations.split_last()?;
    let zones = zones_of(last);
    let is_answered =
        |&(side, sent): &(Side, ZonePair)| side != last.from && sent.reply == zones.original;
    match (last.kernel.class, last.ours.class) {
        (Class::New, Class::Established) | (Class::Invalid, Class::Related)
            if last.ours.way == Some(Way::Reply) && datagrams(before).iter().any(is_answered) =>
        {
            Some(REPLIES)
        }
        _ if has_a_flow_twice(observations) => Some(PORTS),
        _ => None,
    }
}

fn has_a_flow_twice(observations: &[Observation<'_>]) -> bool {
    let sent = datagrams(observations);
    (0..sent.len()).any(|at| is_refused(sent[at], &sent[..at]))
}

/// The senders and zones of all packets that are no errors.
fn datagrams(observations: &[Observation<'_>]) -> Vec<(Side, ZonePair)> {
    let of = |it: &&Observation<'_>| matches!(it.ours.class, Class::New | Class::Established);
    observations.iter().filter(of).map(|it| (it.from, zones_of(it))).collect()
}

fn zones_of(observation: &Observation<'_>) -> ZonePair {
    let network = dissect(observation.frame).unwrap().network.unwrap();
    zones(network.ttl)
}
