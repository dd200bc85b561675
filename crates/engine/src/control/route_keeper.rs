//! Keeps the workers' routes in step with the kernel's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fib::LinkId;
use netio::{Waiter, Waker};
use netlink::Mirror;

use crate::control::config::StartError;
use crate::egress::resolver::Resolver;
use crate::egress::reverse_path::{self, ReversePath};
use crate::egress::routing::Routing;

/// The longest wait for news, so that the end of the gateway is noticed.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// The time to wait for more news after the last ones. News in quick succession, such as the
/// routes of a routing daemon, are taken over together.
const GATHER: Duration = Duration::from_millis(5);

/// Log lines that are remembered. If there are more, those about routes that are gone are
/// forgotten, so a routing daemon does not fill the memory.
const MOST_SAID: usize = 1024;

/// The log line about lost news. It is written once, and the status counts them.
const OVERRUN: &str = "the kernel lost news because too much changed at once, so all routes are \
    listed again; the status counts this as route_overruns";

/// Tells the route keeper which interfaces the ports are.
#[derive(Clone, Debug)]
pub struct PortLinks {
    links: Sender<Vec<Option<LinkId>>>,
    waker: Waker,
}

impl PortLinks {
    /// Sets the interfaces of the ports, in their order; `None` for one that is missing.
    pub fn are(&self, links: Vec<Option<LinkId>>) {
        // This fails only while the gateway ends.
        let _ = self.links.send(links);
        self.waker.wake();
    }
}

/// The current addresses of the host on its links.
///
/// # Errors
/// [`StartError::Routes`] if the kernel can not be asked.
pub fn host_addresses() -> Result<Vec<IpAddr>, StartError> {
    let mirror = Mirror::open()?;
    let links = mirror.picture().links.values();
    Ok(links.flat_map(|link| &link.addresses).map(|network| network.addr()).collect())
}

/// Follows the kernel's routes, links and neighbours.
pub struct RouteKeeper {
    mirror: Mirror,
    ports: Vec<Option<LinkId>>,
    port_updates: Receiver<Vec<Option<LinkId>>>,
    port_links: PortLinks,
    /// The source checks that are configured for the ports.
    reverse_paths: Vec<ReversePath>,
    /// The kernel's `rp_filter` for the links of ports, read when they appeared.
    kernels: BTreeMap<LinkId, u8>,
    wanted: Receiver<(LinkId, IpAddr)>,
    waker: Waker,
    resolver: Resolver,
    /// Log lines that were written already: about unsupported routes and about failures. See
    /// [`MOST_SAID`].
    said: std::collections::BTreeSet<String>,
    /// The states that workers may still use. The last one to drop a state frees its routes, which
    /// takes milliseconds if there are many. So this thread keeps each state until it is the last.
    handed_out: Vec<Arc<Routing>>,
}

impl RouteKeeper {
    /// Reads the kernel's state for the first time. The ports have these source checks. Their
    /// interfaces have to be told afterwards.
    ///
    /// # Errors
    /// [`StartError::Routes`] if the kernel can not be asked.
    pub fn new(reverse_paths: Vec<ReversePath>) -> Result<Self, StartError> {
        let waker = Waker::new().map_err(StartError::Thread)?;
        let (resolver, wanted) = Resolver::new(waker.clone());
        let (links, port_updates) = channel();
        let port_links = PortLinks { links, waker: waker.clone() };
        let mirror = Mirror::open()?;
        Ok(Self {
            mirror,
            ports: Vec::new(),
            port_updates,
            port_links,
            reverse_paths,
            kernels: BTreeMap::new(),
            wanted,
            waker,
            resolver,
            said: Default::default(),
            handed_out: Vec::new(),
        })
    }

    /// Lets a worker ask for neighbours.
    pub fn resolver(&self) -> Resolver {
        self.resolver.clone()
    }

    /// Lets the coordinator tell which interfaces the ports are.
    pub fn port_links(&self) -> PortLinks {
        self.port_links.clone()
    }

