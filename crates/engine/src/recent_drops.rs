//! The last packets that were dropped for each reason, to be looked at.
//!
//! A flood of one reason does not push out what was dropped for another, and costs
//! its worker no more than a few copies in a turn.

use std::cmp::Reverse;

use flow::{DropReason, Timestamp, Zone};
use netio::{Frame, PortId};
use steer::WorkerId;
use wire::vlan_of;

use crate::zones::{Origin, Zones};

use crate::why::Why;

/// Packets that a worker keeps for each reason.
pub const DROPS_KEPT: usize = 4;
/// Packets that are kept in one turn at most.
const KEPT_PER_TURN: u32 = 8;
/// Bytes of a packet that are kept: the headers, those of a tunnel included.
const HEAD: usize = 160;

/// A packet that was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentDrop {
    /// When, on the worker's clock.
    pub at: Timestamp,
    /// Where it came from.
    pub port: PortId,
    /// Its zone.
    pub zone: Zone,
    /// Its VLAN, 0 for none.
    pub vlan: u16,
    /// Its position in the input, in a replay.
    pub sequence: u64,
    /// Its length, bytes.
    pub length: u32,
    /// Why.
    pub why: Why,
    /// Its first bytes.
    head: [u8; HEAD],
}

impl RecentDrop {
    /// The first bytes of a frame, and what is said of it.
    pub fn new(frame: &Frame, why: Why, at: Timestamp, zones: &Zones) -> Self {
        let mut head = [0; HEAD];
        let kept = frame.len().min(HEAD);
        head[..kept].copy_from_slice(&frame.bytes()[..kept]);
        let (length, why) = (frame.len() as u32, why.about(frame.bytes()));
        let Origin { zone, vlan, .. } = zones.origin(frame.port, vlan_of(frame.bytes()));
        Self { at, port: frame.port, zone, vlan, sequence: frame.sequence, length, why, head }
    }

    /// The packet with its payload cleared: what lies behind the first bytes is zero.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.to_vec();
        bytes.resize(self.length as usize, 0);
        bytes
    }
}

/// What workers that are gone remembered: the latest [`DROPS_KEPT`] of all for each reason.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(WorkerId, RecentDrop)>);

impl Inherited {
    /// Keeps what a worker that goes remembers.
    pub fn add(&mut self, worker: WorkerId, dropped: impl IntoIterator<Item = RecentDrop>) {
        self.0.extend(dropped.into_iter().map(|dropped| (worker, dropped)));
        self.0.sort_by_key(|(_, dropped)| Reverse(dropped.at));
        let mut kept = [0; DropReason::COUNT];
        self.0.retain(|(_, dropped)| {
            let kept = &mut kept[dropped.why.reason() as usize];
            *kept += 1;
            *kept <= DROPS_KEPT
        });
    }

    /// What is kept, with the workers that dropped it.
    pub fn kept(&self) -> &[(WorkerId, RecentDrop)] {
        &self.0
    }
}

/// What a worker remembers.
#[derive(Debug)]
pub enum RecentDrops {
    /// The latest for each reason.
    Latest(Latest),
    /// Everything until it is taken, in order: replay.
    All(Vec<RecentDrop>),
}

/// The latest for each reason.
#[derive(Debug)]
pub struct Latest {
    /// [`DROPS_KEPT`] places for each reason.
    places: Box<[Option<RecentDrop>]>,
    /// The place of each reason that is overwritten next.
    next: [u8; DropReason::COUNT],
    /// How many may be kept in this turn.
    left: u32,
}

impl RecentDrops {
    /// Keeps the latest for each reason.
    pub fn latest() -> Self {
        Self::Latest(Latest {
            places: vec![None; DropReason::COUNT * DROPS_KEPT].into_boxed_slice(),
            next: [0; DropReason::COUNT],
            left: 0,
        })
    }

    /// Begins a turn.
    pub fn begin(&mut self) {
        if let Self::Latest(latest) = self {
            latest.left = KEPT_PER_TURN;
        }
    }

    /// Looks at a packet that is about to be dropped.
    pub fn see(&mut self, frame: &Frame, why: Why, now: Timestamp, zones: &Zones) {
        match self {
            Self::Latest(Latest { left: 0, .. }) => {}
            Self::Latest(latest) => latest.keep(frame, why, now, zones),
            Self::All(all) => all.push(RecentDrop::new(frame, why, now, zones)),
        }
    }

    /// Hands out everything that a replay has dropped since the last time.
    pub fn take(&mut self) -> Vec<RecentDrop> {
        match self {
            Self::Latest(_) => Vec::new(),
            Self::All(all) => std::mem::take(all),
        }
    }

    /// What is kept.
    pub fn kept(&self) -> Vec<RecentDrop> {
        match self {
            Self::Latest(latest) => latest.places.iter().flatten().cloned().collect(),
            Self::All(all) => all.clone(),
        }
    }
}

impl Latest {
    #[cold]
    fn keep(&mut self, frame: &Frame, why: Why, now: Timestamp, zones: &Zones) {
        self.left -= 1;
        let reason = why.reason() as usize;
        let next = &mut self.next[reason];
        self.places[reason * DROPS_KEPT + usize::from(*next)] =
            Some(RecentDrop::new(frame, why, now, zones));
        *next = (*next + 1) % DROPS_KEPT as u8;
    }
}

#[cfg(test)]
#[path = "recent_drops_tests.rs"]
mod tests;
