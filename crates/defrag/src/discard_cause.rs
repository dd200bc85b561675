//! The explanation why a fragment was not delivered, with the numbers that decided.

use std::fmt;

use flow::{DropReason, Timestamp};
use wire::Family;

use crate::Settings;
use crate::coverage::{Run, UNIT};
use crate::piece::{Ecn, Piece};
use crate::queue::{Queue, State};

/// Why a fragment was given up: the reason that is counted, with the numbers that prove it to
/// an operator. All fragments of a datagram share the explanation for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardCause {
    /// The reason needs no numbers.
    Reason(DropReason),
    /// The fragment is wrong by itself.
    Impossible {
        /// The fault.
        reason: DropReason,
        /// Its place in the datagram, bytes.
        offset: u16,
        /// Its payload, bytes.
        length: u32,
        /// Bytes beside the payload that count against the longest datagram.
        header: u16,
    },
    /// It contradicts the end of the datagram.
    End {
        /// End of the fragment, bytes.
        end: u16,
        /// More fragments follow it.
        more: bool,
        /// End of the datagram by another last fragment, bytes; 0 if none has come.
        total: u16,
        /// Highest end of the fragments so far, bytes.
        reach: u16,
    },
    /// The datagram is too long.
    Oversize {
        /// Bytes in front of the payload that count.
        header: u16,
        /// End of the payload up to the last known byte.
        end: u16,
    },
    /// A part of it had come before.
    Overlap {
        /// Its first byte, and one past its last.
        range: (u16, u16),
        /// The first byte that had come before, and one past the last.
        held: (u16, u16),
    },
    /// All of it had come before.
    Duplicate {
        /// Its first byte, and one past its last.
        range: (u16, u16),
    },
    /// Its ECN field can not occur together with that of the others.
    Ecn {
        /// Its field.
        found: Ecn,
        /// The field of another fragment.
        other: Ecn,
    },
    /// Too many fragments begin in a block of 4096 bytes.
    TooManyPieces {
        /// First byte of the block.
        block: u16,
        /// Most fragments that may begin there.
        limit: u16,
    },
    /// The identification may be in use again.
    Wrap {
        /// Fragments of its source since the last one of this datagram.
        distance: u32,
        /// Most fragments that may come between.
        limit: u32,
    },
    /// The datagram did not become complete.
    Unfinished {
        /// The reason for its end.
        reason: DropReason,
        /// The fragments that had come.
        progress: Progress,
        /// Time since the first fragment, milliseconds.
        waited_ms: u64,
    },
    /// There was no memory for it.
    NoMemory {
        /// Bytes that it needed.
        bytes: u32,
        /// Most bytes that the fragments of the gateway may hold.
        limit: u64,
    },
    /// Its datagram had been given up before.
    GivenUp {
        /// The reason for that.
        reason: DropReason,
        /// Time between the first fragment and this one, milliseconds.
        after_ms: u64,
    },
}

/// The part of a datagram that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Fragments that have come.
    pub pieces: u16,
    /// Payload of these, bytes.
    pub received: u16,
    /// Payload of the whole datagram in bytes; 0 if the last fragment has not come.
    pub total: u16,
}

impl DiscardCause {
    /// The reason under which the drop is counted.
    pub const fn reason(self) -> DropReason {
        match self {
            Self::Reason(reason)
            | Self::Impossible { reason, .. }
            | Self::Unfinished { reason, .. }
            | Self::GivenUp { reason, .. } => reason,
            Self::End { .. } => DropReason::FragEnd,
            Self::Oversize { .. } => DropReason::FragOversize,
            Self::Overlap { .. } => DropReason::FragOverlap,
            Self::Duplicate { .. } => DropReason::FragDuplicate,
            Self::Ecn { .. } => DropReason::FragEcn,
            Self::TooManyPieces { .. } => DropReason::FragTooManyPieces,
            Self::Wrap { .. } => DropReason::FragWrap,
            Self::NoMemory { .. } => DropReason::FragNoMemory,
        }
    }

    /// The same for a datagram that ends because no more frames can come.
    #[must_use]
    pub const fn at_the_end(self) -> Self {
        match self {
            Self::Unfinished { progress, waited_ms, .. } => {
                Self::Unfinished { reason: DropReason::FragIncomplete, progress, waited_ms }
            }
            _ => Self::Reason(DropReason::FragIncomplete),
        }
    }

    /// Explains the fault of a fragment that is wrong by itself.
    pub(crate) fn impossible(piece: &Piece, reason: DropReason) -> Self {
        let Piece { offset, length, header, .. } = *piece;
        Self::Impossible { reason, offset, length: length.into(), header }
    }

    /// Explains that there was no room for `bytes` bytes.
    #[cold]
    pub(crate) fn no_memory(family: Family, bytes: u64, settings: &Settings) -> Self {
        Self::NoMemory { bytes: bytes as u32, limit: settings.family(family).high_thresh }
    }

