//! The protocol trackers: the state of a connection, and the effect of a packet on it.

pub mod dccp;
mod gre;
mod icmp;
mod record;
pub mod sctp;
pub mod tcp;
mod timeout_policy;
mod timeouts;
mod tracking_cause;
mod udp;
mod udplite;

use flow::Timestamp;
use wire::{Network, TcpInfo, Transport, protocol};

use self::dccp::{Dccp, DccpState};
use self::sctp::{Sctp, SctpState};
use self::tcp::{Effect, Relearning, Relearnt, Segment, TcpSettings, TcpState, TcpTracker};
use crate::Direction;
use crate::tunnels::Part;

pub(crate) use self::record::RecordedState;
pub use self::timeout_policy::TimeoutPolicy;
pub use self::timeouts::Timeouts;
pub use self::tracking_cause::TrackingCause;

/// The state of a connection by protocol.
#[derive(Debug)]
pub(crate) enum State {
    Tcp(TcpTracker),
    Udp(udp::Udp),
    UdpLite,
    Sctp(Sctp),
    Dccp(Dccp),
    Icmp,
    Gre,
    /// A part of a tunnel, of any protocol for which [`flow::FlowKey::is_tunnel`] is true.
    /// Until its first packet is confirmed, such a connection is a `Gre` or `Generic` one.
    Tunnel(Part),
    /// GRE that another connection has announced: a call of PPTP.
    Call,
    /// Every other protocol, tracked by addresses alone.
    Generic,
}

/// A packet as input of its tracker.
pub(crate) struct Input<'a> {
    pub now: Timestamp,
    pub network: &'a Network,
    pub frame: &'a [u8],
    pub timeouts: &'a Timeouts,
    pub tcp: &'a TcpSettings,
    /// Pick up DCCP connections whose opening was not seen.
    pub dccp_loose: bool,
    /// Timeouts of this connection alone.
    pub policy: Option<&'a TimeoutPolicy>,
}

impl Input<'_> {
    /// Timeouts of UDP in seconds: after packets of one end, and after packets of both for a
    /// while.
    fn udp_timeouts(&self) -> (u32, u32) {
        match self.policy {
            Some(&TimeoutPolicy::Udp { unreplied, replied }) => (unreplied, replied),
            _ => (self.timeouts.udp, self.timeouts.udp_stream),
        }
    }
}

/// The connection before the packet.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    pub direction: Direction,
    pub seen_reply: bool,
    pub assured: bool,
}

/// The effect of a packet on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It belongs to the connection.
    Accept {
        /// New lifetime, seconds.
        timeout: u32,
        /// True to set the connection assured.
        assure: bool,
        /// True if the name of the state has changed.
        changed: bool,
    },
    /// It belongs to the connection, but does not extend its lifetime.
    Pass,
    /// It may belong to the connection, whose numbers are learnt anew.
    Hold {
        /// Raise the lifetime to this if less is left, seconds.
        at_least: u32,
    },
    /// It does not belong to the connection.
    Invalid {
        /// The reason.
        why: TrackingCause,
        /// Lower the lifetime to this if more is left, seconds.
        cap: Option<u32>,
    },
    /// It opens a new connection in the place of this one.
    Reopen,
    /// It belongs to the connection, and ends it.
    End,
}

impl Step {
    const fn refresh(timeout: u32) -> Self {
        Self::Accept { timeout, assure: false, changed: false }
    }
}

impl State {
    /// The state after a first packet and the lifetime in seconds, or the reason why the packet
    /// can not open a connection.
    #[inline]
    pub fn open(input: &Input<'_>) -> Result<(Self, u32), TrackingCause> {
        let timeouts = input.timeouts;
        match (&input.network.transport, input.network.protocol) {
            (Transport::Tcp(tcp), _) => {
                let segment = Segment::parse(tcp, input.network, input.frame)?;
                let opened = TcpTracker::open(&segment, input.tcp)?;
                Ok((Self::Tcp(opened.tracker), opened.timeout.0))
            }
            (Transport::Udp { .. }, protocol::UDPLITE) => Ok((Self::UdpLite, timeouts.udp)),
            (Transport::Udp { .. }, _) => Ok(udp::open(input)),
            (Transport::Sctp { .. }, _) => {
                let sctp = Sctp::open(input)?;
                Ok((Self::Sctp(sctp), sctp.timeout(input)))
            }
            (Transport::Dccp { .. }, _) => {
                let dccp = Dccp::open(input)?;
                Ok((Self::Dccp(dccp), dccp.timeout(input)))
            }
            (Transport::IcmpQuery(query), _) => {
                icmp::open(*query)?;
                Ok((Self::Icmp, icmp::timeout(input)))
            }
            (_, protocol::GRE) => Ok((Self::Gre, timeouts.gre)),
            _ => Ok((Self::Generic, timeouts.generic)),
        }
    }

