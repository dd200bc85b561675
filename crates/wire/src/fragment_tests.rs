use etherparse::{NetSlice, SlicedPacket};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{Dissected, Network, build::PacketBuilder, dissect};

fn cut(frame: &[u8], cut: &Cut) -> Result<Vec<Vec<u8>>, Uncut> {
    let mut fragments = Fragments::new(frame, cut)?;
    let mut frames = Vec::new();
    while let Some(length) = fragments.next_len() {
        let mut out = vec![0xee; length];
        assert_eq!(fragments.clone().write_next(&mut out[1..]), None, "too short");
        assert_eq!(fragments.write_next(&mut out), Some(length));
        frames.push(out);
    }
    assert_eq!(fragments.write_next(&mut [0; 2000]), None, "that was all");
    Ok(frames)
}

fn network(frame: &[u8]) -> Network {
    let Ok(Dissected { network: Some(network), .. }) = dissect(frame) else {
        panic!("{frame:02x?}");
    };
    network
}

/// The place fields of a fragment, as etherparse reads them.
fn place(frame: &[u8]) -> (u32, u16, bool) {
    match SlicedPacket::from_ethernet(frame).unwrap().net.unwrap() {
        NetSlice::Ipv4(packet) => {
            let header = packet.header();
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            let offset = header.fragments_offset().byte_offset();
            (header.identification().into(), offset, header.more_fragments())
        }
        NetSlice::Ipv6(packet) => {
            let fragment =
                packet.extensions().clone().into_iter().find_map(|header| match header {
                    etherparse::Ipv6ExtensionSlice::Fragment(fragment) => Some(fragment),
                    _ => None,
                });
            let fragment = fragment.unwrap();
            let offset = fragment.fragment_offset().byte_offset();
            (fragment.identification(), offset, fragment.more_fragments())
        }
        NetSlice::Arp(_) => panic!("not IP"),
    }
}

/// Puts fragments together: the payload that they carry, from the first byte. They have to be
/// in order and without a gap.
fn join(frames: &[Vec<u8>], id: u32) -> Vec<u8> {
    let mut joined = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let last = index + 1 == frames.len();
        assert_eq!(place(frame), (id, joined.len() as u16, !last));
        let network = network(frame);
        let fragment = network.fragment.unwrap();
        assert_eq!((fragment.id, usize::from(fragment.offset)), (id, joined.len()));
        assert!(!network.dont_fragment);
        joined.extend(&frame[usize::from(fragment.payload_offset)..network.end as usize]);
    }
    joined
}

fn v4() -> PacketBuilder {
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
}

fn v6() -> PacketBuilder {
    PacketBuilder::v6([0x20; 16], [0x21; 16])
}

/// Options as RFC 791 section 3.1 builds them, padded; and those that have to be copied.
fn options() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let option = (any::<u8>(), vec(any::<u8>(), 0..6)).prop_map(|(kind, data)| match kind {
        0 | 1 => vec![1],
        kind => [vec![kind, data.len() as u8 + 2], data].concat(),
    });
    vec(option, 0..5).prop_map(|list| {
        let pad = |list: Vec<u8>| {
            [&list[..], &vec![0; list.len().next_multiple_of(4) - list.len()]].concat()
        };
        let copied: Vec<_> = list.iter().filter(|option| option[0] >= 0x80).cloned().collect();
        (pad(list.concat()), pad(copied.concat()))
    })
}

