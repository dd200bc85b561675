//! Writing one field of a header in place, as rules do that set fields without state.
//!
//! Checksums are updated from the change alone (RFC 1624), as with [`Readdress`](crate::Readdress):
//! a wrong one stays wrong, and a first fragment needs no byte of the others.

use crate::checksum::{Change, is_source_routed, sum_field};
use crate::crc32c::crc32c_of_change;
use crate::{ChecksumCovers, Family, Network, Transport, protocol};

/// Offset of the checksum in an IPv4 header.
const IPV4_CHECKSUM: usize = 10;
/// Offset of the CRC in an SCTP header.
const SCTP_CHECKSUM: usize = 8;
/// The longest run of bytes that a write touches: 128 bits that begin anywhere, with whole words.
const LONGEST: usize = 18;

/// A new value for some bits of a header that hold no length, no protocol and no checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldWrite {
    /// True for the transport header, false for the IP header.
    pub of_transport: bool,
    /// The first bit, from the header's first.
    pub offset: u16,
    /// Number of bits, 1 to 128.
    pub bits: u8,
    /// The value, in the low bits.
    pub value: u128,
}

impl FieldWrite {
    /// True if both write the same field.
    pub fn is_same_field(&self, other: &Self) -> bool {
        (self.of_transport, self.offset, self.bits)
            == (other.of_transport, other.offset, other.bits)
    }

    /// True for the time to live or the hop limit.
    pub fn is_hops(&self, family: Family) -> bool {
        let place = if family == Family::V4 { 64 } else { 56 };
        !self.of_transport && self.offset == place
    }

    /// Writes the field of the packet that `network` describes, and brings the description up to
    /// date. `transport_len` is the length of the transport header with its payload, for a first
    /// fragment that of the whole datagram. Returns false, and changes nothing, if the packet does
    /// not have the field.
    pub fn apply(
        &self,
        frame: &mut [u8],
        network: &mut Network,
        transport_len: usize,
        covers: ChecksumCovers,
    ) -> bool {
        let start = match self.of_transport {
            true if network.transport == Transport::LaterFragment => return false,
            true => network.transport_offset,
            false => network.offset,
        };
        let Some(header) = frame.get_mut(usize::from(start)..) else { return false };
        let Some((first, change)) = self.write(header) else { return false };
        if self.of_transport {
            let transport = &mut frame[usize::from(start)..];
            update_transport(transport, network, (first, change), transport_len, covers);
        } else {
            self.update_network(frame, network, change.sum, covers);
        }
        self.describe(frame, network);
        true
    }

    /// Writes the bits, and returns the first byte of the words that they lie in with the change.
    fn write(&self, header: &mut [u8]) -> Option<(usize, Written)> {
        let bits = u32::from(self.bits.min(128));
        let (begin, last) = (usize::from(self.offset), usize::from(self.offset) + bits as usize);
        let (first, end) = (begin / 16 * 2, last.div_ceil(16) * 2);
        let field = header.get_mut(first..end)?;
        let (mut old, mut new) = ([0; LONGEST], [0; LONGEST]);
        let length = field.len();
        let (old, new) = (old.get_mut(..length)?, new.get_mut(..length)?);
        old.copy_from_slice(field);
        new.copy_from_slice(field);
        for bit in 0..bits {
            let place = begin - 8 * first + bit as usize;
            let mask = 0x80 >> (place % 8);
            let is_set = self.value >> (bits - 1 - bit) & 1 == 1;
            let byte = &mut new[place / 8];
            *byte = if is_set { *byte | mask } else { *byte & !mask };
        }
        field.copy_from_slice(new);
        let mut ports = [0; 4];
        ports.iter_mut().zip(old.iter().zip(&*new)).for_each(|(it, (old, new))| *it = old ^ new);
        Some((first, Written { sum: Change::default().replace(old, new), length, bytes: ports }))
    }

    /// Updates the checksums that cover the IP header.
    fn update_network(
        &self,
        frame: &mut [u8],
        network: &Network,
        change: Change,
        covers: ChecksumCovers,
    ) {
        let (offset, last) = (self.offset, self.offset + u16::from(self.bits));
        let (addresses, destination) = match network.family {
            Family::V4 => (96..160, 128),
            Family::V6 => (64..320, 192),
        };
        if network.family == Family::V4
            && let Some(header) = frame.get_mut(usize::from(network.offset)..)
        {
            change.update(header, IPV4_CHECKSUM);
        }
        let is_address = offset < addresses.end && last > addresses.start;
        // With a routing header the pseudo header has the last destination, which is not the one
        // in the IPv6 header (RFC 8200 section 8.1).
        let is_on_the_way = network.family == Family::V6
            && offset >= destination
            && is_source_routed(frame, network);
        if !is_address || is_on_the_way || network.transport == Transport::LaterFragment {
            return;
        }
        if let Some(at) = sum_field(network.protocol, network.family)
            && network.protocol != protocol::ICMP
            && let Some(transport) = frame.get_mut(usize::from(network.transport_offset)..)
        {
            update_sum(transport, at, network.protocol, change, covers, true);
        }
    }

