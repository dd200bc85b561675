//! Packets that rules lead to the host itself.

use std::collections::HashMap;
use std::sync::Arc;

use conntrack::{Cursor, Filter};
use ruleset::{Forwarded, Options, import};
use wire::protocol;

use super::*;
use crate::Config;
use crate::egress::Mode;
use crate::path::rules::ruleset::Rules;
use crate::path::selection::{Operation, Part, Selection};
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;
use crate::worker::command::Command;

const LAN: [u8; 4] = [192, 0, 2, 254];
const CLIENT: [u8; 4] = [192, 0, 2, 1];

const ACK: u8 = 0x10;
const SYN: u8 = 2;
const FIN: u8 = 0x11;

/// Web and DNS packets of clients are redirected, and 443 leads to a port of the router's inner
/// address. `more` has further rules of the chain.
fn rules(more: &str) -> String {
    let at = |interface: &str, protocol: &str, port: u16, to: &str| {
        format!(
            r#"{{"rule":{{"family":"ip","table":"t","chain":"in","handle":{port},"expr":[
            {{"match":{{"op":"==","left":{{"meta":{{"key":"iifname"}}}},"right":"{interface}"}}}},
            {{"match":{{"op":"==","left":{{"payload":{{"protocol":"{protocol}",
                "field":"dport"}}}},"right":{port}}}}},
            {{"counter":{{"packets":0,"bytes":0}}}},{to}]}}}},"#
        )
    };
    let behind = r#"{"chain":{"family":"ip","table":"t","name":"behind","handle":30,
        "type":"filter","hook":"prerouting","prio":0,"policy":"accept"}},
        {"rule":{"family":"ip","table":"t","chain":"behind","handle":31,"expr":[
            {"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},
                "right":3128}},
            {"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},
                "right":"192.0.2.254"}},
            {"match":{"op":"in","left":{"ct":{"key":"status"}},"right":"dnat"}},
            {"counter":{"packets":0,"bytes":0}}]}}]}"#;
    RULES.strip_suffix("]}").unwrap().to_owned()
        + ","
        + &at("lan0", "tcp", 80, r#"{"redirect":{"port":3128}}"#)
        + &at("lan0", "udp", 53, r#"{"redirect":null}"#)
        + &at("wan0", "tcp", 443, r#"{"dnat":{"addr":"192.0.2.254","port":8443}}"#)
        + &at("wan0", "tcp", 22, r#"{"dnat":{"port":2222}}"#)
        + &at(
            "wan0",
            "tcp",
            444,
            r#"{"dnat":{"addr":{"range":["192.0.2.253","192.0.2.254"]},"port":8443}}"#,
        )
        + &at(
            "wan0",
            "tcp",
            445,
            r#"{"dnat":{"addr":{"prefix":{"addr":"192.0.2.0","len":24}},"flags":"netmap"}}"#,
        )
        + more
        + behind
}

fn gateway_with(workers: u16, rules: &str) -> TestGateway {
    gateway_of(workers, rules, routing(), OWN.into(), Config::new(HashKey(3, 4)))
}

impl TestGateway {
    /// Sends packets in by a port, and checks that each is left to the host.
    fn leave(&mut self, port: usize, packets: &[Vec<u8>]) {
        for bytes in packets {
            let before = self.to_host();
            self.arrive(port, bytes);
            self.run_until_idle();
            let sent = [self.sent(0).len(), self.sent(1).len()];
            assert_eq!((self.to_host() - before, sent), (1, [0, 0]), "{:?}", self.reasons());
        }
    }

    fn set_rules(&mut self, text: Option<&str>, revision: u32) {
        let names = ["lan0".to_owned(), "wan0".to_owned()];
        let rules = text.map(|text| {
            let ruleset = import(text.as_bytes(), Options::default()).unwrap().ruleset;
            let rules = Rules::prepare(ruleset, Mode::Routed, 7, &names).unwrap();
            rules.load(revision, self.now)
        });
        for handle in &mut self.handles {
            let own = rules.as_ref().map(|rules| rules.for_worker());
            handle.tell(Command::Rules(own)).unwrap();
        }
        self.run_until_idle();
    }

    /// The packets that counters have seen, by handle of their rules.
    fn counted(&self) -> HashMap<u64, u64> {
        let mut all = HashMap::new();
        for worker in &self.workers {
            let rules = worker.path.rules.as_ref().unwrap();
            let ruleset = rules.shared().program.ruleset();
            let with_counter = ruleset.rules().iter().filter(|rule| rule.handle > Some(5));
            let counts = rules.counts(0).counters;
            for (rule, counted) in with_counter.zip(counts) {
                *all.entry(rule.handle.unwrap()).or_default() += counted.packets;
            }
        }
        all
    }
}

#[test]
fn redirected_packets_are_left_to_the_host_and_leave_no_connection() {
    for workers in [1, 3] {
        let mut gateway = gateway_with(workers, &rules(""));
        for port in 5000..5010 {
            let web = from_inside(CLIENT, SERVER);
            gateway
                .leave(0, &[SYN, ACK, ACK, FIN].map(|flags| tcp(&web, (port, 80), flags, (1, 1))));
            let name = udp(&from_inside(CLIENT, SERVER), (port, 53), b"ask");
            gateway.leave(0, &[name.clone(), name]);
            // Packets to the host's own address are redirected too.
            gateway.leave(
                0,
                &[SYN, ACK].map(|flags| tcp(&from_inside(CLIENT, LAN), (port, 80), flags, (1, 1))),
            );
        }
        assert_eq!((gateway.connections(), gateway.aliases(), gateway.reasons()), (0, 0, vec![]));
        // Other packets are sent on, and so are packets that come in by another interface.
        let out = gateway.pass(0, &tcp(&from_inside(CLIENT, SERVER), (5000, 81), SYN, (1, 0)));
        assert_eq!(ends(&out)[1], (SERVER.into(), 81));
        // Rules after the translation count the first packet of each flow as the kernel leads it.
        let counted = gateway.counted();
        assert_eq!([counted[&80], counted[&53], counted[&31]], [20, 10, 20]);
    }
}

#[test]
fn packets_translated_to_an_address_of_the_host_are_left_to_it() {
    let mut gateway = gateway_with(2, &rules(""));
    for port in 5000..5010 {
        for (to, own_port) in [(OWN, 443), (OWN, 22), (LAN, 22), (OWN, 445)] {
            let packets = [SYN, ACK, FIN]
                .map(|flags| tcp(&from_outside(SERVER, to), (port, own_port), flags, (1, 1)));
            gateway.leave(1, &packets);
        }
    }
    assert_eq!((gateway.connections(), gateway.aliases(), gateway.reasons()), (0, 0, vec![]));
    // The kernel may choose another address than the gateway, so the packet is not left to it.
    for client in 1..20 {
        let client = [203, 0, 113, client];
        gateway.arrive(1, &tcp(&from_outside(client, OWN), (5000, 444), SYN, (1, 0)));
        gateway.run_until_idle();
    }
    assert_eq!(gateway.reasons(), [DropReason::NatToHost]);
}

#[test]
fn a_rule_does_not_answer_in_the_place_of_the_host() {
    // In front of tracking, and behind the translation of destinations.
    for priority in [-300, 10] {
        let refusing = r#"{"chain":{"family":"ip","table":"t","name":"refuses","handle":40,
            "type":"filter","hook":"prerouting","prio":PRIORITY,"policy":"accept"}},
            {"rule":{"family":"ip","table":"t","chain":"refuses","handle":41,"expr":[
                {"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},
                    "right":23}},
                {"reject":{"type":"tcp reset"}}]}},"#;
        let refusing = refusing.replace("PRIORITY", &priority.to_string());
        let mut gateway = gateway_with(2, &rules(&refusing));
        gateway.leave(0, &[tcp(&from_inside(CLIENT, LAN), (5000, 23), SYN, (1, 0))]);
        // Others are refused.
        gateway.arrive(0, &tcp(&from_inside(CLIENT, SERVER), (5000, 23), SYN, (1, 0)));
        gateway.run_until_idle();
        assert_eq!((gateway.sent(0).len(), gateway.sent(1).len()), (1, 0), "{priority}");
    }
}

