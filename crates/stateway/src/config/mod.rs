//! The configuration file, read into types that can not be wrong.

mod document;
mod host;
mod pfsync;
mod rules;
mod sections;
mod selectors;
mod sync;
mod zones;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::sync::PreSharedKey;
use anyhow::Context;
use conntrack::{LabelNames, Reserve};
use control::RuleBook;
use engine::{
    Mode, PassList, Policy, ReversePath, Settings, StationLimits, WorkerCount, ZoneConfig,
    ZoneTimeouts,
};
use flow::HashKey;
use netio::{LinkState, Selectors};
use steer::{BucketCount, CpuSet, FragmentSteering, HashKind, MAX_CPUS, TunnelSteering};

use crate::balance_interval::BalanceInterval;

pub use document::{Problem, Problems};
pub use pfsync::PfsyncConfig;
pub use rules::{RulesFile, in_json, read_ruleset};
pub use sync::{NativeConfig, SyncConfig};

/// The longest configuration file, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The longest name of an interface (IFNAMSIZ without the zero).
const MAX_INTERFACE_NAME: usize = 15;

/// A whole configuration, with defaults for keys that the file leaves out.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// The file, as it was named.
    pub file: PathBuf,
    /// Bridge or router.
    pub mode: Mode,
    /// Number of workers; `None`: one for each CPU that the process may use.
    pub workers: Option<u16>,
    /// Buckets.
    pub buckets: BucketCount,
    /// Packets other than IP that a bridge passes.
    pub pass: PassList,
    /// The largest number of stations that each worker of a bridge remembers.
    pub stations: StationLimits,
    /// The part of a tunnel's packet that chooses its bucket.
    pub tunnels: TunnelSteering,
    /// The hash that chooses the bucket.
    pub hash: HashKind,
    /// Spreads fragments over workers, or keeps datagrams in order.
    pub fragments: FragmentSteering,
    /// Source check of a router, for interfaces that do not name one.
    pub rp_filter: ReversePath,
    /// The interval of the balancer.
    pub balance: BalanceInterval,
    /// Secret of the keyed hash; `None`: a random one at the start.
    pub secret: Option<HashKey>,
    /// Interfaces, in the order of the file.
    pub interfaces: Vec<Interface>,
    /// Timeouts that zones may share.
    pub timeout_policies: Vec<Arc<ZoneTimeouts>>,
    /// Zones, in the order of the file.
    pub zones: Vec<ZoneConfig>,
    /// Connections that are reserved for some sources.
    pub reserve: Reserve,
    /// All tunables, changed or default, and the helpers.
    pub settings: Settings,
    /// True if the file gives the limit of connections (`nf_conntrack_max`).
    pub is_limit_given: bool,
    /// Names of connection labels.
    pub labels: Arc<LabelNames>,
    /// The ruleset.
    pub rules: Option<RulesFile>,
    /// The peer to which connections are copied.
    pub sync: Option<SyncConfig>,
    /// Path of the control socket.
    pub socket: Option<PathBuf>,
    /// Line of that key, for messages.
    pub socket_line: usize,
}

/// One interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Line of its `name`, for messages.
    pub name_line: usize,
    /// Its name in the kernel, its own or an alternative one.
    pub name: String,
    /// Its link on this machine, once it was looked up and found.
    pub link: Option<LinkState>,
    /// Number of receive queues.
    pub rx_queues: usize,
    /// Line of its `rps_cpus`, for messages.
    pub rps_cpus_line: usize,
    /// The CPUs whose workers may own its packets; `None`: all.
    pub rps_cpus: Option<CpuSet>,
    /// True when the interface hashes with the symmetric Toeplitz key.
    pub supplied_hash_symmetric: bool,
    /// True if its packets open no connections but expected ones.
    pub refuses_new: bool,
    /// Source check of a router for its packets.
    pub rp_filter: ReversePath,
    /// How workers wait for its packets.
    pub policy: Policy,
    /// Policy of the host for it while the gateway runs.
    pub host_policy: Policy,
    /// Its settings after an orderly end of the gateway.
    pub host_policy_on_stop: OnStop,
    /// Flows with a receive queue of their own; `None`: there is no such queue.
    pub lanes: Option<Selectors>,
}

