//! Two gateways see the same packets and changes. In one of them no recorded decision ever holds,
//! so each of its packets takes all stages. Otherwise nobody can tell the two apart.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use flow::HashKey;
use netio::Frame;
use proptest::prelude::*;
use steer::BucketCount;
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, dissect};

use crate::Config;
use crate::egress::Mode;
use crate::path::stages::observer;
use crate::path::step::{End, Stage};
use crate::path::zones::Zones;
use crate::testing::many_workers::TestGateway;
use crate::testing::twins::{Twin, same, zones};
use crate::worker::command::Command;

#[path = "fast_path_changes_tests.rs"]
mod changes;
#[path = "fast_path_networks_tests.rs"]
mod networks;
#[path = "fast_path_rulesets_tests.rs"]
mod rulesets;

use self::changes::{Change, change};
use self::networks::{NETWORKS, ip};
use self::rulesets::{RULESETS, WITH_ZONES, WITH_ZONES_OF_ONE_WAY, rulesets};

const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const INSIDE: [u8; 6] = [2, 0, 0, 0, 0, 3];
const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 0, 4];
const OWN: [u8; 4] = [198, 51, 100, 254];
const SERVER: [u8; 4] = [203, 0, 113, 7];

/// The unusual property of a packet.
#[derive(Clone, Copy, Debug)]
enum Oddity {
    None,
    LastHop,
    Options,
    WrongChecksum,
    OtherPort,
    TypeOfService,
    MayBeCut,
    Tagged,
}

#[derive(Clone, Debug)]
enum Event {
    /// A packet of a flow, from the side that opens it, or from the other if `reply`.
    Packet {
        flow: usize,
        reply: bool,
        flags: u8,
        length: usize,
        jump: u32,
        oddity: Oddity,
    },
    /// The remaining packets of a handshake, so that a flow is established.
    Establish(usize),
    Network(usize),
    Rules(usize),
    Mtu(Option<u32>),
    Move(u16, u16),
    Wait(u64),
    /// Packets of flows that come in one batch, without data: flow, direction and flags.
    Batch(Vec<(usize, bool, u8)>),
    /// All connections are deleted.
    Flush,
    /// A change. Before it, rules may be loaded to which it matters, so that all flows have
    /// decisions that it has to take away.
    Change(Change, bool),
    /// From now on this worker does not hear of changes, as if it took no turn.
    Late(usize),
    /// It hears of all of them.
    CatchUp,
}

fn event() -> impl Strategy<Value = Event> {
    let oddity = prop_oneof![
        12 => Just(Oddity::None),
        1 => Just(Oddity::LastHop),
        1 => Just(Oddity::Options),
        1 => Just(Oddity::WrongChecksum),
        1 => Just(Oddity::OtherPort),
        1 => Just(Oddity::TypeOfService),
        2 => Just(Oddity::MayBeCut),
        1 => Just(Oddity::Tagged),
    ];
    let flags = prop_oneof![12 => Just(0x10u8), 4 => Just(0x18), 1 => Just(0x11), 1 => Just(0x04),
        1 => Just(0x02), 1 => Just(0x12)];
    let length = prop_oneof![4 => 0usize..100, 1 => 500usize..1400];
    let jump = prop_oneof![12 => Just(0u32), 1 => Just(1 << 24)];
    let batched = prop_oneof![Just(0x10u8), Just(0x04), Just(0x02), Just(0x14)];
    let batch = prop::collection::vec((0..FLOWS.len(), any::<bool>(), batched), 2..6);
    let packet = (0..FLOWS.len(), any::<bool>(), flags, length, jump, oddity);
    prop_oneof![
        40 => packet.prop_map(|(flow, reply, flags, length, jump, oddity)| {
            Event::Packet { flow, reply, flags, length, jump, oddity }
        }),
        8 => (0..FLOWS.len()).prop_map(Event::Establish),
        3 => (0..NETWORKS.len()).prop_map(Event::Network),
        2 => (0..RULESETS).prop_map(Event::Rules),
        1 => prop_oneof![Just(None), Just(Some(400)), Just(Some(1500))].prop_map(Event::Mtu),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(bucket, to)| Event::Move(bucket, to)),
        1 => (0u64..100).prop_map(Event::Wait),
        3 => batch.prop_map(Event::Batch),
        1 => Just(Event::Flush),
        10 => (change(), any::<bool>()).prop_map(|(change, prepared)| Event::Change(change, prepared)),
        2 => (0usize..2).prop_map(Event::Late),
        1 => Just(Event::CatchUp),
    ]
}

