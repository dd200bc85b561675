//! A running gateway.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use conntrack::{ExpectationCursor, ExpectationEvent, Expected, LabelNames};
use defrag::QueueView;
use flow::{Timestamp, Zone};
use netio::cpu;
use steer::{BucketId, BucketMove, Plan, WorkerId};
use wire::Summary;

use crate::control::config::{Config, StartError, SteerError, WorkerCount};
use crate::control::coordinator::Coordinator;
use crate::control::execution::Execution;
use crate::control::hand_over::Tenure;
use crate::control::host_answers;
use crate::control::port_book::PortBook;
use crate::control::ports::PortSetup;
use crate::control::route_keeper::RouteKeeper;
use crate::control::routing_source::RoutingSource;
use crate::control::views::{DroppedPacket, Status, WorkerStatus, ZoneStatus};
use crate::control::worker_handle::Unresponsive;
use crate::egress::Mode;
use crate::path::events::EventStream;
use crate::path::host_questions::HostAsker;
use crate::path::recent_drops::RecentDrop;
use crate::worker::command::Question;
use crate::worker::report::BucketStatus;

/// The interval at which the gateway checks its ports and the set of CPUs.
const TEND_EVERY: Duration = Duration::from_millis(200);

/// Most expectations that are read in one go. Workers that look for an expectation wait meanwhile.
const EXPECTATIONS_AT_ONCE: usize = 64;

/// Returns the CPUs that workers may run on now. It is called a few times per second.
pub type CpuSource = Box<dyn FnMut() -> Vec<usize> + Send>;

/// The CPUs that the process may use and that are online.
pub fn system_cpus() -> Vec<usize> {
    let allowed = cpu::allowed_cpus().unwrap_or_default();
    match cpu::online_cpus() {
        Ok(online) => allowed.into_iter().filter(|cpu| online.contains(cpu)).collect(),
        Err(_) => allowed,
    }
}

/// A running gateway. Any thread may call its methods. They talk to the workers between batches,
/// so a packet waits for them no longer than for a batch.
pub struct Gateway {
    pub(crate) shared: Arc<Shared>,
    tender: Option<JoinHandle<()>>,
    /// Follows the kernel's routes.
    router: Option<JoinHandle<()>>,
    /// Asks the host's kernel about packets.
    answerer: Option<JoinHandle<()>>,
}

pub(crate) struct Shared {
    coordinator: Mutex<Coordinator>,
    stopping: Arc<AtomicBool>,
    started_at: Timestamp,
}

