//! H.323: telephony in which each connection announces the next.
//!
//! RAS (UDP, H.225.0 section 7.7) names the address at which an endpoint accepts calls. Call
//! signalling (TCP, Q.931 with H.225.0 sections 7.2 and 7.3) names the address of the H.245
//! connection, or carries messages of H.245. H.245 (TCP) names the addresses of RTP, RTCP and
//! T.120. All messages are in ASN.1 (H.225.0 Annex H, H.245 Annex A), packed (X.691, [`per`]).
//! The helper reads each one by its types, and only along the path to the addresses: it does
//! not search for bytes that look like an address. A message that can not be read up to its
//! last address announces nothing; a message inside another (`fastStart`, `h245Control`) counts
//! by itself.
//!
//! | message | announces, from the other end of the connection |
//! | --- | --- |
//! | Setup, CallProceeding, Alerting, Connect, Progress, Facility | `h245Address`: H.245; `fastStart`, `h245Control`: as H.245 |
//! | OpenLogicalChannel and its Ack (H.245 sections 7.3.1, 7.3.2) | `mediaChannel`, `mediaControlChannel`: RTP at the even port and RTCP at the odd one above; `separateStack`: T.120, any number |
//! | RegistrationRequest | the first of `callSignalAddress` that is the sender's: calls, any number, for the time in RegistrationConfirm |
//! | AdmissionConfirm, LocationConfirm | `destCallSignalAddress`, `callSignalAddress`: calls, any number |
//! | GatekeeperConfirm | `rasAddress`: RAS, unless its own connection was announced by another GatekeeperConfirm |
//! | UnregistrationRequest | nothing, and withdraws earlier announcements |
//!
//! An end may announce only the address that its packet comes from; otherwise anybody could
//! open the way to anybody else. Only a gatekeeper's confirmations name other hosts. They open
//! the way for their receiver alone, and only if the operator trusts gatekeepers
//! (`stateway_expect_third_parties`).
//!
//! Not followed: the address that a Facility forwards a call to; Progress with H.235 tokens
//! or encryption (they have no length in front); `parallelH245Control`; channels for T.84 or
//! with parameters of H.222, H.223 or V.76; multicast.
//!
//! The kernel's helper announces the same if it reads a message to its end. It fails at unknown
//! additions that are absent, and at a `timeToLive` near the end of a message. Its
//! RegistrationConfirm does not find the expectation that it should prolong unless calls from
//! anybody are expected.

mod elements;
mod h245;
mod per;
mod q931;
mod ras;

use std::net::IpAddr;

use wire::protocol;

use self::elements::Target;
use self::h245::Channel;
use self::per::Per;
use self::ras::RasMessage;
use super::record::HelperStore;
use super::stream::{Framing, Streams};
use super::{Announced, Class, Facts, HelperPacket, Inspect, Inspected, Kind, Request, TCP, UDP};
use flow::codec::{DecodeError, Reader, Write};

/// Room for RTP and RTCP, for both channels of four sessions, and for calls, H.245 and T.120.
pub(super) const Q931: Facts = Facts {
    name: "Q.931",
    protocols: TCP,
    port: 1720,
    classes: &[Class { name: "channel", maximum: 4 * 4 + 4, timeout_s: 240 }],
};

pub(super) const H245: Facts = Facts {
    name: "H.245",
    protocols: TCP,
    port: 0,
    classes: &[Class { name: "channel", maximum: 4 * 4 + 2, timeout_s: 240 }],
};

pub(super) const RAS: Facts = Facts {
    name: "RAS",
    protocols: UDP,
    port: 1719,
    classes: &[Class { name: "call", maximum: 32, timeout_s: 240 }],
};

/// Call signalling.
#[derive(Debug, Default)]
pub(super) struct CallSignalling(Streams);

/// H.245 on a connection of its own, on which either end may speak first.
#[derive(Debug, Default)]
pub(super) struct MediaControl(Streams);

