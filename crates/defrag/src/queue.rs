//! One incomplete datagram.

use std::hint::select_unpredictable;

use flow::{DropReason, Timestamp};

use crate::coverage::{Coverage, Fit, Map, Run};
use crate::fifo::Link;
use crate::piece::{DatagramKey, Ecn, Piece};
use crate::slab::Slot;

/// An incomplete datagram: two cache lines, who it is and how far it is.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Queue {
    pub identity: Identity,
    pub state: State,
}

/// What finds a queue.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Identity {
    pub key: DatagramKey,
    pub created: Timestamp,
    /// Low half of the key's hash.
    pub hash: u32,
    pub age: Link,
    pub bucket: u16,
    pub stage: Stage,
}

/// What a piece changes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct State {
    pub coverage: Coverage,
    pub peers: Link,
    /// The pieces in the order of arrival.
    pub first: u32,
    pub last: u32,
    /// Memory charged for the queue and all that it holds, bytes.
    pub charged: u32,
    /// Fragments that the source had sent when the last piece was added.
    pub source_count: u32,
    pub pieces: u16,
    /// Payload held, bytes.
    pub received: u16,
    /// Highest end of a piece.
    pub reach: u16,
    /// End of the datagram, 0 until the last piece has come.
    pub total: u16,
    /// When the last piece came, microseconds modulo 2^32.
    pub touched: u32,
    /// [`Piece::header`] of the first piece, 0 until it has come.
    pub header: u16,
    pub ecn: EcnSeen,
    /// No piece has come after one that lies behind it.
    pub in_order: bool,
}

const _: () = assert!(size_of::<Identity>() == 64 && size_of::<State>() == 64);
const _: () = assert!(size_of::<Slot<Queue>>() == 128, "free places need no room of their own");

/// Where a datagram stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// One piece is held.
    Newcomer,
    /// Two or more pieces are held.
    Progress,
    /// The datagram was given up for a reason that condemns its later pieces too,
    /// and is remembered until its time is over.
    Dead(DropReason),
}

impl Stage {
    /// How many there are, the reasons of death not counted.
    pub const COUNT: usize = 3;

    /// True for a datagram that was given up and is only remembered.
    pub const fn is_dead(self) -> bool {
        matches!(self, Self::Dead(_))
    }

    /// An index into lists by stage.
    pub const fn index(self) -> usize {
        match self {
            Self::Newcomer => 0,
            Self::Progress => 1,
            Self::Dead(_) => 2,
        }
    }
}

/// The ECN fields of the pieces so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EcnSeen {
    /// One bit for each value that was seen; above them the value of the first
    /// piece, which lies at offset 0.
    bits: u8,
}

impl EcnSeen {
    const NOT_ECT: u8 = 1 << Ecn::NotEct as u8;
    const CE: u8 = 1 << Ecn::Ce as u8;

    #[inline]
    fn of(piece: &Piece) -> Self {
        let first = select_unpredictable(piece.offset == 0, (piece.ecn as u8) << 4, 0);
        Self { bits: first | 1 << piece.ecn as u8 }
    }

    #[inline]
    fn with(self, piece: &Piece) -> Self {
        Self { bits: self.bits | Self::of(piece).bits }
    }

    /// False if a piece that can not carry a mark is mixed with one that can (RFC
    /// 3168 section 5.3).
    #[inline]
    const fn is_allowed(self) -> bool {
        let seen = self.bits & 0x0f;
        seen & Self::NOT_ECT == 0 || seen == Self::NOT_ECT
    }

    /// The ECN field of the whole: congestion that any piece has met, or what the
    /// first piece says.
    fn merged(self) -> Ecn {
        if self.bits & Self::CE != 0 { Ecn::Ce } else { Ecn::of(self.bits >> 4) }
    }
}

/// What a piece is to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It brings nothing new.
    Duplicate,
    /// With it the datagram can not be right.
    Fatal(DropReason),
    /// It is the last one that was missing.
    Completes,
    /// It is to be held.
    Fits {
        /// The runs do not suffice any more.
        needs_map: bool,
    },
}

/// What is known of a complete datagram beside its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many pieces it came in.
    pub pieces: u32,
    /// Bytes of the fragmentable part.
    pub payload: u32,
    /// ECN field of the whole.
    pub ecn: Ecn,
}

impl Identity {
    #[inline]
    pub fn new(key: DatagramKey, hash: u64, bucket: u16, now: Timestamp) -> Self {
        let (age, stage) = (Link::ALONE, Stage::Newcomer);
        Self { key, created: now, hash: hash as u32, age, bucket, stage }
    }
}

