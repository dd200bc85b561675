//! Where the headers of a packet end.

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
