//! One worker under floods: established connections go on, and those of a flood give way.

use std::time::Duration;

use flow::{DropReason, FlowKey, Zone};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use steer::{BucketCount, BucketId, WorkerId};

use conntrack::Shortage;

use crate::testing::one_worker::Rig;
use crate::worker::command::Command;
use crate::{Config, REPLAY_SECRET, ZoneConfig};

impl Rig {
    fn memory(&self) -> usize {
        self.worker.path.buckets.owned().map(|(_, bucket)| bucket.connections.memory_bytes()).sum()
    }

    fn bucket_of(&self, frame: &[u8]) -> BucketId {
        let network = wire::dissect(frame).unwrap().network.unwrap();
        let keyed = FlowKey::of_packet(&network, Zone::default()).unwrap();
        self.worker.path.hasher.bucket_of_key(&keyed.key)
    }
}

const SERVER: [u8; 4] = [198, 51, 100, 2];

fn spoofed(number: u32) -> [u8; 4] {
    (0x0a00_0000 | number).to_be_bytes()
}

fn segment(there: bool, client: u32, flags: TcpFlags, numbers: (u32, u32)) -> Vec<u8> {
    let address = spoofed(client);
    let (from, to, ports) =
        if there { (address, SERVER, (40_000, 80)) } else { (SERVER, address, (80, 40_000)) };
    let header = Tcp {
        source_port: ports.0,
        destination_port: ports.1,
        sequence: numbers.0,
        acknowledgment: numbers.1,
        flags,
        window: 65_535,
        ..Tcp::default()
    };
    let mut frame = Vec::new();
    PacketBuilder::v4(from, to).tcp(&header, &[], &mut frame);
    frame
}

fn syn(client: u32) -> Vec<u8> {
    segment(true, client, TcpFlags::SYN, (100, 0))
}

fn syn_ack(client: u32) -> Vec<u8> {
    segment(false, client, TcpFlags::SYN.with(TcpFlags::ACK), (500, 101))
}

fn ack(client: u32) -> Vec<u8> {
    segment(true, client, TcpFlags::ACK, (101, 501))
}

fn ack_back(client: u32) -> Vec<u8> {
    segment(false, client, TcpFlags::ACK, (501, 101))
}

fn handshake(client: u32) -> [Vec<u8>; 3] {
    [syn(client), syn_ack(client), ack(client)]
}

fn udp(client: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::v4(spoofed(client), SERVER).udp(5353, 53, b"question", &mut frame);
    frame
}

fn config(buckets: u64, max: u64) -> Config {
    let mut config = Config::new(REPLAY_SECRET);
    config.buckets = BucketCount::new(buckets).unwrap();
    config.settings.set("nf_conntrack_max", max).unwrap();
    config
}

#[test]
fn a_bucket_of_assured_connections_is_helped_by_the_others() {
    let config = config(64, 100);
    let mut rig = Rig::new(&config);
    let full = BucketId(7);
    let inside: Vec<u32> =
        (0..20_000).filter(|&client| rig.bucket_of(&syn(client)) == full).take(60).collect();
    let (assured, late) = inside.split_at(40);
    for &client in assured {
        assert_eq!(rig.pass(handshake(client)), 3);
    }
    let flood = (100_000..101_000).map(syn).filter(|syn| rig.bucket_of(syn) != full);
    let flood: Vec<_> = flood.collect();
    rig.pass(flood);
    assert_eq!(rig.connections(), 100);
    for &client in late {
        assert_eq!(rig.pass(handshake(client)), 3, "client {client} is locked out");
    }
    assert_eq!(rig.pass(assured.iter().map(|&client| ack(client))), 40);
    let counters = &rig.worker.path.counters;
    assert_eq!(counters.conntrack.insert_failed, 0);
    assert!(counters.conntrack.early_drop >= 20);
}

