//! The way of connections from this gateway to its peers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use conntrack::proto::tcp::TcpState;
use conntrack::{Change, ConnectionRecord, Cursor, Outline, OutlineState};
use flow::{KeyedPacket, Timestamp};
use steer::BucketId;
use sync::pfsync::{NotTaken, Passage, State, StateId};

use crate::control::peer::Connections;
use crate::control::worker_handle::Unresponsive;
use crate::path::change_ring::ChangeStream;
use crate::path::deferred::Receipt;
use crate::path::replication::CopyChange;

use super::Pfsync;
use super::mapping::{Middle, states_of};

/// Lots of changes that one turn takes in at most, so that packets leave meanwhile.
const LOTS_A_TURN: usize = 64;
/// Pieces of buckets that one turn reads at most.
const PIECES_A_TURN: usize = 16;

/// Changes of connections from the workers.
pub struct Feed {
    stream: Option<ChangeStream>,
    /// First packets of connections wait for the peers.
    defers: bool,
    /// States whose packets wait, with the places in which they came.
    waiting: BTreeMap<StateId, u64>,
    places: BTreeSet<u64>,
    next_place: u64,
    /// Receipts, each with the place up to which its states came.
    receipts: VecDeque<(u64, Receipt)>,
    /// The number of the last scan, and where it goes on.
    scan: u32,
    going: Option<(u16, Cursor)>,
}

impl Feed {
    pub fn new(defers: bool) -> Self {
        Self {
            stream: None,
            defers,
            waiting: BTreeMap::new(),
            places: BTreeSet::new(),
            next_place: 0,
            receipts: VecDeque::new(),
            scan: 0,
            going: None,
        }
    }

    fn begin_scan(&mut self) {
        self.scan = self.scan.wrapping_add(1);
        self.going = Some((0, Cursor::default()));
    }

    fn wait_for(&mut self, id: StateId) {
        self.places.insert(self.next_place);
        if let Some(before) = self.waiting.insert(id, self.next_place) {
            self.places.remove(&before);
        }
        self.next_place += 1;
    }

    /// The packet that waits for a state may go.
    pub fn release(&mut self, id: StateId) {
        if let Some(place) = self.waiting.remove(&id) {
            self.places.remove(&place);
        }
    }
}

impl Pfsync {
    /// Follows the changes of connections from the first turn on.
    pub(super) fn follow(&mut self, gateway: &dyn Connections) -> Result<(), Unresponsive> {
        if self.feed.stream.is_none() {
            self.feed.stream = Some(gateway.follow_changes()?);
            self.feed.begin_scan();
        }
        Ok(())
    }

    /// Takes in changes of connections. True if there may be more.
    pub(super) fn take_changes(&mut self, now: Timestamp) -> bool {
        for _ in 0..LOTS_A_TURN {
            let Some(stream) = &mut self.feed.stream else { return false };
            let (mut changes, mut receipts, mut has_lost) = (Vec::new(), Vec::new(), false);
            let has_taken = stream.take(|lot| {
                has_lost |= lot.has_lost;
                receipts.extend(lot.receipt.take());
                changes.append(&mut lot.changes);
            });
            for change in changes {
                self.tell(now, change);
            }
            let place = self.feed.next_place;
            self.feed.receipts.extend(receipts.into_iter().map(|receipt| (place, receipt)));
            if has_lost {
                self.counters.lost_ends += 1;
                self.feed.begin_scan();
            }
            if !has_taken {
                return false;
            }
        }
        true
    }

    /// Gives receipts back to workers whose packets need not wait any longer.
    pub(super) fn give_receipts_back(&mut self, now: Timestamp) {
        let is_awaited = self.feed.defers && self.is_heard(now);
        if let Some(stream) = &self.feed.stream {
            stream.set_awaited(is_awaited);
        }
        let first = self.feed.places.first().copied().filter(|_| is_awaited);
        let is_safe = |place: u64| first.is_none_or(|first| place <= first);
        while let Some((_, receipt)) = self.feed.receipts.pop_front_if(|(place, _)| is_safe(*place))
        {
            receipt.give_back();
        }
    }

