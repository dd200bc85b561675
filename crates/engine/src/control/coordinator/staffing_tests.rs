use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flow::HashKey;
use netio::memory::{ChannelRx, ChannelTx, channel};
use netio::{Frame, FramePool, PortError, PortId, RxQueue, TxQueue};
use ruleset::{Options, import};
use wire::build::PacketBuilder;

use super::*;
use crate::testing::line::Line;
use crate::{Config, Gateway, OpenPort, PortOpener, PortSetup};

/// A port that receives the packets of a channel, and what it sends.
struct Port(Option<ChannelRx>, Line);

impl PortOpener for Port {
    fn open(&mut self, _: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let rx = self.0.take().into_iter().map(|queue| Box::new(queue) as Box<dyn RxQueue>);
        let tx = (0..tx_queues).map(|_| self.open_tx());
        Ok(OpenPort { rx: rx.collect(), tx: tx.collect::<Result<_, _>>()? })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(self.1.clone()))
    }
}

/// Two workers whose rules count the packets of two channels. Each worker polls one of them.
fn gateway() -> (Gateway, [ChannelTx; 2]) {
    let document = br#"{"nftables":[{"table":{"family":"inet","name":"t","handle":1}},
        {"chain":{"family":"inet","table":"t","name":"c","handle":2,"type":"filter",
            "hook":"forward","prio":0,"policy":"accept"}},
        {"rule":{"family":"inet","table":"t","chain":"c","handle":3,
            "expr":[{"counter":{"packets":0,"bytes":0}}]}}]}"#;
    let ruleset = import(document, Options::default()).unwrap().ruleset;
    let config = Config {
        workers: WorkerCount::fixed(2).unwrap(),
        pin: false,
        rules: Some(Arc::new(ruleset)),
        ..Config::new(HashKey(5, 6))
    };
    let (lan, from_lan) = channel(PortId(0), 1 << 10).unwrap();
    let (wan, from_wan) = channel(PortId(1), 1 << 10).unwrap();
    let ports = [("lan0", from_lan), ("wan0", from_wan)];
    let port = |packets| Port(Some(packets), Line::default());
    let ports = ports.map(|(name, packets)| PortSetup::new(name, port(packets)));
    (Gateway::start(config, Vec::from(ports)).unwrap(), [lan, wan])
}

const FLOWS: u16 = 100;

fn send(lan: &mut ChannelTx) {
    let mut pool = FramePool::new(0, 0);
    let mut frames = Vec::new();
    for port in 1024..1024 + FLOWS {
        let mut bytes = Vec::new();
        PacketBuilder::v4([198, 51, 100, 1], [192, 0, 2, 1]).udp(port, 53, b"?", &mut bytes);
        frames.push(pool.copy_of(&bytes).unwrap());
    }
    lan.transmit(&mut frames, &mut pool).unwrap();
}

fn counted(gateway: &Gateway) -> u64 {
    gateway.rules().unwrap().unwrap().counts.counters[0].packets
}