/// A flow: the side that opens it, its protocol and its ends.
#[derive(Clone, Copy)]
struct Flow {
    inside: bool,
    tcp: bool,
    client: (IpAddr, u16),
    server: (IpAddr, u16),
}

const fn v4([a, b, c, d]: [u8; 4]) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(network: u16, host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host))
}

const fn out(tcp: bool, host: u8, port: u16, to: u16) -> Flow {
    Flow { inside: true, tcp, client: (v4([192, 0, 2, host]), port), server: (v4(SERVER), to) }
}

const fn out_v6(tcp: bool, host: u16, port: u16, to: u16) -> Flow {
    Flow { inside: true, tcp, client: (v6(1, host), port), server: (v6(9, 7), to) }
}

const fn into(tcp: bool, server: (IpAddr, u16)) -> Flow {
    Flow { inside: false, tcp, client: (v4(SERVER), 7000), server }
}

const FLOWS: [Flow; 9] = [
    out(true, 1, 5000, 443),
    out(true, 2, 5000, 443),
    out(false, 1, 6000, 53),
    out(false, 2, 6000, 4500),
    into(true, (v4(OWN), 8080)),
    out_v6(true, 1, 5000, 443),
    out_v6(true, 2, 5000, 443),
    out_v6(false, 1, 6000, 53),
    into(false, (v4([192, 0, 2, 3]), 9000)),
];

/// The flow that comes in by a forwarded port.
const FORWARDED: usize = 4;

/// One of the two gateways, of two workers.
fn twin(is_slow: bool) -> Twin {
    let mut config = Config::new(HashKey(3, 4));
    config.mode = Mode::Routed;
    // Flows share buckets, so one may take the slot of another.
    config.buckets = BucketCount::new(4).unwrap();
    config.zones = zones(0);
    let mut gateway = TestGateway::new(&config, 2, true);
    let inside = changes::inside(0);
    gateway.hasher.set_inside(inside.clone());
    for handle in &mut gateway.handles {
        handle.tell(Command::Inside(inside.clone())).unwrap();
    }
    Twin::new(gateway, Mode::Routed, &changes::NAMES[0], is_slow)
}

/// Source and destination of a packet, each an address and a port.
type Ends = [(IpAddr, u16); 2];

/// Both gateways, and the state of the ends of the flows.
struct Pair {
    twins: [Twin; 2],
    /// The ends of each flow as its server has seen them, and the next sequence number of each
    /// end.
    outside: [Option<Ends>; FLOWS.len()],
    numbers: [[u32; 2]; FLOWS.len()],
    rulesets: Vec<Option<String>>,
    revision: u32,
    zones: Zones,
}

impl Pair {
    fn new() -> Self {
        let mut pair = Self {
            twins: [false, true].map(twin),
            outside: [None; FLOWS.len()],
            numbers: [[1000, 50_000]; FLOWS.len()],
            rulesets: rulesets(),
            revision: 0,
            zones: Zones::new(&zones(0), 2).unwrap(),
        };
        pair.change(&Change::Zones(1));
        pair.play(&Event::Network(0));
        pair.play(&Event::Rules(1));
        pair
    }

