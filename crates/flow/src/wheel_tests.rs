use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// Runs a wheel as its owner does: true deadlines on the side, refile if early.
fn expire(
    wheel: &mut TimerWheel,
    deadlines: &mut HashMap<u32, Timestamp>,
    now: Timestamp,
) -> Vec<u32> {
    let mut gone = Vec::new();
    wheel.advance(now, usize::MAX, |id| {
        let deadline = deadlines[&id];
        if deadline > now {
            return Some(deadline);
        }
        gone.push(id);
        None
    });
    for id in &gone {
        deadlines.remove(id);
    }
    gone
}

proptest! {
    #[test]
    fn nothing_fires_early_and_nothing_is_more_than_two_ticks_late(
        timeouts in proptest::collection::vec(0u64..2_000_000, 1..60),
        steps in proptest::collection::vec(0u64..50_000, 1..60),
    ) {
        let mut now = Timestamp::from_secs(1_000_000);
        let mut wheel = TimerWheel::new(now);
        let mut deadlines = HashMap::new();
        for (id, &secs) in timeouts.iter().enumerate() {
            let deadline = Timestamp::from_nanos(now.as_nanos() + secs * 1_000_000_000);
            deadlines.insert(id as u32, deadline);
            wheel.insert(id as u32, deadline);
        }
        for step in steps {
            now = Timestamp::from_nanos(now.as_nanos() + step * 1_000_000_000);
            let before = deadlines.clone();
            for id in expire(&mut wheel, &mut deadlines, now) {
                prop_assert!(before[&id] <= now);
            }
            for (id, deadline) in &deadlines {
                prop_assert!(
                    now.as_nanos() < deadline.as_nanos() + (2 << TICK_SHIFT),
                    "entry {id} is overdue"
                );
            }
            prop_assert_eq!(wheel.len(), deadlines.len());
        }
    }
}

#[test]
fn removed_entries_never_fire() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    for id in 0..100 {
        wheel.insert(id, Timestamp::from_secs(u64::from(id)));
    }
    for id in (0..100).step_by(2) {
        wheel.remove(id);
        wheel.remove(id);
    }
    let mut fired = Vec::new();
    wheel.advance(Timestamp::from_secs(1000), usize::MAX, |id| {
        fired.push(id);
        None
    });
    fired.sort_unstable();
    assert_eq!(fired, (0..100).filter(|id| id % 2 == 1).collect::<Vec<_>>());
    assert!(wheel.is_empty());
}

#[test]
fn the_budget_bounds_the_work_and_loses_nothing() {
    let mut wheel = TimerWheel::new(Timestamp::ZERO);
    for id in 0..10 {
        wheel.insert(id, Timestamp::from_secs(1));
    }
    let late = Timestamp::from_secs(100);
    assert_eq!(wheel.advance(late, 4, |_| None), 4);
    assert_eq!(wheel.advance(late, 4, |_| None), 4);
    assert_eq!(wheel.advance(late, 4, |_| None), 2);
    assert!(wheel.is_empty());
}
