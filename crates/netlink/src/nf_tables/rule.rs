//! Rules: their conditions and verdicts.

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};

use super::message::Message;
use super::number;
use super::recent::{KeyFields, RecentKeys, read_key};

/// Name of an anonymous set; the kernel puts a number in place of `%d`.
const SET_NAME: &str = "__set%d";

/// The largest number of ranges of a match: its set has to fit one attribute, which holds 64 KiB.
pub const MAX_RANGES: usize = 512;

/// [`Field::PacketType`] of a packet for another station (linux/if_packet.h).
pub const PACKET_OTHERHOST: u8 = 3;

/// A field of a packet. A packet without the field matches no condition on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Index of the input interface.
    InputIndex,
    /// Index of the output interface.
    OutputIndex,
    /// Name of the input interface, see [`Field::name`].
    InputName,
    /// Kind of the input interface, such as `bridge` (ip-link(8), `type`), see [`Field::name`].
    InputKind,
    /// To whom its frame was sent: a `PACKET_` of linux/if_packet.h.
    PacketType,
    /// Address family: 2 is IPv4, 10 is IPv6.
    Family,
    /// Protocol behind the IP header (IANA number).
    Protocol,
    /// The station that its frame was sent to. Only for interfaces of Ethernet.
    Station,
    /// Bytes of the IP header.
    Network {
        /// Offset of the first, in bytes.
        offset: u8,
        /// Number of bytes, at most 16.
        length: u8,
    },
    /// Bytes behind the IP header. Later fragments have none.
    Transport {
        /// Offset of the first, in bytes.
        offset: u8,
        /// Number of bytes, at most 16.
        length: u8,
    },
    /// The type of its destination to the host: an `RTN_` of linux/rtnetlink.h.
    DestinationType,
    /// 1 if the host's socket for the packet is bound to no address, else 0.
    IsSocketWildcard,
    /// 1 if the host's socket for the packet is transparent (`IP_TRANSPARENT` of ip(7)), else 0.
    IsSocketTransparent,
    /// Status bits of the kernel's connection: `IPS_` of linux/netfilter/nf_conntrack_common.h.
    TrackStatus,
    /// The way of the packet in the kernel's connection: 0 is that of its first packet, 1 is the other.
    TrackWay,
    /// Original source address of the kernel's connection, if that is of IPv4.
    OpenedFromV4,
    /// Original source address of the kernel's connection, if that is of IPv6.
    OpenedFromV6,
    /// Original destination address of the kernel's connection, before translation, if that is of
    /// IPv4.
    OpenedToV4,
    /// Original destination address of the kernel's connection, if that is of IPv6.
    OpenedToV6,
    /// Original destination port of the kernel's connection.
    OpenedToPort,
}

impl Field {
    /// Destination port of TCP, UDP and others that have it there.
    pub const DESTINATION_PORT: Self = Self::Transport { offset: 2, length: 2 };

    /// The name or the kind of an interface as a number: its bytes with zeros behind them, 16 in
    /// all.
    pub fn name(name: &str) -> u128 {
        let mut bytes = [0; 16];
        // The kernel has no longer names.
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        u128::from_be_bytes(bytes)
    }

    /// Length, in bytes.
    pub(super) fn length(self) -> usize {
        match self {
            Self::InputName | Self::InputKind | Self::OpenedFromV6 | Self::OpenedToV6 => 16,
            Self::Station => 6,
            Self::Network { length, .. } | Self::Transport { length, .. } => length.into(),
            Self::InputIndex | Self::OutputIndex | Self::DestinationType | Self::TrackStatus => 4,
            Self::OpenedFromV4 | Self::OpenedToV4 => 4,
            Self::OpenedToPort => 2,
            Self::Family | Self::Protocol | Self::PacketType | Self::TrackWay => 1,
            Self::IsSocketWildcard | Self::IsSocketTransparent => 1,
        }
    }

    /// A value in the kernel's byte order.
    fn bytes(self, value: u128) -> Vec<u8> {
        match self {
            // The other fields are copied from packets, or are compared byte by byte.
            Self::InputIndex | Self::OutputIndex | Self::DestinationType | Self::TrackStatus => {
                (value as u32).to_ne_bytes().to_vec()
            }
            _ => value.to_be_bytes()[16 - self.length()..].to_vec(),
        }
    }

