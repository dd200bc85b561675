//! Where the entries lie: chunks that never move, so that growth copies nothing.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use flow::Timestamp;

use crate::entry::{Entry, Head, Status};
use crate::helper::Watcher;
use crate::syn_proxy::Proxied;
use crate::{Counts, Labels};

/// Entries of a chunk: 16 KiB are added at a time.
const CHUNK: usize = 128;
/// No slot.
const NONE: u32 = u32::MAX;

/// Entries by slot number. A slot is stable as long as its entry lives.
#[derive(Debug)]
pub(crate) struct Slab {
    chunks: Vec<Box<[Entry; CHUNK]>>,
    /// First free slot; the others follow through `Head::hash`. Last freed is
    /// first used, because it is the one most likely in cache.
    free: u32,
    len: usize,
    /// Facts that are kept on demand, by the same slot numbers.
    sides: Vec<Option<Box<[SideFacts; CHUNK]>>>,
    /// Helpers of the connections that have one, by slot.
    watchers: BTreeMap<u32, Watcher>,
    /// What the SYN proxy knows of connections, by slot: where it is always on, each
    /// packet looks here.
    proxied: Vec<Option<Box<Proxied>>>,
    proxied_len: usize,
    /// Labels, by slot; empty while no connection has any.
    labels: Vec<Option<Box<[Labels; CHUNK]>>>,
    labelled: usize,
}

/// What is kept of a connection only if accounting or timestamps are on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SideFacts {
    /// By [`crate::Direction::index`].
    pub counts: [Counts; 2],
    pub opened: Timestamp,
}

impl SideFacts {
    /// Forgets the previous connection of the slot.
    pub fn restart(&mut self, now: Timestamp) {
        *self = Self { counts: Default::default(), opened: now };
    }
}

