use super::*;
use crate::build::{PacketBuilder, Tcp};
use proptest::prelude::*;

fn tcp(builder: &PacketBuilder) -> Vec<u8> {
    let mut frame = Vec::new();
    builder.tcp(&Tcp::default(), b"data", &mut frame);
    frame
}

fn v4() -> PacketBuilder {
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2])
}

/// Writes bytes at an offset, and the IPv4 header checksum unless they are part of it.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    if frame[12..14] == [8, 0] && at != 24 {
        crate::checksum::fill_ipv4_header(&mut frame[14..]);
    }
    frame
}

#[test]
fn each_check_is_named_with_its_numbers() {
    let whole = tcp(&v4());
    assert_eq!(fault(&whole), None);
    let sum = u16::from_be_bytes([whole[24], whole[25]]);
    let v6 = tcp(&PacketBuilder::v6([1; 16], [2; 16]));
    let mut udp = Vec::new();
    v4().udp(1, 2, b"data", &mut udp);
    let mut gre = Vec::new();
    v4().raw(protocol::GRE, &[0x40, 0, 8, 0, 0, 0, 0, 0], &mut gre);
    let mut two = Vec::new();
    PacketBuilder::v6([1; 16], [2; 16]).raw(60, &[0, 0, 0, 0, 0, 0, 0, 0, 6, 0], &mut two);
    let mut cut = Vec::new();
    PacketBuilder::v6([1; 16], [2; 16]).raw(60, &[6, 1, 0, 0, 0, 0, 0, 0], &mut cut);
    let cases = [
        (whole[..9].to_vec(), "an Ethernet header has 14 bytes, and 9 are there"),
        (tcp(&v4().vlan(5))[..17].to_vec(), "a VLAN tag has 4 bytes, and 3 are there"),
        (
            with(tcp(&v4().pppoe(7)), 14, &[0x21]),
            "PPPoE version 2 type 1 code 0, and a session has version 1 type 1 code 0",
        ),
        (with(tcp(&v4().pppoe(7)), 18, &[1, 0]), "the PPPoE length is 256, and 46 bytes are there"),
        (whole[..30].to_vec(), "an IPv4 header has 20 bytes, and 16 are there"),
        (with(whole.clone(), 14, &[0x65]), "the IP version is 6, and the link header says 4"),
        (
            with(whole.clone(), 14, &[0x44]),
            "the IPv4 header says that it has 16 bytes, and none has fewer than 20",
        ),
        (
            with(whole.clone(), 16, &[0, 9]),
            "the IPv4 total length is 9, less than the 20 bytes of the header",
        ),
        (
            with(whole.clone(), 24, &[0, 0]),
            &format!("the IPv4 header checksum is 0x0000, not {sum:#06x}"),
        ),
        (whole[..50].to_vec(), "the IPv4 total length is 44, and 36 bytes are there"),
        (v6[..70].to_vec(), "the IPv6 payload length is 24, and 16 bytes are there"),
        (two, "a hop-by-hop header comes behind another header"),
        (cut, "the extension header 60 has 16 bytes, and 8 are there"),
        (
            with(whole.clone(), 46, &[0x40]),
            "the TCP header says that it has 16 bytes, and none has fewer than 20",
        ),
        (with(whole, 46, &[0xf0]), "the TCP header has 60 bytes, and 24 are there"),
        (with(udp, 38, &[0, 99]), "the UDP length is 99, and the packet has 12 bytes of it"),
        (gre, "the GRE header has source routes"),
    ];
    for (frame, expected) in cases {
        assert_eq!(fault(&frame).as_deref(), Some(expected));
    }
}

proptest! {
    #[test]
    fn every_malformed_header_has_a_fault(
        start in 0..4_usize,
        length in 0..120_usize,
        changes in prop::collection::vec((0..70_usize, any::<u8>()), 0..4),
    ) {
        let v6 = PacketBuilder::v6([1; 16], [2; 16]);
        let builders = [v4(), v6.clone().vlan(3), v4().pppoe(7), v6];
        let mut frame = tcp(&builders[start]);
        frame.truncate(length);
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        let is_named = match dissect(&frame) {
            Err(
                Malformed::Link | Malformed::Ipv4Header | Malformed::Ipv6Header
                | Malformed::ExtensionHeaders | Malformed::Tcp | Malformed::Udp
                | Malformed::Icmp | Malformed::Sctp | Malformed::Dccp | Malformed::Gre,
            ) => true,
            _ => return Ok(()),
        };
        prop_assert_eq!(fault(&frame).is_some(), is_named);
    }
}
