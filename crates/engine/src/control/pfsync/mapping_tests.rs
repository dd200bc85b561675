use proptest::prelude::*;
use sync::pfsync::{CreatorId, SctpPeer};

use super::*;

const CLIENT: (&str, u16) = ("198.51.100.10", 40_000);
const SERVER: (&str, u16) = ("192.0.2.10", 443);
const OUTSIDE: (&str, u16) = ("192.0.2.1", 1025);
const PUBLIC: (&str, u16) = ("203.0.113.5", 8443);

fn end((address, port): (&str, u16)) -> (IpAddr, u16) {
    (address.parse().unwrap(), port)
}

fn tuple(source: (&str, u16), destination: (&str, u16), protocol: u8) -> Tuple {
    Tuple { source: end(source), destination: end(destination), protocol }
}

fn id(number: u64) -> Option<StateId> {
    Some(StateId { id: number, creator: CreatorId::new(7).unwrap() })
}

const IDS: [u64; 2] = [20, 21];

fn ids() -> [Option<StateId>; 2] {
    IDS.map(id).map(|it| it)
}

fn established() -> OutlineState {
    let sender =
        |end| SenderOutline { end, max_end: end + 60_000, max_window: 501, scale: Some(7) };
    OutlineState::Tcp {
        tracker: TcpOutline {
            state: TcpState::Established,
            closed_first: None,
            is_picked_up: false,
            senders: [Some(sender(1000)), Some(sender(5000))],
        },
        seen_reply: true,
    }
}

fn outline(original: &Tuple, leaves_as: &Tuple, state: OutlineState) -> Outline {
    Outline {
        original: keyed(original).unwrap(),
        leaves_as: keyed(leaves_as).unwrap(),
        state,
        left: Duration::from_secs(300),
        age: Duration::from_secs(61),
        counts: [Counts { packets: 3, bytes: 144 }, Counts { packets: 300, bytes: 450_000 }],
    }
}

fn states(outline: &Outline, dialect: Dialect) -> [State; 2] {
    states_of(outline, ids(), dialect, |_| None).unwrap().map(Option::unwrap)
}

/// The connection that a peer makes of both states.
fn back([incoming, outgoing]: &[State; 2]) -> Result<Outline, Unmapped> {
    outline_of([Some(incoming), Some(outgoing)], incoming)
}

#[test]
fn a_connection_has_a_state_in_and_a_state_out() {
    let original = tuple(CLIENT, PUBLIC, protocol::TCP);
    let leaves_as = tuple(OUTSIDE, SERVER, protocol::TCP);
    let connection = outline(&original, &leaves_as, established());
    let [incoming, outgoing] = states(&connection, Dialect::Version1400);
    // pf translates destinations where packets come in and sources where they leave.
    let middle = tuple(CLIENT, SERVER, protocol::TCP);
    assert_eq!((incoming.original(), incoming.leaves_as()), (original, middle));
    assert_eq!((outgoing.original(), outgoing.leaves_as()), (middle, leaves_as));
    assert_eq!(incoming.parts().direction, PfDirection::In);
    assert_eq!(outgoing.parts().direction, PfDirection::Out);
    // The initiator has index 0 in a state in, and index 1 in a state out.
    assert_eq!(incoming.parts().wire.ports, [40_000, 8443]);
    assert_eq!(outgoing.parts().wire.ports, [443, 1025]);
    assert_eq!(outgoing.parts().stack.ports, [443, 40_000]);
    for state in [&incoming, &outgoing] {
        assert_eq!(Middle::of_state(state), Middle::of_outline(&connection));
        assert_eq!(state.parts().interface, InterfaceName::ANY);
        assert_eq!((state.parts().left, state.parts().age), (300, 61));
        assert_eq!(state.parts().timeout, Timeout::TcpEstablished);
        assert_eq!(state.parts().counts[1], PfCounts { packets: 300, bytes: 450_000 });
    }
    let Peers::Tcp([first, _]) = &incoming.parts().peers else { panic!("no TCP") };
    assert_eq!(first.state, PfTcpState::Established);
    assert_eq!((first.numbers.sequence, first.numbers.sequence_max), (1000, 61_000));
    assert_eq!(first.numbers.window_max, 501);
    assert_eq!(first.numbers.window_scale, Some(WindowScale::new(7)));
    assert_eq!(back(&[incoming, outgoing]), Ok(connection));
}

