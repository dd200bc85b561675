use proptest::prelude::*;

use super::*;
use crate::helper::HelperSettings;
use crate::helper::{Earlier, Kind, Memory};
use crate::testing::conversation::{no_expectations, some_connection, some_opener};

const CLIENT: &str = "192.0.2.1";
const SERVER: &str = "198.51.100.2";
const THERE: Direction = Direction::Original;
const BACK: Direction = Direction::Reply;
/// The sequence numbers wrap round soon.
const START: u32 = u32::MAX - 20;

/// A control connection in which one end repeats dropped segments.
struct Sender {
    ftp: Ftp,
    settings: HelperSettings,
    direction: Direction,
    addresses: [IpAddr; 2],
    starts: [Option<u32>; 2],
    /// Sequence numbers of the first bytes that have not passed, by direction.
    numbers: [u32; 2],
    /// The bytes that were dropped.
    held: Vec<u8>,
    announced: Vec<(IpAddr, u16)>,
    left: bool,
}

impl Sender {
    fn new(direction: Direction) -> Self {
        Self::between(direction, CLIENT, SERVER)
    }

    /// A connection on which the server has greeted, and the client has logged in and waits for
    /// replies that name ports.
    fn between(direction: Direction, client: &str, server: &str) -> Self {
        let mut this = Self { direction, ..Self::opened(client, server) };
        this.converse(&[(BACK, "220 ready\r\n"), (THERE, "USER a\r\n"), (BACK, "230 in\r\n")]);
        this.converse(&[(THERE, "PASV\r\nEPSV\r\npasv\r\n")]);
        assert!(!this.left);
        this
    }

    /// A connection on which nobody has sent a line.
    fn opened(client: &str, server: &str) -> Self {
        // They are for other tests.
        let settings = HelperSettings { expect_privileged: true, ..HelperSettings::default() };
        Self {
            ftp: Ftp::default(),
            settings,
            direction: THERE,
            addresses: [client.parse().unwrap(), server.parse().unwrap()],
            starts: [Some(START); 2],
            numbers: [START; 2],
            held: Vec::new(),
            announced: Vec::new(),
            left: false,
        }
    }

    /// Lets both ends send their lines, each in one segment.
    fn converse(&mut self, said: &[(Direction, &str)]) {
        let own = self.direction;
        for &(direction, text) in said {
            self.direction = direction;
            self.send(text.as_bytes());
        }
        self.direction = own;
    }

    /// Sends the dropped bytes together with more.
    fn send(&mut self, more: &[u8]) -> Inspected {
        let segment = [&self.held, more].concat();
        let before = self.announced.len();
        let inspected = self.segment(self.numbers[self.direction.index()], &segment);
        if inspected == Inspected::Incomplete {
            self.held = segment;
            self.announced.truncate(before);
        } else {
            self.skip(segment.len() as u32);
            self.held.clear();
        }
        inspected
    }

    /// Leaves a gap in front of the next bytes.
    fn skip(&mut self, bytes: u32) {
        let number = &mut self.numbers[self.direction.index()];
        *number = number.wrapping_add(bytes);
    }

