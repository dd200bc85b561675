//! A policy on trial: the device is measured before and under it, and goes back unless that is better
//! or somebody confirms it.

use std::net::IpAddr;
use std::time::Duration;

use host_settings::{Device, Store, busy_time};
use netpolicy::{Figure, Identity, Plan, Policy, Slice, Verdict, judge};
use steer::CpuSet;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::hold::{Asked, Heard, Leave, hold};
use super::probes::Probes;
use super::{Wanted, usage};
use crate::errors::UsageError;
use crate::print::{Align, Output, Table, count, things};
use crate::stop_signals::StopSignals;

/// Slices of the time before, and of the time with the policy.
const SLICES: u32 = 10;
/// Time between two looks whether somebody has confirmed the trial.
const LOOK: Duration = Duration::from_millis(50);
/// Allowed lengths, seconds.
const SECONDS: std::ops::RangeInclusive<u64> = 1..=3600;

/// The length of a trial, such as `60s` or `60`.
pub fn length(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<u64>();
    let seconds = seconds.ok().filter(|seconds| SECONDS.contains(seconds));
    let allowed =
        || format!("allowed: whole seconds from {}s to {}s", SECONDS.start(), SECONDS.end());
    seconds.map(Duration::from_secs).ok_or_else(allowed)
}

/// The end of a trial.
enum End {
    /// The measurements decide.
    Judged(Verdict),
    /// Somebody has confirmed it.
    Confirmed,
    /// A signal of this name.
    Signal(&'static str),
}

/// Tries a policy for some time. An error if it does not stay.
pub fn run(
    wanted: &Wanted,
    skips_refused: bool,
    time: Duration,
    probed: Option<IpAddr>,
    out: &mut Output,
) -> anyhow::Result<()> {
    let (request, store) = (wanted.request(), wanted.place.store());
    if request.policy == Policy::None {
        return Err(UsageError("a trial needs a policy other than none".into()).into());
    }
    let mut session = wanted.place.session()?;
    store.wait_for_keeper(session.device().identity())?;
    let Plan { actions, .. } = session.plan(&request).map_err(usage)?;
    if actions.is_empty() {
        tell!(
            "{}: nothing to write for {}, so nothing to try",
            wanted.place.device,
            request.policy
        );
        return Ok(());
    }
    let online = session.snapshot()?.online();
    let mut meter = Meter::new(session.device(), request.cpus.unwrap_or(online), probed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let device = session.device().identity().clone();
    let trial = Trial { wanted, skips_refused, time, device, store };
    runtime.block_on(trial.run(&mut meter, out))
}

struct Trial<'a> {
    wanted: &'a Wanted,
    skips_refused: bool,
    time: Duration,
    device: Identity,
    store: Store,
}

impl Trial<'_> {
    async fn run(self, meter: &mut Meter, out: &mut Output) -> anyhow::Result<()> {
        let Self { wanted, skips_refused, time, device, store } = self;
        let request = wanted.request();
        let (name, seconds) = (&device.name, things(time.as_secs(), "second"));
        let mut signals = StopSignals::new()?;
        tell!("{name}: measured for {seconds} as it is");
        let before = tokio::select! {
            before = meter.slices(time, || false) => before?,
            signal = signals.next() => anyhow::bail!("{signal}: the trial has not begun"),
        };
        // Another policy may apply by now.
        let former = wanted.place.session()?.request().clone();
        let state = wanted.place.state.clone();
        let asked = Asked {
            device: name.clone(),
            state,
            request: request.clone(),
            skips_refused,
            waits: false,
            then: (former.policy != Policy::None).then_some(former),
            node: None,
        };
        let (is_kept, mut after, mut end) = (Notify::new(), None, None);
        let hear = |heard: Heard<'_>| {
            tell!("{}", heard.line());
            if matches!(heard, Heard::State(_)) {
                is_kept.notify_one();
            }
        };
        let stop = async {
            tokio::select! {
                signal = signals.next() => {
                    end = Some(Ok(End::Signal(signal)));
                    return Leave::PutBack;
                }
                () = is_kept.notified() => {}
            }
            let measured = async {
                tell!("{name}: tried for {seconds}; `stateway policy confirm {name}` keeps it");
                meter.slices(time, || !store.is_tried(&device)).await
            };
            let ended = tokio::select! {
                slices = measured => slices.map(|slices| {
                    let verdict = judge(request.policy, &before, &slices);
                    after = Some(slices);
                    if store.confirm_trial(&device) { End::Judged(verdict) } else { End::Confirmed }
                }),
                signal = signals.next() => Ok(End::Signal(signal)),
            };
            let stays = matches!(ended, Ok(End::Confirmed | End::Judged(Verdict::Better(_))));
            end = Some(ended);
            if stays { Leave::Keep } else { Leave::PutBack }
        };
        store.begin_trial(&device)?;
        let held = hold(&asked, hear, stop).await;
        store.confirm_trial(&device);
        held?;
        if let Some(after) = &after {
            table(&before, after).print(out)?;
            out.flush()?;
        }
        let policy = request.policy;
        match end {
            Some(Ok(End::Confirmed)) => tell!("{name}: {policy} stays: it was confirmed"),
            Some(Ok(End::Judged(Verdict::Better(why)))) => tell!("{name}: {policy} stays: {why}"),
            Some(Ok(End::Judged(Verdict::NotBetter(why)))) => {
                anyhow::bail!("{name}: {policy} was taken back: {why}")
            }
            Some(Ok(End::Signal(signal))) => {
                anyhow::bail!("{name}: {policy} was taken back: {signal}")
            }
            Some(Err(error)) => return Err(error.context(format!("{policy} was taken back"))),
            None => {}
        }
        Ok(())
    }
}

