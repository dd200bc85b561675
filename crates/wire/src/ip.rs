//! IPv4 and IPv6 headers.

use crate::{
    Family, FragmentInfo, Malformed, Network, Transport, checksum,
    extension::{self, HOP_BY_HOP},
    protocol, tail,
};

/// Longest datagram that the length fields of IPv4 and of IPv6 without a jumbo
/// option can express, bytes.
const MAX_DATAGRAM: usize = 65_535;

/// `::ffff:0:0/96` with the IPv4 address in its last four bytes.
pub(crate) fn mapped(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// An IP header with its extension headers; the fields are those of [`Network`].
///
/// It is small, so that the parsers return it in registers; a [`Network`] is written once, when
/// all fields are known.
pub(crate) struct Header<'a> {
    addresses: Addresses<'a>,
    pub(crate) offset: u16,
    pub(crate) transport_offset: u16,
    pub(crate) end: u32,
    pub(crate) protocol: u8,
    ttl: u8,
    traffic_class: u8,
    pub(crate) dont_fragment: bool,
    pub(crate) fragment: Option<FragmentInfo>,
}

enum Addresses<'a> {
    V4(&'a [u8; 4], &'a [u8; 4]),
    V6(&'a [u8; 16], &'a [u8; 16]),
}

impl Header<'_> {
    pub(crate) fn family(&self) -> Family {
        match self.addresses {
            Addresses::V4(..) => Family::V4,
            Addresses::V6(..) => Family::V6,
        }
    }

    /// More fragments of the datagram come after this one.
    pub(crate) fn more(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.more)
    }

    /// Another fragment holds the transport header.
    pub(crate) fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.offset != 0)
    }

    #[inline(always)]
    pub(crate) fn with_transport(&self, transport: Transport) -> Network {
        let (source, destination) = match self.addresses {
            Addresses::V4(source, destination) => (mapped(*source), mapped(*destination)),
            Addresses::V6(source, destination) => (*source, *destination),
        };
        Network {
            family: self.family(),
            source,
            destination,
            offset: self.offset,
            transport_offset: self.transport_offset,
            end: self.end,
            protocol: self.protocol,
            ttl: self.ttl,
            traffic_class: self.traffic_class,
            dont_fragment: self.dont_fragment,
            fragment: self.fragment,
            transport,
        }
    }
}

/// Reads the IPv4 header at `offset` (RFC 791 section 3.1).
#[inline(always)]
pub(crate) fn ipv4(packet: &[u8], offset: u16) -> Result<Header<'_>, Malformed> {
    const BAD: Malformed = Malformed::Ipv4Header;
    let rest = tail(packet, offset);
    let fixed: &[u8; 20] = rest.first_chunk().ok_or(BAD)?;
    let &[version_ihl, traffic_class, l0, l1, i0, i1, f0, f1, ttl, protocol, ..] = fixed;
    let header_len = u16::from(version_ihl & 0x0f) * 4;
    let total = u16::from_be_bytes([l0, l1]);
    if version_ihl >> 4 != 4
        || header_len < 20
        || total < header_len
        || usize::from(header_len) > rest.len()
    {
        return Err(BAD);
    }
    let intact = match header_len {
        20 => checksum::is_intact(fixed),
        _ => checksum::is_intact(&rest[..usize::from(header_len)]),
    };
    if !intact {
        return Err(BAD);
    }
    let transport_offset = offset.checked_add(header_len).ok_or(BAD)?;

    let field = u16::from_be_bytes([f0, f1]);
    let fragment = if field & 0x3fff == 0 {
        None
    } else {
        let fragment = FragmentInfo {
            id: u32::from(u16::from_be_bytes([i0, i1])),
            offset: (field & 0x1fff) * 8,
            more: field & 0x2000 != 0,
            payload_offset: transport_offset,
        };
        let length = usize::from(total - header_len);
        check_fragment(&fragment, length, usize::from(header_len))?;
        if protocol == protocol::TCP && fragment.offset == 8 {
            return Err(Malformed::FirstFragment);
        }
        Some(fragment)
    };
    // Checked last: a fragment whose header is wrong names an attack, also if a capture holds
    // no more than the header.
    if usize::from(total) > rest.len() {
        return Err(BAD);
    }
    let (source, destination) = fixed[12..].split_first_chunk().ok_or(BAD)?;
    Ok(Header {
        addresses: Addresses::V4(source, destination.first_chunk().ok_or(BAD)?),
        offset,
        transport_offset,
        end: u32::from(offset) + u32::from(total),
        protocol,
        ttl,
        traffic_class,
        dont_fragment: field & 0x4000 != 0,
        fragment,
    })
}

