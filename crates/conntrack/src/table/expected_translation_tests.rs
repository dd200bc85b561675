//! FTP and other protocols through translated connections: the addresses that both ends see.

use std::net::Ipv4Addr;

use flow::Class;
use proptest::prelude::*;

use super::*;
use crate::Verdict;
use crate::helper::Kind;
use crate::testing::translated::*;

/// The port in six numbers.
fn port_of(text: &str) -> u16 {
    let digits = |c: char| !c.is_ascii_digit() && c != ',';
    let numbers = text.split(digits).find(|part| part.matches(',').count() == 5).unwrap();
    let bytes: Vec<u8> = numbers.split(',').map(|number| number.parse().unwrap()).collect();
    u16::from_be_bytes([bytes[4], bytes[5]])
}

#[test]
fn an_active_client_behind_a_masquerade_gets_its_data_connection() {
    let mut lab = Lab::new(Kind::Ftp, 21);
    let (client, server) = ((CLIENT, 40000), (SERVER, 21));
    let (seen, _) = lab.ftp(client, server, &masquerade());
    assert_eq!(seen.0, OUTSIDE);
    let command = b"PORT 192,0,2,1,156,64\r\n";
    let before = lab.send((client, server), Some(ACK), (9, 8), b"PASS a\r\n", &[]);
    assert!(before.edits.is_empty());
    let sent = lab.send((client, server), Some(ACK), (17, 8), command, &[]);
    assert_eq!(sent.tracked.verdict, Verdict::Accept);
    let message = String::from_utf8(edited(command, &sent.edits)).unwrap();
    assert!(message.starts_with("PORT 203,0,113,9,") && message.ends_with("\r\n"), "{message:?}");
    let port = port_of(&message);
    assert_eq!(port, 40000, "its own");
    // Repeated, it says the same.
    let again = lab.send((client, server), Some(ACK), (17, 8), command, &[]);
    assert_eq!(again.edits, sent.edits);
    assert_eq!(lab.expectations.len(), 1);
    // No connection is expected at the client's own port, and none from other addresses.
    let data = lab.send(((SERVER, 20), (OUTSIDE, port)), Some(SYN), (5, 0), b"", &[]);
    assert_eq!((data.tracked.class, data.tracked.fresh), (Class::Related, true));
    assert_eq!(end4(data.leaves.destination), (CLIENT, 40000));
    assert_eq!(end4(data.leaves.source), (SERVER, 20));
    let answer = lab.send(((CLIENT, 40000), (SERVER, 20)), Some(SYN | ACK), (1, 6), b"", &[]);
    assert_eq!(answer.tracked.direction, Some(Direction::Reply));
    assert_eq!(end4(answer.leaves.source), (OUTSIDE, port));
    assert!(lab.expectations.is_empty());
}

#[test]
fn a_connection_that_its_ends_open_anew_has_no_shifts_of_the_one_before() {
    let mut lab = Lab::new(Kind::Ftp, 21);
    let (client, server) = ((CLIENT, 40000), (SERVER, 21));
    let (seen, _) = lab.ftp(client, server, &masquerade());
    let command = b"PORT 192,0,2,1,156,64\r\n";
    let sent = lab.send((client, server), Some(ACK), (9, 8), command, &[]);
    assert_ne!(edited(command, &sent.edits).len(), command.len());
    assert!(lab.table.has_adjustments());
    // One end has lost the connection, and the gateway has not heard so.
    let start = 1 << 30;
    let syn = lab.send((client, server), Some(SYN), (start, 0), b"", &[]);
    assert!(!syn.tracked.fresh && lab.table.has_adjustments(), "it may be forged");
    lab.send((server, seen), Some(SYN | ACK), (7000, start + 1), b"", &[]);
    assert!(!lab.table.has_adjustments());
    lab.send((client, server), Some(ACK), (start + 1, 7001), b"", &[]);
    lab.send((server, seen), Some(ACK), (7001, start + 1), b"220 a\r\n", &[]);
    let login = lab.send((client, server), Some(ACK), (start + 1, 7008), b"USER a\r\n", &[]);
    assert_eq!(login.tracked.verdict, Verdict::Accept);
    let again = lab.send((client, server), Some(ACK), (start + 9, 7008), command, &[]);
    assert_eq!(again.tracked.verdict, Verdict::Accept);
    let [before, again] = [&sent, &again].map(|it| edited(command, &it.edits));
    assert_eq!(String::from_utf8(again), String::from_utf8(before));
}

