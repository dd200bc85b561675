//! The test of the fast path for a bridge of three ports: stations move, ports come and go, and
//! rules, zones, names and tunables change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use conntrack::{Changes, Filter};
use flow::HashKey;
use netio::Frame;
use proptest::prelude::*;
use steer::BucketCount;
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};
use wire::protocol;

use crate::Config;
use crate::egress::Mode;
use crate::path::selection::Operation;
use crate::path::settings::Settings;
use crate::path::stages::observer;
use crate::path::step::{End, Stage};
use crate::path::zones::Zones;
use crate::testing::many_workers::TestGateway;
use crate::testing::twins::{Twin, ZONES, same, zones};
use crate::worker::command::Command;

const PORTS: usize = 3;
const STATIONS: usize = 4;
const BROADCAST: [u8; 6] = [0xff; 6];
/// Packets of all flows are sent twice before a change, so that their decisions are recorded.
const ROUNDS: usize = 2;

/// A flow between two stations, by number, in a VLAN.
#[derive(Clone, Copy)]
struct Flow {
    tcp: bool,
    is_v6: bool,
    stations: [u8; 2],
    port: u16,
    vlan: Option<u16>,
}

const fn flow(tcp: bool, stations: [u8; 2], port: u16) -> Flow {
    Flow { tcp, is_v6: false, stations, port, vlan: None }
}

const FLOWS: [Flow; 8] = [
    flow(true, [0, 1], 443),
    flow(true, [1, 2], 443),
    flow(true, [2, 3], 80),
    flow(false, [0, 2], 53),
    flow(false, [3, 1], 4500),
    Flow { is_v6: true, ..flow(true, [0, 3], 443) },
    Flow { is_v6: true, ..flow(false, [1, 0], 53) },
    Flow { vlan: Some(9), ..flow(true, [0, 1], 443) },
];

#[derive(Clone, Debug)]
enum Event {
    /// A packet of a flow, in the direction of its replies or not.
    Packet {
        flow: usize,
        reply: bool,
        flags: u8,
        length: usize,
        oddity: Oddity,
    },
    /// Packets of flows that come in one batch.
    Batch(Vec<(usize, bool, u8)>),
    /// The remaining packets of a handshake, so that a flow is established.
    Establish(usize),
    Change(Change),
}

/// The unusual property of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Oddity {
    None,
    WrongChecksum,
    /// It comes in by another port, and the bridge sees its station move.
    OtherPort,
    /// It is for all stations.
    Broadcast,
    /// It is for a station that nobody has heard.
    Unknown,
}

#[derive(Clone, Debug)]
enum Change {
    /// A station is behind another port from now on. It says so, or the bridge has yet to hear it.
    Station {
        station: usize,
        port: usize,
        is_heard: bool,
    },
    /// A port loses its queue for sending, or has one again.
    Port(usize, bool),
    Rules(usize),
    Zones(usize),
    Names(usize),
    Mtu(Option<u32>),
    Settings(usize),
    /// An operator sets the mark of a connection, or deletes it.
    Mark(usize, u32),
    Delete(usize),
    /// A bucket moves to a worker.
    Move(u16, u16),
    /// Stations that are silent for so many seconds are forgotten after 300.
    Wait(u64),
    Flush,
    /// From now on this worker does not hear of changes.
    Late(usize),
    CatchUp,
}

