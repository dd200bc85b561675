//! Translation of the call ids that the ends of translated control connections choose.
//!
//! Two hosts behind one address may give two calls with one server the same id. A packet of the
//! server carries that id alone, so one of the hosts gets another id towards the server. It
//! keeps that id until the control connection ends, so a message that is sent again says the
//! same.

use std::collections::BTreeMap;
use std::net::IpAddr;

use flow::FlowKey;

use super::{Announcement, AnnouncementRecord, Book, Expectations, Item};
use crate::Direction;
use crate::helper::{Announcements, Way};

/// Most ids of one end of a control connection that are remembered; beyond that the first is
/// forgotten.
pub(super) const IDS: usize = 16;
/// Most ids that are tried: no two hosts have that many calls with each other.
const TRIES: u16 = 1024;

/// The ids in use towards the other side, and the ids that stand behind them.
#[derive(Debug, Default)]
pub(super) struct CallIds {
    /// The control connection that uses an id on a way.
    pub(super) taken: BTreeMap<(Way, u16), FlowKey>,
    /// The ids of a control connection, oldest first.
    pub(super) of_master: BTreeMap<FlowKey, Vec<CallId>>,
}

/// An id that an end of a control connection chose, and the id that the other side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    /// The end that chose it.
    pub end: Direction,
    pub own: u16,
    pub known: u16,
    /// The way of the packets that carry the known one.
    pub way: Way,
}

impl CallIds {
    fn find(&self, master: &FlowKey, is_it: impl Fn(&CallId) -> bool) -> Option<CallId> {
        self.of_master.get(master)?.iter().find(|&id| is_it(id)).copied()
    }

    /// Forgets the ids of a control connection, and returns them.
    pub fn forget(&mut self, master: &FlowKey) -> Vec<CallId> {
        let ids = self.of_master.remove(master).unwrap_or_default();
        for id in &ids {
            self.taken.remove(&(id.way, id.known));
        }
        ids
    }

    /// Forgets the first id of a control connection that fits, and returns it.
    pub(super) fn forget_first(
        &mut self,
        master: &FlowKey,
        is_it: impl Fn(&CallId) -> bool,
    ) -> Option<CallId> {
        let ids = self.of_master.get_mut(master)?;
        let at = ids.iter().position(is_it)?;
        let id = ids.remove(at);
        if ids.is_empty() {
            self.of_master.remove(master);
        }
        self.taken.remove(&(id.way, id.known));
        Some(id)
    }
}

impl Announcements for Expectations {
    fn meant(&self, master: &FlowKey, said: (IpAddr, u16)) -> Option<(IpAddr, u16)> {
        self.real_place(master, said)
    }

    fn give_call_id(
        &self,
        master: &FlowKey,
        (end, own): (Direction, u16),
        way: Way,
    ) -> Option<u16> {
        let book = &mut *self.book();
        let Book { ids, journal, .. } = book;
        if let Some(id) = ids.find(master, |id| (id.end, id.own) == (end, own)) {
            return Some(id.known);
        }
        let others = (0..TRIES).map(|step| own.wrapping_add(step));
        let known = others.into_iter().find(|&known| !ids.taken.contains_key(&(way, known)))?;
        let of_end = |id: &&CallId| id.end == end;
        if ids.of_master.get(master).is_some_and(|ids| ids.iter().filter(of_end).count() >= IDS)
            && let Some(id) = ids.forget_first(master, |id| id.end == end)
        {
            let name = || AnnouncementRecord(Announcement::CallId { master: *master, id });
            journal.note_end(&Item::CallId(id.way, id.known), name);
        }
        ids.taken.insert((way, known), *master);
        ids.of_master.entry(*master).or_default().push(CallId { end, own, known, way });
        journal.note_change(Item::CallId(way, known));
        self.note(book);
        Some(known)
    }

    fn known_call_id(&self, master: &FlowKey, (end, own): (Direction, u16)) -> u16 {
        let found = self.book().ids.find(master, |id| (id.end, id.own) == (end, own));
        found.map_or(own, |id| id.known)
    }

    fn own_call_id(&self, master: &FlowKey, (end, known): (Direction, u16)) -> u16 {
        let found = self.book().ids.find(master, |id| (id.end, id.known) == (end, known));
        found.map_or(known, |id| id.own)
    }
}
