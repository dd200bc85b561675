//! The coordinator: it knows which worker owns which bucket and queue, and changes that.
//!
//! It runs outside the packet path, behind the lock of [`crate::Gateway`]. Its view of owners is
//! exact, because it alone orders moves, and it orders the next ones only when the last ones have
//! been carried out.

mod staffing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use conntrack::{Event, ExpectationEvent};
use flow::{Counters, FlowKey};
use ruleset::Forwarded;
use steer::{
    AddressSet, BucketId, BucketMove, IndirectionTable, Placement, SteeringHasher, WorkerId,
    WorkerSet,
};

use crate::control::balance::BalanceState;
use crate::control::blueprint::Blueprint;
use crate::control::config::{Config, StartError, SteerError};
use crate::control::execution::{Execution, PATIENCE};
use crate::control::hand_over::Tenure;
use crate::control::port_book::{PortBook, PortNews};
use crate::control::replication::ReplicationRole;
use crate::control::route_keeper::PortLinks;
use crate::control::routing_source::RoutingSource;
use crate::control::rule_loading::RuleExchange;
use crate::control::settings_in_force::SettingsInForce;
use crate::control::worker_handle::{Unresponsive, WorkerHandle};
use crate::control::zone_changes::Spread;
use crate::egress::outputs::Sent;
use crate::egress::resolver::Resolver;
use crate::egress::routing::Routing;
use crate::path::TimeSource;
use crate::path::drop_cause::DropCause;
use crate::path::events::{EventSender, EventStream, Subscription};
use crate::path::host_questions::HostAsker;
use crate::path::recent_drops::Inherited;
use crate::path::rules::ruleset::Rules;
use crate::path::rules::worker_rules::RuleCounts;
use crate::path::zones::Zones;
use crate::rings::ownership::Move;
use crate::worker::command::{Command, Notice, Question};
use crate::worker::report::WorkerReport;

/// Most moves that are under way at the same time. Each needs one fence in each ring to the old
/// owner, and the fences must fit beside the packets.
const MOVES_AT_ONCE: usize = 64;

/// Most rings that a packet goes through: one to its owner, one more after it was put together
/// from fragments, and with an alias one to the owner of its connection and one back.
pub const HOPS: usize = 4;

/// The state of the gateway that is not on the packet path.
pub struct Coordinator {
    /// The current configuration.
    pub config: Config,
    /// How the workers run, and the time.
    pub execution: Execution,
    /// The ports.
    pub ports: PortBook,
    /// The parts that the workers share.
    pub blueprint: Blueprint,
    /// The owner of each bucket.
    pub table: IndirectionTable,
    /// Lets workers ask the kernel for neighbours; `None` in a bridge.
    resolver: Option<Resolver>,
    /// Lets workers ask whether the host would refuse packets; `None` where nobody answers.
    host_asker: Option<HostAsker>,
    /// Tells the route keeper which interfaces the ports are; `None` in a bridge.
    port_links: Option<PortLinks>,
    /// The kernel's routes as they are now; `None` in a bridge.
    pub routing: Option<Arc<Routing>>,
    /// Counters of removed workers.
    pub retired: Counters,
    /// Frames that removed workers sent, by port.
    pub retired_sent: Vec<Sent>,
    /// The last packets that removed workers dropped.
    pub inherited_drops: Inherited,
    /// The names of the former rules behind drops that are still remembered.
    pub former_deciders: Vec<(DropCause, String)>,
    /// Completed bucket moves.
    pub moves: u64,
    workers: Vec<WorkerHandle>,
    subscriptions: Vec<Subscription<Event>>,
    expectation_subscriptions: Vec<Subscription<ExpectationEvent>>,
    /// The part of workers in replication.
    pub replication: ReplicationRole,
    /// How far this gateway is from handing over.
    pub tenure: Tenure,
    /// Finds the bucket of a packet.
    pub hasher: SteeringHasher,
    /// The addresses that sources are translated to, and those that they were translated to: old
    /// connections may still use them.
    pub translation_addresses: AddressSet,
    /// The inside addresses have changed while connections lived, so a connection may be in another
    /// bucket than that of its key.
    pub has_resteered: bool,
    /// Finds the zone of a packet.
    pub zones: Zones,
    /// How often the zones were changed since the start.
    pub zones_revision: u64,
    /// The rules that judge packets; `None`: no rules.
    pub rules: Option<Arc<Rules>>,
    /// How often rules were loaded or unloaded since the start.
    pub rules_revision: u32,
    /// The counts that removed workers made for the current rules.
    pub retired_rules: RuleCounts,
    /// The counts of all workers at the last reset of the current rules.
    pub rules_reset_at: Option<RuleCounts>,
    /// Tells which workers may still judge by the rules before.
    pub rule_exchange: RuleExchange,
    /// The packets that the host was last said to have.
    pub host_has: Vec<Forwarded>,
    /// The reason why the host guard was not told what the current rules leave to the host.
    pub guard_failure: Option<String>,
    /// Changes that not every worker knows yet.
    pub spread: Spread,
    notices: Receiver<Notice>,
    /// Notices that came during a wait for another one.
    waiting: VecDeque<Notice>,
    next_marker: u64,
    /// CPUs that workers may run on; empty when they are not pinned.
    cpus: Vec<usize>,
    /// The workers that may own buckets.
    pub allowed: WorkerSet,
    /// Plans moves when the load is uneven.
    pub balance: BalanceState,
    /// The settings of the configuration, which may change while the gateway runs.
    pub settings_at_start: SettingsInForce,
}

