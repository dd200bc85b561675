//! One end of pfsync. Its owner passes in the time, its own states and the packets that arrive, and
//! takes out packets and events.

mod receive;
mod transmit;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use flow::Timestamp;

use super::bulk::{BulkIn, BulkInInput, BulkOut};
use super::deferred::Deferred;
use super::dialect::Dialect;
use super::identity::{CreatorId, InterfaceName, StateId};
use super::merge::merge;
use super::message::{Message, Request};
use super::recent::RecentIds;
use super::refusal::{Refusal, Refusals};
use super::slot::{Next, Slot, SlotInput};
use super::state::{Peers, State, StateFlags};
use super::table::{Held, Table};
use crate::bulk::Pace;

/// Longest time for which a message waits for others to share its packet.
pub const FLUSH_TIME: Duration = Duration::from_secs(1);
/// A state about which a peer has told something in this time is updated at once: both gateways have
/// its packets.
pub const TOUCH_TIME: Duration = Duration::from_secs(2);
/// Time for which the end of a state is remembered, so that an older message does not bring it back.
pub const GRAVE_TIME: Duration = Duration::from_secs(10);
/// Most ends that are remembered.
pub const GRAVES_MAX: usize = 131_072;
/// Time for which a state that was asked for is not asked for again.
pub const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Most states that were asked for in that time.
pub const REQUESTS_MAX: usize = 16_384;
/// Most questions for states in a second.
pub const REQUESTS_PER_S: u32 = 10_000;
/// Messages that clear states (CLR) and find none, of which so many are followed in a second. Each
/// looks at all states.
pub const EMPTY_CLEARS_PER_S: u32 = 10;
/// Most questions and other messages without a state that wait.
pub const CONTROLS_MAX: usize = 4_096;
/// Events for the owner, above which packets are refused.
pub const EVENTS_MAX: usize = 16_384;
/// Time after the end of a copy at which its owner is asked whether it is still there.
pub const COPY_GRACE: Duration = Duration::from_secs(10);
/// Time between two such questions.
pub const COPY_ASK_INTERVAL: Duration = Duration::from_secs(2);
/// Such questions that nobody answers, although peers are heard, before a copy is forgotten.
pub const COPY_ASKS_MAX: u8 = 3;
/// Shortest packet that an owner may ask for, bytes. Each message fits.
const PACKET_BYTES_MIN: usize = 512;

/// The settings of a [`Speaker`]. Those that pfsync has too say under which name.
#[derive(Clone, Debug)]
pub struct Config {
    /// The dialect (`version`).
    pub dialect: Dialect,
    /// This gateway. No other one may have its number. After a restart it needs another one, or has
    /// to ask for all states, so that it does not take those of before for ended.
    pub creator: CreatorId,
    /// The only sender whose packets are taken (`syncpeer`); `None` for a multicast group.
    pub peer: Option<IpAddr>,
    /// Longest packet without its IP header, bytes: the MTU of the sync link less that header.
    pub packet_bytes: usize,
    /// Updates of a TCP state that one message tells of (`maxupd`), 1 to 255.
    pub max_updates: u8,
    /// True if the first packet of a state waits until a peer has the state (`defer`).
    pub defers: bool,
    /// Most states, copies included.
    pub states_max: usize,
    /// Rate of bulk updates, states a second.
    pub bulk_states_per_s: u32,
    /// True if all states are asked for at the start.
    pub wants_bulk: bool,
    /// Longest time for which a message waits for others to share its packet; pf waits for
    /// [`FLUSH_TIME`].
    pub flush_time: Duration,
}

impl Config {
    /// pf's defaults, for packets of 1,500 bytes with an IPv4 header.
    pub fn new(dialect: Dialect, creator: CreatorId) -> Self {
        Self {
            dialect,
            creator,
            peer: None,
            packet_bytes: 1_480,
            max_updates: 128,
            defers: false,
            states_max: 1_000_000,
            bulk_states_per_s: 100_000,
            wants_bulk: true,
            flush_time: FLUSH_TIME,
        }
    }
}

/// Something that the owner has to do or to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer has told of a new state.
    Inserted(StateId),
    /// A peer has told of a later state of a connection.
    Updated(StateId),
    /// A peer has told that a state has ended, or does not know it any more.
    Ended(StateId),
    /// The packet that waits for a state may go.
    Released(StateId),
}

/// Says whether the packet that has opened a state may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It may.
    Now,
    /// It may after [`Event::Released`], which comes within [`DEFER_TIME`](super::DEFER_TIME).
    AfterRelease,
}

