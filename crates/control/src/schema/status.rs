//! The state of the gateway at one moment.

use std::time::Duration;

use engine::{Mode, Policy, WaitCounts};
use flow::DropReason;
use serde::{Deserialize, Serialize};

use super::{Datagrams, Names};
use crate::rules::{HostRule, RuleBook};

/// The whole gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Schema version.
    pub schema: u32,
    /// Version of the running program.
    pub version: String,
    /// Nanoseconds since the start.
    pub uptime_ns: u64,
    /// `bridge` or `routed`.
    #[serde(default)]
    pub mode: String,
    /// The ruleset in force; `null` without one.
    #[serde(default)]
    pub rules: Option<RulesStatus>,
    /// Warnings, in words for people.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Lines of the log that were lost since the start.
    #[serde(default)]
    pub log_lines_lost: u64,
    /// Connections.
    pub connections: u64,
    /// The largest number of connections allowed (`nf_conntrack_max`).
    pub connections_limit: u64,
    /// Bucket moves completed since the start.
    pub moves: u64,
    /// Time between two rounds of the balancer, in milliseconds; `null` if it is off.
    #[serde(default)]
    pub balance_interval_ms: Option<u64>,
    /// How many times more routes changed at once than the kernel's queue of notifications holds.
    /// Each time, a router listed all routes again.
    #[serde(default)]
    pub route_overruns: u64,
    /// Counters of all workers together, including removed workers.
    pub totals: Counters,
    /// Workers.
    pub workers: Vec<Worker>,
    /// Interfaces, in the order of the configuration.
    pub ports: Vec<Port>,
    /// Zones other than 0 that the gateway has known since its start.
    #[serde(default)]
    pub zones: Vec<ZoneStatus>,
    /// Policies of the host for devices, which hold while the gateway runs.
    #[serde(default)]
    pub host_policies: Vec<HostPolicy>,
}

/// The policy of the host for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPolicy {
    /// The device, by its name in the configuration.
    pub device: String,
    /// Its state, in words for people.
    pub state: String,
}

/// The ruleset that the gateway runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesStatus {
    /// Its source: `configuration` or `load`.
    pub source: String,
    /// The file that the configuration names; `null` for a ruleset that was loaded later.
    pub file: Option<String>,
    /// How many times rules were loaded or removed since the start.
    pub revision: u32,
    /// Seconds since it was loaded.
    pub age_s: u64,
    /// Seconds that its trial still lasts; `null` if it stays.
    pub confirm_s: Option<u64>,
    /// Number of its rules.
    pub rules: usize,
    /// Rules, tables and other objects of which it is without some or all, because that is not
    /// supported.
    #[serde(default)]
    pub left_out: usize,
    /// Chains about the host's own traffic, which only its kernel can run.
    #[serde(default)]
    pub kernels_chains: Vec<HostRule>,
}

/// One worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Worker {
    /// Its number.
    pub worker: u16,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// Buckets that it owns.
    pub buckets: usize,
    /// Receive queues that it polls.
    pub queues: usize,
    /// Connections in its buckets.
    pub connections: u64,
    /// Packets that wait in its rings.
    pub backlog: u64,
    /// Nanoseconds that it has spent with packets since the start.
    pub busy_ns: u64,
    /// How it waits for packets.
    #[serde(default)]
    pub waiting: Waiting,
    /// Datagrams that wait for fragments.
    #[serde(default)]
    pub datagrams: Datagrams,
    /// Its counters.
    pub counters: Counters,
}

/// How a worker waits for packets. Counters count since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The policy by which it waits: that of the devices whose queues it polls, or the strictest of
    /// several.
    pub policy: String,
    /// Nanoseconds since it started.
    pub time_ns: u64,
    /// Nanoseconds of them in which it slept.
    pub asleep_ns: u64,
    /// How many times it slept until something came or a timer was due.
    pub blocked: u64,
    /// How many times it slept so that several packets come together.
    pub gathered: u64,
    /// The length of these sleeps at present, in microseconds.
    pub gather_us: u64,
}

/// Counters of a worker or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets sent.
    pub transmitted: u64,
    /// Bytes sent.
    pub transmitted_bytes: u64,
    /// Packets by class.
    pub classes: Names,
    /// Packet counters, under the names of `/proc/net/softnet_stat`.
    pub softnet: Names,
    /// Tracking counters, under the names of `conntrack -S`.
    pub conntrack: Names,
    /// Reassembly counters, under the names of `/proc/net/snmp`, and evicted datagrams.
    #[serde(default)]
    pub defrag: Names,
    /// SYN proxy counters, under the names of `/proc/net/stat/synproxy`.
    #[serde(default)]
    pub syn_proxy: Names,
    /// Frames that the gateway made itself. Fragments for a smaller MTU, errors and window updates
    /// have the names of `/proc/net/snmp`; copies follow.
    #[serde(default)]
    pub output: Names,
    /// Packets dropped, by reason, including reasons with 0.
    pub drops: Names,
}

/// One interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// False while it is missing or down.
    pub up: bool,
    /// Frames received.
    pub received: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Frames that the kernel lost because the gateway did not fetch them in time.
    pub lost: u64,
    /// How many times the interface came back after it had gone.
    pub reopened: u64,
    /// Its policy: `none`, `bulk`, `cpu`, `latency` or `mix`.
    #[serde(default)]
    pub policy: String,
    /// The counters of each service; `null` for an interface without lanes.
    #[serde(default)]
    pub lanes: Option<Lanes>,
}

/// The counters of the services of an interface with lanes, which have receive queues of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lanes {
    /// Frames for which selectors want short delay.
    pub latency: Lane,
    /// The other ones.
    pub bulk: Lane,
}

