//! Rates and quotas of addresses, which all workers share: the same packets have the same outcome
//! with any number of workers, also while buckets move.

use flow::HashKey;
use ruleset::{Options, import};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use crate::Config;
use crate::egress::Mode;
use crate::path::rules::ruleset::Rules;
use crate::testing::many_workers::TestGateway;
use crate::worker::command::Command;

/// Connections of each client.
const FLOWS: u16 = 40;
const CLIENTS: u8 = 20;

fn gateway(workers: u16, statement: &str) -> TestGateway {
    let mut gateway = TestGateway::new(&Config::new(HashKey(1, 2)), workers, false);
    set_rule(&mut gateway, statement);
    gateway
}

/// Drops the packets that a statement lets go on.
fn set_rule(gateway: &mut TestGateway, statement: &str) {
    let document = format!(
        r#"{{"nftables":[{{"table":{{"family":"inet","name":"t","handle":1}}}},
            {{"set":{{"family":"inet","table":"t","name":"m","handle":2,"type":"ipv4_addr",
            "flags":["dynamic"],"size":1000}}}},
            {{"chain":{{"family":"inet","table":"t","name":"c","handle":1,"type":"filter",
            "hook":"forward","prio":0,"policy":"accept"}}}},
            {{"rule":{{"family":"inet","table":"t","chain":"c","handle":3,
            "expr":[{statement},{{"drop":null}}]}}}}]}}"#
    );
    let ruleset = import(document.as_bytes(), Options::default()).unwrap().ruleset;
    let rules = Rules::prepare(ruleset, Mode::Bridge, 7, &[]).unwrap().load(1, gateway.now);
    for handle in &mut gateway.handles {
        handle.tell(Command::Rules(Some(rules.for_worker()))).unwrap();
    }
    gateway.run_until_idle();
}

const SERVER: [u8; 4] = [198, 51, 100, 1];

fn opener(client: u8, flow: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let header = Tcp {
        source_port: 1024 + flow,
        destination_port: 80,
        flags: TcpFlags::SYN,
        ..Tcp::default()
    };
    PacketBuilder::v4([192, 0, 2, client], SERVER).tcp(&header, &[], &mut frame);
    frame
}

/// The answer of a server that refuses the connection.
fn refusal(client: u8, flow: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let header = Tcp {
        source_port: 80,
        destination_port: 1024 + flow,
        acknowledgment: 1,
        flags: TcpFlags::RST.with(TcpFlags::ACK),
        ..Tcp::default()
    };
    PacketBuilder::v4(SERVER, [192, 0, 2, client]).tcp(&header, &[], &mut frame);
    frame
}

/// The packets of each client that pass.
fn passed(workers: u16, statement: &str) -> Vec<usize> {
    open(&mut gateway(workers, statement), 0..FLOWS)
}

#[test]
fn a_meter_lets_as_much_pass_with_any_number_of_workers() {
    let add = |statement: &str| {
        format!(
            r#"{{"set":{{"op":"add","set":"@m","elem":{{"payload":{{"protocol":"ip",
                "field":"saddr"}}}},"stmt":[{statement}]}}}}"#
        )
    };
    let rate = r#"{"limit":{"rate":1,"per":"minute","burst":3,"inv":true}}"#;
    let quota = r#"{"quota":{"val":300,"val_unit":"bytes","inv":true}}"#;
    // A packet has 40 bytes.
    for (statement, expected) in [(add(rate), 3), (add(quota), 7)] {
        for workers in [1, 2, 4, 8] {
            let passed = passed(workers, &statement);
            assert_eq!(passed, [expected; CLIENTS as usize], "{statement}, {workers} workers");
        }
    }
    for workers in [1, 2, 4, 8] {
        assert_eq!(passed(workers, rate).iter().sum::<usize>(), 3, "{workers} workers");
        assert_eq!(passed(workers, quota).iter().sum::<usize>(), 7, "{workers} workers");
    }
}

