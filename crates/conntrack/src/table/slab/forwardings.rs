//! The recorded forwarding decisions of connections, by slot.

use std::num::NonZeroU16;

use flow::Prefetch;

use super::CHUNK;
use crate::{Direction, Forwarding};

/// The generation of a new table. Numbers begin here again after the highest one.
const FIRST: NonZeroU16 = NonZeroU16::MIN;

/// At most one [`Forwarding`] for each direction of each connection. It holds for the generation
/// in which it was recorded. Memory is allocated in chunks of as many slots as the chunks of
/// entries have, and is freed when the last connection of the table ends.
#[derive(Debug)]
pub(crate) struct Forwardings {
    chunks: Vec<Option<Box<[[Record; 2]; CHUNK]>>>,
    generation: NonZeroU16,
    /// The generation of the worker under which the present one was begun.
    worker_generation: u64,
}

/// The record of one direction; `generation` is `None` if there is none.
#[derive(Clone, Copy, Debug)]
struct Record {
    generation: Option<NonZeroU16>,
    forwarding: Forwarding,
}

/// Entry and records of a connection together must fit into 200 bytes.
const _: () = assert!(size_of::<[Record; 2]>() == 28);

const NOTHING: [Record; 2] = [Record {
    generation: None,
    forwarding: Forwarding { input: 0, output: 0, station: [0; 6], mtu: 0 },
}; 2];

impl Forwardings {
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), generation: FIRST, worker_generation: 0 }
    }

    /// Begins a generation, unless the present one was begun in this generation of the worker.
    #[inline]
    pub fn begin(&mut self, worker_generation: u64) {
        if self.worker_generation != worker_generation {
            self.begin_next(worker_generation);
        }
    }

    #[cold]
    fn begin_next(&mut self, worker_generation: u64) {
        self.worker_generation = worker_generation;
        self.generation = self.generation.checked_add(1).unwrap_or_else(|| {
            // The numbers of old generations are used again from here on, so no record that has
            // one may stay.
            self.chunks = Vec::new();
            FIRST
        });
    }

    /// Prefetches the records of a slot, if its chunk has any.
    #[inline]
    pub fn prefetch(&self, slot: u32, prefetch: impl Prefetch) {
        if let Some(records) = self.records(slot) {
            prefetch.prefetch(records);
        }
    }

    /// The decision recorded for a direction in this generation.
    #[inline]
    pub fn get(&self, slot: u32, direction: Direction) -> Option<Forwarding> {
        let Record { generation, forwarding } = self.records(slot)?[direction.index()];
        (generation == Some(self.generation)).then_some(forwarding)
    }

    #[inline]
    fn records(&self, slot: u32) -> Option<&[Record; 2]> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?.as_ref()?;
        Some(&chunk[slot as usize % CHUNK])
    }

    pub fn set(&mut self, slot: u32, direction: Direction, forwarding: Forwarding) {
        let at = slot as usize / CHUNK;
        if self.chunks.len() <= at {
            self.chunks.resize_with(at + 1, || None);
        }
        let chunk = self.chunks[at].get_or_insert_with(|| Box::new([NOTHING; CHUNK]));
        chunk[slot as usize % CHUNK][direction.index()] =
            Record { generation: Some(self.generation), forwarding };
    }

    /// Removes the records of both directions of a slot.
    #[inline]
    pub fn remove(&mut self, slot: u32) {
        if let Some(Some(chunk)) = self.chunks.get_mut(slot as usize / CHUNK) {
            chunk[slot as usize % CHUNK] = NOTHING;
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<usize>()
            + self.chunks.iter().flatten().count() * size_of::<[[Record; 2]; CHUNK]>()
    }
}

#[cfg(test)]
#[path = "forwardings_tests.rs"]
mod tests;
