//! SIP (RFC 3261): calls announce the addresses at which each end wants to receive media (SDP,
//! RFC 8866), and a registration announces that calls may come.
//!
//! The rules are those of the kernel, with these differences:
//! - over TCP a message may be spread over segments;
//! - over TCP the opener of the connection has to begin with a message;
//! - the first line of a request has the right form, and names the same method as `CSeq`: a
//!   datagram of another protocol may contain any text;
//! - a malformed message, and one that names a port below 1024, announces nothing; the kernel
//!   drops it;
//! - while a registration is renewed, the old one stands until the answer. In the kernel it
//!   waits for its confirmation anew. There a registration that is to end has ended at the
//!   request, also if the request leaves the time to the registrar (section 10.2.1.1);
//! - a fax (T.38) has one port, not a pair;
//! - a registrar that asks for credentials (401, 407) ends nothing: the registration that is
//!   being renewed still stands;
//! - an announcement belongs to a call, and a connection may carry many (a trunk): an INVITE or
//!   its failure withdraws the announcements of that call, and the maxima are those of a call.
//!   In the kernel all are one call, so the second takes the media of the first;
//! - the helper forgets the INVITE with a BYE, so a later refusal of the same number withdraws
//!   nothing.
//!
//! A CANCEL withdraws nothing: it may cross the answer, and then the call stands. The final
//! response to the INVITE tells.

mod message;
mod sdp;

use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};

use wire::protocol;

use self::message::{Host, Message, Start, Via, framing};
use self::sdp::MediaKind;
use super::record::HelperStore;
use super::stream::Streams;
use super::{
    Announced, Class, Facts, Form, HelperPacket, Inspect, Inspected, Kind, Mention, Request,
    TCP_AND_UDP,
};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

pub(super) const FACTS: Facts = Facts {
    name: "sip",
    protocols: TCP_AND_UDP,
    port: 5060,
    classes: &[
        Class { name: "signalling", maximum: 1, timeout_s: 180 },
        Class { name: "audio", maximum: 4, timeout_s: 180 },
        Class { name: "video", maximum: 4, timeout_s: 180 },
        Class { name: "image", maximum: 2, timeout_s: 180 },
    ],
};

const SIGNALLING: u8 = 0;
const MEDIA: RangeInclusive<u8> = 1..=3;
/// Lifetime of signalling between messages, seconds. Calls may be silent for long.
const KEEP_S: u32 = 3600;

/// Most calls of a connection whose last INVITE is remembered.
const CALLS: usize = 64;

/// A dialogue between two addresses.
#[derive(Debug, Default)]
pub(super) struct Sip {
    streams: Streams,
    dialogue: Dialogue,
}

#[derive(Debug, Default)]
struct Dialogue {
    /// Calls that wait for an answer, with the number of the INVITE, oldest first. If one is
    /// forgotten because there are too many, and it fails, its announcements stay until they
    /// expire.
    invites: Vec<(u32, u32)>,
    registration: Option<Registration>,
}

/// A registration that waits for its confirmation.
#[derive(Debug)]
struct Registration {
    /// Sender and number of the request.
    from: Direction,
    sequence: u32,
    address: IpAddr,
    port: u16,
    protocol: u8,
}

impl Sip {
    pub fn read(from: &mut Reader<'_>, store: &HelperStore<'_>) -> Result<Self, DecodeError> {
        let count = from.varint()?;
        if count > CALLS as u64 {
            return Err(DecodeError::Impossible("the number of calls"));
        }
        let invites = (0..count).map(|_| Ok((from.u32()?, from.u32()?)));
        let invites = invites.collect::<Result<_, DecodeError>>()?;
        let registration = from.option(|from| {
            Ok(Registration {
                from: from.one_of(&[Direction::Original, Direction::Reply])?,
                sequence: from.u32()?,
                address: from.address()?,
                port: from.u16()?,
                protocol: from.u8()?,
            })
        })?;
        let dialogue = Dialogue { invites, registration };
        Ok(Self { dialogue, streams: Streams::read_record(from, store)? })
    }
}

impl Inspect for Sip {
    fn keeps_beginning(&self) -> bool {
        self.streams.keeps_beginning()
    }

