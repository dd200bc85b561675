use proptest::prelude::*;

use super::*;

/// Lets traffic come for some epochs; `rates` gives packets and batches a second at each rung.
fn climb(ladder: &mut Ladder, epochs: u32, rates: impl Fn(Duration) -> (u64, u64)) {
    let mut now = Timestamp::from_secs(1);
    let end = now.after(EPOCH * epochs);
    while now < end {
        let (packets, batches) = rates(ladder.rung());
        now = now.after(Duration::from_nanos(1_000_000_000 / batches));
        ladder.note(now, (packets / batches) as u32);
    }
}

fn us(rung: Duration) -> u64 {
    rung.as_micros() as u64
}

#[test]
fn more_packets_or_fewer_batches_lead_to_the_top() {
    for top in [64, 100, 256, 1000] {
        let top = Duration::from_micros(top);
        let mut ladder = Ladder::new(top);
        climb(&mut ladder, 20, |rung| (1_000_000, 100_000 / (1 + us(rung))));
        assert_eq!(ladder.rung(), top);
        climb(&mut ladder, 100, |rung| (1_000_000, 100_000 / (1 + us(rung))));
        assert_eq!(ladder.rung(), top, "and it stays there");
    }
}

#[test]
fn fewer_packets_lead_back() {
    // A closed loop in which nothing is under way while packets gather.
    let mut ladder = Ladder::new(Duration::from_micros(64));
    climb(&mut ladder, 20, |rung| (16_000_000 / (16 + us(rung)), 1_000_000 / (16 + us(rung))));
    assert_eq!(ladder.rung(), Duration::ZERO);
}

#[test]
fn the_best_rung_may_lie_between() {
    let mut ladder = Ladder::new(Duration::from_micros(256));
    climb(&mut ladder, 30, |rung| {
        let packets = if us(rung) > 32 { 500_000 } else { 1_000_000 };
        (packets, 100_000 / (1 + us(rung)))
    });
    assert_eq!(ladder.rung(), Duration::from_micros(32));
}

#[test]
fn packets_that_never_meet_do_not_wait() {
    let mut ladder = Ladder::new(Duration::from_micros(256));
    climb(&mut ladder, 30, |_| (4000, 4000));
    assert_eq!(ladder.rung(), Duration::ZERO);
}

#[test]
fn the_search_begins_anew_when_the_traffic_has_gone() {
    let mut ladder = Ladder::new(Duration::from_micros(64));
    climb(&mut ladder, 20, |rung| (1_000_000, 100_000 / (1 + us(rung))));
    climb(&mut ladder, 200, |_| (10, 10));
    assert_eq!(ladder.rung(), Duration::ZERO);
}

proptest! {
    /// Whatever comes, packets gather no longer than they may.
    #[test]
    fn no_rung_is_above_the_top(
        top in 0_u64..1000,
        turns in prop::collection::vec((1_u64..3_000_000, 1_u32..300), 1..3000),
    ) {
        let top = Duration::from_micros(top);
        let (mut ladder, mut now) = (Ladder::new(top), Timestamp::ZERO);
        for (gap, packets) in turns {
            now = now.after(Duration::from_nanos(gap));
            ladder.note(now, packets);
            prop_assert!(ladder.rung() <= top);
        }
    }
}
