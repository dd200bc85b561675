//! The input and output of tracking.

use flow::{Class, ConntrackCounters, DropReason, KeyedPacket, Timestamp, ZonePair};
use wire::{Family, IcmpError, Network, Transport};

use crate::capacity::Shortage;
use crate::connection::{Head, Status};
use crate::expect::Listener;
use crate::nat::AddressChanges;
use crate::syn_proxy::Screening;
use crate::{
    Direction, EventSink, ExpectationSink, Expectations, KnownTunnels, Limits, Replication,
    Settings, TrackingCause,
};

/// State of the check of a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// It has not: verify it if `nf_conntrack_checksum` is set.
    Verify,
    /// The device has verified it, or the sender is on this host and has not filled it in.
    Trust,
    /// The end of the packet is missing, in a capture: nobody can verify it, and no helper reads
    /// the packet.
    Cut,
}

/// The slot in which the connection of a flow most likely is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess(pub(crate) u32);

impl Guess {
    /// No slot: the connection was not found, or nobody has looked.
    pub const NONE: Self = Self(u32::MAX);
}

/// A packet with its flow.
#[derive(Clone, Copy, Debug)]
pub struct TrackedPacket<'a> {
    /// The headers.
    pub network: &'a Network,
    /// The frame that contains the packet; the offsets of `network` count in it.
    pub frame: &'a [u8],
    /// The flow: by [`flow::FlowKey::of_packet`], and for an ICMP error by
    /// [`flow::FlowKey::of_quoted`].
    pub keyed: &'a KeyedPacket,
    /// The hash of the flow's key.
    pub hash: u64,
    /// The slot in which [`Table::prefetch_entry`](crate::Table::prefetch_entry) found the
    /// flow. Another connection may be there by now, so tracking compares the key.
    pub guess: Guess,
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Packets on the wire that this frame stands for (segmentation offload), at least 1. Only
    /// accounting uses it.
    pub segments: u32,
    /// It may open a connection that no helper has announced.
    pub may_open: bool,
    /// The task of the SYN proxy if the packet would open a connection.
    pub screening: Screening,
    /// How often its zone has received packets that were in other zones before, modulo 2^16.
    /// Since then its connection may have continued at another gateway.
    pub map_epoch: u16,
    /// The zones for a connection that the packet opens, if a rule has given it a zone for one
    /// direction only. `keyed` is in the first, or in the second if the packet is a reply there
    /// ([`Table::zone_of`](crate::Table::zone_of)). `None` if both directions are in the zone
    /// of `keyed`.
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

/// The parts of a worker that tracking uses.
pub struct Context<'a> {
    /// The time.
    pub now: Timestamp,
    /// Tunables.
    pub settings: &'a Settings,
    /// The limits on connections.
    pub limits: &'a mut Limits,
    /// Counters of the worker.
    pub counters: &'a mut ConntrackCounters,
    /// The announced connections.
    pub expectations: &'a Expectations,
    /// The tunnels whose packets come to several buckets.
    pub tunnels: &'a KnownTunnels,
    /// The listener for new, changed and ended connections. `None` costs nothing.
    pub events: Option<&'a mut dyn EventSink>,
    /// The listener for expectations.
    pub expectation_events: Option<&'a mut dyn ExpectationSink>,
    /// The collection of changes for a peer.
    pub replication: &'a mut Replication,
    /// Receives connections that have ended and may have aliases, if their end has to be reported.
    pub ended: Option<&'a mut Vec<Ended>>,
}

/// A connection that has ended and may have aliases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Key and direction of its originator's packets, and of the replies, each with the low half of
    /// its hash, as a table needs it.
    pub flows: [(KeyedPacket, u64); 2],
    /// The bucket that it was in, if its packets may be steered to others
    /// ([`Table::set_resteered`](crate::Table::set_resteered)).
    pub resteered_in: Option<u16>,
}

impl Context<'_> {
    /// The expectations, with the listener to their events.
    pub(crate) fn expecting(&mut self) -> (&Expectations, Listener<'_>) {
        (self.expectations, listener(&mut self.expectation_events, self.settings))
    }
}

/// The listener to the events of expectations, if they are reported.
pub(crate) fn listener<'a>(
    events: &'a mut Option<&mut dyn ExpectationSink>,
    settings: &Settings,
) -> Listener<'a> {
    events.as_mut().filter(|_| settings.events).map(|sink| &mut **sink as _)
}

/// The decision of tracking about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It ends here.
    Drop(DropReason),
    /// This limit leaves no room for the connection that it would open. The caller may make room
    /// and track it again. If not, it drops the packet and counts it as refused.
    NoRoom(Shortage),
    /// The SYN proxy decides about it, and nothing has changed.
    Screen,
}

