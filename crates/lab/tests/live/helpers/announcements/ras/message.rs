//! RAS messages in the syntax of H.225.0 Annex H.

use std::net::{IpAddr, Ipv6Addr};

use lab::Family;

use crate::helpers::announcements::conversation::Talk;
use crate::helpers::announcements::h323_conversation::octets;

/// The numbers of the alternatives in RasMessage.
pub const GATEKEEPER_REQUEST: u8 = 0;
pub const GATEKEEPER_CONFIRM: u8 = 1;
pub const REGISTRATION_REQUEST: u8 = 3;
pub const REGISTRATION_CONFIRM: u8 = 4;
pub const UNREGISTRATION_REQUEST: u8 = 6;
pub const UNREGISTRATION_CONFIRM: u8 = 7;
pub const ADMISSION_REQUEST: u8 = 9;
pub const ADMISSION_CONFIRM: u8 = 10;
pub const LOCATION_REQUEST: u8 = 18;
pub const LOCATION_CONFIRM: u8 = 19;
pub const INFO_REQUEST: u8 = 21;
pub const INFO_REQUEST_RESPONSE: u8 = 22;

/// The last addition of a registration message, a boolean.
const END: [u8; 2] = [1, 0x80];
/// The last component of a message without additions.
const VENDOR: [u8; 4] = *b"\xb5\0SL";
const IDENTIFIER: [u8; 2] = *b"\0e";
/// Bytes behind a message.
pub const MORE: [u8; 4] = *b"more";

pub fn gatekeeper_request(ras: &Address) -> Vec<u8> {
    let mut it = Message::new(GATEKEEPER_REQUEST, "00000", true);
    it.address(ras);
    it.endpoint_type();
    it.bytes
}

pub fn gatekeeper_confirm(ras: &Address) -> Vec<u8> {
    let mut it = Message::new(GATEKEEPER_CONFIRM, "000", true);
    it.address(ras);
    it.bytes
}

pub fn registration_request(signal: &[Address], ras: &[Address], additions: Additions) -> Vec<u8> {
    let mut it = Message::new(REGISTRATION_REQUEST, additions.flags(), true);
    // discoveryComplete
    it.bits(0, 1);
    it.addresses(signal);
    it.addresses(ras);
    it.endpoint_type();
    // VendorIdentifier
    it.bits(0, 4);
    it.octets(&VENDOR);
    it.additions(additions);
    it.bytes
}

pub fn registration_confirm(signal: &[Address], additions: Additions) -> Vec<u8> {
    let mut it = Message::new(REGISTRATION_CONFIRM, additions.flags(), true);
    it.addresses(signal);
    it.identifier();
    it.additions(additions);
    it.bytes
}

pub fn unregistration_request(signal: &[Address]) -> Vec<u8> {
    let mut it = Message::new(UNREGISTRATION_REQUEST, "0000", false);
    it.addresses(signal);
    it.bytes
}

pub fn unregistration_confirm() -> Vec<u8> {
    Message::new(UNREGISTRATION_CONFIRM, "00", false).bytes
}

pub fn admission_request(destination: &Address, source: &Address) -> Vec<u8> {
    let mut it = Message::new(ADMISSION_REQUEST, "00010100", false);
    // callType, pointToPoint.
    it.bits(0, 3);
    it.identifier();
    it.address(destination);
    it.addresses(&[]);
    it.address(source);
    it.whole(6400);
    // callReferenceValue, conferenceID, activeMC and answerCall.
    it.octets(&[0; 18]);
    it.bits(0, 2);
    it.bytes
}

pub fn admission_confirm(destination: &Address) -> Vec<u8> {
    let mut it = Message::new(ADMISSION_CONFIRM, "000", false);
    it.whole(6400);
    // callModel, direct.
    it.bits(0, 2);
    it.address(destination);
    it.bytes
}

pub fn location_request(reply: &Address) -> Vec<u8> {
    let mut it = Message::new(LOCATION_REQUEST, "000", false);
    it.addresses(&[]);
    it.address(reply);
    it.bytes
}

pub fn location_confirm(signal: &Address, ras: &Address) -> Vec<u8> {
    let mut it = Message::new(LOCATION_CONFIRM, "00", false);
    it.address(signal);
    it.address(ras);
    it.bytes
}

pub fn info_request() -> Vec<u8> {
    let mut it = Message::new(INFO_REQUEST, "000", false);
    // callReferenceValue
    it.octets(&[0; 2]);
    it.bytes
}

pub fn info_request_response(ras: &Address, signal: &[Address]) -> Vec<u8> {
    let mut it = Message::new(INFO_REQUEST_RESPONSE, "0000", false);
    it.endpoint_type();
    it.identifier();
    it.address(ras);
    it.addresses(signal);
    it.bytes
}

pub fn is(bytes: &[u8], alternative: u8) -> bool {
    bytes.first().is_some_and(|first| first >> 2 == alternative)
}

/// True for a registration message with additions.
pub fn is_extended(bytes: &[u8]) -> bool {
    bytes[0] & 2 != 0
}

/// True for a registration message that is not truncated.
pub fn is_whole(bytes: &[u8]) -> bool {
    let end = match (is_extended(bytes), is(bytes, REGISTRATION_REQUEST)) {
        (true, _) => &END,
        (false, true) => &VENDOR[..],
        (false, false) => &IDENTIFIER,
    };
    bytes.ends_with(end) || bytes.ends_with(&MORE)
}

