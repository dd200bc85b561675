//! Tunnels through a router. Rules see the tunnel, and only steering sees the packet inside.

use std::collections::HashMap;
use std::net::IpAddr;

use flow::{DropReason, HashKey};
use proptest::prelude::*;
use wire::dissect;

use crate::Config;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::{
    OWN, RULES, SERVER, ends, from_inside, from_outside, gateway_of, routing, tcp, udp,
};
use crate::testing::tunnels::{CLIENT, KINDS, Kind, PEER, inner, wrap};

/// Another host inside, which rules close to the outside.
const CLOSED: [u8; 4] = [192, 0, 2, 9];
const SYN: u8 = 2;

/// Hosts inside may open connections. Hosts outside may connect to a web server inside.
fn rules(more: &str) -> String {
    let rule = |handle: u32, expressions: &str| {
        format!(
            r#",{{"rule":{{"family":"ip","table":"t","chain":"forward","handle":{handle},
            "expr":[{expressions},{{"accept":null}}]}}}}"#
        )
    };
    let chain = r#",{"chain":{"family":"ip","table":"t","name":"forward","handle":20,
        "type":"filter","hook":"forward","prio":0,"policy":"drop"}}"#;
    RULES.strip_suffix("]}").unwrap().to_owned()
        + chain
        + &rule(
            21,
            r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},
            "right":["established","related"]}}"#,
        )
        + &rule(22, r#"{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"lan0"}}"#)
        + &rule(
            23,
            r#"{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},
            "right":80}}"#,
        )
        + more
        + "]}"
}

fn gateway(workers: u16) -> TestGateway {
    gateway_of(workers, &rules(""), routing(), OWN.into(), Config::new(HashKey(3, 4)))
}

#[test]
fn a_tunnel_to_a_host_that_rules_close_is_refused_whatever_is_inside() {
    for kind in [Kind::Ipip, Kind::Gre, Kind::GreWithKey(7)] {
        let mut gateway = gateway(3);
        // Without a tunnel, the inner packet would be let in.
        let allowed = tcp(&from_outside(PEER, CLOSED), (5000, 80), SYN, (1, 0));
        assert!(gateway.offer(1, &allowed).is_some());
        for flow in 5001..5030 {
            let allowed = tcp(&from_outside(PEER, [192, 0, 2, 10]), (flow, 80), SYN, (1, 0));
            assert_eq!(gateway.offer(1, &wrap(kind, &from_outside(PEER, CLOSED), &allowed)), None);
        }
        assert_eq!(gateway.reasons(), [DropReason::PolicyRefused], "{kind:?}");
        assert_eq!(gateway.connections(), 1, "and nothing of it stays");
    }
}

#[test]
fn a_server_reaches_nobody_by_wrapping_what_it_would_say_to_its_client() {
    for kind in [Kind::Ipip, Kind::Gre] {
        let mut gateway = gateway(2);
        let asked = gateway.pass(0, &udp(&from_inside(CLIENT, SERVER), (2000, 53), b"ask"));
        let port = ends(&asked)[0].1;
        let answer = udp(&from_outside(SERVER, OWN), (53, port), b"answer");
        assert!(gateway.offer(1, &answer).is_some());
        // The inner packet has the addresses that the client knows, or those that the server
        // knows.
        let known = udp(&from_outside(SERVER, CLIENT), (53, 2000), b"answer");
        for answer in [answer, known] {
            assert_eq!(gateway.offer(1, &wrap(kind, &from_outside(SERVER, CLOSED), &answer)), None);
        }
        assert_eq!(gateway.reasons(), [DropReason::PolicyRefused], "{kind:?}");
    }
}

