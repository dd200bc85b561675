use std::fmt::Write as _;
use std::num::NonZeroU16;

use super::*;
use crate::keys::{PreSharedKey, Seed};
use crate::node::{NodeId, NodeName};

fn greeter(node: u16) -> Greeter {
    greeter_with(node, node as u8)
}

fn greeter_with(node: u16, seed: u8) -> Greeter {
    let id = NodeId(NonZeroU16::new(node).unwrap());
    let name = NodeName::new("node").unwrap();
    let secret = PreSharedKey::new(b"the same secret!").unwrap();
    Greeter::new((id, name), None, secret, Seed::new([seed; 32]))
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

fn name(handshake: &Handshake) -> &'static str {
    match handshake {
        Handshake::Quiet => "Quiet",
        Handshake::Hailing { .. } => "Hailing",
        Handshake::Confirming { .. } => "Confirming",
    }
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Begin,
    HelloOfLowerNode,
    HelloOfHigherNode,
    Answer,
    AnswerToAnotherHello,
    Confirm,
    ConfirmOfRestarted,
    ConfirmAgain,
    KeysUsed,
    TimeOut,
    TimeOutOfLastTry,
}

const INPUTS: [Input; 11] = [
    Input::Begin,
    Input::HelloOfLowerNode,
    Input::HelloOfHigherNode,
    Input::Answer,
    Input::AnswerToAnotherHello,
    Input::Confirm,
    Input::ConfirmOfRestarted,
    Input::ConfirmAgain,
    Input::KeysUsed,
    Input::TimeOut,
    Input::TimeOutOfLastTry,
];

/// Node 5 in a state, with what it has sent so far.
struct Fixture {
    own: Greeter,
    handshake: Handshake,
    hello: Option<Greeting>,
}

impl Fixture {
    fn new(state: &str) -> Self {
        let mut it = Self { own: greeter(5), handshake: Handshake::Quiet, hello: None };
        if state == "Quiet" {
            return it;
        }
        it.handshake.begin(at(0), &mut it.own);
        let sent = it.handshake.poll(at(0), &mut it.own).unwrap().to_vec();
        it.hello = Some(greeter(9).read(Kind::Hello, &sent).unwrap().0);
        if state == "Confirming" {
            let answer = greeter(9).answer(it.hello.as_ref().unwrap());
            it.receive(Kind::Answer, &answer).unwrap();
            it.handshake.poll(at(1), &mut it.own).unwrap();
        }
        assert_eq!(name(&it.handshake), state);
        it
    }

    fn receive(&mut self, kind: Kind, datagram: &[u8]) -> Result<Outcome, Refusal> {
        self.handshake.receive(at(1), &mut self.own, kind, datagram)
    }

    /// A `Confirm` of a higher node to an answer of this node.
    fn confirm(&mut self, mut peer: Greeter) -> Vec<u8> {
        let (hello, _) = peer.hello();
        let answer = self.own.answer(&hello);
        let (answer, code) = peer.read(Kind::Answer, &answer).unwrap();
        peer.confirm(&hello, &answer, &code).unwrap().0
    }

    fn take(&mut self, input: Input) -> String {
        let result = match input {
            Input::Begin => {
                self.handshake.begin(at(1), &mut self.own);
                return String::new();
            }
            Input::HelloOfLowerNode => self.receive(Kind::Hello, &greeter(2).hello().1),
            Input::HelloOfHigherNode => self.receive(Kind::Hello, &greeter(9).hello().1),
            Input::Answer | Input::AnswerToAnotherHello => {
                let other = greeter(5).hello().0;
                let hello = self.hello.clone().unwrap_or_else(|| other.clone());
                let hello = match input {
                    Input::Answer => hello,
                    _ => Greeting { index: hello.index ^ 1, ..hello },
                };
                self.receive(Kind::Answer, &greeter(9).answer(&hello))
            }
            Input::Confirm => {
                let confirm = self.confirm(greeter(9));
                self.receive(Kind::Confirm, &confirm)
            }
            Input::ConfirmOfRestarted => {
                let confirm = self.confirm(greeter_with(9, 77));
                self.receive(Kind::Confirm, &confirm)
            }
            Input::ConfirmAgain => {
                let confirm = self.confirm(greeter(9));
                let (read, code) = self.own.read(Kind::Confirm, &confirm).unwrap();
                let agreed = self.own.accept(&read, &code).unwrap();
                self.own.renew(agreed.bond);
                self.receive(Kind::Confirm, &confirm)
            }
            Input::KeysUsed => {
                let agreed = self.handshake.confirmed().is_some();
                return if agreed { "keys in force".into() } else { String::new() };
            }
            Input::TimeOut | Input::TimeOutOfLastTry => {
                let tries = if matches!(input, Input::TimeOut) { 1 } else { CONFIRM_TRIES };
                let mut sent = None;
                for attempt in 1..=u64::from(tries) {
                    let now = at(attempt * 10_000);
                    sent = self.handshake.poll(now, &mut self.own).map(|it| it[1]);
                }
                return sent.map_or(String::new(), |kind| format!("sends kind {kind}"));
            }
        };
        match result {
            Ok(Outcome::Reply(_)) => "answers".into(),
            Ok(Outcome::Continue) => "confirms".into(),
            Ok(Outcome::InForce(_)) => "keys in force".into(),
            Err(refusal) => format!("refuses: {}", refusal.name()),
        }
    }
}

#[test]
fn transitions() {
    let mut table = String::new();
    for state in ["Quiet", "Hailing", "Confirming"] {
        for input in INPUTS {
            let mut it = Fixture::new(state);
            let done = it.take(input);
            let next = name(&it.handshake);
            let done = if done.is_empty() { done } else { format!(", {done}") };
            writeln!(table, "{state:10}  {input:?}: {next}{done}").unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn hellos_that_somebody_repeats_use_up_nothing() {
    for state in ["Hailing", "Confirming"] {
        let mut it = Fixture::new(state);
        let (_, hello) = greeter(9).hello();
        let before = it.handshake.next_timeout();
        for _ in 0..100 {
            it.receive(Kind::Hello, &hello).unwrap();
            assert_eq!(it.handshake.poll(at(1), &mut it.own), None);
        }
        assert_eq!((name(&it.handshake), it.handshake.next_timeout()), (state, before));
    }
}

#[test]
fn repetition_backs_off_and_never_ends() {
    let mut own = greeter(1);
    let mut handshake = Handshake::default();
    handshake.begin(at(0), &mut own);
    let (mut last, mut pauses) = (0, Vec::new());
    for ms in 0..120_000 {
        if handshake.poll(at(ms), &mut own).is_some() {
            pauses.push(ms - last);
            last = ms;
        }
    }
    let expected = [0, 100, 200, 400, 800, 1600].into_iter().chain(std::iter::repeat(2000));
    for (pause, least) in pauses.iter().zip(expected) {
        assert!((least..=least + least / 4 + 1).contains(pause), "{pauses:?}");
    }
    assert!(pauses.len() > 45);
}
