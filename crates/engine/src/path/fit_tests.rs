use std::sync::Arc;

use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, Rule, TableId};
use flow::{DropReason, HashKey};
use netlink::{Link, Picture};
use wire::build::PacketBuilder;
use wire::{IcmpError, Transport, protocol};

use crate::Config;
use crate::egress::Mode;
use crate::egress::routing::Routing;
use crate::testing::many_workers::TestGateway;
use crate::worker::command::Command;

const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const HOSTS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];
/// Bytes of payload in a fragment: the first of a datagram fits a link of 1280 bytes, and the
/// second does not.
const PIECES: [usize; 3] = [800, 1400, 80];

/// A router between two links; the second takes 1280 bytes.
fn router() -> TestGateway {
    let mut picture = Picture::default();
    for ipv6 in [false, true] {
        picture
            .fib
            .set_rules(ipv6, vec![Rule::ask(1, TableId::LOCAL), Rule::ask(2, TableId::MAIN)]);
    }
    for (number, name) in ["lan0", "wan0"].into_iter().enumerate() {
        let [v4, v6] = [["192.0.2", "2001:db8:1:"], ["198.51.100", "2001:db8:2:"]][number];
        let own = [format!("{v4}.254/24"), format!("{v6}:fe/64")];
        let link = Link {
            name: name.to_owned(),
            station: Some(STATIONS[number]),
            mtu: 1500,
            is_up: true,
            addresses: own.iter().map(|it| it.parse().unwrap()).collect(),
        };
        let id = LinkId(10 + number as u32);
        for network in &link.addresses {
            let host = ipnet::IpNet::from(network.addr());
            picture.fib.insert(TableId::LOCAL, Route::new(host, Action::Local));
            let hops = Hops::one(NextHop::new(id, None));
            picture.fib.insert(TableId::MAIN, Route::new(network.trunc(), Action::Forward(hops)));
        }
        for host in [format!("{v4}.1"), format!("{v6}:1")] {
            let known = Neighbour::Known { station: HOSTS[number], is_fresh: true };
            picture.neighbours.insert(id, host.parse().unwrap(), known);
        }
        picture.links.insert(id, link);
    }
    let links = ["lan0", "wan0"].map(|name| picture.link_named(name));
    let routing = Arc::new(Routing::new(&picture, &links));
    let mut config = Config::new(HashKey(1, 2));
    config.mode = Mode::Routed;
    let mut gateway = TestGateway::new(&config, 2, true);
    for handle in &mut gateway.handles {
        handle.tell(Command::Routing(routing.clone())).unwrap();
        handle.tell(Command::SetMtus(vec![Some(1500), Some(1280)])).unwrap();
    }
    gateway.run_until_idle();
    gateway
}

fn v4() -> PacketBuilder {
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 1]).id(7).macs(HOSTS[0], STATIONS[0])
}

fn v6() -> PacketBuilder {
    let host = |network: u8| {
        let mut address = [0; 16];
        address[..6].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8, 0, network]);
        address[15] = 1;
        address
    };
    PacketBuilder::v6(host(1), host(2)).id(7).macs(HOSTS[0], STATIONS[0])
}

/// A datagram in fragments of these lengths. Those at `kept_whole` have "don't fragment".
fn fragments(builder: &PacketBuilder, lengths: &[usize], kept_whole: &[usize]) -> Vec<Vec<u8>> {
    let mut whole = Vec::new();
    builder.udp(7, 9, &vec![1; lengths.iter().sum::<usize>() - 8], &mut whole);
    let mut rest = &whole[whole.len() - lengths.iter().sum::<usize>()..];
    let (mut offset, mut frames) = (0, Vec::new());
    for (at, length) in lengths.iter().enumerate() {
        let (piece, behind) = rest.split_at(*length);
        let builder = builder.clone();
        let builder = if kept_whole.contains(&at) { builder.dont_fragment() } else { builder };
        let mut frame = Vec::new();
        builder.fragment(protocol::UDP, offset, !behind.is_empty(), piece, &mut frame);
        frames.push(frame);
        (offset, rest) = (offset + *length as u16, behind);
    }
    frames
}

/// Sends frames; returns how many have left, and type and code of the errors that their sender
/// has got.
fn send(gateway: &mut TestGateway, frames: &[Vec<u8>]) -> (usize, Vec<(u8, u8)>) {
    frames.iter().for_each(|frame| gateway.arrive(0, frame));
    gateway.run_until_idle();
    let errors = gateway.sent(0).into_iter().map(|frame| {
        let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
        let Transport::IcmpError(IcmpError { kind, code, quoted: Some(quoted), .. }) =
            network.transport
        else {
            panic!("{network:?}")
        };
        let ports = wire::QuotedTransport::Ports { source: 7, destination: 9 };
        assert_eq!(quoted.transport, ports, "the error names the flow");
        (kind, code)
    });
    let errors = errors.collect();
    (gateway.sent(1).len(), errors)
}

#[test]
fn a_datagram_with_a_later_fragment_that_is_too_long_is_refused_as_a_whole() {
    let too_big = [(v4(), &[0, 1, 2][..], (3, 4)), (v4(), &[1], (3, 4)), (v6(), &[], (2, 0))];
    for (builder, kept_whole, error) in too_big {
        let mut gateway = router();
        let sent = send(&mut gateway, &fragments(&builder, &PIECES, kept_whole));
        assert_eq!(sent, (0, vec![error]));
        assert_eq!((gateway.reasons(), gateway.dropped()), (vec![DropReason::FragNeeded], 3));
    }
}

#[test]
fn a_datagram_whose_fragments_fit_or_may_be_cut_goes_on() {
    // The long fragment leaves in two.
    assert_eq!(send(&mut router(), &fragments(&v4(), &PIECES, &[0, 2])), (4, vec![]));
    for builder in [v4().dont_fragment(), v6()] {
        let frames = fragments(&builder, &[1200, 1200, 80], &[]);
        assert_eq!(send(&mut router(), &frames), (3, vec![]));
    }
}
