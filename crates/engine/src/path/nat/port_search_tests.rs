//! Rules that name a range of ports. Each bucket has a few of them or none.

use std::collections::{HashMap, HashSet};

use conntrack::{Connection, Cursor, EventKind};
use flow::HashKey;
use steer::BucketId;

use super::*;
use crate::Config;
use crate::path::events::{EventStream, Subscription};
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;
use crate::worker::Worker;
use crate::worker::command::Command;

const FIRST: u16 = 2000;

/// A router that masquerades to this many ports.
fn gateway_with(workers: u16, ports: u16) -> TestGateway {
    let protocol = r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"udp"}},"#;
    let range = format!(r#"{{"port":{{"range":[{FIRST},{}]}}}}"#, FIRST + ports - 1);
    let rules =
        RULES.replace(r#"{"masquerade":null}"#, &format!(r#"{protocol}{{"masquerade":{range}}}"#));
    let mut config = Config::new(HashKey(3, 4));
    // One client may have all ports.
    config.settings.set("stateway_nat_source_share", 100).unwrap();
    gateway_of(workers, &rules, routing(), OWN.into(), config)
}

/// The flows that get through to a server: their source ports at the server, by the sender's
/// ports.
fn flows(
    gateway: &mut TestGateway,
    server: [u8; 4],
    count: u16,
    at_once: usize,
) -> HashMap<u16, u16> {
    let mut sources = HashMap::new();
    let ports: Vec<u16> = (10_000..10_000 + count).collect();
    for some in ports.chunks(at_once) {
        for port in some {
            let bytes =
                udp(&from_inside([192, 0, 2, 10], server), (*port, 53), &port.to_be_bytes());
            gateway.arrive(0, &bytes);
        }
        gateway.run_until_idle();
        for frame in gateway.sent(1) {
            let network = seen(&frame);
            let [from, to] = ends(&network);
            assert_eq!((from.0, to), (OWN.into(), (server.into(), 53)));
            let said = &frame.bytes()[14 + 28..14 + 30];
            let own = u16::from_be_bytes([said[0], said[1]]);
            assert_eq!(sources.insert(own, from.1), None);
        }
    }
    sources
}

#[test]
fn all_ports_of_a_range_are_given_away_whoever_has_them() {
    for (workers, ports, at_once) in
        [(1, 256, 1), (2, 256, 1), (3, 256, 50), (2, 8, 1), (3, 8, 20), (1, 1, 1), (2, 300, 600)]
    {
        let mut gateway = gateway_with(workers, ports);
        for server in [SERVER, [203, 0, 113, 8]] {
            let sources = flows(&mut gateway, server, 600, at_once);
            let used: HashSet<u16> = sources.values().copied().collect();
            assert_eq!((sources.len(), used.len()), (ports.into(), ports.into()), "{workers}");
            assert!(used.iter().all(|port| (FIRST..FIRST + ports).contains(port)));
            for (own, source) in sources {
                let answer = udp(&from_outside(server, OWN), (53, source), b"x");
                let network = gateway.pass(1, &answer);
                assert_eq!(ends(&network)[1], (ip("192.0.2.10"), own));
            }
        }
        let refused = gateway.reasons();
        assert!(refused.iter().all(|&reason| reason == DropReason::PortPoolFull), "{refused:?}");
        assert_eq!(gateway.connections(), 2 * usize::from(ports));
        assert_eq!(gateway.dropped(), 2 * (600 - u64::from(ports)));
    }
}

#[test]
fn a_client_port_that_two_addresses_lead_to_gets_two_sources() {
    // Several ports of the router lead to one port of a server. Without other sources the server
    // would see one flow.
    for workers in 1..4 {
        let rules = RULES.replace(r#""right":8080"#, r#""right":{"range":[8080,8083]}"#);
        let mut gateway =
            gateway_of(workers, &rules, routing(), OWN.into(), Config::new(HashKey(3, 4)));
        let mut sources = HashSet::new();
        for port in 8080..8084 {
            let syn = tcp(&from_outside(SERVER, OWN), (40000, port), 2, (1, 0));
            let network = gateway.pass(1, &syn);
            let [from, to] = ends(&network);
            assert_eq!((from.0, to), (SERVER.into(), (ip("192.0.2.10"), 80)));
            assert!(sources.insert(from.1));
            let answer = tcp(&from_inside([192, 0, 2, 10], SERVER), (80, from.1), 0x12, (1, 2));
            let network = gateway.pass(0, &answer);
            assert_eq!(ends(&network), [(OWN.into(), port), (SERVER.into(), 40000)]);
        }
        assert_eq!((gateway.reasons(), gateway.connections()), (vec![], 4));
    }
}

/// Subscribes to the events of a gateway's connections.
fn subscribe(gateway: &mut TestGateway) -> EventStream {
    let (subscription, stream) = Subscription::new(1 << 16);
    for handle in &mut gateway.handles {
        let sender = subscription.connect(handle.id).unwrap();
        handle.tell(Command::Subscribe(sender)).unwrap();
    }
    gateway.run_until_idle();
    stream
}

fn listed(gateway: &TestGateway) -> HashMap<flow::FlowKey, Connection> {
    let mut all = HashMap::new();
    for bucket in 0..16 {
        let table = &gateway.bucket(BucketId(bucket)).connections;
        let end = table.list(Cursor::default(), u32::MAX, gateway.now, |connection| {
            all.insert(connection.key, connection);
        });
        assert_eq!(end, None);
    }
    all
}

#[test]
fn listeners_know_each_connection_as_it_is_in_the_table() {
    for (workers, ports, at_once) in [(1, 64, 1), (2, 64, 1), (2, 64, 30), (3, 300, 200)] {
        let mut gateway = gateway_with(workers, ports);
        let mut events = subscribe(&mut gateway);
        let sources = flows(&mut gateway, SERVER, ports + 50, at_once);
        assert_eq!(sources.len(), usize::from(ports));
        let mut known: HashMap<flow::FlowKey, Connection> = HashMap::new();
        let mut again = 0;
        while let Some(report) = events.try_next() {
            let (kind, connection) = (report.event.kind, report.event.connection);
            let before = known.remove(&connection.key);
            match kind {
                EventKind::New => assert_eq!(before, None, "twice"),
                EventKind::Update => assert!(before.is_some()),
                EventKind::Destroy => {
                    again += 1;
                    assert_eq!(before.expect("is known").reply, connection.reply);
                    continue;
                }
            }
            known.insert(connection.key, connection);
        }
        assert!(again > 10, "{again} have ended or changed their source");
        let listed = listed(&gateway);
        assert_eq!(listed.len(), known.len(), "{workers} workers");
        for (key, connection) in listed {
            assert_eq!(known[&key].reply, connection.reply);
        }
    }
}

#[test]
fn a_packet_is_changed_twice_at_most_whatever_was_tried() {
    for workers in 1..3 {
        let mut gateway = gateway_with(workers, 200);
        let total = |gateway: &TestGateway| {
            let of_worker = |worker: &Worker| worker.path.translator.identified();
            gateway.workers.iter().map(of_worker).fold(0, u32::wrapping_add)
        };
        let before = total(&gateway);
        assert_eq!(flows(&mut gateway, SERVER, 250, 1).len(), 200);
        let given = total(&gateway).wrapping_sub(before);
        assert!((200..=450).contains(&given), "{given} identifications for 250 packets");
    }
}

#[test]
fn a_rule_with_one_port_serves_flows_to_many_servers() {
    let named = r#"{"snat":{"addr":"198.51.100.254","port":2000}}"#;
    let protocol = r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"udp"}},"#;
    let rules = RULES.replace(r#"{"masquerade":null}"#, &format!("{protocol}{named}"));
    let mut gateway = gateway_of(2, &rules, routing(), OWN.into(), Config::new(HashKey(3, 4)));
    for port in 10_000..10_040 {
        let ask = udp(&from_inside([192, 0, 2, 10], [203, 0, 113, port as u8]), (port, 53), b"x");
        let network = gateway.pass(0, &ask);
        assert_eq!(ends(&network)[0], (OWN.into(), 2000));
    }
}
