//! The configuration of a gateway, and the errors of its start and of steering.

use std::sync::Arc;
use std::time::Duration;

use conntrack::{LabelNames, LimitPools, Reserve, TooManyZones};
use flow::HashKey;
use netio::PortError;
use ruleset::ValidRuleset;
use steer::{
    BucketCount, FragmentSteering, HashKind, MAX_WORKERS, NoWorkers, PlacementError,
    SteeringConfig, TunnelSteering,
};

use crate::control::host_guard::HostGuard;
use crate::control::rule_loading::LoadRulesError;
use crate::control::worker_handle::Unresponsive;
use crate::egress::Mode;
use crate::egress::stations::StationLimits;
use crate::path::pass_list::PassList;
use crate::path::settings::Settings;
use crate::path::zone_config::{ZoneConfig, ZoneTimeouts};
use crate::path::zones::{self, ZonesError};

/// Configuration of a gateway.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bridge or router.
    pub mode: Mode,
    /// The number of workers.
    pub workers: WorkerCount,
    /// The number of buckets.
    pub buckets: BucketCount,
    /// The frames other than IP that a bridge passes.
    pub pass: PassList,
    /// Limits on the stations that each worker of a bridge remembers.
    pub stations: StationLimits,
    /// The part of a tunnel's packet that chooses its bucket.
    pub tunnels: TunnelSteering,
    /// The hash that chooses the bucket.
    pub hash: HashKind,
    /// The rule that keeps fragments of a datagram together.
    pub fragments: FragmentSteering,
    /// Secret of the keyed hash. It is random unless a run must be repeated exactly.
    pub secret: HashKey,
    /// Tunables.
    pub settings: Settings,
    /// Timeouts that zones may share.
    pub timeout_policies: Vec<Arc<ZoneTimeouts>>,
    /// The zones. A packet is in the first zone that takes it.
    pub zones: Vec<ZoneConfig>,
    /// The rules that judge packets from the start; `None`: no rules.
    pub rules: Option<Arc<ValidRuleset>>,
    /// Keeps translated packets from the host. Only a router needs it.
    pub host_guard: Option<Arc<dyn HostGuard>>,
    /// Connections that only some sources may use.
    pub reserve: Reserve,
    /// The names of the labels of connections.
    pub labels: Arc<LabelNames>,
    /// The interval at which the balancer runs; `None`: never.
    pub balance: Option<Duration>,
    /// Pin each worker to a CPU.
    pub pin: bool,
    /// Another process hands its receive queues over. Until then ports have none, and those whose
    /// interface is down or missing stay closed.
    pub awaits_queues: bool,
}

impl Config {
    /// The defaults with this secret.
    pub fn new(secret: HashKey) -> Self {
        Self {
            mode: Mode::default(),
            workers: WorkerCount::PerCpu,
            buckets: BucketCount::DEFAULT,
            pass: PassList::default(),
            stations: StationLimits::default(),
            tunnels: TunnelSteering::default(),
            hash: HashKind::default(),
            fragments: FragmentSteering::default(),
            secret,
            settings: Settings::default(),
            timeout_policies: Vec::new(),
            zones: Vec::new(),
            rules: None,
            host_guard: None,
            reserve: Reserve::default(),
            labels: Arc::default(),
            balance: None,
            pin: true,
            awaits_queues: false,
        }
    }

    pub(crate) fn steering(&self) -> SteeringConfig {
        SteeringConfig {
            kind: self.hash,
            key: self.secret,
            buckets: self.buckets,
            fragments: self.fragments,
            tunnels: self.tunnels,
        }
    }

    pub(crate) fn limit_pools(&self) -> Result<LimitPools, TooManyZones> {
        let mut pools = LimitPools::new(&self.settings.conntrack, &self.reserve);
        pools.set_zones(&zones::limits(&self.zones))?;
        Ok(pools)
    }
}

/// The number of workers of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WorkerCount {
    /// One for each CPU that the process may use. The number follows when the CPUs change.
    #[default]
    PerCpu,
    /// This many, 1 to [`MAX_WORKERS`].
    Fixed(u16),
}

impl WorkerCount {
    /// Checks the number of workers.
    ///
    /// # Errors
    /// [`SteerError::WorkerCount`] if it is not within 1 to [`MAX_WORKERS`].
    pub fn fixed(count: usize) -> Result<Self, SteerError> {
        if (1..=MAX_WORKERS).contains(&count) {
            Ok(Self::Fixed(count as u16))
        } else {
            Err(SteerError::WorkerCount { given: count })
        }
    }

    /// The number of workers when they may run on `cpus`.
    pub fn resolve(self, cpus: &[usize]) -> usize {
        match self {
            Self::PerCpu => cpus.len().clamp(1, MAX_WORKERS),
            Self::Fixed(count) => usize::from(count),
        }
    }
}

/// Why a gateway did not start. Nothing is left running then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The system gave no thread or descriptor.
    #[error("can not start a worker: {0}")]
    Thread(std::io::Error),
    /// A worker hangs.
    #[error(transparent)]
    Unresponsive(#[from] Unresponsive),
    /// The kernel did not report its routes.
    #[error(transparent)]
    Routes(#[from] netlink::Error),
    /// The zones contradict each other.
    #[error(transparent)]
    Zones(#[from] ZonesError),
    /// There are too many zones.
    #[error(transparent)]
    TooManyZones(#[from] TooManyZones),
    /// The rules can not be loaded.
    #[error(transparent)]
    Rules(#[from] LoadRulesError),
    /// There would be no workers.
    #[error("a gateway needs at least one worker")]
    NoWorkers,
    /// `rps_cpus` of the ports can not be satisfied.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// Why steering was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// The number of workers is not possible.
    #[error("{given} workers are not possible: 1 to {max}", max = MAX_WORKERS)]
    WorkerCount {
        /// The requested number.
        given: usize,
    },
    /// There is no such worker.
    #[error("there is no worker {given}; there are {count}, numbered from 0")]
    NoSuchWorker {
        /// The requested number.
        given: u16,
        /// The number of workers.
        count: usize,
    },
    /// There is no such bucket.
    #[error("there is no bucket {given}; there are {count}, numbered from 0")]
    NoSuchBucket {
        /// The requested number.
        given: u16,
        /// The number of buckets.
        count: usize,
    },
    /// `rps_cpus` of the ports can not be satisfied.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// No worker may own the buckets.
    #[error(transparent)]
    NoWorkers(#[from] NoWorkers),
    /// A worker hangs.
    #[error(transparent)]
    Unresponsive(#[from] Unresponsive),
    /// A new worker could not be started.
    #[error("no more workers: {0}")]
    Start(Box<StartError>),
    /// The gateway hands over to a new process.
    #[error("the gateway hands over to a new process; ask again when that has ended")]
    HandingOver,
    /// A bucket move did not end.
    #[error("a bucket move did not end in time; see the log")]
    Stuck,
}