impl Gateway {
    /// Starts a gateway on the CPUs of the process.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub fn start(config: Config, ports: Vec<PortSetup>) -> Result<Self, StartError> {
        Self::start_on(config, ports, Box::new(system_cpus))
    }

    /// Starts a gateway that asks `cpus` where its workers may run.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub fn start_on(
        config: Config,
        ports: Vec<PortSetup>,
        mut cpus: CpuSource,
    ) -> Result<Self, StartError> {
        let checks = ports.iter().map(|port| port.rp_filter).collect();
        let mut routes = match config.mode {
            Mode::Bridge => None,
            Mode::Routed => Some(RouteKeeper::new(checks)?),
        };
        let source = routes.as_mut().map_or(RoutingSource::None, RoutingSource::Kernel);
        let guard = config.host_guard.clone().filter(|_| config.mode == Mode::Routed);
        let (asker, questions) = HostAsker::new();
        let asker = guard.is_some().then_some(asker);
        let (ports, threads) = (PortBook::new(ports), Execution::Threads);
        let shared =
            Shared::new(Coordinator::start(config, ports, cpus(), source, threads, asker)?);
        let tended = shared.clone();
        let tender = std::thread::Builder::new()
            .name("coordinator".into())
            .spawn(move || tended.tend(&mut cpus))
            .map_err(|error| {
                let _ = shared.lock().stop();
                StartError::Thread(error)
            })?;
        let mut gateway = Self::of(shared);
        gateway.tender = Some(tender);
        if let Some(guard) = guard {
            let stopping = gateway.shared.stopping.clone();
            gateway.answerer = Some(host_answers::spawn(guard, questions, stopping)?);
        }
        if let Some(routes) = routes {
            let shared = Arc::downgrade(&gateway.shared);
            let publish = move |routing| {
                let Some(shared) = shared.upgrade() else { return };
                if let Err(error) = shared.lock().set_routing(routing) {
                    tracing::error!("routes did not reach every worker: {error}");
                }
            };
            gateway.router = Some(routes.spawn(gateway.shared.stopping.clone(), publish)?);
        }
        Ok(gateway)
    }

    /// A gateway that nobody tends and that follows no kernel.
    pub(super) fn of(shared: Arc<Shared>) -> Self {
        Self { shared, tender: None, router: None, answerer: None }
    }

    /// Lets the coordinator go without its workers, which somebody else has taken.
    pub(super) fn forsake(self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
    }

    /// The state of the workers, ports and zones.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn status(&self) -> Result<Status, Unresponsive> {
        self.shared.status()
    }

    /// All buckets with their owners.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn buckets(&self) -> Result<Vec<BucketStatus>, Unresponsive> {
        self.shared.lock().buckets()
    }

    /// The number of tracked connections.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn connection_count(&self) -> Result<u64, Unresponsive> {
        Ok(self.buckets()?.iter().map(|bucket| bucket.connections).sum())
    }

    /// The packets that were dropped last, the latest first. Each worker keeps at most
    /// [`DROPS_KEPT`](crate::DROPS_KEPT) for each reason, and so do all removed workers together.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn recent_drops(&self) -> Result<Vec<DroppedPacket>, Unresponsive> {
        self.shared.lock().recent_drops()
    }

    /// Calls `each` for every expectation, oldest first, until it breaks off. An expectation is a
    /// connection that another one has announced.
    pub fn expectations(&self, each: &mut dyn FnMut(Expected) -> ControlFlow<()>) {
        let (expectations, now) = {
            let coordinator = self.shared.lock();
            (coordinator.blueprint.expectations.clone(), coordinator.execution.now())
        };
        let mut next = Some(ExpectationCursor::default());
        while let Some(from) = next {
            let mut found = Vec::new();
            next = expectations.list(from, EXPECTATIONS_AT_ONCE, now, |one| found.push(one));
            if found.into_iter().try_for_each(&mut *each).is_break() {
                return;
            }
        }
    }

    /// Forgets every expectation and returns how many there were. An expectation that is announced
    /// meanwhile may stay. The first worker does it, since only workers can report it to
    /// subscribers.
    ///
    /// # Errors
    /// [`Unresponsive`]; expectations that were forgotten before stay forgotten.
    pub fn forget_expectations(&self) -> Result<u64, Unresponsive> {
        let mut forgotten = 0;
        loop {
            let question = |reply| Question::ForgetExpectations(EXPECTATIONS_AT_ONCE, reply);
            let Some(answer) = self.shared.lock().ask_worker(WorkerId(0), question) else {
                return Ok(forgotten);
            };
            let (found, has_more) = answer?;
            forgotten += found as u64;
            if !has_more {
                return Ok(forgotten);
            }
        }
    }

    /// Calls `each` for every incomplete datagram, until it breaks off. The gateway reads a piece
    /// of one worker's table at a time, so it may miss a datagram that comes, goes or moves
    /// meanwhile.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn datagrams(
        &self,
        each: &mut dyn FnMut(QueueView) -> ControlFlow<()>,
    ) -> Result<(), Unresponsive> {
        for worker in 0.. {
            let mut next = Some(defrag::Cursor::default());
            while let Some(from) = next {
                let question = |reply| Question::Datagrams(from, reply);
                let Some(answer) = self.shared.lock().ask_worker(WorkerId(worker), question) else {
                    return Ok(());
                };
                let (found, rest) = answer?;
                if found.into_iter().try_for_each(&mut *each).is_break() {
                    return Ok(());
                }
                next = rest;
            }
        }
        Ok(())
    }

    /// Subscribes to the events of all workers, including workers that are added later. Each
    /// worker's ring holds `capacity` events. Events that do not fit are lost and counted.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn subscribe(&self, capacity: usize) -> Result<EventStream, Unresponsive> {
        self.shared.lock().subscribe(capacity)
    }

    /// Subscribes to the events of expectations. They are read in the order in which they
    /// happened, even if several workers report them.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn subscribe_expectations(
        &self,
        capacity: usize,
    ) -> Result<EventStream<ExpectationEvent>, Unresponsive> {
        self.shared.lock().subscribe_expectations(capacity)
    }

    /// Changes the number of workers while traffic runs. The number then stays, even if the CPUs
    /// change. Returns the buckets that were moved.
    ///
    /// # Errors
    /// [`SteerError`].
    pub fn set_workers(&self, count: usize) -> Result<Vec<BucketMove>, SteerError> {
        let mut coordinator = self.shared.lock();
        let moves = coordinator.set_workers(count)?;
        coordinator.config.workers = WorkerCount::fixed(count)?;
        Ok(moves)
    }

    /// Lets the number of workers follow the set of usable CPUs.
    pub fn follow_cpus(&self) {
        self.shared.lock().follow_cpus();
    }

    /// Moves one bucket.
    ///
    /// # Errors
    /// [`SteerError`] when there is no such bucket or worker.
    pub fn move_bucket(&self, bucket: BucketId, to: WorkerId) -> Result<(), SteerError> {
        self.shared.lock().move_bucket(bucket, to)
    }

    /// Plans bucket moves by the load since the last plan, and carries them out unless it is a dry
    /// run.
    ///
    /// # Errors
    /// [`SteerError`]; moves that were carried out before stay.
    pub fn balance(&self, dry_run: bool) -> Result<Plan, SteerError> {
        self.shared.lock().balance(dry_run)
    }

    /// Sets the interval at which the balancer runs; `None`: never.
    pub fn set_balance(&self, every: Option<Duration>) {
        self.shared.lock().config.balance = every;
    }

    /// The names of the labels of connections.
    pub fn label_names(&self) -> Arc<LabelNames> {
        self.shared.lock().config.labels.clone()
    }

    /// Takes these addresses (IPv4 in the mapped form) for inside from now on, see
    /// [`steer::SteeringHasher`]. Addresses that were added before stay, because connections that
    /// were translated to them may still live.
    ///
    /// When this returns, every worker knows the addresses, so connections may be translated to
    /// them.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn add_translation_addresses(
        &self,
        addresses: impl IntoIterator<Item = RangeInclusive<[u8; 16]>>,
    ) -> Result<(), Unresponsive> {
        self.shared.lock().add_translation_addresses(addresses)
    }

    /// Stops reading, processes every packet that was read, stops the workers, and returns the
    /// last status.
    ///
    /// # Errors
    /// [`SteerError`] when a worker hangs.
    pub fn stop(mut self) -> Result<Status, SteerError> {
        self.end()?;
        Ok(self.shared.status()?)
    }

    fn end(&mut self) -> Result<(), SteerError> {
        if self.shared.stopping.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(tender) = self.tender.take() {
            tender.thread().unpark();
            let _ = tender.join();
        }
        for thread in [self.router.take(), self.answerer.take()].into_iter().flatten() {
            let _ = thread.join();
        }
        self.shared.lock().stop()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("while stopping: {error}");
        }
    }
}