#[test]
fn one_state_is_enough_for_a_connection() {
    let original = tuple(CLIENT, SERVER, protocol::TCP);
    let leaves_as = tuple(OUTSIDE, SERVER, protocol::TCP);
    let connection = outline(&original, &leaves_as, established());
    let [incoming, outgoing] = states(&connection, Dialect::Version1400);
    assert_eq!(outline_of([None, Some(&outgoing)], &outgoing), Ok(connection.clone()));
    // The state in does not know of the translation.
    let alone = outline_of([Some(&incoming), None], &incoming).unwrap();
    assert_eq!(alone, Outline { leaves_as: connection.original, ..connection });
}

#[test]
fn what_only_pf_knows_stays_with_its_state() {
    let original = tuple(CLIENT, SERVER, protocol::TCP);
    let connection = outline(&original, &original, established());
    let [incoming, _] = states(&connection, Dialect::Version1400);
    let mut parts = *incoming.parts();
    parts.interface = InterfaceName::new("em0").unwrap();
    parts.policy.rule = 17;
    parts.flags = StateFlags(0x0101);
    let Peers::Tcp(peers) = &mut parts.peers else { panic!("no TCP") };
    peers[0].numbers.segment_max = 1400;
    let theirs = State::new(parts).unwrap();
    let later = Outline { left: Duration::from_secs(9), ..connection };
    let known = |wanted: StateId| (Some(wanted) == id(IDS[0])).then_some(&theirs);
    let [told, fresh] =
        states_of(&later, ids(), Dialect::Version1400, known).unwrap().map(Option::unwrap);
    let told = told.parts();
    assert_eq!(
        (told.interface, told.policy, told.flags),
        (parts.interface, parts.policy, parts.flags)
    );
    assert_eq!((told.peers, told.left), (parts.peers, 9));
    assert_eq!(fresh.parts().policy, Policy::default());
    // A state with other packets under that name is another one.
    let other = tuple(PUBLIC, SERVER, protocol::TCP);
    let [other, _] =
        states_of(&outline(&other, &other, established()), ids(), Dialect::Version1400, known)
            .unwrap();
    assert_eq!(other.unwrap().parts().policy, Policy::default());
}

#[test]
fn an_echo_has_its_identifier_where_each_dialect_has_it() {
    let flow = OutlineState::Flow { seen_reply: true, is_stream: false };
    for (protocol, family, number) in [
        (protocol::ICMP, ["198.51.100.10", "192.0.2.10", "192.0.2.1"], 8),
        (protocol::ICMPV6, ["2001:db8:1::10", "2001:db8:2::10", "2001:db8:2::1"], 128),
    ] {
        let [client, server, outside] = family;
        let original = tuple((client, 77), (server, 0), protocol);
        let leaves_as = tuple((outside, 99), (server, 0), protocol);
        let connection = outline(&original, &leaves_as, flow);
        for dialect in Dialect::ALL {
            let both = states(&connection, dialect);
            let old = matches!(dialect, Dialect::Version1301 | Dialect::Version1400);
            let answering = |identifier| if old { identifier } else { number };
            assert_eq!(both[0].parts().wire.ports, [77, answering(77)], "{dialect:?}");
            assert_eq!(both[1].parts().wire.ports, [answering(99), 99], "{dialect:?}");
            assert_eq!(back(&both), Ok(connection.clone()), "{dialect:?}");
            assert_eq!(Middle::of_state(&both[1]), Middle::of_outline(&connection));
        }
    }
    // The identifier may be the number of a type.
    let eight = tuple(("198.51.100.10", 8), ("192.0.2.10", 0), protocol::ICMP);
    let connection = outline(&eight, &eight, flow);
    for dialect in Dialect::ALL {
        assert_eq!(back(&states(&connection, dialect)), Ok(connection.clone()), "{dialect:?}");
    }
}

/// A state of TCP whose ends are in these states.
fn with_ends(states: [PfTcpState; 2]) -> State {
    let original = tuple(CLIENT, SERVER, protocol::TCP);
    let connection = outline(&original, &original, established());
    let [incoming, _] = self::states(&connection, Dialect::Version1400);
    let mut parts = *incoming.parts();
    let Peers::Tcp(peers) = &mut parts.peers else { panic!("no TCP") };
    for (peer, state) in peers.iter_mut().zip(states) {
        peer.state = state;
    }
    State::new(parts).unwrap()
}

