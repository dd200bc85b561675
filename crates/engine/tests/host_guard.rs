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
/// holds already, each time that this was said.
#[derive(Debug, Default)]
struct Told {
    all: Mutex<Vec<(usize, usize, bool)>>,
    /// Does nothing while somebody has this.
    works: Mutex<()>,
    waits: Mutex<bool>,
}

impl Told {
    fn tell(&self, from_host: &FromHost<'_>, is_in_force: bool) {
        let told = (from_host.forwarded.len(), from_host.left.len(), is_in_force);
        self.all.lock().unwrap().push(told);
    }
}

impl HostGuard for Told {
    fn keep_out(&self, from_host: &FromHost<'_>) -> Result<(), String> {
        self.tell(from_host, false);
        Ok(())
    }

    fn follow(&self, from_host: &FromHost<'_>) {
        self.tell(from_host, true);
    }

    fn settle(&self) {
        *self.waits.lock().unwrap() = true;
        drop(self.works.lock().unwrap());
    }

    fn trouble(&self) -> Option<String> {
        self.works.try_lock().is_err().then(|| "it hangs".to_owned())
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

fn gateway(guard: &Arc<Told>) -> Gateway {
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
    Gateway::start(config, vec![port("lan0"), port("wan0")]).unwrap()
}

const ELSEWHERE: &str = r#"{"dnat":{"addr":"192.0.2.10","port":80}}"#;
const TO_HOST: &str = r#"{"redirect":{"port":80}}"#;

#[test]
fn the_host_hears_of_no_rules_that_are_refused_and_gets_its_share_when_rules_hold() {
    let guard = Arc::new(Told::default());
    let gateway = gateway(&guard);
    let told = || std::mem::take(&mut *guard.all.lock().unwrap());
    let refused = gateway.load_rules(ruleset(ELSEWHERE, conntrack::MOST_ZONES + 1));
    assert!(matches!(refused, Err(LoadRulesError::TooManyZones(_))), "{refused:?}");
    assert_eq!(told(), []);
    let revision = gateway.load_rules(ruleset(ELSEWHERE, 1)).unwrap();
    assert_eq!(gateway.rules().unwrap().unwrap().revision, revision);
    assert_eq!(told(), [(1, 0, false), (1, 0, true)]);
    let revision = gateway.load_rules(ruleset(TO_HOST, 1)).unwrap();
    assert_eq!(gateway.rules().unwrap().unwrap().revision, revision);
    assert_eq!(told(), [(0, 0, false), (0, 1, true)]);
    gateway.stop().unwrap();
}

#[test]
fn only_who_has_loaded_rules_waits_for_what_the_host_is_to_get() {
    let guard = Arc::new(Told::default());
    let gateway = gateway(&guard);
    let hangs = guard.works.lock().unwrap();
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| gateway.load_rules(ruleset(TO_HOST, 1)));
        while !*guard.waits.lock().unwrap() {
            std::thread::yield_now();
        }
        // Others that need the lock get it.
        assert_eq!(gateway.status().unwrap().workers.len(), 2);
        assert_eq!(gateway.host_trouble().as_deref(), Some("it hangs"));
        assert!(!loads.is_finished());
        drop(hangs);
        loads.join().unwrap().unwrap();
    });
    gateway.stop().unwrap();
}