fn wait_for(gateway: &Gateway, count: u64) {
    let begin = Instant::now();
    while counted(gateway) != count {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} of {count}", counted(gateway));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Passes on to the second worker the commands that `passes` lets by.
fn interpose(gateway: &Gateway, passes: impl Fn(&Command) -> bool + Send + 'static) {
    let mut coordinator = gateway.shared.lock();
    let handle = &mut coordinator.workers[1];
    let ((mut inbox, mut commands), wakeup) = (handle.interpose(), handle.wakeup.clone());
    thread::spawn(move || {
        let mut is_over = false;
        while !is_over {
            match inbox.pop() {
                Ok(command) if passes(&command) => {
                    is_over = matches!(command, Command::Stop);
                    sleep_while(|| commands.is_full());
                    assert!(commands.push(command).is_ok());
                    wakeup.ring();
                }
                Ok(_) => {}
                Err(_) => thread::sleep(Duration::from_micros(100)),
            }
        }
    });
}

/// A flag that is set, and what the other thread asks.
fn flag() -> (Arc<AtomicBool>, impl Fn() -> bool) {
    let flag = Arc::new(AtomicBool::new(true));
    let asked = flag.clone();
    (flag, move || asked.load(Ordering::Relaxed))
}

fn sleep_while(is_so: impl Fn() -> bool) {
    while is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_worker_that_hangs_when_it_is_to_leave_keeps_its_rules() {
    let (gateway, [mut lan, _wan]) = gateway();
    send(&mut lan);
    wait_for(&gateway, FLOWS.into());
    // The last question that a leaving worker is asked.
    let (keeps, is_kept) = flag();
    interpose(&gateway, move |command| {
        !(matches!(command, Command::Ask(Question::RecentDrops(_))) && is_kept())
    });
    let refused = gateway.set_workers(1);
    assert!(matches!(refused, Err(SteerError::Unresponsive(Unresponsive(WorkerId(1))))));
    assert_eq!(counted(&gateway), u64::from(FLOWS), "nothing is counted twice");
    assert!(!gateway.set_workers(2).unwrap().is_empty(), "it has buckets again");
    send(&mut lan);
    wait_for(&gateway, 2 * u64::from(FLOWS));
    keeps.store(false, Ordering::Relaxed);
    gateway.set_workers(1).unwrap();
    assert_eq!(counted(&gateway), 2 * u64::from(FLOWS));
    gateway.stop().unwrap();
}

#[test]
fn a_queue_that_a_worker_gives_back_late_is_polled_again() {
    let (gateway, [_lan, mut wan]) = gateway();
    send(&mut wan);
    wait_for(&gateway, FLOWS.into());
    let (hangs, is_hanging) = flag();
    interpose(&gateway, move |command| {
        sleep_while(|| matches!(command, Command::ReleaseQueue { .. }) && is_hanging());
        true
    });
    assert!(matches!(gateway.set_workers(1), Err(SteerError::Stuck)));
    hangs.store(false, Ordering::Relaxed);
    // It has given the queue back when it answers.
    gateway.shared.lock().reports().unwrap();
    send(&mut wan);
    wait_for(&gateway, 2 * u64::from(FLOWS));
    gateway.set_workers(1).unwrap();
    gateway.stop().unwrap();
}

/// The threads of this process that run a third worker. No other test here has one.
fn third_workers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        // A thread that ends meanwhile has no name any more.
        std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default()
    };
    threads.map(name).filter(|name| name.trim() == "worker-2").count()
}

#[test]
fn a_worker_that_can_not_be_introduced_to_all_ends() {
    let (gateway, [mut lan, _wan]) = gateway();
    let (hangs, is_hanging) = flag();
    let (first_waits, is_first_inside) = flag();
    interpose(&gateway, move |_| {
        first_waits.store(false, Ordering::Relaxed);
        sleep_while(&is_hanging);
        true
    });
    let mut coordinator = gateway.shared.lock();
    let second = &mut coordinator.workers[1];
    // The first command leaves the inbox, and waits outside. Those behind it fill the inbox.
    second.tell(Command::Mark(0)).unwrap();
    sleep_while(is_first_inside);
    while second.has_room() {
        second.tell(Command::Mark(0)).unwrap();
    }
    drop(coordinator);
    assert!(matches!(gateway.set_workers(3), Err(SteerError::Start(_))));
    // The system lists a thread for a moment after it was joined.
    let begin = Instant::now();
    sleep_while(|| third_workers() > 0 && begin.elapsed() < Duration::from_secs(20));
    assert_eq!(third_workers(), 0);
    hangs.store(false, Ordering::Relaxed);
    gateway.set_workers(3).unwrap();
    assert_eq!(third_workers(), 1);
    send(&mut lan);
    wait_for(&gateway, FLOWS.into());
    gateway.stop().unwrap();
}

/// A port with two receive queues. Those of its first opening fail together.
struct Failing {
    fails: Arc<AtomicBool>,
    opened: usize,
}

struct FailingQueue(Option<Arc<AtomicBool>>);

impl PortOpener for Failing {
    fn open(&mut self, _: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let fails = Some(self.fails.clone()).filter(|_| self.opened == 0);
        self.opened += 1;
        let rx = (0..2).map(|_| Box::new(FailingQueue(fails.clone())) as Box<dyn RxQueue>);
        let tx = (0..tx_queues).map(|_| self.open_tx());
        Ok(OpenPort { rx: rx.collect(), tx: tx.collect::<Result<_, _>>()? })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(Line::default()))
    }
}

