//! Types of values: their width, and nftables' notation of their constants.
//!
//! Every value is a number of up to 128 bits, the most significant byte first. This includes
//! addresses and names of interfaces (16 bytes, padded with zeros). So prefixes, wildcards,
//! comparisons and ranges are all one thing, an [`Interval`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;
use wire::Family;

use crate::limits::MAX_EXPRESSION_DEPTH;
use crate::names::{self, Names};
use crate::problem::{Parsed, Path};

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// IPv4 address.
    Ipv4,
    /// IPv6 address.
    Ipv6,
    /// Hardware address.
    Ether,
    /// Port.
    Port,
    /// IP protocol number.
    Protocol,
    /// Packet or connection mark.
    Mark,
    /// Name of an interface; also the type of an interface index.
    Interface,
    /// State bits of connection tracking.
    CtState,
    /// Status bits of a connection.
    CtStatus,
    /// Direction of a packet in its connection.
    CtDirection,
    /// Label bits of a connection.
    CtLabel,
    /// Name of a helper.
    Helper,
    /// ICMP type.
    IcmpType,
    /// IGMP type.
    IgmpType,
    /// ICMP code.
    IcmpCode,
    /// ICMPv6 type.
    Icmpv6Type,
    /// ICMPv6 code.
    Icmpv6Code,
    /// TCP control bits.
    TcpFlags,
    /// Differentiated services code point.
    Dscp,
    /// Explicit congestion notification.
    Ecn,
    /// EtherType.
    EtherType,
    /// Address family as netfilter numbers it.
    Nfproto,
    /// The receiver on the link: this host, broadcast, multicast or another host.
    PacketType,
    /// DCCP packet type.
    DccpType,
    /// Type of a mobility header.
    MobilityType,
    /// The kind of an address, as rtnetlink numbers it.
    AddressType,
    /// Traffic control handle, `major:minor`.
    Priority,
    /// Date: nanoseconds since 1970, written as a date with its time.
    Date,
    /// Time of day, seconds, written as hours, minutes and seconds.
    Hour,
    /// Day of the week; Sunday is 0.
    Day,
    /// Type of a link (`ARPHRD_ETHER` and so on).
    LinkType,
    /// Group of interfaces (ip-link(8), `group`).
    Group,
    /// An object of the ruleset, by its number; written by name.
    Object(ObjectKind),
    /// Time, in milliseconds; written in seconds.
    Time,
    /// Yes or no.
    Boolean,
    /// A plain number; the value is its width in bits, at most 128.
    Integer(u8),
}

/// The kinds of objects that maps hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A counter.
    Counter,
    /// A rate limit.
    Limit,
    /// A quota.
    Quota,
    /// A helper.
    Helper,
    /// Timeouts of connections.
    Timeout,
    /// A SYN proxy.
    SynProxy,
}

impl ObjectKind {
    const ALL: [Self; 6] =
        [Self::Counter, Self::Limit, Self::Quota, Self::Helper, Self::Timeout, Self::SynProxy];

    /// The kind that nftables calls `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// nftables' name of the kind.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Limit => "limit",
            Self::Quota => "quota",
            Self::Helper => "ct helper",
            Self::Timeout => "ct timeout",
            Self::SynProxy => "synproxy",
        }
    }
}

impl fmt::Display for Kind {
    /// Writes the type's name for people, with the width of a number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4 address",
            Self::Ipv6 => "IPv6 address",
            Self::Ether => "hardware address",
            Self::Port => "port (0 to 65535)",
            Self::Protocol => "IP protocol",
            Self::Mark => "mark of 32 bits",
            Self::Interface => "name of an interface (up to 15 characters)",
            Self::CtState => "state of a connection",
            Self::CtStatus => "status of a connection",
            Self::CtDirection => "direction of a connection",
            Self::CtLabel => "label (0 to 127)",
            Self::Helper => "name of a helper",
            Self::IcmpType => "ICMP type",
            Self::IgmpType => "IGMP type",
            Self::IcmpCode => "ICMP code",
            Self::Icmpv6Type => "ICMPv6 type",
            Self::Icmpv6Code => "ICMPv6 code",
            Self::TcpFlags => "TCP flag",
            Self::Dscp => "DSCP (0 to 63)",
            Self::Ecn => "ECN value (0 to 3)",
            Self::EtherType => "EtherType",
            Self::Nfproto => "address family",
            Self::PacketType => "packet type (host, broadcast, multicast, other)",
            Self::DccpType => "DCCP packet type",
            Self::MobilityType => "type of a mobility header",
            Self::AddressType => "kind of an address (local, unicast and so on)",
            Self::Priority => "priority (MAJOR:MINOR)",
            Self::Date => "date (YYYY-MM-DD HH:MM:SS)",
            Self::Hour => "time of day (HH:MM:SS)",
            Self::Day => "day of the week",
            Self::LinkType => "type of a link",
            Self::Group => "group of interfaces (its number, or `default`)",
            Self::Object(kind) => kind.name(),
            Self::Time => "time in seconds",
            Self::Boolean => "truth value",
            Self::Integer(bits) => return write!(f, "number of {bits} bits"),
        })
    }
}

