//! The coordinator's book of ports: which ones are up, which worker polls which queue, and the
//! counters of closed queues.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fib::LinkId;
use netio::{PortError, PortId, RxQueue, Service, TxQueue};
use netlink::Master;
use netpolicy::Policy;
use ruleset::{Interface, name_bits};
use steer::{BucketCount, InterfaceCpus, Placement, PlacementError, WorkerCpu, WorkerId};

use crate::control::ports::{OpenPort, OpenSelectors, PortLink, PortLook, PortSetup};
use crate::control::views::PortStatus;
use crate::egress::reverse_path::ReversePath;
use crate::worker::queue::{Queue, Received};

/// All ports of a gateway.
pub struct PortBook {
    ports: Vec<Entry>,
    /// Open queues that nobody polls.
    unassigned: Vec<Queue>,
    /// The port and the poller of each queue that is polled.
    pollers: BTreeMap<usize, (PortId, WorkerId)>,
    next_queue: usize,
    news: PortNews,
}

/// The changes of ports that were not passed on yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortNews {
    /// An MTU.
    pub mtus: bool,
    /// A name.
    pub names: bool,
    /// The group of an interface, or the type of its link.
    pub kinds: bool,
    /// The interface of a port.
    pub links: bool,
}

struct Entry {
    setup: PortSetup,
    /// The current name of its interface, or the last one.
    name: String,
    /// The group of its interface, or the last one.
    group: u32,
    /// The type of its link, or the last one.
    link_type: u16,
    /// The state of the interface at the last look.
    look: PortLook,
    up: bool,
    /// Its receive queues come from another process, which has opened them.
    has_foreign_queues: bool,
    /// Open transmit queues that have not been handed out, by worker.
    transmit: Vec<Option<Box<dyn TxQueue>>>,
    /// The counters of its closed queues, and those of them whose service is latency.
    closed: Received,
    closed_latency: Option<Received>,
    /// Its open receive queues.
    open_queues: usize,
    reopened: u64,
    /// The log has told that it could not be opened again.
    complained: bool,
}

impl PortBook {
    /// Creates the book of ports that are still closed.
    pub fn new(setups: Vec<PortSetup>) -> Self {
        let ports = setups
            .into_iter()
            .map(|setup| Entry {
                name: setup.name.clone(),
                group: 0,
                link_type: Interface::ETHERNET,
                look: PortLook::default(),
                setup,
                up: false,
                has_foreign_queues: false,
                transmit: Vec::new(),
                closed: Received::default(),
                closed_latency: None,
                open_queues: 0,
                reopened: 0,
                complained: false,
            })
            .collect();
        Self {
            ports,
            unassigned: Vec::new(),
            pollers: BTreeMap::new(),
            next_queue: 0,
            news: PortNews::default(),
        }
    }

    /// The number of ports.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// The check of sources that a port is configured with.
    pub fn reverse_path(&self, port: PortId) -> ReversePath {
        self.ports[usize::from(port.0)].setup.rp_filter
    }

    /// Opens every port, with a transmit queue for each worker. `awaits_queues`: without receive queues,
    /// and a port whose interface is down or missing stays closed.
    ///
    /// # Errors
    /// The error of the first port that does not open.
    pub fn open_all(&mut self, workers: usize, awaits_queues: bool) -> Result<(), PortError> {
        for index in 0..self.ports.len() {
            let rx_queues = if awaits_queues { 0 } else { self.ports[index].setup.rx_queues };
            match self.open(index, rx_queues, workers) {
                Err(PortError::NoInterface { .. } | PortError::Gone { .. }) if awaits_queues => {}
                opened => opened?,
            }
        }
        Ok(())
    }

    fn open(&mut self, index: usize, rx_queues: usize, workers: usize) -> Result<(), PortError> {
        let entry = &mut self.ports[index];
        let OpenPort { rx, tx } = entry.setup.opener.open(rx_queues, workers)?;
        entry.transmit = tx.into_iter().map(Some).collect();
        (entry.up, entry.has_foreign_queues) = (true, false);
        rx.into_iter().for_each(|source| self.add_queue(PortId(index as u16), source));
        Ok(())
    }

