//! Rules judge the packets that tunnels carry too, where the operator wants it, and can only refuse
//! them.

use conntrack::syn_proxy::Screening;
use proptest::prelude::*;
use ruleset::{Options, import};
use steer::TunnelSteering;
use wire::build::PacketBuilder;
use wire::protocol;

use super::*;
use crate::Config;
use crate::egress::Mode;
use crate::path::rules::ruleset::Rules;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;
use crate::testing::tunnels::*;
use crate::worker::command::Command;

const SYN: u8 = 2;
const ACK: u8 = 16;
/// Another far end of tunnels.
const OTHER_PEER: [u8; 4] = [203, 0, 113, 9];
const NEAR: [u8; 4] = [10, 0, 0, 1];
const FAR: [u8; 4] = [10, 0, 0, 2];

const KNOWN: &str =
    r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established","related"]}}"#;
const TUNNELS: &str =
    r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":{"set":[4,41,47]}}}"#;
const PORT_80: &str =
    r#"{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":80}}"#;
/// A host that knocks at port 7 may come to any port.
const KNOCK: &str = r#"{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":7}},
    {"set":{"op":"add","elem":{"payload":{"protocol":"ip","field":"saddr"}},"set":"@knocked"}}"#;
const KNOCKED: &str = r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},
    "right":"@knocked"}}"#;

/// Rules that masquerade, and in this order let pass what these say and nothing else.
fn accepting(rules: &[&str]) -> String {
    let mut document = RULES.strip_suffix("]}").unwrap().to_owned()
        + r#",{"table":{"family":"inet","name":"f","handle":9}},
        {"set":{"family":"inet","table":"f","name":"knocked","type":"ipv4_addr","handle":10,
            "size":1024,"flags":["dynamic"]}},
        {"chain":{"family":"inet","table":"f","name":"forward","handle":20,"type":"filter",
            "hook":"forward","prio":0,"policy":"drop"}}"#;
    for (handle, rule) in (21..).zip(rules) {
        document += &format!(
            r#",{{"rule":{{"family":"inet","table":"f","chain":"forward","handle":{handle},
            "expr":[{rule},{{"accept":null}}]}}}}"#
        );
    }
    document + "]}"
}

fn gateway_with_tunnels(
    workers: u16,
    tunnels: TunnelSteering,
    rules: &[&str],
    most: u64,
) -> TestGateway {
    let mut config = Config::new(HashKey(3, 4));
    config.tunnels = tunnels;
    config.settings.set("nf_conntrack_max", most).unwrap();
    gateway_of(workers, &accepting(rules), routing(), OWN.into(), config)
}

const RULES_INSIDE: [&str; 3] = [KNOWN, TUNNELS, PORT_80];

fn tunnel_gateway(workers: u16) -> TestGateway {
    gateway_with_tunnels(workers, TunnelSteering::Judged, &RULES_INSIDE, 1 << 16)
}

/// A segment inside, from the client of a web server or back.
fn segment(back: bool, ports: (u16, u16), flags: u8, numbers: (u32, u32)) -> Vec<u8> {
    let (builder, ports) = match back {
        true => (PacketBuilder::v4(FAR, NEAR), (ports.1, ports.0)),
        false => (PacketBuilder::v4(NEAR, FAR), ports),
    };
    tcp(&builder, ports, flags, numbers)
}

/// The opening of a connection, and its answer.
fn opening(ports: (u16, u16)) -> [Vec<u8>; 2] {
    [segment(false, ports, SYN, (1, 0)), segment(true, ports, SYN | ACK, (1, 2))]
}

fn out(inner: &[u8]) -> Vec<u8> {
    wrap(Kind::Ipip, &from_inside(CLIENT, PEER), inner)
}

fn back(inner: &[u8]) -> Vec<u8> {
    wrap(Kind::Ipip, &from_outside(PEER, OWN), inner)
}

/// Connections inside tunnels.
fn inside(gateway: &TestGateway) -> usize {
    let all = (0..16).map(|bucket| gateway.bucket(BucketId(bucket)).all_connections());
    all.sum::<usize>() - gateway.connections()
}