    /// Takes over the interfaces of the ports. True if they were told again.
    fn take_ports(&mut self) -> bool {
        let update = self.port_updates.try_iter().last();
        let is_news = update.is_some();
        self.ports = update.unwrap_or_else(|| std::mem::take(&mut self.ports));
        is_news
    }

    /// The kernel's state as it was read last.
    pub fn routing(&mut self) -> Arc<Routing> {
        self.take_ports();
        let picture = self.mirror.picture();
        if self.said.len() > MOST_SAID {
            self.said.retain(|line| picture.unsupported.contains(line));
        }
        for what in &picture.unsupported {
            if self.said.insert(what.clone()) {
                tracing::warn!("routing: {what}");
            }
        }
        if picture.overruns > 0 && self.said.insert(OVERRUN.to_owned()) {
            tracing::warn!("routing: {OVERRUN}");
        }
        // An interface that comes later may get the same index.
        self.kernels.retain(|link, _| self.ports.contains(&Some(*link)));
        let mut routing = Routing::new(picture, &self.ports);
        routing.set_checks(|port, link| {
            let name = || picture.links.get(&link).map_or("", |link| &link.name);
            let kernel = self.kernels.entry(link).or_insert_with(|| reverse_path::kernels(name()));
            let wanted = self.reverse_paths.get(usize::from(port.0)).copied();
            wanted.unwrap_or_default().check(*kernel)
        });
        let routing = Arc::new(routing);
        self.handed_out.push(routing.clone());
        routing
    }

    /// Frees the states that no worker uses any more.
    fn free(&mut self) {
        self.handed_out.retain(|routing| Arc::strong_count(routing) > 1);
    }

    /// Follows the kernel on a thread of its own, and hands each new state to `publish`, until
    /// `stopping`.
    ///
    /// # Errors
    /// The system's error if it gives no thread. The system's error when it has no room for a
    /// thread.
    pub fn spawn(
        mut self,
        stopping: Arc<AtomicBool>,
        mut publish: impl FnMut(Arc<Routing>) + Send + 'static,
    ) -> Result<JoinHandle<()>, StartError> {
        let follow = move || {
            let mut waiter = Waiter::new();
            // A single piece of news, such as a neighbour's answer, is taken over at once.
            let (mut taken_at, mut pause) = (Instant::now(), GATHER);
            while !stopping.load(Ordering::Relaxed) {
                let handles = [self.mirror.as_fd(), self.waker.as_fd()];
                let has_news =
                    waiter.wait(handles, Some(LONGEST_SLEEP)).is_ok_and(|ready| ready.contains(0));
                self.waker.clear();
                self.resolve();
                self.free();
                let has_ports = self.take_ports();
                if has_news || has_ports || self.mirror.is_doubtful() {
                    std::thread::sleep(pause.saturating_sub(taken_at.elapsed()));
                    let started = Instant::now();
                    let refreshed = self.mirror.refresh();
                    if let Err(error) = &refreshed
                        && self.said.insert(error.to_string())
                    {
                        tracing::error!("the routes may be out of date: {error}");
                    }
                    // The part that could be read is correct.
                    if has_ports | refreshed.unwrap_or(true) {
                        publish(self.routing());
                    }
                    // If there are many routes, half the time is left for neighbours.
                    pause = GATHER.max(started.elapsed());
                    taken_at = Instant::now();
                }
            }
        };
        let thread = std::thread::Builder::new().name("routes".into());
        thread.spawn(follow).map_err(StartError::Thread)
    }

    fn resolve(&mut self) {
        while let Ok((link, address)) = self.wanted.try_recv() {
            // Each cause is logged once, because senders choose how many addresses there are.
            if let Err(error) = self.mirror.resolve(link, address)
                && self.said.insert(error.to_string())
            {
                tracing::error!(
                    "the kernel can not be asked to look for neighbour {address}: {error}"
                );
            }
        }
    }
}

#[cfg(test)]
#[path = "route_keeper_tests.rs"]
mod tests;
