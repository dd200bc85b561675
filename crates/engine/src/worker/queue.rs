//! The receive queues of a worker.

use netio::{PortId, RxQueue, Service};

use crate::BATCH;

/// A receive queue.
pub struct Queue {
    /// Number of the queue, unique in the gateway.
    pub id: usize,
    /// The port that it belongs to.
    pub port: PortId,
    /// The interface supplies the symmetric Toeplitz hash, and it may be used.
    pub supplies_hash: bool,
    /// Most packets that are taken from it before it is the next queue's turn.
    pub batch: usize,
    /// Its counters.
    pub received: Received,
    /// The service of its packets.
    pub service: Service,
    /// The queue itself.
    pub source: Box<dyn RxQueue>,
}

impl Queue {
    /// A queue of a port without a policy, whose interface supplies no hash.
    pub fn new(id: usize, port: PortId, source: Box<dyn RxQueue>) -> Self {
        let (received, service) = (Received::default(), source.service());
        Self { id, port, supplies_hash: false, batch: BATCH, received, service, source }
    }

    /// Counts what has not become a frame since it was asked last. Returns how many frames were
    /// dropped because they were too long.
    pub fn count_missing(&mut self) -> u64 {
        self.received.lost += self.source.take_lost();
        let too_long = self.source.take_too_long();
        self.received.frames += too_long;
        too_long
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({} of port {})", self.id, self.port.0)
    }
}

/// Counters of a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames.
    pub frames: u64,
    /// Bytes, link header included.
    pub bytes: u64,
    /// Frames that the kernel dropped because they were not fetched in time.
    pub lost: u64,
}

impl Received {
    /// Adds the counters of another queue.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.lost += other.lost;
    }

    /// The counters without those of a part.
    #[must_use]
    pub const fn without(&self, part: &Self) -> Self {
        Self {
            frames: self.frames.saturating_sub(part.frames),
            bytes: self.bytes.saturating_sub(part.bytes),
            lost: self.lost.saturating_sub(part.lost),
        }
    }
}
