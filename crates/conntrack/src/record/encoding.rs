//! The bytes of a record.
//!
//! ```text
//! version 1 | kind 1 | protocol 1 | facts 1 | low end 6 or 18 | high end 6 or 18 | number 1
//! | time left: varint, ms | state of the protocol | fields
//! ```
//!
//! An *end* is an address and the number in the place of a port, as in [`FlowKey`]; the number behind
//! the ends is its `kind`. Fields follow up to the end of the record, in the order of their tags:
//! tag 1, length varint, value. A tag from 128 on may be left out by a reader that does not know it.

use flow::{Endpoint, FlowKey, KeyedPacket, Side, Zone};
use wire::Family;

use super::{ConnectionRecord, Facts, RecordedTranslation};
use crate::helper::{Holder, RecordedHelper};
use crate::proto::RecordedState;
use crate::seqadj::Shift;
use crate::syn_proxy::Proxied;
use crate::{Counts, InterfaceName, Labels, TimeoutPolicy};
use flow::codec::{DecodeError, Millis, Reader, Write, prefixed};

/// The version of records that this program writes, and the only one that it reads.
pub const VERSION: u8 = 1;

/// Bits of the facts.
pub(super) const IS_V6: u8 = 1;
pub(super) const FROM_HIGH: u8 = 1 << 1;
const SEEN_REPLY: u8 = 1 << 2;
const ASSURED: u8 = 1 << 3;
const EXPECTED: u8 = 1 << 4;
const CALL: u8 = 1 << 5;

/// Tags of fields.
const ZONE: u8 = 1;
const TRANSLATION: u8 = 2;
const MARK: u8 = 3;
const LABELS: u8 = 4;
const POLICY: u8 = 5;
const HELPER: u8 = 6;
const SHIFTS: u8 = 7;
const PROXIED: u8 = 8;
const COUNTS: u8 = 9;
const AGE: u8 = 10;
/// The first tag that a reader need not know.
const OPTIONAL: u8 = 128;

/// Bits of a translation.
const COUNTED: u8 = 1 << 2;
const MASQUERADE: u8 = 1 << 3;

impl ConnectionRecord {
    /// Appends the bytes of the record.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let Self { original, translation, state, facts, left, .. } = self;
        let key = &original.key;
        let bits = [
            (key.family == Family::V6, IS_V6),
            (original.sender == Side::High, FROM_HIGH),
            (facts.seen_reply, SEEN_REPLY),
            (facts.assured, ASSURED),
            (facts.expected, EXPECTED),
            (facts.call, CALL),
        ];
        to.bytes(&[VERSION, state.number(), key.protocol, bits_of(bits)]);
        write_ends(key, to);
        to.varint(left.get());
        state.write(to);
        let Zone(zone) = key.zone;
        field(to, ZONE, (zone != 0).then_some(zone), |to, zone| to.u16(zone));
        field(to, TRANSLATION, translation.as_ref(), |to, it| it.write(to));
        field(to, MARK, (self.mark != 0).then_some(self.mark), |to, mark| to.u32(mark));
        let labels = (!self.labels.is_empty()).then_some(self.labels);
        field(to, LABELS, labels, |to, labels| to.bytes(&labels.bits().to_be_bytes()));
        field(to, POLICY, self.policy, |to, policy| policy.write(to));
        field(to, HELPER, self.helper.as_ref(), |to, helper| helper.write(to));
        field(to, SHIFTS, self.shifts, |to, shifts| {
            shifts.into_iter().for_each(|shift| shift.write(to));
        });
        field(to, PROXIED, self.proxied.as_ref(), |to, proxied| proxied.write(to));
        field(to, COUNTS, self.counts, |to, counts| {
            for Counts { packets, bytes } in counts {
                to.varint(packets);
                to.varint(bytes);
            }
        });
        field(to, AGE, self.age, |to, age| to.varint(age.get()));
    }

    /// Reads a record that fills `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]: no table makes such a record, or this program does not know what it
    /// contains.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        from.version(VERSION)?;
        let [number, protocol, bits] = from.array()?;
        if bits >= CALL << 1 {
            return Err(DecodeError::Impossible("facts"));
        }
        let has = |bit| bits & bit != 0;
        let family = if has(IS_V6) { Family::V6 } else { Family::V4 };
        let key = read_ends(family, protocol, from)?;
        let sender = if has(FROM_HIGH) { Side::High } else { Side::Low };
        let left = Millis::read(from)?;
        let state = RecordedState::read(number, from)?;
        let facts = Facts {
            seen_reply: has(SEEN_REPLY),
            assured: has(ASSURED),
            expected: has(EXPECTED),
            call: has(CALL),
        };
        let mut record = Self::bare(KeyedPacket { key, sender }, (state, facts), left);
        let mut before = 0;
        while !from.is_empty() {
            let tag = from.u8()?;
            if tag <= before {
                return Err(DecodeError::Order(tag));
            }
            before = tag;
            let mut value = Reader::new(from.prefixed()?);
            if record.read_field(tag, &mut value)? && !value.is_empty() {
                return Err(DecodeError::Impossible("a field that is too long"));
            }
        }
        record.checked()
    }

    /// Reads the value of a field; false if nobody need know it.
    fn read_field(&mut self, tag: u8, from: &mut Reader<'_>) -> Result<bool, DecodeError> {
        let key = &mut self.original.key;
        match tag {
            ZONE => key.zone = Zone(non_zero(from.u16()?)?),
            TRANSLATION => self.translation = Some(RecordedTranslation::read(key, from)?),
            MARK => self.mark = non_zero(from.u32()?)?,
            LABELS => self.labels = Labels::of_bits(non_zero(from.u128()?)?),
            POLICY => self.policy = Some(TimeoutPolicy::read(key.protocol, from)?),
            HELPER => {
                let opener = Holder::of(self.original);
                self.helper = Some(RecordedHelper::read(from, opener)?);
            }
            SHIFTS => self.shifts = Some([Shift::read(from)?, Shift::read(from)?]),
            PROXIED => self.proxied = Some(Box::new(Proxied::read(from)?)),
            COUNTS => {
                let mut counts = || Ok(Counts { packets: from.varint()?, bytes: from.varint()? });
                self.counts = Some([counts()?, counts()?]);
            }
            AGE => self.age = Some(Millis::read(from)?),
            OPTIONAL.. => return Ok(false),
            unknown => return Err(DecodeError::Field(unknown)),
        }
        Ok(true)
    }
}

