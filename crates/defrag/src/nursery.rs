//! The youngest datagrams.
//!
//! Nearly every datagram is complete microseconds after its first piece, and what the
//! table does to find, order and evict datagrams that stay is lost on it. So a datagram
//! begins here, in a few places that stay in cache, with its pieces beside it, and as
//! long as nothing unusual happens it is completed here. Everything else is the table's
//! business: the datagram *settles* there with its pieces in the order in which they
//! came, exactly as if it had begun there, and goes on. What is unusual need not be told
//! apart here: all that is asked is whether a piece plainly fits.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use flow::Timestamp;
use wire::Family;

use crate::Settings;
use crate::coverage::{Coverage, RUNS, Run, UNIT};
use crate::piece::{DatagramKey, Piece};
use crate::queue::{Identity, Queue, Stage, State};
use crate::reassembler::Held;
use crate::slab::NONE;
use crate::tally::Tally;

/// Datagrams that can be young at once.
const SEATS: usize = 128;
/// Places by hash, each of which knows one seat: so many that two of a hundred datagrams
/// rarely meet.
const PLACES: usize = 4096;
/// Pieces that are held: those that never need more runs than a queue has.
const HELD: usize = RUNS;
/// When this has passed the datagrams that were there then settle, so that none is
/// young for more than twice as long.
pub(crate) const YOUTH: Duration = Duration::from_millis(1);

/// A few datagrams without anything unusual.
#[derive(Debug)]
pub(crate) struct Nursery<F> {
    /// The seat of a datagram, by its hash; where none is, any.
    places: Box<[u8; PLACES]>,
    young: Box<[Young<F>; SEATS]>,
    /// The first `free_len` are the free seats; the last is the first to be taken,
    /// because it is the one most likely in cache.
    free: [u8; SEATS],
    free_len: usize,
    /// Datagrams that were ever here.
    begun: u64,
    /// The seat that the last piece went to: most often the next one does too.
    recent: u8,
    /// When those that had been here for long settled.
    pub swept: Timestamp,
}

/// A datagram of which up to [`HELD`] pieces have come that plainly fit together.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Young<F> {
    pub key: DatagramKey,
    pub created: Timestamp,
    hash: u32,
    pub bucket: u16,
    /// Held are as many pieces as it says, none in a free seat.
    pub tally: Tally,
    /// The units that each piece covers; [`NOWHERE`] behind the last.
    starts: [u16; HELD + 1],
    ends: [u16; HELD + 1],
    /// How many datagrams had begun before.
    serial: u64,
    /// The pieces in the order in which they came, and room for the one that completes.
    frames: [Option<F>; HELD + 1],
}

/// A range that overlaps none and lies behind all.
const NOWHERE: Run = Run { start: u16::MAX, end: 0 };
/// As many as a piece's place is told apart from, in a number that sorts by offset.
const PLACE: usize = 8;

impl<F> Nursery<F> {
    pub fn new() -> Self {
        let young: Box<[Young<F>]> = (0..SEATS).map(|_| Young::nobody()).collect();
        Self {
            places: Box::new([0; PLACES]),
            #[expect(clippy::expect_used, reason = "the length is that of the range")]
            young: young.try_into().ok().expect("as many as there are seats"),
            free: std::array::from_fn(|seat| (SEATS - 1 - seat) as u8),
            free_len: SEATS,
            begun: 0,
            recent: 0,
            swept: Timestamp::ZERO,
        }
    }

    pub const fn len(&self) -> usize {
        SEATS - self.free_len
    }

    pub const fn memory_bytes(&self) -> usize {
        size_of::<[u8; PLACES]>() + size_of::<[Young<F>; SEATS]>()
    }

    /// All that are here.
    pub fn iter(&self) -> impl Iterator<Item = &Young<F>> {
        self.young.iter().filter(|young| young.is_here())
    }