impl State {
    /// A datagram of which one piece is held, in slot `held`.
    #[inline]
    pub fn of(piece: &Piece, held: u32, charged: u32, source_count: u32, now: Timestamp) -> Self {
        let (is_first, end) = (piece.offset == 0, piece.end());
        Self {
            coverage: Coverage::of(Run::of_bytes(piece.offset, piece.length)),
            peers: Link::ALONE,
            first: held,
            last: held,
            charged,
            source_count,
            pieces: 1,
            received: piece.length,
            reach: end,
            total: select_unpredictable(piece.more, 0, end),
            touched: microseconds(now),
            header: select_unpredictable(is_first, piece.header, 0),
            ecn: EcnSeen::of(piece),
            in_order: true,
        }
    }

    /// What a piece would be. Changes nothing.
    #[inline]
    pub fn judge(&self, piece: &Piece, pieces_per_4k: u16) -> Judgement {
        if let Some(reason) = piece.fault().or_else(|| self.conflict_of_ends(piece)) {
            return Judgement::Fatal(reason);
        }
        let range = Run::of_bytes(piece.offset, piece.length);
        match self.coverage.look(range) {
            Fit::Duplicate => return Judgement::Duplicate,
            Fit::Overlap => return Judgement::Fatal(DropReason::FragOverlap),
            Fit::New => {}
        }
        if !self.ecn.with(piece).is_allowed() {
            return Judgement::Fatal(DropReason::FragEcn);
        }
        // As long as there are no more pieces than a block may have, no block can
        // have too many. They are counted from the last of these on.
        let crowded = self.pieces + 1 >= pieces_per_4k && pieces_per_4k < NO_BOUND;
        if crowded
            && self.coverage.map().is_some_and(|map| map.begun(piece.offset) >= pieces_per_4k)
        {
            return Judgement::Fatal(DropReason::FragTooManyPieces);
        }
        let total = self.total_with(piece);
        if total != 0 && self.received + piece.length == total {
            return Judgement::Completes;
        }
        let missing = self.coverage.map().is_none();
        Judgement::Fits { needs_map: missing && (crowded || self.coverage.would_overflow(range)) }
    }

    /// Whether a piece contradicts what is known of the datagram's end.
    #[inline]
    fn conflict_of_ends(&self, piece: &Piece) -> Option<DropReason> {
        let Piece { more, .. } = *piece;
        let (end, total) = (piece.end(), self.total);
        let is_known = total != 0;
        // The pieces of shuffled datagrams can not be foreseen, so no branches: with
        // more to follow behind this piece, the datagram ends behind it.
        let conflict = (more & is_known & (end >= total))
            | (!more & is_known & (end != total))
            | (!more & !is_known & (end <= self.reach));
        if conflict {
            return Some(DropReason::FragEnd);
        }
        let header = self.header_with(piece);
        let oversize = header.checked_add(end.max(self.reach)).is_none();
        oversize.then_some(DropReason::FragOversize)
    }

    #[inline]
    fn total_with(&self, piece: &Piece) -> u16 {
        select_unpredictable(piece.more, self.total, piece.end())
    }

    #[inline]
    fn header_with(&self, piece: &Piece) -> u16 {
        select_unpredictable(piece.offset == 0, piece.header, self.header)
    }

    /// Takes note of a piece that was judged to fit or to complete.
    #[inline]
    pub fn note(&mut self, piece: &Piece) {
        self.pieces += 1;
        self.received += piece.length;
        self.in_order &= piece.offset >= self.reach;
        self.reach = self.reach.max(piece.end());
        self.total = self.total_with(piece);
        self.header = self.header_with(piece);
        self.ecn = self.ecn.with(piece);
    }

    /// Marks the place of a piece as covered.
    #[inline]
    pub fn cover(&mut self, piece: &Piece) {
        self.coverage.fill(Run::of_bytes(piece.offset, piece.length));
        if let Some(map) = self.coverage.map_mut() {
            map.begin(piece.offset);
        }
    }

    /// Time between the last piece and `now`, microseconds; not more than 2^32.
    pub fn idle_us(&self, now: Timestamp) -> u32 {
        microseconds(now).wrapping_sub(self.touched)
    }

    pub fn summary(&self) -> Summary {
        Summary {
            pieces: u32::from(self.pieces),
            payload: u32::from(self.total),
            ecn: self.ecn.merged(),
        }
    }

    /// Gives the map away, if there is one.
    pub fn take_map(&mut self) -> Option<Box<Map>> {
        match std::mem::replace(&mut self.coverage, Coverage::EMPTY) {
            Coverage::Runs { .. } => None,
            Coverage::Map(map) => Some(map),
        }
    }
}

/// The low 32 bits of a time in microseconds: no datagram lives for an hour.
pub(crate) fn microseconds(time: Timestamp) -> u32 {
    (time.as_nanos() / 1000) as u32
}

/// So many pieces of 8 bytes fill 4 KiB: a limit of as many is none.
const NO_BOUND: u16 = 512;
