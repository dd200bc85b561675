use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::Verdict;
use crate::capacity::Shortage;
use flow::{Class, DropReason, FlowKey, Zone};
use wire::{dissect, protocol};

use crate::helper::Kind;
use crate::testing::translated::frame4;
use crate::testing::{self, SECRET, usual_packet};
use crate::{Changes, Connection, Limits, Settings, Tracked, TrackedPacket};

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];
const CONTROL: u16 = 40000;

/// A table in which only announced connections may be opened towards the client.
struct Lab {
    lab: testing::Lab,
    from_client_may_open: bool,
    /// True if the rules refuse packets that open connections.
    refuses: bool,
    client: [u8; 4],
    server: [u8; 4],
    /// Frames are broadcast.
    group: bool,
}

/// A segment or datagram.
#[derive(Clone, Copy)]
struct Sent<'a> {
    from_client: bool,
    ports: (u16, u16),
    flags: Option<u8>,
    numbers: (u32, u32),
    payload: &'a [u8],
}

const SYN: u8 = 2;
const ACK: u8 = 16;

impl Deref for Lab {
    type Target = testing::Lab;

    fn deref(&self) -> &testing::Lab {
        &self.lab
    }
}

impl DerefMut for Lab {
    fn deref_mut(&mut self) -> &mut testing::Lab {
        &mut self.lab
    }
}

impl Lab {
    fn new(helpers: &[(Kind, u16)]) -> Self {
        let mut lab = testing::Lab::with_room_for(100);
        for &(kind, port) in helpers {
            lab.settings.helpers.attach(kind, port).unwrap();
        }
        Self {
            lab,
            from_client_may_open: true,
            refuses: false,
            client: CLIENT,
            server: SERVER,
            group: false,
        }
    }

    fn send(&mut self, sent: Sent<'_>) -> Tracked {
        let Sent { from_client, ports, flags, numbers, payload } = sent;
        let ends = (self.client, self.server);
        let (source, destination) = if from_client { ends } else { (ends.1, ends.0) };
        let ends = ((source, ports.0), (destination, ports.1));
        let mut frame = frame4(ends, flags, numbers, payload);
        frame[0] |= u8::from(self.group);
        let network = dissect(&frame).unwrap().network.unwrap();
        let keyed = FlowKey::of_packet(&network, Zone(0)).unwrap();
        let packet = TrackedPacket {
            may_open: from_client && self.from_client_may_open,
            ..usual_packet(&network, &frame, &keyed)
        };
        let refuses = self.refuses;
        // It comes to a gateway that has just taken over the connections.
        self.take_over();
        self.run(|table, context| {
            let tracked = table.track(&packet, context);
            if let (true, Some(id)) = (refuses && tracked.fresh, tracked.connection) {
                table.withdraw(id, context);
                return tracked;
            }
            table.accept(tracked, &packet, context)
        })
    }

    /// Opens a control connection on which the server has greeted; the next numbers are
    /// 8 and 5.
    fn control(&mut self, port: u16) {
        let there = |numbers, flags, payload| Sent {
            from_client: true,
            ports: (CONTROL, port),
            flags: Some(flags),
            numbers,
            payload,
        };
        let back = |numbers, flags, payload| Sent {
            from_client: false,
            ports: (port, CONTROL),
            ..there(numbers, flags, payload)
        };
        self.send(there((0, 0), SYN, b""));
        self.send(back((0, 1), SYN | ACK, b""));
        self.send(there((1, 1), ACK, b""));
        self.send(back((1, 1), ACK, b"220\n"));
        self.send(there((1, 5), ACK, b"USER a\n"));
    }

    fn command(&mut self, sequence: u32, payload: &[u8]) -> Tracked {
        let (ports, numbers) = ((CONTROL, 21), (sequence, 5));
        self.send(Sent { from_client: true, ports, flags: Some(ACK), numbers, payload })
    }

    fn data_syn(&mut self, port: u16) -> Tracked {
        let (ports, numbers) = ((20, port), (9, 0));
        self.send(Sent { from_client: false, ports, flags: Some(SYN), numbers, payload: b"" })
    }

    fn connections(&self) -> Vec<Connection> {
        let mut found = Vec::new();
        self.table.list(Default::default(), 1000, self.now, |connection| found.push(connection));
        found
    }
}

fn is_refused(tracked: Tracked) -> bool {
    tracked.verdict == Verdict::Drop(DropReason::NewRefused)
}

