use std::fmt::Write;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::Direction;
use crate::testing::conversation::{SERVER, Talk};

#[path = "vectors.rs"]
mod vectors;

/// The media of 192.0.2.1 that a `fastStart` with 5000 and 5001 announces, if 192.0.2.1 sends
/// it.
const MEDIA: &str =
    "udp 192.0.2.1 5000, udp 192.0.2.1 5001, udp 192.0.2.1 5000, udp 192.0.2.1 5001";
const H245: &str = "tcp 192.0.2.1 4000 H.245";

/// A connection, and the requests of its helper.
struct Call {
    talk: Talk,
    heard: Vec<String>,
}

impl Call {
    fn new(kind: Kind) -> Self {
        Self { talk: Talk::new(kind, kind.facts().protocols[0]), heard: Vec::new() }
    }

    /// A connection with a gatekeeper that the operator trusts.
    fn trusting() -> Self {
        let mut call = Self::new(Kind::Ras);
        call.talk.settings.expect_third_parties = true;
        call
    }

    /// Sends a packet of one of the ends.
    fn send(&mut self, direction: Direction, payload: &[u8]) {
        let (receiver, _) = self.talk.ends[direction.reversed().index()];
        for request in self.talk.say(direction, payload) {
            self.heard.push(match request {
                Request::Expect(announced) => text(&announced, receiver, payload),
                Request::Withdraw { classes, .. } => format!("withdraw {classes:?}"),
                Request::End { .. }
                | Request::Confirm { .. }
                | Request::Mention(_)
                | Request::Measure { .. } => panic!("none is meant"),
                Request::Edit(_) => panic!("nothing is translated"),
                Request::Keep { seconds } => format!("keep {seconds}"),
            });
        }
    }

    fn heard(&mut self) -> String {
        std::mem::take(&mut self.heard).join(", ")
    }
}

/// An announcement as text. It names the source if that is not the receiver of the packet.
fn text(announced: &Announced, receiver: IpAddr, payload: &[u8]) -> String {
    let Announced { destination, destination_port: port, .. } = *announced;
    assert_eq!((announced.class, announced.source_port), (0, None));
    if let [address @ .., high, low] = &payload[announced.place.clone()] {
        let octets = match destination {
            IpAddr::V4(it) => it.octets().to_vec(),
            IpAddr::V6(it) => it.octets().to_vec(),
        };
        assert_eq!(address, octets);
        assert_eq!(u16::from_be_bytes([*high, *low]) | 1, port | 1);
    }
    let protocol = if announced.protocol == 6 { "tcp" } else { "udp" };
    let mut text = format!("{protocol} {destination} {port}");
    if announced.source != Some(receiver) {
        write!(text, " from {:?}", announced.source).unwrap();
    }
    if let Some(kind) = announced.helper {
        write!(text, " {}", kind.name()).unwrap();
    }
    if announced.permanent {
        text.push_str(" any number");
    }
    if let Some(seconds) = announced.timeout_s {
        write!(text, " for {seconds}").unwrap();
    }
    text
}

fn bytes(hex: &str) -> Vec<u8> {
    let octets = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    octets.map(|octet| u8::from_str_radix(octet, 16).unwrap()).collect()
}

/// A message with its header on TCP.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = (message.len() + TPKT_HEADER) as u16;
    [&[TPKT_VERSION, 0][..], &length.to_be_bytes(), message].concat()
}

/// The requests for a message of 192.0.2.1.
fn heard(kind: Kind, hex: &str) -> String {
    let mut call = Call::new(kind);
    let message = bytes(hex);
    let packet = if kind == Kind::Ras { message } else { framed(&message) };
    call.send(Direction::Original, &packet);
    call.heard()
}

