//! Filters by which operators choose connections.

use std::net::IpAddr;

use flow::{Endpoint, FlowKey, Side, Zone};
use wire::{Family, protocol};

use super::{Connection, Tuple, TupleTransport, has_ports};
use crate::connection::{Labels, Prefix, ip_address};

/// A choice of connections. A field with `None` matches every connection; the default chooses
/// all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Address family.
    pub family: Option<Family>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// [Zone](Connection::zone) of both directions.
    pub zone: Option<u16>,
    /// [Zone](Connection::original_zone) of the original direction alone.
    pub original_zone: Option<u16>,
    /// [Zone](Connection::reply_zone) of the reply direction alone.
    pub reply_zone: Option<u16>,
    /// Source of the original direction.
    pub source: Option<Prefix>,
    /// Destination of the original direction.
    pub destination: Option<Prefix>,
    /// Source port of the original direction.
    pub source_port: Option<u16>,
    /// Destination port of the original direction.
    pub destination_port: Option<u16>,
    /// GRE: key of the source of the original direction as it is listed.
    pub source_key: Option<u32>,
    /// GRE: key of the destination of the original direction.
    pub destination_key: Option<u32>,
    /// Source of the reply direction.
    pub reply_source: Option<Prefix>,
    /// Destination of the reply direction.
    pub reply_destination: Option<Prefix>,
    /// Source port of the reply direction.
    pub reply_source_port: Option<u16>,
    /// Destination port of the reply direction.
    pub reply_destination_port: Option<u16>,
    /// The translation of the source, or that it has none.
    pub new_source: Option<New>,
    /// The translation of the destination, or that it has none.
    pub new_destination: Option<New>,
    /// The same for either of them.
    pub new_end: Option<New>,
    /// ICMP: type, code and identifier of the original direction.
    pub icmp_type: Option<u8>,
    /// See [`Self::icmp_type`].
    pub icmp_code: Option<u8>,
    /// See [`Self::icmp_type`].
    pub icmp_id: Option<u16>,
    /// State of the protocol as it is listed; case does not matter.
    pub state: Option<String>,
    /// Mark: value and the bits that count.
    pub mark: Option<(u32, u32)>,
    /// Labels that the connection must all have.
    pub labels: Labels,
    /// Assured or not.
    pub assured: Option<bool>,
    /// With or without a reply.
    pub seen_reply: Option<bool>,
    /// Announced by another connection or not.
    pub expected: Option<bool>,
}

/// The translation of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New {
    /// To any other address or port.
    Any,
    /// To another address in this prefix.
    Address(Prefix),
}

impl New {
    fn matches(self, old: (IpAddr, Option<u16>), new: (IpAddr, Option<u16>)) -> bool {
        match self {
            Self::Any => old != new,
            Self::Address(prefix) => old.0 != new.0 && prefix.contains(new.0),
        }
    }
}

impl Filter {
    /// False if the flow alone excludes a match. [`Filter::matches`] decides the rest.
    pub(crate) fn admits(&self, key: &FlowKey, originator: Side) -> bool {
        let within = |wanted: Option<Prefix>, side| {
            let address = |side| ip_address(key.endpoint(side).address, key.family);
            wanted.is_none_or(|prefix| prefix.contains(address(side)))
        };
        is(self.protocol, key.protocol)
            && is(self.family, key.family)
            && is(self.zone.map(Zone), key.zone)
            && within(self.source, originator)
            && within(self.destination, originator.opposite())
    }

    /// The few flows of a zone that can match, if the filter is precise enough to list them.
    pub fn flows(&self, zone: Zone) -> Option<Vec<FlowKey>> {
        let protocol = self.protocol?;
        let (source, destination) = (self.source?.single()?, self.destination?.single()?);
        let (family, source) = mapped(source);
        let (other, destination) = mapped(destination);
        let end = |address, port| Endpoint { address, port };
        let flows = if has_ports(protocol) {
            let (source_port, destination_port) = (self.source_port?, self.destination_port?);
            let (source, destination) =
                (end(source, source_port), end(destination, destination_port));
            vec![FlowKey::of_ports(family, protocol, zone, source, destination).key]
        } else if protocol == protocol::GRE {
            let keys = [self.source_key?, self.destination_key?];
            let tunnel = (keys[0] == keys[1])
                .then(|| FlowKey::of_tunnel(family, zone, source, destination, keys[0]));
            let call = keys.map(|key| u16::try_from(key).ok());
            let call = call[0].zip(call[1]).map(|(from, to)| {
                FlowKey::of_call(family, zone, end(source, from), end(destination, to))
            });
            tunnel.into_iter().chain(call).collect()
        } else {
            return None;
        };
        let possible = family == other && is(self.zone, zone.0);
        Some(if possible { flows } else { Vec::new() })
    }

