//! Changes of the test of the fast path that reach a gateway beside rules and routes.

use std::net::IpAddr;
use std::sync::Arc;

use conntrack::{Changes, Cursor, Filter, Labels};
use proptest::prelude::*;
use ruleset::CounterMoves;
use steer::{AddressSet, BucketId};
use wire::protocol;

use super::rulesets::{BY_MARK_OR_LABEL, BY_NAME, CHOSEN, WITH_CHOSEN, WITH_ZONES, with_chosen};
use super::{Event, FLOWS, Flow, Pair};
use crate::path::selection::Operation;
use crate::path::settings::Settings;
use crate::testing::twins::{Twin, ZONES, same, zones};
use crate::worker::command::Command;

#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Other zones.
    Zones(usize),
    /// A port loses its queue for sending, or has one again.
    Port(usize, bool),
    /// Ports have other names.
    Names(usize),
    /// A set that packets do not change has other elements.
    Elements(usize),
    /// Other tunables.
    Settings(usize),
    /// Other inside addresses. Connections get aliases before.
    Inside(usize),
    /// An operator sets the mark of a connection, or its labels.
    Mark(usize, u32),
    Labels(usize, u128),
    /// An operator deletes two connections. A packet that opens the second anew may take the slot
    /// of the first, whose next packets come in the same batch.
    Delete(usize, usize),
}

pub fn change() -> impl Strategy<Value = Change> {
    let flow = || 0..FLOWS.len();
    prop_oneof![
        2 => (0..ZONES).prop_map(Change::Zones),
        1 => (0usize..2).prop_map(|port| Change::Port(port, false)),
        2 => (0usize..2).prop_map(|port| Change::Port(port, true)),
        2 => (0..NAMES.len()).prop_map(Change::Names),
        2 => (0..CHOSEN.len()).prop_map(Change::Elements),
        1 => (0..TUNABLES.len()).prop_map(Change::Settings),
        1 => (0..INSIDES).prop_map(Change::Inside),
        2 => (flow(), 0u32..3).prop_map(|(flow, mark)| Change::Mark(flow, mark)),
        2 => (flow(), 0u128..3).prop_map(|(flow, bits)| Change::Labels(flow, bits << 4)),
        2 => (flow(), flow()).prop_map(|(flow, next)| Change::Delete(flow, next)),
    ]
}

impl Change {
    /// The ruleset whose decisions about established packets this changes.
    pub fn matters_to(&self) -> Option<usize> {
        match self {
            Self::Elements(_) => Some(WITH_CHOSEN),
            Self::Mark(..) | Self::Labels(..) => Some(BY_MARK_OR_LABEL),
            Self::Names(_) => Some(BY_NAME),
            Self::Zones(_) => Some(WITH_ZONES),
            _ => None,
        }
    }
}

pub const NAMES: [[&str; 2]; 4] =
    [["lan0", "wan0"], ["lan0", ""], ["wan0", "lan0"], ["lan1", "wan0"]];

const TUNABLES: [&[(&str, u64)]; 4] = [
    &[],
    &[("nf_conntrack_tcp_be_liberal", 1), ("nf_conntrack_checksum", 0)],
    &[("nf_conntrack_udp_timeout", 10), ("nf_conntrack_udp_timeout_stream", 20)],
    &[("nf_conntrack_tcp_loose", 0), ("nf_conntrack_tcp_timeout_established", 30)],
];

const INSIDES: usize = 3;

/// The router's own address and all hosts inside, these hosts without one, or no address.
pub fn inside(index: usize) -> AddressSet {
    let range = |first: &str, last: &str| {
        let [first, last] = [first, last].map(|end| match super::ip(end) {
            IpAddr::V4(end) => end.to_ipv6_mapped().octets(),
            IpAddr::V6(end) => end.octets(),
        });
        first..=last
    };
    let own = ["198.51.100.254", "2001:db8:0:2::fe"].map(|own| range(own, own));
    AddressSet::new(match index {
        0 => [
            own.to_vec(),
            vec![range("192.0.2.0", "192.0.2.255"), range("2001:db8:0:1::", "2001:db8:0:1::ffff")],
        ]
        .concat(),
        1 => vec![range("192.0.2.2", "192.0.2.255"), range("2001:db8:0:1::2", "2001:db8:0:1::9")],
        _ => Vec::new(),
    })
}

