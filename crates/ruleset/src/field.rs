//! The fields of a packet, its connection and its surroundings that rules can read.

use wire::{Family, protocol};

use crate::evaluate::Side;
use crate::kind::Kind;
use crate::model::GeneratorId;
use crate::names;

mod options;
mod written;

pub(crate) use self::options::{extension, ip_option, raw_tcp_option, sctp_chunk, tcp_option};

/// A field, which a packet may have or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Source address of a packet of that family.
    Source(Family),
    /// Destination address of a packet of that family.
    Destination(Family),
    /// The first two bytes of the transport header.
    SourcePort(Guard),
    /// The third and the fourth byte of the transport header.
    DestinationPort(Guard),
    /// Protocol of the transport, behind extension headers.
    L4Protocol,
    /// Address family as netfilter numbers it.
    Nfproto,
    /// EtherType of the network header.
    EtherType,
    /// Length of the packet from the network header on, in bytes.
    Length,
    /// Packet mark.
    Mark,
    /// Traffic control handle.
    Priority,
    /// The receiver on the link: this host, broadcast, multicast or another host.
    PacketType,
    /// Name of the input interface.
    Input,
    /// Name of the output interface.
    Output,
    /// Type of the link on that side of the packet.
    LinkType(Side),
    /// Group of the interface on that side of the packet.
    Group(Side),
    /// Outermost VLAN identifier, of packets that have one.
    Vlan,
    /// Bits of a header.
    Header(HeaderBits),
    /// Bits of the link header, of packets that have one.
    LinkHeader {
        /// Offset of the first bit, from the header's first.
        offset: u16,
        /// Number of bits, 1 to 128.
        bits: u8,
        /// False for fields that nft has a name for. It asks for an Ethernet link in front of them.
        raw: bool,
    },
    /// The date or the time of day.
    Clock(ClockField),
    /// 1 if the packet has an extension header or an option.
    Has(Layer),
    /// Maximum segment size that a TCP header announces.
    SegmentSize,
    /// A property of the connection.
    Connection(CtField),
    /// A property of an address of the packet, by the routes.
    Route(RouteLookup),
    /// The next hop on the route of a packet of that family.
    NextHop(Family),
    /// The longest TCP segment without options that fits the routes to the destination and back.
    RouteSegmentSize,
    /// The CPU that judges the packet.
    Cpu,
    /// A number that the rule makes itself.
    Generated(GeneratorId),
}

/// The date or the time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClockField {
    /// Nanoseconds since 1970-01-01 00:00:00 local time.
    Date,
    /// Seconds since midnight, local time.
    Hour,
    /// Day of the week in UTC; Sunday is 0.
    Day,
}

/// A look-up of an address in the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteLookup {
    /// True for the packet's source, false for its destination.
    pub of_source: bool,
    /// The link that counts; `None`: all of them.
    pub on: Option<Side>,
    /// True if the packet's mark selects routes too.
    pub by_mark: bool,
    /// The property that is looked up.
    pub looked: Looked,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Looked {
    /// The kind of the address.
    AddressType,
    /// The interface by which packets go to the address; 0 for none.
    WayOut,
}

/// The transport that a header field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// Any.
    Any,
    /// The protocol of this number.
    Protocol(u8),
    /// The protocol of this number, over that family.
    Over(u8, Family),
}

/// A run of bits in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeaderBits {
    /// The header.
    pub layer: Layer,
    /// Offset of the first bit, from the header's first.
    pub offset: u16,
    /// Number of bits, 1 to 128.
    pub bits: u8,
}

/// The beginning of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// The network header, of that family or any.
    Network(Option<Family>),
    /// The transport header.
    Transport(Guard),
    /// The extension header of IPv6 of this number.
    Extension(u8),
    /// The option of IPv4 of this number.
    Option(u8),
    /// The option of TCP of this number.
    TcpOption(u8),
    /// The first chunk of SCTP of this number.
    SctpChunk(u8),
}

