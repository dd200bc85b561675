//! Options of the IPv4 header and hop-by-hop options of IPv6, as a router has to look at them.
//!
//! Every router on the way of a packet reads these options. So a router checks them before it
//! passes the packet on (RFC 1812 section 5.2.4, RFC 8200 section 4.3), and records its address
//! or the time if the sender has asked for that. It leaves unknown options to the packet's
//! receiver.

use crate::{checksum, extension};

/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Bytes of the longest IPv4 header.
const MAX_IPV4_LEN: usize = 60;
/// Bytes of the IPv6 header.
const IPV6_LEN: usize = 40;
/// Offset of the number of the next header in an IPv6 header.
const IPV6_NEXT: usize = 6;

/// Options of IPv4 by type (RFC 791 section 3.1, RFC 2113; 134 is "commercial IP security").
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_ROUTE: u8 = 131;
const SECURITY_LABEL: u8 = 134;
const STRICT_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;

/// Flags of the timestamp option: the values that its sender asks for.
const TIMES: u8 = 0;
const ADDRESSES_AND_TIMES: u8 = 1;
const TIMES_OF_NAMED: u8 = 3;

/// Hop-by-hop options by type (RFC 8200 section 4.2, RFC 2711, RFC 2675).
const PAD_1: u8 = 0;
const PAD_N: u8 = 1;
const ROUTER_ALERT_V6: u8 = 5;
const JUMBO: u8 = 0xc2;
/// Most bytes of padding in a row: alignment never needs more (RFC 4942 section 2.1.9.5).
const MAX_PADDING: usize = 7;
/// Most hop-by-hop options other than padding (RFC 8504 section 5.3; `max_hbh_opts_number` of the
/// kernel).
const MAX_HOP_OPTIONS: usize = 8;

/// The fault in its options for which a router does not pass a packet on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedOption {
    /// Its sender names hosts that it has to pass, which is a way around filters.
    SourceRoute,
    /// An option of IPv4 contradicts itself.
    Malformed {
        /// The byte of the header that is wrong, for the error to the sender (RFC 792).
        pointer: u8,
    },
    /// A hop-by-hop option of IPv6 contradicts itself, or it is unknown and its type forbids
    /// routers to pass it on unread.
    HopByHop,
}

/// Checks the options of the IP packet that begins `packet`. [`dissect`](crate::dissect()) must
/// have accepted its headers.
///
/// # Errors
/// [`RefusedOption`] for the first option that is wrong or not allowed.
#[inline]
pub fn check_options(packet: &[u8]) -> Result<(), RefusedOption> {
    match packet.first() {
        Some(0x45) => Ok(()),
        Some(first) if first >> 4 == 6 && packet.get(IPV6_NEXT) != Some(&extension::HOP_BY_HOP) => {
            Ok(())
        }
        Some(first) if first >> 4 == 6 => hop_by_hop(packet).ok_or(RefusedOption::HopByHop),
        _ => ipv4(packet),
    }
}

/// Iterates over the options of an IPv4 header with the offset of each. If the rest of the list
/// can not be read, it ends with an error that holds the offset of that rest.
struct Options<'a> {
    header: &'a [u8],
    at: usize,
}

impl<'a> Options<'a> {
    fn of(packet: &'a [u8]) -> Self {
        let length = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
        Self { header: packet.get(..length).unwrap_or_default(), at: IPV4_LEN }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<(usize, &'a [u8]), usize>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.at;
            let rest = self.header.get(at..).filter(|rest| !rest.is_empty())?;
            match rest[0] {
                END => return None,
                NO_OPERATION => self.at += 1,
                _ => {
                    let length = rest.get(1).map_or(0, |length| usize::from(*length));
                    let option = rest.get(..length).filter(|option| option.len() >= 2);
                    self.at = option.map_or(self.header.len(), |option| at + option.len());
                    return Some(option.map(|option| (at, option)).ok_or(at));
                }
            }
        }
    }
}

