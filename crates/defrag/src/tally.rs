//! What is known of an incomplete datagram beside where its pieces lie.

use std::hint::select_unpredictable;

use flow::{DropReason, Timestamp};

use crate::piece::{Ecn, Piece};

/// Sums over the pieces that are held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
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

    /// True if all pieces so far had this field.
    #[inline]
    const fn is_only(self, ecn: Ecn) -> bool {
        (self.bits & 0x0f) >> (ecn as u8) == 1
    }

    /// A field that was seen beside this one, which may be among those that were.
    pub fn other_than(self, found: Ecn) -> Ecn {
        let others = self.bits & 0x0f & !(1 << found as u8);
        Ecn::of(others.trailing_zeros() as u8)
    }

    /// The ECN field of the whole: congestion that any piece has met, or what the
    /// first piece says.
    fn merged(self) -> Ecn {
        if self.bits & Self::CE != 0 { Ecn::Ce } else { Ecn::of(self.bits >> 4) }
    }
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

impl Tally {
    /// No piece.
    pub const NOTHING: Self = Self {
        charged: 0,
        source_count: 0,
        pieces: 0,
        received: 0,
        reach: 0,
        total: 0,
        touched: 0,
        header: 0,
        ecn: EcnSeen { bits: 0 },
        in_order: true,
    };

    /// A datagram of which one piece is held, when it came not told yet.
    #[inline]
    pub fn of(piece: &Piece, charged: u32, source_count: u32) -> Self {
        let (is_first, end) = (piece.offset == 0, piece.end());
        Self {
            charged,
            source_count,
            pieces: 1,
            received: piece.length,
            reach: end,
            total: select_unpredictable(piece.more, 0, end),
            touched: 0,
            header: select_unpredictable(is_first, piece.header, 0),
            ecn: EcnSeen::of(piece),
            in_order: true,
        }
    }

    /// Whether a piece contradicts what is known of the datagram's end.
    #[inline]
    pub fn conflict_of_ends(&self, piece: &Piece) -> Option<DropReason> {
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
    pub fn header_with(&self, piece: &Piece) -> u16 {
        select_unpredictable(piece.offset == 0, piece.header, self.header)
    }

    /// Whether a piece that overlaps no other goes well with all, and has the same ECN field
    /// as they. If not, it may still be fit.
    #[inline]
    pub fn plainly_takes(&self, piece: &Piece) -> bool {
        let end = piece.end();
        // The largest number if the end is not known: with more to follow, a piece ends
        // before it; the last piece ends behind all others and is the first to tell it.
        let bound = self.total.wrapping_sub(1);
        let low = select_unpredictable(piece.more, 0, self.reach);
        let high = select_unpredictable(piece.more, end, u16::MAX);
        let header = piece.header | self.header;
        end > low
            && high <= bound
            && header.checked_add(end.max(self.reach)).is_some()
            && self.ecn.is_only(piece.ecn)
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

    /// Whether a piece that can not carry a mark of congestion is mixed with others.
    #[inline]
    pub fn mixes_ecn(&self, piece: &Piece) -> bool {
        !self.ecn.with(piece).is_allowed()
    }

    /// Whether a block may have too many pieces with one more. As long as there are no
    /// more pieces than a block may have, no block can: they are counted from the last
    /// of these on, also if any number may begin in a block, so that counting what is
    /// held takes no more steps than that.
    #[inline]
    pub const fn is_crowded(&self, pieces_per_4k: u16) -> bool {
        self.pieces + 1 >= pieces_per_4k
    }

    /// Whether a piece that overlaps no other is the last one that was missing.
    #[inline]
    pub fn is_completed_by(&self, piece: &Piece) -> bool {
        let total = self.total_with(piece);
        (total != 0) & (self.received + piece.length == total)
    }

    /// Takes note of what a piece that was noted costs.
    #[inline]
    pub fn charge(&mut self, bytes: u32, source_count: u32) {
        self.charged += bytes;
        self.source_count = source_count;
    }

    /// Takes note of when the last piece came.
    #[inline]
    pub fn touch(&mut self, now: Timestamp) {
        self.touched = microseconds(now);
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
}

/// The low 32 bits of a time in microseconds: no datagram lives for an hour.
pub(crate) fn microseconds(time: Timestamp) -> u32 {
    (time.as_nanos() / 1000) as u32
}
