use proptest::prelude::*;

use super::*;
use crate::build::{PacketBuilder, Tcp};
use crate::{checksum, dissect};

/// The sum of RFC 1071 as it is written there, over pseudo header and transport. The mapped
/// form of IPv4 adds 0xffff twice, which is nothing in one's complement.
fn is_right(frame: &[u8], network: &Network) -> bool {
    let bytes = &frame[network.transport_offset.into()..network.end as usize];
    let mut all = [network.source, network.destination].concat();
    all.extend((bytes.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, network.protocol]);
    all.extend(bytes);
    if all.len() % 2 == 1 {
        all.push(0);
    }
    let mut sum: u32 = all.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

fn network(frame: &[u8]) -> Network {
    dissect(frame).unwrap().network.unwrap()
}

/// Lists of options that are well formed, at any alignment, or any bytes at all.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let option = prop_oneof![
        Just(vec![1]),
        (1usize..=4, any::<[u8; 32]>()).prop_map(|(n, body)| [
            &[5, (2 + 8 * n) as u8],
            &body[..8 * n]
        ]
        .concat()),
        any::<[u8; 8]>().prop_map(|body| [&[8, 10], &body[..]].concat()),
        any::<u8>().prop_map(|shift| vec![3, 3, shift]),
    ];
    let list = prop::collection::vec(option, 0..6).prop_map(|list| list.concat());
    prop_oneof![4 => list, 1 => prop::collection::vec(any::<u8>(), 0..40)].prop_map(|mut list| {
        list.truncate(40);
        list
    })
}

/// Every word of every option of a kind.
fn words(frame: &[u8], kind: u8) -> Vec<u32> {
    let network = network(frame);
    let Transport::Tcp(tcp) = network.transport else { panic!("no TCP") };
    let start = usize::from(network.transport_offset);
    let options = &frame[start + 20..start + usize::from(tcp.header_len)];
    TcpOptions::new(options)
        .filter(|option| option.kind == kind)
        .take(4)
        .flat_map(|option| option.body.as_chunks::<4>().0)
        .map(|word| u32::from_be_bytes(*word))
        .collect()
}

proptest! {
    #[test]
    fn numbers_move_and_the_checksum_stays_right(
        v6: bool,
        options in options(),
        (sequence, acknowledgment, flags, window) in any::<(u32, u32, u8, u16)>(),
        payload in prop::collection::vec(any::<u8>(), 0..50),
        by: [u32; 4],
    ) {
        let builder = if v6 {
            PacketBuilder::v6([0x20; 16], [0x21; 16])
        } else {
            PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
        };
        let tcp = Tcp {
            source_port: 1000,
            destination_port: 80,
            sequence,
            acknowledgment,
            flags: TcpFlags(flags),
            window,
            options: &options,
        };
        let mut frame = Vec::new();
        builder.vlan(3).tcp(&tcp, &payload, &mut frame);
        let before = frame.clone();
        let has_ack = flags & TcpFlags::ACK.0 != 0;

        let mut described = network(&frame);
        let mut editor = TcpEditor::new(&mut frame, &mut described, true).unwrap();
        editor.set_sequence(sequence.wrapping_add(by[0]));
        editor.map_acknowledged(|n| n.wrapping_add(by[1]));
        editor.map_timestamps(|n| n.wrapping_add(by[2]), |n| n.wrapping_add(by[3]));
        editor.set_window(!window);

        prop_assert_eq!(network(&frame), described);
        prop_assert!(is_right(&frame, &described));
        let Transport::Tcp(now) = described.transport else { panic!("no TCP") };
        prop_assert_eq!(now.sequence, sequence.wrapping_add(by[0]));
        let moved = if has_ack { by[1] } else { 0 };
        prop_assert_eq!(now.acknowledgment, acknowledgment.wrapping_add(moved));
        prop_assert_eq!(now.window, !window);
        let sacks: Vec<u32> = words(&before, 5).iter().map(|n| n.wrapping_add(moved)).collect();
        prop_assert_eq!(words(&frame, 5), sacks);
        prop_assert_eq!(frame.len(), before.len());
        let payload_at = frame.len() - payload.len();
        prop_assert_eq!(&frame[payload_at..], &payload[..]);
    }

    #[test]
    fn a_partial_checksum_is_left_alone(options in options(), by: u32) {
        let tcp = Tcp { flags: TcpFlags::ACK, options: &options, ..Tcp::default() };
        let mut frame = Vec::new();
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).tcp(&tcp, b"data", &mut frame);
        let mut described = network(&frame);
        let field = usize::from(described.transport_offset) + TCP_CHECKSUM;
        let before = [frame[field], frame[field + 1]];
        let mut editor = TcpEditor::new(&mut frame, &mut described, false).unwrap();
        editor.set_sequence(by);
        editor.map_acknowledged(|n| n.wrapping_add(by));
        prop_assert_eq!([frame[field], frame[field + 1]], before);
    }

    #[test]
    fn quoted_numbers_move(v6: bool, reach in 8usize..60, by: [u32; 2]) {
        let (to, from) = if v6 {
            (PacketBuilder::v6([0x20; 16], [0x21; 16]), PacketBuilder::v6([0x21; 16], [0x20; 16]))
        } else {
            let (a, b) = ([192, 0, 2, 1], [192, 0, 2, 2]);
            (PacketBuilder::v4(a, b), PacketBuilder::v4(b, a))
        };
        let tcp = Tcp { sequence: 7, acknowledgment: 9, flags: TcpFlags::ACK, ..Tcp::default() };
        let mut about = Vec::new();
        to.tcp(&tcp, &[1; 40], &mut about);
        let ip = if v6 { 40 } else { 20 };
        let quote = &about[14..14 + ip + reach];
        let mut frame = Vec::new();
        from.icmp_error(if v6 { 1 } else { 3 }, 0, [0; 4], quote, &mut frame);
        let described = network(&frame);
        map_quoted(&mut frame, &described, |n| n.wrapping_add(by[0]), |n| n.wrapping_add(by[1]));
        prop_assert!(checksum::verify_transport(&frame, &described));
        let Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) = described.transport
        else { panic!("no quote") };
        let at = usize::from(quoted.transport_offset);
        prop_assert_eq!(&frame[at + 4..at + 8], &7u32.wrapping_add(by[0]).to_be_bytes());
        if reach >= 12 {
            prop_assert_eq!(&frame[at + 8..at + 12], &9u32.wrapping_add(by[1]).to_be_bytes());
        }
    }
}
