use proptest::prelude::*;

use super::*;
use crate::helper::Earlier;
use crate::helper::HelperSettings;
use crate::helper::Memory;
use crate::testing::conversation::{no_expectations, some_connection, some_opener};

fn announced(direction: Direction, payload: &[u8]) -> Vec<Announced> {
    let mut all = Vec::new();
    let packet = HelperPacket {
        direction,
        source: "192.0.2.1".parse().unwrap(),
        destination: "198.51.100.2".parse().unwrap(),
        seen_as: "192.0.2.1".parse().unwrap(),
        receiver: "198.51.100.2".parse().unwrap(),
        source_port: 40000,
        destination_port: 69,
        payload,
        sequence: None,
        start: None,
        group: false,
        is_expected: false,
        settings: &HelperSettings::default(),
        memory: &Memory::default(),
        opener: some_opener(),
        is_translated: false,
        earlier: Earlier { announcements: &no_expectations(), master: &some_connection() },
    };
    let inspected = Tftp.inspect(&packet, &mut |request| match request {
        Request::Expect(announced) => all.push(announced),
        other => panic!("{other:?}"),
    });
    assert_eq!(inspected, Inspected::Pass);
    all
}

#[test]
fn requests_announce_an_answer_from_any_port() {
    for request in [b"\0\x01file\0octet\0".as_slice(), b"\0\x02f\0NetASCII\0tsize\x000\0"] {
        let [answer] = &announced(Direction::Original, request)[..] else { panic!("one") };
        assert_eq!(answer.source, Some("198.51.100.2".parse().unwrap()));
        assert_eq!(answer.source_port, None);
        assert_eq!(
            (answer.destination, answer.destination_port),
            ("192.0.2.1".parse().unwrap(), 40000)
        );
        assert!(announced(Direction::Reply, request).is_empty());
    }
    for other in [
        b"".as_slice(),
        b"\0",
        b"\0\x01",
        b"\0\x01file",
        b"\0\x01file\0",
        b"\0\x01file\0octet",
        b"\0\x01\0octet\0",
        b"\0\x01file\0octets\0",
        // STUN in which a browser chooses the length and the texts behind it.
        b"\0\x01\x01\x04\x21\x12\xa4\x42transaction-\0\x06\x01name of a user\0\0",
        b"\0\x03\0\x01data\0data\0",
        b"\0\x04\0\x01",
        b"\0\x05\0\x01No such file\0\0",
    ] {
        assert!(announced(Direction::Original, other).is_empty(), "{other:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(payload in prop::collection::vec(any::<u8>(), 0..64)) {
        announced(Direction::Original, &payload);
    }
}