#[test]
fn rules_judge_what_a_tunnel_carries_where_the_operator_says_so() {
    for kind in [Kind::Ipip, Kind::Gre, Kind::GreWithKey(7)] {
        for mode in [TunnelSteering::Inner, TunnelSteering::Outer, TunnelSteering::Judged] {
            let mut gateway = gateway_with_tunnels(3, mode, &RULES_INSIDE, 1 << 16);
            for flow in 2000..2030 {
                let [allowed, closed] = [80, 22]
                    .map(|port| wrap(kind, &from_inside(CLIENT, PEER), &opening((flow, port))[0]));
                let sent = gateway.offer(0, &allowed).expect("it goes on");
                assert_eq!(sent[34..], allowed[34..], "{kind:?}: the inside is as it was");
                let is_inspected = mode == TunnelSteering::Judged;
                assert_eq!(gateway.offer(0, &closed).is_none(), is_inspected, "{kind:?} {mode:?}");
            }
            match mode {
                TunnelSteering::Judged => {
                    assert_eq!(gateway.reasons(), [DropReason::InsideRefused]);
                    assert_eq!(inside(&gateway), 30, "and nothing stays of what was refused");
                }
                _ => assert_eq!((gateway.reasons(), inside(&gateway)), (vec![], 0)),
            }
        }
    }
}

#[test]
fn a_refused_inner_packet_leaves_no_tunnel() {
    let mut gateway = tunnel_gateway(2);
    assert_eq!(gateway.offer(0, &out(&opening((2000, 22))[0])), None);
    assert_eq!((gateway.connections(), inside(&gateway)), (0, 0));
    // A packet that the rules refuse outside is refused for that.
    let closed = udp(&from_inside(CLIENT, PEER), (2000, 53), b"x");
    assert_eq!(gateway.offer(0, &closed), None);
    assert_eq!(gateway.reasons(), [DropReason::PolicyRefused, DropReason::InsideRefused]);
}

#[test]
fn a_tunnel_packet_that_a_later_stage_refuses_leaves_nothing_inside() {
    let outer = from_inside(CLIENT, PEER).dont_fragment();
    let [syn, _] = opening((2000, 80));
    for (mtu, stays) in [(1500, 1), (40, 0)] {
        let mut gateway = tunnel_gateway(2);
        for handle in &mut gateway.handles {
            handle.tell(Command::SetMtus(vec![Some(1500), Some(mtu)])).unwrap();
        }
        for fragment in outer.fragments(protocol::IPIP, &syn[14..], 24) {
            gateway.arrive(0, &fragment);
        }
        gateway.run_until_idle();
        // The rules accept both packets. Only then the link ahead turns out to be too short.
        let refused = if stays == 0 { vec![DropReason::FragNeeded] } else { vec![] };
        assert_eq!(gateway.reasons(), refused);
        assert_eq!((gateway.connections(), inside(&gateway)), (stays, stays));
    }
}

#[test]
fn an_answer_is_established_in_its_own_tunnel_and_nowhere_else() {
    let mut gateway = tunnel_gateway(3);
    for flow in 2000..2030 {
        let [syn, answer] = opening((flow, 80));
        // Tunnels by themselves are open from both ends.
        assert_eq!(gateway.offer(0, &out(&answer)), None, "an answer to nothing");
        assert!(gateway.offer(0, &out(&syn)).is_some());
        assert!(gateway.offer(1, &back(&answer)).is_some(), "{:?}", gateway.reasons());
        let data = segment(false, (flow, 80), ACK, (2, 2));
        assert!(gateway.offer(0, &out(&data)).is_some());
        // The same from the end of another tunnel, with another key, in another VLAN inside.
        let other = from_inside(CLIENT, OTHER_PEER);
        for kind in [Kind::Ipip, Kind::Gre, Kind::GreWithKey(flow.into())] {
            assert_eq!(gateway.offer(0, &wrap(kind, &other, &answer)), None, "{kind:?}");
        }
    }
    assert_eq!(gateway.reasons(), [DropReason::InsideRefused]);
}

#[test]
fn flows_inside_and_outside_are_never_one() {
    let mut gateway = tunnel_gateway(3);
    let ports = (2000, 80);
    let syn = tcp(&from_inside(CLIENT, PEER), ports, SYN, (1, 0));
    assert!(gateway.offer(0, &syn).is_some());
    // As client and server name it, wrapped between the very same two.
    let answer = tcp(&PacketBuilder::v4(PEER, CLIENT), (80, 2000), SYN | ACK, (1, 2));
    assert_eq!(gateway.offer(0, &out(&answer)), None);
    let data = tcp(&PacketBuilder::v4(CLIENT, PEER), (2000, 23), ACK, (2, 2));
    assert_eq!(gateway.offer(0, &out(&data)), None);
    // A flow that is known inside is not known outside.
    let [syn, _] = opening((3000, 80));
    assert!(gateway.offer(0, &out(&syn)).is_some());
    let answer = tcp(&from_inside(FAR, NEAR), (80, 3000), SYN | ACK, (1, 2));
    assert_eq!(gateway.offer(0, &answer), None);
    assert_eq!(gateway.reasons(), [DropReason::PolicyRefused, DropReason::InsideRefused]);
}

