//! Extension headers and options, of packets that have some.

use serde_json::json;
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, dissect, protocol};

use super::*;
use crate::field::{
    Field, HeaderBits, Layer, extension, ip_option, raw_tcp_option, sctp_chunk, tcp_option,
};
use crate::testing::{Surroundings, matches};

fn value(frame: &[u8], field: Field) -> Option<u128> {
    let network = dissect(frame).expect("it is right").network.expect("it is IP");
    let view = PacketView::untracked(frame, &network);
    super::super::load::value(field, &view, &crate::Outcome::NOTHING)
}

fn v4(options: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 1]).options(options);
    builder.udp(1, 2, &[], &mut frame);
    frame
}

fn v6(number: u8, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = ([0x20; 16], [0x21; 16]);
    let mut frame = Vec::new();
    PacketBuilder::v6(source, destination).raw(number, payload, &mut frame);
    frame
}

#[test]
fn an_option_is_found_with_its_fields() {
    // Nothing, a record of a route with room for one address, a router alert, the end.
    let frame = v4(&[1, 7, 7, 4, 192, 0, 2, 9, 148, 4, 0, 3]);
    let field = |name, field| ip_option(name, field).expect("it is known").0;
    let expected = [
        ("rr", None, Some(1)),
        ("rr", Some("type"), Some(7)),
        ("rr", Some("length"), Some(7)),
        ("rr", Some("ptr"), Some(4)),
        ("rr", Some("addr"), Some(0xc000_0209)),
        ("ra", None, Some(1)),
        ("ra", Some("value"), Some(3)),
        ("lsrr", None, Some(0)),
        ("lsrr", Some("ptr"), None),
    ];
    for (name, of, found) in expected {
        assert_eq!(value(&frame, field(name, of)), found, "{name} {of:?}");
    }
    assert_eq!(value(&v4(&[]), field("rr", None)), Some(0));
    assert_eq!(value(&v6(17, &[0, 1, 0, 2, 0, 8, 0, 0]), field("rr", None)), None, "not IPv4");
}

#[test]
fn an_option_of_tcp_without_a_name_is_there_or_missing() {
    let option = json!({"tcp option": {"base": 254, "offset": 0, "len": 8}});
    let matches = |operator: &str, there: bool, options: &[u8]| {
        let asked = json!({"match": {"op": operator, "left": option, "right": there}});
        let tcp = Some(Tcp { options, ..Tcp::default() });
        matches(&asked, &Surroundings { tcp, ..Surroundings::default() })
    };
    for (operator, there) in [("==", true), ("==", false), ("!=", true), ("!=", false)] {
        let if_there = (operator == "==") == there;
        assert_eq!(matches(operator, there, &[254, 4, 0, 1]), if_there, "{operator} {there}");
        assert_eq!(matches(operator, there, &[2, 4, 5, 0xb4]), !if_there, "{operator} {there}");
    }
}

#[test]
fn a_header_is_found_behind_others_with_its_fields() {
    let udp = [0, 1, 0, 2, 0, 8, 0, 0];
    let hop = [60, 0, 1, 4, 0, 0, 0, 0];
    let destination = [17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let frame = v6(protocol::HOP_BY_HOP, &[&hop[..], &destination, &udp].concat());
    let field = |name, field| extension(name, field).expect("it is known").0;
    let expected = [
        ("hbh", None, Some(1)),
        ("hbh", Some("nexthdr"), Some(60)),
        ("dst", None, Some(1)),
        ("dst", Some("nexthdr"), Some(17)),
        ("dst", Some("hdrlength"), Some(1)),
        ("rt", None, Some(0)),
        ("rt", Some("type"), None),
        ("frag", None, Some(0)),
    ];
    for (name, of, found) in expected {
        assert_eq!(value(&frame, field(name, of)), found, "{name} {of:?}");
    }
    assert_eq!(value(&v4(&[]), field("hbh", None)), None, "not IPv6");
    // A field beyond the packet is none.
    let layer = Layer::Extension(protocol::DESTINATION_OPTIONS);
    let beyond = HeaderBits { layer, offset: 8 * 100, bits: 8 };
    assert_eq!(value(&frame, Field::Header(beyond)), None);
}

fn tcp(options: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let header = Tcp { flags: TcpFlags::SYN, options, ..Tcp::default() };
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 1]).tcp(&header, &[], &mut frame);
    frame
}

#[test]
fn an_option_of_tcp_is_found_with_its_fields() {
    // A time stamp, SACK permitted, a window scale, blocks of a SACK, and one that is cut off.
    let options =
        [8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 4, 2, 3, 3, 7, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 34, 9];
    let frame = tcp(&options);
    let field = |name, field| tcp_option(name, field).expect("it is known").0;
    let expected = [
        ("timestamp", None, Some(1)),
        ("timestamp", Some("tsval"), Some(7)),
        ("timestamp", Some("tsecr"), Some(9)),
        ("sack-perm", None, Some(1)),
        ("window", Some("count"), Some(7)),
        ("sack", Some("left"), Some(1)),
        ("sack0", Some("right"), Some(2)),
        // The option has one block.
        ("sack1", Some("left"), None),
        ("nop", None, Some(1)),
        ("maxseg", None, Some(0)),
        ("mptcp", Some("subtype"), None),
        ("fastopen", None, Some(0)),
    ];
    for (name, of, found) in expected {
        assert_eq!(value(&frame, field(name, of)), found, "{name} {of:?}");
    }
    let raw = |kind, offset, bits| value(&frame, raw_tcp_option(kind, offset, bits).unwrap().0);
    assert_eq!([raw(3, 16, 8), raw(3, 16, 16), raw(8, 40, 8)], [Some(7), None, Some(7)]);
    // Packets of other protocols have no option.
    assert_eq!(value(&v4(&[]), field("timestamp", None)), Some(0));
    assert_eq!(value(&v4(&[]), field("timestamp", Some("tsval"))), None);
}

#[test]
fn a_chunk_of_sctp_is_found_with_its_fields() {
    // A SACK and data behind it.
    let chunks = [
        &[0, 9, 0, 22, 0, 0, 0, 7, 0, 0, 0, 0][..],
        &[3, 0, 0, 16, 0, 0, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0],
        &[0, 3, 0, 18, 0, 0, 0, 7, 0, 1, 0, 2, 0, 0, 0, 4, 1, 2, 0, 0],
    ];
    let mut frame = Vec::new();
    let builder = PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 1]);
    builder.transport(protocol::SCTP, &chunks.concat(), &mut frame);
    let field = |name, field| sctp_chunk(name, field).expect("it is known").0;
    let expected = [
        ("data", None, Some(1)),
        ("data", Some("flags"), Some(3)),
        ("data", Some("tsn"), Some(7)),
        ("data", Some("stream"), Some(1)),
        ("data", Some("ssn"), Some(2)),
        ("data", Some("ppid"), Some(4)),
        ("sack", Some("a-rwnd"), Some(256)),
        ("sack", Some("num-dup-tsns"), Some(0)),
        ("init", None, Some(0)),
        ("init", Some("init-tag"), None),
    ];
    for (name, of, found) in expected {
        assert_eq!(value(&frame, field(name, of)), found, "{name} {of:?}");
    }
    assert_eq!(value(&v4(&[]), field("data", None)), Some(0));
}
