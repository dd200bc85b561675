//! Gateways without threads. Their owner takes the turns of the workers and chooses the time.

use std::sync::Arc;

use flow::{Counters, Timestamp};
use netlink::Picture;
use wire::Network;

use crate::control::config::{Config, StartError, SteerError};
use crate::control::coordinator::Coordinator;
use crate::control::execution::{Execution, Stepper};
use crate::control::gateway::{Gateway, Shared};
use crate::control::port_book::PortBook;
use crate::control::ports::PortSetup;
use crate::control::routing_source::RoutingSource;
use crate::control::worker_handle::Unresponsive;
use crate::egress::Mode;
use crate::egress::resolver::Resolver;
use crate::egress::routing::Routing;
use crate::worker::{Turn, Worker};

impl Gateway {
    /// Starts a gateway whose workers run only when `stepper` lets them, and while one of its
    /// methods waits for them. It asks no kernel: a router goes by the routes, neighbours and links
    /// of `kernel`. [`Config::workers`] has to be fixed, and no worker is pinned. It has no thread,
    /// so the caller tends it ([`Self::tend`]).
    ///
    /// # Errors
    /// [`StartError`].
    pub fn stepped(
        config: Config,
        ports: Vec<PortSetup>,
        kernel: &Picture,
        stepper: Stepper,
    ) -> Result<Self, StartError> {
        let ports = PortBook::new(ports);
        let source = match config.mode {
            Mode::Bridge => RoutingSource::None,
            Mode::Routed => {
                let (resolver, _) = Resolver::detached().map_err(StartError::Thread)?;
                RoutingSource::Given(routing(kernel, &ports), resolver)
            }
        };
        let config = Config { pin: false, ..config };
        let execution = Execution::Stepped(stepper);
        let coordinator = Coordinator::start(config, ports, Vec::new(), source, execution, None)?;
        Ok(Self::of(Shared::new(coordinator)))
    }

    /// Gives the workers other routes, neighbours and links.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn set_kernel(&self, kernel: &Picture) -> Result<(), Unresponsive> {
        let mut coordinator = self.shared.lock();
        let routing = routing(kernel, &coordinator.ports);
        coordinator.set_routing(routing)
    }

    /// Looks after ports, rules and balance, as a gateway with threads does a few times a second.
    ///
    /// # Errors
    /// [`SteerError`].
    pub fn tend(&self) -> Result<(), SteerError> {
        let mut coordinator = self.shared.lock();
        coordinator.tend()?;
        coordinator.balance_if_due()
    }
}

fn routing(kernel: &Picture, ports: &PortBook) -> Arc<Routing> {
    let links: Vec<_> = ports.names().iter().map(|name| kernel.link_named(name)).collect();
    let mut routing = Routing::new(kernel, &links);
    routing.set_checks(|port, _| ports.reverse_path(port).check(0));
    Arc::new(routing)
}

/// A worker of a gateway without threads and coordinator, such as a benchmark runs on a thread of
/// its own. Its routes and rules stay as they were at the start, and a port that fails stays closed.
pub struct Unthreaded(Worker);

impl Unthreaded {
    /// Creates the workers of a gateway, with their rules and ports; see [`Gateway::stepped`]. Each
    /// queue goes to the worker that polls the fewest: if every port has as many queues as there
    /// are workers, the n-th queue goes to the n-th worker.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn gateway(
        config: Config,
        ports: Vec<PortSetup>,
        kernel: &Picture,
        now: Timestamp,
    ) -> Result<Vec<Self>, StartError> {
        let stepper = Stepper::new(now);
        let gateway = Gateway::stepped(config, ports, kernel, stepper.clone())?;
        let workers = stepper.into_workers().map(Self).collect();
        // Commands that it has sent wait in the inboxes of the workers.
        gateway.forsake();
        Ok(workers)
    }

    /// Takes the frames that wait at its queues, up to a batch of each, processes and sends them.
    /// False if there was nothing to do.
    pub fn turn(&mut self, now: Timestamp) -> bool {
        self.0.turn(now) == Turn::Worked
    }

    /// True if this worker owns the bucket of such packets in zone 0.
    pub fn owns(&self, network: &Network) -> bool {
        self.0.path.owns(network)
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        self.0.path.counters()
    }

    /// The number of connections that it tracks.
    pub fn connections(&self) -> usize {
        self.0.path.connections()
    }
}

#[cfg(test)]
#[path = "stepped_tests.rs"]
mod tests;
