//! What the host gets while rules are loaded, refused, and when it can not be told.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queues;
#[path = "queues/silent.rs"]
mod silent;

use std::sync::{Arc, Mutex};

use engine::{Config, FromHost, Gateway, HostGuard, LoadRulesError, Mode, PortSetup, WorkerCount};
use flow::HashKey;
use netio::memory::Discard;
use ruleset::{Options, ValidRuleset, import};

use queues::Queues;
use silent::Silent;

/// How many kinds of packets are kept from the host, how many are left to it, and whether that
/// holds already, each time that this was said. What is left to it is refused.
#[derive(Debug, Default)]
struct Deaf(Mutex<Vec<(usize, usize, bool)>>);

impl HostGuard for Deaf {
    fn keep_out(&self, from_host: &FromHost<'_>) -> Result<(), String> {
        let told = (from_host.forwarded.len(), from_host.left.len(), from_host.is_in_force);
        self.0.lock().unwrap().push(told);
        if told.1 == 0 { Ok(()) } else { Err("it is deaf".to_owned()) }
    }
}

/// Rules that do this to what is for some port, and put packets in so many zones.
fn ruleset(translation: &str, zones: usize) -> ValidRuleset {
    let zone = |number: usize| {
        format!(
            r#",{{"rule":{{"family":"ip","table":"t","chain":"raw","handle":{},"expr":[
                {{"mangle":{{"key":{{"ct":{{"key":"zone"}}}},"value":{number}}}}}]}}}}"#,
            number + 10
        )
    };
    let document = format!(
        r#"{{"nftables":[{{"table":{{"family":"ip","name":"t","handle":1}}}},
        {{"chain":{{"family":"ip","table":"t","name":"in","handle":2,"type":"nat",
            "hook":"prerouting","prio":-100,"policy":"accept"}}}},
        {{"chain":{{"family":"ip","table":"t","name":"raw","handle":3,"type":"filter",
            "hook":"prerouting","prio":-300,"policy":"accept"}}}},
        {{"rule":{{"family":"ip","table":"t","chain":"in","handle":4,"expr":[
            {{"match":{{"op":"==","left":{{"payload":{{"protocol":"tcp","field":"dport"}}}},
                "right":8080}}}},{translation}]}}}}{}]}}"#,
        (1..=zones).map(zone).collect::<String>()
    );
    import(document.as_bytes(), Options::default()).unwrap().ruleset
}

#[test]
fn the_host_hears_of_no_rules_that_are_refused_and_rules_hold_that_it_can_not_be_told_of() {
    let guard = Arc::new(Deaf::default());
    let mut config = Config::new(HashKey(5, 6));
    config.mode = Mode::Routed;
    config.workers = WorkerCount::fixed(2).unwrap();
    config.pin = false;
    config.host_guard = Some(guard.clone());
    let port = |name: &str| {
        let queues =
            Queues { receive: |_: usize| vec![Silent], transmit: Discard::default, mtu: None };
        PortSetup::new(name, queues)
    };
    let gateway = Gateway::start(config, vec![port("lan0"), port("wan0")]).unwrap();
    let told = || std::mem::take(&mut *guard.0.lock().unwrap());
    let elsewhere = r#"{"dnat":{"addr":"192.0.2.10","port":80}}"#;
    let refused = gateway.load_rules(ruleset(elsewhere, conntrack::MOST_ZONES + 1));
    assert!(matches!(refused, Err(LoadRulesError::TooManyZones(_))), "{refused:?}");
    assert_eq!(told(), []);
    let revision = gateway.load_rules(ruleset(elsewhere, 1)).unwrap();
    assert_eq!(gateway.rules().unwrap().unwrap().revision, revision);
    assert_eq!(told(), [(1, 0, false), (1, 0, true)]);
    let revision = gateway.load_rules(ruleset(r#"{"redirect":{"port":80}}"#, 1)).unwrap();
    assert_eq!(gateway.rules().unwrap().unwrap().revision, revision);
    assert_eq!(told(), [(0, 0, false), (0, 1, true)]);
    gateway.stop().unwrap();
}
