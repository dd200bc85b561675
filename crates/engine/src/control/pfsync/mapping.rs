//! Connections as states of pf, and states as connections.
//!
//! pf has a state for each way of a forwarded connection through one of its interfaces: one *in*,
//! which translates destinations, and one *out*, which translates sources. Between both, the packets
//! of the originator have one form, the [`Middle`]. So two states with one middle are one connection,
//! and a connection has two states.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use conntrack::proto::tcp::{SenderOutline, TcpOutline, TcpState};
use conntrack::{Counts, Direction, Outline, OutlineState};
use flow::{Endpoint, FlowKey, KeyedPacket, Zone};
use sync::pfsync::{
    Addresses, Dialect, FlowState, Index, InterfaceName, Key, Numbers, Peers, Policy, Scrub, State,
    StateFlags, StateId, StateParts, TcpPeer, TcpState as PfTcpState, Timeout, Tuple, WindowScale,
};
use sync::pfsync::{Counts as PfCounts, Direction as PfDirection};
use wire::{Family, IcmpQuery, QueryKind, Quoted, QuotedTransport, protocol};

/// The flag of normalisation that shifts timestamps.
const SHIFTS_TIMESTAMPS: u16 = 0x0001;

/// Why a state does not become a connection, or a connection no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unmapped {
    /// It translates from one address family to another.
    Families,
    /// Its protocol has states that pfsync does not tell: SCTP, DCCP, GRE and tunnels.
    Protocol,
    /// It is an ICMP query that pf does not tell from others.
    Query,
    /// It is in a routing domain other than 0.
    RoutingDomain,
    /// It changes sequence numbers.
    SequenceShift,
    /// It changes timestamps.
    TimestampShift,
    /// It is still with a SYN proxy.
    SynProxy,
    /// Its ends are in states that no connection has at the same time.
    Ends,
    /// No packets can have its addresses and ports.
    Impossible,
}

impl Unmapped {
    /// The name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Families => "families",
            Self::Protocol => "protocol",
            Self::Query => "query",
            Self::RoutingDomain => "routing_domain",
            Self::SequenceShift => "sequence_shift",
            Self::TimestampShift => "timestamp_shift",
            Self::SynProxy => "syn_proxy",
            Self::Ends => "ends",
            Self::Impossible => "impossible",
        }
    }
}

/// The packets of a connection's originator, behind the translation of destinations and in front of
/// that of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Middle(Tuple);

impl Middle {
    /// That of a state.
    pub fn of_state(state: &State) -> Self {
        Self(plain(match state.parts().direction {
            PfDirection::In => state.leaves_as(),
            PfDirection::Out => state.original(),
        }))
    }

    /// That of a connection.
    pub fn of_outline(Outline { original, leaves_as, .. }: &Outline) -> Self {
        let (first, last) = (tuple_of(original), tuple_of(leaves_as));
        Self(plain(Tuple { destination: last.destination, ..first }))
    }
}

/// The place of a state among those of a connection.
pub const fn place_of(direction: PfDirection) -> usize {
    match direction {
        PfDirection::In => 0,
        PfDirection::Out => 1,
    }
}

const DIRECTIONS: [PfDirection; 2] = [PfDirection::In, PfDirection::Out];

/// The numbers in the place of ports, as all dialects mean them: an ICMP query has its identifier at
/// the end that asks. The other end has the same, or the type of the query, or a zero.
fn plain(tuple: Tuple) -> Tuple {
    let Tuple { mut source, mut destination, protocol } = tuple;
    match protocol {
        protocol::TCP | protocol::UDP | protocol::UDPLITE => {}
        protocol::ICMP | protocol::ICMPV6 => {
            let is_type = query_of(protocol, destination.1).is_some();
            if source.1 == 0 && !is_type {
                source.1 = destination.1;
            }
            destination.1 = 0;
        }
        _ => (source.1, destination.1) = (0, 0),
    }
    Tuple { source, destination, protocol }
}

/// The kind of query that a number in the place of the answering end's port names.
const fn query_of(protocol: u8, number: u16) -> Option<QueryKind> {
    match (protocol, number) {
        (protocol::ICMP, 8) => Some(QueryKind::Echo),
        (protocol::ICMP, 13) => Some(QueryKind::Timestamp),
        (protocol::ICMP, 15) => Some(QueryKind::Information),
        (protocol::ICMP, 17) => Some(QueryKind::AddressMask),
        (protocol::ICMPV6, 128) => Some(QueryKind::EchoV6),
        _ => None,
    }
}

