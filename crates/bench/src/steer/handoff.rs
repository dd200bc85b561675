//! The cost of handing a packet to another worker, by itself.

use std::collections::VecDeque;
use std::hint::{black_box, spin_loop};
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::measure::{self, Schedule, Work};
use crate::spin::Spin;
use crate::{Error, Spread};

/// As long as the item that a worker hands over: frame, headers, flow.
type Item = [u64; 32];
/// Packets of a batch.
const BATCH: usize = 64;
/// Packets that may wait (`netdev_max_backlog`).
const BACKLOG: usize = 1000;

/// Nanoseconds per packet of the slower end.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// The rings of the gateway: one producer, one consumer, a batch at a time.
    pub ring: Spread,
    /// The backlog of 2009: a queue for each CPU under a lock. Packets are put in one at a time,
    /// and taken out all at once.
    pub locked: Spread,
}

/// Measures both; `None` on a machine with one CPU.
pub fn measure(schedule: Schedule, cpus: &[usize]) -> Result<Option<Costs>, Error> {
    if cpus.len() < 2 {
        return Ok(None);
    }
    let turns = measure::rounds(schedule, 2, |variant| {
        if variant == 0 {
            let (to, from) = RingBuffer::new(BACKLOG);
            let mut ends = (RingIn(to, Vec::with_capacity(BATCH)), RingOut(from));
            measure::turn(&mut [&mut ends.0, &mut ends.1], cpus, schedule.turn)
        } else {
            let queue = Arc::new(Spin::new(VecDeque::with_capacity(BACKLOG)));
            let mut ends = (LockedIn(queue.clone()), LockedOut(queue, VecDeque::new()));
            measure::turn(&mut [&mut ends.0, &mut ends.1], cpus, schedule.turn)
        }
    })?;
    let cost = |variant: usize| {
        Spread::of(turns[variant].iter().map(|turn| 1e9 / turn.rate.max(1.0)).collect())
    };
    Ok(Some(Costs { ring: cost(0), locked: cost(1) }))
}

/// Stages a batch and publishes it, as a worker does. Only the consumer counts.
struct RingIn(Producer<Item>, Vec<Item>);

impl Work for RingIn {
    fn batch(&mut self) -> u64 {
        let Self(ring, staged) = self;
        staged.resize(BATCH, black_box([1; 32]));
        if ring.slots() < BATCH {
            spin_loop();
        } else if let Ok(chunk) = ring.write_chunk_uninit(BATCH) {
            chunk.fill_from_iter(staged.drain(..));
        }
        0
    }
}

struct RingOut(Consumer<Item>);

impl Work for RingOut {
    fn batch(&mut self) -> u64 {
        let mut taken = 0;
        while taken < BATCH as u64
            && let Ok(item) = self.0.pop()
        {
            black_box(item);
            taken += 1;
        }
        taken
    }
}

type LockedQueue = Arc<Spin<VecDeque<Item>>>;

struct LockedIn(LockedQueue);

impl Work for LockedIn {
    fn batch(&mut self) -> u64 {
        for _ in 0..BATCH {
            let mut queue = self.0.lock();
            if queue.len() < BACKLOG {
                queue.push_back(black_box([1; 32]));
            }
        }
        0
    }
}

struct LockedOut(LockedQueue, VecDeque<Item>);

impl Work for LockedOut {
    fn batch(&mut self) -> u64 {
        std::mem::swap(&mut *self.0.lock(), &mut self.1);
        let taken = self.1.len() as u64;
        for item in self.1.drain(..) {
            black_box(item);
        }
        taken
    }
}
