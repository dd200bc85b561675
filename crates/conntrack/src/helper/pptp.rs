//! PPTP (RFC 2637): calls between a network server (PNS) and an access concentrator (PAC) that
//! a TCP connection opens and closes, and whose PPP frames travel in GRE version 1.
//!
//! Each end gives a call its own id, and GRE packets carry the id of their receiver.
//!
//! | message | from | means |
//! | --- | --- | --- |
//! | Start-Control-Connection-Request, -Reply | opener, other end | calls are possible |
//! | Outgoing-Call-Request, -Reply | PNS, PAC | a call with the ids of both is announced |
//! | Incoming-Call-Request, -Reply, -Connected | PAC, PNS, PAC | the same |
//! | Call-Clear-Request | PNS | a call is about to end |
//! | Call-Disconnect-Notify | PAC | it has ended, and so has its GRE connection |
//! | Stop-Control-Connection-Request, -Reply | either | no more calls are possible |
//!
//! A call is announced from both ends, and the end that sends first uses up both announcements.
//! All calls end with their control connection. Messages that are shorter than in the RFC are
//! ignored.
//!
//! The kernel's helper knows less. It takes the opener of the control connection for the PNS,
//! whereas here the messages tell which end it is. It has one call for each control connection,
//! whatever ids Call-Disconnect-Notify and Call-Clear-Request name, and it keeps requested
//! calls through Stop and Start. It takes 0 for an id that it has not read. It reads a message
//! only if that is the first of a segment and ends in it.

mod record;

use std::net::IpAddr;

use wire::protocol;

use super::record::HelperStore;
use super::stream::{Framing, Streams};
use super::{
    Announced, Class, Earlier, Facts, HelperPacket, Inspect, Inspected, Request, TCP, Way,
};
use crate::Direction;
use crate::nat::Edit;
use flow::codec::{DecodeError, Reader};

pub(super) const FACTS: Facts = Facts {
    name: "pptp",
    protocols: TCP,
    port: 1723,
    // For each call, from either end.
    classes: &[Class { name: "call", maximum: 2, timeout_s: 300 }],
};

/// Most calls of a control connection that are remembered; beyond that the first is forgotten.
const CALLS: usize = 16;

/// Length of the header of all messages, bytes (RFC 2637 section 2).
const HEADER: usize = 12;
/// Control messages, the only type that is defined.
const CONTROL: u16 = 1;
const MAGIC_COOKIE: [u8; 4] = 0x1A2B_3C4D_u32.to_be_bytes();
/// Result code: the request was carried out (sections 2.2, 2.4, 2.8 and 2.10).
const DONE: u8 = 1;

/// A control message with the fields that the helper uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    StartRequest,
    StartReply { done: bool },
    StopRequest,
    StopReply { done: bool },
    OutgoingRequest { pns: u16 },
    OutgoingReply { ids: Ids, connected: bool },
    IncomingRequest { pac: u16 },
    IncomingReply { ids: Ids, accepted: bool },
    IncomingConnected { pns: u16 },
    Clear { pns: u16 },
    Disconnect { pac: u16 },
}

/// The ids that both ends gave a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ids {
    pns: u16,
    pac: u16,
}

impl Message {
    /// `None` for a message that the helper does not use.
    fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| -> Option<u16> {
            Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let done = |at: usize| bytes.get(at).map(|&result| result == DONE);
        let kind = number(8).filter(|_| number(2) == Some(CONTROL))?;
        // Sections 2.1 to 2.13.
        let (length, message) = match kind {
            1 => (156, Self::StartRequest),
            2 => (156, Self::StartReply { done: done(14)? }),
            3 => (16, Self::StopRequest),
            4 => (16, Self::StopReply { done: done(12)? }),
            7 => (168, Self::OutgoingRequest { pns: number(12)? }),
            8 => {
                let ids = Ids { pac: number(12)?, pns: number(14)? };
                (32, Self::OutgoingReply { ids, connected: done(16)? })
            }
            9 => (220, Self::IncomingRequest { pac: number(12)? }),
            10 => {
                let ids = Ids { pns: number(12)?, pac: number(14)? };
                (24, Self::IncomingReply { ids, accepted: done(16)? })
            }
            11 => (28, Self::IncomingConnected { pns: number(12)? }),
            12 => (16, Self::Clear { pns: number(12)? }),
            13 => (148, Self::Disconnect { pac: number(12)? }),
            _ => return None,
        };
        (bytes.len() >= length).then_some(message)
    }
}