impl Coordinator {
    /// Opens the ports and starts the workers. If anything fails, it stops everything again.
    pub fn start(
        config: Config,
        mut ports: PortBook,
        cpus: Vec<usize>,
        mut routes: RoutingSource<'_>,
        execution: Execution,
        host_asker: Option<HostAsker>,
    ) -> Result<Self, StartError> {
        let cpus = if config.pin { cpus } else { Vec::new() };
        let count = config.workers.resolve(&cpus);
        let Placement { table, allowed, .. } = ports.place(count, &cpus, config.buckets)?;
        let hasher = SteeringHasher::new(config.steering());
        let settings_at_start = SettingsInForce::new(&config, &ports, 0);
        let (notify, notices) = channel();
        ports.open_all(count, config.awaits_queues)?;
        let mut coordinator = Self {
            zones: Zones::new(&config.zones, ports.len())?,
            zones_revision: 0,
            rules: None,
            rules_revision: 0,
            retired_rules: RuleCounts::default(),
            rules_reset_at: None,
            rule_exchange: RuleExchange::default(),
            host_has: Vec::new(),
            guard_failure: None,
            spread: Spread::default(),
            blueprint: Blueprint::new(&config, notify, TimeSource::Turn)?,
            resolver: routes.resolver(),
            port_links: routes.port_links(),
            host_asker,
            routing: None,
            retired: Counters::default(),
            retired_sent: vec![Sent::default(); ports.len()],
            inherited_drops: Inherited::default(),
            former_deciders: Vec::new(),
            moves: 0,
            workers: Vec::new(),
            subscriptions: Vec::new(),
            expectation_subscriptions: Vec::new(),
            replication: ReplicationRole::default(),
            tenure: if config.awaits_queues { Tenure::Awaited } else { Tenure::Own },
            waiting: VecDeque::new(),
            next_marker: 0,
            config,
            ports,
            table,
            hasher,
            translation_addresses: AddressSet::default(),
            has_resteered: false,
            notices,
            cpus,
            allowed,
            balance: BalanceState::new(execution.now()),
            settings_at_start,
            execution,
        };
        coordinator.follow_ports()?;
        coordinator.routing = routes.routing();
        coordinator.load_first_rules()?;
        let started = (0..count).try_for_each(|_| coordinator.hire());
        match started.and_then(|()| Ok(coordinator.hand_out_queues(count)?)) {
            Ok(()) => Ok(coordinator),
            Err(error) => {
                coordinator.dismiss_all();
                Err(error)
            }
        }
    }

