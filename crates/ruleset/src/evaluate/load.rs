//! Reads the values that rules ask for.

use flow::ZonePair;
use wire::{Family, Network, Transport, protocol};

use super::extension;
use super::outcome::{Outcome, SegmentSize};
use super::view::{CtState, PacketView};
use crate::field::{CtField, Field, Guard, HeaderBits, Layer, nfproto};

/// The value of a field, `None` where the packet has none.
#[inline]
pub(super) fn value(field: Field, view: &PacketView<'_>, changed: &Outcome) -> Option<u128> {
    let network = view.network;
    match field {
        Field::Source(family) => address(network, family, &network.source),
        Field::Destination(family) => address(network, family, &network.destination),
        Field::SourcePort(guard) => port(view, guard, 0),
        Field::DestinationPort(guard) => port(view, guard, 2),
        Field::L4Protocol => Some(network.protocol.into()),
        Field::Nfproto => Some(nfproto(network.family).into()),
        Field::EtherType => Some(if network.family == Family::V4 { 0x0800 } else { 0x86dd }),
        Field::Length => Some((network.end - u32::from(network.offset)).into()),
        Field::Mark => Some(changed.mark.unwrap_or(view.mark).into()),
        Field::Priority => Some(changed.priority.unwrap_or(view.priority).into()),
        Field::PacketType => Some(view.packet_type.into()),
        Field::Input => Some(view.input).filter(|name| *name != 0),
        Field::Output => Some(view.output).filter(|name| *name != 0),
        Field::Vlan => Some(view.vlan.into()).filter(|id| *id != 0),
        Field::Header(bits) => header(bits, view),
        Field::Has(Layer::Extension(number)) => {
            extension::header(view, number).map(|at| at.is_some().into())
        }
        Field::Has(Layer::Option(number)) => {
            extension::option(view, number).map(|at| at.is_some().into())
        }
        Field::Has(Layer::TcpOption(number)) => {
            Some(extension::tcp_option(view, number).is_some().into())
        }
        Field::Has(Layer::SctpChunk(number)) => {
            Some(extension::sctp_chunk(view, number).is_some().into())
        }
        // Import asks this of no other header.
        Field::Has(_) => None,
        Field::SegmentSize => {
            let lowered = match changed.segment_size {
                Some(SegmentSize::AtMost(most)) => u128::from(most),
                _ => u128::MAX,
            };
            segment_size(view).map(|announced| announced.min(lowered))
        }
        Field::Connection(CtField::State) => Some(state(view, changed) as u128),
        Field::Connection(CtField::Zone(way)) if changed.zone.is_some() => {
            changed.zone.map(|zones| zone(zones, way).into())
        }
        Field::Connection(field) => connection(field, view, changed),
        // The run finds these, because it knows the hook and the state.
        Field::Generated(_)
        | Field::Route(_)
        | Field::NextHop(_)
        | Field::RouteSegmentSize
        | Field::Cpu
        | Field::Clock(_)
        | Field::Group(_)
        | Field::LinkType(_)
        | Field::LinkHeader { .. } => None,
    }
}

/// The state of the connection. A rule that gives a packet a zone makes it new.
#[inline]
pub(super) fn state(view: &PacketView<'_>, changed: &Outcome) -> CtState {
    if changed.zone.is_some() { CtState::New } else { view.connection.state }
}

#[inline]
fn address(network: &Network, family: Family, address: &[u8; 16]) -> Option<u128> {
    let bits = u128::from_be_bytes(*address);
    (network.family == family).then_some(match family {
        Family::V4 => bits & 0xffff_ffff,
        Family::V6 => bits,
    })
}

/// The offset of the transport header, if it is there and of the right protocol.
#[inline]
fn transport(view: &PacketView<'_>, guard: Guard) -> Option<usize> {
    let network = view.network;
    let fits = match guard {
        Guard::Any => true,
        Guard::Protocol(number) => network.protocol == number,
        Guard::Over(number, family) => network.protocol == number && network.family == family,
    };
    let is_there = fits && network.transport != Transport::LaterFragment;
    is_there.then_some(usize::from(network.transport_offset))
}

/// Two bytes of the transport header.
#[inline]
pub(super) fn port(view: &PacketView<'_>, guard: Guard, at: usize) -> Option<u128> {
    let begin = transport(view, guard)? + at;
    let &[high, low] = packet(view).get(begin..begin + 2)?.first_chunk()?;
    Some(u16::from_be_bytes([high, low]).into())
}

/// The frame up to the end of the packet.
#[inline]
pub(super) fn packet<'a>(view: &PacketView<'a>) -> &'a [u8] {
    view.frame.get(..view.network.end as usize).unwrap_or(view.frame)
}

/// Where a header begins; `None` if the packet does not have it.
pub(super) fn begin(layer: Layer, view: &PacketView<'_>) -> Option<usize> {
    Some(match layer {
        Layer::Network(family) => {
            let fits = family.is_none_or(|family| family == view.network.family);
            fits.then_some(usize::from(view.network.offset))?
        }
        Layer::Transport(guard) => transport(view, guard)?,
        Layer::Extension(number) => extension::header(view, number)??,
        Layer::Option(number) => extension::option(view, number)??,
        Layer::TcpOption(number) => extension::tcp_option(view, number)?.start,
        Layer::SctpChunk(number) => extension::sctp_chunk(view, number)?.start,
    })
}