    fn write(&self, to: &mut Vec<u8>) {
        let Dialogue { invites, registration } = &self.dialogue;
        to.varint(invites.len() as u64);
        for &(call, number) in invites {
            to.u32(call);
            to.u32(number);
        }
        to.option(registration.as_ref(), |to, it| {
            to.u8(it.from as u8);
            to.u32(it.sequence);
            to.address(it.address);
            to.u16(it.port);
            to.u8(it.protocol);
        });
        self.streams.write(to);
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let Self { streams, dialogue } = self;
        // Any packet counts, because it may have no other purpose than to keep the connection
        // (RFC 5626 section 3.5).
        ask(Request::Keep { seconds: KEEP_S });
        let mut read = |bytes: &[u8], at| {
            if let Some(message) = Message::parse(bytes) {
                dialogue.hear(&SipPacket { message, packet, at }, ask);
            }
        };
        if packet.sequence.is_some() {
            return streams.feed_in_turn(packet, framing, read);
        }
        read(packet.payload, Some(0));
        Inspected::Pass
    }
}

/// A message and its packet.
struct SipPacket<'a> {
    message: Message<'a>,
    packet: &'a HelperPacket<'a>,
    /// Offset of the message in the packet; `None` if it began in an earlier one.
    at: Option<usize>,
}

impl Dialogue {
    fn hear(&mut self, heard: &SipPacket<'_>, ask: &mut dyn FnMut(Request)) {
        let message = &heard.message;
        let call = message.call();
        let gone = Request::Withdraw { classes: MEDIA, call: Some(call) };
        match (message.method, message.start) {
            (b"INVITE", Start::Request) => {
                ask(gone);
                heard.announce_media(ask);
                self.forget(call);
                if self.invites.len() >= CALLS {
                    self.invites.remove(0);
                }
                self.invites.push((call, message.sequence));
            }
            (b"ACK" | b"PRACK" | b"UPDATE", Start::Request)
            | (b"INVITE" | b"PRACK" | b"UPDATE", Start::Response(100..=299)) => {
                heard.announce_media(ask);
            }
            (b"INVITE" | b"PRACK" | b"UPDATE", Start::Response(_))
                if self.invites.contains(&(call, message.sequence)) =>
            {
                ask(gone);
            }
            (b"BYE", Start::Request) => {
                self.forget(call);
                ask(gone);
            }
            (b"REGISTER", Start::Request) => self.register(heard, ask),
            (b"REGISTER", Start::Response(200..)) => self.registered(heard, ask),
            _ => {}
        }
        if heard.packet.is_translated && heard.at.is_some() {
            heard.mention_hosts(ask);
        }
    }

    fn forget(&mut self, call: u32) {
        self.invites.retain(|&(known, _)| known != call);
    }

    /// RFC 3261 section 10.2. A sender can register only itself. The expectation waits for the
    /// confirmation, but behind a translation the registrar has to learn a port that is
    /// reserved until then.
    fn register(&mut self, heard: &SipPacket<'_>, ask: &mut dyn FnMut(Request)) {
        let SipPacket { message, packet, .. } = heard;
        let contact = message.contacts().find(|contact| contact.host.address == packet.source);
        self.registration = contact.map(|contact| Registration {
            from: packet.direction,
            sequence: message.sequence,
            address: contact.host.address,
            port: contact.host.port,
            protocol: contact.protocol.unwrap_or(heard.protocol()),
        });
        let (Some(contact), Some(registration)) = (contact, &self.registration) else { return };
        if contact.expires.or(message.expires()) == Some(0) {
            return;
        }
        ask(Request::Expect(Announced {
            class: SIGNALLING,
            source: packet.settings.sip_direct_signalling.then_some(packet.destination),
            helper: Some(Kind::Sip),
            permanent: true,
            waits: true,
            place: heard.place(contact.host.text),
            ..Announced::new(registration.protocol, registration.address, registration.port)
        }));
    }

    /// RFC 3261 section 10.3: the confirmation lists all contacts with their lifetimes.
    fn registered(&mut self, heard: &SipPacket<'_>, ask: &mut dyn FnMut(Request)) {
        let SipPacket { message, packet, .. } = heard;
        if matches!(message.start, Start::Response(401 | 407)) {
            return;
        }
        let request = (packet.direction.reversed(), message.sequence);
        let is_it = |waits: &mut Registration| (waits.from, waits.sequence) == request;
        let Some(registration) = self.registration.take_if(is_it) else { return };
        let Registration { address, port, protocol, .. } = registration;
        let confirmed = message.contacts().find(|contact| {
            packet.earlier.meant((contact.host.address, contact.host.port)) == (address, port)
                && protocol == contact.protocol.unwrap_or(heard.protocol())
        });
        let expires = confirmed.and_then(|contact| contact.expires.or(message.expires()));
        ask(match expires {
            Some(seconds @ 1..) if matches!(message.start, Start::Response(200..=299)) => {
                Request::Confirm { class: SIGNALLING, seconds }
            }
            _ => Request::Withdraw { classes: SIGNALLING..=SIGNALLING, call: None },
        });
    }
}