    /// The name of a port.
    pub fn name_of(&self, port: PortId) -> &str {
        &self.ports[usize::from(port.0)].name
    }

    /// True for an open port.
    pub fn is_up(&self, port: PortId) -> bool {
        self.ports[usize::from(port.0)].up
    }

    /// Closes open ports that have no receive queue. Returns them.
    pub fn close_without_queues(&mut self) -> Vec<PortId> {
        let all = (0..self.ports.len() as u16).map(PortId);
        let without =
            |port: &PortId| self.is_up(*port) && self.ports[usize::from(port.0)].open_queues == 0;
        let closed: Vec<_> = all.filter(without).collect();
        for port in &closed {
            self.discard(*port);
            self.ports[usize::from(port.0)].up = false;
        }
        closed
    }

    /// True for an open port none of whose receive queues is polled.
    pub fn is_idle(&self, port: PortId) -> bool {
        let idle = self.unassigned.iter().filter(|queue| queue.port == port).count();
        let entry = &self.ports[usize::from(port.0)];
        entry.up && idle > 0 && idle == entry.open_queues
    }

    /// The number of receive queues that a port is configured with. A lane for latency has one more.
    pub fn queue_count(&self, port: PortId) -> usize {
        self.ports[usize::from(port.0)].setup.rx_queues
    }

