//! Sums over the fragments of an incomplete datagram.

use std::hint::select_unpredictable;

use flow::{DropReason, Timestamp};

use crate::piece::{Ecn, Piece};

/// Sums over the fragments that are held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    /// Memory charged for the queue and its fragments, bytes.
    pub charged: u32,
    /// Number of fragments that the source had sent when the last one of this datagram came.
    pub source_count: u32,
    pub pieces: u16,
    /// Payload held, bytes.
    pub received: u16,
    /// Highest end of a fragment, bytes.
    pub reach: u16,
    /// End of the datagram in bytes, 0 until the last fragment has come.
    pub total: u16,
    /// Time from the first fragment to the latest, microseconds; the largest number stands for
    /// 71 minutes and more.
    pub active_us: u32,
    /// [`Piece::header`] of the fragment at offset 0, 0 until it has come.
    pub header: u16,
    pub ecn: EcnSeen,
    /// True if no fragment has come after one that lies behind it.
    pub in_order: bool,
}

/// The ECN fields of the fragments so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EcnSeen {
    /// One bit for each value seen, and above these the value of the fragment at offset 0.
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

    /// False if a fragment that can not carry a mark is mixed with one that can (RFC 3168
    /// section 5.3).
    #[inline]
    const fn is_allowed(self) -> bool {
        let seen = self.bits & 0x0f;
        seen & Self::NOT_ECT == 0 || seen == Self::NOT_ECT
    }

    /// True if all fragments so far had this field.
    #[inline]
    const fn is_only(self, ecn: Ecn) -> bool {
        (self.bits & 0x0f) >> (ecn as u8) == 1
    }

    /// A field other than `found` that was seen.
    pub fn other_than(self, found: Ecn) -> Ecn {
        let others = self.bits & 0x0f & !(1 << found as u8);
        Ecn::of(others.trailing_zeros() as u8)
    }

    /// The ECN field of the whole datagram: congestion if any fragment met it, otherwise the
    /// field of the fragment at offset 0.
    fn merged(self) -> Ecn {
        if self.bits & Self::CE != 0 { Ecn::Ce } else { Ecn::of(self.bits >> 4) }
    }
}

/// The properties of a complete datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of fragments that it came in.
    pub pieces: u32,
    /// Bytes of the fragmentable part.
    pub payload: u32,
    /// ECN field of the whole datagram.
    pub ecn: Ecn,
}

impl Tally {
    /// No fragment.
    pub const NOTHING: Self = Self {
        charged: 0,
        source_count: 0,
        pieces: 0,
        received: 0,
        reach: 0,
        total: 0,
        active_us: 0,
        header: 0,
        ecn: EcnSeen { bits: 0 },
        in_order: true,
    };

    /// The sums for one fragment.
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
            active_us: 0,
            header: select_unpredictable(is_first, piece.header, 0),
            ecn: EcnSeen::of(piece),
            in_order: true,
        }
    }

    /// Returns a reason if a fragment contradicts the known end of the datagram.
    #[inline]
    pub fn conflict_of_ends(&self, piece: &Piece) -> Option<DropReason> {
        let Piece { more, .. } = *piece;
        let (end, total) = (piece.end(), self.total);
        let is_known = total != 0;
        // The processor can not predict the fragments of shuffled datagrams, so there are no
        // branches. A fragment with more to follow must end before the datagram does.
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

    /// True if a fragment that overlaps no other simply fits and has the same ECN field as the
    /// others. If not, it may still fit.
    #[inline]
    pub fn plainly_takes(&self, piece: &Piece) -> bool {
        let end = piece.end();
        // The largest number if the end is not known. A fragment with more to follow ends
        // before it. The last fragment ends behind all others, and its end makes the end known.
        let bound = self.total.wrapping_sub(1);
        let low = select_unpredictable(piece.more, 0, self.reach);
        let high = select_unpredictable(piece.more, end, u16::MAX);
        let header = piece.header | self.header;
        end > low
            && high <= bound
            && header.checked_add(end.max(self.reach)).is_some()
            && self.ecn.is_only(piece.ecn)
    }

    /// Adds a fragment that was found to fit or to complete.
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

    /// True if the datagram would mix fragments that can carry a congestion mark with others.
    #[inline]
    pub fn mixes_ecn(&self, piece: &Piece) -> bool {
        !self.ecn.with(piece).is_allowed()
    }

    /// True if a block may get too many fragments with one more. No block can while the
    /// datagram has fewer than the limit of a block. From that number on the fragments of each
    /// block are counted, also if the limit is off, so that counting the held fragments takes
    /// no more steps than the limit.
    #[inline]
    pub const fn is_crowded(&self, pieces_per_4k: u16) -> bool {
        self.pieces + 1 >= pieces_per_4k
    }

    /// True if a fragment that overlaps no other is the last one that was missing.
    #[inline]
    pub fn is_completed_by(&self, piece: &Piece) -> bool {
        let total = self.total_with(piece);
        (total != 0) & (self.received + piece.length == total)
    }

    /// Adds the cost of a fragment.
    #[inline]
    pub fn charge(&mut self, bytes: u32, source_count: u32) {
        self.charged += bytes;
        self.source_count = source_count;
    }

    /// Records the arrival of the latest fragment of a datagram that began at `created`.
    #[inline]
    pub fn touch(&mut self, created: Timestamp, now: Timestamp) {
        let active_us = now.as_nanos().saturating_sub(created.as_nanos()) / 1000;
        self.active_us = active_us.min(u32::MAX.into()) as u32;
    }

    pub fn summary(&self) -> Summary {
        Summary {
            pieces: u32::from(self.pieces),
            payload: u32::from(self.total),
            ecn: self.ecn.merged(),
        }
    }
}
