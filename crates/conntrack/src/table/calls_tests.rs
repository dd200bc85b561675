use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::Verdict;
use flow::{FlowKey, Zone};
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, Transport, dissect, protocol};

use super::*;
use crate::format::Listed;
use crate::helper::Kind;
use crate::testing::pptp::Says;
use crate::testing::{self, SECRET, usual_packet};
use crate::{Connection, Direction, Limits};

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];
const CONTROL: u16 = 40000;

/// A table in which only announced connections may be opened towards the server.
struct Lab {
    lab: testing::Lab,
    /// Next sequence numbers of the control connection.
    next: [u32; 2],
    /// The client's port of the control connection.
    port: u16,
    server_may_open: bool,
}

use Direction::{Original as There, Reply as Back};

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
    fn new() -> Self {
        let mut lab = testing::Lab::with_room_for(1000);
        lab.settings.helpers.attach(Kind::Pptp, 1723).unwrap();
        Self { lab, next: [0; 2], port: CONTROL, server_may_open: true }
    }

    /// A table with a control connection on which calls are possible.
    fn open() -> Self {
        let mut lab = Self::new();
        lab.connect(CONTROL);
        lab
    }

    fn connect(&mut self, port: u16) {
        (self.port, self.next) = (port, [0; 2]);
        self.segment(There, port, TcpFlags::SYN, b"");
        self.next[0] = 1;
        self.segment(Back, port, TcpFlags::SYN.with(TcpFlags::ACK), b"");
        self.next[1] = 1;
        self.segment(There, port, TcpFlags::ACK, b"");
        self.say(There, Says::Start);
        self.say(Back, Says::Started(1));
    }

    fn frame(from: Direction, write: impl FnOnce(PacketBuilder, &mut Vec<u8>)) -> Vec<u8> {
        let ends = [CLIENT, SERVER];
        let builder = PacketBuilder::v4(ends[from.index()], ends[from.reversed().index()]);
        let mut frame = Vec::new();
        write(builder, &mut frame);
        frame
    }

    fn track(&mut self, from: Direction, frame: &[u8]) -> Tracked {
        let network = dissect(frame).unwrap().network.unwrap();
        let keyed = match network.transport {
            Transport::IcmpError(error) => {
                FlowKey::of_quoted(&error.quoted.unwrap(), network.family, Zone(0))
            }
            _ => FlowKey::of_packet(&network, Zone(0)).unwrap(),
        };
        let packet = TrackedPacket {
            may_open: from == There || self.server_may_open,
            ..usual_packet(&network, frame, &keyed)
        };
        // It comes to a gateway that has just taken over the connections.
        self.take_over();
        self.run(|table, context| table.track_and_accept(&packet, context))
    }

    fn segment(&mut self, from: Direction, port: u16, flags: TcpFlags, payload: &[u8]) {
        let ports = [port, 1723];
        let tcp = Tcp {
            source_port: ports[from.index()],
            destination_port: ports[from.reversed().index()],
            sequence: self.next[from.index()],
            acknowledgment: self.next[from.reversed().index()],
            window: 60000,
            flags,
            ..Tcp::default()
        };
        let frame = Self::frame(from, |builder, frame| builder.tcp(&tcp, payload, frame));
        let tracked = self.track(from, &frame);
        assert_eq!(tracked.verdict, Verdict::Accept, "{tracked:?}");
        self.next[from.index()] += payload.len() as u32;
    }

    fn say(&mut self, from: Direction, says: Says) {
        self.segment(from, self.port, TcpFlags::ACK, &says.bytes());
    }

    fn call(&mut self, pns: u16, pac: u16) {
        self.say(There, Says::Outgoing(pns));
        self.say(Back, Says::OutgoingReply(pac, pns, 1));
        // Unacknowledged data shortens the lifetime of the control connection.
        self.segment(There, self.port, TcpFlags::ACK, b"");
    }

    fn gre_frame(from: Direction, id: u16) -> Vec<u8> {
        let [high, low] = id.to_be_bytes();
        let header = [0x30, 1, 0x88, 0x0b, 0, 4, high, low, 0, 0, 0, 1, 0xff, 3, 0xc0, 0x21];
        Self::frame(from, |builder, frame| builder.transport(protocol::GRE, &header, frame))
    }

    /// Tracks a GRE packet with the receiver's call id; returns its class, or that it was
    /// dropped.
    fn gre(&mut self, from: Direction, id: u16) -> &'static str {
        let tracked = self.track(from, &Self::gre_frame(from, id));
        match (tracked.verdict, tracked.class) {
            (Verdict::Drop(reason), _) => reason.name(),
            (Verdict::NoRoom(shortage), _) => shortage.reason().name(),
            (_, Class::New) => "new",
            (_, Class::Related) => "related",
            (_, Class::Established) => "established",
            (_, class) => panic!("{class:?}"),
        }
    }

    fn connections(&self) -> Vec<Connection> {
        let mut found = Vec::new();
        self.table.list(Default::default(), 10_000, self.now, |connection| found.push(connection));
        found
    }

    /// The lines of GRE, without the mark and the number of users.
    fn calls(&self) -> Vec<String> {
        let all = self.connections();
        let calls = all.iter().filter(|connection| connection.protocol == protocol::GRE);
        let lines = calls.map(|call| Listed(call).to_string());
        lines.map(|line| line.strip_suffix(" mark=0 use=1").unwrap().to_owned()).collect()
    }

    /// Does the work of the bucket's owner.
    fn end_calls(&mut self) {
        for call in self.expectations.calls_over() {
            self.run(|table, context| table.end_call(&call, call.hash(SECRET), context));
        }
        assert!(!self.expectations.has_calls_over());
    }
}

