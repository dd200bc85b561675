//! One incomplete datagram.

use flow::{DropReason, Timestamp};

use crate::coverage::{Coverage, Fit, Map, Run};
use crate::fifo::Link;
use crate::piece::{DatagramKey, Piece};
use crate::slab::{NONE, Slot};
use crate::tally::Tally;

/// An incomplete datagram in two cache lines: its identity and its state.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Queue {
    pub identity: Identity,
    pub state: State,
}

/// The part of a queue that look-ups read.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Identity {
    pub key: DatagramKey,
    pub created: Timestamp,
    /// Low half of the key's hash.
    pub hash: u32,
    pub age: Link,
    pub bucket: u16,
    pub phase: Phase,
}

/// The part of a queue that a fragment changes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct State {
    pub coverage: Coverage,
    pub peers: Link,
    /// Slot of the first fragment; the fragments are linked in the order of arrival.
    pub first: u32,
    pub last: u32,
    pub tally: Tally,
}

const _: () = assert!(size_of::<Identity>() == 64 && size_of::<State>() == 64);
const _: () = assert!(size_of::<Slot<Queue>>() == 128, "free places need no room of their own");

/// The phase of an incomplete datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// One fragment is held.
    Newcomer,
    /// Two or more fragments are held.
    Progress,
    /// The datagram was given up for a reason that condemns its later fragments too, and is
    /// remembered until its timeout.
    Dead(DropReason),
}

impl Phase {
    /// Number of phases; the reasons of `Dead` do not count.
    pub const COUNT: usize = 3;

    /// True for a datagram that was given up and is only remembered.
    pub const fn is_dead(self) -> bool {
        matches!(self, Self::Dead(_))
    }

    /// An index into lists by phase.
    pub const fn index(self) -> usize {
        match self {
            Self::Newcomer => 0,
            Self::Progress => 1,
            Self::Dead(_) => 2,
        }
    }
}

/// The result of the check of a fragment for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceCheck {
    /// It brings nothing new.
    Duplicate,
    /// With it the datagram can not be right.
    Fatal(DropReason),
    /// It is the last fragment that was missing.
    Completes,
    /// It has to be held.
    Fits {
        /// True if the runs do not suffice any more.
        needs_map: bool,
    },
}

impl Identity {
    #[inline]
    pub fn new(key: DatagramKey, hash: u64, bucket: u16, now: Timestamp) -> Self {
        let (age, phase) = (Link::ALONE, Phase::Newcomer);
        Self { key, created: now, hash: hash as u32, age, bucket, phase }
    }
}

impl State {
    /// A datagram whose fragments are not linked to it yet.
    #[inline]
    pub const fn of(coverage: Coverage, tally: Tally) -> Self {
        Self { coverage, peers: Link::ALONE, first: NONE, last: NONE, tally }
    }

    /// Checks a fragment. Changes nothing.
    #[inline]
    pub fn check(&self, piece: &Piece, pieces_per_4k: u16) -> PieceCheck {
        if let Some(reason) = piece.fault().or_else(|| self.tally.conflict_of_ends(piece)) {
            return PieceCheck::Fatal(reason);
        }
        let range = Run::of_bytes(piece.offset, piece.length);
        match self.coverage.look(range) {
            Fit::Duplicate => return PieceCheck::Duplicate,
            Fit::Overlap => return PieceCheck::Fatal(DropReason::FragOverlap),
            Fit::New => {}
        }
        if self.tally.mixes_ecn(piece) {
            return PieceCheck::Fatal(DropReason::FragEcn);
        }
        let crowded = self.tally.is_crowded(pieces_per_4k);
        if crowded
            && self.coverage.map().is_some_and(|map| map.begun(piece.offset) >= pieces_per_4k)
        {
            return PieceCheck::Fatal(DropReason::FragTooManyPieces);
        }
        if self.tally.is_completed_by(piece) {
            return PieceCheck::Completes;
        }
        let missing = self.coverage.map().is_none();
        PieceCheck::Fits { needs_map: missing && (crowded || self.coverage.would_overflow(range)) }
    }

    /// Marks the range of a fragment as covered.
    #[inline]
    pub fn cover(&mut self, piece: &Piece) {
        self.coverage.fill(Run::of_bytes(piece.offset, piece.length));
        if let Some(map) = self.coverage.map_mut() {
            map.begin(piece.offset);
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