/// The state for each pair of ends of pf, written from pf's state machine by hand.
#[test]
fn ends_of_pf_are_states_of_a_connection() {
    use PfTcpState::{
        CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, Listen, SynReceived,
        SynSent, TimeWait,
    };
    let first = Some(Direction::Original);
    let second = Some(Direction::Reply);
    let cases = [
        ([SynSent, Closed], TcpState::SynSent, None),
        ([SynSent, Listen], TcpState::SynSent, None),
        ([SynSent, SynSent], TcpState::SynSent2, None),
        ([Established, SynSent], TcpState::SynRecv, None),
        ([Established, SynReceived], TcpState::SynRecv, None),
        ([Established, Established], TcpState::Established, None),
        ([Established, CloseWait], TcpState::Established, None),
        ([Closing, Established], TcpState::FinWait, first),
        ([FinWait1, Established], TcpState::FinWait, first),
        ([Established, Closing], TcpState::FinWait, second),
        ([FinWait2, Established], TcpState::CloseWait, first),
        ([Established, FinWait2], TcpState::CloseWait, second),
        ([FinWait2, Closing], TcpState::LastAck, first),
        ([Closing, FinWait2], TcpState::LastAck, second),
        ([Closing, LastAck], TcpState::LastAck, first),
        ([FinWait2, FinWait2], TcpState::TimeWait, None),
        ([TimeWait, TimeWait], TcpState::Close, None),
        ([TimeWait, Established], TcpState::Close, None),
    ];
    for (ends, state, closed_first) in cases {
        let it = with_ends(ends);
        let found = outline_of([Some(&it), None], &it).unwrap();
        let OutlineState::Tcp { tracker, .. } = found.state else { panic!("no TCP") };
        assert_eq!((tracker.state, tracker.closed_first), (state, closed_first), "{ends:?}");
    }
    for ends in [[Closed, SynSent], [Listen, Established], [Closed, Closed]] {
        let it = with_ends(ends);
        assert_eq!(outline_of([Some(&it), None], &it), Err(Unmapped::Ends), "{ends:?}");
    }
    let it = with_ends([PfTcpState::ProxySource, Closed]);
    assert_eq!(outline_of([Some(&it), None], &it), Err(Unmapped::SynProxy));
}

#[test]
fn a_state_that_can_not_be_carried_out_here_is_refused_by_its_reason() {
    let parts = *with_ends([PfTcpState::Established; 2]).parts();
    let refused = |change: &dyn Fn(&mut StateParts)| {
        let mut parts = parts;
        change(&mut parts);
        let state = State::new(parts).expect("it is a state");
        outline_of([Some(&state), None], &state).unwrap_err()
    };
    let numbers = |parts: &mut StateParts, change: &dyn Fn(&mut Numbers)| {
        let Peers::Tcp(peers) = &mut parts.peers else { panic!("no TCP") };
        change(&mut peers[1].numbers);
    };
    assert_eq!(refused(&|it| numbers(it, &|it| it.sequence_shift = 9)), Unmapped::SequenceShift);
    let scrub = Scrub { flags: SHIFTS_TIMESTAMPS, ttl: 0, timestamp_shift: 5 };
    assert_eq!(refused(&|it| numbers(it, &|it| it.scrub = Some(scrub))), Unmapped::TimestampShift);
    assert_eq!(refused(&|it| it.stack.routing_domain = 4), Unmapped::RoutingDomain);
    let v6 = ["2001:db8::1", "2001:db8::2"].map(|it| it.parse().unwrap());
    let v6 = Addresses::new(v6).unwrap();
    assert_eq!(refused(&|it| it.stack.addresses = v6), Unmapped::Families);
    let of_protocol = |protocol, peers| {
        refused(&|it| {
            (it.wire.protocol, it.stack.protocol, it.peers) = (protocol, protocol, peers);
        })
    };
    let sctp = SctpPeer { state: 4, numbers: Numbers::default() };
    assert_eq!(of_protocol(protocol::SCTP, Peers::Sctp([sctp; 2])), Unmapped::Protocol);
    for protocol in [protocol::DCCP, protocol::GRE, protocol::IPIP] {
        let flow = Peers::Flow([FlowState::Multiple; 2]);
        assert_eq!(of_protocol(protocol, flow), Unmapped::Protocol);
    }
}

