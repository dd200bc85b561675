use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
/// The beginning of a capture.
const BEGIN: u64 = 1_700_000_000 * SECOND;

fn ticks(stamps: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut clock = CaptureClock::default();
    stamps.into_iter().map(|stamp| clock.tick(stamp)).collect()
}

#[test]
fn disorder_holds_time_up_and_moves_it_nowhere() {
    let seen = ticks([0, 500, 200, 900, 100, 1000].map(|millis| BEGIN + millis * SECOND / 1000));
    assert_eq!(seen, [0, 500, 500, 900, 900, 1000].map(|millis| BEGIN + millis * SECOND / 1000));
}

#[test]
fn a_clock_that_was_set_back_goes_on() {
    let before = (0..10).map(|second| BEGIN + second * SECOND);
    let after = (0..10).map(|second| BEGIN - HOUR + second * SECOND);
    let seen = ticks(before.chain(after));
    // Time stands still only for the two packets that may just be out of order.
    let expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 10, 11, 12, 13, 14, 15, 16];
    assert_eq!(seen, expected.map(|second| BEGIN + second * SECOND));
}

#[test]
fn one_wrong_stamp_does_not_stop_the_clock() {
    let seconds = (0..6).map(|second| BEGIN + second * SECOND);
    let seen = ticks([BEGIN, u64::MAX].into_iter().chain(seconds.clone()));
    assert_eq!(seen[1], BEGIN);
    assert_eq!(seen.last(), Some(&(BEGIN + 5 * SECOND)));
    let seen = ticks([BEGIN + HOUR].into_iter().chain(seconds));
    assert_eq!(seen.last(), Some(&(BEGIN + HOUR + 3 * SECOND)));
}

#[test]
fn clocks_that_differ_by_an_hour_are_not_added_up() {
    let pairs = (0..100).flat_map(|second| [0, HOUR].map(|off| BEGIN + off + second * SECOND));
    assert_eq!(ticks(pairs).last(), Some(&(BEGIN + HOUR + 99 * SECOND)));
}

proptest! {
    #[test]
    fn time_never_runs_backwards(stamps in proptest::collection::vec(
        prop_oneof![any::<u64>(), BEGIN..BEGIN + HOUR, Just(u64::MAX), Just(0)], 0..50)
    ) {
        let seen = ticks(stamps);
        prop_assert!(seen.is_sorted());
        prop_assert!(seen.iter().all(|&time| time <= LATEST));
    }
}