/// IPv6 extension headers in front of the transport, by number and body, and how many of them
/// are in the unfragmentable part.
fn chain() -> impl Strategy<Value = (Vec<u8>, usize)> {
    prop_oneof![
        Just((vec![], 0)),
        Just((vec![60], 0)),
        Just((vec![0], 1)),
        Just((vec![0, 60], 1)),
        Just((vec![0, 60, 43], 3)),
        Just((vec![60, 43, 60], 2)),
        Just((vec![43, 51, 60], 1)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn cut_and_joined_is_the_datagram_of_ipv4(
        (options, copied) in options(),
        tags in vec(any::<u16>(), 0..3),
        id: u16,
        payload in vec(any::<u8>(), 1..6000),
        mtu in 68u32..3000,
        padding in 0usize..4,
        forbidden: bool,
    ) {
        let mut builder = v4().options(&options).id(id.into()).ttl(9).traffic_class(0xa5);
        if forbidden {
            builder = builder.dont_fragment();
        }
        let mut frame = Vec::new();
        tags.iter().fold(builder, |builder, tag| builder.vlan(*tag)).raw(200, &payload, &mut frame);
        let start = 14 + 4 * tags.len();
        let headers = start + 20 + options.len();
        let end = frame.len();
        frame.resize(end + padding, 0);
        let how = Cut { mtu, id: 0, dont_fragment: DontFragment::Clear };
        if end - start <= mtu as usize {
            prop_assert_eq!(cut(&frame, &how), Err(Uncut::Fits));
            return Ok(());
        }
        if forbidden {
            let polite = Cut { dont_fragment: DontFragment::Obey, ..how };
            prop_assert_eq!(cut(&frame, &polite), Err(Uncut::DontFragment));
        }
        if headers - start + 8 > mtu as usize {
            prop_assert_eq!(cut(&frame, &how), Err(Uncut::NoRoom));
            return Ok(());
        }
        let frames = cut(&frame, &how).unwrap();
        prop_assert_eq!(join(&frames, id.into()), payload);
        for (index, piece) in frames.iter().enumerate() {
            prop_assert_eq!(&piece[..start], &frame[..start]);
            prop_assert!(piece.len() - start <= mtu as usize);
            // Only the last fragment could hold 8 bytes more.
            let last = index + 1 == frames.len();
            prop_assert!(last || piece.len() - start + 8 > mtu as usize);
            let network = network(piece);
            let header = &piece[start..usize::from(network.transport_offset)];
            let expected = if index == 0 { &options } else { &copied };
            prop_assert_eq!(&header[20..], &expected[..]);
            prop_assert_eq!((header[1], header[8], header[9]), (0xa5, 9, 200));
            prop_assert_eq!(&header[12..20], &frame[start + 12..start + 20]);
        }
    }

    #[test]
    fn cut_and_joined_is_the_datagram_of_ipv6(
        (numbers, unfragmentable) in chain(),
        id: u32,
        payload in vec(any::<u8>(), 1..6000),
        mtu in 1280u32..3000,
        pppoe: bool,
    ) {
        let mut content = Vec::new();
        for (index, number) in numbers.iter().enumerate() {
            let next = numbers.get(index + 1).copied().unwrap_or(200);
            let length = if *number == 51 { 2 } else { 1 };
            content.extend([next, length, 0, 0]);
            content.extend([0; 12]);
        }
        content.extend(&payload);
        let first = numbers.first().copied().unwrap_or(200);
        let builder = if pppoe { v6().pppoe(7) } else { v6() };
        let mut frame = Vec::new();
        builder.raw(first, &content, &mut frame);
        let start = if pppoe { 22 } else { 14 };
        let how = Cut { mtu, id, ..Cut::default() };
        if frame.len() - start <= mtu as usize {
            prop_assert_eq!(cut(&frame, &how), Err(Uncut::Fits));
            return Ok(());
        }
        let frames = cut(&frame, &how).unwrap();
        prop_assert!(frames.len() > 1);
        let before = 40 + 16 * unfragmentable;
        let protocol = numbers.get(unfragmentable).copied().unwrap_or(200);
        let mut joined: Vec<u8> = Vec::new();
        for (index, piece) in frames.iter().enumerate() {
            let last = index + 1 == frames.len();
            prop_assert!(piece.len() - start <= mtu as usize);
            prop_assert!(last || piece.len() - start + 8 > mtu as usize);
            let fragment = network(piece).fragment.unwrap();
            prop_assert_eq!(usize::from(fragment.payload_offset), start + before + 8);
            prop_assert_eq!((fragment.id, usize::from(fragment.offset)), (id, joined.len()));
            prop_assert_eq!(fragment.more, !last);
            // etherparse takes the payload of a later fragment for extension headers.
            if !pppoe && protocol == 200 {
                prop_assert_eq!(place(piece), (id, joined.len() as u16, !last));
            }
            // Apart from a length and a number the part in front equals that of the datagram.
            let mut copy = piece[start..start + before].to_vec();
            copy[4..6].copy_from_slice(&frame[start + 4..start + 6]);
            let next_at = if unfragmentable == 0 { 6 } else { before - 16 };
            prop_assert_eq!(copy[next_at], FRAGMENT);
            copy[next_at] = protocol;
            prop_assert_eq!(&copy[..], &frame[start..start + before]);
            prop_assert_eq!(piece[start + before], protocol);
            joined.extend(&piece[start + before + 8..]);
        }
        prop_assert_eq!(&joined[..], &content[16 * unfragmentable..]);
    }

    #[test]
    fn no_bytes_make_it_panic(
        mut bytes in vec(any::<u8>(), 14..300),
        v6: bool,
        mtu in 0u32..300,
        clear: bool,
    ) {
        bytes[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        if bytes.len() > 54 {
            let (version, field, before) = if v6 { (0x60, 18, 54) } else { (0x45, 16, 14) };
            bytes[14] = version | (bytes[14] & 0x0f);
            let length = (bytes.len() - before) as u16;
            bytes[field..field + 2].copy_from_slice(&length.to_be_bytes());
            checksum::fill_ipv4_header(&mut bytes[14..]);
        }
        let dont_fragment = if clear { DontFragment::Clear } else { DontFragment::Obey };
        if let Ok(frames) = cut(&bytes, &Cut { mtu, id: 1, dont_fragment }) {
            prop_assert!(frames.len() > 1);
        }
        if let Ok(mut all) = Fragments::behind(&[0; 18], &bytes, &Cut { mtu, id: 1, dont_fragment }) {
            let mut out = [0; 400];
            while all.write_next(&mut out).is_some() {}
            prop_assert_eq!(all.next_len(), None);
        }
    }
}

#[test]
fn a_fragment_of_ipv4_is_cut_in_its_place() {
    let mut frame = Vec::new();
    v4().id(5).fragment(17, 800, true, &[7; 1600], &mut frame);
    let frames = cut(&frame, &Cut { mtu: 820, ..Cut::default() }).unwrap();
    let places: Vec<_> = frames.iter().map(|frame| place(frame)).collect();
    assert_eq!(places, [(5, 800, true), (5, 1600, true)]);
    let mut last = Vec::new();
    v4().id(5).fragment(17, 800, false, &[7; 1601], &mut last);
    let frames = cut(&last, &Cut { mtu: 820, ..Cut::default() }).unwrap();
    let places: Vec<_> = frames.iter().map(|frame| place(frame)).collect();
    assert_eq!(places, [(5, 800, true), (5, 1600, true), (5, 2400, false)]);
}

#[test]
fn only_the_sender_cuts_a_fragment_of_ipv6() {
    for more in [true, false] {
        let mut frame = Vec::new();
        v6().fragment(200, 0, more, &[7; 1600], &mut frame);
        assert_eq!(cut(&frame, &Cut { mtu: 1280, ..Cut::default() }), Err(Uncut::Fragment));
    }
}

#[test]
fn the_first_fragment_of_ipv6_holds_all_headers() {
    // Destination options of 1200 bytes before the transport.
    let mut content = vec![17, 149];
    content.resize(1200, 0);
    content.resize(2000, 7);
    let mut frame = Vec::new();
    v6().raw(60, &content, &mut frame);
    let headers = 40 + 8 + 1200 + 60;
    let mtu = |mtu| cut(&frame, &Cut { mtu, ..Cut::default() }).map(|frames| frames.len());
    assert_eq!(mtu(headers - 5), Err(Uncut::NoRoom));
    assert_eq!(mtu(headers + 4), Ok(2));
}

#[test]
fn frames_without_ip_are_not_cut() {
    let mut frame = vec![0xff; 2000];
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    let how = Cut { mtu: 1500, ..Cut::default() };
    assert_eq!(cut(&frame, &how), Err(Uncut::NotIp));
    assert_eq!(cut(&frame[..5], &how), Err(Uncut::NotIp));
}
