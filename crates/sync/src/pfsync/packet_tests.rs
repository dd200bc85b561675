use proptest::prelude::*;

use super::super::sample::{self, Random, carried, packet, state};
use super::super::state::Peers;
use super::super::{CreatorId, InterfaceName, StateId};
use super::*;

/// Without the IPv4 header.
const ETHERNET_LIMIT: usize = 1_480;

fn any_dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(&Dialect::ALL[..])
}

fn id(number: u64) -> StateId {
    StateId { id: number, creator: CreatorId::new(1).unwrap() }
}

/// How many of a message fit into one packet.
fn most(dialect: Dialect, message: &Message) -> usize {
    let mut writer = PacketWriter::new(dialect, ETHERNET_LIMIT);
    let count = (0..).take_while(|_| writer.push(message).is_ok()).count();
    assert!(writer.finish().len() <= ETHERNET_LIMIT);
    count
}

#[test]
fn packets_of_1500_bytes_hold_as_many_messages_as_they_can() {
    let mut random = Random(1);
    for (dialect, states) in Dialect::ALL.into_iter().zip([6, 5, 4, 5]) {
        assert_eq!(most(dialect, &Message::DeleteCompressed(id(1))), 121);
        assert_eq!(most(dialect, &Message::Insert(Box::new(state(&mut random, dialect)))), states);
        let update = loop {
            let message = sample::message(&mut random, dialect);
            if matches!(message, Message::UpdateCompressed(_)) {
                break message;
            }
        };
        assert_eq!(most(dialect, &update), 17);
    }
}

#[test]
fn a_message_that_a_dialect_can_not_carry_leaves_a_packet_as_it_was() {
    let mut random = Random(3);
    let across = loop {
        let state = state(&mut random, Dialect::Version1500);
        if state.parts().wire.is_ipv4() != state.parts().stack.is_ipv4() {
            break Message::Insert(Box::new(state));
        }
    };
    for dialect in [Dialect::Version1301, Dialect::Version1400] {
        let mut writer = PacketWriter::new(dialect, ETHERNET_LIMIT);
        assert_eq!(writer.push(&across), Err(NotWritten::Inexpressible));
        assert!(writer.is_empty());
        writer.push(&Message::InsertAck(id(1))).unwrap();
        let before = writer.clone().finish();
        assert_eq!(writer.push(&across), Err(NotWritten::Inexpressible));
        assert_eq!(writer.finish(), before);
    }
}

/// A packet of groups that are given as bytes.
fn packet_of(dialect: Dialect, groups: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[0] = dialect.header_version();
    groups.iter().for_each(|it| bytes.extend_from_slice(it));
    bytes[3] = bytes.len() as u8;
    bytes
}

const V5: Dialect = Dialect::Version1400;
const V6: Dialect = Dialect::Version6;
const ACK: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1];

#[test]
fn version_6_skips_an_unknown_message_and_version_5_abandons_the_rest() {
    let ack: &[u8] = &[2, 3, 0, 1];
    let unknown: &[u8] = &[200, 2, 0, 2];
    let bytes = packet_of(V6, &[ack, &ACK, unknown, &[7; 16], ack, &ACK]);
    let packet = Packet::decode(V6, &bytes).unwrap();
    assert_eq!(packet.messages, [Message::InsertAck(id(9)), Message::InsertAck(id(9))]);
    assert_eq!((packet.skipped, packet.is_abandoned), (2, false));

    let bytes = packet_of(V5, &[&[2, 0, 0, 1], &ACK, &[200, 0, 0, 2], &[7; 16]]);
    let packet = Packet::decode(V5, &bytes).unwrap();
    assert_eq!(packet.messages, [Message::InsertAck(id(9))]);
    assert_eq!((packet.skipped, packet.is_abandoned), (0, true));
}

#[test]
fn replay_counters_of_ipsec_are_skipped() {
    let bytes = packet_of(V5, &[&[11, 0, 0, 1], &[7; 48], &[2, 0, 0, 1], &ACK, &[12, 0, 0, 1]]);
    let packet = Packet::decode(V5, &bytes).unwrap();
    assert_eq!((packet.messages.len(), packet.skipped), (1, 1));
    for (number, words) in [(11, 12), (15, 13), (8, 3), (1, 61)] {
        let body = vec![7; usize::from(words) * 4];
        let bytes = packet_of(V6, &[&[number, words, 0, 1], &body, &[2, 3, 0, 1], &ACK]);
        let bytes = [&[6, 0, 0, 0][..], &bytes[4..]].concat();
        let mut bytes = bytes;
        let length = (bytes.len() as u16).to_be_bytes();
        bytes[2..4].copy_from_slice(&length);
        let packet = Packet::decode(V6, &bytes).unwrap();
        assert_eq!((packet.messages.len(), packet.skipped), (1, 1), "{number}");
    }
}

