//! Where the entries lie: chunks that never move, so that growth copies nothing.

mod by_slot;
mod recorded;

use std::ops::{Index, IndexMut};
use std::time::Duration;

use flow::{KeyedPacket, Timestamp};

use self::by_slot::BySlot;
use self::recorded::Recorded;
use crate::entry::{Entry, Head, Status};
use crate::expect::Claim;
use crate::helper::Watcher;
use crate::limits::Pool;
use crate::proto::State;
use crate::seqadj::Shift;
use crate::syn_proxy::Proxied;
use crate::tunnels::Part;
use crate::{Counts, Labels, TimeoutPolicy};

/// Entries of a chunk: 16 KiB are added at a time.
const CHUNK: usize = 128;
/// No slot.
const NONE: u32 = u32::MAX;
/// Marks a slot number that is filed under the key of the connection's replies.
pub(crate) const SECOND: u32 = 1 << 31;

/// Entries by slot number. A slot is stable as long as its entry lives.
#[derive(Debug)]
pub(crate) struct Slab {
    chunks: Vec<Box<[Entry; CHUNK]>>,
    /// First free slot; the others follow through `Head::hash`. Last freed is
    /// first used, because it is the one most likely in cache.
    free: u32,
    len: usize,
    /// Of connections with accounting or timestamps.
    sides: BySlot<SideFacts>,
    /// Helpers of the connections that have one.
    watchers: BySlot<Box<Watcher>>,
    /// What the SYN proxy knows of those that it has opened.
    proxied: BySlot<Box<Proxied>>,
    /// Labels of those that have some.
    labels: BySlot<Labels>,
    /// What was expected of those whose first packet is still being judged: one at most,
    /// or a few that wait.
    claims: Vec<(u32, Claim)>,
    /// Second keys of those that are translated.
    translations: BySlot<Translation>,
    /// Of those whose payload was changed in its length: by how much their numbers are shifted,
    /// by direction. All of them have helpers.
    shifts: BySlot<[Shift; 2]>,
    /// Of those that have timeouts of their own.
    policies: BySlot<TimeoutPolicy>,
    /// How packets of those are forwarded for which that was recorded.
    pub recorded: Recorded,
}

/// What is kept of a translated connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation {
    /// The flow of its packets as they leave, with the originator as sender. Replies have its
    /// key and the other sender.
    pub leaves_as: KeyedPacket,
    /// Low half of the hash of that key.
    pub hash: u32,
    /// The interface whose address it has borrowed.
    pub interface: Option<u32>,
    /// Of which ports it has one, if it is counted among them.
    pub pool: Option<Pool>,
    /// When it was chosen, in units of 2^24 ns, which come round after years.
    since: u32,
}

/// log2 of the unit of [`Translation::since`] in nanoseconds, about 17 ms.
const SINCE_SHIFT: u32 = 24;

impl Translation {
    /// One that is chosen now and is not counted.
    pub const fn new(
        leaves_as: KeyedPacket,
        hash: u32,
        interface: Option<u32>,
        now: Timestamp,
    ) -> Self {
        let since = (now.as_nanos() >> SINCE_SHIFT) as u32;
        Self { leaves_as, hash, interface, pool: None, since }
    }

    /// How long it has been there.
    pub const fn age(&self, now: Timestamp) -> Duration {
        let units = ((now.as_nanos() >> SINCE_SHIFT) as u32).wrapping_sub(self.since);
        Duration::from_nanos((units as u64) << SINCE_SHIFT)
    }

    /// The flow of the replies.
    pub const fn reply(&self) -> KeyedPacket {
        let KeyedPacket { key, sender } = self.leaves_as;
        KeyedPacket { key, sender: sender.opposite() }
    }
}

/// What is kept of a connection only if accounting or timestamps are on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideFacts {
    /// By [`crate::Direction::index`].
    pub counts: [Counts; 2],
    pub opened: Timestamp,
}

