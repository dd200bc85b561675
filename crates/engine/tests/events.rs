//! The events of one connection come in the order in which they happened, while its bucket moves
//! between real workers, and while workers come and go.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queues;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conntrack::{EventKind, Filter};
use engine::{Config, EventStream, Gateway, PortOpener, PortSetup, WorkerCount};
use flow::{FlowKey, HashKey};
use netio::memory::{ChannelRx, ChannelTx, Discard, channel};
use netio::{FramePool, PortId, TxQueue};
use steer::{BucketId, WorkerId};
use wire::build::PacketBuilder;

use queues::Queues;

const FLOWS: u16 = 64;
const ROUNDS: usize = 40;

/// A port that receives the packets of a channel and can be opened once. Its sent packets are
/// thrown away.
fn port(mut channel: Option<ChannelRx>) -> impl PortOpener + 'static {
    let receive = move |_: usize| channel.take().into_iter().collect::<Vec<_>>();
    Queues { receive, transmit: || Discard, mtu: None }
}

fn start() -> (Gateway, ChannelTx) {
    let (lan, lan_rx) = channel(PortId(0), 1 << 12).unwrap();
    let ports = [("lan0", Some(lan_rx)), ("wan0", None)];
    let ports = ports.map(|(name, channel)| PortSetup::new(name, port(channel))).into();
    let workers = WorkerCount::fixed(3).unwrap();
    let config = Config { workers, pin: false, ..Config::new(HashKey(7, 11)) };
    (Gateway::start(config, ports).unwrap(), lan)
}

/// Sends a question and an answer of every flow.
fn exchange(lan: &mut ChannelTx, pool: &mut FramePool) {
    let (client, server) = ([198, 51, 100, 1], [192, 0, 2, 1]);
    let (mut frames, mut bytes) = (Vec::new(), Vec::new());
    for port in 1024..1024 + FLOWS {
        bytes.clear();
        PacketBuilder::v4(client, server).udp(port, 53, b"?", &mut bytes);
        frames.push(pool.copy_of(&bytes).unwrap());
        bytes.clear();
        PacketBuilder::v4(server, client).udp(53, port, b"!", &mut bytes);
        frames.push(pool.copy_of(&bytes).unwrap());
    }
    lan.transmit(&mut frames, pool).unwrap();
}

/// Reads this many events. Checks that each connection is opened, answered and ended, again and
/// again.
fn check(mut stream: EventStream, wanted: usize) {
    let mut next: HashMap<FlowKey, EventKind> = HashMap::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    for sequence in 0..wanted as u64 {
        let numbered = loop {
            assert!(Instant::now() < deadline, "only {sequence} events of {wanted}");
            if let Some(numbered) = stream.next_within(Duration::from_millis(100)) {
                break numbered;
            }
        };
        assert_eq!((numbered.sequence, numbered.lost), (sequence, 0));
        let expected = next.entry(numbered.event.connection.key).or_insert(EventKind::New);
        assert_eq!(numbered.event.kind, *expected, "event {sequence}");
        *expected = match numbered.event.kind {
            EventKind::New => EventKind::Update,
            EventKind::Update => EventKind::Destroy,
            EventKind::Destroy => EventKind::New,
        };
    }
    assert_eq!(next.len(), usize::from(FLOWS));
    assert!(next.values().all(|kind| *kind == EventKind::New), "all have ended");
}

/// Opens and ends every flow again and again under a subscription, and calls `disturb` without
/// pause meanwhile.
fn run(disturb: impl Fn(&Gateway, u16) + Send + Sync) {
    let (gateway, mut lan) = start();
    let stream = gateway.subscribe(1 << 14).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| check(stream, 3 * ROUNDS * usize::from(FLOWS)));
        scope.spawn(|| {
            for step in (0..=u16::MAX).cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                disturb(&gateway, step);
            }
        });
        let mut pool = FramePool::new(256, 1);
        for round in 1..=ROUNDS as u64 {
            exchange(&mut lan, &mut pool);
            let mut ended = 0;
            let wanted = u64::from(FLOWS);
            let deadline = Instant::now() + Duration::from_secs(20);
            while ended < wanted {
                assert!(Instant::now() < deadline, "round {round}: {ended} of {wanted}");
                let answered = |gateway: &Gateway| {
                    let established = gateway.status().unwrap().totals().classes;
                    established.iter().sum::<u64>() == 2 * wanted * round
                };
                if answered(&gateway) {
                    ended += gateway.delete_connections(&Filter::default()).unwrap();
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(gateway.stop().unwrap().totals().dropped_total(), 0);
}

#[test]
fn order_holds_while_buckets_move() {
    run(|gateway, step| {
        let bucket = BucketId(step.wrapping_mul(31) % 256);
        gateway.move_bucket(bucket, WorkerId(step % 3)).unwrap();
    });
}

#[test]
fn order_holds_while_workers_come_and_go() {
    run(|gateway, step| {
        gateway.set_workers([3, 1, 4, 2][usize::from(step % 4)]).map(drop).unwrap();
    });
}