#[test]
fn an_error_inside_is_related_to_the_flow_inside() {
    let mut gateway = tunnel_gateway(3);
    for flow in 2000..2030 {
        let [syn, _] = opening((flow, 80));
        assert!(gateway.offer(0, &out(&syn)).is_some());
        for (quoted, is_known) in [(&syn, true), (&opening((flow, 81))[0], false)] {
            let mut error = Vec::new();
            PacketBuilder::v4([10, 0, 0, 9], NEAR).icmp_error(
                3,
                1,
                [0; 4],
                &quoted[14..],
                &mut error,
            );
            assert_eq!(gateway.offer(1, &back(&error)).is_some(), is_known);
        }
    }
}

/// It does not come to that, and if it does nobody has looked inside.
#[test]
fn a_tunnel_without_a_flow_or_in_no_bucket_of_the_worker_is_refused() {
    use conntrack::{Guess, Tracked};

    use crate::path::packet::Packet;
    use crate::path::scratch::{Progress, Scratch};

    let mut gateway = tunnel_gateway(2);
    let frame = netio::FramePool::new(0, 0).copy_of(&out(&opening((2000, 80))[0])).unwrap();
    let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
    let keyed = flow::FlowKey::of_packet(&network, flow::Zone(0)).unwrap();
    let mut packet = Packet {
        frame,
        network,
        flow: None,
        bucket: BucketId(0),
        origin: crate::path::zones::Origin::default(),
        zones: None,
        mark: 0,
        passed_raw: false,
        untracked: false,
        carries: true,
        pieces: None,
        is_checked: true,
        is_local: false,
        per_packet: false,
        guess: Guess::NONE,
        alias_in: None,
    };
    let (now, own) = (gateway.now, usize::from(gateway.owners[0].0));
    let mut check = |worker: usize, packet: &Packet| {
        let mut scratch = Scratch::new(packet, Progress::Untracked, Screening::Off, 0, now);
        scratch.set_tracked(Tracked::alone(flow::Class::Untracked));
        gateway.workers[worker].path.check_inside(packet, &mut scratch)
    };
    assert_eq!(check(own, &packet), dropped(DropReason::InsideUnreadable));
    packet.flow = Some(crate::path::packet::TrackedFlow { keyed, hash: None });
    assert_eq!(check(1 - own, &packet), dropped(DropReason::InsideUnreadable));
    assert_eq!(check(own, &packet), ControlFlow::Continue(()));
}

#[test]
fn without_rules_nothing_inside_a_tunnel_is_judged() {
    let datagram = PacketBuilder::v4(NEAR, FAR).fragments(protocol::TCP, &[0; 64], 32);
    let [syn, _] = opening((2000, 22));
    let nested = wrap(Kind::Gre, &PacketBuilder::v4(NEAR, FAR), &syn);
    let mut gateway = tunnel_gateway(2);
    for handle in &mut gateway.handles {
        handle.tell(crate::worker::command::Command::Rules(None)).unwrap();
    }
    gateway.run_until_idle();
    for frame in [out(&datagram[0]), out(&nested), out(&syn)] {
        assert!(gateway.offer(0, &frame).is_some(), "{:?}", gateway.reasons());
    }
    assert_eq!(inside(&gateway), 0);
}

