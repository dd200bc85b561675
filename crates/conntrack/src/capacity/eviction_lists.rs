//! The candidates for eviction, oldest first.
//!
//! The links are in separate chunks, by slot number, so an entry keeps its two cache lines.
//! Filing a connection touches its links and those of one or two neighbours, however many
//! connections there are.

use flow::Prefetch;

use crate::connection::Status;
use crate::proto::State;

/// Links of a chunk: as many as a chunk of the slab has entries.
const CHUNK: usize = 128;
/// No slot.
const NO_SLOT: u32 = u32::MAX;
/// No list.
const NO_LIST: u16 = u16::MAX;

/// The rank of a candidate for eviction; the least loss comes first.
///
/// The kernel evicts any connection near the new one that is not assured, and closing ones once
/// the table is nearly full. Here the candidates have an order, because their loss is not the
/// same. Most floods consist of unanswered connections, and a real sender of one tries again.
/// An answered connection is remembered by its other end: a handshake in progress, a query. A
/// flood whose target answers consists of those. So of these two ranks the one with [more
/// connections](EvictionLists::first_of) is evicted from, and the real connections of the other
/// stay. A closing connection was a complete one of a real user and may still carry data in one
/// direction, so it is evicted last. Within a rank the oldest goes first: it has had most time
/// to be answered, so real connections get through while a flood runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub(crate) enum Rank {
    /// No reply was seen.
    Unreplied,
    /// A reply was seen, but not enough to be assured.
    Unassured,
    /// It was assured, and its ends have begun to close it.
    Closing,
}

impl Rank {
    pub const ALL: [Self; 3] = [Self::Unreplied, Self::Unassured, Self::Closing];

    /// The rank of a connection; `None` if it must not be evicted.
    pub fn of(status: Status, state: &State) -> Option<Self> {
        if status.has(Status::ASSURED) {
            state.is_closing().then_some(Self::Closing)
        } else if status.has(Status::SEEN_REPLY) {
            Some(Self::Unassured)
        } else {
            Some(Self::Unreplied)
        }
    }
}

/// Lists of slots, each in the order in which its slots were filed.
#[derive(Debug, Default)]
pub(crate) struct EvictionLists {
    /// Allocated on demand: a connection that was never in a list needs no links.
    chunks: Vec<Option<Box<Chunk>>>,
    lists: Vec<Ends>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
    /// Number of slots.
    count: u32,
}

impl Ends {
    const NONE: Self = Self { oldest: NO_SLOT, newest: NO_SLOT, count: 0 };
}

#[derive(Debug)]
struct Chunk {
    links: [Link; CHUNK],
    /// The list that contains the slot, `NO_LIST` if there is none.
    lists: [u16; CHUNK],
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

impl EvictionLists {
    /// Memory held, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.iter().flatten().count() * size_of::<Chunk>()
            + self.chunks.capacity() * size_of::<usize>()
            + self.lists.capacity() * size_of::<Ends>()
    }

    /// The slot that was filed first in `list`.
    pub fn oldest(&self, list: u16) -> Option<u32> {
        let ends = self.lists.get(usize::from(list))?;
        (ends.oldest != NO_SLOT).then_some(ends.oldest)
    }

    /// The connection of a group that is evicted first. The lists of the group begin with
    /// `first`, one for each [`Rank`]; others may follow them.
    #[inline]
    pub fn first_of(&self, first: u16) -> Option<u32> {
        let list = |rank: Rank| first + rank as u16;
        let count = |rank| self.lists.get(usize::from(list(rank))).map_or(0, |ends| ends.count);
        let more = if count(Rank::Unassured) > count(Rank::Unreplied) {
            Rank::Unassured
        } else {
            Rank::Unreplied
        };
        self.oldest(list(more)).or_else(|| self.oldest(list(Rank::Closing)))
    }

    /// Prefetches the links of a slot.
    #[inline]
    pub fn prefetch(&self, slot: u32, prefetch: impl Prefetch) {
        if let Some(Some(chunk)) = self.chunks.get(slot as usize / CHUNK) {
            prefetch.prefetch(&chunk.links[slot as usize % CHUNK]);
            prefetch.prefetch(&chunk.lists[slot as usize % CHUNK]);
        }
    }

    /// The slots of a list, oldest first.
    pub fn slots(&self, list: u16) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest(list), |&slot| {
            let chunk = self.chunks[slot as usize / CHUNK].as_ref()?;
            let newer = chunk.links[slot as usize % CHUNK].newer;
            (newer != NO_SLOT).then_some(newer)
        })
    }

    /// Files a slot as the newest of `list`; `None` takes it out of its list. Nothing happens
    /// if it is in that list already. True if a list has got its first slot or lost its last.
    pub fn file(&mut self, slot: u32, list: Option<u16>) -> bool {
        let list = list.unwrap_or(NO_LIST);
        let (chunk, at) = (slot as usize / CHUNK, slot as usize % CHUNK);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let links = match &mut self.chunks[chunk] {
            Some(links) => links,
            None if list == NO_LIST => return false,
            none => none.insert(Box::default()),
        };
        let before = std::mem::replace(&mut links.lists[at], list);
        if before == list {
            return false;
        }
        let link = links.links[at];
        let emptied = before != NO_LIST && self.unlink(link, before);
        let begun = list != NO_LIST && self.append(slot, list);
        emptied || begun
    }

    /// True if the list was empty.
    fn append(&mut self, slot: u32, list: u16) -> bool {
        let list = usize::from(list);
        if self.lists.len() <= list {
            self.lists.resize(list + 1, Ends::NONE);
        }
        self.lists[list].count += 1;
        let older = std::mem::replace(&mut self.lists[list].newest, slot);
        match older {
            NO_SLOT => self.lists[list].oldest = slot,
            older => self.link(older).newer = slot,
        }
        *self.link(slot) = Link { older, newer: NO_SLOT };
        older == NO_SLOT
    }

    /// True if the list is empty now.
    fn unlink(&mut self, Link { older, newer }: Link, list: u16) -> bool {
        let list = usize::from(list);
        self.lists[list].count -= 1;
        match older {
            NO_SLOT => self.lists[list].oldest = newer,
            older => self.link(older).newer = newer,
        }
        match newer {
            NO_SLOT => self.lists[list].newest = older,
            newer => self.link(newer).older = older,
        }
        (older, newer) == (NO_SLOT, NO_SLOT)
    }

    /// The links of a slot in a list.
    fn link(&mut self, slot: u32) -> &mut Link {
        let chunk = self.chunks[slot as usize / CHUNK].get_or_insert_default();
        &mut chunk.links[slot as usize % CHUNK]
    }
}

impl Default for Chunk {
    fn default() -> Self {
        let link = Link { older: NO_SLOT, newer: NO_SLOT };
        Self { links: [link; CHUNK], lists: [NO_LIST; CHUNK] }
    }
}
