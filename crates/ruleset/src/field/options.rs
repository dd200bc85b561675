//! The fields of extension headers, of options and of chunks.

use wire::protocol;

use super::{Field, HeaderBits, Layer, Typed};
use crate::kind::Kind;
use crate::names;

/// `{"exthdr": {"name": ..., "field": ...}}`; without a field, whether there is such a header.
pub(crate) fn extension(name: &str, field: Option<&str>) -> Option<Typed> {
    let layer = Layer::Extension(match name {
        "hbh" => protocol::HOP_BY_HOP,
        "rt" | "srh" => protocol::ROUTING,
        "frag" => protocol::FRAGMENT,
        "dst" => protocol::DESTINATION_OPTIONS,
        "mh" => protocol::MOBILITY,
        _ => return None,
    });
    let Some(field) = field else { return Some((Field::Has(layer), Kind::Boolean)) };
    let (offset, bits, kind) = match (name, field) {
        (_, "nexthdr") => (0, 8, Kind::Protocol),
        // RFC 8200 section 4.5.
        ("frag", "reserved") => (8, 8, Kind::Integer(8)),
        ("frag", "frag-off") => (16, 13, Kind::Integer(13)),
        ("frag", "reserved2") => (29, 2, Kind::Integer(2)),
        ("frag", "more-fragments") => (31, 1, Kind::Integer(1)),
        ("frag", "id") => (32, 32, Kind::Integer(32)),
        ("frag", _) => return None,
        (_, "hdrlength") => (8, 8, Kind::Integer(8)),
        // RFC 8200 section 4.4.
        ("rt", "type") => (16, 8, Kind::Integer(8)),
        ("rt", "seg-left") => (24, 8, Kind::Integer(8)),
        // RFC 8754 section 2.
        ("srh", "last-entry") => (32, 8, Kind::Integer(8)),
        ("srh", "flags") => (40, 8, Kind::Integer(8)),
        ("srh", "tag") => (48, 16, Kind::Integer(16)),
        // RFC 6275 section 6.1.1.
        ("mh", "type") => (16, 8, Kind::MobilityType),
        ("mh", "reserved") => (24, 8, Kind::Integer(8)),
        ("mh", "checksum") => (32, 16, Kind::Integer(16)),
        _ => return None,
    };
    Some((Field::Header(HeaderBits { layer, offset, bits }), kind))
}

/// `{"ip option": {"name": ..., "field": ...}}`; without a field, whether there is such an option.
pub(crate) fn ip_option(name: &str, field: Option<&str>) -> Option<Typed> {
    // RFC 791 section 3.1 and RFC 2113.
    let layer = Layer::Option(match name {
        "rr" => 7,
        "lsrr" => 131,
        "ssrr" => 137,
        "ra" => 148,
        _ => return None,
    });
    let (offset, bits) = match (name, field) {
        (_, None) => return Some((Field::Has(layer), Kind::Boolean)),
        (_, Some("type")) => (0, 8),
        (_, Some("length")) => (8, 8),
        ("ra", Some("value")) => (16, 16),
        ("rr" | "lsrr" | "ssrr", Some("ptr")) => (16, 8),
        ("rr" | "lsrr" | "ssrr", Some("addr")) => (24, 32),
        _ => return None,
    };
    Some((Field::Header(HeaderBits { layer, offset, bits }), Kind::Integer(bits)))
}

/// `{"tcp option": {"name": ..., "field": ...}}`; without a field, whether there is such an option.
pub(crate) fn tcp_option(name: &str, field: Option<&str>) -> Option<Typed> {
    let layer = Layer::TcpOption(names::number(names::TCP_OPTIONS, name)? as u8);
    // RFC 2018 section 3: each block has two numbers.
    let block = match name {
        "sack" | "sack0" => Some(16),
        "sack1" => Some(80),
        "sack2" => Some(144),
        "sack3" => Some(208),
        _ => None,
    };
    let (offset, bits) = match (name, field) {
        ("maxseg", Some("size")) => return Some((Field::SegmentSize, Kind::Integer(16))),
        (_, None) => return Some((Field::Has(layer), Kind::Boolean)),
        (_, Some("kind")) => (0, 8),
        ("eol" | "nop", _) => return None,
        (_, Some("length")) => (8, 8),
        // RFC 7323 sections 2.2 and 3.2.
        ("window", Some("count")) => (16, 8),
        ("timestamp", Some("tsval")) => (16, 32),
        ("timestamp", Some("tsecr")) => (48, 32),
        // RFC 8684 section 3.
        ("mptcp", Some("subtype")) => (16, 4),
        (_, Some("left")) => (block?, 32),
        (_, Some("right")) => (block? + 32, 32),
        _ => return None,
    };
    Some((Field::Header(HeaderBits { layer, offset, bits }), Kind::Integer(bits)))
}

/// `{"tcp option": {"base": ..., "offset": ..., "len": ...}}`.
pub(crate) fn raw_tcp_option(kind: u64, offset: u64, bits: u64) -> Option<Typed> {
    let layer = Layer::TcpOption(u8::try_from(kind).ok()?);
    // The longest option fills a header.
    let offset = u16::try_from(offset).ok().filter(|offset| *offset < 8 * 40)?;
    let bits = u8::try_from(bits).ok().filter(|bits| (1..=128).contains(bits))?;
    Some((Field::Header(HeaderBits { layer, offset, bits }), Kind::Integer(bits)))
}

/// `{"sctp chunk": {"name": ..., "field": ...}}`; without a field, whether there is such a chunk.
pub(crate) fn sctp_chunk(name: &str, field: Option<&str>) -> Option<Typed> {
    let layer = Layer::SctpChunk(names::number(names::SCTP_CHUNKS, name)? as u8);
    // RFC 9260 section 3.3.
    let (offset, bits) = match (name, field) {
        (_, None) => return Some((Field::Has(layer), Kind::Boolean)),
        (_, Some("type")) => (0, 8),
        (_, Some("flags")) => (8, 8),
        (_, Some("length")) => (16, 16),
        ("data", Some("tsn"))
        | ("init" | "init-ack", Some("init-tag"))
        | ("sack" | "shutdown", Some("cum-tsn-ack")) => (32, 32),
        ("data", Some("stream")) => (64, 16),
        ("data", Some("ssn")) => (80, 16),
        ("data", Some("ppid")) => (96, 32),
        ("init" | "init-ack" | "sack", Some("a-rwnd")) => (64, 32),
        ("init" | "init-ack", Some("num-outbound-streams"))
        | ("sack", Some("num-gap-ack-blocks")) => (96, 16),
        ("init" | "init-ack", Some("num-inbound-streams")) | ("sack", Some("num-dup-tsns")) => {
            (112, 16)
        }
        ("init" | "init-ack", Some("initial-tsn")) => (128, 32),
        _ => return None,
    };
    Some((Field::Header(HeaderBits { layer, offset, bits }), Kind::Integer(bits)))
}