/// The counters of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// Frames received.
    pub received: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Frames that the kernel lost because the gateway did not fetch them in time.
    pub lost: u64,
}

/// One zone.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ZoneStatus {
    /// Its number.
    pub zone: u16,
    /// Its connections.
    pub connections: u64,
    /// The largest number of connections in it; `null` if it has no limit of its own.
    pub connections_limit: Option<u64>,
}

/// All buckets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Buckets {
    /// Schema version.
    pub schema: u32,
    /// By number.
    pub buckets: Vec<Bucket>,
}

/// One bucket.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Bucket {
    /// Its number.
    pub bucket: u16,
    /// Its owner.
    pub worker: u16,
    /// Packets processed in it since the start.
    pub packets: u64,
    /// Connections in it.
    pub connections: u64,
}

impl Status {
    /// The status of a gateway that may hold `connections_limit` connections, without its ruleset,
    /// its warnings and the losses of its log.
    pub fn new(status: &engine::Status, connections_limit: u64) -> Self {
        Self {
            schema: crate::SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ns: status.uptime_ns,
            mode: match status.mode {
                Mode::Bridge => "bridge",
                Mode::Routed => "routed",
            }
            .to_owned(),
            rules: None,
            warnings: Vec::new(),
            log_lines_lost: 0,
            connections: status.workers.iter().map(|worker| worker.connections).sum(),
            connections_limit,
            moves: status.moves,
            balance_interval_ms: status.balance.map(|interval| interval.as_millis() as u64),
            route_overruns: status.route_overruns,
            totals: Counters::from(&status.totals()),
            workers: status.workers.iter().map(Worker::from).collect(),
            ports: status.ports.iter().map(Port::from).collect(),
            zones: status.zones.iter().map(ZoneStatus::from).collect(),
            host_policies: Vec::new(),
        }
    }
}

impl RulesStatus {
    /// The status of a ruleset whose trial lasts for `left`.
    pub(crate) fn new(
        status: &engine::RulesStatus,
        book: &RuleBook,
        left: Option<Duration>,
        kernels_chains: Vec<HostRule>,
    ) -> Self {
        let file = book.file().map(|file| file.display().to_string());
        Self {
            source: if file.is_some() { "configuration" } else { "load" }.to_owned(),
            file,
            revision: status.revision,
            age_s: status.age.as_secs(),
            confirm_s: left.map(|left| left.as_secs()),
            rules: book.ruleset().rules().len(),
            left_out: book.left_out().len(),
            kernels_chains,
        }
    }
}

impl From<&engine::WorkerStatus> for Worker {
    fn from(worker: &engine::WorkerStatus) -> Self {
        Self {
            worker: worker.id.0,
            cpu: worker.cpu,
            buckets: worker.buckets,
            queues: worker.queues,
            connections: worker.connections,
            backlog: worker.backlog,
            busy_ns: worker.busy_ns,
            waiting: Waiting::new(worker.policy, &worker.waited),
            datagrams: Datagrams::from(&worker.datagrams),
            counters: Counters::from(&worker.counters),
        }
    }
}

impl Waiting {
    fn new(policy: Policy, waited: &WaitCounts) -> Self {
        let WaitCounts { time, asleep, blocked, gathered, gather } = *waited;
        Self {
            policy: policy.to_string(),
            time_ns: time.as_nanos() as u64,
            asleep_ns: asleep.as_nanos() as u64,
            blocked,
            gathered,
            gather_us: gather.as_micros() as u64,
        }
    }
}

impl From<&flow::Counters> for Counters {
    fn from(counters: &flow::Counters) -> Self {
        let classes = flow::Counters::CLASS_NAMES.into_iter().zip(counters.classes);
        let drops = DropReason::ALL.iter().map(|&reason| (reason.name(), counters.dropped(reason)));
        Self {
            transmitted: counters.transmitted,
            transmitted_bytes: counters.transmitted_bytes,
            classes: classes.collect(),
            softnet: counters.softnet.entries().collect(),
            conntrack: counters.conntrack.entries().collect(),
            defrag: counters.defrag.entries().collect(),
            syn_proxy: counters.syn_proxy.entries().collect(),
            output: counters.output.entries().collect(),
            drops: drops.collect(),
        }
    }
}

impl From<&engine::PortStatus> for Port {
    fn from(port: &engine::PortStatus) -> Self {
        Self {
            name: port.name.clone(),
            up: port.up,
            received: port.received.frames,
            received_bytes: port.received.bytes,
            sent: port.sent.frames,
            sent_bytes: port.sent.bytes,
            lost: port.received.lost,
            reopened: port.reopened,
            policy: port.policy.to_string(),
            lanes: port.received_latency.map(|latency| Lanes {
                latency: Lane::from(latency),
                bulk: Lane::from(port.received.without(&latency)),
            }),
        }
    }
}

impl From<engine::Received> for Lane {
    fn from(engine::Received { frames, bytes, lost }: engine::Received) -> Self {
        Self { received: frames, received_bytes: bytes, lost }
    }
}

impl From<&engine::ZoneStatus> for ZoneStatus {
    fn from(zone: &engine::ZoneStatus) -> Self {
        let (connections, connections_limit) = (zone.connections, zone.limit);
        Self { zone: zone.zone.0, connections, connections_limit }
    }
}

impl Buckets {
    /// The buckets of a gateway.
    pub fn new(buckets: &[engine::BucketStatus]) -> Self {
        Self { schema: crate::SCHEMA, buckets: buckets.iter().map(Bucket::from).collect() }
    }
}

impl From<&engine::BucketStatus> for Bucket {
    fn from(bucket: &engine::BucketStatus) -> Self {
        Self {
            bucket: bucket.id.0,
            worker: bucket.worker.0,
            packets: bucket.packets,
            connections: bucket.connections,
        }
    }
}
