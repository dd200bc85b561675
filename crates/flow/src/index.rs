//! An index from hashes to slots that reads one cache line for a look-up.
//!
//! Each line holds ten (tag, slot) pairs; a tag is 16 bits of the hash, so that
//! the entry itself is read only when it is almost certainly the right one. A
//! look-up reads the home line of the hash and goes on to the next line only if
//! that line has overflowed (a counter per line, as in F14, Bronson and Shi,
//! 2019).
//!
//! The table grows by linear hashing (Litwin, 1980) over segments of 64 lines:
//! whenever there are 256 more entries, one segment is split in two. No step
//! moves more than one segment, so growth has no pause whatever the size, and
//! shrinking is the same step backwards.
//!
//! The index takes only the low 32 bits of a hash: the high half selects the bucket, so all
//! entries of one bucket's table share it.

use crate::Prefetch;

/// Pairs of a line.
const WAYS: usize = 10;
/// Lines of a segment; a power of two.
const LINES: usize = 64;
const LINE_BITS: u32 = LINES.trailing_zeros();
/// Entries per segment on average: 40 % of its places. The segments that have
/// not been split in the current round hold up to twice as many.
const MEAN_LOAD: usize = LINES * WAYS * 2 / 5;
/// The index gives back segments below this many entries per segment: far
/// enough under [`MEAN_LOAD`] that it does not swing.
const LOW_LOAD: usize = MEAN_LOAD / 4;

/// A cache line of the index.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line {
    slots: [u32; WAYS],
    tags: [u16; WAYS],
    /// One bit for each pair in use.
    used: u16,
    /// Entries that lie behind this line while their home is this line or one before.
    overflow: u16,
}

const _: () = assert!(size_of::<Line>() == 64);

type Segment = [Line; LINES];

/// A multiset of (hash, slot) pairs.
#[derive(Debug)]
pub struct SlotIndex {
    segments: Vec<Box<Segment>>,
    /// The bits that tell segments apart after the current round of splits.
    mask: usize,
    len: usize,
}

/// The index has no place near the home of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded;

impl Line {
    const EMPTY: Self = Self { slots: [0; WAYS], tags: [0; WAYS], used: 0, overflow: 0 };

    /// One bit for each pair in use with this tag.
    #[inline]
    fn matching(&self, tag: u16) -> u16 {
        let mut mask = 0;
        for (way, &other) in self.tags.iter().enumerate() {
            mask |= u16::from(other == tag) << way;
        }
        mask & self.used
    }

    fn has_room(&self) -> bool {
        self.used != (1 << WAYS) - 1
    }

    /// The slots of the pairs in use.
    fn filed(&self) -> impl Iterator<Item = u32> {
        (0..WAYS).filter(|way| self.used & (1 << way) != 0).map(|way| self.slots[way])
    }

    fn put(&mut self, tag: u16, slot: u32) {
        let way = self.used.trailing_ones() as usize;
        self.tags[way] = tag;
        self.slots[way] = slot;
        self.used |= 1 << way;
    }
}

impl Default for SlotIndex {
    fn default() -> Self {
        Self::new()
    }
}

impl SlotIndex {
    /// An empty index.
    pub fn new() -> Self {
        Self { segments: vec![Box::new([Line::EMPTY; LINES])], mask: 1, len: 0 }
    }