impl RxQueue for FailingQueue {
    fn receive(
        &mut self,
        _: &mut Vec<Frame>,
        _: usize,
        _: &mut FramePool,
    ) -> Result<usize, PortError> {
        match &self.0 {
            Some(fails) if fails.load(Ordering::Relaxed) => {
                Err(PortError::Gone { interface: "lan0".into() })
            }
            _ => Ok(0),
        }
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn a_port_whose_queues_fail_together_is_opened_again() {
    let config = Config {
        workers: WorkerCount::fixed(2).unwrap(),
        pin: false,
        ..Config::new(HashKey(5, 6))
    };
    let fails = Arc::new(AtomicBool::new(false));
    let port = PortSetup::new("lan0", Failing { fails: fails.clone(), opened: 0 });
    let other = PortSetup::new("wan0", Port(None, Line::default()));
    let gateway = Gateway::start(config, vec![port, other]).unwrap();
    // Both have failed before the coordinator looks.
    let mut coordinator = gateway.shared.lock();
    fails.store(true, Ordering::Relaxed);
    while coordinator.reports().unwrap().iter().any(|report| !report.queues.is_empty()) {}
    coordinator.tend().unwrap();
    let [status, _] = &coordinator.ports.statuses()[..] else { panic!("two ports") };
    assert_eq!((status.up, status.reopened), (true, 1));
    assert_eq!(coordinator.ports.queues_of(PortId(0)).len(), 2);
    drop(coordinator);
    gateway.stop().unwrap();
}

const STATIONS: [[u8; 6]; 2] = [[0, 0, 0x5e, 0, 0x53, 1], [0, 0, 0x5e, 0, 0x53, 2]];

/// Frames that a port has sent to the second station.
fn sent_to_it(line: &Line) -> usize {
    line.0.lock().unwrap().iter().filter(|frame| frame.bytes().starts_with(&STATIONS[1])).count()
}

#[test]
fn a_worker_that_is_hired_knows_the_stations_of_a_bridge() {
    let config = Config {
        workers: WorkerCount::fixed(1).unwrap(),
        pin: false,
        ..Config::new(HashKey(5, 6))
    };
    let (mut lan, from_lan) = channel(PortId(0), 1 << 10).unwrap();
    let (mut wan, from_wan) = channel(PortId(1), 1 << 10).unwrap();
    let lines = [(); 3].map(|()| Line::default());
    let names = ["lan0", "wan0", "opt0"];
    let ports = names.into_iter().zip([Some(from_lan), Some(from_wan), None]).zip(&lines);
    let ports =
        ports.map(|((name, packets), line)| PortSetup::new(name, Port(packets, line.clone())));
    let gateway = Gateway::start(config, ports.collect()).unwrap();
    let mut pool = FramePool::new(0, 0);
    let mut send = |to: &mut ChannelTx, stations: [[u8; 6]; 2], ports: std::ops::Range<u16>| {
        let frame = |port| {
            let mut bytes = Vec::new();
            let packet = PacketBuilder::v4([198, 51, 100, 1], [192, 0, 2, 1]);
            packet.macs(stations[0], stations[1]).udp(port, 53, b"?", &mut bytes);
            pool.copy_of(&bytes).unwrap()
        };
        let mut frames: Vec<_> = ports.map(frame).collect();
        to.transmit(&mut frames, &mut pool).unwrap();
    };
    let wait = |port: usize, count: usize| {
        let begin = Instant::now();
        while sent_to_it(&lines[port]) < count {
            assert!(begin.elapsed() < Duration::from_secs(20), "{}", sent_to_it(&lines[port]));
            thread::sleep(Duration::from_millis(1));
        }
    };
    // The second station is heard once, and a frame to it leaves by its port alone.
    send(&mut wan, [STATIONS[1], [0xff; 6]], 53..54);
    let begin = Instant::now();
    while lines[2].0.lock().unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "no frame to all");
        thread::sleep(Duration::from_millis(1));
    }
    send(&mut lan, STATIONS, 1000..1001);
    wait(1, 1);
    gateway.set_workers(2).unwrap();
    send(&mut lan, STATIONS, 1024..1024 + FLOWS);
    wait(1, 1 + usize::from(FLOWS));
    assert_eq!(sent_to_it(&lines[2]), 0, "frames that the third port sent too");
    gateway.stop().unwrap();
}