    /// The highest value.
    fn highest(self) -> u128 {
        u128::MAX >> (128 - 8 * self.length())
    }

    /// The type by which nft(8) shows the values.
    fn shown_as(self) -> u32 {
        match self {
            Self::InputIndex | Self::OutputIndex => number::shown::INTERFACE_INDEX,
            Self::InputName | Self::InputKind => number::shown::INTERFACE,
            Self::Protocol => number::shown::PROTOCOL,
            Self::Station => number::shown::STATION,
            Self::DESTINATION_PORT | Self::OpenedToPort => number::shown::PORT,
            Self::Network { length: 4, .. } => number::shown::ADDRESS_V4,
            Self::Network { length: 16, .. } => number::shown::ADDRESS_V6,
            _ => number::shown::INTEGER,
        }
    }

    /// The byte order that nft(8) assumes for the values.
    fn order(self) -> u32 {
        match self {
            Self::InputIndex | Self::OutputIndex => number::shown::NATIVE,
            Self::InputName | Self::InputKind => number::shown::NATIVE,
            _ => number::shown::MOST_SIGNIFICANT_FIRST,
        }
    }

    /// Adds the expression that reads bytes of the packet to a register.
    pub(super) fn read_to(self, rule: &mut Message, register: u32) {
        match self {
            Self::Network { offset, length } => {
                read_payload(rule, (number::payload::NETWORK, offset, length), register);
            }
            Self::Transport { offset, length } => {
                read_payload(rule, (number::payload::TRANSPORT, offset, length), register);
            }
            other => debug_assert!(false, "{other:?} is not of the packet"),
        }
    }

    /// Adds the expression that reads the field.
    pub(super) fn read(self, rule: &mut Message) {
        match self {
            Self::InputIndex => read_meta(rule, number::meta::INPUT_INDEX),
            Self::OutputIndex => read_meta(rule, number::meta::OUTPUT_INDEX),
            Self::InputName => read_meta(rule, number::meta::INPUT_NAME),
            Self::InputKind => read_meta(rule, number::meta::INPUT_KIND),
            Self::PacketType => read_meta(rule, number::meta::PACKET_TYPE),
            Self::Family => read_meta(rule, number::meta::FAMILY),
            Self::Protocol => read_meta(rule, number::meta::PROTOCOL),
            Self::Station => {
                read_payload(rule, (number::payload::LINK, 0, 6), number::register::FIRST);
            }
            Self::Network { .. } | Self::Transport { .. } => {
                self.read_to(rule, number::register::FIRST);
            }
            Self::DestinationType => expression(rule, "fib", |fib| {
                fib.number(number::fib::INTO, number::register::FIRST);
                fib.number(number::fib::RESULT, number::fib::ADDRESS_TYPE);
                fib.number(number::fib::FLAGS, number::fib::DESTINATION);
            }),
            Self::IsSocketWildcard => read_socket(rule, number::socket::WILDCARD),
            Self::IsSocketTransparent => read_socket(rule, number::socket::TRANSPARENT),
            Self::TrackStatus => read_tracking(rule, number::ct::STATUS, None),
            Self::TrackWay => read_tracking(rule, number::ct::WAY, None),
            Self::OpenedFromV4 => read_opened(rule, number::ct::SOURCE_V4),
            Self::OpenedFromV6 => read_opened(rule, number::ct::SOURCE_V6),
            Self::OpenedToV4 => read_opened(rule, number::ct::DESTINATION_V4),
            Self::OpenedToV6 => read_opened(rule, number::ct::DESTINATION_V6),
            Self::OpenedToPort => read_opened(rule, number::ct::DESTINATION_PORT),
        }
    }
}

fn read_meta(rule: &mut Message, key: u32) {
    expression(rule, "meta", |meta| {
        meta.number(number::meta::INTO, number::register::FIRST);
        meta.number(number::meta::KEY, key);
    });
}

fn read_payload(rule: &mut Message, (base, offset, length): (u32, u8, u8), register: u32) {
    expression(rule, "payload", |payload| {
        payload.number(number::payload::INTO, register);
        payload.number(number::payload::BASE, base);
        payload.number(number::payload::OFFSET, offset.into());
        payload.number(number::payload::LENGTH, length.into());
    });
}

