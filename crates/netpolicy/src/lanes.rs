//! The order in which a worker takes packets from the queues of two services.
//!
//! Latency comes first, and bulk has a share that nobody can take: latency pays for each packet from a
//! credit, and packets of bulk fill it up. So while packets of bulk wait, there is one round of latency
//! for each batch of bulk, and the queues of latency are looked at between any two queues of bulk.

/// The next queue. Queues of each service have numbers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// A queue of latency, and the most packets to take.
    Latency(usize, usize),
    /// A queue of bulk, of which a batch may be taken.
    Bulk(usize),
}

/// The state between two turns.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// Most packets of latency for a batch of bulk.
    round: usize,
    /// Packets of a batch of bulk.
    batch: usize,
    /// Packets of latency that may come, times `batch`.
    credit: usize,
    /// The queue of latency that comes first in the next round.
    first: usize,
}

/// One turn: every queue of bulk once, and latency before each.
#[derive(Clone, Copy, Debug)]
pub struct LaneTurn {
    lanes: Lanes,
    latency: usize,
    bulk: usize,
    /// Queues of latency that were asked in this round.
    asked: usize,
    next_bulk: usize,
    /// No queue of bulk had packets.
    is_bulk_empty: bool,
    last: Option<Pick>,
}

impl Lanes {
    /// While packets of both services wait, `round` packets of latency come for each `batch` of bulk.
    /// Both are at least 1.
    pub fn new(round: usize, batch: usize) -> Self {
        let (round, batch) = (round.max(1), batch.max(1));
        Self { round, batch, credit: round * batch, first: 0 }
    }

    /// Begins a turn over so many queues of each service.
    pub const fn begin(self, latency: usize, bulk: usize) -> LaneTurn {
        let (asked, next_bulk, is_bulk_empty, last) = (0, 0, true, None);
        LaneTurn { lanes: self, latency, bulk, asked, next_bulk, is_bulk_empty, last }
    }

    const fn fill(&mut self, packets_of_bulk: usize) {
        let full = self.round * self.batch;
        let credit = self.credit.saturating_add(packets_of_bulk.saturating_mul(self.round));
        self.credit = if credit < full { credit } else { full };
    }
}

impl LaneTurn {
    /// The queue to take packets from, when the last one gave `came`. `None` at the end of the turn.
    pub fn next(&mut self, came: usize) -> Option<Pick> {
        let lanes = &mut self.lanes;
        match self.last {
            Some(Pick::Latency(queue, most)) => {
                lanes.credit = lanes.credit.saturating_sub(came * lanes.batch);
                if came >= most {
                    // It may have more. The others come first next time.
                    lanes.first = queue + 1;
                    self.asked = self.latency;
                }
            }
            Some(Pick::Bulk(_)) if came > 0 => {
                lanes.fill(came);
                self.is_bulk_empty = false;
                // Behind the last queue of bulk the next turn begins with latency.
                self.asked = if self.next_bulk < self.bulk { 0 } else { self.latency };
            }
            Some(Pick::Bulk(_)) | None => {}
        }
        let most = lanes.credit / lanes.batch;
        self.last = if self.asked < self.latency && most > 0 {
            let queue = (lanes.first + self.asked) % self.latency;
            self.asked += 1;
            Some(Pick::Latency(queue, most))
        } else if self.next_bulk < self.bulk {
            self.next_bulk += 1;
            Some(Pick::Bulk(self.next_bulk - 1))
        } else {
            None
        };
        self.last
    }

    /// Ends the turn.
    pub const fn end(self) -> Lanes {
        let mut lanes = self.lanes;
        if self.is_bulk_empty {
            lanes.credit = lanes.round * lanes.batch;
        }
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: usize = 16;
    const BATCH: usize = 32;

    /// Packets that wait, and packets that were taken, by queue.
    struct Queues {
        latency: Vec<usize>,
        bulk: Vec<usize>,
        taken: [usize; 2],
        of_latency: Vec<usize>,
    }

    impl Queues {
        fn new<const L: usize, const B: usize>(latency: [usize; L], bulk: [usize; B]) -> Self {
            let (latency, bulk, of_latency) = (latency.to_vec(), bulk.to_vec(), vec![0; L]);
            Self { latency, bulk, taken: [0; 2], of_latency }
        }

        fn turn(&mut self, lanes: Lanes) -> Lanes {
            let (mut turn, mut came) = (lanes.begin(self.latency.len(), self.bulk.len()), 0);
            while let Some(pick) = turn.next(came) {
                let (waiting, most) = match pick {
                    Pick::Latency(queue, most) => (&mut self.latency[queue], most),
                    Pick::Bulk(queue) => (&mut self.bulk[queue], BATCH),
                };
                came = most.min(*waiting);
                *waiting -= came;
                match pick {
                    Pick::Latency(queue, _) => {
                        self.taken[0] += came;
                        self.of_latency[queue] += came;
                    }
                    Pick::Bulk(_) => self.taken[1] += came,
                }
            }
            turn.end()
        }
    }

    #[test]
    fn a_flood_of_latency_leaves_bulk_its_share_whatever_queues_are_empty() {
        const MANY: usize = 1_000_000;
        for bulk in [[MANY, 0, 0], [0, MANY, 0], [0, 0, MANY], [MANY; 3]] {
            let mut queues = Queues::new([MANY, MANY], bulk);
            let mut lanes = Lanes::new(ROUND, BATCH);
            for _ in 0..1000 {
                lanes = queues.turn(lanes);
                let [latency, bulk] = queues.taken;
                assert!(latency <= ROUND + bulk * ROUND / BATCH, "{latency} beside {bulk}");
            }
            let [latency, bulk] = queues.taken;
            assert!(latency + ROUND >= bulk * ROUND / BATCH, "{latency} beside {bulk}");
            let [first, second] = queues.of_latency[..] else { panic!("two queues") };
            assert!(first.abs_diff(second) <= ROUND, "{first} and {second}");
        }
    }

    #[test]
    fn bulk_that_waits_never_delays_latency_by_more_than_a_batch() {
        let mut queues = Queues::new([0, 0], [1_000_000; 4]);
        let mut lanes = Lanes::new(ROUND, BATCH);
        for _ in 0..10 {
            let (mut turn, mut came, mut since) = (lanes.begin(2, 4), 0, 0);
            while let Some(pick) = turn.next(came) {
                came = match pick {
                    Pick::Latency(..) => 0,
                    Pick::Bulk(_) => BATCH,
                };
                since = if came == 0 { 0 } else { since + came };
                assert!(since <= BATCH, "a packet of latency would wait for {since}");
            }
            lanes = turn.end();
        }
        lanes = queues.turn(lanes);
        queues.latency = vec![3, 3];
        queues.turn(lanes);
        assert_eq!(queues.taken[0], 6, "packets that come rarely all come in one turn");
    }

    #[test]
    fn without_bulk_latency_has_all() {
        for bulk in 0..3 {
            let mut queues = Queues::new([1000], [0; 2]);
            queues.bulk.truncate(bulk);
            let mut lanes = Lanes::new(ROUND, BATCH);
            for _ in 0..10 {
                lanes = queues.turn(lanes);
            }
            assert_eq!(queues.taken[0], 10 * ROUND);
        }
    }
}