impl Slab {
    pub const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: NONE,
            len: 0,
            sides: BySlot::new(),
            watchers: BySlot::new(),
            proxied: BySlot::new(),
            labels: BySlot::new(),
            claims: Vec::new(),
            translations: BySlot::new(),
            shifts: BySlot::new(),
            policies: BySlot::new(),
            recorded: Recorded::new(),
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
            + self.sides.memory_bytes()
            + self.watchers.memory_bytes()
            + self.watchers.len() * (size_of::<Watcher>() + Watcher::STATE_BYTES)
            + self.proxied.memory_bytes()
            + self.proxied.len() * size_of::<Proxied>()
            + self.labels.memory_bytes()
            + self.translations.memory_bytes()
            + self.shifts.memory_bytes()
            + self.policies.memory_bytes()
            + self.recorded.memory_bytes()
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
        let free = self.free;
        let head = &mut self[slot].head;
        let status = std::mem::take(&mut head.status);
        head.hash = free;
        self.free = slot;
        self.len -= 1;
        self.recorded.remove(slot);
        // Most connections have none of these.
        if status.has(Status::ACCOUNTED.with(Status::STAMPED)) {
            self.sides.remove(slot);
        }
        if status.has(Status::WATCHED) {
            self.watchers.remove(slot);
            self.shifts.remove(slot);
        }
        if status.has(Status::PROXIED) {
            self.proxied.remove(slot);
        }
        if status.has(Status::LABELLED) {
            self.labels.remove(slot);
        }
        if status.has(Status::TRANSLATED) {
            self.translations.remove(slot);
        }
        if self.policies.len() > 0 {
            self.policies.remove(slot);
        }
    }

    /// True if packets like this belong to what is filed here.
    #[inline]
    pub fn names(&self, filed: u32, packet: &KeyedPacket) -> bool {
        if filed & SECOND != 0 {
            return self.translations.get(filed & !SECOND).is_some_and(|it| it.reply() == *packet);
        }
        let head = &self[filed].head;
        head.key == packet.key && head.admits(packet.sender)
    }

    /// True if what has this [name](KeyedPacket::name) belongs to what is filed here.
    pub fn is_named(&self, filed: u32, name: &KeyedPacket) -> bool {
        if filed & SECOND != 0 {
            let translation = self.translations.get(filed & !SECOND);
            return translation.is_some_and(|it| it.reply().is_named_by(name));
        }
        let head = &self[filed].head;
        let flow = KeyedPacket { key: head.key, sender: name.sender };
        head.admits(name.sender) && flow.is_named_by(name)
    }

    /// The hash under which a slot is filed.
    pub fn hash_of(&self, filed: u32) -> u32 {
        if filed & SECOND != 0 {
            return self.translations.get(filed & !SECOND).map_or(0, |it| it.hash);
        }
        self[filed].head.hash
    }

    /// True if one of the connections is translated.
    pub const fn has_translated(&self) -> bool {
        self.translations.len() > 0
    }

    /// The translation of a connection.
    #[inline]
    pub fn translation(&self, slot: u32) -> Option<&Translation> {
        let is_translated = self[slot].head.status.has(Status::TRANSLATED);
        is_translated.then(|| self.translations.get(slot)).flatten()
    }

    /// The translation whose second key is filed here.
    pub fn second(&self, filed: u32) -> Option<&Translation> {
        self.translations.get(filed & !SECOND)
    }

    /// The memory of a translation, if there is one, to have it in cache.
    pub fn translation_to_come(&self, slot: u32) -> Option<&Translation> {
        self.translations.get(slot)
    }

    /// Gives a connection this translation and no other.
    pub fn set_translation(&mut self, slot: u32, translation: Option<Translation>) {
        let status = &mut self[slot].head.status;
        match translation {
            None => {
                status.clear(Status::TRANSLATED);
                self.translations.remove(slot);
            }
            Some(translation) => {
                status.set(Status::TRANSLATED);
                self.translations.insert(slot, translation);
            }
        }
    }

    /// Notes of which ports a translated connection has one.
    pub fn set_pool(&mut self, slot: u32, pool: Option<Pool>) {
        if let Some(translation) = self.translations.get_mut(slot) {
            translation.pool = pool;
        }
    }

    /// The translated connections whose ports are counted, with those.
    pub fn pools(&self) -> impl Iterator<Item = (u32, Pool)> {
        self.translations.iter().filter_map(|(slot, it)| Some((slot, it.pool?)))
    }

    /// Has a connection watched.
    pub fn watch(&mut self, slot: u32, watcher: Watcher) {
        self[slot].head.status.set(Status::WATCHED);
        self.watchers.insert(slot, Box::new(watcher));
    }

    /// The helper of a connection that is watched, unless it has left.
    pub fn watcher(&self, slot: u32) -> Option<&Watcher> {
        let is_watched = self[slot].head.status.has(Status::WATCHED);
        let watcher = is_watched.then(|| self.watchers.get(slot)).flatten()?;
        watcher.state.is_some().then_some(watcher)
    }

    /// A connection that is watched, with its helper.
    pub fn watched_mut(&mut self, slot: u32) -> Option<(&mut Head, &mut Watcher)> {
        let head = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK].head;
        Some((head, self.watchers.get_mut(slot)?))
    }

    /// Keeps what the SYN proxy has to know of a connection.
    pub fn set_proxied(&mut self, slot: u32, proxied: Proxied) {
        self[slot].head.status.set(Status::PROXIED);
        self.proxied.insert(slot, Box::new(proxied));
    }

    /// True if the SYN proxy has opened one of the connections.
    pub const fn has_proxied(&self) -> bool {
        self.proxied.len() > 0
    }

    /// What the SYN proxy knows of a connection.
    pub fn proxied(&self, slot: u32) -> Option<&Proxied> {
        self.proxied.get(slot).map(Box::as_ref)
    }

    /// The part that an entry is of a tunnel, if it is one.
    pub fn part(&self, slot: u32) -> Option<&Part> {
        let Entry { head, body } = &self[slot];
        match &body.state {
            // The first line tells most that they are none.
            _ if !head.key.is_tunnel() => None,
            State::Tunnel(part) => Some(part),
            _ => None,
        }
    }

    /// The mark of a connection.
    pub fn mark(&self, slot: u32) -> u32 {
        self.part(slot).map_or(self[slot].head.mark, |part| part.tunnel.mark())
    }

    /// Gives a connection a mark.
    pub fn set_mark(&mut self, slot: u32, mark: u32) {
        self[slot].head.mark = mark;
        // Rules and routes may have decided by it.
        self.recorded.remove(slot);
        if let Some(part) = self.part(slot) {
            part.tunnel.set_mark(mark);
        }
    }

    /// The labels of a connection.
    pub fn labels(&self, slot: u32) -> Labels {
        if let Some(part) = self.part(slot) {
            return part.tunnel.labels();
        }
        let is_labelled = self[slot].head.status.has(Status::LABELLED);
        is_labelled.then(|| self.labels.get(slot)).flatten().copied().unwrap_or(Labels::NONE)
    }

    /// Gives a connection these labels and no others.
    pub fn set_labels(&mut self, slot: u32, labels: Labels) {
        if let Some(part) = self.part(slot) {
            return part.tunnel.set_labels(labels);
        }
        // Rules may have decided by them.
        self.recorded.remove(slot);
        let status = &mut self[slot].head.status;
        if labels.is_empty() {
            status.clear(Status::LABELLED);
            self.labels.remove(slot);
        } else {
            status.set(Status::LABELLED);
            self.labels.insert(slot, labels);
        }
    }

    /// Keeps what was expected until it is known what becomes of a connection.
    pub fn keep_claim(&mut self, slot: u32, claim: Claim) {
        self.claims.push((slot, claim));
    }

    /// What is kept of that.
    pub fn claim(&self, slot: u32) -> Option<&Claim> {
        self.claims.iter().find(|(of, _)| *of == slot).map(|(_, claim)| claim)
    }

    /// True if the numbers of one of the connections are shifted.
    pub const fn has_shifts(&self) -> bool {
        self.shifts.len() > 0
    }

    /// The shifts of a connection's numbers.
    pub fn shifts(&self, slot: u32) -> Option<&[Shift; 2]> {
        self.shifts.get(slot)
    }

    /// The shifts of a connection that has a helper, to change them.
    pub fn shift(&mut self, slot: u32, change: impl FnOnce(&mut [Shift; 2])) {
        let mut shifts = self.shifts.get(slot).copied().unwrap_or_default();
        change(&mut shifts);
        self.shifts.insert(slot, shifts);
    }

    /// The timeouts that a connection has of its own. One test while none has.
    #[inline]
    pub fn policy(&self, slot: u32) -> Option<&TimeoutPolicy> {
        self.policies.get(slot)
    }

    /// Gives a connection timeouts of its own.
    pub fn set_policy(&mut self, slot: u32, policy: TimeoutPolicy) {
        self.policies.insert(slot, policy);
    }

    /// Hands out what is kept of that.
    pub fn take_claim(&mut self, slot: u32) -> Option<Claim> {
        let at = self.claims.iter().position(|(of, _)| *of == slot)?;
        Some(self.claims.swap_remove(at).1)
    }

    /// What accounting and timestamps have kept of a connection.
    pub fn side(&self, slot: u32) -> Option<&SideFacts> {
        self.sides.get(slot)
    }

    pub fn side_mut(&mut self, slot: u32) -> Option<&mut SideFacts> {
        self.sides.get_mut(slot)
    }

    /// Begins to keep what accounting and timestamps need of a connection.
    pub fn begin_side(&mut self, slot: u32, opened: Timestamp) {
        self.sides.insert(slot, SideFacts { counts: Default::default(), opened });
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
