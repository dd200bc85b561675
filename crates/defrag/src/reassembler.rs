//! A fragment's way through reassembly.

use flow::{DefragCounters, DropReason, HashKey, SlotIndex, Timestamp};
use wire::Family;

use crate::coverage::Map;
use crate::eviction::Shelf;
use crate::memory::family_index;
use crate::nursery::Nursery;
use crate::queue::{Phase, PieceCheck, Queue, State};
use crate::quick_hash::QuickHash;
use crate::slab::{NONE, Slab, Slot};
use crate::sources::Sources;
use crate::tally::Tally;
use crate::{DatagramKey, DiscardCause, Memory, Piece, Settings, Summary};

/// Places in the cache of recent datagrams: 1 KiB, so that the datagrams that one sender
/// interleaves rarely share a place.
const NEAR: usize = 256;
/// Bitmaps that are kept for later datagrams.
const MAPS_KEPT: usize = 64;

/// A frame that the reassembler can keep.
pub trait Buffer {
    /// Memory that it occupies, bytes, slack included; the reassembler charges it.
    fn footprint(&self) -> usize;
}

/// The parts of a worker that reassembly uses.
pub struct Context<'a, F> {
    /// The time.
    pub now: Timestamp,
    /// Tunables.
    pub settings: &'a Settings,
    /// The worker's share of fragment memory.
    pub memory: &'a mut Memory,
    /// Counters of the worker.
    pub counters: &'a mut DefragCounters,
    /// Gets every frame that is not delivered, with the reason.
    pub discard: &'a mut dyn FnMut(F, DiscardCause),
}

/// The fate of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is held until the others have come.
    Held,
    /// It was the last fragment that was missing.
    Complete(Summary),
    /// It went to [`Context::discard`], maybe with the other fragments of its datagram.
    Refused,
}

/// A fragment that has arrived, without its frame.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    piece: &'a Piece,
    place: u32,
    bucket: u16,
    /// Number of fragments that its source has sent so far.
    source_count: u32,
}

/// A fragment that is held.
#[derive(Debug)]
pub(crate) struct Held<F> {
    pub frame: F,
    /// Slot of the fragment that arrived after this one.
    pub next: u32,
    pub offset: u16,
}

/// All incomplete datagrams of one worker, both families.
#[derive(Debug)]
pub struct Reassembler<F> {
    pub(crate) nursery: Nursery<F>,
    pub(crate) index: SlotIndex,
    pub(crate) queues: Slab<Queue>,
    pub(crate) pieces: Slab<Held<F>>,
    /// By [`family_index`].
    pub(crate) shelves: [Shelf; 2],
    pub(crate) sources: Sources,
    pub(crate) secret: HashKey,
    pub(crate) quick_hash: QuickHash,
    #[expect(clippy::vec_box, reason = "they move between here and the queues")]
    spare_maps: Vec<Box<Map>>,
    /// The slots of recent datagrams, by place. Most fragments closely follow one of the same
    /// datagram, and then need no look-up in the index. An entry may name a slot whose datagram
    /// is gone.
    near: [u32; NEAR],
    /// Offsets and slots of the fragments of a datagram while they are sorted, with the offset
    /// in the high half.
    order: Vec<u64>,
}

impl<F: Buffer> Reassembler<F> {
    /// Bytes charged for a datagram beside its fragments.
    pub const QUEUE_BYTES: u64 = size_of::<Slot<Queue>>() as u64 + INDEX_BYTES;
    /// Bytes charged for a fragment beside its frame.
    pub const PIECE_BYTES: u64 = size_of::<Slot<Held<F>>>() as u64;
    /// Bytes charged for the bitmap of a datagram with many gaps or fragments.
    pub const MAP_BYTES: u64 = size_of::<Map>() as u64;

    /// An empty reassembler. `secret` keys all hashes; reassemblers that exchange datagrams
    /// must have the same.
    pub fn new(secret: HashKey) -> Self {
        Self {
            nursery: Nursery::new(),
            index: SlotIndex::new(),
            queues: Slab::new(),
            pieces: Slab::new(),
            shelves: [Shelf::new(), Shelf::new()],
            sources: Sources::new(secret),
            secret,
            quick_hash: QuickHash::new(secret),
            spare_maps: Vec::new(),
            near: [NONE; NEAR],
            order: Vec::new(),
        }
    }