    /// The seat of a datagram.
    #[inline]
    pub fn find(&mut self, key: &DatagramKey, hash: u64) -> Option<u8> {
        let seat = self.places[hash as usize % PLACES];
        self.recent = seat;
        let young = &self[seat];
        (young.is_here() & (young.hash == hash as u32) && young.key.is(key)).then_some(seat)
    }

    /// The low half of the hash of a datagram if the last piece went to it.
    #[inline]
    pub fn recent_hash(&self, key: &DatagramKey) -> Option<u32> {
        let young = &self[self.recent];
        (young.is_here() && young.key.is(key)).then_some(young.hash)
    }

    /// The seat of the datagram that stands in the way of one with this hash.
    #[inline]
    pub fn in_the_way(&self, hash: u64) -> Option<u8> {
        let seat = self.places[hash as usize % PLACES];
        let young = &self[seat];
        (young.is_here() && (young.hash as usize ^ hash as usize).is_multiple_of(PLACES))
            .then_some(seat)
    }

    pub const fn is_full(&self) -> bool {
        self.free_len == 0
    }

    /// Begins a datagram, for which there must be a seat and a place.
    #[inline]
    pub fn begin(
        &mut self,
        piece: &Piece,
        hash: u64,
        bucket: u16,
        frame: F,
        tally: Tally,
        now: Timestamp,
    ) {
        self.free_len -= 1;
        let seat = self.free[self.free_len];
        self.places[hash as usize % PLACES] = seat;
        self.recent = seat;
        let serial = self.begun;
        self.begun += 1;
        let young = &mut self[seat];
        young.key = piece.key;
        young.created = now;
        young.hash = hash as u32;
        young.bucket = bucket;
        young.tally = tally;
        (young.starts, young.ends) = ([NOWHERE.start; HELD + 1], [NOWHERE.end; HELD + 1]);
        let range = Run::of_bytes(piece.offset, piece.length);
        (young.starts[0], young.ends[0]) = (range.start, range.end);
        young.serial = serial;
        young.frames[0] = Some(frame);
    }

    /// Frees the seat of a datagram that is complete, and hands out its frames in the
    /// order of their offsets.
    #[inline]
    pub fn finish(&mut self, seat: u8, complete: &mut Vec<F>) -> Tally {
        self.vacate(seat);
        let young = &mut self[seat];
        let tally = young.tally;
        young.tally.pieces = 0;
        let pieces = usize::from(tally.pieces).min(HELD + 1);
        if tally.in_order {
            complete.extend(young.frames[..pieces].iter_mut().filter_map(Option::take));
        } else {
            let order = in_order(&young.starts);
            let frames = &mut young.frames;
            let frame = |&place: &u32| frames.get_mut(place as usize % PLACE)?.take();
            complete.extend(order[..pieces].iter().filter_map(frame));
        }
        tally
    }

    /// Takes out a datagram that is to go on elsewhere, with its pieces in the order in
    /// which they came. They are not linked to it yet.
    pub fn leave(&mut self, seat: u8) -> (Queue, impl Iterator<Item = Held<F>>) {
        self.vacate(seat);
        let young = &mut self[seat];
        let Young { key, created, bucket, tally, starts, ends, .. } = *young;
        let stage = young.stage();
        young.tally.pieces = 0;
        let pieces = usize::from(tally.pieces).min(HELD);
        let mut coverage = Coverage::EMPTY;
        for (&start, &end) in starts.iter().zip(&ends).take(pieces) {
            coverage.fill(Run { start, end });
        }
        let mut identity = Identity::new(key, young.hash.into(), bucket, created);
        identity.stage = stage;
        let queue = Queue { identity, state: State::of(coverage, tally) };
        let frames = young.frames[..pieces].iter_mut().filter_map(Option::take);
        let held = frames.zip(starts).map(|(frame, start)| Held {
            frame,
            next: NONE,
            offset: start * UNIT,
        });
        (queue, held)
    }

    #[inline]
    fn vacate(&mut self, seat: u8) {
        self.free[self.free_len % SEATS] = seat;
        self.free_len += 1;
    }

