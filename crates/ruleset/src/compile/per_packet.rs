//! Finds the rules that have to see every packet of a flow.
//!
//! A gateway may decide once for an established flow and do the same with its other packets
//! only if every rule that the first one met would decide the same about all of them, and does
//! nothing else with them.

use std::collections::BTreeSet;
use std::fmt;

use wire::{TcpFlags, protocol};

use crate::CtState;
use crate::field::{CtField, Field, Guard, HeaderBits, Layer};
use crate::generator::Source;
use crate::kind::ObjectKind;
use crate::model::{Item, Load, Operand, Parts, RuleId, Target, ValidRuleset, Verdict};

use super::at_once::States;
use super::is_dynamic;

/// Bit of [`CtField::Status`] that may come after a flow was established.
const ASSURED: u128 = 1 << 2;
/// Flags that are the same in all TCP segments of an established connection which neither open
/// nor end one.
const STEADY_FLAGS: u128 =
    TcpFlags::FIN.with(TcpFlags::SYN).with(TcpFlags::RST).with(TcpFlags::ACK).0 as u128;

/// Why a rule has to see every packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerPacket {
    /// It counts packets.
    Counts,
    /// It has a rate limit.
    Rate,
    /// It has a quota.
    Quota,
    /// It counts connections.
    Connections,
    /// It asks for log lines.
    Logs,
    /// It asks for a set whose elements change, or changes one.
    ChangingSet,
    /// It asks for something of which packets of one flow have different ones.
    Differs(&'static str),
    /// It draws a number for each packet.
    Draws,
    /// It sets the zone of packets, which are found in that zone only behind it.
    Zone,
    /// It does something else with each packet.
    Acts,
}

impl fmt::Display for PerPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counts => f.write_str("it counts packets"),
            Self::Rate => f.write_str("it has a rate limit"),
            Self::Quota => f.write_str("it has a quota"),
            Self::Connections => f.write_str("it counts connections"),
            Self::Logs => f.write_str("it logs packets"),
            Self::ChangingSet => f.write_str("it uses a set whose elements change"),
            Self::Differs(what) => {
                write!(f, "it matches {what}, which may differ between packets of one flow")
            }
            Self::Draws => f.write_str("it draws a number for each packet"),
            Self::Zone => f.write_str("it sets the zone of packets"),
            Self::Acts => f.write_str("it does something with each packet"),
        }
    }
}

/// Why an item has to see every packet of a flow, if it has to.
pub(super) fn of_item(item: &Item, ruleset: &Parts) -> Option<PerPacket> {
    let set = |id: crate::model::SetId| {
        let set = &ruleset.sets[id.index()];
        match set {
            _ if is_dynamic(set) || set.elements.any_expires() => Some(PerPacket::ChangingSet),
            _ if !set.parts.is_empty() => Some(PerPacket::Counts),
            _ => None,
        }
    };
    let loads = || item.loads().iter().find_map(|load| of_bits(load, load.and, ruleset));
    match item {
        Item::Counter(_) => Some(PerPacket::Counts),
        Item::Limit(_) => Some(PerPacket::Rate),
        Item::Quota(_) => Some(PerPacket::Quota),
        Item::Connections(_) => Some(PerPacket::Connections),
        Item::Object { what: ObjectKind::Counter, .. } => Some(PerPacket::Counts),
        Item::Object { what: ObjectKind::Limit, .. } => Some(PerPacket::Rate),
        Item::Object { what: ObjectKind::Quota, .. } => Some(PerPacket::Quota),
        Item::Log(_) => Some(PerPacket::Logs),
        Item::Update(_) => Some(PerPacket::ChangingSet),
        Item::Within { .. } => loads(),
        Item::Bits { load, mask, .. } => of_bits(load, load.and & mask, ruleset),
        Item::Member { set: id, .. } | Item::VerdictMap { map: id, .. } => set(*id).or_else(loads),
        Item::Assign { target: Target::Mark | Target::Priority, value } => match value {
            Operand::Mapped { map, .. } => set(*map).or_else(loads),
            Operand::PathMtu => Some(PerPacket::Acts),
            Operand::Constant(_) | Operand::Computed(_) => loads(),
        },
        // A packet that gives its connection another mark has its flow decided about anew.
        Item::Assign { target: Target::CtMark, value: Operand::Constant(_) } => None,
        // Only packets that open a connection announce a segment size.
        Item::Assign {
            target: Target::SegmentSize,
            value: Operand::Constant(_) | Operand::PathMtu,
        } => None,
        Item::Assign { target: Target::CtZone(_), .. } => Some(PerPacket::Zone),
        Item::Assign { .. } => Some(PerPacket::Acts),
        Item::Verdict(_) | Item::Reject(_) | Item::Nat(_) => None,
        Item::Object {
            what: ObjectKind::Helper | ObjectKind::Timeout | ObjectKind::SynProxy,
            ..
        }
        | Item::Helper(_)
        | Item::Timeout(_)
        | Item::Notrack
        | Item::SynProxy(_) => Some(PerPacket::Acts),
    }
}

