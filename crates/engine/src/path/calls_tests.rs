//! PPTP calls. Their packets name only the call id of the receiver.

use std::collections::HashSet;

use conntrack::helper::Kind;
use wire::{Transport, protocol};

use crate::testing::control_connection::*;
use crate::testing::router::*;

const PPTP: u16 = 1723;
/// The parts of a GRE header before and behind the key.
const GRE_HEAD: [u8; 6] = [0x20, 1, 0x88, 0x0b, 0, 4];

/// Several hosts behind one address, and a server behind it that is reached by its port.
fn net(workers: u16) -> Net {
    let rules = RULES.replace(r#""right":8080"#, r#""right":1723"#);
    let rules = rules.replace(r#""port":80"#, r#""port":1723"#);
    Net::helped_by(Kind::Pptp, PPTP, workers, &rules)
}

/// A control message (RFC 2637 section 2) with these words behind its header.
fn message(kind: u16, words: &[u16]) -> Vec<u8> {
    const LENGTHS: [u16; 16] = [0, 156, 156, 16, 16, 16, 20, 168, 32, 220, 24, 28, 16, 148, 40, 24];
    let length = LENGTHS[usize::from(kind)];
    let head = [length, 1, 0x1a2b, 0x3c4d, kind, 0];
    let mut bytes: Vec<u8> = head.iter().chain(words).flat_map(|it| it.to_be_bytes()).collect();
    bytes.resize(length.into(), 0);
    bytes
}

/// The first words behind the header.
fn words(bytes: &[u8]) -> [u16; 2] {
    [12, 14].map(|at| u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// A control connection. End 0 is its opener.
struct Control {
    /// The port that the opener is behind.
    port: usize,
    /// For each end, the address that it sends to and the address that the other end sees.
    speaks: [(Host, Host); 2],
    said: [u32; 2],
}

impl Control {
    fn open(net: &mut Net, port: usize, client: Host, server: Host) -> Self {
        let (real, seen) = net.open(port, client, server);
        let speaks = [(client, server), (real, seen)];
        let mut control = Self { port, speaks, said: [101, 501] };
        control.say(net, 0, &message(1, &[]));
        control.say(net, 1, &message(2, &[0x100, 0x100]));
        control
    }

    fn side(&self, who: usize) -> usize {
        if who == 0 { self.port } else { 1 - self.port }
    }

    /// Sends a message of one end. Returns the message that the other end gets.
    fn say(&mut self, net: &mut Net, who: usize, text: &[u8]) -> Vec<u8> {
        let port = self.side(who);
        let numbers = (self.said[who], self.said[1 - who]);
        let bytes = net.segment(port, self.speaks[who], PSH_ACK, numbers, text);
        net.gateway.arrive(port, &bytes);
        net.gateway.run_until_idle();
        let sent = net.gateway.sent(1 - port);
        assert_eq!(sent.len(), 1, "dropped: {:?}", net.gateway.reasons());
        let network = seen(&sent[0]);
        let (from, to) = self.speaks[1 - who];
        assert_eq!(ends(&network), [to, from]);
        self.said[who] += text.len() as u32;
        sent[0].bytes()[14 + 40..].to_vec()
    }

    /// Sets up a call that the opener asks for. Returns the id of each end, with the id by which
    /// the other end knows it.
    fn call(&mut self, net: &mut Net, pns: u16, pac: u16) -> [(u16, u16); 2] {
        let [known, _] = words(&self.say(net, 0, &message(7, &[pns])));
        let again = self.say(net, 1, &message(8, &[pac, known, 0x100]));
        let [known_pac, meant] = words(&again);
        assert_eq!(meant, pns, "each end reads its own id");
        // Set-Link-Info.
        assert_eq!(words(&self.say(net, 0, &message(15, &[known_pac])))[0], pac);
        [(pns, known), (pac, known_pac)]
    }

    /// Sends a packet of a call from one end to the other. Returns the call id with which it
    /// arrives; `None` if it does not arrive.
    fn frame(&self, net: &mut Net, who: usize, call: &[(u16, u16); 2]) -> Option<u16> {
        let port = self.side(who);
        let ((from, _), (to, _)) = self.speaks[who];
        let [high, low] = call[1 - who].1.to_be_bytes();
        let mut gre = GRE_HEAD.to_vec();
        gre.extend([high, low, b'c', b'a', b'l', b'l']);
        let mut bytes = Vec::new();
        let station = [INSIDE, OUTSIDE][port];
        let packet = builder(from, to).macs(station, STATIONS[port]);
        packet.transport(protocol::GRE, &gre, &mut bytes);
        net.gateway.arrive(port, &bytes);
        net.gateway.run_until_idle();
        let sent = net.gateway.sent(1 - port);
        let network = seen(sent.first()?);
        let ((from, _), (to, _)) = self.speaks[1 - who];
        assert_eq!([network.source_ip(), network.destination_ip()], [to, from]);
        let Transport::Gre { version: 1, key } = network.transport else { panic!("GRE") };
        Some(key as u16)
    }

    /// Checks that packets of a call arrive both ways, each with its receiver's own id.
    fn check(&self, net: &mut Net, first: usize, call: &[(u16, u16); 2]) {
        for who in [first, 1 - first, first] {
            let heard = self.frame(net, who, call);
            assert_eq!(
                heard,
                Some(call[1 - who].0),
                "{call:?}, dropped: {:?}",
                net.gateway.reasons()
            );
        }
    }
}

#[test]
fn hosts_behind_one_address_call_one_server_with_the_same_ids() {
    for workers in 1..4 {
        let mut net = net(workers);
        let server = (net.outside, PPTP);
        let mut calls = Vec::new();
        for host in 10..14 {
            let client = (ip(&format!("192.0.2.{host}")), 40000);
            let mut control = Control::open(&mut net, 0, client, server);
            for id in [6, 7] {
                // The server sees one peer, so it gives each call an id of its own.
                let call = control.call(&mut net, id, 100 + calls.len() as u16);
                calls.push((control.speaks, call));
                control.check(&mut net, usize::from(id) % 2, &call);
            }
            calls.iter().for_each(|(speaks, call)| {
                let control = Control { port: 0, speaks: *speaks, said: [0; 2] };
                control.check(&mut net, 0, call);
            });
        }
        let known: HashSet<u16> = calls.iter().map(|(_, call)| call[0].1).collect();
        assert_eq!(known.len(), 8, "{calls:?}");
        // Each call is a connection, beside the four control connections.
        assert_eq!(
            (net.gateway.connections(), net.gateway.reasons(), net.expected()),
            (12, vec![], 0)
        );
    }
}

#[test]
fn a_call_ends_when_its_end_says_so_and_others_go_on() {
    for (workers, first) in [(1, 0), (2, 0), (3, 1), (2, 1)] {
        let mut net = net(workers);
        let server = (net.outside, PPTP);
        let mut controls: Vec<_> = (10..13)
            .map(|host| {
                let client = (ip(&format!("192.0.2.{host}")), 40000);
                let mut control = Control::open(&mut net, 0, client, server);
                let call = control.call(&mut net, 6, host);
                control.check(&mut net, first, &call);
                (control, call)
            })
            .collect();
        let (control, call) = &mut controls[1];
        let cleared = control.say(&mut net, 0, &message(12, &[call[0].0]));
        assert_eq!(words(&cleared)[0], call[0].1, "the server knows it by this");
        control.say(&mut net, 1, &message(13, &[call[1].0]));
        net.gateway.run_until_idle();
        assert_eq!(net.gateway.connections(), 5);
        for (at, (control, call)) in controls.iter().enumerate() {
            if at != 1 {
                control.check(&mut net, first, call);
            }
        }
        let (control, call) = &controls[1];
        assert_eq!(control.frame(&mut net, 1, call), None, "nobody has announced it");
        // The control connection goes on.
        let (control, _) = &mut controls[1];
        let call = control.call(&mut net, 6, 77);
        control.check(&mut net, first, &call);
    }
}

#[test]
fn a_server_behind_the_router_takes_calls() {
    for (workers, client_port) in [(1, 3000), (2, 3001), (3, 3002), (3, 3003)] {
        for first in [0, 1] {
            let mut net = net(workers);
            let (client, server) = ((net.outside, client_port), (net.own, PPTP));
            let mut control = Control::open(&mut net, 1, client, server);
            for id in [6, 7] {
                let call = control.call(&mut net, id, id ^ 1);
                control.check(&mut net, first, &call);
            }
            assert_eq!((net.gateway.connections(), net.gateway.reasons()), (3, vec![]));
        }
    }
}

#[test]
fn an_error_about_a_call_finds_the_host_behind_the_router() {
    for workers in 1..4 {
        let mut net = net(workers);
        let server = (net.outside, PPTP);
        let mut calls = Vec::new();
        for host in 10..13 {
            let client = (ip(&format!("192.0.2.{host}")), 40000);
            let mut control = Control::open(&mut net, 0, client, server);
            let call = control.call(&mut net, 6, host);
            control.check(&mut net, 0, &call);
            calls.push((client.0, call));
        }
        for (client, call) in calls {
            let mut gre = GRE_HEAD.to_vec();
            gre.extend(call[1].1.to_be_bytes());
            gre.extend(b"call");
            let mut onward = Vec::new();
            let sent = builder(net.own, net.outside).macs(STATIONS[1], OUTSIDE);
            sent.transport(protocol::GRE, &gre, &mut onward);
            let mut error = [0; wire::icmp_error::MAX_FRAME];
            let message = wire::icmp_error::Message::Unreachable { code: 1 };
            let router = ip("198.51.100.2");
            let length = wire::icmp_error::write(&onward, message, router, &mut error).unwrap();
            wire::set_stations(&mut error, OUTSIDE, STATIONS[1]);
            net.gateway.arrive(1, &error[..length]);
            net.gateway.run_until_idle();
            let sent = net.gateway.sent(0);
            assert_eq!(sent.len(), 1, "dropped: {:?}", net.gateway.reasons());
            let network = seen(&sent[0]);
            assert_eq!(network.destination_ip(), client);
            let Transport::IcmpError(error) = network.transport else { panic!("{network:?}") };
            assert_eq!(wire::mapped(client), error.quoted.unwrap().source, "who has sent it");
        }
    }
}

#[test]
fn calls_stay_while_their_buckets_move() {
    let mut net = net(3);
    let server = (net.outside, PPTP);
    let mut calls = Vec::new();
    for host in 10..14 {
        let client = (ip(&format!("192.0.2.{host}")), 40000);
        let mut control = Control::open(&mut net, 0, client, server);
        let call = control.call(&mut net, 6, host);
        for bucket in 0..16 {
            net.gateway.start_move(bucket, bucket + host);
            net.gateway.run_until_idle();
        }
        control.check(&mut net, usize::from(host) % 2, &call);
        calls.push((control, call));
        for bucket in 0..16 {
            net.gateway.start_move(bucket, bucket + host + 1);
            net.gateway.run_until_idle();
        }
        calls.iter().for_each(|(control, call)| control.check(&mut net, 0, call));
    }
    assert_eq!((net.gateway.connections(), net.gateway.reasons()), (8, vec![]));
}

#[test]
fn ids_that_are_given_anew_end_the_call_that_had_them() {
    for (workers, first) in [(1, 0), (2, 0), (3, 1)] {
        let mut net = net(workers);
        let server = (net.outside, PPTP);
        // No message has ended the first call: one end has started anew.
        for port in [40000, 40001] {
            let client = (net.inside, port);
            let mut control = Control::open(&mut net, 0, client, server);
            let call = control.call(&mut net, 6, 100);
            control.check(&mut net, first, &call);
        }
        net.gateway.run_until_idle();
        assert_eq!((net.gateway.connections(), net.gateway.reasons()), (3, vec![]));
    }
}
