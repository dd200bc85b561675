use std::net::Ipv4Addr;
use std::sync::mpsc::Receiver;

use fib::{Action, Hops, NextHop, Route, Rule, RuleAction, Selector, TableId};
use flow::HashKey;
use ipnet::IpNet;
use netio::memory::Sink;
use netlink::{Link, Picture};
use wire::build::PacketBuilder;
use wire::{IcmpError, Transport};

use super::*;
use crate::egress::stations::StationLimits;
use crate::testing::router::{INSIDE, OUTSIDE, STATIONS, ip, picture_with, routing_of};

const SECOND: u64 = 1_000_000_000;
/// A bucket for packets whose bucket does not matter.
const BUCKET: BucketId = BucketId(0);

/// An address that is alone in its network.
fn network(address: &str) -> IpNet {
    ip(address).into()
}

/// Sends a frame on as a worker does.
fn forward(router: &mut Router, frame: Frame, now_ns: u64, parts: &mut OutputParts<'_>) {
    let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
    let route = router.route(&network, frame.port, 0, true);
    router.forward(BUCKET, frame, &route, now_ns, parts);
}

struct Bench {
    router: Router,
    asked: Receiver<NextStation>,
    outputs: Outputs,
    wires: [Sink; 2],
    pool: FramePool,
    counters: Counters,
    picture: Picture,
}

impl Bench {
    fn new() -> Self {
        let (resolver, asked) = Resolver::for_test();
        let wires = [Sink::new(), Sink::new()];
        let mut outputs = Outputs::new(2, StationLimits::default(), HashKey(1, 2));
        for (port, wire) in (0..).zip(&wires) {
            outputs.set(PortId(port), Some(Box::new(wire.clone())));
        }
        let mut bench = Self {
            router: Router::new(resolver),
            asked,
            outputs,
            wires,
            pool: FramePool::new(64, 8),
            counters: Counters::default(),
            picture: picture_with("198.51.100.254"),
        };
        bench.learn(0, |_| {});
        bench
    }

