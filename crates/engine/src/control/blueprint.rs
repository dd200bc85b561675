//! The parts that the workers of one gateway share, and the equipment of each worker.

use std::sync::mpsc::Sender;

use conntrack::{Expectations, KnownTunnels, LimitPools, TooManyZones};
use rtrb::Consumer;
use steer::{SteeringHasher, WorkerId};

use crate::Zones;
use crate::control::config::Config;
use crate::egress::resolver::Resolver;
use crate::path::TimeSource;
use crate::path::equipment::PathEquipment;
use crate::path::host_questions::HostQuestions;
use crate::rings::link::Wakeup;
use crate::worker::Equipment;
use crate::worker::command::{Command, Notice};

/// The parts that the workers of one gateway share.
pub struct Blueprint {
    /// The limits on connections.
    pub limit_pools: LimitPools,
    /// Connections that others have announced.
    pub expectations: Expectations,
    /// The memory for fragments.
    pub fragment_pools: defrag::Pools,
    tunnels: KnownTunnels,
    notices: Sender<Notice>,
    time: TimeSource,
}

/// The place of a worker in its gateway.
pub struct Post<'a> {
    /// Its number.
    pub id: WorkerId,
    /// How packets find their bucket.
    pub hasher: &'a SteeringHasher,
    /// The owner of each bucket.
    pub routes: Vec<WorkerId>,
    /// The zones, before any settings are applied to them.
    pub zones: &'a Zones,
    /// For each port, true if it accepts no new connections.
    pub refuses_new: Vec<bool>,
    /// Ports that frames leave by: the first so many.
    pub outputs: usize,
    /// The number of workers that share the memory for fragments.
    pub workers: u32,
    /// How neighbours are asked for: this makes it a router.
    pub resolver: Option<Resolver>,
    /// How the host is asked about packets that it may refuse.
    pub host_questions: Option<HostQuestions>,
}

impl Blueprint {
    /// Creates the shared parts. Workers send their notices to `notices`. In a replay, the time is
    /// that of the frames, and no limit depends on the number of workers.
    ///
    /// # Errors
    /// There are more zones than the limits on connections can tell apart.
    pub fn new(
        config: &Config,
        notices: Sender<Notice>,
        time: TimeSource,
    ) -> Result<Self, TooManyZones> {
        Ok(Self {
            limit_pools: config.limit_pools()?,
            expectations: Expectations::new(config.secret),
            fragment_pools: defrag::Pools::new(&config.settings.defrag),
            tunnels: KnownTunnels::new(config.secret),
            notices,
            time,
        })
    }

    /// The equipment of a worker. It takes commands from `inbox` and is woken by
    /// `wakeup`.
    pub fn equipment(
        &self,
        config: &Config,
        post: Post<'_>,
        (inbox, wakeup): (Consumer<Command>, &Wakeup),
    ) -> Equipment {
        let Post { id, hasher, routes, zones, refuses_new, outputs, workers, .. } = post;
        let (limits, fragment_memory) = match self.time {
            TimeSource::Turn => {
                (self.limit_pools.limits(config.secret), self.fragment_pools.memory(workers))
            }
            // All fragments of a replay meet at one worker, and it has all the memory.
            TimeSource::Frame => (
                self.limit_pools.limits_of_replay(config.secret),
                defrag::Pools::new(&config.settings.defrag).memory(1),
            ),
        };
        let path = PathEquipment {
            id,
            hasher: hasher.clone(),
            pass: config.pass.clone(),
            routes,
            outputs,
            refuses_new,
            stations: config.stations,
            settings: config.settings.clone(),
            zones: zones.clone(),
            limits,
            expectations: self.expectations.clone(),
            tunnels: self.tunnels.clone(),
            fragment_memory,
            time: self.time,
            resolver: post.resolver,
            host_questions: post.host_questions,
        };
        Equipment { path, inbox, notices: self.notices.clone(), wakeup: wakeup.clone() }
    }
}
