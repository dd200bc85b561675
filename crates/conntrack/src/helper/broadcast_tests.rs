use super::*;
use crate::helper::Kind;
use crate::testing::conversation::{CLIENT, CLIENT_PORT, Talk};

#[test]
fn what_goes_to_all_may_be_answered_by_anybody() {
    for (kind, seconds) in [(Kind::Snmp, 30), (Kind::NetbiosNs, 3)] {
        let mut talk = Talk::new(kind, protocol::UDP);
        assert!(talk.say(Direction::Original, b"who?").is_empty(), "{kind:?} to one host");
        talk.group = true;
        let asked = talk.say(Direction::Original, b"who?");
        let [Request::Keep { seconds: kept }, Request::Expect(answer)] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert_eq!((*kept, kind.classes()[0].timeout_s), (seconds, seconds));
        assert_eq!((answer.source, answer.source_port), (None, Some(kind.default_port())));
        assert_eq!(answer.destination.to_string(), CLIENT);
        assert_eq!(answer.destination_port, CLIENT_PORT);
        assert!(answer.permanent, "many may answer");
        assert!(talk.say(Direction::Reply, b"me").is_empty(), "an answer is no question");
    }
}