impl SipPacket<'_> {
    fn protocol(&self) -> u8 {
        if self.packet.sequence.is_some() { protocol::TCP } else { protocol::UDP }
    }

    /// Sound and pictures have a pair of ports: the even one for RTP, the odd one for RTCP
    /// (RFC 3550 section 11).
    fn announce_media(&self, ask: &mut dyn FnMut(Request)) {
        let Self { message, packet, .. } = self;
        let direct = packet.settings.sip_direct_media;
        for media in sdp::media(message.body) {
            let pair = [media.port & !1, media.port | 1];
            let (class, ports) = match media.kind {
                MediaKind::Audio => (1, &pair[..]),
                MediaKind::Video => (2, &pair[..]),
                MediaKind::Fax => (3, &[media.port][..]),
            };
            for &port in ports {
                ask(Request::Expect(Announced {
                    class,
                    call: message.call(),
                    source: direct.then_some(packet.destination),
                    place: self.in_body(media.place.clone()),
                    pair_of: (ports.len() > 1).then_some(media.port),
                    ..Announced::new(protocol::UDP, media.address, port)
                }));
            }
        }
    }

    /// The place of a part of the message in the packet; empty if it is not there.
    fn place(&self, part: &[u8]) -> Range<usize> {
        let place = self.message.place(part);
        self.at.map_or(0..0, |at| at + place.start..at + place.end)
    }

    /// The end that sent the request.
    fn asker(&self) -> (IpAddr, u16) {
        let packet = self.packet;
        match self.message.start {
            Start::Request => (packet.source, packet.source_port),
            Start::Response(_) => (packet.destination, packet.destination_port),
        }
    }

    fn in_body(&self, place: Range<usize>) -> Range<usize> {
        let body = self.place(self.message.body).start;
        self.at.map_or(0..0, |_| body + place.start..body + place.end)
    }

    /// Mentions all places that a translation may have to change: the receiver must know both
    /// ends by their translated addresses. If only the sender is translated, servers would
    /// accept less (RFC 3581), but not all of them; and a translated receiver could not be
    /// reached otherwise.
    fn mention_hosts(&self, ask: &mut dyn FnMut(Request)) {
        let message = &self.message;
        let mut mention = |text: &[u8], address, port, form| {
            let place = self.place(text);
            ask(Request::Mention(Mention { place, address, port, form }));
        };
        for host in message.hosts() {
            mention(host.text, host.address, Some(host.port), Form::Both);
        }
        // The parameters that a receiver has added concern the last hop only.
        let is_last_hop = |via: &Via<'_>| (via.sent_by.address, via.sent_by.port) == self.asker();
        if let Some(via) = message.via().filter(is_last_hop) {
            let Host { address, port, text } = via.sent_by;
            mention(text, address, Some(port), Form::Both);
            if let Some(Host { address, text, .. }) = via.maddr {
                mention(text, address, None, Form::Host);
            }
            if let Some(Host { address, text, .. }) = via.received {
                mention(text, address, None, Form::Address);
            }
            if let Some((port, text)) = via.rport {
                mention(text, self.packet.destination, Some(port), Form::Port);
            }
        }
        for (address, place) in sdp::addresses(message.body) {
            let place = self.in_body(place);
            ask(Request::Mention(Mention { place, address, port: None, form: Form::Address }));
        }
        if let Some(digits) = message.length() {
            let (place, of) = (self.place(digits), self.place(message.body));
            ask(Request::Measure { place, of });
        }
    }
}

/// Another address and port in the form of a URI, or a port alone if the old text is one.
pub(super) fn rewrite(old: &[u8], address: IpAddr, port: u16) -> Vec<u8> {
    let form = if old.iter().all(u8::is_ascii_digit) { Form::Port } else { Form::Both };
    form.write(address, port)
}

#[cfg(test)]
#[path = "sip_tests.rs"]
mod tests;
