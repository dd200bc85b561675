//! The phases of a datagram: the result of each event at each of them.

use std::fmt::Write as _;

use defrag::{Outcome, Settings};
use wire::Family;

use crate::fixture::{Cut, Worker, fragment, key};

fn piece(offset: u16, more: bool) -> Cut {
    fragment(key(Family::V4, 1, 1), offset, &[0; 16], more)
}

type Bring = fn(&mut Worker);
type Happen = fn(&mut Worker) -> Option<Outcome>;

/// Brings a datagram to each phase.
const STAGES: [(&str, Bring); 4] = [
    ("absent", |_| {}),
    ("newcomer", |worker| drop(worker.send(&piece(0, true)))),
    ("progress", |worker| {
        worker.send(&piece(0, true));
        worker.send(&piece(32, true));
    }),
    ("dead", |worker| {
        worker.send(&piece(0, true));
        worker.send(&piece(8, true));
    }),
];

/// The events.
const EVENTS: [(&str, Happen); 8] = [
    ("new piece", |worker| Some(worker.send(&piece(48, true)).outcome)),
    ("last missing piece", |worker| {
        let missing = match worker.views().first().map(|view| view.pieces) {
            Some(1) => piece(16, false),
            _ => {
                worker.send(&piece(48, false));
                piece(16, true)
            }
        };
        Some(worker.send(&missing).outcome)
    }),
    ("piece once more", |worker| {
        worker.settings.max_dist = 0;
        Some(worker.send(&piece(0, true)).outcome)
    }),
    ("piece that overlaps", |worker| Some(worker.send(&piece(8, true)).outcome)),
    ("piece after its identification came round", |worker| {
        for id in 0..100 {
            worker.send(&fragment(key(Family::V4, 1, 100 + id), 0, &[0; 16], true));
        }
        Some(worker.send(&piece(48, true)).outcome)
    }),
    ("piece when its time is over", |worker| {
        worker.pass(30.0);
        Some(worker.send(&piece(48, true)).outcome)
    }),
    ("end of its time", |worker| {
        worker.pass(30.0);
        worker.expire(1);
        None
    }),
    ("shortage", |worker| {
        worker.footprint = 99_700;
        worker.send(&fragment(key(Family::V4, 2, 2), 0, &[0; 16], true));
        None
    }),
];

#[test]
fn every_event_in_every_phase() {
    let mut settings = Settings::default();
    settings.v4.high_thresh = 100_000;
    let mut table = String::new();
    for (event, happen) in EVENTS {
        writeln!(table, "{event}").unwrap();
        for (name, bring) in STAGES {
            let mut worker = Worker::new(&settings);
            worker.footprint = 256;
            bring(&mut worker);
            worker.reasons();
            let outcome = happen(&mut worker).map_or("-".to_owned(), |outcome| match outcome {
                Outcome::Complete(_) => "Complete".to_owned(),
                other => format!("{other:?}"),
            });
            let mut reasons: Vec<&str> =
                worker.reasons().into_iter().map(flow::DropReason::name).collect();
            reasons.dedup();
            let phase = worker
                .stage_of(&key(Family::V4, 1, 1))
                .map_or("gone".to_owned(), |s| format!("{s:?}"));
            let reasons = reasons.join(", ");
            writeln!(table, "  {name:9} -> {phase:17} {outcome:8} {reasons}").unwrap();
            worker.check_books();
        }
    }
    insta::assert_snapshot!(table);
}