/// The type of a query's message.
const fn type_of(kind: QueryKind) -> Option<u16> {
    match kind {
        QueryKind::Echo => Some(8),
        QueryKind::Timestamp => Some(13),
        QueryKind::Information => Some(15),
        QueryKind::AddressMask => Some(17),
        QueryKind::EchoV6 => Some(128),
        QueryKind::NodeInformation => None,
    }
}

/// The packets that the sender of a keyed packet sends.
fn tuple_of(KeyedPacket { key, sender }: &KeyedPacket) -> Tuple {
    let end = |side| {
        let Endpoint { address, port } = key.end(side);
        let address = match key.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(u128::from_be_bytes(address) as u32)),
            Family::V6 => IpAddr::from(address),
        };
        (address, port)
    };
    let (source, destination) = (end(*sender), end(sender.opposite()));
    Tuple { source, destination, protocol: key.protocol }
}

/// The key of such packets.
fn keyed(tuple: &Tuple) -> Result<KeyedPacket, Unmapped> {
    let kind = query_of(tuple.protocol, tuple.destination.1);
    let Tuple { source, destination, protocol } = plain(*tuple);
    let family = match (source.0, destination.0) {
        (IpAddr::V4(_), IpAddr::V4(_)) => Family::V4,
        (IpAddr::V6(_), IpAddr::V6(_)) => Family::V6,
        _ => return Err(Unmapped::Families),
    };
    let [from, to] =
        [source, destination].map(|(ip, port)| Endpoint { address: wire::mapped(ip), port });
    let asks = |kind: QueryKind| Quoted {
        source: from.address,
        destination: to.address,
        offset: 0,
        transport_offset: 0,
        protocol,
        transport: QuotedTransport::Query(IcmpQuery {
            kind,
            reply: false,
            icmp_type: type_of(kind).unwrap_or_default() as u8,
            code: 0,
            id: from.port,
        }),
    };
    match (protocol, family) {
        (protocol::ICMP, Family::V4) => {
            Ok(FlowKey::of_quoted(&asks(kind.unwrap_or(QueryKind::Echo)), family, Zone(0)))
        }
        (protocol::ICMPV6, Family::V6) => {
            Ok(FlowKey::of_quoted(&asks(QueryKind::EchoV6), family, Zone(0)))
        }
        (protocol::ICMP | protocol::ICMPV6, _) => Err(Unmapped::Impossible),
        (protocol::SCTP | protocol::DCCP | protocol::GRE | protocol::IPIP | protocol::IPV6, _) => {
            Err(Unmapped::Protocol)
        }
        _ => Ok(FlowKey::of_ports(family, protocol, Zone(0), from, to)),
    }
}

/// The connection of one or two states with one [`Middle`], first the one in. `latest` is the one of
/// which a peer has told last.
///
/// # Errors
/// [`Unmapped`].
pub fn outline_of(states: [Option<&State>; 2], latest: &State) -> Result<Outline, Unmapped> {
    let [incoming, outgoing] = states;
    let first = incoming.or(outgoing).unwrap_or(latest).original();
    let last = outgoing.or(incoming).unwrap_or(latest).leaves_as();
    for state in states.into_iter().flatten() {
        check(state)?;
    }
    let StateParts { peers, flags, age, left, counts, .. } = latest.parts();
    let state = match peers {
        Peers::Tcp(peers) => {
            let (tracker, seen_reply) = tracker_of(peers, flags.has(StateFlags::SLOPPY))?;
            OutlineState::Tcp { tracker, seen_reply }
        }
        Peers::Flow([first, second]) => OutlineState::Flow {
            seen_reply: *second != FlowState::Silent,
            is_stream: [first, second].into_iter().all(|it| *it == FlowState::Multiple),
        },
        Peers::Sctp(_) => return Err(Unmapped::Protocol),
    };
    let counts = counts.map(|PfCounts { packets, bytes }| Counts { packets, bytes });
    let seconds = |it: u32| Duration::from_secs(it.into());
    // A state whose time is over just now is still there: only its owner ends it.
    let (left, age) = (seconds((*left).max(1)), seconds(*age));
    Ok(Outline { original: keyed(&first)?, leaves_as: keyed(&last)?, state, left, age, counts })
}

