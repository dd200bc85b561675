//! What the ids are known by that the ends of translated control connections give their calls.
//!
//! Two hosts behind one address may give two calls with one server the same id. A packet of the
//! server names that id alone, so one of the hosts becomes known by another. It stays so until
//! the control connection ends, so a message that is sent again says the same.

use std::collections::BTreeMap;

use flow::FlowKey;

use super::Expectations;
use crate::Direction;

/// Ids of one end of a control connection that are remembered; of more, the first is forgotten.
const IDS: usize = 16;
/// Ids that are tried: no two hosts have as many calls with each other.
const TRIES: u16 = 1024;

/// Where packets of a call go to: whom they are from, and whom for. Both addresses in the
/// mapped form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub zone: flow::Zone,
    pub from: [u8; 16],
    pub to: [u8; 16],
}

/// The ids that are known by another, and those that are not to be.
#[derive(Debug, Default)]
pub(super) struct CallIds {
    /// Whose an id is where it is known.
    taken: BTreeMap<(Way, u16), FlowKey>,
    /// By control connection; the oldest first.
    of_master: BTreeMap<FlowKey, Vec<CallId>>,
}

#[derive(Clone, Copy, Debug)]
struct CallId {
    end: Direction,
    own: u16,
    known: u16,
    way: Way,
}

impl CallIds {
    fn find(&self, master: &FlowKey, is_it: impl Fn(&CallId) -> bool) -> Option<CallId> {
        self.of_master.get(master)?.iter().find(|&id| is_it(id)).copied()
    }

    /// Forgets the ids of a control connection.
    pub fn forget(&mut self, master: &FlowKey) {
        for id in self.of_master.remove(master).into_iter().flatten() {
            self.taken.remove(&(id.way, id.known));
        }
    }

    fn forget_first(&mut self, master: &FlowKey, is_it: impl Fn(&CallId) -> bool) {
        let Some(ids) = self.of_master.get_mut(master) else { return };
        let Some(at) = ids.iter().position(is_it) else { return };
        let id = ids.remove(at);
        if ids.is_empty() {
            self.of_master.remove(master);
        }
        self.taken.remove(&(id.way, id.known));
    }
}

impl Expectations {
    /// What an id becomes known by that an end of a control connection gives a call: its own,
    /// if no other control connection has that on this way. `None` if there is no other.
    pub(crate) fn give_call_id(
        &self,
        master: &FlowKey,
        (end, own): (Direction, u16),
        way: Way,
    ) -> Option<u16> {
        let ids = &mut self.book().ids;
        if let Some(id) = ids.find(master, |id| (id.end, id.own) == (end, own)) {
            return Some(id.known);
        }
        let others = (0..TRIES).map(|step| own.wrapping_add(step));
        let known = others.into_iter().find(|&known| !ids.taken.contains_key(&(way, known)))?;
        let of_end = |id: &&CallId| id.end == end;
        if ids.of_master.get(master).is_some_and(|ids| ids.iter().filter(of_end).count() >= IDS) {
            ids.forget_first(master, |id| id.end == end);
        }
        ids.taken.insert((way, known), *master);
        ids.of_master.entry(*master).or_default().push(CallId { end, own, known, way });
        Some(known)
    }

    /// What an id of an end is known by.
    pub(crate) fn known_call_id(&self, master: &FlowKey, (end, own): (Direction, u16)) -> u16 {
        let found = self.book().ids.find(master, |id| (id.end, id.own) == (end, own));
        found.map_or(own, |id| id.known)
    }

    /// The id of an end that is known by this one.
    pub(crate) fn own_call_id(&self, master: &FlowKey, (end, known): (Direction, u16)) -> u16 {
        let found = self.book().ids.find(master, |id| (id.end, id.known) == (end, known));
        found.map_or(known, |id| id.own)
    }
}