#[cold]
fn ipv4(packet: &[u8]) -> Result<(), RefusedOption> {
    let malformed = |at: usize| RefusedOption::Malformed { pointer: at as u8 };
    let mut once = [false; 256];
    for option in Options::of(packet) {
        let (at, option) = option.map_err(malformed)?;
        let is_again = std::mem::replace(&mut once[usize::from(option[0])], true);
        if let Some(wrong) = fault(option, is_again) {
            return Err(malformed(at + wrong));
        }
        if matches!(option[0], LOOSE_ROUTE | STRICT_ROUTE) {
            return Err(RefusedOption::SourceRoute);
        }
    }
    Ok(())
}

/// The first byte of an option that is wrong, as offset in the option; `None` if it is right.
fn fault(option: &[u8], is_again: bool) -> Option<usize> {
    let length = option.len();
    let pointer = option.get(2).map_or(0, |pointer| usize::from(*pointer));
    match option[0] {
        RECORD_ROUTE | TIMESTAMP | SECURITY_LABEL if is_again => Some(0),
        LOOSE_ROUTE | STRICT_ROUTE | RECORD_ROUTE if length < 3 => Some(1),
        LOOSE_ROUTE | STRICT_ROUTE | RECORD_ROUTE if pointer < 4 => Some(2),
        RECORD_ROUTE if is_half_full(length, pointer, 4) => Some(2),
        TIMESTAMP if length < 4 => Some(1),
        TIMESTAMP if pointer < 5 || is_half_full(length, pointer, 4) => Some(2),
        TIMESTAMP => match option[3] & 0x0f {
            ADDRESSES_AND_TIMES | TIMES_OF_NAMED if is_half_full(length, pointer, 8) => Some(2),
            TIMES_OF_NAMED => None,
            // The counter of routers without room has 4 bits, so it can not count a sixteenth.
            _ => (pointer > length && option[3] >> 4 == 15).then_some(3),
        },
        ROUTER_ALERT if length < 4 => Some(1),
        SECURITY_LABEL => label_fault(option),
        _ => None,
    }
}

/// True if an option of `length` bytes has room from the byte at `pointer` on (counted from 1),
/// but not for `needed` bytes.
const fn is_half_full(length: usize, pointer: usize, needed: usize) -> bool {
    pointer <= length && pointer + needed - 1 > length
}

/// [`fault`] for a security label: a domain, which is not 0, and tags behind it.
fn label_fault(option: &[u8]) -> Option<usize> {
    const TAGS: usize = 6;
    let Some(domain) = option.get(2..TAGS).filter(|_| option.len() >= TAGS + 2) else {
        return Some(1);
    };
    if domain == [0; 4] {
        return Some(2);
    }
    let mut at = TAGS;
    while at < option.len() {
        let Some(length) = option.get(at + 1) else { return Some(at) };
        if *length == 0 || usize::from(*length) > option.len() - at {
            return Some(at + 1);
        }
        at += usize::from(*length);
    }
    None
}

/// `None` if the options forbid to pass the packet on.
#[cold]
fn hop_by_hop(packet: &[u8]) -> Option<()> {
    let header = packet.get(IPV6_LEN..)?;
    let length = extension::length(extension::HOP_BY_HOP, *header.get(1)?);
    let header = header.get(..length.into())?;
    let (mut at, mut padding, mut options) = (2, 0, 0);
    while let Some(&kind) = header.get(at) {
        let body = match kind {
            PAD_1 => &[],
            _ => {
                let length = usize::from(*header.get(at + 1)?);
                header.get(at + 2..at + 2 + length)?
            }
        };
        let length = if kind == PAD_1 { 1 } else { 2 + body.len() };
        if kind <= PAD_N {
            padding += length;
            if padding > MAX_PADDING || body.iter().any(|byte| *byte != 0) {
                return None;
            }
        } else {
            (padding, options) = (0, options + 1);
            let may_pass = match (kind, body) {
                (ROUTER_ALERT_V6, body) => body.len() == 2,
                (JUMBO, body) => at % 4 == 2 && is_jumbo(packet, body),
                // The first two bits of an unknown option say whether a packet with it may
                // pass.
                _ => kind >> 6 == 0,
            };
            if options > MAX_HOP_OPTIONS || !may_pass {
                return None;
            }
        }
        at += length;
    }
    Some(())
}

