use super::*;
use crate::build::PacketBuilder;
use crate::dissect;

const TAGS: [u16; 3] = [ethertype::VLAN, ethertype::SERVICE_VLAN, ethertype::OLD_QINQ];

/// An IP packet in an Ethernet frame.
fn packet(family: Family) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = match family {
        Family::V4 => PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]),
        Family::V6 => PacketBuilder::v6([0x20; 16], [0x21; 16]),
    };
    builder.udp(1000, 53, b"question", &mut frame);
    frame
}

/// The frame with these bytes between its addresses and its EtherType.
fn behind(link: &[u8], frame: &[u8]) -> Vec<u8> {
    [&frame[..12], link, &frame[12..]].concat()
}

/// The frame with these bytes in the place of its EtherType.
fn instead(link: &[u8], frame: &[u8]) -> Vec<u8> {
    [&frame[..12], link, &frame[14..]].concat()
}

fn tag(kind: u16, identifier: u16) -> [u8; 4] {
    let ([k0, k1], [i0, i1]) = (kind.to_be_bytes(), identifier.to_be_bytes());
    [k0, k1, i0, i1]
}

fn is_ip(frame: &[u8]) -> Result<bool, Malformed> {
    Ok(dissect(frame)?.network.is_some())
}

#[test]
fn no_stack_of_tags_hides_a_packet() {
    for family in [Family::V4, Family::V6] {
        let frame = packet(family);
        // Every mixture of the kinds up to seven tags, and a few of more.
        for depth in 0..=12 {
            for mixture in 0..3_usize.pow(depth.min(7)) {
                let kind = |place: u32| TAGS[mixture / 3_usize.pow(place % 7) % 3];
                let tags: Vec<u8> = (0..depth).flat_map(|place| tag(kind(place), 0xe000)).collect();
                let expected = match depth as usize <= Dissected::MAX_VLAN_TAGS {
                    true => Ok(true),
                    false => Err(Malformed::LinkDepth),
                };
                assert_eq!(is_ip(&behind(&tags, &frame)), expected, "{tags:02x?}");
            }
        }
    }
}

#[test]
fn the_vlan_is_the_first_that_a_tag_names() {
    let frame = packet(Family::V4);
    for (identifiers, expected) in [
        (&[][..], 0),
        (&[0][..], 0),
        (&[0xe000][..], 0),
        (&[10][..], 10),
        (&[0xf00a][..], 10),
        (&[0, 10][..], 10),
        (&[10, 0][..], 10),
        (&[0, 0xe000, 0, 10][..], 10),
        (&[0, 10, 0, 20][..], 10),
    ] {
        for kind in TAGS {
            let tags: Vec<u8> = identifiers.iter().flat_map(|&it| tag(kind, it)).collect();
            let tagged = behind(&tags, &frame);
            assert_eq!(dissect(&tagged).unwrap().vlan, expected, "{tags:02x?}");
            assert_eq!(vlan_of(&tagged), expected);
        }
    }
}

#[test]
fn tags_that_only_have_a_priority_are_counted_in_front_of_ip() {
    let frame = packet(Family::V6);
    for depth in 0..=5 {
        let tags = tag(ethertype::VLAN, 0xe000).repeat(depth);
        let expected = (1..=4).contains(&depth).then_some(4 * depth as u16);
        assert_eq!(priority_tags(&behind(&tags, &frame)), expected, "{depth} tags");
    }
    let other = instead(&[0x81, 0, 0, 0, 0x08, 0x06], &frame);
    assert_eq!(priority_tags(&other), None);
    for identifiers in [[0, 7], [7, 0]] {
        let tags = identifiers.map(|it| tag(ethertype::VLAN, it)).concat();
        assert_eq!(priority_tags(&behind(&tags, &frame)), None);
    }
}