    /// Number of datagrams that hold memory, including those that were given up and are
    /// remembered.
    pub fn len(&self) -> usize {
        self.nursery.len() + self.queues.len()
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes charged for the datagrams of a family at a phase.
    pub fn charged(&self, family: Family, phase: Phase) -> u64 {
        let young = self.nursery.iter().filter(|young| young.is(family, phase));
        self.shelves[family_index(family)].charged(phase)
            + young.map(|young| u64::from(young.tally.charged)).sum::<u64>()
    }

    /// Memory of the bookkeeping, bytes; the frames do not count.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.nursery.memory_bytes()
            + self.index.memory_bytes()
            + self.queues.memory_bytes()
            + self.pieces.memory_bytes()
            + self.spare_maps.len() * size_of::<Map>()
    }

    /// Takes in a fragment. `bucket` is the one that owns the datagram. If the fragment
    /// completes its datagram, the frames are appended to `complete` in the order of their
    /// offsets; otherwise `complete` stays as it is.
    pub fn insert(
        &mut self,
        piece: &Piece,
        bucket: u16,
        frame: F,
        complete: &mut Vec<F>,
        context: &mut Context<'_, F>,
    ) -> Outcome {
        context.counters.reasm_reqds += 1;
        let source_count = self.sources.count(piece);
        let place = self.quick_hash.of(&piece.key);
        let arrival = Arrival { piece, place, bucket, source_count };
        let Some(seat) = self.nursery.find(&piece.key, place) else {
            return match self.find(&piece.key, place) {
                Some(slot) => self.insert_settled(slot, arrival, frame, complete, context),
                None => self.open(arrival, frame, context),
            };
        };
        let young = &mut self.nursery[seat];
        if !young.fits(piece, source_count, context.settings, context.now) {
            return self.insert_unusual(seat, arrival, frame, complete, context);
        }
        let bytes = Self::PIECE_BYTES + frame.footprint() as u64;
        let completes = young.tally.is_completed_by(piece);
        let lease = context.memory.lease(piece.key.family());
        let is_taken = completes || (young.has_room() && lease.spend(bytes));
        if !is_taken {
            return self.insert_unusual(seat, arrival, frame, complete, context);
        }
        young.take_in(piece, frame);
        if completes {
            let tally = self.nursery.finish(seat, complete);
            lease.release(tally.charged.into());
            context.counters.reasm_oks += 1;
            return Outcome::Complete(tally.summary());
        }
        young.charge(bytes as u32, source_count, context.now);
        Outcome::Held
    }

    /// Takes in a fragment that does not simply fit its datagram in the nursery.
    #[cold]
    #[inline(never)]
    fn insert_unusual(
        &mut self,
        seat: u8,
        arrival: Arrival<'_>,
        frame: F,
        complete: &mut Vec<F>,
        context: &mut Context<'_, F>,
    ) -> Outcome {
        match self.promote(seat, context) {
            Some(slot) => self.insert_settled(slot, arrival, frame, complete, context),
            None => self.open(arrival, frame, context),
        }
    }

    /// Takes in a fragment of a datagram in the table.
    #[inline(never)]
    fn insert_settled(
        &mut self,
        slot: u32,
        arrival: Arrival<'_>,
        frame: F,
        complete: &mut Vec<F>,
        context: &mut Context<'_, F>,
    ) -> Outcome {
        let Arrival { piece, source_count, .. } = arrival;
        if !self.goes_on(slot, source_count, context) {
            return self.open(arrival, frame, context);
        }
        let Queue { identity, state } = &mut self.queues[slot];
        if let Phase::Dead(reason) = identity.phase {
            // Fragments of the same datagram do not mean that its identification is used again.
            state.tally.source_count = source_count;
            let why = DiscardCause::unfinished(reason, &self.queues[slot], context.now);
            return discard(frame, why, context);
        }
        match state.check(piece, context.settings.pieces_per_4k) {
            PieceCheck::Completes => {
                Outcome::Complete(self.finish(slot, piece, frame, complete, context))
            }
            PieceCheck::Fits { needs_map } => {
                self.extend(slot, piece, frame, needs_map, source_count, context)
            }
            PieceCheck::Duplicate => {
                let why = DiscardCause::of_check(
                    DropReason::FragDuplicate,
                    piece,
                    state,
                    context.settings,
                );
                discard(frame, why, context)
            }
            PieceCheck::Fatal(reason) => {
                let why = DiscardCause::of_check(reason, piece, state, context.settings);
                self.kill(slot, why, context);
                discard(frame, why, context)
            }
        }
    }

