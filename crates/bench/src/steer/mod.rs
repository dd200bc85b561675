//! Receive packet steering: the experiment of 2009 in memory.
//!
//! 700 TCP connections carry request and response of one byte, one at a time, as netperf's TCP_RR
//! does. Every packet of both directions arrives by the same receive queue. Variants: one worker;
//! the queue of one worker steered over two; a queue for each of two workers, whose packets arrive
//! at the owner of their flow. The workers, rings and doorbells are those of the gateway, on
//! threads of their own. Only the ends of the connections are not real (`closed_loop`).
//!
//! Each request costs the owner of its flow a given amount of work, which stands for the stack and
//! the server of the experiment (`stack`). The report also has the figures without it.
//!
//! Rates are per second of CPU time of the worker that had most of it. On a quiet machine this is
//! elapsed time, because a worker with a queue to poll never sleeps.

mod closed_loop;
mod handoff;
mod report;
mod stack;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::{Config, Gateway, PortSetup, Settings, WorkerCount};
use flow::{HashKey, Zone};
use netio::cpu;
use steer::{SteeringConfig, SteeringHasher};

use self::closed_loop::{Loop, connect};
pub use self::report::{Level, Report};
use self::stack::Stack;
use crate::measure::{self, Schedule};
use crate::traffic::{Pen, Segment};
use crate::{Error, Options};

/// Connections.
const FLOWS: u16 = 700;
/// Work for each request in the figures with agreed keys, in nanoseconds: between nothing and the
/// need of the experiment's machines (7000 and more).
const STACK_NS: u32 = 3000;
/// All amounts of work that are measured.
const STACKS_NS: [u32; 4] = [0, 1000, STACK_NS, 7000];
/// Packets of a flow on their way at once, in runs that only test their order.
const WINDOW: u16 = 8;
/// The longest wait for the last packets to come back.
const PATIENCE: Duration = Duration::from_secs(10);

/// One way to use workers and queues.
#[derive(Clone, Copy, Debug)]
struct Variant {
    key: &'static str,
    workers: usize,
    queues: usize,
}

const VARIANTS: [Variant; 3] = [
    Variant { key: "one_worker", workers: 1, queues: 1 },
    Variant { key: "one_queue_steered", workers: 2, queues: 1 },
    Variant { key: "queue_per_worker", workers: 2, queues: 2 },
];

/// The result of one turn of a variant.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// Transactions per second.
    rate: f64,
    /// Number of CPUs that were busy.
    cpus: f64,
    /// CPU time over elapsed time of the busiest worker.
    share: f64,
    reordered: u64,
    /// Packets that did not come back or were skipped.
    lost: u64,
}

/// The work of all workers up to a moment.
struct Snapshot {
    transactions: u64,
    cpu_ns: Vec<u64>,
    at: Instant,
}

impl Snapshot {
    fn of(control: &Loop) -> Self {
        let tallies = || control.tallies.iter();
        Self {
            transactions: tallies().map(|tally| get(&tally.transactions)).sum(),
            cpu_ns: tallies().map(|tally| get(&tally.cpu_ns)).collect(),
            at: Instant::now(),
        }
    }

