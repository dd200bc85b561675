//! The bytes of an announcement.
//!
//! ```text
//! version 1 | kind 1 | value
//! key:         facts 1 | protocol 1 | low end 6 or 18 | high end 6 or 18 | number 1 | zone 2
//! expectation: master: key | zone 2 | mark 4 | helper | time left: varint, ms
//!              | class 1 | call: varint | facts 1 | protocol 1 | destination: address, port 2
//!              | source address? | source network? | source port? | helper? | named port?
//!              | translation?: destination?, source?, call id?, interface?
//! call:        key | is over 1 | real key | master: key | 2 names: way, id 2
//! call id:     master: key | end 1 | own 2 | known 2 | way
//! media port:  zone 2 | protocol 1 | address | port 2 | translated address | port 2
//! way:         zone 2 | from 16 | to 16
//! ```
//!
//! A `?` is a byte 0, or a byte 1 and the value. A helper and an interface are a length of one byte
//! and a name. The number behind the ends of a key is its `kind`.

use flow::codec::{DecodeError, Millis, Reader, Write};
use flow::{FlowKey, KeyedPacket, Side, Zone};
use wire::Family;

use super::encoding::{FROM_HIGH, IS_V6, VERSION, bits_of, read_ends, write_ends};
use super::validity::is_canonical;
use crate::expect::{
    Announcement, AnnouncementRecord, CallId, ExpectationRecord, Master, Name, OpenCall,
};
use crate::helper::{Announced, Kind, Way};
use crate::nat::ExpectedTranslation;
use crate::{Direction, InterfaceName, Prefix};

/// The first kind of announcements. Those of connections are below.
const FIRST_KIND: u8 = 32;
/// Kinds.
const EXPECTATION: u8 = FIRST_KIND;
const CALL: u8 = FIRST_KIND + 1;
const CALL_ID: u8 = FIRST_KIND + 2;
const MEDIA: u8 = FIRST_KIND + 3;

/// Bits of an expectation.
const PERMANENT: u8 = 1;
const WAITS: u8 = 1 << 1;

impl AnnouncementRecord {
    /// True if these bytes are of a kind that [`AnnouncementRecord::decode`] knows.
    pub fn is_kind_of(bytes: &[u8]) -> bool {
        bytes.get(1).is_some_and(|kind| (FIRST_KIND..=MEDIA).contains(kind))
    }

    /// Appends the bytes of the record.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.u8(VERSION);
        match &self.0 {
            Announcement::Expectation(record) => {
                to.u8(EXPECTATION);
                write_expectation(record, to);
            }
            Announcement::Call { call, open: OpenCall { master, real, names }, is_over } => {
                to.u8(CALL);
                write_key(&of(call), to);
                to.flag(*is_over);
                write_key(&of(real), to);
                write_key(&of(master), to);
                for (way, id) in names {
                    write_way(way, to);
                    to.u16(*id);
                }
            }
            Announcement::CallId { master, id: CallId { end, own, known, way } } => {
                to.u8(CALL_ID);
                write_key(&of(master), to);
                to.u8(*end as u8);
                to.u16(*own);
                to.u16(*known);
                write_way(way, to);
            }
            Announcement::Media { place: (zone, protocol, real, known), port } => {
                to.u8(MEDIA);
                to.u16(zone.0);
                to.u8(*protocol);
                to.address(real.0);
                to.u16(real.1);
                to.address(*known);
                to.u16(*port);
            }
        }
    }

    /// Reads a record that fills `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]: no gateway makes such a record, or this program does not know what it
    /// contains.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        from.version(VERSION)?;
        let announcement = match from.u8()? {
            EXPECTATION => Announcement::Expectation(Box::new(read_expectation(from)?)),
            CALL => {
                let (call, is_over) = (read_flow(from)?, from.flag()?);
                let (real, master) = (read_flow(from)?, read_flow(from)?);
                let names = [read_name(from)?, read_name(from)?];
                Announcement::Call { call, open: OpenCall { master, real, names }, is_over }
            }
            CALL_ID => {
                let (master, end) = (read_flow(from)?, from.one_of(&DIRECTIONS)?);
                let (own, known, way) = (from.u16()?, from.u16()?, read_way(from)?);
                Announcement::CallId { master, id: CallId { end, own, known, way } }
            }
            MEDIA => {
                let (zone, protocol) = (Zone(from.u16()?), from.u8()?);
                let real = (from.address()?, from.u16()?);
                let place = (zone, protocol, real, from.address()?);
                Announcement::Media { place, port: from.u16()? }
            }
            unknown => return Err(DecodeError::Kind(unknown)),
        };
        if !from.is_empty() {
            return Err(DecodeError::Impossible("a record that is too long"));
        }
        announcement.checked().map(Self)
    }
}

const DIRECTIONS: [Direction; 2] = [Direction::Original, Direction::Reply];

/// A key that has no sender.
const fn of(key: &FlowKey) -> KeyedPacket {
    KeyedPacket { key: *key, sender: Side::Low }
}

/// Appends the bytes by which peers name the packets of a flow from one end.
pub fn encode_flow(flow: &KeyedPacket, to: &mut Vec<u8>) {
    write_key(flow, to);
}