    /// Reads all connections, piece by piece. Those that are known and are not there have ended.
    pub(super) fn go_on_with_scan(
        &mut self,
        gateway: &dyn Connections,
        now: Timestamp,
    ) -> Result<bool, Unresponsive> {
        for _ in 0..PIECES_A_TURN {
            let Some((bucket, from)) = self.feed.going else { return Ok(false) };
            let Some(piece) = gateway.tell_connections(BucketId(bucket), from)? else {
                self.feed.going = None;
                for middle in self.flows.unseen(self.feed.scan) {
                    self.end_flow(now, middle);
                }
                return Ok(true);
            };
            for change in piece.changes {
                self.tell(now, change);
            }
            self.feed.going = Some(match piece.rest {
                Some(rest) => (bucket, rest),
                None => (bucket + 1, Cursor::default()),
            });
        }
        Ok(true)
    }

    /// Tells the peers of a change.
    fn tell(&mut self, now: Timestamp, change: Change) {
        match change {
            Change::State { is_copy, stamp, record } => {
                self.tell_state(now, (is_copy, stamp), &record);
            }
            Change::End { is_copy, stamp, original } => {
                self.tell_end(now, (is_copy, stamp), &original);
            }
        }
    }

    fn tell_end(&mut self, now: Timestamp, (is_copy, stamp): (bool, u64), original: &KeyedPacket) {
        let Some(middle) = self.flows.of_original(original) else { return };
        let Some(flow) = self.flows.get(&middle) else { return };
        if flow.stamp > stamp {
            self.counters.stale += 1;
            return;
        }
        if !flow.is_owned() {
            // Only its owner ends the state. If it tells of it again, it is made anew. The end of an
            // own connection that gave way to the copy is none of the copy.
            if is_copy {
                self.flows.set_here(middle, None);
            }
            return;
        }
        self.flows.note_end(now, middle, stamp);
        self.end_flow(now, middle);
    }

    /// Tells the peers that a connection of this gateway has ended.
    pub(super) fn end_flow(&mut self, now: Timestamp, middle: Middle) {
        let Some(flow) = self.flows.remove(middle) else { return };
        for id in flow.ids.into_iter().flatten() {
            self.end_state(now, id);
        }
    }

    pub(super) fn end_state(&mut self, now: Timestamp, id: StateId) {
        // One that a peer has taken over meanwhile ends there.
        let _ = self.speaker.end(now, id);
        self.feed.release(id);
    }

    fn tell_state(
        &mut self,
        now: Timestamp,
        (is_copy, stamp): (bool, u64),
        record: &ConnectionRecord,
    ) {
        let outline = match record.outline() {
            Ok(outline) => outline,
            Err(untold) => {
                *self.counters.untold.entry(untold).or_default() += 1;
                // It was told before, and has become another one since.
                let known = self.flows.of_original(&record.original());
                if let Some(middle) = known
                    && self.flows.get(&middle).is_some_and(|flow| flow.is_owned())
                {
                    self.end_flow(now, middle);
                }
                return;
            }
        };
        let middle = Middle::of_outline(&outline);
        let (scan, adoptions) = (self.feed.scan, self.adoptions);
        if self.flows.has_ended_after(now, &middle, stamp) {
            self.counters.stale += 1;
            return;
        }
        match self.flows.get_mut(&middle) {
            Some(flow) => {
                flow.seen = scan;
                // A connection that a peer owns is this gateway's own only if it was taken over.
                let is_early = !is_copy && !flow.is_owned() && flow.copied_at == adoptions;
                if flow.stamp > stamp || is_early {
                    self.counters.stale += 1;
                    return;
                }
            }
            None if is_copy => return,
            None => {}
        }
        self.tell_outline(now, (is_copy, stamp), (middle, &outline));
    }

