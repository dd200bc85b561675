//! For tests: one worker between ports in memory, with a clock that the test moves.

use std::sync::mpsc;
use std::time::Duration;

use flow::Timestamp;
use netio::{Frame, FramePool, PortId, Waker};
use rtrb::{Consumer, Producer, RingBuffer};
use steer::{SteeringHasher, WorkerId};

use crate::control::blueprint::{Blueprint, Post};
use crate::path::TimeSource;
use crate::rings::link::Wakeup;
use crate::testing::line::Line;
use crate::worker::command::{Command, Notice};
use crate::worker::queue::Queue;
use crate::worker::{Turn, Worker};
use crate::{Bucket, Config, Zones};

/// A worker that is alone between two ports, as a bridge. `owner` has all buckets.
pub fn alone(config: &Config, inbox: Consumer<Command>, owner: WorkerId) -> Worker {
    telling(config, inbox, owner, mpsc::channel().0)
}

/// The same, with somebody who reads its notices.
fn telling(
    config: &Config,
    inbox: Consumer<Command>,
    owner: WorkerId,
    notices: mpsc::Sender<Notice>,
) -> Worker {
    let blueprint = Blueprint::new(config, notices, TimeSource::Turn).unwrap();
    let post = Post {
        id: WorkerId(0),
        hasher: &SteeringHasher::new(config.steering()),
        routes: vec![owner; config.buckets.get()],
        zones: &Zones::new(&config.zones, 2).unwrap(),
        refuses_new: vec![false; 2],
        outputs: 2,
        workers: 1,
        resolver: None,
        host_questions: None,
    };
    let wakeup = Wakeup::new(Waker::new().unwrap());
    Worker::new(blueprint.equipment(config, post, (inbox, &wakeup)))
}

/// A worker between two ports.
pub struct Rig {
    pub worker: Worker,
    pub commands: Producer<Command>,
    pub now: Timestamp,
    /// The notices of the worker to its coordinator.
    pub notices: mpsc::Receiver<Notice>,
    /// The frames that each port receives, and those that it has sent.
    ports: [(Line, Line); 2],
}

impl Rig {
    pub fn new(config: &Config) -> Self {
        let now = Timestamp::from_secs(1000);
        let (mut commands, inbox) = RingBuffer::new(8);
        let (sender, notices) = mpsc::channel();
        let mut worker = telling(config, inbox, WorkerId(0), sender);
        for bucket in config.buckets.iter() {
            worker.install(bucket, Box::new(Bucket::new(now)));
        }
        let ports: [(Line, Line); 2] = Default::default();
        for (port, (input, output)) in (0..).map(PortId).zip(&ports) {
            let queue = Queue::new(port.0.into(), port, Box::new(input.clone()));
            commands.push(Command::AddQueue(queue)).unwrap();
            commands.push(Command::SetOutput(port, Some(Box::new(output.clone())))).unwrap();
        }
        Self { worker, commands, now, notices, ports }
    }

    /// Lets a port receive frames, and returns the frames that each port sends then.
    pub fn exchange(
        &mut self,
        port: usize,
        frames: impl IntoIterator<Item = Frame>,
    ) -> [Vec<Frame>; 2] {
        self.ports[port].0.put(frames);
        while self.worker.turn(self.now) == Turn::Worked {}
        [0, 1].map(|port: usize| self.ports[port].1.take_all())
    }

    /// Lets a port receive frames in the next turn.
    pub fn arrive(&mut self, port: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        let mut pool = FramePool::new(0, 0);
        let frames = frames.into_iter().map(|bytes| pool.copy_of(&bytes).unwrap());
        self.ports[port].0.put(frames);
    }

    /// Lets the first port receive frames. Returns how many the second port sent.
    pub fn pass(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) -> usize {
        let mut pool = FramePool::new(0, 0);
        let frames = frames.into_iter().map(|bytes| pool.copy_of(&bytes).unwrap());
        self.exchange(0, frames.collect::<Vec<_>>())[1].len()
    }

    pub fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
        // Each turn turns the timers of a few buckets only.
        for _ in 0..1000 {
            self.worker.turn(self.now);
        }
    }

    pub fn connections(&self) -> usize {
        self.worker.path.connections()
    }
}