    fn with(&mut self, act: impl FnOnce(&mut Router, &mut OutputParts<'_>)) {
        let Self { router, outputs, pool, counters, .. } = self;
        act(router, &mut OutputParts { outputs, pool, counters });
        self.outputs.flush(&mut self.pool, &mut self.counters);
    }

    /// Changes the state of the kernel.
    fn learn(&mut self, now_ns: u64, change: impl FnOnce(&mut Picture)) {
        change(&mut self.picture);
        let routing = Arc::new(routing_of(&self.picture));
        self.with(|router, parts| router.take(routing, now_ns, parts));
    }

    fn know(&mut self, now_ns: u64, address: &str, neighbour: Neighbour) {
        let address = ip(address);
        self.learn(now_ns, |picture| picture.neighbours.insert(LinkId(11), address, neighbour));
    }

    /// A packet of the client with a number in its payload.
    fn packet(&mut self, builder: &PacketBuilder, number: u8) -> Frame {
        let mut bytes = Vec::new();
        builder.clone().macs(INSIDE, STATIONS[0]).udp(7, 9, &[number], &mut bytes);
        self.pool.copy_of(&bytes).unwrap()
    }

    fn forward(&mut self, to: [u8; 4], number: u8, now_ns: u64) {
        let frame = self.packet(&PacketBuilder::v4([192, 0, 2, 1], to), number);
        self.with(|router, parts| forward(router, frame, now_ns, parts));
    }

    /// The frames that have left by a port: from, to, time to live, last byte.
    fn sent(&mut self, port: usize) -> Vec<(HardwareAddress, HardwareAddress, u8, u8)> {
        let said = |frame: Frame| {
            let bytes = frame.bytes();
            let network = wire::dissect(bytes).unwrap().network.unwrap();
            assert!(wire::checksum::verify_transport(bytes, &network));
            let (to, from) = (bytes[..6].try_into().unwrap(), bytes[6..12].try_into().unwrap());
            (from, to, network.ttl, bytes[bytes.len() - 1])
        };
        self.wires[port].take().into_iter().map(said).collect()
    }

    fn refused(&mut self) -> Vec<DropReason> {
        std::iter::from_fn(|| self.outputs.take_refused()).map(|(_, reason)| reason).collect()
    }

    /// Type and code of the ICMP errors that the client gets.
    fn errors(&mut self) -> Vec<(u8, u8)> {
        let said = |frame: Frame| {
            assert_eq!(frame.bytes()[..12], [INSIDE, STATIONS[0]].concat());
            let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
            assert_eq!(network.source_ip(), ip("192.0.2.254"));
            match network.transport {
                Transport::IcmpError(IcmpError { kind, code, .. }) => (kind, code),
                other => panic!("{other:?}"),
            }
        };
        self.wires[0].take().into_iter().map(said).collect()
    }
}

#[test]
fn a_bare_link_has_its_other_end_as_next_hop_of_all() {
    const END: HardwareAddress = netio::afpacket::BARE_STATION;
    let mut bench = Bench::new();
    bench.learn(0, |picture| {
        picture.links.get_mut(&LinkId(11)).unwrap().station = None;
    });
    bench.forward([198, 51, 100, 7], 1, 0);
    bench.forward([203, 0, 113, 9], 2, 0);
    assert_eq!(bench.sent(1), [(END, END, 63, 1), (END, END, 63, 2)]);
    assert!(bench.asked.try_recv().is_err(), "nobody is asked for a next hop");
    let mut answer = Vec::new();
    let builder = PacketBuilder::v4([198, 51, 100, 7], [192, 0, 2, 1]).macs(END, END);
    builder.udp(9, 7, &[3], &mut answer);
    let mut answer = bench.pool.copy_of(&answer).unwrap();
    answer.port = PortId(1);
    assert_eq!(bench.router.arrival(&answer), Arrival::Forward);
}

#[test]
fn packets_wait_for_their_next_hop_and_leave_in_their_order() {
    let mut bench = Bench::new();
    for number in 0..3 {
        bench.forward([203, 0, 113, number], number, 0);
    }
    assert_eq!(bench.asked.try_iter().collect::<Vec<_>>(), [(LinkId(11), ip("198.51.100.2"))]);
    assert_eq!(bench.sent(1), []);
    bench.know(SECOND / 2, "198.51.100.2", Neighbour::Known { station: OUTSIDE, is_fresh: true });
    bench.forward([203, 0, 113, 3], 3, SECOND / 2);
    let expected: Vec<_> = (0..4).map(|number| (STATIONS[1], OUTSIDE, 63, number)).collect();
    assert_eq!(bench.sent(1), expected);
    assert_eq!((bench.refused(), bench.errors()), (vec![], vec![]));
}

#[test]
fn a_neighbour_that_does_not_answer_is_told_and_asked_for_again() {
    let mut bench = Bench::new();
    bench.forward([198, 51, 100, 7], 0, 0);
    bench.know(SECOND / 2, "198.51.100.7", Neighbour::Failed);
    assert_eq!(bench.refused(), [DropReason::NoNeighbour]);
    bench.forward([198, 51, 100, 7], 1, SECOND / 2);
    assert_eq!(bench.refused(), [DropReason::NoNeighbour], "at once, soon after");
    assert_eq!(bench.errors(), [(3, 1), (3, 1)]);
    bench.forward([198, 51, 100, 7], 2, 2 * SECOND);
    assert_eq!(bench.asked.try_iter().count(), 2, "at first and now");
    // No neighbour answers.
    bench.with(|router, parts| router.expire(4 * SECOND, parts));
    assert_eq!(bench.refused(), []);
    bench.with(|router, parts| router.expire(5 * SECOND, parts));
    assert_eq!((bench.refused(), bench.errors()), (vec![DropReason::NoNeighbour], vec![(3, 1)]));
}

#[test]
fn waiting_packets_are_bounded_and_each_loss_is_counted() {
    let mut bench = Bench::new();
    for _ in 0..MAX_WAITING + 2 {
        bench.forward([198, 51, 100, 7], 0, 0);
    }
    for host in 0..MAX_AWAITED as u8 {
        bench.forward([198, 51, 100, 100 + host], 0, 0);
    }
    assert_eq!(bench.refused(), [DropReason::NeighbourQueueFull; 3]);
    bench.with(|router, parts| router.end(parts));
    assert_eq!(bench.refused().len(), MAX_WAITING + MAX_AWAITED - 1);
}

#[test]
fn the_senders_of_all_waiting_packets_hear_at_once_that_the_kernel_gave_up() {
    let mut bench = Bench::new();
    for number in 0..3 {
        bench.forward([198, 51, 100, 7], number, 0);
    }
    // The answer takes as long as the kernel takes to give up.
    bench.know(2 * SECOND, "198.51.100.7", Neighbour::Failed);
    assert_eq!(bench.refused(), [DropReason::NoNeighbour; 3]);
    assert_eq!(bench.errors(), [(3, 1); 3]);
}

/// The kernel does not tell when it begins to ask again.
#[test]
fn a_neighbour_that_had_failed_gets_its_time_whatever_else_changes() {
    let mut bench = Bench::new();
    bench.know(0, "198.51.100.7", Neighbour::Failed);
    bench.forward([198, 51, 100, 7], 0, 0);
    bench.know(1, "198.51.100.8", Neighbour::Failed);
    bench.forward([198, 51, 100, 7], 1, 2);
    assert_eq!(bench.refused(), []);
    bench.know(3, "198.51.100.7", Neighbour::Known { station: OUTSIDE, is_fresh: true });
    let expected = [0, 1].map(|number| (STATIONS[1], OUTSIDE, 63, number));
    assert_eq!(bench.sent(1), expected);
}

#[test]
fn a_sender_to_absent_hosts_does_not_block_packets_to_other_next_hops() {
    let mut bench = Bench::new();
    for host in 0..MAX_AWAITED as u8 {
        bench.forward([198, 51, 100, 100 + host], 0, 0);
    }
    bench.asked.try_iter().count();
    bench.forward([203, 0, 113, 1], 1, SECOND / 100);
    assert_eq!(bench.refused(), [DropReason::NeighbourQueueFull], "the others may still answer");
    assert_eq!(bench.asked.try_iter().count(), 0, "nobody is asked for what does not wait");
    bench.forward([203, 0, 113, 1], 2, SECOND / 5);
    assert_eq!(bench.refused(), [DropReason::NeighbourQueueFull], "one of the others gives way");
    bench.know(SECOND / 4, "198.51.100.2", Neighbour::Known { station: OUTSIDE, is_fresh: true });
    assert_eq!(bench.sent(1), [(STATIONS[1], OUTSIDE, 63, 2)]);
}

#[test]
fn packets_that_wait_are_bounded_by_their_bytes() {
    // Three super-packets, or a burst of 128 packets of 1500 bytes.
    for (length, most) in [(60_000, 3), (1500 - 28, 128)] {
        let mut bench = Bench::new();
        for _ in 0..=most {
            let mut bytes = Vec::new();
            let builder = PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 7]);
            builder.macs(INSIDE, STATIONS[0]).udp(7, 9, &vec![0; length], &mut bytes);
            let frame = bench.pool.copy_of(&bytes).unwrap();
            bench.with(|router, parts| forward(router, frame, 0, parts));
        }
        assert!(bench.refused().len() <= 1);
        bench.with(|router, _| router.set_waiting_bytes(0));
        bench.forward([198, 51, 100, 7], 0, 0);
        assert_eq!(bench.refused(), [DropReason::NeighbourQueueFull], "no byte more");
        bench.know(1, "198.51.100.7", Neighbour::Known { station: OUTSIDE, is_fresh: true });
        assert!(bench.sent(1).len() >= most, "{length}");
    }
}