#[test]
fn call_signalling_announces_h245_and_fast_start() {
    let fast = MEDIA;
    let both = format!("{H245}, {MEDIA}");
    let reverse = MEDIA.replace("500", "50/").replace("/0", "02").replace("/1", "03");
    let setup = format!("{both}, {reverse}");
    for (name, message, expected) in [
        ("setup", vectors::SETUP, &setup[..]),
        ("proceeding", vectors::PROCEEDING, H245),
        ("alerting", vectors::ALERTING, fast),
        ("connect", vectors::CONNECT, &both),
        ("progress", vectors::PROGRESS, &both),
        ("facility", vectors::FACILITY, &both),
        ("routed", vectors::SETUP_ROUTED, fast),
        ("tunnelled", vectors::TUNNELLED, &MEDIA.replace("500", "600")),
        ("another's address", vectors::SETUP_OTHER, ""),
        ("IPv6 in IPv4", vectors::SETUP_V6, ""),
        ("tokens without a length", vectors::PROGRESS_TOKENS, ""),
        ("release", vectors::RELEASE, ""),
    ] {
        assert_eq!(heard(Kind::Q931, message), expected, "{name}");
    }
}

#[test]
fn h245_announces_media() {
    let control = "udp 192.0.2.1 5000, udp 192.0.2.1 5001";
    let t120 = "tcp 192.0.2.1 1503 any number";
    for (name, message, expected) in [
        ("ack", vectors::OPEN_ACK, &MEDIA.replace("500", "600")[..]),
        ("reverse", vectors::OPEN_ACK_REVERSE, "udp 192.0.2.1 6002, udp 192.0.2.1 6003"),
        ("NetBIOS", vectors::OPEN_OTHERS, control),
        ("IPX", vectors::OPEN_IPX, control),
        ("source route", vectors::OPEN_SOURCE_ROUTE, control),
        ("T.120", vectors::T120, t120),
        ("T.120 ack", vectors::T120_ACK, t120),
        ("no T.120", vectors::NOT_T120, ""),
        ("H.222", vectors::OPEN_H222, ""),
        ("IPv6 in IPv4", vectors::OPEN_V6, ""),
        ("round trip", vectors::ROUND_TRIP, ""),
    ] {
        assert_eq!(heard(Kind::H245, message), expected, "{name}");
    }
    for (name, message) in vectors::OPEN {
        assert_eq!(heard(Kind::H245, message), control, "{name}");
    }
}

#[test]
fn ipv6_works_alike() {
    let [client, server] = ["2001:db8::1", "2001:db8::2"].map(|end| end.parse().unwrap());
    for (kind, message, expected) in [
        (Kind::Q931, vectors::SETUP_V6, "tcp 2001:db8::1 4000 H.245"),
        (Kind::H245, vectors::OPEN_V6, "udp 2001:db8::1 5000, udp 2001:db8::1 5001"),
    ] {
        let mut call = Call::new(kind);
        call.talk.ends = [(client, 40_000), (server, 1720)];
        call.send(Direction::Original, &framed(&bytes(message)));
        assert_eq!(call.heard(), expected);
        call.send(Direction::Reply, &framed(&bytes(message)));
        assert_eq!(call.heard(), "");
    }
}

#[test]
fn an_endpoint_can_be_called_as_long_as_it_is_registered() {
    let (there, back) = (Direction::Original, Direction::Reply);
    let calls = "tcp 192.0.2.1 1722 Q.931 any number";
    let confirmed = |seconds: u32| {
        let from = format!("from Some({SERVER})");
        format!("tcp 192.0.2.1 1722 {from} Q.931 any number for {seconds}, keep {seconds}")
    };
    for (request, confirm, seconds) in [
        (vectors::REGISTER, vectors::CONFIRM, 3600),
        (vectors::REGISTER, vectors::CONFIRM_SHORT, 60),
        (vectors::REGISTER_SHORT, vectors::CONFIRM, 3600),
        (vectors::REGISTER_SHORT, vectors::CONFIRM_SHORT, 300),
        (vectors::REGISTER, vectors::CONFIRM_LONG, 86_400),
    ] {
        let mut gatekeeper = Call::new(Kind::Ras);
        gatekeeper.send(back, &bytes(confirm));
        assert_eq!(gatekeeper.heard(), "", "nobody asked");
        gatekeeper.send(there, &bytes(request));
        assert_eq!(gatekeeper.heard(), calls);
        gatekeeper.send(there, &bytes(confirm));
        assert_eq!(gatekeeper.heard(), "", "nobody confirms itself");
        gatekeeper.send(back, &bytes(confirm));
        assert_eq!(gatekeeper.heard(), confirmed(seconds));
        gatekeeper.send(there, &bytes(vectors::UNREGISTER));
        assert_eq!(gatekeeper.heard(), "withdraw 0..=0");
        gatekeeper.send(back, &bytes(confirm));
        assert_eq!(gatekeeper.heard(), "", "it is not registered any more");
    }
    let mut gatekeeper = Call::new(Kind::Ras);
    gatekeeper.send(back, &bytes(vectors::REGISTER));
    assert_eq!(gatekeeper.heard(), "", "the addresses are not the sender's");
}

