//! Rules with what a running gateway has counted, put into sets, and tracked.

use std::net::IpAddr;
use std::ops::ControlFlow;

use conntrack::{Connection, Filter, TupleTransport};
use engine::{Gateway, RulesView, Unresponsive};
use flow::Timestamp;
use netio::clock;
use ruleset::listing::Live;
use ruleset::probe::Probe;
use ruleset::{
    CtState, Details, ElementUpdate, Known, RuleState, SharedState, Tracked, Tuple, name_bits,
};
use wire::Transport;

use super::RuleBook;
use crate::schema::Explanation;

/// Status bits (`enum ip_conntrack_status` of the kernel's interface).
const EXPECTED: u32 = 1;
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const CONFIRMED: u32 = 1 << 3;

fn now() -> Timestamp {
    Timestamp::from_nanos(clock::monotonic_nanoseconds())
}

/// What has changed since a ruleset was loaded.
pub(crate) fn live(book: &RuleBook, view: &RulesView, elements: &[ElementUpdate]) -> Live {
    let now = now();
    let listed = elements.iter().filter_map(|element| element.listed(book.program(), now));
    Live {
        counters: view.counts.counters.clone(),
        quotas_used: view.counts.quotas.clone(),
        elements: listed.collect(),
    }
}

/// What the rules say of a packet now: with the elements of sets, and the connection that
/// the packet belongs to unless its state was told.
///
/// # Errors
/// [`Unresponsive`].
pub(crate) fn explain_now(
    book: &RuleBook,
    gateway: &Gateway,
    probe: &Probe,
) -> Result<Explanation, Unresponsive> {
    let (now, program) = (now(), book.program());
    let mut state = RuleState::new(program, &SharedState::new(program, 1), now);
    state.clear_sets(program);
    for element in gateway.rule_elements()? {
        state.apply(program, element, now);
    }
    let found = if probe.state.is_none() { find(gateway, probe)? } else { None };
    let Some(found) = found else {
        return Ok(book.explain_with(probe, probe, &mut state, now));
    };
    let told = Probe { state: Some(found.state()), ..probe.clone() };
    let mut explanation = book.explain_with(&told, &found, &mut state, now);
    let remark = "its connection is tracked, and is taken as it is now; sequence numbers are not \
                  looked at";
    explanation.remarks.push(remark.to_owned());
    Ok(explanation)
}

/// The connection that a packet belongs to.
struct Found {
    connection: Connection,
    reply: bool,
}

fn find(gateway: &Gateway, probe: &Probe) -> Result<Option<Found>, Unresponsive> {
    let network = &probe.network;
    if matches!(network.transport, Transport::IcmpError(_)) {
        return Ok(None);
    }
    let ports = network.transport.ports();
    let (source, destination) = (network.source_ip(), network.destination_ip());
    let original = (source, destination, ports);
    let reply = (destination, source, ports.map(|(source, destination)| (destination, source)));
    for (ends, reply) in [(original, false), (reply, true)] {
        if let Some(connection) = lookup(gateway, probe, ends)? {
            return Ok(Some(Found { connection, reply }));
        }
    }
    Ok(None)
}

type Ends = (IpAddr, IpAddr, Option<(u16, u16)>);

/// The connection whose originator sends to these ends.
fn lookup(
    gateway: &Gateway,
    probe: &Probe,
    (source, destination, ports): Ends,
) -> Result<Option<Connection>, Unresponsive> {
    let filter = Filter {
        family: Some(probe.network.family),
        protocol: Some(probe.network.protocol),
        zone: Some(probe.zone),
        source: Some(source.into()),
        destination: Some(destination.into()),
        source_port: ports.map(|(source, _)| source),
        destination_port: ports.map(|(_, destination)| destination),
        ..Filter::default()
    };
    let asked = match probe.network.transport {
        Transport::IcmpQuery(query) => Some(query.id),
        _ => None,
    };
    let mut found = None;
    gateway.connections(&filter, &mut |connection| {
        let is_meant = match connection.original.transport {
            TupleTransport::Icmp { id, .. } => asked == Some(id),
            _ => true,
        };
        if !is_meant {
            return ControlFlow::Continue(());
        }
        found = Some(connection);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

impl Details for Found {
    fn tuple(&self, reply: bool) -> Tuple {
        let tuple = if reply { self.connection.reply } else { self.connection.original };
        let bytes = |address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let (source_port, destination_port) = match tuple.transport {
            TupleTransport::Ports { source, destination } => (source, destination),
            _ => (0, 0),
        };
        let (source, destination) = (bytes(tuple.source), bytes(tuple.destination));
        Tuple { source, destination, source_port, destination_port }
    }

    fn counts(&self) -> Option<[(u64, u64); 2]> {
        self.connection.counters.map(|counts| counts.map(|it| (it.packets, it.bytes)))
    }

    fn expiration_ms(&self) -> u64 {
        self.connection.timeout_s * 1000
    }

    fn helper(&self) -> u128 {
        self.connection.helper.and_then(name_bits).unwrap_or(0)
    }

    fn label(&self) -> u128 {
        self.connection.labels.bits()
    }
}

impl Tracked for Found {
    fn state(&self) -> CtState {
        let is_open = self.reply || self.connection.seen_reply;
        if is_open { CtState::Established } else { CtState::New }
    }

    fn known(&self) -> Known<'_> {
        let Connection { seen_reply, assured, expected, mark, zone, .. } = self.connection;
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let status = CONFIRMED
            | bit(seen_reply || self.reply, SEEN_REPLY)
            | bit(assured, ASSURED)
            | bit(expected, EXPECTED);
        Known { reply: self.reply, status, mark, zone, details: Some(self) }
    }
}