impl RecordedTranslation {
    fn write(&self, to: &mut Vec<u8>) {
        let Self { leaves_as: KeyedPacket { key, sender }, interface, is_counted } = self;
        let bits = [
            (*sender == Side::High, FROM_HIGH),
            (*is_counted, COUNTED),
            (interface.is_some(), MASQUERADE),
        ];
        to.u8(bits_of(bits));
        to.u16(key.zone.0);
        write_ends(key, to);
        if let Some(interface) = interface {
            to.bytes(interface.as_str().as_bytes());
        }
    }

    /// Reads the translation of a connection with this key, up to the end of the bytes.
    fn read(original: &FlowKey, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bits = from.u8()?;
        if bits & !(FROM_HIGH | COUNTED | MASQUERADE) != 0 {
            return Err(DecodeError::Impossible("facts of a translation"));
        }
        let zone = Zone(from.u16()?);
        let key = read_ends(original.family, original.protocol, from)?;
        let sender = if bits & FROM_HIGH != 0 { Side::High } else { Side::Low };
        let interface = (bits & MASQUERADE != 0).then(|| InterfaceName::of_bytes(from.rest()));
        Ok(Self {
            leaves_as: KeyedPacket { key: FlowKey { zone, ..key }, sender },
            interface: interface.transpose()?,
            is_counted: bits & COUNTED != 0,
        })
    }
}

/// Writes a field, unless it has no value.
fn field<T>(to: &mut Vec<u8>, tag: u8, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    let Some(value) = value else { return };
    to.u8(tag);
    prefixed(to, |to| write(to, value));
}

/// A value that is left out if it is 0 may not be 0.
fn non_zero<T: Default + PartialEq>(value: T) -> Result<T, DecodeError> {
    if value == T::default() { Err(DecodeError::Impossible("an empty field")) } else { Ok(value) }
}

pub(super) fn bits_of<const N: usize>(bits: [(bool, u8); N]) -> u8 {
    bits.into_iter().filter(|(is_set, _)| *is_set).fold(0, |bits, (_, bit)| bits | bit)
}

pub(super) fn write_ends(FlowKey { low, high, kind, family, .. }: &FlowKey, to: &mut Vec<u8>) {
    for Endpoint { address, port } in [low, high] {
        match family {
            Family::V4 => to.bytes(&address[12..]),
            Family::V6 => to.bytes(address),
        }
        to.u16(*port);
    }
    to.u8(*kind);
}

pub(super) fn read_ends(
    family: Family,
    protocol: u8,
    from: &mut Reader<'_>,
) -> Result<FlowKey, DecodeError> {
    let mut end = || {
        let address = match family {
            Family::V4 => wire::mapped(from.array::<4>()?.into()),
            Family::V6 => from.array()?,
        };
        Ok(Endpoint { address, port: from.u16()? })
    };
    let (low, high) = (end()?, end()?);
    Ok(FlowKey { low, high, zone: Zone(0), protocol, kind: from.u8()?, family })
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
