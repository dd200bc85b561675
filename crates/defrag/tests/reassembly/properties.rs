//! Any fragments in any order.

use std::collections::BTreeMap;

use defrag::{DatagramKey, Ecn, Outcome, Pools, Settings};
use proptest::prelude::*;
use wire::Family;

use crate::fixture::{Cut, Worker, content, cut, cuts, fragment, key};
use crate::migration::travel;
use crate::model::{Expected, Model};

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

fn ecn() -> impl Strategy<Value = Ecn> {
    prop_oneof![
        20 => Just(Ecn::Ect0),
        2 => Just(Ecn::Ect1),
        1 => Just(Ecn::Ce),
        1 => Just(Ecn::NotEct),
    ]
}

/// Any fragment of one of a few small datagrams; most contradict one another.
fn any_cut() -> impl Strategy<Value = Cut> {
    let place = (0u16..14, 1u16..4, 0u16..8);
    (family(), 1u8..3, 0u32..2, place, prop::bool::weighted(0.8), ecn(), any::<u8>()).prop_map(
        |(family, source, id, (start, units, odd), more, ecn, seed)| {
            let length = units * 8 - if more { 0 } else { odd };
            // A piece at 0 with no more to follow is no fragment.
            let more = more || start == 0;
            let length = if more { units * 8 } else { length };
            let payload = content(seed.into(), length.into());
            let mut cut = fragment(key(family, source, id), start * 8, &payload, more);
            cut.piece.ecn = ecn;
            cut
        },
    )
}

/// Seconds that pass before a fragment.
fn pause() -> impl Strategy<Value = f64> {
    prop_oneof![12 => Just(0.0), 1 => 0.1..40.0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn agrees_with_a_map_of_byte_vectors(
        steps in prop::collection::vec((any_cut(), pause(), any::<bool>()), 1..120),
        max_dist in prop_oneof![Just(64u32), 1u32..12],
    ) {
        let settings = Settings { max_dist, ..Settings::default() };
        let mut worker = Worker::new(&settings);
        let mut model = Model::default();
        for (cut, pause, expire) in steps {
            worker.pass(pause);
            if expire {
                worker.expire(1);
            }
            worker.discarded.clear();
            let expected = model.take(&cut, worker.now, &settings);
            let result = worker.send(&cut);
            // The fragment itself is the last that is discarded.
            let got = match result.outcome {
                Outcome::Held => Expected::Held,
                Outcome::Complete(summary) => {
                    let bytes = result.datagram.unwrap();
                    prop_assert_eq!(summary.payload as usize, bytes.len());
                    Expected::Complete(bytes, summary.ecn)
                }
                Outcome::Refused => Expected::Refused(worker.discarded.last().unwrap().1),
            };
            prop_assert_eq!(got, expected);
            worker.check_books();
        }
        worker.drain();
    }
}

/// A datagram that is sent once, in fragments of some size; some of them are sent twice, never,
/// or cut differently the second time.
#[derive(Clone, Debug)]
struct Sent {
    key: DatagramKey,
    bytes: Vec<u8>,
    cuts: Vec<Cut>,
}

fn sent() -> impl Strategy<Value = Vec<Sent>> {
    let one = (
        family(),
        1u8..5,
        1usize..3000,
        1usize..40,
        prop::collection::vec((any::<prop::sample::Index>(), 0usize..12), 0..4),
    );
    prop::collection::vec(one, 1..40).prop_map(|all| {
        all.into_iter()
            .enumerate()
            .map(|(id, (family, source, length, units, spoiled))| {
                let bytes = content(id as u32, length + units * 8);
                let key = key(family, source, id as u32);
                let mut cuts = cuts(key, &bytes, units * 8);
                for (at, kind) in spoiled {
                    spoil(&mut cuts, at, kind, key, &bytes);
                }
                Sent { key, bytes, cuts }
            })
            .collect()
    })
}

/// Repeats, loses or cuts anew one piece.
fn spoil(
    cuts: &mut Vec<Cut>,
    at: prop::sample::Index,
    kind: usize,
    key: DatagramKey,
    bytes: &[u8],
) {
    if cuts.is_empty() {
        return;
    }
    let at = at.index(cuts.len());
    match kind {
        0 => drop(cuts.remove(at)),
        1..=6 => cuts.push(cuts[at].clone()),
        _ => {
            let offset = usize::from(cuts[at].piece.offset);
            let length = (kind * 8).min(bytes.len() - offset);
            if length < bytes.len() {
                cuts.push(cut(key, bytes, offset, length));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Two workers with little memory exchange buckets. A completed datagram equals the one
    /// that was sent, every frame comes out once, and the accounts are correct at all times.
    #[test]
    fn the_senders_bytes_or_nothing(
        sent in sent(),
        order in any::<u64>(),
        window in 1usize..200,
        kilobytes in 1u64..120,
        pauses in prop::collection::vec((any::<prop::sample::Index>(), 0.1..40.0), 0..3),
        moves in prop::collection::vec((any::<prop::sample::Index>(), 0u16..4), 0..6),
    ) {
        let mut settings = Settings::default();
        for family in [&mut settings.v4, &mut settings.v6] {
            family.high_thresh = kilobytes << 10;
            family.low_thresh = (kilobytes << 10) * 3 / 4;
        }
        let pools = Pools::new(&settings);
        let mut workers = [(); 2].map(|()| Worker::of(&pools, &settings, 2));
        workers[1].serial = 1 << 32;
        let mut owner = [0usize; 4];
        let whole: BTreeMap<u32, &Sent> = sent.iter().map(|one| (one.key.id(), one)).collect();
        let mut stream: Vec<&Cut> = sent.iter().flat_map(|one| &one.cuts).collect();
        let mut random = crate::fixture::Random(order | 1);
        stream.chunks_mut(window).for_each(|chunk| random.shuffle(chunk));
        let at = |index: &prop::sample::Index| index.index(stream.len().max(1));
        for (step, cut) in stream.iter().enumerate() {
            for (_, seconds) in pauses.iter().filter(|pause| at(&pause.0) == step) {
                workers.iter_mut().for_each(|worker| worker.pass(*seconds));
            }
            for &(_, bucket) in moves.iter().filter(|one| at(&one.0) == step) {
                let from = owner[usize::from(bucket)];
                let [first, second] = &mut workers;
                if from == 0 { travel(first, second, bucket) } else { travel(second, first, bucket) }
                owner[usize::from(bucket)] = 1 - from;
            }
            let bucket = (cut.piece.key.id() % 4) as u16;
            let worker = &mut workers[owner[usize::from(bucket)]];
            worker.footprint = 64 + 512 * (step % 4);
            let result = worker.send_to(cut, bucket);
            if let Some(bytes) = result.datagram {
                prop_assert_eq!(&bytes, &whole[&cut.piece.key.id()].bytes);
            }
            worker.check_books();
            for family in [Family::V4, Family::V6] {
                let used: u64 = workers.iter().map(|worker| worker.memory.used(family)).sum();
                prop_assert!(used <= pools.leased(family));
                prop_assert!(pools.leased(family) <= settings.family(family).high_thresh);
            }
        }
        workers.iter_mut().for_each(Worker::drain);
    }
}
