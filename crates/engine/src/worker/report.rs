//! The state of a worker, as the coordinator asks for it.

use flow::{Counters, Timestamp, Zone};
use netio::{PortId, Service};
use netpolicy::{Policy, WaitCounts};
use steer::{BucketId, WorkerId};

use crate::egress::outputs::Sent;
use crate::path::reassembly::DatagramStatus;
use crate::worker::Worker;
use crate::worker::queue::Received;

/// The state of a worker.
#[derive(Debug, Default)]
pub struct WorkerReport {
    /// Counters.
    pub counters: Counters,
    /// Owned buckets.
    pub buckets: Vec<BucketStatus>,
    /// The counters of its queues, with their ports and services.
    pub queues: Vec<(PortId, Service, Received)>,
    /// The counters of sent frames, by port.
    pub sent: Vec<Sent>,
    /// Items that wait in its rings.
    pub backlog: u64,
    /// Nanoseconds spent with packets in hand.
    pub busy_ns: u64,
    /// The policy by which it waits for packets.
    pub policy: Policy,
    /// How it has waited.
    pub waited: WaitCounts,
    /// Its incomplete datagrams.
    pub datagrams: DatagramStatus,
    /// Connections of each known zone except 0.
    pub zones: Vec<(Zone, u64)>,
}

/// One bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketStatus {
    /// Its number.
    pub id: BucketId,
    /// Its owner.
    pub worker: WorkerId,
    /// Packets processed in it since the start.
    pub packets: u64,
    /// Connections in it.
    pub connections: u64,
}

impl Worker {
    pub(crate) fn report(&mut self, now: Timestamp) -> WorkerReport {
        for queue in &mut self.queues {
            self.path.count_too_long(queue.count_missing());
        }
        let (policy, waited) = self.waits.counts(now);
        let worker = self.path.worker();
        let buckets = self.path.owned().map(|(id, bucket)| BucketStatus {
            id,
            worker,
            packets: bucket.packets,
            connections: bucket.all_connections() as u64,
        });
        WorkerReport {
            counters: self.path.counters().clone(),
            buckets: buckets.collect(),
            queues: self.queues.iter().map(|it| (it.port, it.service, it.received)).collect(),
            sent: self.path.sent(),
            backlog: self.path.backlog(),
            busy_ns: self.busy_ns,
            policy,
            waited,
            datagrams: self.path.datagrams(),
            zones: self.path.zones().collect(),
        }
    }
}