/// The kernel may have been told to forget its neighbours while it looked for one.
#[test]
fn a_next_hop_that_packets_wait_for_is_asked_for_again_soon() {
    // One packet waits, or many.
    for packets in [1, 40] {
        let mut bench = Bench::new();
        for number in 0..40 {
            let now_ns = u64::from(number) * SECOND / 20;
            if number < packets {
                bench.forward([198, 51, 100, 7], number, now_ns);
            }
            bench.with(|router, parts| router.expire(now_ns, parts));
        }
        // Each of the two next hops is asked for at 0, 0.1, 0.3, 0.7 and 1.5 s.
        assert_eq!(bench.asked.try_iter().count(), 5);
    }
}

#[test]
fn a_stale_neighbour_is_used_and_asked_for_once_in_a_while() {
    let mut bench = Bench::new();
    bench.know(0, "198.51.100.2", Neighbour::Known { station: OUTSIDE, is_fresh: false });
    for (number, now_ns) in [(0, 0), (1, SECOND / 2), (2, SECOND), (3, SECOND + 1)] {
        bench.forward([203, 0, 113, 1], number, now_ns);
    }
    assert_eq!(bench.sent(1).len(), 4);
    assert_eq!(bench.asked.try_iter().count(), 2);
}

#[test]
fn packets_go_by_the_latest_neighbours_routes_and_addresses() {
    const MOVED: HardwareAddress = [2, 0, 0, 0, 0, 9];
    let mut bench = Bench::new();
    let (server, prefix) = ([203, 0, 113, 1], "203.0.113.1/32".parse().unwrap());
    for (station, is_fresh) in [(OUTSIDE, true), (MOVED, true), (OUTSIDE, false)] {
        bench.know(0, "198.51.100.2", Neighbour::Known { station, is_fresh });
        bench.forward(server, 1, 0);
        assert_eq!(bench.sent(1), [(STATIONS[1], station, 63, 1)]);
        assert_eq!(bench.asked.try_iter().count(), usize::from(!is_fresh));
    }
    let mut add = |table, action| {
        bench.learn(0, |picture| picture.fib.insert(table, Route::new(prefix, action)));
        bench.forward(server, 1, 0);
        let frame = bench.packet(&PacketBuilder::v4([192, 0, 2, 1], server), 1);
        let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
        (bench.refused(), bench.router.packet_arrival(&frame, &network))
    };
    let blackhole = vec![DropReason::RouteBlackhole];
    assert_eq!(add(TableId::MAIN, Action::Blackhole), (blackhole, Arrival::Forward));
    assert_eq!(add(TableId::LOCAL, Action::Local), (vec![], Arrival::Host));
}