    #[inline]
    fn find(&mut self, key: &DatagramKey, place: u32) -> Option<u32> {
        if self.queues.len() == 0 { None } else { self.find_settled(key, place) }
    }

    #[inline(never)]
    fn find_settled(&mut self, key: &DatagramKey, place: u32) -> Option<u32> {
        let near = self.near[place as usize % NEAR];
        if self.queues.get(near).is_some_and(|queue| queue.identity.key.is(key)) {
            return Some(near);
        }
        let hash = key.hash(self.secret) as u32;
        let found = self.index.find(hash, |slot| self.queues[slot].identity.key.is(key))?;
        self.remember(found, place);
        Some(found)
    }

    #[inline]
    pub(crate) fn remember(&mut self, slot: u32, place: u32) {
        self.near[place as usize % NEAR] = slot;
    }

    /// True if a fragment may still join a datagram; ends the datagram if not.
    #[inline]
    fn goes_on(&mut self, slot: u32, source_count: u32, context: &mut Context<'_, F>) -> bool {
        let Queue { identity, state } = &self.queues[slot];
        let Settings { max_dist, .. } = *context.settings;
        let limits = context.settings.family(identity.key.family());
        if limits.is_due(identity.created, context.now) {
            self.time_out(slot, context);
            return false;
        }
        let distance = source_count.wrapping_sub(state.tally.source_count);
        if max_dist != 0 && distance > max_dist {
            self.give_up(slot, DiscardCause::Wrap { distance, limit: max_dist }, context);
            return false;
        }
        true
    }

    /// Begins a datagram with the first fragment to arrive.
    #[inline]
    fn open(&mut self, arrival: Arrival<'_>, frame: F, context: &mut Context<'_, F>) -> Outcome {
        let Arrival { piece, place, bucket, source_count } = arrival;
        let bytes = Self::QUEUE_BYTES + Self::PIECE_BYTES + frame.footprint() as u64;
        let refusal = match piece.fault() {
            Some(reason) => Some(DiscardCause::impossible(piece, reason)),
            None if self.make_room(piece.key.family(), bytes, NONE, context) => None,
            None => Some(DiscardCause::no_memory(piece.key.family(), bytes, context.settings)),
        };
        if let Some(why) = refusal {
            return refuse(frame, why, context);
        }
        if let Some(seat) = self.nursery.occupant(place) {
            self.promote(seat, context);
        }
        if self.nursery.is_full() {
            self.promote_half(context);
        }
        let tally = Tally::of(piece, bytes as u32, source_count);
        self.nursery.begin(piece, place, bucket, frame, tally, context.now);
        Outcome::Held
    }

    /// Adds a fragment that was found to fit.
    #[inline]
    fn extend(
        &mut self,
        slot: u32,
        piece: &Piece,
        frame: F,
        needs_map: bool,
        source_count: u32,
        context: &mut Context<'_, F>,
    ) -> Outcome {
        let family = piece.key.family();
        let map_bytes = if needs_map { Self::MAP_BYTES } else { 0 };
        let bytes = Self::PIECE_BYTES + frame.footprint() as u64 + map_bytes;
        if !self.make_room(family, bytes, slot, context) {
            // Senders do not repeat fragments: without this one the datagram can not be
            // completed.
            let why = DiscardCause::no_memory(family, bytes, context.settings);
            self.kill(slot, why, context);
            return discard(frame, why, context);
        }
        if needs_map {
            self.spread(slot);
        }
        let Queue { identity, state } = &mut self.queues[slot];
        append(&mut self.pieces, state, Held { frame, next: NONE, offset: piece.offset });
        state.cover(piece);
        state.tally.note(piece);
        state.tally.charge(bytes as u32, source_count);
        state.tally.touch(identity.created, context.now);
        let (phase, charged) = (identity.phase, state.tally.charged.into());
        let shelf = &mut self.shelves[family_index(family)];
        match phase {
            Phase::Newcomer => {
                identity.phase = Phase::Progress;
                shelf.promote(&mut self.queues, slot, charged, bytes);
            }
            phase => shelf.charge(phase, bytes),
        }
        Outcome::Held
    }

