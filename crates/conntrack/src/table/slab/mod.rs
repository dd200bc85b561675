//! Storage of the entries: chunks that never move, so growth copies nothing.

mod forwardings;
mod side_array;

use std::ops::{Index, IndexMut};
use std::time::Duration;

use flow::{KeyedPacket, Tallied, Tally, Timestamp};

use self::forwardings::Forwardings;
use self::side_array::SideArray;
use crate::connection::{Head, Status};
use crate::expect::Claim;
use crate::helper::AttachedHelper;
use crate::nat::{Pool, Translation};
use crate::proto::State;
use crate::proto::tcp::Relearning;
use crate::replication::DirtyList;
use crate::seqadj::Shift;
use crate::syn_proxy::Proxied;
use crate::table::entry::Entry;
use crate::tunnels::Part;
use crate::{Counts, Labels, TimeoutPolicy};

/// Entries of a chunk; a chunk has 16 KiB.
const CHUNK: usize = 128;
/// The number of no slot.
const NONE: u32 = u32::MAX;
/// Flag of a slot number that is filed under the key of the connection's replies.
pub(crate) const SECOND: u32 = 1 << 31;

/// Entries by slot number. A connection keeps its slot as long as it lives.
#[derive(Debug)]
pub(crate) struct Slab {
    chunks: Vec<Box<[Entry; CHUNK]>>,
    /// First free slot; the others are linked through `Head::hash`. The slot that was freed
    /// last is used first, because it is the one most likely in cache.
    free: u32,
    len: usize,
    /// Counters and start of connections with accounting or timestamps.
    sides: SideArray<SideFacts>,
    /// The helpers of connections.
    helpers: SideArray<Box<AttachedHelper>>,
    /// The state of the SYN proxy for the connections that it has opened.
    proxied: SideArray<Box<Proxied>>,
    /// The labels of connections.
    labels: SideArray<Labels>,
    /// The claims of connections whose first packet is still being judged: one at most, or a
    /// few that wait.
    claims: Vec<(u32, Box<Claim>)>,
    /// The second keys of translated connections.
    translations: SideArray<Translation>,
    /// The shifts of the sequence numbers, by direction, of connections whose payload has
    /// changed in length. All of these have helpers.
    shifts: SideArray<[Shift; 2]>,
    /// The timeouts of connections that have their own.
    policies: SideArray<TimeoutPolicy>,
    /// The numbers learnt of connections that may have continued at another gateway.
    relearning: SideArray<Box<Relearning>>,
    /// The counts of connections that connections have a place in.
    tallied: SideArray<Vec<Tallied>>,
    /// The recorded forwarding decisions of connections that have any.
    pub forwardings: Forwardings,
    /// The bucket of the table, if packets of its connections may be steered to others.
    pub resteered_in: Option<u16>,
    /// The connections that a peer has to hear of.
    pub dirty: DirtyList,
}

/// Facts about a connection that are kept only if accounting or timestamps are on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideFacts {
    /// By [`crate::Direction::index`].
    pub counts: [Counts; 2],
    pub opened: Timestamp,
}

impl SideFacts {
    /// The facts of a connection that was opened this long ago.
    pub fn with_age(counts: [Counts; 2], age: Duration, now: Timestamp) -> Self {
        // The clock of this machine may have begun later. Then the numbers wrap round.
        let nanos = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        Self { counts, opened: Timestamp::from_nanos(now.as_nanos().wrapping_sub(nanos)) }
    }

    /// The time since the connection was opened.
    pub fn age(&self, now: Timestamp) -> Duration {
        Duration::from_nanos(now.as_nanos().wrapping_sub(self.opened.as_nanos()))
    }
}