#[test]
fn no_stack_of_labels_hides_a_packet() {
    for kind in [ethertype::MPLS, ethertype::MPLS_UPSTREAM] {
        for depth in 1..=16 {
            let mut labels = kind.to_be_bytes().to_vec();
            labels.extend([0, 1, 0, 64].repeat(depth - 1));
            labels.extend([0, 1, 1, 64]);
            let frame = instead(&labels, &packet(Family::V4));
            let expected = match depth <= Dissected::MAX_MPLS_LABELS {
                true => Ok(true),
                false => Err(Malformed::LinkDepth),
            };
            assert_eq!(is_ip(&frame), expected, "{depth} labels");
        }
    }
}

/// A PPPoE session frame with these bytes of PPP in front of an IPv4 packet.
fn session(version_type: u8, code: u8, ppp: &[u8]) -> Vec<u8> {
    let frame = packet(Family::V4);
    let length = ((frame.len() - 14 + ppp.len()) as u16).to_be_bytes();
    let header = [&[0x88, 0x64, version_type, code, 0, 1], &length[..], ppp].concat();
    instead(&header, &frame)
}

/// RFC 1661 section 2 numbers the protocols of PPP; those from 0x8000 on are control protocols.
#[test]
fn ppp_is_ip_or_control_or_refused() {
    for protocol in 0..=u16::MAX {
        let [high, low] = protocol.to_be_bytes();
        let is_number = high & 1 == 0 && low & 1 == 1;
        let expected = match protocol {
            PPP_IPV4 => Ok(true),
            // The packet behind it is IPv4.
            PPP_IPV6 => Err(Malformed::Ipv6Header),
            0x8000.. if is_number => Ok(false),
            _ => Err(Malformed::HiddenPpp),
        };
        assert_eq!(is_ip(&session(0x11, 0, &[high, low])), expected, "{protocol:#06x}");
    }
}

#[test]
fn a_compressed_protocol_field_hides_no_packet() {
    // Linux takes these for 0x0021 and 0x0057.
    for compressed in [0x21, 0x57] {
        assert_eq!(is_ip(&session(0x11, 0, &[compressed])), Err(Malformed::HiddenPpp));
    }
}

/// Linux reads packets in session frames with any version, type and code.
#[test]
fn pppoe_of_another_version_is_refused() {
    for (version_type, code) in [(0x11, 1), (0x11, 0xa7), (0x10, 0), (0x21, 0), (0, 0)] {
        let frame = session(version_type, code, &[0, 0x21]);
        assert_eq!(is_ip(&frame), Err(Malformed::Link), "{version_type:#x} {code:#x}");
    }
}

#[test]
fn a_frame_without_ip_names_its_protocol() {
    let of = |link: &[u8]| LinkProtocol::of(&[&[2; 12][..], link, &[0; 40]].concat());
    let ethertype = |number| Some(LinkProtocol::EtherType(number));
    assert_eq!(of(&[0x08, 0x06]), ethertype(0x0806));
    assert_eq!(of(&[0x81, 0, 0, 0, 0x88, 0xa8, 0, 9, 0x08, 0x06]), ethertype(0x0806));
    assert_eq!(of(&[0x06, 0x00]), ethertype(0x0600));
    // Spanning tree, alone and tagged.
    let llc = [0, 38, 0x42, 0x42, 3];
    assert_eq!(of(&llc), Some(LinkProtocol::Llc(0x42)));
    assert_eq!(of(&[&[0x81, 0, 0, 7][..], &llc].concat()), Some(LinkProtocol::Llc(0x42)));
    assert_eq!(of(&[0, 38, 0x42, 0x06, 3]), None, "two addresses");
    assert_eq!(of(&[0, 38, 0x42, 0x42, 0xf3]), None, "no unnumbered information");
    // IP in SNAP, and a protocol of an organization.
    assert_eq!(of(&[0, 38, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]), Some(LinkProtocol::Snap([0, 0, 0])));
    assert_eq!(
        of(&[5, 0xff, 0xaa, 0xaa, 3, 0, 0, 12, 1, 11]),
        Some(LinkProtocol::Snap([0, 0, 12]))
    );
    assert_eq!(of(&[0x81, 0, 0, 0].repeat(5)), None, "too many tags");
    assert_eq!(LinkProtocol::of(&[2; 13]), None, "cut");
}