#[test]
fn a_gatekeeper_names_others() {
    let other = "tcp 203.0.113.9 1725 Q.931 any number";
    for (message, expected) in [
        (vectors::ADMITTED, other),
        (vectors::ADMITTED_ANSWER, ""),
        (vectors::LOCATED, other),
        (vectors::GATEKEEPER, "udp 203.0.113.9 1719 RAS"),
        (vectors::GATEKEEPER_SAME, ""),
        (vectors::REJECTED, ""),
    ] {
        let mut gatekeeper = Call::trusting();
        gatekeeper.send(Direction::Reply, &bytes(message));
        assert_eq!(gatekeeper.heard(), expected);
        let mut other = Call::new(Kind::Ras);
        other.send(Direction::Reply, &bytes(message));
        assert_eq!(other.heard(), "");
        assert_eq!(other.talk.refused, usize::from(!expected.is_empty()));
    }
    let ends = ["2001:db8::1", "2001:db8::2"].map(|end| (end.parse().unwrap(), 1719));
    for message in [vectors::ADMITTED, vectors::LOCATED, vectors::GATEKEEPER] {
        let mut gatekeeper = Call::trusting();
        gatekeeper.talk.ends = ends;
        gatekeeper.send(Direction::Reply, &bytes(message));
        assert_eq!(gatekeeper.heard(), "", "IPv4 in IPv6");
    }
}

#[test]
fn a_gatekeeper_that_another_has_named_names_no_third() {
    let mut gatekeeper = Call::trusting();
    gatekeeper.talk.is_expected = true;
    gatekeeper.send(Direction::Reply, &bytes(vectors::GATEKEEPER));
    assert_eq!(gatekeeper.heard(), "");
    gatekeeper.send(Direction::Reply, &bytes(vectors::ADMITTED));
    assert_eq!(gatekeeper.heard(), "tcp 203.0.113.9 1725 Q.931 any number");
}

#[test]
fn only_the_configurable_helpers_have_ports() {
    let all = Kind::ALL.iter().map(|kind| (kind.name(), kind.default_port()));
    let ours: Vec<_> = all.filter(|it| ["Q.931", "H.245", "RAS"].contains(&it.0)).collect();
    assert_eq!(ours, [("RAS", 1719), ("Q.931", 1720)]);
    let maxima = [Kind::Ras, Kind::Q931, Kind::H245].map(|kind| {
        assert_eq!(kind.classes()[0].timeout_s, 240);
        kind.classes()[0].maximum
    });
    assert_eq!(maxima, [32, 20, 18]);
}

#[test]
fn the_channels_that_a_message_announces_are_limited() {
    let (channel, empty) = (bytes(vectors::OPEN_ACK), bytes(vectors::ROUND_TRIP));
    let mut said = q931::Signalling::default();
    for _ in 0..40 {
        said.add(h245::control_message, &mut Per::new(&channel, 0));
        said.add(h245::control_message, &mut Per::new(&empty, 0));
    }
    assert_eq!(said.channels.len(), 32);
}

/// A few messages of one end, one of them empty.
fn conversation() -> Vec<u8> {
    let messages = [vectors::SETUP, "", vectors::RELEASE, vectors::TUNNELLED, vectors::ALERTING];
    messages.iter().flat_map(|message| framed(&bytes(message))).collect()
}

