use flow::HashKey;
use netio::{Frame, FramePool};
use ruleset::ValidRuleset;
use wire::build::PacketBuilder;
use wire::{Network, dissect};

use crate::Config;
use crate::egress::Mode;
use crate::path::rules::ruleset::Rules;
use crate::testing::one_worker::Rig;
use crate::testing::rules::one_chain;
use crate::worker::command::Command;

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];

fn rig(ruleset: ValidRuleset) -> Rig {
    let mut rig = Rig::new(&Config::new(HashKey(1, 2)));
    let names = ["lan0".to_owned(), "wan0".to_owned()];
    let rules = Rules::prepare(ruleset, Mode::Bridge, 7, &names).unwrap().load(3, rig.now);
    assert!(rig.commands.push(Command::Rules(Some(rules.for_worker()))).is_ok());
    rig.exchange(0, []);
    rig
}

fn network(frame: &Frame) -> Network {
    let network = dissect(frame.bytes()).unwrap().network.unwrap();
    assert!(wire::checksum::verify_transport(frame.bytes(), &network));
    network
}

fn udp(ports: (u16, u16), length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::v4(CLIENT, SERVER).udp(ports.0, ports.1, &vec![7; length], &mut bytes);
    bytes
}

fn frame(bytes: &[u8]) -> Frame {
    FramePool::new(0, 0).copy_of(bytes).unwrap()
}

fn sets(header: &str, field: &str, value: &str) -> String {
    format!(
        r#"{{"mangle":{{"key":{{"payload":{{"protocol":"{header}","field":"{field}"}}}},
            "value":{value}}}}}"#
    )
}

#[test]
fn tracking_sees_what_rules_in_front_of_it_have_written() {
    let asks = r#"{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},
        "right":5353}}"#;
    let written = format!(
        "{asks},{},{}",
        sets("udp", "dport", "53"),
        sets("ip", "daddr", r#""198.51.100.9""#)
    );
    let mut rig = rig(one_chain("prerouting", -300, "accept", &[&written]));
    for round in 0..3 {
        let [_, on] = rig.exchange(0, [frame(&udp((4000, 5353), 20))]);
        let sent = network(&on[0]);
        assert_eq!(sent.transport.ports(), Some((4000, 53)), "round {round}");
        assert_eq!(sent.destination_ip().to_string(), "198.51.100.9");
    }
    let mut found = Vec::new();
    for (_, bucket) in rig.worker.path.buckets.owned() {
        bucket.connections.list(Default::default(), 10, rig.now, |it| found.push(it));
    }
    // One connection, as if the packets had come so. Its replies find it.
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].original.destination.to_string(), "198.51.100.9");
    let mut answer = Vec::new();
    PacketBuilder::v4([198, 51, 100, 9], CLIENT).udp(53, 4000, &[1; 9], &mut answer);
    let [on, _] = rig.exchange(1, [frame(&answer)]);
    assert_eq!(on.len(), 1);
    let count = |rig: &Rig| rig.worker.path.buckets.owned().map(|it| it.1.connections.len()).sum();
    let connections: usize = count(&rig);
    assert_eq!(connections, 1);
    // Packets of that flow that come so themselves leave as they came, and the others still
    // leave written.
    for _ in 0..4 {
        let mut plain = Vec::new();
        PacketBuilder::v4(CLIENT, [198, 51, 100, 9]).udp(4000, 53, &[2; 9], &mut plain);
        let [_, on] = rig.exchange(0, [frame(&plain), frame(&udp((4000, 5353), 20))]);
        let sent: Vec<_> = on.iter().map(network).collect();
        assert_eq!(sent.len(), 2);
        assert!(sent.iter().all(|it| it.transport.ports() == Some((4000, 53))));
    }
    let connections: usize = count(&rig);
    assert_eq!(connections, 1);
}

#[test]
fn every_packet_of_an_established_flow_is_written() {
    let written = [sets("ip", "dscp", r#""ef""#), sets("ip", "ttl", "9")].join(",");
    let mut rig = rig(one_chain("forward", 0, "accept", &[&written]));
    for round in 0..4 {
        let [_, on] = rig.exchange(0, [frame(&udp((4000, 53), 20))]);
        let sent = network(&on[0]);
        assert_eq!((sent.traffic_class, sent.ttl), (0xb8, 9), "round {round}");
        let mut answer = Vec::new();
        PacketBuilder::v4(SERVER, CLIENT).udp(53, 4000, &[1; 9], &mut answer);
        let [on, _] = rig.exchange(1, [frame(&answer)]);
        assert_eq!(network(&on[0]).ttl, 9, "round {round}");
    }
}

#[test]
fn all_fragments_of_a_datagram_are_written() {
    let written = [
        sets("ip", "saddr", r#""203.0.113.7""#),
        sets("ip", "ecn", r#""ce""#),
        sets("udp", "sport", "77"),
    ]
    .join(",");
    let mut rig = rig(one_chain("forward", 0, "accept", &[&written]));
    let whole = udp((4000, 53), 3000);
    let builder = PacketBuilder::v4(CLIENT, SERVER).id(5);
    let pieces = builder.fragments(17, &whole[34..], 1480);
    let [_, on] = rig.exchange(0, pieces.iter().map(|piece| frame(piece)));
    assert_eq!(on.len(), pieces.len());
    let mut datagram = Vec::new();
    for piece in &on {
        let network = dissect(piece.bytes()).unwrap().network.unwrap();
        assert_eq!(network.source_ip().to_string(), "203.0.113.7");
        assert_eq!(network.traffic_class, 3);
        assert!(wire::checksum::is_intact(&piece.bytes()[14..34]));
        datagram.extend_from_slice(&piece.bytes()[34..network.end as usize]);
    }
    // The datagram has the checksum of one that was sent so.
    let mut wanted = Vec::new();
    PacketBuilder::v4([203, 0, 113, 7], SERVER).udp(77, 53, &[7; 3000], &mut wanted);
    assert_eq!(datagram, wanted[34..]);
}
