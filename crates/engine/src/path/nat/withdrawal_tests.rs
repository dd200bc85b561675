//! A connection that is refused again leaves nothing behind, and takes nothing from others.

use wire::dissect;

use super::*;
use crate::Config;
use crate::testing::router::*;

/// Leads another port to the server to which [`RULES`] lead 8080.
fn with_another_forward(port: u16) -> String {
    let rule = format!(
        r#",{{"rule":{{"family":"ip","table":"t","chain":"in","handle":14,"expr":[
        {{"match":{{"op":"==","left":{{"meta":{{"key":"iifname"}}}},"right":"wan0"}}}},
        {{"match":{{"op":"==","left":{{"payload":{{"protocol":"tcp","field":"dport"}}}},
         "right":{port}}}}},
        {{"dnat":{{"addr":"192.0.2.10","port":80}}}}]}}}}]}}"#
    );
    RULES.strip_suffix("]}").unwrap().to_owned() + &rule
}

#[test]
fn a_packet_that_is_refused_takes_no_alias_of_another_connection() {
    // Both forwards have the same replies, and with 16 buckets also the same owner.
    let rules = with_another_forward(8096);
    for (workers, port) in [1, 2].into_iter().flat_map(|it| (3000..3032).map(move |at| (it, at))) {
        let mut gateway =
            gateway_of(workers, &rules, routing(), OWN.into(), Config::new(HashKey(3, 4)));
        gateway.pass(1, &tcp(&from_outside(SERVER, OWN), (port, 8080), 2, (100, 0)));
        let from_server = from_inside([192, 0, 2, 10], SERVER);
        gateway.pass(0, &tcp(&from_server, (80, port), 0x12, (500, 101)));
        // The packet has the client's address, goes to the other port, and has no hop left.
        gateway.arrive(1, &tcp(&from_outside(SERVER, OWN).ttl(1), (port, 8096), 2, (7, 0)));
        gateway.run_until_idle();
        gateway.sent(1);
        let data = gateway.pass(0, &tcp(&from_server, (80, port), 0x10, (501, 101)));
        assert_eq!(ends(&data), [(OWN.into(), 8080), (SERVER.into(), port)], "{workers} workers");
    }
}

/// The number of items that worker 1 has for worker 0, which takes none, after this many SYNs
/// through a port forward. Each SYN has a source of its own.
fn queued_items(policy: &str, config: Config, syns: u32) -> usize {
    let chain = format!(
        r#",{{"chain":{{"family":"ip","table":"t","name":"filter","handle":20,"type":"filter",
        "hook":"forward","prio":0,"policy":"{policy}"}}}}]}}"#
    );
    let rules = RULES.strip_suffix("]}").unwrap().to_owned() + &chain;
    // Packets for this port are steered to all buckets.
    let rules = rules.replace("8080", "81");
    let mut gateway = gateway_of(2, &rules, routing(), OWN.into(), config);
    for number in 0..syns {
        let source = (0xcb00_0000 + number).to_be_bytes();
        let syn = tcp(&from_outside(source, OWN), (3000, 81), 2, (100, 0));
        if gateway.hasher.bucket_of_key(&keyed_of(&syn)).0 % 2 == 1 {
            gateway.arrive(1, &syn);
        }
        if number % 64 == 63 {
            gateway.turn(1);
        }
    }
    gateway.turn(1);
    gateway.workers[1].path.buckets.link(0).unwrap().queued()
}

#[test]
fn connections_that_are_refused_tell_the_other_workers_nothing() {
    let mut with_proxy = Config::new(HashKey(3, 4));
    with_proxy.settings.set("stateway_syn_proxy_half_open", 1).unwrap();
    assert_eq!(queued_items("drop", Config::new(HashKey(3, 4)), 4000), 0);
    assert_eq!(queued_items("accept", with_proxy, 4000), 0);
}

#[test]
fn as_many_wait_for_aliases_as_there_is_room_for_and_nobody_hears_of_the_rest() {
    let config = Config::new(HashKey(3, 4));
    let most = 16 * crate::path::alias_table::MAX_WAITING;
    for syns in [4000, 40_000] {
        let asked = queued_items("accept", config.clone(), syns);
        assert!((1..=most).contains(&asked), "{asked}");
    }
}

fn keyed_of(bytes: &[u8]) -> flow::FlowKey {
    let network = dissect(bytes).unwrap().network.unwrap();
    flow::FlowKey::of_packet(&network, flow::Zone::default()).unwrap().key
}
