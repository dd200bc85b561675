use proptest::prelude::*;

use super::*;
use crate::testing::conversation::{CLIENT, CLIENT_PORT, SERVER, Talk};

const THERE: Direction = Direction::Original;
const BACK: Direction = Direction::Reply;
const PROTOCOLS: [u8; 2] = [protocol::UDP, protocol::TCP];

/// A message with its mandatory headers. `first` is the first line; `headers` include their
/// line ends.
fn message(first: &str, sequence: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{first}\r\nVia: SIP/2.0/UDP client.example.com\r\nCall-ID: a@client.example.com\r\n\
         CSeq: {sequence}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn request(method: &str, number: u32, headers: &str, body: &str) -> Vec<u8> {
    let first = format!("{method} sip:bob@example.com SIP/2.0");
    message(&first, &format!("{number} {method}"), headers, body)
}

fn response(code: u32, sequence: &str, headers: &str, body: &str) -> Vec<u8> {
    message(&format!("SIP/2.0 {code} Text"), sequence, headers, body)
}

/// A session description: `lines` follow the lines with which every description begins.
fn sdp(lines: &[&str]) -> String {
    let begin = ["v=0", "o=a 1 1 IN IP4 203.0.113.77", "s=-"];
    begin.iter().chain(lines).map(|line| format!("{line}\r\n")).collect()
}

fn audio(address: &str, port: u16) -> String {
    sdp(&[&format!("c=IN IP4 {address}"), "t=0 0", &format!("m=audio {port} RTP/AVP 0")])
}

/// The requests of the helper, one line each, without those that keep the signalling.
fn said(talk: &mut Talk, direction: Direction, payload: &[u8]) -> Vec<String> {
    let lines = talk.say(direction, payload).into_iter().filter_map(|request| match request {
        Request::Keep { seconds } => {
            assert_eq!(seconds, 3600);
            None
        }
        Request::Withdraw { classes, .. } => Some(format!("withdraw {classes:?}")),
        Request::Confirm { class, seconds } => Some(format!("confirm {class} {seconds}")),
        Request::End { .. } => panic!("no call of GRE is meant"),
        Request::Mention(_) | Request::Measure { .. } | Request::Edit(_) => {
            panic!("nothing is translated")
        }
        Request::Expect(it) => {
            assert_eq!(it.source_port, None);
            let place = std::str::from_utf8(&payload[it.place.clone()]).unwrap();
            assert!(
                it.waits
                    || it.place.is_empty()
                    || place.parse::<u16>().unwrap() | 1 == it.destination_port | 1
            );
            let class = FACTS.classes[usize::from(it.class)].name;
            let source = it.source.map_or("any".to_owned(), |source| source.to_string());
            Some(format!("{class} {source} {} {}", it.destination, it.destination_port))
        }
    });
    lines.collect()
}

const GONE: &str = "withdraw 1..=3";

#[test]
fn a_call_announces_where_each_end_listens() {
    for protocol in PROTOCOLS {
        let mut talk = Talk::new(Kind::Sip, protocol);
        let invite = request("INVITE", 7, "", &audio(CLIENT, 6000));
        let caller = [
            "audio 198.51.100.2 192.0.2.1 6000".to_owned(),
            "audio 198.51.100.2 192.0.2.1 6001".to_owned(),
        ];
        assert_eq!(said(&mut talk, THERE, &invite)[1..], caller);
        assert!(said(&mut talk, BACK, &response(100, "7 INVITE", "", "")).is_empty());
        let callee = ["audio 192.0.2.1 198.51.100.2 7000", "audio 192.0.2.1 198.51.100.2 7001"];
        for code in [183, 200] {
            let answer = response(code, "7 INVITE", "", &audio(SERVER, 7000));
            assert_eq!(said(&mut talk, BACK, &answer), callee, "{code}");
        }
        assert!(said(&mut talk, THERE, &request("ACK", 7, "", "")).is_empty());
        // The callee calls back within the dialogue, and offers another port.
        let again = request("INVITE", 1, "", &audio(SERVER, 7100));
        let moved = ["audio 192.0.2.1 198.51.100.2 7100", "audio 192.0.2.1 198.51.100.2 7101"];
        assert_eq!(said(&mut talk, BACK, &again), [GONE, moved[0], moved[1]]);
        let update = request("UPDATE", 8, "", &audio(CLIENT, 6000));
        assert_eq!(said(&mut talk, THERE, &update), caller, "nothing is withdrawn");
        assert_eq!(said(&mut talk, THERE, &request("BYE", 9, "", "")), [GONE]);
    }
}

#[test]
fn a_call_that_fails_expects_nothing_any_more() {
    for protocol in PROTOCOLS {
        let mut talk = Talk::new(Kind::Sip, protocol);
        said(&mut talk, THERE, &request("INVITE", 7, "", &audio(CLIENT, 6000)));
        assert!(said(&mut talk, THERE, &request("CANCEL", 7, "", "")).is_empty());
        assert!(said(&mut talk, BACK, &response(200, "7 CANCEL", "", "")).is_empty());
        assert!(said(&mut talk, BACK, &response(486, "6 INVITE", "", "")).is_empty());
        assert_eq!(said(&mut talk, BACK, &response(487, "7 INVITE", "", "")), [GONE]);
    }
}

/// The calls with withdrawn announcements, and those with new ones.
fn calls(talk: &mut Talk, direction: Direction, payload: &[u8]) -> (Vec<u32>, Vec<u32>) {
    let (mut gone, mut announced) = (Vec::new(), Vec::new());
    for request in talk.say(direction, payload) {
        match request {
            Request::Withdraw { classes, call } if classes == MEDIA => gone.extend(call),
            Request::Expect(it) => announced.push(it.call),
            _ => {}
        }
    }
    announced.dedup();
    (gone, announced)
}

#[test]
fn calls_of_a_trunk_leave_each_other_alone() {
    for protocol in PROTOCOLS {
        let mut talk = Talk::new(Kind::Sip, protocol);
        let of = |call: &str, message: Vec<u8>| {
            let text = String::from_utf8(message).unwrap();
            let compact = text.replace("Call-ID: a@", &format!("i: {call}@"));
            if call == "a" { text.into_bytes() } else { compact.into_bytes() }
        };
        let invite = |port| request("INVITE", 7, "", &audio(CLIENT, port));
        let (gone, a) = calls(&mut talk, THERE, &of("a", invite(6000)));
        assert_eq!((a.len(), &gone), (1, &a));
        let (gone, b) = calls(&mut talk, THERE, &of("b", invite(6100)));
        assert_eq!(gone, b, "of its own call");
        assert_ne!(a, b);
        // Both calls have the number 7.
        let busy = of("a", response(486, "7 INVITE", "", ""));
        assert_eq!(calls(&mut talk, BACK, &busy), (a, vec![]));
        let answer = of("b", response(200, "7 INVITE", "", &audio(SERVER, 7000)));
        assert_eq!(calls(&mut talk, BACK, &answer), (vec![], b.clone()));
        let bye = of("b", request("BYE", 8, "", ""));
        assert_eq!(calls(&mut talk, THERE, &bye), (b, vec![]));
    }
}

#[test]
fn of_more_calls_than_are_remembered_the_oldest_end_by_time() {
    let mut talk = Talk::new(Kind::Sip, protocol::UDP);
    let call = |number: usize, message: Vec<u8>| {
        let text = String::from_utf8(message).unwrap();
        text.replace("Call-ID: a@", &format!("Call-ID: {number}@")).into_bytes()
    };
    for number in 0..=CALLS {
        calls(&mut talk, THERE, &call(number, request("INVITE", 1, "", "")));
    }
    let failed = |number| call(number, response(486, "1 INVITE", "", ""));
    assert!(calls(&mut talk, BACK, &failed(0)).0.is_empty());
    assert!((1..=CALLS).all(|number| calls(&mut talk, BACK, &failed(number)).0.len() == 1));
}

fn media_of(settings: impl Fn(&mut Talk), body: &str) -> Vec<String> {
    let mut talk = Talk::new(Kind::Sip, protocol::UDP);
    settings(&mut talk);
    said(&mut talk, THERE, &request("ACK", 1, "", body))
}

fn direct(_: &mut Talk) {}

fn not_direct(talk: &mut Talk) {
    talk.settings.sip_direct_media = false;
}

#[test]
fn each_stream_has_its_own_address_or_that_of_the_session() {
    let body = sdp(&[
        "c=IN IP4 192.0.2.1/127",
        "t=0 0",
        "m=audio 6001 RTP/AVP 0",
        "a=sendrecv",
        "m=video 6002/2 RTP/AVP 31",
        "c=IN IP4 203.0.113.9",
        "m=image 6005 udptl t38",
        "c=IN IP4 192.0.2.1",
        "c=IN IP4 203.0.113.9",
        "m=application 6006 TCP/BFCP *",
        "m=audio 0 RTP/AVP 0",
        "m=audio 1023 RTP/AVP 0",
        "m=audio 65536 RTP/AVP 0",
        "m=audio x RTP/AVP 0",
        "m=audio",
    ]);
    let own = [
        "audio 198.51.100.2 192.0.2.1 6000",
        "audio 198.51.100.2 192.0.2.1 6001",
        "image 198.51.100.2 192.0.2.1 6005",
    ];
    assert_eq!(media_of(direct, &body), own);
    let all = [
        "audio any 192.0.2.1 6000",
        "audio any 192.0.2.1 6001",
        "video any 203.0.113.9 6002",
        "video any 203.0.113.9 6003",
        "image any 192.0.2.1 6005",
    ];
    assert_eq!(media_of(not_direct, &body), all);
    let parts = format!("--x\r\nContent-Type: application/sdp\r\n\r\n{body}--x--\r\n");
    assert_eq!(media_of(not_direct, &parts), all);
}

#[test]
fn hold_and_missing_addresses_announce_nothing() {
    for body in [
        audio("0.0.0.0", 6000),
        audio(CLIENT, 0),
        sdp(&["c=IN IP6 ::", "m=audio 6000 RTP/AVP 0"]),
        sdp(&["m=audio 6000 RTP/AVP 0"]),
        sdp(&["c=IN IP4 client.example.com", "m=audio 6000 RTP/AVP 0"]),
        sdp(&["m=audio 6000 RTP/AVP 0", "m=video 6002 RTP/AVP 0", "a=x"]),
        format!("c=IN IP4 {CLIENT}\r\nm=audio 6000 RTP/AVP 0\r\n"),
        String::new(),
    ] {
        assert!(media_of(direct, &body).is_empty(), "{body}");
        assert!(media_of(not_direct, &body).is_empty(), "{body}");
    }
    let many = ["m=audio 6000 RTP/AVP 0"; 100];
    let body = sdp(&[&["c=IN IP4 192.0.2.1"][..], &many].concat());
    assert_eq!(media_of(direct, &body).len(), 2 * 16);
}

#[test]
fn calls_use_ipv6() {
    let ipv6 = |talk: &mut Talk| {
        talk.ends =
            [("2001:db8::1".parse().unwrap(), 5060), ("2001:db8::2".parse().unwrap(), 5060)];
    };
    let body = sdp(&["c=IN IP6 2001:db8:0::1", "m=audio 6000 RTP/AVP 0"]);
    let expected = ["audio 2001:db8::2 2001:db8::1 6000", "audio 2001:db8::2 2001:db8::1 6001"];
    assert_eq!(media_of(ipv6, &body), expected);
}

const INCOMING: &str = "signalling 198.51.100.2 192.0.2.1 5062";
const REGISTERED: &str = "confirm 0 9";
const UNREGISTERED: &str = "withdraw 0..=0";

#[test]
fn a_registration_announces_calls_when_it_is_confirmed() {
    for protocol in PROTOCOLS {
        let contact = "Contact: <sip:alice@192.0.2.1:5062;ob>;expires=90\r\n";
        let mut talk = Talk::new(Kind::Sip, protocol);
        let asked = talk.say(THERE, &request("REGISTER", 1, contact, ""));
        let [Request::Keep { .. }, Request::Expect(incoming)] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert_eq!((incoming.protocol, incoming.waits), (protocol, true));
        assert_eq!((incoming.helper, incoming.permanent), (Some(Kind::Sip), true));
        assert!(said(&mut talk, THERE, &response(200, "1 REGISTER", contact, "")).is_empty());
        assert!(said(&mut talk, BACK, &response(100, "1 REGISTER", "", "")).is_empty());
        assert!(said(&mut talk, BACK, &response(401, "1 REGISTER", "", "")).is_empty());
        assert_eq!(said(&mut talk, THERE, &request("REGISTER", 2, contact, "")), [INCOMING]);
        assert!(said(&mut talk, BACK, &response(200, "1 REGISTER", contact, "")).is_empty());
        let confirmed = response(200, "2 REGISTER", contact, "");
        assert_eq!(said(&mut talk, BACK, &confirmed), ["confirm 0 90"]);
        assert!(said(&mut talk, BACK, &confirmed).is_empty(), "once");
        let ended = contact.replace("=90", "=0");
        assert!(said(&mut talk, THERE, &request("REGISTER", 3, &ended, "")).is_empty());
        assert_eq!(said(&mut talk, BACK, &response(200, "3 REGISTER", "", "")), [UNREGISTERED]);
        said(&mut talk, THERE, &request("REGISTER", 4, contact, ""));
        assert_eq!(said(&mut talk, BACK, &response(403, "4 REGISTER", "", "")), [UNREGISTERED]);
    }
}

/// The announcements of a registration with the headers `asked`, and the effect of its
/// confirmation.
fn registered(
    asked: &str,
    confirmed: &str,
    settings: impl Fn(&mut Talk),
) -> (Vec<String>, Vec<String>) {
    let mut talk = Talk::new(Kind::Sip, protocol::UDP);
    settings(&mut talk);
    let announced = said(&mut talk, THERE, &request("REGISTER", 1, asked, ""));
    (announced, said(&mut talk, BACK, &response(200, "1 REGISTER", confirmed, "")))
}

#[test]
fn contacts_come_in_many_forms() {
    let own = "Contact: sip:alice@192.0.2.1:5062\r\n";
    for confirmed in [
        "Contact: <sip:alice@192.0.2.1:5062>;expires=9\r\n",
        "m:sip:alice@192.0.2.1:5062;expires=9\r\n",
        "CONTACT : \"A <,> B\" <SIP:192.0.2.1:5062;transport=UDP?x=y>;q=1;Expires=9\r\n",
        "Contact: <sip:b@198.51.100.9>;expires=8, <sips:a@192.0.2.1:5062>;expires=9\r\n",
        "Contact: *\r\nContact:\r\n <sip:a@192.0.2.1:5062>\r\nExpires: 9\r\n",
    ] {
        let (announced, confirmation) = registered(own, confirmed, direct);
        assert_eq!((announced[0].as_str(), confirmation[0].as_str()), (INCOMING, REGISTERED));
    }
    for confirmed in [
        "Contact: <sip:alice@192.0.2.1:5062>\r\n",
        "Contact: <sip:alice@192.0.2.1:5062>;expires=0\r\n",
        "Contact: <sip:alice@192.0.2.1:5063>;expires=9\r\n",
        "Contact: <sip:alice@192.0.2.1:5062;transport=tcp>;expires=9\r\n",
        "Contact: <sip:alice@192.0.2.1:5062;transport=sctp>;expires=9\r\n",
        "Contact: <tel:1>;expires=9, <sip:alice@client.example.com>;expires=9\r\n",
    ] {
        assert_eq!(registered(own, confirmed, direct).1, [UNREGISTERED], "{confirmed}");
    }
    let foreign = "Contact: <sip:alice@192.0.2.9:5062>;expires=9\r\n";
    assert_eq!(registered(foreign, foreign, direct), (vec![], vec![]), "only for oneself");
    let from_anybody = |talk: &mut Talk| talk.settings.sip_direct_signalling = false;
    let confirmed = format!("Expires: 9\r\n{own}");
    let incoming = ["signalling any 192.0.2.1 5062"];
    assert_eq!(registered(own, &confirmed, from_anybody).0, incoming);
    let without_port = "Contact: <sip:192.0.2.1>;expires=9\r\n";
    let at_default = ["signalling 198.51.100.2 192.0.2.1 5060"];
    assert_eq!(registered(without_port, without_port, direct).0, at_default);
}

#[test]
fn a_malformed_message_announces_nothing() {
    let body = audio(CLIENT, 6000);
    let invite = String::from_utf8(request("INVITE", 1, "", &body)).unwrap();
    for broken in [
        invite.replace("SIP/2.0\r\n", "SIP/1.0\r\n"),
        invite.replace("CSeq: 1 INVITE", "CSeq: x INVITE"),
        invite.replace("CSeq", "XCSeq"),
        invite.replace("\r\n\r\n", "\r\n"),
        format!("\0{invite}").replace("SIP/2.0\r\n", "\r\n"),
    ] {
        let mut talk = Talk::new(Kind::Sip, protocol::UDP);
        assert!(said(&mut talk, THERE, broken.as_bytes()).is_empty(), "{broken}");
    }
    let mut talk = Talk::new(Kind::Sip, protocol::UDP);
    let cut = invite.replace(&format!("Content-Length: {}", body.len()), "l: 20");
    assert_eq!(said(&mut talk, THERE, cut.as_bytes()), [GONE], "the body ends before the port");
    let whole = invite.replace(&format!("Content-Length: {}\r\n", body.len()), "");
    assert_eq!(said(&mut talk, THERE, whole.as_bytes()).len(), 3, "to the end of the datagram");
}

/// The bytes that a caller sends.
fn stream() -> Vec<u8> {
    let contact = "Contact: <sip:alice@192.0.2.1:5062>;expires=90\r\n";
    [
        request("REGISTER", 1, contact, ""),
        b"\r\n\r\n".to_vec(),
        request("INVITE", 2, "", &audio(CLIENT, 6000)),
        request("UPDATE", 3, "", &audio(CLIENT, 6002)),
    ]
    .concat()
}

#[test]
fn it_does_not_matter_where_segments_end() {
    let bytes = stream();
    let ports = |pieces: &[&[u8]]| {
        let mut talk = Talk::new(Kind::Sip, protocol::TCP);
        let announced = talk.announced(THERE, pieces.iter().copied());
        announced.iter().map(|it| it.destination_port).collect::<Vec<_>>()
    };
    let expected = [5062, 6000, 6001, 6002, 6003];
    for cut in 1..bytes.len() {
        assert_eq!(ports(&[&bytes[..cut], &bytes[cut..]]), expected, "cut at {cut}");
    }
    for length in 1..50 {
        let pieces: Vec<_> = bytes.chunks(length).collect();
        assert_eq!(ports(&pieces), expected, "pieces of {length}");
    }
}

#[test]
fn the_body_of_a_web_request_is_no_message() {
    let long = format!("POST /{} HTTP/1.1\r\n\r\n", "a".repeat(9000));
    for post in ["POST / HTTP/1.1\r\nHost: example.com\r\n\r\n", &long] {
        for piece in [1, 1000, 10_000] {
            let mut talk = Talk::new(Kind::Sip, protocol::TCP);
            for bytes in post.as_bytes().chunks(piece) {
                assert!(said(&mut talk, THERE, bytes).is_empty());
            }
            assert!(talk.left);
            assert!(said(&mut talk, THERE, &stream()).is_empty());
        }
    }
}

#[test]
fn the_client_of_a_connection_speaks_first() {
    let mut talk = Talk::new(Kind::Sip, protocol::TCP);
    said(&mut talk, BACK, &response(200, "1 INVITE", "", &audio(SERVER, 7000)));
    assert!(talk.left);
    let mut talk = Talk::new(Kind::Sip, protocol::TCP);
    said(&mut talk, THERE, b"\r\n");
    said(&mut talk, THERE, b"POST / HTTP/1.1\r\n");
    assert!(talk.left, "a line end is no message");
}

#[test]
fn a_request_has_the_form_of_one() {
    let request = request("REGISTER", 1, "Contact: <sip:a@192.0.2.1:5062>\r\n", "");
    let request = String::from_utf8(request).unwrap();
    let uri = "REGISTER sip:bob@example.com SIP/2.0";
    for (line, is_one) in [
        (uri, true),
        ("register sips:b@example.com;x=y SIP/2.0", true),
        ("INVITE sip:bob@example.com SIP/2.0", false),
        ("REGISTER  sip:bob@example.com SIP/2.0", false),
        (" REGISTER sip:bob@example.com SIP/2.0", false),
        ("REGISTER /a SIP/2.0", false),
        ("REGISTER SIP/2.0", false),
        ("\0\u{1}REGISTER sip:bob@example.com SIP/2.0", false),
        // STUN with a user name that a web page has chosen.
        ("\0\u{1}\0x!\u{12}B transaction \0\u{6} REGISTER sip:b SIP/2.0", false),
        ("REGISTER sip:bob@example.com HTTP/1.1", false),
    ] {
        let mut talk = Talk::new(Kind::Sip, protocol::UDP);
        let heard = said(&mut talk, THERE, request.replace(uri, line).as_bytes());
        assert_eq!(heard.len(), is_one.into(), "{}", line.escape_default());
    }
}

#[test]
fn a_keepalive_without_a_message_keeps_the_signalling_too() {
    for protocol in PROTOCOLS {
        for direction in [THERE, BACK] {
            let asked = Talk::new(Kind::Sip, protocol).say(direction, b"\r\n\r\n");
            assert_eq!(asked, [Request::Keep { seconds: KEEP_S }]);
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(
        pieces in prop::collection::vec((0_usize..12, prop::collection::vec(any::<u8>(), 0..12)), 1..12),
        tcp in any::<bool>(),
    ) {
        const WORDS: [&str; 12] = [
            "INVITE sip:a SIP/2.0\r\n", "SIP/2.0 200 OK\r\n", "CSeq: 1 INVITE\r\n",
            "CSeq: 1 REGISTER\r\n", "m: <sip:192.0.2.1:5062>;expires=9,", "\r\nContent-Length: 60",
            "\r\n\r\n", "v=0\r\n", "c=IN IP4 192.0.2.1", "\r\nm=audio 6000", "[::1]:", "\"<",
        ];
        let protocol = PROTOCOLS[usize::from(tcp)];
        let mut talk = Talk::new(Kind::Sip, protocol);
        let mut payload = Vec::new();
        for (word, bytes) in &pieces {
            payload.extend_from_slice(WORDS[*word].as_bytes());
            payload.extend_from_slice(bytes);
        }
        for (direction, payload) in [(THERE, &payload), (BACK, &payload), (THERE, &stream())] {
            for request in talk.say(direction, payload) {
                if let Request::Expect(it) = request {
                    prop_assert!(it.place.end <= payload.len());
                }
            }
        }
    }

    #[test]
    fn any_one_byte_may_be_wrong(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut payload = request("INVITE", 1, "", &audio(CLIENT, 6000));
        let at = at.index(payload.len());
        payload[at] = byte;
        let mut talk = Talk::new(Kind::Sip, protocol::UDP);
        let announced = talk.announced(THERE, [&payload[..]]);
        for it in announced {
            prop_assert_eq!(it.destination.to_string(), CLIENT);
            prop_assert_eq!(it.source.unwrap().to_string(), SERVER);
            prop_assert_ne!(it.destination_port, CLIENT_PORT);
        }
    }
}
