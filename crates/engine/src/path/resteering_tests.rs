use std::sync::mpsc::sync_channel;

use conntrack::Cursor;
use steer::{AddressSet, BucketId};
use wire::TcpFlags;

use crate::testing::many_workers::TestGateway;
use crate::testing::router::{OWN, SERVER, ends, from_inside, from_outside, gateway, ip, tcp, udp};
use crate::worker::command::{Command, Question};

const CLIENT: [u8; 4] = [192, 0, 2, 7];
const SYN: u8 = TcpFlags::SYN.0;
const ACK: u8 = TcpFlags::ACK.0;
const RST: u8 = TcpFlags::RST.0;

/// Changes the inside addresses as the coordinator does.
fn change_inside(gateway: &mut TestGateway, inside: &AddressSet) {
    prepare(gateway, inside);
    for bucket in (0..16).map(BucketId) {
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            let (reply, answer) = sync_channel(1);
            let owner = gateway.owners[bucket.index()].index();
            let question = Question::Resteer(bucket, from, reply);
            gateway.handles[owner].tell(Command::Ask(question)).unwrap();
            gateway.run_until_idle();
            next = answer.recv().unwrap();
        }
    }
    take_effect(gateway, inside);
}

fn prepare(gateway: &mut TestGateway, inside: &AddressSet) {
    for handle in &mut gateway.handles {
        handle.tell(Command::PrepareInside(Some(inside.clone()))).unwrap();
    }
    gateway.run_until_idle();
}

fn take_effect(gateway: &mut TestGateway, inside: &AddressSet) {
    for handle in &mut gateway.handles {
        handle.tell(Command::Inside(inside.clone())).unwrap();
    }
    gateway.hasher.set_inside(inside.clone());
    gateway.run_until_idle();
}

/// All sets of addresses that the tests change to: none at all, the client alone, and its network.
fn sets(gateway: &TestGateway) -> [AddressSet; 3] {
    let client = std::net::Ipv4Addr::from(CLIENT).to_ipv6_mapped().octets();
    [AddressSet::default(), AddressSet::new([client..=client]), gateway.hasher.inside().clone()]
}

#[test]
fn connections_find_their_packets_when_inside_addresses_change() {
    let mut gateway = gateway(3);
    let flows: Vec<u16> = (0..40).map(|number| 20_000 + number * 37).collect();
    for &port in &flows {
        let bytes = udp(&from_inside(CLIENT, SERVER), (port, 53), b"question");
        assert_eq!(ends(&gateway.pass(0, &bytes))[0], (OWN.into(), port), "it keeps its port");
    }
    assert_eq!((gateway.connections(), gateway.aliases()), (40, 0));
    let sets = sets(&gateway);
    for at in [0, 2, 1, 2, 0, 1, 2] {
        change_inside(&mut gateway, &sets[at]);
        for &port in &flows {
            let bytes = udp(&from_outside(SERVER, OWN), (53, port), b"answer");
            assert_eq!(ends(&gateway.pass(1, &bytes))[1], (CLIENT.into(), port));
            let bytes = udp(&from_inside(CLIENT, SERVER), (port, 53), b"question");
            assert_eq!(ends(&gateway.pass(0, &bytes))[0], (OWN.into(), port));
        }
        assert_eq!(gateway.connections(), 40, "none was opened again");
    }
    // Under the addresses that they were opened with they need no aliases.
    assert_eq!(gateway.aliases(), 0);
}

#[test]
fn a_connection_that_opens_during_a_change_finds_its_packets_after_it() {
    let mut gateway = gateway(2);
    let [none, ..] = sets(&gateway);
    prepare(&mut gateway, &none);
    for port in 30_000..30_040 {
        gateway.pass(0, &udp(&from_inside(CLIENT, SERVER), (port, 53), b"question"));
    }
    assert!(gateway.aliases() > 0);
    take_effect(&mut gateway, &none);
    for port in 30_000..30_040 {
        let bytes = udp(&from_outside(SERVER, OWN), (53, port), b"answer");
        assert_eq!(ends(&gateway.pass(1, &bytes))[1], (CLIENT.into(), port));
    }
    assert_eq!(gateway.connections(), 40);
}

#[test]
fn aliases_end_with_connections_whose_packets_were_steered_anew() {
    let mut gateway = gateway(2);
    let server: std::net::IpAddr = SERVER.into();
    for port in 40_000..40_020 {
        gateway.pass(0, &tcp(&from_inside(CLIENT, SERVER), (port, 80), SYN, (1, 0)));
    }
    let [none, ..] = sets(&gateway);
    change_inside(&mut gateway, &none);
    assert!(gateway.aliases() > 0);
    for port in 40_000..40_020 {
        let answer = tcp(&from_outside(SERVER, OWN), (80, port), RST | ACK, (0, 2));
        assert_eq!(ends(&gateway.pass(1, &answer)), [(server, 80), (ip("192.0.2.7"), port)]);
    }
    gateway.now = gateway.now.after(std::time::Duration::from_secs(60));
    gateway.run_until_idle();
    assert_eq!((gateway.connections(), gateway.aliases()), (0, 0));
}
