//! Cutting a datagram into fragments.
//!
//! [`Fragments`] writes one fragment after the other into buffers of the caller and
//! allocates nothing:
//!
//! ```
//! use wire::{build::PacketBuilder, fragment::{Cut, Fragments}};
//!
//! let mut frame = Vec::new();
//! PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).udp(7, 9, &[0; 4000], &mut frame);
//! let mut fragments = Fragments::new(&frame, &Cut { mtu: 1500, ..Cut::default() })?;
//! let mut lengths = Vec::new();
//! while let Some(length) = fragments.next_len() {
//!     let mut buffer = vec![0; length];
//!     fragments.write_next(&mut buffer);
//!     lengths.push(length);
//! }
//! assert_eq!(lengths, [1514, 1514, 14 + 20 + 8 + 4000 - 2 * 1480]);
//! # Ok::<(), wire::fragment::Uncut>(())
//! ```

use crate::{
    Family, Malformed, checksum,
    extension::{self, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING},
    ip::{self, Header},
    link,
};

/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Bytes of the IPv6 header.
const IPV6_LEN: usize = 40;
/// Bytes of the IPv6 fragment header.
const FRAGMENT_LEN: usize = 8;
/// The longest header of a transport (TCP with all options), bytes.
const MAX_TRANSPORT_HEADER: usize = 60;

/// How a datagram is to be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Longest IP packet that may leave, bytes, headers included.
    pub mtu: u32,
    /// Identification of an IPv6 datagram; an IPv4 datagram keeps its own.
    pub id: u32,
    /// The treatment of the "don't fragment" bit of an IPv4 datagram.
    pub dont_fragment: DontFragment,
}

/// The treatment of the "don't fragment" bit of IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DontFragment {
    /// A datagram with the bit is not cut.
    #[default]
    Obey,
    /// The bit is ignored, and the fragments do not have it.
    Clear,
    /// The bit is ignored, and the fragments have it, because the fragments that came had it.
    Set,
}

/// Why a frame can not be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncut {
    /// The packet fits the MTU, so it need not be cut. A fragment that is the whole datagram is
    /// never made (RFC 8021).
    Fits,
    /// There is no IP packet in the frame, or it has a malformed header.
    NotIp,
    /// The sender of the IPv4 datagram forbids cutting it.
    DontFragment,
    /// An IPv6 packet with a fragment header: only the sender may cut it.
    Fragment,
    /// The MTU has no room for the headers that every fragment needs and 8 bytes of payload.
    /// With IPv6 the first fragment holds all headers (RFC 7112), so it has no room for those.
    /// A jumbogram fits no MTU: it can not be cut.
    NoRoom,
}

impl std::fmt::Display for Uncut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fits => "the packet fits the MTU",
            Self::NotIp => "the frame holds no IP packet that could be read",
            Self::DontFragment => "the packet has the \"don't fragment\" bit",
            Self::Fragment => "the packet is an IPv6 fragment",
            Self::NoRoom => "the MTU has no room for the packet's headers",
        })
    }
}

impl std::error::Error for Uncut {}

/// The fragments of one datagram that are not yet written.
///
/// An IPv4 fragment is cut like a datagram (RFC 791 section 3.2): the new fragments keep its
/// place in the datagram.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    link: &'a [u8],
    header: PieceHeader<'a>,
    /// The part of the payload that is not yet written.
    payload: &'a [u8],
    /// Place of `payload` in the datagram, bytes.
    offset: u16,
    /// True if other fragments of the datagram follow the packet that is cut here.
    more: bool,
    /// Every fragment has "don't fragment".
    dont_fragment: bool,
    mtu: usize,
}

/// The headers between link layer and payload of the next fragment.
#[derive(Clone, Debug)]
enum PieceHeader<'a> {
    V4 {
        fixed: &'a [u8; IPV4_LEN],
        options: Options,
    },
    V6 {
        /// The part that is in front of every fragment header.
        before: &'a [u8],
        /// Offset in `before` of the number that names the next header.
        next_at: usize,
        id: u32,
    },
    /// An IPv6 packet that fits the MTU; all of it is payload. A fragment that is the whole
    /// datagram is never made (RFC 8021).
    Whole,
}

impl<'a> Fragments<'a> {
    /// The fragments of the IP packet in an Ethernet frame. The link header with its tags goes
    /// in front of each.
    ///
    /// Transport checksums must be complete. Only the outermost packet is cut, not one inside a
    /// tunnel.
    ///
    /// # Errors
    /// [`Uncut`] if the packet can not or need not be cut.
    pub fn new(frame: &'a [u8], cut: &Cut) -> Result<Self, Uncut> {
        let header = outermost(frame).ok_or(Uncut::NotIp)?;
        let (start, end) = (usize::from(header.offset), header.end as usize);
        let mtu = cut.mtu as usize;
        if end - start <= mtu {
            return Err(Uncut::Fits);
        }
        let (link, packet) = frame[..end].split_at(start);
        Self::of(link, packet, &header, cut)
    }

