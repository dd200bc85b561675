//! The state of a protocol in a record: the same for all clocks, and without what buckets share.

use flow::{FlowKey, Timestamp};
use wire::{Family, protocol};

use super::dccp::Dccp;
use super::sctp::Sctp;
use super::tcp::TcpTracker;
use super::udp::Udp;
use super::{State, TimeoutPolicy, Timeouts};
use crate::proto::tcp::{TcpSettings, TcpState, TcpTimeouts};
use flow::codec::{DecodeError, Millis, Reader, Write};

/// The state of a connection, as a record has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordedState {
    Tcp(TcpTracker),
    Udp {
        /// The time until traffic both ways makes it a stream; `None` if it does now.
        stream_in: Option<Millis>,
    },
    UdpLite,
    Sctp(Sctp),
    Dccp(Dccp),
    Icmp,
    Gre,
    Tunnel,
    Call,
    Generic,
}

impl RecordedState {
    pub fn of(state: &State, now: Timestamp) -> Self {
        match state {
            State::Tcp(tracker) => Self::Tcp(*tracker),
            State::Udp(udp) => Self::Udp {
                stream_in: (!udp.is_stream(now)).then(|| Millis::until(udp.stream_from, now)),
            },
            State::UdpLite => Self::UdpLite,
            State::Sctp(sctp) => Self::Sctp(*sctp),
            State::Dccp(dccp) => Self::Dccp(*dccp),
            State::Icmp => Self::Icmp,
            State::Gre => Self::Gre,
            State::Tunnel(_) => Self::Tunnel,
            State::Call => Self::Call,
            State::Generic => Self::Generic,
        }
    }

    /// The state of a flow of which only this is known; `None` for protocols that need more.
    pub fn of_flow(protocol: u8, is_stream: bool) -> Option<Self> {
        let time_until = (!is_stream).then(|| Millis::of(super::udp::STREAM_AFTER));
        match protocol {
            protocol::UDP => Some(Self::Udp { stream_in: time_until }),
            protocol::UDPLITE => Some(Self::UdpLite),
            protocol::ICMP | protocol::ICMPV6 => Some(Self::Icmp),
            protocol::TCP | protocol::SCTP | protocol::DCCP | protocol::GRE => None,
            protocol::IPIP | protocol::IPV6 => None,
            _ => Some(Self::Generic),
        }
    }

    /// The state for an entry. A tunnel becomes what it was before its parts were known.
    pub fn restore(&self, key: &FlowKey, now: Timestamp) -> State {
        match *self {
            Self::Tcp(tracker) => State::Tcp(tracker),
            Self::Udp { stream_in } => {
                let from = stream_in.map_or(Timestamp::ZERO, |left| now.after(left.duration()));
                State::Udp(Udp { stream_from: from })
            }
            Self::UdpLite => State::UdpLite,
            Self::Sctp(sctp) => State::Sctp(sctp),
            Self::Dccp(dccp) => State::Dccp(dccp),
            Self::Icmp => State::Icmp,
            Self::Gre => State::Gre,
            Self::Tunnel if key.protocol == protocol::GRE => State::Gre,
            Self::Call => State::Call,
            Self::Tunnel | Self::Generic => State::Generic,
        }
    }

    /// True if connections with this key can have this state. `is_call`: a helper has announced
    /// them as a call.
    pub fn suits(&self, key: &FlowKey, is_call: bool) -> bool {
        let protocol = key.protocol;
        match self {
            Self::Tcp(_) => protocol == protocol::TCP,
            Self::Udp { .. } => protocol == protocol::UDP,
            Self::UdpLite => protocol == protocol::UDPLITE,
            Self::Sctp(_) => protocol == protocol::SCTP,
            Self::Dccp(_) => protocol == protocol::DCCP,
            Self::Icmp => match key.family {
                Family::V4 => protocol == protocol::ICMP,
                Family::V6 => protocol == protocol::ICMPV6,
            },
            Self::Gre => key.is_call() && !is_call,
            Self::Call => key.is_call() && is_call,
            Self::Tunnel => key.is_tunnel(),
            Self::Generic => {
                let has_own_state = matches!(
                    protocol,
                    protocol::TCP
                        | protocol::UDP
                        | protocol::UDPLITE
                        | protocol::SCTP
                        | protocol::DCCP
                        | protocol::GRE
                );
                !has_own_state && !key.is_tunnel()
            }
        }
    }