impl Slab {
    pub const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: NONE,
            len: 0,
            sides: Vec::new(),
            watchers: BTreeMap::new(),
            proxied: Vec::new(),
            proxied_len: 0,
            labels: Vec::new(),
            labelled: 0,
        }
    }

    /// Entries that live.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Slots that exist, live or free.
    pub fn slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    pub fn memory_bytes(&self) -> usize {
        self.chunks.len() * size_of::<[Entry; CHUNK]>()
            + self.chunks.capacity() * size_of::<usize>()
            + self.sides.iter().flatten().count() * size_of::<[SideFacts; CHUNK]>()
            + self.sides.capacity() * size_of::<usize>()
            + self.watchers.len() * (size_of::<(u32, Watcher)>() + Watcher::STATE_BYTES)
            + self.proxied.capacity() * size_of::<Option<Box<Proxied>>>()
            + self.proxied_len * size_of::<Proxied>()
            + self.labels.iter().flatten().count() * size_of::<[Labels; CHUNK]>()
            + self.labels.capacity() * size_of::<usize>()
    }

    /// The entry in a slot, if one lives there.
    pub fn live(&self, slot: u32) -> Option<&Entry> {
        let entry = self.chunks.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)?;
        entry.head.status.has(Status::LIVE).then_some(entry)
    }

    /// The entry that the next insertion will overwrite, to have it in cache.
    pub fn next_free(&self) -> Option<&Entry> {
        (self.free != NONE).then(|| &self[self.free])
    }

    pub fn insert(&mut self, entry: Entry) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        let place = &mut self[slot];
        let next = place.head.hash;
        *place = entry;
        self.free = next;
        self.len += 1;
        slot
    }

    pub fn remove(&mut self, slot: u32) {
        if self[slot].head.status.has(Status::LABELLED) {
            self.set_labels(slot, Labels::NONE);
        }
        let free = self.free;
        let head = &mut self[slot].head;
        let (watched, proxied) =
            (head.status.has(Status::WATCHED), head.status.has(Status::PROXIED));
        head.status = Status::default();
        head.hash = free;
        self.free = slot;
        self.len -= 1;
        if watched {
            self.watchers.remove(&slot);
        }
        if proxied {
            self.proxied[slot as usize] = None;
            self.proxied_len -= 1;
        }
    }

    /// Has a connection watched.
    pub fn watch(&mut self, slot: u32, watcher: Watcher) {
        self[slot].head.status.set(Status::WATCHED);
        self.watchers.insert(slot, watcher);
    }

    /// The helper of a connection that is watched.
    pub fn watcher(&self, slot: u32) -> Option<&Watcher> {
        if self[slot].head.status.has(Status::WATCHED) { self.watchers.get(&slot) } else { None }
    }

    /// A connection that is watched, with its helper.
    pub fn watched_mut(&mut self, slot: u32) -> Option<(&mut Head, &mut Watcher)> {
        let head = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK].head;
        Some((head, self.watchers.get_mut(&slot)?))
    }

    /// Keeps what the SYN proxy has to know of a connection.
    pub fn set_proxied(&mut self, slot: u32, proxied: Proxied) {
        self[slot].head.status.set(Status::PROXIED);
        let slot = slot as usize;
        if self.proxied.len() <= slot {
            self.proxied.resize_with(slot + 1, || None);
        }
        let before = self.proxied[slot].replace(Box::new(proxied));
        self.proxied_len += usize::from(before.is_none());
    }

    /// True if the SYN proxy has opened one of the connections.
    pub const fn has_proxied(&self) -> bool {
        self.proxied_len > 0
    }

    /// What the SYN proxy knows of a connection.
    pub fn proxied(&self, slot: u32) -> Option<&Proxied> {
        self.proxied.get(slot as usize)?.as_deref()
    }

    /// The labels of a connection.
    pub fn labels(&self, slot: u32) -> Labels {
        if !self[slot].head.status.has(Status::LABELLED) {
            return Labels::NONE;
        }
        let chunk = self.labels.get(slot as usize / CHUNK).and_then(Option::as_ref);
        chunk.map_or(Labels::NONE, |chunk| chunk[slot as usize % CHUNK])
    }

    /// Gives a connection these labels and no others. The memory is given back with the
    /// last label of any connection.
    pub fn set_labels(&mut self, slot: u32, labels: Labels) {
        let status = &mut self[slot].head.status;
        let before = status.has(Status::LABELLED);
        status.clear(Status::LABELLED);
        status.set(Status::when(!labels.is_empty(), Status::LABELLED));
        self.labelled -= usize::from(before);
        self.labelled += usize::from(!labels.is_empty());
        if self.labelled == 0 {
            self.labels = Vec::new();
        }
        if labels.is_empty() {
            return;
        }
        let at = slot as usize / CHUNK;
        if self.labels.len() <= at {
            self.labels.resize_with(at + 1, || None);
        }
        let chunk = self.labels[at].get_or_insert_with(|| Box::new([Labels::NONE; CHUNK]));
        chunk[slot as usize % CHUNK] = labels;
    }

    /// The facts kept on demand, if any connection of this chunk had them kept.
    pub fn side(&self, slot: u32) -> Option<&SideFacts> {
        let chunk = self.sides.get(slot as usize / CHUNK)?.as_ref()?;
        Some(&chunk[slot as usize % CHUNK])
    }

    pub fn side_mut(&mut self, slot: u32) -> &mut SideFacts {
        let at = slot as usize / CHUNK;
        if self.sides.len() <= at {
            self.sides.resize_with(at + 1, || None);
        }
        let chunk = self.sides[at].get_or_insert_with(|| Box::new([SideFacts::default(); CHUNK]));
        &mut chunk[slot as usize % CHUNK]
    }

    /// Gives the memory back if nothing lives.
    pub fn shrink(&mut self) {
        if self.len == 0 {
            *self = Self::new();
        }
    }

    fn grow(&mut self) {
        let first = self.slots();
        let chunk: Box<[Entry]> = (0..CHUNK as u32)
            .map(|i| Entry::free(if i + 1 == CHUNK as u32 { NONE } else { first + i + 1 }))
            .collect();
        // The length is that of the range above, so the conversion can not fail.
        if let Ok(chunk) = chunk.try_into() {
            self.chunks.push(chunk);
            self.free = first;
        }
    }
}

impl Index<u32> for Slab {
    type Output = Entry;

    #[inline]
    fn index(&self, slot: u32) -> &Entry {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

impl IndexMut<u32> for Slab {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}