fn change() -> impl Strategy<Value = Change> {
    let moves = (0..STATIONS, 0..PORTS, any::<bool>());
    prop_oneof![
        8 => moves.prop_map(|(station, port, is_heard)| Change::Station { station, port, is_heard }),
        2 => (0..PORTS).prop_map(|port| Change::Port(port, false)),
        3 => (0..PORTS).prop_map(|port| Change::Port(port, true)),
        4 => (0..RULESETS).prop_map(Change::Rules),
        2 => (0..ZONES).prop_map(Change::Zones),
        2 => (0..NAMES.len()).prop_map(Change::Names),
        1 => prop_oneof![Just(None), Just(Some(400)), Just(Some(1500))].prop_map(Change::Mtu),
        1 => (0..TUNABLES.len()).prop_map(Change::Settings),
        2 => (0..FLOWS.len(), 0u32..3).prop_map(|(flow, mark)| Change::Mark(flow, mark)),
        1 => (0..FLOWS.len()).prop_map(Change::Delete),
        2 => (any::<u16>(), any::<u16>()).prop_map(|(bucket, to)| Change::Move(bucket, to)),
        1 => prop_oneof![0u64..100, Just(301)].prop_map(Change::Wait),
        1 => Just(Change::Flush),
        1 => (0usize..2).prop_map(Change::Late),
        1 => Just(Change::CatchUp),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let flags = prop_oneof![12 => Just(0x10u8), 4 => Just(0x18), 1 => Just(0x11), 1 => Just(0x04),
        1 => Just(0x02), 1 => Just(0x12)];
    let length = prop_oneof![4 => 0usize..100, 1 => 500usize..1400];
    let oddity = prop_oneof![
        16 => Just(Oddity::None),
        1 => Just(Oddity::WrongChecksum),
        2 => Just(Oddity::OtherPort),
        1 => Just(Oddity::Broadcast),
        1 => Just(Oddity::Unknown),
    ];
    let batched = prop_oneof![4 => Just(0x10u8), 1 => Just(0x04), 1 => Just(0x02)];
    let batch = prop::collection::vec((0..FLOWS.len(), any::<bool>(), batched), 2..6);
    let packet = (0..FLOWS.len(), any::<bool>(), flags, length, oddity);
    prop_oneof![
        30 => packet.prop_map(|(flow, reply, flags, length, oddity)| {
            Event::Packet { flow, reply, flags, length, oddity }
        }),
        3 => batch.prop_map(Event::Batch),
        6 => (0..FLOWS.len()).prop_map(Event::Establish),
        15 => change().prop_map(Event::Change),
    ]
}

const NAMES: [[&str; PORTS]; 4] = [
    ["lan0", "wan0", "dmz0"],
    ["wan0", "lan0", "dmz0"],
    ["lan0", "", "wan0"],
    ["lan1", "wan0", "lan0"],
];

const TUNABLES: [&[(&str, u64)]; 3] = [
    &[],
    &[("nf_conntrack_tcp_be_liberal", 1), ("nf_conntrack_checksum", 0)],
    &[("nf_conntrack_udp_timeout", 10), ("nf_conntrack_udp_timeout_stream", 20)],
];

/// How many rulesets there are.
const RULESETS: usize = 6;

/// No rules, or rules of one chain: each has another effect on what may be recorded.
fn ruleset(index: usize) -> Option<String> {
    let test = |left: &str, operator: &str, right: &str| {
        format!(r#"{{"match":{{"op":"{operator}","left":{left},"right":{right}}}}}"#)
    };
    let meta = |key: &str, name: &str| {
        test(&format!(r#"{{"meta":{{"key":"{key}"}}}}"#), "==", &format!("\"{name}\""))
    };
    let ct = |key: &str, operator: &str, right: &str| {
        test(&format!(r#"{{"ct":{{"key":"{key}"}}}}"#), operator, right)
    };
    let length = test(r#"{"meta":{"key":"length"}}"#, ">", "300");
    let established = ct("state", "in", r#"["established","related"]"#);
    let counter = r#"{"counter":{"packets":0,"bytes":0}}"#;
    let (accept, drop) = (r#"{"accept":null}"#, r#"{"drop":null}"#);
    let rules = match index {
        0 => return None,
        1 => {
            vec![format!("{established},{accept}"), format!("{},{accept}", meta("iifname", "lan0"))]
        }
        // By the ports, for established packets too.
        2 => vec![
            format!("{},{},{drop}", meta("iifname", "lan0"), meta("oifname", "dmz0")),
            accept.to_owned(),
        ],
        3 => vec![format!("{},{counter},{accept}", meta("oifname", "wan0")), accept.to_owned()],
        4 => vec![
            format!("{length},{drop}"),
            format!("{},{drop}", ct("mark", "==", "2")),
            accept.into(),
        ],
        _ => vec![
            format!(
                r#"{},{{"mangle":{{"key":{{"meta":{{"key":"mark"}}}},"value":1}}}}"#,
                meta("oifname", "wan0")
            ),
            format!("{established},{accept}"),
            accept.to_owned(),
        ],
    };
    let mut document = r#"{"nftables":[{"table":{"family":"inet","name":"t","handle":1}},
        {"chain":{"family":"inet","table":"t","name":"c","handle":1,"type":"filter",
            "hook":"forward","prio":0,"policy":"drop"}}"#
        .to_owned();
    for rule in rules {
        document += &format!(
            r#",{{"rule":{{"family":"inet","table":"t","chain":"c","handle":9,"expr":[{rule}]}}}}"#
        );
    }
    Some(document + "]}")
}

/// One of the two bridges, of two workers.
fn twin(is_slow: bool) -> Twin {
    let mut config = Config::new(HashKey(3, 4));
    // Flows share buckets.
    config.buckets = BucketCount::new(4).unwrap();
    config.zones = zones(0);
    let gateway = TestGateway::between(PORTS, &config, 2, false);
    Twin::new(gateway, Mode::Bridge, &NAMES[0], is_slow)
}

/// Both bridges, and the stations around them.
struct Pair {
    twins: [Twin; 2],
    /// The port that each station is behind.
    ports: [usize; STATIONS],
    /// The next sequence number of each end of a flow.
    numbers: [[u32; 2]; FLOWS.len()],
    revision: u32,
    zones: Zones,
}

impl Pair {
    fn new() -> Self {
        let mut pair = Self {
            twins: [false, true].map(twin),
            ports: [0, 1, 2, 2],
            numbers: [[1000, 50_000]; FLOWS.len()],
            revision: 0,
            zones: Zones::new(&zones(0), PORTS).unwrap(),
        };
        (0..STATIONS).for_each(|station| pair.say_hello(station));
        pair.change(&Change::Zones(1));
        (0..FLOWS.len()).for_each(|flow| pair.establish(flow));
        pair
    }

    fn play(&mut self, event: &Event) {
        match *event {
            Event::Packet { flow, reply, flags, length, oddity } => {
                self.packet((flow, reply), flags, length, oddity);
            }
            Event::Batch(ref packets) => {
                let frame = |&(flow, reply, flags): &(usize, bool, u8)| {
                    self.frame((flow, reply), flags, 0, Oddity::None)
                };
                let frames: Vec<_> = packets.iter().map(frame).collect();
                self.pass(&frames);
            }
            Event::Establish(flow) => self.establish(flow),
            Event::Change(ref change) => {
                (0..ROUNDS).for_each(|_| self.each_flow());
                self.change(change);
                self.each_flow();
            }
        }
    }

    fn change(&mut self, change: &Change) {
        match *change {
            Change::Station { station, port, is_heard } => {
                self.ports[station] = port;
                if is_heard {
                    self.say_hello(station);
                }
            }
            Change::Port(port, is_open) => self.each(|twin| twin.set_open(port, is_open)),
            Change::Rules(index) => {
                self.revision += 1;
                let (rules, revision) = (ruleset(index), self.revision);
                self.each(|twin| twin.load(rules.as_deref(), revision));
            }
            Change::Zones(index) => {
                self.zones = self.zones.changed(&zones(index), PORTS).unwrap();
                let zones = self.zones.clone();
                self.each(|twin| twin.tell(|| Command::Zones(Box::new(zones.clone()))));
            }
            Change::Names(names) => self.each(|twin| twin.rename(&NAMES[names])),
            Change::Mtu(mtu) => self.each(|twin| twin.tell(|| Command::SetMtus(vec![mtu; PORTS]))),
            Change::Settings(index) => {
                let mut settings = Settings::default();
                for (name, value) in TUNABLES[index] {
                    settings.set(name, *value).unwrap();
                }
                self.each(|twin| twin.tell(|| Command::Settings(Box::new(settings.clone()))));
            }
            Change::Mark(flow, mark) => {
                let mark = Some((mark, u32::MAX));
                self.select(flow, &Operation::Update(Changes { mark, ..Changes::default() }));
            }
            Change::Delete(flow) => self.select(flow, &Operation::Delete),
            Change::Move(bucket, to) => self.each(|twin| twin.move_bucket(bucket, to)),
            Change::Wait(seconds) => self.each(|twin| twin.wait(Duration::from_secs(seconds))),
            Change::Flush => self.each(Twin::flush),
            Change::Late(worker) => self.each(|twin| twin.be_late(worker)),
            Change::CatchUp => self.each(Twin::catch_up),
        }
    }

    /// Changes both bridges, and compares the frames that this has released.
    fn each(&mut self, change: impl Fn(&mut Twin)) {
        self.twins.iter_mut().for_each(change);
        same(self.twins.each_ref().map(Twin::sent));
    }

    /// Applies an operation to the connections of a flow.
    fn select(&mut self, flow: usize, what: &Operation) {
        let client = address(FLOWS[flow], 0);
        let filter = Arc::new(Filter {
            protocol: Some(if FLOWS[flow].tcp { protocol::TCP } else { protocol::UDP }),
            source: Some(client.to_string().parse().unwrap()),
            source_port: Some(source_port(flow)),
            ..Filter::default()
        });
        let [fast, slow] = self.twins.each_mut().map(|twin| twin.select(&filter, what));
        assert_eq!(fast, slow);
    }

    /// Both bridges send the same. Returns that.
    fn pass(&mut self, arriving: &[(usize, Vec<u8>)]) -> Vec<Vec<Frame>> {
        same(self.twins.each_mut().map(|twin| twin.pass(arriving)))
    }

    /// A station sends a frame that is no packet to all.
    fn say_hello(&mut self, station: usize) {
        let frame = [&BROADCAST[..], &mac(station), &[8, 6], &[0; 46]].concat();
        self.pass(&[(self.ports[station], frame)]);
    }

    fn establish(&mut self, flow: usize) {
        if FLOWS[flow].tcp {
            self.numbers[flow] = self.numbers[flow].map(|it| it.wrapping_add(1 << 20));
            self.packet((flow, false), 0x02, 0, Oddity::None);
            self.packet((flow, true), 0x12, 0, Oddity::None);
        }
        for _ in 0..2 {
            self.packet((flow, false), 0x10, 10, Oddity::None);
            self.packet((flow, true), 0x10, 10, Oddity::None);
        }
    }

    fn each_flow(&mut self) {
        for flow in 0..FLOWS.len() {
            self.packet((flow, false), 0x10, 0, Oddity::None);
            self.packet((flow, true), 0x10, 0, Oddity::None);
        }
    }

    fn packet(
        &mut self,
        which: (usize, bool),
        flags: u8,
        length: usize,
        oddity: Oddity,
    ) -> Vec<Vec<Frame>> {
        let frame = self.frame(which, flags, length, oddity);
        self.pass(&[frame])
    }

    /// The next packet of a flow and direction, and the port that it comes in by.
    fn frame(
        &mut self,
        (at, reply): (usize, bool),
        flags: u8,
        length: usize,
        oddity: Oddity,
    ) -> (usize, Vec<u8>) {
        let flow = FLOWS[at];
        let side = usize::from(reply);
        let [from, to] = [side, 1 - side].map(|end| usize::from(flow.stations[end]));
        let receiver = match oddity {
            Oddity::Broadcast => BROADCAST,
            Oddity::Unknown => mac(99),
            _ => mac(to),
        };
        let builder = match (address(flow, side), address(flow, 1 - side)) {
            (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::v4(from.octets(), to.octets()),
            (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::v6(from.octets(), to.octets()),
            _ => unreachable!("no flow has ends of two families"),
        };
        let builder = builder.macs(mac(from), receiver).id(7);
        let builder = match flow.vlan {
            Some(vlan) => builder.vlan(vlan),
            None => builder,
        };
        let ports = [source_port(at), flow.port];
        let payload = vec![0x5a; length];
        let mut frame = Vec::new();
        if flow.tcp {
            let tcp = Tcp {
                source_port: ports[side],
                destination_port: ports[1 - side],
                sequence: self.numbers[at][side],
                acknowledgment: if flags & 0x10 == 0 { 0 } else { self.numbers[at][1 - side] },
                flags: TcpFlags(flags),
                window: 60_000,
                ..Tcp::default()
            };
            builder.tcp(&tcp, &payload, &mut frame);
            if oddity == Oddity::None {
                let counts = length as u32 + u32::from(flags & 3 != 0);
                self.numbers[at][side] = self.numbers[at][side].wrapping_add(counts);
            }
        } else {
            builder.udp(ports[side], ports[1 - side], &payload, &mut frame);
        }
        if oddity == Oddity::WrongChecksum {
            let last = frame.len() - 1;
            frame[last] ^= 1;
        }
        let port = self.ports[from];
        (if oddity == Oddity::OtherPort { (port + 1) % PORTS } else { port }, frame)
    }
}

const fn mac(station: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, station as u8 + 1]
}

/// The address of an end of a flow.
const fn address(flow: Flow, end: usize) -> IpAddr {
    let host = flow.stations[end] as u16 + 1;
    match flow.is_v6 {
        true => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host)),
        false => IpAddr::V4(Ipv4Addr::new(192, 0, 2, host as u8)),
    }
}

const fn source_port(flow: usize) -> u16 {
    5000 + flow as u16
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_fast_path_of_a_bridge_does_what_the_stages_do(
        events in prop::collection::vec(event(), 1..80),
    ) {
        let mut pair = Pair::new();
        for event in &events {
            pair.play(event);
            let [fast, slow] = pair.twins.each_ref().map(Twin::counted);
            prop_assert_eq!(fast, slow, "after {:?}", event);
        }
    }
}

/// How many packets take the fast path while both bridges see one of a flow.
fn fast_packets(pair: &mut Pair, which: (usize, bool)) -> usize {
    observer::take();
    pair.packet(which, 0x10, 20, Oddity::None);
    let short = (Stage::FastPath, Some(End::Forward));
    observer::take().into_iter().filter(|seen| *seen == short).count()
}

#[test]
fn established_flows_take_the_fast_path_of_a_bridge() {
    for rules in [0, 1, 2, 5] {
        let mut pair = Pair::new();
        pair.change(&Change::Rules(rules));
        pair.change(&Change::Port(0, true));
        (0..FLOWS.len()).for_each(|flow| pair.establish(flow));
        let fast = (0..FLOWS.len()).flat_map(|flow| [(flow, false), (flow, true)]);
        let fast: usize = fast.map(|which| fast_packets(&mut pair, which)).sum();
        assert!(fast >= FLOWS.len(), "rules {rules}: {fast} packets");
    }
}

/// A flow whose receiver has moved takes the stages once, and leaves by the new port.
#[test]
fn a_recorded_decision_ends_when_the_station_moves() {
    let mut pair = Pair::new();
    assert_eq!(fast_packets(&mut pair, (0, false)), 1);
    pair.change(&Change::Station { station: 1, port: 2, is_heard: true });
    observer::take();
    let sent = pair.packet((0, false), 0x10, 20, Oddity::None);
    assert!(!observer::take().contains(&(Stage::FastPath, Some(End::Forward))));
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(fast_packets(&mut pair, (0, false)), 1);
}