/// Refuses what this gateway can not do for the packets of a state.
fn check(state: &State) -> Result<(), Unmapped> {
    let StateParts { wire, stack, peers, .. } = state.parts();
    let is_v4 = |key: &Key| matches!(key.addresses, Addresses::V4(_));
    if is_v4(wire) != is_v4(stack) {
        return Err(Unmapped::Families);
    }
    if (wire.routing_domain, stack.routing_domain) != (0, 0) {
        return Err(Unmapped::RoutingDomain);
    }
    let Peers::Tcp(peers) = peers else { return Ok(()) };
    for TcpPeer { numbers: Numbers { sequence_shift, scrub, .. }, .. } in peers {
        if *sequence_shift != 0 {
            return Err(Unmapped::SequenceShift);
        }
        let shifts = |Scrub { flags, timestamp_shift, .. }: &Scrub| {
            flags & SHIFTS_TIMESTAMPS != 0 && *timestamp_shift != 0
        };
        if scrub.as_ref().is_some_and(shifts) {
            return Err(Unmapped::TimestampShift);
        }
    }
    Ok(())
}

/// The tracker of both ends, and whether a reply was seen.
fn tracker_of(peers: &[TcpPeer; 2], is_sloppy: bool) -> Result<(TcpOutline, bool), Unmapped> {
    use PfTcpState::{Closed, Established, FinWait2, Listen, SynReceived, SynSent, TimeWait};
    let states = peers.map(|it| it.state);
    let has_closed = |it: PfTcpState| {
        use PfTcpState::{Closing, FinWait1, LastAck};
        matches!(it, FinWait1 | Closing | LastAck | FinWait2 | TimeWait)
    };
    let is_silent = |it: PfTcpState| matches!(it, Closed | Listen);
    if states.iter().any(|it| matches!(it, PfTcpState::ProxySource | PfTcpState::ProxyDestination))
    {
        return Err(Unmapped::SynProxy);
    }
    let mut closed_first = None;
    let state = match (states, states.map(has_closed)) {
        ([TimeWait, _] | [_, TimeWait], _) => TcpState::Close,
        ([FinWait2, FinWait2], _) => TcpState::TimeWait,
        ([first, _], [true, true]) => {
            // The one whose FIN is acknowledged was the first.
            let is_first = first == FinWait2 || states[1] != FinWait2;
            closed_first = Some(if is_first { Direction::Original } else { Direction::Reply });
            TcpState::LastAck
        }
        ([one, other], closed @ ([true, false] | [false, true])) => {
            let sender = if closed[0] { Direction::Original } else { Direction::Reply };
            closed_first = Some(sender);
            let closing = if closed[0] { one } else { other };
            if closing == FinWait2 { TcpState::CloseWait } else { TcpState::FinWait }
        }
        ([first, _], _) if is_silent(first) => return Err(Unmapped::Ends),
        ([SynSent, second], _) if is_silent(second) => TcpState::SynSent,
        ([SynSent | SynReceived, SynSent | SynReceived], _) => TcpState::SynSent2,
        ([_, SynSent | SynReceived] | [SynSent | SynReceived, Established], _) => TcpState::SynRecv,
        // Also an end that was picked up in its middle and not answered yet.
        _ => TcpState::Established,
    };
    let sender = |TcpPeer { state, numbers }: TcpPeer| {
        let Numbers { sequence, sequence_max, window_max, window_scale, .. } = numbers;
        let is_heard = !(is_silent(state) && sequence == 0);
        is_heard.then(|| SenderOutline {
            end: sequence,
            max_end: sequence_max,
            max_window: window_max.max(1),
            scale: window_scale.map(WindowScale::get),
        })
    };
    let senders = peers.map(sender);
    let tracker = TcpOutline { state, closed_first, is_picked_up: is_sloppy, senders };
    Ok((tracker, !is_silent(states[1])))
}