/// Why a state of the owner was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// There are as many states as there may be.
    #[error("there are as many states as there may be")]
    Full,
    /// It is marked as one that peers do not hear of.
    #[error("the state is marked as one that peers do not hear of")]
    NotSynced,
    /// Another connection has its name.
    #[error("another connection has the name of the state")]
    OtherConnection,
    /// It has ended.
    #[error("the state has ended")]
    Ended,
    /// It belongs to another gateway, and is not known.
    #[error("the state belongs to another gateway, and is not known")]
    Unknown,
    /// Another gateway ends it.
    #[error("another gateway ends the state")]
    NotOwned,
}

/// Counts, beside those of refused packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets taken.
    pub packets_taken: u64,
    /// Messages that were skipped, because they are unknown or about IPsec.
    pub skipped: u64,
    /// Packets of which only a part could be read, because a message of unknown length was in it.
    pub abandoned: u64,
    /// Messages with an end of a connection that was older than ours.
    pub stale: u64,
    /// Messages about states that have ended a short time ago.
    pub buried: u64,
    /// Compressed updates of states that are not known.
    pub unknown: u64,
    /// Questions for one state.
    pub requests: u64,
    /// Questions that were left out, because there were too many.
    pub requests_omitted: u64,
    /// Messages that clear states and were not followed, because too many others found none.
    pub clears_omitted: u64,
    /// States of peers for which there was no room.
    pub full: u64,
    /// Messages whose state is another connection here.
    pub clashes: u64,
    /// Ends of states that this gateway owns, which were not believed.
    pub ends_refused: u64,
    /// Ends that were told again, because a peer had missed them.
    pub ends_retold: u64,
    /// Copies that were forgotten, because nobody knows them any more.
    pub forgotten: u64,
    /// States that the dialect can not carry.
    pub inexpressible: u64,
}

/// One end of pfsync.
#[derive(Debug)]
pub struct Speaker {
    config: Config,
    table: Table,
    graves: RecentIds,
    requested: RecentIds,
    /// States whose end was told again.
    retold: RecentIds,
    request_pace: Pace,
    clear_pace: Pace,
    deferred: Deferred,
    bulk_in: BulkIn,
    bulk_out: BulkOut,
    bulk_pace: Pace,
    /// Messages without a state, in their order.
    controls: VecDeque<Message>,
    events: VecDeque<Event>,
    /// When all that waits is sent.
    due: Option<Timestamp>,
    /// When a packet was taken last.
    heard: Option<Timestamp>,
    counters: Counters,
    refusals: Refusals,
}

impl Speaker {
    /// A gateway without states. It asks for those of its peers if it is told to.
    pub fn new(now: Timestamp, config: Config) -> Self {
        let config = Config {
            packet_bytes: config.packet_bytes.max(PACKET_BYTES_MIN),
            max_updates: config.max_updates.max(1),
            ..config
        };
        let mut speaker = Self {
            table: Table::default(),
            graves: RecentIds::new(GRAVES_MAX, GRAVE_TIME),
            requested: RecentIds::new(REQUESTS_MAX, REQUEST_INTERVAL),
            retold: RecentIds::new(REQUESTS_MAX, REQUEST_INTERVAL),
            request_pace: Pace::new(now, REQUESTS_PER_S),
            clear_pace: Pace::new(now, EMPTY_CLEARS_PER_S),
            deferred: Deferred::default(),
            bulk_in: BulkIn::default(),
            bulk_out: BulkOut::default(),
            bulk_pace: Pace::new(now, config.bulk_states_per_s),
            controls: VecDeque::new(),
            events: VecDeque::new(),
            due: None,
            heard: None,
            counters: Counters::default(),
            refusals: Refusals::default(),
            config,
        };
        if speaker.config.wants_bulk {
            speaker.request_bulk(now);
        }
        speaker
    }

    /// Writes packets of up to so many bytes from now on.
    pub fn set_packet_bytes(&mut self, packet_bytes: usize) {
        self.config.packet_bytes = packet_bytes.max(PACKET_BYTES_MIN);
    }

    /// Asks the peers for all their states.
    pub fn request_bulk(&mut self, now: Timestamp) {
        self.advance_bulk_in(now, BulkInInput::Want);
    }

