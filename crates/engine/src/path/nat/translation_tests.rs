//! Hosts behind a router that masquerades, and a host that others reach by the router's address.
//! Several workers take their turns in any order.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use wire::{dissect, protocol};

use super::*;
use crate::Config;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;
use crate::worker::command::Command;

#[test]
fn masqueraded_packets_leave_from_the_routers_address_and_their_answers_come_back() {
    let mut gateway = gateway(3);
    let (client, server) = ([192, 0, 2, 1], SERVER);
    let mut ports = HashSet::new();
    for client_port in 2000..2100 {
        let out =
            gateway.pass(1 - 1, &udp(&from_inside(client, server), (client_port, 53), b"ask"));
        let [(source, port), to] = ends(&out);
        assert_eq!((source, to), (OWN.into(), (server.into(), 53)));
        assert!((1024..=32767).contains(&port) && ports.insert(port), "{port}");
        let back = gateway.pass(1, &udp(&from_outside(server, OWN), (53, port), b"answer"));
        assert_eq!(ends(&back), [(server.into(), 53), (client.into(), client_port)]);
    }
    assert_eq!(gateway.connections(), 100);
    let syn = gateway.pass(0, &tcp(&from_inside(client, server), (5000, 443), 2, (100, 0)));
    let [(source, port), _] = ends(&syn);
    assert_eq!(source, IpAddr::from(OWN));
    let answer = tcp(&from_outside(server, OWN), (443, port), 0x12, (500, 101));
    assert_eq!(ends(&gateway.pass(1, &answer))[1], (client.into(), 5000));
    assert_eq!((gateway.dropped(), gateway.aliases()), (0, 0));
}

#[test]
fn a_port_that_others_reach_leads_to_the_host_behind_it() {
    let mut gateway = gateway(3);
    let host: IpAddr = [192, 0, 2, 10].into();
    for port in 3000..3050 {
        let client = SERVER;
        let syn = tcp(&from_outside(client, OWN), (port, 8080), 2, (100, 0));
        assert_eq!(ends(&gateway.pass(1, &syn)), [(client.into(), port), (host, 80)]);
        let answer = tcp(&from_inside([192, 0, 2, 10], client), (80, port), 0x12, (500, 101));
        assert_eq!(ends(&gateway.pass(0, &answer)), [(OWN.into(), 8080), (client.into(), port)]);
        let ack = tcp(&from_outside(client, OWN), (port, 8080), 0x10, (101, 501));
        assert_eq!(ends(&gateway.pass(1, &ack))[1], (host, 80));
    }
    assert_eq!((gateway.connections(), gateway.dropped(), gateway.to_host()), (50, 0, 0));
    assert!(gateway.aliases() > 20, "most replies hash to another bucket");
    // Closed connections leave no aliases.
    for port in 3000..3050 {
        let reset = tcp(&from_outside(SERVER, OWN), (port, 8080), 4, (101, 0));
        gateway.pass(1, &reset);
    }
    gateway.now = gateway.now.after(std::time::Duration::from_secs(600));
    for _ in 0..20 {
        gateway.run_until_idle();
    }
    assert_eq!((gateway.connections(), gateway.aliases()), (0, 0));
}

