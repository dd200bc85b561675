//! The nursery: a few places for the youngest datagrams.
//!
//! Nearly every datagram is complete microseconds after its first fragment, so it needs none of
//! the structures by which the table finds, orders and evicts datagrams. It begins here, in a
//! seat that stays in cache, with its fragments beside it, and it is completed here as long as
//! nothing unusual happens. Otherwise the datagram *settles*: it moves to the table with its
//! fragments in the order of their arrival, exactly as if it had begun there, and goes on. The
//! nursery does not tell unusual cases apart: it only checks whether a fragment simply fits.

use std::hint::select_unpredictable;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use flow::{HashKey, Timestamp};
use wire::Family;

use crate::Settings;
use crate::coverage::{Coverage, RUNS, Run, UNIT};
use crate::piece::{DatagramKey, Piece};
use crate::queue::{Identity, Phase, Queue, State};
use crate::reassembler::Held;
use crate::slab::NONE;
use crate::tally::Tally;

/// Most datagrams in the nursery.
pub(crate) const SEATS: usize = 128;
/// Places of a hash table, each of which names one seat. There are so many that two of a
/// hundred datagrams rarely share one.
pub(crate) const PLACES: usize = 4096;
/// Most fragments held for a datagram: this number never needs more runs than a queue has.
const HELD: usize = RUNS;
/// At this interval the datagrams that are at least as old settle, so none stays here for more
/// than twice this time.
pub(crate) const YOUTH: Duration = Duration::from_millis(1);
const YOUTH_NS: u64 = YOUTH.as_nanos() as u64;

/// The datagrams in the nursery.
#[derive(Debug)]
pub(crate) struct Nursery<F> {
    /// The seat of the datagram at each place; any seat where there is no datagram.
    places: Box<[u8; PLACES]>,
    young: Box<[Young<F>; SEATS]>,
    /// The first `free_len` are the free seats. The last of these is taken first, because it is
    /// the one most likely in cache.
    free: [u8; SEATS],
    free_len: usize,
    /// Datagrams that have begun here since the start.
    begun: u64,
    /// Time of the last sweep, at which the older datagrams settled.
    pub swept: Timestamp,
    /// Datagrams that have settled out of their turn, so perhaps before older ones, since all
    /// settled. At most this many in the table are younger than the oldest in the nursery.
    pub ahead: u8,
}

/// A datagram with up to [`HELD`] fragments that simply fit together.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Young<F> {
    pub key: DatagramKey,
    pub created: Timestamp,
    /// The hash of its key by [`crate::quick_hash::QuickHash`].
    pub place: u32,
    pub bucket: u16,
    /// Arrival of the last fragment; the tally gets it when the datagram leaves.
    touched: Timestamp,
    /// Its number of pieces is the number of fragments held; 0 in a free seat.
    pub tally: Tally,
    /// The units that each fragment covers; [`NOWHERE`] behind the last.
    starts: [i16; LANES],
    ends: [i16; LANES],
    /// Number of datagrams that had begun before this one.
    serial: u64,
    /// The fragments in the order of their arrival.
    frames: Vec<F>,
}

/// Numbers that the processor compares at once. They are signed, because it compares these
/// best, and every unit fits.
const LANES: usize = 8;
/// Start and end of a range that overlaps no other and lies behind all.
const NOWHERE: (i16, i16) = (i16::MAX, 0);
impl<F> Nursery<F> {
    pub fn new() -> Self {
        let young: Box<[Young<F>]> = (0..SEATS).map(|_| Young::empty_seat()).collect();
        Self {
            places: Box::new([0; PLACES]),
            #[expect(clippy::expect_used, reason = "the length is that of the range")]
            young: young.try_into().ok().expect("as many as there are seats"),
            free: std::array::from_fn(|seat| (SEATS - 1 - seat) as u8),
            free_len: SEATS,
            begun: 0,
            swept: Timestamp::ZERO,
            ahead: 0,
        }
    }