fn framing(bytes: &[u8]) -> Framing {
    let cookie = bytes.get(4..).unwrap_or_default().iter();
    if cookie.zip(&MAGIC_COOKIE).any(|(byte, wanted)| byte != wanted) {
        return Framing::Garbage;
    }
    match *bytes {
        [high, low, _, _, _, _, _, _, ..] => match usize::from(u16::from_be_bytes([high, low])) {
            length @ HEADER.. => Framing::Length(length),
            _ => Framing::Garbage,
        },
        _ => Framing::Unknown,
    }
}

/// The state of the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Session {
    #[default]
    None,
    Requested,
    Confirmed,
    /// An end has asked to stop.
    Stopping,
    /// An end has refused.
    Failed,
}

/// A call. `pns` is the direction of packets from its PNS; the other end is the PAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    pns: Direction,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The PNS has asked for it.
    Outgoing { pns: u16 },
    /// The PAC offers it.
    Incoming { pac: u16 },
    /// The PNS has accepted the offer.
    Accepted(Ids),
    /// It is announced. `incoming`: the PAC had offered it.
    Up { ids: Ids, incoming: bool },
    /// It was announced and is about to end.
    Clearing(Ids),
}

impl Call {
    /// A number for the call: the id of the opener of the control connection, and that of the
    /// other end.
    fn number(&self, ids: Ids) -> u32 {
        let (opener, other) = match self.pns {
            Direction::Original => (ids.pns, ids.pac),
            Direction::Reply => (ids.pac, ids.pns),
        };
        u32::from(opener) << 16 | u32::from(other)
    }
}

impl Stage {
    /// The ids of a call that was announced.
    fn announced(self) -> Option<Ids> {
        match self {
            Self::Up { ids, .. } | Self::Clearing(ids) => Some(ids),
            Self::Outgoing { .. } | Self::Incoming { .. } | Self::Accepted(_) => None,
        }
    }

    fn pac(self) -> Option<u16> {
        match self {
            Self::Incoming { pac } => Some(pac),
            Self::Accepted(ids) | Self::Up { ids, .. } | Self::Clearing(ids) => Some(ids.pac),
            Self::Outgoing { .. } => None,
        }
    }
}

/// The state of a control connection with its streams.
#[derive(Debug, Default)]
pub(super) struct Pptp {
    streams: Streams,
    state: Control,
}

#[derive(Debug, Default)]
struct Control {
    session: Session,
    calls: Vec<Call>,
}

/// The end that an id in a message belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Senders,
    Receivers,
}

/// The offsets of the ids in a message of a kind (sections 2.7 to 2.15).
const fn ids_of(kind: u8) -> &'static [(usize, Whose)] {
    match kind {
        7 | 9 | 12 | 13 => &[(12, Whose::Senders)],
        8 | 10 => &[(12, Whose::Senders), (14, Whose::Receivers)],
        11 | 14 | 15 => &[(12, Whose::Receivers)],
        _ => &[],
    }
}

/// True for the kinds in which an end tells the id that it gives a call.
const fn gives_id(kind: u8) -> bool {
    matches!(kind, 7..=10)
}

/// A message with the ids that the ends themselves gave their calls, although its sender knows
/// the receiver's by another. It requests the edits for the receiver if the message begins at
/// `at` of this packet; a message that an earlier segment began can not be edited any more.
fn as_meant(
    bytes: &[u8],
    at: Option<usize>,
    packet: &HelperPacket<'_>,
    ask: &mut dyn FnMut(Request),
) -> Vec<u8> {
    let mut meant = bytes.to_vec();
    let Earlier { announcements, master } = packet.earlier;
    let kind = bytes.get(9).copied().unwrap_or_default();
    for &(place, whose) in ids_of(kind) {
        let Some(said) = bytes.get(place..).and_then(<[u8]>::first_chunk::<2>) else { continue };
        let id = u16::from_be_bytes(*said);
        let end = packet.direction;
        let goes_as = match whose {
            Whose::Receivers => {
                let own = announcements.own_call_id(master, (end.reversed(), id));
                meant[place..place + 2].copy_from_slice(&own.to_be_bytes());
                own
            }
            Whose::Senders if packet.seen_as == packet.source => id,
            Whose::Senders if gives_id(kind) => {
                let [from, to] = [packet.receiver, packet.seen_as].map(wire::mapped);
                let way = Way { zone: master.zone, from, to };
                // If no id is free, the call clashes with another, and its packets are dropped.
                announcements.give_call_id(master, (end, id), way).unwrap_or(id)
            }
            Whose::Senders => announcements.known_call_id(master, (end, id)),
        };
        if let Some(at) = at.filter(|_| goes_as != id) {
            let place = at + place..at + place + 2;
            ask(Request::Edit(Edit { place, text: goes_as.to_be_bytes().to_vec() }));
        }
    }
    meant
}

