//! Zones that rules set, while workers take their turns in any order and buckets move.

use flow::{FlowKey, Timestamp, Zone, ZonePair};
use proptest::prelude::*;
use ruleset::{Options, import};
use steer::{BucketCount, BucketId, Steered};
use wire::build::PacketBuilder;

use crate::egress::Mode;
use crate::path::rules::ruleset::Rules;
use crate::testing::many_workers::TestGateway;
use crate::worker::command::Command;
use crate::{Config, REPLAY_SECRET};

const WORKERS: u16 = 3;
const BUCKETS: u16 = 16;
const FLOWS: u16 = 12;
const FIRST_PORT: u16 = 3000;

/// Every third flow has no zone. In another third only the client's packets have one.
fn zones_of(flow: u16) -> ZonePair {
    let zone = Zone(20 + flow);
    match flow % 3 {
        0 => ZonePair::default(),
        1 => ZonePair::both(zone),
        _ => ZonePair { original: zone, reply: Zone(0) },
    }
}

/// Rules for both directions. A packet that has a zone keeps it, and is tracked in spite of the
/// last rule.
fn rules() -> String {
    let pairs = |kind| {
        let flows = (0..FLOWS).filter(|flow| flow % 3 == kind);
        let pair = |flow| format!("[{},{}]", FIRST_PORT + flow, zones_of(flow).original.0);
        flows.map(pair).collect::<Vec<_>>().join(",")
    };
    let rule = |expr: &str| {
        format!(r#",{{"rule":{{"family":"ip","table":"t","chain":"c","expr":[{expr}]}}}}"#)
    };
    let by_port = |port: &str, way: &str, pairs: &str| {
        rule(&format!(
            r#"{{"mangle":{{"key":{{"ct":{{"key":"zone"{way}}}}},"value":{{"map":{{"key":{{"payload":
            {{"protocol":"udp","field":"{port}"}}}},"data":{{"set":[{pairs}]}}}}}}}}}}"#,
        ))
    };
    let zoned = r#"{"match":{"op":"==","left":{"ct":{"key":"state"}},"right":"new"}},
        {"mangle":{"key":{"ct":{"key":"zone"}},"value":99}},{"notrack":null}"#;
    format!(
        r#"{{"nftables":[{{"table":{{"family":"ip","name":"t","handle":1}}}},
            {{"chain":{{"family":"ip","table":"t","name":"c","handle":1,"type":"filter",
            "hook":"prerouting","prio":-300,"policy":"accept"}}}}{}{}{}{}]}}"#,
        by_port("sport", "", &pairs(1)),
        by_port("dport", "", &pairs(1)),
        by_port("sport", r#","dir":"original""#, &pairs(2)),
        rule(zoned),
    )
}

struct Scene {
    gateway: TestGateway,
    /// Packets of each flow that were sent, there and back.
    sent: [[u32; FLOWS as usize]; 2],
}

impl Scene {
    fn new() -> Self {
        let mut config = Config::new(REPLAY_SECRET);
        config.buckets = BucketCount::new(BUCKETS.into()).unwrap();
        let mut gateway = TestGateway::new(&config, WORKERS, false);
        let ruleset = import(rules().as_bytes(), Options::default()).unwrap().ruleset;
        let unloaded = Rules::prepare(ruleset, Mode::Bridge, 7, &[]).unwrap();
        let rules = unloaded.load(1, gateway.now);
        assert_eq!(rules.zones().len(), 9, "{:?}", rules.zones());
        for handle in &mut gateway.handles {
            handle.tell(Command::Rules(Some(rules.for_worker()))).unwrap();
        }
        gateway.run_until_idle();
        Self { gateway, sent: Default::default() }
    }

    fn send(&mut self, flow: u16, back: bool) {
        let number = &mut self.sent[usize::from(back)][usize::from(flow)];
        let payload = [&flow.to_be_bytes()[..], &number.to_be_bytes()].concat();
        *number += 1;
        let (mut ends, mut ports) = ([[192, 0, 2, 1], [198, 51, 100, 2]], [FIRST_PORT + flow, 53]);
        if back {
            ends.reverse();
            ports.reverse();
        }
        let mut bytes = Vec::new();
        PacketBuilder::v4(ends[0], ends[1]).udp(ports[0], ports[1], &payload, &mut bytes);
        self.gateway.arrive(usize::from(back), &bytes);
    }

    /// Checks that all packets came out in their order.
    fn check(&self) {
        for (out, sent) in [(1, &self.sent[0]), (0, &self.sent[1])] {
            let mut seen = [0; FLOWS as usize];
            for frame in self.gateway.sent(out) {
                let payload = &frame.bytes()[42..];
                let flow = usize::from(u16::from_be_bytes(payload[..2].try_into().unwrap()));
                let number = u32::from_be_bytes(payload[2..6].try_into().unwrap());
                assert_eq!(number, seen[flow], "flow {flow} out of {out}");
                seen[flow] += 1;
            }
            assert_eq!(&seen, sent);
        }
        assert_eq!(self.gateway.dropped(), 0);
    }

    /// The bucket that has the connection of a flow: the bucket of its key in its zone.
    fn home(&self, flow: u16) -> (FlowKey, BucketId) {
        let mut bytes = Vec::new();
        let ports = (FIRST_PORT + flow, 53);
        PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(ports.0, ports.1, b"", &mut bytes);
        let network = wire::dissect(&bytes).unwrap().network.unwrap();
        match self.gateway.hasher.steer(&network, zones_of(flow).original, None) {
            Steered::Flow { keyed, bucket, .. } => (keyed.key, bucket),
            _ => panic!("a flow"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn packets_that_rules_put_into_zones_stay_in_order_while_buckets_move(
        steps in prop::collection::vec((0..7_u8, any::<u16>(), any::<u16>()), 100..1000),
    ) {
        let mut scene = Scene::new();
        for flow in 0..FLOWS {
            scene.send(flow, false);
            scene.gateway.run_until_idle();
        }
        for (step, a, b) in steps {
            match step {
                0 => scene.gateway.start_move(a, b),
                1 | 2 => scene.send(a % FLOWS, false),
                3 => scene.send(a % FLOWS, true),
                _ => {
                    scene.gateway.turn(usize::from(a % WORKERS));
                }
            }
        }
        for flow in 0..FLOWS {
            scene.send(flow, true);
        }
        scene.gateway.run_until_idle();
        scene.check();
        for flow in 0..FLOWS {
            let (key, home) = scene.home(flow);
            let mut found = Vec::new();
            let connections = &scene.gateway.bucket(home).connections;
            connections.list(Default::default(), u32::MAX, Timestamp::ZERO, |it| found.push(it));
            let own: Vec<_> = found.iter().filter(|it| it.key == key).collect();
            prop_assert_eq!(own.len(), 1);
            prop_assert_eq!((own[0].zones(), own[0].seen_reply), (zones_of(flow), true));
        }
        let all: usize = (0..BUCKETS)
            .map(|bucket| scene.gateway.bucket(BucketId(bucket)).connections.len())
            .sum();
        prop_assert_eq!(all, usize::from(FLOWS));
    }
}