/// A gateway lets in only connections that a rule has forwarded, and counts both translated ends.
#[test]
fn rules_see_which_ends_of_a_connection_are_translated() {
    let chain = |name: &str, hook: &str, prio: i32, policy: &str| {
        format!(
            r#"{{"chain":{{"family":"ip","table":"t","name":"{name}","handle":20,"type":"filter",
                "hook":"{hook}","prio":{prio},"policy":"{policy}"}}}}"#
        )
    };
    let rule = |chain: &str, status: &str, rest: &str| {
        format!(
            r#"{{"rule":{{"family":"ip","table":"t","chain":"{chain}","handle":21,"expr":[
                {{"match":{{"op":"in","left":{{"ct":{{"key":"status"}}}},"right":"{status}"}}}},
                {{"counter":{{"packets":0,"bytes":0}}}}{rest}]}}}}"#
        )
    };
    let more = [
        chain("first", "prerouting", -150, "accept"),
        chain("filter", "forward", 0, "drop"),
        chain("last", "postrouting", 150, "accept"),
        rule("first", "dnat", ""),
        rule("first", "snat", ""),
        rule("filter", "snat", r#",{"accept":null}"#),
        rule("filter", "dnat", r#",{"accept":null}"#),
        rule("last", "snat", ""),
        rule("last", "dnat", ""),
    ];
    let rules = RULES.strip_suffix("]}").unwrap().to_owned() + "," + &more.join(",") + "]}";
    let mut gateway = gateway_of(1, &rules, routing(), OWN.into(), Config::new(HashKey(3, 4)));
    let syn = tcp(&from_outside(SERVER, OWN), (3000, 8080), 2, (100, 0));
    gateway.pass(1, &syn);
    let answer = tcp(&from_inside([192, 0, 2, 10], SERVER), (80, 3000), 0x12, (500, 101));
    gateway.pass(0, &answer);
    gateway.pass(1, &tcp(&from_outside(SERVER, OWN), (3000, 8080), 0x10, (101, 501)));
    // A packet that will be masqueraded is not yet translated in the forward chain.
    gateway.arrive(0, &udp(&from_inside([192, 0, 2, 1], SERVER), (2000, 53), b"ask"));
    gateway.run_until_idle();
    assert_eq!((gateway.sent(1).len(), gateway.reasons()), (0, vec![DropReason::PolicyRefused]));
    let counts = gateway.workers[0].path.rules.as_ref().unwrap().counts(0).counters;
    let packets: Vec<u64> = counts.iter().map(|counted| counted.packets).collect();
    // As in the kernel, the first packet is not translated yet before the translation.
    assert_eq!(packets, [2, 0, 0, 3, 0, 3]);
}

#[test]
fn a_reset_comes_from_the_end_that_its_receiver_knows() {
    let objects = [
        r#"{"chain":{"family":"ip","table":"t","name":"filter","handle":20,"type":"filter",
            "hook":"forward","prio":0,"policy":"accept"}}"#,
        r#"{"rule":{"family":"ip","table":"t","chain":"filter","handle":21,"expr":[
            {"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":80}},
            {"reject":{"type":"tcp reset"}}]}}"#,
        r#"{"rule":{"family":"ip","table":"t","chain":"filter","handle":22,"expr":[
            {"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"sport"}},"right":443}},
            {"reject":{"type":"tcp reset"}}]}}"#,
    ];
    let rules = RULES.strip_suffix("]}").unwrap().to_owned() + "," + &objects.join(",") + "]}";
    let mut gateway = gateway_of(2, &rules, routing(), OWN.into(), Config::new(HashKey(3, 4)));
    let reset_to = |gateway: &mut TestGateway, port: usize, bytes: &[u8]| {
        gateway.arrive(port, bytes);
        gateway.run_until_idle();
        let reset = seen(&gateway.sent(port).remove(0));
        let Transport::Tcp(tcp) = reset.transport else { panic!("{reset:?}") };
        assert!(tcp.flags.contains(wire::TcpFlags::RST));
        ends(&reset)
    };
    for port in 3000..3020 {
        // A forwarded port, which a rule changes to 80.
        let syn = tcp(&from_outside(SERVER, OWN), (port, 8080), 2, (100, 0));
        assert_eq!(reset_to(&mut gateway, 1, &syn), [(OWN.into(), 8080), (SERVER.into(), port)]);
        // The answer to a masqueraded connection.
        let client = [192, 0, 2, 1];
        let out = gateway.pass(0, &tcp(&from_inside(client, SERVER), (port, 443), 2, (100, 0)));
        let [(_, outside), _] = ends(&out);
        let answer = tcp(&from_outside(SERVER, OWN), (443, outside), 0x12, (500, 101));
        assert_eq!(
            reset_to(&mut gateway, 1, &answer),
            [(OWN.into(), outside), (SERVER.into(), 443)]
        );
    }
}

#[test]
fn a_masquerade_ends_with_the_address_that_it_has() {
    let mut gateway = gateway(2);
    gateway.pass(0, &udp(&from_inside([192, 0, 2, 1], SERVER), (2000, 53), b"ask"));
    gateway.pass(1, &tcp(&from_outside(SERVER, OWN), (4000, 8080), 2, (1, 0)));
    assert_eq!(gateway.connections(), 2);
    for (address, left) in [("198.51.100.254", 2), ("198.51.100.253", 1)] {
        let routing = routing_with(address);
        for handle in &mut gateway.handles {
            handle.tell(Command::Routing(routing.clone())).unwrap();
        }
        gateway.run_until_idle();
        assert_eq!(gateway.connections(), left, "{address}");
    }
}

