//! A change of zones or tunables reaches every worker, also one that hangs when it is made.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queues;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::{
    ChangeTunableError, ChangeZonesError, Config, Gateway, PortSetup, WorkerCount, ZoneBook,
    ZoneConfig,
};
use flow::{HashKey, Tunable, Zone};
use netio::memory::{ChannelRx, ChannelTx, Discard, channel};
use netio::{Frame, FramePool, PortError, PortId, RxQueue, TxQueue};
use wire::build::PacketBuilder;

use queues::Queues;

/// Holds up who comes while the lock is held.
#[derive(Clone, Default)]
struct Door {
    lock: Arc<Mutex<()>>,
    waits: Arc<AtomicBool>,
}

/// A queue that gives what a channel gives, or nothing to who gets through the door.
struct Queue(Option<ChannelRx>, Door);

impl RxQueue for Queue {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        match &mut self.0 {
            Some(channel) => channel.receive(frames, max, pool),
            None => {
                self.1.waits.store(true, Ordering::Relaxed);
                drop(self.1.lock.lock().unwrap());
                self.1.waits.store(false, Ordering::Relaxed);
                Ok(0)
            }
        }
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().and_then(ChannelRx::wait_handle)
    }
}

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

/// Two workers, of which the second comes to a door, and what the first gets its packets from.
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

impl Door {
    /// Waits until somebody waits at it, who was closed out before.
    fn wait(&self, gateway: &Gateway) {
        // Whoever sleeps is woken, and comes to the door.
        let _ = gateway.status();
        while !self.waits.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
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
