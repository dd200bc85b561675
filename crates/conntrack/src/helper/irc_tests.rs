use proptest::prelude::*;

use super::*;
use crate::helper::Kind;
use crate::testing::conversation::{CLIENT, SERVER, Talk};

/// 192.0.2.1 as a number.
const OWN: u32 = 0xc000_0201;

const REGISTRATION: &str = "NICK a\r\nUSER a 0 * :a\r\n";

/// A client that has registered.
fn registered() -> Talk {
    let mut talk = Talk::new(Kind::Irc, protocol::TCP);
    assert!(talk.say(Direction::Original, REGISTRATION.as_bytes()).is_empty());
    talk
}

fn announced(direction: Direction, text: &str) -> Vec<String> {
    let asked = registered().say(direction, text.as_bytes());
    let line = |request| {
        let Request::Expect(it) = request else { panic!("{request:?}") };
        assert_eq!((it.class, it.protocol, it.source, it.source_port), (0, 6, None, None));
        format!("{} {} {:?}", it.destination, it.destination_port, &text[it.place])
    };
    asked.into_iter().map(line).collect()
}

#[test]
fn offers_announce_where_the_client_listens() {
    let numbers = format!("{OWN} 5000");
    let expected = [format!("192.0.2.1 5000 {numbers:?}")];
    for offer in [
        "PRIVMSG bob :\x01DCC SEND file.txt NUMBERS 1234\x01\r\n",
        "privmsg bob :\x01DCC send file.txt NUMBERS\x01\n",
        "PRIVMSG bob :\x01DCC CHAT chat NUMBERS\x01\r\n",
        "PRIVMSG bob :\x01DCC SCHAT chat NUMBERS\x01\r\n",
        "PRIVMSG bob :\x01DCC MOVE file NUMBERS 1\x01\r\n",
        "PRIVMSG bob :\x01DCC TSEND file NUMBERS 1\x01\r\n",
        "PRIVMSG bob :\x01DCC SEND \"my file\" NUMBERS 1\x01\r\n",
        "PRIVMSG bob :\x01DCC SEND  file  NUMBERS 1\x01\r\n",
        "PRIVMSG #a,bob :look \x01DCC SEND file NUMBERS\x01\r\n",
        ":alice!a@example.net PRIVMSG bob :\x01DCC SEND file NUMBERS 1\x01\r\n",
        "  PRIVMSG bob :\x01DCC SEND file NUMBERS 1\x01\r\n",
        "NICK a\r\nPRIVMSG bob :\x01DCC SEND file NUMBERS 1\x01\r\nQUIT\r\n",
    ] {
        let offer = offer.replace("NUMBERS", &numbers);
        assert_eq!(announced(Direction::Original, &offer), expected, "{offer}");
        assert!(announced(Direction::Reply, &offer).is_empty(), "{offer} of somebody else");
    }
}

#[test]
fn a_message_without_an_offer_of_the_own_address_announces_nothing() {
    let foreign = OWN + 1;
    for other in [
        &format!("PRIVMSG bob :\x01DCC SEND file {foreign} 5000 1\x01\r\n"),
        &format!("PRIVMSG bob :\x01DCC SEND file {OWN} 0 1\x01\r\n"),
        &format!("PRIVMSG bob :\x01DCC SEND file {OWN} 65536 1\x01\r\n"),
        &format!("PRIVMSG bob :\x01DCC SEND file {OWN}\x01\r\n"),
        &format!("PRIVMSG bob :\x01DCC SEND file {OWN}x 5000\x01\r\n"),
        &format!("PRIVMSG bob :\x01DCC SEND \"my file {OWN} 5000\x01\r\n"),
        &format!("PRIVMSG bob :\x01DCC RESUME file {OWN} 5000\x01\r\n"),
        &format!("PRIVMSG bob :\x01DCC ACCEPT file {OWN} 5000\x01\r\n"),
        &format!("PRIVMSG bob :\x01DCCSEND file {OWN} 5000\x01\r\n"),
        &format!("PRIVMSG bob :\x01dcc SEND file {OWN} 5000\x01\r\n"),
        &format!("PRIVMSG bob :DCC SEND file {OWN} 5000\r\n"),
        &format!("PRIVMSG bob \x01DCC SEND file {OWN} 5000\x01\r\n"),
        &format!("NOTICE bob :\x01DCC SEND file {OWN} 5000\x01\r\n"),
        &format!("TOPIC #a :PRIVMSG bob \x01DCC SEND file {OWN} 5000\x01\r\n"),
        "PRIVMSG bob :\x01DCC SEND file 4294967296 5000\x01\r\n",
        "PRIVMSG bob :\x01DCC SEND file  \x01\r\n",
        "PRIVMSG bob :\x01DCC \r\n",
        "PRIVMSG \r\n:a\r\n:\r\n",
    ] {
        assert!(announced(Direction::Original, other).is_empty(), "{other}");
    }
}

