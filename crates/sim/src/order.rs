//! Watches whether packets leave a gateway at once, and in the order in which they came.
//!
//! Each packet of a host has an IPv4 identification of its own, by which it is known again when a
//! gateway has translated it.

use std::collections::BTreeMap;

use wire::checksum;

use crate::failure::{Invariant, Violation};

/// Offset of the identification in a packet.
const IDENTIFICATION: usize = 4;
/// Bytes of a header without options.
const HEADER: usize = 20;
/// Longest time in a gateway, microseconds. The simulation itself lets frames wait for others.
const LONGEST: u64 = 1000;
/// Time after which a packet that has not left was dropped.
const FORGOTTEN: u64 = 1_000_000;

/// Protocol, addresses and ports of a packet.
pub type Flow = (u8, [u8; 12]);

/// The flow of an IPv4 packet without options.
pub fn flow_of(packet: &[u8]) -> Option<Flow> {
    if packet.len() < HEADER + 4 || packet[0] != 0x45 {
        return None;
    }
    let ends = std::array::from_fn(|at| packet[12 + at]);
    matches!(packet[9], 6 | 17).then_some((packet[9], ends))
}

/// Gives a packet an identification.
pub fn identify(packet: &mut [u8], number: u16) {
    if packet.len() < HEADER {
        return;
    }
    packet[IDENTIFICATION..][..2].copy_from_slice(&number.to_be_bytes());
    checksum::fill_ipv4_header(&mut packet[..HEADER]);
}

struct Passage {
    life: u64,
    flow: Flow,
    number: u64,
    at: u64,
}

/// The packets in gateways.
#[derive(Default)]
pub struct Order {
    inside: BTreeMap<u16, Vec<Passage>>,
    left: BTreeMap<(u64, Flow), u64>,
    count: u64,
}

impl Order {
    /// A packet comes to the process `life` of a gateway.
    pub fn enter(&mut self, life: u64, packet: &[u8], at: u64) {
        let Some(flow) = flow_of(packet) else { return };
        self.count += 1;
        let passages = self.inside.entry(identification(packet)).or_default();
        passages.retain(|passage| at < passage.at + FORGOTTEN);
        passages.push(Passage { life, flow, number: self.count, at });
    }

    /// A packet leaves.
    pub fn leave(&mut self, life: u64, packet: &[u8], now: u64) -> Result<(), Violation> {
        let Some(passages) = self.inside.get_mut(&identification(packet)) else { return Ok(()) };
        let Some(at) = passages.iter().position(|it| it.life == life) else { return Ok(()) };
        let Passage { flow, number, at, .. } = passages.remove(at);
        let last = self.left.entry((life, flow)).or_default();
        let what = |how: &str| format!("packet {} {how}", identification(packet));
        if number < *last {
            return Err(Violation::new(Invariant::NoReordering, what("was overtaken")));
        }
        *last = number;
        if now > at + LONGEST {
            let how = format!("was there for {} us", now - at);
            return Err(Violation::new(Invariant::NoDelay, what(&how)));
        }
        Ok(())
    }
}

fn identification(packet: &[u8]) -> u16 {
    packet
        .get(IDENTIFICATION..IDENTIFICATION + 2)
        .map_or(0, |it| u16::from_be_bytes([it[0], it[1]]))
}