/// True if a packet may have a jumbo option with this body (RFC 2675 section 3).
fn is_jumbo(packet: &[u8], body: &[u8]) -> bool {
    const LENGTH: std::ops::Range<usize> = 4..6;
    let is_long = |body: [u8; 4]| u32::from_be_bytes(body) > u16::MAX.into();
    body.try_into().is_ok_and(is_long) && packet.get(LENGTH) == Some(&[0, 0])
}

/// The values that a router writes into the options of a packet that it passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waypoint {
    /// Its address on the link that the packet goes out by.
    pub out: [u8; 4],
    /// Its address on the link that the packet came in by.
    pub came_in: [u8; 4],
    /// Milliseconds since midnight, universal time.
    pub time_ms: u32,
}

/// True if the packet that begins `packet` has an IPv4 header with options.
#[inline]
pub fn has_ipv4_options(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 4 && *first != 0x45)
}

/// Writes a router's address or time into the options of an IPv4 packet that ask for it (RFC
/// 1812 sections 5.2.4.2 and 5.2.4.3). If the sender has named the addresses whose times it
/// wants, `is_own` returns true for those of the router. Bytes behind the end of the options
/// are cleared, because nobody reads them.
///
/// [`check_options`] has to have accepted the packet; otherwise nothing is written from the
/// first wrong option on.
pub fn record_waypoint(packet: &mut [u8], waypoint: &Waypoint, is_own: impl Fn([u8; 4]) -> bool) {
    let mut before = [0; MAX_IPV4_LEN];
    for (copy, byte) in before.iter_mut().zip(&*packet) {
        *copy = *byte;
    }
    let mut options = Options::of(&before[..MAX_IPV4_LEN.min(packet.len())]);
    for (at, option) in options.by_ref().map_while(Result::ok) {
        enter(&mut packet[at..at + option.len()], waypoint, &is_own);
    }
    let (end, length) = (options.at, options.header.len());
    packet[end.min(length)..length].fill(END);
    checksum::fill_ipv4_header(packet);
}

fn enter(option: &mut [u8], waypoint: &Waypoint, is_own: &impl Fn([u8; 4]) -> bool) {
    let &mut [kind, length, pointer, ref mut body @ ..] = option else { return };
    // The pointer counts from 1, and three bytes stand in front of the body.
    let Some(at) = usize::from(pointer).checked_sub(4) else { return };
    let flags = body.first().copied().unwrap_or(0);
    let Waypoint { out, came_in, time_ms } = *waypoint;
    let time = time_ms.to_be_bytes();
    let (entry, size) = match (kind, flags & 0x0f) {
        (RECORD_ROUTE, _) => ([out, [0; 4]], 4),
        (TIMESTAMP, TIMES_OF_NAMED) => match body.get(at..).and_then(<[u8]>::first_chunk) {
            Some(named) if is_own(*named) => ([*named, time], 8),
            _ => return,
        },
        // The upper half counts routers that had no room.
        (TIMESTAMP, _) if pointer > length => {
            if let (Some(byte), Some(more)) = (body.first_mut(), flags.checked_add(0x10)) {
                *byte = more;
            }
            return;
        }
        (TIMESTAMP, TIMES) => ([time, [0; 4]], 4),
        (TIMESTAMP, ADDRESSES_AND_TIMES) => ([came_in, time], 8),
        _ => return,
    };
    if let Some(place) = body.get_mut(at..at + size) {
        place.copy_from_slice(&entry.as_flattened()[..size]);
        option[2] += size as u8;
    }
}

#[cfg(test)]
#[path = "ip_option_tests.rs"]
mod tests;