#[test]
fn a_masquerade_ends_with_its_address_while_its_bucket_moves() {
    // The new owner knows the routes when the bucket comes, and the old one only when it has gone.
    let mut gateway = gateway(2);
    gateway.pass(0, &udp(&from_inside([192, 0, 2, 1], SERVER), (2000, 53), b"ask"));
    let home = (0..256).find(|bucket| !gateway.bucket(BucketId(*bucket)).connections.is_empty());
    let home = home.unwrap();
    let from = gateway.owners[usize::from(home)].index();
    let to = 1 - from;
    gateway.start_move(home, to as u16);
    gateway.turn(to);
    let routing = routing_with("198.51.100.253");
    gateway.handles[to].tell(Command::Routing(routing.clone())).unwrap();
    while gateway.moving.is_some() {
        gateway.turn(from);
        gateway.turn(to);
    }
    gateway.handles[from].tell(Command::Routing(routing)).unwrap();
    gateway.run_until_idle();
    assert_eq!(gateway.connections(), 0);
}

#[test]
fn packets_for_the_host_go_to_it_and_leave_no_connection() {
    let mut gateway = gateway(2);
    for (count, bytes) in [
        tcp(&from_outside(SERVER, OWN), (4000, 22), 2, (1, 0)),
        tcp(&from_outside(SERVER, OWN), (4000, 2222), 2, (1, 0)),
        tcp(&from_outside(SERVER, OWN), (443, 45000), 0x12, (1, 2)),
        udp(&from_outside(SERVER, OWN), (53, 45000), b"answer"),
        tcp(&from_inside([192, 0, 2, 1], OWN), (4000, 8080), 2, (1, 0)),
        udp(&from_inside([192, 0, 2, 1], [192, 0, 2, 254]), (4000, 53), b"ask"),
    ]
    .iter()
    .enumerate()
    {
        gateway.arrive(usize::from(count < 4), bytes);
        gateway.run_until_idle();
        assert_eq!(gateway.to_host(), count as u64 + 1, "packet {count}");
        assert_eq!((gateway.sent(0).len(), gateway.sent(1).len()), (0, 0), "packet {count}");
    }
    assert_eq!((gateway.connections(), gateway.dropped()), (0, 0));
}

#[test]
fn errors_are_about_what_their_receiver_has_sent() {
    let mut gateway = gateway(3);
    let client = [192, 0, 2, 1];
    for client_port in 2000..2020 {
        gateway.arrive(0, &udp(&from_inside(client, SERVER), (client_port, 53), b"ask"));
        gateway.run_until_idle();
        let sent = gateway.sent(1).remove(0);
        // A router on the way quotes the packet as it came there.
        let mut error = [0; wire::icmp_error::MAX_FRAME];
        let router = ip("198.51.100.2");
        let message = wire::icmp_error::Message::Unreachable { code: 1 };
        let mut onward = sent.bytes().to_vec();
        wire::set_stations(&mut onward, STATIONS[1], OUTSIDE);
        let length = wire::icmp_error::write(&onward, message, router, &mut error).unwrap();
        wire::set_stations(&mut error, OUTSIDE, STATIONS[1]);
        let network = gateway.pass(1, &error[..length]);
        assert_eq!((network.source_ip(), network.destination_ip()), (router, client.into()));
        let Transport::IcmpError(wire::IcmpError { quoted: Some(quoted), .. }) = network.transport
        else {
            panic!("{network:?}")
        };
        let port = wire::QuotedTransport::Ports { source: client_port, destination: 53 };
        assert_eq!(quoted.transport, port);
        assert_eq!(quoted.source, Ipv4Addr::from(client).to_ipv6_mapped().octets());
        assert_eq!(gateway.dropped(), u64::from(client_port - 2000));

        // A redirect would have them talk past the gateway.
        error[34] = wire::IcmpError::REDIRECT;
        let network = wire::dissect(&error[..length]).unwrap().network.unwrap();
        assert!(wire::checksum::fill_transport(&mut error[..length], &network));
        gateway.arrive(1, &error[..length]);
        gateway.run_until_idle();
        assert!(gateway.sent(0).is_empty());
    }
    assert_eq!(gateway.reasons(), [DropReason::NatIcmpRedirect]);
}