/// True for a registration message with only one addition behind timeToLive.
pub fn ends_early(bytes: &[u8]) -> bool {
    is_extended(bytes) && bytes.ends_with(&END) && !bytes.ends_with(&[[1, 0], END].concat())
}

/// The additions behind the extension marker of a registration message.
#[derive(Clone, Copy)]
pub struct Additions {
    /// timeToLive. Without it there are no additions at all.
    pub seconds: Option<u32>,
    /// True if only a boolean of version 2 follows, false for the additions of version 4.
    pub few: bool,
}

impl Additions {
    pub const NONE: Self = Self { seconds: None, few: false };

    fn flags(self) -> &'static str {
        if self.seconds.is_some() { "1000" } else { "0000" }
    }
}

/// TransportAddress.
pub struct Address {
    /// The bits in front of the octets: the alternative and what belongs to it, as a value and its
    /// number of bits.
    choice: (u32, u32),
    octets: Vec<u8>,
    /// The number of zero bits behind the octets.
    rest: u32,
}

impl Address {
    /// ipAddress, or ip6Address with its extension marker.
    pub fn new(host: IpAddr, port: u16) -> Self {
        let choice = if host.is_ipv4() { (0, 4) } else { (3 << 1, 5) };
        let octets = [&octets(host)[..], &port.to_be_bytes()].concat();
        Self { choice, octets, rest: 0 }
    }

    /// An address that neither end has.
    pub fn of_others(talk: &mut Talk, port: u16) -> Self {
        let (choice, octets, rest) = match talk.random.between(0, 6) {
            0 if talk.ends.family == Family::V4 => {
                return Self::new(Ipv6Addr::LOCALHOST.into(), port);
            }
            0 => return Self::new([192, 0, 2, 9].into(), port),
            // ipSourceRoute by one router, routing.
            1 => ((1 << 1, 5), &[192, 0, 2, 9, 9, 9, 1, 192, 0, 2, 8][..], 2),
            // ipxAddress
            2 => ((2, 4), &[7; 12][..], 0),
            // netBios
            3 => ((4, 4), &[b'n'; 16][..], 0),
            // nsap of three octets.
            4 => ((5 << 5 | 2, 9), &[7; 3][..], 0),
            // nonStandardAddress, h221NonStandard.
            5 => ((6 << 3 | 2, 7), b"\xb5\0SL\x02xy".as_slice(), 0),
            // An alternative of a later version.
            _ => ((1 << 7, 8), &[2, 7, 7][..], 0),
        };
        Self { choice, octets: octets.to_vec(), rest }
    }
}

/// A message in aligned PER (X.691).
struct Message {
    bytes: Vec<u8>,
    /// The number of free bits in the last byte.
    free: u32,
}

impl Message {
    /// Starts a message: the alternative of RasMessage, the bits that show which components are
    /// present, and the components that every message begins with.
    fn new(alternative: u8, present: &str, identified: bool) -> Self {
        let mut it = Self { bytes: Vec::new(), free: 0 };
        it.bits(alternative.into(), 6);
        for bit in present.bytes() {
            it.bits(u32::from(bit == b'1'), 1);
        }
        // requestSeqNum
        it.octets(&[0, 4]);
        if identified {
            // protocolIdentifier, version 7.
            it.octets(b"\x06\0\x08\x91\x4a\0\x07");
        }
        it
    }

    fn bits(&mut self, value: u32, count: u32) {
        for bit in (0..count).rev() {
            if self.free == 0 {
                self.bytes.push(0);
                self.free = 8;
            }
            self.free -= 1;
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((value >> bit & 1) << self.free) as u8;
            }
        }
    }

    /// Appends octets at the next octet boundary.
    fn octets(&mut self, octets: &[u8]) {
        self.bytes.extend(octets);
        self.free = 0;
    }

    fn address(&mut self, address: &Address) {
        self.bits(address.choice.0, address.choice.1);
        self.octets(&address.octets);
        self.bits(0, address.rest);
    }

    fn addresses(&mut self, addresses: &[Address]) {
        self.octets(&[addresses.len() as u8]);
        addresses.iter().for_each(|address| self.address(address));
    }

    /// An integer of up to 32 bits, as its offset from the smallest value.
    fn whole(&mut self, offset: u32) {
        let octets = offset.to_be_bytes();
        let unused = (offset.leading_zeros() / 8).min(3);
        self.bits(3 - unused, 2);
        self.octets(&octets[unused as usize..]);
    }

    /// EndpointIdentifier of one character.
    fn identifier(&mut self) {
        self.bits(0, 7);
        self.octets(&IDENTIFIER);
    }

    /// An EndpointType without components.
    fn endpoint_type(&mut self) {
        self.bits(0, 9);
    }

    fn additions(&mut self, additions: Additions) {
        let Additions { seconds: Some(seconds), few } = additions else { return };
        // The number of possible additions less one, and the bits of those present.
        if few {
            self.bits(5 << 6 | 0b01_0001, 1 + 6 + 6);
        } else {
            self.bits(7 << 8 | 0b0100_0101, 1 + 6 + 8);
        }
        let mut value = Self { bytes: Vec::new(), free: 0 };
        value.whole(seconds - 1);
        self.octets(&[value.bytes.len() as u8]);
        self.octets(&value.bytes);
        if !few {
            self.octets(&[1, 0]);
        }
        self.octets(&END);
    }
}