fn read_socket(rule: &mut Message, key: u32) {
    expression(rule, "socket", |socket| {
        socket.number(number::socket::KEY, key);
        socket.number(number::socket::INTO, number::register::FIRST);
    });
}

fn read_opened(rule: &mut Message, key: u32) {
    read_tracking(rule, key, Some(number::ct::ORIGINAL));
}

fn read_tracking(rule: &mut Message, key: u32, direction: Option<u8>) {
    expression(rule, "ct", |ct| {
        ct.number(number::ct::INTO, number::register::FIRST);
        ct.number(number::ct::KEY, key);
        if let Some(direction) = direction {
            ct.bytes(number::ct::DIRECTION, &[direction]);
        }
    });
}

/// A condition on the value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// The value is in one of these ranges, both ends included.
    In(Vec<(u128, u128)>),
    /// The value is none of these.
    NotIn(Vec<u128>),
    /// The bits `are` are set among the bits `of`, and no others. With `is_so` false, the condition
    /// is the opposite.
    Bits { of: u128, are: u128, is_so: bool },
    /// The value and that of another field are a key of this set.
    Recent { set: &'static str, with: Field },
}

/// A condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    field: Field,
    condition: Condition,
}

impl Match {
    /// The field has this value.
    pub fn is(field: Field, value: u128) -> Self {
        Self::one_of(field, [value])
    }

    /// The field has one of these values.
    pub fn one_of(field: Field, values: impl IntoIterator<Item = u128>) -> Self {
        let mut each: Vec<_> = values.into_iter().map(|value| (value, value)).collect();
        each.sort_unstable();
        each.dedup();
        Self { field, condition: Condition::In(each) }
    }

    /// The field is in one of these ranges, both ends included. There may be [`MAX_RANGES`] at
    /// most, and they may overlap. Not for fields in the kernel's byte order
    /// ([`Field::InputIndex`], [`Field::OutputIndex`], [`Field::DestinationType`],
    /// [`Field::TrackStatus`]).
    pub fn ranges(field: Field, ranges: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        ranges.sort_unstable();
        let mut apart: Vec<(u128, u128)> = Vec::new();
        for (low, high) in ranges {
            match apart.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => apart.push((low, high)),
            }
        }
        Self { field, condition: Condition::In(apart) }
    }

    /// The field has none of these values.
    pub fn none_of(field: Field, values: impl IntoIterator<Item = u128>) -> Self {
        Self { field, condition: Condition::NotIn(values.into_iter().collect()) }
    }

    /// Exactly `bits` are set among the bits `of` of the field.
    pub fn bits(field: Field, of: u128, bits: u128) -> Self {
        Self { field, condition: Condition::Bits { of, are: bits, is_so: true } }
    }

    /// Another combination than `bits` is set among the bits `of` of the field.
    pub fn other_bits(field: Field, of: u128, bits: u128) -> Self {
        Self { field, condition: Condition::Bits { of, are: bits, is_so: false } }
    }

    /// The fields are a key that the set remembers.
    pub const fn recent(set: &RecentKeys, (field, with): KeyFields) -> Self {
        Self { field, condition: Condition::Recent { set: set.name, with } }
    }

    /// At least one of these bits is set in the field.
    pub fn some_of(field: Field, bits: u128) -> Self {
        Self::other_bits(field, bits, 0)
    }
}