#[test]
fn packets_inside_a_tunnel_are_not_redirected() {
    let mut gateway = gateway_with(2, &rules(""));
    let inner = tcp(&from_inside(CLIENT, SERVER), (5000, 80), SYN, (1, 0));
    let mut outer = Vec::new();
    from_inside(CLIENT, SERVER).transport(protocol::IPIP, &inner[14..], &mut outer);
    let sent = gateway.pass(0, &outer);
    assert_eq!((sent.destination_ip(), gateway.to_host()), (SERVER.into(), 0));
}

#[test]
fn a_flow_stays_where_it_was_led_whatever_rules_say_later() {
    let mut gateway = gateway_with(2, &rules(""));
    let web = |port: u16, flags: u8| tcp(&from_inside(CLIENT, SERVER), (port, 80), flags, (1, 1));
    gateway.leave(0, &[web(5000, SYN), web(5000, ACK)]);
    // The next rules redirect nothing, and then there are no rules.
    for (revision, rules) in [(2, Some(RULES)), (3, None)] {
        gateway.set_rules(rules, revision);
        gateway.leave(0, &[web(5000, ACK)]);
        let port = 5000 + revision as u16;
        assert_eq!(ends(&gateway.pass(0, &web(port, SYN)))[1], (SERVER.into(), 80));
    }
    // A flow that was opened meanwhile goes on as before.
    gateway.set_rules(Some(&rules("")), 4);
    for port in [5002, 5003] {
        assert_eq!(ends(&gateway.pass(0, &web(port, SYN)))[1], (SERVER.into(), 80));
    }
    gateway.leave(0, &[web(5000, ACK), web(5000, FIN), web(5004, SYN)]);
    // A client that closes its connection and opens another one is judged anew.
    gateway.set_rules(Some(RULES), 5);
    assert_eq!(ends(&gateway.pass(0, &web(5000, SYN)))[1], (SERVER.into(), 80));
}