#[test]
fn an_inner_packet_without_readable_ports_is_refused() {
    let outer = from_inside(CLIENT, PEER);
    let [syn, _] = opening((2000, 80));
    let datagram = PacketBuilder::v4(NEAR, FAR).fragments(protocol::TCP, &[0; 64], 32);
    let gre = |ethertype: u16, inner: &[u8]| {
        let mut bytes = Vec::new();
        let header = [[0, 0], ethertype.to_be_bytes()].concat();
        outer.raw(protocol::GRE, &[&header, inner].concat(), &mut bytes);
        bytes
    };
    let nested = wrap(Kind::Gre, &PacketBuilder::v4(NEAR, FAR), &syn);
    let unreadable = [
        out(&datagram[0]),
        out(&datagram[1]),
        out(&nested),
        out(&syn[..40]),
        gre(0x880b, b"PPP"),
        gre(0, b""),
        gre(0x6558, &[&[2; 12][..], &[0x88, 0xcc], &[0; 40]].concat()),
    ];
    // Ethernet inside: its packets are judged, and ARP passes.
    let bridged = gre(0x6558, &syn);
    let closed = gre(0x6558, &opening((2000, 22))[0]);
    let arp = gre(0x6558, &[&[2; 12][..], &[8, 6], &[0; 28]].concat());
    for mode in [TunnelSteering::Inner, TunnelSteering::Judged] {
        let is_inspected = mode == TunnelSteering::Judged;
        let mut gateway = gateway_with_tunnels(2, mode, &RULES_INSIDE, 1 << 16);
        for (number, frame) in unreadable.iter().enumerate() {
            assert_eq!(
                gateway.offer(0, frame).is_none(),
                is_inspected,
                "number {number}, {mode:?}"
            );
        }
        let expected: &[DropReason] =
            if is_inspected { &[DropReason::InsideUnreadable] } else { &[] };
        assert_eq!(gateway.reasons(), expected);
        assert_eq!(gateway.offer(0, &closed).is_none(), is_inspected);
        assert!(gateway.offer(0, &bridged).is_some());
        assert!(gateway.offer(0, &arp).is_some());
    }
}

#[test]
fn rules_that_are_exchanged_judge_what_was_there_before() {
    let mut gateway = tunnel_gateway(2);
    let [syn, answer] = opening((2000, 80));
    assert!(gateway.offer(0, &out(&syn)).is_some());
    for (revision, rules, passes) in
        [(2, &[TUNNELS, PORT_80][..], false), (3, &RULES_INSIDE[..], true)]
    {
        let ruleset = import(accepting(rules).as_bytes(), Options::default()).unwrap().ruleset;
        let names = ["lan0".to_owned(), "wan0".to_owned()];
        let rules = Rules::prepare(ruleset, Mode::Routed, 7, &names).unwrap();
        let rules = rules.load(revision, gateway.now);
        for handle in &mut gateway.handles {
            handle.tell(Command::Rules(Some(rules.for_worker()))).unwrap();
        }
        gateway.run_until_idle();
        assert_eq!(gateway.offer(1, &back(&answer)).is_some(), passes, "{:?}", gateway.reasons());
    }
    assert_eq!((gateway.reasons(), inside(&gateway)), (vec![DropReason::InsideRefused], 1));
}

#[test]
fn connections_inside_count_in_the_limit_of_the_gateway_and_give_way() {
    const MOST: u64 = 100;
    let mut gateway = gateway_with_tunnels(1, TunnelSteering::Judged, &RULES_INSIDE, MOST);
    let passed =
        (2000..2300).filter(|&flow| gateway.offer(0, &out(&opening((flow, 80))[0])).is_some());
    assert_eq!(
        passed.count(),
        300,
        "half-open ones give way to one another: {:?}",
        gateway.reasons()
    );
    let all = |gateway: &TestGateway| gateway.connections() + inside(gateway);
    assert!(all(&gateway) <= MOST as usize, "{}", all(&gateway));
    // Those outside find room.
    for flow in 2000..2060 {
        let syn = tcp(&from_inside(CLIENT, SERVER), (flow, 80), SYN, (1, 0));
        assert!(gateway.offer(0, &syn).is_some(), "{:?}", gateway.reasons());
    }
    assert!(gateway.connections() >= 60 && all(&gateway) <= MOST as usize);
    // All of it is given back in time.
    gateway.now = gateway.now.after(std::time::Duration::from_secs(1_000_000));
    for _ in 0..200 {
        gateway.run_until_idle();
        gateway.turn(0);
    }
    assert_eq!(all(&gateway), 0);
    assert!((0..16).all(|bucket| gateway.bucket(BucketId(bucket)).inside.is_none()));
}

/// One packet of a sequence: of which tunnel, or none, and what it carries.
#[derive(Clone, Debug)]
struct Sample {
    port: usize,
    kind: Option<Kind>,
    other: bool,
    what: u8,
    flow: u16,
    to: u16,
    numbers: (u32, u32),
}