/// The state of a conversation between gatekeeper and endpoint.
#[derive(Debug, Default)]
pub(super) struct Ras {
    /// The port at which the sender of a direction accepts calls, and the registration time
    /// that it asked for, seconds.
    registered: [Option<(u16, Option<u32>)>; 2],
}

/// First octet and length of the header of a message on TCP (RFC 1006 section 6, RFC 2126).
const TPKT_VERSION: u8 = 3;
const TPKT_HEADER: usize = 4;

/// Time of a registration if no message names one, seconds.
const REGISTRATION_S: u32 = 300;
/// Longest time of a registration, seconds.
const LONGEST_REGISTRATION_S: u32 = 86_400;

fn framing(bytes: &[u8]) -> Framing {
    match *bytes {
        [TPKT_VERSION, _, high, low, ..] => match usize::from(u16::from_be_bytes([high, low])) {
            length @ TPKT_HEADER.. => Framing::Length(length),
            _ => Framing::Garbage,
        },
        [TPKT_VERSION, ..] | [] => Framing::Unknown,
        _ => Framing::Garbage,
    }
}

/// The packet that a message comes in.
#[derive(Clone, Copy)]
struct Origin<'a> {
    packet: &'a HelperPacket<'a>,
    /// Offset of the message in the packet; `None` if it began in an earlier one.
    start: Option<usize>,
}

impl CallSignalling {
    pub fn read(from: &mut Reader<'_>, store: &HelperStore<'_>) -> Result<Self, DecodeError> {
        Streams::read_record(from, store).map(Self)
    }
}

impl MediaControl {
    pub fn read(from: &mut Reader<'_>, store: &HelperStore<'_>) -> Result<Self, DecodeError> {
        Streams::read_record(from, store).map(Self)
    }
}

impl Ras {
    pub fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut registered = || from.option(|from| Ok((from.u16()?, from.option(Reader::u32)?)));
        Ok(Self { registered: [registered()?, registered()?] })
    }
}

impl Inspect for CallSignalling {
    fn keeps_beginning(&self) -> bool {
        self.0.keeps_beginning()
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        self.0.feed_in_turn(packet, framing, |message, at| {
            let origin = Origin::of(packet, at);
            let Ok(said) = q931::read(&message[TPKT_HEADER..]) else { return };
            if let Some(target) = said.h245.filter(|target| origin.owns(target)) {
                let helper = Some(Kind::H245);
                let expected = origin.leads_to(target, protocol::TCP);
                ask(Request::Expect(Announced { helper, ..expected }));
            }
            origin.announce(said.channels, ask);
        })
    }
}

impl Inspect for MediaControl {
    fn keeps_beginning(&self) -> bool {
        self.0.keeps_beginning()
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        self.0.feed(packet, framing, |message, at| {
            let mut channels = Vec::new();
            let mut per = Per::new(&message[TPKT_HEADER..], 0);
            if h245::control_message(&mut per, &mut channels).is_ok() {
                Origin::of(packet, at).announce(channels, ask);
            }
        })
    }
}

impl<'a> Origin<'a> {
    /// The origin of a message with its header, which begins at `at` in the packet.
    fn of(packet: &'a HelperPacket<'a>, at: Option<usize>) -> Self {
        Self { packet, start: at.map(|at| at + TPKT_HEADER) }
    }

    /// True if the target is the sender's own address.
    fn owns(&self, target: &Target) -> bool {
        target.address == self.packet.source && target.port != 0
    }

    /// True if the receiver of the message could connect to the target.
    fn may_lead_to(&self, target: &Target) -> bool {
        target.address.is_ipv4() == self.packet.destination.is_ipv4() && target.port != 0
    }

    /// A connection of the receiver of the message to the target.
    fn leads_to(&self, target: Target, protocol: u8) -> Announced {
        let Target { address, port, place } = target;
        Announced {
            source: Some(self.packet.destination),
            place: self.start.map_or(0..0, |start| start + place.start..start + place.end),
            ..Announced::new(protocol, address, port)
        }
    }