#[test]
fn a_message_of_version_6_may_be_longer_than_it_is_known() {
    let longer: &[u8] = &[2, 4, 0, 2];
    let bytes = packet_of(V6, &[longer, &ACK, &[1; 4], &ACK, &[2; 4]]);
    assert_eq!(Packet::decode(V6, &bytes).unwrap().messages.len(), 2);
}

#[test]
fn each_refusal_has_its_reason() {
    let ack: &[u8] = &[2, 3, 0, 1];
    let cases: &[(Dialect, Refusal, Vec<u8>)] = &[
        (V6, Refusal::WrongVersion, packet_of(V5, &[])),
        (V5, Refusal::WrongVersion, packet_of(V6, &[])),
        (V6, Refusal::Truncated, vec![6, 0, 0, 19]),
        (V6, Refusal::Truncated, packet_of(V6, &[])[..19].to_vec()),
        (V6, Refusal::Truncated, packet_of(V6, &[&[2, 3, 0]])),
        (V6, Refusal::CountBeyondLength, packet_of(V6, &[ack, &ACK[..11]])),
        (V6, Refusal::CountBeyondLength, packet_of(V6, &[&[2, 3, 255, 255], &ACK])),
        (V6, Refusal::CountBeyondLength, packet_of(V6, &[&[99, 3, 0, 2], &ACK])),
        (V6, Refusal::WrongLength, packet_of(V6, &[&[2, 2, 0, 1], &ACK])),
        (V5, Refusal::BehindEnd, packet_of(V5, &[&[12, 0, 0, 1], &[2, 0, 0, 1], &ACK])),
        (V6, Refusal::CreatorZero, packet_of(V6, &[ack, &[1; 8], &[0; 4]])),
        (V6, Refusal::CreatorZero, packet_of(V6, &[&[2, 3, 0, 2], &ACK, &[1; 8], &[0; 4]])),
        (V6, Refusal::CreatorZero, packet_of(V6, &[&[5, 3, 0, 1], &[1; 8], &[0; 4]])),
        (V6, Refusal::CreatorZero, packet_of(V6, &[&[0, 5, 0, 1], &[0; 20]])),
        (V6, Refusal::BadName, packet_of(V6, &[&[0, 5, 0, 1], &[b'a'; 16], &[1; 4]])),
        (V6, Refusal::BadName, packet_of(V6, &[&[0, 5, 0, 1], b"a b\n", &[0; 12], &[1; 4]])),
        (V6, Refusal::UnknownStatus, packet_of(V6, &[&[10, 3, 0, 1], &[1; 4], &[0; 8]])),
        (V5, Refusal::FullDelete, packet_of(V5, &[&[6, 0, 0, 1], &[0; 200]])),
    ];
    for (dialect, reason, bytes) in cases {
        assert_eq!(Packet::decode(*dialect, bytes), Err(*reason), "{bytes:?}");
    }
}

/// Where fields of a state are that have to have certain values.
#[test]
fn a_state_is_refused_for_each_field_that_can_not_be() {
    let at = |dialect| match dialect {
        // Family, direction, timeout, creator, state of the initiator.
        Dialect::Version1301 => [232, 234, 239, 228, 96 + 24],
        Dialect::Version1400 => [232, 234, 239, 228, 96 + 24],
        Dialect::Version1500 => [344, 351, 350, 228, 96 + 24],
        Dialect::Version6 => [250, 252, 255, 236, 104 + 24],
    };
    let reasons = [
        Refusal::UnknownFamily,
        Refusal::UnknownDirection,
        Refusal::UnknownTimeout,
        Refusal::CreatorZero,
        Refusal::UnknownState,
    ];
    let mut random = Random(5);
    for dialect in Dialect::ALL {
        let state = loop {
            let state = state(&mut random, dialect);
            if matches!(state.parts().peers, Peers::Tcp(_)) {
                break state;
            }
        };
        let mut writer = PacketWriter::new(dialect, ETHERNET_LIMIT);
        writer.push(&Message::Update(Box::new(state))).unwrap();
        let bytes = writer.finish();
        for (offset, reason) in at(dialect).into_iter().zip(reasons) {
            let mut bytes = bytes.clone();
            let value = if reason == Refusal::CreatorZero { [0; 4] } else { [99; 4] };
            let length = if reason == Refusal::CreatorZero { 4 } else { 1 };
            let start = HEADER_BYTES + GROUP_BYTES + offset;
            bytes[start..start + length].copy_from_slice(&value[..length]);
            assert_eq!(Packet::decode(dialect, &bytes), Err(reason), "{dialect:?}");
        }
    }
}