#[test]
fn the_sender_of_a_packet_without_a_route_hears_why() {
    let mut bench = Bench::new();
    bench.know(0, "198.51.100.2", Neighbour::Known { station: OUTSIDE, is_fresh: true });
    bench.learn(0, |picture| {
        for (prefix, action) in [
            ("203.0.113.0/28", Action::Prohibit),
            ("203.0.113.16/28", Action::Unreachable),
            ("203.0.113.32/28", Action::Blackhole),
            ("203.0.113.48/28", Action::Unsupported),
        ] {
            picture.fib.insert(TableId::MAIN, Route::new(prefix.parse().unwrap(), action));
        }
    });
    for (host, reason, error) in [
        (1, DropReason::RouteProhibited, Some((3, 13))),
        (17, DropReason::NoRoute, Some((3, 1))),
        (33, DropReason::RouteBlackhole, None),
        (49, DropReason::RouteUnsupported, None),
    ] {
        bench.forward([203, 0, 113, host], 0, 0);
        assert_eq!(bench.refused(), [reason]);
        assert_eq!(bench.errors(), Vec::from_iter(error));
    }
    let builder = PacketBuilder::v4([192, 0, 2, 1], [203, 0, 113, 99]).ttl(1);
    let frame = bench.packet(&builder, 0);
    bench.with(|router, parts| forward(router, frame, 0, parts));
    assert_eq!((bench.refused(), bench.errors()), (vec![DropReason::TtlExceeded], vec![(11, 0)]));
    bench.learn(0, |picture| {
        let default = "0.0.0.0/0".parse().unwrap();
        let hops = Hops::one(NextHop::new(LinkId(11), Some(ip("198.51.100.2"))));
        picture.fib.remove(TableId::MAIN, &Route::new(default, Action::Forward(hops)));
    });
    bench.forward([203, 0, 113, 99], 0, 0);
    assert_eq!((bench.refused(), bench.errors()), (vec![DropReason::NoRoute], vec![(3, 0)]));
    assert_eq!(bench.sent(1), []);
}

