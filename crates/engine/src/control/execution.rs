//! The ways in which workers run, and how the coordinator waits for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use flow::Timestamp;
use netio::clock;
use steer::WorkerId;

use crate::worker::report::WorkerReport;
use crate::worker::{Turn, Worker, thread};

/// The time after which a worker without an answer counts as stuck. A turn takes well under a
/// millisecond, so seconds mean that the machine is stopped.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The wait between two tries to give a command to a worker whose inbox is full.
const PAUSE: Duration = Duration::from_micros(100);
/// Rounds of turns after which a worker without an answer counts as stuck, where no time passes.
/// A command takes a turn or two, and a bucket moves within a few rounds.
const ROUNDS: u32 = 10_000;

/// How workers run.
#[derive(Clone)]
pub enum Execution {
    /// Each on a thread of its own, in real time.
    Threads,
    /// When somebody takes their turns, at the time that is given.
    Stepped(Stepper),
}

impl Execution {
    /// The time now.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::Threads => Timestamp::from_nanos(clock::monotonic_nanoseconds()),
            Self::Stepped(stepper) => stepper.now(),
        }
    }

    /// Starts a worker. Returns its thread, if it has one.
    ///
    /// # Errors
    /// The system's error if it gives no thread.
    pub fn start(&self, worker: Worker) -> std::io::Result<Option<JoinHandle<WorkerReport>>> {
        match self {
            Self::Threads => thread::spawn(worker).map(Some),
            Self::Stepped(stepper) => {
                stepper.lock().workers.insert(worker.path.worker(), worker);
                Ok(None)
            }
        }
    }

    /// Waits for a message of a worker; `None` if none comes.
    pub fn receive<T>(&self, from: &Receiver<T>) -> Option<T> {
        match self {
            Self::Threads => from.recv_timeout(PATIENCE).ok(),
            Self::Stepped(_) => self.retry(|| from.try_recv().ok()),
        }
    }

    /// Lets workers work for a while: for so long, or a turn each where no time passes.
    pub fn pause(&self, time: Duration) {
        match self {
            Self::Threads => std::thread::sleep(time),
            Self::Stepped(stepper) => {
                stepper.take_turns();
            }
        }
    }

    /// Tries until it succeeds, and lets workers work in between; `None` if it never does.
    pub fn retry<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let tries = match self {
            Self::Threads => (PATIENCE.as_micros() / PAUSE.as_micros()) as u32,
            Self::Stepped(_) => ROUNDS,
        };
        (0..tries).find_map(|_| {
            attempt().or_else(|| {
                self.pause(PAUSE);
                None
            })
        })
    }
}

/// Workers that run only when somebody takes their turns, at times that he chooses. So a gateway
/// with its coordinator is a function of its input: a simulation, or a benchmark that counts only
/// the work of workers. All copies are of the same workers.
#[derive(Clone)]
pub struct Stepper(Arc<Stepped>);

struct Stepped {
    now_ns: AtomicU64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    workers: BTreeMap<WorkerId, Worker>,
    /// Decides about the order of turns; `None`: that of their numbers.
    order: Option<u64>,
    /// The last reports of workers that have stopped.
    reports: BTreeMap<WorkerId, WorkerReport>,
}

impl Stepper {
    /// There are no workers yet, and the time is `now`.
    pub fn new(now: Timestamp) -> Self {
        let (now_ns, held) = (AtomicU64::new(now.as_nanos()), Mutex::default());
        Self(Arc::new(Stepped { now_ns, held }))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.now_ns.load(Ordering::Relaxed))
    }

    /// Lets time pass. It never runs backwards.
    pub fn pass_to(&self, now: Timestamp) {
        self.0.now_ns.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// From now on, workers take their turns in an order that follows from `seed`, also while the
    /// coordinator waits for them: some take several turns before others take one. So whatever
    /// workers do in one order in a simulation, they do in another one in another simulation.
    pub fn shuffle(&self, seed: u64) {
        self.lock().order = Some(seed);
    }

    /// Lets one worker take a turn; false if it had nothing to do, or there is no such worker.
    pub fn take_turn(&self, id: WorkerId) -> bool {
        let mut held = self.lock();
        held.turn(id, self.now())
    }

    /// Lets each worker take a turn, in the order of their numbers unless they are
    /// [shuffled](Self::shuffle); false if none had anything to do.
    pub fn take_turns(&self) -> bool {
        let mut held = self.lock();
        let ids = held.next_turns();
        ids.into_iter().fold(false, |worked, id| worked | held.turn(id, self.now()))
    }

    /// Takes the workers away. A wait for one of them ends without an answer afterwards.
    pub(super) fn into_workers(self) -> impl Iterator<Item = Worker> {
        std::mem::take(&mut self.lock().workers).into_values()
    }

    /// The last report of a worker that was told to stop.
    pub(super) fn stopped(&self, id: WorkerId) -> Option<WorkerReport> {
        (0..ROUNDS).find_map(|_| {
            self.take_turn(id);
            self.lock().reports.remove(&id)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// The workers in the order of their next turns. Each comes at least once.
    fn next_turns(&mut self) -> Vec<WorkerId> {
        let mut ids: Vec<_> = self.workers.keys().copied().collect();
        let Some(order) = &mut self.order else { return ids };
        let mut draw = |below: usize| {
            // Knuth's linear congruential generator, whose upper half is good enough for this.
            *order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*order >> 33) as usize % below
        };
        for last in (1..ids.len()).rev() {
            ids.swap(last, draw(last + 1));
        }
        for _ in 0..ids.len() {
            let again = ids[draw(ids.len())];
            ids.insert(draw(ids.len() + 1), again);
        }
        ids
    }

    fn turn(&mut self, id: WorkerId, now: Timestamp) -> bool {
        let Some(worker) = self.workers.get_mut(&id) else { return false };
        match worker.turn(now) {
            Turn::Worked => true,
            Turn::Idle => false,
            Turn::Stopped => {
                worker.path.end();
                let report = worker.report(now);
                self.workers.remove(&id);
                self.reports.insert(id, report);
                true
            }
        }
    }
}
