//! Compares the results of etherparse and of the dissector for a frame.
//!
//! They differ by design in these points:
//!
//! - etherparse does not look at the IPv4 header checksum.
//! - etherparse reads through an authentication header; to the dissector protocol 51
//!   is a protocol of its own, as it is to the kernel's packet filter.
//! - etherparse does not know PPPoE, MPLS and tunnels, nor more than three tags.
//! - etherparse takes no transport from a first fragment.
//! - etherparse reads ICMPv6 in IPv4 and ICMP in IPv6, which nobody speaks.
//! - etherparse reads MACsec headers; to the dissector they are not IP.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use wire::{Dissected, Family, Network, TcpFlags, Transport, dissect, protocol};

/// Dissects `frame` and compares; panics where the two contradict each other.
/// Returns whether both understood the frame.
pub fn compare(frame: &[u8]) -> bool {
    let (Ok(ours), Ok(theirs)) = (dissect(frame), SlicedPacket::from_ethernet(frame)) else {
        return false;
    };
    let Some(network) = ours.network else {
        assert!(
            theirs.net.as_ref().is_none_or(NetSlice::is_arp) || is_macsec(&theirs),
            "{frame:02x?}"
        );
        return true;
    };
    let is_unknown_to_them =
        matches!(ours.ethertype, 0x8847 | 0x8848) || theirs.net.is_none() || network.protocol == 51;
    if is_unknown_to_them {
        return true;
    }
    vlan(&ours, &theirs);
    fields(frame, &network, &theirs);
    transport(&network, &theirs);
    true
}

fn is_macsec(theirs: &SlicedPacket<'_>) -> bool {
    theirs.link_exts.iter().any(|ext| matches!(ext, etherparse::LinkExtSlice::Macsec(_)))
}

fn vlan(ours: &Dissected, theirs: &SlicedPacket<'_>) {
    let first = theirs.vlan_ids().iter().map(|id| id.value()).find(|id| *id != 0);
    assert_eq!(ours.vlan, first.unwrap_or(0));
}

fn fields(frame: &[u8], ours: &Network, theirs: &SlicedPacket<'_>) {
    let payload = match theirs.net.as_ref() {
        Some(NetSlice::Ipv4(packet)) => {
            let header = packet.header();
            assert_eq!(ours.source_ip(), header.source_addr());
            assert_eq!(ours.destination_ip(), header.destination_addr());
            assert_eq!((ours.ttl, ours.dont_fragment), (header.ttl(), header.dont_fragment()));
            assert_eq!(ours.traffic_class, header.slice()[1]);
            let piece = (header.fragments_offset().byte_offset(), header.more_fragments());
            match ours.fragment {
                None => assert_eq!(piece, (0, false)),
                Some(fragment) => {
                    assert_eq!((fragment.offset, fragment.more), piece);
                    assert_eq!(fragment.id, u32::from(header.identification()));
                }
            }
            packet.payload()
        }
        Some(NetSlice::Ipv6(packet)) => {
            let header = packet.header();
            assert_eq!(ours.source_ip(), header.source_addr());
            assert_eq!(ours.destination_ip(), header.destination_addr());
            assert_eq!((ours.ttl, ours.dont_fragment), (header.hop_limit(), false));
            assert_eq!(ours.traffic_class, header.traffic_class());
            let fragment =
                packet.extensions().clone().into_iter().find_map(|extension| match extension {
                    etherparse::Ipv6ExtensionSlice::Fragment(fragment) => Some(fragment),
                    _ => None,
                });
            assert_eq!(
                ours.fragment.map(|f| (f.id, f.offset, f.more)),
                fragment.map(|f| (
                    f.identification(),
                    f.fragment_offset().byte_offset(),
                    f.more_fragments()
                ))
            );
            packet.payload()
        }
        other => panic!("IP to us, to etherparse {other:?}"),
    };
    let is_later = matches!(ours.transport, Transport::LaterFragment);
    if is_later && is_extension(ours.protocol) {
        return;
    }
    assert_eq!(ours.protocol, payload.ip_number.0);
    let offset = payload.payload.as_ptr() as usize - frame.as_ptr() as usize;
    assert_eq!(usize::from(ours.transport_offset), offset);
    assert_eq!(ours.transport_len() as usize, payload.payload.len());
}

fn is_extension(protocol: u8) -> bool {
    matches!(protocol, 0 | 43 | 44 | 51 | 60)
}

fn transport(ours: &Network, theirs: &SlicedPacket<'_>) {
    match (&ours.transport, &theirs.transport) {
        (_, None) => {}
        (Transport::Other, _) if ours.protocol == wrong_icmp(ours.family) => {}
        (Transport::Tcp(tcp), Some(TransportSlice::Tcp(header))) => {
            assert_eq!(tcp.source_port, header.source_port());
            assert_eq!(tcp.destination_port, header.destination_port());
            assert_eq!(tcp.sequence, header.sequence_number());
            assert_eq!(tcp.acknowledgment, header.acknowledgment_number());
            assert_eq!(tcp.window, header.window_size());
            assert_eq!(tcp.header_len, header.data_offset() * 4);
            for (flag, set) in [
                (TcpFlags::FIN, header.fin()),
                (TcpFlags::SYN, header.syn()),
                (TcpFlags::RST, header.rst()),
                (TcpFlags::PSH, header.psh()),
                (TcpFlags::ACK, header.ack()),
                (TcpFlags::URG, header.urg()),
                (TcpFlags::ECE, header.ece()),
                (TcpFlags::CWR, header.cwr()),
            ] {
                assert_eq!(tcp.flags.contains(flag), set, "{flag:?}");
            }
        }
        (
            Transport::Udp { source_port, destination_port, length },
            Some(TransportSlice::Udp(header)),
        ) => {
            assert_eq!(*source_port, header.source_port());
            assert_eq!(*destination_port, header.destination_port());
            assert_eq!(*length, header.length());
        }
        (ours, Some(TransportSlice::Icmpv4(header))) => {
            icmp(ours, header.type_u8(), header.code_u8());
        }
        (ours, Some(TransportSlice::Icmpv6(header))) => {
            icmp(ours, header.type_u8(), header.code_u8());
        }
        (Transport::Other, Some(TransportSlice::Igmp(_))) => {}
        pair => panic!("{pair:?}"),
    }
}

/// The ICMP of the other family.
fn wrong_icmp(family: Family) -> u8 {
    match family {
        Family::V4 => protocol::ICMPV6,
        Family::V6 => protocol::ICMP,
    }
}

fn icmp(ours: &Transport, kind: u8, code: u8) {
    let found = match ours {
        Transport::IcmpQuery(query) => (query.icmp_type, query.code),
        Transport::IcmpError(error) => (error.kind, error.code),
        Transport::IcmpOther { kind, code } => (*kind, *code),
        other => panic!("{other:?}"),
    };
    assert_eq!(found, (kind, code));
}