    /// Reads again what the description has of the header.
    fn describe(&self, frame: &[u8], network: &mut Network) {
        if self.of_transport {
            let at = usize::from(network.transport_offset);
            describe_transport(frame.get(at..).unwrap_or_default(), &mut network.transport);
            return;
        }
        let header = frame.get(usize::from(network.offset)..).unwrap_or_default();
        let mapped = |address: &[u8]| {
            let mut whole = [0; 16];
            whole[10..12].fill(0xff);
            whole[12..].copy_from_slice(address);
            whole
        };
        match network.family {
            Family::V4 if header.len() >= 20 => {
                (network.traffic_class, network.ttl) = (header[1], header[8]);
                network.source = mapped(&header[12..16]);
                network.destination = mapped(&header[16..20]);
            }
            Family::V6 if header.len() >= 40 => {
                network.traffic_class = header[0] << 4 | header[1] >> 4;
                network.ttl = header[7];
                network.source.copy_from_slice(&header[8..24]);
                network.destination.copy_from_slice(&header[24..40]);
            }
            _ => {}
        }
    }
}

/// The effect of a write.
struct Written {
    /// On a sum.
    sum: Change,
    /// Bytes of the words that were written.
    length: usize,
    /// The bits that differ, of the first four bytes.
    bytes: [u8; 4],
}

/// Updates the checksum of a transport header, a part of which has changed.
fn update_transport(
    transport: &mut [u8],
    network: &Network,
    (first, written): (usize, Written),
    transport_len: usize,
    covers: ChecksumCovers,
) {
    if network.protocol == protocol::SCTP {
        // A CRC is linear: the effect of a change depends only on it and on the number of bytes
        // behind it.
        if covers == ChecksumCovers::All
            && written.length <= 4
            && let Some(field) =
                transport.get_mut(SCTP_CHECKSUM..).and_then(<[u8]>::first_chunk_mut::<4>)
        {
            let changed = u32::from_le_bytes(written.bytes);
            let behind = transport_len.saturating_sub(first + 4);
            let crc = u32::from_le_bytes(*field) ^ crc32c_of_change(changed, behind);
            *field = crc.to_le_bytes();
        }
    } else if let Some(at) = sum_field(network.protocol, network.family) {
        update_sum(transport, at, network.protocol, written.sum, covers, false);
    }
}

/// Updates a sum; `of_pseudo_header` if the change is one of the pseudo header.
fn update_sum(
    transport: &mut [u8],
    at: usize,
    protocol: u8,
    change: Change,
    covers: ChecksumCovers,
    of_pseudo_header: bool,
) {
    let Some(field) = transport.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else { return };
    let old = u16::from_be_bytes(*field);
    let new = match covers {
        // "None" in UDP (RFC 768).
        ChecksumCovers::All if old == 0 && protocol == protocol::UDP => 0,
        ChecksumCovers::All => match change.apply(old) {
            0 if matches!(protocol, protocol::UDP | protocol::UDPLITE) => 0xffff,
            new => new,
        },
        // The field has the sum itself, not its complement.
        ChecksumCovers::PseudoHeader if of_pseudo_header => !change.apply(!old),
        ChecksumCovers::PseudoHeader => old,
    };
    *field = new.to_be_bytes();
}

fn describe_transport(header: &[u8], transport: &mut Transport) {
    let two = |at: usize| {
        let bytes = header.get(at..).and_then(<[u8]>::first_chunk::<2>);
        bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes))
    };
    let four = |at| u32::from(two(at)) << 16 | u32::from(two(at + 2));
    match transport {
        Transport::Tcp(tcp) => {
            (tcp.source_port, tcp.destination_port) = (two(0), two(2));
            (tcp.sequence, tcp.acknowledgment, tcp.window) = (four(4), four(8), two(14));
        }
        Transport::Udp { source_port, destination_port, .. }
        | Transport::Sctp { source_port, destination_port, .. }
        | Transport::Dccp { source_port, destination_port, .. } => {
            (*source_port, *destination_port) = (two(0), two(2));
        }
        Transport::IcmpQuery(query) => {
            query.code = two(0) as u8;
            if query.kind != crate::QueryKind::NodeInformation {
                query.id = two(4);
            }
        }
        Transport::IcmpOther { code, .. } => *code = two(0) as u8,
        _ => {}
    }
}

#[cfg(test)]
#[path = "field_write_tests.rs"]
mod tests;
