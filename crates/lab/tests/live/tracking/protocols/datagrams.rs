//! UDP, UDP-Lite, GRE and protocols that are tracked only by their addresses.

use std::time::Duration;

use lab::{Family, Random};
use wire::protocol;

use crate::scenario::trackers::dialogue::{Client, Dialogue, Ends, Side, Step, interrupt};
use crate::scenario::trackers::outcome::Class;
use crate::scenario::trackers::{BATCH, Comparison, Observation};

/// A pause shorter or longer than the two seconds after which a UDP exchange counts as a stream.
fn pause(batch: u64) -> Duration {
    Duration::from_millis(if batch.is_multiple_of(2) { 2300 } else { 1700 })
}

pub const DATAGRAMS: Comparison = Comparison {
    name: "datagrams",
    seeds: 1500,
    pause,
    turns_after: Some(Duration::from_secs(2)),
    tunables,
    generate,
    rule,
    rules: &[LITE, UNVERIFIED, KEYS],
    lists_alike: |observations| observations.iter().all(|it| !is_gre(it.frame)),
    expected: None,
};

fn tunables(batch: u64) -> Vec<(String, u64)> {
    let timers = [
        ("udp_timeout", 30),
        ("udp_timeout_stream", 120),
        ("gre_timeout", 40),
        ("gre_timeout_stream", 180),
        ("generic_timeout", 600),
    ];
    let checksum = ("checksum", u64::from(batch % 3 != 2));
    let all = timers.into_iter().chain([checksum]);
    all.map(|(name, value)| (format!("nf_conntrack_{name}"), value)).collect()
}

/// Protocols without a tracker: IP in IP, ESP, OSPF, VRRP, and two experimental ones (RFC 3692).
const GENERIC: [u8; 7] = [protocol::IPIP, protocol::IPV6, 50, 89, 112, 253, 254];

fn generate(seed: u64) -> Dialogue {
    let mut random = Random::new(seed);
    let family = random.one_of(&[Family::V4, Family::V6]);
    let ends = Ends::of(seed % BATCH, family);
    let generic = random.one_of(&GENERIC);
    let protocol =
        random.one_of(&[protocol::UDP, protocol::UDP, protocol::UDPLITE, protocol::GRE, generic]);
    let ports = [random.bits() as u16, random.one_of(&[0, 53, 5000])];
    let key = random.once_in(2).then(|| random.bits() as u32);
    let first = random.one_of(&Side::BOTH);
    let mut steps = Vec::new();
    let pause = random.between(1, 8);
    for at in 0..random.between(1, 8) {
        let from = if at == 0 { first } else { random.one_of(&Side::BOTH) };
        if at == pause {
            steps.push(Step::Pause);
        }
        let payload = match protocol {
            protocol::UDP | protocol::UDPLITE => datagram(&mut random, from, ports, protocol),
            protocol::GRE if at > 0 && random.once_in(16) => {
                let other = random.bits() as u32;
                gre(&mut random, Some(other))
            }
            protocol::GRE => gre(&mut random, key),
            _ => random.bytes(20),
        };
        let mut frame = Vec::new();
        ends.from(from).transport(protocol, &payload, &mut frame);
        if protocol == protocol::UDP || protocol == protocol::UDPLITE {
            damage(&mut random, &mut frame, family);
        }
        steps.push(Step::Send(from, frame));
    }
    let payload = match protocol {
        protocol::GRE => gre_header(key),
        _ => [ports[0].to_be_bytes(), ports[1].to_be_bytes(), [0, 8], [0, 0]].concat(),
    };
    let mut flow = Vec::new();
    ends.from(Client).transport(protocol, &payload, &mut flow);
    Dialogue { seed, ends, flow, steps: interrupt(&mut random, steps) }
}

fn datagram(random: &mut Random, from: Side, ports: [u16; 2], protocol: u8) -> Vec<u8> {
    let length = random.one_of(&[0, 1, 20]);
    let covered = match protocol {
        protocol::UDP => 8 + length as u16,
        // The coverage: everything (as 0 and as a number), the header, or an invalid number.
        _ => random.one_of(&[0, 0, 8 + length as u16, 8, 7, 1, 9 + length as u16]),
    };
    let mut bytes = ports[from as usize].to_be_bytes().to_vec();
    bytes.extend(ports[from.other() as usize].to_be_bytes());
    bytes.extend(covered.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(vec![0x2e; length]);
    bytes
}

/// Writes a wrong checksum or length, or removes the checksum.
fn damage(random: &mut Random, frame: &mut [u8], family: Family) {
    let start = if family == Family::V4 { 34 } else { 54 };
    match random.between(0, 19) {
        0 => frame[start + 6] ^= 0x10,
        1 => frame[start + 6..start + 8].fill(0),
        2 => frame[start + 5] ^= random.one_of(&[1, 4, 8, 0x80]),
        // The checksum that the datagram would have as UDP.
        3 => {
            let field = u32::from(u16::from_be_bytes([frame[start + 6], frame[start + 7]]));
            let other = field + u32::from(protocol::UDPLITE - protocol::UDP);
            let folded = (other & 0xffff) + (other >> 16);
            frame[start + 6..start + 8].copy_from_slice(&(folded as u16).to_be_bytes());
        }
        _ => {}
    }
}

fn gre_header(key: Option<u32>) -> Vec<u8> {
    match key {
        None => vec![0, 0, 8, 0],
        Some(key) => [&[0x20, 0, 8, 0], &key.to_be_bytes()[..]].concat(),
    }
}

fn gre(random: &mut Random, key: Option<u32>) -> Vec<u8> {
    let mut bytes = gre_header(key);
    bytes.extend(random.bytes(20));
    bytes
}

/// The checksum of UDP-Lite covers its own protocol number (RFC 3828 section 3.2). The kernel's
/// tracker uses that of UDP and finds every checksum wrong.
const LITE: &str = "the checksum of UDP-Lite covers its own protocol number";
/// The kernel requires a checksum even if it does not verify any.
const UNVERIFIED: &str = "UDP-Lite without a checksum is tracked if none is verified";
/// The kernel has one entry for all tunnels between two hosts.
const KEYS: &str = "each GRE key is a separate flow";

/// The protocol, and the offset of its header.
fn place(frame: &[u8]) -> (u8, usize) {
    if frame[12] == 8 { (frame[23], 34) } else { (frame[20], 54) }
}

/// True for GRE, of which the kernel has one entry without the key.
fn is_gre(frame: &[u8]) -> bool {
    place(frame).0 == protocol::GRE
}

fn rule(observations: &[Observation<'_>]) -> Option<&'static str> {
    let Observation { frame, kernel, ours, log, .. } = observations.last()?;
    let (protocol, start) = place(frame);
    let lite = protocol == protocol::UDPLITE;
    let key = |it: &Observation<'_>| {
        let header = &it.frame[start..];
        (header[0] & 0x20 != 0).then(|| header[4..8].to_vec())
    };
    if protocol == protocol::GRE
        && observations.iter().any(|other| key(other) != key(&observations[0]))
    {
        return Some(KEYS);
    }
    match (kernel.class == Class::Invalid, ours.class == Class::Invalid) {
        (true, false) if lite && log.contains("bad checksum") => Some(LITE),
        (true, false) if lite && log.contains("checksum missing") => Some(UNVERIFIED),
        (false, true) if lite => Some(LITE),
        _ => None,
    }
}
