use flow::{Endpoint, Zone};
use proptest::prelude::*;
use wire::{Family, TcpFlags, protocol};

use super::*;
use crate::testing::records::{bytes_of, check_one_form, flip, flips};
use crate::testing::{Lab, tcp, udp};
use flow::codec::DecodeError;

/// The record of an established connection of TCP.
fn established() -> ConnectionRecord {
    let mut lab = Lab::new();
    let (client, server) = ((1, 40_000), (9, 443));
    let (syn, ack) = (TcpFlags::SYN.0, TcpFlags::ACK.0);
    lab.track(&tcp(Family::V4, client, server, syn, (1, 0)));
    lab.track(&tcp(Family::V4, server, client, syn | ack, (7, 10)));
    lab.track(&tcp(Family::V4, client, server, ack, (10, 16)));
    lab.records().remove(0)
}

fn masqueraded() -> ConnectionRecord {
    let mut record = established();
    let KeyedPacket { key, sender } = record.original;
    let [source, destination] = [sender, sender.opposite()].map(|side| key.endpoint(side));
    let borrowed = Endpoint { address: crate::testing::address(Family::V4, 200), ..source };
    record.translation = Some(RecordedTranslation {
        leaves_as: key.between(sender, borrowed, destination),
        interface: InterfaceName::new("wan0"),
        is_counted: true,
    });
    record.mark = 7;
    record.counts =
        Some([Counts { packets: 3, bytes: 144 }, Counts { packets: 300, bytes: 450_000 }]);
    record.age = Some(Millis::new(61_000));
    record
}

/// Written by hand from the layout, so that no change of the code changes it unseen.
#[test]
fn the_bytes_of_version_1() {
    let golden = [
        // Version, kind, protocol, facts: a reply was seen, and it is assured.
        "01 01 06 0c",
        // 192.0.2.1 port 40000, 192.0.2.9 port 443, no kind.
        "c0000201 9c40  c0000209 01bb  00",
        // 300,000 ms.
        "e0a712",
        // The client: end, highest allowed, largest window, acknowledged.
        "00000012 0000006e 00000064 00000010",
        // The server.
        "00000010 00000074 00000064 0000000a",
        // Last sequence, acknowledgment, end, window.
        "0000000a 00000010 00000012 0064",
        // Scales and modes of both, and of an ignored SYN.
        "00 30 00 20 00 00",
        // The last segment was an ACK of the client; no repetition; ESTABLISHED.
        "04 00 02",
    ];
    let golden: String = golden.concat().split_whitespace().collect();
    let bytes = bytes_of(&established());
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden);
    assert_eq!(bytes.len(), 75);
    let fields = [
        "02 14 0e 0000 c0000209 01bb c00002c8 9c40 00 77616e30",
        "03 04 00000007",
        "09 08 03 9001 ac02 d0bb1b",
        "0a 03 c8dc03",
    ];
    let fields: String = fields.concat().split_whitespace().collect();
    let bytes = bytes_of(&masqueraded());
    let hex: String = bytes[75..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, fields);
    assert_eq!(bytes.len(), 118);
}

#[test]
fn a_record_that_is_cut_anywhere_is_refused() {
    for record in [established(), masqueraded()] {
        let bytes = bytes_of(&record);
        assert_eq!(ConnectionRecord::decode(&bytes), Ok(record.clone()));
        let mut whole = 0;
        for end in 0..bytes.len() {
            // A cut between two fields leaves a shorter record, which has lost them.
            match ConnectionRecord::decode(&bytes[..end]) {
                Ok(shorter) => {
                    whole += 1;
                    assert_ne!(shorter, record);
                }
                Err(error) => assert_eq!(error, DecodeError::Cut, "at {end}"),
            }
        }
        assert_eq!(whole, if record.translation.is_some() { 4 } else { 0 });
    }
}

