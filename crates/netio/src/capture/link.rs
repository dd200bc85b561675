//! Link types, and the Ethernet header that stands in for other link headers.

use super::{Fields, Order};

/// A link type that can be read (<https://www.tcpdump.org/linktypes.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Ethernet,
    /// An IP packet without link header.
    RawIp,
    /// The number of an address family in front, in any byte order.
    Loopback,
    /// Linux "any" device, version 1.
    Cooked1,
    /// Linux "any" device, version 2.
    Cooked2,
    /// RFC 1661, with or without the address and control fields of RFC 1662.
    Ppp,
    /// Packets of IP that a rule has logged (NFLOG), as attributes of netlink.
    Nflog,
}

/// Link type of Ethernet.
pub(super) const ETHERNET: u16 = 1;
/// Length of an Ethernet header, in bytes.
const ETHERNET_HEADER: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// The EtherType of PPP, here for packets of PPP that are not IP.
const PPP: [u8; 2] = [0x88, 0x0b];
/// The attribute of NFLOG that holds the packet (NFULA_PAYLOAD of linux/netfilter/nfnetlink_log.h).
const NFLOG_PACKET: u16 = 9;
/// A reserved EtherType, here for address families other than IP.
const RESERVED: [u8; 2] = [0xff, 0xff];

/// An Ethernet header to put in front of a packet, if it has none of its own, and the bytes that
/// follow.
pub(super) type Split<'a> = (Option<[u8; ETHERNET_HEADER]>, &'a [u8]);

impl Link {
    /// `None` for a link type that is not read.
    pub(super) fn from_number(number: u16) -> Option<Self> {
        match number {
            ETHERNET => Some(Link::Ethernet),
            0 | 108 => Some(Link::Loopback),
            9 | 50 => Some(Link::Ppp),
            // 12 and 14 are what raw IP is called inside of programs, and some write that.
            12 | 14 | 101 | 228 | 229 => Some(Link::RawIp),
            113 => Some(Link::Cooked1),
            239 => Some(Link::Nflog),
            276 => Some(Link::Cooked2),
            _ => None,
        }
    }

    /// Splits a packet. Link addresses that the capture does not hold are zero. `None` if the
    /// packet is shorter than its link header. `order` is the byte order of the capture.
    pub(super) fn split(self, packet: &[u8], order: Order) -> Option<Split<'_>> {
        match self {
            Link::Ethernet => Some((None, packet)),
            Link::RawIp => {
                let is_v6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
                Some((Some(header([0; 6], if is_v6 { IPV6 } else { IPV4 })), packet))
            }
            Link::Loopback => {
                let (family, payload) = packet.split_first_chunk::<4>()?;
                let (little, big) = (u32::from_le_bytes(*family), u32::from_be_bytes(*family));
                let kind = match little.min(big) {
                    2 => IPV4,
                    // Linux, Windows, NetBSD and OpenBSD, FreeBSD, macOS.
                    10 | 23 | 24 | 28 | 30 => IPV6,
                    _ => RESERVED,
                };
                Some((Some(header([0; 6], kind)), payload))
            }
            Link::Cooked1 => {
                let (cooked, payload) = packet.split_first_chunk::<16>()?;
                let [.., a, b, c, d, e, f, _, _, high, low] = *cooked;
                Some((Some(header([a, b, c, d, e, f], [high, low])), payload))
            }
            Link::Cooked2 => {
                let (cooked, payload) = packet.split_first_chunk::<20>()?;
                let [high, low, .., a, b, c, d, e, f, _, _] = *cooked;
                Some((Some(header([a, b, c, d, e, f], [high, low])), payload))
            }
            Link::Ppp => {
                let packet = packet.strip_prefix(&[0xff, 0x03]).unwrap_or(packet);
                let (kind, payload) = match *packet {
                    // A protocol field of one byte is odd (RFC 1661 section 6.5).
                    [0x00, 0x21, ref payload @ ..] | [0x21, ref payload @ ..] => (IPV4, payload),
                    [0x00, 0x57, ref payload @ ..] | [0x57, ref payload @ ..] => (IPV6, payload),
                    _ => (PPP, packet),
                };
                Some((Some(header([0; 6], kind)), payload))
            }
            Link::Nflog => {
                let ([family, ..], attributes) = packet.split_first_chunk::<4>()?;
                let kind = match family {
                    2 => IPV4,
                    10 => IPV6,
                    _ => RESERVED,
                };
                Some((Some(header([0; 6], kind)), logged_packet(attributes, order)?))
            }
        }
    }
}

/// The packet among the attributes of NFLOG, as far as the capture has not cut it off.
fn logged_packet(attributes: &[u8], order: Order) -> Option<&[u8]> {
    let mut fields = Fields { order, rest: attributes };
    loop {
        let (length, kind) = (usize::from(fields.u16()?), fields.u16()?);
        // The length counts these two numbers.
        let length = length.checked_sub(4)?;
        if kind == NFLOG_PACKET {
            return fields.bytes(length.min(fields.rest.len()));
        }
        fields.bytes(length.next_multiple_of(4))?;
    }
}

fn header(source: [u8; 6], kind: [u8; 2]) -> [u8; ETHERNET_HEADER] {
    let mut header = [0; ETHERNET_HEADER];
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&kind);
    header
}

/// A link type with its number and, if people are likely to meet it, its name.
pub fn named(number: u16) -> String {
    let name = match number {
        0 => "BSD loopback",
        1 => "Ethernet",
        9 => "PPP",
        50 => "PPP in HDLC framing",
        51 => "PPPoE session",
        12 | 14 | 101 | 228 | 229 => "raw IP",
        104 => "Cisco HDLC",
        105 => "IEEE 802.11",
        107 => "Frame Relay",
        108 => "OpenBSD loopback",
        113 => "Linux cooked",
        119 | 163 => "IEEE 802.11 with radio header",
        127 => "IEEE 802.11 with radiotap header",
        147..=162 => "private use",
        187 | 201 => "Bluetooth",
        189 | 220 | 249 => "USB",
        192 => "per-packet information",
        195 | 230 => "IEEE 802.15.4",
        227 => "CAN",
        239 => "NFLOG",
        253 => "Netlink",
        276 => "Linux cooked, version 2",
        _ => return format!("link type {number}"),
    };
    format!("link type {number} ({name})")
}
