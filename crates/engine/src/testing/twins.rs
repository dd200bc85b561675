//! For tests: two gateways beside each other that see the same packets and changes. In one of them
//! no recorded decision ever holds, so each of its packets takes all stages.

use std::sync::Arc;
use std::time::Duration;

use conntrack::{Cursor, Filter};
use flow::{DropReason, Zone};
use netio::{Frame, PortId, TxQueue};
use ruleset::{Interface, name_bits};
use steer::BucketId;

use crate::egress::Mode;
use crate::path::rules::ruleset::{Rules, Unloaded};
use crate::path::selection::{Operation, Part, Selection};
use crate::path::zone_config::ZoneConfig;
use crate::testing::many_workers::TestGateway;
use crate::worker::Worker;
use crate::worker::command::Command;

/// One of the two gateways.
pub struct Twin {
    pub gateway: TestGateway,
    mode: Mode,
    /// No recorded decision holds.
    is_slow: bool,
    /// A worker that is late, and the changes that it has not heard of.
    late: Option<(usize, Vec<Command>)>,
    pub rules: Option<Arc<Rules>>,
    /// The names of the ports.
    names: Vec<String>,
}

impl Twin {
    /// A gateway whose ports have these names.
    pub fn new(gateway: TestGateway, mode: Mode, names: &[&str], is_slow: bool) -> Self {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Self { gateway, mode, is_slow, late: None, rules: None, names }
    }

    /// Tells all workers, but for one that is late.
    pub fn tell(&mut self, command: impl Fn() -> Command) {
        for (worker, handle) in self.gateway.handles.iter_mut().enumerate() {
            match &mut self.late {
                Some((late, waiting)) if *late == worker => waiting.push(command()),
                _ => handle.tell(command()).unwrap(),
            }
        }
        self.gateway.run_until_idle();
    }

    /// From now on this worker does not hear of changes, as if it took no turn.
    pub fn be_late(&mut self, worker: usize) {
        self.late.get_or_insert((worker, Vec::new()));
    }

    /// The worker that is late hears of all changes.
    pub fn catch_up(&mut self) {
        let Some((late, waiting)) = self.late.take() else { return };
        for command in waiting {
            self.gateway.handles[late].tell(command).unwrap();
        }
        self.gateway.run_until_idle();
    }

    pub fn prepare(&self, rules: &str) -> Unloaded {
        let ruleset = ruleset::import(rules.as_bytes(), ruleset::Options::default()).unwrap();
        Rules::prepare(ruleset.ruleset, self.mode, 7, &self.names).unwrap()
    }

    pub fn load(&mut self, rules: Option<&str>, revision: u32) {
        let rules = rules.map(|text| self.prepare(text).load(revision, self.gateway.now));
        self.rules = rules.clone();
        self.tell(|| Command::Rules(rules.as_ref().map(Rules::for_worker)));
    }

    /// Gives the ports other names.
    pub fn rename(&mut self, names: &[&str]) {
        self.names = names.iter().map(|&name| name.to_owned()).collect();
        if let Some(rules) = &self.rules {
            let named = |name: &String| Interface::ethernet(name_bits(name).unwrap_or(0));
            let interfaces: Arc<[Interface]> = self.names.iter().map(named).collect();
            rules.know_interfaces(interfaces.clone());
            self.tell(|| Command::SetInterfaces(interfaces.clone()));
        }
    }

    /// Gives a port its queue for sending, or takes it.
    pub fn set_open(&mut self, port: usize, is_open: bool) {
        let sink = self.gateway.outputs[port].clone();
        self.tell(|| {
            let queue = is_open.then(|| Box::new(sink.clone()) as Box<dyn TxQueue>);
            Command::SetOutput(PortId(port as u16), queue)
        });
    }

    /// Applies an operation to the connections of a filter. Returns how many changed.
    pub fn select(&mut self, filter: &Arc<Filter>, what: &Operation) -> u64 {
        let place = Part::Piece(Cursor::default());
        let selection = Selection { filter: filter.clone(), what: what.clone(), place };
        let now = self.gateway.now;
        let mut affected = 0;
        for (bucket, owner) in (0..).map(BucketId).zip(self.gateway.owners.clone()) {
            let path = &mut self.gateway.workers[owner.index()].path;
            affected += path.select(bucket, &selection, now).affected;
        }
        self.gateway.run_until_idle();
        affected
    }

    /// Ends all connections.
    pub fn flush(&mut self) {
        let now = self.gateway.now;
        for worker in &mut self.gateway.workers {
            worker.path.end_connections(usize::MAX, now);
        }
        self.gateway.run_until_idle();
    }

    /// Lets time pass.
    pub fn wait(&mut self, time: Duration) {
        self.gateway.now = self.gateway.now.after(time);
        self.gateway.run_until_idle();
    }

    /// Moves a bucket to a worker.
    pub fn move_bucket(&mut self, bucket: u16, to: u16) {
        self.gateway.start_move(bucket, to);
        self.gateway.run_until_idle();
    }

    /// Passes packets that come in together, each with its port. Returns the frames that each port
    /// sends.
    pub fn pass(&mut self, arriving: &[(usize, Vec<u8>)]) -> Vec<Vec<Frame>> {
        if self.is_slow {
            self.gateway.workers.iter_mut().for_each(|worker| worker.path.forget_decisions());
        }
        for (port, bytes) in arriving {
            self.gateway.arrive(*port, bytes);
        }
        self.gateway.run_until_idle();
        self.sent()
    }

    /// The frames that each port has sent.
    pub fn sent(&self) -> Vec<Vec<Frame>> {
        (0..self.gateway.outputs.len()).map(|port| self.gateway.sent(port)).collect()
    }

    /// Its counters, except the number of wake-ups by other workers.
    pub fn counted(&self) -> Vec<String> {
        let of = |worker: &Worker| {
            let counters = worker.path.counters();
            let dropped: Vec<_> =
                DropReason::ALL.iter().map(|reason| counters.dropped(*reason)).collect();
            let rules = worker.path.rule_counts(0);
            format!(
                "{:?} {dropped:?} {rules:?} {:?} {}",
                counters.conntrack, counters.output, counters.softnet.processed
            )
        };
        self.gateway.workers.iter().map(of).collect()
    }
}

/// How many choices of zones there are.
pub const ZONES: usize = 4;

/// The zones of both gateways. The workers count connections of zones 5 and 9 from the start.
pub fn zones(index: usize) -> Vec<ZoneConfig> {
    let mut all = ZoneConfig::new(Zone(5));
    let mut tagged = ZoneConfig::new(Zone(9));
    tagged.set_vlans(vec![9]).unwrap();
    match index {
        0 => vec![tagged, all],
        1 => Vec::new(),
        2 => vec![tagged],
        _ => {
            all.set("nf_conntrack_udp_timeout_stream", 40).unwrap();
            vec![all]
        }
    }
}

/// Compares the frames that both have sent. Returns them.
pub fn same([fast, slow]: [Vec<Vec<Frame>>; 2]) -> Vec<Vec<Frame>> {
    let bytes = |frames: &[Vec<Frame>]| -> Vec<Vec<Vec<u8>>> {
        frames.iter().map(|port| port.iter().map(|it| it.bytes().to_vec()).collect()).collect()
    };
    assert_eq!(bytes(&fast), bytes(&slow));
    fast
}
