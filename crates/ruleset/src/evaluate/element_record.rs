//! Elements of sets that rules fill, as values that mean the same at another gateway.
//!
//! ```text
//! version 1 | kind 1 | family 1 | table | set | number of parts of the key: varint, parts
//! | times? : timeout: varint, ms; time left: varint, ms
//! | number of statements: varint, statements | comment?
//! part of the key: type 1 (and width 1, for plain numbers) | value 4, 8, 12 or 16
//! statement:       0 counter: packets varint, bytes varint
//!                  1 rate: credit varint, ns
//!                  2 quota: bytes varint
//! ```
//!
//! Names and the comment are a length (varint) and UTF-8. A `?` is a byte 0, or a byte 1 and the
//! value.

use flow::Timestamp;
use flow::codec::{DecodeError, Millis, Reader, Write, prefixed, refuse_faults};

use super::dynamic::{Kinds, Life, PartState};
use super::limit;
use crate::compile::PackedKey;
use crate::hook::TableFamily;
use crate::kind::Kind;
use crate::model::{Part, Set};

/// The version of records that this program writes, and the only one that it reads.
const VERSION: u8 = 1;
/// The kind of record. Those of connections and what they announce are below.
const KIND: u8 = 48;
/// Longest name of a table or set, and longest comment, bytes: more than nft allows.
const LONGEST_TEXT: usize = 1024;
/// Most parts of a key and most statements, more than an import of rules allows.
const MOST_PARTS: u64 = 16;

/// In the order of their numbers in a record.
const FAMILIES: [TableFamily; 3] = [TableFamily::Inet, TableFamily::Ip, TableFamily::Ip6];
/// In the order of their numbers in a record.
const KINDS: [Kind; 34] = [
    Kind::Ipv4,
    Kind::Ipv6,
    Kind::Ether,
    Kind::Port,
    Kind::Protocol,
    Kind::Mark,
    Kind::Interface,
    Kind::CtState,
    Kind::CtStatus,
    Kind::CtDirection,
    Kind::CtLabel,
    Kind::Helper,
    Kind::IcmpType,
    Kind::IcmpCode,
    Kind::Icmpv6Type,
    Kind::Icmpv6Code,
    Kind::TcpFlags,
    Kind::Dscp,
    Kind::Ecn,
    Kind::EtherType,
    Kind::Nfproto,
    Kind::PacketType,
    Kind::DccpType,
    Kind::MobilityType,
    Kind::AddressType,
    Kind::Priority,
    Kind::Date,
    Kind::Hour,
    Kind::Day,
    Kind::LinkType,
    Kind::Group,
    Kind::Time,
    Kind::Boolean,
    Kind::IgmpType,
];
/// The number of a plain number, which has its width behind it.
const INTEGER: u8 = 255;

/// An element of a set that packets change, as another gateway can take it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementRecord {
    family: TableFamily,
    table: String,
    set: String,
    /// The parts of the key.
    key: Vec<(Kind, u128)>,
    /// The time for which it was added, and the time left of it; `None` if it stays.
    times: Option<(Millis, Millis)>,
    statements: Vec<Statement>,
    comment: Option<String>,
}

/// The state of a statement of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statement {
    Counter {
        packets: u64,
        bytes: u64,
    },
    Rate {
        /// The time that is left over for packets, nanoseconds.
        credit: u64,
    },
    Quota {
        bytes: u64,
    },
}

/// Why a record did not become an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementRefusal {
    /// The set has the element already.
    Known,
    /// The rules have no such set, or packets do not change it.
    NoSet,
    /// The set has another key or other statements.
    OtherSet,
    /// The set is full.
    Full,
}

impl ElementRefusal {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Known, Self::NoSet, Self::OtherSet, Self::Full];

    /// The name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::NoSet => "set_unknown",
            Self::OtherSet => "set_differs",
            Self::Full => "set_full",
        }
    }

    /// The reason in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Known => "the gateway has it already",
            Self::NoSet => "the rules have no set of this name that packets change",
            Self::OtherSet => "the set of this name has another key or other statements",
            Self::Full => "the set is full",
        }
    }
}

/// A position in the elements of all sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ElementCursor {
    /// The place of the set among those that packets change.
    pub(super) set: usize,
    pub(super) shard: usize,
    pub(super) place: usize,
}

