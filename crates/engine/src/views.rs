//! What the gateway tells about itself: plain data, copied out of the workers.

use std::time::Duration;

use flow::{Counters, Zone};
use steer::{BucketId, WorkerId};

use crate::config::Mode;
use crate::output::Sent;
use crate::why::Why;

/// The whole gateway at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Bridge or router.
    pub mode: Mode,
    /// What packets are judged by; `None`: by no rules.
    pub rules: Option<RulesStatus>,
    /// Workers, by number.
    pub workers: Vec<WorkerStatus>,
    /// Ports, in the order of the configuration.
    pub ports: Vec<PortStatus>,
    /// Zones but 0, in the order in which they became known.
    pub zones: Vec<ZoneStatus>,
    /// Nanoseconds since the start.
    pub uptime_ns: u64,
    /// Counters of workers that have been removed since the start.
    pub retired: Counters,
    /// Bucket moves completed since the start.
    pub moves: u64,
    /// How often the balancer runs; `None`: never.
    pub balance: Option<Duration>,
    /// How often more has changed in the kernel at once than it keeps news of, so that a router has
    /// listed all routes again.
    pub route_overruns: u64,
}

impl Status {
    /// Counters of all workers together, the removed ones included.
    pub fn totals(&self) -> Counters {
        let mut totals = self.retired.clone();
        for worker in &self.workers {
            totals.add(&worker.counters);
        }
        totals
    }
}

/// The rules that a gateway runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RulesStatus {
    /// How often rules were loaded or taken away since the start.
    pub revision: u32,
    /// How long ago these were loaded.
    pub age: Duration,
}

/// One zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneStatus {
    /// Its number.
    pub zone: Zone,
    /// Connections in it, those of buckets that are being moved left out.
    pub connections: u64,
    /// Most connections of it; `None`: no limit of its own.
    pub limit: Option<u64>,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// Its number.
    pub id: WorkerId,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// Its counters.
    pub counters: Counters,
    /// Buckets that it owns.
    pub buckets: usize,
    /// Receive queues that it polls.
    pub queues: usize,
    /// Connections in its buckets.
    pub connections: u64,
    /// Packets that wait in its rings (`backlog_len` of `softnet_stat`).
    pub backlog: u64,
    /// Nanoseconds that it spent with packets in hand since the start.
    pub busy_ns: u64,
    /// What it holds of incomplete datagrams.
    pub datagrams: DatagramStatus,
}

/// What a worker holds of incomplete datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramStatus {
    /// Datagrams of both families, those that were given up and are remembered
    /// among them.
    pub count: u64,
    /// Memory of IPv4 datagrams.
    pub v4: DatagramMemory,
    /// Memory of IPv6 datagrams.
    pub v6: DatagramMemory,
}

/// Memory charged for incomplete datagrams, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramMemory {
    /// For those of which one fragment has come.
    pub newcomers: u64,
    /// For those of which several fragments have come.
    pub in_progress: u64,
    /// For remembering those that were given up.
    pub given_up: u64,
}

impl DatagramMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.newcomers + self.in_progress + self.given_up
    }
}

/// One port.
#[derive(Clone, Debug, Default)]
pub struct PortStatus {
    /// Name of the interface.
    pub name: String,
    /// False while the interface is missing or down.
    pub up: bool,
    /// What came in.
    pub received: Received,
    /// What went out.
    pub sent: Sent,
    /// How often the interface came back after it had gone.
    pub reopened: u64,
}

/// A packet that was dropped not long ago.
#[derive(Clone, Debug)]
pub struct DroppedPacket {
    /// The worker that dropped it.
    pub worker: WorkerId,
    /// The interface that it came from.
    pub interface: String,
    /// Its zone.
    pub zone: Zone,
    /// Its outermost VLAN, 0 for none.
    pub vlan: u16,
    /// How long ago.
    pub age: Duration,
    /// Its length, bytes.
    pub length: u32,
    /// Why.
    pub why: Why,
    /// Which rule or policy of the ruleset, if one has refused it that is still loaded.
    pub refused_by: Option<String>,
    /// Its headers in one line.
    pub summary: String,
}

impl DroppedPacket {
    /// Why, for people.
    pub fn told(&self) -> String {
        self.refused_by.clone().unwrap_or_else(|| self.why.to_string())
    }
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

/// What came through a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames.
    pub frames: u64,
    /// Bytes, link header included.
    pub bytes: u64,
    /// Frames that the kernel dropped because they were not fetched in time.
    pub lost: u64,
}

impl Received {
    /// Adds another queue's.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.lost += other.lost;
    }
}