#[test]
fn a_passive_client_behind_a_masquerade_keeps_its_address() {
    let mut lab = Lab::new(Kind::Ftp, 21);
    let (client, server) = ((CLIENT, 40000), (SERVER, 21));
    let (seen, _) = lab.ftp(client, server, &masquerade());
    let reply = b"227 Entering Passive Mode (198,51,100,2,7,208)\r\n";
    lab.send((client, server), Some(ACK), (9, 8), b"PASV\r\n", &[]);
    let sent = lab.send((server, seen), Some(ACK), (8, 1), reply, &[]);
    assert!(sent.edits.is_empty(), "the server is what it says it is");
    let data = lab.send(((CLIENT, 50000), (SERVER, 2000)), Some(SYN), (5, 0), b"", &[]);
    assert_eq!(data.tracked.class, Class::Related);
    assert_eq!(end4(data.leaves.source).0, OUTSIDE);
    assert_eq!(end4(data.leaves.source).1, 50000);
    assert_eq!(end4(data.leaves.destination), (SERVER, 2000));
}

/// The server names its own address, or is configured to name the one that clients know.
#[test]
fn a_server_behind_a_forwarded_port_is_reached_at_the_address_that_clients_know() {
    let texts: [&[u8]; 3] = [
        b"227 Entering Passive Mode (198,51,100,2,7,208)\r\n",
        b"227 Entering Passive Mode (203,0,113,9,7,208)\r\n",
        b"229 Entering Extended Passive Mode (|||2000|)\r\n",
    ];
    for text in texts {
        let mut lab = Lab::new(Kind::Ftp, 21);
        let (client, named) = ((CLIENT, 40000), (OUTSIDE, 21));
        let (seen, server) = lab.ftp(client, named, &forward());
        assert_eq!((seen, server), (client, (SERVER, 21)));
        lab.send((client, named), Some(ACK), (9, 8), b"PASV\r\n", &[]);
        let sent = lab.send((server, seen), Some(ACK), (8, 1), text, &[]);
        let message = String::from_utf8(edited(text, &sent.edits)).unwrap();
        let port = match message.split_once("|||") {
            Some((_, rest)) => rest.split('|').next().unwrap().parse().unwrap(),
            None => {
                assert!(message.contains("(203,0,113,9,"), "{message:?}");
                port_of(&message)
            }
        };
        assert_eq!(port, 2000, "{message:?}");
        let data = lab.send(((CLIENT, 50000), (OUTSIDE, port)), Some(SYN), (5, 0), b"", &[]);
        assert_eq!(data.tracked.class, Class::Related, "{message:?}");
        assert_eq!(end4(data.leaves.destination), (SERVER, 2000));
        assert_eq!(end4(data.leaves.source), (CLIENT, 50000));
    }
}

#[test]
fn clients_that_announce_one_port_get_different_ones() {
    let mut lab = Lab::new(Kind::Ftp, 21);
    let mut ports = Vec::new();
    for number in 0..5 {
        let (client, server) = (([192, 0, 2, 10 + number], 40000), ([198, 51, 100, number], 21));
        lab.ftp(client, server, &masquerade());
        let command = format!("PORT 192,0,2,{},156,64\r\n", 10 + number);
        let sent = lab.send((client, server), Some(ACK), (9, 8), command.as_bytes(), &[]);
        let message = String::from_utf8(edited(command.as_bytes(), &sent.edits)).unwrap();
        ports.push(port_of(&message));
    }
    assert_eq!(ports[0], 40000, "its own");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 5);
}

#[test]
fn tftp_answers_come_to_the_port_that_the_server_has_seen() {
    let mut lab = Lab::new(Kind::Tftp, 69);
    let (client, server) = ((CLIENT, 40000), (SERVER, 69));
    let request = b"\0\x01file\0octet\0";
    let sent = lab.send((client, server), None, (0, 0), request, &masquerade());
    let seen = end4(sent.leaves.source);
    assert_eq!(seen.0, OUTSIDE);
    let data = lab.send(((SERVER, 3456), seen), None, (0, 0), b"\0\x03\0\x01data", &[]);
    assert_eq!(data.tracked.class, Class::Related);
    assert_eq!(end4(data.leaves.destination), client);
    let answer = lab.send((client, (SERVER, 3456)), None, (0, 0), b"\0\x04\0\x01", &[]);
    assert_eq!(answer.tracked.direction, Some(Direction::Reply));
    assert_eq!(end4(answer.leaves.source), seen);
}

#[test]
fn a_child_ends_with_the_address_that_it_has_borrowed() {
    let mut lab = Lab::new(Kind::Ftp, 21);
    let (client, server) = ((CLIENT, 40000), (SERVER, 21));
    let (seen, _) = lab.ftp(client, server, &masquerade());
    lab.send((client, server), Some(ACK), (9, 8), b"PASV\r\n", &[]);
    let reply = b"227 (198,51,100,2,7,208)\r\n";
    lab.send((server, seen), Some(ACK), (8, 1), reply, &[]);
    lab.send(((CLIENT, 50000), (SERVER, 2000)), Some(SYN), (5, 0), b"", &[]);
    assert_eq!(lab.connections().len(), 2);
    let end = |table: &mut Table, context: &mut Context<'_>| {
        table.end_masqueraded((3, None), Default::default(), 1000, context)
    };
    assert_eq!(lab.run(end), (2, None));
}

