use proptest::prelude::*;

use super::*;
use crate::helper::Kind;
use crate::testing::conversation::{CLIENT, SERVER, Talk};
use crate::testing::pptp::Says::{self, *};

const THERE: Direction = Direction::Original;
const BACK: Direction = Direction::Reply;

#[test]
fn messages_are_as_long_as_the_rfc_has_them() {
    let said = [
        Start,
        Started(1),
        Stop,
        Stopped(1),
        Echo,
        Outgoing(1),
        OutgoingReply(1, 2, 1),
        Incoming(1),
        IncomingReply(1, 2, 1),
        Connected(1),
        Clear(1),
        Disconnect(1),
        WanError(1),
        LinkInfo(1),
    ];
    let lengths = said.map(|says| says.bytes().len());
    assert_eq!(lengths, [156, 156, 16, 16, 16, 168, 32, 220, 24, 28, 16, 148, 40, 24]);
    for says in said {
        let bytes = says.bytes();
        let known = !matches!(says, Echo | WanError(_) | LinkInfo(_));
        assert_eq!(Message::read(&bytes).is_some(), known, "{says:?}");
        assert_eq!(Message::read(&bytes[..bytes.len() - 1]), None, "{says:?}");
        let longer = [&bytes[..], &[0; 4]].concat();
        assert_eq!(Message::read(&longer), Message::read(&bytes), "{says:?}");
    }
}

const OPENING: [(Direction, Says); 2] = [(THERE, Start), (BACK, Started(1))];

/// The request of the helper as text. `1>2`: a call is expected from the client with id 1 to
/// the server with id 2; `2<1`: in the opposite direction; `end 1 2`: it is over.
fn text(request: &Request) -> String {
    let name = |address: IpAddr| if address.to_string() == CLIENT { "c" } else { "s" };
    let end = |(address, id): (IpAddr, u16)| format!("{}{id}", name(address));
    match request {
        Request::Expect(it) => {
            assert_eq!((it.class, it.protocol, it.permanent), (0, protocol::GRE, false));
            let [from, to] = [it.source.unwrap(), it.destination];
            assert!([from.to_string(), to.to_string()].iter().any(|address| address == SERVER));
            let from = end((from, it.source_port.unwrap()));
            format!("{from}>{}", end((to, it.destination_port)))
        }
        Request::End { source, destination } => {
            format!("end {} {}", end(*source), end(*destination))
        }
        other => panic!("{other:?}"),
    }
}

fn asked(said: &[(Direction, Says)]) -> String {
    let mut talk = Talk::new(Kind::Pptp, protocol::TCP);
    let requests = said.iter().flat_map(|(from, says)| talk.say(*from, &says.bytes()));
    requests.map(|request| text(&request)).collect::<Vec<_>>().join(" ")
}

fn opened(said: &[(Direction, Says)]) -> String {
    asked(&[&OPENING[..], said].concat())
}

#[test]
fn an_outgoing_call_is_announced_by_its_reply_from_both_ends() {
    let call = [(THERE, Outgoing(5)), (BACK, OutgoingReply(9, 5, 1))];
    assert_eq!(opened(&call), "c5>s9 s9>c5");
    let again = [call[0], call[1], call[1]];
    assert_eq!(opened(&again), "c5>s9 s9>c5 c5>s9 s9>c5");
    for other in [OutgoingReply(9, 6, 1), OutgoingReply(9, 5, 2), Connected(5)] {
        assert_eq!(opened(&[call[0], (BACK, other)]), "", "{other:?}");
    }
    assert_eq!(opened(&[call[0], (BACK, OutgoingReply(9, 5, 4)), call[1]]), "", "refused before");
    assert_eq!(opened(&[call[1]]), "", "nobody asked");
    assert_eq!(opened(&[call[0], (THERE, OutgoingReply(9, 5, 1))]), "", "to oneself");
}

