use std::fmt::{Debug, Write as _};

use super::*;
use crate::pfsync::CreatorId;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * 1_000_000)
}

/// A table of what comes of each state with each input.
fn matrix<S: Copy + Debug, I: Copy + Debug, N: Debug>(
    states: &[S],
    inputs: &[I],
    on: impl Fn(S, I) -> N,
) -> String {
    let mut text = String::new();
    for state in states {
        writeln!(text, "{state:?}").unwrap();
        for input in inputs {
            writeln!(text, "  {input:?}: {:?}", on(*state, *input)).unwrap();
        }
    }
    text
}

#[test]
fn outgoing() {
    use BulkOutInput::{Asked, Drained, EndSaid, Queued, Through};
    let begun = at(1_000);
    let id = StateId { id: 7, creator: CreatorId::new(1).unwrap() };
    let states = [
        BulkOut::Idle,
        BulkOut::Queueing { begun, last: None, again: false },
        BulkOut::Draining { begun, until: 5, again: true },
        BulkOut::Ending { begun, left: 2, next: at(1_200), again: false },
        BulkOut::Ending { begun, left: 1, next: at(1_300), again: false },
        BulkOut::Ending { begun, left: 1, next: at(1_300), again: true },
    ];
    let inputs = [
        Asked(at(1_100)),
        Asked(at(1_500)),
        Queued(id),
        Through(9),
        Drained(at(1_100)),
        EndSaid(at(1_300)),
    ];
    insta::assert_snapshot!(matrix(&states, &inputs, BulkOut::on));
}

#[test]
fn incoming() {
    use BulkInInput::{End, Heard, Start, State, Time, Want};
    let asked = at(1_000);
    let states = [
        BulkIn::Off,
        BulkIn::Asking { first: asked, attempt: 1, asked, until: at(2_000) },
        BulkIn::Asking { first: asked, attempt: BULK_ASKS_MAX, asked, until: at(17_000) },
        BulkIn::Filling { first: asked, attempt: 1, asked, until: at(6_500) },
        BulkIn::Level,
        BulkIn::Alone { retry: at(61_000) },
    ];
    let seconds = Duration::from_secs;
    let inputs = [Want, Time, Heard, Start, State, End(seconds(1)), End(seconds(90))];
    let moments = [at(1_500), at(70_000)];
    let inputs: Vec<_> = moments.iter().flat_map(|now| inputs.map(|it| (*now, it))).collect();
    insta::assert_snapshot!(matrix(&states, &inputs, |state, (now, input)| state.on(now, input)));
}

/// Nobody answers, or a peer that begins never ends.
#[test]
fn a_gateway_never_waits_for_ever() {
    for is_begun in [false, true] {
        let mut now = at(0);
        let mut state = BulkIn::Off.on(now, BulkInInput::Want);
        let mut questions = 1;
        while let Some(next) = state.next() {
            if is_begun {
                state = state.on(now, BulkInInput::Start);
            }
            now = state.next().unwrap_or(next);
            state = state.on(now, BulkInInput::Time);
            questions += u8::from(matches!(state, BulkIn::Asking { .. }));
        }
        assert_eq!((questions, state.is_waiting()), (BULK_ASKS_MAX, false));
        assert!(now <= at(31_000), "{now:?}");
        // It asks again when somebody is there.
        let later = now.after(BULK_ALONE_TIME);
        assert!(state.on(later, BulkInInput::Heard).is_waiting());
    }
}

/// A peer sends states for ever and never says the end.
#[test]
fn a_gateway_does_not_wait_for_ever_although_states_arrive() {
    let mut state = BulkIn::Off.on(at(0), BulkInInput::Want).on(at(0), BulkInInput::Start);
    let mut now = at(0);
    while state.is_waiting() {
        now = now.after(Duration::from_secs(1));
        state = state.on(now, BulkInInput::State).on(now, BulkInInput::Time);
    }
    assert_eq!(now, at(0).after(BULK_TIME_MAX));
}