#[test]
fn an_ipv6_address_is_written_out() {
    let mut talk = registered();
    talk.ends = [("2001:db8::1".parse().unwrap(), 4), ("2001:db8::2".parse().unwrap(), 6667)];
    let lines: [&[u8]; 2] = [
        b"PRIVMSG bob :\x01DCC CHAT chat 2001:db8:0::1 5000\x01\r\n",
        b"PRIVMSG bob :\x01DCC CHAT chat 2001:db8::3 5001\x01\r\n",
    ];
    let announced = talk.announced(Direction::Original, lines);
    let targets = announced.iter().map(|it| (it.destination, it.destination_port));
    assert_eq!(targets.collect::<Vec<_>>(), [("2001:db8::1".parse().unwrap(), 5000)]);
}

#[test]
fn it_does_not_matter_where_segments_end() {
    let one = format!("{REGISTRATION}PRIVMSG bob :\x01DCC SEND \"a b\" {OWN} 5000 1\x01\r\n");
    let two = format!("{one}PRIVMSG #c :\x01DCC CHAT chat {OWN} 5001\x01\nQUIT\r\n");
    let bytes = two.as_bytes();
    let ports = |pieces: &[&[u8]]| {
        let mut talk = Talk::new(Kind::Irc, protocol::TCP);
        let announced = talk.announced(Direction::Original, pieces.iter().copied());
        announced.iter().map(|it| it.destination_port).collect::<Vec<_>>()
    };
    for cut in 1..bytes.len() {
        assert_eq!(ports(&[&bytes[..cut], &bytes[cut..]]), [5000, 5001], "cut at {cut}");
    }
    for length in 1..20 {
        let pieces: Vec<_> = bytes.chunks(length).collect();
        assert_eq!(ports(&pieces), [5000, 5001], "pieces of {length}");
    }
}

#[test]
fn a_client_says_first_who_it_is() {
    let offer = &format!("PRIVMSG bob :\x01DCC SEND file {OWN} 5000\x01\r\n")[..];
    for (said, is_left, is_believed) in [
        (&["NICK a\r\nUSER a 0 * :a\r\n"][..], false, true),
        (&["\r\nuser a 0 * :a\r\n", "nick a\r\n"], false, true),
        (&["CAP LS\r\n", "PASS x\r\nNICK a\r\nCAP END\r\n", "USER a 0 * :a\r\n"], false, true),
        (&["PASS x\r\n"], false, false),
        (&["NICK a\r\n", "NICK b\r\n"], false, false),
        (&["USER a 0 * :a\r\n"], false, false),
        (&[""], true, false),
        (&["JOIN #a\r\n"], true, false),
        (&[":a NICK a\r\n"], true, false),
        (&["POST / HTTP/1.1\r\n\r\n", REGISTRATION], true, false),
        (&["POST /", " HTTP/1.1\r\n\r\n", REGISTRATION], true, false),
    ] {
        let mut talk = Talk::new(Kind::Irc, protocol::TCP);
        for text in said {
            assert!(talk.say(Direction::Original, text.as_bytes()).is_empty());
        }
        let announced = talk.announced(Direction::Original, [offer.as_bytes()]);
        assert_eq!((talk.left, announced.len()), (is_left, is_believed.into()), "{said:?}");
    }
}

#[test]
fn clients_whose_beginning_was_not_seen_are_believed_only_if_asked() {
    for trusts in [false, true] {
        let mut talk = Talk::new(Kind::Irc, protocol::TCP).picked_up();
        talk.settings.expect_picked_up = trusts;
        let offer = format!("PRIVMSG bob :\x01DCC SEND file {OWN} 5000\x01\r\n");
        assert_eq!(talk.announced(Direction::Original, [offer.as_bytes()]).len(), trusts.into());
        assert_eq!(talk.left, !trusts);
    }
}

#[test]
fn the_whole_matrix() {
    use Session::{Begun, Identified, Named, Opening, Registered};
    const WORDS: [Word; 4] = [Word::Nick, Word::User, Word::Before, Word::Other];
    let columns = WORDS.map(|word| format!("{:<12}", format!("{word:?}"))).concat();
    let mut matrix = format!("{:<12}{columns}\n", "");
    for session in [Opening, Begun, Named, Identified, Registered] {
        let cell = |word| session.after(word).map_or("leaves".to_owned(), |it| format!("{it:?}"));
        let row = WORDS.map(|word| format!("{:<12}", cell(word))).concat();
        matrix += &format!("{:<12}{row}\n", format!("{session:?}"));
    }
    insta::assert_snapshot!(matrix);
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(
        start in prop::sample::select(vec![
            "", ":", "PRIVMSG ", "PRIVMSG a :\x01DCC SEND ", "PRIVMSG a :\x01DCC SEND a 3221225985",
            "PRIVMSG a :\x01DCC CHAT \"",
        ]),
        bytes in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let payload = [start.as_bytes(), &bytes, b" 3221225985 5000\x01\r\n"].concat();
        let mut talk = registered();
        for request in talk.say(Direction::Original, &payload) {
            let Request::Expect(it) = request else { panic!("{request:?}") };
            prop_assert_eq!(it.destination.to_string(), CLIENT);
            prop_assert_ne!(it.destination.to_string(), SERVER);
        }
    }
}