    /// The same behind another link header. A packet that fits is the only fragment.
    ///
    /// # Errors
    /// [`Uncut`], but not [`Uncut::Fits`].
    pub fn behind(link: &'a [u8], frame: &'a [u8], cut: &Cut) -> Result<Self, Uncut> {
        let header = outermost(frame).ok_or(Uncut::NotIp)?;
        let packet = &frame[usize::from(header.offset)..header.end as usize];
        if header.family() == Family::V6 && packet.len() <= cut.mtu as usize {
            let (header, mtu) = (PieceHeader::Whole, cut.mtu as usize);
            let (offset, more, dont_fragment) = (0, false, false);
            return Ok(Self { link, header, payload: packet, offset, more, dont_fragment, mtu });
        }
        Self::of(link, packet, &header, cut)
    }

    fn of(link: &'a [u8], packet: &'a [u8], header: &Header<'_>, cut: &Cut) -> Result<Self, Uncut> {
        match header.family() {
            Family::V4 => Self::of_v4(link, packet, header, cut),
            Family::V6 => Self::of_v6(link, packet, header, cut),
        }
    }

    fn of_v4(
        link: &'a [u8],
        packet: &'a [u8],
        header: &Header<'_>,
        cut: &Cut,
    ) -> Result<Self, Uncut> {
        if header.dont_fragment && cut.dont_fragment == DontFragment::Obey {
            return Err(Uncut::DontFragment);
        }
        let (headers, payload) =
            packet.split_at(usize::from(header.transport_offset - header.offset));
        let (fixed, options) = headers.split_first_chunk().ok_or(Uncut::NotIp)?;
        let mtu = cut.mtu as usize;
        if headers.len() + 8 > mtu {
            return Err(Uncut::NoRoom);
        }
        Ok(Self {
            link,
            header: PieceHeader::V4 { fixed, options: Options::new(options) },
            payload,
            offset: header.fragment.map_or(0, |fragment| fragment.offset),
            more: header.more(),
            dont_fragment: cut.dont_fragment == DontFragment::Set,
            mtu,
        })
    }

    fn of_v6(
        link: &'a [u8],
        packet: &'a [u8],
        header: &Header<'_>,
        cut: &Cut,
    ) -> Result<Self, Uncut> {
        if header.fragment.is_some() {
            return Err(Uncut::Fragment);
        }
        let chain_len = usize::from(header.transport_offset - header.offset);
        let (before, next_at) = unfragmentable(&packet[..chain_len]);
        let (before, payload) = packet.split_at(before);
        // RFC 2675 section 3.
        let is_jumbo = packet.len() - IPV6_LEN > usize::from(u16::MAX);
        let transport = MAX_TRANSPORT_HEADER.min(packet.len() - chain_len);
        let mtu = cut.mtu as usize;
        if is_jumbo || (chain_len + FRAGMENT_LEN + transport).next_multiple_of(8) > mtu {
            return Err(Uncut::NoRoom);
        }
        Ok(Self {
            link,
            header: PieceHeader::V6 { before, next_at, id: cut.id },
            payload,
            offset: 0,
            more: false,
            dont_fragment: false,
            mtu,
        })
    }

    /// Length of the frame that [`Fragments::write_next`] writes, `None` after the
    /// last.
    pub fn next_len(&self) -> Option<usize> {
        let length = self.link.len() + self.header.len() + self.piece_len();
        (!self.payload.is_empty()).then_some(length)
    }

    /// Writes the next fragment to the beginning of `out`. Returns its length, or
    /// `None`, with nothing done, after the last or where `out` is too short.
    pub fn write_next(&mut self, out: &mut [u8]) -> Option<usize> {
        let length = self.next_len()?;
        let out = out.get_mut(..length)?;
        let (piece, rest) = self.payload.split_at(self.piece_len());
        let (link, packet) = out.split_at_mut(self.link.len());
        link.copy_from_slice(self.link);
        link::fit(link, packet.len());
        let (header, body) = packet.split_at_mut(self.header.len());
        let place = Position {
            offset: self.offset,
            more: self.more || !rest.is_empty(),
            dont_fragment: self.dont_fragment,
        };
        self.header.write(header, piece.len(), place);
        body.copy_from_slice(piece);
        // Both lie within the datagram, which has no more than 65535 bytes.
        self.offset = self.offset.saturating_add(piece.len() as u16);
        self.payload = rest;
        self.header.leave_out_what_is_not_copied();
        Some(length)
    }

    /// Bytes of the datagram that the next fragment takes.
    fn piece_len(&self) -> usize {
        let room = self.mtu - self.header.len();
        if self.payload.len() <= room { self.payload.len() } else { room & !7 }
    }
}