impl Pptp {
    pub fn read(from: &mut Reader<'_>, store: &HelperStore<'_>) -> Result<Self, DecodeError> {
        Ok(Self { state: record::read(from)?, streams: Streams::read_record(from, store)? })
    }
}

impl Inspect for Pptp {
    fn keeps_beginning(&self) -> bool {
        self.streams.keeps_beginning()
    }

    fn write(&self, to: &mut Vec<u8>) {
        record::write(&self.state, to);
        self.streams.write(to);
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let Self { streams, state } = self;
        streams.feed_in_turn(packet, framing, |bytes, at| {
            let meant = packet.is_translated.then(|| as_meant(bytes, at, packet, ask));
            let Some(message) = Message::read(meant.as_deref().unwrap_or(bytes)) else { return };
            state.hear(packet.direction, message, &mut |outcome| {
                let ends = Ends::of(packet, outcome.call.pns, outcome.ids);
                match outcome.news {
                    News::Announced => ends.announce(outcome.call.number(outcome.ids), ask),
                    News::Ended => ask(Request::End { source: ends.pns, destination: ends.pac }),
                }
            });
        })
    }
}

/// The effect of a message on a call.
struct Outcome {
    call: Call,
    ids: Ids,
    news: News,
}

enum News {
    Announced,
    Ended,
}

/// The ends of a call, each with its own id.
#[derive(Clone, Copy)]
struct Ends {
    pns: (IpAddr, u16),
    pac: (IpAddr, u16),
}

impl Ends {
    fn of(packet: &HelperPacket<'_>, pns: Direction, ids: Ids) -> Self {
        let (pns, pac) = if packet.direction == pns {
            (packet.source, packet.destination)
        } else {
            (packet.destination, packet.source)
        };
        Self { pns: (pns, ids.pns), pac: (pac, ids.pac) }
    }

    fn announce(self, call: u32, ask: &mut dyn FnMut(Request)) {
        for (from, to) in [(self.pns, self.pac), (self.pac, self.pns)] {
            ask(Request::Expect(Announced {
                call,
                source: Some(from.0),
                source_port: Some(from.1),
                ..Announced::new(protocol::GRE, to.0, to.1)
            }));
        }
    }
}

impl Control {
    fn hear(&mut self, from: Direction, message: Message, tell: &mut dyn FnMut(Outcome)) {
        self.session = self.session.after(from, message);
        let confirmed = self.session == Session::Confirmed;
        let other = from.reversed();
        match message {
            Message::StartRequest | Message::StartReply { .. } | Message::StopReply { .. } => {}
            // No reply to earlier requests will come.
            Message::StopRequest => self.calls.retain(|call| call.stage.announced().is_some()),
            Message::Disconnect { pac } => self.disconnect(other, pac, tell),
            Message::IncomingReply { ids, accepted } => self.take(from, ids, accepted),
            _ if !confirmed => {}
            Message::OutgoingRequest { pns } => self.ask(from, pns),
            Message::OutgoingReply { ids, connected } => self.reply(other, ids, connected, tell),
            Message::IncomingRequest { pac } => self.offer(other, pac),
            Message::IncomingConnected { pns } => self.connect(other, pns, tell),
            Message::Clear { pns } => self.clear(from, pns),
        }
    }

    fn ask(&mut self, pns: Direction, id: u16) {
        let known = self.calls.iter().any(|call| match call.stage {
            Stage::Outgoing { pns } => pns == id,
            Stage::Up { ids, .. } => ids.pns == id,
            _ => false,
        } && call.pns == pns);
        // A repeated request changes nothing; if the call is a new one, the reply will tell.
        if !known {
            self.remember(Call { pns, stage: Stage::Outgoing { pns: id } });
        }
    }