/// Both ends for pf.
fn peers_of(tracker: &TcpOutline, seen_reply: bool) -> Peers {
    use PfTcpState::{Closed, Closing, Established, FinWait2, SynSent, TimeWait};
    let first_is = |direction| tracker.closed_first.unwrap_or(Direction::Original) == direction;
    let closing = |first: PfTcpState, other: PfTcpState| match first_is(Direction::Original) {
        true => [first, other],
        false => [other, first],
    };
    let states = match tracker.state {
        TcpState::SynSent => [SynSent, Closed],
        TcpState::SynSent2 => [SynSent, SynSent],
        TcpState::SynRecv => [Established, SynSent],
        TcpState::Established if seen_reply => [Established, Established],
        TcpState::Established => [Established, Closed],
        TcpState::FinWait => closing(Closing, Established),
        TcpState::CloseWait => closing(FinWait2, Established),
        TcpState::LastAck => closing(FinWait2, Closing),
        TcpState::TimeWait => [FinWait2, FinWait2],
        TcpState::Close => [TimeWait, TimeWait],
    };
    let numbers = |sender: Option<SenderOutline>| match sender {
        Some(SenderOutline { end, max_end, max_window, scale }) => Numbers {
            sequence: end,
            sequence_max: max_end,
            window_max: max_window,
            window_scale: scale.map(WindowScale::new),
            ..Numbers::default()
        },
        // As pf begins.
        None => Numbers { sequence_max: 1, window_max: 1, ..Numbers::default() },
    };
    let peer = |at: usize| TcpPeer { state: states[at], numbers: numbers(tracker.senders[at]) };
    Peers::Tcp([peer(0), peer(1)])
}

/// The timeout that runs.
fn timeout_of(protocol: u8, state: &OutlineState) -> Timeout {
    match (state, protocol) {
        (OutlineState::Tcp { tracker, .. }, _) => match tracker.state {
            TcpState::SynSent => Timeout::TcpFirst,
            TcpState::SynSent2 | TcpState::SynRecv => Timeout::TcpOpening,
            TcpState::Established => Timeout::TcpEstablished,
            TcpState::FinWait | TcpState::CloseWait => Timeout::TcpClosing,
            TcpState::LastAck | TcpState::TimeWait => Timeout::TcpFinWait,
            TcpState::Close => Timeout::TcpClosed,
        },
        (OutlineState::Flow { seen_reply, .. }, protocol::ICMP | protocol::ICMPV6) => {
            if *seen_reply { Timeout::IcmpError } else { Timeout::IcmpFirst }
        }
        (OutlineState::Flow { seen_reply, .. }, protocol::UDP) => {
            if *seen_reply {
                Timeout::UdpMultiple
            } else {
                Timeout::UdpFirst
            }
        }
        (OutlineState::Flow { seen_reply, .. }, _) => {
            if *seen_reply {
                Timeout::OtherMultiple
            } else {
                Timeout::OtherFirst
            }
        }
    }
}

/// The states of a connection with these names, first the one in. A state that `known` has under its
/// name keeps what only pf knows.
///
/// # Errors
/// [`Unmapped`]: pf can not have such a connection.
pub fn states_of<'a>(
    outline: &Outline,
    ids: [Option<StateId>; 2],
    dialect: Dialect,
    known: impl Fn(StateId) -> Option<&'a State>,
) -> Result<[Option<State>; 2], Unmapped> {
    let Outline { original, leaves_as, state, .. } = outline;
    let kind = query_number(&original.key, dialect)?;
    let (first, last) = (tuple_of(original), tuple_of(leaves_as));
    let middle = Tuple { destination: last.destination, ..first };
    let mut states = [None; 2];
    for (at, direction) in DIRECTIONS.into_iter().enumerate() {
        let Some(id) = ids[at] else { continue };
        let (wire, stack) = match direction {
            PfDirection::In => (first, middle),
            PfDirection::Out => (last, middle),
        };
        let key = |tuple| key_of(tuple, direction, kind).ok_or(Unmapped::Families);
        let (wire, stack) = (key(wire)?, key(stack)?);
        let fresh = StateParts {
            id,
            interface: InterfaceName::ANY,
            direction,
            wire,
            stack,
            peers: Peers::Flow([FlowState::Silent; 2]),
            timeout: Timeout::OtherFirst,
            age: 0,
            left: 0,
            counts: [PfCounts::default(); 2],
            flags: StateFlags::default(),
            updates: 0,
            policy: Policy::default(),
        };
        let is_same = |it: &&State| {
            let same = |a: &Key, b: &Key| same_packets(a, b, direction);
            same(&it.parts().wire, &wire) && same(&it.parts().stack, &stack)
        };
        let base = known(id).filter(is_same).map_or(fresh, |it| *it.parts());
        states[at] = State::new(account(base, outline, state));
    }
    Ok(states)
}

