//! Rules with the counters, elements and connections of a running gateway.

use std::ops::ControlFlow;

use conntrack::{Connection, Filter, TupleTransport};
use engine::{Gateway, RulesView, Unresponsive};
use flow::{Timestamp, Zone, ZonePair};
use netio::clock;
use ruleset::listing::Live;
use ruleset::probe::Probe;
use ruleset::{
    CtState, Details, Known, Program, Question, RuleState, SharedState, Tracked, Tuple, name_bits,
    walk,
};
use wire::{Readdress, Transport, TransportAddress, mapped};

use super::RuleBook;
use crate::schema::Explanation;

/// Status bits (`enum ip_conntrack_status` of the kernel's interface).
const EXPECTED: u32 = 1;
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const CONFIRMED: u32 = 1 << 3;
const SOURCE_TRANSLATED: u32 = 1 << 4;
const DESTINATION_TRANSLATED: u32 = 1 << 5;

fn now() -> Timestamp {
    Timestamp::from_nanos(clock::monotonic_nanoseconds())
}

/// The changes since a ruleset was loaded.
pub(crate) fn live(view: &RulesView) -> Live {
    Live {
        counters: view.counts.counters.clone(),
        quotas_used: view.counts.quotas.clone(),
        is_reset: view.is_reset,
        elements: view.live_elements(),
        age: view.age,
    }
}

/// Explains what the rules do with a packet now: with their counters and the elements of sets.
/// Unless the question gives a state, it uses the connection that the packet belongs to.
///
/// # Errors
/// [`Unresponsive`].
pub(crate) fn explain_now(
    book: &RuleBook,
    gateway: &Gateway,
    probe: &Probe,
) -> Result<Explanation, Unresponsive> {
    let (now, program) = (now(), &book.program());
    let view = gateway.rules()?;
    let mut state = match &view {
        Some(view) => view.state_apart(program),
        None => RuleState::new(program, &shared_state(program, now), now),
    };
    let live = view.as_ref().map(live);
    let live = live.as_ref();
    let probe = &Probe { host_addresses: gateway.host_addresses(), ..probe.clone() };
    let interfaces = gateway.interfaces();
    let named = [&probe.input, &probe.output].into_iter().flatten();
    let missing = named.filter(|name| !interfaces.contains(name));
    let missing = missing.map(|name| format!("{name} is no interface of this gateway"));
    let zones = zones_of(program, probe, now).unwrap_or(ZonePair::both(Zone(probe.zone)));
    let found = match probe.state {
        None => find(gateway, probe, zones)?,
        Some(_) => None,
    };
    let input = probe.input.as_deref();
    let ways = &gateway.ways(input);
    let Some(found) = found else {
        let is_left =
            probe.state.is_none() && gateway.is_of_host_flow(&probe.network, zones.original)?;
        let question = Question { ways, ..Question::alone(probe) };
        let mut explanation = book.explain_with(program, live, question, &mut state, now);
        if is_left {
            explanation.leave_to_host();
        }
        explanation.remarks.extend(missing);
        return Ok(explanation);
    };
    let probe_with_state = Probe { state: Some(found.state()), ..probe.clone() };
    let question = Question { probe: &probe_with_state, tracked: &found, ways };
    let mut explanation = book.explain_with(program, live, question, &mut state, now);
    let remark = "the explanation uses its tracked connection as it is now; sequence numbers are not \
                  looked at";
    explanation.remarks.push(remark.to_owned());
    explanation.remarks.extend(missing);
    let Readdress { source, destination } = found.readdress();
    for (end, place) in [("destination", destination), ("source", source)] {
        let Some(TransportAddress { address, port }) = place else { continue };
        let address = std::net::Ipv6Addr::from(address).to_canonical();
        let port = if port == 0 { String::new() } else { format!(" port {port}") };
        explanation.remarks.push(format!("its connection is translated: {end} {address}{port}"));
    }
    Ok(explanation)
}

/// The shared state for a question that is asked now.
pub(crate) fn shared_state(program: &Program, now: Timestamp) -> SharedState {
    let shared = SharedState::new(program, now);
    let (ahead, zone) = engine::wall_clock(now);
    shared.set_wall_clock(ahead, zone);
    shared
}