impl Sample {
    fn frame(&self) -> Vec<u8> {
        let Self { port, kind, other, what, flow, to, numbers } = *self;
        let peer = if other { OTHER_PEER } else { PEER };
        // A router writes no identification of its own into what is not to be cut.
        let outer = match port {
            0 => from_inside(CLIENT, peer).dont_fragment(),
            _ => from_outside(peer, OWN).dont_fragment(),
        };
        let is_back = port == 1;
        let Some(kind) = kind else {
            return match what {
                0..4 => tcp(&outer, if is_back { (to, flow) } else { (flow, to) }, SYN, numbers),
                _ => udp(&outer, (flow, to), b"outside"),
            };
        };
        let flags = [SYN, SYN | ACK, ACK, 4, 17];
        let payload = match what {
            0..5 => segment(is_back, (flow, to), flags[usize::from(what)], numbers),
            5 => udp(&PacketBuilder::v4(CLIENT, FAR), (flow, to), b"inside"),
            6 => PacketBuilder::v4(NEAR, FAR).fragments(protocol::UDP, &[0; 64], 32).remove(0),
            7 => {
                let mut echo = Vec::new();
                PacketBuilder::v4(NEAR, FAR).echo(is_back, flow, 1, b"x", &mut echo);
                echo
            }
            8 => inner(Kind::SixInFour, flow, is_back),
            _ => wrap(Kind::Ipip, &PacketBuilder::v4(NEAR, FAR), &opening((flow, to))[0]),
        };
        match kind {
            Kind::Ipip if what == 8 => wrap(Kind::SixInFour, &outer, &payload),
            Kind::SixInFour if what != 8 => wrap(Kind::Ipip, &outer, &payload),
            kind => wrap(kind, &outer, &payload),
        }
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    let kinds = prop::option::weighted(0.8, prop::sample::select(KINDS.to_vec()));
    let ports = prop::sample::select(vec![80_u16, 22, 7]);
    let numbers = prop::sample::select(vec![(1, 0), (1, 2), (2, 2)]);
    (0..2usize, kinds, any::<bool>(), 0..10u8, 2000..2004u16, ports, numbers).prop_map(
        |(port, kind, other, what, flow, to, numbers)| Sample {
            port,
            kind,
            other,
            what,
            flow,
            to,
            numbers,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Two gateways get the same packets, and one of them inspects the inside of tunnels. That one
    /// lets out a subset of the packets of the other, byte for byte, and all of its plain packets.
    #[test]
    fn judging_what_tunnels_carry_can_only_refuse(
        samples in prop::collection::vec(sample(), 20..150),
        workers in 1..4u16,
        moves in prop::collection::vec((any::<u16>(), any::<u16>()), 0..8),
    ) {
        let rules = [KNOWN, KNOCK, KNOCKED, TUNNELS, PORT_80];
        let mut without = gateway_with_tunnels(workers, TunnelSteering::Inner, &rules, 1 << 16);
        let mut with = gateway_with_tunnels(workers, TunnelSteering::Judged, &rules, 1 << 16);
        let mut moves = moves.into_iter();
        for (number, sample) in samples.iter().enumerate() {
            if number % 8 == 0
                && let Some((bucket, to)) = moves.next()
            {
                for gateway in [&mut without, &mut with] {
                    gateway.start_move(bucket, to);
                    gateway.run_until_idle();
                }
            }
            let frame = sample.frame();
            let (plain, inspected) = (without.offer(sample.port, &frame), with.offer(sample.port, &frame));
            if inspected.is_some() || sample.kind.is_none() {
                prop_assert_eq!(inspected, plain, "number {}: {:?}", number, sample);
            }
        }
        let mut reasons = with.reasons();
        reasons.retain(|reason| {
            !matches!(reason, DropReason::InsideRefused | DropReason::InsideUnreadable)
        });
        prop_assert!(reasons.iter().all(|reason| without.reasons().contains(reason)), "{:?}", reasons);
    }

    /// Connections inside stay established while buckets move.
    #[test]
    fn flows_inside_go_on_while_buckets_move(
        moves in prop::collection::vec((any::<u16>(), any::<u16>(), 0..6u16), 20..80),
    ) {
        let mut gateway = tunnel_gateway(3);
        for flow in 2000..2006 {
            let [syn, answer] = opening((flow, 80));
            prop_assert!(gateway.offer(0, &out(&syn)).is_some());
            prop_assert!(gateway.offer(1, &back(&answer)).is_some());
        }
        for (bucket, to, flow) in moves {
            gateway.start_move(bucket, to);
            gateway.run_until_idle();
            let data = segment(true, (2000 + flow, 80), ACK, (2, 2));
            prop_assert!(gateway.offer(1, &back(&data)).is_some(), "{:?}", gateway.reasons());
        }
        prop_assert_eq!(inside(&gateway), 6);
    }
}