/// Without this, nobody behind a link with only link-local addresses would find the path MTU.
#[test]
fn a_link_without_addresses_speaks_in_the_name_of_another() {
    let mut picture = picture_with("198.51.100.254");
    let lo = Link {
        name: "lo".to_owned(),
        addresses: ["127.0.0.1", "::1", "2001:db8::1"].map(network).to_vec(),
        ..picture.links[&LinkId(10)].clone()
    };
    picture.links.insert(LinkId(1), lo);
    picture.links.get_mut(&LinkId(11)).unwrap().addresses = vec![network("fe80::2")];
    let names: Vec<_> = routing_of(&picture).names().map(|names| (names.v4, names.v6)).collect();
    let (v4, v6) = (Some(ip("192.0.2.254")), Some(ip("2001:db8::1")));
    assert_eq!(names, [(v4, v6); 2]);
}

#[test]
fn only_packets_for_the_router_and_not_for_its_host_are_routed() {
    let mut bench = Bench::new();
    let mut arrival = |from: [u8; 4], to: [u8; 4], station: HardwareAddress| {
        let mut bytes = Vec::new();
        PacketBuilder::v4(from, to).macs(INSIDE, station).udp(7, 9, &[], &mut bytes);
        let frame = bench.pool.copy_of(&bytes).unwrap();
        match bench.router.arrival(&frame) {
            Arrival::Forward => {
                let network = wire::dissect(&bytes).unwrap().network.unwrap();
                bench.router.packet_arrival(&frame, &network)
            }
            arrival => arrival,
        }
    };
    let (client, server) = ([192, 0, 2, 1], [198, 51, 100, 2]);
    assert_eq!(arrival(client, server, STATIONS[0]), Arrival::Forward);
    assert_eq!(arrival(client, server, OUTSIDE), Arrival::Drop(DropReason::OtherStation, None));
    assert_eq!(arrival(client, server, [0xff; 6]), Arrival::Host);
    for own in [[192, 0, 2, 254], [198, 51, 100, 254], [224, 0, 0, 5], [169, 254, 0, 1], [255; 4]] {
        assert_eq!(arrival(client, own, STATIONS[0]), Arrival::Host, "{own:?}");
    }
    let own = [198, 51, 100, 254];
    let sources = [[127, 0, 0, 1], [224, 0, 0, 1], [0, 0, 0, 0], [169, 254, 0, 1], [255; 4], own];
    for source in sources {
        assert_eq!(arrival(source, server, STATIONS[0]), Arrival::Drop(DropReason::Martian, None));
    }
    assert_eq!(
        arrival([240, 0, 0, 1], server, STATIONS[0]),
        Arrival::Forward,
        "as the kernel does"
    );
    for nowhere in [[0; 4], [127, 0, 0, 1], [127, 9, 9, 9]] {
        assert_eq!(arrival(client, nowhere, STATIONS[0]), Arrival::Drop(DropReason::Martian, None));
    }
}

