//! Changing the addresses and ports of a packet in place, as address translation does (RFC 3022
//! section 4.1, RFC 5382, RFC 5508).
//!
//! Every checksum is updated from the change alone (RFC 1624), SCTP's CRC included. So the cost
//! does not depend on the packet's length (SCTP: one step for each byte), a wrong checksum
//! stays wrong, and a first fragment needs no byte of the others.

use std::ops::Range;

use crate::checksum::{Change, ICMP_FIELD, Sum, is_source_routed, sum_field};
use crate::crc32c::crc32c_of_change;
use crate::rewrite::rewrite_ends;
use crate::{
    Family, IcmpError, IcmpQuery, Network, QueryKind, QuotedTransport, Transport, protocol,
};

/// Offset of the checksum in an IPv4 header.
const IPV4_CHECKSUM: usize = 10;
/// Offset of the identifier in an ICMP query.
const ICMP_ID: usize = 4;
/// Offset of the call id in an enhanced GRE header (RFC 2637 section 4.1).
const GRE_CALL_ID: usize = 6;
/// Offset of the CRC in an SCTP header.
const SCTP_CHECKSUM: usize = 8;

/// An address with the number that tells its flows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportAddress {
    /// Address, IPv4 in the mapped form, as in [`Network::source`].
    pub address: [u8; 16],
    /// Port. In an ICMP query it is the identifier, in the place of the end that asks; in
    /// enhanced GRE it is the call id, in the place of the end that receives. Other protocols
    /// ignore it.
    pub port: u16,
}

/// New ends of a packet; an end with `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readdress {
    /// The new sender.
    pub source: Option<TransportAddress>,
    /// The new receiver.
    pub destination: Option<TransportAddress>,
}

/// The bytes that the transport checksum of a packet covers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumCovers {
    /// Pseudo header, transport header and payload: the checksum is complete.
    All,
    /// The pseudo header. The field holds its sum, and the device that sends the packet adds
    /// the rest: a partial checksum.
    PseudoHeader,
}

impl Readdress {
    /// Changes the ends of the packet that `network` describes, and the description.
    ///
    /// `transport_len` is the length of the transport header with its payload in bytes. For a
    /// first fragment it is that of the whole datagram, which SCTP needs. In a later fragment
    /// only addresses change. The new addresses have to be of the packet's family.
    pub fn apply(
        &self,
        frame: &mut [u8],
        network: &mut Network,
        transport_len: usize,
        covers: ChecksumCovers,
    ) {
        if !self.apply_to_usual(frame, network, covers) {
            self.apply_to_any(frame, network, transport_len, covers);
        }
    }

    /// Changes the ends of a whole TCP segment or UDP datagram without IP options. Returns false,
    /// and changes nothing, for any other packet.
    #[inline]
    fn apply_to_usual(
        &self,
        frame: &mut [u8],
        network: &mut Network,
        covers: ChecksumCovers,
    ) -> bool {
        let Some((from, to)) = network.transport.ports() else { return false };
        let Some(frame) = frame.get_mut(..network.end as usize) else { return false };
        let source =
            self.source.unwrap_or(TransportAddress { address: network.source, port: from });
        let destination =
            self.destination.unwrap_or(TransportAddress { address: network.destination, port: to });
        let is_usual = rewrite_ends(frame, network, &source, &destination, covers);
        if is_usual {
            (network.source, network.destination) = (source.address, destination.address);
            self.describe_transport(&mut network.transport);
        }
        is_usual
    }

    pub(crate) fn apply_to_any(
        &self,
        frame: &mut [u8],
        network: &mut Network,
        transport_len: usize,
        covers: ChecksumCovers,
    ) {
        let is_routed = network.family == Family::V6 && is_source_routed(frame, network);
        let Some(frame) = frame.get_mut(..network.end as usize) else { return };
        let packet = Packet {
            family: network.family,
            protocol: network.protocol,
            identified: Identified::of(&network.transport),
            is_routed,
            covers,
            transport_len: Some(transport_len),
        };
        let places = usize::from(network.offset)..usize::from(network.transport_offset);
        if self.write(frame, places, packet).is_some() {
            self.describe(network);
        }
    }

    /// Changes the description of a packet, as [`Readdress::apply`] does together with the packet.
    pub fn describe(&self, network: &mut Network) {
        self.set_addresses(&mut network.source, &mut network.destination);
        self.describe_transport(&mut network.transport);
    }

