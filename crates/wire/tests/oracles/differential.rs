use proptest::prelude::*;
use smoltcp::wire::{Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};
use wire::{
    Family, IcmpError, Network, QuotedTransport, Transport, build::PacketBuilder, checksum, dissect,
};

use crate::{etherparse_view, packets};

/// smoltcp reads no tags, extension headers or fragments. It gets the bytes from the transport
/// on, with the lengths in the IP header.
fn compare_with_smoltcp(frame: &[u8], network: &Network) -> smoltcp::wire::Result<()> {
    let packet = &frame[usize::from(network.offset)..];
    let end = usize::from(network.offset)
        + match network.family {
            Family::V4 => usize::from(Ipv4Packet::new_checked(packet)?.total_len()),
            Family::V6 => Ipv6Packet::new_checked(packet)?.total_len(),
        };
    assert_eq!(network.end as usize, end);
    let (source, destination) = (network.source_ip(), network.destination_ip());
    let bytes = &frame[usize::from(network.transport_offset)..end];
    let is_intact = checksum::verify_transport(frame, network);
    match network.transport {
        Transport::Tcp(tcp) => {
            let theirs = TcpPacket::new_checked(bytes)?;
            assert_eq!(
                (tcp.source_port, tcp.destination_port),
                (theirs.src_port(), theirs.dst_port())
            );
            assert_eq!(tcp.sequence, theirs.seq_number().0 as u32);
            assert_eq!(tcp.acknowledgment, theirs.ack_number().0 as u32);
            assert_eq!(tcp.header_len, theirs.header_len());
            assert_eq!(is_intact, theirs.verify_checksum(&source.into(), &destination.into()));
        }
        // smoltcp takes port 0 for an error.
        Transport::Udp { source_port, destination_port: 1.., length }
            if network.fragment.is_none_or(|fragment| fragment.is_atomic()) =>
        {
            let theirs = UdpPacket::new_checked(bytes)?;
            assert_eq!((source_port, length), (theirs.src_port(), theirs.len()));
            let exempt = network.fragment.is_some() || network.protocol != 17;
            assert!(
                exempt
                    || is_intact == theirs.verify_checksum(&source.into(), &destination.into())
                    || theirs.checksum() == 0
            );
        }
        _ => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn agrees_with_the_oracles_on_valid_packets(frame in packets::frame(2)) {
        prop_assert!(dissect(&frame).is_ok());
        prop_assert!(etherparse_view::compare(&frame));
        let network = dissect(&frame).unwrap().network.unwrap();
        // Routing headers with segments left make smoltcp see a wrong checksum.
        if network.family == Family::V4 || network.transport_offset == network.offset + 40 {
            compare_with_smoltcp(&frame, &network).unwrap();
        }
    }

    #[test]
    fn agrees_with_etherparse_on_damaged_packets(
        mut frame in packets::frame(2),
        flips in proptest::collection::vec((0usize..120, 0u8..8), 1..4),
    ) {
        for (at, bit) in flips {
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        // Otherwise the checksum ends nearly all of the IPv4 frames.
        if frame[12..14] == [8, 0] {
            checksum::fill_ipv4_header(&mut frame[14..]);
        }
        etherparse_view::compare(&frame);
    }

    #[test]
    fn pppoe_changes_nothing_but_offsets(v6: bool, ports: (u16, u16), padding in 0usize..9) {
        let builder = if v6 {
            PacketBuilder::v6([0x20; 16], [0x21; 16])
        } else {
            PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
        };
        let (mut plain, mut session) = (Vec::new(), Vec::new());
        builder.udp(ports.0, ports.1, b"payload", &mut plain);
        builder.clone().pppoe(9).udp(ports.0, ports.1, b"payload", &mut session);
        session.resize(session.len() + padding, 0);
        let plain = dissect(&plain).unwrap();
        let mut session = dissect(&session).unwrap();
        let network = session.network.as_mut().unwrap();
        network.offset -= 8;
        network.transport_offset -= 8;
        network.end -= 8;
        prop_assert_eq!(plain, session);
    }

    #[test]
    fn a_quote_names_the_flow_or_is_too_short(cut in 0usize..60, v6: bool, ports: (u16, u16)) {
        let (outer, about, header) = if v6 {
            let builder = PacketBuilder::v6([0x20; 16], [0x21; 16]);
            (builder.clone(), builder, 40)
        } else {
            let builder = PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]);
            (builder.clone(), builder, 20)
        };
        let (mut quoted, mut frame) = (Vec::new(), Vec::new());
        about.udp(ports.0, ports.1, &[0; 40], &mut quoted);
        outer.icmp_error(if v6 { 1 } else { 3 }, 0, [0; 4], &quoted[14..14 + cut], &mut frame);
        let network = dissect(&frame).unwrap().network.unwrap();
        let Transport::IcmpError(IcmpError { quoted, .. }) = network.transport else { panic!() };
        prop_assert_eq!(
            quoted.map(|quoted| quoted.transport),
            (cut >= header + 4)
                .then_some(QuotedTransport::Ports { source: ports.0, destination: ports.1 })
        );
    }
}