    /// The descriptor that claims the interface of a port.
    pub fn claim(&self, port: PortId) -> Option<BorrowedFd<'_>> {
        self.ports[usize::from(port.0)].setup.opener.claim()
    }

    /// The open queues that nobody polls.
    pub fn idle_queues(&self) -> &[Queue] {
        &self.unassigned
    }

    /// Another process has ended that may have read the queues that nobody polls here.
    pub fn find_places(&mut self) {
        self.unassigned.iter_mut().for_each(|queue| queue.source.find_place());
    }

    /// Adds a queue of a port that another process has opened.
    pub fn add_foreign_queue(&mut self, port: PortId, source: Box<dyn RxQueue>) {
        self.ports[usize::from(port.0)].has_foreign_queues = true;
        self.add_queue(port, source);
    }

    /// Adds an open queue of a port.
    pub fn add_queue(&mut self, port: PortId, source: Box<dyn RxQueue>) {
        let supplies_hash = self.ports[usize::from(port.0)].setup.supplied_hash_symmetric;
        self.ports[usize::from(port.0)].open_queues += 1;
        let queue = Queue::new(self.next_queue, port, source);
        self.unassigned.push(Queue { supplies_hash, ..queue });
        self.next_queue += 1;
    }

    /// Opens the ports that are down and whose interface is back. Returns these ports.
    pub fn reopen(&mut self, workers: usize) -> Vec<PortId> {
        let mut opened = Vec::new();
        for index in 0..self.ports.len() {
            if self.ports[index].up {
                continue;
            }
            match self.open(index, self.ports[index].setup.rx_queues, workers) {
                Ok(()) => {
                    let entry = &mut self.ports[index];
                    entry.reopened += 1;
                    entry.complained = false;
                    tracing::info!("interface {} is back", entry.name);
                    opened.push(PortId(index as u16));
                }
                Err(PortError::NoInterface { .. } | PortError::Gone { .. }) => {}
                Err(error) => {
                    let entry = &mut self.ports[index];
                    if !std::mem::replace(&mut entry.complained, true) {
                        tracing::warn!("interface {} can not be used yet: {error}", entry.name);
                    }
                }
            }
        }
        opened
    }

    /// True for each port that accepts no new connections.
    pub fn refuse_new(&self) -> Vec<bool> {
        self.ports.iter().map(|entry| entry.setup.refuses_new).collect()
    }

    /// Looks at every port. Returns the changes since [`PortBook::clear_news`].
    pub fn look(&mut self) -> PortNews {
        for entry in &mut self.ports {
            let Some(look) = entry.setup.opener.look() else { continue };
            if let Some(name) = look.name.as_ref().filter(|name| **name != entry.name) {
                tracing::warn!("interface {} has another name now: {name}", entry.name);
                entry.name.clone_from(name);
                self.news.names = true;
            }
            if let Some(group) = look.group.filter(|group| *group != entry.group) {
                entry.group = group;
                self.news.kinds = true;
            }
            if let Some(link_type) = look.link_type.filter(|it| *it != entry.link_type) {
                entry.link_type = link_type;
                self.news.kinds = true;
            }
            let is_new = look.master != entry.look.master;
            if let Some(master) = look.master.as_ref().filter(|_| is_new) {
                tracing::warn!("{}", taken_over(&entry.name, master));
            }
            self.news.mtus |= look.mtu != entry.look.mtu;
            self.news.links |= look.link != entry.look.link;
            entry.look = look;
        }
        self.news
    }

    /// The interfaces that something else has taken over and those that have another name now, in
    /// words for people.
    pub fn troubles(&self) -> Vec<String> {
        let taken = |entry: &Entry| Some(taken_over(&entry.name, entry.look.master.as_ref()?));
        let renamed = |Entry { setup: PortSetup { name: first, .. }, name, .. }: &Entry| {
            (name != first).then(|| {
                format!(
                    "interface {first} has another name now, {name}, by which rules know it: change \
                     the configuration and the rules, or name it back with `ip link set {name} name \
                     {first}`"
                )
            })
        };
        self.ports.iter().flat_map(|entry| taken(entry).into_iter().chain(renamed(entry))).collect()
    }

    /// Notes that all changes were passed on.
    pub fn clear_news(&mut self) {
        self.news = PortNews::default();
    }

    /// The MTUs at the last look, by port.
    pub fn mtus(&self) -> Vec<Option<u32>> {
        self.ports.iter().map(|entry| entry.look.mtu).collect()
    }

    /// The names at the last look, by port.
    pub fn names(&self) -> Vec<String> {
        self.ports.iter().map(|entry| entry.name.clone()).collect()
    }

    /// The interfaces at the last look, by port, as rules ask for them.
    pub fn for_rules(&self) -> Arc<[Interface]> {
        let seen = |entry: &Entry| Interface {
            name: name_bits(&entry.name).unwrap_or(0),
            group: entry.group,
            link_type: entry.link_type,
        };
        self.ports.iter().map(seen).collect()
    }

    /// The interfaces at the last look, by port.
    pub fn links(&self) -> Vec<Option<LinkId>> {
        self.ports.iter().map(|entry| entry.look.link).collect()
    }

    /// The interfaces and names, for the host guard.
    pub fn named_links(&self) -> Vec<PortLink> {
        let named = |entry: &Entry| PortLink { link: entry.look.link, name: entry.name.clone() };
        self.ports.iter().map(named).collect()
    }

    /// Opens one more transmit queue on every port that is up, for a new worker.
    ///
    /// # Errors
    /// The error of the first port that gives none: a worker that can not send by every port must
    /// own no bucket. A port that has just gone is no error, because it is opened for all workers
    /// when it returns.
    pub fn open_transmit(&mut self, worker: WorkerId) -> Result<(), PortError> {
        for entry in self.ports.iter_mut().filter(|entry| entry.up) {
            match entry.setup.opener.open_tx() {
                Ok(queue) => {
                    entry.transmit.resize_with(worker.index() + 1, || None);
                    entry.transmit[worker.index()] = Some(queue);
                }
                Err(PortError::NoInterface { .. } | PortError::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes the transmit queues that were opened for a worker.
    pub fn transmit_queues(&mut self, worker: WorkerId) -> Vec<(PortId, Box<dyn TxQueue>)> {
        (0..self.ports.len())
            .map(|index| PortId(index as u16))
            .filter_map(|port| Some((port, self.take_transmit(port, worker)?)))
            .collect()
    }

    /// Takes the transmit queue of a port that was opened for a worker.
    pub fn take_transmit(&mut self, port: PortId, worker: WorkerId) -> Option<Box<dyn TxQueue>> {
        self.ports[usize::from(port.0)].transmit.get_mut(worker.index())?.take()
    }

    /// Takes an open receive queue that nobody polls.
    pub fn take_unassigned(&mut self) -> Option<Queue> {
        if self.unassigned.is_empty() { None } else { Some(self.unassigned.remove(0)) }
    }

    /// The worker that polls the fewest queues, of the first `workers` ones.
    pub fn least_loaded(&self, workers: usize) -> WorkerId {
        (0..workers as u16).map(WorkerId).min_by_key(|id| self.polls(*id)).unwrap_or_default()
    }

    fn polls(&self, worker: WorkerId) -> usize {
        self.pollers.values().filter(|(_, poller)| *poller == worker).count()
    }

    /// A queue to take from the worker that polls the most, so that the one with the fewest gets
    /// it. `None` if their numbers differ by one at most.
    pub fn surplus_queue(&self, workers: usize) -> Option<usize> {
        let polls = |id: u16| self.polls(WorkerId(id));
        let fewest = (0..workers as u16).map(polls).min()?;
        let busiest = (0..workers as u16).max_by_key(|id| polls(*id))?;
        if polls(busiest) < fewest + 2 {
            return None;
        }
        let of_busiest = |(_, worker): &(PortId, WorkerId)| worker.0 == busiest;
        self.pollers.iter().find(|(_, entry)| of_busiest(entry)).map(|(id, _)| *id)
    }

    /// Notes the worker that polls a queue.
    pub fn assign(&mut self, queue: &Queue, worker: WorkerId) {
        self.pollers.insert(queue.id, (queue.port, worker));
    }

    /// Takes back a queue that is no longer polled. If its port was closed before it came back,
    /// only its counters are of use.
    pub fn take_back(&mut self, queue: Queue) {
        match self.pollers.remove(&queue.id) {
            Some(_) => self.unassigned.push(queue),
            None => self.add_received(queue.port, queue.service, &queue.received),
        }
    }

    /// The worker that polls a queue.
    pub fn poller(&self, id: usize) -> Option<WorkerId> {
        self.pollers.get(&id).map(|(_, worker)| *worker)
    }

    /// The queues that the `wanted` workers poll.
    pub fn polled_by(&self, wanted: impl Fn(WorkerId) -> bool) -> Vec<usize> {
        let entries = self.pollers.iter().filter(|(_, (_, worker))| wanted(*worker));
        entries.map(|(id, _)| *id).collect()
    }

    /// The queues of a port that are polled.
    pub fn queues_of(&self, port: PortId) -> Vec<usize> {
        let entries = self.pollers.iter().filter(|(_, (of, _))| *of == port);
        entries.map(|(id, _)| *id).collect()
    }

    /// The workers that poll queues of a port.
    pub fn pollers_of(&self, port: PortId) -> BTreeSet<WorkerId> {
        let of_port = self.pollers.values().filter(|(of, _)| *of == port);
        of_port.map(|(_, worker)| *worker).collect()
    }

    /// The selectors by which the kernel chooses between the queues of a port.
    pub fn selectors_of(&self, port: PortId) -> OpenSelectors {
        let entry = &self.ports[usize::from(port.0)];
        match entry.has_foreign_queues {
            true => OpenSelectors::OfFormerProcess,
            false => entry.setup.opener.selectors(),
        }
    }

    /// Closes a queue that failed. True if its port was up until now.
    pub fn close_queue(&mut self, queue: Queue, error: &PortError) -> bool {
        let is_known = self.pollers.remove(&queue.id).is_some();
        self.add_received(queue.port, queue.service, &queue.received);
        let entry = &mut self.ports[usize::from(queue.port.0)];
        // The port may be open again. A source that has come to its end is no failure, and it
        // never comes back.
        if !is_known || matches!(error, PortError::Finished) {
            return false;
        }
        if entry.up {
            // A queue knows the name that the interface had when it was opened.
            match error {
                PortError::Gone { .. } => {
                    let interface = entry.name.clone();
                    tracing::warn!("{}", PortError::Gone { interface });
                }
                error => tracing::warn!("{error}"),
            }
        }
        std::mem::replace(&mut entry.up, false)
    }

    /// Closes the queues of a port. One that a worker still has is closed when it comes back.
    pub fn discard(&mut self, port: PortId) {
        self.pollers.retain(|_, (of, _)| *of != port);
        let (gone, kept) = std::mem::take(&mut self.unassigned)
            .into_iter()
            .partition(|queue: &Queue| queue.port == port);
        self.unassigned = kept;
        let entry = &mut self.ports[usize::from(port.0)];
        entry.transmit.clear();
        entry.open_queues = 0;
        for queue in gone {
            self.add_received(port, queue.service, &queue.received);
        }
    }

    /// Adds the counters of a queue that went away with its worker.
    pub fn add_received(&mut self, port: PortId, service: Service, received: &Received) {
        let entry = &mut self.ports[usize::from(port.0)];
        entry.closed.add(received);
        if service == Service::Latency {
            entry.closed_latency.get_or_insert_default().add(received);
        }
    }

    /// The state of the ports, without the counters of queues that are polled.
    pub fn statuses(&self) -> Vec<PortStatus> {
        let mut statuses: Vec<PortStatus> = self
            .ports
            .iter()
            .map(|entry| PortStatus {
                name: entry.name.clone(),
                up: entry.up,
                received: entry.closed,
                received_latency: entry.closed_latency,
                reopened: entry.reopened,
                policy: entry.setup.policy,
                ..PortStatus::default()
            })
            .collect();
        for queue in &self.unassigned {
            statuses[usize::from(queue.port.0)].add_received(queue.service, &queue.received);
        }
        statuses
    }

    /// The policies, by port.
    pub fn policies(&self) -> Arc<[Policy]> {
        self.ports.iter().map(|entry| entry.setup.policy).collect()
    }

    /// The port whose interface has this name, or had it at the start.
    pub fn find(&self, name: &str) -> Option<PortId> {
        let place = |is_it: &dyn Fn(&Entry) -> bool| self.ports.iter().position(is_it);
        let found = place(&|entry| entry.name == name);
        let found = found.or_else(|| place(&|entry| entry.setup.name == name));
        found.map(|index| PortId(index as u16))
    }

    /// Sets the policy of a port. Returns the policy before.
    pub fn set_policy(&mut self, port: PortId, policy: Policy) -> Policy {
        std::mem::replace(&mut self.ports[usize::from(port.0)].setup.policy, policy)
    }

    /// Calls [`place`] with the `rps_cpus` of all ports.
    ///
    /// # Errors
    /// [`PlacementError`] names the port.
    pub fn place(
        &self,
        workers: usize,
        cpus: &[usize],
        buckets: BucketCount,
    ) -> Result<Placement, PlacementError> {
        let of = |setup: &PortSetup| {
            Some(InterfaceCpus { name: setup.name.clone(), cpus: setup.rps_cpus? })
        };
        let restricted: Vec<_> = self.ports.iter().filter_map(|entry| of(&entry.setup)).collect();
        place(&restricted, workers, cpus, buckets)
    }
}

/// Chooses the workers that may own buckets, by `rps_cpus` of the interfaces. Worker i runs on CPU
/// `cpus[i % len]`. Without CPUs no worker is pinned, so the sets do not matter and every worker
/// may own buckets.
///
/// # Errors
/// [`PlacementError`] names the interface.
pub fn place(
    interfaces: &[InterfaceCpus],
    workers: usize,
    cpus: &[usize],
    buckets: BucketCount,
) -> Result<Placement, PlacementError> {
    let workers: Vec<WorkerCpu> = (0..workers as u16)
        .map(|id| WorkerCpu {
            worker: WorkerId(id),
            cpu: cpus.get(usize::from(id) % cpus.len().max(1)).copied().unwrap_or_default(),
        })
        .collect();
    let interfaces = if cpus.is_empty() { &[] } else { interfaces };
    steer::place(interfaces, &workers, buckets)
}
/// The text about an interface that belongs to something else.
pub fn taken_over(interface: &str, Master { name, kind }: &Master) -> String {
    format!(
        "interface {interface} belongs to {kind} {name}, which handles its frames past the rules; \
         `ip link set {interface} nomaster` takes it out"
    )
}