/// Opens connections of all clients, and returns how many of each pass.
fn open(gateway: &mut TestGateway, flows: std::ops::Range<u16>) -> Vec<usize> {
    let mut passed = vec![0; CLIENTS.into()];
    for flow in flows {
        (0..CLIENTS).for_each(|client| gateway.arrive(0, &opener(client, flow)));
        if gateway.workers.len() > 1 {
            gateway.start_move(flow * 7, flow);
        }
        gateway.run_until_idle();
        for frame in gateway.sent(1) {
            // The last byte of the source address.
            passed[usize::from(frame.bytes()[29])] += 1;
        }
    }
    passed
}

/// Goes on beyond three connections.
const BOUND: &str = r#"{"ct count":{"val":3,"inv":true}}"#;

/// The same for each client.
fn bounding_each() -> String {
    format!(
        r#"{{"set":{{"op":"add","set":"@m","elem":{{"payload":{{"protocol":"ip",
            "field":"saddr"}}}},"stmt":[{BOUND}]}}}}"#
    )
}

#[test]
fn connections_count_while_they_live_and_once_each() {
    let each = bounding_each();
    for workers in [1, 2, 4, 8] {
        let mut gateway = gateway(workers, &each);
        assert_eq!(open(&mut gateway, 0..10), [3; CLIENTS as usize], "{workers} workers");
        // The same packets again belong to connections that are counted.
        assert_eq!(open(&mut gateway, 0..3), [3; CLIENTS as usize]);
        assert_eq!(open(&mut gateway, 3..10), [0; CLIENTS as usize]);
        // Two connections of every client end, and one of the first client more.
        for client in 0..CLIENTS {
            (0..2).for_each(|flow| gateway.arrive(1, &refusal(client, flow)));
        }
        gateway.arrive(1, &refusal(0, 2));
        gateway.run_until_idle();
        gateway.sent(0);
        let mut expected = vec![2; CLIENTS.into()];
        expected[0] = 3;
        assert_eq!(open(&mut gateway, 20..30), expected, "{workers} workers");
        // All time out. A turn looks at a bounded number of timers.
        for _ in 0..600 {
            gateway.now = gateway.now.after(std::time::Duration::from_secs(1));
            gateway.run_until_idle();
        }
        assert_eq!(open(&mut gateway, 40..50), [3; CLIENTS as usize], "{workers} workers");
    }
    for workers in [1, 2, 4, 8] {
        let mut gateway = gateway(workers, BOUND);
        let passed = open(&mut gateway, 0..10);
        assert_eq!(passed.iter().sum::<usize>(), 3);
        // Every client has opened its first connection before any has opened a second.
        let client = passed.iter().position(|passed| *passed > 0).unwrap();
        gateway.arrive(1, &refusal(client as u8, 0));
        gateway.run_until_idle();
        assert_eq!(open(&mut gateway, 10..20).iter().sum::<usize>(), 1, "{workers} workers");
    }
}

#[test]
fn connections_from_before_the_rules_take_the_places_that_there_are() {
    let each = bounding_each();
    for workers in [1, 2, 4] {
        let mut gateway = TestGateway::new(&Config::new(HashKey(1, 2)), workers, false);
        assert_eq!(open(&mut gateway, 0..5), [5; CLIENTS as usize]);
        set_rule(&mut gateway, &each);
        // None is refused for being one too many, and no other comes.
        for _ in 0..2 {
            assert_eq!(open(&mut gateway, 0..5), [5; CLIENTS as usize], "{workers} workers");
            assert_eq!(open(&mut gateway, 10..15), [0; CLIENTS as usize], "{workers} workers");
        }
        // When one ends, another of those that were there has the place.
        gateway.arrive(1, &refusal(0, 0));
        gateway.run_until_idle();
        gateway.sent(0);
        assert_eq!(open(&mut gateway, 1..5)[0], 4);
        assert_eq!(open(&mut gateway, 20..25)[0], 0, "{workers} workers");
    }
}