/// The types of a concatenation, for people.
pub(crate) fn names_of(kinds: &[Kind]) -> String {
    kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . ")
}

/// Values from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval {
    /// The least.
    pub low: u128,
    /// The greatest.
    pub high: u128,
}

impl Interval {
    /// One value.
    pub const fn one(value: u128) -> Self {
        Self { low: value, high: value }
    }

    /// True if the interval contains a value.
    pub const fn holds(self, value: u128) -> bool {
        self.low <= value && value <= self.high
    }

    /// True if it is one value.
    pub const fn is_one(self) -> bool {
        self.low == self.high
    }

    /// True for an address of `family` that an interval of such addresses contains.
    pub fn holds_address(self, family: Family, address: IpAddr) -> bool {
        address.is_ipv4() == (family == Family::V4) && self.holds(address_bits(address))
    }
}

impl Kind {
    /// The type that nftables calls `name` in the declaration of a set.
    pub(crate) fn of_type(name: &str) -> Option<Self> {
        Some(match name {
            "ipv4_addr" => Self::Ipv4,
            "ipv6_addr" => Self::Ipv6,
            "ether_addr" => Self::Ether,
            "inet_service" => Self::Port,
            "inet_proto" => Self::Protocol,
            "mark" => Self::Mark,
            "ifname" | "iface_index" => Self::Interface,
            "ct_state" => Self::CtState,
            "ct_status" => Self::CtStatus,
            "ct_dir" => Self::CtDirection,
            "ct_label" => Self::CtLabel,
            "icmp_type" => Self::IcmpType,
            "igmp_type" => Self::IgmpType,
            "icmp_code" => Self::IcmpCode,
            "icmpv6_type" => Self::Icmpv6Type,
            "icmpv6_code" => Self::Icmpv6Code,
            "tcp_flag" => Self::TcpFlags,
            "dscp" => Self::Dscp,
            "ecn" => Self::Ecn,
            "ether_type" => Self::EtherType,
            "nf_proto" => Self::Nfproto,
            "pkt_type" => Self::PacketType,
            "dccp_pkttype" => Self::DccpType,
            "mh_type" => Self::MobilityType,
            "fib_addrtype" => Self::AddressType,
            "classid" => Self::Priority,
            "time" => Self::Time,
            "hour" => Self::Hour,
            "day" => Self::Day,
            "devgroup" => Self::Group,
            "iface_type" => Self::LinkType,
            // The type of numbers that have no name of their own. nft does not print their width:
            // most take one word, such as zones.
            "integer" => Self::Integer(32),
            _ => return None,
        })
    }