#[test]
fn segments_may_end_anywhere() {
    let (there, whole) = (Direction::Original, conversation());
    let mut call = Call::new(Kind::Q931);
    call.send(there, &whole);
    let expected = call.heard();
    assert_eq!(expected.matches(',').count() + 1, 9 + 4 + 4);
    for cut in 1..whole.len() {
        let mut call = Call::new(Kind::Q931);
        for part in [&whole[..cut], &whole[cut..]] {
            call.send(there, part);
        }
        assert_eq!(call.heard(), expected, "{cut}");
    }
    for size in [1, 2, 3, 4, 5, 7, 64] {
        let mut call = Call::new(Kind::Q931);
        whole.chunks(size).for_each(|part| call.send(there, part));
        assert_eq!(call.heard(), expected, "{size}");
    }
}

#[test]
fn a_message_that_is_cut_short_announces_nothing_less() {
    let open = vectors::OPEN.iter().map(|&(_, message)| message);
    for message in open.chain([vectors::OPEN_ACK, vectors::OPEN_ACK_REVERSE, vectors::T120]) {
        let message = bytes(message);
        let read = |length: usize| {
            let mut found = Vec::new();
            let read = h245::control_message(&mut Per::new(&message[..length], 0), &mut found);
            read.map(|()| found)
        };
        let whole = read(message.len()).unwrap();
        for length in 0..message.len() {
            assert!(read(length).is_ok_and(|found| found == whole) || read(length).is_err());
        }
    }
    for message in [vectors::SETUP, vectors::PROGRESS, vectors::FACILITY, vectors::TUNNELLED] {
        let message = bytes(message);
        for length in 0..message.len() {
            assert!(q931::read(&message[..length]).is_err());
        }
    }
    for message in [vectors::UNREGISTER, vectors::LOCATED, vectors::GATEKEEPER_SAME] {
        let message = bytes(message);
        for length in 0..message.len() {
            assert!(ras::read(&message[..length]).is_err());
        }
    }
}

#[test]
fn other_protocols_are_left() {
    let (there, back) = (Direction::Original, Direction::Reply);
    let setup = framed(&bytes(vectors::SETUP));
    // A request of TURN (RFC 8656), as browsers send it, with text that a web page has chosen.
    let turn = [&b"\0\x03\0\x78\x21\x12\xa4\x42transaction-\0\x06\x01\x01"[..], &setup].concat();
    for first in [&turn[..], b"POST / HTTP/1.1\r\n", b"\x03\0\0\0"] {
        for kind in [Kind::Q931, Kind::H245] {
            let mut call = Call::new(kind);
            call.send(there, first);
            assert!(call.talk.left);
            call.send(there, &setup);
            assert_eq!(call.heard(), "");
        }
    }
    let mut call = Call::new(Kind::Q931);
    call.send(back, &setup);
    assert!(call.talk.left, "who calls speaks first");
    let mut call = Call::new(Kind::H245);
    call.send(back, &framed(&bytes(vectors::T120)));
    assert!(!call.talk.left, "either may");
}

/// A message with some bytes changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    const MESSAGES: &[&str] = &[
        vectors::SETUP,
        vectors::CONNECT,
        vectors::FACILITY,
        vectors::PROGRESS,
        vectors::TUNNELLED,
        vectors::OPEN_ACK,
        vectors::T120,
        vectors::REGISTER,
        vectors::CONFIRM,
        vectors::UNREGISTER,
        vectors::ADMITTED,
        vectors::LOCATED,
        vectors::GATEKEEPER,
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (prop::sample::select(MESSAGES), changes, any::<bool>()).prop_map(|(message, changes, tpkt)| {
        let mut message = bytes(message);
        for (index, byte) in changes {
            *index.get_mut(&mut message) = byte;
        }
        if tpkt { framed(&message) } else { message }
    })
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(
        packets in prop::collection::vec(
            prop_oneof![damaged(), prop::collection::vec(any::<u8>(), 1..200)],
            1..4,
        ),
    ) {
        for kind in [Kind::Q931, Kind::H245, Kind::Ras] {
            let mut call = Call::new(kind);
            for packet in &packets {
                call.send(Direction::Original, packet);
                call.send(Direction::Reply, packet);
            }
            for heard in &call.heard {
                prop_assert!(!heard.contains(" 0 "), "{}", heard);
            }
        }
    }
}