#[test]
fn the_one_connection_that_gives_way_is_found_among_all_buckets() {
    const LIMIT: u32 = 50;
    let mut config = config(4096, 10_000);
    config.zones = vec![tenant(1, 10, LIMIT.into())];
    let mut rig = Rig::new(&config);
    let mut send = |client, frames: Vec<Vec<u8>>| {
        let sent = frames.len();
        let passed = rig.pass(frames.into_iter().map(|frame| in_vlan(10, &frame)));
        assert_eq!(passed, sent, "{client}");
    };
    for client in 1..LIMIT {
        send(client, handshake(client).into());
    }
    for client in LIMIT..2 * LIMIT {
        // Each connection takes the place of the one before, in any bucket.
        send(client, vec![syn(client)]);
    }
    assert_eq!(rig.worker.path.counters.conntrack.early_drop, u64::from(LIMIT) - 1);
    let last = 2 * LIMIT - 1;
    for frame in [syn_ack(last), ack(last)] {
        assert_eq!(rig.pass([in_vlan(10, &frame)]), 1);
    }
    assert_eq!(rig.pass([in_vlan(10, &syn(1000))]), 0, "all are assured");
    assert_eq!(rig.worker.path.counters.dropped(DropReason::ZoneLimit), 1);
}

#[test]
fn a_bucket_that_leaves_is_not_asked_to_make_room() {
    use crate::rings::ownership::Move;

    let mut rig = Rig::new(&config(256, 10));
    assert_eq!(rig.pass([syn(1)]), 1);
    let bucket = rig.bucket_of(&syn(1));
    let giver =
        |rig: &Rig| rig.worker.path.tracking.limits().table_with_candidate(Shortage::Table, 0);
    assert_eq!(giver(&rig), Some(bucket.0));
    // In the same turn, another packet may need room.
    let order = Move { bucket, from: WorkerId(0), to: WorkerId(1), workers: 1 };
    rig.worker.path.switch(vec![order], flow::Timestamp::ZERO);
    assert_eq!(giver(&rig), None);
}

#[test]
fn established_flows_lose_nothing_in_floods_and_the_memory_stays_bounded() {
    const HONEST: u32 = 200;
    const MAX: u64 = 4096;
    let mut rig = Rig::new(&config(64, MAX));
    for client in 0..HONEST {
        assert_eq!(rig.pass(handshake(client)), 3);
    }
    let floods: [fn(u32) -> Vec<u8>; 3] = [syn, ack, udp];
    let mut bound = 0;
    for (number, flood) in (0u32..).zip(floods) {
        for round in 0..10 {
            let first = 100_000 + (number * 10 + round) * 2 * MAX as u32;
            rig.pass((first..first + 2 * MAX as u32).map(flood));
            // Both ends send by turns, because an ACK that is repeated looks like a sender in
            // trouble.
            let talk = if round % 2 == 0 { ack } else { ack_back };
            assert_eq!(rig.pass((0..HONEST).map(talk)), HONEST as usize);
            // New clients get through while the flood runs.
            let client = 1000 + number * 10 + round;
            assert_eq!(rig.pass(handshake(client)), 3);
            assert!(rig.connections() <= MAX as usize);
            if bound == 0 {
                bound = rig.memory() * 11 / 10;
            }
            assert!(rig.memory() <= bound, "{} bytes over {bound}", rig.memory());
        }
        assert_eq!(rig.worker.path.counters.dropped(DropReason::TableFull), 0);
    }
    rig.wait(Duration::from_secs(301));
    rig.wait(Duration::from_secs(3));
    assert_eq!(rig.connections(), HONEST as usize + 30, "what the floods opened is gone");
    assert!(rig.commands.push(Command::Stop).is_ok());
}

/// The target of the flood answers at once. The servers of other clients take their time.
#[test]
fn handshakes_are_completed_while_a_flood_is_answered() {
    const MAX: u32 = 4096;
    let mut rig = Rig::new(&config(64, MAX.into()));
    let mut spoofed = 100_000..;
    let mut flood = |rig: &mut Rig, connections: u32| {
        for client in spoofed.by_ref().take(connections as usize) {
            assert_eq!(rig.pass([syn(client), syn_ack(client)]), 2);
        }
    };
    flood(&mut rig, 2 * MAX);
    for client in 0..50 {
        for step in handshake(client) {
            assert_eq!(rig.pass([step]), 1);
            // The flood fills a quarter of the table each round trip.
            flood(&mut rig, MAX / 4);
        }
        assert_eq!(rig.pass([ack_back(client)]), 1);
    }
    let counters = &rig.worker.path.counters;
    assert_eq!((counters.conntrack.invalid, counters.dropped(DropReason::TableFull)), (0, 0));
}

