use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flow::HashKey;
use netio::memory::{ChannelRx, ChannelTx, Discard, channel};
use netio::{FramePool, PortError, PortId, RxQueue, TxQueue};
use ruleset::{Options, import};
use wire::build::PacketBuilder;

use super::*;
use crate::{Config, Gateway, OpenPort, PortOpener, PortSetup};

/// A port that receives the packets of a channel.
struct Port(Option<ChannelRx>);

impl PortOpener for Port {
    fn open(&mut self, _: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let rx = self.0.take().into_iter().map(|queue| Box::new(queue) as Box<dyn RxQueue>);
        let tx = (0..tx_queues).map(|_| self.open_tx());
        Ok(OpenPort { rx: rx.collect(), tx: tx.collect::<Result<_, _>>()? })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(Discard))
    }
}

/// Two workers whose rules count the packets of the channel.
fn gateway() -> (Gateway, ChannelTx) {
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
    let (lan, packets) = channel(PortId(0), 1 << 10).unwrap();
    let ports = [("lan0", Some(packets)), ("wan0", None)];
    let ports = ports.map(|(name, packets)| PortSetup::new(name, Port(packets)));
    (Gateway::start(config, Vec::from(ports)).unwrap(), lan)
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

/// Withholds from the second worker the last question that a leaving worker is asked, while the
/// returned flag is set.
fn interpose(gateway: &Gateway) -> Arc<AtomicBool> {
    let mut coordinator = gateway.shared.lock();
    let member = &mut coordinator.members[1];
    let ((mut inbox, mut commands), wakeup) = (member.interpose(), member.wakeup.clone());
    let keeps = Arc::new(AtomicBool::new(false));
    let is_told = keeps.clone();
    thread::spawn(move || {
        let mut is_over = false;
        while !is_over {
            match inbox.pop() {
                Ok(Command::Ask(Question::RecentDrops(_))) if is_told.load(Ordering::Relaxed) => {}
                Ok(command) => {
                    is_over = matches!(command, Command::Stop);
                    assert!(commands.push(command).is_ok());
                    wakeup.ring();
                }
                Err(_) => thread::sleep(Duration::from_micros(100)),
            }
        }
    });
    keeps
}

#[test]
fn a_worker_that_hangs_when_it_is_to_leave_keeps_its_rules() {
    let (gateway, mut lan) = gateway();
    send(&mut lan);
    wait_for(&gateway, FLOWS.into());
    let keeps = interpose(&gateway);
    keeps.store(true, Ordering::Relaxed);
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