    /// Memory held, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.segments.len() * size_of::<Segment>() + self.segments.capacity() * size_of::<usize>()
    }

    /// Prefetches the home line of a hash.
    #[inline]
    pub fn prefetch(&self, hash: u32, prefetch: impl Prefetch) {
        prefetch.prefetch(&self.segments[self.segment_of(hash)][line_of(hash)]);
    }

    /// The first slot that `hash` most likely belongs to, from the home line alone.
    #[inline]
    pub fn guess(&self, hash: u32) -> Option<u32> {
        let line = &self.segments[self.segment_of(hash)][line_of(hash)];
        let mask = line.matching(tag_of(hash));
        (mask != 0).then(|| line.slots[mask.trailing_zeros() as usize])
    }

    /// The slot filed under `hash` that `is_it` accepts.
    #[inline]
    pub fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let segment = &self.segments[self.segment_of(hash)];
        let tag = tag_of(hash);
        for step in 0..LINES {
            let line = &segment[(line_of(hash) + step) % LINES];
            let mut mask = line.matching(tag);
            while mask != 0 {
                let slot = line.slots[mask.trailing_zeros() as usize];
                if is_it(slot) {
                    return Some(slot);
                }
                mask &= mask - 1;
            }
            if line.overflow == 0 {
                break;
            }
        }
        None
    }

    /// Files a slot. `hash_of` returns the hash of a slot that is filed already; the index
    /// calls it when it splits a segment.
    ///
    /// # Errors
    /// [`Crowded`] when the segment of the hash is full: about 256 of its 640
    /// places are taken on average, so only equal hashes get there.
    #[inline]
    pub fn insert(
        &mut self,
        hash: u32,
        slot: u32,
        hash_of: impl Fn(u32) -> u32,
    ) -> Result<(), Crowded> {
        let at = self.segment_of(hash);
        place(&mut self.segments[at], hash, slot)?;
        self.len += 1;
        if self.len > self.segments.len() * MEAN_LOAD {
            self.split(hash_of);
        }
        Ok(())
    }

    /// True if two more slots can be filed under `hash`.
    pub fn has_room_for_two(&self, hash: u32) -> bool {
        let segment = &self.segments[self.segment_of(hash)];
        let free = segment.iter().map(|line| WAYS - line.used.count_ones() as usize);
        free.sum::<usize>() >= 2
    }

    /// Takes a slot out; false if it is not filed under `hash`.
    #[inline]
    pub fn remove(&mut self, hash: u32, slot: u32) -> bool {
        let at = self.segment_of(hash);
        let removed = displace(&mut self.segments[at], hash, slot);
        self.len -= usize::from(removed);
        removed
    }

    /// Gives back one segment if there is far more room than needed.
    pub fn shrink(&mut self, hash_of: impl Fn(u32) -> u32) {
        if self.segments.len() == 1 || self.len >= self.segments.len() * LOW_LOAD {
            return;
        }
        let Some(last) = self.segments.pop() else { return };
        self.set_mask();
        // The buddy holds few entries too, so there is room. If there were none, the segment
        // comes back and nothing has changed.
        let pairs: Vec<(u32, u32)> = slots_of(&last).map(|slot| (hash_of(slot), slot)).collect();
        for (done, &(hash, slot)) in pairs.iter().enumerate() {
            let at = self.segment_of(hash);
            if place(&mut self.segments[at], hash, slot).is_err() {
                for &(hash, slot) in &pairs[..done] {
                    let at = self.segment_of(hash);
                    displace(&mut self.segments[at], hash, slot);
                }
                self.segments.push(last);
                self.set_mask();
                return;
            }
        }
    }

    /// Splits the segment whose turn it is.
    #[cold]
    #[inline(never)]
    fn split(&mut self, hash_of: impl Fn(u32) -> u32) {
        let count = self.segments.len();
        let turn = count - (1 << count.ilog2());
        let old = std::mem::replace(&mut *self.segments[turn], [Line::EMPTY; LINES]);
        self.segments.push(Box::new([Line::EMPTY; LINES]));
        self.set_mask();
        for slot in slots_of(&old) {
            let hash = hash_of(slot);
            let at = self.segment_of(hash);
            // The old segment had room for these entries, and each of the two gets a part of
            // them.
            let placed = place(&mut self.segments[at], hash, slot);
            debug_assert_eq!(placed, Ok(()), "no room after a split");
        }
    }

    /// Linear hashing: with 2^k <= n < 2^(k+1) segments, the ones that have been
    /// split in this round are told apart by one more bit.
    #[inline]
    fn segment_of(&self, hash: u32) -> usize {
        let count = self.segments.len();
        let place = (hash >> LINE_BITS) as usize;
        let wide = place & self.mask;
        if wide < count { wide } else { place & (self.mask >> 1) }
    }

    /// Must be called after the number of segments has changed.
    fn set_mask(&mut self) {
        self.mask = (2 << self.segments.len().ilog2()) - 1;
    }
}

#[inline]
const fn line_of(hash: u32) -> usize {
    hash as usize % LINES
}

#[inline]
const fn tag_of(hash: u32) -> u16 {
    (hash >> 16) as u16
}

fn slots_of(segment: &Segment) -> impl Iterator<Item = u32> {
    segment.iter().flat_map(Line::filed)
}

fn place(segment: &mut Segment, hash: u32, slot: u32) -> Result<(), Crowded> {
    let home = line_of(hash);
    let steps = (0..LINES).find(|step| segment[(home + step) % LINES].has_room()).ok_or(Crowded)?;
    for step in 0..steps {
        segment[(home + step) % LINES].overflow += 1;
    }
    segment[(home + steps) % LINES].put(tag_of(hash), slot);
    Ok(())
}

fn displace(segment: &mut Segment, hash: u32, slot: u32) -> bool {
    let home = line_of(hash);
    for step in 0..LINES {
        let line = &mut segment[(home + step) % LINES];
        let way = (0..WAYS).find(|&way| line.used & (1 << way) != 0 && line.slots[way] == slot);
        if let Some(way) = way {
            line.used &= !(1 << way);
            for passed in 0..step {
                segment[(home + passed) % LINES].overflow -= 1;
            }
            return true;
        }
        if line.overflow == 0 {
            return false;
        }
    }
    false
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