#[test]
fn ipv6_addresses_that_are_nobodys_on_the_way_are_martian() {
    let mut bench = Bench::new();
    let mut arrival = |from: &str, to: &str| {
        let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let mut bytes = Vec::new();
        let builder = PacketBuilder::v6(octets(from), octets(to)).macs(INSIDE, STATIONS[0]);
        builder.udp(7, 9, &[], &mut bytes);
        let frame = bench.pool.copy_of(&bytes).unwrap();
        let network = wire::dissect(&bytes).unwrap().network.unwrap();
        bench.router.packet_arrival(&frame, &network)
    };
    let (client, server) = ("2001:db8:1::1", "2001:db8:2::2");
    assert_eq!(arrival(client, server), Arrival::Forward);
    for source in ["::", "::1", "ff02::1", "fe80::1", "::ffff:192.0.2.1"] {
        assert_eq!(arrival(source, server), Arrival::Drop(DropReason::Martian, None), "{source}");
    }
    for destination in ["::", "::1", "::ffff:127.0.0.1"] {
        let dropped = Arrival::Drop(DropReason::Martian, None);
        assert_eq!(arrival(client, destination), dropped, "{destination}");
    }
    assert_eq!(arrival("fe80::1", "ff02::1"), Arrival::Host);
}

#[test]
fn options_are_refused_and_their_faults_told() {
    let mut bench = Bench::new();
    let arrival = |bench: &mut Bench, to: [u8; 4], options: &[u8]| {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::v4([192, 0, 2, 1], to).macs(INSIDE, STATIONS[0]);
        builder.options(options).udp(7, 9, &[], &mut bytes);
        let frame = bench.pool.copy_of(&bytes).unwrap();
        let network = wire::dissect(&bytes).unwrap().network.unwrap();
        bench.router.packet_arrival(&frame, &network)
    };
    let (server, own) = ([198, 51, 100, 2], [198, 51, 100, 254]);
    let source_route = [131, 7, 4, 203, 0, 113, 1, 0];
    assert_eq!(arrival(&mut bench, server, &[148, 4, 0, 0]), Arrival::Forward);
    assert_eq!(
        arrival(&mut bench, server, &source_route),
        Arrival::Drop(DropReason::SourceRoute, None)
    );
    let problem = Message::ParameterProblem { pointer: 22 };
    assert_eq!(
        arrival(&mut bench, server, &[7, 3, 3, 0]),
        Arrival::Drop(DropReason::IpOptions, Some(problem))
    );
    assert_eq!(arrival(&mut bench, own, &[7, 3, 3, 0]), Arrival::Host, "it sees to it");
    bench.router.take_own();
    assert_eq!(
        arrival(&mut bench, own, &[7, 3, 3, 0]),
        Arrival::Drop(DropReason::IpOptions, None),
        "and tells"
    );
}

