//! What goes into tracking and what comes out.

use flow::{Class, ConntrackCounters, DropReason, KeyedPacket, Timestamp, Verdict, ZonePair};
use wire::{Family, IcmpError, Network, Transport};

use crate::entry::{Head, Status};
use crate::expect::Listener;
use crate::syn_proxy::Screening;
use crate::{
    Direction, EventSink, ExpectationSink, Expectations, KnownTunnels, Limits, Settings, Why,
};

/// Whether somebody has verified the transport checksum already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nobody has: verify it if `nf_conntrack_checksum` is set.
    Verify,
    /// The device has, or the sender is on this host and has not filled it in.
    Trust,
}

/// Where the connection of a flow most likely lies in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess(pub(crate) u32);

impl Guess {
    /// Nowhere, or nobody has looked.
    pub const NONE: Self = Self(u32::MAX);
}

/// A packet with its flow.
#[derive(Clone, Copy, Debug)]
pub struct TrackedPacket<'a> {
    /// The headers.
    pub network: &'a Network,
    /// The frame that the offsets of `network` count in.
    pub frame: &'a [u8],
    /// The flow: by [`flow::FlowKey::of_packet`], and for an ICMP error by
    /// [`flow::FlowKey::of_quoted`].
    pub keyed: &'a KeyedPacket,
    /// The hash of the flow's key.
    pub hash: u64,
    /// Where [`Table::prefetch_entry`](crate::Table::prefetch_entry) has found the flow. It
    /// may be wrong by now: who it is that lies there is looked at.
    pub guess: Guess,
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Packets on the wire that this frame stands for (segmentation offload), at
    /// least 1. Only accounting looks at it.
    pub segments: u32,
    /// It may open a connection that nobody expects.
    pub may_open: bool,
    /// What the SYN proxy has to do with it if it would open a connection.
    pub screening: Screening,
    /// How often its zone has got packets that were in other zones before, modulo 2^16. A
    /// connection may have gone on elsewhere meanwhile.
    pub map_epoch: u16,
    /// Where a rule has given it a zone for one direction only: those of a connection that it
    /// opens. `keyed` is in the first, or in the second if it is a reply there
    /// ([`Table::zone_of`](crate::Table::zone_of)). `None` where all is in one.
    pub zones: Option<ZonePair>,
}

impl TrackedPacket<'_> {
    /// Packets on the wire, and their bytes from the network header on: each segment of a
    /// super-packet has headers of its own.
    pub(crate) fn on_the_wire(&self) -> (u64, u64) {
        const UDP_HEADER: u32 = 8;
        let Network { offset, transport_offset, end, transport, .. } = *self.network;
        let transport_header = match transport {
            Transport::Tcp(tcp) => tcp.header_len.into(),
            _ => UDP_HEADER,
        };
        let headers = u32::from(transport_offset.saturating_sub(offset)) + transport_header;
        let repeated = u64::from(self.segments.saturating_sub(1));
        let whole = u64::from(end.saturating_sub(offset.into()));
        (repeated + 1, whole + repeated * u64::from(headers))
    }
}

/// What tracking needs from its worker.
pub struct Context<'a> {
    /// The time.
    pub now: Timestamp,
    /// Tunables.
    pub settings: &'a Settings,
    /// How many connections there may be.
    pub limits: &'a mut Limits,
    /// Counters of the worker.
    pub counters: &'a mut ConntrackCounters,
    /// Connections that others have announced.
    pub expectations: &'a Expectations,
    /// Tunnels whose packets come to many buckets.
    pub tunnels: &'a KnownTunnels,
    /// Who wants to know of new, changed and ended connections. `None` costs nothing.
    pub events: Option<&'a mut dyn EventSink>,
    /// Who wants to know of what is expected.
    pub expectation_events: Option<&'a mut dyn ExpectationSink>,
    /// Where translated connections that have ended are noted, if somebody has to be told.
    pub ended: Option<&'a mut Vec<Ended>>,
}

/// A translated connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What packets of its originator had.
    pub original: KeyedPacket,
    /// What replies had.
    pub reply: KeyedPacket,
    /// The hash of the replies' key, as far as the table needs it.
    pub reply_hash: u32,
}

impl Context<'_> {
    /// The expectations, with who listens to their events.
    pub(crate) fn expecting(&mut self) -> (&Expectations, Listener<'_>) {
        (self.expectations, listener(&mut self.expectation_events, self.settings))
    }
}

/// Who listens to the events of expectations, if they are reported.
pub(crate) fn listener<'a>(
    events: &'a mut Option<&mut dyn ExpectationSink>,
    settings: &Settings,
) -> Listener<'a> {
    events.as_mut().filter(|_| settings.events).map(|sink| &mut **sink as _)
}