    /// Width, bits.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ipv6 | Self::Interface | Self::CtLabel | Self::Helper => 128,
            Self::Date => 64,
            Self::Ether => 48,
            Self::Ipv4
            | Self::Mark
            | Self::CtState
            | Self::CtStatus
            | Self::Priority
            | Self::Group
            | Self::AddressType
            | Self::Object(_)
            | Self::Hour
            | Self::Time => 32,
            Self::Port | Self::EtherType | Self::LinkType => 16,
            Self::Dscp => 6,
            Self::Ecn => 2,
            Self::DccpType => 4,
            Self::Boolean => 1,
            Self::Integer(bits) => bits,
            Self::Protocol
            | Self::CtDirection
            | Self::IcmpType
            | Self::IgmpType
            | Self::IcmpCode
            | Self::Icmpv6Type
            | Self::Icmpv6Code
            | Self::TcpFlags
            | Self::Nfproto
            | Self::PacketType
            | Self::Day
            | Self::MobilityType => 8,
        }
    }

    /// The greatest value.
    pub const fn greatest(self) -> u128 {
        u128::MAX >> (128 - self.bits() as u32)
    }

    /// Width in a key, words of 4 bytes, as the kernel's registers have.
    pub const fn words(self) -> usize {
        (self.bits() as usize).div_ceil(32)
    }

    /// True if values of the two types may be compared.
    pub fn fits(self, other: Self) -> bool {
        let number = |kind| matches!(kind, Self::Integer(_));
        let object = |kind| matches!(kind, Self::Object(_));
        if object(self) || object(other) {
            return self == other;
        }
        self == other || (self.words() == other.words() && (number(self) || number(other)))
    }

    /// True for sets of bits, where a list of names is a union.
    pub const fn is_bits(self) -> bool {
        matches!(self, Self::CtState | Self::CtStatus | Self::TcpFlags | Self::CtLabel)
    }

    pub(crate) const fn names(self) -> Names {
        match self {
            Self::Protocol => names::PROTOCOLS,
            Self::CtState => names::CT_STATES,
            Self::CtStatus => names::CT_STATUS,
            Self::CtDirection => names::CT_DIRECTIONS,
            Self::IcmpType => names::ICMP_TYPES,
            Self::IgmpType => names::IGMP_TYPES,
            Self::IcmpCode => names::ICMP_CODES,
            Self::Icmpv6Type => names::ICMPV6_TYPES,
            Self::Icmpv6Code => names::ICMPV6_CODES,
            Self::TcpFlags => names::TCP_FLAGS,
            Self::Dscp => names::DSCPS,
            Self::Ecn => names::ECNS,
            Self::EtherType => names::ETHERTYPES,
            Self::Nfproto => names::NFPROTOS,
            Self::PacketType => names::PACKET_TYPES,
            Self::DccpType => names::DCCP_TYPES,
            Self::MobilityType => names::MOBILITY_TYPES,
            Self::AddressType => names::ADDRESS_TYPES,
            Self::Priority => names::PRIORITIES,
            Self::LinkType => names::LINK_TYPES,
            Self::Day => names::DAYS,
            Self::Group => names::GROUPS,
            _ => &[],
        }
    }

    /// A constant of this type.
    pub(crate) fn constant(self, value: &Value, path: &Path<'_>) -> Parsed<u128> {
        if path.depth() > MAX_EXPRESSION_DEPTH {
            return Err(path.unsupported("expressions are nested too deep"));
        }
        let found = match value {
            Value::Number(number) => self.number(number.as_u64()),
            Value::Bool(yes) if !matches!(self, Self::Integer(_)) => Some(u128::from(*yes)),
            Value::String(text) => self.text(text),
            Value::Array(parts) if self.is_bits() => return self.union(parts, path),
            Value::Object(fields) if fields.len() == 1 => match fields.get("|") {
                Some(Value::Array(parts)) if self.is_bits() => {
                    return self.union(parts, &path.key("|"));
                }
                _ => return Err(path.unsupported(format!("{} as a constant", outline(value)))),
            },
            _ => None,
        };
        found.ok_or_else(|| match value {
            Value::String(_) if self == Self::Group => path.unsupported(format!(
                "the name {} for a group of interfaces: nft prints the number if \
                 /etc/iproute2/group of its host has no name",
                outline(value)
            )),
            Value::String(text) if self == Self::Time && date(text).is_some() => path.unsupported(
                "a date in a set of the type `time`, which may be a duration too: load the \
                 ruleset in nft's own syntax, where `typeof meta time` tells",
            ),
            _ => path.invalid(format!("{} is no {self}", outline(value))),
        })
    }

    fn number(self, number: Option<u64>) -> Option<u128> {
        let number = number?;
        if self == Self::CtLabel {
            return (number < 128).then(|| 1 << number);
        }
        if self == Self::Day && number > 6 {
            return None;
        }
        let number = if self == Self::Time { number.checked_mul(1000)? } else { number };
        Some(u128::from(number)).filter(|number| *number <= self.greatest())
    }

    fn union(self, parts: &[Value], path: &Path<'_>) -> Parsed<u128> {
        parts
            .iter()
            .enumerate()
            .try_fold(0, |bits, (at, part)| Ok(bits | self.constant(part, &path.index(at))?))
    }

    fn text(self, text: &str) -> Option<u128> {
        match self {
            Self::Ipv4 => text.parse::<Ipv4Addr>().ok().map(|address| address.to_bits().into()),
            Self::Ipv6 => text.parse::<Ipv6Addr>().ok().map(Ipv6Addr::to_bits),
            Self::Ether => ether(text),
            Self::Date => date(text),
            Self::Hour => hour(text),
            Self::Interface | Self::Helper => name_bits(text),
            Self::Priority if text.contains(':') => {
                let (major, minor) = text.split_once(':')?;
                let part = |digits: &str| match digits {
                    "" => Some(0),
                    digits => u16::from_str_radix(digits, 16).ok(),
                };
                Some(u128::from(part(major)?) << 16 | u128::from(part(minor)?))
            }
            kind => {
                // nft 1.0.6 adds this to the ports of a connection.
                let text = text.strip_suffix(" [invalid type]").unwrap_or(text);
                let number = match names::number(kind.names(), text) {
                    Some(number) => Some(number),
                    None => match text.strip_prefix("0x") {
                        Some(digits) => u64::from_str_radix(digits, 16).ok(),
                        None => text.parse().ok(),
                    },
                };
                kind.number(number)
            }
        }
    }

    /// A constant, prefix, range or wildcard of this type.
    pub(crate) fn interval(self, value: &Value, path: &Path<'_>) -> Parsed<Interval> {
        if let Value::String(text) = value
            && self == Self::Interface
            && let Some(interval) = wildcard(text)
        {
            return Ok(interval);
        }
        let Some((form, inside)) = only(value) else {
            return self.constant(value, path).map(Interval::one);
        };
        match (form, inside) {
            ("prefix", Value::Object(prefix)) => {
                let path = path.key("prefix");
                let address = prefix.get("addr").ok_or_else(|| path.invalid("no addr"))?;
                let address = self.constant(address, &path.key("addr"))?;
                let length = prefix.get("len").and_then(Value::as_u64);
                let bits = u64::from(self.bits());
                let length = length.filter(|length| *length <= bits);
                let length = length.ok_or_else(|| path.invalid(format!("no len up to {bits}")))?;
                let below = self.greatest().checked_shr(length as u32).unwrap_or(0);
                Ok(Interval { low: address & !below, high: address | below })
            }
            ("range", Value::Array(ends)) => {
                let path = path.key("range");
                let [low, high] = ends.as_slice() else {
                    return Err(path.invalid("a range has two ends"));
                };
                let low = self.constant(low, &path.index(0))?;
                let high = self.constant(high, &path.index(1))?;
                if low > high {
                    return Err(path.invalid("the range ends before it begins"));
                }
                Ok(Interval { low, high })
            }
            _ => self.constant(value, path).map(Interval::one),
        }
    }
}