    fn play(&mut self, event: &Event) {
        match *event {
            Event::Batch(ref packets) => self.batch(packets),
            Event::Change(ref change, prepared) => {
                if let Some(rules) = change.matters_to().filter(|_| prepared) {
                    self.play(&Event::Rules(rules));
                }
                (0..2).for_each(|_| self.each_flow());
                self.change(change);
                self.each_flow();
            }
            Event::Packet { flow, reply, flags, length, jump, oddity } => {
                self.packet(flow, reply, flags, length, jump, oddity);
            }
            Event::Establish(flow) => {
                if FLOWS[flow].tcp {
                    self.numbers[flow] = self.numbers[flow].map(|it| it.wrapping_add(1 << 20));
                    self.packet(flow, false, 0x02, 0, 0, Oddity::None);
                    self.packet(flow, true, 0x12, 0, 0, Oddity::None);
                }
                for _ in 0..2 {
                    self.packet(flow, false, 0x10, 10, 0, Oddity::None);
                    self.packet(flow, true, 0x10, 10, 0, Oddity::None);
                }
            }
            Event::Network(index) => {
                let routing = NETWORKS[index].routing();
                self.tell(|| Command::Routing(routing.clone()));
            }
            Event::Rules(index) => {
                self.revision += 1;
                let rules = self.rulesets[index].clone();
                let revision = self.revision;
                self.each(|twin| twin.load(rules.as_deref(), revision));
            }
            Event::Mtu(mtu) => self.tell(|| Command::SetMtus(vec![mtu; 2])),
            Event::Move(bucket, to) => self.each(|twin| twin.move_bucket(bucket, to)),
            Event::Wait(seconds) => self.each(|twin| twin.wait(Duration::from_secs(seconds))),
            Event::Late(worker) => self.each(|twin| twin.be_late(worker)),
            Event::CatchUp => self.each(Twin::catch_up),
            Event::Flush => self.each(Twin::flush),
        }
    }

    fn tell(&mut self, command: impl Fn() -> Command) {
        self.each(|twin| twin.tell(&command));
    }

    /// Changes both gateways, and compares the frames that this has released.
    fn each(&mut self, change: impl Fn(&mut Twin)) {
        self.twins.iter_mut().for_each(change);
        same(self.twins.each_ref().map(Twin::sent));
    }

    /// Passes a packet of each flow and direction.
    fn each_flow(&mut self) {
        for flow in 0..FLOWS.len() {
            self.packet(flow, false, 0x10, 0, 0, Oddity::None);
            self.packet(flow, true, 0x10, 0, 0, Oddity::None);
        }
    }

    /// Passes packets of flows that come in together.
    fn batch(&mut self, packets: &[(usize, bool, u8)]) {
        let frame = |&(flow, reply, flags): &(usize, bool, u8)| {
            self.frame(flow, reply, flags, 0, 0, Oddity::None)
        };
        let frames: Vec<_> = packets.iter().map(frame).collect();
        self.pass(&frames);
    }

    /// Both gateways send the same. Returns that.
    fn pass(&mut self, arriving: &[(usize, Vec<u8>)]) -> Vec<Vec<Frame>> {
        same(self.twins.each_mut().map(|twin| twin.pass(arriving)))
    }

    fn packet(
        &mut self,
        at: usize,
        reply: bool,
        flags: u8,
        length: usize,
        jump: u32,
        oddity: Oddity,
    ) {
        let (port, frame) = self.frame(at, reply, flags, length, jump, oddity);
        let sent = self.pass(&[(port, frame)]);
        if let (false, [left]) = (reply, &sent[1 - port][..])
            && let Some(network) = dissect(left.bytes()).unwrap().network
            && let Some((source, destination)) = network.transport.ports()
        {
            self.outside[at] =
                Some([(network.source_ip(), source), (network.destination_ip(), destination)]);
        }
    }