#[test]
fn an_announced_connection_is_related_and_has_the_mark() {
    let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
    lab.control(21);
    let key = lab.connections()[0].key;
    let changes = Changes { mark: Some((5, u32::MAX)), ..Changes::default() };
    lab.run(|table, context| table.update(&key, key.hash(SECRET), changes, context));
    assert!(is_refused(lab.data_syn(2000)));
    assert_eq!(lab.command(8, b"PORT 192,0,2,1,7,208\n").verdict, Verdict::Accept);
    assert!(is_refused(lab.data_syn(2001)));
    for _ in 0..2 {
        let tracked = lab.data_syn(2000);
        assert_eq!(
            (tracked.class, tracked.verdict, tracked.mark),
            (Class::Related, Verdict::Accept, 5)
        );
    }
    let listed: Vec<_> =
        lab.connections().iter().map(|it| (it.expected, it.helper, it.mark)).collect();
    assert_eq!(listed, [(false, Some("ftp"), 5), (true, None, 5)]);
    assert!(lab.expectations.is_empty());
    assert_eq!((lab.counters.expect_create, lab.counters.expect_new), (1, 1));

    let (ports, numbers) = ((2000, 20), (0, 10));
    let answer = Sent { from_client: true, ports, flags: Some(SYN | ACK), numbers, payload: b"" };
    assert_eq!(lab.send(answer).class, Class::Established);
}

#[test]
fn an_announced_connection_that_is_refused_is_expected_again() {
    let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
    lab.control(21);
    lab.command(8, b"PORT 192,0,2,1,7,208\n");
    lab.refuses = true;
    for _ in 0..2 {
        assert_eq!(lab.data_syn(2000).class, Class::Related);
        assert_eq!((lab.table.len(), lab.expectations.len()), (1, 1));
        assert_eq!((lab.counters.expect_new, lab.counters.insert), (0, 1));
    }
    lab.refuses = false;
    assert_eq!(lab.data_syn(2000).class, Class::Related);
    assert_eq!((lab.table.len(), lab.expectations.len(), lab.counters.expect_new), (2, 0, 1));
}

#[test]
fn helpers_that_are_not_configured_attach_to_nothing() {
    for (configured, port) in [(None, 21), (Some(2121), 21), (Some(21), 2121)] {
        let helpers: Vec<_> = configured.map(|port| (Kind::Ftp, port)).into_iter().collect();
        let mut lab = Lab::new(&helpers);
        lab.control(port);
        let (ports, numbers, flags) = ((CONTROL, port), (8, 5), Some(ACK));
        let payload = b"PORT 192,0,2,1,7,208\n";
        lab.send(Sent { from_client: true, ports, flags, numbers, payload });
        assert!(lab.expectations.is_empty());
        assert!(is_refused(lab.data_syn(2000)));
        assert_eq!(lab.connections()[0].helper, None);
    }
}

#[test]
fn a_refused_packet_leaves_nothing_behind() {
    let mut lab = Lab::new(&[]);
    let refused = lab.data_syn(2000);
    assert!(is_refused(refused));
    assert_eq!(refused.class, Class::New);
    assert!(lab.table.is_empty());
    assert_eq!(lab.limits.used(), 0);
    let (ports, numbers) = ((CONTROL, 22), (0, 0));
    let opening = Sent { from_client: true, ports, flags: Some(SYN), numbers, payload: b"" };
    assert_eq!(lab.send(opening).verdict, Verdict::Accept);
    lab.from_client_may_open = false;
    assert!(is_refused(lab.send(opening)), "not from the side that opened it");
    let numbers = (0, 1);
    let answer = Sent {
        from_client: false,
        ports: (22, CONTROL),
        flags: Some(SYN | ACK),
        numbers,
        ..opening
    };
    assert_eq!(lab.send(answer).class, Class::Established);
}

#[test]
fn half_a_command_is_dropped_until_the_rest_comes() {
    let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
    lab.control(21);
    let half = lab.command(8, b"PORT 192,0,2,1,7,2");
    assert_eq!(half.verdict, Verdict::Drop(DropReason::HelperIncomplete));
    assert_eq!(half.class, Class::Established);
    let whole = lab.command(8, b"PORT 192,0,2,1,7,208\n");
    assert_eq!((whole.class, whole.verdict), (Class::Established, Verdict::Accept));
    assert_eq!(lab.expectations.len(), 1);
}

#[test]
fn segments_outside_the_window_announce_nothing() {
    let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
    lab.control(21);
    let far = lab.command(1_000_008, b"\nPORT 192,0,2,1,7,208\n");
    assert!(matches!(far.class, Class::Invalid(_)), "{far:?}");
    assert!(lab.expectations.is_empty());
}

#[test]
fn expectations_end_with_the_connection_that_announced_them() {
    for ending in [Lab::expire as fn(&mut Lab), Lab::delete_all] {
        let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
        lab.control(21);
        lab.command(8, b"PORT 192,0,2,1,7,208\n");
        assert_eq!(lab.expectations.len(), 1);
        ending(&mut lab);
        assert!(lab.table.is_empty() && lab.expectations.is_empty());
    }
}

