//! Two sessions on a perfect link, for tests.

use super::*;
use crate::record::{Identity, Record, RecordKind};
use crate::refusal::Refusal;

pub const SECRET: &[u8] = b"the same secret!";

pub fn likeness() -> Likeness {
    Likeness {
        hash_kind: "sip".into(),
        hash_secret: HashSecret::new([1; 16]),
        buckets: 256,
        translating_links: Default::default(),
        fragment_mode: "reassemble".into(),
        tunnel_mode: "inside".into(),
        zones: Vec::new(),
        rules: Vec::new(),
    }
}

pub fn config(node: u16) -> Config {
    Config {
        node: NodeId(node.try_into().unwrap()),
        name: NodeName::new(&format!("node{node}")).unwrap(),
        peer: None,
        follows: true,
        secret_role: SecretRole::Keeps,
        likeness: likeness(),
        settings: Settings { queue_bytes: 16 * 1024, ..Settings::default() },
        faults: Faults::default(),
    }
}

pub fn session_with(config: Config, seed: u8, secret: &[u8]) -> Session {
    let seed = Seed::new([seed; 32]);
    Session::new(Timestamp::ZERO, config, PreSharedKey::new(secret).unwrap(), seed)
}

fn session(config: Config) -> Session {
    let seed = config.node.0.get() as u8;
    session_with(config, seed, SECRET)
}

/// Two sessions on a perfect link without delay.
pub struct Pair {
    pub now: Timestamp,
    pub ends: [Session; 2],
    pub events: [Vec<Event>; 2],
    /// All datagrams, with their receivers.
    pub seen: Vec<(usize, Vec<u8>)>,
}

impl Pair {
    pub fn new(configs: [Config; 2]) -> Self {
        let ends = configs.map(session);
        Self { now: Timestamp::ZERO, ends, events: Default::default(), seen: Vec::new() }
    }

    /// Exchanges datagrams until both have nothing more to say now.
    pub fn settle(&mut self) {
        let mut is_busy = true;
        let mut datagram = Vec::new();
        while is_busy {
            is_busy = false;
            for at in [0, 1] {
                while self.ends[at].poll_transmit(self.now, &mut datagram) {
                    is_busy = true;
                    self.seen.push((1 - at, datagram.clone()));
                    let _ = self.ends[1 - at].handle(self.now, &datagram);
                }
                while let Some(event) = self.ends[1 - at].poll_event(self.now) {
                    self.events[1 - at].push(event);
                }
            }
        }
    }

    pub fn wait(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.now.after(Duration::from_millis(1)).min(end);
            self.settle();
        }
    }

    /// The next datagram of an end, which nobody gets.
    pub fn sent(&mut self, at: usize) -> Vec<u8> {
        let mut datagram = Vec::new();
        assert!(self.ends[at].poll_transmit(self.now, &mut datagram));
        datagram
    }

    /// The next datagram of an end arrives.
    pub fn carry(&mut self, from: usize) -> Result<(), Refusal> {
        let datagram = self.sent(from);
        self.ends[1 - from].handle(self.now, &datagram)
    }

    pub fn status(&self, at: usize) -> Status {
        self.ends[at].status(self.now)
    }
}

pub fn joined(configs: [Config; 2]) -> Pair {
    let mut pair = Pair::new(configs);
    pair.wait(Duration::from_millis(300));
    pair
}

/// A pair in which the first node sends changes to the second.
pub fn following() -> Pair {
    let mut pair = joined([config(1), config(2)]);
    pair.ends[0].begin_bulk(pair.now, 0).unwrap();
    pair.ends[0].end_bulk(pair.now).unwrap();
    pair.wait(Duration::from_millis(10));
    assert!(matches!(pair.status(1).inflow, Inflow::Level(_)));
    pair.events = Default::default();
    pair
}

pub fn record(version: u32) -> Record<'static> {
    let identity = Identity { key: 1, incarnation: 1, version };
    Record { identity, kind: RecordKind::Change, body: &[7; 100] }
}
