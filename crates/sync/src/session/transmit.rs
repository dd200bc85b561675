//! The datagrams for the peer, and their time.

use flow::Timestamp;

use super::{AWAY_AFTER, KEEPALIVE, Session};
use crate::bulk::{Inflow, Outflow};
use crate::epoch::{Epoch, TAG_BYTES};
use crate::message::Message;

/// Most bytes by which a datagram with a frame is made longer, so that full ones all have the same
/// length: a network stack takes many of one length at once.
const PADDING_BYTES_MAX: usize = 128;

impl Session {
    /// Writes the next datagram for the peer into `datagram`. False if there is none now.
    pub fn poll_transmit(&mut self, now: Timestamp, datagram: &mut Vec<u8>) -> bool {
        self.tick(now);
        datagram.clear();
        let greeting = match self.reply.take() {
            Some(reply) => {
                datagram.extend_from_slice(&reply);
                true
            }
            None => match self.handshake.poll(now, &mut self.greeter) {
                Some(greeting) => {
                    datagram.extend_from_slice(greeting);
                    true
                }
                None => false,
            },
        };
        let is_there = greeting || self.poll_sealed(now, datagram);
        self.counters.sent_datagrams += u64::from(is_there);
        is_there
    }

    /// Does what is due.
    fn tick(&mut self, now: Timestamp) {
        self.outbox.expire(now);
        if now >= self.gives_up_at() {
            self.forget_queue();
        }
        self.mend_hole();
        if self.previous.as_ref().is_some_and(|(_, until)| now >= *until) {
            self.previous = None;
        }
        if self.wants_keys(now) {
            self.handshake.begin(now, &mut self.greeter);
        }
    }

    fn wants_keys(&self, now: Timestamp) -> bool {
        let limit = self.settings.rekey_after_frames;
        let is_worn = |epoch: &Epoch| epoch.sealed >= limit || epoch.opened >= limit;
        self.is_away(now) || self.current.as_ref().is_none_or(is_worn)
    }

    /// The next datagram gets sent although it carries nothing.
    pub(super) fn speak_at_once(&mut self) {
        self.spoke = Timestamp::ZERO;
    }

    fn poll_sealed(&mut self, now: Timestamp, datagram: &mut Vec<u8>) -> bool {
        if self.current.is_some() {
            self.flush_owed(now);
        }
        let Some(epoch) = self.current.as_mut().filter(|epoch| epoch.can_seal()) else {
            return false;
        };
        let is_ack_due = self.inbox.acks_at() <= now;
        let is_due = is_ack_due || self.spoke.after(KEEPALIVE) <= now;
        // Ranges get a datagram of their own, so that frames can be long.
        let is_alone = is_ack_due && self.inbox.has_ranges();
        let frame = if is_alone { None } else { self.outbox.next(now) };
        if frame.is_none() && !is_due {
            return false;
        }
        epoch.begin(datagram);
        let ack = match frame {
            Some(_) => self.inbox.acknowledge_briefly(),
            None => self.inbox.acknowledge(),
        };
        ack.encode(datagram);
        if let Some((place, message)) = frame {
            place.encode(datagram);
            // A message is shorter than a datagram, whose length has two bytes.
            datagram.extend_from_slice(&(message.len() as u16).to_be_bytes());
            datagram.extend_from_slice(message);
            self.counters.sent_frames += 1;
            let full = self.settings.datagram_bytes - TAG_BYTES;
            if datagram.len() + PADDING_BYTES_MAX >= full {
                datagram.resize(full.max(datagram.len()), 0);
            }
        }
        epoch.seal(datagram);
        self.spoke = now;
        true
    }

    /// Queues the messages that are owed, in an order in which the peer can follow them.
    pub(super) fn flush_owed(&mut self, now: Timestamp) {
        let Some(peer) = &self.peer else { return };
        let owed = self.owed;
        if owed.likeness && self.outbox.takes_control() {
            let proof = self.likeness.prove(&self.greeter.likeness_key(peer));
            self.outbox.push_control(now, &Message::Likeness(Box::new(proof)));
            self.owed.likeness = false;
        }
        if owed.follow && self.outbox.takes_control() {
            let bulk = match self.inflow {
                Inflow::Asked(bulk) => Some(bulk),
                _ => None,
            };
            if bulk.is_some() || self.inflow == Inflow::Off {
                self.outbox.push_control(now, &Message::Follow(bulk));
            }
            self.owed.follow = false;
        }
        if owed.ask_secret && self.outbox.takes_control() {
            self.outbox.push_control(now, &Message::AskSecret);
            self.owed.ask_secret = false;
        }
        if owed.secret && self.outbox.takes_control() {
            let secret = self.likeness.hash_secret.clone();
            self.outbox.push_control(now, &Message::Secret(secret));
            self.owed.secret = false;
        }
    }

    /// When [`Session::poll_transmit`] has to be called next, and [`Session::bulk_room`] looked at
    /// during a bulk transfer.
    pub fn next_timeout(&self) -> Timestamp {
        let keys = match self.handshake.next_timeout() {
            Timestamp::NEVER => self.heard.map_or(Timestamp::ZERO, |it| it.after(AWAY_AFTER)),
            at => at,
        };
        let mut next = keys.min(self.gives_up_at());
        if self.current.as_ref().is_some_and(Epoch::can_seal) {
            next = next.min(self.outbox.deadline()).min(self.inbox.acks_at());
            next = next.min(self.spoke.after(KEEPALIVE));
        }
        match self.outflow {
            Outflow::Bulk(_) if self.outbox.bytes() < self.settings.queue_bytes / 2 => {
                next.min(self.pace.next_turn())
            }
            _ => next,
        }
    }
}