impl Lab {
    fn expire(&mut self) {
        self.now = self.now.after(Duration::from_secs(500_000));
        self.run(|table, context| table.expire(usize::MAX, context));
    }

    fn delete_all(&mut self) {
        self.run(|table, context| table.flush(Default::default(), 1000, |_| true, context));
    }
}

#[test]
fn a_packet_that_announces_too_much_is_dropped() {
    let mut lab = Lab::new(&[(Kind::Ftp, 21), (Kind::Tftp, 69)]);
    lab.settings.expect_max = 1;
    lab.control(21);
    lab.command(8, b"PORT 192,0,2,1,7,208\n");
    let (ports, numbers, payload) = ((3000, 69), (0, 0), b"\0\x01file\0octet\0");
    let request = Sent { from_client: true, ports, flags: None, numbers, payload };
    assert_eq!(lab.send(request).verdict, Verdict::Drop(DropReason::ExpectationsFull));
    lab.settings.expect_max = 2;
    assert_eq!(lab.send(request).verdict, Verdict::Accept, "the first datagram is read too");
    assert_eq!(lab.counters.expect_gave_way, 0);
    let opener = std::mem::replace(&mut lab.client, [192, 0, 2, 7]);
    assert_eq!(lab.send(request).verdict, Verdict::Accept, "another source has its share");
    lab.client = opener;
    assert_eq!((lab.expectations.len(), lab.counters.expect_gave_way), (2, 1));
    let (ports, payload) = ((4000, 3000), b"\0\x03\0\x01data");
    let answer = Sent { from_client: false, ports, flags: None, numbers, payload };
    assert_eq!(lab.send(answer).class, Class::Related);
    let other = Sent { ports: (4001, 3000), ..answer };
    assert!(is_refused(lab.send(other)));
}

#[test]
fn many_may_answer_what_goes_to_all() {
    let mut lab = Lab::new(&[(Kind::Snmp, 161)]);
    let ask = Sent {
        from_client: true,
        ports: (3000, 161),
        flags: None,
        numbers: (0, 0),
        payload: b"who?",
    };
    let answer = Sent { from_client: false, ports: (161, 3000), ..ask };
    let hosts = [[198, 51, 100, 3], [198, 51, 100, 4]];
    for group in [false, true] {
        lab.group = group;
        lab.server = [255; 4];
        assert_eq!(lab.send(ask).verdict, Verdict::Accept);
        lab.group = false;
        for host in hosts {
            lab.server = host;
            let tracked = lab.send(answer);
            assert_eq!(tracked.class == Class::Related, group, "{tracked:?}");
            assert!(is_refused(lab.send(Sent { ports: (162, 3000), ..answer })));
        }
    }
    lab.now = lab.now.after(Duration::from_secs(30));
    lab.server = SERVER;
    assert!(is_refused(lab.send(answer)), "too late");
}

#[test]
fn an_expectation_remains_when_its_connection_found_no_room() {
    let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
    lab.takes_over = false;
    lab.limits = Limits::alone(1, SECRET);
    lab.control(21);
    lab.command(8, b"PORT 192,0,2,1,7,208\n");
    assert_eq!(lab.data_syn(2000).verdict, Verdict::NoRoom(Shortage::Table));
    assert_eq!(lab.expectations.len(), 1);
}

#[test]
fn one_port_has_one_helper() {
    let mut settings = Settings::default();
    settings.helpers.attach(Kind::Ftp, 21).unwrap();
    assert!(settings.helpers.attach(Kind::Ftp, 21).is_err());
    settings.helpers.attach(Kind::Tftp, 21).unwrap();
    assert_eq!(settings.helpers.of(protocol::TCP, 21), Some(Kind::Ftp));
    assert_eq!(settings.helpers.of(protocol::UDP, 21), Some(Kind::Tftp));
}

fn counted(lab: &Lab) -> (usize, u64) {
    (lab.expectations.len(), lab.counters.expect_refused)
}

#[test]
fn nobody_is_expected_at_a_privileged_port_unless_it_is_allowed() {
    for (port, announced) in [("0,22", 0), ("1,189", 0), ("3,255", 0), ("4,0", 1), ("31,144", 1)] {
        let command = format!("PORT 192,0,2,1,{port}\n");
        let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
        lab.control(21);
        assert_eq!(lab.command(8, command.as_bytes()).verdict, Verdict::Accept);
        assert_eq!(counted(&lab), (announced, 1 - announced as u64), "{port}");
        let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
        lab.settings.helper.expect_privileged = true;
        lab.control(21);
        lab.command(8, command.as_bytes());
        assert_eq!(counted(&lab), (1, 0), "{port}");
    }
}