#[test]
fn an_announced_call_is_one_connection_of_both_ends() {
    let mut lab = Lab::open();
    lab.server_may_open = false;
    assert_eq!(lab.gre(Back, 5), "new_refused");
    lab.call(5, 9);
    assert_eq!(lab.expectations.len(), 2);
    assert_eq!(lab.gre(Back, 9), "new_refused", "its own id");
    assert_eq!(lab.gre(Back, 5), "related");
    assert!(lab.expectations.is_empty(), "neither end is expected any longer");
    assert_eq!(lab.gre(Back, 5), "related");
    assert_eq!(
        lab.calls(),
        ["gre      47 599 src=198.51.100.2 dst=192.0.2.1 srckey=0x9 dstkey=0x5 [UNREPLIED] \
          src=192.0.2.1 dst=198.51.100.2 srckey=0x5 dstkey=0x9"
            .replace(" 599 ", " 600 ")]
    );
    assert_eq!(lab.gre(There, 9), "established");
    assert_eq!(lab.gre(Back, 5), "established");
    assert_eq!(
        lab.calls(),
        ["gre      47 18000 src=198.51.100.2 dst=192.0.2.1 srckey=0x9 dstkey=0x5 \
          src=192.0.2.1 dst=198.51.100.2 srckey=0x5 dstkey=0x9 [ASSURED]"]
    );
    assert_eq!((lab.counters.expect_create, lab.counters.expect_new), (2, 1));
}