/// The element of a record, in the form of its set.
pub(super) struct Restored<'r> {
    pub key: PackedKey,
    pub life: Life,
    pub states: Vec<PartState>,
    pub comment: Option<&'r str>,
}

impl ElementRecord {
    /// The record of an element. `None` if its set has no name, or its elements live only while
    /// they count connections.
    pub(super) fn of(
        set: &Set,
        (key, life): (&PackedKey, Life),
        (states, kinds): (&[PartState], &Kinds),
        comment: Option<&str>,
        now: Timestamp,
    ) -> Option<Self> {
        let statement = |(state, (part, costs)): (&PartState, &(Part, limit::Costs))| {
            let PartState { packets, bytes } = *state;
            Some(match part {
                Part::Counter => Statement::Counter { packets, bytes },
                Part::Limit(_) => Statement::Rate { credit: limit::credit(bytes, costs.most, now) },
                Part::Quota { .. } => Statement::Quota { bytes },
                Part::Connections(_) => return None,
            })
        };
        let times = life.timeout.filter(|_| life.deadline != Timestamp::NEVER).map(|timeout| {
            let timeout = Millis::new(timeout.div_ceil(1_000_000));
            (timeout, Millis::until(life.deadline, now).min(timeout))
        });
        Some(Self {
            times,
            statements: states.iter().zip(kinds).map(statement).collect::<Option<_>>()?,
            comment: comment.map(str::to_owned),
            ..Self::named(set, key)?
        })
    }

    /// The record that names an element in any state of it; `None` if its set has no name.
    pub(super) fn named(set: &Set, key: &PackedKey) -> Option<Self> {
        let mut halves = key.halves();
        let mut part = |kind: &Kind| {
            let halves = halves.by_ref().take(kind.words());
            halves.fold(0, |value: u128, half| value << 32 | u128::from(half))
        };
        Some(Self {
            family: set.family,
            table: set.table.clone(),
            set: set.name.clone()?,
            key: set.key.iter().map(|kind| (*kind, part(kind))).collect(),
            times: None,
            statements: Vec::new(),
            comment: None,
        })
    }

    /// The record that names the same element in any state of it.
    #[must_use]
    pub fn name(&self) -> Self {
        let Self { family, table, set, key, .. } = self;
        Self {
            family: *family,
            table: table.clone(),
            set: set.clone(),
            key: key.clone(),
            times: None,
            statements: Vec::new(),
            comment: None,
        }
    }

    /// The key in the form of a set; `None` if that has others.
    pub(super) fn key_of(&self, set: &Set) -> Option<PackedKey> {
        let mut key = PackedKey::EMPTY;
        if self.key.len() != set.key.len() {
            return None;
        }
        for ((kind, value), own) in self.key.iter().zip(&set.key) {
            if kind != own {
                return None;
            }
            key.push(*value, kind.words());
        }
        Some(key)
    }

    /// True if this is its set.
    pub(super) fn is_of(&self, set: &Set) -> bool {
        let Self { family, table, set: name, .. } = self;
        (*family, table) == (set.family, &set.table) && Some(name) == set.name.as_ref()
    }

