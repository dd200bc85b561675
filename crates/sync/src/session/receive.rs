//! The datagrams of the peer: checked, applied, followed.

use flow::Timestamp;

use super::{Event, SecretRole, Session};
use crate::bulk::{Inflow, InflowInput, OutflowInput};
use crate::cursor::Reader;
use crate::epoch::Epoch;
use crate::handshake::Outcome;
use crate::inbox::{Arrival, Inbox};
use crate::message::Message;
use crate::packet::{Ack, Kind, Place, SealedHeader};
use crate::record::{Batch, Mark, Part};
use crate::refusal::Refusal;

/// The keys that a datagram names.
#[derive(Clone, Copy)]
enum Keys {
    Candidate,
    Current,
    Previous,
}

/// The content of a sealed datagram.
struct Content {
    ack: Ack,
    /// A frame, with the length of its message.
    frame: Option<(Place, (usize, Message))>,
}

impl Content {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let ack = Ack::decode(&mut reader)?;
        let frame = match reader.0 {
            [] => None,
            _ => {
                let place = Place::decode(&mut reader)?;
                let length = usize::from(reader.u16()?);
                Some((place, (length, Message::decode(reader.bytes(length)?)?)))
            }
        };
        // The rest is padding.
        reader.0.iter().all(|byte| *byte == 0).then_some(Self { ack, frame })
    }
}

impl Session {
    /// Takes a datagram from the peer's address. It is applied whole or not at all.
    ///
    /// # Errors
    /// The reason for which it was refused, which is counted.
    pub fn handle(&mut self, now: Timestamp, datagram: &[u8]) -> Result<(), Refusal> {
        let result = self.try_handle(now, datagram);
        match result {
            Ok(()) => self.counters.received_datagrams += 1,
            Err(refusal) => self.refusals.count(refusal),
        }
        result
    }

    fn try_handle(&mut self, now: Timestamp, datagram: &[u8]) -> Result<(), Refusal> {
        let kind = Kind::of(datagram)?;
        if kind == Kind::Sealed {
            return self.handle_sealed(now, datagram);
        }
        match self.handshake.receive(now, &mut self.greeter, kind, datagram)? {
            Outcome::Reply(datagram) => self.reply = Some(datagram),
            Outcome::Continue => {}
            Outcome::InForce(agreed) => {
                self.heard = Some(now);
                self.install(now, *agreed);
                // The peer waits to hear these keys used.
                self.speak_at_once();
            }
        }
        Ok(())
    }

    fn handle_sealed(&mut self, now: Timestamp, datagram: &[u8]) -> Result<(), Refusal> {
        let header = SealedHeader::decode(datagram).ok_or(Refusal::Malformed)?;
        let mut bytes = std::mem::take(&mut self.content);
        let (keys, epoch) = self.keys(header.index)?;
        let opened = epoch.open(header.number, datagram, &mut bytes, self.faults);
        let content = opened.and_then(|()| Content::decode(&bytes).ok_or(Refusal::Malformed));
        self.content = bytes;
        let Content { ack, frame } = content?;
        let begins_anew = matches!(keys, Keys::Candidate) && self.begins_anew();
        if !begins_anew {
            self.outbox.check(&ack)?;
            if let Some((place, (bytes, _))) = &frame {
                self.inbox.check(*place, *bytes)?;
            }
        } else if let Some((place, (bytes, _))) = &frame {
            Inbox::default().check(*place, *bytes)?;
        }

        // All is right, so from here on it is applied.
        self.accept(now, keys, header.number);
        if !begins_anew {
            self.outbox.acknowledge(now, &ack);
        }
        if let Some((place, message)) = frame
            && self.inbox.insert(now, place, message) == Arrival::Restarted
        {
            self.compared = None;
            self.inflow(InflowInput::Apart);
        }
        Ok(())
    }

    /// True if the streams of both ends begin anew with the keys that wait to come into force.
    fn begins_anew(&self) -> bool {
        self.handshake.agreed().is_some_and(|agreed| !self.keeps_bond(agreed))
    }