#[test]
fn families_have_the_numbers_of_the_peers_system() {
    let mut random = Random(9);
    for dialect in Dialect::ALL {
        let state = loop {
            let state = state(&mut random, dialect);
            if !state.parts().wire.is_ipv4() && !state.parts().stack.is_ipv4() {
                break state;
            }
        };
        let mut bytes = Vec::new();
        super::super::state_codec::encode(&state, dialect.state_form(), &mut bytes).unwrap();
        let (at, number) = match dialect {
            Dialect::Version1301 | Dialect::Version1400 => (232, 28),
            Dialect::Version1500 => (344, 28),
            Dialect::Version6 => (250, 24),
        };
        assert_eq!(bytes[at], number);
    }
}

#[test]
fn an_interface_name_fits_or_is_refused() {
    for name in ["", "em0", "a123456789bcdef"] {
        assert_eq!(InterfaceName::new(name).unwrap().as_str(), name);
    }
    for name in ["a123456789bcdefg", "with space", "\u{e4}", "a\0b"] {
        assert_eq!(InterfaceName::new(name), None, "{name}");
    }
    assert_eq!(InterfaceName::ANY.as_str(), "all");
}

proptest! {
    #[test]
    fn messages_come_back(dialect in any_dialect(), seed: u64, limit in 20usize..3_000) {
        let (messages, bytes) = packet(&mut Random(seed), dialect, limit);
        prop_assert!(bytes.len() <= limit.max(HEADER_BYTES + GROUP_BYTES));
        let packet = Packet::decode(dialect, &bytes).unwrap();
        prop_assert_eq!(packet.messages, messages);
        prop_assert!(!packet.is_abandoned && packet.skipped == 0);
        // A link may pad a packet.
        let padded = [&bytes[..], &[0xff; 9]].concat();
        prop_assert!(Packet::decode(dialect, &padded).is_ok());
    }

    #[test]
    fn a_packet_that_is_cut_is_refused(dialect in any_dialect(), seed: u64) {
        let (_, bytes) = packet(&mut Random(seed), dialect, ETHERNET_LIMIT);
        for length in 0..bytes.len() {
            let mut cut = bytes[..length].to_vec();
            prop_assert_eq!(Packet::decode(dialect, &cut), Err(Refusal::Truncated));
            // The header tells the shorter length, too. Then a packet without its last groups is
            // left, or a group is cut.
            if let [_, _, high, low, ..] = &mut cut[..] {
                [*high, *low] = (length as u16).to_be_bytes();
                let _ = Packet::decode(dialect, &cut);
            }
        }
    }

    #[test]
    fn random_and_mutated_bytes_never_panic(
        dialect in any_dialect(), seed: u64, bytes in prop::collection::vec(any::<u8>(), 0..600),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let _ = Packet::decode(dialect, &bytes);
        let (_, mut bytes) = packet(&mut Random(seed), dialect, ETHERNET_LIMIT);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        // A packet that was read is right, so it can be written and read again.
        if let Ok(packet) = Packet::decode(dialect, &bytes) {
            for message in &packet.messages {
                // A state may be in the form of another version of FreeBSD.
                for dialect in Dialect::ALL {
                    let mut writer = PacketWriter::new(dialect, ETHERNET_LIMIT);
                    if writer.push(message).is_ok() {
                        let again = Packet::decode(dialect, &writer.finish());
                        let is_delete = matches!(message, Message::Delete(_));
                        prop_assert!(again.is_ok() || is_delete, "{message:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_dialect_carries_what_it_has_fields_for(
        from in any_dialect(), to in any_dialect(), seed: u64,
    ) {
        let state = state(&mut Random(seed), from);
        let form = to.state_form();
        let mut bytes = Vec::new();
        if super::super::state_codec::encode(&state, form, &mut bytes).is_ok() {
            prop_assert_eq!(bytes.len(), form.bytes());
            let again = super::super::state_codec::decode(form, &mut Reader(&bytes)).unwrap();
            prop_assert_eq!(*again.parts(), carried(*state.parts(), to));
        } else {
            prop_assert!(bytes.is_empty());
        }
    }
}