impl Twin {
    fn change_elements(&mut self, chosen: usize) {
        let Some(before) = self.rules.clone() else { return };
        let unloaded = self.prepare(&with_chosen(CHOSEN[chosen]));
        let Some(rules) = before.with_elements(unloaded) else { return };
        let moves = Arc::new(CounterMoves::between(&before.program, &rules.program));
        self.rules = Some(rules.clone());
        self.tell(|| Command::RuleElements(rules.clone(), moves.clone()));
    }

    fn change_inside(&mut self, inside: &AddressSet) {
        // The coordinator waits until every worker has obeyed.
        self.catch_up();
        self.tell(|| Command::PrepareInside(Some(inside.clone())));
        for bucket in 0..self.gateway.owners.len() {
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                let owner = self.gateway.owners[bucket].index();
                let path = &mut self.gateway.workers[owner].path;
                next = path.resteer(BucketId(bucket as u16), from, self.gateway.now);
                self.gateway.run_until_idle();
            }
        }
        self.gateway.hasher.set_inside(inside.clone());
        self.tell(|| Command::Inside(inside.clone()));
    }
}

impl Pair {
    pub fn change(&mut self, change: &Change) {
        match *change {
            Change::Zones(index) => {
                self.zones = self.zones.changed(&zones(index), 2).unwrap();
                let zones = self.zones.clone();
                self.tell(|| Command::Zones(Box::new(zones.clone())));
            }
            Change::Port(port, is_open) => self.each(|twin| twin.set_open(port, is_open)),
            Change::Names(names) => self.each(|twin| twin.rename(&NAMES[names])),
            Change::Elements(chosen) => self.each(|twin| twin.change_elements(chosen)),
            Change::Settings(index) => {
                let mut settings = Settings::default();
                for (name, value) in TUNABLES[index] {
                    settings.set(name, *value).unwrap();
                }
                self.tell(|| Command::Settings(Box::new(settings.clone())));
            }
            Change::Inside(index) => self.each(|twin| twin.change_inside(&inside(index))),
            Change::Mark(flow, mark) => {
                let changes = Changes { mark: Some((mark, u32::MAX)), ..Changes::default() };
                self.select(flow, &Operation::Update(changes));
            }
            Change::Labels(flow, bits) => {
                let (drop_labels, add_labels) = (Labels::ALL, Labels::of_bits(bits));
                let changes = Changes { drop_labels, add_labels, ..Changes::default() };
                self.select(flow, &Operation::Update(changes));
            }
            Change::Delete(flow, next) => {
                self.select(flow, &Operation::Delete);
                self.select(next, &Operation::Delete);
                let opens = if FLOWS[next].tcp { 0x02 } else { 0x10 };
                self.batch(&[(next, false, opens), (flow, false, 0x10), (flow, true, 0x10)]);
                self.play(&Event::Establish(next));
            }
        }
    }

    /// Applies an operation to the connections of a flow.
    fn select(&mut self, flow: usize, what: &Operation) {
        let Flow { tcp, client: (address, port), .. } = FLOWS[flow];
        let filter = Arc::new(Filter {
            protocol: Some(if tcp { protocol::TCP } else { protocol::UDP }),
            source: Some(address.to_string().parse().unwrap()),
            source_port: Some(port),
            ..Filter::default()
        });
        let [fast, slow] = self.twins.each_mut().map(|twin| twin.select(&filter, what));
        assert_eq!(fast, slow);
        same(self.twins.each_ref().map(Twin::sent));
    }
}
