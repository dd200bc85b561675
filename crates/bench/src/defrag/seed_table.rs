//! The table of 2012, measured again: four designs under the same overload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::defrag::{Piece, Pools};
use serde::Serialize;

use super::designs::{Lane, Owned, settings};
use super::historic::{Central, PerWorker};
use super::overload::{Arrivals, SENDERS};
use super::shape::{PIECE, Shape};
use super::{HIGH, LOW, NAME};
use crate::measure::{self, Schedule, Turn, Work};
use crate::{Error, Spread};

/// Payloads behind the UDP header, in bytes: the two sizes of 2012.
pub const SIZES: [usize; 2] = [65_507, 4416];
/// Fragments of a batch.
const BATCH: usize = 64;
/// Buckets with a lock each: the last step of 2012.
const STRIPES: usize = 256;

/// The designs in historical order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// One lock around the table, one counter of memory, one LRU list.
    Central,
    /// One lock around the table; a counter and an LRU list for each worker.
    PerCpuAccounting,
    /// A lock for each of 256 parts of the table; a counter and an LRU list for
    /// each worker.
    BucketLocks,
    /// A table for each worker: the gateway's design.
    Owned,
}

impl Design {
    /// All designs.
    pub const ALL: [Self; 4] =
        [Self::Central, Self::PerCpuAccounting, Self::BucketLocks, Self::Owned];

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Central => "central",
            Self::PerCpuAccounting => "per-CPU accounting",
            Self::BucketLocks => "bucket locks",
            Self::Owned => "owned",
        }
    }

    fn lanes(self, workers: usize) -> Result<Vec<Box<dyn Lane>>, Error> {
        fn boxed(lanes: Vec<impl Lane + 'static>) -> Vec<Box<dyn Lane>> {
            lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Lane>).collect()
        }
        Ok(match self {
            Self::Central => boxed(Central::lanes(workers)),
            Self::PerCpuAccounting => boxed(PerWorker::lanes(1, workers)),
            Self::BucketLocks => boxed(PerWorker::lanes(STRIPES, workers)),
            Self::Owned => {
                let settings = settings(HIGH, LOW)?;
                let pools = Pools::new(&settings);
                boxed((0..workers).map(|_| Owned::new(&pools, workers, &settings)).collect())
            }
        })
    }
}

/// One figure of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The design.
    pub design: Design,
    /// Payload of the datagrams, in bytes.
    pub size: usize,
    /// Workers.
    pub workers: usize,
    /// Payload of the datagrams that were completed, Mbit/s; median.
    pub goodput_mbit_s: f64,
    /// Payload that was sent in the same time, Mbit/s; median.
    pub offered_mbit_s: f64,
    /// Goodput with its spread.
    pub goodput: Spread,
    /// Part of the datagrams that were completed.
    pub completed: Spread,
    /// Rounds.
    #[serde(skip)]
    pub turns: Vec<Turn>,
}

/// The largest number of fragments that a worker may be ahead of another one. Its link waits for
/// the other's, because eviction depends on the fragments that arrive meanwhile.
const LEAD: u64 = 512;

/// One worker and its arrivals.
struct Station {
    arrivals: Arrivals,
    /// Fragments sent to each of the workers.
    progress: Arc<[Progress]>,
    number: usize,
    lane: Box<dyn Lane>,
    batch: Vec<Piece>,
    /// Payload completed, bytes behind the IP header.
    completed: u64,
}

/// A counter on two cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

impl Station {
    fn is_ahead(&self) -> bool {
        let sent = self.arrivals.sent();
        self.progress.iter().any(|other| other.0.load(Ordering::Relaxed) + LEAD < sent)
    }
}

impl Work for Station {
    /// Returns the number of fragments that were sent.
    fn batch(&mut self) -> u64 {
        if self.is_ahead() {
            std::thread::yield_now();
            return 0;
        }
        let before = self.arrivals.sent();
        let now = self.arrivals.now();
        self.batch.clear();
        self.batch.extend((0..BATCH).map(|_| self.arrivals.next()));
        self.completed += self.lane.take(&self.batch, now);
        let sent = self.arrivals.sent();
        self.progress[self.number].0.store(sent, Ordering::Relaxed);
        sent - before
    }
}