/// The record route option gets the address of the link by which the packet leaves, and the
/// timestamp option gets that of the link by which it came in.
#[test]
fn a_router_records_the_route_of_who_asks_for_it() {
    let mut bench = Bench::new();
    bench.know(0, "198.51.100.2", Neighbour::Known { station: OUTSIDE, is_fresh: true });
    let options =
        [&[7, 7, 4, 0, 0, 0, 0][..], &[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[0]].concat();
    let builder = PacketBuilder::v4([192, 0, 2, 1], [203, 0, 113, 1]).options(&options);
    let frame = bench.packet(&builder, 0);
    bench.with(|router, parts| forward(router, frame, 0, parts));
    let frames = bench.wires[1].take();
    let packet = &frames[0].bytes()[14..];
    assert_eq!(packet[20..27], [7, 7, 8, 198, 51, 100, 254]);
    assert_eq!(packet[27..35], [68, 12, 13, 1, 192, 0, 2, 254]);
    let time_ms = u32::from_be_bytes(packet[35..39].try_into().unwrap());
    assert!(time_ms > 0 && time_ms < 86_400_000, "{time_ms} (0 for a millisecond a day)");
    assert!(wire::dissect(frames[0].bytes()).is_ok(), "with its checksum");
}

/// A rule for a port fits the first fragment only, so the datagram would take two ways.
#[test]
fn all_fragments_of_a_datagram_take_one_way() {
    let mut bench = Bench::new();
    bench.know(0, "198.51.100.2", Neighbour::Known { station: OUTSIDE, is_fresh: true });
    bench.learn(0, |picture| {
        let selector = Selector { destination_port: Some(9..=9), ..Selector::default() };
        let rule = Rule { selector, action: RuleAction::Blackhole, ..Rule::ask(0, TableId::MAIN) };
        let rules = vec![rule, Rule::ask(1, TableId::LOCAL), Rule::ask(2, TableId::MAIN)];
        picture.fib.set_rules(false, rules);
    });
    let builder = PacketBuilder::v4([192, 0, 2, 1], [203, 0, 113, 1]).macs(INSIDE, STATIONS[0]);
    let mut whole = Vec::new();
    builder.udp(7, 9, &[0; 24], &mut whole);
    let datagram = &whole[34..];
    for (offset, more) in [(0, true), (16, false)] {
        let mut bytes = Vec::new();
        let piece = &datagram[usize::from(offset)..][..16];
        builder.fragment(17, offset, more, piece, &mut bytes);
        let frame = bench.pool.copy_of(&bytes).unwrap();
        bench.with(|router, parts| forward(router, frame, 0, parts));
    }
    assert_eq!((bench.refused(), bench.wires[1].take().len()), (vec![], 2));
    bench.forward([203, 0, 113, 1], 0, 0);
    assert_eq!(bench.refused(), [DropReason::RouteBlackhole], "the rule is asked otherwise");
}

#[test]
fn packets_longer_than_their_route_allows_are_cut_or_refused() {
    let mut bench = Bench::new();
    bench.learn(0, |picture| {
        let hops = Hops::one(NextHop::new(LinkId(11), Some(ip("198.51.100.2")))).with_mtu(600);
        let route = Route::new("203.0.113.0/24".parse().unwrap(), Action::Forward(hops));
        picture.fib.insert(TableId::MAIN, route);
    });
    let long = |bench: &mut Bench, to, may_be_cut| {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::v4([192, 0, 2, 1], to).macs(INSIDE, STATIONS[0]);
        let builder = if may_be_cut { builder } else { builder.dont_fragment() };
        builder.udp(7, 9, &[5; 700], &mut bytes);
        let frame = bench.pool.copy_of(&bytes).unwrap();
        bench.with(|router, parts| forward(router, frame, 0, parts));
    };
    // Packets that wait for the next hop keep the limit of their route.
    long(&mut bench, [203, 0, 113, 1], true);
    long(&mut bench, [203, 0, 113, 1], false);
    long(&mut bench, [203, 0, 114, 1], false);
    bench.know(1, "198.51.100.2", Neighbour::Known { station: OUTSIDE, is_fresh: true });
    let lengths: Vec<usize> = bench.wires[1].take().iter().map(Frame::len).collect();
    assert_eq!(lengths, [14 + 20 + 576, 14 + 20 + 132, 14 + 20 + 708]);
    assert_eq!(bench.refused(), [DropReason::FragNeeded]);
    assert_eq!(bench.errors(), [(3, 4)]);
}

#[test]
fn a_scan_of_next_hops_does_not_have_the_kernel_asked_again_about_others() {
    let mut bench = Bench::new();
    let mut ask = |host: u32, now_ns: u64| {
        let next = (LinkId(11), IpAddr::V4(Ipv4Addr::from_bits(0xc633_6400 + host)));
        let is_asked = bench.router.ask(next, now_ns, Duration::from_secs(1));
        assert_eq!(bench.asked.try_iter().count(), usize::from(is_asked));
        is_asked
    };
    let hosts = 2 * MAX_ASKED as u32 + 10;
    assert!((0..hosts).all(|host| ask(host, host.into())));
    assert!(!(hosts - MAX_ASKED as u32..hosts).any(|host| ask(host, SECOND / 2)));
}
