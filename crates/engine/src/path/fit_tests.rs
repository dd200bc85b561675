use std::sync::Arc;

use fib::{LinkId, Neighbour};
use flow::{DropReason, HashKey};
use wire::build::PacketBuilder;
use wire::{IcmpError, Transport, protocol};

use crate::Config;
use crate::egress::Mode;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::{INSIDE, OUTSIDE, STATIONS, ip, picture, routing_of};
use crate::worker::command::Command;

/// Bytes of payload in a fragment: the first of a datagram fits a link of 1280 bytes, and the
/// second does not.
const PIECES: [usize; 3] = [800, 1400, 80];

/// A router between two links; the second takes 1280 bytes.
fn router() -> TestGateway {
    let mut picture = picture([
        &["192.0.2.254/24", "2001:db8:1::fe/64"],
        &["198.51.100.254/24", "2001:db8:2::fe/64"],
    ]);
    for (link, hosts, station) in [
        (10, ["192.0.2.1", "2001:db8:1::1"], INSIDE),
        (11, ["198.51.100.1", "2001:db8:2::1"], OUTSIDE),
    ] {
        for host in hosts {
            let known = Neighbour::Known { station, is_fresh: true };
            picture.neighbours.insert(LinkId(link), ip(host), known);
        }
    }
    let routing = Arc::new(routing_of(&picture));
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
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 1]).id(7).macs(INSIDE, STATIONS[0])
}

fn v6() -> PacketBuilder {
    let host = |network: u8| {
        let mut address = [0; 16];
        address[..6].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8, 0, network]);
        address[15] = 1;
        address
    };
    PacketBuilder::v6(host(1), host(2)).id(7).macs(INSIDE, STATIONS[0])
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
