//! More frames than the gateway can carry, and probes among them: MIX beside NONE.

use std::path::Path;
use std::time::Duration;

use bench::Spread;
use engine::Policy;
use lab::{Lab, OpenLoopReport, OpenLoopSpec, open_loop};
use serde_json::{Value, json};

/// Offered frames over those that the gateway can carry.
const OVERLOAD: f64 = 1.2;
/// Where the sender does not come that far, the figures say nothing.
const LEAST_OVERLOAD: f64 = 1.1;
/// Probes a second.
const PROBES: u32 = 1000;
/// Frames a second of the first step towards the capacity, and how much more each following one has.
const FIRST_STEP: f64 = 20_000.0;
const STEP: f64 = 1.25;
/// Steps at most: the last one has some 2 million frames a second.
const STEPS: u32 = 21;
/// The part of the frames that has to arrive in a step within the capacity.
const WITHIN: f64 = 0.97;
/// Steps beyond the capacity, one behind the other, that end the search. One alone may be chance.
const STEPS_BEYOND: u32 = 2;
/// Slots of a receive queue. Until they are full, an overload loses nothing.
const QUEUE_SLOTS: f64 = 8192.0;
/// Longest time until they are.
const LONGEST_WARM_UP: Duration = Duration::from_secs(3);

/// Time of each step.
const STEP_TIME: Duration = Duration::from_millis(250);

/// The reports of one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub none: OpenLoopReport,
    pub mix: OpenLoopReport,
}

/// All rounds.
#[derive(Clone, Debug)]
pub struct Overload {
    /// Frames a second that the gateway can carry without a policy.
    pub capacity: f64,
    pub rounds: Vec<Round>,
}

/// A gateway without a policy and one with MIX.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    pub none: &'a Lab,
    pub mix: &'a Lab,
}

impl<'a> Pair<'a> {
    /// The gateway that is to have a policy.
    pub fn of(self, policy: Policy) -> &'a Lab {
        if policy == Policy::Mix { self.mix } else { self.none }
    }
}

/// The highest rate that arrives, while more and more is offered.
pub fn capacity(lab: &Lab, binary: &Path) -> anyhow::Result<f64> {
    let (mut best, mut rate, mut beyond) = (0_f64, FIRST_STEP, 0);
    for _ in 0..STEPS {
        let warm_up = STEP_TIME;
        let report = open_loop(lab, &spec(binary, rate, warm_up, STEP_TIME))?;
        best = best.max(report.carried());
        beyond = if report.carried() < rate * WITHIN { beyond + 1 } else { 0 };
        if beyond == STEPS_BEYOND {
            break;
        }
        rate *= STEP;
    }
    Ok(best)
}

/// Offers both gateways more than they can carry, one after the other.
pub fn round(
    Pair { none, mix }: Pair<'_>,
    binary: &Path,
    capacity: f64,
    time: Duration,
) -> anyhow::Result<Round> {
    let full = QUEUE_SLOTS / (capacity * (OVERLOAD - 1.0)).max(1.0);
    let warm_up = Duration::from_secs_f64(1.5 * full).min(LONGEST_WARM_UP);
    let spec = spec(binary, capacity * OVERLOAD, warm_up, time);
    Ok(Round { none: open_loop(none, &spec)?, mix: open_loop(mix, &spec)? })
}

fn spec(binary: &Path, rate: f64, warm_up: Duration, time: Duration) -> OpenLoopSpec {
    let program = binary.to_path_buf();
    OpenLoopSpec { program, rate: rate.max(1.0) as u32, probes: PROBES, warm_up, time }
}

impl Overload {
    fn spread(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<Spread> {
        let figures: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        (!figures.is_empty()).then(|| Spread::of(figures))
    }

    /// The share that the thread of both ends had of its CPU in the worst turn.
    pub fn cpu_share(&self) -> f64 {
        let shares = self.rounds.iter().flat_map(|it| [it.none.cpu_share, it.mix.cpu_share]);
        shares.fold(1.0, f64::min)
    }

    /// The figures by which the two are compared; `None` if no round was an overload.
    pub fn summary(&self) -> [(&'static str, Option<Spread>); 2] {
        let is_more = |it: &OpenLoopReport| it.offered() >= self.capacity * LEAST_OVERLOAD;
        let is_too_much = |it: &OpenLoopReport| it.carried() < it.offered() * WITHIN;
        let valid = |it: &Round| is_more(&it.none) && is_more(&it.mix) && is_too_much(&it.none);
        let of = |figure: &dyn Fn(&Round) -> Option<f64>| {
            self.spread(|round| figure(round).filter(|_| valid(round)))
        };
        [
            ("mix_probe_p99_ratio", of(&|it| Some(it.mix.p99_us? / it.none.p99_us?))),
            ("mix_bulk_loss", of(&|it| Some(1.0 - it.mix.carried() / it.none.carried()))),
        ]
    }

    pub fn to_json(&self) -> Value {
        let one = |report: fn(&Round) -> OpenLoopReport| {
            let of = |figure: &dyn Fn(OpenLoopReport) -> Option<f64>| {
                self.spread(|round| figure(report(round)))
            };
            json!({
                "offered_over_capacity": of(&|it| Some(it.offered() / self.capacity)),
                "carried_mpps": of(&|it| Some(it.carried() / 1e6)),
                "probe_p50_us": of(&|it| it.p50_us),
                "probe_p99_us": of(&|it| it.p99_us),
                "probe_loss": of(&|it| Some(it.probe_loss())),
            })
        };
        json!({
            "capacity_mpps": self.capacity / 1e6,
            "probes_per_second": PROBES,
            "none": one(|round| round.none),
            "mix": one(|round| round.mix),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(offered: f64, carried: f64, p99_us: f64) -> OpenLoopReport {
        OpenLoopReport {
            seconds: 1.0,
            sent: offered,
            delivered: carried,
            p99_us: Some(p99_us),
            ..OpenLoopReport::default()
        }
    }

    #[test]
    fn rounds_without_an_overload_say_nothing() {
        let figures = |offered| {
            let (none, mix) = (report(offered, 100.0, 800.0), report(offered, 96.0, 80.0));
            let overload = Overload { capacity: 100.0, rounds: vec![Round { none, mix }] };
            overload.summary().map(|(_, spread)| spread.map(|it| (it.median * 1000.0).round()))
        };
        assert_eq!(figures(120.0), [Some(100.0), Some(40.0)]);
        assert_eq!(figures(105.0), [None, None]);
        let (none, mix) = (report(120.0, 120.0, 1.0), report(120.0, 120.0, 1.0));
        let overload = Overload { capacity: 100.0, rounds: vec![Round { none, mix }] };
        assert!(overload.summary().iter().all(|(_, spread)| spread.is_none()));
    }
}