/// A property of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtField {
    /// State, one bit.
    State,
    /// Direction of the packet.
    Direction,
    /// Status bits.
    Status,
    /// Mark.
    Mark,
    /// Label bits.
    Label,
    /// Milliseconds until it ends, unless a packet comes.
    Expiration,
    /// Name of its helper.
    Helper,
    /// Address family.
    L3Protocol,
    /// Transport protocol.
    Protocol,
    /// Zone of the original (false) or the reply direction (true), or (`None`) the named one.
    Zone(Option<bool>),
    /// Source address of packets of a direction.
    Source(bool, Family),
    /// Destination address of packets of a direction (true: reply).
    Destination(bool, Family),
    /// Source port of packets of a direction.
    SourcePort(bool),
    /// Destination port of packets of a direction.
    DestinationPort(bool),
    /// Packets of a direction, or of both.
    Packets(Option<bool>),
    /// Bytes of a direction, or of both.
    Bytes(Option<bool>),
    /// Bytes for each packet of a direction, or of both.
    Average(Option<bool>),
}

impl Field {
    /// True if neither rules nor translation change the field while a packet passes a chain, and
    /// the packet itself holds it. An index may be built on such a field.
    pub const fn is_immutable(self) -> bool {
        !matches!(
            self,
            Self::Mark
                | Self::Priority
                | Self::Connection(_)
                | Self::SegmentSize
                | Self::Group(_)
                | Self::LinkType(_)
                | Self::LinkHeader { .. }
                | Self::Route(_)
                | Self::NextHop(_)
                | Self::RouteSegmentSize
                | Self::Cpu
                | Self::Clock(_)
                | Self::Generated(_)
        )
    }
}