/// The fields of a fragment's header that place it in the datagram.
struct Position {
    offset: u16,
    more: bool,
    dont_fragment: bool,
}

impl PieceHeader<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Whole => 0,
            Self::V4 { options, .. } => IPV4_LEN + options.bytes().len(),
            Self::V6 { before, .. } => before.len() + FRAGMENT_LEN,
        }
    }

    /// Writes the headers of a piece of `length` bytes to `out`, which has their
    /// length.
    fn write(&self, out: &mut [u8], length: usize, place: Position) {
        let Position { offset, more, dont_fragment } = place;
        match self {
            Self::Whole => {}
            Self::V4 { fixed, options } => {
                let header_len = out.len();
                out[..IPV4_LEN].copy_from_slice(*fixed);
                out[IPV4_LEN..].copy_from_slice(options.bytes());
                out[0] = 0x40 | (header_len / 4) as u8;
                out[2..4].copy_from_slice(&((header_len + length) as u16).to_be_bytes());
                // The reserved bit stays as it is.
                let reserved = u16::from(fixed[6] & 0x80) << 8;
                let flags = (u16::from(dont_fragment) << 14) | (u16::from(more) << 13);
                let field = reserved | flags | (offset / 8);
                out[6..8].copy_from_slice(&field.to_be_bytes());
                checksum::fill_ipv4_header(out);
            }
            Self::V6 { before, next_at, id } => {
                let (copy, fragment) = out.split_at_mut(before.len());
                copy.copy_from_slice(before);
                let payload = before.len() - IPV6_LEN + FRAGMENT_LEN + length;
                copy[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
                copy[*next_at] = FRAGMENT;
                fragment[..2].copy_from_slice(&[before[*next_at], 0]);
                fragment[2..4].copy_from_slice(&(offset | u16::from(more)).to_be_bytes());
                fragment[4..].copy_from_slice(&id.to_be_bytes());
            }
        }
    }

    fn leave_out_what_is_not_copied(&mut self) {
        if let Self::V4 { options, .. } = self {
            *options = options.copied();
        }
    }
}

/// The outermost IP header of a frame, if it is valid.
fn outermost(frame: &[u8]) -> Option<Header<'_>> {
    let place = link::read(frame, 0).ok()?.ip?;
    let header: Result<_, Malformed> = match place.family {
        Family::V4 => ip::ipv4(frame, place.offset),
        Family::V6 => ip::ipv6(frame, place.offset),
    };
    header.ok()
}

/// Length of the part of an IPv6 packet that stands in front of every fragment header: all up
/// to the routing header, else up to the hop-by-hop options (RFC 8200 section 4.5). The second
/// number is the offset of the field in it that names the next header. `chain` ends with the
/// last extension header and has been read before.
fn unfragmentable(chain: &[u8]) -> (usize, usize) {
    let mut found = (IPV6_LEN, 6);
    let (mut at, mut number) = (IPV6_LEN, chain[6]);
    while matches!(number, HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS)
        && let Some(&[next, length]) = chain.get(at..).and_then(<[u8]>::first_chunk)
    {
        let end = at + usize::from(extension::length(number, length));
        if number != DESTINATION_OPTIONS {
            found = (end, at);
        }
        (at, number) = (end, next);
    }
    found
}

/// The options of an IPv4 header, padding included.
#[derive(Clone, Copy, Debug)]
struct Options {
    bytes: [u8; 40],
    length: usize,
}

impl Options {
    /// `options` are those of an IPv4 header: at most 40 bytes.
    fn new(options: &[u8]) -> Self {
        let mut bytes = [0; 40];
        let length = options.len().min(bytes.len());
        bytes[..length].copy_from_slice(&options[..length]);
        Self { bytes, length }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The options that go into every fragment (RFC 791 section 3.1: the copied flag). The list
    /// ends at an option that can not be read.
    fn copied(&self) -> Self {
        const END: u8 = 0;
        const NO_OPERATION: u8 = 1;
        const COPIED: u8 = 0x80;
        let mut copied = Self { bytes: [END; 40], length: 0 };
        let mut rest = self.bytes();
        while let Some(&kind) = rest.first() {
            let length = match (kind, rest.get(1)) {
                (END, _) => break,
                (NO_OPERATION, _) => 1,
                (_, Some(&length)) if (2..=rest.len()).contains(&usize::from(length)) => {
                    usize::from(length)
                }
                _ => break,
            };
            let (option, after) = rest.split_at(length);
            if kind & COPIED != 0 {
                copied.bytes[copied.length..copied.length + length].copy_from_slice(option);
                copied.length += length;
            }
            rest = after;
        }
        copied.length = copied.length.next_multiple_of(4);
        copied
    }
}

#[cfg(test)]
#[path = "fragment_tests.rs"]
mod tests;
