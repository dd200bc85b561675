//! Views of the gateway's state: plain data, copied out of the workers.

use std::time::Duration;

use flow::{Counters, Zone};
use netio::Service;
use netpolicy::{Policy, WaitCounts};
use steer::WorkerId;

use crate::egress::Mode;
use crate::egress::outputs::Sent;
use crate::path::drop_cause::DropCause;
use crate::path::reassembly::DatagramStatus;
use crate::worker::queue::Received;

/// The state of the whole gateway at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Bridge or router.
    pub mode: Mode,
    /// The rules that judge packets; `None`: no rules.
    pub rules: Option<RulesStatus>,
    /// The workers, by number.
    pub workers: Vec<WorkerStatus>,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortStatus>,
    /// The zones except 0, in the order in which they became known. A removed zone is listed until
    /// its last connection ends.
    pub zones: Vec<ZoneStatus>,
    /// Nanoseconds since the start.
    pub uptime_ns: u64,
    /// Counters of workers that have been removed since the start.
    pub retired: Counters,
    /// Bucket moves completed since the start.
    pub moves: u64,
    /// The interval at which the balancer runs; `None`: never.
    pub balance: Option<Duration>,
    /// How often a router lost news of the kernel, because more changed at once than the kernel
    /// keeps news of. The router then listed all routes again.
    pub route_overruns: u64,
}

impl Status {
    /// The counters of all workers together, including the removed ones.
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
    /// How often rules were loaded or unloaded since the start.
    pub revision: u32,
    /// The time since these rules were loaded.
    pub age: Duration,
}

/// One zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneStatus {
    /// Its number.
    pub zone: Zone,
    /// Connections in it, without those of buckets that are being moved.
    pub connections: u64,
    /// Most connections in it; `None`: no limit of its own.
    pub limit: Option<u64>,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// Its number.
    pub id: WorkerId,
    /// The CPU that it is pinned to; `None`: not pinned.
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
    /// Nanoseconds that it spent with packets in hand since it started.
    pub busy_ns: u64,
    /// The policy by which it waits for packets.
    pub policy: Policy,
    /// How it has waited since it started.
    pub waited: WaitCounts,
    /// Its incomplete datagrams.
    pub datagrams: DatagramStatus,
}

/// One port.
#[derive(Clone, Debug, Default)]
pub struct PortStatus {
    /// Name of the interface.
    pub name: String,
    /// False while the interface is missing or down.
    pub up: bool,
    /// Frames that came in.
    pub received: Received,
    /// Those of them that came in through a queue of the service latency. `None` for a port without
    /// lanes.
    pub received_latency: Option<Received>,
    /// Frames that went out.
    pub sent: Sent,
    /// How often the port was opened again.
    pub reopened: u64,
    /// Its policy.
    pub policy: Policy,
}

impl PortStatus {
    /// Adds the counters of a queue.
    pub fn add_received(&mut self, service: Service, received: &Received) {
        self.received.add(received);
        if service == Service::Latency {
            self.received_latency.get_or_insert_default().add(received);
        }
    }
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
    /// The time since it was dropped.
    pub age: Duration,
    /// Its length, bytes.
    pub length: u32,
    /// The reason.
    pub why: DropCause,
    /// The rule or policy that refused it, by its place in the ruleset. `None` if the loaded rules
    /// did not refuse it.
    pub refused_by: Option<String>,
    /// Its headers in one line.
    pub summary: String,
}

impl DroppedPacket {
    /// The reason in words for people.
    pub fn reason_text(&self) -> String {
        self.refused_by.clone().unwrap_or_else(|| self.why.to_string())
    }
}