    fn reply(&mut self, pns: Direction, ids: Ids, connected: bool, tell: &mut dyn FnMut(Outcome)) {
        let up = Stage::Up { ids, incoming: false };
        let stages = [Stage::Outgoing { pns: ids.pns }, up];
        let Some(at) = self.position(pns, |stage| stages.contains(&stage)) else { return };
        let call = &mut self.calls[at];
        match (connected, call.stage) {
            (true, _) => {
                call.stage = up;
                tell(Outcome { call: *call, ids, news: News::Announced });
            }
            (false, Stage::Up { .. }) => call.stage = Stage::Clearing(ids),
            (false, _) => drop(self.calls.remove(at)),
        }
    }

    fn offer(&mut self, pns: Direction, pac: u16) {
        let offered = Stage::Incoming { pac };
        let before = self.position(pns, |stage| match stage {
            Stage::Accepted(ids) => ids.pac == pac,
            stage => stage == offered,
        });
        match before {
            Some(at) => self.calls[at].stage = offered,
            None => self.remember(Call { pns, stage: offered }),
        }
    }

    fn take(&mut self, pns: Direction, ids: Ids, accepted: bool) {
        let offered = self.position(pns, |stage| match stage {
            Stage::Incoming { pac } | Stage::Accepted(Ids { pac, .. }) => pac == ids.pac,
            _ => false,
        });
        match offered {
            Some(at) if accepted => self.calls[at].stage = Stage::Accepted(ids),
            Some(at) => drop(self.calls.remove(at)),
            None => {}
        }
    }

    fn connect(&mut self, pns: Direction, id: u16, tell: &mut dyn FnMut(Outcome)) {
        let taken = |stage| match stage {
            Stage::Accepted(ids) | Stage::Up { ids, incoming: true } => {
                Some(ids).filter(|ids| ids.pns == id)
            }
            _ => None,
        };
        let calls = self.calls.iter_mut().filter(|call| call.pns == pns);
        let Some((call, ids)) =
            calls.filter_map(|call| taken(call.stage).map(|ids| (call, ids))).last()
        else {
            return;
        };
        call.stage = Stage::Up { ids, incoming: true };
        tell(Outcome { call: *call, ids, news: News::Announced });
    }

    fn clear(&mut self, pns: Direction, id: u16) {
        self.calls.retain_mut(|call| match call.stage {
            _ if call.pns != pns => true,
            Stage::Outgoing { pns } | Stage::Accepted(Ids { pns, .. }) => pns != id,
            Stage::Up { ids, .. } if ids.pns == id => {
                call.stage = Stage::Clearing(ids);
                true
            }
            _ => true,
        });
    }

    fn disconnect(&mut self, pns: Direction, pac: u16, tell: &mut dyn FnMut(Outcome)) {
        self.calls.retain(|&call| {
            let is_it = call.pns == pns && call.stage.pac() == Some(pac);
            if is_it && let Some(ids) = call.stage.announced() {
                tell(Outcome { call, ids, news: News::Ended });
            }
            !is_it
        });
    }

    fn position(&self, pns: Direction, is_it: impl Fn(Stage) -> bool) -> Option<usize> {
        self.calls.iter().position(|call| call.pns == pns && is_it(call.stage))
    }

    /// Adds a call. If there are too many, it forgets the oldest call that is not up, or else
    /// the oldest.
    fn remember(&mut self, call: Call) {
        if self.calls.len() >= CALLS {
            let idle = self.calls.iter().position(|call| !matches!(call.stage, Stage::Up { .. }));
            self.calls.remove(idle.unwrap_or(0));
        }
        self.calls.push(call);
    }
}

impl Session {
    fn after(self, from: Direction, message: Message) -> Self {
        let opener = from == Direction::Original;
        match (self, message) {
            (Self::None, Message::StartRequest) if opener => Self::Requested,
            (Self::Requested | Self::Confirmed, Message::StartReply { done }) if !opener => {
                if done { Self::Confirmed } else { Self::Failed }
            }
            (_, Message::StopRequest) => Self::Stopping,
            (Self::None | Self::Failed | Self::Stopping, Message::StopReply { done }) => {
                if done {
                    Self::None
                } else {
                    Self::Failed
                }
            }
            (session, _) => session,
        }
    }
}

#[cfg(test)]
#[path = "pptp_tests.rs"]
mod tests;
