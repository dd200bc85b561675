//! Packets that arrive. Every check comes before the first change.

use std::collections::BTreeMap;
use std::time::Duration;

use flow::Timestamp;

use super::super::bulk::{BulkInInput, BulkOutInput};
use super::super::carrier::{Arrival, TTL};
use super::super::identity::StateId;
use super::super::merge::merge;
use super::super::message::{BulkEdge, BulkStatus, CompressedUpdate, Message, Request};
use super::super::packet::Packet;
use super::super::progress::Timeout;
use super::super::refusal::Refusal;
use super::super::slot::{Slot, SlotInput};
use super::super::state::{Peers, State, StateFlags};
use super::super::table::Held;
use super::{COPY_GRACE, EVENTS_MAX, Event, Speaker, is_of};

/// News about a known state besides its ends.
enum StateNews<'a> {
    /// All.
    Whole(&'a State),
    /// The timeout that runs, and the time left.
    Compressed(Timeout, u32),
}

impl Speaker {
    /// Takes a packet in.
    ///
    /// # Errors
    /// Why it is refused. Nothing has changed then, and the reason is counted.
    pub fn handle(
        &mut self,
        now: Timestamp,
        arrival: &Arrival,
        pfsync: &[u8],
    ) -> Result<(), Refusal> {
        let packet =
            self.check(arrival, pfsync).inspect_err(|reason| self.refusals.count(*reason))?;
        self.counters.packets_taken += 1;
        self.counters.skipped += u64::from(packet.skipped);
        self.counters.abandoned += u64::from(packet.is_abandoned);
        self.heard = Some(now);
        self.advance_bulk_in(now, BulkInInput::Heard);
        for message in packet.messages {
            self.apply(now, message);
        }
        Ok(())
    }

    fn check(&self, arrival: &Arrival, pfsync: &[u8]) -> Result<Packet, Refusal> {
        if !arrival.is_by_sync_link {
            return Err(Refusal::WrongInterface);
        }
        if arrival.ttl != TTL {
            return Err(Refusal::LowTtl);
        }
        if self.config.peer.is_some_and(|peer| peer != arrival.source) {
            return Err(Refusal::WrongSource);
        }
        if self.events.len() > EVENTS_MAX {
            return Err(Refusal::Busy);
        }
        let packet = Packet::decode(self.config.dialect, pfsync)?;
        self.check_ends(&packet)?;
        Ok(packet)
    }

