//! Workers without threads, for a caller that takes their turns itself, such as a benchmark.

use std::sync::Arc;
use std::sync::mpsc::channel;

use flow::{Counters, Timestamp};
use netlink::Picture;
use steer::{AddressSet, Placement, SteeringHasher, WorkerId};
use wire::Network;

use crate::control::blueprint::{Blueprint, Post};
use crate::control::config::{Config, StartError};
use crate::control::port_book::PortBook;
use crate::control::ports::PortSetup;
use crate::control::realms::Realms;
use crate::control::rule_loading::LoadRulesError;
use crate::control::translation_addresses::addresses;
use crate::control::worker_handle::{WorkerHandle, introduce};
use crate::egress::Mode;
use crate::egress::resolver::Resolver;
use crate::egress::routing::Routing;
use crate::path::TimeSource;
use crate::path::rules::ruleset::Rules;
use crate::worker::command::Command;
use crate::worker::{Turn, Worker};
use crate::{Bucket, Zones};

/// A worker of a gateway without threads, coordinator and kernel. Its routes stay as they were at
/// the start, and a port that fails stays closed.
pub struct Unthreaded {
    worker: Worker,
    /// The coordinator's ends of its rings.
    _handle: WorkerHandle,
}

impl Unthreaded {
    /// Creates the workers of a gateway, with their rules and ports. `kernel` has the routes and
    /// neighbours of a router. Each queue goes to the worker that polls the fewest: if every port
    /// has as many queues as there are workers, the n-th queue goes to the n-th worker.
    /// [`Config::workers`] has to be fixed, and no worker is pinned.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn gateway(
        config: &Config,
        ports: Vec<PortSetup>,
        kernel: &Picture,
        now: Timestamp,
    ) -> Result<Vec<Self>, StartError> {
        let count = config.workers.resolve(&[]);
        let names: Vec<String> = ports.iter().map(|port| port.name.clone()).collect();
        let checks: Vec<_> = ports.iter().map(|port| port.rp_filter.check(0)).collect();
        let mut ports = PortBook::new(ports);
        let Placement { table, .. } = ports.place(count, &[], config.buckets)?;
        ports.open_all(count)?;
        let links: Vec<_> = names.iter().map(|name| kernel.link_named(name)).collect();
        let mut routing = Routing::new(kernel, &links);
        routing.set_checks(|port, _| checks[usize::from(port.0)]);
        let routing = Arc::new(routing);
        let rules = config.rules.clone().map(|ruleset| {
            let ruleset = Arc::unwrap_or_clone(ruleset);
            let unloaded = Rules::prepare(ruleset, config.mode, config.secret.0, &names)
                .map_err(LoadRulesError::from)?;
            Ok::<_, StartError>(unloaded.load(1, now))
        });
        let rules = rules.transpose()?;
        let mut hasher = SteeringHasher::new(config.steering());
        if let Some(rules) = &rules {
            let translations = rules.translations();
            let addresses = AddressSet::new(addresses(translations, Some(&routing), &names));
            let realms = Realms::of(translations, &addresses, Some(&routing), &names);
            hasher.set_inside(realms.inside);
        }
        let blueprint = Blueprint::new(config, channel().0, TimeSource::Turn)?;
        let zones = Zones::new(&config.zones, ports.len())?;
        let mut gateway = Vec::<Self>::new();
        for id in (0..count as u16).map(WorkerId) {
            let (mut handle, inbox) = WorkerHandle::new(id, None).map_err(StartError::Thread)?;
            let post = Post {
                id,
                hasher: &hasher,
                routes: table.iter().map(|(_, owner)| owner).collect(),
                zones: &zones,
                refuses_new: ports.refuse_new(),
                workers: count as u32,
            };
            let mut equipment = blueprint.equipment(config, post, (inbox, &handle.wakeup));
            equipment.path.resolver = match config.mode {
                Mode::Bridge => None,
                Mode::Routed => Some(Resolver::detached().map_err(StartError::Thread)?.0),
            };
            let mut worker = Worker::new(equipment);
            for bucket in table.buckets_of(id) {
                worker.install(bucket, Box::new(Bucket::new(now)));
            }
            for other in &mut gateway {
                introduce(&mut other._handle, &mut handle, &config.settings.steer)?;
            }
            handle.tell(Command::Routing(routing.clone()))?;
            handle.tell(Command::Rules(rules.as_ref().map(Rules::for_worker)))?;
            handle.tell(Command::ShareLimits(count as u32))?;
            for (port, queue) in ports.transmit_queues(id) {
                handle.tell(Command::SetOutput(port, Some(queue)))?;
            }
            gateway.push(Self { worker, _handle: handle });
        }
        while let Some(queue) = ports.take_unassigned() {
            let poller = ports.least_loaded(count);
            ports.assign(&queue, poller);
            gateway[poller.index()]._handle.tell(Command::AddQueue(queue))?;
        }
        Ok(gateway)
    }

    /// Takes the frames that wait at its queues, up to a batch of each, processes and sends them.
    /// False if there was nothing to do.
    pub fn turn(&mut self, now: Timestamp) -> bool {
        self.worker.turn(now) == Turn::Worked
    }

    /// True if this worker owns the bucket of such packets in zone 0.
    pub fn owns(&self, network: &Network) -> bool {
        self.worker.path.owns(network)
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        self.worker.path.counters()
    }

    /// The number of connections that it tracks.
    pub fn connections(&self) -> usize {
        self.worker.path.connections()
    }
}
