//! A change of zones, rules or tunables reaches every worker, even one that hangs meanwhile.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "queues/door.rs"]
mod door;
mod queues;

use std::time::{Duration, Instant};

use engine::{
    ChangeTunableError, ChangeZonesError, Config, Gateway, PortSetup, WorkerCount, ZoneBook,
    ZoneConfig,
};
use flow::{DropReason, HashKey, Tunable, Zone};
use netio::memory::{ChannelRx, ChannelTx, Discard, channel};
use netio::{FramePool, PortId, TxQueue};
use ruleset::{Options, ValidRuleset, import};
use wire::build::PacketBuilder;

use door::{Door, Queue};
use queues::Queues;

const FLOWS: u16 = 100;

fn open_flows(lan: &mut ChannelTx, pool: &mut FramePool, round: u8) {
    let mut frames = Vec::new();
    for port in 1024..1024 + FLOWS {
        let mut bytes = Vec::new();
        PacketBuilder::v4([198, 51, 100, round], [192, 0, 2, 1]).udp(port, 53, b"?", &mut bytes);
        frames.push(pool.copy_of(&bytes).unwrap());
    }
    lan.transmit(&mut frames, pool).unwrap();
}

/// Two workers, of which the second comes to a door. Also the channel of the first one's packets.
fn gateway() -> (Gateway, ChannelTx, Door) {
    let (lan, lan_rx) = channel(PortId(0), 1 << 12).unwrap();
    let door = Door::default();
    let mut queues = vec![Queue(Some(lan_rx), door.clone()), Queue(None, door.clone())];
    let lan_port =
        Queues { receive: move |_| queues.split_off(0), transmit: || Discard, mtu: None };
    let wan_port = Queues { receive: |_| Vec::<ChannelRx>::new(), transmit: || Discard, mtu: None };
    let ports = vec![PortSetup::new("lan0", lan_port), PortSetup::new("wan0", wan_port)];
    let workers = WorkerCount::fixed(2).unwrap();
    let config = Config { workers, pin: false, ..Config::new(HashKey(7, 11)) };
    (Gateway::start(config, ports).unwrap(), lan, door)
}

#[test]
fn a_worker_that_hangs_learns_of_zones_when_it_goes_on() {
    let (gateway, mut lan, door) = gateway();
    let mut pool = FramePool::new(0, 0);
    let held = door.lock.lock().unwrap();
    door.wait(&gateway);
    let zones = vec![ZoneConfig::new(Zone(5))];
    let changed = gateway.set_zones(ZoneBook { zones, ..ZoneBook::default() });
    assert!(matches!(changed, Err(ChangeZonesError::Unresponsive(_))), "{changed:?}");
    assert_eq!(gateway.zones().revision, 1, "it is what is wanted from now on");
    drop(held);
    let begin = Instant::now();
    let mut opened = 0;
    for round in 1.. {
        open_flows(&mut lan, &mut pool, round);
        std::thread::sleep(Duration::from_millis(200));
        let zones = gateway.status().unwrap().zones;
        let of_zone = zones.first().map_or(0, |zone| zone.connections);
        if of_zone == opened + u64::from(FLOWS) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{zones:?}");
        opened = of_zone;
    }
    gateway.stop().unwrap();
}

#[test]
fn a_limit_that_was_lowered_while_a_worker_hung_holds_when_it_goes_on() {
    let (gateway, mut lan, door) = gateway();
    let mut pool = FramePool::new(0, 0);
    open_flows(&mut lan, &mut pool, 1);
    let held = door.lock.lock().unwrap();
    door.wait(&gateway);
    let changed = gateway.set_tunable("nf_conntrack_max", 10);
    assert!(matches!(changed, Err(ChangeTunableError::Unresponsive(_))), "{changed:?}");
    let is_set =
        |(tunable, value): &(&Tunable, u64)| tunable.name == "nf_conntrack_max" && *value == 10;
    assert!(gateway.tunables().iter().any(is_set), "it is what is wanted from now on");
    let changed = gateway.set_tunable("nf_conntrack_maximum", 10);
    assert!(matches!(changed, Err(ChangeTunableError::Refused(_))), "{changed:?}");
    drop(held);
    let begin = Instant::now();
    for round in 2.. {
        open_flows(&mut lan, &mut pool, round);
        std::thread::sleep(Duration::from_millis(200));
        let count = gateway.connection_count().unwrap();
        if count <= 10 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{count}");
    }
    gateway.stop().unwrap();
}