/// The same state with the account of a connection.
fn account(base: StateParts, outline: &Outline, state: &OutlineState) -> StateParts {
    let (peers, is_sloppy) = match state {
        OutlineState::Tcp { tracker, seen_reply } => {
            (peers_of(tracker, *seen_reply), tracker.is_picked_up)
        }
        OutlineState::Flow { seen_reply: false, .. } => {
            (Peers::Flow([FlowState::Single, FlowState::Silent]), false)
        }
        OutlineState::Flow { is_stream: false, .. } => {
            (Peers::Flow([FlowState::Multiple, FlowState::Single]), false)
        }
        OutlineState::Flow { .. } => (Peers::Flow([FlowState::Multiple; 2]), false),
    };
    let sloppy = if is_sloppy { StateFlags::SLOPPY } else { StateFlags::default() };
    let seconds = |it: Duration| u32::try_from(it.as_secs()).unwrap_or(u32::MAX);
    StateParts {
        peers: keep_normalisation(peers, &base.peers),
        timeout: timeout_of(base.wire.protocol, state),
        age: seconds(outline.age).max(base.age),
        left: seconds(outline.left + Duration::from_millis(999)),
        counts: outline.counts.map(|Counts { packets, bytes }| PfCounts { packets, bytes }),
        flags: base.flags.with(sloppy),
        ..base
    }
}

/// Takes from `known` the facts that pf has of the ends and this gateway has not: maximum segment sizes,
/// and normalisation.
fn keep_normalisation(mut peers: Peers, known: &Peers) -> Peers {
    if let (Peers::Tcp(ours), Peers::Tcp(known)) = (&mut peers, known) {
        for (own, TcpPeer { numbers, .. }) in ours.iter_mut().zip(known) {
            own.numbers.segment_max = numbers.segment_max;
            own.numbers.scrub = numbers.scrub;
        }
    }
    peers
}

/// The number in the place of a port at the end that answers an ICMP query.
#[derive(Clone, Copy)]
enum Answering {
    /// The identifier, as at the end that asks.
    Identifier,
    /// The type of the query.
    Type(u16),
}

/// That number; `None` for other protocols.
fn query_number(key: &FlowKey, dialect: Dialect) -> Result<Option<Answering>, Unmapped> {
    if !key.is_query() {
        return Ok(None);
    }
    let kind = QueryKind::ALL.into_iter().find(|it| *it as u8 == key.kind >> 1);
    let number = kind.and_then(type_of).ok_or(Unmapped::Query)?;
    let is_echo = matches!(kind, Some(QueryKind::Echo | QueryKind::EchoV6));
    match dialect {
        _ if key.high.port != 0 => Err(Unmapped::Query),
        Dialect::Version1301 | Dialect::Version1400 if is_echo => Ok(Some(Answering::Identifier)),
        Dialect::Version1301 | Dialect::Version1400 => Err(Unmapped::Query),
        Dialect::Version1500 | Dialect::Version6 => Ok(Some(Answering::Type(number))),
    }
}

/// A key with these packets of the initiator.
fn key_of(tuple: Tuple, direction: PfDirection, query: Option<Answering>) -> Option<Key> {
    let Tuple { source, mut destination, protocol } = tuple;
    match query {
        None => {}
        Some(Answering::Identifier) => destination.1 = source.1,
        Some(Answering::Type(number)) => destination.1 = number,
    }
    let [first, second] = match direction {
        PfDirection::In => [source, destination],
        PfDirection::Out => [destination, source],
    };
    let addresses = Addresses::new([first.0, second.0])?;
    Some(Key { addresses, ports: [first.1, second.1], protocol, routing_domain: 0 })
}

/// True if the packets of an initiator are the same, however a query is written.
fn same_packets(one: &Key, other: &Key, direction: PfDirection) -> bool {
    let sender = match direction {
        PfDirection::In => [Index::First, Index::Second],
        PfDirection::Out => [Index::Second, Index::First],
    };
    let tuple = |key: &Key| {
        let [source, destination] =
            sender.map(|at| (key.addresses.get(at), key.ports[at as usize]));
        plain(Tuple { source, destination, protocol: key.protocol })
    };
    tuple(one) == tuple(other)
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