#[test]
fn an_incoming_call_is_announced_when_it_is_connected() {
    let call = [(BACK, Incoming(9)), (THERE, IncomingReply(5, 9, 1)), (BACK, Connected(5))];
    assert_eq!(opened(&call), "c5>s9 s9>c5");
    assert_eq!(opened(&call[..2]), "");
    assert_eq!(opened(&[call[0], call[2]]), "", "nobody took it");
    assert_eq!(opened(&[call[0], (THERE, IncomingReply(5, 9, 2)), call[2]]), "", "refused");
    assert_eq!(opened(&[call[0], (THERE, IncomingReply(5, 8, 1)), call[2]]), "", "another");
    assert_eq!(opened(&[call[0], call[1], (BACK, Connected(6))]), "", "another");
}

#[test]
fn either_end_of_the_control_connection_may_be_the_network_server() {
    let call = [(BACK, Outgoing(5)), (THERE, OutgoingReply(9, 5, 1)), (THERE, Disconnect(9))];
    assert_eq!(opened(&call), "s5>c9 c9>s5 end s5 c9");
    let call = [(THERE, Incoming(9)), (BACK, IncomingReply(5, 9, 1)), (THERE, Connected(5))];
    assert_eq!(opened(&call), "s5>c9 c9>s5");
    // The same ids in both roles.
    let calls = [
        (THERE, Outgoing(5)),
        (BACK, Outgoing(5)),
        (BACK, OutgoingReply(9, 5, 1)),
        (THERE, OutgoingReply(9, 5, 1)),
        (THERE, Disconnect(9)),
    ];
    assert_eq!(opened(&calls), "c5>s9 s9>c5 s5>c9 c9>s5 end s5 c9");
}

#[test]
fn nothing_is_announced_unless_the_control_connection_was_accepted() {
    let call = [(THERE, Outgoing(5)), (BACK, OutgoingReply(9, 5, 1))];
    for opening in [
        &[][..],
        &[(THERE, Start)],
        &[(BACK, Started(1))],
        &[(BACK, Start), (THERE, Started(1))],
        &[(THERE, Start), (THERE, Started(1))],
        &[(THERE, Start), (BACK, Started(2))],
        &[(THERE, Start), (BACK, Started(1)), (THERE, Stop)],
        &[(THERE, Start), (BACK, Started(1)), (BACK, Stop), (THERE, Stopped(1))],
    ] {
        assert_eq!(asked(&[opening, &call].concat()), "", "{opening:?}");
    }
    let reopened = [&OPENING[..], &[(THERE, Stop), (BACK, Stopped(1))], &OPENING, &call].concat();
    assert_eq!(asked(&reopened), "c5>s9 s9>c5");
    let stopped = [call[0], (THERE, Stop), (BACK, Stopped(1)), OPENING[0], OPENING[1], call[1]];
    assert_eq!(opened(&stopped), "", "asked for before");
}

#[test]
fn each_call_ends_by_its_own_id() {
    let calls = [
        (THERE, Outgoing(1)),
        (THERE, Outgoing(2)),
        (BACK, OutgoingReply(8, 2, 1)),
        (BACK, OutgoingReply(7, 1, 1)),
        (BACK, Disconnect(6)),
        (THERE, Disconnect(8)),
        (BACK, Disconnect(8)),
        (BACK, Disconnect(8)),
    ];
    assert_eq!(opened(&calls), "c2>s8 s8>c2 c1>s7 s7>c1 end c2 s8");
}

#[test]
fn a_call_that_is_to_be_cleared_is_announced_no_more_and_ends_with_the_notice() {
    let said = [
        (THERE, Outgoing(1)),
        (BACK, OutgoingReply(7, 1, 1)),
        (THERE, Clear(1)),
        (BACK, OutgoingReply(7, 1, 1)),
        (BACK, Disconnect(7)),
    ];
    assert_eq!(opened(&said), "c1>s7 s7>c1 end c1 s7");
    assert_eq!(opened(&[said[0], said[2], said[1], said[4]]), "");
}