    /// Delivers a datagram that `piece` completes. It needs no more memory, so lack of memory
    /// can not stop it.
    #[inline]
    fn finish(
        &mut self,
        slot: u32,
        piece: &Piece,
        frame: F,
        complete: &mut Vec<F>,
        context: &mut Context<'_, F>,
    ) -> Summary {
        let state = &mut self.queues[slot].state;
        state.tally.note(piece);
        let (summary, mut at) = (state.tally.summary(), state.first);
        if state.tally.in_order {
            while let Some(held) = self.pieces.remove(at) {
                complete.push(held.frame);
                at = held.next;
            }
            complete.push(frame);
        } else {
            self.put_in_order(at, piece.offset, frame, complete);
        }
        context.counters.reasm_oks += 1;
        self.forget(slot, context);
        summary
    }

    /// Delivers the fragments from slot `at` on and the last one to arrive, sorted by offset.
    #[inline]
    fn put_in_order(&mut self, mut at: u32, offset: u16, frame: F, complete: &mut Vec<F>) {
        self.order.clear();
        while let Some(held) = self.pieces.get(at) {
            self.order.push(u64::from(held.offset) << 32 | u64::from(at));
            at = held.next;
        }
        match &mut self.order[..] {
            [first, second] => (*first, *second) = (*first.min(second), *first.max(second)),
            more => more.sort_unstable(),
        }
        let before = self.order.iter().filter(|&&held| held >> 32 < offset.into()).count();
        let (before, behind) = self.order.split_at(before);
        let pieces = &mut self.pieces;
        let mut held = |place: &u64| pieces.remove(*place as u32).map(|held| held.frame);
        complete.extend(before.iter().filter_map(&mut held));
        complete.push(frame);
        complete.extend(behind.iter().filter_map(&mut held));
    }

    /// Gives a queue a bitmap, and counts in it the fragments that the queue holds.
    #[cold]
    fn spread(&mut self, slot: u32) {
        let map = self.spare_maps.pop().unwrap_or_else(Map::boxed);
        let state = &mut self.queues[slot].state;
        if let Some(map) = state.coverage.spread(map) {
            let mut at = state.first;
            while let Some(held) = self.pieces.get(at) {
                map.begin(held.offset);
                at = held.next;
            }
        }
    }

    pub(crate) fn keep_map(&mut self, map: Option<Box<Map>>) {
        if self.spare_maps.len() < MAPS_KEPT {
            self.spare_maps.extend(map);
        }
    }
}

/// Bytes charged for a place in the index: a pair takes 6 of the 64 bytes of a line, and two
/// fifths of the places are used.
const INDEX_BYTES: u64 = 16;

/// Appends a fragment to the list of a datagram.
#[inline]
pub(crate) fn append<F>(pieces: &mut Slab<Held<F>>, state: &mut State, held: Held<F>) {
    let slot = pieces.insert(held);
    match std::mem::replace(&mut state.last, slot) {
        NONE => state.first = slot,
        last => pieces[last].next = slot,
    }
}

/// Refuses a fragment that has no datagram.
#[cold]
fn refuse<F>(frame: F, why: DiscardCause, context: &mut Context<'_, F>) -> Outcome {
    context.counters.reasm_fails += 1;
    discard(frame, why, context)
}

/// A function of its own, so that it takes no registers from the common path.
#[cold]
#[inline(never)]
fn discard<F>(frame: F, why: DiscardCause, context: &mut Context<'_, F>) -> Outcome {
    (context.discard)(frame, why);
    Outcome::Refused
}
