use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::time::Duration;

use conntrack::ConnectionRecord;
use proptest::prelude::*;
use ruleset::{Options, import};

use super::items::{rules_bytes, write_rules_part};
use super::*;
use crate::testing::pair::Pair;

/// A second handle of the gateway of a node, so that the pair can go on sending.
fn handle(pair: &Pair, at: usize) -> ManuallyDrop<Gateway> {
    ManuallyDrop::new(Gateway::of(pair.nodes[at].gateway.shared.clone()))
}

/// All connections with everything that is known of them.
fn records(gateway: &Gateway) -> Vec<ConnectionRecord> {
    let mut all = Vec::new();
    let each = &mut |record| {
        if let crate::Record::Connection(record) = record {
            all.push(*record);
        }
        ControlFlow::Continue(())
    };
    gateway.export_records(each).unwrap();
    all.sort_by_key(|record| (record.original().key, record.original().sender.index()));
    all
}

/// Traffic of some flows, of TCP and UDP.
fn send(pair: &mut Pair, (kind, flow): (u8, u16)) {
    let (tcp, udp) = (2000 + flow, 3000 + flow);
    match kind {
        0 => pair.open(0, tcp),
        1 => pair.data(0, tcp, false),
        2 => pair.data(0, tcp, true),
        3 => pair.reset(0, tcp),
        4 => pair.udp(0, udp, false),
        _ => pair.udp(0, udp, true),
    }
}

fn steps(count: usize) -> impl Strategy<Value = Vec<(u8, u16)>> {
    prop::collection::vec((0_u8..6, 0_u16..30), count)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Packets come before, between any two pieces, and until the end. Then nothing differs.
    #[test]
    fn the_new_process_has_all_to_the_last_packet(
        before in steps(60),
        meanwhile in steps(200),
        workers in 1_usize..4,
    ) {
        let mut pair = Pair::new();
        let (old, new) = (handle(&pair, 0), handle(&pair, 1));
        new.set_workers(workers).unwrap();
        before.into_iter().for_each(|step| send(&mut pair, step));
        let mut outflow = Outflow::begin(&old, &old.standing()).unwrap();
        let mut intake = Intake::new(Vec::new(), true);
        let mut meanwhile = meanwhile.into_iter();
        let mut bytes = Vec::new();
        while outflow.copy(&mut bytes).unwrap() {
            meanwhile.by_ref().take(1).for_each(|step| send(&mut pair, step));
            intake.take(&new, &std::mem::take(&mut bytes)).unwrap();
        }
        intake.settle(&new).unwrap();
        meanwhile.for_each(|step| send(&mut pair, step));
        while outflow.rest(&mut bytes).unwrap() {}
        intake.take(&new, &bytes).unwrap();
        intake.finish(&new).unwrap();
        prop_assert_eq!(records(&new), records(&old));
        outflow.leave();
        let report = intake.adopt(&new).unwrap();
        prop_assert_eq!(report.connections, old.connection_count().unwrap());
        prop_assert_eq!(records(&new), records(&old));
    }
}

#[test]
fn a_gateway_goes_on_as_before_if_it_does_not_leave() {
    let mut pair = Pair::new();
    let old = handle(&pair, 0);
    (0..10).for_each(|flow| pair.open(0, 2000 + flow));
    let mut outflow = Outflow::begin(&old, &old.standing()).unwrap();
    assert!(matches!(Outflow::begin(&old, &old.standing()), Err(OutflowError::UnderWay)));
    // Buckets stay where they are.
    assert!(matches!(old.set_workers(3), Err(SteerError::HandingOver)));
    while outflow.copy(&mut Vec::new()).unwrap() {}
    // Cables of a test can not be handed over.
    let refused = outflow.freeze().unwrap_err();
    let expected =
        "a queue of interface lan0 can not be handed over before a packet has come by it";
    assert_eq!(refused.to_string(), expected);
    let before = pair.forwarded(0);
    pair.data(0, 2000, false);
    assert_eq!((before > 0, pair.forwarded(0)), (true, 1), "it receives again");
    drop(outflow);
    old.set_workers(3).unwrap();
    let all = records(&old);
    drop(Outflow::begin(&old, &old.standing()).unwrap());
    pair.data(0, 2000, true);
    assert_eq!(pair.forwarded(0), 1);
    assert_eq!(records(&old).len(), all.len());
}