    /// Takes in a state of the owner: a new one, or a later account of a known one, in which the
    /// owner has heeded the events so far. A connection that begins anew needs a new name. States of
    /// other gateways keep theirs, also after this one has taken them over.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn offer(&mut self, now: Timestamp, state: State) -> Result<Passage, NotTaken> {
        let (id, flags) = (state.id(), state.parts().flags);
        if flags.has(StateFlags::NOT_SYNCED) {
            return Err(NotTaken::NotSynced);
        }
        let state = state.with_flags(flags.without(StateFlags::ACK_WANTED));
        match self.table.get(id) {
            Some(held) if held.slot() == Slot::Delete => Err(NotTaken::Ended),
            Some(held) if !held.state.has_keys_of(&state) => Err(NotTaken::OtherConnection),
            Some(_) => {
                self.update(now, state);
                Ok(Passage::Now)
            }
            None if id.creator != self.config.creator => Err(NotTaken::Unknown),
            None if self.graves.knows(now, id) => Err(NotTaken::Ended),
            None if self.table.len() >= self.config.states_max => Err(NotTaken::Full),
            None => Ok(self.insert(now, state)),
        }
    }

    fn insert(&mut self, now: Timestamp, state: State) -> Passage {
        let id = state.id();
        let passage = if self.config.defers { Passage::AfterRelease } else { Passage::Now };
        let flags = match passage {
            Passage::Now => StateFlags::default(),
            Passage::AfterRelease => StateFlags::ACK_WANTED,
        };
        let state = state.with_flags(state.parts().flags.with(flags));
        self.table.add(Held::new(now, state, true));
        self.table.advance(id, SlotInput::Insert);
        self.flush_within(now, self.config.flush_time);
        if passage == Passage::AfterRelease {
            self.events.extend(self.deferred.hold(now, id).map(Event::Released));
            self.flush(now);
        }
        passage
    }

    fn update(&mut self, now: Timestamp, state: State) {
        let id = state.id();
        let Some(held) = self.table.get_mut(id) else { return };
        let known = held.state.parts();
        let wish = known.flags.0 & StateFlags::ACK_WANTED.0;
        let is_shared = held.touched.is_some_and(|it| now.since(it) < TOUCH_TIME);
        // A peer may have told of packets of which the owner has not heard yet.
        let merged = merge(&known.peers, &state.parts().peers).filter(|_| is_shared);
        let state = merged.and_then(|it| state.with_peers(it.peers)).unwrap_or(state);
        held.state = state.with_flags(state.parts().flags.with(StateFlags(wish)));
        held.since = now;
        held.updates = held.updates.saturating_add(1);
        let is_enough = held.updates >= self.config.max_updates
            && matches!(held.state.parts().peers, Peers::Tcp(_));
        let (is_owned, end) = (held.is_owned, held.end());
        self.table.advance(id, SlotInput::Change);
        if !is_owned {
            self.table.set_deadline(id, end.after(COPY_GRACE));
        }
        match is_shared || is_enough {
            true => self.flush(now),
            false => self.flush_within(now, self.config.flush_time),
        }
    }

    /// Tells the peers that a state has ended. Only its owner may say so.
    ///
    /// # Errors
    /// [`NotTaken::NotOwned`] or [`NotTaken::Unknown`].
    pub fn end(&mut self, now: Timestamp, id: StateId) -> Result<(), NotTaken> {
        let held = self.table.live(id).ok_or(NotTaken::Unknown)?;
        if !held.is_owned {
            return Err(NotTaken::NotOwned);
        }
        if let Next::Forget = self.table.advance(id, SlotInput::End) {
            self.graves.meet(now, id);
        }
        self.release(id);
        self.flush_within(now, self.config.flush_time);
        Ok(())
    }

    /// Ends all states that this gateway has created and owns, or those of one interface, and tells
    /// the peers in one message.
    pub fn clear(&mut self, now: Timestamp, interface: InterfaceName) {
        let creator = self.config.creator;
        self.remove_all(now, |held| held.is_owned && is_of(&held.state, creator, interface));
        let message = Message::Clear { interface, creator };
        if !self.controls.contains(&message) {
            self.controls.push_back(message);
        }
        self.flush(now);
    }

    /// Forgets states without a message. Returns them.
    fn remove_all(&mut self, now: Timestamp, is_meant: impl Fn(&Held) -> bool) -> Vec<StateId> {
        let meant = self.table.iter().filter(|(_, held)| is_meant(held));
        let ids: Vec<_> = meant.map(|(id, _)| id).collect();
        for id in &ids {
            self.table.remove(*id);
            self.graves.meet(now, *id);
            self.release(*id);
        }
        ids
    }

    /// From now on this gateway ends all states that it knows: the others have gone, or leave them.
    pub fn take_over(&mut self) {
        let ids: Vec<_> = self.table.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.own(id));
    }

    /// From now on another gateway ends all states.
    pub fn give_up(&mut self, now: Timestamp) {
        let ids: Vec<_> = self.table.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.disown(now, id));
    }

    /// From now on this gateway ends a state, if it knows it.
    pub fn own(&mut self, id: StateId) {
        if let Some(held) = self.table.get_mut(id) {
            (held.is_owned, held.asks) = (true, 0);
        }
    }

    /// From now on another gateway ends a state.
    pub fn disown(&mut self, now: Timestamp, id: StateId) {
        let Some(held) = self.table.get_mut(id) else { return };
        (held.is_owned, held.asks) = (false, 0);
        let end = held.end().max(now);
        self.table.set_deadline(id, end.after(COPY_GRACE));
    }

    /// True for a state that has not ended and that this gateway ends.
    pub fn owns(&self, id: StateId) -> bool {
        self.table.live(id).is_some_and(|held| held.is_owned)
    }

    /// When a packet of a peer was taken last.
    pub fn heard(&self) -> Option<Timestamp> {
        self.heard
    }

    /// Asks for one of the copies, so that its owner is heard if it is there.
    pub fn probe(&mut self, now: Timestamp) {
        let copy = self.table.iter().find(|(_, held)| !held.is_owned).map(|(id, _)| id);
        if let Some(id) = copy {
            self.request(now, id);
        }
    }

    fn release(&mut self, id: StateId) {
        if self.deferred.release(id) {
            self.events.push_back(Event::Released(id));
        }
    }

    fn flush(&mut self, now: Timestamp) {
        self.flush_within(now, Duration::ZERO);
    }

    fn flush_within(&mut self, now: Timestamp, span: Duration) {
        let due = now.after(span);
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    fn advance_bulk_in(&mut self, now: Timestamp, input: BulkInInput) {
        let next = self.bulk_in.on(now, input);
        if next != self.bulk_in && matches!(next, BulkIn::Asking { .. }) {
            let question = Message::UpdateRequest(Request::All);
            self.controls.retain(|waiting| *waiting != question);
            self.controls.push_back(question);
            self.flush(now);
        }
        if let BulkIn::Asking { asked, .. } | BulkIn::Filling { asked, .. } = self.bulk_in
            && next == BulkIn::Level
        {
            self.doubt_copies(now, asked);
        }
        self.bulk_in = next;
    }

    /// The bulk update that was asked for has not named some copies. Their owners are asked: they may
    /// have ended them, or a message was lost.
    fn doubt_copies(&mut self, now: Timestamp, asked: Timestamp) {
        let is_unnamed = |held: &Held| held.touched.is_none_or(|it| it < asked);
        let copies = self.table.iter().filter(|(_, held)| !held.is_owned && is_unnamed(held));
        let ids: Vec<_> = copies.map(|(id, _)| id).collect();
        for id in ids {
            self.table.set_deadline(id, now);
        }
    }

    /// Asks for a state, unless it was asked for a short time ago. `false` if there are too many
    /// questions.
    fn request(&mut self, now: Timestamp, id: StateId) -> bool {
        if self.requested.knows(now, id) {
            return true;
        }
        let has_room = self.controls.len() < CONTROLS_MAX && self.request_pace.allowed(now) > 0;
        if !has_room || !self.requested.meet(now, id) {
            self.counters.requests_omitted += 1;
            return false;
        }
        self.request_pace.spend(now);
        self.counters.requests += 1;
        self.controls.push_back(Message::UpdateRequest(Request::One(id)));
        self.flush(now);
        true
    }

    /// True for a state that this gateway has created and does not know any more. Before a bulk
    /// update is complete, peers may know states that it has forgotten in a restart.
    fn has_ended(&self, id: StateId) -> bool {
        let is_known = self.table.get(id).is_some();
        id.creator == self.config.creator && !is_known && !self.bulk_in.is_waiting()
    }

    /// A peer believes that a state is there. It has missed the end.
    fn retell_end(&mut self, now: Timestamp, id: StateId) {
        if self.controls.len() < CONTROLS_MAX && self.retold.meet(now, id) {
            self.counters.ends_retold += 1;
            self.controls.push_back(Message::DeleteCompressed(id));
            self.flush(now);
        }
    }

    /// Takes out an event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A state that has not ended.
    pub fn state(&self, id: StateId) -> Option<&State> {
        self.table.live(id).map(|held| &held.state)
    }

    /// The states that have not ended, by name, and whether this gateway owns them.
    pub fn states(&self) -> impl Iterator<Item = (&State, bool)> {
        let live = self.table.iter().filter(|(_, held)| held.slot() != Slot::Delete);
        live.map(|(_, held)| (&held.state, held.is_owned))
    }

    /// How far the bulk update from the peers is.
    pub fn bulk_in(&self) -> BulkIn {
        self.bulk_in
    }

    /// How far the bulk update to the peers is.
    pub fn bulk_out(&self) -> BulkOut {
        self.bulk_out
    }

    /// Counts.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Counts a packet that the owner has refused, because it is none of pfsync.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.refusals.count(refusal);
    }

    /// Counts of refused packets.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }
}

/// True if a message that clears states of a creator, and perhaps of one interface, means a state.
fn is_of(state: &State, creator: CreatorId, interface: InterfaceName) -> bool {
    let parts = state.parts();
    parts.id.creator == creator && (interface.is_empty() || parts.interface == interface)
}

#[cfg(test)]
#[path = "../speaker_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "../speaker_bulk_tests.rs"]
mod bulk_tests;