    /// The next packet of a flow, and the port that it comes in by.
    fn frame(
        &mut self,
        at: usize,
        reply: bool,
        flags: u8,
        length: usize,
        jump: u32,
        oddity: Oddity,
    ) -> (usize, Vec<u8>) {
        let flow = FLOWS[at];
        // A reply goes to the address that the server has seen.
        let seen = self.outside[at].unwrap_or([flow.client, flow.server]);
        let [from, to] = if reply { [seen[1], seen[0]] } else { [flow.client, flow.server] };
        let port = usize::from(flow.inside == reply);
        let port = if matches!(oddity, Oddity::OtherPort) { 1 - port } else { port };
        let other = if port == 0 { INSIDE } else { OUTSIDE };
        let builder = match (from.0, to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::v4(from.octets(), to.octets()),
            (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::v6(from.octets(), to.octets()),
            _ => unreachable!("no flow has ends of two families"),
        };
        let builder = builder.macs(other, STATIONS[port]).id(7);
        let builder = match oddity {
            Oddity::LastHop => builder.ttl(1),
            // A router refuses a loose source route.
            Oddity::Options if from.0.is_ipv4() => builder.options(&[0x83, 7, 4, 192, 0, 2, 9, 0]),
            Oddity::TypeOfService => builder.traffic_class(0x10),
            Oddity::Tagged => builder.vlan(0),
            _ => builder,
        };
        let builder =
            if matches!(oddity, Oddity::MayBeCut) { builder } else { builder.dont_fragment() };
        let mut frame = Vec::new();
        let payload = vec![0x5a; length];
        if flow.tcp {
            let side = usize::from(reply);
            let sequence = self.numbers[at][side].wrapping_add(jump);
            let tcp = Tcp {
                source_port: from.1,
                destination_port: to.1,
                sequence,
                acknowledgment: if flags & 0x10 == 0 { 0 } else { self.numbers[at][1 - side] },
                flags: TcpFlags(flags),
                window: 60_000,
                ..Tcp::default()
            };
            builder.tcp(&tcp, &payload, &mut frame);
            if jump == 0 && !matches!(oddity, Oddity::WrongChecksum) {
                let counts = length as u32 + u32::from(flags & 3 != 0);
                self.numbers[at][side] = self.numbers[at][side].wrapping_add(counts);
            }
        } else {
            builder.udp(from.1, to.1, &payload, &mut frame);
        }
        if matches!(oddity, Oddity::WrongChecksum) {
            let last = frame.len() - 1;
            frame[last] ^= 1;
        }
        (port, frame)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_fast_path_does_what_the_stages_do(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut pair = Pair::new();
        (0..FLOWS.len()).for_each(|flow| pair.play(&Event::Establish(flow)));
        for event in &events {
            pair.play(event);
            let [fast, slow] = pair.twins.each_ref().map(Twin::counted);
            prop_assert_eq!(fast, slow, "after {:?}", event);
        }
    }
}

/// True if the next packet of a flow takes the fast path.
fn is_short(pair: &mut Pair, flow: usize, reply: bool) -> bool {
    observer::take();
    pair.packet(flow, reply, 0x10, 20, 0, Oddity::None);
    let short = (Stage::FastPath, Some(End::Forward));
    // One of the two gateways has no record that holds.
    observer::take().into_iter().filter(|seen| *seen == short).count() == 1
}

#[test]
fn established_flows_take_the_fast_path() {
    let mut pair = Pair::new();
    (0..FLOWS.len()).for_each(|flow| pair.play(&Event::Establish(flow)));
    for flow in 0..FLOWS.len() - 1 {
        for reply in [false, true] {
            assert!(is_short(&mut pair, flow, reply), "flow {flow}, reply: {reply}");
        }
    }
}

#[test]
fn only_packets_in_zones_that_rules_set_miss_the_fast_path() {
    for rules in [WITH_ZONES, WITH_ZONES_OF_ONE_WAY] {
        let mut pair = Pair::new();
        pair.play(&Event::Rules(rules));
        (0..FLOWS.len()).for_each(|flow| pair.play(&Event::Establish(flow)));
        for (number, flow) in FLOWS.iter().enumerate().take(FLOWS.len() - 1) {
            for reply in [false, true] {
                // An alias leads replies to the forwarded port to another worker, which records
                // nothing from packets that were asked about before.
                if (number, reply) == (FORWARDED, true) {
                    continue;
                }
                let is_zoned = match rules {
                    // Replies are in another zone, and no connection there is theirs.
                    WITH_ZONES => !flow.tcp && flow.server.1 == 53,
                    _ => flow.tcp && flow.server.1 == 443 && !reply,
                };
                let is_short = is_short(&mut pair, number, reply);
                assert_eq!(is_short, !is_zoned, "ruleset {rules}, flow {number}, reply: {reply}");
            }
        }
    }
}
