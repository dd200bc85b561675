//! Calls by SIP through translated connections: the messages that phones and servers receive,
//! and the way of the media.

use std::net::Ipv4Addr;

use flow::Class;
use proptest::prelude::*;

use super::*;
use crate::Verdict;
use crate::helper::Kind;
use crate::testing::translated::*;

const PHONE: End4 = (CLIENT, 5060);
const REGISTRAR: End4 = (SERVER, 5060);

fn dotted((address, port): End4) -> String {
    format!("{}:{port}", Ipv4Addr::from(address))
}

/// A message of `sender`, which accepts requests at `contact` and media at `media`.
fn message(first: &str, sequence: &str, via: &str, contact: &str, media: Option<End4>) -> String {
    let body = media.map_or(String::new(), |(address, port)| {
        let address = Ipv4Addr::from(address);
        format!(
            "v=0\r\no=a 1 1 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {address}\r\nt=0 0\r\n\
             m=audio {port} RTP/AVP 0\r\n"
        )
    });
    format!(
        "{first}\r\nVia: SIP/2.0/UDP {via}\r\nFrom: <sip:a@example.com>;tag=1\r\n\
         To: <sip:b@example.com>\r\nCall-ID: 1@example.com\r\nCSeq: {sequence}\r\n\
         Contact: <sip:a@{contact}>;expires=60\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The port behind `m=audio`.
fn sound(text: &str) -> u16 {
    let rest = text.split_once("m=audio ").unwrap_or_else(|| panic!("{text}")).1;
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// The length of the body in its header, and its real length.
fn lengths(text: &str) -> [usize; 2] {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let said = head.split_once("Content-Length: ").unwrap().1.split("\r\n").next().unwrap();
    [said.parse().unwrap(), body.len()]
}

/// A connection over either protocol, with the numbers of both ends.
struct Signalling {
    lab: Lab,
    flags: Option<u8>,
    /// Sequence numbers of the next byte: as the client counts, and as the server does.
    said: [u32; 2],
    heard: [u32; 2],
    ends: [(End4, End4); 2],
}

impl Signalling {
    /// Opens a connection from `client` to `named`.
    fn open(tcp: bool, client: End4, named: End4, rules: &[Request]) -> Self {
        let mut lab = Lab::new(Kind::Sip, 5060);
        let (seen, server) = if tcp {
            lab.control(client, named, rules)
        } else {
            let sent = lab.send((client, named), None, (0, 0), b"\r\n\r\n", rules);
            (end4(sent.leaves.source), end4(sent.leaves.destination))
        };
        let ends = [(client, named), (server, seen)];
        Self { lab, flags: tcp.then_some(ACK), said: [1; 2], heard: [1; 2], ends }
    }

    /// Sends a message of one end; returns the message that the other receives.
    fn say(&mut self, who: usize, text: &str) -> String {
        let numbers = (self.said[who], self.heard[who]);
        let sent = self.lab.send(self.ends[who], self.flags, numbers, text.as_bytes(), &[]);
        assert_eq!(sent.tracked.verdict, Verdict::Accept, "{:?}", sent.tracked.why);
        // The opener is alone until the other end has sent a packet.
        assert!(matches!(sent.tracked.class, Class::New | Class::Established));
        let read = String::from_utf8(edited(text.as_bytes(), &sent.edits)).unwrap();
        self.said[who] += text.len() as u32;
        self.heard[1 - who] += read.len() as u32;
        let [said, real] = lengths(&read);
        assert_eq!(said, real, "{read}");
        read
    }

    /// Sends media from `from` to `to`; returns class and ends as they leave.
    fn sound(&mut self, from: End4, to: End4) -> (Class, End4, End4) {
        let sent = self.lab.send((from, to), None, (0, 0), b"\x80sound", &masquerade());
        (sent.tracked.class, end4(sent.leaves.source), end4(sent.leaves.destination))
    }
}

/// A call of a phone behind a masquerade; returns the port that the server has read.
fn call(signalling: &mut Signalling) -> u16 {
    let seen = signalling.ends[1].1;
    let (own, outside) = (dotted(PHONE), dotted(seen));
    let invite = |contact: &str, via: &str, media| {
        let first = format!("INVITE sip:b@{} SIP/2.0", dotted(REGISTRAR));
        message(&first, "7 INVITE", &format!("{via};rport;branch=1"), contact, media)
    };
    let read = signalling.say(0, &invite(&own, &own, Some((CLIENT, 6000))));
    let port = sound(&read);
    assert_eq!(port, 6000, "its own");
    assert_eq!(read, invite(&outside, &outside, Some((OUTSIDE, port))));
    let answer = |via: &str, added: &str| {
        let via = format!("{via};{added};branch=1");
        message("SIP/2.0 200 OK", "7 INVITE", &via, &dotted(REGISTRAR), Some((SERVER, 7000)))
    };
    let added =
        |(address, port): End4| format!("received={};rport={port}", Ipv4Addr::from(address));
    let read = signalling.say(1, &answer(&outside, &added(seen)));
    assert_eq!(read, answer(&own, &added(PHONE)));
    port
}

#[test]
fn a_phone_behind_a_masquerade_hears_and_is_heard() {
    for tcp in [false, true] {
        for phone_first in [false, true] {
            let mut signalling = Signalling::open(tcp, PHONE, REGISTRAR, &masquerade());
            let port = call(&mut signalling);
            for odd in [0, 1] {
                let (own, public) = ((CLIENT, 6000 + odd), (OUTSIDE, port + odd));
                let far = (SERVER, 7000 + odd);
                let both = [(own, far, public, far), (far, public, far, own)];
                let [first, second] = if phone_first { both } else { [both[1], both[0]] };
                let sent = signalling.sound(first.0, first.1);
                assert_eq!(sent, (Class::Related, first.2, first.3));
                let sent = signalling.sound(second.0, second.1);
                assert_eq!(sent, (Class::Established, second.2, second.3), "one connection");
            }
        }
    }
}

#[test]
fn a_phone_that_speaks_from_another_port_does_not_take_the_one_where_it_listens() {
    let mut signalling = Signalling::open(false, PHONE, REGISTRAR, &masquerade());
    let port = call(&mut signalling);
    let sent = signalling.sound((CLIENT, 6002), (SERVER, 7000));
    assert_eq!(sent.0, Class::Related);
    assert_ne!(sent.1, (OUTSIDE, port));
    for other in [6004, 6006] {
        assert_ne!(signalling.sound((CLIENT, other), (SERVER, 7000)).1, (OUTSIDE, port));
    }
    let heard = signalling.sound((SERVER, 7000), (OUTSIDE, port));
    assert_eq!((heard.0, heard.2), (Class::Related, (CLIENT, 6000)));
}

#[test]
fn an_offer_that_is_repeated_says_the_same() {
    let mut signalling = Signalling::open(false, PHONE, REGISTRAR, &masquerade());
    let first = call(&mut signalling);
    assert_eq!(call(&mut signalling), first);
    let expected = signalling.lab.expectations.len();
    assert_eq!(expected, 4, "two pairs");
}

#[test]
fn a_server_behind_a_forwarded_port_is_heard() {
    for tcp in [false, true] {
        let (far, named) = ((CLIENT, 5060), (OUTSIDE, 5060));
        let mut signalling = Signalling::open(tcp, far, named, &forward());
        assert_eq!(signalling.ends[1].0, REGISTRAR);
        let first = |to: End4| format!("INVITE sip:b@{} SIP/2.0", dotted(to));
        let invite =
            |to| message(&first(to), "7 INVITE", &dotted(far), &dotted(far), Some((CLIENT, 6000)));
        assert_eq!(signalling.say(0, &invite(named)), invite(REGISTRAR));
        let answer = |from, media| {
            message("SIP/2.0 200 OK", "7 INVITE", &dotted(far), &dotted(from), Some(media))
        };
        let read = signalling.say(1, &answer(REGISTRAR, (SERVER, 7000)));
        let port = sound(&read);
        assert_eq!(read, answer(named, (OUTSIDE, port)));
        let sent = signalling.sound((CLIENT, 6000), (OUTSIDE, port));
        assert_eq!(sent, (Class::Related, (CLIENT, 6000), (SERVER, 7000)));
    }
}

/// A confirmed registration of `contact`; returns the contact that the registrar has read.
fn register(signalling: &mut Signalling, contact: End4) -> End4 {
    let (own, seen) = (signalling.ends[0].0, signalling.ends[1].1);
    let [own, seen] = [own, seen].map(dotted);
    let text =
        |first: &str, via: &str, contact: &str| message(first, "7 REGISTER", via, contact, None);
    let first = "REGISTER sip:example.com SIP/2.0";
    let read = signalling.say(0, &text(first, &own, &dotted(contact)));
    let rest = read.split_once("<sip:a@203.0.113.9:").unwrap_or_else(|| panic!("{read}")).1;
    let public = (OUTSIDE, rest.split('>').next().unwrap().parse().unwrap());
    assert_eq!(read, text(first, &seen, &dotted(public)));
    let early = signalling.sound((SERVER, 5070), public);
    assert_ne!(early.0, Class::Related, "nobody is let in before");
    let first = "SIP/2.0 200 OK";
    let read = signalling.say(1, &text(first, &seen, &dotted(public)));
    assert_eq!(read, text(first, &own, &dotted(contact)));
    public
}

#[test]
fn a_phone_behind_a_masquerade_can_be_called() {
    for contact in [PHONE, (CLIENT, 5062)] {
        let mut signalling = Signalling::open(false, PHONE, REGISTRAR, &masquerade());
        let seen = signalling.ends[1].1;
        let public = register(&mut signalling, contact);
        assert_eq!(public == seen, contact == PHONE, "the port that it speaks from is known");
        // From another port of the registrar comes a connection of its own, with a helper too.
        let caller = (SERVER, 5071);
        let invite = |to: End4| {
            let first = format!("INVITE sip:a@{} SIP/2.0", dotted(to));
            message(&first, "1 INVITE", &dotted(caller), &dotted(caller), Some((SERVER, 7000)))
        };
        let text = invite(public);
        let sent = signalling.lab.send((caller, public), None, (0, 0), text.as_bytes(), &[]);
        assert_eq!(sent.tracked.class, Class::Related);
        assert_eq!((end4(sent.leaves.source), end4(sent.leaves.destination)), (caller, contact));
        let read = String::from_utf8(edited(text.as_bytes(), &sent.edits)).unwrap();
        assert_eq!(read, invite(contact));
        let answer = |from: End4, media| {
            message("SIP/2.0 200 OK", "1 INVITE", &dotted(caller), &dotted(from), Some(media))
        };
        let text = answer(contact, (CLIENT, 6000));
        let sent = signalling.lab.send((contact, caller), None, (0, 0), text.as_bytes(), &[]);
        assert_eq!(end4(sent.leaves.source), public);
        let read = String::from_utf8(edited(text.as_bytes(), &sent.edits)).unwrap();
        let port = sound(&read);
        assert_eq!(read, answer(public, (OUTSIDE, port)));
        let sent = signalling.sound((SERVER, 7000), (OUTSIDE, port));
        assert_eq!(sent, (Class::Related, (SERVER, 7000), (CLIENT, 6000)));
    }
}

#[test]
fn a_registration_over_tcp_is_of_a_port_where_the_phone_listens() {
    let mut signalling = Signalling::open(true, (CLIENT, 40000), REGISTRAR, &masquerade());
    let (own, seen) = ((CLIENT, 40000), signalling.ends[1].1);
    let text = |via: End4, contact: End4| {
        message(
            "REGISTER sip:example.com SIP/2.0",
            "7 REGISTER",
            &dotted(via),
            &dotted(contact),
            None,
        )
    };
    let read = signalling.say(0, &text(own, PHONE));
    let rest = read.split_once("<sip:a@203.0.113.9:").unwrap().1;
    let public = (OUTSIDE, rest.split('>').next().unwrap().parse().unwrap());
    assert_eq!(read, text(seen, public));
    assert_ne!(public, seen);
    // It names its own address in calls too.
    let invite = |via: End4, contact: End4| {
        let first = format!("INVITE sip:b@{} SIP/2.0", dotted(REGISTRAR));
        message(&first, "8 INVITE", &dotted(via), &dotted(contact), None)
    };
    assert_eq!(signalling.say(0, &invite(own, PHONE)), invite(seen, public));
}

proptest! {
    /// Edits never overlap, are in order and inside the message, and change nothing else, for
    /// any message.
    #[test]
    fn no_message_is_too_strange_to_be_edited(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..40, prop::sample::select(&[
            "192.0.2.1", ":5060", "\r\n", ";received=192.0.2.1", "c=IN IP4 192.0.2.1\r\n", "m=audio 6000",
            "<sip:192.0.2.1>", "Content-Length: 7\r\n", "l: 99999\r\n", "[", "Via: a 192.0.2.1;rport=5060,",
        ][..])), 0..6),
        response in any::<bool>(),
    ) {
        let first = if response { "SIP/2.0 200 OK" } else { "INVITE sip:192.0.2.1 SIP/2.0" };
        let via = "192.0.2.1;maddr=192.0.2.1;received=192.0.2.1;rport=5060";
        let mut text = message(first, "1 INVITE", via, "192.0.2.1:5060", Some((CLIENT, 6000)));
        for (at, length, word) in cuts {
            let at = at.index(text.len());
            text.replace_range(at..(at + length).min(text.len()), word);
        }
        let mut signalling = Signalling::open(false, PHONE, REGISTRAR, &masquerade());
        let sent = signalling.lab.send((PHONE, REGISTRAR), None, (0, 0), text.as_bytes(), &[]);
        let mut end = 0;
        for edit in &sent.edits {
            prop_assert!(edit.place.start >= end && edit.place.end <= text.len());
            prop_assert!(edit.place.start < edit.place.end, "{edit:?}");
            end = edit.place.end;
        }
    }
}
