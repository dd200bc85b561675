use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

/// Runs a wheel as its owner does: with true deadlines, filing an entry again if it comes
/// early.
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

/// Deadlines up to the reach of the wheel, in seconds: 194 days less a round of
/// the level below, because the present slot may be nearly over.
const REACH: u64 = 16_000_000;

proptest! {
    /// However far time jumps, a call looks at no more entries than its budget, an entry is
    /// looked at once for each level at most, and further calls find all expired entries.
    #[test]
    fn no_jump_takes_more_than_the_budget(
        timeouts in proptest::collection::vec(0u64..REACH, 1..60),
        jumps in proptest::collection::vec(0u64..2 * REACH, 1..6),
        budget in 1usize..8,
        more in proptest::collection::vec(0u64..REACH, 6),
    ) {
        let mut now = Timestamp::from_secs(1_000_000);
        let mut wheel = TimerWheel::new(now);
        let mut deadlines = HashMap::new();
        let mut looks: HashMap<u32, usize> = HashMap::new();
        let mut next_id = timeouts.len() as u32;
        for (id, &secs) in (0..).zip(&timeouts) {
            let deadline = now.after(Duration::from_secs(secs));
            deadlines.insert(id, deadline);
            wheel.insert(id, deadline);
        }
        for (jump, secs) in jumps.into_iter().zip(more) {
            now = now.after(Duration::from_secs(jump));
            for call in 0.. {
                let mut calls = 0;
                let looked_at = wheel.advance(now, budget, |id| {
                    calls += 1;
                    *looks.entry(id).or_default() += 1;
                    match deadlines[&id] {
                        deadline if deadline > now => Some(deadline),
                        _ => {
                            deadlines.remove(&id);
                            None
                        }
                    }
                });
                prop_assert_eq!(looked_at, calls);
                prop_assert!(looked_at <= budget);
                if looked_at < budget {
                    break;
                }
                if call == 0 {
                    // A new entry while the wheel is still behind.
                    let deadline = now.after(Duration::from_secs(secs));
                    deadlines.insert(next_id, deadline);
                    wheel.insert(next_id, deadline);
                    next_id += 1;
                }
            }
            for (id, deadline) in &deadlines {
                prop_assert!(now.as_nanos() < deadline.as_nanos() + (2 << TICK_SHIFT), "{id}");
            }
            prop_assert_eq!(wheel.len(), deadlines.len());
        }
        for id in 0..timeouts.len() as u32 {
            prop_assert!(looks.get(&id).is_none_or(|&looks| looks <= LEVELS), "{looks:?}");
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
