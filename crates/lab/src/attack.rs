//! Fragments of datagrams that will never be complete: the known ways to exhaust or to
//! mislead a reassembler.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::packet::Piece;
use crate::random::Random;
use crate::topology::{Family, Lab};

/// An attack. Unless its text says otherwise, sources are in 198.51.100.0/24 and 2001:db8:7::/64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// First pieces of random datagrams.
    First,
    /// Last pieces of random datagrams.
    Last,
    /// Pieces from the middle of random datagrams.
    Middle,
    /// The longest datagrams without one piece each, in pieces of 8 bytes in random order
    /// (FragmentSmack, CVE-2018-5391).
    EightBytes,
    /// Pieces that overlap with the one before.
    Overlap,
    /// The same pieces again and again.
    Duplicate,
    /// The longest datagrams without their last but one piece.
    NearlyComplete,
    /// Datagrams that would end behind byte 65535.
    Oversize,
    /// Random identifications between the addresses of honest traffic.
    SameAddresses,
    /// Keys that collide in hashes that add or exclusive-or their parts.
    Colliding,
    /// IPv6 first fragments whose extension headers do not end.
    LongChain,
    /// Two pieces of each datagram, so that it seems to make progress.
    TwoPieces,
}

/// Payload of a piece of a small attack, in bytes.
const SMALL: usize = 120;
/// Payload of a piece that fills an Ethernet frame, in bytes.
const FULL: u32 = 1480;
const LONGEST: u32 = 65_515;

impl Attack {
    /// All attacks.
    pub const ALL: [Self; 12] = [
        Self::First,
        Self::Last,
        Self::Middle,
        Self::EightBytes,
        Self::Overlap,
        Self::Duplicate,
        Self::NearlyComplete,
        Self::Oversize,
        Self::SameAddresses,
        Self::Colliding,
        Self::LongChain,
        Self::TwoPieces,
    ];

    /// `count` frames from the lab's client to its server.
    #[must_use]
    pub fn frames(self, lab: &Lab, count: usize, seed: u64) -> Vec<Vec<u8>> {
        let family = if self == Self::LongChain { Family::V6 } else { Family::V4 };
        let mut maker = Maker {
            random: Random::new(seed),
            destination: lab.server_address(family),
            honest: lab.client_address(family),
        };
        let mut frames = Vec::with_capacity(count + LONGEST as usize / 8);
        while frames.len() < count {
            let pieces = maker.datagram(self);
            frames.extend(pieces.iter().map(|piece| piece.frame(lab.next_hop_mac())));
        }
        frames.truncate(count);
        if self == Self::LongChain {
            // The next header of the fragment header: destination options.
            frames.iter_mut().for_each(|frame| frame[14 + 40] = 60);
        }
        frames
    }
}

/// The first bytes of a long datagram to the discard service (RFC 863). If a datagram began with
/// anything else, a gateway would drop it before it counts as a fragment.
fn header(length: usize) -> Vec<u8> {
    let mut bytes = vec![4, 0, 0, 9, 0xf0, 0, 0, 0];
    bytes.resize(length, 0);
    bytes
}

struct Maker {
    random: Random,
    destination: IpAddr,
    honest: IpAddr,
}

impl Maker {
    /// The pieces that an attack sends of one datagram.
    fn datagram(&mut self, attack: Attack) -> Vec<Piece> {
        let first = self.piece(0, true, SMALL);
        let middle = 8 * self.random.between(1, 8000) as u32;
        match attack {
            Attack::First => vec![first],
            Attack::Last => vec![Piece { offset: middle, more: false, ..first }],
            Attack::Middle => vec![Piece { offset: middle, ..first }],
            Attack::EightBytes => self.eight_bytes(),
            Attack::Overlap => {
                let second = Piece { offset: 64, bytes: vec![1; SMALL], ..first.clone() };
                vec![first, second]
            }
            Attack::Duplicate => vec![first; 50],
            Attack::NearlyComplete => {
                let mut pieces = self.longest();
                pieces.remove(pieces.len() - 2);
                pieces
            }
            Attack::Oversize => vec![Piece { offset: 65_528, more: false, ..first }],
            Attack::SameAddresses => vec![Piece { source: self.honest, offset: middle, ..first }],
            Attack::Colliding => {
                let host = self.random.between(1, 254) as u8;
                let id = (self.random.bits() as u32 & 0xff00) | u32::from(!host);
                vec![Piece { source: Ipv4Addr::new(198, 51, 100, host).into(), id, ..first }]
            }
            Attack::LongChain => {
                // An empty padding option, then the same header again (RFC 8200 section 4.2).
                let bytes = [60, 0, 1, 4, 0, 0, 0, 0].repeat(150);
                vec![Piece { bytes, ..first }]
            }
            Attack::TwoPieces => {
                let second = Piece { offset: middle.max(SMALL as u32), ..first.clone() };
                vec![first, second]
            }
        }
    }

    /// A piece of a new datagram from a random source.
    fn piece(&mut self, offset: u32, more: bool, length: usize) -> Piece {
        let host = self.random.between(1, 254) as u16;
        let source = if self.destination.is_ipv4() {
            Ipv4Addr::new(198, 51, 100, host as u8).into()
        } else {
            Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, host).into()
        };
        let id = self.random.bits() as u32;
        let destination = self.destination;
        Piece { source, destination, id, offset, more, ecn: 0, bytes: header(length) }
    }

    fn eight_bytes(&mut self) -> Vec<Piece> {
        let piece = self.piece(0, true, 8);
        let mut offsets: Vec<u32> = (1..LONGEST / 8).map(|unit| 8 * unit).collect();
        self.random.shuffle(&mut offsets);
        offsets.iter().map(|&offset| Piece { offset, ..piece.clone() }).collect()
    }

    fn longest(&mut self) -> Vec<Piece> {
        let piece = self.piece(0, true, 0);
        let cut = |index: u32| {
            let offset = index * FULL;
            let end = (offset + FULL).min(LONGEST);
            let bytes = header((end - offset) as usize);
            Piece { offset, more: end < LONGEST, bytes, ..piece.clone() }
        };
        (0..LONGEST.div_ceil(FULL)).map(cut).collect()
    }
}