/// The settings of the host after an orderly end of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// Those that were there first.
    Restore,
    /// Those of the policy.
    Keep,
}

impl Interface {
    /// Its own name, which all other parts use.
    pub fn own_name(&self) -> &str {
        self.link.as_ref().map_or(&self.name, |link| &link.name)
    }
}

impl Configuration {
    /// Reads a file for this machine.
    ///
    /// # Errors
    /// All problems of the file, with their lines.
    pub fn load(file: &Path) -> Result<Self, Problems> {
        let (config, problems) = Self::load_anyway(file, &online())?;
        Problems::or_value(problems, config)
    }

    /// Reads a file for a gateway that is to run on another machine, of whose interfaces and CPUs
    /// nothing is known, with the ruleset that it names.
    ///
    /// # Errors
    /// As [`Configuration::load_to_run`], but for what only that machine can tell.
    pub fn load_for_elsewhere(file: &Path) -> Result<(Self, Option<RuleBook>), Problems> {
        let (config, mut problems) = Self::load_anyway(file, &CpuSet::first(MAX_CPUS))?;
        let mode = problems.is_empty().then_some(config.mode);
        problems.extend(mode.and_then(|_| host::wrong_number_of_interfaces(&config)));
        config.with_rules(problems, mode, 0)
    }

    /// Reads a file for a gateway that is to run on this machine, on `cpus`, with the file's
    /// ruleset. The interfaces must exist and be enough to connect, and the workers must be able to
    /// keep the promises of every `rps_cpus`. `seed` is a secret for hash tables. If `takes_over`,
    /// interfaces may come later, as they may while a gateway runs.
    ///
    /// # Errors
    /// All problems: those of the file by line, then those of the ruleset. Checks that involve
    /// several keys run only when no key is wrong.
    pub fn load_to_run(
        file: &Path,
        cpus: &[usize],
        seed: u64,
        takes_over: bool,
    ) -> Result<(Self, Option<RuleBook>), Problems> {
        let (mut config, mut problems) = Self::load_anyway(file, &online())?;
        let are_keys_right = problems.is_empty();
        problems.extend(config.sync_key().err().into_iter().flat_map(|Problems(found)| found));
        problems.extend(host::problems(&mut config, cpus, are_keys_right, takes_over));
        let mode = are_keys_right.then_some(config.mode);
        config.with_rules(problems, mode, seed)
    }

    /// With the ruleset that it names, for a gateway in this mode if that is known.
    fn with_rules(
        self,
        mut problems: Vec<Problem>,
        mode: Option<Mode>,
        seed: u64,
    ) -> Result<(Self, Option<RuleBook>), Problems> {
        let rules = self.load_rules(mode, seed).unwrap_or_else(|Problems(more)| {
            problems.extend(more);
            None
        });
        problems.sort_by_key(|problem| (problem.file != self.file, problem.line));
        Problems::or_value(problems, (self, rules))
    }

    /// Finds the interfaces on this machine.
    ///
    /// Returns the interfaces that can not be used, each with the reason.
    pub fn find_links(&mut self) -> Vec<Problem> {
        host::find_links(self, false)
    }

    fn load_anyway(file: &Path, cpus: &CpuSet) -> Result<(Self, Vec<Problem>), Problems> {
        let text = read(file).map_err(|(line, what)| {
            let key = String::new();
            Problems(vec![Problem { file: file.into(), line, key, what, rule: None }])
        })?;
        sections::read(file, &text, cpus)
    }

