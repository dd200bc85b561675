//! The comparison of a device without a policy and with it: is it better?

use std::fmt;

use crate::policy::Policy;

/// Fewest slices of each time that are compared.
const MIN_SLICES: usize = 5;
/// Fewest packets of each time for which CPU time is compared.
const MIN_PACKETS: u64 = 1000;
/// A difference is clear if it goes one way in this share of all pairs of slices.
const CLEAR: f64 = 0.9;
/// Loads are alike if none is more than so many times the other.
const MOST_UNLIKE: f64 = 2.0;
/// More lost packets for each packet than this are worse.
const TOLERATED_LOSS: f64 = 1e-4;

/// The figures of a device for a slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Length, ns.
    pub time: u64,
    /// Packets that the device has received and sent.
    pub packets: u64,
    /// Packets that it has lost.
    pub lost: u64,
    /// Time in which the CPUs that serve it were not idle, ns, summed over these.
    pub busy: u64,
    /// The middle one of the delays of probes, ns; `None` without probes.
    pub delay: Option<u64>,
}

/// A figure that a policy may make smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// CPU time for each packet.
    CpuTime,
    /// Delay of probes.
    Delay,
}

/// The middle of some values, and the middles of both halves. All are times, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    low: f64,
    middle: f64,
    high: f64,
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The policy is better, for this reason.
    Better(String),
    /// It is not, or nobody can tell, for this reason.
    NotBetter(String),
}

/// One figure before and under a policy.
struct Comparison {
    figure: Figure,
    before: Spread,
    after: Spread,
    /// The share of all pairs of slices in which it is lower under the policy.
    lower: f64,
}

impl Figure {
    /// Both.
    pub const ALL: [Self; 2] = [Self::CpuTime, Self::Delay];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CpuTime => "CPU time for each packet",
            Self::Delay => "delay of probes",
        }
    }

    /// The figures that a policy is to make smaller.
    const fn aims(policy: Policy) -> &'static [Self] {
        match policy {
            Policy::None => &[],
            Policy::Bulk | Policy::Cpu => &[Self::CpuTime],
            Policy::Latency => &[Self::Delay],
            Policy::Mix => &Self::ALL,
        }
    }

    fn values(self, slices: &[Slice]) -> Vec<f64> {
        let value = |slice: &Slice| match self {
            Self::CpuTime => (slice.packets > 0).then(|| slice.busy as f64 / slice.packets as f64),
            Self::Delay => slice.delay.map(|delay| delay as f64),
        };
        let packets: u64 = slices.iter().map(|slice| slice.packets).sum();
        if self == Self::CpuTime && packets < MIN_PACKETS {
            return Vec::new();
        }
        let mut values: Vec<f64> = slices.iter().filter_map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Its spread in some slices; `None` if too few have it.
    pub fn spread(self, slices: &[Slice]) -> Option<Spread> {
        let values = self.values(slices);
        let at = |quarters: usize| values[(values.len() - 1) * quarters / 4];
        let is_enough = values.len() >= MIN_SLICES;
        is_enough.then(|| Spread { low: at(1), middle: at(2), high: at(3) })
    }

    fn compare(self, before: &[Slice], after: &[Slice]) -> Option<Comparison> {
        let spreads = self.spread(before).zip(self.spread(after));
        let (then, now) = (self.values(before), self.values(after));
        let pairs = then.iter().flat_map(|then| now.iter().map(move |now| (then, now)));
        let lower = pairs.map(|(then, now)| match now.total_cmp(then) {
            std::cmp::Ordering::Less => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Greater => 0.0,
        });
        let lower = lower.sum::<f64>() / (then.len() * now.len()) as f64;
        spreads.map(|(before, after)| Comparison { figure: self, before, after, lower })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_short = self.middle < 10_000.0;
        let (divisor, unit, digits) = if is_short { (1.0, "ns", 0) } else { (1000.0, "us", 1) };
        let [low, middle, high] = [self.low, self.middle, self.high].map(|it| it / divisor);
        write!(f, "{middle:.digits$} {unit} ({low:.digits$} to {high:.digits$})")
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { figure, before, after, lower } = self;
        let (name, percent) = (figure.name(), lower * 100.0);
        write!(
            f,
            "{name}: {before} before, {after} with the policy, lower in {percent:.0} % of all pairs"
        )
    }
}

/// Packets, lost ones and time of slices.
fn sums(slices: &[Slice]) -> [f64; 3] {
    let sum = |of: fn(&Slice) -> u64| slices.iter().map(of).sum::<u64>() as f64;
    [sum(|it| it.packets), sum(|it| it.lost), sum(|it| it.time)]
}

