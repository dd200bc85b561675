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
    let mut gateway = TestGateway::new(&Config::new(HashKey(1, 2)), workers, false);
    let rules = Rules::prepare(ruleset, Mode::Bridge, 7, &[]).unwrap().load(1, gateway.now);
    for handle in &mut gateway.handles {
        handle.tell(Command::Rules(Some(rules.for_worker()))).unwrap();
    }
    gateway.run_until_idle();
    gateway
}

fn opener(client: u8, flow: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let header = Tcp {
        source_port: 1024 + flow,
        destination_port: 80,
        flags: TcpFlags::SYN,
        ..Tcp::default()
    };
    PacketBuilder::v4([192, 0, 2, client], [198, 51, 100, 1]).tcp(&header, &[], &mut frame);
    frame
}

/// The packets of each client that pass.
fn passed(workers: u16, statement: &str) -> Vec<usize> {
    let mut gateway = gateway(workers, statement);
    let mut passed = vec![0; CLIENTS.into()];
    for flow in 0..FLOWS {
        (0..CLIENTS).for_each(|client| gateway.arrive(0, &opener(client, flow)));
        if workers > 1 {
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