#[test]
fn a_masquerade_changes_the_tunnel_and_nothing_inside() {
    for kind in KINDS {
        let mut gateway = gateway(3);
        for flow in 2000..2060 {
            let bytes = wrap(kind, &from_inside(CLIENT, PEER), &inner(kind, flow, false));
            let sent = gateway.offer(0, &bytes).expect("it leaves");
            let network = dissect(&sent).unwrap().network.unwrap();
            assert_eq!(network.source_ip(), IpAddr::from(OWN));
            assert_eq!(sent[34..], bytes[34..], "{kind:?}: the inside is as it was");
            let bytes = wrap(kind, &from_outside(PEER, OWN), &inner(kind, flow, true));
            let back = gateway.offer(1, &bytes).expect("it comes back");
            let network = dissect(&back).unwrap().network.unwrap();
            assert_eq!(network.destination_ip(), IpAddr::from(CLIENT));
            assert_eq!(back[34..], bytes[34..]);
        }
        assert_eq!(
            (gateway.dropped(), gateway.aliases()),
            (0, 0),
            "{kind:?}: {:?}",
            gateway.reasons()
        );
    }
}

#[test]
fn packets_from_the_far_end_of_a_tunnel_are_let_in_only_as_answers() {
    for kind in KINDS {
        let mut gateway = gateway(3);
        let near = |flow| wrap(kind, &from_inside(CLIENT, PEER), &inner(kind, flow, false));
        let far = |flow| wrap(kind, &from_outside(PEER, OWN), &inner(kind, flow, true));
        // The router's own address has no tunnel yet, so the packet is for the host.
        assert_eq!((gateway.offer(1, &far(3000)), gateway.to_host()), (None, 1), "{kind:?}");
        assert!(gateway.offer(0, &near(3000)).is_some());
        for flow in 3001..3050 {
            assert!(gateway.offer(1, &far(flow)).is_some(), "{kind:?}: flow {flow}");
        }
        assert_eq!(gateway.dropped(), 0);
        // A host that is not the other end of the tunnel is not let in.
        let other = wrap(kind, &from_outside(SERVER, OWN), &inner(kind, 3001, true));
        assert_eq!((gateway.offer(1, &other), gateway.to_host()), (None, 2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// An open tunnel stays open while its parts move, and each flow inside keeps its order.
    #[test]
    fn a_tunnel_goes_on_in_order_while_buckets_move(
        steps in prop::collection::vec((0u8..8, any::<u16>(), any::<u16>()), 20..200),
        kind in prop::sample::select(KINDS.to_vec()),
    ) {
        const FLOWS: u16 = 8;
        let mut gateway = gateway(3);
        let opening = wrap(kind, &from_inside(CLIENT, PEER), &inner(kind, 2000, false));
        prop_assert!(gateway.offer(0, &opening).is_some());
        // Each packet has its number behind the header of its datagram.
        let mut sent = HashMap::<(usize, u16), Vec<u16>>::new();
        let mut heard = sent.clone();
        let hear = |gateway: &TestGateway, heard: &mut HashMap<(usize, u16), Vec<u16>>| {
            for port in [0, 1] {
                for frame in gateway.sent(1 - port) {
                    let outer = dissect(frame.bytes()).unwrap().network.unwrap();
                    let inner = wire::inside(frame.bytes(), &outer).unwrap();
                    let (from, to) = inner.transport.ports().unwrap();
                    let end = &frame.bytes()[inner.end as usize - 2..inner.end as usize];
                    let number = u16::from_be_bytes([end[0], end[1]]);
                    heard.entry((port, if port == 0 { from } else { to })).or_default().push(number);
                }
            }
        };
        for (number, (what, a, b)) in (0u16..).zip(steps) {
            match what {
                0 => gateway.start_move(a, b),
                1..6 => {
                    let (port, flow) = (usize::from(a % 2), 2000 + b % FLOWS);
                    let ends = match port {
                        0 => from_inside(CLIENT, PEER),
                        _ => from_outside(PEER, OWN),
                    };
                    let mut inner = inner(kind, flow, port == 1);
                    let end = inner.len();
                    inner[end - 2..].copy_from_slice(&number.to_be_bytes());
                    gateway.arrive(port, &wrap(kind, &ends, &inner));
                    sent.entry((port, flow)).or_default().push(number);
                }
                _ => {
                    gateway.turn(usize::from(a % 3));
                }
            }
            hear(&gateway, &mut heard);
        }
        gateway.run_until_idle();
        hear(&gateway, &mut heard);
        prop_assert_eq!((gateway.reasons(), gateway.to_host()), (vec![], 0));
        prop_assert_eq!(heard, sent);
    }
}
