//! Packets that leave, and what happens when time passes.

use std::time::Duration;

use flow::Timestamp;

use super::super::bulk::{BulkInInput, BulkOut, BulkOutInput};
use super::super::identity::StateId;
use super::super::message::{BulkEdge, BulkStatus, CompressedUpdate, Message};
use super::super::packet::{GROUP_BYTES, HEADER_BYTES, NotWritten, PacketWriter};
use super::super::slot::{Slot, SlotInput};
use super::super::state::StateFlags;
use super::{CONTROLS_MAX, COPY_ASK_INTERVAL, COPY_ASKS_MAX, Event, Speaker};

/// The order of messages in a packet. Ends come before inserts, because a new connection may use the
/// addresses and ports of one that has ended.
const ORDER: [Slot; 5] =
    [Slot::Delete, Slot::Insert, Slot::InsertAck, Slot::UpdateCompressed, Slot::Update];
/// Updates that wait, above which a bulk update queues no more.
const BULK_QUEUED_MAX: usize = 1_024;
/// Copies whose owners are asked in one turn.
const COPIES_PER_TURN: usize = 1_024;
/// Silence after which peers are taken to be away, so that nobody can answer.
const PEERS_AWAY_AFTER: Duration = Duration::from_secs(10);
/// Lengths of messages without a full state, bytes.
const COMPRESSED_BYTES: usize = 84;
const NAME_BYTES: usize = 12;

impl Speaker {
    /// Takes out the next packet, without its IP header. The owner asks until there is none.
    pub fn poll_transmit(&mut self, now: Timestamp) -> Option<Vec<u8>> {
        self.turn(now);
        let is_due = self.due.is_some_and(|due| due <= now);
        if !is_due && !self.has_full_packet() {
            return None;
        }
        let mut writer = PacketWriter::new(self.config.dialect, self.config.packet_bytes);
        let is_emptied = self.write_controls(&mut writer) && self.write_states(now, &mut writer);
        if is_emptied {
            self.due = None;
        } else if !is_due {
            self.due = Some(now.after(self.config.flush_time));
        }
        if writer.is_empty() {
            return None;
        }
        self.counters.packets_sent += 1;
        Some(writer.finish())
    }

    /// True if more messages wait than fit into one packet.
    fn has_full_packet(&self) -> bool {
        let waiting = ORDER.iter().map(|slot| {
            let length = match slot {
                Slot::Insert | Slot::Update => self.config.dialect.state_bytes(),
                Slot::UpdateCompressed => COMPRESSED_BYTES,
                Slot::Idle | Slot::InsertAck | Slot::Delete => NAME_BYTES,
            };
            match self.table.waiting(*slot) {
                0 => 0,
                count => GROUP_BYTES + count * length,
            }
        });
        let end = if self.config.dialect.tells_lengths() { 0 } else { GROUP_BYTES };
        HEADER_BYTES + end + waiting.sum::<usize>() > self.config.packet_bytes
    }

    /// Writes messages without a state. `false` if the packet is full.
    fn write_controls(&mut self, writer: &mut PacketWriter) -> bool {
        while let Some(message) = self.controls.front() {
            match writer.push(message) {
                Err(NotWritten::Full) => return false,
                Ok(()) | Err(NotWritten::Inexpressible) => self.controls.pop_front(),
            };
        }
        true
    }

    /// Writes messages of states. `false` if the packet is full.
    fn write_states(&mut self, now: Timestamp, writer: &mut PacketWriter) -> bool {
        for slot in ORDER {
            while let Some(id) = self.table.first_waiting(slot) {
                if let Some(message) = self.message(now, slot, id) {
                    match writer.push(&message) {
                        Ok(()) => {}
                        Err(NotWritten::Full) => return false,
                        Err(NotWritten::Inexpressible) => self.counters.inexpressible += 1,
                    }
                }
                self.sent(now, slot, id);
            }
        }
        true
    }

    fn message(&self, now: Timestamp, slot: Slot, id: StateId) -> Option<Message> {
        let held = self.table.get(id)?;
        let state = held.state.with_life(held.life(now)).with_updates(held.updates);
        let parts = state.parts();
        let without_wish =
            || Box::new(state.with_flags(parts.flags.without(StateFlags::ACK_WANTED)));
        match slot {
            Slot::Idle => None,
            Slot::Insert => Some(Message::Insert(Box::new(state))),
            Slot::InsertAck => Some(Message::InsertAck(id)),
            Slot::Update => Some(Message::Update(without_wish())),
            Slot::UpdateCompressed => Some(Message::UpdateCompressed(Box::new(CompressedUpdate {
                id,
                peers: parts.peers.raw(),
                left: 0,
                timeout: parts.timeout,
                flags: parts.flags,
            }))),
            Slot::Delete => Some(Message::DeleteCompressed(id)),
        }
    }