/// What tracking says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// The relation of the packet to the known connections.
    pub class: Class,
    /// Its direction, where it belongs or is related to a connection.
    pub direction: Option<Direction>,
    /// The mark of that connection, 0 where there is none.
    pub mark: u32,
    /// Drop only when a limit leaves no room, a helper waits for the rest, or the packet may
    /// not open a connection: what is invalid is for the rules to drop. Where there is no
    /// room the caller counts the packet as refused, unless it makes room and asks again.
    pub verdict: Verdict,
    /// What decided, for a packet that is invalid or to be dropped.
    pub why: Option<Why>,
    /// The connection that it belongs or is related to, unless that has ended with it.
    pub connection: Option<ConnectionId>,
    /// It has opened the connection: whoever judges it says what becomes of that, with
    /// [`Table::confirm`](crate::Table::confirm) or [`Table::withdraw`](crate::Table::withdraw).
    pub fresh: bool,
    /// Facts about the connection.
    pub(crate) status: Status,
}

/// A connection of a table. It stands for nothing any more when the table has changed
/// otherwise than by what is done to this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(pub(crate) u32);

impl Tracked {
    pub(crate) const fn of_connection(class: Class, direction: Direction, head: &Head) -> Self {
        let (mark, status) = (head.mark, head.status);
        Self { direction: Some(direction), mark, status, ..Self::alone(class) }
    }

    /// Of a packet that belongs to no connection.
    pub const fn alone(class: Class) -> Self {
        Self {
            class,
            direction: None,
            mark: 0,
            verdict: Verdict::Accept,
            why: None,
            connection: None,
            fresh: false,
            status: Status::NONE,
        }
    }

    /// The same packet, of the connection in a slot.
    #[inline]
    pub(crate) fn at(self, slot: u32, head: &Head) -> Self {
        let fresh = head.status.has(Status::FRESH);
        Self { connection: Some(ConnectionId(slot)), status: head.status, fresh, ..self }
    }

    /// A helper reads the packets of the connection.
    #[inline]
    pub const fn is_watched(&self) -> bool {
        self.status.has(Status::WATCHED)
    }

    /// A reply to the connection was seen.
    pub const fn has_seen_reply(&self) -> bool {
        self.status.has(Status::SEEN_REPLY)
    }

    /// The connection is no candidate for early drop.
    pub const fn is_assured(&self) -> bool {
        self.status.has(Status::ASSURED)
    }

    /// The connection has a [translation](crate::Table::translation), as far as it had one
    /// when the packet came.
    #[inline]
    pub const fn is_translated(&self) -> bool {
        self.status.has(Status::TRANSLATED)
    }

    /// Ends here for this reason, of those of tracking.
    pub const fn refusal(&self) -> Option<Why> {
        match self.verdict {
            Verdict::Accept => None,
            Verdict::Drop(_) => self.why,
        }
    }

    /// Another connection has announced the connection.
    pub const fn is_expected(&self) -> bool {
        self.status.has(Status::EXPECTED)
    }

    pub(crate) fn refused(why: impl Into<Why>) -> Self {
        Self::alone(Class::New).dropped(why)
    }

    /// The same packet, but it ends here.
    pub(crate) fn dropped(self, why: impl Into<Why>) -> Self {
        let why = why.into();
        Self { verdict: Verdict::Drop(why.reason()), why: Some(why), ..self }
    }

    /// Of a packet that can not belong to a connection.
    pub const fn invalid(why: Why) -> Self {
        Self { why: Some(why), ..Self::alone(Class::Invalid(why.reason())) }
    }
}

/// True for a packet of which only a part is here: it is not tracked.
pub(crate) fn is_fragment(network: &Network) -> bool {
    network.fragment.is_some_and(|fragment| !fragment.is_atomic())
}

/// The class of a packet that names no flow (no key by
/// [`flow::FlowKey::of_packet`], nor by the quote of an ICMP error).
///
/// Fragments are untracked, as are neighbour discovery (RFC 4861), multicast
/// listener discovery (RFC 2710, RFC 3810) and multicast router discovery (RFC 4286),
/// which are talk on the link and not flows. All other ICMP messages can not belong to a flow.
pub fn class_without_flow(network: &Network) -> Class {
    if is_fragment(network) {
        return Class::Untracked;
    }
    match network.transport {
        Transport::IcmpError(IcmpError { quoted: None, .. }) => {
            Class::Invalid(DropReason::IcmpErrorQuote)
        }
        Transport::IcmpOther { kind, .. } if network.family == Family::V6 && is_link_talk(kind) => {
            Class::Untracked
        }
        Transport::IcmpOther { .. } => Class::Invalid(DropReason::IcmpNotQuery),
        _ => Class::Untracked,
    }
}

/// ICMPv6 types of router and neighbour solicitation and advertisement, of multicast
/// listener discovery and of multicast router discovery. Redirects are not among them:
/// they may come from anybody.
const fn is_link_talk(kind: u8) -> bool {
    matches!(kind, 130..=136 | 143 | 151..=153)
}
