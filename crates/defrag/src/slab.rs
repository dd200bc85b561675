//! Storage of queues and fragments. Its chunks never move, so growth copies nothing; freed
//! places are used again, so the steady state allocates nothing.

use std::ops::{Index, IndexMut};

use crate::steps::step;

/// Places that a chunk adds.
const CHUNK: usize = 128;
/// Chunks that an empty slab keeps for the next burst.
const CHUNKS_KEPT: usize = 16;
/// The number of no slot.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) enum Slot<T> {
    /// Holds the next free slot.
    Free(u32),
    Used(T),
}

/// Values by slot number. A value keeps its slot as long as it is held.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Box<[Slot<T>; CHUNK]>>,
    /// First free slot. The slot that was freed last is used first, because it is the one most
    /// likely in cache.
    free: u32,
    len: usize,
}

impl<T> Slab<T> {
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), free: NONE, len: 0 }
    }

    /// Number of values held.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Number of slots, used or free.
    pub fn slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    pub fn memory_bytes(&self) -> usize {
        self.slots() as usize * size_of::<Slot<T>>() + self.chunks.capacity() * size_of::<usize>()
    }

    #[inline]
    fn place(&self, slot: u32) -> Option<&Slot<T>> {
        step();
        Some(&self.chunks.get(slot as usize / CHUNK)?[slot as usize % CHUNK])
    }

    #[inline]
    fn place_mut(&mut self, slot: u32) -> Option<&mut Slot<T>> {
        step();
        Some(&mut self.chunks.get_mut(slot as usize / CHUNK)?[slot as usize % CHUNK])
    }

    /// The value in a slot, if one is held there.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&T> {
        match self.place(slot) {
            Some(Slot::Used(value)) => Some(value),
            _ => None,
        }
    }

    #[inline(always)]
    pub fn insert(&mut self, value: T) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        if let Some(place) = self.place_mut(slot)
            && let Slot::Free(next) = *place
        {
            *place = Slot::Used(value);
            self.free = next;
            self.len += 1;
        }
        slot
    }

    /// Takes the value out of a slot; `None` if none is held there.
    #[inline]
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let free = self.free;
        let place = self.place_mut(slot)?;
        if matches!(place, Slot::Free(_)) {
            return None;
        }
        let Slot::Used(value) = std::mem::replace(place, Slot::Free(free)) else { return None };
        self.free = slot;
        self.len -= 1;
        Some(value)
    }

    /// Drops the value in a slot without moving it.
    #[inline]
    pub fn clear(&mut self, slot: u32) {
        let free = self.free;
        if let Some(place @ Slot::Used(_)) = self.place_mut(slot) {
            *place = Slot::Free(free);
            self.free = slot;
            self.len -= 1;
        }
    }

    /// Gives memory back if nothing is held and a burst has left a lot of it. Before that the
    /// memory waits for the next burst; the limits on held memory bound it. To free unused
    /// chunks earlier, the slab would have to use low slots first, chunk by chunk. That was
    /// tried: a fragment of a datagram of 45 then took 11 % more instructions.
    pub fn shrink(&mut self) {
        if self.len == 0 && self.chunks.len() > CHUNKS_KEPT {
            *self = Self::new();
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let first = self.slots();
        let next = |i: u32| if i + 1 == CHUNK as u32 { NONE } else { first + i + 1 };
        let chunk: Box<[Slot<T>]> = (0..CHUNK as u32).map(|i| Slot::Free(next(i))).collect();
        // The length is that of the range, so the conversion can not fail.
        if let Ok(chunk) = chunk.try_into() {
            self.chunks.push(chunk);
            self.free = first;
        }
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        step();
        match &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK] {
            Slot::Used(value) => value,
            // As with a slice: code that has the number of a slot knows that a value is in it.
            Slot::Free(_) => panic!("slot {slot} is free"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        step();
        match &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK] {
            Slot::Used(value) => value,
            Slot::Free(_) => panic!("slot {slot} is free"),
        }
    }
}
