//! The facts about a connection that every packet reads: one cache line.

use flow::{Endpoint, FlowKey, Side, Timestamp, Zone};
use wire::Family;

use super::Direction;

/// log2 of the unit of [`Head::filed`] in nanoseconds, about a second.
const FILED_SHIFT: u32 = 30;

/// The first cache line of an entry: the fields that every packet reads.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Head {
    /// The connection ends at this time unless a packet comes.
    pub deadline: Timestamp,
    /// Low half of the flow hash; the next free slot while the entry is free.
    pub hash: u32,
    /// Time at which the timer wheel will look at the entry, in units of 2^30 ns.
    filed: u32,
    /// Mark of the connection (`ct mark`).
    pub mark: u32,
    pub key: FlowKey,
    pub status: Status,
}

/// Facts about a connection that are one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Status(u16);

impl Status {
    /// No fact.
    pub const NONE: Self = Self(0);
    /// The slot holds a connection.
    pub const LIVE: Self = Self(1);
    /// The originator is the high side of the key.
    pub const FROM_HIGH: Self = Self(1 << 1);
    /// A packet in the reply direction has come.
    pub const SEEN_REPLY: Self = Self(1 << 2);
    /// The connection is worth keeping when the table is full.
    pub const ASSURED: Self = Self(1 << 3);
    /// The side array counts its packets and bytes.
    pub const ACCOUNTED: Self = Self(1 << 4);
    /// The side array holds its start.
    pub const STAMPED: Self = Self(1 << 5);
    /// A helper reads its packets.
    pub const HAS_HELPER: Self = Self(1 << 6);
    /// Another connection has announced it.
    pub const EXPECTED: Self = Self(1 << 7);
    /// The reserve holds its unit, not the limit of the gateway.
    pub const RESERVED: Self = Self(1 << 8);
    /// It counts as a half-open connection of its source.
    pub const COUNTED: Self = Self(1 << 9);
    /// The SYN proxy has opened it.
    pub const PROXIED: Self = Self(1 << 10);
    /// It counts as a half-open TCP connection of its zone.
    pub const HALF_OPEN: Self = Self(1 << 11);
    /// It has labels.
    pub const LABELLED: Self = Self(1 << 12);
    /// It is a call of GRE version 1 that another connection has announced.
    pub const CALL: Self = Self(1 << 13);
    /// The packet that opened it is not yet confirmed: no event has reported it.
    pub const FRESH: Self = Self(1 << 14);
    /// Its replies carry other addresses or ports than its own packets, so it has a second key.
    pub const TRANSLATED: Self = Self(1 << 15);

    pub const fn has(self, bit: Self) -> bool {
        self.0 & bit.0 != 0
    }

    #[must_use]
    pub const fn with(self, bit: Self) -> Self {
        Self(self.0 | bit.0)
    }

    /// `bit` if `condition` is true, otherwise no bit.
    pub const fn when(condition: bool, bit: Self) -> Self {
        if condition { bit } else { Self(0) }
    }

    pub fn set(&mut self, bit: Self) {
        self.0 |= bit.0;
    }

    pub fn clear(&mut self, bit: Self) {
        self.0 &= !bit.0;
    }
}

impl Head {
    /// The line of a slot that holds nothing and links to the free slot `next`.
    pub const fn free(next: u32) -> Self {
        const NOBODY: Endpoint = Endpoint { address: [0; 16], port: 0 };
        Self {
            deadline: Timestamp::ZERO,
            hash: next,
            filed: 0,
            mark: 0,
            key: FlowKey {
                low: NOBODY,
                high: NOBODY,
                zone: Zone(0),
                protocol: 0,
                kind: 0,
                family: Family::V4,
            },
            status: Status::NONE,
        }
    }

    /// The line of a connection opened by `originator` of `key`. It has no deadline yet.
    pub fn open(key: FlowKey, hash: u32, originator: Side) -> Self {
        let from_high = Status::when(originator == Side::High, Status::FROM_HIGH);
        let (deadline, status) = (Timestamp::ZERO, Status::LIVE.with(from_high));
        Self { deadline, hash, filed: 0, mark: 0, key, status }
    }

    /// The end that opened the connection.
    pub fn originator(&self) -> Side {
        if self.status.has(Status::FROM_HIGH) { Side::High } else { Side::Low }
    }

    /// The direction of a packet from `sender`.
    pub fn direction(&self, sender: Side) -> Direction {
        if sender == self.originator() { Direction::Original } else { Direction::Reply }
    }

    /// True if a packet from this end can belong to the connection of the key: the key of a
    /// translated connection is that of its originator's packets only.
    #[inline]
    pub fn admits(&self, sender: Side) -> bool {
        !self.status.has(Status::TRANSLATED) || sender == self.originator()
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.deadline <= now
    }

    /// Records that the wheel will look at the entry at `deadline`.
    pub fn note_filed(&mut self, deadline: Timestamp) {
        self.filed = filed_at(deadline);
    }

    /// True if the wheel would look at the entry well after its deadline, as after the change
    /// from a long to a short timeout.
    pub fn is_filed_late(&self) -> bool {
        filed_at(self.deadline) < self.filed
    }
}

fn filed_at(deadline: Timestamp) -> u32 {
    u32::try_from(deadline.as_nanos() >> FILED_SHIFT).unwrap_or(u32::MAX)
}