/// A design with its workers.
struct Variant {
    design: Design,
    shape: Shape,
    stations: Vec<Station>,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
struct Measured {
    turn: Turn,
    /// Bytes completed over bytes sent.
    completed: f64,
}

impl Variant {
    fn new(design: Design, size: usize, workers: usize) -> Result<Self, Error> {
        let shape = Shape::new(size, PIECE);
        let share = SENDERS / workers as u32;
        let progress: Arc<[_]> = (0..workers).map(|_| Progress::default()).collect();
        let lanes = design.lanes(workers)?.into_iter().zip(0..);
        let station = |(lane, number): (Box<dyn Lane>, u32)| Station {
            arrivals: Arrivals::new(&shape, number * share..(number + 1) * share),
            progress: progress.clone(),
            number: number as usize,
            lane,
            batch: Vec::with_capacity(BATCH),
            completed: 0,
        };
        Ok(Self { design, stations: lanes.map(station).collect(), shape })
    }

    fn turn(&mut self, cpus: &[usize], schedule: Schedule) -> Result<Measured, Error> {
        let sum = |stations: &[Station]| {
            let sent: u64 = stations.iter().map(|station| station.arrivals.sent()).sum();
            let completed: u64 = stations.iter().map(|station| station.completed).sum();
            (sent as f64 * self.shape.mean_piece(), completed as f64)
        };
        let (sent, completed) = sum(&self.stations);
        let mut works: Vec<&mut dyn Work> = Vec::new();
        self.stations.iter_mut().for_each(|station| works.push(station));
        let turn = measure::turn(&mut works, cpus, schedule.turn)?;
        let (sent_since, completed_since) = sum(&self.stations);
        Ok(Measured {
            turn,
            completed: (completed_since - completed) / (sent_since - sent).max(1.0),
        })
    }

    fn check(&self) -> Result<(), Error> {
        let damaged: u64 = self.stations.iter().map(|station| station.lane.damaged()).sum();
        // The workers' peaks need not coincide.
        let peak = self.stations.iter().map(|station| station.lane.peak()).max().unwrap_or(0);
        let problem = if damaged > 0 {
            format!("{}: {damaged} datagrams were put together wrongly", self.design.name())
        } else if peak > HIGH {
            format!("{}: {peak} bytes were held, more than {HIGH}", self.design.name())
        } else {
            return Ok(());
        };
        Err(Error::Wrong { benchmark: NAME, problem })
    }
}

/// Measures all designs in turns, with one worker and, on two CPUs, with two.
pub fn measure(schedule: Schedule, cpus: &[usize]) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for size in SIZES {
        let mut variants = Vec::new();
        for workers in 1..=cpus.len().min(2) {
            for design in Design::ALL {
                variants.push(Variant::new(design, size, workers)?);
            }
        }
        let turns = measure::rounds(schedule, variants.len(), |index| {
            variants[index].turn(cpus, schedule)
        })?;
        for (variant, turns) in variants.iter().zip(turns) {
            variant.check()?;
            rows.push(row(variant, &turns));
        }
    }
    Ok(rows)
}

fn row(variant: &Variant, measured: &[Measured]) -> Row {
    let spread =
        |figure: &dyn Fn(&Measured) -> f64| Spread::of(measured.iter().map(figure).collect());
    let mbit_per_piece = variant.shape.mean_piece() * 8.0 / 1e6;
    let goodput = spread(&|m| m.turn.rate * m.completed * mbit_per_piece);
    let offered = spread(&|m| m.turn.rate * mbit_per_piece);
    Row {
        design: variant.design,
        size: variant.shape.payload(),
        workers: variant.stations.len(),
        goodput_mbit_s: goodput.median,
        offered_mbit_s: offered.median,
        goodput,
        completed: spread(&|m| m.completed),
        turns: measured.iter().map(|m| m.turn).collect(),
    }
}