#[test]
fn an_unannounced_call_is_new_in_each_direction() {
    let mut lab = Lab::new();
    for (from, id) in [(There, 9), (Back, 5), (There, 9), (Back, 5), (Back, 9)] {
        assert_eq!(lab.gre(from, id), "new");
    }
    let mut calls = lab.calls();
    calls.sort();
    assert_eq!(
        calls,
        [
            "gre      47 30 src=192.0.2.1 dst=198.51.100.2 srckey=0x0 dstkey=0x9 [UNREPLIED] \
             src=198.51.100.2 dst=192.0.2.1 srckey=0x9 dstkey=0x0",
            "gre      47 30 src=198.51.100.2 dst=192.0.2.1 srckey=0x0 dstkey=0x5 [UNREPLIED] \
             src=192.0.2.1 dst=198.51.100.2 srckey=0x5 dstkey=0x0",
            "gre      47 30 src=198.51.100.2 dst=192.0.2.1 srckey=0x0 dstkey=0x9 [UNREPLIED] \
             src=192.0.2.1 dst=198.51.100.2 srckey=0x9 dstkey=0x0",
        ]
    );
    // With ids of 0 on both sides it is one call, and nothing else is.
    assert_eq!((lab.gre(There, 0), lab.gre(Back, 0)), ("new", "established"));
    assert_eq!(lab.gre(Back, 5), "new");
}

#[test]
fn an_announcement_counts_from_the_next_packet_on() {
    let mut lab = Lab::open();
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 5)), ("new", "new"));
    lab.call(5, 9);
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 5)), ("related", "established"));
    assert_eq!(lab.calls().len(), 3);
}

#[test]
fn calls_between_two_hosts_are_kept_apart() {
    let mut lab = Lab::open();
    lab.server_may_open = false;
    lab.call(5, 9);
    lab.call(9, 5);
    assert_eq!(lab.expectations.len(), 4);
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 9)), ("related", "related"));
    assert_eq!((lab.gre(There, 5), lab.gre(Back, 5)), ("established", "established"));
    let marks = |lab: &Lab| lab.calls().len();
    assert_eq!(marks(&lab), 2);
    lab.say(Back, Says::Disconnect(9));
    lab.end_calls();
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 5)), ("new", "new_refused"));
    assert_eq!((lab.gre(There, 5), lab.gre(Back, 9)), ("established", "established"));
}

#[test]
fn a_call_ends_before_its_owner_has_looked() {
    let mut lab = Lab::open();
    lab.server_may_open = false;
    lab.call(5, 9);
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 5)), ("related", "established"));
    lab.say(There, Says::Clear(5));
    assert_eq!(lab.gre(Back, 5), "established");
    lab.say(Back, Says::Disconnect(9));
    assert!(lab.expectations.has_calls_over());
    let error = |from: Direction| {
        // An error of the client about a packet to it.
        let quoted = &Lab::gre_frame(from.reversed(), 5)[14..];
        Lab::frame(from, |builder, frame| builder.icmp_error(3, 3, [0; 4], quoted, frame))
    };
    assert!(matches!(lab.track(There, &error(There)).class, Class::Invalid(_)));
    assert_eq!(lab.gre(Back, 5), "new_refused");
    assert!(!lab.expectations.has_calls_over());
    assert_eq!(lab.calls().len(), 0);
}

#[test]
fn a_call_that_ends_before_it_was_opened_is_expected_no_longer() {
    let mut lab = Lab::open();
    lab.server_may_open = false;
    lab.call(5, 9);
    lab.call(6, 8);
    lab.say(Back, Says::Disconnect(9));
    assert_eq!(lab.expectations.len(), 2);
    assert!(!lab.expectations.has_calls_over());
    assert_eq!((lab.gre(Back, 5), lab.gre(Back, 6)), ("new_refused", "related"));
}

#[test]
fn a_tunnel_whose_key_looks_like_a_call_id_is_no_call() {
    let mut lab = Lab::open();
    lab.call(5, 9);
    for key in [9, 9 << 16, 9 << 16 | 9_u32] {
        let header = [&[0x20, 0, 8, 0][..], &key.to_be_bytes()].concat();
        let frame =
            Lab::frame(There, |builder, frame| builder.transport(protocol::GRE, &header, frame));
        assert_eq!(lab.track(There, &frame).class, Class::New);
    }
    assert_eq!(lab.expectations.len(), 2);
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 5)), ("related", "established"));
}

