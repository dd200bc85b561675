use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use flow::{Endpoint, FlowKey, PortPermutation, Zone};
use wire::{Family, Network, TcpFlags, protocol};

use super::*;
use crate::nat::{Addresses, BucketPorts, Ports, TranslatedEnd};
use crate::testing::{Lab, SECRET, address, keyed, tcp, udp};

/// The outside address of all clients, and their server.
const OUTSIDE: u8 = 200;
const SERVER: u8 = 100;

fn hash(key: &FlowKey) -> u64 {
    key.hash(SECRET)
}

fn request(ports: u16) -> Request {
    let outside = IpAddr::from(Ipv4Addr::new(192, 0, 2, OUTSIDE));
    Request {
        addresses: Some(Addresses::one(outside)),
        ports: Ports::new(2000, 1999 + ports),
        ..Request::of(TranslatedEnd::Source)
    }
}

/// A gateway with this many ports.
struct Gateway {
    lab: Lab,
    ports: u16,
    /// Time between two new connections.
    pause: Duration,
}

impl Gateway {
    fn new(ports: u16) -> Self {
        let mut lab = Lab::new();
        (lab.settings.timeouts.udp, lab.settings.timeouts.udp_stream) = (1000, 1000);
        Self { lab, ports, pause: ANSWERED_WITHIN }
    }

    /// Opens a connection of a client; returns its port.
    fn open(&mut self, client: u8, port: u16) -> Result<u16, DropReason> {
        self.open_by(&udp(Family::V4, (client, port), (SERVER, 53)))
    }

    fn open_by(&mut self, packet: &Network) -> Result<u16, DropReason> {
        let tracked = self.lab.offer(packet, Table::track);
        assert!(tracked.fresh);
        let id = tracked.connection.unwrap();
        let own = BucketPorts::new(PortPermutation::IDENTITY, 2000, self.ports.into());
        let supply = Supply { own, seed: 1, hash: &hash };
        let outcome = self.lab.run(|table, context| {
            let outcome = table.translate(id, &request(self.ports), supply, context);
            match outcome {
                Ok(()) => table.confirm(id, context).unwrap(),
                Err(_) => table.withdraw(id, context),
            }
            outcome
        });
        // Time passes, so the first connection has the least time left.
        self.lab.wait(self.pause);
        outcome?;
        let reply = self.lab.table.reply(id);
        Ok(reply.key.end(reply.sender.opposite()).port)
    }

    fn open_all(&mut self, client: u8, ports: impl IntoIterator<Item = u16>) {
        for port in ports {
            self.open(client, port).unwrap();
        }
    }

    fn is_there(&self, client: u8, port: u16) -> bool {
        let packet = keyed(&udp(Family::V4, (client, port), (SERVER, 53)));
        self.lab.table.has(&packet, hash(&packet.key), self.lab.now)
    }

    fn answer(&mut self, port: u16) {
        let tracked = self.lab.track(&udp(Family::V4, (SERVER, 53), (OUTSIDE, port)));
        assert!(tracked.is_translated());
    }

    /// A connection that is assured.
    fn settle(&mut self, client: u8, port: u16) {
        let outside = self.open(client, port).unwrap();
        self.answer(outside);
        self.lab.wait(Duration::from_secs(3));
        self.lab.track(&udp(Family::V4, (client, port), (SERVER, 53)));
        self.answer(outside);
    }

    /// The number of ports that are counted for a client.
    fn held(&self, client: u8) -> u32 {
        let own = BucketPorts::new(PortPermutation::IDENTITY, 2000, self.ports.into());
        let supply = Supply { own, seed: 1, hash: &hash };
        let end = |last, port| Endpoint { address: address(Family::V4, last), port };
        let of =
            |from| FlowKey::of_ports(Family::V4, protocol::UDP, Zone(0), from, end(SERVER, 53));
        let pool = request(self.ports).pool(&of(end(OUTSIDE, 2000)), supply);
        let packet = of(end(client, 1));
        self.lab.limits.port_usage.held(&PortShare::of(pool, &packet.key, packet.sender))
    }
}

#[test]
fn the_longest_waiting_connection_of_the_source_with_most_ports_gives_way() {
    let mut gateway = Gateway::new(8);
    // The first client has five connections, of which three are answered; the second has two,
    // the third one.
    let first: Vec<u16> = (1..=5).map(|port| gateway.open(1, port).unwrap()).collect();
    for answered in &first[..3] {
        gateway.answer(*answered);
        // The first has the least time left, so it is the one that goes.
        gateway.lab.wait(gateway.pause);
    }
    gateway.open_all(2, 1..=2);
    let of_third = gateway.open(3, 1).unwrap();
    gateway.answer(of_third);
    let ends = [
        // Five and four count as equal, because only the power of two matters.
        (1, 4),
        (1, 5),
        // So do three and two: an unanswered connection goes first.
        (2, 1),
        (1, 1),
        // Now every client has two or one.
        (1, 2),
        (2, 2),
    ];
    for (number, (client, port)) in ends.into_iter().enumerate() {
        assert!(gateway.is_there(client, port), "{client} {port} is there before");
        gateway.open(10 + number as u8, 1).unwrap();
        assert!(!gateway.is_there(client, port), "{client} {port} has given way");
        assert_eq!(gateway.lab.table.len(), 8);
    }
    assert_eq!((gateway.held(1), gateway.held(2), gateway.held(3)), (1, 0, 1));
    assert_eq!(gateway.lab.counters.early_drop, ends.len() as u64);
}