    pub const fn len(&self) -> usize {
        SEATS - self.free_len
    }

    pub fn memory_bytes(&self) -> usize {
        let frames: usize = self.young.iter().map(|young| young.frames.capacity()).sum();
        size_of::<[u8; PLACES]>() + size_of::<[Young<F>; SEATS]>() + frames * size_of::<F>()
    }

    /// All datagrams here.
    pub fn iter(&self) -> impl Iterator<Item = &Young<F>> {
        self.young.iter().filter(|young| young.is_here())
    }

    /// The seat of a datagram.
    #[inline]
    pub fn find(&self, key: &DatagramKey, place: u32) -> Option<u8> {
        let seat = self.places[place as usize % PLACES];
        let young = &self[seat];
        (young.is_here() && young.key.is(key)).then_some(seat)
    }

    /// The seat of another datagram at the place for `place`.
    #[inline]
    pub fn occupant(&self, place: u32) -> Option<u8> {
        let seat = self.places[place as usize % PLACES];
        let young = &self[seat];
        (young.is_here() && ((young.place ^ place) as usize).is_multiple_of(PLACES)).then_some(seat)
    }

    pub const fn is_full(&self) -> bool {
        self.free_len == 0
    }

    /// Begins a datagram. The caller has made sure that a seat and its place are free.
    #[inline]
    pub fn begin(
        &mut self,
        piece: &Piece,
        place: u32,
        bucket: u16,
        frame: F,
        tally: Tally,
        now: Timestamp,
    ) {
        self.free_len -= 1;
        let seat = self.free[self.free_len];
        self.places[place as usize % PLACES] = seat;
        let serial = self.begun;
        self.begun += 1;
        let young = &mut self[seat];
        young.key = piece.key;
        (young.created, young.touched) = (now, now);
        young.place = place;
        young.bucket = bucket;
        young.tally = tally;
        (young.starts, young.ends) = ([NOWHERE.0; LANES], [NOWHERE.1; LANES]);
        (young.starts[0], young.ends[0]) = units(piece);
        young.serial = serial;
        young.frames.push(frame);
    }

    /// Frees the seat of a complete datagram, and appends its frames to `complete` in the order
    /// of their offsets. If `complete` is empty, the two lists exchange their memory and no
    /// frame is copied.
    #[inline]
    pub fn finish(&mut self, seat: u8, complete: &mut Vec<F>) -> Tally {
        let young = &mut self[seat];
        let tally = young.tally;
        young.tally.pieces = 0;
        if !tally.in_order {
            sort(&mut young.frames, &mut young.starts);
        }
        if complete.is_empty() {
            std::mem::swap(&mut young.frames, complete);
        } else {
            complete.append(&mut young.frames);
        }
        self.vacate(seat);
        tally
    }

    /// Takes out a datagram that continues elsewhere, with its fragments in the order of their
    /// arrival. The caller has to link them to the queue. `secret` keys its hash.
    pub fn leave(&mut self, seat: u8, secret: HashKey) -> (Queue, impl Iterator<Item = Held<F>>) {
        self.vacate(seat);
        let young = &mut self[seat];
        let Young { key, created, bucket, touched, mut tally, starts, ends, .. } = *young;
        tally.touch(created, touched);
        let phase = young.phase();
        young.tally.pieces = 0;
        let pieces = usize::from(tally.pieces).min(HELD);
        let mut coverage = Coverage::EMPTY;
        for (&start, &end) in starts.iter().zip(&ends).take(pieces) {
            coverage.fill(Run { start: start as u16, end: end as u16 });
        }
        let mut identity = Identity::new(key, key.hash(secret), bucket, created);
        identity.phase = phase;
        let queue = Queue { identity, state: State::of(coverage, tally) };
        let frames = young.frames.drain(..);
        let held = frames.zip(starts).map(|(frame, start)| Held {
            frame,
            next: NONE,
            offset: start as u16 * UNIT,
        });
        (queue, held)
    }