    fn tell_outline(
        &mut self,
        now: Timestamp,
        (is_copy, stamp): (bool, u64),
        (middle, outline): (Middle, &Outline),
    ) {
        let scan = self.feed.scan;
        let is_opening = is_opening(outline);
        let flow = self.flows.entry(middle);
        let begins_anew = flow.is_owned() && !is_copy && is_opening && !flow.is_opening;
        let is_new = flow.ids == [None; 2];
        (flow.stamp, flow.seen, flow.is_opening) = (stamp, scan, is_opening);
        if !is_copy {
            let ids = flow.ids;
            self.flows.set_owned(middle, true);
            ids.into_iter().flatten().for_each(|id| self.speaker.own(id));
        }
        self.flows.set_here(middle, Some(outline.original));
        if !is_copy && (is_new || begins_anew) {
            self.name_anew(now, middle);
        }
        self.offer(now, (middle, outline), !is_copy);
    }

    /// Gives the states of a connection new names. Those of before end.
    fn name_anew(&mut self, now: Timestamp, middle: Middle) {
        for place in 0..2 {
            let id = StateId { id: self.next_id, creator: self.creator };
            self.next_id = self.next_id.wrapping_add(1);
            if let Some(before) = self.flows.set_id(middle, place, Some(id)) {
                self.end_state(now, before);
            }
        }
    }

    /// Offers both states of a connection to the speaker. A state with other packets under the same
    /// name was translated anew: `may_rename` says whether it may get another name.
    fn offer(&mut self, now: Timestamp, (middle, outline): (Middle, &Outline), may_rename: bool) {
        let Some(flow) = self.flows.get(&middle) else { return };
        let speaker = &self.speaker;
        let states = states_of(outline, flow.ids, self.dialect, |id| speaker.state(id));
        let states = match states {
            Ok(states) => states,
            Err(unmapped) => {
                *self.counters.inexpressible.entry(unmapped).or_default() += 1;
                return;
            }
        };
        let mut is_other = false;
        for state in states.into_iter().flatten() {
            is_other |= self.offer_state(now, state);
        }
        if is_other && may_rename {
            self.name_anew(now, middle);
            self.offer(now, (middle, outline), false);
        }
    }

    /// True if the state has the name of another one.
    fn offer_state(&mut self, now: Timestamp, state: State) -> bool {
        match self.speaker.offer(now, state) {
            Ok(Passage::Now) => {}
            Ok(Passage::AfterRelease) => self.feed.wait_for(state.id()),
            Err(NotTaken::OtherConnection | NotTaken::Ended) => return true,
            Err(_) => self.counters.not_taken += 1,
        }
        false
    }

    /// These connections are the peers' from now on. Those of which no peer knows stay this
    /// gateway's own.
    pub(super) fn give_away(
        &mut self,
        gateway: &dyn Connections,
        now: Timestamp,
        originals: Vec<KeyedPacket>,
    ) -> Result<(), Unresponsive> {
        let mut kept = Vec::new();
        for original in originals {
            let is_told = |id: StateId| self.speaker.owns(id);
            let told = self.flows.of_original(&original).and_then(|middle| {
                let flow = self.flows.get_mut(&middle)?;
                flow.ids.into_iter().flatten().any(is_told).then_some((middle, flow))
            });
            let Some((middle, flow)) = told else {
                kept.push(CopyChange::Keep(original));
                continue;
            };
            flow.copied_at = self.adoptions;
            let ids = flow.ids;
            self.flows.set_owned(middle, false);
            ids.into_iter().flatten().for_each(|id| self.speaker.disown(now, id));
        }
        match kept.is_empty() {
            true => Ok(()),
            false => self.give(gateway, kept, Vec::new()),
        }
    }
}

fn is_opening(outline: &Outline) -> bool {
    match outline.state {
        OutlineState::Tcp { tracker, .. } => {
            matches!(tracker.state, TcpState::SynSent | TcpState::SynSent2)
        }
        OutlineState::Flow { .. } => false,
    }
}