impl Shared {
    pub(super) fn new(coordinator: Coordinator) -> Arc<Self> {
        let started_at = coordinator.execution.now();
        let coordinator = Mutex::new(coordinator);
        Arc::new(Self { coordinator, stopping: Arc::default(), started_at })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Coordinator> {
        // A panic under the lock does not damage the coordinator's books, and the workers go on in
        // any case.
        self.coordinator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if nobody else has it now. For those who look often and may look again.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Coordinator>> {
        match self.coordinator.try_lock() {
            Ok(coordinator) => Some(coordinator),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn status(&self) -> Result<Status, Unresponsive> {
        let mut coordinator = self.lock();
        let uptime = coordinator.execution.now().since(self.started_at);
        coordinator.status(uptime.as_nanos() as u64)
    }

    /// Tends ports, CPUs and balance until the gateway stops.
    fn tend(&self, cpus: &mut CpuSource) {
        while !self.stopping.load(Ordering::Relaxed) {
            std::thread::park_timeout(TEND_EVERY);
            let usable = cpus();
            let mut coordinator = self.lock();
            if coordinator.tenure != Tenure::Own {
                // Buckets stay, and failed ports are looked after if the new process does not come.
                continue;
            }
            let result = coordinator.tend().and_then(|()| coordinator.set_cpus(usable));
            if let Err(error) = result.and_then(|()| coordinator.balance_if_due()) {
                tracing::error!("{error}");
            }
        }
    }
}

impl Coordinator {
    fn status(&mut self, uptime_ns: u64) -> Result<Status, Unresponsive> {
        let mut ports = self.ports.statuses();
        for (port, sent) in ports.iter_mut().zip(&self.retired_sent) {
            port.sent = *sent;
        }
        let handles: Vec<_> = self.workers().collect();
        let zone = |(zone, limit)| ZoneStatus { zone, connections: 0, limit };
        let mut zones: Vec<_> = self.blueprint.limit_pools.zones().map(zone).collect();
        let mut workers = Vec::new();
        for ((id, cpu), report) in handles.into_iter().zip(self.reports()?) {
            for (port, service, received) in &report.queues {
                ports[usize::from(port.0)].add_received(*service, received);
            }
            for (port, sent) in ports.iter_mut().zip(&report.sent) {
                port.sent.add(sent);
            }
            for (zone, (_, connections)) in zones.iter_mut().zip(&report.zones) {
                zone.connections += connections;
            }
            workers.push(WorkerStatus {
                id,
                cpu,
                connections: report.buckets.iter().map(|bucket| bucket.connections).sum(),
                buckets: report.buckets.len(),
                queues: report.queues.len(),
                counters: report.counters,
                backlog: report.backlog,
                busy_ns: report.busy_ns,
                policy: report.policy,
                waited: report.waited,
                datagrams: report.datagrams,
            });
        }
        // A removed zone stays known, but matters only until its last connection ends.
        let is_there = |zone: Zone| self.config.zones.iter().any(|config| config.zone == zone);
        zones.retain(|status| status.connections > 0 || is_there(status.zone));
        Ok(Status {
            mode: self.config.mode,
            rules: self.rules_status(),
            workers,
            ports,
            zones,
            uptime_ns,
            retired: self.retired.clone(),
            moves: self.moves,
            route_overruns: self.routing.as_ref().map_or(0, |routing| routing.overruns),
            balance: self.config.balance,
        })
    }

    fn recent_drops(&mut self) -> Result<Vec<DroppedPacket>, Unresponsive> {
        let now = self.execution.now();
        let inherited = self.inherited_drops.kept().iter().cloned();
        let mut found: Vec<_> =
            inherited.map(|(worker, dropped)| (worker, now.since(dropped.at), dropped)).collect();
        for worker in (0..).map(WorkerId) {
            let Some(answer) = self.ask_worker(worker, Question::RecentDrops) else { break };
            found.extend(answer?.into_iter().map(|(age, dropped)| (worker, age, dropped)));
        }
        found.sort_by_key(|(_, age, _)| *age);
        let names = self.ports.names();
        let dropped_packet =
            |(worker, age, dropped): (WorkerId, Duration, RecentDrop)| DroppedPacket {
                worker,
                interface: names[usize::from(dropped.port.0)].clone(),
                zone: dropped.zone,
                vlan: dropped.vlan,
                age,
                length: dropped.length,
                why: dropped.why,
                refused_by: self.decider(&dropped.why),
                summary: Summary { frame: &dropped.bytes() }.to_string(),
            };
        Ok(found.into_iter().map(dropped_packet).collect())
    }

    fn buckets(&mut self) -> Result<Vec<BucketStatus>, Unresponsive> {
        let mut all: Vec<BucketStatus> =
            self.reports()?.into_iter().flat_map(|report| report.buckets).collect();
        all.sort_by_key(|bucket| bucket.id);
        Ok(all)
    }

    fn follow_cpus(&mut self) {
        self.config.workers = WorkerCount::PerCpu;
    }

    fn move_bucket(&mut self, bucket: BucketId, to: WorkerId) -> Result<(), SteerError> {
        let (buckets, workers) = (self.config.buckets.get(), self.worker_count());
        if bucket.index() >= buckets {
            return Err(SteerError::NoSuchBucket { given: bucket.0, count: buckets });
        }
        if to.index() >= workers {
            return Err(SteerError::NoSuchWorker { given: to.0, count: workers });
        }
        let from = self.table.owner(bucket);
        if from == to { Ok(()) } else { self.order_moves(&[BucketMove { bucket, from, to }]) }
    }
}
