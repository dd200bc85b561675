//! Rules are exchanged as a whole: while rulesets are loaded one after the other under load, each
//! packet is judged by one of them, and none is lost.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queues;
#[path = "queues/silent.rs"]
mod silent;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine::{Config, Gateway, LoadRulesError, PortSetup, PrepareRulesError, WorkerCount};
use flow::{DropReason, HashKey};
use netio::{Frame, FramePool, PortError, RxQueue, TxQueue, TxReport};
use ruleset::{Options, ValidRuleset, import};
use wire::build::PacketBuilder;

use queues::Queues;
use silent::Silent;

/// Most packets under way. It is below every limit, so that no packet may be lost.
const WINDOW: u64 = 256;
const RELOADS: u32 = 100;
const FLOWS: u64 = 1000;

/// Traffic between two ports, as fast as the gateway takes it.
#[derive(Clone, Default)]
struct Traffic {
    produced: Arc<AtomicU64>,
    taken: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl RxQueue for Traffic {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        let mut bytes = Vec::new();
        for count in 0..max {
            let produced = self.produced.load(Ordering::SeqCst);
            let under_way = produced.saturating_sub(self.taken.load(Ordering::SeqCst));
            if under_way >= WINDOW || self.stop.load(Ordering::Relaxed) {
                return Ok(count);
            }
            let flow = (produced % FLOWS) as u16;
            bytes.clear();
            let builder = PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]);
            builder.udp(1024 + flow, 53, b"question", &mut bytes);
            frames.extend(pool.copy_of(&bytes));
            self.produced.fetch_add(1, Ordering::SeqCst);
        }
        Ok(max)
    }

    fn wait_handle(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl TxQueue for Traffic {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let report = TxReport { sent: frames.len() as u64, ..TxReport::default() };
        frames.drain(..).for_each(|frame| pool.give_back(frame));
        self.taken.fetch_add(report.sent, Ordering::SeqCst);
        Ok(report)
    }
}

/// Marks every packet with a number in one stage. The next stage counts packets with this number
/// and drops all others. So stages of two rulesets together would drop everything.
fn ruleset(mark: u32) -> ValidRuleset {
    let chain = |name: &str, hook: &str, priority: i32, policy: &str| {
        format!(
            r#"{{"chain":{{"family":"inet","table":"t","name":"{name}","handle":1,"type":"filter",
                "hook":"{hook}","prio":{priority},"policy":"{policy}"}}}}"#
        )
    };
    let rule = |chain: &str, handle: u32, expressions: String| {
        format!(
            r#"{{"rule":{{"family":"inet","table":"t","chain":"{chain}","handle":{handle},
                "expr":[{expressions}]}}}}"#
        )
    };
    let set = format!(r#"{{"mangle":{{"key":{{"meta":{{"key":"mark"}}}},"value":{mark}}}}}"#);
    let ask = format!(
        r#"{{"match":{{"op":"==","left":{{"meta":{{"key":"mark"}}}},"right":{mark}}}}},
            {{"counter":{{"packets":0,"bytes":0}}}},{{"accept":null}}"#
    );
    let document = [
        r#"{"table":{"family":"inet","name":"t","handle":1}}"#.to_owned(),
        chain("raw", "prerouting", -300, "accept"),
        chain("forward", "forward", 0, "drop"),
        chain("post", "postrouting", 0, "drop"),
        rule("raw", 10, set),
        rule("forward", 11, ask.clone()),
        rule("post", 12, ask),
    ];
    let document = format!(r#"{{"nftables":[{}]}}"#, document.join(","));
    import(document.as_bytes(), Options::default()).unwrap().ruleset
}

/// A ruleset that asks for a helper which does not exist.
fn wrong() -> ValidRuleset {
    let document = br#"{"nftables":[{"table":{"family":"inet","name":"t","handle":1}},
        {"ct helper":{"family":"inet","table":"t","name":"h","handle":2,"type":"unheard-of",
            "protocol":"tcp","l3proto":"inet"}},
        {"chain":{"family":"inet","table":"t","name":"c","handle":1,"type":"filter",
            "hook":"prerouting","prio":0,"policy":"drop"}},
        {"rule":{"family":"inet","table":"t","chain":"c","handle":7,
            "expr":[{"ct helper":"h"}]}}]}"#;
    import(document, Options::default()).unwrap().ruleset
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

fn gateway(traffic: &Traffic, workers: usize) -> Gateway {
    let mut config = Config::new(HashKey(5, 6));
    config.workers = WorkerCount::fixed(workers).unwrap();
    config.pin = false;
    config.rules = Some(Arc::new(ruleset(1)));
    let (source, sink) = (traffic.clone(), traffic.clone());
    let first = Queues {
        receive: move |_: usize| vec![source.clone()],
        transmit: || Traffic::default(),
        mtu: None,
    };
    let second =
        Queues { receive: |_: usize| vec![Silent], transmit: move || sink.clone(), mtu: None };
    let ports = vec![PortSetup::new("lan0", first), PortSetup::new("wan0", second)];
    Gateway::start(config, ports).unwrap()
}

#[test]
fn rulesets_are_exchanged_under_load_without_a_loss_or_a_mixture() {
    let traffic = Traffic::default();
    let gateway = gateway(&traffic, 2);
    let so_far = || traffic.taken.load(Ordering::SeqCst);
    until("the first packet", || so_far() > 0);
    let mut counted = 0;
    for number in 0..RELOADS {
        let before = so_far();
        // Packets between this and the exchange are not in the counts.
        let view = gateway.rules().unwrap().unwrap();
        counted += view.counts.counters[0].packets;
        let revision = gateway.load_rules(ruleset(number % 7)).unwrap();
        assert_eq!(revision, number + 2);
        if number % 20 == 9 {
            gateway.set_workers(1 + number as usize / 20 % 3).unwrap();
        }
        if number % 10 == 3 {
            let refused = gateway.load_rules(wrong());
            assert!(
                matches!(refused, Err(LoadRulesError::Prepare(PrepareRulesError::Unsupported(_)))),
                "{refused:?}"
            );
            assert_eq!(gateway.rules().unwrap().unwrap().revision, revision);
        }
        until("traffic behind a reload", || so_far() > before + WINDOW);
    }
    traffic.stop.store(true, Ordering::Relaxed);
    until("the last packet", || so_far() == traffic.produced.load(Ordering::SeqCst));
    assert!(counted > 0);
    let status = gateway.stop().unwrap();
    let mut totals = status.retired;
    status.workers.iter().for_each(|worker| totals.add(&worker.counters));
    assert_eq!(totals.dropped_total(), 0);
    assert_eq!(totals.dropped(DropReason::PolicyRefused), 0);
}

#[test]
fn counts_of_workers_are_summed_and_stay_when_the_workers_go() {
    let traffic = Traffic::default();
    let gateway = gateway(&traffic, 3);
    let so_far = || traffic.taken.load(Ordering::SeqCst);
    until("traffic", || so_far() > 20_000);
    gateway.set_workers(1).unwrap();
    gateway.set_workers(2).unwrap();
    until("traffic", || so_far() > 40_000);
    traffic.stop.store(true, Ordering::Relaxed);
    until("the last packet", || so_far() == traffic.produced.load(Ordering::SeqCst));
    let view = gateway.rules().unwrap().unwrap();
    let counters: Vec<u64> =
        view.ruleset().counter_ids().map(|(id, _)| view.counted(id).packets).collect();
    assert_eq!(counters, [so_far(), so_far()]);
    assert_eq!(gateway.unload_rules().unwrap(), 2);
    assert!(gateway.rules().unwrap().is_none());
}