    fn sent(&mut self, now: Timestamp, slot: Slot, id: StateId) {
        self.table.advance(id, SlotInput::Sent);
        if slot == Slot::Delete {
            self.graves.meet(now, id);
        }
        if let Some(held) = self.table.get_mut(id) {
            held.updates = 0;
            let flags = held.state.parts().flags.without(StateFlags::ACK_WANTED);
            held.state = held.state.with_flags(flags);
        }
    }

    /// Does what is to be done by now.
    fn turn(&mut self, now: Timestamp) {
        while let Some(id) = self.deferred.pop_due(now) {
            self.events.push_back(Event::Released(id));
        }
        self.advance_bulk_in(now, BulkInInput::Time);
        for _ in 0..COPIES_PER_TURN {
            let Some(id) = self.table.pop_overdue(now) else { break };
            self.ask_owner(now, id);
        }
        self.advance_bulk_out(now);
    }

    /// The time of a copy is over, and its owner has not told of its end. Only the owner knows whether
    /// it is still there.
    fn ask_owner(&mut self, now: Timestamp, id: StateId) {
        let is_anybody_there = self.heard.is_some_and(|it| now.since(it) < PEERS_AWAY_AFTER);
        let Some(held) = self.table.get_mut(id).filter(|held| !held.is_owned) else { return };
        if held.asks >= COPY_ASKS_MAX && is_anybody_there {
            self.table.remove(id);
            self.counters.forgotten += 1;
            self.events.push_back(Event::Ended(id));
            return;
        }
        let is_asked = self.request(now, id);
        if let Some(held) = self.table.get_mut(id) {
            held.asks = held.asks.saturating_add(u8::from(is_asked && is_anybody_there));
        }
        self.table.set_deadline(id, now.after(COPY_ASK_INTERVAL));
    }

    fn advance_bulk_out(&mut self, now: Timestamp) {
        while let BulkOut::Queueing { last, .. } = self.bulk_out
            && self.bulk_pace.allowed(now) > 0
            && self.table.waiting(Slot::Update) < BULK_QUEUED_MAX
        {
            let input = match self.table.next_behind(last) {
                Some(id) => {
                    self.table.advance(id, SlotInput::Asked);
                    self.bulk_pace.spend(now);
                    self.flush(now);
                    BulkOutInput::Queued(id)
                }
                None => BulkOutInput::Through(self.table.next_place()),
            };
            self.bulk_out = self.bulk_out.on(input).unwrap_or_default();
        }
        if self.is_drained() {
            self.bulk_out = self.bulk_out.on(BulkOutInput::Drained(now)).unwrap_or_default();
        }
        if let BulkOut::Ending { next, .. } = self.bulk_out
            && next <= now
        {
            self.push_bulk_status(now, BulkEdge::End);
            self.bulk_out = self.bulk_out.on(BulkOutInput::EndSaid(now)).unwrap_or_default();
            if matches!(self.bulk_out, BulkOut::Queueing { .. }) {
                self.push_bulk_status(now, BulkEdge::Start);
            }
        }
    }

    /// True if all states of a bulk update are sent.
    fn is_drained(&self) -> bool {
        let BulkOut::Draining { until, .. } = self.bulk_out else { return false };
        self.table.first_place(Slot::Update).is_none_or(|place| place >= until)
    }

    pub(super) fn push_bulk_status(&mut self, now: Timestamp, edge: BulkEdge) {
        let (BulkOut::Queueing { begun, .. }
        | BulkOut::Draining { begun, .. }
        | BulkOut::Ending { begun, .. }) = self.bulk_out
        else {
            return;
        };
        let elapsed = u32::try_from(now.since(begun).as_secs()).unwrap_or(u32::MAX);
        let creator = self.config.creator;
        let status = Message::BulkStatus(BulkStatus { creator, elapsed, edge });
        if self.controls.len() < CONTROLS_MAX && !self.controls.contains(&status) {
            self.controls.push_back(status);
            self.flush(now);
        }
    }

    /// When [`Speaker::poll_transmit`] has something to do, if nothing happens before.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        let full = self.has_full_packet().then_some(Timestamp::ZERO);
        let bulk = match self.bulk_out {
            BulkOut::Idle => None,
            BulkOut::Queueing { .. } => Some(self.bulk_pace.next_turn()),
            BulkOut::Draining { begun, .. } => self.is_drained().then_some(begun),
            BulkOut::Ending { next, .. } => Some(next),
        };
        let copies = self.table.next_timer();
        let times = [self.due, self.deferred.next(), self.bulk_in.next(), copies, bulk, full];
        times.into_iter().flatten().min()
    }
}
