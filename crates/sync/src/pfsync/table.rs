//! The states of this gateway and of its peers, and the messages that wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use flow::Timestamp;

use super::identity::StateId;
use super::slot::{Next, Slot, SlotInput};
use super::state::{Life, State};

/// Time without news after which the owner of a copy is asked for it, although its state would last
/// longer: ten times pf's timeout of an established connection.
pub const LEFT_MAX: Duration = Duration::from_secs(10 * 86_400);

/// A state with all that this gateway knows about it.
#[derive(Debug)]
pub(super) struct Held {
    pub state: State,
    /// When the state's times were right.
    pub since: Timestamp,
    /// This gateway ends it. Others hold copies.
    pub is_owned: bool,
    /// When a peer has told something about it.
    pub touched: Option<Timestamp>,
    /// Updates that the waiting message tells of.
    pub updates: u8,
    /// Questions to the owner of this copy that nobody has answered.
    pub asks: u8,
    /// When the owner of this copy is asked whether it is still there.
    deadline: Timestamp,
    /// Its entry among the timers.
    timer: Option<Timestamp>,
    slot: Slot,
    /// The place of its waiting message in the queue.
    place: u64,
}

impl Held {
    pub fn new(now: Timestamp, state: State, is_owned: bool) -> Self {
        Self {
            state,
            since: now,
            is_owned,
            touched: None,
            updates: 0,
            asks: 0,
            deadline: now,
            timer: None,
            slot: Slot::Idle,
            place: 0,
        }
    }

    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Times and counts now.
    pub fn life(&self, now: Timestamp) -> Life {
        self.state.life().after(now.since(self.since))
    }

    /// When a state ends unless something happens, [`LEFT_MAX`] from now on at the latest.
    pub fn end(&self) -> Timestamp {
        let left = Duration::from_secs(self.state.parts().left.into());
        self.since.after(left.min(LEFT_MAX))
    }
}

/// States by name, with queues of those that have a message waiting.
#[derive(Debug, Default)]
pub(super) struct Table {
    states: BTreeMap<StateId, Held>,
    /// For each kind of message the places in the order in which they were taken.
    queues: [BTreeMap<u64, StateId>; Slot::Delete as usize + 1],
    /// The place that is taken next.
    places: u64,
    timers: BTreeSet<(Timestamp, StateId)>,
}

impl Table {
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// A state that has not ended.
    pub fn live(&self, id: StateId) -> Option<&Held> {
        self.states.get(&id).filter(|held| held.slot != Slot::Delete)
    }

    /// A state, also one whose end waits to be told.
    pub fn get(&self, id: StateId) -> Option<&Held> {
        self.states.get(&id)
    }

    pub fn get_mut(&mut self, id: StateId) -> Option<&mut Held> {
        self.states.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (StateId, &Held)> {
        self.states.iter().map(|(id, held)| (*id, held))
    }

    /// The state behind another one in the order of names.
    pub fn next_behind(&self, id: Option<StateId>) -> Option<StateId> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.states.range((from, Bound::Unbounded)).next().map(|(id, _)| *id)
    }

    /// Adds a state, whose name must be new.
    pub fn add(&mut self, held: Held) {
        self.states.insert(held.state.id(), held);
    }

    /// Forgets a state with its message.
    pub fn remove(&mut self, id: StateId) -> Option<Held> {
        let held = self.states.remove(&id)?;
        self.queues[held.slot as usize].remove(&held.place);
        if let Some(timer) = held.timer {
            self.timers.remove(&(timer, id));
        }
        Some(held)
    }

    /// Lets something happen to the message of a state.
    pub fn advance(&mut self, id: StateId, input: SlotInput) -> Next {
        let Some(held) = self.states.get_mut(&id) else { return Next::OutOfPlace };
        let next = held.slot.on(input);
        match next {
            Next::To(slot) if slot != held.slot => {
                self.queues[held.slot as usize].remove(&held.place);
                (held.slot, held.place) = (slot, self.places);
                if slot != Slot::Idle {
                    self.queues[slot as usize].insert(held.place, id);
                    self.places += 1;
                }
            }
            Next::To(_) | Next::OutOfPlace => {}
            Next::Forget => {
                self.remove(id);
            }
        }
        next
    }

    /// The state whose message of a kind waits longest.
    pub fn first_waiting(&self, slot: Slot) -> Option<StateId> {
        self.queues[slot as usize].first_key_value().map(|(_, id)| *id)
    }

    /// The first place in the queue of a kind.
    pub fn first_place(&self, slot: Slot) -> Option<u64> {
        self.queues[slot as usize].first_key_value().map(|(place, _)| *place)
    }

    /// Messages of a kind that wait.
    pub fn waiting(&self, slot: Slot) -> usize {
        self.queues[slot as usize].len()
    }

    /// The place that is taken next.
    pub fn next_place(&self) -> u64 {
        self.places
    }

    /// Sets when the owner of a copy is asked. Only an earlier time moves the timer: one that fires
    /// too early is armed again.
    pub fn set_deadline(&mut self, id: StateId, deadline: Timestamp) {
        let Some(held) = self.states.get_mut(&id) else { return };
        held.deadline = deadline;
        if held.timer.is_none_or(|timer| deadline < timer) {
            if let Some(timer) = held.timer.replace(deadline) {
                self.timers.remove(&(timer, id));
            }
            self.timers.insert((deadline, id));
        }
    }

    /// Takes a copy whose deadline is over out of the timers.
    pub fn pop_overdue(&mut self, now: Timestamp) -> Option<StateId> {
        while let Some((timer, id)) = self.timers.first().copied()
            && timer <= now
        {
            self.timers.pop_first();
            let Some(held) = self.states.get_mut(&id) else { continue };
            held.timer = None;
            match held.deadline <= now {
                true => return Some(id),
                false => self.set_deadline(id, self.states[&id].deadline),
            }
        }
        None
    }

    /// When the first timer fires.
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.timers.first().map(|(timer, _)| *timer)
    }
}