/// The name and content of an object with one field.
pub(crate) fn only(value: &Value) -> Option<(&str, &Value)> {
    let fields = value.as_object()?;
    let (name, inside) = fields.iter().next()?;
    (fields.len() == 1).then_some((name, inside))
}

/// A name of up to 15 bytes as a number: its 16 bytes with zeros behind it. `None` for an empty or
/// longer name.
pub fn name_bits(name: &str) -> Option<u128> {
    let bytes = name.as_bytes();
    let mut padded = [0; 16];
    padded[..15].get_mut(..bytes.len())?.copy_from_slice(bytes);
    (!bytes.is_empty()).then(|| u128::from_be_bytes(padded))
}

/// An address as a number of 32 or 128 bits.
pub fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// `eth*`: the interval of all names with that prefix.
fn wildcard(text: &str) -> Option<Interval> {
    let stem = text.strip_suffix('*').filter(|stem| !stem.ends_with('\\'))?;
    let below = 8 * (16 - u32::try_from(stem.len()).ok()?.min(16));
    let low = if stem.is_empty() { 0 } else { name_bits(stem)? };
    Some(Interval { low, high: low | u128::MAX.checked_shr(128 - below).unwrap_or(0) })
}

/// Nanoseconds from 1970-01-01 to a date with or without its time.
fn date(text: &str) -> Option<u128> {
    let (date, time) = text.split_once(' ').unwrap_or((text, "00:00:00"));
    let mut parts = date.split('-').map(|part| part.parse::<u32>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let fits =
        (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !fits || parts.next().is_some() {
        return None;
    }
    // Years that begin in March have the leap day at their end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    /// Days from the first of March of year 0 to 1970-01-01.
    const TO_1970: u32 = 719_468;
    Some((u128::from(days.checked_sub(TO_1970)?) * 86_400 + hour(time)?) * 1_000_000_000)
}

/// Seconds since midnight.
fn hour(text: &str) -> Option<u128> {
    let mut parts = text.split(':');
    let mut part = |below: u32| {
        let digits = parts.next().filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<u32>().ok().filter(|number| *number < below)
    };
    let (hours, minutes) = (part(24)?, part(60)?);
    let seconds = if text.matches(':').count() > 1 { part(60)? } else { 0 };
    parts.next().is_none().then_some((3600 * hours + 60 * minutes + seconds).into())
}

fn ether(text: &str) -> Option<u128> {
    let mut parts = text.split(':');
    let mut address = 0;
    for _ in 0..6 {
        let part = parts.next().filter(|part| part.len() == 2)?;
        address = address << 8 | u128::from(u8::from_str_radix(part, 16).ok()?);
    }
    parts.next().is_none().then_some(address)
}

/// A short form of a value for messages.
pub(crate) fn outline(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Object(fields) => match fields.keys().next() {
            Some(key) => format!("`{}`", cut(key, LONGEST)),
            None => "{}".to_owned(),
        },
        Value::Array(parts) => format!("a list of {}", parts.len()),
        other => format!("`{}`", cut(&other.to_string(), LONGEST)),
    }
}

fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
