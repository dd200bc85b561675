//! What a gateway is made of, and what can go wrong at its start.

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

use crate::crew::Unresponsive;
use crate::host_guard::HostGuard;
use crate::pass_list::PassList;
use crate::rules::LoadRulesError;
use crate::settings::Settings;
use crate::stations::StationLimits;
use crate::zone_config::{TimeoutPolicy, ZoneConfig};
use crate::zones::{self, ZonesError};

/// What a gateway is to the packets that it passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// A wire with a filter: stations on its sides see each other.
    #[default]
    Bridge,
    /// A router, with the routes and neighbours of the kernel.
    Routed,
}

/// Configuration of a gateway.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bridge or router.
    pub mode: Mode,
    /// How many workers.
    pub workers: WorkerCount,
    /// How many buckets.
    pub buckets: BucketCount,
    /// What a bridge passes that is not IP.
    pub pass: PassList,
    /// How many stations each worker of a bridge remembers.
    pub stations: StationLimits,
    /// What chooses the bucket of a tunnel's packet.
    pub tunnels: TunnelSteering,
    /// Which hash chooses the bucket.
    pub hash: HashKind,
    /// What keeps fragments together.
    pub fragments: FragmentSteering,
    /// Secret of the keyed hash; random unless a run must be repeated exactly.
    pub secret: HashKey,
    /// Tunables.
    pub settings: Settings,
    /// Timeouts that zones may share.
    pub timeout_policies: Vec<Arc<TimeoutPolicy>>,
    /// Zones, the first that takes a packet has it.
    pub zones: Vec<ZoneConfig>,
    /// What packets are judged by from the start.
    pub rules: Option<Arc<ValidRuleset>>,
    /// Who keeps what is translated from the host; a router's.
    pub host_guard: Option<Arc<dyn HostGuard>>,
    /// Connections that only some sources may use.
    pub reserve: Reserve,
    /// What the labels of connections are called.
    pub labels: Arc<LabelNames>,
    /// How often the balancer runs; `None`: never.
    pub balance: Option<Duration>,
    /// Pin each worker to a CPU.
    pub pin: bool,
}

impl Config {
    /// The defaults, with a secret.
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

/// How many workers a gateway has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WorkerCount {
    /// One for each CPU that the process may use, also when that changes.
    #[default]
    PerCpu,
    /// So many, 1 to [`MAX_WORKERS`].
    Fixed(u16),
}

impl WorkerCount {
    /// Checks a number.
    ///
    /// # Errors
    /// [`SteerError::WorkerCount`].
    pub fn fixed(count: usize) -> Result<Self, SteerError> {
        if (1..=MAX_WORKERS).contains(&count) {
            Ok(Self::Fixed(count as u16))
        } else {
            Err(SteerError::WorkerCount { given: count })
        }
    }

    /// How many workers that is when they may run on `cpus`.
    pub fn resolve(self, cpus: &[usize]) -> usize {
        match self {
            Self::PerCpu => cpus.len().clamp(1, MAX_WORKERS),
            Self::Fixed(count) => usize::from(count),
        }
    }
}

/// Why a gateway did not start. Nothing is left running.
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
    /// The kernel does not tell its routes.
    #[error(transparent)]
    Routes(#[from] netlink::Error),
    /// The zones do not fit together.
    #[error(transparent)]
    Zones(#[from] ZonesError),
    /// There are too many zones.
    #[error(transparent)]
    TooManyZones(#[from] TooManyZones),
    /// The rules can not be loaded.
    #[error(transparent)]
    Rules(#[from] LoadRulesError),
    /// No workers at all.
    #[error("a gateway needs at least one worker")]
    NoWorkers,
    /// `rps_cpus` of the ports can not be satisfied.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// Why steering was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// A number of workers that is not possible.
    #[error("{given} workers are not possible: 1 to {max}", max = MAX_WORKERS)]
    WorkerCount {
        /// The number as given.
        given: usize,
    },
    /// There is no such worker.
    #[error("there is no worker {given}; there are {count}, numbered from 0")]
    NoSuchWorker {
        /// The number as given.
        given: u16,
        /// How many there are.
        count: usize,
    },
    /// There is no such bucket.
    #[error("there is no bucket {given}; there are {count}, numbered from 0")]
    NoSuchBucket {
        /// The number as given.
        given: u16,
        /// How many there are.
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
    /// A move did not come to its end.
    #[error("a bucket move did not end in time; see the log")]
    Stuck,
}