impl Slab {
    pub fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: NONE,
            len: 0,
            sides: SideArray::new(),
            helpers: SideArray::new(),
            proxied: SideArray::new(),
            labels: SideArray::new(),
            claims: Vec::new(),
            translations: SideArray::new(),
            shifts: SideArray::new(),
            policies: SideArray::new(),
            relearning: SideArray::new(),
            tallied: SideArray::new(),
            forwardings: Forwardings::new(),
            resteered_in: None,
            dirty: DirtyList::default(),
        }
    }

    /// Number of live entries.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Number of slots, live or free.
    pub fn slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    pub fn memory_bytes(&self) -> usize {
        self.chunks.len() * size_of::<[Entry; CHUNK]>()
            + self.chunks.capacity() * size_of::<usize>()
            + self.sides.memory_bytes()
            + self.helpers.memory_bytes()
            + self.helpers.len() * (size_of::<AttachedHelper>() + AttachedHelper::STATE_BYTES)
            + self.proxied.memory_bytes()
            + self.proxied.len() * size_of::<Proxied>()
            + self.labels.memory_bytes()
            + self.translations.memory_bytes()
            + self.shifts.memory_bytes()
            + self.policies.memory_bytes()
            + self.relearning.memory_bytes()
            + self.relearning.len() * size_of::<Relearning>()
            + self.tallied.memory_bytes()
            + self.forwardings.memory_bytes()
            + self.dirty.memory_bytes()
    }

    /// The entry in a slot, if it is live.
    pub fn live(&self, slot: u32) -> Option<&Entry> {
        let entry = self.chunks.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)?;
        entry.head.status.has(Status::LIVE).then_some(entry)
    }

    /// The entry that the next insertion will overwrite, for a prefetch.
    pub fn next_free(&self) -> Option<&Entry> {
        (self.free != NONE).then(|| &self[self.free])
    }

    #[inline]
    pub fn insert(&mut self, entry: Entry) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        let place = &mut self[slot];
        let next = place.head.hash;
        let note = place.body.note.of_next();
        *place = entry;
        place.body.note = note;
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
        self.forwardings.remove(slot);
        // Most connections have none of these.
        if status.has(Status::ACCOUNTED.with(Status::STAMPED)) {
            self.sides.remove(slot);
        }
        if status.has(Status::HAS_HELPER) {
            self.helpers.remove(slot);
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
        self.forget_relearning(slot);
        self.leave_tallies(slot);
    }

    /// True if the packet belongs to the connection that is filed here.
    #[inline]
    pub fn names(&self, filed: u32, packet: &KeyedPacket) -> bool {
        if filed & SECOND != 0 {
            return self.translations.get(filed & !SECOND).is_some_and(|it| it.reply() == *packet);
        }
        let head = &self[filed].head;
        head.key == packet.key && head.admits(packet.sender)
    }

    /// True if the flow with this [name](KeyedPacket::name) is filed here.
    pub fn is_named(&self, filed: u32, name: &KeyedPacket) -> bool {
        if filed & SECOND != 0 {
            let translation = self.translations.get(filed & !SECOND);
            return translation.is_some_and(|it| it.reply().is_named_by(name));
        }
        let head = &self[filed].head;
        let flow = KeyedPacket { key: head.key, sender: name.sender };
        head.admits(name.sender) && flow.is_named_by(name)
    }

    /// The hash of the key under which a slot is filed.
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

    /// The translation of a slot, if it has one, for a prefetch.
    pub fn translation_to_come(&self, slot: u32) -> Option<&Translation> {
        self.translations.get(slot)
    }

    /// The flows of both directions of a connection, with the low halves of their hashes.
    pub fn flows(&self, slot: u32) -> [(KeyedPacket, u64); 2] {
        let head = &self[slot].head;
        let original = KeyedPacket { key: head.key, sender: head.originator() };
        let (reply, hash) = match self.translation(slot) {
            Some(translation) => (translation.reply(), translation.hash),
            None => (KeyedPacket { sender: original.sender.opposite(), ..original }, head.hash),
        };
        [(original, head.hash.into()), (reply, hash.into())]
    }

    /// Sets the translation of a connection.
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

    /// Notes that an alias may lead replies to a translated connection.
    pub fn note_alias(&mut self, slot: u32) {
        if let Some(translation) = self.translations.get_mut(slot) {
            translation.may_have_alias = true;
        }
    }

    /// Records the pool of a translated connection's port.
    pub fn set_pool(&mut self, slot: u32, pool: Pool) {
        if let Some(translation) = self.translations.get_mut(slot) {
            translation.pool = Some(pool);
        }
    }

    /// Records that the port of a translated connection was given back.
    pub fn set_uncounted(&mut self, slot: u32) {
        if let Some(translation) = self.translations.get_mut(slot) {
            (translation.pool, translation.is_port_filed) = (None, false);
        }
    }

    /// The translated connections whose ports are counted, with their pools.
    pub fn pools(&self) -> impl Iterator<Item = (u32, Pool)> {
        self.translations.iter().filter_map(|(slot, it)| Some((slot, it.pool?)))
    }

    /// Gives a connection its place in a count of connections.
    pub fn add_tallied(&mut self, slot: u32, tallied: Tallied) {
        match self.tallied.get_mut(slot) {
            Some(all) => {
                // Rules that were exchanged ask no more.
                all.retain(|it| !it.is_over());
                all.push(tallied);
            }
            None => self.tallied.insert(slot, vec![tallied]),
        }
    }

    /// True if a connection has a place in this count.
    pub fn is_tallied(&self, slot: u32, tally: &Tally) -> bool {
        self.tallied.get(slot).is_some_and(|all| all.iter().any(|it| it.is_of(tally)))
    }

    /// Gives up the places of a connection in all counts.
    #[inline]
    pub fn leave_tallies(&mut self, slot: u32) {
        if self.tallied.len() > 0 {
            self.tallied.remove(slot);
        }
    }

    /// Attaches a helper to a connection.
    pub fn attach_helper(&mut self, slot: u32, helper: AttachedHelper) {
        self[slot].head.status.set(Status::HAS_HELPER);
        self.helpers.insert(slot, Box::new(helper));
    }

    /// The helper of a connection, unless it has none or the helper has left.
    pub fn helper(&self, slot: u32) -> Option<&AttachedHelper> {
        let has_helper = self[slot].head.status.has(Status::HAS_HELPER);
        let helper = has_helper.then(|| self.helpers.get(slot)).flatten()?;
        helper.state.is_some().then_some(helper)
    }

    /// The helper of a connection that has or had one.
    pub fn attached(&self, slot: u32) -> Option<&AttachedHelper> {
        self.helpers.get(slot).map(Box::as_ref)
    }

    /// A connection that has a helper, with it.
    pub fn helper_mut(&mut self, slot: u32) -> Option<(&mut Head, &mut AttachedHelper)> {
        let head = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK].head;
        Some((head, self.helpers.get_mut(slot)?))
    }

    /// Sets the state of the SYN proxy for a connection.
    pub fn set_proxied(&mut self, slot: u32, proxied: Proxied) {
        self[slot].head.status.set(Status::PROXIED);
        self.proxied.insert(slot, Box::new(proxied));
    }

    /// True if the SYN proxy has opened one of the connections.
    pub const fn has_proxied(&self) -> bool {
        self.proxied.len() > 0
    }

    /// The state of the SYN proxy for a connection.
    pub fn proxied(&self, slot: u32) -> Option<&Proxied> {
        self.proxied.get(slot).map(Box::as_ref)
    }

    /// The tunnel's part that an entry stands for; `None` if it is no part of a tunnel.
    pub fn part(&self, slot: u32) -> Option<&Part> {
        let Entry { head, body } = &self[slot];
        match &body.state {
            // The first cache line excludes most entries.
            _ if !head.key.is_tunnel() => None,
            State::Tunnel(part) => Some(part),
            _ => None,
        }
    }

    /// The mark of a connection.
    pub fn mark(&self, slot: u32) -> u32 {
        self.part(slot).map_or(self[slot].head.mark, |part| part.tunnel.mark())
    }

    /// Sets the mark of a connection.
    pub fn set_mark(&mut self, slot: u32, mark: u32) {
        self[slot].head.mark = mark;
        // Rules and routes may have looked at the old mark.
        self.forwardings.remove(slot);
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

    /// Sets the labels of a connection.
    pub fn set_labels(&mut self, slot: u32, labels: Labels) {
        if let Some(part) = self.part(slot) {
            return part.tunnel.set_labels(labels);
        }
        // Rules may have looked at the old labels.
        self.forwardings.remove(slot);
        let status = &mut self[slot].head.status;
        if labels.is_empty() {
            status.clear(Status::LABELLED);
            self.labels.remove(slot);
        } else {
            status.set(Status::LABELLED);
            self.labels.insert(slot, labels);
        }
    }

    /// Keeps a claim until its connection is confirmed or withdrawn.
    pub fn keep_claim(&mut self, slot: u32, claim: Box<Claim>) {
        self.claims.push((slot, claim));
    }

    /// The claim of a connection.
    pub fn claim(&self, slot: u32) -> Option<&Claim> {
        self.claims.iter().find(|(of, _)| *of == slot).map(|(_, claim)| &**claim)
    }

    /// True if the numbers of one of the connections are shifted.
    pub const fn has_shifts(&self) -> bool {
        self.shifts.len() > 0
    }

    /// The shifts of a connection's numbers.
    pub fn shifts(&self, slot: u32) -> Option<&[Shift; 2]> {
        self.shifts.get(slot)
    }

    /// Changes the shifts of a connection that has a helper.
    pub fn shift(&mut self, slot: u32, change: impl FnOnce(&mut [Shift; 2])) {
        let mut shifts = self.shifts.get(slot).copied().unwrap_or_default();
        change(&mut shifts);
        self.shifts.insert(slot, shifts);
    }

    /// The numbers of a connection are no longer shifted.
    pub fn drop_shifts(&mut self, slot: u32) {
        self.shifts.remove(slot);
    }

    /// The own timeouts of a connection. One test if no connection has any.
    #[inline]
    pub fn policy(&self, slot: u32) -> Option<&TimeoutPolicy> {
        self.policies.get(slot)
    }

    /// Sets the own timeouts of a connection.
    pub fn set_policy(&mut self, slot: u32, policy: TimeoutPolicy) {
        self.policies.insert(slot, policy);
    }

    /// The numbers learnt of a connection that may have continued at another gateway.
    pub fn relearning(&self, slot: u32) -> Relearning {
        self.relearning.get(slot).map_or_else(Relearning::default, |heard| **heard)
    }

    pub fn set_relearning(&mut self, slot: u32, heard: Relearning) {
        match self.relearning.get_mut(slot) {
            _ if heard.is_empty() => self.forget_relearning(slot),
            Some(place) => **place = heard,
            None => self.relearning.insert(slot, Box::new(heard)),
        }
    }

    #[inline]
    pub fn forget_relearning(&mut self, slot: u32) {
        if self.relearning.len() > 0 {
            self.relearning.remove(slot);
        }
    }

    /// Removes and returns the claim of a connection.
    pub fn take_claim(&mut self, slot: u32) -> Option<Box<Claim>> {
        let at = self.claims.iter().position(|(of, _)| *of == slot)?;
        Some(self.claims.swap_remove(at).1)
    }

    /// Counters and start of a connection, if they are kept.
    pub fn side(&self, slot: u32) -> Option<&SideFacts> {
        self.sides.get(slot)
    }

    pub fn side_mut(&mut self, slot: u32) -> Option<&mut SideFacts> {
        self.sides.get_mut(slot)
    }

    /// Begins to keep counters and start of a connection.
    pub fn begin_side(&mut self, slot: u32, opened: Timestamp) {
        self.sides.insert(slot, SideFacts { counts: Default::default(), opened });
    }

    /// Sets the counters and start of a connection.
    pub fn set_side(&mut self, slot: u32, side: SideFacts) {
        self.sides.insert(slot, side);
    }

    /// Takes away what lies beside a connection and what a newer record of it may not have.
    pub fn undress(&mut self, slot: u32) {
        self.sides.remove(slot);
        self.policies.remove(slot);
        self.helpers.remove(slot);
        self.shifts.remove(slot);
        self.proxied.remove(slot);
        self.forwardings.remove(slot);
        let status = &mut self[slot].head.status;
        status.clear(Status::HAS_HELPER);
        status.clear(Status::PROXIED);
    }

    /// Gives the memory back if no entry is live.
    pub fn shrink(&mut self) {
        if self.len == 0 {
            let mut dirty = std::mem::take(&mut self.dirty);
            dirty.forget_slots();
            *self = Self { dirty, ..Self::new() };
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