#[test]
fn calls_end_with_their_control_connection() {
    for other_is_there in [false, true] {
        let mut lab = Lab::open();
        lab.call(5, 9);
        lab.call(6, 8);
        assert_eq!(lab.gre(There, 9), "related");
        if other_is_there {
            lab.connect(CONTROL + 1);
        }
        let control = lab.connections().into_iter().find(|it| it.original.transport.is(CONTROL));
        let key = control.unwrap().key;
        lab.run(|table, context| table.delete(&key, key.hash(SECRET), context));
        assert!(lab.expectations.is_empty());
        lab.end_calls();
        assert_eq!(lab.calls().len(), 0);
    }
}

#[test]
fn the_last_connection_that_announced_a_call_ends_it() {
    let mut lab = Lab::open();
    lab.server_may_open = false;
    lab.call(5, 9);
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 5)), ("related", "established"));
    lab.connect(CONTROL + 1);
    lab.call(5, 9);
    assert_eq!(lab.gre(Back, 5), "established");
    let control = lab.connections().into_iter().find(|it| it.original.transport.is(CONTROL));
    let key = control.unwrap().key;
    lab.run(|table, context| table.delete(&key, key.hash(SECRET), context));
    assert_eq!(lab.gre(Back, 5), "established", "the old one has no say");
    lab.say(Back, Says::Disconnect(9));
    assert_eq!(lab.gre(Back, 5), "new_refused");
    // It is announced again before a worker has checked: another connection.
    for _ in 0..2 {
        lab.call(5, 9);
        assert_eq!((lab.gre(There, 9), lab.gre(Back, 5)), ("related", "established"));
        lab.say(Back, Says::Disconnect(9));
    }
    lab.end_calls();
    assert!(lab.calls().is_empty() && lab.expectations.is_empty());
}

impl crate::TupleTransport {
    fn is(&self, port: u16) -> bool {
        matches!(self, Self::Ports { source, .. } if *source == port)
    }
}

#[test]
fn the_books_forget_calls_that_end_by_themselves() {
    let mut lab = Lab::open();
    // Calls whose time is over would be lost.
    lab.takes_over = false;
    lab.call(5, 9);
    assert_eq!(lab.gre(There, 9), "related");
    lab.now = lab.now.after(Duration::from_secs(600));
    lab.run(|table, context| table.expire(usize::MAX, context));
    assert_eq!(lab.calls().len(), 0);
    lab.say(Back, Says::Disconnect(9));
    assert!(!lab.expectations.has_calls_over());
    lab.segment(There, lab.port, TcpFlags::ACK, b"");
    // It has expired, but no worker has removed it.
    lab.call(5, 9);
    assert_eq!(lab.gre(There, 9), "related");
    lab.now = lab.now.after(Duration::from_secs(600));
    assert_eq!(lab.gre(There, 9), "new");
    lab.say(Back, Says::Disconnect(9));
    assert!(!lab.expectations.has_calls_over());
}

#[test]
fn errors_about_calls_are_related_to_them() {
    let mut lab = Lab::open();
    let error = |from: Direction, id: u16| {
        let quoted = &Lab::gre_frame(from.reversed(), id)[14..];
        Lab::frame(from, |builder, frame| builder.icmp_error(3, 3, [0; 4], quoted, frame))
    };
    assert!(matches!(lab.track(Back, &error(Back, 9)).class, Class::Invalid(_)));
    lab.call(5, 9);
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 7)), ("related", "new"));
    for (from, id, direction) in [(Back, 9, Back), (There, 5, There), (There, 7, Back)] {
        let tracked = lab.track(from, &error(from, id));
        assert_eq!((tracked.class, tracked.direction), (Class::Related, Some(direction)), "{id}");
    }
    assert!(matches!(lab.track(There, &error(There, 9)).class, Class::Invalid(_)));
}