/// The end of an option of TCP or a chunk of SCTP; that of the packet for other headers.
fn end_of(layer: Layer, view: &PacketView<'_>) -> Option<usize> {
    Some(match layer {
        Layer::TcpOption(number) => extension::tcp_option(view, number)?.end,
        Layer::SctpChunk(number) => extension::sctp_chunk(view, number)?.end,
        _ => packet(view).len(),
    })
}

fn header(HeaderBits { layer, offset, bits }: HeaderBits, view: &PacketView<'_>) -> Option<u128> {
    let begin = begin(layer, view)?;
    let end = 8 * begin + usize::from(offset) + usize::from(bits);
    if end > 8 * end_of(layer, view)? {
        return None;
    }
    bits_from(view, begin, offset, bits)
}

/// Bits behind a byte of the frame, as far as the packet reaches.
pub(super) fn bits_from(
    view: &PacketView<'_>,
    begin: usize,
    offset: u16,
    bits: u8,
) -> Option<u128> {
    let (first, inside) = (begin + usize::from(offset / 8), u32::from(offset % 8));
    let end = first + (inside as usize + usize::from(bits)).div_ceil(8);
    let bytes = packet(view).get(first..end)?;
    // 128 bits that do not begin at a byte take up to 17 bytes. The first byte is masked here,
    // before a shift would lose its bits.
    let whole = bytes.iter().enumerate().fold(0, |value: u128, (at, byte)| {
        let byte = if at == 0 { byte & (0xff >> inside) } else { *byte };
        match (at == bytes.len() - 1, end) {
            (true, _) => {
                let unused = (8 * bytes.len()) as u32 - inside - u32::from(bits);
                value << (8 - unused) | u128::from(byte >> unused)
            }
            _ => value << 8 | u128::from(byte),
        }
    });
    Some(whole)
}

/// The maximum segment size that a TCP header announces, in bytes (RFC 9293 section 3.2).
fn segment_size(view: &PacketView<'_>) -> Option<u128> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const SEGMENT_SIZE: u8 = 2;
    let begin = transport(view, Guard::Protocol(protocol::TCP))?;
    let Transport::Tcp(tcp) = view.network.transport else { return None };
    let mut options = packet(view).get(begin + 20..begin + usize::from(tcp.header_len))?;
    loop {
        match *options {
            [] | [END, ..] => return None,
            [NOTHING, ref rest @ ..] => options = rest,
            [SEGMENT_SIZE, 4, high, low, ..] => {
                return Some(u16::from_be_bytes([high, low]).into());
            }
            [_, length, ..] if length >= 2 => options = options.get(usize::from(length)..)?,
            _ => return None,
        }
    }
}

fn zone(zones: ZonePair, way: Option<bool>) -> u16 {
    match way {
        None => zones.named().0,
        Some(false) => zones.original.0,
        Some(true) => zones.reply.0,
    }
}

fn connection(field: CtField, view: &PacketView<'_>, changed: &Outcome) -> Option<u128> {
    let known = view.connection.known?;
    let of_family = |family, bytes: [u8; 16]| address(view.network, family, &bytes);
    let sum = |way: Option<bool>, pick: fn((u64, u64)) -> u64| {
        let counts = known.details?.counts()?;
        Some(match way {
            None => pick(counts[0]) + pick(counts[1]),
            Some(reply) => pick(counts[usize::from(reply)]),
        })
    };
    Some(match field {
        CtField::State => view.connection.state as u128,
        CtField::Direction => known.reply.into(),
        CtField::Status => known.status.into(),
        CtField::Mark => changed.ct_mark.unwrap_or(known.mark).into(),
        CtField::Zone(way) => zone(known.zones, way).into(),
        CtField::L3Protocol => nfproto(view.network.family).into(),
        CtField::Protocol => view.network.protocol.into(),
        CtField::Label => known.details?.label() | changed.label,
        CtField::Expiration => known.details?.expiration_ms().min(u32::MAX.into()).into(),
        CtField::Helper => Some(known.details?.helper()).filter(|name| *name != 0)?,
        CtField::Source(reply, family) => of_family(family, known.details?.tuple(reply).source)?,
        CtField::Destination(reply, family) => {
            of_family(family, known.details?.tuple(reply).destination)?
        }
        CtField::SourcePort(reply) => known.details?.tuple(reply).source_port.into(),
        CtField::DestinationPort(reply) => known.details?.tuple(reply).destination_port.into(),
        CtField::Packets(way) => sum(way, |counts| counts.0)?.into(),
        CtField::Bytes(way) => sum(way, |counts| counts.1)?.into(),
        CtField::Average(way) => {
            let packets = sum(way, |counts| counts.0)?;
            (sum(way, |counts| counts.1)?.checked_div(packets).unwrap_or(0)).into()
        }
    })
}
