//! With the nursery all results are the same as without.

use std::time::Duration;

use flow::{DefragCounters, DropReason, HashKey, Timestamp};
use proptest::prelude::*;
use wire::Family;

use crate::*;

const SECRET: HashKey = HashKey(1, 2);
/// More datagrams than any sequence of steps begins.
const ALL: usize = 1000;

/// The number and the footprint of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame(usize, usize);

impl Buffer for Frame {
    fn footprint(&self) -> usize {
        self.1
    }
}

struct Worker {
    reassembler: Reassembler<Frame>,
    memory: Memory,
    counters: DefragCounters,
    settings: Settings,
    now: Timestamp,
    /// False if everything settles after each step, as if there were no nursery.
    has_nursery: bool,
}

/// The visible result of a step.
#[derive(Debug, PartialEq)]
struct Seen {
    outcome: Option<Outcome>,
    expired: Option<usize>,
    complete: Vec<Frame>,
    discarded: Vec<(usize, DiscardCause)>,
    counters: DefragCounters,
    used: [u64; 2],
    charged: Vec<u64>,
    views: Vec<String>,
}

#[derive(Clone, Debug)]
enum Step {
    Piece(Piece, usize),
    Pass(Duration),
    Expire,
    Move(u16),
}

impl Worker {
    fn new(settings: &Settings, has_nursery: bool) -> Self {
        Self {
            reassembler: Reassembler::new(SECRET),
            memory: Pools::new(settings).memory(1),
            counters: DefragCounters::default(),
            settings: settings.clone(),
            now: Timestamp::from_secs(1),
            has_nursery,
        }
    }

    fn take(&mut self, number: usize, step: &Step) -> Seen {
        let Self { reassembler, memory, counters, settings, .. } = self;
        let (mut outcome, mut expired) = (None, None);
        let (mut complete, mut discarded) = (Vec::new(), Vec::new());
        if let Step::Pass(time) = step {
            self.now = self.now.after(*time);
        }
        let mut discard = |frame: Frame, why: DiscardCause| discarded.push((frame.0, why));
        let mut context =
            Context { now: self.now, settings, memory, counters, discard: &mut discard };
        match step {
            Step::Piece(piece, footprint) => {
                let bucket = (piece.key.id() % 4) as u16;
                let frame = Frame(number, *footprint);
                let got = reassembler.insert(piece, bucket, frame, &mut complete, &mut context);
                outcome = Some(got);
            }
            Step::Expire => expired = Some(reassembler.expire(ALL, &mut context)),
            Step::Move(bucket) => {
                let parcel = reassembler.extract(*bucket, context.memory);
                reassembler.adopt(parcel, &mut context);
            }
            Step::Pass(_) => {}
        }
        if !self.has_nursery {
            reassembler.promote_all(&mut context);
        }
        // The order among frames that are discarded together is not defined.
        discarded.sort_by_key(|discarded| discarded.0);
        let families = [Family::V4, Family::V6];
        let phases = [Phase::Newcomer, Phase::Progress, Phase::Dead(DropReason::FragOverlap)];
        let charged = families.map(|family| phases.map(|phase| reassembler.charged(family, phase)));
        Seen {
            outcome,
            expired,
            complete,
            discarded,
            counters: *counters,
            used: families.map(|family| memory.used(family)),
            charged: charged.concat(),
            views: self.views(),
        }
    }

    fn views(&self) -> Vec<String> {
        let (mut views, mut cursor) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = cursor {
            let each = |view: QueueView| views.push(format!("{view:?}"));
            cursor = self.reassembler.list(from, 100, &self.settings, self.now, each);
        }
        assert_eq!(views.len(), self.reassembler.len());
        views.sort_unstable();
        views
    }
}

/// A fragment of one of `ids` datagrams. Most fit together; some do not.
fn piece(ids: u32) -> impl Strategy<Value = Piece> {
    let odd = prop::bool::weighted(0.03);
    let ecn = prop_oneof![30 => Just(Ecn::Ect0), 1 => Just(Ecn::Ce), 1 => Just(Ecn::NotEct)];
    (0..ids, 0u16..7, odd, odd, odd, ecn).prop_map(|(id, number, longer, late, last, ecn)| {
        let (count, is_v6) = ([2, 3, 3, 4, 5, 7][id as usize % 6], id % 7 == 0);
        let number = number % count;
        let (source, destination, realm) = ([(id % 3) as u8; 16], [2; 16], Realm::default());
        let key = match is_v6 {
            false => DatagramKey::v4(realm, source, destination, 17, id),
            true => DatagramKey::v6(realm, source, destination, id),
        };
        let more = (number + 1 < count) != last;
        let offset = number * 24 + if late { 8 } else { 0 };
        let length = if longer { 32 } else { 24 } - if more { 0 } else { 3 };
        Piece { key, offset, length, more, ecn, header: 20 }
    })
}

fn step(ids: u32) -> impl Strategy<Value = Step> {
    let time = prop_oneof![
        6 => (0u64..900).prop_map(Duration::from_micros),
        1 => (20u64..70).prop_map(Duration::from_secs),
    ];
    prop_oneof![
        60 => (piece(ids), prop_oneof![Just(128usize), Just(2048)])
            .prop_map(|(piece, footprint)| Step::Piece(piece, footprint)),
        3 => time.prop_map(Step::Pass),
        3 => Just(Step::Expire),
        1 => (0u16..4).prop_map(Step::Move),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// This holds as long as memory suffices: the choice of a victim among datagrams that began
    /// within the same two milliseconds is not defined.
    #[test]
    fn nothing_changes_from_outside(
        steps in prop_oneof![
            prop::collection::vec(step(8), 1..200),
            prop::collection::vec(step(600), 1..900),
        ],
        max_dist in prop_oneof![Just(0u32), Just(64), 1u32..12],
        pieces_per_4k in prop_oneof![Just(128u16), 1u16..8],
    ) {
        let settings = Settings { max_dist, pieces_per_4k, ..Settings::default() };
        let [mut with, mut without] = [true, false].map(|with| Worker::new(&settings, with));
        for (number, step) in steps.iter().enumerate() {
            let (seen, expected) = (with.take(number, step), without.take(number, step));
            prop_assert_eq!(seen, expected, "step {}: {:?}", number, step);
            prop_assert_eq!(without.reassembler.nursery.len(), 0);
        }
    }
}