    fn segment(&mut self, sequence: u32, payload: &[u8]) -> Inspected {
        if self.left {
            return Inspected::Pass;
        }
        let (from, to) = (self.direction.index(), self.direction.reversed().index());
        let packet = HelperPacket {
            direction: self.direction,
            source: self.addresses[from],
            destination: self.addresses[to],
            seen_as: self.addresses[from],
            receiver: self.addresses[1 - from],
            source_port: 1021,
            destination_port: 1021,
            payload,
            sequence: Some(sequence),
            start: self.starts[from],
            group: false,
            is_expected: false,
            settings: &self.settings,
            memory: &Memory::default(),
            opener: some_opener(),
            is_translated: false,
            earlier: Earlier { announcements: &no_expectations(), master: &some_connection() },
        };
        let addresses = &self.addresses;
        let inspected = self.ftp.inspect(&packet, &mut |request| {
            let Request::Expect(announced) = request else { panic!("{request:?}") };
            assert_eq!((announced.class, announced.protocol), (0, 6));
            assert_eq!((announced.source, announced.source_port), (Some(addresses[to]), None));
            let place = String::from_utf8_lossy(&payload[announced.place.clone()]).into_owned();
            assert!(
                place.ends_with(|end: char| !end.is_ascii_whitespace()) && !place.contains('P'),
                "{place}"
            );
            if !packet.refuses(Kind::Ftp, &announced) {
                self.announced.push((announced.destination, announced.destination_port));
            }
        });
        self.left = inspected == Inspected::Left;
        inspected
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
fn a_malformed_command_or_reply_announces_nothing() {
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
}

#[test]
fn the_last_two_announcements_count_when_they_are_sent_again() {
    let line = |port: u16| format!("PORT 192,0,2,1,78,{port:02}\r\n");
    let mut sender = Sender::new(THERE);
    let mut starts = Vec::new();
    for port in 10..13 {
        starts.push(sender.numbers[0]);
        sender.send(line(port).as_bytes());
        sender.send(b"NOOP\r\n");
    }
    assert_eq!(sender.announced().len(), 3);
    for (port, announced) in [(10, &[][..]), (11, &["192.0.2.1 19979"]), (12, &["192.0.2.1 19980"])]
    {
        // The line alone, cut at its end, and with the following bytes.
        for end in ["", "NO", "NOOP\r\n"] {
            let again = line(port) + end;
            sender.segment(starts[usize::from(port) - 10], again.as_bytes());
            assert_eq!(sender.announced(), announced, "{port} {end}");
        }
    }
    let noop = starts[1].wrapping_add(line(11).len() as u32);
    sender.segment(noop, line(13).as_bytes());
    assert!(sender.announced().is_empty(), "something else was said there");
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
        sender.skip(1000);
        sender.send(format!("{junk}{command}").as_bytes());
        prop_assert!(sender.announced().is_empty());
        sender.skip(1000);
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
                let number = sender.numbers[direction.index()];
                sender.segment(number.wrapping_add(*skip), &payload);
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

/// First lines of other protocols.
const OTHERS: [&[u8]; 10] = [
    b"POST / HTTP/1.1\r\nHost: ftp.example.com\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\n",
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\n",
    b"SSH-2.0-example\r\n",
    b"EHLO example.com\r\n",
    b"\r\n",
    b"USERS\r\n",
    b"PORT 192,0,2,1,78,32\r\n",
];
const COMMAND: &str = "PORT 192,0,2,1,78,32\r\n";

#[test]
fn a_connection_whose_client_begins_otherwise_is_left() {
    for greeting in ["220 ready\r\n", ""] {
        for other in OTHERS {
            for piece in [1, 3, 1000] {
                let mut sender = Sender::opened(CLIENT, SERVER);
                sender.converse(&[(BACK, greeting)]);
                for piece in other.chunks(piece) {
                    sender.send(piece);
                }
                assert!(sender.left, "{}", other.escape_ascii());
                sender.converse(&[(BACK, "230 in\r\n"), (THERE, "USER a\r\n"), (THERE, COMMAND)]);
                assert!(sender.announced().is_empty());
            }
        }
    }
}

#[test]
fn a_client_waits_for_the_greeting() {
    for (greeting, announced) in [
        (&["220 ready\r\n"][..], 1),
        (&["220\n"], 1),
        (&["120 in a minute\r\n", "220 ready\r\n"], 1),
        (&["220-Welcome\r\n", "PORT 1\r\n220 ready\r\n"], 1),
        (&["220-Wel", "come\r\n 220 not yet\r\n220 ready\r\n"], 1),
        (&[""], 0),
        (&["120 in a minute\r\n"], 0),
        (&["421 too many\r\n"], 0),
        (&["2200\r\n"], 0),
        (&["HTTP/1.1 220 ready\r\n"], 0),
    ] {
        let mut sender = Sender::opened(CLIENT, SERVER);
        for &text in greeting {
            sender.converse(&[(BACK, text)]);
        }
        sender.converse(&[(THERE, "USER a\r\n"), (THERE, COMMAND)]);
        assert_eq!(sender.announced().len(), announced, "{greeting:?}");
        assert_eq!(sender.left, announced == 0);
    }
}

#[test]
fn everything_depends_on_what_a_client_has_said_first() {
    let mut sender = Sender::opened(CLIENT, SERVER);
    sender.converse(&[(BACK, "220 ready\r\n")]);
    let start = sender.numbers[0];
    let first = OTHERS[0];
    sender.skip(first.len() as u32);
    sender.converse(&[(THERE, "USER a\r\n"), (THERE, COMMAND)]);
    assert_eq!(sender.announced(), [""; 0], "what came before is missing");
    assert_eq!(sender.segment(start, first), Inspected::Left, "it comes late");
}

#[test]
fn a_reply_counts_once_for_each_request() {
    const REPLY: &str = "227 Entering Passive Mode (198,51,100,2,78,32)\r\n";
    let begin = [(BACK, "220 ready\r\n"), (THERE, "USER a\r\n")];
    for (said, announced) in [
        (&[(BACK, REPLY)][..], 0),
        (&[(THERE, "PASV\r\n"), (BACK, REPLY), (BACK, REPLY)], 1),
        (&[(THERE, "EPSV\r\n"), (BACK, REPLY)], 1),
        (&[(THERE, "CWD a\r\nPASV\r\nRETR b\r\n"), (BACK, "250 a\r\n"), (BACK, REPLY)], 1),
        (&[(THERE, "PASV\r\nPASV\r\n"), (BACK, REPLY), (BACK, REPLY)], 2),
        (&[(THERE, "STOR PASV\r\n"), (BACK, REPLY)], 0),
        (&[(THERE, "PASVX\r\n"), (BACK, REPLY)], 0),
        // A text of the server may contain any lines.
        (&[(THERE, "PASV\r\n"), (BACK, "250-a\r\n"), (BACK, REPLY)], 0),
        (&[(THERE, "PASV\r\n"), (BACK, "250-a\r\n 250 b\r\n250-c\r\n"), (BACK, REPLY)], 0),
        (&[(THERE, "PASV\r\n"), (BACK, "250-a\r\n251 b\r\n250 c\r\n"), (BACK, REPLY)], 1),
    ] {
        let mut sender = Sender::opened(CLIENT, SERVER);
        sender.converse(&[&begin, said].concat());
        assert_eq!(sender.announced().len(), announced, "{said:?}");
    }
}

#[test]
fn encrypted_control_connections_are_not_read() {
    let begin = [(BACK, "220 ready\r\n"), (THERE, "AUTH TLS\r\n"), (THERE, COMMAND)];
    for (reply, left, announced) in
        [("234 go on\r\n", true, 0), ("334 more\r\n", false, 0), ("502 what?\r\n", false, 1)]
    {
        let mut sender = Sender::opened(CLIENT, SERVER);
        sender.converse(&begin);
        assert!(sender.announced().is_empty(), "it is not answered");
        sender.converse(&[(BACK, reply), (THERE, COMMAND)]);
        assert_eq!((sender.left, sender.announced().len()), (left, announced), "{reply}");
    }
}

#[test]
fn of_a_connection_that_is_picked_up_only_the_server_is_believed() {
    let said = [
        (THERE, "USER a\r\n"),
        (THERE, COMMAND),
        (BACK, "200 ok\r\n"),
        (THERE, "PASV\r\n"),
        (BACK, "227 (198,51,100,2,78,33)\r\n"),
    ];
    for trusts in [false, true] {
        let mut sender = Sender { starts: [None; 2], ..Sender::opened(CLIENT, SERVER) };
        sender.settings.expect_picked_up = trusts;
        sender.converse(&said);
        let all = ["192.0.2.1 20000", "198.51.100.2 20001"];
        assert_eq!(sender.announced(), if trusts { &all[..] } else { &all[1..] });
        assert!(!sender.left);
    }
}