#[test]
fn two_hosts_have_so_many_calls_and_what_nobody_announced_gives_way() {
    let mut lab = Lab::open();
    for id in 0..CALLS_OF_A_PAIR as u16 + 10 {
        lab.now = lab.now.after(Duration::from_millis(1));
        assert_eq!(lab.gre(There, 1000 + id), "new");
    }
    assert_eq!((lab.calls().len(), lab.counters.early_drop), (CALLS_OF_A_PAIR, 10));
    assert!(lab.calls().iter().any(|line| line.contains("srckey=0x0 dstkey=0x3f2 ")), "the 11th");
    assert!(!lab.calls().iter().any(|line| line.contains("srckey=0x0 dstkey=0x3f1 ")));
    for id in 0..CALLS_OF_A_PAIR as u16 {
        lab.call(id, id);
        assert_eq!(lab.gre(There, id), "related");
    }
    assert_eq!(lab.calls().len(), CALLS_OF_A_PAIR);
    lab.call(500, 500);
    assert_eq!((lab.gre(There, 500), lab.gre(There, 1000)), ("call_limit", "call_limit"));
    assert_eq!(lab.expectations.len(), 2, "still expected");
    assert_eq!(lab.gre(There, 3), "related");
    lab.say(Back, Says::Disconnect(CALLS_OF_A_PAIR as u16 - 1));
    lab.end_calls();
    assert_eq!(lab.gre(There, 500), "related");
    assert_eq!(lab.gre(Back, 500), "established");
}

#[test]
fn a_call_that_finds_no_room_is_still_expected_from_both_ends() {
    let mut lab = Lab::open();
    lab.server_may_open = false;
    lab.takes_over = false;
    lab.limits = Limits::alone(0, SECRET);
    lab.call(5, 9);
    for _ in 0..2 {
        assert_eq!((lab.gre(There, 9), lab.gre(Back, 5)), ("table_full", "table_full"));
        assert_eq!(lab.expectations.len(), 2);
    }
    lab.limits = Limits::alone(9, SECRET);
    assert_eq!((lab.gre(Back, 5), lab.gre(There, 9)), ("related", "established"));
}

#[test]
fn calls_are_found_by_their_keys() {
    let mut lab = Lab::open();
    lab.call(5, 9);
    lab.call(6, 9);
    assert_eq!((lab.gre(There, 9), lab.gre(Back, 6)), ("related", "related"));
    assert_eq!(lab.gre(Back, 3), "new");
    for connection in lab.connections() {
        let key = connection.key;
        assert_eq!(lab.table.get(&key, key.hash(SECRET), lab.now), Some(connection));
    }
    let filter = |from: [u8; 4], to: [u8; 4], keys: (u32, u32)| crate::Filter {
        protocol: Some(protocol::GRE),
        source: Some(std::net::Ipv4Addr::from(from).to_string().parse().unwrap()),
        destination: Some(std::net::Ipv4Addr::from(to).to_string().parse().unwrap()),
        source_key: Some(keys.0),
        destination_key: Some(keys.1),
        ..crate::Filter::default()
    };
    for (filter, count) in [
        (filter(CLIENT, SERVER, (5, 9)), 1),
        (filter(SERVER, CLIENT, (9, 6)), 1),
        (filter(SERVER, CLIENT, (0, 3)), 1),
        (filter(CLIENT, SERVER, (3, 0)), 0),
        (filter(CLIENT, SERVER, (9, 5)), 0),
        (filter(CLIENT, SERVER, (0x1_0005, 9)), 0),
    ] {
        let keys = filter.flows(Zone(0)).unwrap();
        let mut found = 0;
        for key in keys {
            let show = &mut |_| found += 1;
            lab.run(|table, context| {
                let action = crate::Action::Show(show);
                table.select_flow(&key, key.hash(SECRET), &filter, action, context)
            });
        }
        let matching = lab.connections().iter().filter(|it| filter.matches(it)).count();
        assert_eq!((found, matching), (count, count), "{filter:?}");
    }
}