/// The zones that rules give a packet while all sets are empty.
fn zones_of(program: &Program, probe: &Probe, now: Timestamp) -> Option<ZonePair> {
    if program.ruleset().zones_set().is_empty() {
        return None;
    }
    let mut state = RuleState::new(program, &shared_state(program, now), now);
    let walk = walk(program, &mut state, Question::alone(probe), now);
    walk.hooks.iter().find_map(|hook| hook.outcome.zone)
}

/// The connection that a packet belongs to.
struct Found {
    connection: Connection,
    reply: bool,
}

fn find(gateway: &Gateway, probe: &Probe, zones: ZonePair) -> Result<Option<Found>, Unresponsive> {
    let network = &probe.network;
    if matches!(network.transport, Transport::IcmpError(_)) {
        return Ok(None);
    }
    let ports = network.transport.ports();
    let known = Filter {
        family: Some(network.family),
        protocol: Some(network.protocol),
        ..Filter::default()
    };
    let (source, destination) = (network.source_ip(), network.destination_ip());
    let (source_port, destination_port) = (ports.map(|it| it.0), ports.map(|it| it.1));
    // A reply to an untranslated connection is found at once. A reply to a translated one needs a
    // search, because its originator is not known yet.
    let as_opened = Filter {
        source: Some(source.into()),
        destination: Some(destination.into()),
        source_port,
        destination_port,
        ..known.clone()
    };
    let as_answered = Filter {
        reply_source: Some(source.into()),
        reply_destination: Some(destination.into()),
        reply_source_port: source_port,
        reply_destination_port: destination_port,
        ..known
    };
    let untranslated = Filter {
        source: Some(destination.into()),
        destination: Some(source.into()),
        source_port: destination_port,
        destination_port: source_port,
        ..as_answered.clone()
    };
    let id = match network.transport {
        Transport::IcmpQuery(query) => Some(query.id),
        _ => None,
    };
    for (filter, reply) in [(as_opened, false), (untranslated, true), (as_answered, true)] {
        let mut found = None;
        gateway.connections(&filter, &mut |connection| {
            let own = connection.zones();
            let (tuple, is_there) = match reply {
                true => (&connection.reply, own.reply == zones.reply),
                false => (&connection.original, own.original == zones.original),
            };
            match tuple.transport {
                TupleTransport::Icmp { id: known, .. } if id != Some(known) => {
                    ControlFlow::Continue(())
                }
                _ if !is_there => ControlFlow::Continue(()),
                _ => {
                    found = Some(Found { connection, reply });
                    ControlFlow::Break(())
                }
            }
        })?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

impl Found {
    /// The readdressing of the packet by its connection's translation.
    fn readdress(&self) -> Readdress {
        let Connection { original, reply, .. } = &self.connection;
        // A packet leaves with the reverse of the addresses that packets of the other direction
        // have.
        let (came, answered) = if self.reply { (reply, original) } else { (original, reply) };
        let [(source, destination), (new_destination, new_source)] =
            [came, answered].map(|tuple| {
                let (source, destination) = match tuple.transport {
                    TupleTransport::Ports { source, destination } => (source, destination),
                    TupleTransport::Icmp { id, .. } => (id, id),
                    _ => (0, 0),
                };
                let place = |address, port| TransportAddress { address: mapped(address), port };
                (place(tuple.source, source), place(tuple.destination, destination))
            });
        Readdress {
            source: (source != new_source).then_some(new_source),
            destination: (destination != new_destination).then_some(new_destination),
        }
    }
}

impl Details for Found {
    fn tuple(&self, reply: bool) -> Tuple {
        let tuple = if reply { self.connection.reply } else { self.connection.original };
        let (source_port, destination_port) = match tuple.transport {
            TupleTransport::Ports { source, destination } => (source, destination),
            _ => (0, 0),
        };
        let (source, destination) = (mapped(tuple.source), mapped(tuple.destination));
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
        let Connection { seen_reply, assured, expected, mark, .. } = self.connection;
        let zones = self.connection.zones();
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let Readdress { source, destination } = self.readdress();
        let (source, destination) =
            if self.reply { (destination, source) } else { (source, destination) };
        let status = CONFIRMED
            | bit(seen_reply || self.reply, SEEN_REPLY)
            | bit(assured, ASSURED)
            | bit(expected, EXPECTED)
            | bit(source.is_some(), SOURCE_TRANSLATED)
            | bit(destination.is_some(), DESTINATION_TRANSLATED);
        Known { reply: self.reply, status, mark, zones, details: Some(self) }
    }

    fn translation(&self) -> Option<Readdress> {
        Some(self.readdress())
    }
}