    /// True if the filter chooses the connection.
    pub fn matches(&self, connection: &Connection) -> bool {
        let (source_port, destination_port) = ports(&connection.original);
        let (source_key, destination_key) = match connection.original.transport {
            TupleTransport::Gre { key } => (Some(key), Some(key)),
            TupleTransport::Call { source, destination } => {
                (Some(source.into()), Some(destination.into()))
            }
            _ => (None, None),
        };
        is(self.family, connection.family)
            && is(self.protocol, connection.protocol)
            && is(self.zone, connection.zone)
            && is(self.original_zone, connection.original_zone)
            && is(self.reply_zone, connection.reply_zone)
            && self.source.is_none_or(|prefix| prefix.contains(connection.original.source))
            && self
                .destination
                .is_none_or(|prefix| prefix.contains(connection.original.destination))
            && is(self.source_port.map(Some), source_port)
            && is(self.destination_port.map(Some), destination_port)
            && is(self.source_key.map(Some), source_key)
            && is(self.destination_key.map(Some), destination_key)
            && self.matches_replies(connection)
            && self.state.as_ref().is_none_or(|wanted| {
                connection.state.is_some_and(|state| state.eq_ignore_ascii_case(wanted))
            })
            && self.mark.is_none_or(|(value, mask)| connection.mark & mask == value & mask)
            && connection.labels.include(self.labels)
            && is(self.assured, connection.assured)
            && is(self.seen_reply, connection.seen_reply)
            && is(self.expected, connection.expected)
            && self.matches_icmp(connection.original.transport)
    }

    fn matches_icmp(&self, transport: TupleTransport) -> bool {
        let (own_type, own_code, own_id) = match transport {
            TupleTransport::Icmp { kind, code, id } => (Some(kind), Some(code), Some(id)),
            _ => (None, None, None),
        };
        is(self.icmp_type.map(Some), own_type)
            && is(self.icmp_code.map(Some), own_code)
            && is(self.icmp_id.map(Some), own_id)
    }

    /// Compares the conditions on the replies and on their translation.
    fn matches_replies(&self, connection: &Connection) -> bool {
        let Connection { original, reply, .. } = connection;
        let (source_port, destination_port) = ports(reply);
        let [old, new] = [original.ends(), reply.ends()];
        let source = |wanted: New| wanted.matches(old.0, new.1);
        let destination = |wanted: New| wanted.matches(old.1, new.0);
        self.reply_source.is_none_or(|prefix| prefix.contains(reply.source))
            && self.reply_destination.is_none_or(|prefix| prefix.contains(reply.destination))
            && is(self.reply_source_port.map(Some), source_port)
            && is(self.reply_destination_port.map(Some), destination_port)
            && self.new_source.is_none_or(source)
            && self.new_destination.is_none_or(destination)
            && self.new_end.is_none_or(|wanted| source(wanted) || destination(wanted))
    }
}

const fn ports(tuple: &Tuple) -> (Option<u16>, Option<u16>) {
    match tuple.transport {
        TupleTransport::Ports { source, destination } => (Some(source), Some(destination)),
        _ => (None, None),
    }
}

/// An address as flow keys hold it.
fn mapped(address: IpAddr) -> (Family, [u8; 16]) {
    match address {
        IpAddr::V4(address) => (Family::V4, address.to_ipv6_mapped().octets()),
        IpAddr::V6(address) => (Family::V6, address.octets()),
    }
}

fn is<T: PartialEq>(wanted: Option<T>, actual: T) -> bool {
    wanted.is_none_or(|wanted| wanted == actual)
}