    #[inline]
    fn vacate(&mut self, seat: u8) {
        self.free[self.free_len % SEATS] = seat;
        self.free_len += 1;
    }

    /// The seats that are taken, oldest datagram first.
    pub fn by_age<'a>(&self, seats: &'a mut [u8; SEATS]) -> &'a [u8] {
        let taken = (0..SEATS as u8).filter(|&seat| self[seat].is_here());
        let count = seats.iter_mut().zip(taken).map(|(place, seat)| *place = seat).count();
        let taken = &mut seats[..count];
        taken.sort_unstable_by_key(|&seat| self[seat].serial);
        taken
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
    /// The content of a free seat.
    fn empty_seat() -> Self {
        Self {
            key: DatagramKey::UNSPECIFIED,
            created: Timestamp::ZERO,
            touched: Timestamp::ZERO,
            place: 0,
            bucket: 0,
            tally: Tally::NOTHING,
            starts: [NOWHERE.0; LANES],
            ends: [NOWHERE.1; LANES],
            serial: 0,
            frames: Vec::with_capacity(HELD + 1),
        }
    }

    #[inline]
    const fn is_here(&self) -> bool {
        self.tally.pieces != 0
    }

    pub fn is(&self, family: Family, phase: Phase) -> bool {
        self.key.family() == family && self.phase().index() == phase.index()
    }

    pub const fn phase(&self) -> Phase {
        if self.tally.pieces == 1 { Phase::Newcomer } else { Phase::Progress }
    }

    /// True if a fragment simply fits together with the others. If not, the table decides about
    /// it. There are branches only for cases that honest traffic never has, because a processor
    /// can not predict which fragment comes next.
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
        let is_young = now.as_nanos().saturating_sub(self.created.as_nanos()) < YOUTH_NS
            && settings.family(piece.key.family()).time != 0;
        is_young
            && (distance <= max_dist || max_dist == 0)
            && usize::from(pieces_per_4k) > HELD + 1
            && piece.fault().is_none()
            && self.tally.plainly_takes(piece)
            && !self.overlaps(piece)
    }

    #[inline]
    fn overlaps(&self, piece: &Piece) -> bool {
        let (start, end) = units(piece);
        let mut overlaps = false;
        for lane in 0..LANES {
            overlaps |= (self.starts[lane] < end) & (start < self.ends[lane]);
        }
        overlaps
    }

    /// True if the datagram can hold one more fragment.
    #[inline]
    pub const fn has_room(&self) -> bool {
        (self.tally.pieces as usize) < HELD
    }

    /// Adds the cost of a fragment that was taken in, and the time of its arrival.
    #[inline]
    pub fn charge(&mut self, bytes: u32, source_count: u32, now: Timestamp) {
        self.tally.charge(bytes, source_count);
        self.touched = now;
    }

    /// Takes in a fragment that fits. There must be room for it, unless it completes the
    /// datagram.
    #[inline(always)]
    pub fn take_in(&mut self, piece: &Piece, frame: F) {
        let place = usize::from(self.tally.pieces) % LANES;
        (self.starts[place], self.ends[place]) = units(piece);
        self.frames.push(frame);
        self.tally.note(piece);
    }
}

/// The units that a fragment covers, from the first to one behind the last.
#[inline]
fn units(piece: &Piece) -> (i16, i16) {
    let Run { start, end } = Run::of_bytes(piece.offset, piece.length);
    (start as i16, end as i16)
}

/// Sorts frames by their start. It chooses the least of the remaining frames and exchanges it,
/// maybe for itself, without a branch on the order, because a processor can not predict that.
#[inline]
fn sort<F>(frames: &mut [F], starts: &mut [i16; LANES]) {
    let len = frames.len().min(LANES);
    for place in 1..len {
        let (place, mut least) = (place - 1, place - 1);
        for other in place + 1..len {
            least = select_unpredictable(starts[other] < starts[least], other, least);
        }
        frames.swap(place, least);
        starts.swap(place, least);
    }
}
