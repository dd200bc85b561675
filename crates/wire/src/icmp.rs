//! ICMP and ICMPv6: queries, errors and the packets that errors quote.

use crate::{
    Family, IcmpError, IcmpQuery, Malformed, QueryKind, Quoted, QuotedTransport, Transport,
    extension, ip, protocol, tail, transport,
};

/// Reads the message at `offset` of `packet`, which ends where the IP packet ends.
///
/// ICMP errors are the types that the Linux tracker relates to a flow:
/// destination unreachable, source quench, redirect, time exceeded and parameter
/// problem; for ICMPv6 types 1 to 4 (RFC 4443). An ICMPv6 redirect belongs to
/// neighbour discovery.
pub(crate) fn read(packet: &[u8], family: Family, offset: u16) -> Result<Transport, Malformed> {
    let header: &[u8; 8] = tail(packet, offset).first_chunk().ok_or(Malformed::Icmp)?;
    let &[kind, code, ..] = header;
    if let Some(query) = query(family, header) {
        return Ok(Transport::IcmpQuery(query));
    }
    let is_error = match family {
        Family::V4 => matches!(kind, 3 | 4 | IcmpError::REDIRECT | 11 | 12),
        // Also those that nobody has defined yet (RFC 4443 section 2.1).
        Family::V6 => kind < 128,
    };
    if !is_error {
        return Ok(Transport::IcmpOther { kind, code });
    }
    let quoted = offset.checked_add(8).and_then(|offset| match family {
        Family::V4 => quoted_v4(packet, offset),
        Family::V6 => quoted_v6(packet, offset),
    });
    Ok(if family == Family::V4 && kind == IcmpError::REDIRECT && quoted.is_none() {
        Transport::IcmpOther { kind, code }
    } else {
        Transport::IcmpError(IcmpError { kind, code, quoted })
    })
}

/// The query or answer that `header` begins. Node information has no identifier; its query type
/// (RFC 4620 section 4), which the answer repeats, takes that place.
fn query(family: Family, header: &[u8; 8]) -> Option<IcmpQuery> {
    let &[icmp_type, code, _, _, i0, i1, _, _] = header;
    let (kind, reply) = match (family, icmp_type) {
        (Family::V4, 8) => (QueryKind::Echo, false),
        (Family::V4, 0) => (QueryKind::Echo, true),
        (Family::V4, 13) => (QueryKind::Timestamp, false),
        (Family::V4, 14) => (QueryKind::Timestamp, true),
        (Family::V4, 15) => (QueryKind::Information, false),
        (Family::V4, 16) => (QueryKind::Information, true),
        (Family::V4, 17) => (QueryKind::AddressMask, false),
        (Family::V4, 18) => (QueryKind::AddressMask, true),
        (Family::V6, 128) => (QueryKind::EchoV6, false),
        (Family::V6, 129) => (QueryKind::EchoV6, true),
        (Family::V6, 139) => (QueryKind::NodeInformation, false),
        (Family::V6, 140) => (QueryKind::NodeInformation, true),
        _ => return None,
    };
    Some(IcmpQuery { kind, reply, icmp_type, code, id: u16::from_be_bytes([i0, i1]) })
}

/// The quote in an ICMP error. Its checksum and total length are ignored: the router that
/// quotes may have changed the header, and it may have cut the packet.
fn quoted_v4(packet: &[u8], offset: u16) -> Option<Quoted> {
    let rest = tail(packet, offset);
    let header: &[u8; 20] = rest.first_chunk()?;
    let &[version_ihl, _, _, _, _, _, f0, f1, _, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3] =
        header;
    let header_len = u16::from(version_ihl & 0x0f) * 4;
    let later = u16::from_be_bytes([f0, f1]) & 0x1fff != 0;
    let cut_short = rest.len() < usize::from(header_len);
    if version_ihl >> 4 != 4 || header_len < 20 || cut_short || later {
        return None;
    }
    let transport_offset = offset.checked_add(header_len)?;
    Some(Quoted {
        source: ip::mapped([s0, s1, s2, s3]),
        destination: ip::mapped([d0, d1, d2, d3]),
        offset,
        transport_offset,
        protocol,
        transport: quoted_transport(packet, Family::V4, protocol, transport_offset)?,
    })
}

fn quoted_v6(packet: &[u8], offset: u16) -> Option<Quoted> {
    let header: &[u8; 40] = tail(packet, offset).first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let chain = extension::walk(packet, offset.checked_add(40)?, header[6]).ok()?;
    if chain.fragment.is_some_and(|fragment| fragment.offset != 0) {
        return None;
    }
    Some(Quoted {
        source: *header[8..].first_chunk()?,
        destination: *header[24..].first_chunk()?,
        offset,
        transport_offset: chain.offset,
        protocol: chain.protocol,
        transport: quoted_transport(packet, Family::V6, chain.protocol, chain.offset)?,
    })
}

/// The fields that name the flow. `None` if the quote ends before them or is of an ICMP message
/// without a flow. All of them lie in the first 8 bytes, except the key of a GRE header with a
/// checksum.
fn quoted_transport(
    packet: &[u8],
    family: Family,
    protocol: u8,
    offset: u16,
) -> Option<QuotedTransport> {
    let bytes = tail(packet, offset);
    match (family, protocol) {
        (
            _,
            protocol::TCP | protocol::UDP | protocol::UDPLITE | protocol::SCTP | protocol::DCCP,
        ) => {
            let &[s0, s1, d0, d1] = bytes.first_chunk()?;
            Some(QuotedTransport::Ports {
                source: u16::from_be_bytes([s0, s1]),
                destination: u16::from_be_bytes([d0, d1]),
            })
        }
        (Family::V4, protocol::ICMP) | (Family::V6, protocol::ICMPV6) => {
            query(family, bytes.first_chunk()?).map(QuotedTransport::Query)
        }
        (_, protocol::GRE) => {
            let header = transport::gre(bytes).ok()?;
            Some(match header.version {
                version @ 0..=1 => QuotedTransport::Gre { version, key: header.key },
                _ => QuotedTransport::Other,
            })
        }
        _ => Some(QuotedTransport::Other),
    }
}