    /// Changes the ends of the packet that the ICMP error in `frame` quotes, and the
    /// description of it. It updates the checksums of quoted header, quoted transport and
    /// message, as far as the quote reaches. It does not update a CRC, because the quote does
    /// not tell the length that the CRC covers.
    pub fn apply_to_quoted(&self, frame: &mut [u8], network: &mut Network) {
        let start = usize::from(network.transport_offset);
        let family = network.family;
        let Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) = &mut network.transport
        else {
            return;
        };
        let Some(frame) = frame.get_mut(..network.end as usize) else { return };
        let Some(message) = frame.get(start..) else { return };
        let before = Sum::ZERO.bytes(message);
        let packet = Packet {
            family,
            protocol: quoted.protocol,
            identified: Some(Identified::of_quoted(&quoted.transport)),
            is_routed: false,
            covers: ChecksumCovers::All,
            transport_len: None,
        };
        let places = usize::from(quoted.offset)..usize::from(quoted.transport_offset);
        if self.write(frame, places, packet).is_some() {
            self.set_addresses(&mut quoted.source, &mut quoted.destination);
            self.describe_quoted(&mut quoted.transport);
            let message = &mut frame[start..];
            let after = Sum::ZERO.bytes(message);
            Change::between(before, after).update(message, ICMP_FIELD);
        }
    }

    /// Writes addresses, ports and checksums of the packet whose headers are at `places` of
    /// `frame` and which ends with `frame`. `None` if it is cut off before its transport.
    fn write(&self, frame: &mut [u8], places: Range<usize>, packet: Packet) -> Option<()> {
        let (before, transport) = frame.split_at_mut_checked(places.end)?;
        let header = before.get_mut(places.start..)?;
        let addresses = self.write_addresses(header, packet)?;
        let old: Option<[u8; 4]> = transport.first_chunk().copied();
        // A later fragment has no transport header.
        let Some(identified) = packet.identified else { return Some(()) };
        let ports = self.write_ports(transport, identified);
        match (packet.checksum_field(), old) {
            (Some(Field::Sum { at, pseudo_header }), _) => {
                let sum = if pseudo_header { addresses } else { Change::default() };
                packet.update_sum(transport, at, sum, ports);
            }
            (Some(Field::Crc { at }), Some(old)) if packet.covers == ChecksumCovers::All => {
                packet.update_crc(transport, at, old);
            }
            _ => {}
        }
        Some(())
    }

    /// Returns the effect on a sum over the pseudo header.
    fn write_addresses(&self, header: &mut [u8], packet: Packet) -> Option<Change> {
        // With a routing header the pseudo header has the last destination, which is not
        // the one in the IPv6 header (RFC 8200 section 8.1).
        let ends = [(self.source.as_ref(), true), (self.destination.as_ref(), !packet.is_routed)];
        // The length of an address is a constant for each family.
        let change = match packet.family {
            Family::V4 => write_ends::<4>(header.get_mut(12..20)?, ends)?,
            Family::V6 => write_ends::<16>(header.get_mut(8..40)?, ends)?,
        };
        if packet.family == Family::V4 {
            change.update(header, IPV4_CHECKSUM);
        }
        Some(change)
    }

    /// Returns the effect on a sum over the transport header.
    fn write_ports(&self, transport: &mut [u8], identified: Identified) -> Change {
        let mut change = Change::default();
        let mut write = |field: usize, place: Option<TransportAddress>| {
            if let Some(TransportAddress { port, .. }) = place
                && let Some(old) = transport.get_mut(field..).and_then(<[u8]>::first_chunk_mut)
            {
                change = change.replace_word(u16::from_be_bytes(*old).into(), port.into());
                *old = port.to_be_bytes();
            }
        };
        match identified {
            Identified::Ports => {
                write(0, self.source);
                write(2, self.destination);
            }
            Identified::Query { reply } => write(ICMP_ID, self.asking(reply)),
            Identified::Call => write(GRE_CALL_ID, self.destination),
            Identified::Addresses => {}
        }
        change
    }

    /// The new end that asks, in a query or in its answer.
    fn asking(&self, reply: bool) -> Option<TransportAddress> {
        if reply { self.destination } else { self.source }
    }

    fn describe_transport(&self, transport: &mut Transport) {
        match transport {
            Transport::Tcp(tcp) => self.set(&mut tcp.source_port, &mut tcp.destination_port),
            Transport::Udp { source_port, destination_port, .. }
            | Transport::Sctp { source_port, destination_port, .. }
            | Transport::Dccp { source_port, destination_port, .. } => {
                self.set(source_port, destination_port);
            }
            Transport::IcmpQuery(query) => self.set_id(query),
            Transport::Gre { version, key } => self.set_call(*version, key),
            _ => {}
        }
    }

    fn describe_quoted(&self, transport: &mut QuotedTransport) {
        match transport {
            QuotedTransport::Ports { source, destination } => self.set(source, destination),
            QuotedTransport::Query(query) => self.set_id(query),
            QuotedTransport::Gre { version, key } => self.set_call(*version, key),
            QuotedTransport::Other => {}
        }
    }

    fn set_addresses(&self, source: &mut [u8; 16], destination: &mut [u8; 16]) {
        *source = self.source.map_or(*source, |place| place.address);
        *destination = self.destination.map_or(*destination, |place| place.address);
    }

    fn set(&self, source: &mut u16, destination: &mut u16) {
        *source = self.source.map_or(*source, |place| place.port);
        *destination = self.destination.map_or(*destination, |place| place.port);
    }

    fn set_id(&self, query: &mut IcmpQuery) {
        if let Some(place) = self.asking(query.reply).filter(|_| has_id(query)) {
            query.id = place.port;
        }
    }

    fn set_call(&self, version: u8, key: &mut u32) {
        if let Some(place) = self.destination.filter(|_| version == 1) {
            *key = place.port.into();
        }
    }
}

