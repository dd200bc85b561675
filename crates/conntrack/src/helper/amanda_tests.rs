use proptest::prelude::*;

use super::*;
use crate::helper::Kind;
use crate::testing::conversation::{CLIENT, SERVER, Talk};

const ASKED: &str = "Amanda 2.4 REQ HANDLE 000-0 SEQ 1\nSERVICE sendbackup\n";

fn said(direction: Direction, text: &str) -> Vec<u16> {
    said_after(ASKED, direction, text)
}

fn said_after(asked: &str, direction: Direction, text: &str) -> Vec<u16> {
    let mut talk = Talk::new(Kind::Amanda, protocol::UDP);
    // Other tests cover privileged ports.
    talk.settings.expect_privileged = true;
    assert!(talk.say(Direction::Original, asked.as_bytes()).is_empty());
    let announced = talk.announced(direction, [text.as_bytes()]);
    for it in &announced {
        assert_eq!((it.protocol, it.permanent), (protocol::TCP, false));
        assert_eq!(it.source.unwrap().to_string(), CLIENT);
        assert_eq!(it.destination.to_string(), SERVER);
        assert!(it.source_port.is_none());
    }
    announced.iter().map(|it| it.destination_port).collect()
}

#[test]
fn the_reply_names_its_ports() {
    for (line, ports) in [
        ("CONNECT DATA 11078 MESG 11079 INDEX 11080\n", &[11078, 11079, 11080][..]),
        ("CONNECT DATA 11078 MESG 11079 INDEX 0\r\n", &[11078, 11079]),
        ("CONNECT DATA 11078 MESG 11079 INDEX -1 STATE 5\n", &[11078, 11079, 5]),
        ("CONNECT STATE 11081", &[11081]),
        ("CONNECT OTHER 11078 DATA 11079\n", &[11079]),
        ("CONNECT DATA 65536 MESG 11079\n", &[11079]),
        ("CONNECT  DATA  11078 MESG 11079\n", &[11078, 11079]),
        ("CONNECT DATA\n", &[]),
        ("CONNECT \n", &[]),
        ("CONNECTDATA 11078\n", &[]),
        ("OPTIONS features=ff; CONNECT DATA 11078\n", &[]),
        ("", &[]),
    ] {
        let text = format!("Amanda 2.4 REP HANDLE 000-0 SEQ 1\n{line}OPTIONS features=ff;\n");
        assert_eq!(said(Direction::Reply, &text), ports, "{line}");
        assert!(said(Direction::Original, &text).is_empty(), "{line} is no reply");
    }
}

#[test]
fn only_a_reply_to_a_request_counts() {
    let line = "CONNECT DATA 11078\n";
    for (asked, head, is_believed) in [
        (ASKED, "Amanda 2.4 REP HANDLE 000-0 SEQ 1\n", true),
        (ASKED, "Amanda 2.4 PREP HANDLE 000-0 SEQ 1\n", true),
        (ASKED, "Amanda 2.4 ACK HANDLE 000-0 SEQ 1\n", false),
        (ASKED, "Amanda REP HANDLE 000-0 SEQ 1\n", false),
        (ASKED, "GET / REP HANDLE\n", false),
        (ASKED, "", false),
        ("Amanda 2.4 ACK HANDLE 000-0 SEQ 1\n", "Amanda 2.4 REP HANDLE 000-0 SEQ 1\n", false),
        ("GET / HTTP/1.1\r\n", "Amanda 2.4 REP HANDLE 000-0 SEQ 1\n", false),
    ] {
        let announced = said_after(asked, Direction::Reply, &format!("{head}{line}"));
        assert_eq!(announced.len(), is_believed.into(), "{asked} {head}");
    }
}

#[test]
fn the_server_waits_long_for_the_reply() {
    let mut talk = Talk::new(Kind::Amanda, protocol::UDP);
    let asked = talk.say(Direction::Reply, b"Amanda 2.4 ACK HANDLE 000-0 SEQ 1\n");
    assert_eq!(asked, [Request::Keep { seconds: 300 }]);
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        begin in prop::sample::select(vec!["", "CONNECT ", "\nCONNECT DATA ", "CONNECT DATA 1 MESG"]),
    ) {
        let payload = [begin.as_bytes(), &bytes].concat();
        let mut talk = Talk::new(Kind::Amanda, protocol::UDP);
        talk.say(Direction::Original, &payload);
        talk.say(Direction::Reply, &payload);
    }
}