/// The transports whose flows are decided about once.
const OF_FLOWS: [u8; 2] = [protocol::TCP, protocol::UDP];

/// True for a field of a header that comes with another transport.
fn is_of_others(field: Field) -> bool {
    match field {
        Field::Header(HeaderBits {
            layer: Layer::Transport(Guard::Protocol(number) | Guard::Over(number, _)),
            ..
        }) => !OF_FLOWS.contains(&number),
        _ => false,
    }
}

/// True for an item behind which a rule only goes on for other transports.
fn is_for_others(item: &Item) -> bool {
    match item {
        Item::Within { load, interval, negated } if load.field == Field::L4Protocol => {
            let value = |number: u8| (u128::from(number) & load.and) ^ load.xor;
            OF_FLOWS.iter().all(|&number| interval.holds(value(number)) == *negated)
        }
        item => item.compares() && item.loads().iter().any(|load| is_of_others(load.field)),
    }
}

/// The same for these bits of what an item reads.
fn of_bits(load: &Load, bits: u128, ruleset: &Parts) -> Option<PerPacket> {
    let differs = |what| Some(PerPacket::Differs(what));
    match load.field {
        Field::Source(_)
        | Field::Destination(_)
        | Field::SourcePort(_)
        | Field::DestinationPort(_)
        | Field::L4Protocol
        | Field::Nfproto
        | Field::EtherType
        | Field::Input
        | Field::Output
        // Other groups and types have flows decided about anew.
        | Field::Group(_)
        | Field::LinkType(_)
        | Field::Mark
        | Field::Priority => None,
        Field::Header(HeaderBits {
            layer: Layer::Transport(Guard::Protocol(protocol::TCP)),
            offset: 104,
            bits: 8,
        }) if bits & !STEADY_FLAGS == 0 => None,
        // No packet that is decided about with its flow has such a header.
        field if is_of_others(field) => None,
        Field::Header(_) | Field::LinkHeader { .. } | Field::Has(_) => differs("bytes of its headers"),
        Field::Length => differs("its length"),
        Field::PacketType => differs("how the link carried it"),
        Field::Vlan => differs("its VLAN"),
        Field::SegmentSize => differs("the segment size that it announces"),
        Field::Clock(_) => differs("the time"),
        // Other routes and MTUs have flows decided about anew.
        Field::Route(_) | Field::NextHop(_) | Field::RouteSegmentSize => None,
        Field::Cpu => differs("the CPU that judges it"),
        Field::Generated(id) => {
            let generator = &ruleset.generators[id.index()];
            match generator.source {
                Source::Counting | Source::Random => Some(PerPacket::Draws),
                _ => generator.hashed().find_map(|load| of_bits(load, load.and, ruleset)),
            }
        }
        Field::Connection(field) => match field {
            CtField::State
            | CtField::Direction
            | CtField::Mark
            | CtField::Label
            | CtField::Helper
            | CtField::L3Protocol
            | CtField::Protocol
            | CtField::Zone(_)
            | CtField::Source(..)
            | CtField::Destination(..)
            | CtField::SourcePort(_)
            | CtField::DestinationPort(_) => None,
            CtField::Status if bits & ASSURED == 0 => None,
            CtField::Status => differs("the status of its connection"),
            CtField::Expiration => differs("the time that its connection has left"),
            CtField::Packets(_) | CtField::Bytes(_) | CtField::Average(_) => {
                differs("what its connection has carried")
            }
        },
    }
}

impl ValidRuleset {
    /// The rules that packets of established TCP and UDP flows meet and that have to see each of
    /// them, with the first reason of each.
    pub fn per_packet_rules(&self) -> Vec<(RuleId, PerPacket)> {
        let mut waiting: Vec<_> = self.bases.iter().flatten().copied().collect();
        let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
        while let Some(id) = waiting.pop() {
            if !seen.insert(id) {
                continue;
            }
            let chain = &self.chains[id.index()];
            let is_nat = chain.base.is_some_and(|base| base.hook.is_nat());
            // Only packets that open a connection come there.
            if is_nat {
                continue;
            }
            for (number, rule) in chain.rules.clone().zip(&self.rules[chain.rules.start as usize..])
            {
                let met = || rule.items.iter().take_while(|item| !is_for_others(item));
                let reason = met().find_map(|item| of_item(item, self));
                found.extend(reason.map(|reason| (RuleId(number), reason)));
                for item in met() {
                    if let Item::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) = item {
                        waiting.push(*to);
                    }
                    if let Item::VerdictMap { map, .. } = item {
                        let elements = self.sets[map.index()].elements.iter();
                        waiting.extend(elements.filter_map(|element| match element.verdict()? {
                            Verdict::Jump(to) | Verdict::Goto(to) => Some(to),
                            _ => None,
                        }));
                    }
                }
                if States::decided(rule).is_some_and(|states| states.holds(CtState::Established)) {
                    break;
                }
            }
        }
        found.sort_unstable_by_key(|(rule, _)| *rule);
        found
    }
}

#[cfg(test)]
#[path = "per_packet_tests.rs"]
mod tests;