#[test]
fn an_answer_to_the_port_that_has_asked_may_be_privileged() {
    let mut lab = Lab::new(&[(Kind::NetbiosNs, 137)]);
    (lab.group, lab.server) = (true, [192, 0, 2, 255]);
    let (ports, numbers) = ((137, 137), (0, 0));
    let ask = Sent { from_client: true, ports, flags: None, numbers, payload: b"who?" };
    lab.send(ask);
    assert_eq!(counted(&lab), (1, 0));
}

#[test]
fn third_parties_are_announced_only_if_that_is_allowed() {
    let other = b"PORT 203,0,113,9,31,144\n";
    let settings: [fn(&mut Settings); 3] =
        [|_| {}, |it| it.helper.ftp_loose = true, |it| it.helper.expect_third_parties = true];
    for (number, set) in settings.into_iter().enumerate() {
        let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
        set(&mut lab.settings);
        lab.control(21);
        assert_eq!(lab.command(8, other).verdict, Verdict::Accept);
        assert_eq!(counted(&lab), if number == 0 { (0, 1) } else { (1, 0) }, "{number}");
    }
}

#[test]
fn a_helper_that_has_left_is_not_listed_and_does_not_come_back() {
    let mut lab = Lab::new(&[(Kind::Ftp, 21)]);
    let there = |numbers, flags, payload| Sent {
        from_client: true,
        ports: (CONTROL, 21),
        flags: Some(flags),
        numbers,
        payload,
    };
    let back = Sent { from_client: false, ports: (21, CONTROL), ..there((0, 1), SYN | ACK, b"") };
    let post = b"POST / HTTP/1.1\r\n\r\n";
    lab.send(there((0, 0), SYN, b""));
    lab.send(back);
    lab.send(there((1, 1), ACK, b""));
    lab.send(Sent { numbers: (1, 1), flags: Some(ACK), payload: b"220 ready\r\n", ..back });
    assert_eq!(lab.connections()[0].helper, Some("ftp"));
    assert_eq!(lab.send(there((1, 12), ACK, post)).verdict, Verdict::Accept);
    assert_eq!((lab.connections()[0].helper, lab.counters.helper_left), (None, 1));
    // A forged SYN would move the beginning here.
    let at = 1 + post.len() as u32;
    lab.send(there((at - 1, 0), SYN, b""));
    for (text, at) in [(&b"USER a\n"[..], at), (b"PORT 192,0,2,1,31,144\n", at + 7)] {
        assert_eq!(lab.send(there((at, 12), ACK, text)).verdict, Verdict::Accept);
    }
    assert_eq!((counted(&lab), lab.counters.helper_left), ((0, 0), 1));
}

/// An attacker who knows the client's port and numbers forges a SYN, so that a segment in the
/// middle of the client's text would be the beginning.
#[test]
fn a_forged_opening_has_a_helper_begin_nowhere_else() {
    let post = b"POST / HTTP/1.1\r\n\r\n";
    let at = 1 + post.len() as u32;
    let said: [&[u8]; 3] = [
        b"USER a\nPORT 192,0,2,1,31,144\n",
        b"NICK a\nUSER a\nPRIVMSG b :\x01DCC SEND f 3221225985 8080\x01\n",
        b"\0\0\0\0\x01\0\0\x03",
    ];
    for (kind, said) in [Kind::Ftp, Kind::Irc, Kind::Sane].into_iter().zip(said) {
        for (before, after) in [(true, false), (false, true)] {
            let port = kind.default_port();
            let mut lab = Lab::new(&[(kind, port)]);
            let there = |numbers, flags, payload| Sent {
                from_client: true,
                ports: (CONTROL, port),
                flags: Some(flags),
                numbers,
                payload,
            };
            let back = |numbers, flags, payload| Sent {
                from_client: false,
                ports: (port, CONTROL),
                ..there(numbers, flags, payload)
            };
            let forged = there((at - 1, 0), SYN, b"");
            before.then(|| lab.send(forged));
            lab.send(there((0, 0), SYN, b""));
            lab.send(back((0, 1), SYN | ACK, b""));
            lab.send(there((1, 1), ACK, b""));
            after.then(|| lab.send(forged));
            if kind == Kind::Ftp {
                lab.send(back((1, 1), ACK, b"220 ready\n"));
            }
            for (text, at) in [(&post[..], 1), (said, at)] {
                let sent = lab.send(there((at, 1), ACK, text));
                assert_eq!((sent.class, sent.verdict), (Class::Established, Verdict::Accept));
            }
            assert_eq!((counted(&lab), lab.counters.helper_left), ((0, 0), 1), "{kind:?}");
        }
    }
}
