//! Filters by which operators choose connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flow::{Endpoint, FlowKey, Side, Zone};
use wire::{Family, protocol};

use crate::limits::ip_address;
use crate::{Connection, Labels, Tuple, TupleTransport};

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
    /// Whether and how the source is translated.
    pub new_source: Option<New>,
    /// Whether and how the destination is translated.
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

/// An address with the number of leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Text that is not an address or prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not an address or prefix such as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32")]
pub struct PrefixError {
    /// The text.
    pub given: String,
}

impl Prefix {
    /// The address, if it is the only one inside.
    fn single(&self) -> Option<IpAddr> {
        let width = if self.address.is_ipv4() { 32 } else { 128 };
        (self.length == width).then_some(self.address)
    }

    /// The prefix as IPv4 if all its addresses are IPv4-mapped ones (RFC 4291 section 2.5.5.2),
    /// which IPv6 packets do not carry.
    fn canonical(self) -> Self {
        const MAPPED_LENGTH: u8 = 96;
        match self.address {
            IpAddr::V6(address) if self.length >= MAPPED_LENGTH => match address.to_ipv4_mapped() {
                Some(v4) => Self { address: v4.into(), length: self.length - MAPPED_LENGTH },
                None => self,
            },
            _ => self,
        }
    }

    /// The prefix with all bits behind its length cleared: the network of the address.
    pub fn network(&self) -> Self {
        let width = if self.address.is_ipv4() { 32 } else { 128 };
        let host_bits = u32::from(width - self.length);
        let cleared = |bits: u128| bits.checked_shr(host_bits).unwrap_or(0) << (host_bits % 128);
        let address = match self.address {
            IpAddr::V4(address) => {
                Ipv4Addr::from_bits(cleared(address.to_bits().into()) as u32).into()
            }
            IpAddr::V6(address) => Ipv6Addr::from_bits(cleared(address.to_bits())).into(),
        };
        Self { address, ..*self }
    }

    /// The address alone.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// True when the address lies inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        (own ^ other).checked_shr(width - u32::from(self.length)).unwrap_or(0) == 0
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// A prefix with one address.
impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length }
    }
}

impl std::str::FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let error = || PrefixError { given: text.to_owned() };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) => length.parse().ok().filter(|length| *length <= width),
            None => Some(width),
        };
        Ok(Self { address, length: length.ok_or_else(error)? }.canonical())
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

/// True for the protocols that tell flows apart by two ports.
pub(crate) const fn has_ports(number: u8) -> bool {
    matches!(
        number,
        protocol::TCP | protocol::UDP | protocol::UDPLITE | protocol::SCTP | protocol::DCCP
    )
}

fn is<T: PartialEq>(wanted: Option<T>, actual: T) -> bool {
    wanted.is_none_or(|wanted| wanted == actual)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(prefix: &str, address: &str) -> bool {
        prefix.parse::<Prefix>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn prefixes_choose_by_their_leading_bits() {
        assert!(inside("192.0.2.0/24", "192.0.2.255"));
        assert!(!inside("192.0.2.0/24", "192.0.3.0"));
        assert!(inside("192.0.2.7", "192.0.2.7") && !inside("192.0.2.7", "192.0.2.6"));
        assert!(inside("0.0.0.0/0", "203.0.113.1"));
        assert!(!inside("0.0.0.0/0", "2001:db8::1"), "families are kept apart");
        assert!(inside("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(inside("::/0", "2001:db8::1"));
    }

    #[test]
    fn what_is_mapped_into_ipv6_is_ipv4() {
        assert!(inside("::ffff:192.0.2.7", "192.0.2.7"));
        assert!(inside("::ffff:192.0.2.0/120", "192.0.2.9"));
        assert!(!inside("::ffff:192.0.2.0/120", "192.0.3.9"));
        assert_eq!("::ffff:192.0.2.0/120".parse::<Prefix>().unwrap().to_string(), "192.0.2.0/24");
        assert!(inside("::ffff:0.0.0.0/90", "::ffff:1.2.3.4"), "not only those");
    }

    #[test]
    fn a_network_has_no_bits_behind_its_length() {
        for (text, network) in [
            ("192.0.2.77/24", "192.0.2.0/24"),
            ("192.0.2.77", "192.0.2.77/32"),
            ("192.0.2.77/0", "0.0.0.0/0"),
            ("2001:db8::77/126", "2001:db8::74/126"),
            ("2001:db8::77/0", "::/0"),
            ("2001:db8::77", "2001:db8::77/128"),
        ] {
            assert_eq!(text.parse::<Prefix>().unwrap().network().to_string(), network);
        }
    }

    #[test]
    fn what_is_no_prefix_is_refused_with_the_text() {
        for text in ["", "192.0.2", "192.0.2.0/33", "192.0.2.0/", "2001:db8::/129", "a/24"] {
            assert_eq!(text.parse::<Prefix>(), Err(PrefixError { given: text.into() }));
        }
    }
}
