//! For tests: several workers on one thread between ports, which take their turns in any
//! order while buckets move.

use std::sync::mpsc::{self, Receiver};

use flow::{DropReason, Timestamp, Zone};
use netio::{Frame, FramePool, PortId};
use steer::{BucketId, SteeringHasher, WorkerId};

use crate::control::blueprint::{Blueprint, Post};
use crate::control::worker_handle::{WorkerHandle, introduce};
use crate::egress::resolver::Resolver;
use crate::path::TimeSource;
use crate::rings::ownership::Move;
use crate::testing::line::Line;
use crate::worker::command::{Command, Notice};
use crate::worker::queue::Queue;
use crate::worker::{Turn, Worker};
use crate::{Bucket, Config, Zones};

/// Workers between ports. If there are enough workers, each port's queue has a poller of its own.
pub struct TestGateway {
    pub workers: Vec<Worker>,
    pub handles: Vec<WorkerHandle>,
    pub inputs: Vec<Line>,
    pub outputs: Vec<Line>,
    /// The owner of each bucket after the moves that were ordered.
    pub owners: Vec<WorkerId>,
    /// The bucket that is on its way.
    pub moving: Option<BucketId>,
    pub hasher: SteeringHasher,
    pub now: Timestamp,
    notices: Receiver<Notice>,
    next_turn: usize,
}

impl TestGateway {
    /// Creates a gateway of `count` workers, which are routers if `routed`.
    pub fn new(config: &Config, count: u16, routed: bool) -> Self {
        Self::between(2, config, count, routed)
    }

    /// The same between so many ports.
    pub fn between(ports: usize, config: &Config, count: u16, routed: bool) -> Self {
        let now = Timestamp::from_secs(1000);
        let hasher = SteeringHasher::new(config.steering());
        let buckets = config.buckets.get() as u16;
        let owners: Vec<WorkerId> = (0..buckets).map(|bucket| WorkerId(bucket % count)).collect();
        let (notify, notices) = mpsc::channel();
        let blueprint = Blueprint::new(config, notify, TimeSource::Turn).unwrap();
        let zones = Zones::new(&config.zones, ports).unwrap();
        let lines = || (0..ports).map(|_| Line::default()).collect();
        let (inputs, outputs): (Vec<Line>, Vec<Line>) = (lines(), lines());
        let (mut workers, mut handles) = (Vec::new(), Vec::<WorkerHandle>::new());
        for id in (0..count).map(WorkerId) {
            let (mut handle, inbox) = WorkerHandle::new(id, None).unwrap();
            let post = Post {
                id,
                hasher: &hasher,
                routes: owners.clone(),
                zones: &zones,
                refuses_new: vec![false; ports],
                outputs: ports,
                workers: 1,
                resolver: routed.then(|| Resolver::for_test().0),
                host_questions: None,
            };
            let tools = (inbox, &handle.wakeup);
            let mut worker = Worker::new(blueprint.equipment(config, post, tools));
            for bucket in config.buckets.iter().filter(|bucket| owners[bucket.index()] == id) {
                worker.install(bucket, Box::new(Bucket::new(now)));
            }
            for other in &mut handles {
                introduce(other, &mut handle, &config.settings.steer).unwrap();
            }
            for (port, sink) in (0..).map(PortId).zip(&outputs) {
                handle.tell(Command::SetOutput(port, Some(Box::new(sink.clone())))).unwrap();
            }
            workers.push(worker);
            handles.push(handle);
        }
        for (port, source) in (0..).map(PortId).zip(&inputs) {
            let queue = Queue::new(port.0.into(), port, Box::new(source.clone()));
            let poller = usize::from(port.0).min(handles.len() - 1);
            handles[poller].tell(Command::AddQueue(queue)).unwrap();
        }
        for handle in &mut handles {
            handle.tell(Command::ShareLimits(count.into())).unwrap();
        }
        let mut gateway = Self {
            workers,
            handles,
            inputs,
            outputs,
            owners,
            moving: None,
            hasher,
            now,
            notices,
            next_turn: 0,
        };
        gateway.run_until_idle();
        gateway
    }

    /// Lets one worker take its turn.
    pub fn turn(&mut self, worker: usize) -> bool {
        let worked = self.workers[worker].turn(self.now) == Turn::Worked;
        while let Ok(notice) = self.notices.try_recv() {
            if let Notice::Arrived(bucket) = notice {
                assert_eq!(self.moving.take(), Some(bucket));
            }
        }
        worked
    }

    /// Lets all workers work until nothing is left to do.
    pub fn run_until_idle(&mut self) {
        let mut idle = 0;
        while idle < 3 * self.workers.len() {
            self.next_turn += 1;
            idle = if self.turn(self.next_turn % self.workers.len()) { 0 } else { idle + 1 };
        }
        assert_eq!(self.moving, None, "a bucket has arrived");
    }

    /// Orders a move, unless one is under way.
    pub fn start_move(&mut self, bucket: u16, to: u16) {
        let (buckets, workers) = (self.owners.len() as u16, self.workers.len() as u16);
        let (bucket, to) = (BucketId(bucket % buckets), WorkerId(to % workers));
        let from = self.owners[bucket.index()];
        if self.moving.is_some() || from == to {
            return;
        }
        let order = Move { bucket, from, to, workers };
        for handle in &mut self.handles {
            handle.tell(Command::Switch(vec![order])).unwrap();
        }
        self.owners[bucket.index()] = to;
        self.moving = Some(bucket);
    }

    /// Lets one of the ports receive a frame.
    pub fn arrive(&self, port: usize, bytes: &[u8]) {
        let frame = FramePool::new(0, 0).copy_of(bytes).unwrap();
        self.inputs[port].put([frame]);
    }

    /// The frames that a port has sent.
    pub fn sent(&self, port: usize) -> Vec<Frame> {
        self.outputs[port].take_all()
    }

    /// The bucket of a frame that is in no zone.
    pub fn bucket_of(&self, frame: &[u8]) -> BucketId {
        let network = wire::dissect(frame).unwrap().network.unwrap();
        self.hasher.steer(&network, Zone::default(), None).bucket()
    }

    /// The first of these frames whose bucket this worker owns.
    pub fn owned_by(&self, owner: usize, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
        let is_owned =
            |frame: &Vec<u8>| self.owners[self.bucket_of(frame).index()].index() == owner;
        frames.into_iter().find(is_owned).unwrap()
    }

    /// A bucket, from its owner. No bucket may be on its way.
    pub fn bucket(&self, bucket: BucketId) -> &Bucket {
        let owner = &self.workers[self.owners[bucket.index()].index()];
        owner.path.owned().find(|(id, _)| *id == bucket).unwrap().1
    }

    /// The number of packets that were dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.workers.iter().map(|worker| worker.path.counters().dropped_total()).sum()
    }

    /// The reasons for which packets were dropped.
    pub fn reasons(&self) -> Vec<DropReason> {
        let all = DropReason::ALL.iter().copied();
        all.filter(|reason| self.workers.iter().any(|it| it.path.counters().dropped(*reason) > 0))
            .collect()
    }
}