/// The result of tracking a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// The relation of the packet to the known connections.
    pub class: Class,
    /// Its direction, if it belongs or is related to a connection.
    pub direction: Option<Direction>,
    /// The mark of that connection, 0 without one.
    pub mark: u32,
    /// Drops only if a helper waits for the rest, or if the packet may not open a connection.
    /// Invalid packets are for the rules to drop.
    pub verdict: Verdict,
    /// The reason for a packet that is invalid or to be dropped.
    pub why: Option<TrackingCause>,
    /// The connection that it belongs or is related to, unless that has ended with this packet.
    pub connection: Option<ConnectionId>,
    /// True if it has opened the connection. The caller must then call
    /// [`Table::confirm`](crate::Table::confirm) or [`Table::withdraw`](crate::Table::withdraw)
    /// after judging the packet.
    pub fresh: bool,
    /// Facts about the connection.
    pub(crate) status: Status,
    /// The rest of a connection that has no entry in the table.
    pub(crate) detached: Option<Detached>,
}

/// The facts that the stages behind tracking need about a connection without an entry: the packet
/// has ended it, or it is a tunnel of which the bucket has no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Detached {
    /// The changes that its translation makes to the packet.
    pub address_changes: AddressChanges,
    /// Its zones.
    pub zones: ZonePair,
}

/// A connection of a table. It is valid until the table changes in any way other than through
/// this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(pub(crate) u32);

impl Tracked {
    pub(crate) const fn of_connection(class: Class, direction: Direction, head: &Head) -> Self {
        let (mark, status) = (head.mark, head.status);
        Self { direction: Some(direction), mark, status, ..Self::alone(class) }
    }

    /// The result for a packet that belongs to no connection.
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
            detached: None,
        }
    }

    /// The same result, for the connection in a slot.
    #[inline]
    pub(crate) fn at(self, slot: u32, head: &Head) -> Self {
        let fresh = head.status.has(Status::FRESH);
        Self { connection: Some(ConnectionId(slot)), status: head.status, fresh, ..self }
    }

    /// True if a helper reads the packets of the connection.
    #[inline]
    pub const fn has_helper(&self) -> bool {
        self.status.has(Status::HAS_HELPER)
    }

    /// True if a reply to the connection was seen.
    pub const fn has_seen_reply(&self) -> bool {
        self.status.has(Status::SEEN_REPLY)
    }

    /// True if the connection is no candidate for early drop.
    pub const fn is_assured(&self) -> bool {
        self.status.has(Status::ASSURED)
    }

    /// True if the connection had a [translation](crate::Table::translation) when the packet
    /// came.
    #[inline]
    pub const fn is_translated(&self) -> bool {
        self.status.has(Status::TRANSLATED)
    }

    /// The reason if tracking refuses the packet.
    pub const fn refusal(&self) -> Option<TrackingCause> {
        match self.verdict {
            Verdict::Accept | Verdict::Screen => None,
            Verdict::Drop(_) | Verdict::NoRoom(_) => self.why,
        }
    }

    /// True if another connection has announced the connection.
    pub const fn is_expected(&self) -> bool {
        self.status.has(Status::EXPECTED)
    }

    pub(crate) fn refused(why: impl Into<TrackingCause>) -> Self {
        Self::alone(Class::New).dropped(why)
    }

    /// The same result, with the packet dropped.
    pub(crate) fn dropped(self, why: impl Into<TrackingCause>) -> Self {
        let why = why.into();
        Self { verdict: Verdict::Drop(why.reason()), why: Some(why), ..self }
    }

    /// The result for a packet whose connection a limit leaves no room for.
    pub(crate) fn no_room(shortage: Shortage) -> Self {
        let why = Some(shortage.reason().into());
        Self { verdict: Verdict::NoRoom(shortage), why, ..Self::alone(Class::New) }
    }

    /// The result for a packet that the SYN proxy decides about.
    pub(crate) const fn to_screen() -> Self {
        Self { verdict: Verdict::Screen, ..Self::alone(Class::New) }
    }

    /// The result for a packet that can not belong to a connection.
    pub const fn invalid(why: TrackingCause) -> Self {
        Self { why: Some(why), ..Self::alone(Class::Invalid(why.reason())) }
    }
}

/// True for a fragment: it is not tracked.
pub(crate) fn is_fragment(network: &Network) -> bool {
    network.fragment.is_some_and(|fragment| !fragment.is_atomic())
}

/// The class of a packet that names no flow (no key by
/// [`flow::FlowKey::of_packet`], nor by the quote of an ICMP error).
///
/// Fragments are untracked. So are neighbour discovery (RFC 4861), multicast listener discovery
/// (RFC 2710, RFC 3810) and multicast router discovery (RFC 4286), which concern the link and
/// are no flows. All other ICMP messages can not belong to a flow.
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

/// True for the ICMPv6 types of router and neighbour solicitation and advertisement, of
/// multicast listener discovery and of multicast router discovery. Redirects are not among
/// them, because anybody may send them.
const fn is_link_talk(kind: u8) -> bool {
    matches!(kind, 130..=136 | 143 | 151..=153)
}