    /// The number of workers.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// The workers' numbers and CPUs.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerId, Option<usize>)> {
        self.workers.iter().map(|handle| (handle.id, handle.cpu))
    }

    /// Tells every worker the kernel's current routes.
    pub fn set_routing(&mut self, routing: Arc<Routing>) -> Result<(), Unresponsive> {
        self.routing = Some(routing.clone());
        let rules = self.rules.clone();
        // The host must not answer replies that come to a new address.
        if let Some(rules) = &rules {
            self.follow_addresses(rules);
        }
        let outcome = self.tell_all(|| Command::Routing(routing.clone()));
        // Until workers steer by these routes, aliases lead replies.
        if let Some(rules) = &rules
            && let Err(error) = self.divide_addresses(rules, &self.hasher.inside().clone())
        {
            tracing::error!("{error}");
        }
        outcome
    }

    /// Tells every worker its share of the limits that are divided.
    pub fn share_limits(&mut self) -> Result<(), Unresponsive> {
        let workers = self.workers.len() as u32;
        self.tell_all(|| Command::ShareLimits(workers))
    }

    /// Puts new limits in force. A lower limit takes effect after every worker has floors that fit
    /// it, so no worker gives up more than it has to.
    pub fn change_limits(&mut self) -> Result<(), Unresponsive> {
        self.share_limits()?;
        self.reports()?;
        self.blueprint.limit_pools.repay();
        self.blueprint.fragment_pools.repay();
        self.share_limits()
    }

    /// Gives each receive queue that nobody polls to one of the first `workers` workers, namely
    /// the one that polls the fewest.
    pub fn hand_out_queues(&mut self, workers: usize) -> Result<(), Unresponsive> {
        if self.tenure == Tenure::Frozen {
            return Ok(());
        }
        while let Some(queue) = self.ports.take_unassigned() {
            let worker = self.ports.least_loaded(workers);
            self.ports.assign(&queue, worker);
            self.tell(worker, Command::AddQueue(queue))?;
        }
        Ok(())
    }

    /// Subscribes to the events of all workers, including workers that come later.
    pub fn subscribe(&mut self, capacity: usize) -> Result<EventStream, Unresponsive> {
        let Self { workers, subscriptions, .. } = self;
        subscribe(workers, subscriptions, capacity, Command::Subscribe)
    }

    /// Subscribes to the events of expectations.
    pub fn subscribe_expectations(
        &mut self,
        capacity: usize,
    ) -> Result<EventStream<ExpectationEvent>, Unresponsive> {
        let Self { workers, expectation_subscriptions, .. } = self;
        subscribe(workers, expectation_subscriptions, capacity, Command::SubscribeExpectations)
    }

    /// Sends a command to every worker. If a worker does not take it, the others still get it.
    pub fn tell_all(&mut self, command: impl Fn() -> Command) -> Result<(), Unresponsive> {
        self.for_each_worker(|worker| worker.tell(command()))
    }

    /// Does something for every worker. If it fails for one, the others still get it.
    pub fn for_each_worker(
        &mut self,
        each: impl FnMut(&mut WorkerHandle) -> Result<(), Unresponsive>,
    ) -> Result<(), Unresponsive> {
        self.workers.iter_mut().map(each).fold(Ok(()), Result::and)
    }

    /// Sends a command to the worker of this number.
    pub fn tell_worker(&mut self, index: usize, command: Command) -> Result<(), Unresponsive> {
        self.workers[index].tell(command)
    }

    /// True if a worker takes a command at once.
    pub fn has_room(&self, worker: WorkerId) -> bool {
        self.workers.get(worker.index()).is_some_and(WorkerHandle::has_room)
    }

    /// Sends a command to one worker.
    fn tell(&mut self, worker: WorkerId, command: Command) -> Result<(), Unresponsive> {
        self.workers[worker.index()].tell(command)
    }

    /// The bucket of a flow.
    pub fn bucket_of(&self, key: &FlowKey) -> BucketId {
        self.hasher.bucket_of_key(key)
    }

    /// Asks the owner of a bucket.
    pub fn ask_owner<T>(
        &mut self,
        bucket: BucketId,
        question: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Question,
    ) -> Result<T, Unresponsive> {
        let owner = self.table.owner(bucket);
        self.workers[owner.index()].ask(question)
    }

    /// Asks a worker that is there. The answer comes through the channel.
    pub fn ask_later<T>(
        &mut self,
        worker: WorkerId,
        question: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Question,
    ) -> Result<Receiver<T>, Unresponsive> {
        self.workers[worker.index()].ask_later(question)
    }

    /// Asks a worker; `None` if there is no worker of that number.
    pub fn ask_worker<T>(
        &mut self,
        worker: WorkerId,
        question: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Question,
    ) -> Option<Result<T, Unresponsive>> {
        Some(self.workers.get_mut(worker.index())?.ask(question))
    }

    /// Asks every worker for its report and waits for the answers.
    pub fn reports(&mut self) -> Result<Vec<WorkerReport>, Unresponsive> {
        let pending = self.ask_all()?;
        let answers = self.workers.iter().zip(pending);
        answers
            .map(|(handle, answer)| self.execution.receive(&answer).ok_or(Unresponsive(handle.id)))
            .collect()
    }

    /// Asks every worker for its report. The answers come in the order of the workers.
    pub fn ask_all(&mut self) -> Result<Vec<Receiver<WorkerReport>>, Unresponsive> {
        self.workers.iter_mut().map(|handle| handle.ask_later(Question::Report)).collect()
    }

    /// Moves buckets, a bounded number at a time, and waits until each has arrived.
    pub fn order_moves(&mut self, moves: &[BucketMove]) -> Result<(), SteerError> {
        self.tenure.may_move()?;
        let workers = self.workers.len() as u16;
        for chunk in moves.chunks(MOVES_AT_ONCE) {
            let orders: Vec<Move> = chunk
                .iter()
                .map(|&BucketMove { bucket, from, to }| Move { bucket, from, to, workers })
                .collect();
            self.tell_all(|| Command::Switch(orders.clone()))?;
            for order in &orders {
                self.table.set_owner(order.bucket, order.to);
            }
            for order in &orders {
                self.await_notice(
                    |notice| matches!(notice, Notice::Arrived(b) if *b == order.bucket),
                )?;
                self.moves += 1;
            }
        }
        Ok(())
    }

    /// Takes a queue from its worker and waits until everything that came through it has been
    /// processed. So the packets of the next worker that polls it can not overtake those.
    pub fn release_queue(&mut self, id: usize) -> Result<(), SteerError> {
        let Some(worker) = self.ports.poller(id) else { return Ok(()) };
        self.next_marker += 1;
        let marker = self.next_marker;
        self.tell(worker, Command::ReleaseQueue { id, marker })?;
        let released = self.await_notice(|notice| {
            matches!(notice, Notice::Released(queue) | Notice::Failed(queue, _) if queue.id == id)
        })?;
        match released {
            Notice::Released(queue) => {
                self.ports.take_back(queue);
                for _ in 1..self.workers.len() {
                    self.await_notice(
                        |notice| matches!(notice, Notice::Marker(m) if *m == marker),
                    )?;
                }
            }
            failed => self.waiting.push_back(failed),
        }
        Ok(())
    }

    fn move_queues_below(&mut self, count: usize) -> Result<(), SteerError> {
        for id in self.ports.polled_by(|worker| worker.index() >= count) {
            self.release_queue(id)?;
        }
        Ok(self.hand_out_queues(count)?)
    }

    /// Moves queues from workers with several to workers with none.
    fn spread_queues(&mut self) -> Result<(), SteerError> {
        while let Some(id) = self.ports.surplus_queue(self.workers.len()) {
            self.release_queue(id)?;
            if self.ports.poller(id).is_some() {
                // The queue has failed: `tend` closes its port.
                break;
            }
            self.hand_out_queues(self.workers.len())?;
        }
        Ok(())
    }

    /// Waits until the workers have processed everything that is in their rings. This may put more
    /// packets into the rings: a datagram that becomes complete may go on to another worker.
    pub fn drain_rings(&mut self) -> Result<(), SteerError> {
        self.next_marker += 1;
        let marker = self.next_marker;
        self.tell_all(|| Command::Mark(marker))?;
        for _ in 0..self.workers.len() * self.workers.len().saturating_sub(1) {
            self.await_notice(|notice| matches!(notice, Notice::Marker(m) if *m == marker))?;
        }
        Ok(())
    }

    /// Waits for a notice of this kind. Other notices are kept for [`Coordinator::tend`].
    pub fn await_notice(&mut self, wanted: impl Fn(&Notice) -> bool) -> Result<Notice, SteerError> {
        if let Some(at) = self.waiting.iter().position(&wanted) {
            // The position was just found.
            return self.waiting.remove(at).ok_or(SteerError::Stuck);
        }
        let begin = self.execution.now();
        while self.execution.now().since(begin) < PATIENCE
            && let Some(notice) = self.execution.receive(&self.notices)
        {
            if wanted(&notice) {
                return Ok(notice);
            }
            self.waiting.push_back(notice);
        }
        Err(SteerError::Stuck)
    }

    /// Looks after the ports: closes those that failed, opens those again whose interface is back,
    /// and passes changed MTUs and names on. It also goes on with changes that a worker has held
    /// up.
    pub fn tend(&mut self) -> Result<(), SteerError> {
        if self.tenure == Tenure::Frozen {
            return Ok(());
        }
        while let Ok(notice) = self.notices.try_recv() {
            self.waiting.push_back(notice);
        }
        // An error about one notice must not lose the notices behind it, and one notice may have to
        // wait for another.
        let mut failed = Ok(());
        while let Some(notice) = self.waiting.pop_front() {
            match notice {
                Notice::Failed(queue, error) => {
                    failed = failed.and(self.port_failed(queue, &error));
                }
                // The worker gave it back after the wait for it was over.
                Notice::Released(queue) => self.ports.take_back(queue),
                Notice::Freed => netio::return_free_memory(),
                Notice::Logged(log, line) => self.write_log_line(log, &line),
                Notice::Rules(worker, before) => self.rule_exchange.note_taken(worker, before),
                other => tracing::error!("unexpected notice {other:?}"),
            }
        }
        failed?;
        let opened = self.ports.reopen(self.workers.len());
        self.follow_ports()?;
        for port in opened {
            for index in 0..self.workers.len() {
                let worker = WorkerId(index as u16);
                if let Some(queue) = self.ports.take_transmit(port, worker) {
                    self.tell(worker, Command::SetOutput(port, Some(queue)))?;
                }
            }
        }
        self.tend_rules();
        self.tend_changes()?;
        Ok(self.hand_out_queues(self.workers.len())?)
    }

    /// Reads the current state of the ports and passes changes on: MTUs, names, groups, types, and which
    /// interfaces the ports are.
    fn follow_ports(&mut self) -> Result<(), Unresponsive> {
        let before = self.ports.names();
        let news = self.ports.look();
        if news == PortNews::default() {
            return Ok(());
        }
        if news.names || news.links {
            if let Some(guard) = &self.config.host_guard {
                guard.follow_ports(&self.ports.named_links());
            }
            if let Some(routes) = &self.port_links {
                routes.are(self.ports.links());
            }
        }
        if let Some(rules) = self.rules.as_ref().filter(|_| news.names || news.kinds) {
            let now = self.ports.names();
            for name in rules.program.ruleset().interfaces().into_keys() {
                if before.contains(&name) && !now.contains(&name) {
                    tracing::warn!(
                        "rules name interface {name}, but no interface has this name now"
                    );
                }
            }
            let interfaces = self.ports.for_rules();
            rules.know_interfaces(interfaces.clone());
            self.tell_all(|| Command::SetInterfaces(interfaces.clone()))?;
        }
        if news.mtus {
            let mtus = self.ports.mtus();
            self.tell_all(|| Command::SetMtus(mtus.clone()))?;
        }
        self.ports.clear_news();
        Ok(())
    }

    fn port_failed(
        &mut self,
        queue: crate::worker::queue::Queue,
        error: &netio::PortError,
    ) -> Result<(), SteerError> {
        let port = queue.port;
        if !self.ports.close_queue(queue, error) {
            return Ok(());
        }
        // The other queues of a failed port are of no use.
        let queues = self.ports.queues_of(port).into_iter();
        let released = queues.map(|id| self.release_queue(id)).fold(Ok(()), Result::and);
        self.ports.discard(port);
        self.tell_all(|| Command::SetOutput(port, None))?;
        released
    }
}

/// Connects a new reader to all workers, and remembers it for workers that come later.
fn subscribe<E>(
    workers: &mut [WorkerHandle],
    subscriptions: &mut Vec<Subscription<E>>,
    capacity: usize,
    command: fn(EventSender<E>) -> Command,
) -> Result<EventStream<E>, Unresponsive> {
    let (subscription, stream) = Subscription::new(capacity);
    for handle in workers {
        if let Some(sender) = subscription.connect(handle.id) {
            handle.tell(command(sender))?;
        }
    }
    subscriptions.retain(Subscription::is_read);
    subscriptions.push(subscription);
    Ok(stream)
}