#[test]
fn the_router_itself_speaks_of_packets_as_they_came() {
    let mut gateway = gateway(2);
    for handle in &mut gateway.handles {
        handle.tell(Command::SetMtus(vec![Some(1500), Some(600)])).unwrap();
    }
    gateway.run_until_idle();
    let client = [192, 0, 2, 1];
    let builder = from_inside(client, SERVER).dont_fragment();
    gateway.arrive(0, &udp(&builder, (2000, 53), &[7; 900]));
    gateway.run_until_idle();
    let errors = gateway.sent(0);
    assert_eq!((errors.len(), gateway.sent(1).len()), (1, 0));
    let network = seen(&errors[0]);
    assert_eq!(network.destination_ip(), IpAddr::from(client));
    let Transport::IcmpError(wire::IcmpError { quoted: Some(quoted), .. }) = network.transport
    else {
        panic!("{network:?}")
    };
    let ports = wire::QuotedTransport::Ports { source: 2000, destination: 53 };
    assert_eq!(
        (quoted.transport, quoted.source),
        (ports, Ipv4Addr::from(client).to_ipv6_mapped().octets())
    );
}

#[test]
fn fragments_are_translated_one_by_one_and_have_an_identification_of_their_own() {
    let mut gateway = gateway(3);
    let mut ids = HashSet::new();
    for number in 0..40_u16 {
        let client = [192, 0, 2, 1 + (number % 4) as u8];
        let mut whole = Vec::new();
        from_inside(client, SERVER).udp(2000, 53, &[number as u8; 40], &mut whole);
        let datagram = &whole[34..];
        let builder = from_inside(client, SERVER).id(9);
        for (offset, more) in [(0_u16, true), (24, false)] {
            let end = if more { 24 } else { datagram.len() };
            let mut bytes = Vec::new();
            builder.fragment(
                protocol::UDP,
                offset,
                more,
                &datagram[offset.into()..end],
                &mut bytes,
            );
            gateway.arrive(0, &bytes);
            gateway.run_until_idle();
        }
        let sent = gateway.sent(1);
        assert_eq!(sent.len(), 2);
        let pieces: Vec<_> =
            sent.iter().map(|frame| dissect(frame.bytes()).unwrap().network.unwrap()).collect();
        assert!(pieces.iter().all(|it| it.source_ip() == IpAddr::from(OWN)));
        let [first, second] = [0, 1].map(|at: usize| pieces[at].fragment.unwrap());
        assert_eq!(first.id, second.id);
        assert!(ids.insert(first.id), "identification {}", first.id);
        // The reassembled datagram is right.
        let mut payload = sent[0].bytes()[34..].to_vec();
        payload.extend_from_slice(&sent[1].bytes()[34..]);
        let Transport::Udp { source_port, .. } = pieces[0].transport else { panic!("UDP") };
        let mut again = Vec::new();
        from_inside(OWN, SERVER).udp(source_port, 53, &[number as u8; 40], &mut again);
        assert_eq!(payload, again[34..], "checksum included");
    }
    assert_eq!(gateway.dropped(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Clients ask servers, and others ask the host behind the router, while buckets move. Each
    /// answer comes to the client that has asked, packets stay in order, and no two flows look
    /// alike.
    #[test]
    fn translated_flows_stay_apart_and_in_order_while_buckets_move(
        steps in prop::collection::vec((0..8_u8, any::<u16>(), any::<u16>()), 50..400),
    ) {
        let mut gateway = gateway(3);
        // By flow: the packets that were sent and heard, and the port that the server has seen.
        let mut asked: HashMap<u16, (u32, u32)> = HashMap::new();
        let mut outside: HashMap<(IpAddr, u16), u16> = HashMap::new();
        let (mut at_server, mut at_client) = (HashMap::<u16, u32>::new(), HashMap::<u16, u32>::new());
        let hear = |gateway: &mut TestGateway,
                        asked: &mut HashMap<u16, (u32, u32)>,
                        outside: &mut HashMap<(IpAddr, u16), u16>,
                        at_server: &mut HashMap<u16, u32>,
                        at_client: &mut HashMap<u16, u32>| {
            for frame in gateway.sent(1) {
                let network = seen(&frame);
                let payload = &frame.bytes()[42..];
                let flow = u16::from_be_bytes([payload[0], payload[1]]);
                let number = u32::from_be_bytes(payload[2..6].try_into().unwrap());
                let [source, (server, port)] = ends(&network);
                assert_eq!((source.0, port), (OWN.into(), 53));
                assert_eq!(*outside.entry(source).or_insert(flow), flow, "two flows look alike");
                let next = at_server.entry(flow).or_default();
                assert_eq!(number, *next, "flow {flow}");
                *next += 1;
                let IpAddr::V4(server) = server else { panic!("IPv4") };
                let answer = udp(&from_outside(server.octets(), OWN), (53, source.1), payload);
                gateway.arrive(1, &answer);
                let (_, answered) = asked.get_mut(&flow).unwrap();
                *answered += 1;
            }
            for frame in gateway.sent(0) {
                let network = seen(&frame);
                let payload = &frame.bytes()[42..];
                let flow = u16::from_be_bytes([payload[0], payload[1]]);
                let number = u32::from_be_bytes(payload[2..6].try_into().unwrap());
                assert_eq!(ends(&network)[1], ([192, 0, 2, 1 + (flow % 5) as u8].into(), 2000 + flow));
                let next = at_client.entry(flow).or_default();
                assert_eq!(number, *next, "answers to flow {flow}");
                *next += 1;
            }
        };
        for (step, a, b) in steps {
            match step {
                0 => gateway.start_move(a, b),
                1..=3 => {
                    let flow = a % 40;
                    let (number, _) = asked.entry(flow).or_default();
                    let payload = [&flow.to_be_bytes()[..], &number.to_be_bytes()].concat();
                    *number += 1;
                    let client = [192, 0, 2, 1 + (flow % 5) as u8];
                    gateway.arrive(0, &udp(&from_inside(client, SERVER), (2000 + flow, 53), &payload));
                }
                4 => hear(&mut gateway, &mut asked, &mut outside, &mut at_server, &mut at_client),
                _ => {
                    gateway.turn(usize::from(a % 3));
                }
            }
        }
        for _ in 0..4 {
            gateway.run_until_idle();
            hear(&mut gateway, &mut asked, &mut outside, &mut at_server, &mut at_client);
        }
        prop_assert_eq!(gateway.reasons(), []);
        for (flow, (sent, answered)) in asked {
            prop_assert_eq!((at_server[&flow], at_client[&flow]), (sent, answered));
        }
    }

    /// The same holds for connections to the host behind the router. Its answers use aliases.
    #[test]
    fn forwarded_flows_stay_in_order_while_buckets_move(
        steps in prop::collection::vec((0..8_u8, any::<u16>(), any::<u16>()), 50..400),
    ) {
        let mut gateway = gateway(3);
        let mut sent: HashMap<u16, [u32; 2]> = HashMap::new();
        let mut heard: HashMap<u16, [u32; 2]> = HashMap::new();
        let hear = |gateway: &mut TestGateway, heard: &mut HashMap<u16, [u32; 2]>| {
            for port in [0, 1] {
                for frame in gateway.sent(port) {
                    let Transport::Tcp(tcp) = seen(&frame).transport else { panic!("TCP") };
                    let flow = if port == 0 { tcp.source_port } else { tcp.destination_port };
                    let next = &mut heard.entry(flow).or_default()[port];
                    // The sequence numbers of the segments go up by one each.
                    let expected = if port == 0 { 100 } else { 500 } + *next;
                    assert_eq!(tcp.sequence, expected, "flow {flow} port {port}");
                    *next += 1;
                }
            }
        };
        for (step, a, b) in steps {
            let flow = 3000 + a % 30;
            let counts = sent.entry(flow).or_default();
            match step {
                0 => gateway.start_move(a, b),
                1..=3 => {
                    let flags = if counts[0] == 0 { 2 } else { 0x10 };
                    let to = counts[0];
                    let from = heard.get(&flow).map_or(0, |heard| heard[1]);
                    if counts[0] == 0 || heard.get(&flow).is_some_and(|heard| heard[1] > 0) {
                        // All segments except the SYN are empty.
                        let numbers = (100 + to, 500 + from.saturating_sub(1).max(1));
                        let segment = tcp(&from_outside(SERVER, OWN), (flow, 8080), flags, numbers);
                        gateway.arrive(1, &segment);
                        counts[0] += 1;
                    }
                }
                4 => hear(&mut gateway, &mut heard),
                5 => {
                    // The host answers only after it has got a packet.
                    if heard.get(&flow).is_some_and(|heard| heard[0] > 0) {
                        let (to, from) = (heard[&flow][0], counts[1]);
                        let flags = if from == 0 { 0x12 } else { 0x10 };
                        let numbers = (500 + from, 100 + (to - 1).max(1));
                        let host = from_inside([192, 0, 2, 10], SERVER);
                        gateway.arrive(0, &tcp(&host, (80, flow), flags, numbers));
                        counts[1] += 1;
                    }
                }
                _ => {
                    gateway.turn(usize::from(a % 3));
                }
            }
        }
        gateway.run_until_idle();
        hear(&mut gateway, &mut heard);
        prop_assert_eq!((gateway.reasons(), gateway.to_host()), (vec![], 0));
        for (flow, counts) in sent {
            prop_assert_eq!(heard.get(&flow).copied().unwrap_or_default(), counts, "flow {}", flow);
        }
    }
}