    /// Takes one more packet.
    #[inline]
    pub fn advance(&mut self, input: &Input<'_>, before: Before) -> Step {
        match self {
            Self::Tcp(tcp) => advance_tcp(tcp, input, before),
            Self::Udp(udp) => udp.advance(input, before),
            Self::UdpLite => udplite::advance(input.timeouts, before),
            Self::Sctp(sctp) => sctp.advance(input, before.direction),
            Self::Dccp(dccp) => dccp.advance(input, before),
            Self::Icmp => Step::refresh(icmp::timeout(input)),
            Self::Tunnel(_) if input.network.protocol == protocol::GRE => {
                Self::Gre.advance(input, before)
            }
            Self::Tunnel(_) => Self::Generic.advance(input, before),
            Self::Gre | Self::Call => {
                let timeouts = input.timeouts;
                let of_calls = (timeouts.call, timeouts.call_stream);
                let announced = matches!(self, Self::Call);
                let own = if announced { of_calls } else { (timeouts.gre, timeouts.gre_stream) };
                gre::advance(own, before)
            }
            Self::Generic => Step::refresh(input.timeouts.generic),
        }
    }

    /// The new lifetime in seconds, if the packet only refreshes the connection. The connection
    /// must have seen a reply and have no timeouts of its own. `None`, with nothing changed,
    /// for any other packet: [`State::advance`] must take that.
    #[inline(always)]
    pub fn advance_established(
        &mut self,
        direction: Direction,
        assured: bool,
        input: &Input<'_>,
    ) -> Option<u32> {
        match (self, &input.network.transport) {
            (Self::Tcp(tracker), Transport::Tcp(tcp)) if assured => {
                let segment = Segment::parse(tcp, input.network, input.frame).ok()?;
                Some(tracker.advance_in_window(direction, &segment, input.tcp)?.0)
            }
            (Self::Udp(udp), _) => match udp.is_stream(input.now) {
                true => assured.then_some(input.timeouts.udp_stream),
                false => Some(input.timeouts.udp),
            },
            _ => None,
        }
    }

    /// Takes one more packet of a connection that may have continued at another gateway. The second
    /// value is `None` if the tracker knows the connection again. TCP learns the numbers of both
    /// ends. SCTP and DCCP pick the connection up in its middle, like one that is older than the
    /// gateway, with the first packet that tells enough and may do so. Other trackers do not check
    /// whether packets fit.
    #[cold]
    pub fn catch_up(
        &mut self,
        input: &Input<'_>,
        before: Before,
        heard: Relearning,
    ) -> (Step, Option<Relearning>) {
        if let (Self::Tcp(tracker), Transport::Tcp(tcp)) = (&mut *self, &input.network.transport) {
            let mut rest = Some(heard);
            let step = with_segment(tracker, tcp, input, before, |tracker, segment, settings| {
                let Before { direction, seen_reply, assured } = before;
                let now = input.now;
                let relearnt =
                    tracker.relearn(heard, direction, segment, seen_reply, assured, settings, now);
                let Relearnt { effect, rest: left } = relearnt;
                rest = left;
                effect
            });
            return (step, rest);
        }
        let step = match self.advance(input, before) {
            step @ Step::Invalid { .. } => self.start_over(input, before.direction).unwrap_or(step),
            step => step,
        };
        (step, (!matches!(step, Step::Accept { .. })).then_some(heard))
    }

    fn start_over(&mut self, input: &Input<'_>, direction: Direction) -> Option<Step> {
        let timeout = match self {
            Self::Sctp(sctp) => sctp.start_over(input, direction)?,
            Self::Dccp(dccp) => dccp.start_over(input)?,
            _ => return None,
        };
        Some(Step::Accept { timeout, assure: false, changed: true })
    }

