use proptest::prelude::*;
use wire::{Dissected, IcmpError, Network, Transport, checksum, dissect, inside};

use crate::packets;

/// Checks the properties of the offsets that hold for any frame.
fn check(frame: &[u8]) {
    let Ok(Dissected { network: Some(outer), .. }) = dissect(frame) else { return };
    check_packet(frame, &outer);
    checksum::verify_transport(frame, &outer);
    let mut filled = frame.to_vec();
    if checksum::fill_transport(&mut filled, &outer) {
        assert!(checksum::verify_transport(&filled, &outer));
    }
    if let Some(inner) = inside(frame, &outer) {
        assert!(inner.offset >= outer.transport_offset && inner.end <= outer.end);
        check_packet(frame, &inner);
    }
}

fn check_packet(frame: &[u8], network: &Network) {
    assert!(network.offset < network.transport_offset);
    assert!(u32::from(network.transport_offset) <= network.end);
    assert!(network.end as usize <= frame.len());
    if let Some(fragment) = network.fragment {
        assert!(fragment.payload_offset <= network.transport_offset);
        assert!(network.offset < fragment.payload_offset);
        assert_eq!(fragment.offset % 8, 0);
    }
    match network.transport {
        Transport::Tcp(tcp) => {
            assert!((20..=60).contains(&tcp.header_len));
            assert!(u32::from(tcp.header_len) <= network.transport_len());
        }
        Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) => {
            assert!(network.transport_offset + 8 <= quoted.offset);
            assert!(quoted.offset < quoted.transport_offset);
            assert!(u32::from(quoted.transport_offset) <= network.end);
        }
        _ => {}
    }
}

/// `frame` as the payload of a tunnel header of the given kind.
fn tunnelled(frame: &[u8], kind: usize) -> Vec<u8> {
    let inner = &frame[14..];
    let is_v6 = frame[12..14] == [0x86, 0xdd];
    let ip = if is_v6 { 41 } else { 4 };
    let gre = |header: &[u8], payload: &[u8]| [header, payload].concat();
    let (protocol, payload) = match kind {
        0 => (ip, inner.to_vec()),
        1 => (47, gre(&[0, 0, frame[12], frame[13]], inner)),
        2 => (47, gre(&[0xa0, 0, frame[12], frame[13], 0, 0, 0, 0, 1, 2, 3, 4], inner)),
        _ => (47, gre(&[0x20, 0, 0x65, 0x58, 0, 0, 1, 0], frame)),
    };
    let mut out = Vec::new();
    wire::build::PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
        .raw(protocol, &payload, &mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_an_ethertype_never_panic(
        ethertype in prop_oneof![
            Just(0x0800u16), Just(0x86dd), Just(0x8100), Just(0x8847), Just(0x8864),
        ],
        mut bytes in proptest::collection::vec(any::<u8>(), 14..200),
        plausible: bool,
    ) {
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        if plausible && bytes.len() > 54 {
            bytes[14] = if ethertype == 0x0800 { 0x45 } else { 0x60 };
            bytes[16..18].fill(0);
            let length = (bytes.len() - if ethertype == 0x0800 { 14 } else { 54 }) as u16;
            let field = if ethertype == 0x0800 { 16 } else { 18 };
            bytes[field..field + 2].copy_from_slice(&length.to_be_bytes());
            checksum::fill_ipv4_header(&mut bytes[14..]);
        }
        check(&bytes);
    }

    #[test]
    fn damaged_packets_never_panic(
        frame in packets::frame(4),
        flips in proptest::collection::vec(any::<(u16, u8)>(), 0..6),
        tunnel in 0usize..5,
    ) {
        let mut frame = if tunnel < 4 { tunnelled(&frame, tunnel) } else { frame };
        for length in 0..frame.len() {
            check(&frame[..length]);
        }
        for (at, mask) in flips {
            let at = usize::from(at) % frame.len();
            frame[at] ^= mask;
        }
        check(&frame);
    }

    #[test]
    fn a_tunnel_shows_what_it_carries(frame in packets::frame(0), kind in 0usize..4) {
        let bare = dissect(&frame).unwrap().network.unwrap();
        // Ethernet padding does not belong to the payload of IP in IP.
        let frame = &frame[..bare.end as usize];
        let outer = tunnelled(frame, kind);
        let tunnel = dissect(&outer).unwrap().network.unwrap();
        let inner = inside(&outer, &tunnel).unwrap();
        prop_assert_eq!(bare.source_ip(), inner.source_ip());
        prop_assert_eq!(bare.destination_ip(), inner.destination_ip());
        prop_assert_eq!(bare.transport_len(), inner.transport_len());
        prop_assert_eq!(
            std::mem::discriminant(&bare.transport),
            std::mem::discriminant(&inner.transport)
        );
        prop_assert_eq!(tunnel.source_ip().to_string(), "192.0.2.1");
        let key = match kind { 2 => 0x0102_0304, 3 => 0x100, _ => 0 };
        let expected = match kind { 0 => Transport::Other, _ => Transport::Gre { version: 0, key } };
        prop_assert_eq!(tunnel.transport, expected);
    }
}