/// The fate of a packet that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This base chain accepts the packet.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet counts as one for another station from now on, and this base chain accepts it.
    /// Only for packets of [`HookPoint::Prerouting`](crate::nf_tables::HookPoint::Prerouting).
    ForOtherStation,
    /// The next rule decides.
    Continue,
    /// The kernel neither tracks the packet nor reassembles its datagram, and this base chain accepts
    /// it. Only for packets of [`HookPoint::Prerouting`](crate::nf_tables::HookPoint::Prerouting), in
    /// front of both: below priority -400.
    Untracked,
    /// The chain of this name decides; if it does not, the next rule does.
    Jump(&'static str),
    /// The chain of this name decides; if it does not, the caller of this chain does.
    Goto(&'static str),
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    matches: Vec<Match>,
    /// The set that remembers the packet, and its key.
    remembered: Option<(&'static str, KeyFields)>,
    verdict: Verdict,
}

impl Rule {
    /// A rule for packets that meet all these conditions.
    pub fn new(matches: impl IntoIterator<Item = Match>, verdict: Verdict) -> Self {
        Self { matches: matches.into_iter().collect(), remembered: None, verdict }
    }

    /// A rule that has a set remember packets which meet all these conditions. The next rule
    /// decides.
    pub fn remember(
        matches: impl IntoIterator<Item = Match>,
        set: &RecentKeys,
        key: KeyFields,
    ) -> Self {
        Self { remembered: Some((set.name, key)), ..Self::new(matches, Verdict::Continue) }
    }

    /// The same rule with these conditions in front of the others.
    #[must_use]
    pub fn only_for(self, matches: impl IntoIterator<Item = Match>) -> Self {
        Self { matches: matches.into_iter().chain(self.matches).collect(), ..self }
    }

    /// The messages that append the rule to its chain: its sets, then the rule itself. `sets`
    /// counts the sets of the transaction.
    pub(super) fn messages(&self, table: &str, chain: &str, sets: &mut u32) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut rule = Message::new(number::message::NEW_RULE, NLM_F_CREATE | NLM_F_APPEND);
        rule.text(number::rule::TABLE, table);
        rule.text(number::rule::CHAIN, chain);
        rule.nest(number::rule::EXPRESSIONS, |rule| {
            for Match { field, condition } in &self.matches {
                if let Condition::Recent { set, with } = condition {
                    read_key(rule, (*field, *with));
                    look_up_named(rule, set);
                    continue;
                }
                field.read(rule);
                match condition {
                    Condition::Recent { .. } => {}
                    Condition::In(ranges) => match ranges[..] {
                        [(low, high)] if low == high => compare(rule, *field, true, low),
                        [(low, high)] => in_range(rule, *field, low, high),
                        _ => {
                            *sets += 1;
                            messages.extend(set(table, *field, *sets, ranges));
                            look_up(rule, *sets);
                        }
                    },
                    Condition::NotIn(values) => {
                        values.iter().for_each(|value| compare(rule, *field, false, *value));
                    }
                    Condition::Bits { of, are, is_so } => {
                        mask(rule, *field, *of);
                        compare(rule, *field, *is_so, *are);
                    }
                }
            }
            if let Some((set, key)) = self.remembered {
                read_key(rule, key);
                remember(rule, set);
            }
            decide(rule, self.verdict);
        });
        messages.push(rule);
        messages
    }
}

fn expression(rule: &mut Message, name: &str, fill: impl FnOnce(&mut Message)) {
    rule.nest(number::LIST_ELEMENT, |element| {
        element.text(number::expression::NAME, name);
        element.nest(number::expression::DATA, fill);
    });
}

fn value(message: &mut Message, kind: u16, bytes: &[u8]) {
    message.nest(kind, |data| data.bytes(number::data::VALUE, bytes));
}

fn compare(rule: &mut Message, field: Field, is_equal: bool, to: u128) {
    expression(rule, "cmp", |cmp| {
        cmp.number(number::cmp::REGISTER, number::register::FIRST);
        let operation = if is_equal { number::cmp::EQUAL } else { number::cmp::NOT_EQUAL };
        cmp.number(number::cmp::OPERATION, operation);
        value(cmp, number::cmp::DATA, &field.bytes(to));
    });
}

fn in_range(rule: &mut Message, field: Field, low: u128, high: u128) {
    expression(rule, "range", |range| {
        range.number(number::range::REGISTER, number::register::FIRST);
        range.number(number::range::OPERATION, number::cmp::EQUAL);
        value(range, number::range::FROM, &field.bytes(low));
        value(range, number::range::TO, &field.bytes(high));
    });
}

fn mask(rule: &mut Message, field: Field, bits: u128) {
    expression(rule, "bitwise", |bitwise| {
        bitwise.number(number::bitwise::REGISTER, number::register::FIRST);
        bitwise.number(number::bitwise::INTO, number::register::FIRST);
        bitwise.number(number::bitwise::LENGTH, field.length() as u32);
        value(bitwise, number::bitwise::MASK, &field.bytes(bits));
        value(bitwise, number::bitwise::XOR, &field.bytes(0));
    });
}

fn look_up(rule: &mut Message, set: u32) {
    expression(rule, "lookup", |lookup| {
        lookup.text(number::lookup::SET, SET_NAME);
        lookup.number(number::lookup::REGISTER, number::register::FIRST);
        lookup.number(number::lookup::SET_ID, set);
    });
}

fn look_up_named(rule: &mut Message, set: &str) {
    expression(rule, "lookup", |lookup| {
        lookup.text(number::lookup::SET, set);
        lookup.number(number::lookup::REGISTER, number::register::FIRST);
    });
}

fn remember(rule: &mut Message, set: &str) {
    expression(rule, "dynset", |dynset| {
        dynset.text(number::dynset::SET, set);
        dynset.number(number::dynset::OPERATION, number::dynset::UPDATE);
        dynset.number(number::dynset::KEY, number::register::FIRST);
    });
}

fn decide(rule: &mut Message, verdict: Verdict) {
    if verdict == Verdict::ForOtherStation {
        expression(rule, "immediate", |immediate| {
            immediate.number(number::immediate::REGISTER, number::register::FIRST);
            value(immediate, number::immediate::DATA, &[PACKET_OTHERHOST]);
        });
        expression(rule, "meta", |meta| {
            meta.number(number::meta::KEY, number::meta::PACKET_TYPE);
            meta.number(number::meta::FROM, number::register::FIRST);
        });
    }
    if verdict == Verdict::Untracked {
        expression(rule, "notrack", |_| {});
    }
    let (code, chain) = match verdict {
        Verdict::Accept | Verdict::ForOtherStation | Verdict::Untracked => {
            (number::verdict::ACCEPT, None)
        }
        Verdict::Drop => (number::verdict::DROP, None),
        Verdict::Continue => return,
        Verdict::Jump(chain) => (number::verdict::JUMP, Some(chain)),
        Verdict::Goto(chain) => (number::verdict::GOTO, Some(chain)),
    };
    expression(rule, "immediate", |immediate| {
        immediate.number(number::immediate::REGISTER, number::register::VERDICT);
        immediate.nest(number::immediate::DATA, |data| {
            data.nest(number::data::VERDICT, |verdict| {
                verdict.number(number::data::VERDICT_CODE, code);
                if let Some(chain) = chain {
                    verdict.text(number::data::VERDICT_CHAIN, chain);
                }
            });
        });
    });
}

/// The data that tells nft(8) the byte order of a set's values.
fn shown_in(order: u32) -> Vec<u8> {
    let order = order.to_ne_bytes();
    [&[number::shown::ORDER, order.len() as u8][..], &order].concat()
}

/// The messages that make a set with this number. The ranges are disjoint and in order.
fn set(table: &str, field: Field, id: u32, ranges: &[(u128, u128)]) -> [Message; 2] {
    let has_ranges = ranges.iter().any(|(low, high)| low != high);
    // The first value of each range, and the first one behind it.
    let mut elements: Vec<(u128, bool)> = Vec::new();
    for (low, high) in ranges {
        elements.push((*low, false));
        if has_ranges && *high < field.highest() {
            elements.push((high + 1, true));
        }
    }
    let mut set = Message::new(number::message::NEW_SET, NLM_F_CREATE);
    set.text(number::set::TABLE, table);
    set.text(number::set::NAME, SET_NAME);
    let flags = number::set::ANONYMOUS | number::set::CONSTANT;
    set.number(number::set::FLAGS, flags | if has_ranges { number::set::INTERVAL } else { 0 });
    set.number(number::set::KEY_TYPE, field.shown_as());
    set.number(number::set::KEY_LENGTH, field.length() as u32);
    set.number(number::set::ID, id);
    set.nest(number::set::DESCRIPTION, |description| {
        description.number(number::set::DESCRIPTION_SIZE, elements.len() as u32);
    });
    set.bytes(number::set::USER_DATA, &shown_in(field.order()));
    let mut filled = Message::new(number::message::NEW_ELEMENTS, NLM_F_CREATE);
    filled.text(number::element::TABLE, table);
    filled.text(number::element::SET, SET_NAME);
    filled.number(number::element::SET_ID, id);
    filled.nest(number::element::LIST, |list| {
        for (key, is_end) in elements {
            list.nest(number::LIST_ELEMENT, |element| {
                if is_end {
                    element.number(number::element::FLAGS, number::element::INTERVAL_END);
                }
                value(element, number::element::KEY, &field.bytes(key));
            });
        }
    });
    [set, filled]
}