/// Rules with this policy, which forward everything or nothing.
fn ruleset(policy: &str) -> ValidRuleset {
    let document = format!(
        r#"{{"nftables":[{{"table":{{"family":"inet","name":"t","handle":1}}}},
            {{"chain":{{"family":"inet","table":"t","name":"c","handle":2,"type":"filter",
                "hook":"forward","prio":0,"policy":"{policy}"}}}}]}}"#
    );
    import(document.as_bytes(), Options::default()).unwrap().ruleset
}

/// Waits until all workers judge by the rules.
fn wait_for_rules(gateway: &Gateway) {
    let begin = Instant::now();
    while let Some(trouble) = gateway.rule_troubles().first() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{trouble}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The number of connections that new packets open. All workers decide on some of them.
fn opened(gateway: &Gateway, lan: &mut ChannelTx, round: u8) -> u64 {
    let decisions = || {
        let workers = gateway.status().unwrap().workers;
        let decisions = workers
            .iter()
            .map(|it| it.connections + it.counters.dropped(DropReason::PolicyRefused));
        decisions.sum::<u64>()
    };
    let (before, so_far) = (gateway.connection_count().unwrap(), decisions());
    open_flows(lan, &mut FramePool::new(0, 0), round);
    let begin = Instant::now();
    while decisions() < so_far + u64::from(FLOWS) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} of {FLOWS}", decisions() - so_far);
        std::thread::sleep(Duration::from_millis(10));
    }
    gateway.connection_count().unwrap() - before
}

#[test]
fn rules_that_are_loaded_while_a_worker_hangs_hold_for_it_when_it_goes_on() {
    let (gateway, mut lan, door) = gateway();
    gateway.load_rules(ruleset("accept")).unwrap();
    assert_eq!(opened(&gateway, &mut lan, 1), u64::from(FLOWS));
    let held = door.lock.lock().unwrap();
    door.wait(&gateway);
    assert_eq!(gateway.load_rules(ruleset("drop")).unwrap(), 2, "the others have them");
    let [trouble] = &gateway.rule_troubles()[..] else { panic!("it is said nowhere") };
    assert!(trouble.starts_with("worker 1 "), "{trouble}");
    drop(held);
    wait_for_rules(&gateway);
    assert_eq!(opened(&gateway, &mut lan, 2), 0);
    assert_eq!(gateway.rules().unwrap().unwrap().revision, 2);
    gateway.stop().unwrap();
}

#[test]
fn a_worker_that_hangs_and_has_no_room_for_rules_gets_them_when_it_goes_on() {
    let (gateway, mut lan, door) = gateway();
    gateway.load_rules(ruleset("accept")).unwrap();
    let held = door.lock.lock().unwrap();
    door.wait(&gateway);
    while gateway.subscribe(1).is_ok() {}
    assert_eq!(gateway.load_rules(ruleset("drop")).unwrap(), 2, "the others have them");
    assert!(gateway.rules().is_err(), "what it has counted, it has by the rules before");
    drop(held);
    wait_for_rules(&gateway);
    assert_eq!(opened(&gateway, &mut lan, 1), 0);
    assert_eq!(gateway.load_rules(ruleset("accept")).unwrap(), 3);
    assert_eq!(opened(&gateway, &mut lan, 2), u64::from(FLOWS));
    gateway.stop().unwrap();
}
