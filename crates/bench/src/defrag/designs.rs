//! The work of each worker on the fragments of the overload.

use ::defrag::{Buffer, Context, Memory, Outcome, Piece, Pools, Reassembler, Settings};
use flow::{DefragCounters, HashKey, Timestamp};

use super::frame::{Frame, Pool};
use super::shape::HEADERS;
use crate::Error;

/// The key of every hash.
pub const SECRET: HashKey = HashKey(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
/// Bucket of every datagram, because nothing moves here.
const BUCKET: u16 = 0;
/// Datagrams that one call checks for their timeouts, as in a worker.
const EXPIRE_BUDGET: usize = 64;

/// One worker's part of a design.
pub trait Lane: Send {
    /// Takes fragments in and returns the payload of the datagrams that they
    /// completed, bytes behind the IP header.
    fn take(&mut self, batch: &[Piece], now: Timestamp) -> u64;

    /// Datagrams that were put together wrongly.
    fn damaged(&self) -> u64 {
        0
    }

    /// The largest number of bytes that waiting frames have occupied, if the design knows it.
    fn peak(&self) -> u64 {
        0
    }
}

impl Pool {
    /// A frame as long as one that brings this piece.
    pub fn frame_of(&mut self, piece: &Piece) -> Frame {
        self.take(HEADERS + usize::from(piece.length))
    }
}

/// A worker's reassembler with all that it needs: the gateway's design.
pub struct Owned {
    reassembler: Reassembler<Frame>,
    settings: Settings,
    memory: Memory,
    counters: DefragCounters,
    pool: Pool,
    complete: Vec<Frame>,
    /// Frames of the current batch that were given up.
    refused: Vec<Frame>,
    /// Frames of the current batch.
    frames: Vec<Frame>,
    /// Bytes that waiting frames occupy, and the most after any batch. The benchmark counts them
    /// itself.
    held: u64,
    peak: u64,
}

/// The result of a batch of fragments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Datagrams completed.
    pub datagrams: u64,
    /// Their payload, bytes behind the IP header.
    pub bytes: u64,
}

/// Settings with these limits for each family, in bytes.
pub fn settings(high: u64, low: u64) -> Result<Settings, Error> {
    let mut settings = Settings::default();
    for (name, value) in [
        ("ipfrag_high_thresh", high),
        ("ipfrag_low_thresh", low),
        ("ip6frag_high_thresh", high),
        ("ip6frag_low_thresh", low),
    ] {
        settings
            .set(name, value)
            .map_err(|error| Error::Wrong { benchmark: super::NAME, problem: error.to_string() })?;
    }
    Ok(settings)
}

impl Owned {
    /// One of `workers` workers that share the memory of `pools`.
    pub fn new(pools: &Pools, workers: usize, settings: &Settings) -> Self {
        Self {
            reassembler: Reassembler::new(SECRET),
            settings: settings.clone(),
            memory: pools.memory(workers as u32),
            counters: DefragCounters::default(),
            pool: Pool::new(1 << 15),
            complete: Vec::new(),
            refused: Vec::new(),
            frames: Vec::new(),
            held: 0,
            peak: 0,
        }
    }

    /// The free buffers.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Reassembles a batch, piece by piece, and expires datagrams that are due. Drains the frames.
    /// Frames of a complete datagram go to `deliver` in order, and then back to the pool.
    #[inline]
    pub fn reassemble(
        &mut self,
        pieces: &[Piece],
        frames: impl Iterator<Item = Frame>,
        now: Timestamp,
        mut deliver: impl FnMut(&[Frame]),
    ) -> Taken {
        let Self { reassembler, settings, memory, counters, pool, complete, refused, .. } = self;
        let mut held = self.held;
        let mut discard = |frame: Frame, _: ::defrag::DiscardCause| refused.push(frame);
        let mut taken = Taken::default();
        let mut context = Context { now, settings, memory, counters, discard: &mut discard };
        for (piece, frame) in pieces.iter().zip(frames) {
            held += frame.footprint() as u64;
            let outcome = reassembler.insert(piece, BUCKET, frame, complete, &mut context);
            if let Outcome::Complete(summary) = outcome {
                taken.datagrams += 1;
                taken.bytes += u64::from(summary.payload);
                deliver(complete);
                for frame in complete.drain(..) {
                    held -= frame.footprint() as u64;
                    pool.give_back(frame);
                }
            }
        }
        reassembler.expire(EXPIRE_BUDGET, &mut context);
        for frame in refused.drain(..) {
            held -= frame.footprint() as u64;
            pool.give_back(frame);
        }
        self.held = held;
        self.peak = self.peak.max(self.held);
        taken
    }
}

impl Lane for Owned {
    fn take(&mut self, batch: &[Piece], now: Timestamp) -> u64 {
        let mut frames = std::mem::take(&mut self.frames);
        frames.extend(batch.iter().map(|piece| self.pool.frame_of(piece)));
        let bytes = self.reassemble(batch, frames.drain(..), now, |_| {}).bytes;
        self.frames = frames;
        bytes
    }
    fn peak(&self) -> u64 {
        self.peak
    }
}
