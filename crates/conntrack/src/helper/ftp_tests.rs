use proptest::prelude::*;

use super::*;
use crate::Settings;
use crate::helper::Memory;
use crate::helper::Told;
use crate::helper::talk::{nothing_told, some_connection};

const CLIENT: &str = "192.0.2.1";
const SERVER: &str = "198.51.100.2";
const FIRST_LINE: &[u8] = b"220 ready\r\n";

/// One direction of a control connection, whose sender sends again what is dropped.
struct Sender {
    ftp: Ftp,
    settings: Settings,
    direction: Direction,
    addresses: [IpAddr; 2],
    /// Number of the first byte that was not passed on.
    sequence: u32,
    /// What was dropped.
    held: Vec<u8>,
    announced: Vec<(IpAddr, u16)>,
}

impl Sender {
    fn new(direction: Direction) -> Self {
        Self::between(direction, CLIENT, SERVER)
    }

    fn between(direction: Direction, client: &str, server: &str) -> Self {
        let addresses = [client.parse().unwrap(), server.parse().unwrap()];
        let mut this = Self {
            ftp: Ftp::default(),
            settings: Settings::default(),
            direction,
            addresses,
            // The numbers come round soon.
            sequence: u32::MAX - 20,
            held: Vec::new(),
            announced: Vec::new(),
        };
        assert_eq!(this.send(FIRST_LINE), Inspected::Pass);
        this
    }

    /// Sends what was dropped together with more.
    fn send(&mut self, more: &[u8]) -> Inspected {
        let segment = [&self.held, more].concat();
        let before = self.announced.len();
        let inspected = self.segment(self.sequence, &segment);
        if inspected == Inspected::Pass {
            self.sequence = self.sequence.wrapping_add(segment.len() as u32);
            self.held.clear();
        } else {
            self.held = segment;
            self.announced.truncate(before);
        }
        inspected
    }

    fn segment(&mut self, sequence: u32, payload: &[u8]) -> Inspected {
        let (from, to) = (self.direction.index(), self.direction.reversed().index());
        let packet = Watched {
            direction: self.direction,
            source: self.addresses[from],
            destination: self.addresses[to],
            seen_as: self.addresses[from],
            receiver: self.addresses[1 - from],
            source_port: 1021,
            destination_port: 1021,
            payload,
            sequence: Some(sequence),
            group: false,
            is_expected: false,
            settings: &self.settings,
            memory: &Memory::default(),
            is_translated: false,
            told: Told { expectations: &nothing_told(), master: &some_connection() },
        };
        let addresses = &self.addresses;
        self.ftp.inspect(&packet, &mut |request| {
            let Request::Expect(announced) = request else { panic!("{request:?}") };
            assert_eq!((announced.class, announced.protocol), (0, 6));
            assert_eq!((announced.source, announced.source_port), (Some(addresses[to]), None));
            let place = String::from_utf8_lossy(&payload[announced.place.clone()]).into_owned();
            assert!(
                place.ends_with(|end: char| !end.is_ascii_whitespace()) && !place.contains('P'),
                "{place}"
            );
            self.announced.push((announced.destination, announced.destination_port));
        })
    }

    fn announced(&mut self) -> Vec<String> {
        self.announced.drain(..).map(|(address, port)| format!("{address} {port}")).collect()
    }
}

fn said_by(direction: Direction, text: &str) -> Vec<String> {
    let mut sender = Sender::new(direction);
    assert_eq!(sender.send(text.as_bytes()), Inspected::Pass, "{text}");
    sender.announced()
}