#[test]
fn an_error_about_what_the_host_has_answered_is_the_hosts() {
    let mut gateway = gateway_with(2, &rules(""));
    let ask = udp(&from_inside(CLIENT, SERVER), (5000, 53), b"ask");
    let answer = udp(&from_outside(SERVER, CLIENT), (53, 5000), b"answer");
    let error = |answer: &[u8]| {
        let mut bytes = Vec::new();
        from_inside(CLIENT, SERVER).icmp_error(3, 3, [0; 4], &answer[14..], &mut bytes);
        bytes
    };
    gateway.leave(0, &[ask, error(&answer)]);
    // An error about another flow is not.
    let other = udp(&from_outside(SERVER, CLIENT), (53, 5001), b"answer");
    gateway.arrive(0, &error(&other));
    gateway.run_until_idle();
    assert_eq!(gateway.to_host(), 2);
}

#[test]
fn the_redirection_of_a_flow_moves_with_its_bucket() {
    let mut gateway = gateway_with(2, &rules(""));
    let web = |port: u16, flags: u8| tcp(&from_inside(CLIENT, SERVER), (port, 80), flags, (1, 1));
    let ports = 5000..5040;
    for port in ports.clone() {
        gateway.leave(0, &[web(port, SYN)]);
    }
    gateway.set_rules(Some(RULES), 2);
    for bucket in 0..16 {
        gateway.start_move(bucket, 1 - bucket % 2);
        gateway.run_until_idle();
    }
    for port in ports {
        gateway.leave(0, &[web(port, ACK)]);
    }
}

#[test]
fn connections_whose_packets_the_host_is_to_get_end_by_the_piece_and_others_stay() {
    let mut gateway = gateway_with(3, RULES);
    let ask = |port: u16, to: u16| udp(&from_inside(CLIENT, SERVER), (port, to), b"ask");
    for port in 5000..5100 {
        gateway.pass(0, &ask(port, 53));
        gateway.pass(0, &ask(port, 54));
        gateway.pass(0, &tcp(&from_inside(CLIENT, SERVER), (port, 53), SYN, (1, 0)));
    }
    assert_eq!(gateway.connections(), 300);
    let names = Forwarded { ports: Some((53, 53)), ..Forwarded::default() };
    let (filter, left) = (Arc::new(Filter::default()), Arc::from([names]));
    let now = gateway.now;
    for bucket in gateway.hasher.config().buckets.iter() {
        for worker in &mut gateway.workers {
            let piece = Selection::led(&filter, &left, Cursor::default());
            assert!(worker.path.select(bucket, &piece, now).rest.is_none());
        }
    }
    assert_eq!(gateway.connections(), 200);
    // The next packet of an ended connection is judged anew, and other connections go on.
    gateway.set_rules(Some(&rules("")), 2);
    gateway.leave(0, &[ask(5000, 53)]);
    gateway.pass(0, &ask(5000, 54));
    assert_eq!(gateway.connections(), 200);
}

#[test]
fn a_flush_ends_flows_that_were_left_to_the_host() {
    let mut gateway = gateway_with(2, &rules(""));
    let packets = [
        udp(&from_inside(CLIENT, SERVER), (5000, 53), b"ask"),
        tcp(&from_inside(CLIENT, SERVER), (5000, 80), SYN, (1, 0)),
    ];
    gateway.leave(0, &packets);
    gateway.set_rules(Some(RULES), 2);
    // The kernel may still know their connections.
    gateway.leave(0, &packets);
    let now = gateway.now;
    for bucket in gateway.hasher.config().buckets.iter() {
        for worker in &mut gateway.workers {
            let filter = Arc::new(Filter::default());
            let place = Part::Piece(Cursor::default());
            let all = Selection { filter, what: Operation::Delete, place };
            worker.path.select(bucket, &all, now);
        }
    }
    for packet in &packets {
        gateway.pass(0, packet);
    }
}