/// The number that netfilter has for an address family.
pub(crate) const fn nfproto(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

impl Layer {
    /// The family of packets that have such an extension header or option.
    pub(crate) const fn extended_family(self) -> Option<Family> {
        match self {
            Self::Extension(_) => Some(Family::V6),
            Self::Option(_) => Some(Family::V4),
            Self::Network(_) | Self::Transport(_) | Self::TcpOption(_) | Self::SctpChunk(_) => None,
        }
    }
}

impl Field {
    /// The header that it is read from.
    pub(crate) const fn layer(self) -> Option<Layer> {
        match self {
            Self::Header(HeaderBits { layer, .. }) | Self::Has(layer) => Some(layer),
            _ => None,
        }
    }
}

impl Field {
    /// True for fields that only packets of one family have, and for the family itself.
    pub(crate) const fn asks_for_family(self) -> bool {
        match self {
            Self::Source(_) | Self::Destination(_) | Self::Nfproto => true,
            Self::Header(HeaderBits { layer, .. }) | Self::Has(layer) => {
                matches!(layer, Layer::Network(Some(_)) | Layer::Transport(Guard::Over(..)))
                    || layer.extended_family().is_some()
            }
            _ => false,
        }
    }

    /// True if these bits of the field tell fragments from whole datagrams: offset and "more
    /// fragments" (RFC 791 section 3.1), or anything of a fragment header.
    pub(crate) const fn tells_fragments(self, bits: u128) -> bool {
        const OFFSET_AND_MORE: u128 = 0x3fff;
        match self {
            Self::Has(Layer::Extension(protocol::FRAGMENT))
            | Self::Header(HeaderBits { layer: Layer::Extension(protocol::FRAGMENT), .. }) => true,
            Self::Header(HeaderBits {
                layer: Layer::Network(None | Some(Family::V4)),
                offset: 48,
                bits: 16,
            }) => bits & OFFSET_AND_MORE != 0,
            _ => false,
        }
    }
}

/// A field with the type of its value.
pub(crate) type Typed = (Field, Kind);

const fn network(family: Option<Family>, offset: u16, bits: u8) -> Field {
    Field::Header(HeaderBits { layer: Layer::Network(family), offset, bits })
}

const fn transport(guard: Guard, offset: u16, bits: u8) -> Field {
    Field::Header(HeaderBits { layer: Layer::Transport(guard), offset, bits })
}

/// `{"payload": {"protocol": ..., "field": ...}}`.
pub(crate) fn payload(header: &str, field: &str) -> Option<Typed> {
    match header {
        "ether" => ether(field),
        "vlan" => (field == "id").then_some((Field::Vlan, Kind::Integer(12))),
        "ip" => ipv4(field),
        "ip6" => ipv6(field),
        "icmp" => icmp(field),
        "icmpv6" => icmpv6(field),
        "tcp" => ports(field, Guard::Protocol(protocol::TCP)).or_else(|| tcp(field)),
        "th" => ports(field, Guard::Any),
        "igmp" => igmp(field),
        "udp" | "udplite" | "sctp" | "dccp" | "ah" | "esp" | "comp" => {
            let number = names::number(names::PROTOCOLS, header)? as u8;
            let guard = Guard::Protocol(number);
            let has_ports = !matches!(header, "ah" | "esp" | "comp");
            let ports = if has_ports { ports(field, guard) } else { None };
            ports.or_else(|| other(header, field, guard))
        }
        _ => None,
    }
}

/// `{"payload": {"base": ..., "offset": ..., "len": ...}}`.
pub(crate) fn raw(base: &str, offset: u64, bits: u64) -> Option<Typed> {
    let offset = u16::try_from(offset).ok().filter(|offset| *offset < 1 << 14)?;
    let bits = u8::try_from(bits).ok().filter(|bits| (1..=128).contains(bits))?;
    let field = match base {
        "ll" => Field::LinkHeader { offset, bits, raw: true },
        "nh" => Field::Header(HeaderBits { layer: Layer::Network(None), offset, bits }),
        "th" => Field::Header(HeaderBits { layer: Layer::Transport(Guard::Any), offset, bits }),
        _ => return None,
    };
    Some((field, Kind::Integer(bits)))
}

fn ether(field: &str) -> Option<Typed> {
    let link = |offset, bits| Field::LinkHeader { offset, bits, raw: false };
    Some(match field {
        "daddr" => (link(0, 48), Kind::Ether),
        "saddr" => (link(48, 48), Kind::Ether),
        "type" => (link(96, 16), Kind::EtherType),
        _ => return None,
    })
}

fn ipv4(field: &str) -> Option<Typed> {
    let v4 = |offset, bits| network(Some(Family::V4), offset, bits);
    Some(match field {
        "saddr" => (Field::Source(Family::V4), Kind::Ipv4),
        "daddr" => (Field::Destination(Family::V4), Kind::Ipv4),
        "version" => (v4(0, 4), Kind::Integer(4)),
        "hdrlength" => (v4(4, 4), Kind::Integer(4)),
        "dscp" => (v4(8, 6), Kind::Dscp),
        "ecn" => (v4(14, 2), Kind::Ecn),
        "length" => (v4(16, 16), Kind::Integer(16)),
        "id" => (v4(32, 16), Kind::Integer(16)),
        "frag-off" => (v4(48, 16), Kind::Integer(16)),
        "ttl" => (v4(64, 8), Kind::Integer(8)),
        "protocol" => (v4(72, 8), Kind::Protocol),
        "checksum" => (v4(80, 16), Kind::Integer(16)),
        _ => return None,
    })
}

fn ipv6(field: &str) -> Option<Typed> {
    let v6 = |offset, bits| network(Some(Family::V6), offset, bits);
    Some(match field {
        "saddr" => (Field::Source(Family::V6), Kind::Ipv6),
        "daddr" => (Field::Destination(Family::V6), Kind::Ipv6),
        "version" => (v6(0, 4), Kind::Integer(4)),
        "dscp" => (v6(4, 6), Kind::Dscp),
        "ecn" => (v6(10, 2), Kind::Ecn),
        "flowlabel" => (v6(12, 20), Kind::Integer(20)),
        "length" => (v6(32, 16), Kind::Integer(16)),
        "nexthdr" => (v6(48, 8), Kind::Protocol),
        "hoplimit" => (v6(56, 8), Kind::Integer(8)),
        _ => return None,
    })
}

fn icmp(field: &str) -> Option<Typed> {
    let v4 = |offset, bits| transport(Guard::Over(protocol::ICMP, Family::V4), offset, bits);
    Some(match field {
        "type" => (v4(0, 8), Kind::IcmpType),
        "code" => (v4(8, 8), Kind::IcmpCode),
        "checksum" => (v4(16, 16), Kind::Integer(16)),
        "id" => (v4(32, 16), Kind::Integer(16)),
        "sequence" => (v4(48, 16), Kind::Integer(16)),
        "mtu" => (v4(48, 16), Kind::Integer(16)),
        "gateway" => (v4(32, 32), Kind::Integer(32)),
        _ => return None,
    })
}

/// The number of IGMP among the protocols of IP.
const IGMP: u8 = 2;

fn igmp(field: &str) -> Option<Typed> {
    let v4 = |offset, bits| transport(Guard::Over(IGMP, Family::V4), offset, bits);
    Some(match field {
        "type" => (v4(0, 8), Kind::IgmpType),
        "mrt" => (v4(8, 8), Kind::Integer(8)),
        "checksum" => (v4(16, 16), Kind::Integer(16)),
        "group" => (v4(32, 32), Kind::Integer(32)),
        _ => return None,
    })
}

fn icmpv6(field: &str) -> Option<Typed> {
    let v6 = |offset, bits| transport(Guard::Over(protocol::ICMPV6, Family::V6), offset, bits);
    Some(match field {
        "type" => (v6(0, 8), Kind::Icmpv6Type),
        "code" => (v6(8, 8), Kind::Icmpv6Code),
        "checksum" => (v6(16, 16), Kind::Integer(16)),
        "parameter-problem" | "packet-too-big" | "mtu" => (v6(32, 32), Kind::Integer(32)),
        "id" => (v6(32, 16), Kind::Integer(16)),
        "sequence" => (v6(48, 16), Kind::Integer(16)),
        "max-delay" => (v6(32, 16), Kind::Integer(16)),
        _ => return None,
    })
}

fn ports(field: &str, guard: Guard) -> Option<Typed> {
    Some(match field {
        "sport" => (Field::SourcePort(guard), Kind::Port),
        "dport" => (Field::DestinationPort(guard), Kind::Port),
        _ => return None,
    })
}

fn tcp(field: &str) -> Option<Typed> {
    let tcp = |offset, bits| transport(Guard::Protocol(protocol::TCP), offset, bits);
    Some(match field {
        "sequence" => (tcp(32, 32), Kind::Integer(32)),
        "ackseq" => (tcp(64, 32), Kind::Integer(32)),
        "doff" => (tcp(96, 4), Kind::Integer(4)),
        "reserved" => (tcp(100, 4), Kind::Integer(4)),
        "flags" => (tcp(104, 8), Kind::TcpFlags),
        "window" => (tcp(112, 16), Kind::Integer(16)),
        "checksum" => (tcp(128, 16), Kind::Integer(16)),
        "urgptr" => (tcp(144, 16), Kind::Integer(16)),
        _ => return None,
    })
}

fn other(header: &str, field: &str, guard: Guard) -> Option<Typed> {
    let bits = |offset, bits| transport(guard, offset, bits);
    Some(match (header, field) {
        ("udp", "length") | ("udplite", "csumcov") => (bits(32, 16), Kind::Integer(16)),
        ("udp" | "udplite", "checksum") => (bits(48, 16), Kind::Integer(16)),
        ("sctp", "vtag") => (bits(32, 32), Kind::Integer(32)),
        ("sctp", "checksum") => (bits(64, 32), Kind::Integer(32)),
        ("dccp", "type") => (bits(67, 4), Kind::DccpType),
        ("ah" | "comp", "nexthdr") => (bits(0, 8), Kind::Protocol),
        ("ah", "hdrlength") => (bits(8, 8), Kind::Integer(8)),
        ("ah", "spi") => (bits(32, 32), Kind::Integer(32)),
        ("ah", "sequence") => (bits(64, 32), Kind::Integer(32)),
        ("esp", "spi") => (bits(0, 32), Kind::Integer(32)),
        ("esp", "sequence") => (bits(32, 32), Kind::Integer(32)),
        ("comp", "cpi") => (bits(16, 16), Kind::Integer(16)),
        _ => return None,
    })
}

/// `{"fib": {"flags": ..., "result": ...}}`.
pub(crate) fn route(flags: &[&str], result: &str) -> Option<Typed> {
    let has = |flag| flags.contains(&flag);
    let known = ["saddr", "daddr", "mark", "iif", "oif"];
    if has("saddr") == has("daddr") || !flags.iter().all(|flag| known.contains(flag)) {
        return None;
    }
    let on = match (has("iif"), has("oif")) {
        (false, false) => None,
        (true, false) => Some(Side::Input),
        (false, true) => Some(Side::Output),
        (true, true) => return None,
    };
    let (looked, kind) = match result {
        "type" => (Looked::AddressType, Kind::AddressType),
        "oif" | "oifname" => (Looked::WayOut, Kind::Interface),
        _ => return None,
    };
    let (of_source, by_mark) = (has("saddr"), has("mark"));
    Some((Field::Route(RouteLookup { of_source, on, by_mark, looked }), kind))
}

/// `{"rt": {"key": ..., "family": ...}}`.
pub(crate) fn of_route(key: &str, family: Option<&str>) -> Option<Typed> {
    Some(match (key, family) {
        ("mtu", _) => (Field::RouteSegmentSize, Kind::Integer(16)),
        ("nexthop", Some("ip")) => (Field::NextHop(Family::V4), Kind::Ipv4),
        ("nexthop", Some("ip6")) => (Field::NextHop(Family::V6), Kind::Ipv6),
        _ => return None,
    })
}

/// `{"meta": {"key": ...}}`.
pub(crate) fn meta(key: &str) -> Option<Typed> {
    Some(match key {
        "length" => (Field::Length, Kind::Integer(32)),
        "protocol" => (Field::EtherType, Kind::EtherType),
        "nfproto" => (Field::Nfproto, Kind::Nfproto),
        "l4proto" => (Field::L4Protocol, Kind::Protocol),
        "mark" => (Field::Mark, Kind::Mark),
        "priority" => (Field::Priority, Kind::Priority),
        "pkttype" => (Field::PacketType, Kind::PacketType),
        "iif" | "iifname" => (Field::Input, Kind::Interface),
        "oif" | "oifname" => (Field::Output, Kind::Interface),
        "time" => (Field::Clock(ClockField::Date), Kind::Date),
        "hour" => (Field::Clock(ClockField::Hour), Kind::Hour),
        "day" => (Field::Clock(ClockField::Day), Kind::Day),
        "cpu" => (Field::Cpu, Kind::Integer(32)),
        "iiftype" => (Field::LinkType(Side::Input), Kind::LinkType),
        "oiftype" => (Field::LinkType(Side::Output), Kind::LinkType),
        "iifgroup" => (Field::Group(Side::Input), Kind::Group),
        "oifgroup" => (Field::Group(Side::Output), Kind::Group),
        _ => return None,
    })
}

/// `{"ct": {"key": ..., "dir": ...}}`; the direction is true for replies.
pub(crate) fn ct(key: &str, reply: Option<bool>) -> Option<Typed> {
    let either = match (key, reply) {
        ("packets", way) => Some((CtField::Packets(way), Kind::Integer(64))),
        ("bytes", way) => Some((CtField::Bytes(way), Kind::Integer(64))),
        ("avgpkt", way) => Some((CtField::Average(way), Kind::Integer(64))),
        ("zone", way) => Some((CtField::Zone(way), Kind::Integer(16))),
        ("l3proto", _) => Some((CtField::L3Protocol, Kind::Nfproto)),
        ("protocol", _) => Some((CtField::Protocol, Kind::Protocol)),
        _ => None,
    };
    let directed = |reply| {
        Some(match key {
            "ip saddr" => (CtField::Source(reply, Family::V4), Kind::Ipv4),
            "ip daddr" => (CtField::Destination(reply, Family::V4), Kind::Ipv4),
            "ip6 saddr" => (CtField::Source(reply, Family::V6), Kind::Ipv6),
            "ip6 daddr" => (CtField::Destination(reply, Family::V6), Kind::Ipv6),
            "proto-src" => (CtField::SourcePort(reply), Kind::Port),
            "proto-dst" => (CtField::DestinationPort(reply), Kind::Port),
            _ => return None,
        })
    };
    let plain = || {
        Some(match key {
            "state" => (CtField::State, Kind::CtState),
            "direction" => (CtField::Direction, Kind::CtDirection),
            "status" => (CtField::Status, Kind::CtStatus),
            "mark" => (CtField::Mark, Kind::Mark),
            "label" => (CtField::Label, Kind::CtLabel),
            "expiration" => (CtField::Expiration, Kind::Time),
            "helper" => (CtField::Helper, Kind::Helper),
            _ => return None,
        })
    };
    let found = match reply {
        _ if either.is_some() => either,
        Some(reply) => directed(reply),
        None => plain(),
    };
    found.map(|(field, kind)| (Field::Connection(field), kind))
}
