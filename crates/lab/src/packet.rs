//! Pieces of UDP datagrams as frames, right or wrong as a test wants them.

use std::net::IpAddr;

/// Protocol number of UDP.
const UDP: u8 = 17;
/// IPv6: next header of a fragment header.
const FRAGMENT: u8 = 44;

/// A piece of a datagram. With `offset` 0 and without `more` it is a whole datagram: for IPv4 an
/// ordinary packet, for IPv6 an atomic fragment (RFC 6946).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Source address, of the same family as `destination`.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Identification; IPv4 uses its low 16 bits.
    pub id: u32,
    /// Its offset in the datagram, a multiple of 8 up to 65528, in bytes.
    pub offset: u32,
    /// True if it says that more fragments follow.
    pub more: bool,
    /// The ECN field (RFC 3168).
    pub ecn: u8,
    /// Its part of the datagram.
    pub bytes: Vec<u8>,
}

impl Piece {
    /// The piece as an Ethernet frame from the lab's client.
    #[must_use]
    pub fn frame(&self, destination: [u8; 6]) -> Vec<u8> {
        let mut frame = destination.to_vec();
        frame.extend(CLIENT_MAC);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([0x08, 0x00]);
                let start = frame.len();
                frame.extend([0x45, self.ecn]);
                frame.extend((20 + self.bytes.len() as u16).to_be_bytes());
                frame.extend((self.id as u16).to_be_bytes());
                let place = (u16::from(self.more) << 13) | (self.offset / 8) as u16;
                frame.extend(place.to_be_bytes());
                frame.extend([64, UDP, 0, 0]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                let checksum = !sum(0, &frame[start..]);
                frame[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            (source, destination) => {
                frame.extend([0x86, 0xdd, 0x60, self.ecn << 4, 0, 0]);
                frame.extend((8 + self.bytes.len() as u16).to_be_bytes());
                frame.extend([FRAGMENT, 64]);
                frame.extend(octets(source));
                frame.extend(octets(destination));
                frame.extend([UDP, 0]);
                frame.extend((self.offset as u16 | u16::from(self.more)).to_be_bytes());
                frame.extend(self.id.to_be_bytes());
            }
        }
        frame.extend(&self.bytes);
        frame
    }

    /// Reads a frame of [`Piece::frame`], or a whole IPv6 packet; `None` for anything else.
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let v4 = |at: usize| Some(IpAddr::from(*frame.get(at..)?.first_chunk::<4>()?));
        let v6 = |at: usize| Some(IpAddr::from(*frame.get(at..)?.first_chunk::<16>()?));
        match word(12)? {
            0x0800 if frame.get(14)? & 0x0f == 5 && *frame.get(23)? == UDP => Some(Self {
                source: v4(26)?,
                destination: v4(30)?,
                id: word(18)?.into(),
                offset: u32::from(word(20)? & 0x1fff) * 8,
                more: word(20)? & 0x2000 != 0,
                ecn: frame.get(15)? & 3,
                bytes: frame.get(34..14 + usize::from(word(16)?))?.to_vec(),
            }),
            0x86dd => {
                let is_fragment = *frame.get(20)? == FRAGMENT;
                let (place, id, start) = if is_fragment {
                    (word(56)?, u32::from(word(58)?) << 16 | u32::from(word(60)?), 62)
                } else {
                    (0, 0, 54)
                };
                Some(Self {
                    source: v6(22)?,
                    destination: v6(38)?,
                    id,
                    offset: (place & !7).into(),
                    more: place & 1 != 0,
                    ecn: (frame.get(15)? >> 4) & 3,
                    bytes: frame.get(start..54 + usize::from(word(18)?))?.to_vec(),
                })
            }
            _ => None,
        }
    }
}

/// The hardware address of the lab's client.
pub(crate) const CLIENT_MAC: [u8; 6] = [0, 0, 0x5e, 0, 0x53, 0x01];

/// A UDP datagram with its header. Without a checksum only the test notices when it is put together
/// wrongly. IPv6 demands a checksum (RFC 8200 section 8.1).
#[must_use]
pub fn udp(
    (source, destination): (IpAddr, IpAddr),
    ports: (u16, u16),
    payload: &[u8],
    checksum: bool,
) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(8 + payload.len());
    datagram.extend(ports.0.to_be_bytes());
    datagram.extend(ports.1.to_be_bytes());
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    if checksum {
        let sum = match !udp_sum((source, destination), &datagram) {
            // Zero would mean that there is no checksum (RFC 768).
            0 => u16::MAX,
            sum => sum,
        };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    }
    datagram
}

/// The sum over the pseudo header and `datagram`, 0xffff if its checksum is right.
#[must_use]
pub fn udp_sum((source, destination): (IpAddr, IpAddr), datagram: &[u8]) -> u16 {
    let mut pseudo = octets(source);
    pseudo.extend(octets(destination));
    pseudo.extend((datagram.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, UDP]);
    sum(sum(0, &pseudo), datagram)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The one's complement sum of 16-bit words (RFC 1071).
fn sum(start: u16, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| [word[0], word.get(1).copied().unwrap_or(0)]);
    let sum: u64 = words.map(|word| u64::from(u16::from_be_bytes(word))).sum();
    let mut sum = sum + u64::from(start);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_frames_are_read_back() {
        for (pair, id) in [(["192.0.2.1", "192.0.2.2"], 0xabcd), (["2001:db8::1", "::1"], 1 << 31)]
        {
            let [source, destination] = pair.map(|address| address.parse().unwrap());
            for (offset, more, ecn) in [(0, false, 0), (0, true, 3), (65_528, false, 2)] {
                let bytes = vec![7; 24];
                let piece = Piece { source, destination, id, offset, more, ecn, bytes };
                let frame = piece.frame([0; 6]);
                assert_eq!(Piece::read(&frame), Some(piece));
                assert_eq!(Piece::read(&frame[..frame.len() - 1]), None);
            }
        }
    }

    #[test]
    fn the_checksum_of_what_it_makes_is_right() {
        for pair in [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]] {
            let pair = (pair[0].parse().unwrap(), pair[1].parse().unwrap());
            for length in [0, 1, 2, 1001] {
                let datagram = udp(pair, (1, 2), &vec![0xab; length], true);
                assert_eq!(udp_sum(pair, &datagram), 0xffff);
                assert_eq!(udp(pair, (1, 2), &[], false)[6..8], [0, 0]);
            }
        }
    }
}
