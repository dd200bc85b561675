//! The connections that this gateway and its peers tell each other about, with the names of their
//! states.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use flow::{FlowKey, KeyedPacket, Timestamp};
use sync::pfsync::StateId;

use super::mapping::Middle;

/// Time for which the end of a connection is remembered: a change from before it may come behind it,
/// by the ring of another worker.
const ENDED_KEPT: Duration = Duration::from_secs(10);
/// Most ends that are remembered.
const ENDED_MAX: usize = 65_536;

/// A connection.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// The names of its states, first the one in.
    pub ids: [Option<StateId>; 2],
    /// The place of the state of which a peer has told last.
    pub latest: usize,
    here: Option<KeyedPacket>,
    is_owned: bool,
    /// The stamp of its last change here.
    pub stamp: u64,
    /// The last scan of the tables that has found it.
    pub seen: u32,
    /// How often connections had been taken over when a peer told of it last.
    pub copied_at: u32,
    /// It waits to be given to its worker.
    pub is_touched: bool,
    /// It is a connection of TCP whose handshake was not complete at the last change here.
    pub is_opening: bool,
}

impl Flow {
    /// True if this gateway owns it.
    pub fn is_owned(&self) -> bool {
        self.is_owned
    }

    /// Key and sender of the originator's packets, if the connection is in a table here.
    pub fn here(&self) -> Option<KeyedPacket> {
        self.here
    }

    /// True if a peer owns it and it is in a table here.
    fn is_copy(&self) -> bool {
        !self.is_owned && self.here.is_some()
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Flows {
    flows: BTreeMap<Middle, Flow>,
    /// How many of them are copies.
    copies: usize,
    by_id: BTreeMap<StateId, Middle>,
    by_original: BTreeMap<(FlowKey, usize), Middle>,
    touched: VecDeque<Middle>,
    ended: BTreeMap<Middle, u64>,
    /// The remembered ends in their order, each with the time at which it is forgotten.
    ended_order: VecDeque<(Timestamp, Middle)>,
}

fn name(original: &KeyedPacket) -> (FlowKey, usize) {
    (original.key, original.sender.index())
}

impl Flows {
    /// The number of those that peers own and that are in a table here.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// Makes a change of a connection that may make it a copy or end that.
    fn change<T>(&mut self, middle: Middle, change: impl FnOnce(&mut Flow) -> T) -> T {
        let flow = self.flows.entry(middle).or_default();
        self.copies -= usize::from(flow.is_copy());
        let outcome = change(flow);
        self.copies += usize::from(flow.is_copy());
        outcome
    }

    /// The one with these packets between both translations.
    pub fn get(&self, middle: &Middle) -> Option<&Flow> {
        self.flows.get(middle)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, middle: &Middle) -> Option<&mut Flow> {
        self.flows.get_mut(middle)
    }

    /// The same, or a new one.
    pub fn entry(&mut self, middle: Middle) -> &mut Flow {
        self.flows.entry(middle).or_default()
    }

    /// The one whose state has this name.
    pub fn of_id(&self, id: StateId) -> Option<Middle> {
        self.by_id.get(&id).copied()
    }

    /// The one whose originator sends such packets.
    pub fn of_original(&self, original: &KeyedPacket) -> Option<Middle> {
        self.by_original.get(&name(original)).copied()
    }

    /// All that this gateway owns and that a scan has not found.
    pub fn unseen(&self, scan: u32) -> Vec<Middle> {
        let is_unseen = |flow: &Flow| flow.is_owned && flow.seen != scan;
        self.flows.iter().filter(|(_, flow)| is_unseen(flow)).map(|(middle, _)| *middle).collect()
    }

    /// A state of a connection has this name from now on. Returns the name that it had.
    pub fn set_id(&mut self, middle: Middle, place: usize, id: Option<StateId>) -> Option<StateId> {
        let before = std::mem::replace(&mut self.entry(middle).ids[place], id);
        if let Some(before) = before.filter(|it| Some(*it) != id) {
            self.by_id.remove(&before);
        }
        if let Some(id) = id {
            self.by_id.insert(id, middle);
        }
        before.filter(|it| Some(*it) != id)
    }

    /// The connection has these packets of its originator here from now on, or is not here. Returns
    /// what it had.
    pub fn set_here(&mut self, middle: Middle, here: Option<KeyedPacket>) -> Option<KeyedPacket> {
        let before = self.change(middle, |flow| std::mem::replace(&mut flow.here, here));
        if let Some(before) = before.filter(|it| Some(*it) != here) {
            self.by_original.remove(&name(&before));
        }
        if let Some(here) = here {
            self.by_original.insert(name(&here), middle);
        }
        before.filter(|it| Some(*it) != here)
    }

    /// This gateway owns the connection from now on, or a peer does.
    pub fn set_owned(&mut self, middle: Middle, is_owned: bool) {
        self.change(middle, |flow| flow.is_owned = is_owned);
    }

    /// Has a connection given to its worker with the next ones.
    pub fn touch(&mut self, middle: Middle) {
        let Some(flow) = self.flows.get_mut(&middle) else { return };
        if !std::mem::replace(&mut flow.is_touched, true) {
            self.touched.push_back(middle);
        }
    }

    /// Takes out a connection that waits for that.
    pub fn next_touched(&mut self) -> Option<Middle> {
        while let Some(middle) = self.touched.pop_front() {
            if let Some(flow) = self.flows.get_mut(&middle)
                && std::mem::take(&mut flow.is_touched)
            {
                return Some(middle);
            }
        }
        None
    }

    /// Forgets a connection.
    pub fn remove(&mut self, middle: Middle) -> Option<Flow> {
        let flow = self.flows.remove(&middle)?;
        self.copies -= usize::from(flow.is_copy());
        for id in flow.ids.iter().flatten() {
            self.by_id.remove(id);
        }
        if let Some(here) = &flow.here {
            self.by_original.remove(&name(here));
        }
        Some(flow)
    }

    /// Remembers that a connection has ended, and with which change.
    pub fn note_end(&mut self, now: Timestamp, middle: Middle, stamp: u64) {
        self.forget_ends(now);
        if self.ended_order.len() < ENDED_MAX {
            self.ended.insert(middle, stamp);
            self.ended_order.push_back((now.after(ENDED_KEPT), middle));
        }
    }

    /// True if a connection has ended with a later change than this one.
    pub fn has_ended_after(&mut self, now: Timestamp, middle: &Middle, stamp: u64) -> bool {
        self.forget_ends(now);
        self.ended.get(middle).is_some_and(|ended| *ended > stamp)
    }

    fn forget_ends(&mut self, now: Timestamp) {
        while let Some((_, middle)) = self.ended_order.pop_front_if(|(until, _)| *until <= now) {
            self.ended.remove(&middle);
        }
    }
}
