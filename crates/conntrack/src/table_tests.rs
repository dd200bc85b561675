use std::time::Duration;

use flow::{
    Class, ConntrackCounters, DropReason, FlowKey, HashKey, KeyedPacket, Lease, LeasePool,
    Timestamp, Verdict, Zone,
};
use wire::{
    Family, FragmentInfo, IcmpError, IcmpQuery, Network, QueryKind, Quoted, QuotedTransport,
    Transport, protocol,
};

use super::*;
use crate::{Settings, class_without_flow};

const SECRET: HashKey = HashKey(3, 4);

/// A table with all that it needs around it.
struct Lab {
    table: Table,
    now: Timestamp,
    settings: Settings,
    pool: LeasePool,
    lease: Lease,
    counters: ConntrackCounters,
    events: Vec<Event>,
}

impl Lab {
    fn with_room_for(entries: u64) -> Self {
        let now = Timestamp::from_secs(1000);
        let pool = LeasePool::new(entries);
        Self {
            table: Table::new(now),
            now,
            settings: Settings::default(),
            lease: pool.lease(1),
            pool,
            counters: ConntrackCounters::default(),
            events: Vec::new(),
        }
    }

    fn new() -> Self {
        Self::with_room_for(1 << 20)
    }

    fn run<T>(&mut self, act: impl FnOnce(&mut Table, &mut Context<'_>) -> T) -> T {
        let mut context = Context {
            now: self.now,
            settings: &self.settings,
            lease: &mut self.lease,
            counters: &mut self.counters,
            events: Some(&mut self.events),
        };
        act(&mut self.table, &mut context)
    }

    fn track(&mut self, network: &Network) -> Tracked {
        let keyed = keyed(network);
        let packet = TrackedPacket {
            network,
            frame: &[],
            keyed: &keyed,
            hash: keyed.key.hash(SECRET),
            checksum: Checksum::Trust,
            segments: 1,
        };
        self.run(|table, context| table.track(&packet, context))
    }

    fn wait(&mut self, duration: Duration) {
        self.now = self.now.after(duration);
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.events.iter().map(|event| event.kind).collect()
    }
}

fn keyed(network: &Network) -> KeyedPacket {
    match network.transport {
        Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) => {
            FlowKey::of_quoted(&quoted, network.family, Zone(0))
        }
        _ => FlowKey::of_packet(network, Zone(0)).expect("a packet with a flow"),
    }
}

fn v4(last: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, last]);
    bytes
}

fn v6(last: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    bytes[15] = last;
    bytes
}

fn address(family: Family, last: u8) -> [u8; 16] {
    match family {
        Family::V4 => v4(last),
        Family::V6 => v6(last),
    }
}

fn network(family: Family, from: u8, to: u8, protocol: u8, transport: Transport) -> Network {
    Network {
        family,
        source: address(family, from),
        destination: address(family, to),
        offset: 14,
        transport_offset: 34,
        end: 62,
        protocol,
        ttl: 64,
        traffic_class: 0,
        dont_fragment: false,
        fragment: None,
        transport,
    }
}

fn udp(family: Family, from: (u8, u16), to: (u8, u16)) -> Network {
    let transport = Transport::Udp { source_port: from.1, destination_port: to.1, length: 28 };
    network(family, from.0, to.0, protocol::UDP, transport)
}

#[test]
fn a_flow_is_new_until_a_reply_and_established_after() {
    let mut lab = Lab::new();
    let there = udp(Family::V4, (1, 1000), (2, 53));
    let back = udp(Family::V4, (2, 53), (1, 1000));
    let mut classes = Vec::new();
    for packet in [&there, &there, &back, &there, &back] {
        let tracked = lab.track(packet);
        classes.push((tracked.class, tracked.direction.unwrap()));
    }
    assert_eq!(
        classes,
        [
            (Class::New, Direction::Original),
            (Class::New, Direction::Original),
            (Class::Established, Direction::Reply),
            (Class::Established, Direction::Original),
            (Class::Established, Direction::Reply),
        ]
    );
    assert_eq!(lab.kinds(), [EventKind::New, EventKind::Update]);
}
