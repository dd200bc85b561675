use std::time::Duration;

use super::*;

const SEVEN: BulkId = BulkId(7);

fn progress(done: u64) -> Progress {
    Progress { bulk: SEVEN, done, total: 9 }
}

/// A table of what comes of each state with each input.
fn matrix<S: Copy + std::fmt::Debug, I: Copy + std::fmt::Debug>(
    states: &[S],
    inputs: &[I],
    on: impl Fn(S, I) -> Option<S>,
) -> String {
    let row = |state: &S| {
        let cell = |input: &I| match on(*state, *input) {
            Some(next) => format!("  {input:?}: {}\n", short(&next)),
            None => format!("  {input:?}: out of place\n"),
        };
        format!("{}\n{}", short(state), inputs.iter().map(cell).collect::<String>())
    };
    states.iter().map(row).collect()
}

fn short(state: &impl std::fmt::Debug) -> String {
    format!("{state:?}").replace("Progress { bulk: BulkId(7), ", "{ ").replace("BulkId(7)", "7")
}

#[test]
fn outflow() {
    use OutflowInput::{Apart, Begin, End, Follow, Sent, Unfollow};
    let states = [
        Outflow::Unfollowed,
        Outflow::Asked(SEVEN),
        Outflow::Bulk(progress(2)),
        Outflow::Live(SEVEN),
    ];
    let inputs = [Follow(SEVEN), Follow(BulkId(8)), Unfollow, Begin(9), Sent(1), End, Apart];
    insta::assert_snapshot!(matrix(&states, &inputs, Outflow::on));
}

#[test]
fn inflow() {
    use InflowInput::{Apart, Begin, End, Received, Stop, Together, Want};
    let states = [
        Inflow::Off,
        Inflow::Apart,
        Inflow::Asked(SEVEN),
        Inflow::Filling(progress(2)),
        Inflow::Level(SEVEN),
    ];
    let other = BulkId(6);
    let inputs = [
        Want,
        Stop,
        Together(SEVEN),
        Apart,
        Begin(SEVEN, 9),
        Begin(other, 9),
        Received(SEVEN, 1),
        Received(other, 1),
        End(SEVEN, 2),
        End(SEVEN, 3),
        End(other, 2),
    ];
    insta::assert_snapshot!(matrix(&states, &inputs, Inflow::on));
}

#[test]
fn a_pace_holds_its_rate_and_saves_no_more_than_a_burst() {
    let mut now = Timestamp::from_secs(5);
    let mut pace = Pace::new(now, 10_000);
    let mut sent = 0;
    for _ in 0..1_000 {
        now = now.after(Duration::from_micros(1_050));
        while pace.allowed(now) > 0 {
            pace.spend(now);
            sent += 1;
        }
        assert!(pace.next_turn() > now);
    }
    assert!((10_490..=10_510).contains(&sent), "{sent} records in 1.05 s at 10,000 records/s");
    // After an hour without records there is one burst.
    let later = now.after(Duration::from_secs(3600));
    assert_eq!(pace.allowed(later), BURST_NANOS / 100_000 + 1);
}
