use std::sync::mpsc::sync_channel;

use conntrack::{Change, Cursor};
use flow::KeyedPacket;
use steer::{AddressSet, BucketId};
use wire::TcpFlags;

use crate::path::replication::{CopyChange, CopyReport};
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

/// A gateway that prepares for these inside addresses, with 40 connections that it opened meanwhile.
fn gateway_with_openings_during_a_change() -> (TestGateway, AddressSet) {
    let mut gateway = gateway(2);
    let [none, ..] = sets(&gateway);
    prepare(&mut gateway, &none);
    for port in 30_000..30_040 {
        gateway.pass(0, &udp(&from_inside(CLIENT, SERVER), (port, 53), b"question"));
    }
    assert!(gateway.aliases() > 0);
    (gateway, none)
}

#[test]
fn a_connection_that_opens_during_a_change_finds_its_packets_after_it() {
    let (mut gateway, none) = gateway_with_openings_during_a_change();
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

#[test]
fn a_source_that_is_sought_during_a_change_is_filed_when_it_is_found() {
    let mut gateway = gateway(2);
    let [none, _, network] = sets(&gateway);
    // With nothing inside, every reply needs an alias, so a second client hears that the port of
    // the first is taken.
    change_inside(&mut gateway, &none);
    prepare(&mut gateway, &network);
    let clients = [CLIENT, [192, 0, 2, 8], [192, 0, 2, 9]];
    let mut ports = Vec::new();
    for port in 30_000..30_020 {
        for client in clients {
            let question = udp(&from_inside(client, SERVER), (port, 53), b"question");
            let [(source, outside), _] = ends(&gateway.pass(0, &question));
            assert_eq!(source, ip("198.51.100.254"));
            ports.push((client, port, outside));
        }
    }
    assert!(ports.iter().any(|(_, own, outside)| own != outside));
    take_effect(&mut gateway, &network);
    for (client, port, outside) in ports {
        let answer = udp(&from_outside(SERVER, OWN), (53, outside), b"answer");
        assert_eq!(ends(&gateway.pass(1, &answer))[1], (client.into(), port));
        let more = udp(&from_inside(client, SERVER), (port, 53), b"more");
        assert_eq!(ends(&gateway.pass(0, &more))[0], (OWN.into(), outside));
    }
    assert_eq!(gateway.connections(), 60);
}

#[test]
fn a_connection_that_takes_the_place_of_one_that_was_steered_anew_keeps_its_way() {
    const FIN: u8 = TcpFlags::FIN.0;
    let mut gateway = gateway(2);
    let [none, _, network] = sets(&gateway);
    for port in 41_000..41_020 {
        change_inside(&mut gateway, &network);
        let there = |flags, numbers| tcp(&from_inside(CLIENT, SERVER), (port, 80), flags, numbers);
        let back = |flags, numbers| tcp(&from_outside(SERVER, OWN), (80, port), flags, numbers);
        gateway.pass(0, &there(SYN, (1, 0)));
        gateway.pass(1, &back(SYN | ACK, (100, 2)));
        gateway.pass(0, &there(ACK, (2, 101)));
        gateway.pass(0, &there(FIN | ACK, (2, 101)));
        gateway.pass(1, &back(FIN | ACK, (101, 3)));
        gateway.pass(0, &there(ACK, (3, 102)));
        let connections = gateway.connections();
        change_inside(&mut gateway, &none);
        // The same port again, as from a host that counts its sequence numbers on.
        let source = |gateway: &mut TestGateway, bytes: &[u8]| ends(&gateway.pass(0, bytes))[0];
        assert_eq!(source(&mut gateway, &there(SYN, (500_000, 0))), (OWN.into(), port));
        let answer = gateway.pass(1, &back(SYN | ACK, (900_000, 500_001)));
        assert_eq!(ends(&answer)[1], (CLIENT.into(), port));
        let more = there(ACK, (500_001, 900_001));
        assert_eq!(source(&mut gateway, &more), (OWN.into(), port), "its next packet finds it");
        assert_eq!(gateway.connections(), connections, "it has taken the place");
    }
}

#[test]
fn a_change_that_is_given_up_leaves_no_aliases() {
    let (mut gateway, _) = gateway_with_openings_during_a_change();
    for handle in &mut gateway.handles {
        handle.tell(Command::PrepareInside(None)).unwrap();
    }
    gateway.run_until_idle();
    assert_eq!((gateway.connections(), gateway.aliases()), (40, 0));
}

/// Asks the owner of a bucket.
fn ask<T>(
    gateway: &mut TestGateway,
    bucket: BucketId,
    question: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Question,
) -> T {
    let (reply, answer) = sync_channel(1);
    let owner = gateway.owners[bucket.index()].index();
    gateway.handles[owner].tell(Command::Ask(question(reply))).unwrap();
    gateway.run_until_idle();
    answer.recv().unwrap()
}

/// The records of all connections.
fn records(gateway: &mut TestGateway) -> Vec<conntrack::ConnectionRecord> {
    let mut records = Vec::new();
    for bucket in (0..16).map(BucketId) {
        let tell = |reply| Question::TellAll(bucket, Cursor::default(), reply);
        let piece = ask(gateway, bucket, tell).unwrap();
        records.extend(piece.changes.into_iter().filter_map(|change| match change {
            Change::State { record, .. } => Some(record),
            Change::End { .. } => None,
        }));
    }
    records
}

/// Makes changes of copies as the coordinator does.
fn apply(gateway: &mut TestGateway, changes: Vec<CopyChange>) -> CopyReport {
    let mut report = CopyReport::default();
    for change in changes {
        let mut place = Some((gateway.hasher.bucket_of_key(&change.original().key), change));
        while let Some((bucket, change)) = place {
            let lot = ask(gateway, bucket, |reply| Question::Apply(vec![(bucket, change)], reply));
            report.add(lot.report);
            place = lot.back.into_iter().next();
        }
    }
    report
}

#[test]
fn changes_of_copies_find_connections_whose_packets_were_steered_anew() {
    let mut gateway = gateway(3);
    for port in 30_000..30_040 {
        gateway.pass(0, &udp(&from_inside(CLIENT, SERVER), (port, 53), b"question"));
    }
    let records = records(&mut gateway);
    assert_eq!(records.len(), 40);
    let states = || {
        let state = |record| CopyChange::State { record: Box::new(record), prevails: true };
        records.iter().cloned().map(state).collect::<Vec<_>>()
    };
    assert_eq!(apply(&mut gateway, states()).given_up, 40, "they are the peer's now");
    let [none, ..] = sets(&gateway);
    change_inside(&mut gateway, &none);
    assert!(gateway.aliases() > 0);
    let report = apply(&mut gateway, states());
    assert_eq!((report.changed, report.refused), (40, Vec::new()));
    assert_eq!(gateway.connections(), 40);
    // One that begins anew is found by its packets again.
    let originals: Vec<KeyedPacket> = records.iter().map(|record| record.original()).collect();
    let ends = || originals.iter().map(|it| CopyChange::End(*it)).collect::<Vec<_>>();
    assert_eq!(apply(&mut gateway, ends()).ended, 40);
    assert_eq!((gateway.connections(), gateway.aliases()), (0, 0));
    assert_eq!(apply(&mut gateway, states()).made, 40);
    for port in 30_000..30_040 {
        let bytes = udp(&from_outside(SERVER, OWN), (53, port), b"answer");
        assert_eq!(
            crate::testing::router::ends(&gateway.pass(1, &bytes))[1],
            (CLIENT.into(), port)
        );
    }
}
