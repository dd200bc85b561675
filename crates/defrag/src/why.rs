//! Why a fragment was not delivered, with the numbers that decided.

use std::fmt;

use flow::{DropReason, Timestamp};
use wire::Family;

use crate::Settings;
use crate::coverage::{Run, UNIT};
use crate::piece::{Ecn, Piece};
use crate::queue::{Queue, State};

/// Why a fragment was given up: the reason that is counted, and what an operator has to know
/// to believe it. All fragments of a datagram share what was wrong with one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The reason says it all.
    Reason(DropReason),
    /// The fragment is wrong by itself.
    Impossible {
        /// What is wrong with it.
        reason: DropReason,
        /// Its place in the datagram, bytes.
        offset: u16,
        /// Its payload, bytes.
        length: u32,
        /// What counts beside the payload against the longest datagram, bytes.
        header: u16,
    },
    /// It contradicts where the datagram ends.
    End {
        /// Where it ends, bytes.
        end: u16,
        /// More fragments follow it.
        more: bool,
        /// Where the datagram ends by another fragment, 0 if none has told it.
        total: u16,
        /// Up to where fragments had come, bytes.
        reach: u16,
    },
    /// The datagram is too long.
    Oversize {
        /// Bytes in front of its payload that count.
        header: u16,
        /// Its payload up to the last known byte.
        end: u16,
    },
    /// Some of it had come before, and some of it had not.
    Overlap {
        /// First byte of it, and one past the last.
        range: (u16, u16),
        /// The same of what had come before.
        held: (u16, u16),
    },
    /// All of it had come before.
    Duplicate {
        /// First byte of it, and one past the last.
        range: (u16, u16),
    },
    /// Its ECN field can not stand beside that of the others.
    Ecn {
        /// Its field.
        found: Ecn,
        /// That of another.
        other: Ecn,
    },
    /// Too many fragments begin in a block of 4096 bytes.
    TooManyPieces {
        /// First byte of the block.
        block: u16,
        /// How many may.
        limit: u16,
    },
    /// The identification may have come round.
    Wrap {
        /// Fragments of its source since the last one of this datagram.
        distance: u32,
        /// How many may come between.
        limit: u32,
    },
    /// The datagram did not become complete.
    Unfinished {
        /// What ended it.
        reason: DropReason,
        /// How far it was.
        progress: Progress,
        /// How long it had waited, milliseconds.
        waited_ms: u64,
    },
    /// No room could be made.
    NoMemory {
        /// Bytes that were needed.
        bytes: u32,
        /// Most that the fragments of the gateway may hold.
        limit: u64,
    },
    /// Its datagram had been given up before.
    GivenUp {
        /// Why.
        reason: DropReason,
        /// How long after the first fragment this one came, milliseconds.
        after_ms: u64,
    },
}

/// How far a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Fragments that have come.
    pub pieces: u16,
    /// Payload of them, bytes.
    pub received: u16,
    /// Payload of the whole, bytes; 0 if the last fragment has not come.
    pub total: u16,
}

impl Why {
    /// The reason under which it is counted.
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

    /// The same of a datagram that waits no longer because nothing can come any more.
    #[must_use]
    pub const fn at_the_end(self) -> Self {
        match self {
            Self::Unfinished { progress, waited_ms, .. } => {
                Self::Unfinished { reason: DropReason::FragIncomplete, progress, waited_ms }
            }
            _ => Self::Reason(DropReason::FragIncomplete),
        }
    }

    /// Why a fragment that is wrong by itself is.
    pub(crate) fn impossible(piece: &Piece, reason: DropReason) -> Self {
        let Piece { offset, length, header, .. } = *piece;
        Self::Impossible { reason, offset, length: length.into(), header }
    }

    /// Why there was no room for so many bytes.
    #[cold]
    pub(crate) fn no_memory(family: Family, bytes: u64, settings: &Settings) -> Self {
        Self::NoMemory { bytes: bytes as u32, limit: settings.family(family).high_thresh }
    }

    /// Why a fragment was judged so.
    #[cold]
    pub(crate) fn judged(
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

    /// Why a datagram that was not complete has ended.
    #[cold]
    pub(crate) fn unfinished(reason: DropReason, queue: &Queue, now: Timestamp) -> Self {
        let Queue { identity, state } = queue;
        let waited_ms = now.since(identity.created).as_millis() as u64;
        if let crate::Stage::Dead(reason) = identity.stage {
            return Self::GivenUp { reason, after_ms: waited_ms };
        }
        let tally = &state.tally;
        let progress =
            Progress { pieces: tally.pieces, received: tally.received, total: tally.total };
        Self::Unfinished { reason, progress, waited_ms }
    }
}

impl From<DropReason> for Why {
    fn from(reason: DropReason) -> Self {
        Self::Reason(reason)
    }
}

impl fmt::Display for Why {
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
#[path = "why_tests.rs"]
mod tests;
