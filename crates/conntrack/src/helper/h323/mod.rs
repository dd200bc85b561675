//! H.323: telephony whose ends agree on each further connection inside the ones before.
//!
//! RAS (UDP, H.225.0 section 7.7) says where an endpoint is called; call signalling (TCP,
//! Q.931 with H.225.0 sections 7.2 and 7.3) says where the H.245 connection goes to, or
//! carries what H.245 says; H.245 (TCP) says where RTP, RTCP and T.120 go to. All messages
//! are in ASN.1 (H.225.0 Annex H, H.245 Annex A), packed (X.691, [`per`]). Each is read along
//! the path to the addresses only, by its types: there is no search for what looks like an
//! address. A message that can not be read up to its last address announces nothing; those
//! inside others (`fastStart`, `h245Control`) stand for themselves.
//!
//! | message | announces, from the other end of the connection |
//! | --- | --- |
//! | Setup, CallProceeding, Alerting, Connect, Progress, Facility | `h245Address`: H.245; `fastStart`, `h245Control`: as H.245 |
//! | OpenLogicalChannel and its Ack (H.245 sections 7.3.1, 7.3.2) | `mediaChannel`, `mediaControlChannel`: RTP at the even port and RTCP at the odd one above; `separateStack`: T.120, any number |
//! | RegistrationRequest | the first of `callSignalAddress` that is the sender's: calls, any number, for as long as RegistrationConfirm says |
//! | AdmissionConfirm, LocationConfirm | `destCallSignalAddress`, `callSignalAddress`: calls, any number |
//! | GatekeeperConfirm | `rasAddress`: RAS, unless it comes from where another one has led to |
//! | UnregistrationRequest | nothing, and withdraws what is still expected |
//!
//! What an end says of itself counts for the address that its packet comes from, or anybody
//! could open the way to anybody else. Only a gatekeeper's confirmations name others. They
//! open the way for their receiver alone, and only if the operator trusts gatekeepers
//! (`stateway_expect_third_parties`).
//!
//! Not followed: the address that a Facility forwards a call to; Progress with H.235 tokens
//! or encryption (they have no length in front); `parallelH245Control`; channels for T.84 or
//! with parameters of H.222, H.223 or V.76; multicast.
//!
//! The kernel's helper announces the same where it reads a message to its end. It does not
//! get through additions that it does not know and that are absent, nor through a
//! `timeToLive` near the end of a message, and its RegistrationConfirm does not find what it
//! should prolong unless calls from anybody are expected.

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
use self::ras::Said;
use super::stream::{Framing, Streams};
use super::{Announced, Class, Facts, Inspect, Inspected, Kind, Request, TCP, UDP, Watched};

/// RTP and RTCP, for both channels of four sessions; calls, H.245 and T.120 beside them.
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

/// H.245 on a connection of its own, where either end may be the first who speaks.
#[derive(Debug, Default)]
pub(super) struct MediaControl(Streams);

/// What is remembered of a gatekeeper and an endpoint.
#[derive(Debug, Default)]
pub(super) struct Ras {
    /// At which port the sender of a direction is called, and for how many seconds it asked to be.
    registered: [Option<(u16, Option<u32>)>; 2],
}

/// First octet and length of the header of a message on TCP (RFC 1006 section 6, RFC 2126).
const TPKT_VERSION: u8 = 3;
const TPKT_HEADER: usize = 4;

/// How long an endpoint is registered if nobody says it, seconds.
const REGISTRATION_S: u32 = 300;
/// Nobody is registered for longer without asking again, seconds.
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

/// Where a message comes from.
#[derive(Clone, Copy)]
struct Origin<'a> {
    packet: &'a Watched<'a>,
    /// Where in the packet the message starts, unless that was in an earlier one.
    start: Option<usize>,
}

impl Inspect for CallSignalling {
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
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
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
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
    /// Of a message with its header, which begins there in the packet.
    fn of(packet: &'a Watched<'a>, at: Option<usize>) -> Self {
        Self { packet, start: at.map(|at| at + TPKT_HEADER) }
    }

    /// True if the sender speaks of itself.
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
                    // RFC 3550 section 11. Either address may be announced alone.
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
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let origin = Origin { packet, start: Some(0) };
        if let Ok(said) = ras::read(packet.payload) {
            self.heard(said, origin, ask);
        }
        Inspected::Pass
    }
}

impl Ras {
    fn heard(&mut self, said: Said, origin: Origin<'_>, ask: &mut dyn FnMut(Request)) {
        let packet = origin.packet;
        match said {
            Said::Register { signal, seconds } => {
                let Some(target) = signal.into_iter().find(|it| origin.owns(it)) else { return };
                let port = target.port;
                ask(Request::Expect(origin.calls(target)));
                self.registered[packet.direction.index()] = Some((port, seconds));
            }
            Said::Registered { seconds } => {
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
            Said::Unregister => {
                self.registered = [None; 2];
                ask(Request::Withdraw { classes: 0..=0, call: None });
            }
            // Who may answer a call is told its own address.
            Said::Admitted(target) if target.address == packet.destination => {}
            Said::Admitted(target) | Said::Located(target) if origin.may_lead_to(&target) => {
                ask(Request::Expect(origin.calls(target)));
            }
            // As a rule the address that has been found already. Where one has led to, nobody
            // asks for another: that could go on for ever.
            Said::Gatekeeper(target)
                if !packet.is_expected
                    && origin.may_lead_to(&target)
                    && (target.address, target.port) != (packet.source, packet.source_port) =>
            {
                let helper = Some(Kind::Ras);
                let expected = origin.leads_to(target, protocol::UDP);
                ask(Request::Expect(Announced { helper, ..expected }));
            }
            Said::Gatekeeper(_) | Said::Admitted(_) | Said::Located(_) | Said::Other => {}
        }
    }
}

/// Another address and port as both recommendations have them, if they are as long.
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