/// Reads what [`encode_flow`] has written.
///
/// # Errors
/// [`DecodeError`] for anything that it does not write, such as a key that no packet has.
pub fn decode_flow(bytes: &[u8]) -> Result<KeyedPacket, DecodeError> {
    let mut from = Reader::new(bytes);
    let flow = read_key(&mut from)?;
    match from.is_empty() && is_canonical(&flow) {
        true => Ok(flow),
        false => Err(DecodeError::Impossible("a key that no packet has")),
    }
}

fn write_key(KeyedPacket { key, sender }: &KeyedPacket, to: &mut Vec<u8>) {
    let bits = [(key.family == Family::V6, IS_V6), (*sender == Side::High, FROM_HIGH)];
    to.u8(bits_of(bits));
    to.u8(key.protocol);
    write_ends(key, to);
    to.u16(key.zone.0);
}

fn read_key(from: &mut Reader<'_>) -> Result<KeyedPacket, DecodeError> {
    let [bits, protocol] = from.array()?;
    if bits & !(IS_V6 | FROM_HIGH) != 0 {
        return Err(DecodeError::Impossible("facts of a key"));
    }
    let family = if bits & IS_V6 != 0 { Family::V6 } else { Family::V4 };
    let key = read_ends(family, protocol, from)?;
    let sender = if bits & FROM_HIGH != 0 { Side::High } else { Side::Low };
    Ok(KeyedPacket { key: FlowKey { zone: Zone(from.u16()?), ..key }, sender })
}

/// A key that has no sender.
fn read_flow(from: &mut Reader<'_>) -> Result<FlowKey, DecodeError> {
    match read_key(from)? {
        KeyedPacket { key, sender: Side::Low } => Ok(key),
        _ => Err(DecodeError::Impossible("the sender of a key that has none")),
    }
}

fn write_way(Way { zone, from, to: end }: &Way, to: &mut Vec<u8>) {
    to.u16(zone.0);
    to.bytes(from);
    to.bytes(end);
}

fn read_way(from: &mut Reader<'_>) -> Result<Way, DecodeError> {
    Ok(Way { zone: Zone(from.u16()?), from: from.array()?, to: from.array()? })
}

fn read_name(from: &mut Reader<'_>) -> Result<Name, DecodeError> {
    Ok((read_way(from)?, from.u16()?))
}

fn write_expectation(record: &ExpectationRecord, to: &mut Vec<u8>) {
    let ExpectationRecord { master, announced, interface, left } = record;
    let Master { flow, helper, mark, zone } = master;
    write_key(flow, to);
    to.u16(zone.0);
    to.u32(*mark);
    helper.write_name(to);
    to.varint(left.get());
    to.u8(announced.class);
    to.varint(announced.call.into());
    to.u8(bits_of([(announced.permanent, PERMANENT), (announced.waits, WAITS)]));
    to.u8(announced.protocol);
    to.address(announced.destination);
    to.u16(announced.destination_port);
    to.option(announced.source, |to, address| to.address(address));
    to.option(announced.source_network, |to, network| network.write(to));
    to.option(announced.source_port, |to, port| to.u16(port));
    to.option(announced.helper, |to, helper| helper.write_name(to));
    to.option(announced.pair_of, |to, port| to.u16(port));
    to.option(announced.follow, |to, follow| {
        to.option(follow.destination, |to, (address, port)| {
            to.address(address);
            to.u16(port);
        });
        to.option(follow.source, |to, address| to.address(address));
        to.option(follow.source_port, |to, port| to.u16(port));
        to.option(interface.as_ref(), |to, name| to.short(name.as_str().as_bytes()));
    });
}

fn read_expectation(from: &mut Reader<'_>) -> Result<ExpectationRecord, DecodeError> {
    let (flow, zone, mark) = (read_key(from)?, Zone(from.u16()?), from.u32()?);
    let master = Master { flow, helper: Kind::read_name(from)?, mark, zone };
    let left = Millis::read(from)?;
    let (class, call, bits) = (from.u8()?, from.varint32()?, from.u8()?);
    if bits & !(PERMANENT | WAITS) != 0 {
        return Err(DecodeError::Impossible("facts of an expectation"));
    }
    let protocol = from.u8()?;
    let (destination, port) = (from.address()?, from.u16()?);
    let mut announced = Announced {
        class,
        call,
        permanent: bits & PERMANENT != 0,
        waits: bits & WAITS != 0,
        source: from.option(Reader::address)?,
        source_network: from.option(Prefix::read)?,
        source_port: from.option(Reader::u16)?,
        helper: from.option(Kind::read_name)?,
        pair_of: from.option(Reader::u16)?,
        ..Announced::new(protocol, destination, port)
    };
    let mut interface = None;
    announced.follow = from.option(|from| {
        let follow = ExpectedTranslation {
            destination: from.option(|from| Ok((from.address()?, from.u16()?)))?,
            source: from.option(Reader::address)?,
            source_port: from.option(Reader::u16)?,
            interface: None,
        };
        interface = from.option(|from| InterfaceName::of_bytes(from.short()?))?;
        Ok(follow)
    })?;
    Ok(ExpectationRecord { master, announced, interface, left })
}

#[cfg(test)]
#[path = "announcement_tests.rs"]
mod tests;