fn in_vlan(vlan: u16, frame: &[u8]) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

fn tenant(id: u16, vlan: u16, max: u64) -> ZoneConfig {
    let mut zone = ZoneConfig::new(Zone(id));
    zone.set_vlans(vec![vlan]).unwrap();
    zone.set_max_connections(max).unwrap();
    zone
}

#[test]
fn a_tenant_that_is_flooded_takes_nothing_from_another_with_the_same_addresses() {
    let mut config = config(64, 10_000);
    config.zones = vec![tenant(1, 10, 100), tenant(2, 20, 100)];
    let mut rig = Rig::new(&config);
    let send = |rig: &mut Rig, vlan, frames: Vec<Vec<u8>>| {
        rig.pass(frames.into_iter().map(|frame| in_vlan(vlan, &frame)))
    };
    for client in 0..50 {
        for vlan in [10, 20] {
            assert_eq!(send(&mut rig, vlan, handshake(client).into()), 3);
        }
    }
    assert_eq!(rig.connections(), 100, "equal addresses, two connections each");
    assert_eq!(send(&mut rig, 10, (1000..6000).map(syn).collect()), 5000);
    assert_eq!(rig.connections(), 150, "the flooded zone has its hundred");
    assert_eq!(send(&mut rig, 20, (60..90).flat_map(handshake).collect()), 90);
    for vlan in [10, 20] {
        assert_eq!(send(&mut rig, vlan, (0..50).map(ack_back).collect()), 50);
    }
    // A zone without candidates of its own is refused for a reason of its own.
    assert_eq!(send(&mut rig, 20, (90..110).flat_map(handshake).collect()), 60);
    assert_eq!(rig.worker.path.counters.dropped(DropReason::ZoneLimit), 0);
    assert_eq!(send(&mut rig, 20, vec![syn(200)]), 0);
    assert_eq!(rig.worker.path.counters.dropped(DropReason::ZoneLimit), 1);
    assert_eq!(send(&mut rig, 30, vec![syn(200)]), 1, "no zone");
    rig.wait(Duration::from_secs(500));
}

#[test]
fn one_source_is_stopped_at_its_limit_of_half_open_connections() {
    let mut config = config(64, 10_000);
    config.settings.set("stateway_half_open_per_source", 20).unwrap();
    let mut rig = Rig::new(&config);
    let question = |port: u16| {
        let mut frame = Vec::new();
        PacketBuilder::v4(spoofed(1), SERVER).udp(port, 53, b"question", &mut frame);
        frame
    };
    assert_eq!(rig.pass((1..=1000).map(question)), 20);
    assert_eq!(rig.worker.path.counters.dropped(DropReason::SourceLimit), 980);
    assert_eq!(rig.worker.path.counters.conntrack.drop, 980);
    assert_eq!(rig.pass((2..100).map(udp)), 98, "others");
    rig.wait(Duration::from_secs(31));
    assert_eq!(rig.pass((2001..=3000).map(question)), 20, "and again when they have ended");
}

#[test]
fn a_packet_that_makes_room_in_its_zone_and_finds_none_in_the_table_is_counted() {
    let mut config = config(64, 4);
    config.zones = vec![tenant(1, 10, 1)];
    config.reserve.sources = vec!["10.0.0.1".parse().unwrap()];
    config.reserve.connections = 2;
    let mut rig = Rig::new(&config);
    // No connection of the table gives way, and the reserve pays for those of the zone.
    for client in 100..102 {
        assert_eq!(rig.pass(handshake(client)), 3);
    }
    assert_eq!(rig.pass([in_vlan(10, &syn(1))]), 1);
    let late = in_vlan(10, &syn(2));
    assert_eq!(rig.pass([late]), 0);
    let counters = &rig.worker.path.counters;
    assert_eq!(counters.dropped(DropReason::TableFull), 1);
    assert_eq!((counters.conntrack.insert_failed, counters.conntrack.drop), (1, 1));
}