#[test]
fn nobody_gives_way_to_who_has_more() {
    let mut gateway = Gateway::new(8);
    (1..=5).for_each(|port| gateway.settle(1, port));
    gateway.open_all(2, 1..=3);
    assert_eq!(gateway.open(1, 6), Err(DropReason::PortPoolFull));
    assert!((1..=3).all(|port| gateway.is_there(2, port)));
    // Among clients with equal numbers unanswered connections are evicted, and established ones
    // never are.
    gateway.open_all(2, 4..=20);
    assert!((1..=5).all(|port| gateway.is_there(1, port)));
    assert_eq!((gateway.held(1), gateway.held(2)), (5, 3));
}

#[test]
fn an_answered_connection_gives_way_to_a_source_with_less_than_half_as_many() {
    for (own, gives_way) in [(0, true), (1, true), (2, false)] {
        let mut gateway = Gateway::new(10);
        // The first client has at least twice as many as the second, or not.
        (1..=own).for_each(|port| gateway.settle(2, port));
        for port in 1..=4 {
            let outside = gateway.open(1, port).unwrap();
            gateway.answer(outside);
        }
        (1..=6 - own).for_each(|port| gateway.settle(3, port));
        let got = gateway.open(2, 100);
        assert_eq!(got.is_ok(), gives_way, "{own}: {got:?}");
        assert_eq!(gateway.held(1), if gives_way { 3 } else { 4 });
    }
}

#[test]
fn a_connection_that_may_still_be_answered_gives_way_to_its_own_source_alone() {
    let mut gateway = Gateway::new(8);
    gateway.pause = Duration::ZERO;
    gateway.open_all(1, 1..=8);
    assert_eq!(gateway.open(2, 1), Err(DropReason::PortPoolFull));
    gateway.open(1, 9).unwrap();
    gateway.lab.wait(ANSWERED_WITHIN - Duration::from_millis(50));
    assert_eq!(gateway.open(2, 1), Err(DropReason::PortPoolFull));
    gateway.lab.wait(Duration::from_millis(100));
    gateway.open(2, 1).unwrap();
    assert_eq!((gateway.held(1), gateway.held(2)), (7, 1));
}

#[test]
fn a_closing_connection_gives_way_to_equal_sources_and_not_to_larger_ones() {
    const ACK: u8 = TcpFlags::ACK.0;
    let mut gateway = Gateway::new(4);
    let segment = |client, port, flags, numbers| {
        tcp(Family::V4, (client, port), (SERVER, 53), flags, numbers)
    };
    let connect = |gateway: &mut Gateway, client, port| {
        let outside = gateway.open_by(&segment(client, port, TcpFlags::SYN.0, (0, 0)))?;
        let answer = (SERVER, 53);
        let syn_ack = TcpFlags::SYN.0 | ACK;
        gateway.lab.track(&tcp(Family::V4, answer, (OUTSIDE, outside), syn_ack, (0, 9)));
        gateway.lab.track(&segment(client, port, ACK, (9, 9)));
        Ok::<_, DropReason>(())
    };
    for port in 1..=2 {
        connect(&mut gateway, 1, port).unwrap();
        connect(&mut gateway, 2, port).unwrap();
    }
    assert_eq!(connect(&mut gateway, 3, 1), Err(DropReason::PortPoolFull));
    gateway.lab.track(&segment(1, 2, TcpFlags::FIN.0 | ACK, (17, 9)));
    connect(&mut gateway, 2, 3).unwrap();
    assert_eq!(gateway.lab.counters.early_drop, 1);
    // Now the second has three, so none of the first is evicted for it.
    gateway.lab.track(&segment(1, 1, TcpFlags::FIN.0 | ACK, (17, 9)));
    assert_eq!(connect(&mut gateway, 2, 4), Err(DropReason::PortPoolFull));
    connect(&mut gateway, 3, 1).unwrap();
}

#[test]
fn a_source_that_has_its_part_goes_on_with_its_own() {
    let mut gateway = Gateway::new(400);
    gateway.lab.settings.nat_source_share = 50;
    gateway.open_all(1, 0..200);
    for port in 200..300 {
        gateway.open(1, port).unwrap();
        assert_eq!((gateway.held(1), gateway.lab.table.len()), (200, 200));
    }
    assert_eq!(gateway.lab.counters.early_drop, 100);
    // Another client gets the remaining ports.
    gateway.open_all(2, 0..150);
    assert_eq!((gateway.held(1), gateway.held(2)), (200, 150));
}

#[test]
fn a_source_that_has_its_part_established_is_refused() {
    let mut gateway = Gateway::new(100);
    gateway.lab.settings.nat_source_share = 50;
    (0..50).for_each(|port| gateway.settle(1, port));
    assert_eq!(gateway.open(1, 50), Err(DropReason::NatSourceLimit));
    assert_eq!(gateway.lab.table.len(), 50);
    gateway.lab.settings.nat_source_share = 100;
    gateway.open_all(1, 50..100);
    assert_eq!(gateway.open(1, 100), Err(DropReason::PortPoolFull));
}

#[test]
fn counted_ports_move_with_their_table_and_end_with_their_connection() {
    let mut gateway = Gateway::new(50);
    gateway.open_all(1, 0..20);
    gateway.open_all(2, 0..10);
    let Lab { table, limits, .. } = &mut gateway.lab;
    table.count_out(limits);
    assert_eq!(limits.port_usage.total(), 0);
    table.count_in(limits, 0);
    assert_eq!((limits.port_usage.total(), gateway.held(1), gateway.held(2)), (30, 20, 10));
    gateway.lab.wait(Duration::from_secs(1000));
    while gateway.lab.run(|table, context| table.expire(100, context)) > 0 {}
    assert_eq!(gateway.lab.limits.port_usage.total(), 0);
}