#[test]
fn commands_and_replies_announce_data_connections() {
    let (client, server) = (Direction::Original, Direction::Reply);
    for text in [
        "PORT 192,0,2,1,78,32\r\n",
        "port 192,0,2,1,78,32\r\n",
        "PORT  192,0,2,1,78,32\n",
        "eprt |1|192.0.2.1|20000|\r\n",
        "EPRT !1!192.0.2.1!20000!\r\n",
        "USER a\r\nPORT 192,0,2,1,78,32\r\nRETR b\r\n",
    ] {
        assert_eq!(said_by(client, text), ["192.0.2.1 20000"], "{text}");
        assert!(said_by(server, text).is_empty(), "{text} is no reply");
    }
    for text in [
        "227 Entering Passive Mode (198,51,100,2,78,32)\r\n",
        "227 Entering Passive Mode. 198,51,100,2,78,32\r\n",
        "227 =198,51,100,2,78,32\r\n",
        "229 Entering Extended Passive Mode (|||20000|)\r\n",
        "200 ok\r\n229 (!!!20000!)\r\n",
    ] {
        assert_eq!(said_by(server, text), ["198.51.100.2 20000"], "{text}");
        assert!(said_by(client, text).is_empty(), "{text} is no command");
    }
    let twice = "PORT 192,0,2,1,0,80\r\nPORT 192,0,2,1,0,81\r\n";
    assert_eq!(said_by(client, twice), ["192.0.2.1 80", "192.0.2.1 81"]);
}

#[test]
fn ipv6_has_the_extended_commands() {
    let (client, server) = ("2001:db8::1", "2001:db8::2");
    let mut there = Sender::between(Direction::Original, client, server);
    there.send(b"EPRT |2|2001:db8:0:0::1|20000|\r\n");
    there.send(
        b"EPRT |2|2001:db8::3|20000|\r\nEPRT |1|192.0.2.1|20000|\r\nEPRT |1|2001:db8::1|7|\r\n",
    );
    assert_eq!(there.announced(), ["2001:db8::1 20000"]);
    let mut back = Sender::between(Direction::Reply, client, server);
    back.send(b"229 Entering Extended Passive Mode (|||20000|)\r\n");
    assert_eq!(back.announced(), ["2001:db8::2 20000"]);
}

#[test]
fn what_is_no_command_announces_nothing() {
    for text in [
        "PORT 192,0,2,1,78\r\n",
        "PORT 192,0,2,1,78,256\r\n",
        "PORT 192,0,2,1,78,32,1\r\n",
        "PORT 192,0,2,1,,32\r\n",
        "PORT 192,0,2,1,0,0\r\n",
        "PORT192,0,2,1,78,32\r\n",
        "PORTS 192,0,2,1,78,32\r\n",
        "XPORT 192,0,2,1,78,32\r\n",
        " PORT 192,0,2,1,78,32\r\n",
        "SITE PORT 192,0,2,1,78,32\r\n",
        "EPRT 11192.0.2.1120000\r\n",
        "EPRT |3|192.0.2.1|20000|\r\n",
        "EPRT |1|192.0.2.1|65536|\r\n",
        "EPRT |1|192.0.2.1|20000\r\n",
        "EPRT |1|192.0.2|20000|\r\n",
        "EPRT |1||20000|\r\n",
    ] {
        assert!(said_by(Direction::Original, text).is_empty(), "{text}");
    }
    for text in [
        "2277 (198,51,100,2,78,32)\r\n",
        "227-(198,51,100,2,78,32)\r\n",
        "227 no digits\r\n198,51,100,2,78,32\r\n",
        "229 (||20000|)\r\n",
        "229 (|||20000)\r\n",
        "229 |||20000|\r\n",
    ] {
        assert!(said_by(Direction::Reply, text).is_empty(), "{text}");
    }
}

#[test]
fn the_address_of_another_is_believed_only_if_asked() {
    let text = b"PORT 203,0,113,9,78,32\r\n";
    let mut sender = Sender::new(Direction::Original);
    sender.send(text);
    assert!(sender.announced().is_empty());
    sender.settings.ftp_loose = true;
    sender.send(text);
    sender.send(b"EPRT |2|2001:db8::3|20000|\r\n");
    assert_eq!(sender.announced(), ["203.0.113.9 20000"]);
}

