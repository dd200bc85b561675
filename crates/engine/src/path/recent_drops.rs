//! Keeps the last packets that were dropped for each reason, for operators to look at.
//!
//! A flood of drops for one reason does not push out those for other reasons. It costs its worker
//! no more than a few copies in a turn.

use std::cmp::Reverse;

use flow::{DropReason, Timestamp, Zone};
use netio::{Frame, PortId};
use steer::WorkerId;
use wire::vlan_of;

use crate::path::drop_cause::DropCause;
use crate::path::zones::{Origin, Zones};

/// Most packets that a worker keeps for each reason.
pub const DROPS_KEPT: usize = 4;
/// Most packets that a worker keeps in one turn.
const KEPT_PER_TURN: u32 = 8;
/// Bytes of a packet that are kept: enough for the headers, including those of a tunnel.
const HEAD: usize = 160;

/// A packet that was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentDrop {
    /// The time of the drop, on the worker's clock.
    pub at: Timestamp,
    /// The port that it came in by.
    pub port: PortId,
    /// The port that it was to leave by, in a line that a rule asks for, if that is known.
    pub output: Option<PortId>,
    /// Its zone.
    pub zone: Zone,
    /// Its outermost VLAN, 0 for none.
    pub vlan: u16,
    /// Its position in the capture from 0, in a replay.
    pub sequence: u64,
    /// Its length, bytes.
    pub length: u32,
    /// The reason.
    pub why: DropCause,
    /// Its first bytes.
    head: [u8; HEAD],
}

impl RecentDrop {
    /// Copies the first bytes of a frame and notes where it came from.
    pub fn new(frame: &Frame, why: DropCause, at: Timestamp, zones: &Zones) -> Self {
        let mut head = [0; HEAD];
        let kept = frame.len().min(HEAD);
        head[..kept].copy_from_slice(&frame.bytes()[..kept]);
        let (length, why) = (frame.len() as u32, why.about(frame.bytes()));
        let Origin { zone, vlan, .. } = zones.origin(frame.port, vlan_of(frame.bytes()));
        Self {
            at,
            port: frame.port,
            output: None,
            zone,
            vlan,
            sequence: frame.sequence,
            length,
            why,
            head,
        }
    }

    /// The same with the port that it was to leave by.
    pub fn with_output(self, output: Option<PortId>) -> Self {
        Self { output, ..self }
    }

    /// The packet, with zeros behind its first bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.to_vec();
        bytes.resize(self.length as usize, 0);
        bytes
    }
}

/// The drops that removed workers remembered: the latest [`DROPS_KEPT`] for each reason, of all
/// these workers together.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(WorkerId, RecentDrop)>);

impl Inherited {
    /// Takes over the drops of a worker that is about to leave.
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

    /// The kept drops, each with the worker that dropped the packet.
    pub fn kept(&self) -> &[(WorkerId, RecentDrop)] {
        &self.0
    }
}

/// The drops that a worker remembers.
#[derive(Debug)]
pub struct RecentDrops {
    /// When the turn began.
    now: Timestamp,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    /// The latest for each reason.
    Latest(Latest),
    /// All drops until they are taken, in order.
    All(Vec<RecentDrop>),
}

/// The latest for each reason.
#[derive(Debug)]
struct Latest {
    /// [`DROPS_KEPT`] places for each reason.
    places: Box<[Option<RecentDrop>]>,
    /// The place that is overwritten next, by reason.
    next: [u8; DropReason::COUNT],
    /// How many drops may still be kept in this turn.
    left: u32,
}

impl RecentDrops {
    /// Creates a memory for the latest drops of each reason.
    pub fn latest() -> Self {
        let kept = Kept::Latest(Latest {
            places: vec![None; DropReason::COUNT * DROPS_KEPT].into_boxed_slice(),
            next: [0; DropReason::COUNT],
            left: 0,
        });
        Self { now: Timestamp::ZERO, kept }
    }

    /// Creates a memory for all drops of a replay.
    pub fn all() -> Self {
        Self { now: Timestamp::ZERO, kept: Kept::All(Vec::new()) }
    }

    /// Begins a turn.
    pub fn begin(&mut self, now: Timestamp) {
        self.now = now;
        if let Kept::Latest(latest) = &mut self.kept {
            latest.left = KEPT_PER_TURN;
        }
    }

    /// Notes a packet that is about to be dropped.
    pub fn see(&mut self, frame: &Frame, why: DropCause, zones: &Zones) {
        match &mut self.kept {
            Kept::Latest(Latest { left: 0, .. }) => {}
            Kept::Latest(latest) => latest.keep(frame, why, self.now, zones),
            Kept::All(all) => all.push(RecentDrop::new(frame, why, self.now, zones)),
        }
    }

    /// True if there are drops of a replay that were not taken.
    pub fn has_untaken(&self) -> bool {
        matches!(&self.kept, Kept::All(all) if !all.is_empty())
    }

    /// Takes out the drops of a replay.
    pub fn take(&mut self) -> Vec<RecentDrop> {
        match &mut self.kept {
            Kept::Latest(_) => Vec::new(),
            Kept::All(all) => std::mem::take(all),
        }
    }

    /// A copy of the kept drops.
    pub fn kept(&self) -> Vec<RecentDrop> {
        match &self.kept {
            Kept::Latest(latest) => latest.places.iter().flatten().cloned().collect(),
            Kept::All(all) => all.clone(),
        }
    }
}

impl Latest {
    #[cold]
    fn keep(&mut self, frame: &Frame, why: DropCause, now: Timestamp, zones: &Zones) {
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