    /// The element for a set with these types and statements; `None` if it has others.
    pub(super) fn restore(&self, set: &Set, kinds: &Kinds, now: Timestamp) -> Option<Restored<'_>> {
        // An element that is bare has none.
        if self.statements.len() != kinds.len() && !self.statements.is_empty() {
            return None;
        }
        let key = self.key_of(set)?;
        let state = |(statement, (part, costs)): (&Statement, &(Part, limit::Costs))| {
            Some(match (*statement, part) {
                (Statement::Counter { packets, bytes }, Part::Counter) => {
                    PartState { packets, bytes }
                }
                (Statement::Rate { credit }, Part::Limit(_)) => {
                    PartState { packets: 0, bytes: limit::with_credit(credit, costs.most, now) }
                }
                (Statement::Quota { bytes }, Part::Quota { .. }) => PartState { packets: 0, bytes },
                _ => return None,
            })
        };
        let life = match self.times {
            None => Life::FOREVER,
            Some((timeout, left)) => Life {
                deadline: now.after(left.duration()),
                timeout: Some(timeout.get() * 1_000_000),
            },
        };
        let states = self.statements.iter().zip(kinds).map(state).collect::<Option<_>>()?;
        Some(Restored { key, life, states, comment: self.comment.as_deref() })
    }

    /// True if these bytes are of the kind that [`ElementRecord::decode`] knows.
    pub fn is_kind_of(bytes: &[u8]) -> bool {
        bytes.get(1) == Some(&KIND)
    }

    /// Appends the bytes of the record.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let Self { family, table, set, key, times, statements, comment } = self;
        let number = FAMILIES.iter().position(|it| it == family).unwrap_or_default();
        to.bytes(&[VERSION, KIND, number as u8]);
        write_text(table, to);
        write_text(set, to);
        to.varint(key.len() as u64);
        for (kind, value) in key {
            match kind {
                Kind::Integer(bits) => to.bytes(&[INTEGER, *bits]),
                // Objects are the data of maps, and no part of a key.
                _ => to.u8(KINDS.iter().position(|it| it == kind).unwrap_or(KINDS.len()) as u8),
            }
            to.bytes(&value.to_be_bytes()[16 - 4 * kind.words()..]);
        }
        to.option(*times, |to, (timeout, left)| {
            to.varint(timeout.get());
            to.varint(left.get());
        });
        to.varint(statements.len() as u64);
        for statement in statements {
            match *statement {
                Statement::Counter { packets, bytes } => {
                    to.u8(0);
                    to.varint(packets);
                    to.varint(bytes);
                }
                Statement::Rate { credit } => {
                    to.u8(1);
                    to.varint(credit);
                }
                Statement::Quota { bytes } => {
                    to.u8(2);
                    to.varint(bytes);
                }
            }
        }
        to.option(comment.as_ref(), |to, comment| write_text(comment, to));
    }

    /// Reads a record that fills `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]: no gateway makes such a record, or this program does not know what it
    /// contains.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        from.version(VERSION)?;
        match from.u8()? {
            KIND => {}
            unknown => return Err(DecodeError::Kind(unknown)),
        }
        let family = from.one_of(&FAMILIES)?;
        let (table, set) = (read_text(from)?, read_text(from)?);
        let parts = count(from)?;
        let key = (0..parts).map(|_| read_part(from)).collect::<Result<Vec<_>, _>>()?;
        let times = from.option(|from| Ok((Millis::read(from)?, Millis::read(from)?)))?;
        let statements = count(from)?;
        let statements = (0..statements).map(|_| read_statement(from)).collect::<Result<_, _>>()?;
        let comment = from.option(read_text)?;
        refuse_faults([
            (!from.is_empty(), "a record that is too long"),
            (table.is_empty() || set.is_empty(), "a set without a name"),
            (key.is_empty(), "an element without a key"),
            (times.is_some_and(|(_, left)| left == Millis::default()), "an element that has ended"),
            (times.is_some_and(|(timeout, left)| left > timeout), "the time left of an element"),
        ])?;
        Ok(Self { family, table, set, key, times, statements, comment })
    }
}

fn write_text(text: &str, to: &mut Vec<u8>) {
    prefixed(to, |to| to.bytes(text.as_bytes()));
}

fn read_text(from: &mut Reader<'_>) -> Result<String, DecodeError> {
    let text = Some(from.prefixed()?).filter(|text| text.len() <= LONGEST_TEXT);
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    text.map(str::to_owned).ok_or(DecodeError::Impossible("a text"))
}

fn count(from: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let count = from.varint()?;
    if count > MOST_PARTS { Err(DecodeError::Impossible("a number of parts")) } else { Ok(count) }
}

fn read_part(from: &mut Reader<'_>) -> Result<(Kind, u128), DecodeError> {
    let kind = match from.u8()? {
        INTEGER => Kind::Integer(from.u8()?),
        number => {
            let kind = KINDS.get(usize::from(number)).copied();
            kind.ok_or(DecodeError::Impossible("the type of a key"))?
        }
    };
    if !(1..=128).contains(&kind.bits()) {
        return Err(DecodeError::Impossible("the width of a key"));
    }
    let bytes = from.bytes(4 * kind.words())?;
    Ok((kind, bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte))))
}

fn read_statement(from: &mut Reader<'_>) -> Result<Statement, DecodeError> {
    Ok(match from.u8()? {
        0 => Statement::Counter { packets: from.varint()?, bytes: from.varint()? },
        1 => Statement::Rate { credit: from.varint()? },
        2 => Statement::Quota { bytes: from.varint()? },
        _ => return Err(DecodeError::Impossible("a statement")),
    })
}

#[cfg(test)]
#[path = "../element_record_tests.rs"]
mod tests;
