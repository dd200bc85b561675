use std::net::Ipv4Addr;

use wire::Family;
use wire::build::PacketBuilder;

use super::*;
use crate::TrackedPacket;
use crate::testing::{Lab, udp};

fn passage(number: u32) -> Passage {
    let mut frame = Vec::new();
    let far = Ipv4Addr::from(0xc000_0200 + number).octets();
    PacketBuilder::v4([203, 0, 113, 1], far).raw(wire::protocol::IPIP, &[0; 40], &mut frame);
    let network = wire::dissect(&frame).unwrap().network.unwrap();
    (FlowKey::of_packet(&network, Zone(0)).unwrap().key, 0)
}

#[test]
fn each_tunnel_has_a_number_and_each_vlan_inside() {
    let mut inside = Inside::new(Timestamp::from_secs(1));
    let mut numbers = BTreeSet::new();
    for (number, vlan) in (0..10).flat_map(|number| [(number, 0), (number, 7)]) {
        let (key, _) = passage(number);
        let first = inside.number((key, vlan)).unwrap();
        assert_eq!(inside.number((key, vlan)), Some(first));
        assert!(numbers.insert(first));
    }
}

#[test]
fn passages_without_connections_are_forgotten_however_many_connections_there_are() {
    const CONNECTIONS: u32 = 33_000;
    let mut lab = Lab::new();
    let mut inside = Inside::new(lab.now);
    for number in 0..CONNECTIONS {
        let zone = inside.number(passage(number)).unwrap();
        lab.offer(&udp(Family::V4, (1, 1000), (2, 53)), |_, packet, context| {
            let (keyed, hash) = packet.keyed.moved(packet.hash, zone);
            let packet = TrackedPacket { keyed: &keyed, hash, ..*packet };
            inside.connections.track_and_accept(&packet, context)
        });
    }
    assert_eq!(inside.connections.len(), CONNECTIONS as usize);
    // More than there are numbers.
    for number in 100_000..200_000 {
        assert!(inside.number(passage(number)).is_some(), "{}", number - 100_000);
    }
    // And those that connections have are still theirs.
    let held: Vec<_> = (0..CONNECTIONS).map(|number| inside.number(passage(number))).collect();
    assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), CONNECTIONS as usize);
}

#[test]
fn numbers_of_connections_that_are_gone_are_given_again_and_no_others() {
    let mut lab = Lab::new();
    let mut inside = Inside::new(lab.now);
    // A connection in each of the first hundred tunnels.
    for number in 0..100 {
        let zone = inside.number(passage(number)).unwrap();
        lab.offer(&udp(Family::V4, (1, 1000), (2, 53)), |_, packet, context| {
            let (keyed, hash) = packet.keyed.moved(packet.hash, zone);
            let packet = TrackedPacket { keyed: &keyed, hash, ..*packet };
            inside.connections.track_and_accept(&packet, context)
        });
    }
    let held: Vec<_> = (0..100).map(|number| inside.number(passage(number))).collect();
    for number in 1000..100_000 {
        assert!(!held.contains(&inside.number(passage(number))));
        assert!(inside.numbers.len() <= 200, "{}", inside.numbers.len());
    }
    let still: Vec<_> = (0..100).map(|number| inside.number(passage(number))).collect();
    assert_eq!(still, held);
}
