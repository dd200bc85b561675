//! Link types, and the Ethernet header that stands in for other link headers.

/// A link type that can be read (<https://www.tcpdump.org/linktypes.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Ethernet,
    /// An IP packet without link header.
    RawIp,
    /// Linux "any" device, version 1.
    Cooked1,
    /// Linux "any" device, version 2.
    Cooked2,
}

/// Length of an Ethernet header, in bytes.
pub(super) const ETHERNET_HEADER: usize = 14;

impl Link {
    pub(super) fn from_number(number: u16) -> Result<Self, String> {
        match number {
            1 => Ok(Link::Ethernet),
            101 | 228 | 229 => Ok(Link::RawIp),
            113 => Ok(Link::Cooked1),
            276 => Ok(Link::Cooked2),
            _ => Err(format!(
                "link type {number}{} can not be read; known are Ethernet (1), raw IP (101, \
                 228, 229) and Linux cooked (113, 276)",
                name(number)
            )),
        }
    }

    /// Splits a packet into an Ethernet header to put in front, if it has none of its own, and the
    /// bytes that follow. Link addresses that the capture does not hold are zero.
    pub(super) fn split(
        self,
        packet: &[u8],
    ) -> Result<(Option<[u8; ETHERNET_HEADER]>, &[u8]), String> {
        let short = |length: usize| {
            format!("{} bytes are too few for a {length}-byte {self:?} link header", packet.len())
        };
        match self {
            Link::Ethernet => Ok((None, packet)),
            Link::RawIp => {
                let is_v6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
                let kind = if is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
                Ok((Some(header([0; 6], kind)), packet))
            }
            Link::Cooked1 => {
                let (cooked, payload) =
                    packet.split_first_chunk::<16>().ok_or_else(|| short(16))?;
                let [.., a, b, c, d, e, f, _, _, high, low] = *cooked;
                Ok((Some(header([a, b, c, d, e, f], [high, low])), payload))
            }
            Link::Cooked2 => {
                let (cooked, payload) =
                    packet.split_first_chunk::<20>().ok_or_else(|| short(20))?;
                let [high, low, .., a, b, c, d, e, f, _, _] = *cooked;
                Ok((Some(header([a, b, c, d, e, f], [high, low])), payload))
            }
        }
    }
}

fn header(source: [u8; 6], kind: [u8; 2]) -> [u8; ETHERNET_HEADER] {
    let mut header = [0; ETHERNET_HEADER];
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&kind);
    header
}

/// Names of link types that people are likely to meet.
fn name(number: u16) -> &'static str {
    match number {
        0 | 108 => " (BSD loopback)",
        9 => " (PPP)",
        105 | 127 | 163 => " (IEEE 802.11)",
        147..=162 => " (private use)",
        189 | 220 | 249 => " (USB)",
        195 | 230 => " (IEEE 802.15.4)",
        201 => " (Bluetooth)",
        239 => " (NFLOG)",
        _ => "",
    }
}