    /// True when the ends have begun to close the connection.
    pub fn is_closing(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.state().is_closing(),
            Self::Sctp(sctp) => sctp.state().is_closing(),
            Self::Dccp(dccp) => dccp.state().is_closing(),
            Self::Udp(_)
            | Self::UdpLite
            | Self::Icmp
            | Self::Gre
            | Self::Tunnel(_)
            | Self::Call
            | Self::Generic => false,
        }
    }

    /// True if the connection has come further than in another state, as far as its protocol tells.
    pub fn is_further_than(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(own), Self::Tcp(other)) => own.state().progress() > other.state().progress(),
            _ => false,
        }
    }

    /// True while the handshake of the protocol is not complete.
    pub fn is_opening(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.state().is_opening(),
            Self::Sctp(sctp) => sctp.state().is_opening(),
            Self::Dccp(dccp) => dccp.state().is_opening(),
            Self::Udp(_)
            | Self::UdpLite
            | Self::Icmp
            | Self::Gre
            | Self::Tunnel(_)
            | Self::Call
            | Self::Generic => false,
        }
    }

    /// The name of the state, for protocols that have several.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Tcp(tcp) => Some(tcp.state().name()),
            Self::Sctp(sctp) => Some(sctp.state().name()),
            Self::Dccp(dccp) => Some(dccp.state().name()),
            Self::Udp(_)
            | Self::UdpLite
            | Self::Icmp
            | Self::Gre
            | Self::Tunnel(_)
            | Self::Call
            | Self::Generic => None,
        }
    }
}

/// The names of the states of a protocol in listings; none for protocols without states.
pub fn state_names(number: u8) -> impl Iterator<Item = &'static str> {
    let of = |protocol, names: &[&'static str]| {
        let names = if number == protocol { names.to_vec() } else { Vec::new() };
        names.into_iter()
    };
    of(protocol::TCP, &TcpState::ALL.map(TcpState::name))
        .chain(of(protocol::SCTP, &SctpState::ALL.map(SctpState::name)))
        .chain(of(protocol::DCCP, &DccpState::ALL.map(DccpState::name)))
}

#[inline]
fn advance_tcp(tracker: &mut TcpTracker, input: &Input<'_>, before: Before) -> Step {
    // The protocol is part of the flow key, so another transport never comes here.
    let Transport::Tcp(tcp) = &input.network.transport else { return Step::Pass };
    let Before { direction, seen_reply, assured } = before;
    with_segment(tracker, tcp, input, before, |tracker, segment, settings| {
        Effect::Step(tracker.advance(direction, segment, seen_reply, assured, settings))
    })
}

/// Gives a packet to a tracker as a segment, with the settings for the connection.
#[inline(always)]
fn with_segment(
    tracker: &mut TcpTracker,
    tcp: &TcpInfo,
    input: &Input<'_>,
    before: Before,
    take: impl FnOnce(&mut TcpTracker, &Segment<'_>, &TcpSettings) -> Effect,
) -> Step {
    let connection = Some((tracker.state(), before.direction));
    let segment = match Segment::parse(tcp, input.network, input.frame) {
        Ok(segment) => segment,
        Err(check) => {
            return Step::Invalid { why: TrackingCause::Tcp { check, connection }, cap: None };
        }
    };
    let own = input.policy.and_then(|policy| policy.of_tcp(input.tcp));
    let settings = own.as_ref().unwrap_or(input.tcp);
    let step = match take(tracker, &segment, settings) {
        Effect::Step(step) => step,
        Effect::Hold { at_least } => return Step::Hold { at_least: at_least.0 },
    };
    match step {
        tcp::Step::Accept(accepted) => Step::Accept {
            timeout: accepted.timeout.0,
            assure: accepted.assured,
            changed: accepted.state_changed,
        },
        tcp::Step::Pass => Step::Pass,
        tcp::Step::Invalid { why: check, cap } => Step::Invalid {
            why: TrackingCause::Tcp { check, connection },
            cap: cap.map(|timeout| timeout.0),
        },
        tcp::Step::Delete => Step::End,
        tcp::Step::Reopen => Step::Reopen,
    }
}

#[cfg(test)]
#[path = "proto_tests.rs"]
mod tests;
