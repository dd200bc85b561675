//! Attacks on a reassembler's memory, time or trust.

use flow::HashKey;
use serde::Serialize;
use wire::build::PacketBuilder;
use wire::protocol;

use super::honest::{self, RECEIVER};
use super::shape::PIECE;
use crate::traffic::Random;

/// The first of 256 sources of the attacker's own datagrams.
const ATTACKERS: u32 = 0xc000_0200;
/// Pieces of a 65507-byte datagram, of which one is held back.
const WHOLE: u64 = 45;
/// Pieces of 8 bytes in the largest datagram.
const TINY: u64 = 8189;
/// Datagrams that get a few bytes each in turns.
const DRIPPED: u64 = 4096;
/// Datagrams whose keys collide in the hash that the attacker knows.
const COLLIDING: usize = 4096;
/// The bits of the hash that are equal for them.
const COLLISION_MASK: u64 = 0x3ff;

/// An attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attack {
    /// First pieces of datagrams without the rest.
    FirstOnly,
    /// Last pieces without the rest.
    LastOnly,
    /// Pieces from the middle, each of another datagram.
    Middles,
    /// Datagrams in 8189 pieces of 8 bytes, in any order, without end.
    EightBytes,
    /// Two pieces that overlap, of one datagram after the other.
    Overlaps,
    /// The same piece 64 times.
    Duplicates,
    /// All pieces of large datagrams but one.
    AllButOne,
    /// Pieces that end beyond 65535 bytes or behind the end of their datagram.
    PastTheEnd,
    /// First pieces under the address of one honest sender of large datagrams, with
    /// every identification: some meet honest datagrams.
    IdSpray,
    /// Datagrams whose keys collide under a hash without a secret.
    HashCollisions,
    /// Pieces from any source.
    SpoofedSources,
    /// Two pieces of each datagram that fit, so that it seems to make progress.
    TwoPieces,
    /// IPv6 fragments behind long chains of extension headers, and first fragments
    /// whose chain is not complete.
    Ipv6Chains,
    /// Some thousand datagrams that get a few bytes each in turns, for ever.
    SlowDrip,
}

impl Attack {
    /// All attacks.
    pub const ALL: [Self; 14] = [
        Self::FirstOnly,
        Self::LastOnly,
        Self::Middles,
        Self::EightBytes,
        Self::Overlaps,
        Self::Duplicates,
        Self::AllButOne,
        Self::PastTheEnd,
        Self::IdSpray,
        Self::HashCollisions,
        Self::SpoofedSources,
        Self::TwoPieces,
        Self::Ipv6Chains,
        Self::SlowDrip,
    ];

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstOnly => "first pieces only",
            Self::LastOnly => "last pieces only",
            Self::Middles => "middle pieces",
            Self::EightBytes => "datagrams in 8189 pieces",
            Self::Overlaps => "overlaps",
            Self::Duplicates => "duplicates",
            Self::AllButOne => "all pieces but one",
            Self::PastTheEnd => "pieces past the end",
            Self::IdSpray => "identifications of an honest sender",
            Self::HashCollisions => "keys that collide without a secret",
            Self::SpoofedSources => "spoofed sources",
            Self::TwoPieces => "two pieces of each datagram",
            Self::Ipv6Chains => "IPv6 header chains",
            Self::SlowDrip => "slow drip",
        }
    }
}

/// The packets of an attack, for ever.
pub struct Flood {
    attack: Attack,
    random: Random,
    sent: u64,
    /// Sources and identifications that collide, for [`Attack::HashCollisions`].
    colliding: Vec<(u32, u16)>,
    payload: [u8; PIECE],
}

impl Flood {
    /// The attack from its first packet on; the same in every run.
    pub fn new(attack: Attack) -> Self {
        let mut payload = [0xa5; PIECE];
        // A UDP header whose length is no more than a first fragment needs.
        payload[..8].copy_from_slice(&[0x14, 0xe9, 0x14, 0xe9, 0x11, 0x48, 0, 0]);
        let colliding = if attack == Attack::HashCollisions { colliding() } else { Vec::new() };
        Self { attack, random: Random(attack as u64 + 17), sent: 0, colliding, payload }
    }

