use super::*;
use crate::helper::Kind;
use crate::testing::conversation::{CLIENT, CLIENT_PORT, Talk};

#[test]
fn any_host_may_answer_a_broadcast() {
    for (kind, seconds) in [(Kind::Snmp, 30), (Kind::NetbiosNs, 3)] {
        let mut talk = Talk::new(kind, protocol::UDP);
        assert!(talk.say(Direction::Original, b"who?").is_empty(), "{kind:?} to one host");
        talk.group = true;
        assert!(talk.say(Direction::Original, b"who?").is_empty(), "{kind:?} in a frame to all");
        talk.ends[1].0 = "255.255.255.255".parse().unwrap();
        let asked = talk.say(Direction::Original, b"who?");
        let [Request::Keep { seconds: kept }, Request::Expect(answer)] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert_eq!((*kept, kind.classes()[0].timeout_s), (seconds, seconds));
        assert_eq!((answer.source, answer.source_port), (None, Some(kind.default_port())));
        assert_eq!(answer.destination.to_string(), CLIENT);
        assert_eq!(answer.destination_port, CLIENT_PORT);
        assert!(answer.permanent, "many may answer");
        assert_eq!(answer.source_network, None);
        assert!(talk.say(Direction::Reply, b"me").is_empty(), "an answer is no question");
    }
}

/// A question from this address and port to that address, in a frame to all: the network whose
/// hosts may answer, or "any". `None` if no answer is expected.
fn may_answer(from: (&str, u16), to: &str, kind: Kind) -> Option<String> {
    let mut talk = Talk::new(kind, protocol::UDP);
    talk.group = true;
    talk.ends = [(from.0.parse().unwrap(), from.1), (to.parse().unwrap(), kind.default_port())];
    let asked = talk.say(Direction::Original, b"who?");
    asked.into_iter().find_map(|request| match request {
        Request::Expect(Announced { source_network: Some(it), .. }) => Some(it.to_string()),
        Request::Expect(_) => Some("any".to_owned()),
        _ => None,
    })
}

#[test]
fn only_the_network_that_was_asked_may_answer() {
    for (from, to, network) in [
        ("192.0.2.1", "192.0.2.255", Some("192.0.2.0/24")),
        ("192.0.2.201", "192.0.2.255", Some("192.0.2.0/24")),
        ("192.0.2.1", "192.0.2.127", Some("192.0.2.0/25")),
        ("192.0.2.201", "192.0.2.127", None),
        ("198.51.100.1", "192.0.2.255", None),
        ("10.1.2.3", "10.255.255.255", Some("10.0.0.0/8")),
        ("192.0.2.1", "192.0.2.9", None),
        ("192.0.2.1", "192.0.2.10", None),
        ("192.0.2.1", "255.255.255.255", Some("any")),
        ("192.0.2.1", "224.0.0.251", Some("any")),
        ("2001:db8::1", "ff02::1", Some("any")),
        ("2001:db8::1", "2001:db8::ffff", None),
    ] {
        let may = may_answer((from, 40000), to, Kind::Snmp);
        assert_eq!(may.as_deref(), network, "{from} asks {to}");
    }
}

/// Otherwise anybody could forge a question of a host's name service, and reach that.
#[test]
fn nobody_answers_to_a_privileged_port_but_name_services_of_one_network() {
    for kind in [Kind::Snmp, Kind::NetbiosNs] {
        for (port, is_expected) in [(53, false), (137, false), (1023, false), (1024, true)] {
            let may = may_answer(("192.0.2.1", port), "255.255.255.255", kind);
            assert_eq!(may.is_some(), is_expected, "{kind:?} from {port}");
            let may = may_answer(("192.0.2.1", port), "192.0.2.255", kind);
            let is_name_service = (kind, port) == (Kind::NetbiosNs, 137);
            assert_eq!(may.is_some(), is_expected || is_name_service, "{kind:?} from {port}");
        }
    }
}