/// Measures a device.
struct Meter {
    device: Device,
    cpus: CpuSet,
    probes: Option<Probes>,
}

impl Meter {
    fn new(device: &Device, cpus: CpuSet, probed: Option<IpAddr>) -> anyhow::Result<Self> {
        let device = Device::open(&device.identity().name)?;
        let probes = probed.map(Probes::start).transpose()?;
        Ok(Self { device, cpus, probes })
    }

    /// Measures until the time is over, or until `ends`.
    async fn slices(
        &mut self,
        time: Duration,
        ends: impl Fn() -> bool,
    ) -> anyhow::Result<Vec<Slice>> {
        let (begin, mut slices) = (Instant::now(), Vec::new());
        let mut last = self.reading()?;
        for number in 1..=SLICES {
            let end = begin + time * number / SLICES;
            while Instant::now() < end {
                if ends() {
                    return Ok(slices);
                }
                sleep_until(end.min(Instant::now() + LOOK)).await;
            }
            let now = self.reading()?;
            slices.push(Slice {
                time: (now.at - last.at).as_nanos() as u64,
                packets: now.packets.saturating_sub(last.packets),
                lost: now.lost.saturating_sub(last.lost),
                busy: now.busy.saturating_sub(last.busy),
                delay: now.delay,
            });
            last = now;
        }
        Ok(slices)
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let [packets, lost] = self.device.packets()?;
        let delay = self.probes.as_ref().and_then(Probes::take);
        Ok(Reading { at: Instant::now(), packets, lost, busy: busy_time(&self.cpus)?, delay })
    }
}

/// Counters at one moment, and the delay of the probes since the last.
struct Reading {
    at: Instant,
    packets: u64,
    lost: u64,
    busy: u64,
    delay: Option<u64>,
}

fn table(before: &[Slice], after: &[Slice]) -> Table {
    let columns = [("", Align::Left), ("before", Align::Right), ("with the policy", Align::Right)];
    let mut table = Table::new(&columns);
    for (name, of) in [("packets", (|it| it.packets) as fn(&Slice) -> u64), ("lost", |it| it.lost)]
    {
        let sums = [before, after].map(|slices| count(slices.iter().map(of).sum()));
        table.row([name.to_owned()].into_iter().chain(sums));
    }
    for figure in Figure::ALL {
        let spread = |slices| figure.spread(slices).map_or("-".to_owned(), |it| it.to_string());
        table.row([figure.name().to_owned(), spread(before), spread(after)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_whole_seconds() {
        assert_eq!(length("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(length("1"), Ok(Duration::from_secs(1)));
        for bad in ["0s", "3601", "1m", "", "1.5s"] {
            assert_eq!(
                length(bad).unwrap_err(),
                "allowed: whole seconds from 1s to 3600s",
                "{bad}"
            );
        }
    }
}