    fn since(&self, earlier: &Self) -> Outcome {
        let used = self.cpu_ns.iter().zip(&earlier.cpu_ns).map(|(now, then)| now - then);
        let most = used.clone().max().unwrap_or(0).max(1) as f64;
        Outcome {
            rate: (self.transactions - earlier.transactions) as f64 * 1e9 / most,
            cpus: used.sum::<u64>() as f64 / most,
            share: (most / (self.at - earlier.at).as_nanos().max(1) as f64).min(1.0),
            ..Outcome::default()
        }
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Runs a gateway in the loop for `time`.
fn turn(
    variant: Variant,
    window: u16,
    stack: Stack,
    cpus: &[usize],
    time: Duration,
) -> Result<Outcome, Error> {
    let (mut control, input, output) =
        connect(FLOWS, window, variant.queues, variant.workers, stack);
    let config = configuration(variant, window);
    let ports = vec![
        PortSetup { rx_queues: variant.queues, ..PortSetup::new("in", input) },
        PortSetup { rx_queues: 0, ..PortSetup::new("out", output) },
    ];
    let hasher = SteeringHasher::new(SteeringConfig {
        kind: config.hash,
        key: config.secret,
        buckets: config.buckets,
        fragments: config.fragments,
        tunnels: config.tunnels,
    });
    let usable = cpus.to_vec();
    let gateway = Gateway::start_on(config, ports, Box::new(move || usable.clone()))?;
    sow(&mut control, &gateway, &hasher, window)?;
    std::thread::sleep(time / 4);
    let before = Snapshot::of(&control);
    std::thread::sleep(time);
    let mut after = Snapshot::of(&control);
    // Other programs may have had the CPUs all the time.
    let deadline = Instant::now() + PATIENCE;
    while after.transactions == before.transactions && Instant::now() < deadline {
        std::thread::sleep(time);
        after = Snapshot::of(&control);
    }
    let mut outcome = after.since(&before);
    control.over.store(true, Ordering::Relaxed);
    let sent = || control.injected.iter().map(|count| get(count)).sum::<u64>();
    let back = || control.tallies.iter().map(|tally| get(&tally.returned)).sum::<u64>();
    let deadline = Instant::now() + PATIENCE;
    while back() != sent() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    gateway.stop()?;
    outcome.reordered = control.tallies.iter().map(|tally| get(&tally.reordered)).sum();
    outcome.lost =
        sent() - back() + control.tallies.iter().map(|tally| get(&tally.skipped)).sum::<u64>();
    Ok(outcome)
}

fn configuration(variant: Variant, window: u16) -> Config {
    let mut settings = Settings::default();
    // In the experiment every flow has one packet on its way, and the default backlog takes them
    // all. With more packets it must be larger, because a backlog that refuses packets is not the
    // subject.
    let backlog = u64::from(FLOWS) * u64::from(window);
    if window > 1 {
        // Within the range of the tunable, so it can not be refused.
        let _ = settings.set("netdev_max_backlog", backlog);
    }
    let mut config = Config::new(HashKey(0x7374_6565_7269_6e67, 0x6578_7065_7269_6d65));
    config.workers = WorkerCount::Fixed(variant.workers as u16);
    config.settings = settings;
    config
}

/// Starts every flow at its queue.
fn sow(
    control: &mut Loop,
    gateway: &Gateway,
    hasher: &SteeringHasher,
    window: u16,
) -> Result<(), Error> {
    let pen = Pen::new([1, 1]);
    let buckets = gateway.buckets().map_err(engine::SteerError::from)?;
    for flow in 0..FLOWS {
        let network = pen.headers(&Segment::handshake(flow.into())[0]);
        let bucket = hasher.steer(&network, Zone::default(), None).bucket();
        // Queue n is polled by worker n.
        let owner = buckets[bucket.index()].worker.index();
        let queue = owner % control.seeds.len();
        for _ in 0..window {
            // The ring has a place for each.
            let _ = control.seeds[queue].push(flow);
        }
    }
    Ok(())
}

/// Measures steering in half a minute, or some seconds if quick.
///
/// # Errors
/// [`Error`] when a gateway does not start or stop.
pub fn run(options: Options) -> Result<Report, Error> {
    let cpus = measure::cpus()?;
    let mut report = Report::begin(options, FLOWS, STACK_NS);
    let schedule = Schedule::of(options);
    let stacks_ns = if options.quick { &STACKS_NS[2..3] } else { &STACKS_NS[..] };
    for &stack_ns in stacks_ns {
        let stack = calibrated(stack_ns, &cpus)?;
        let outcomes = measure::rounds(schedule, VARIANTS.len(), |variant| {
            turn(VARIANTS[variant], 1, stack, &cpus, schedule.turn)
        })?;
        report.level(stack_ns, &outcomes);
    }
    let ordered = turn(VARIANTS[1], WINDOW, Stack::NONE, &cpus, schedule.turn)?;
    report.order(&ordered);
    report.handoff(handoff::measure(schedule, &cpus)?);
    Ok(report)
}

/// Finds out on the first CPU how much work lasts so long.
fn calibrated(nanos: u32, cpus: &[usize]) -> Result<Stack, Error> {
    if nanos == 0 {
        return Ok(Stack::NONE);
    }
    let cpu = cpus[0];
    let pinned =
        std::thread::spawn(move || cpu::pin_current_thread(cpu).map(|()| Stack::lasting(nanos)));
    let panicked = |_| Err(std::io::Error::other("the thread panicked"));
    let stack = pinned.join().unwrap_or_else(panicked);
    stack.map_err(|source| Error::System { what: "can not measure the work of a request", source })
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
