//! How a worker waits and how many packets it takes, by the policies of the ports.

use std::sync::Arc;

use flow::Timestamp;
use netio::{PortId, Service};
use netpolicy::{Came, Lanes, Policy, Step, WaitCounts, WaitSettings, Waiting};

use crate::path::peers::PeerBudget;
use crate::path::settings::Settings;
use crate::worker::queue::Queue;
use crate::worker::{Turn, Worker};

/// How a worker waits.
pub(super) struct Waits {
    figures: WaitSettings,
    dev_weight: usize,
    netdev_budget: usize,
    /// By port.
    policies: Arc<[Policy]>,
    waiting: Waiting,
    /// The order of the queues, where there are lanes.
    pub lanes: Lanes,
    /// The number of queues of latency among those of the worker, which are the first.
    pub latency_queues: usize,
    /// Items that are taken from each other worker in a turn.
    pub peers: PeerBudget,
    /// Packets from the queues and from other workers in this turn.
    packets: usize,
    /// A queue may have more.
    is_more: bool,
}

impl Waits {
    /// Without policies.
    pub fn new(settings: &Settings) -> Self {
        let (figures, lanes) = (settings.waits.clone(), settings.waits.lanes());
        let latency = figures.batch(Policy::Latency, 0);
        Self {
            peers: PeerBudget { latency, bulk: settings.steer.netdev_budget() },
            figures,
            lanes,
            latency_queues: 0,
            netdev_budget: settings.steer.netdev_budget(),
            dev_weight: settings.steer.dev_weight(),
            policies: Arc::default(),
            waiting: Waiting::new(Timestamp::ZERO),
            packets: 0,
            is_more: false,
        }
    }

    /// Uses the figures of these tunables.
    pub fn set_figures(&mut self, settings: &Settings) {
        self.figures = settings.waits.clone();
        self.lanes = self.figures.lanes();
        self.netdev_budget = settings.steer.netdev_budget();
        self.dev_weight = settings.steer.dev_weight();
    }

    /// Uses these policies of the ports.
    pub fn set_policies(&mut self, policies: Arc<[Policy]>) {
        self.policies = policies;
    }

    /// The policy by which the worker waits, and how it has waited.
    pub fn counts(&self, now: Timestamp) -> (Policy, WaitCounts) {
        (self.waiting.policy(), self.waiting.counts(now))
    }

    /// A turn begins.
    pub fn begin_turn(&mut self) {
        (self.packets, self.is_more) = (0, false);
    }

    /// Notes that a source gave so many packets when it was asked for `batch`.
    pub fn note(&mut self, packets: usize, batch: usize) {
        self.packets += packets;
        self.is_more |= packets >= batch;
    }

    fn policy_of(&self, port: PortId) -> Policy {
        self.policies.get(usize::from(port.0)).copied().unwrap_or(Policy::None)
    }
}

impl Worker {
    /// The thread of the worker begins.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.waits.waiting = Waiting::new(now);
    }

    /// Takes from each queue as many packets as its device's policy says, and waits by the strictest
    /// policy of the devices whose queues the worker polls. A worker without a queue gets packets
    /// from others, which may be of any device. Queues of latency come first. Where a device has the
    /// policy mix, a worker takes no more from others than a batch of bulk before it looks at these.
    pub(super) fn follow_policies(&mut self) {
        let Self { waits, queues, received, .. } = self;
        for queue in queues.iter_mut() {
            queue.batch = waits.figures.batch(waits.policy_of(queue.port), waits.dev_weight);
            received.reserve(queue.batch);
        }
        let is_lane = |queue: &Queue| {
            queue.service == Service::Latency && waits.policy_of(queue.port) == Policy::Mix
        };
        queues.sort_by_key(|queue| !is_lane(queue));
        waits.latency_queues = queues.partition_point(is_lane);
        let mut bulk = waits.netdev_budget;
        if waits.policies.contains(&Policy::Mix) {
            bulk = bulk.min(waits.figures.batch(Policy::Mix, 0));
        }
        waits.peers = PeerBudget { latency: waits.figures.batch(Policy::Latency, 0), bulk };
        let policy = match queues[..] {
            [] => Policy::strictest(waits.policies.iter().copied()),
            _ => Policy::strictest(queues.iter().map(|queue| waits.policy_of(queue.port))),
        };
        waits.waiting.set(policy, waits.figures.manner(policy));
    }

    /// The step after a turn; `now` is a time of that turn.
    pub(super) fn next_step(&mut self, turn: Turn, now: Timestamp) -> Step {
        let Waits { waiting, packets, is_more, .. } = &mut self.waits;
        let came = match turn {
            // A turn takes no more packets than all batches together.
            Turn::Worked => Came::Work { packets: *packets as u32, is_more: *is_more },
            Turn::Idle | Turn::Stopped => Came::Nothing,
        };
        waiting.after_turn(now, came)
    }

    /// The sleep that the last step asked for is over.
    pub(super) fn woken(&mut self, now: Timestamp) {
        self.waits.waiting.woken(now);
    }
}