/// Compares a device before and under a policy. The policy is better if a figure that it aims at is
/// clearly lower, none of these is clearly higher, and no more packets are lost.
pub fn judge(policy: Policy, before: &[Slice], after: &[Slice]) -> Verdict {
    let [(packets, lost, time), (packets_now, lost_now, time_now)] =
        [before, after].map(|slices| sums(slices).into());
    if packets == 0.0 || packets_now == 0.0 {
        return Verdict::NotBetter("there were no packets to measure".to_owned());
    }
    let share = |lost: f64, packets: f64| lost / (lost + packets);
    if share(lost_now, packets_now) > share(lost, packets) + TOLERATED_LOSS {
        return Verdict::NotBetter(format!(
            "it loses more packets: {lost} of {} before, {lost_now} of {} with the policy",
            packets + lost,
            packets_now + lost_now
        ));
    }
    let [rate, rate_now] = [packets / time, packets_now / time_now].map(|it| it * 1e9);
    if rate.max(rate_now) > MOST_UNLIKE * rate.min(rate_now) {
        return Verdict::NotBetter(format!(
            "the loads are too unlike to compare: {rate:.0} packets/s before, {rate_now:.0} with the \
             policy"
        ));
    }
    let aims = Figure::aims(policy).iter().filter_map(|it| it.compare(before, after));
    let aims: Vec<Comparison> = aims.collect();
    if let Some(worse) = aims.iter().find(|it| it.lower <= 1.0 - CLEAR) {
        return Verdict::NotBetter(format!("it is worse: {worse}"));
    }
    match aims.iter().max_by(|a, b| a.lower.total_cmp(&b.lower)) {
        Some(best) if best.lower >= CLEAR => Verdict::Better(best.to_string()),
        Some(best) => Verdict::NotBetter(format!("there is no clear difference: {best}")),
        None => {
            let names: Vec<&str> = Figure::aims(policy).iter().map(|it| it.name()).collect();
            Verdict::NotBetter(format!("its aim was not measured: {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten slices with this CPU time for each packet and this delay, a little up and down.
    fn slices(cpu_time: u64, delay: u64) -> Vec<Slice> {
        let slice = |at: u64| Slice {
            time: 1_000_000_000,
            packets: 1000,
            lost: 0,
            busy: 1000 * (cpu_time + at * cpu_time / 100),
            delay: (delay > 0).then_some(delay + at * delay / 100),
        };
        (0..10).map(slice).collect()
    }

    fn reason(policy: Policy, before: &[Slice], after: &[Slice]) -> String {
        match judge(policy, before, after) {
            Verdict::Better(reason) => format!("better: {reason}"),
            Verdict::NotBetter(reason) => reason,
        }
    }

    #[test]
    fn a_policy_is_better_only_if_its_aim_is_clearly_lower() {
        let before = slices(800, 100_000);
        assert_eq!(
            reason(Policy::Cpu, &before, &slices(600, 400_000)),
            "better: CPU time for each packet: 832 ns (816 to 848) before, 624 ns (612 to 636) with \
             the policy, lower in 100 % of all pairs"
        );
        let slower = reason(Policy::Latency, &before, &slices(600, 400_000));
        assert!(slower.starts_with("it is worse: delay of probes: 104.0 us"), "{slower}");
        let faster = reason(Policy::Latency, &before, &slices(900, 50_000));
        assert!(faster.starts_with("better: delay of probes"), "{faster}");
        for policy in [Policy::Bulk, Policy::Latency, Policy::Mix] {
            let same = reason(policy, &before, &before);
            assert!(same.starts_with("there is no clear difference"), "{same}");
        }
        // One aim of a mix may not be paid by the other one.
        let paid = reason(Policy::Mix, &before, &slices(600, 400_000));
        assert!(paid.starts_with("it is worse: delay"), "{paid}");
        let both = reason(Policy::Mix, &before, &slices(600, 100_000));
        assert!(both.starts_with("better: CPU time"), "{both}");
    }

    #[test]
    fn lost_packets_and_unlike_loads_are_never_better() {
        let (before, better) = (slices(800, 0), slices(600, 0));
        let mut losing = better.clone();
        losing[3].lost = 2;
        assert_eq!(
            reason(Policy::Cpu, &before, &losing),
            "it loses more packets: 0 of 10000 before, 2 of 10002 with the policy"
        );
        let mut fewer = better.clone();
        fewer.iter_mut().for_each(|it| it.packets = 400);
        assert_eq!(
            reason(Policy::Cpu, &before, &fewer),
            "the loads are too unlike to compare: 1000 packets/s before, 400 with the policy"
        );
        let silent = vec![Slice { time: 1, ..Slice::default() }; 10];
        assert_eq!(reason(Policy::Cpu, &silent, &better), "there were no packets to measure");
        assert_eq!(reason(Policy::Cpu, &before, &[]), "there were no packets to measure");
    }

    #[test]
    fn an_aim_that_was_not_measured_is_named() {
        let (before, after) = (slices(800, 0), slices(600, 0));
        let unknown = reason(Policy::Latency, &before, &after);
        assert_eq!(unknown, "its aim was not measured: delay of probes");
        let few = reason(Policy::Cpu, &before[..4], &after[..4]);
        assert_eq!(few, "its aim was not measured: CPU time for each packet");
        assert!(reason(Policy::Mix, &before, &after).starts_with("better: CPU time"));
    }
}