#[test]
fn helpers_write_what_they_read() {
    let address = Ipv4Addr::from(OUTSIDE).into();
    let text = Kind::Irc.rewrite(b"3221225985 5000", address, 1026).unwrap();
    assert_eq!(text, b"3405803785 1026");
    assert_eq!(3_405_803_785, u32::from_be_bytes(OUTSIDE));
    let bytes = Kind::H245.rewrite(&[192, 0, 2, 1, 0x13, 0x88], address, 1026).unwrap();
    assert_eq!(bytes, [203, 0, 113, 9, 4, 2]);
    assert_eq!(Kind::H245.rewrite(&[0; 18], address, 1026), None);
    assert_eq!(Kind::Sane.rewrite(b"5000", address, 1026), None);
    assert_eq!(Kind::Sip.rewrite(b"5000", address, 1026).unwrap(), b"1026");
    assert_eq!(Kind::Sip.rewrite(b"192.0.2.1", address, 1026).unwrap(), b"203.0.113.9:1026");
    let text = Kind::Ftp.rewrite(b"|1|192.0.2.1|5000|", address, 1026).unwrap();
    assert_eq!(text, b"|1|203.0.113.9|1026|");
    let six = "2001:db8::9".parse().unwrap();
    let text = Kind::Ftp.rewrite(b"!2!2001:db8::1!5000!", six, 1026).unwrap();
    assert_eq!(text, b"!2!2001:db8::9!1026!");
    assert_eq!(Kind::Ftp.rewrite(b"192,0,2,1,1,1", six, 1026), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    /// The server receives the client's stream with other addresses in it, complete and
    /// consistent, and each end gets acknowledgments for exactly the bytes that it has sent.
    #[test]
    fn the_stream_goes_on_behind_lines_that_became_longer_or_shorter(
        segments in prop::collection::vec(
            (prop::collection::vec(prop::option::of(1024u16..), 1..4), 1usize..3), 1..8),
        nat in prop::sample::select(&[[203, 0, 113, 9], [203, 0, 113, 200], [192, 0, 2, 2], [1, 1, 1, 1]][..]),
    ) {
        let mut lab = Lab::new(Kind::Ftp, 21);
        let (client, server) = ((CLIENT, 40000), (SERVER, 21));
        let rule = Request { addresses: one(nat), ..Request::of(TranslatedEnd::Source) };
        let (seen, _) = lab.ftp(client, server, &[rule]);
        let mut sequence = 9u32;
        let mut received: Vec<u8> = Vec::new();
        let mut wanted = String::new();
        for (lines, times) in segments {
            let line = |port: &Option<u16>| match port {
                None => "NOOP\r\n".to_owned(),
                Some(port) => format!("PORT 192,0,2,1,{},{}\r\n", port >> 8, port & 255),
            };
            let payload: String = lines.iter().map(line).collect();
            for time in 0..times {
                let ends = (client, server);
                let sent = lab.send(ends, Some(ACK), (sequence, 8), payload.as_bytes(), &[]);
                prop_assert_eq!(sent.tracked.class, Class::Established);
                let keyed = lab.table.original(0);
                let seen_as = match lab.table.adjustment(&keyed, hash(&keyed.key), lab.now) {
                    Some((_, adjustment)) => adjustment.sequences[0].seen(sequence),
                    None => sequence,
                };
                let text = edited(payload.as_bytes(), &sent.edits);
                let at = (seen_as - 9) as usize;
                prop_assert!(at <= received.len());
                let old = received.get(at..).unwrap_or_default();
                if time > 0 {
                    prop_assert_eq!(old, &text[..], "sent again");
                } else {
                    prop_assert_eq!(at, received.len());
                    wanted += std::str::from_utf8(&text).unwrap();
                }
                received.truncate(at);
                received.extend(&text);
            }
            sequence += payload.len() as u32;
            // The server acknowledges all of it; the tracker would refuse an acknowledgment of
            // more.
            let acknowledged = 9 + received.len() as u32;
            let ack = lab.send((server, seen), Some(ACK), (8, acknowledged), b"", &[]);
            prop_assert_eq!(ack.tracked.class, Class::Established, "{:?}", ack.tracked.why);
            let too_far = lab.send((server, seen), Some(ACK), (8, acknowledged + 1), b"", &[]);
            prop_assert!(matches!(too_far.tracked.class, Class::Invalid(_)));
        }
        prop_assert_eq!(std::str::from_utf8(&received).unwrap(), wanted);
        let ports = received.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"PORT"));
        let address = nat.map(|byte| byte.to_string()).join(",");
        for line in ports {
            let line = std::str::from_utf8(line).unwrap();
            prop_assert!(line.contains(&address) && port_of(line) >= 1024, "{line:?}");
        }
    }
}