/// Writes the new ones of two adjacent addresses of `N` bytes. Returns the effect on a sum over
/// those whose flag is true.
#[inline]
fn write_ends<const N: usize>(
    addresses: &mut [u8],
    ends: [(Option<&TransportAddress>, bool); 2],
) -> Option<Change> {
    let mut change = Change::default();
    for (old, (new, counts)) in addresses.as_chunks_mut::<N>().0.iter_mut().zip(ends) {
        let Some(TransportAddress { address, .. }) = new else { continue };
        let new = address.last_chunk::<N>()?;
        if counts {
            let words = old.as_chunks::<4>().0.iter().zip(new.as_chunks::<4>().0);
            for (old, new) in words {
                change = change.replace_word(u32::from_be_bytes(*old), u32::from_be_bytes(*new));
            }
        }
        *old = *new;
    }
    Some(change)
}

/// The properties of a packet, or of a quoted one, that a change of its ends depends on.
#[derive(Clone, Copy)]
struct Packet {
    family: Family,
    protocol: u8,
    /// `None` for a later fragment.
    identified: Option<Identified>,
    is_routed: bool,
    covers: ChecksumCovers,
    /// `None` if the packet was cut off.
    transport_len: Option<usize>,
}

/// Offset and kind of a transport's checksum.
enum Field {
    Sum { at: usize, pseudo_header: bool },
    Crc { at: usize },
}

impl Packet {
    /// `None` for a protocol without a checksum over the fields that change.
    fn checksum_field(self) -> Option<Field> {
        if self.protocol == protocol::SCTP {
            return Some(Field::Crc { at: SCTP_CHECKSUM });
        }
        let at = sum_field(self.protocol, self.family)?;
        Some(Field::Sum { at, pseudo_header: self.protocol != protocol::ICMP })
    }

    fn update_sum(self, transport: &mut [u8], at: usize, pseudo_header: Change, header: Change) {
        let Some(field) = transport.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else { return };
        let old = u16::from_be_bytes(*field);
        let new = match self.covers {
            // "None" in UDP (RFC 768).
            ChecksumCovers::All if old == 0 && self.protocol == protocol::UDP => 0,
            ChecksumCovers::All => match pseudo_header.and(header).apply(old) {
                0 if matches!(self.protocol, protocol::UDP | protocol::UDPLITE) => 0xffff,
                new => new,
            },
            // The field has the sum itself, not its complement.
            ChecksumCovers::PseudoHeader => !pseudo_header.apply(!old),
        };
        *field = new.to_be_bytes();
    }

    /// A CRC is linear: the effect of new ports depends only on them and on the number of bytes
    /// behind them.
    fn update_crc(self, transport: &mut [u8], at: usize, old: [u8; 4]) {
        if let Some(length) = self.transport_len
            && let Some(&new) = transport.first_chunk::<4>()
            && let Some(field) = transport.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<4>)
        {
            let changed = u32::from_le_bytes(old) ^ u32::from_le_bytes(new);
            let crc =
                u32::from_le_bytes(*field) ^ crc32c_of_change(changed, length.saturating_sub(4));
            *field = crc.to_le_bytes();
        }
    }
}

/// The fields that tell the flows between two addresses apart.
#[derive(Clone, Copy)]
enum Identified {
    Ports,
    Query { reply: bool },
    Call,
    Addresses,
}

impl Identified {
    fn of(transport: &Transport) -> Option<Self> {
        Some(match transport {
            Transport::LaterFragment => return None,
            Transport::Tcp(_)
            | Transport::Udp { .. }
            | Transport::Sctp { .. }
            | Transport::Dccp { .. } => Self::Ports,
            Transport::IcmpQuery(query) => Self::of_query(query),
            Transport::Gre { version: 1, .. } => Self::Call,
            _ => Self::Addresses,
        })
    }

    fn of_quoted(transport: &QuotedTransport) -> Self {
        match transport {
            QuotedTransport::Ports { .. } => Self::Ports,
            QuotedTransport::Query(query) => Self::of_query(query),
            QuotedTransport::Gre { version: 1, .. } => Self::Call,
            QuotedTransport::Gre { .. } | QuotedTransport::Other => Self::Addresses,
        }
    }

    fn of_query(query: &IcmpQuery) -> Self {
        if has_id(query) { Self::Query { reply: query.reply } } else { Self::Addresses }
    }
}

/// Node information has a query type in the place of the identifier.
fn has_id(query: &IcmpQuery) -> bool {
    query.kind != QueryKind::NodeInformation
}

#[cfg(test)]
#[path = "readdress_tests.rs"]
mod tests;