    fn keys(&self, index: u32) -> Result<(Keys, &Epoch), Refusal> {
        let is_named = |epoch: &&Epoch| epoch.local_index == index;
        if let Some(epoch) = self.current.as_ref().filter(is_named) {
            return Ok((Keys::Current, epoch));
        }
        if let Some(epoch) = self.handshake.candidate(index) {
            return Ok((Keys::Candidate, epoch));
        }
        if let Some(epoch) = self.previous.as_ref().map(|(epoch, _)| epoch).filter(is_named) {
            return Ok((Keys::Previous, epoch));
        }
        match self.current.as_ref().is_some_and(|epoch| epoch.peer_index == index) {
            true => Err(Refusal::OwnNode),
            false => Err(Refusal::UnknownKey),
        }
    }

    /// Counts a datagram as used, and brings keys into force that the peer uses.
    fn accept(&mut self, now: Timestamp, keys: Keys, number: u64) {
        self.heard = Some(now);
        if let (Keys::Candidate, Some(agreed)) = (keys, self.handshake.confirmed()) {
            self.install(now, agreed);
        }
        let epoch = match keys {
            Keys::Candidate | Keys::Current => self.current.as_mut(),
            Keys::Previous => self.previous.as_mut().map(|(epoch, _)| epoch),
        };
        if let Some(epoch) = epoch {
            epoch.accept(number);
        }
    }

    /// The next event. Records come in the order in which the peer has sent them.
    pub fn poll_event(&mut self, now: Timestamp) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let (place, message) = self.inbox.take(now)?;
            self.follow(place, message);
        }
    }

    /// Follows a message. One that is out of place changes nothing.
    fn follow(&mut self, place: Place, message: Message) {
        let is_in_place = match message {
            Message::Likeness(proof) => {
                self.compare(*proof);
                true
            }
            Message::Follow(None) => self.outflow(OutflowInput::Unfollow),
            Message::Follow(Some(bulk)) => {
                let before = self.outflow;
                let is_followed = self.is_together() && self.outflow(OutflowInput::Follow(bulk));
                if before != self.outflow {
                    self.events.push_back(Event::BulkAsked);
                }
                is_followed
            }
            Message::AskSecret => {
                self.owed.secret = self.secret_role == SecretRole::Gives;
                self.owed.secret
            }
            Message::Secret(secret) => {
                let is_wanted = self.secret_role == SecretRole::Takes;
                if is_wanted {
                    self.events.push_back(Event::Secret(secret));
                }
                is_wanted
            }
            Message::BeginBulk(bulk, total) => {
                let is_wanted = self.inflow(InflowInput::Begin(bulk, total));
                if is_wanted {
                    self.events.push_back(Event::BulkBegan(bulk));
                }
                is_wanted
            }
            Message::EndBulk(bulk, records) => {
                let is_wanted = self.inflow(InflowInput::End(bulk, records));
                match self.inflow {
                    Inflow::Level(_) if is_wanted => {
                        self.counters.bulks_received += 1;
                        self.ended_bulk = Some((bulk, self.await_applied(place)));
                        self.events.push_back(Event::BulkEnded(bulk));
                    }
                    _ if is_wanted => {
                        self.counters.bulks_incomplete += 1;
                        self.ask_bulk();
                    }
                    _ => {}
                }
                is_wanted
            }
            Message::Words(words) => {
                let is_wanted = self.is_together();
                if is_wanted {
                    self.events.push_back(Event::Words(words));
                }
                is_wanted
            }
            Message::Records(batch) => {
                self.receive_records(place, batch);
                true
            }
        };
        self.counters.out_of_place += u64::from(!is_in_place);
    }

    /// The frame that was taken last is one that the owner applies.
    fn await_applied(&mut self, place: Place) -> Mark {
        if self.awaits_applied && !self.faults.takes_taken_for_applied() {
            self.inbox.await_applied();
        }
        Mark { bond: self.greeter.bond(), place }
    }

    fn receive_records(&mut self, place: Place, mut batch: Batch) {
        let records = u64::from(batch.count());
        let is_wanted = match batch.part() {
            Part::Live => self.inflow.takes_changes(self.faults),
            // Records of an earlier transfer are states of connections as well.
            Part::Bulk(bulk) => {
                self.inflow(InflowInput::Received(bulk, records))
                    || self.inflow.takes_changes(self.faults)
            }
        };
        match is_wanted {
            true => {
                self.counters.received_records += records;
                batch.mark = self.await_applied(place);
                self.events.push_back(Event::Records(batch));
            }
            false => self.counters.unwanted_records += records,
        }
    }
}