#[test]
fn a_version_a_kind_and_fields_that_are_not_known_are_refused_by_name() {
    let bytes = bytes_of(&established());
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        ConnectionRecord::decode(&bytes).unwrap_err()
    };
    assert_eq!(with(0, 2), DecodeError::Version(2));
    assert_eq!(with(1, 11), DecodeError::Kind(11));
    assert_eq!(with(1, 0), DecodeError::Kind(0));
    let behind = |more: &[u8]| ConnectionRecord::decode(&[&bytes, more].concat());
    assert_eq!(behind(&[77, 1, 0]), Err(DecodeError::Field(77)));
    assert_eq!(behind(&[3, 4, 0, 0, 0, 1, 3, 4, 0, 0, 0, 1]), Err(DecodeError::Order(3)));
    assert_eq!(behind(&[3, 4, 0, 0, 0, 1, 1, 2, 0, 1]), Err(DecodeError::Order(1)));
    assert!(matches!(behind(&[3, 5, 0, 0, 0, 1, 0]), Err(DecodeError::Impossible(_))));
    assert_eq!(behind(&[6, 5, 3, b'f', b'o', b'o', 0]), Err(DecodeError::Helper("foo".into())));
    // A field from 128 on may be left out.
    assert_eq!(behind(&[200, 3, 1, 2, 3]), Ok(established()));
}

#[test]
fn no_record_contradicts_itself() {
    type Change = fn(&mut ConnectionRecord);
    let changes: [Change; 15] = [
        |it| it.left = Millis::default(),
        |it| it.original.key.protocol = protocol::UDP,
        |it| it.state = RecordedState::Icmp,
        |it| it.original.key.kind = 3,
        |it| {
            let key = &mut it.original.key;
            std::mem::swap(&mut key.low, &mut key.high);
        },
        |it| it.facts.call = true,
        |it| it.policy = Some(TimeoutPolicy::Udp { unreplied: 1, replied: 2 }),
        |it| it.shifts = Some([Shift::default(); 2]),
        |it| {
            let translation = it.translation.as_mut().unwrap();
            translation.leaves_as = it.original;
        },
        |it| {
            let sender = it.original.sender.opposite();
            let leaves_as = KeyedPacket { sender, ..it.original };
            it.translation.as_mut().unwrap().leaves_as = leaves_as;
        },
        |it| it.translation.as_mut().unwrap().leaves_as.key.kind = 1,
        |it| {
            let key = &mut it.translation.as_mut().unwrap().leaves_as.key;
            std::mem::swap(&mut key.low, &mut key.high);
        },
        |it| {
            it.helper = Some(RecordedHelper::of(&crate::helper::Kind::Tftp.start()));
        },
        |it| it.original.key.zone = Zone(0x101),
        |it| it.age = None,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut record = masqueraded();
        change(&mut record);
        let read = ConnectionRecord::decode(&bytes_of(&record));
        // The last two are possible.
        if number < 13 {
            assert!(read.is_err(), "change {number}: {read:?}");
        } else {
            assert_eq!(read, Ok(record), "change {number}");
        }
    }
}

#[test]
fn times_are_bounded() {
    let mut lab = Lab::new();
    lab.track(&udp(Family::V6, (1, 5), (2, 53)));
    let mut record = lab.records().remove(0);
    let bytes = bytes_of(&record);
    assert_eq!(bytes.len(), 4 + 2 * 18 + 1 + 3 + 2, "{bytes:?}");
    record.left = Millis::LONGEST;
    assert_eq!(ConnectionRecord::decode(&bytes_of(&record)), Ok(record.clone()));
    // Centuries.
    let mut long = bytes[..41].to_vec();
    long.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0]);
    assert!(matches!(ConnectionRecord::decode(&long), Err(DecodeError::Impossible(_))));
    // A stream begins after two seconds, so no flow waits longer for that.
    record.state = RecordedState::Udp { stream_in: Some(Millis::new(2001)) };
    assert!(ConnectionRecord::decode(&bytes_of(&record)).is_err());
}

#[test]
fn names_of_interfaces_are_those_of_linux() {
    for name in ["a", "eth0", "vlan.100@x", "fifteen-letters", "b\u{e4}h"] {
        assert_eq!(InterfaceName::new(name).map(|it| it.to_string()).as_deref(), Some(name));
    }
    for name in ["", ".", "..", "a b", "a/b", "a:b", "sixteen-letters-", "a\n", "\u{7f}"] {
        assert_eq!(InterfaceName::new(name), None, "{name:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = ConnectionRecord::decode(&bytes);
    }

    /// A record that is read of changed bytes is written as it was read, so nothing has two
    /// forms.
    #[test]
    fn a_changed_record_is_refused_or_is_another(
        flips in flips(),
        masked: bool,
    ) {
        let record = if masked { masqueraded() } else { established() };
        let mut bytes = bytes_of(&record);
        flip(&mut bytes, &flips);
        if let Ok(read) = ConnectionRecord::decode(&bytes) {
            check_one_form(&bytes, &read)?;
        }
    }
}