    fn announce(&self, channels: Vec<Channel>, ask: &mut dyn FnMut(Request)) {
        for channel in channels {
            match channel {
                Channel::Media(target) if self.owns(&target) => {
                    let pair_of = Some(target.port);
                    let media = self.leads_to(target, protocol::UDP);
                    let media = Announced { pair_of, ..media };
                    // RFC 3550 section 11: either address may be announced alone.
                    let (rtp, rtcp) = (media.destination_port & !1, media.destination_port | 1);
                    for destination_port in [rtp, rtcp] {
                        ask(Request::Expect(Announced { destination_port, ..media.clone() }));
                    }
                }
                Channel::Data(target) if self.owns(&target) => {
                    let data = self.leads_to(target, protocol::TCP);
                    ask(Request::Expect(Announced { permanent: true, ..data }));
                }
                Channel::Media(_) | Channel::Data(_) => {}
            }
        }
    }

    /// Calls of the receiver to the target, any number.
    fn calls(&self, target: Target) -> Announced {
        let helper = Some(Kind::Q931);
        Announced { helper, permanent: true, ..self.leads_to(target, protocol::TCP) }
    }
}

impl Inspect for Ras {
    fn write(&self, to: &mut Vec<u8>) {
        for registered in self.registered {
            to.option(registered, |to, (port, seconds)| {
                to.u16(port);
                to.option(seconds, |to, seconds| to.u32(seconds));
            });
        }
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let origin = Origin { packet, start: Some(0) };
        if let Ok(said) = ras::read(packet.payload) {
            self.handle_ras(said, origin, ask);
        }
        Inspected::Pass
    }
}

impl Ras {
    fn handle_ras(&mut self, said: RasMessage, origin: Origin<'_>, ask: &mut dyn FnMut(Request)) {
        let packet = origin.packet;
        match said {
            RasMessage::Register { signal, seconds } => {
                let Some(target) = signal.into_iter().find(|it| origin.owns(it)) else { return };
                let port = target.port;
                ask(Request::Expect(origin.calls(target)));
                self.registered[packet.direction.index()] = Some((port, seconds));
            }
            RasMessage::Registered { seconds } => {
                let endpoint = self.registered[packet.direction.reversed().index()];
                let Some((port, asked)) = endpoint else { return };
                let seconds = seconds.or(asked).unwrap_or(REGISTRATION_S);
                let seconds = seconds.min(LONGEST_REGISTRATION_S);
                let target = Target { address: packet.destination, port, place: 0..0 };
                ask(Request::Expect(Announced {
                    source: Some(packet.source),
                    timeout_s: Some(seconds),
                    ..origin.calls(target)
                }));
                ask(Request::Keep { seconds });
            }
            RasMessage::Unregister => {
                self.registered = [None; 2];
                ask(Request::Withdraw { classes: 0..=0, call: None });
            }
            // An end that may answer a call is told its own address.
            RasMessage::Admitted(target) if target.address == packet.destination => {}
            RasMessage::Admitted(target) | RasMessage::Located(target)
                if origin.may_lead_to(&target) =>
            {
                ask(Request::Expect(origin.calls(target)));
            }
            // As a rule this is the address that the endpoint has found already. A connection
            // that another GatekeeperConfirm announced may not announce a third one: that could
            // go on for ever.
            RasMessage::Gatekeeper(target)
                if !packet.is_expected
                    && origin.may_lead_to(&target)
                    && (target.address, target.port) != (packet.source, packet.source_port) =>
            {
                let helper = Some(Kind::Ras);
                let expected = origin.leads_to(target, protocol::UDP);
                ask(Request::Expect(Announced { helper, ..expected }));
            }
            RasMessage::Gatekeeper(_)
            | RasMessage::Admitted(_)
            | RasMessage::Located(_)
            | RasMessage::Other => {}
        }
    }
}

/// Another address and port in the encoding of both recommendations; `None` if the length would
/// change.
pub(super) fn rewrite(old: &[u8], address: IpAddr, port: u16) -> Option<Vec<u8>> {
    let mut new = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    new.extend(port.to_be_bytes());
    (new.len() == old.len()).then_some(new)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