    /// The number in a record.
    pub const fn number(&self) -> u8 {
        match self {
            Self::Tcp(_) => 1,
            Self::Udp { .. } => 2,
            Self::UdpLite => 3,
            Self::Sctp(_) => 4,
            Self::Dccp(_) => 5,
            Self::Icmp => 6,
            Self::Gre => 7,
            Self::Tunnel => 8,
            Self::Call => 9,
            Self::Generic => 10,
        }
    }

    pub fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Tcp(tracker) => tracker.write(to),
            Self::Udp { stream_in } => to.varint(stream_in.map_or(0, |left| left.get() + 1)),
            Self::Sctp(sctp) => sctp.write(to),
            Self::Dccp(dccp) => dccp.write(to),
            Self::UdpLite | Self::Icmp | Self::Gre | Self::Tunnel | Self::Call | Self::Generic => {}
        }
    }

    pub fn read(number: u8, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match number {
            1 => Self::Tcp(TcpTracker::read(from)?),
            2 => {
                let left = from.varint()?.checked_sub(1);
                if left.is_some_and(|left| left > super::udp::STREAM_AFTER.as_millis() as u64) {
                    return Err(DecodeError::Impossible("the time until a stream"));
                }
                Self::Udp { stream_in: left.map(Millis::new) }
            }
            3 => Self::UdpLite,
            4 => Self::Sctp(Sctp::read(from)?),
            5 => Self::Dccp(Dccp::read(from)?),
            6 => Self::Icmp,
            7 => Self::Gre,
            8 => Self::Tunnel,
            9 => Self::Call,
            10 => Self::Generic,
            unknown => return Err(DecodeError::Kind(unknown)),
        })
    }
}

impl State {
    /// The longest lifetime that a packet gives a connection in this state, seconds.
    pub fn longest(
        &self,
        timeouts: &Timeouts,
        tcp: &TcpSettings,
        policy: Option<&TimeoutPolicy>,
        family: Family,
    ) -> u32 {
        let generic = timeouts.generic;
        match (self, policy) {
            (Self::Tcp(tracker), Some(policy @ TimeoutPolicy::Tcp(own))) => {
                own.of(tracker.state()).max(policy.first())
            }
            (Self::Tcp(tracker), _) => tcp.timeouts.of(tracker.state()),
            (Self::Udp(_), Some(TimeoutPolicy::Udp { unreplied, replied })) => {
                *unreplied.max(replied)
            }
            (Self::Udp(_) | Self::UdpLite, _) => timeouts.udp.max(timeouts.udp_stream),
            // A packet with a heartbeat of another tag may change the state and leave the timer.
            (Self::Sctp(_), _) => timeouts.sctp.iter().copied().max().unwrap_or_default(),
            (Self::Dccp(dccp), _) => timeouts.dccp[dccp.state() as usize],
            (Self::Icmp, _) if family == Family::V4 => timeouts.icmp,
            (Self::Icmp, _) => timeouts.icmpv6,
            (Self::Gre, _) => timeouts.gre.max(timeouts.gre_stream),
            (Self::Tunnel(_), _) => timeouts.gre.max(timeouts.gre_stream).max(generic),
            (Self::Call, _) => timeouts.call.max(timeouts.call_stream),
            (Self::Generic, _) => generic,
        }
    }
}

impl TimeoutPolicy {
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Tcp(timeouts) => {
                let by_state = TcpState::ALL.map(|state| timeouts.of(state));
                for seconds in by_state {
                    to.varint(seconds.into());
                }
                to.varint(timeouts.retransmitted.into());
                to.varint(timeouts.unacknowledged.into());
            }
            Self::Udp { unreplied, replied } => {
                to.varint((*unreplied).into());
                to.varint((*replied).into());
            }
        }
    }

    /// The timeouts of a connection of this protocol.
    pub(crate) fn read(protocol: u8, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match protocol {
            protocol::TCP => {
                let mut timeouts = TcpTimeouts::default();
                for state in TcpState::ALL {
                    timeouts.set(state, from.varint32()?);
                }
                timeouts.retransmitted = from.varint32()?;
                timeouts.unacknowledged = from.varint32()?;
                Ok(Self::Tcp(timeouts))
            }
            protocol::UDP => {
                Ok(Self::Udp { unreplied: from.varint32()?, replied: from.varint32()? })
            }
            _ => Err(DecodeError::Impossible("timeouts of a protocol that has none")),
        }
    }
}