#[test]
fn of_many_calls_the_first_is_forgotten() {
    let mut said = OPENING.to_vec();
    for id in 0..=CALLS as u16 {
        said.extend([(THERE, Outgoing(id)), (BACK, OutgoingReply(100 + id, id, 1))]);
    }
    let before = asked(&said).len();
    said.extend([(BACK, Disconnect(100)), (BACK, Disconnect(101))]);
    assert_eq!(asked(&said)[before..].trim(), "end c1 s101");
}

/// The bytes of each end in turn.
fn turns(said: &[(Direction, Says)]) -> Vec<(Direction, Vec<u8>)> {
    let mut turns: Vec<(Direction, Vec<u8>)> = Vec::new();
    for (from, says) in said {
        match turns.last_mut() {
            Some((last, bytes)) if last == from => bytes.extend(says.bytes()),
            _ => turns.push((*from, says.bytes())),
        }
    }
    turns
}

fn any_word() -> impl Strategy<Value = (Direction, Says)> {
    let (id, result) = (0u16..3, prop::sample::select(vec![1u64, 1, 1, 2]));
    let says = prop_oneof![
        Just(Start),
        result.clone().prop_map(Started),
        Just(Stop),
        result.clone().prop_map(Stopped),
        Just(Echo),
        id.clone().prop_map(Outgoing),
        (id.clone(), id.clone(), result.clone()).prop_map(|(a, b, r)| OutgoingReply(a, b, r)),
        id.clone().prop_map(Incoming),
        (id.clone(), id.clone(), result).prop_map(|(a, b, r)| IncomingReply(a, b, r)),
        id.clone().prop_map(Connected),
        id.clone().prop_map(Clear),
        id.clone().prop_map(Disconnect),
        id.clone().prop_map(WanError),
        id.prop_map(LinkInfo),
    ];
    (prop::sample::select(vec![THERE, BACK]), says)
}

proptest! {
    #[test]
    fn it_does_not_matter_where_segments_end(
        said in prop::collection::vec(any_word(), 0..40),
        cuts in prop::collection::vec(1usize..300, 1..20),
    ) {
        let said = [&OPENING[..], &said].concat();
        let mut talk = Talk::new(Kind::Pptp, protocol::TCP);
        let (mut requests, mut cuts) = (Vec::new(), cuts.into_iter().cycle());
        for (from, bytes) in turns(&said) {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                requests.extend(talk.say(from, piece));
                rest = behind;
            }
        }
        let requests: Vec<_> = requests.iter().map(text).collect();
        prop_assert_eq!(requests.join(" "), asked(&said));
    }

    /// Only announced calls end, and the helper remembers nothing else, for any messages.
    #[test]
    fn only_announced_calls_end(said in prop::collection::vec(any_word(), 0..200)) {
        let mut announced = std::collections::HashSet::new();
        for request in opened(&said).split("end ").enumerate() {
            let (number, text) = request;
            let mut words = text.split_whitespace();
            if number > 0 {
                let call = [words.next().unwrap(), words.next().unwrap()].map(str::to_owned);
                prop_assert!(announced.contains(&call), "{:?}", call);
            }
            for word in words {
                let (from, to) = word.split_once('>').unwrap();
                announced.insert([from.to_owned(), to.to_owned()]);
            }
        }
    }

    #[test]
    fn no_bytes_are_too_strange(
        said in prop::collection::vec(
            (any_word(), any::<(usize, u8)>(), 0usize..4, 1usize..300), 1..30),
    ) {
        let mut talk = Talk::new(Kind::Pptp, protocol::TCP);
        for (from, says) in OPENING {
            talk.say(from, &says.bytes());
        }
        for ((from, says), (at, value), damage, piece) in said {
            let mut bytes = says.bytes();
            let at = at % bytes.len();
            match damage {
                0 => bytes[at % 12] = value,
                1 => bytes[at] = value,
                2 => bytes.truncate(at),
                _ => {}
            }
            for piece in bytes.chunks(piece) {
                talk.say(from, piece);
            }
            if damage == 1 && let Some(numbers) = &mut talk.numbers {
                numbers[from.index()] = numbers[from.index()].wrapping_add(u32::from(value));
            }
        }
    }
}