/// Reads the IPv6 header at `offset` with its extension headers (RFC 8200).
#[inline(always)]
pub(crate) fn ipv6(packet: &[u8], offset: u16) -> Result<Header<'_>, Malformed> {
    const BAD: Malformed = Malformed::Ipv6Header;
    let rest = tail(packet, offset);
    let (fixed, payload) = rest.split_first_chunk::<40>().ok_or(BAD)?;
    let (head, addresses) = fixed.split_first_chunk::<8>().ok_or(BAD)?;
    let &[v0, v1, _, _, l0, l1, next, ttl] = head;
    if v0 >> 4 != 6 {
        return Err(BAD);
    }
    let length = match u16::from_be_bytes([l0, l1]) {
        0 if next == HOP_BY_HOP => jumbo_length(payload)?,
        length => u32::from(length),
    };
    let payload = usize::try_from(length).ok().and_then(|n| payload.get(..n)).ok_or(BAD)?;
    let end = usize::from(offset) + 40 + payload.len();
    let chain_offset = offset.checked_add(40).ok_or(BAD)?;
    let chain = extension::walk(&packet[..end], chain_offset, next)?;
    if let Some(fragment) = &chain.fragment {
        let unfragmentable = usize::from(fragment.payload_offset - chain_offset) - 8;
        let length = end - usize::from(fragment.payload_offset);
        check_fragment(fragment, length, unfragmentable)?;
    }
    let (source, destination) = addresses.split_first_chunk::<16>().ok_or(BAD)?;
    Ok(Header {
        addresses: Addresses::V6(source, destination.first_chunk().ok_or(BAD)?),
        offset,
        transport_offset: chain.offset,
        end: u32::from(offset) + 40 + length,
        protocol: chain.protocol,
        ttl,
        traffic_class: (v0 << 4) | (v1 >> 4),
        dont_fragment: false,
        fragment: chain.fragment,
    })
}

/// The payload length of a jumbogram (RFC 2675 section 2), which a super-packet of the kernel
/// may be. Only a hop-by-hop header that begins with the option is understood; the kernel
/// writes it so.
fn jumbo_length(payload: &[u8]) -> Result<u32, Malformed> {
    match payload.first_chunk() {
        Some(&[_, _, 0xc2, 4, l0, l1, l2, l3]) => {
            let length = u32::from_be_bytes([l0, l1, l2, l3]);
            if length > u32::from(u16::MAX) { Ok(length) } else { Err(Malformed::Ipv6Header) }
        }
        _ => Err(Malformed::Ipv6Header),
    }
}

/// Checks a fragment of `length` bytes. `before` bytes in front of the fragmentable part count
/// against the limit too.
fn check_fragment(fragment: &FragmentInfo, length: usize, before: usize) -> Result<(), Malformed> {
    if length == 0 && !fragment.is_atomic() {
        Err(Malformed::FragmentEmpty)
    } else if fragment.more && !length.is_multiple_of(8) {
        Err(Malformed::FragmentLength)
    } else if before + usize::from(fragment.offset) + length > MAX_DATAGRAM {
        Err(Malformed::FragmentOversize)
    } else {
        Ok(())
    }
}