    /// The seats that are taken, by age.
    pub fn by_age(&self) -> Vec<u8> {
        let mut seats: Vec<u8> = (0..SEATS as u8).filter(|&seat| self[seat].is_here()).collect();
        seats.sort_unstable_by_key(|&seat| self[seat].serial);
        seats
    }
}

impl<F> Index<u8> for Nursery<F> {
    type Output = Young<F>;

    #[inline]
    fn index(&self, seat: u8) -> &Young<F> {
        &self.young[usize::from(seat) % SEATS]
    }
}

impl<F> IndexMut<u8> for Nursery<F> {
    #[inline]
    fn index_mut(&mut self, seat: u8) -> &mut Young<F> {
        &mut self.young[usize::from(seat) % SEATS]
    }
}

impl<F> Young<F> {
    /// Nobody, in a free seat.
    fn nobody() -> Self {
        Self {
            key: DatagramKey::UNSPECIFIED,
            created: Timestamp::ZERO,
            hash: 0,
            bucket: 0,
            tally: Tally::NOTHING,
            starts: [NOWHERE.start; HELD + 1],
            ends: [NOWHERE.end; HELD + 1],
            serial: 0,
            frames: [const { None }; HELD + 1],
        }
    }

    #[inline]
    const fn is_here(&self) -> bool {
        self.tally.pieces != 0
    }

    pub fn is(&self, family: Family, stage: Stage) -> bool {
        self.key.family == family && self.stage().index() == stage.index()
    }

    pub const fn stage(&self) -> Stage {
        if self.tally.pieces == 1 { Stage::Newcomer } else { Stage::Progress }
    }

    /// Whether a piece goes well with the others. If not, the table says what is to be
    /// done.
    #[inline]
    pub fn fits(
        &self,
        piece: &Piece,
        source_count: u32,
        settings: &Settings,
        now: Timestamp,
    ) -> bool {
        let Settings { max_dist, pieces_per_4k, .. } = *settings;
        let distance = source_count.wrapping_sub(self.tally.source_count);
        let is_due = settings.family(piece.key.family).is_due(self.created, now);
        let range = Run::of_bytes(piece.offset, piece.length);
        // All lanes at once: no order of pieces can be foreseen.
        let mut overlaps = false;
        for (start, end) in self.starts.iter().zip(&self.ends) {
            overlaps |= (*start < range.end) & (range.start < *end);
        }
        !is_due
            & ((max_dist == 0) | (distance <= max_dist))
            & piece.fault().is_none()
            & self.tally.conflict_of_ends(piece).is_none()
            & !overlaps
            & !self.tally.mixes_ecn(piece)
            & !self.tally.is_crowded(pieces_per_4k)
    }

    /// Whether one more piece may be held.
    #[inline]
    pub const fn has_room(&self) -> bool {
        (self.tally.pieces as usize) < HELD
    }

    /// Takes in a piece that fits, and for which there is room or that completes.
    #[inline]
    pub fn take_in(&mut self, piece: &Piece, frame: F) {
        let place = usize::from(self.tally.pieces) % (HELD + 1);
        let range = Run::of_bytes(piece.offset, piece.length);
        (self.starts[place], self.ends[place]) = (range.start, range.end);
        self.frames[place] = Some(frame);
        self.tally.note(piece);
    }
}

/// The places of pieces by offset, in the lowest bits, which are 1 / [`PLACE`] of all.
/// Without a branch (a sorting network of Bose and Nelson, 1962), because no order can be
/// foreseen.
#[inline]
fn in_order(starts: &[u16; HELD + 1]) -> [u32; HELD + 1] {
    const NETWORK: [(usize, usize); 9] =
        [(0, 1), (3, 4), (2, 4), (2, 3), (1, 4), (0, 3), (0, 2), (1, 3), (1, 2)];
    let mut order: [u32; HELD + 1] =
        std::array::from_fn(|place| u32::from(starts[place]) * PLACE as u32 + place as u32);
    for (low, high) in NETWORK {
        (order[low], order[high]) = (order[low].min(order[high]), order[low].max(order[high]));
    }
    order
}
