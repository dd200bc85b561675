use proptest::prelude::*;

use super::*;

/// A ladder under traffic.
struct Loaded {
    ladder: Ladder,
    now: Timestamp,
}

impl Loaded {
    fn new(aim: Aim, longest: Duration) -> Self {
        Self { ladder: Ladder::new(aim, longest), now: Timestamp::from_secs(1) }
    }

    /// Lets traffic come for some epochs; `rates` gives packets and batches a second at each rung.
    fn climb(&mut self, epochs: u32, rates: impl Fn(Duration) -> (u64, u64)) {
        let end = self.now.after(EPOCH * epochs);
        while self.now < end {
            let (packets, batches) = rates(self.rung());
            self.now = self.now.after(Duration::from_nanos(1_000_000_000 / batches));
            self.ladder.note(self.now, (packets / batches) as u32);
        }
    }

    fn rung(&self) -> Duration {
        self.ladder.rung()
    }
}

fn us(rung: Duration) -> u64 {
    rung.as_micros() as u64
}

#[test]
fn more_packets_or_fewer_batches_lead_to_the_top() {
    for top in [64, 100, 256, 1000] {
        let top = Duration::from_micros(top);
        let mut ladder = Loaded::new(Aim::LessWork, top);
        ladder.climb(200, |rung| (1_000_000, 100_000 / (1 + us(rung))));
        assert_eq!(ladder.rung(), top);
        ladder.climb(100, |rung| (1_000_000, 100_000 / (1 + us(rung))));
        assert_eq!(ladder.rung(), top, "and it stays there");
    }
}

#[test]
fn fewer_packets_lead_back() {
    // A closed loop in which nothing is under way while packets gather.
    let mut ladder = Loaded::new(Aim::LessWork, Duration::from_micros(64));
    ladder.climb(20, |rung| (16_000_000 / (16 + us(rung)), 1_000_000 / (16 + us(rung))));
    assert_eq!(ladder.rung(), Duration::ZERO);
}

#[test]
fn the_best_rung_may_lie_between() {
    let mut ladder = Loaded::new(Aim::LessWork, Duration::from_micros(256));
    ladder.climb(30, |rung| {
        let packets = if us(rung) > 32 { 500_000 } else { 1_000_000 };
        (packets, 100_000 / (1 + us(rung)))
    });
    assert_eq!(ladder.rung(), Duration::from_micros(32));
}

#[test]
fn packets_that_never_meet_do_not_wait() {
    let mut ladder = Loaded::new(Aim::LessWork, Duration::from_micros(256));
    ladder.climb(30, |_| (4000, 4000));
    assert_eq!(ladder.rung(), Duration::ZERO);
}

#[test]
fn the_search_begins_anew_when_the_traffic_has_gone() {
    let mut ladder = Loaded::new(Aim::LessWork, Duration::from_micros(64));
    ladder.climb(20, |rung| (1_000_000, 100_000 / (1 + us(rung))));
    ladder.climb(200, |_| (10, 10));
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
        let (mut ladder, mut now) = (Ladder::new(Aim::LessWork, top), Timestamp::ZERO);
        for (gap, packets) in turns {
            now = now.after(Duration::from_nanos(gap));
            ladder.note(now, packets);
            prop_assert!(ladder.rung() <= top);
        }
    }
}

#[test]
fn a_shorter_delay_needs_more_packets_and_not_fewer_batches() {
    // Packets come at their own pace: to gather them only makes them wait.
    let mut ladder = Loaded::new(Aim::LessDelay, Duration::from_micros(64));
    ladder.climb(100, |rung| (1_000_000, 100_000 / (1 + us(rung))));
    assert_eq!(ladder.rung(), Duration::ZERO);
    // A closed loop in which packets cost less together.
    ladder.climb(100, |rung| (100_000 + 10_000 * us(rung).min(32), 50_000 / (1 + us(rung))));
    assert_eq!(ladder.rung(), Duration::from_micros(32));
    // The load becomes one of the first kind.
    ladder.climb(100, |rung| (1_000_000, 100_000 / (1 + us(rung))));
    assert_eq!(ladder.rung(), Duration::ZERO);
}