    /// Explains the result of the check of a fragment.
    #[cold]
    pub(crate) fn of_check(
        reason: DropReason,
        piece: &Piece,
        state: &State,
        settings: &Settings,
    ) -> Self {
        let State { coverage, tally, .. } = state;
        let (end, range) = (piece.end(), (piece.offset, piece.end()));
        match reason {
            _ if piece.fault().is_some() => Self::impossible(piece, reason),
            DropReason::FragEnd => {
                Self::End { end, more: piece.more, total: tally.total, reach: tally.reach }
            }
            DropReason::FragOversize => {
                Self::Oversize { header: tally.header_with(piece), end: end.max(tally.reach) }
            }
            DropReason::FragOverlap => {
                let held = coverage.held_of(Run::of_bytes(piece.offset, piece.length));
                // The last unit of a datagram may not be whole.
                let held_end = held.end.saturating_mul(UNIT).min(tally.reach);
                Self::Overlap { range, held: (held.start * UNIT, held_end) }
            }
            DropReason::FragDuplicate => Self::Duplicate { range },
            DropReason::FragEcn => {
                Self::Ecn { found: piece.ecn, other: tally.ecn.other_than(piece.ecn) }
            }
            DropReason::FragTooManyPieces => {
                Self::TooManyPieces { block: piece.offset & 0xf000, limit: settings.pieces_per_4k }
            }
            reason => Self::Reason(reason),
        }
    }

    /// Explains the end of a datagram that was not complete.
    #[cold]
    pub(crate) fn unfinished(reason: DropReason, queue: &Queue, now: Timestamp) -> Self {
        let Queue { identity, state } = queue;
        let waited_ms = now.since(identity.created).as_millis() as u64;
        if let crate::Phase::Dead(reason) = identity.phase {
            return Self::GivenUp { reason, after_ms: waited_ms };
        }
        let tally = &state.tally;
        let progress =
            Progress { pieces: tally.pieces, received: tally.received, total: tally.total };
        Self::Unfinished { reason, progress, waited_ms }
    }
}

impl From<DropReason> for DiscardCause {
    fn from(reason: DropReason) -> Self {
        Self::Reason(reason)
    }
}

impl fmt::Display for DiscardCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Reason(reason) => f.write_str(reason.meaning()),
            Self::Impossible { reason, offset, length, header } => {
                impossible(reason, offset, length, header, f)
            }
            Self::End { end, more: true, total, .. } => {
                write!(f, "a fragment ends at {end} and is not the last, but the end is {total}")
            }
            Self::End { end, total: 0, reach, .. } => {
                write!(f, "the last fragment ends at {end}, but bytes up to {reach} had come")
            }
            Self::End { end, total, .. } => {
                write!(f, "the last fragment ends at {end}, another last one at {total}")
            }
            Self::Oversize { header, end } => {
                let sum = u32::from(header) + u32::from(end);
                write!(f, "{header} bytes of headers and payload up to {end} make {sum}, ")?;
                f.write_str("more than 65535")
            }
            Self::Overlap { range: (start, end), held: (from, to) } => write!(
                f,
                "a fragment from {start} to {end} overlaps what had come from {from} to {to}"
            ),
            Self::Duplicate { range: (start, end) } => {
                write!(f, "all from {start} to {end} had come before")
            }
            Self::Ecn { found, other } => {
                write!(f, "ECN field {} beside {}", found.name(), other.name())
            }
            Self::TooManyPieces { block, limit } => write!(
                f,
                "more than {limit} fragments begin between {block} and {}",
                u32::from(block) + 4096
            ),
            Self::Wrap { distance, limit } => write!(
                f,
                "{distance} fragments of its source since the last one of its datagram, more \
                 than {limit}"
            ),
            Self::Unfinished { reason, progress, waited_ms } => {
                unfinished(reason, progress, waited_ms, f)
            }
            Self::NoMemory { bytes, limit } => {
                write!(f, "no room for {bytes} bytes within {limit}")
            }
            Self::GivenUp { reason, after_ms } => write!(
                f,
                "came {after_ms} ms after the first fragment of a datagram that was given up \
                 before ({reason})"
            ),
        }
    }
}

fn impossible(
    reason: DropReason,
    offset: u16,
    length: u32,
    header: u16,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match reason {
        DropReason::FragEmpty => write!(f, "no payload at offset {offset}"),
        DropReason::FragLength => {
            write!(f, "{length} bytes at offset {offset} are not the last and no multiple of 8")
        }
        DropReason::FragOversize => {
            let end = u32::from(header) + u32::from(offset) + length;
            write!(f, "{header} bytes of headers and {length} at offset {offset} end at {end}, ")?;
            f.write_str("more than 65535")
        }
        reason => write!(f, "{length} bytes at offset {offset}: {}", reason.meaning()),
    }
}

fn unfinished(
    reason: DropReason,
    progress: Progress,
    waited_ms: u64,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Progress { pieces, received, total } = progress;
    let plural = if pieces == 1 { "" } else { "s" };
    write!(f, "{pieces} fragment{plural} with {received} ")?;
    match total {
        0 => f.write_str("bytes, the last one not among them, ")?,
        total => write!(f, "of {total} bytes ")?,
    }
    match reason {
        DropReason::FragTimeout => write!(f, "had come in {waited_ms} ms, when time was over"),
        DropReason::FragIncomplete => f.write_str("had come at the end"),
        _ => write!(f, "had come in {waited_ms} ms, when room was made for others"),
    }
}

#[cfg(test)]
#[path = "discard_cause_tests.rs"]
mod tests;