    /// A compressed update does not tell the protocol of its state, which tells what its ends can be.
    fn check_ends(&self, packet: &Packet) -> Result<(), Refusal> {
        let mut protocols = BTreeMap::new();
        for message in &packet.messages {
            match message {
                Message::Insert(state) | Message::Update(state) => {
                    protocols.entry(state.id()).or_insert(state.parts().wire.protocol);
                }
                Message::UpdateCompressed(update) => {
                    let held = self.table.get(update.id);
                    let held = held.map(|held| held.state.parts().wire.protocol);
                    if let Some(protocol) = held.or_else(|| protocols.get(&update.id).copied()) {
                        Peers::of_protocol(protocol, update.peers)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, now: Timestamp, message: Message) {
        match message {
            Message::Clear { .. } if self.clear_pace.allowed(now) == 0 => {
                self.counters.clears_omitted += 1;
            }
            Message::Clear { interface, creator } => {
                let ids = self.remove_all(now, |held| {
                    !held.is_owned && is_of(&held.state, creator, interface)
                });
                if ids.is_empty() {
                    self.clear_pace.spend(now);
                }
                self.events.extend(ids.into_iter().map(Event::Ended));
            }
            Message::Insert(state) => self.hear_whole(now, &state),
            Message::Update(state) => {
                self.advance_bulk_in(now, BulkInInput::State);
                self.hear_whole(now, &state);
            }
            Message::UpdateCompressed(update) => self.hear_compressed(now, &update),
            Message::InsertAck(id) => self.release(id),
            Message::Delete(state) => self.hear_end(now, state.id()),
            Message::DeleteCompressed(id) => self.hear_end(now, id),
            Message::UpdateRequest(Request::One(id)) => self.answer(now, id),
            Message::UpdateRequest(Request::All) => self.begin_bulk(now),
            Message::BulkStatus(BulkStatus { elapsed, edge, .. }) => {
                let input = match edge {
                    BulkEdge::Start => BulkInInput::Start,
                    BulkEdge::End => BulkInInput::End(Duration::from_secs(elapsed.into())),
                };
                self.advance_bulk_in(now, input);
            }
        }
    }

    fn hear_whole(&mut self, now: Timestamp, state: &State) {
        let id = state.id();
        let wants_ack = state.parts().flags.has(StateFlags::ACK_WANTED);
        match self.table.get(id) {
            Some(held) if held.slot() == Slot::Delete => self.counters.buried += 1,
            Some(held) if !held.state.has_keys_of(state) => self.counters.clashes += 1,
            Some(_) => self.merge(now, id, &state.parts().peers, &StateNews::Whole(state)),
            None if self.has_ended(id) => {
                self.counters.buried += 1;
                self.retell_end(now, id);
            }
            None if self.graves.knows(now, id) => self.counters.buried += 1,
            None if self.table.len() >= self.config.states_max => self.counters.full += 1,
            None => {
                let flags = state.parts().flags.without(StateFlags::ACK_WANTED);
                let mut held = Held::new(now, state.with_flags(flags), false);
                held.touched = Some(now);
                let deadline = held.end().after(COPY_GRACE);
                self.table.add(held);
                self.table.set_deadline(id, deadline);
                self.events.push_back(Event::Inserted(id));
            }
        }
        if wants_ack && self.table.live(id).is_some() {
            self.table.advance(id, SlotInput::Ack);
            self.flush(now);
        }
    }

    fn hear_compressed(&mut self, now: Timestamp, update: &CompressedUpdate) {
        let id = update.id;
        let Some(held) = self.table.get(id) else {
            if self.has_ended(id) {
                self.counters.buried += 1;
                self.retell_end(now, id);
            } else if self.graves.knows(now, id) {
                self.counters.buried += 1;
            } else {
                self.counters.unknown += 1;
                self.request(now, id);
            }
            return;
        };
        if held.slot() == Slot::Delete {
            self.counters.buried += 1;
            return;
        }
        let protocol = held.state.parts().wire.protocol;
        match Peers::of_protocol(protocol, update.peers) {
            Ok(peers) => {
                let news = StateNews::Compressed(update.timeout, update.left);
                self.merge(now, id, &peers, &news);
            }
            // A state with this name came in the same packet, and was not taken.
            Err(_) => self.counters.clashes += 1,
        }
    }

    /// Takes from an account of a known state what is newer than ours, and sends ours if it is older.
    fn merge(&mut self, now: Timestamp, id: StateId, theirs: &Peers, news: &StateNews<'_>) {
        let Some(held) = self.table.get_mut(id) else { return };
        let Some(merged) = merge(&held.state.parts().peers, theirs) else {
            self.counters.clashes += 1;
            return;
        };
        (held.touched, held.asks) = (Some(now), 0);
        let life = match news {
            _ if merged.is_stale || held.is_owned && !merged.is_news => held.life(now),
            StateNews::Whole(state) => state.life(),
            StateNews::Compressed(timeout, left) => {
                let mut life = held.life(now);
                life.timeout = *timeout;
                life.left = if *left > 0 { *left } else { timeout.default_seconds() };
                life
            }
        };
        let kept = match news {
            StateNews::Whole(state) if !held.is_owned && !merged.is_stale => {
                state.with_flags(state.parts().flags.without(StateFlags::ACK_WANTED))
            }
            StateNews::Whole(_) | StateNews::Compressed(..) => held.state,
        };
        // The ends are of the state's protocol, since a merge of others has failed above.
        held.state = kept.with_peers(merged.peers).unwrap_or(kept).with_life(life);
        held.since = now;
        let (is_owned, end) = (held.is_owned, held.end());
        if !is_owned {
            self.table.set_deadline(id, end.after(COPY_GRACE));
        }
        if merged.is_news {
            self.events.push_back(Event::Updated(id));
        }
        if merged.is_stale {
            self.counters.stale += 1;
            self.table.advance(id, SlotInput::Change);
            self.flush(now);
        }
    }

    /// Only the owner of a state ends it. A peer that ends one of ours has forgotten it by a timer,
    /// and gets it again.
    fn hear_end(&mut self, now: Timestamp, id: StateId) {
        match self.table.get(id) {
            Some(held) if held.slot() == Slot::Delete => {}
            Some(held) if held.is_owned => {
                self.counters.ends_refused += 1;
                self.table.advance(id, SlotInput::Asked);
                self.flush(now);
            }
            Some(_) => {
                self.table.remove(id);
                self.graves.meet(now, id);
                self.events.push_back(Event::Ended(id));
            }
            // Its insert may come later.
            None => {
                self.graves.meet(now, id);
            }
        }
    }

    fn answer(&mut self, now: Timestamp, id: StateId) {
        if self.has_ended(id) {
            self.retell_end(now, id);
        } else if self.table.get(id).is_some() {
            self.table.advance(id, SlotInput::Asked);
            self.flush(now);
        }
    }

    /// A peer asks for all states. It hears of the start also while an earlier bulk update runs, so
    /// that it waits for the one that follows.
    fn begin_bulk(&mut self, now: Timestamp) {
        self.bulk_out = self.bulk_out.on(BulkOutInput::Asked(now)).unwrap_or(self.bulk_out);
        self.push_bulk_status(now, BulkEdge::Start);
    }
}