#[test]
fn packets_wait_while_a_gateway_is_frozen() {
    let mut pair = Pair::new();
    let old = handle(&pair, 0);
    pair.open(0, 2000);
    pair.forwarded(0);
    old.shared.lock().freeze().unwrap_err();
    pair.data(0, 2000, false);
    assert_eq!(pair.forwarded(0), 0);
    old.tend().unwrap();
    pair.data(0, 2000, false);
    assert_eq!(pair.forwarded(0), 0, "nobody gives the queues back meanwhile");
    old.thaw(false).unwrap();
    pair.data(0, 2000, true);
    assert_eq!(pair.forwarded(0), 3);
    old.shared.lock().tenure = Tenure::Own;
    old.tend().unwrap();
}

/// The bug of counters that began anew because there were more than one item holds.
#[test]
fn rules_go_on_counting_though_their_counts_come_in_parts() {
    let document = r#"{"nftables":[{"table":{"family":"inet","name":"t","handle":1}},
        {"chain":{"family":"inet","table":"t","name":"c","handle":1,"type":"filter",
        "hook":"forward","prio":0,"policy":"accept"}},
        {"rule":{"family":"inet","table":"t","chain":"c","handle":2,
        "expr":[{"counter":{"packets":0,"bytes":0}}]}}]}"#;
    let mut pair = Pair::new();
    let (old, new) = (handle(&pair, 0), handle(&pair, 1));
    for gateway in [&old, &new] {
        let rules = import(document.as_bytes(), Options::default()).unwrap().ruleset;
        gateway.load_rules(rules).unwrap();
    }
    (0..5).for_each(|flow| pair.udp(0, 2000 + flow, false));
    let progress = |gateway: &Gateway| gateway.shared.lock().rule_progress().unwrap();
    let bytes = rules_bytes(&progress(&old).unwrap());
    let (mut intake, last) = (Intake::new(Vec::new(), true), bytes.len() - 1);
    for (at, byte) in bytes.iter().enumerate() {
        let mut item = Vec::new();
        write_rules_part(&[*byte], at == last, &mut item);
        assert_eq!(progress(&new).unwrap().counts.counters[0].packets, 0);
        intake.take(&new, &item).unwrap();
    }
    intake.finish(&new).unwrap();
    assert_eq!(progress(&new), progress(&old));
    assert_eq!(progress(&new).unwrap().counts.counters[0].packets, 5);
}

#[test]
fn connections_that_have_no_place_are_refused_by_name() {
    let mut pair = Pair::new();
    let (old, new) = (handle(&pair, 0), handle(&pair, 1));
    (0..40).for_each(|flow| pair.open(0, 2000 + flow));
    new.set_tunable("nf_conntrack_max", 5).unwrap();
    let mut outflow = Outflow::begin(&old, &old.standing()).unwrap();
    let (mut intake, mut bytes) = (Intake::new(Vec::new(), true), Vec::new());
    while outflow.copy(&mut bytes).unwrap() {}
    intake.take(&new, &bytes).unwrap();
    let refused = intake.finish(&new).unwrap_err().to_string();
    assert!(refused.contains("can not be taken over: the table is full"), "{refused}");
    // Bytes that nobody writes change nothing.
    let before = records(&new);
    assert!(matches!(intake.take(&new, &[0, 3, 1, 2, 3]), Err(IntakeError::Decode(_))));
    assert_eq!(records(&new), before);
    pair.pass(Duration::from_millis(1));
}