    /// Writes the next packet to `out`, which is empty.
    pub fn write(&mut self, out: &mut Vec<u8>) {
        let number = self.sent;
        self.sent += 1;
        // A source and identification of the attacker, whatever the order.
        let own = |datagram: u64| {
            let mixed = Random(datagram).next();
            (ATTACKERS + (mixed >> 32 & 0xff) as u32, mixed as u16)
        };
        let middle = |random: u64| (8 + random % 8000 * 8).min(64_000) as u16;
        let full = PIECE;
        let next = PIECE as u16;
        match self.attack {
            Attack::FirstOnly => self.piece(own(number), 0, true, full, out),
            Attack::LastOnly => self.piece(own(number), next, false, 800, out),
            Attack::Middles => {
                let offset = middle(self.random.next());
                self.piece(own(number), offset, true, full, out);
            }
            Attack::EightBytes => {
                // An odd factor visits every place once.
                let place = (number % TINY * 4801 % TINY) as u16;
                self.piece(own(number / TINY), place * 8, true, 8, out);
            }
            Attack::Overlaps => {
                self.piece(own(number / 2), (number % 2) as u16 * 1000, true, full, out);
            }
            Attack::Duplicates => self.piece(own(number / 64), next, true, full, out),
            Attack::AllButOne => {
                let place = (number % (WHOLE - 1)) as u16;
                self.piece(own(number / (WHOLE - 1)), place * next, true, full, out);
            }
            Attack::PastTheEnd => match number % 3 {
                0 => self.piece(own(number / 3), next, false, 800, out),
                1 => self.piece(own(number / 3), 10 * next, true, full, out),
                _ => self.piece(own(number / 3), 65_528, true, full, out),
            },
            Attack::IdSpray => {
                let [victim, ..] = honest::addresses();
                self.piece((victim, number as u16), 0, true, full, out);
            }
            Attack::HashCollisions => {
                let key = self.colliding[number as usize % self.colliding.len()];
                self.piece(key, 0, true, full, out);
            }
            Attack::SpoofedSources => {
                let random = self.random.next();
                let offset = middle(random >> 48);
                self.piece((random as u32, (random >> 32) as u16), offset, true, full, out);
            }
            Attack::TwoPieces => {
                self.piece(own(number / 2), (number % 2) as u16 * next, true, full, out);
            }
            Attack::Ipv6Chains => self.chain(number, out),
            Attack::SlowDrip => {
                let offset = (number / DRIPPED % 7500 * 8) as u16;
                self.piece(own(number % DRIPPED), offset, true, 8, out);
            }
        }
    }

    fn piece(
        &self,
        (source, id): (u32, u16),
        offset: u16,
        more: bool,
        length: usize,
        out: &mut Vec<u8>,
    ) {
        let builder = PacketBuilder::v4(source.to_be_bytes(), RECEIVER).id(id.into());
        builder.fragment(protocol::UDP, offset, more, &self.payload[..length], out);
    }

    /// A packet with six headers of destination options (RFC 8200 section 4.6) of 8 bytes each, and
    /// the fragment header. Every other packet is a first fragment that ends within a second chain
    /// (forbidden by RFC 7112).
    fn chain(&mut self, number: u64, out: &mut Vec<u8>) {
        const OPTIONS: u8 = 60;
        const FRAGMENT: u8 = 44;
        const HEADERS: usize = 6;
        // PadN over the whole header.
        let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
        let (offset, after) =
            if number.is_multiple_of(2) { (0, OPTIONS) } else { (184_u16, protocol::UDP) };
        let mut payload = Vec::with_capacity(PIECE);
        for header in 1..=HEADERS {
            payload.extend(options(if header == HEADERS { FRAGMENT } else { OPTIONS }));
        }
        payload.extend([after, 0]);
        payload.extend(((offset * 8) | 1).to_be_bytes());
        payload.extend((self.random.next() as u32).to_be_bytes());
        match offset {
            0 => (0..2).for_each(|_| payload.extend(options(OPTIONS))),
            _ => payload.extend(&self.payload[..1400]),
        }
        let mut source = [0; 16];
        source[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
        source[15] = number as u8;
        let mut receiver = source;
        receiver[15] = 1;
        PacketBuilder::v6(source, receiver).raw(OPTIONS, &payload, out);
    }
}

/// Datagrams with equal hashes that an attacker finds if the hash has no secret.
fn colliding() -> Vec<(u32, u16)> {
    let shape = super::shape::Shape::new(PIECE * 2, PIECE);
    let known = HashKey(0, 0);
    let keys = (0..u64::MAX).map(|number| {
        let mixed = Random(number).next();
        (mixed as u32, (mixed >> 32) as u16)
    });
    let collide = |&(source, id): &(u32, u16)| {
        shape.piece(0, source, id).key.hash(known) & COLLISION_MASK == 0
    };
    keys.filter(collide).take(COLLIDING).collect()
}
