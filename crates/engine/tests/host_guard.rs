//! The packets that the host gets while rules are loaded or refused, and while it can not be told.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test that can not run says why")]

#[path = "queues/door.rs"]
mod door;
mod queues;
#[path = "queues/silent.rs"]
mod silent;

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::{Config, FromHost, Gateway, HostGuard, LoadRulesError, Mode, PortSetup, WorkerCount};
use flow::HashKey;
use netio::memory::{Discard, channel};
use netio::{PortId, RxQueue};
use ruleset::{Options, ValidRuleset, import};

use door::{Door, Queue};
use queues::Queues;
use silent::Silent;

/// For each message to the host guard: how many kinds of packets are kept from the host, how many
/// are left to it, and whether the rules are in force already.
#[derive(Debug, Default)]
struct Listener {
    messages: Mutex<Vec<(usize, usize, bool)>>,
    /// While a test holds this lock, the guard does nothing.
    works: Mutex<()>,
    waits: Mutex<bool>,
}

impl HostGuard for Listener {
    fn keep_out(&self, from_host: &FromHost<'_>) -> Result<(), String> {
        self.tell(from_host, false);
        Ok(())
    }

    fn follow(&self, from_host: &FromHost<'_>) {
        self.tell(from_host, true);
    }

    fn wait_until_applied(&self) {
        *self.waits.lock().unwrap() = true;
        drop(self.works.lock().unwrap());
    }

    fn trouble(&self) -> Option<String> {
        self.works.try_lock().is_err().then(|| "it hangs".to_owned())
    }
}

impl Listener {
    fn tell(&self, from_host: &FromHost<'_>, is_in_force: bool) {
        let message = (from_host.forwarded.len(), from_host.left.len(), is_in_force);
        self.messages.lock().unwrap().push(message);
    }

    /// The messages since the last call.
    fn messages(&self) -> Vec<(usize, usize, bool)> {
        std::mem::take(&mut *self.messages.lock().unwrap())
    }
}

/// A router of two workers, each with one of these queues.
fn gateway<Q: RxQueue + 'static>(guard: Arc<Listener>, queues: [Q; 2]) -> Gateway {
    let mut config = Config::new(HashKey(5, 6));
    config.mode = Mode::Routed;
    config.workers = WorkerCount::fixed(2).unwrap();
    config.pin = false;
    config.host_guard = Some(guard);
    let mut queues = Vec::from(queues);
    let lan =
        Queues { receive: move |_| queues.split_off(0), transmit: Discard::default, mtu: None };
    let wan = Queues { receive: |_| vec![Silent], transmit: Discard::default, mtu: None };
    let ports = vec![PortSetup::new("lan0", lan), PortSetup::new("wan0", wan)];
    Gateway::start(config, ports).unwrap()
}

/// Set for a test in its own network.
const INSIDE: &str = "STATEWAY_TEST_NETWORK";

/// Has this program run the test `name` again, whose body this is, in a network of its own. A router
/// tells the host guard again whenever an address or a route of its network changes.
fn in_own_network(name: &str, body: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    netio::isolate_network(&mut test);
    match test.output() {
        Err(error) => println!("SKIPPED: {name}: no network of its own: {error}"),
        Ok(ended) => {
            let text = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success() && text.contains("1 passed"), "{ended:?}");
        }
    }
}

const ELSEWHERE: &str = r#"{"dnat":{"addr":"192.0.2.10","port":80}}"#;
const TO_HOST: &str = r#"{"redirect":{"port":80}}"#;

/// Rules with this translation for packets to some port. They put packets in this many zones.
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
fn the_host_hears_of_no_rules_that_are_refused_and_gets_its_share_when_rules_hold() {
    in_own_network(
        "the_host_hears_of_no_rules_that_are_refused_and_gets_its_share_when_rules_hold",
        || {
            let guard = Arc::new(Listener::default());
            let gateway = gateway(guard.clone(), [Silent, Silent]);
            let refused = gateway.load_rules(ruleset(ELSEWHERE, conntrack::MOST_ZONES + 1));
            assert!(matches!(refused, Err(LoadRulesError::TooManyZones(_))), "{refused:?}");
            assert_eq!(guard.messages(), []);
            let revision = gateway.load_rules(ruleset(ELSEWHERE, 1)).unwrap();
            assert_eq!(gateway.rules().unwrap().unwrap().revision, revision);
            assert_eq!(guard.messages(), [(1, 0, false), (1, 0, true)]);
            let revision = gateway.load_rules(ruleset(TO_HOST, 1)).unwrap();
            assert_eq!(gateway.rules().unwrap().unwrap().revision, revision);
            assert_eq!(guard.messages(), [(0, 0, false), (0, 1, true)]);
            gateway.stop().unwrap();
        },
    );
}

#[test]
fn the_host_gets_its_share_when_a_worker_that_hung_has_the_rules() {
    in_own_network("the_host_gets_its_share_when_a_worker_that_hung_has_the_rules", || {
        let (guard, door) = (Arc::new(Listener::default()), Door::default());
        let (_lan, packets) = channel(PortId(0), 1).unwrap();
        let queues = [Queue(Some(packets), door.clone()), Queue(None, door.clone())];
        let gateway = gateway(guard.clone(), queues);
        gateway.load_rules(ruleset(ELSEWHERE, 1)).unwrap();
        assert_eq!(guard.messages(), [(1, 0, false), (1, 0, true)]);
        let held = door.lock.lock().unwrap();
        door.wait(&gateway);
        let refused = gateway.load_rules(ruleset(TO_HOST, 2));
        assert!(matches!(refused, Err(LoadRulesError::Unresponsive(_))), "zones: {refused:?}");
        let refused = gateway.load_rules(ruleset(TO_HOST, 2));
        assert!(
            matches!(refused, Err(LoadRulesError::Unresponsive(_))),
            "known only now: {refused:?}"
        );
        assert_eq!(guard.messages(), []);
        let revision = gateway.load_rules(ruleset(TO_HOST, 0)).unwrap();
        assert_eq!(guard.messages(), [(0, 0, false)], "those before may lead it elsewhere yet");
        drop(held);
        let begin = Instant::now();
        while !gateway.rule_troubles().is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", gateway.rule_troubles());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(gateway.rules().unwrap().unwrap().revision, revision);
        assert_eq!(guard.messages(), [(0, 1, true)]);
        gateway.stop().unwrap();
    });
}

#[test]
fn only_the_call_that_loads_rules_waits_for_the_host() {
    in_own_network("only_the_call_that_loads_rules_waits_for_the_host", || {
        let guard = Arc::new(Listener::default());
        let gateway = gateway(guard.clone(), [Silent, Silent]);
        let hangs = guard.works.lock().unwrap();
        std::thread::scope(|scope| {
            let loads = scope.spawn(|| gateway.load_rules(ruleset(TO_HOST, 1)));
            while !*guard.waits.lock().unwrap() {
                std::thread::yield_now();
            }
            // Other calls that need the lock get it.
            assert_eq!(gateway.status().unwrap().workers.len(), 2);
            assert_eq!(gateway.rule_troubles(), ["it hangs"]);
            assert!(!loads.is_finished());
            drop(hangs);
            loads.join().unwrap().unwrap();
        });
        gateway.stop().unwrap();
    });
}