fn any_end() -> impl Strategy<Value = (u8, u16)> {
    (1_u8.., 1_u16..)
}

fn any_state() -> impl Strategy<Value = PfTcpState> {
    prop::sample::select(PfTcpState::ALL.to_vec())
}

fn any_numbers() -> impl Strategy<Value = Numbers> {
    let scale = prop::option::of((0_u8..=14).prop_map(WindowScale::new));
    (any::<u32>(), any::<u32>(), any::<u16>(), scale).prop_map(
        |(sequence, sequence_max, window_max, window_scale)| Numbers {
            sequence,
            sequence_max,
            window_max,
            window_scale,
            ..Numbers::default()
        },
    )
}

proptest! {
    /// Every connection that a table has comes back as it was, whatever the dialect is.
    #[test]
    fn connections_come_back(
        ends in prop::array::uniform4(any_end()),
        number in prop::sample::select(vec![protocol::TCP, protocol::UDP, protocol::UDPLITE, 50]),
        seen_reply: bool,
        is_stream: bool,
        state in prop::sample::select(TcpState::ALL.to_vec()),
        dialect in prop::sample::select(Dialect::ALL.to_vec()),
    ) {
        let place = |at: usize| {
            let (last, port) = ends[at];
            let has_ports = number != 50;
            (IpAddr::V4(Ipv4Addr::new(198, 51, at as u8, last)), if has_ports { port } else { 0 })
        };
        let pair = |from, to| Tuple { source: place(from), destination: place(to), protocol: number };
        let state = match number {
            protocol::TCP => {
                let OutlineState::Tcp { mut tracker, .. } = established() else { unreachable!() };
                let seen_reply = state != TcpState::SynSent;
                tracker.state = state;
                if !seen_reply {
                    tracker.senders[1] = None;
                }
                let closes = matches!(state, TcpState::FinWait | TcpState::CloseWait | TcpState::LastAck);
                tracker.closed_first = closes.then_some(Direction::Reply);
                OutlineState::Tcp { tracker, seen_reply }
            }
            _ => OutlineState::Flow { seen_reply, is_stream: seen_reply && is_stream },
        };
        let connection = outline(&pair(0, 1), &pair(2, 3), state);
        let both = states(&connection, dialect);
        prop_assert_eq!(back(&both), Ok(connection));
    }

    /// Whatever a peer tells, a record of it is possible or refused, and telling it again gives the
    /// same connection.
    #[test]
    fn states_of_peers_never_make_impossible_records(
        ends in [any_state(), any_state()],
        numbers in [any_numbers(), any_numbers()],
        addresses in prop::array::uniform4(0_u8..3),
        ports in prop::array::uniform4(0_u16..3),
        is_in: bool,
        left: u32,
        age: u32,
        is_sloppy: bool,
    ) {
        let mut parts = *with_ends(ends).parts();
        let Peers::Tcp(peers) = &mut parts.peers else { unreachable!() };
        for (peer, numbers) in peers.iter_mut().zip(numbers) {
            peer.numbers = numbers;
        }
        let address = |at: usize| IpAddr::V4(Ipv4Addr::new(198, 51, 100, addresses[at]));
        parts.wire.addresses = Addresses::new([address(0), address(1)]).unwrap();
        parts.stack.addresses = Addresses::new([address(2), address(3)]).unwrap();
        parts.wire.ports = [ports[0], ports[1]];
        parts.stack.ports = [ports[2], ports[3]];
        parts.direction = if is_in { PfDirection::In } else { PfDirection::Out };
        (parts.left, parts.age) = (left, age);
        parts.flags = if is_sloppy { StateFlags::SLOPPY } else { StateFlags::default() };
        let state = State::new(parts).unwrap();
        if let Ok(found) = outline_of([Some(&state), None], &state)
            && let Ok(record) = conntrack::ConnectionRecord::of_outline(&found)
        {
            let again = record.outline().unwrap();
            prop_assert_eq!(Middle::of_outline(&again), Middle::of_outline(&found));
            let told = states(&again, Dialect::Version1500);
            let OutlineState::Tcp { tracker: known, .. } = again.state else { unreachable!() };
            let OutlineState::Tcp { tracker, .. } = back(&told).unwrap().state else { unreachable!() };
            prop_assert_eq!(tracker.state, known.state);
            prop_assert_eq!(tracker.closed_first, known.closed_first);
        }
    }
}
