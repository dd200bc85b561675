//! Where the headers of a packet end, and packets of which only the beginning is known.

use crate::{Family, Network, Transport, tail};

/// One past the last byte of the headers by which `network`, the outermost packet of `frame`, is
/// judged: those of IP and of the transport. For an ICMP error this includes the headers that it
/// quotes, for SCTP the first chunk with its fields. Never beyond the end of the packet.
pub fn headers_end(frame: &[u8], network: &Network) -> usize {
    /// ICMP and UDP headers, and the part of a quoted transport that names a flow.
    const SHORT: usize = 8;
    /// The common header of SCTP, the header of a chunk and the fields of INIT (RFC 9260 sections
    /// 3.1 to 3.3.2).
    const SCTP: (usize, usize, usize) = (12, 4, 16);
    let start = usize::from(network.transport_offset);
    let bytes = tail(frame, network.transport_offset);
    let byte = |at: usize| usize::from(bytes.get(at).copied().unwrap_or_default());
    let end = match &network.transport {
        Transport::Tcp(tcp) => start + usize::from(tcp.header_len),
        Transport::Udp { .. } | Transport::IcmpQuery(_) | Transport::IcmpOther { .. } => {
            start + SHORT
        }
        Transport::IcmpError(error) => match &error.quoted {
            Some(quoted) => usize::from(quoted.transport_offset) + SHORT,
            None => start + SHORT + quoted_header(network.family) + SHORT,
        },
        Transport::Sctp { .. } => {
            let (common, chunk, fields) = SCTP;
            let is_init = matches!(byte(common), 1 | 2);
            start + common + chunk + if is_init { fields } else { 0 }
        }
        Transport::Dccp { .. } => start + byte(4) * 4,
        Transport::Gre { .. } => {
            // Four bytes, and four more for each of the fields that a flag announces.
            let fields = (byte(0) & 0xb0).count_ones() + (byte(1) & 0x80).count_ones();
            start + 4 + 4 * fields as usize
        }
        Transport::Other | Transport::LaterFragment => start,
    };
    end.min(network.end as usize)
}

/// Bytes of a quoted IP header without options.
const fn quoted_header(family: Family) -> usize {
    match family {
        Family::V4 => 20,
        Family::V6 => 40,
    }
}

/// Gives the packet `network` of `frame` a readable end, if only the first `captured` bytes of the
/// frame are known and the rest is zero: behind the chunks of SCTP whose headers are known, padding
/// (RFC 4820) stands for all others.
pub fn cover_missing(frame: &mut [u8], network: &Network, captured: usize) {
    const COMMON_HEADER: usize = 12;
    const CHUNK_HEADER: usize = 4;
    const PAD: u8 = 0x84;
    let end = network.end as usize;
    let mut at = usize::from(network.transport_offset) + COMMON_HEADER;
    if !matches!(network.transport, Transport::Sctp { .. }) {
        return;
    }
    while let Some(&mut [ref mut kind, ref mut flags, ref mut l0, ref mut l1]) =
        frame.get_mut(..end).and_then(|packet| packet.get_mut(at..)?.first_chunk_mut())
    {
        if at + CHUNK_HEADER <= captured {
            let length = usize::from(u16::from_be_bytes([*l0, *l1]));
            at += length.max(CHUNK_HEADER).next_multiple_of(4);
        } else {
            (*kind, *flags) = (PAD, 0);
            [*l0, *l1] = u16::try_from(end - at).unwrap_or(u16::MAX).to_be_bytes();
            return;
        }
    }
}
