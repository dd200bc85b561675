//! The way of states from peers to connections here.

use conntrack::{ConnectionRecord, ImportRefusal};
use flow::Timestamp;
use sync::pfsync::{CreatorId, Event, StateId};

use crate::control::peer::Connections;
use crate::control::worker_handle::Unresponsive;
use crate::path::replication::{CopyChange, CopyReport};

use super::Pfsync;
use super::mapping::{Middle, Unmapped, outline_of, place_of};

/// Changes that are given to the workers in one go, so that packets are taken meanwhile.
const CHANGES_AT_ONCE: usize = 1024;
/// Connections that wait for the end of the one that they clash with, at most.
const CLASHING_MAX: usize = 1024;

impl Pfsync {
    /// Does what peers have told.
    pub(super) fn follow_events(
        &mut self,
        gateway: &dyn Connections,
        now: Timestamp,
    ) -> Result<(), Unresponsive> {
        while let Some(event) = self.speaker.poll_event() {
            match event {
                Event::Inserted(id) | Event::Updated(id) => self.hear(now, id),
                Event::Ended(id) => {
                    let end = self.hear_end(id);
                    self.owed.extend(end);
                }
                Event::Released(id) => self.feed.release(id),
            }
        }
        self.apply(gateway, now)
    }

    /// A peer has told of a state.
    fn hear(&mut self, now: Timestamp, id: StateId) {
        let Some(state) = self.speaker.state(id) else { return };
        let (middle, place) = (Middle::of_state(state), place_of(state.parts().direction));
        let (is_ours, adoptions) = (self.speaker.owns(id), self.adoptions);
        let is_passing = self.sweep.is_some();
        if let Some(before) = self.flows.of_id(id).filter(|it| *it != middle) {
            self.flows.set_id(before, place, None);
        }
        let known = self.flows.get(&middle).map(|flow| (flow.is_owned(), flow.ids));
        if let Some((true, ids)) = known
            && !ids.contains(&Some(id))
        {
            // Both have opened the connection.
            if !self.prevails(id.creator) {
                return;
            }
            for place in 0..2 {
                if let Some(before) = self.flows.set_id(middle, place, None) {
                    self.end_state(now, before);
                }
            }
        }
        self.flows.set_id(middle, place, Some(id));
        let flow = self.flows.entry(middle);
        flow.latest = place;
        if !is_ours && !is_passing {
            flow.copied_at = adoptions;
        }
        self.flows.set_owned(middle, is_ours);
        self.flows.touch(middle);
    }

    /// True if a connection of this gateway gives way to one of a creator with the same packets. Both
    /// gateways decide alike which one remains.
    fn prevails(&mut self, creator: CreatorId) -> bool {
        let prevails = creator > self.creator;
        match prevails {
            true => self.counters.clashes_lost += 1,
            false => self.counters.clashes_won += 1,
        }
        prevails
    }

    /// A peer has ended a state. A connection ends with its last one.
    fn hear_end(&mut self, id: StateId) -> Option<CopyChange> {
        let middle = self.flows.of_id(id)?;
        let place = self.flows.get(&middle)?.ids.iter().position(|it| *it == Some(id))?;
        self.flows.set_id(middle, place, None);
        if self.flows.get(&middle)?.ids != [None; 2] {
            return None;
        }
        let flow = self.flows.remove(middle)?;
        flow.here().map(CopyChange::End)
    }

    /// Gives all that has changed to the workers: first ends, because a new connection may have the
    /// packets of an old one.
    fn apply(&mut self, gateway: &dyn Connections, now: Timestamp) -> Result<(), Unresponsive> {
        if self.owed.iter().any(|owed| matches!(owed, CopyChange::End(_))) {
            for middle in std::mem::take(&mut self.clashing) {
                self.flows.touch(middle);
            }
        }
        let (mut changes, mut middles) = (std::mem::take(&mut self.owed), Vec::new());
        while let Some(middle) = self.flows.next_touched() {
            match self.change_of(now, middle) {
                Ok(change) => changes.extend(change),
                Err(unmapped) => *self.counters.unmapped.entry(unmapped).or_default() += 1,
            }
            middles.push(middle);
            if changes.len() >= CHANGES_AT_ONCE {
                self.give(gateway, std::mem::take(&mut changes), std::mem::take(&mut middles))?;
            }
        }
        match changes.is_empty() {
            true => Ok(()),
            false => self.give(gateway, changes, middles),
        }
    }

    /// Gives changes to the workers, those of states for these connections. If a worker does not
    /// answer, all of them are given again: a change that was made already changes nothing.
    pub(super) fn give(
        &mut self,
        gateway: &dyn Connections,
        changes: Vec<CopyChange>,
        middles: Vec<Middle>,
    ) -> Result<(), Unresponsive> {
        let owed: Vec<_> = changes.iter().filter_map(CopyChange::without_record).collect();
        match gateway.change_copies(changes) {
            Ok(report) => {
                self.note(report);
                Ok(())
            }
            Err(error) => {
                self.owed.extend(owed);
                middles.into_iter().for_each(|middle| self.flows.touch(middle));
                Err(error)
            }
        }
    }

    /// The changes for the worker of a connection.
    fn change_of(&mut self, now: Timestamp, middle: Middle) -> Result<Vec<CopyChange>, Unmapped> {
        let Some(flow) = self.flows.get(&middle) else { return Ok(Vec::new()) };
        let is_owned = flow.is_owned();
        let states = flow.ids.map(|id| self.speaker.state(id?));
        let latest = states[flow.latest].or(states[1 - flow.latest]);
        let Some(latest) = latest else { return Ok(Vec::new()) };
        let outline = outline_of(states, latest)?;
        let creator = latest.id().creator;
        let record = ConnectionRecord::of_outline(&outline).map_err(|_| Unmapped::Impossible)?;
        let record = Box::new(record);
        // Both have translated the same packets, to different destinations.
        let own = self.flows.of_original(&outline.original).filter(|own| {
            *own != middle && self.flows.get(own).is_some_and(|flow| flow.is_owned())
        });
        if let Some(own) = own.filter(|_| !is_owned) {
            if !self.prevails(creator) {
                return Ok(Vec::new());
            }
            self.end_flow(now, own);
        }
        let mut changes = Vec::new();
        if let Some(before) = self.flows.set_here(middle, Some(outline.original))
            && !is_owned
        {
            changes.push(CopyChange::End(before));
        }
        changes.push(match is_owned {
            true => CopyChange::News(record),
            // A connection of this gateway that prevails was not given up above.
            false => CopyChange::State { record, prevails: true },
        });
        Ok(changes)
    }

    fn note(&mut self, report: CopyReport) {
        let CopyReport { made, changed, ended, refused, kept, given_up, opened: _ } = report;
        self.counters.made += made;
        self.counters.changed += changed;
        self.counters.ended += ended;
        self.counters.clashes_lost += given_up;
        self.counters.clashes_won += kept.len() as u64;
        for (change, refusal) in refused {
            *self.counters.refused.entry(refusal).or_default() += 1;
            let Some(middle) = self.flows.of_original(&change.original()) else { continue };
            self.flows.set_here(middle, None);
            // Otherwise the next message about it is another try.
            let may_pass = matches!(refusal, ImportRefusal::Clash | ImportRefusal::Opening);
            if may_pass && self.clashing.len() < CLASHING_MAX {
                self.clashing.push(middle);
            }
        }
    }
}