#[test]
fn a_line_starts_only_behind_a_line_end() {
    let command = b"PORT 192,0,2,1,78,32\r\n";
    let mut sender = Sender::new(Direction::Original);
    sender.send(b"STOR ");
    sender.send(command);
    assert!(sender.announced().is_empty(), "it is the name of a file");
    sender.send(command);
    assert_eq!(sender.announced(), ["192.0.2.1 20000"]);

    for (line_ends_ago, announced) in [(0, 1), (1, 1), (2, 0)] {
        let mut sender = Sender::new(Direction::Original);
        for _ in 0..4 {
            sender.send(b"NOOP\r\n");
        }
        sender.segment(sender.sequence.wrapping_sub(6 * line_ends_ago), command);
        assert_eq!(sender.announced().len(), announced, "two line ends are remembered");
    }
}

#[test]
fn a_segment_that_can_not_grow_is_dropped_once() {
    let mut sender = Sender::new(Direction::Reply);
    let long = b"214 help\r\n22";
    assert_eq!(sender.send(long), Inspected::Incomplete);
    assert_eq!(sender.send(b""), Inspected::Pass);
    let mut sender = Sender::new(Direction::Reply);
    assert_eq!(sender.send(b"22"), Inspected::Incomplete);
    assert_eq!(sender.send(b""), Inspected::Incomplete, "there is room for the rest");
    let endless = [b"227 ".as_slice(), &[b'x'; LONGEST_LINE]].concat();
    assert_eq!(Sender::new(Direction::Reply).send(&endless), Inspected::Pass);
}

const DIALOGUES: [(Direction, &[u8], usize); 2] = [
    (
        Direction::Original,
        b"USER a\r\nPORT 192,0,2,1,78,32\r\nSTOR PORT\r\neprt |1|192.0.2.1|7|\r\nP\r\nQUIT\r\n",
        2,
    ),
    (
        Direction::Reply,
        b"200 a\r\n227 Passive (198,51,100,2,4,1)\r\n2\r\n22\r\n229 x (|||1026|)\r\n221 bye\r\n",
        2,
    ),
];

proptest! {
    #[test]
    fn it_does_not_matter_where_segments_end(cuts in prop::collection::vec(1_usize..30, 100)) {
        for (direction, stream, count) in DIALOGUES {
            let mut sender = Sender::new(direction);
            let (mut rest, mut cuts) = (stream, cuts.iter());
            while !rest.is_empty() {
                let (segment, behind) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                sender.send(segment);
                rest = behind;
            }
            prop_assert!(sender.held.is_empty(), "the end completes everything");
            prop_assert_eq!(sender.announced().len(), count);
        }
    }

    #[test]
    fn junk_without_a_line_end_hides_a_command(junk in "[^\n]{1,40}") {
        let command = "PORT 192,0,2,1,78,32\r\n";
        let mut sender = Sender::new(Direction::Original);
        sender.sequence = sender.sequence.wrapping_add(1000);
        sender.send(format!("{junk}{command}").as_bytes());
        prop_assert!(sender.announced().is_empty());
        sender.sequence = sender.sequence.wrapping_add(1000);
        sender.send(format!("{junk}\n{command}").as_bytes());
        prop_assert_eq!(sender.announced(), ["192.0.2.1 20000"]);
    }

    #[test]
    fn no_bytes_are_too_strange(
        segments in prop::collection::vec(
            (any::<bool>(), 0_u32..64, prop::collection::vec(any::<u8>(), 1..64)), 1..20),
        start in prop::sample::select(vec!["PORT ", "EPRT |", "227 ", "229 (", ""]),
    ) {
        for direction in [Direction::Original, Direction::Reply] {
            let mut sender = Sender::new(direction);
            for (lines, skip, bytes) in &segments {
                let text = if *lines { format!("\n{start}") } else { start.to_owned() };
                let payload = [text.as_bytes(), bytes].concat();
                sender.segment(sender.sequence.wrapping_add(*skip), &payload);
            }
        }
    }
}

#[test]
fn it_does_not_matter_where_one_segment_ends() {
    for (direction, stream, count) in DIALOGUES {
        for cut in 1..stream.len() {
            let mut sender = Sender::new(direction);
            sender.send(&stream[..cut]);
            sender.send(&stream[cut..]);
            assert_eq!(sender.announced().len(), count, "cut at {cut}");
        }
    }
}
