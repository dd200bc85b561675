//! Changing the payload of a packet, which may become longer or shorter.

use std::ops::Range;

use crate::checksum::{Change, fill_ipv4_header, fill_transport, sum_field, verify_transport};
use crate::{ChecksumCovers, Family, Network, Transport};

/// Length of a UDP header, bytes.
const UDP_HEADER: usize = 8;
/// Length of an IPv6 header, bytes. The length field of IPv6 does not count it.
const IPV6_HEADER: usize = 40;

/// Writes the packet that `network` describes into `out`, with some ranges of its TCP or UDP
/// payload replaced. Returns the new description. It writes correct lengths and checksums; a
/// wrong checksum stays wrong, and UDP without a checksum stays without. Headers in front of
/// `network`, such as those of a tunnel or of PPPoE, are copied: if they contain the length of
/// the packet, the caller has to adapt them.
///
/// The ranges count from the first byte behind the transport header; they are in order and do
/// not overlap. `None`, with anything in `out`, if they are not so, for other protocols, for
/// fragments, and for a packet that would be longer than its length field allows.
pub fn edit_payload<'a>(
    frame: &[u8],
    network: &Network,
    edits: impl IntoIterator<Item = (Range<usize>, &'a [u8])>,
    covers: ChecksumCovers,
    out: &mut Vec<u8>,
) -> Option<Network> {
    if network.fragment.is_some_and(|fragment| !fragment.is_atomic()) {
        return None;
    }
    let transport = usize::from(network.transport_offset);
    let start = transport + header_len(&network.transport)?;
    let payload = frame.get(start..network.end as usize)?;
    out.clear();
    out.extend_from_slice(&frame[..start]);
    let mut at = 0;
    for (place, text) in edits {
        out.extend_from_slice(payload.get(at..place.start)?);
        payload.get(place.clone())?;
        out.extend_from_slice(text);
        at = place.end;
    }
    out.extend_from_slice(payload.get(at..)?);
    let mut edited = *network;
    edited.end = u32::try_from(out.len()).ok()?;
    write_lengths(out, &mut edited)?;
    let lengths = [network, &edited].map(|it| it.end as usize - transport);
    match covers {
        ChecksumCovers::All => {
            let field = field(out, &edited)?;
            let is_left_out = matches!(edited.transport, Transport::Udp { .. }) && *field == [0, 0];
            if !is_left_out && verify_transport(frame, network) {
                fill_transport(out, &edited);
            }
        }
        ChecksumCovers::PseudoHeader => {
            let [before, after] = lengths.map(|length| (length as u32).to_be_bytes());
            let change = Change::default().replace(&before, &after);
            let field = field(out, &edited)?;
            *field = (!change.apply(!u16::from_be_bytes(*field))).to_be_bytes();
        }
    }
    Some(edited)
}

fn header_len(transport: &Transport) -> Option<usize> {
    match transport {
        Transport::Tcp(tcp) => Some(usize::from(tcp.header_len)),
        Transport::Udp { .. } => Some(UDP_HEADER),
        _ => None,
    }
}

/// Writes the lengths of the packet that ends with `frame`.
fn write_lengths(frame: &mut [u8], network: &mut Network) -> Option<()> {
    let (end, start) = (frame.len(), usize::from(network.offset));
    let header = &mut frame[start..];
    match network.family {
        Family::V4 => {
            let total = u16::try_from(end - start).ok()?;
            header.get_mut(2..4)?.copy_from_slice(&total.to_be_bytes());
            fill_ipv4_header(header);
        }
        Family::V6 => {
            let behind = u16::try_from((end - start).checked_sub(IPV6_HEADER)?).ok()?;
            let field = header.get_mut(4..6)?;
            // A zero stands for a length that does not fit the field (RFC 2675).
            if *field == [0, 0] {
                return None;
            }
            field.copy_from_slice(&behind.to_be_bytes());
        }
    }
    if let Transport::Udp { length, .. } = &mut network.transport {
        let transport = usize::from(network.transport_offset);
        *length = u16::try_from(end - transport).ok()?;
        frame.get_mut(transport + 4..transport + 6)?.copy_from_slice(&length.to_be_bytes());
    }
    Some(())
}

fn field<'a>(frame: &'a mut [u8], network: &Network) -> Option<&'a mut [u8; 2]> {
    let at = sum_field(network.protocol, network.family)?;
    frame.get_mut(usize::from(network.transport_offset) + at..)?.first_chunk_mut()
}

#[cfg(test)]
#[path = "payload_tests.rs"]
mod tests;