    /// Reads a text; `file` is the name for messages, `cpus` are the machine's CPUs.
    ///
    /// # Errors
    /// All problems of the text, with their lines.
    #[cfg(test)]
    pub fn parse(file: &Path, text: &str, cpus: &CpuSet) -> Result<Self, Problems> {
        let (config, problems) = sections::read(file, text, cpus)?;
        Problems::or_value(problems, config)
    }

    /// The path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| control::DEFAULT_SOCKET.into())
    }

    /// The number of workers.
    pub fn worker_count(&self) -> WorkerCount {
        self.workers.map_or(WorkerCount::PerCpu, WorkerCount::Fixed)
    }

    /// The key that this node shares with its peer; `None` without a peer, and for pfsync, which has
    /// none.
    ///
    /// # Errors
    /// The problem of the key's file, with the line that names it.
    pub fn sync_key(&self) -> Result<Option<PreSharedKey>, Problems> {
        let Some(SyncConfig::Native(sync)) = &self.sync else { return Ok(None) };
        sync.key()
            .map(Some)
            .map_err(|what| Problems(vec![self.problem(sync.key_line, "sync.key_file", what)]))
    }

    /// The configuration of the engine. Without a secret in the file, the secret is that of all
    /// nodes that share `key`, or else a random one.
    ///
    /// # Errors
    /// The system's error when it has no random numbers.
    pub fn engine(&self, key: Option<&PreSharedKey>) -> anyhow::Result<engine::Config> {
        let secret = match (self.secret, key) {
            (Some(secret), _) => secret,
            (None, Some(key)) => hash_key(*key.hash_secret().bytes()),
            (None, None) => random_secret().context("can not read /dev/urandom")?,
        };
        Ok(engine::Config {
            mode: self.mode,
            workers: self.worker_count(),
            buckets: self.buckets,
            pass: self.pass.clone(),
            stations: self.stations,
            tunnels: self.tunnels,
            hash: self.hash,
            fragments: self.fragments,
            settings: self.settings.clone(),
            timeout_policies: self.timeout_policies.clone(),
            zones: self.zones.clone(),
            reserve: self.reserve.clone(),
            labels: self.labels.clone(),
            balance: self.balance.interval(),
            ..engine::Config::new(secret)
        })
    }

    /// The ruleset, for a gateway in this mode if the mode is known. `seed` is a secret for hash
    /// tables.
    ///
    /// # Errors
    /// All problems of the ruleset.
    pub fn load_rules(&self, mode: Option<Mode>, seed: u64) -> Result<Option<RuleBook>, Problems> {
        let rules = self.rules.as_ref();
        rules.map(|rules| rules.load(&self.file, mode, seed)).transpose()
    }

    /// A problem of this file; `line` 0 means the whole file.
    pub fn problem(&self, line: usize, key: &str, what: String) -> Problem {
        Problem { file: self.file.clone(), line, key: key.to_owned(), what, rule: None }
    }
}

/// The CPUs of this machine.
fn online() -> CpuSet {
    netio::cpu::online_cpus().unwrap_or_default().into_iter().collect()
}

/// The text of a file, or its problem with the line, 0 for the whole file.
fn read(file: &Path) -> Result<String, (usize, String)> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| (0, format!("can not be read: {error}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        let what = format!(
            "is longer than {} MiB, so it is not a configuration; name the right file",
            MAX_BYTES >> 20
        );
        return Err((0, what));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        (line, "is not UTF-8; save the file in that encoding".to_owned())
    })
}

fn random_secret() -> std::io::Result<HashKey> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hash_key(bytes))
}

/// The secret of a steering hash, of bytes.
pub fn hash_key(bytes: [u8; 16]) -> HashKey {
    let number = u128::from_be_bytes(bytes);
    HashKey((number >> 64) as u64, number as u64)
}

#[cfg(test)]
mod testing;

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "sync_tests.rs"]
mod sync_tests;

#[cfg(test)]
#[path = "zones_tests.rs"]
mod zones_tests;
