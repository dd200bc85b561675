//! The coordinator: which worker owns what, and how that changes.
//!
//! It runs outside the packet path, behind the lock of [`crate::Gateway`]. Its
//! view of owners is exact, because it is the only one that orders moves and it
//! orders the next only when the last has been carried out.

mod staffing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use conntrack::{Event, ExpectationEvent, Expectations, KnownTunnels, LimitPools};
use flow::{Counters, FlowKey};
use ruleset::Forwarded;
use steer::{
    BucketId, BucketMove, IndirectionTable, Placement, SteeringHasher, Translated, WorkerId,
    WorkerSet,
};

use crate::balancing::BalanceState;
use crate::command::{Command, Notice, Question, WorkerReport};
use crate::config::{Config, StartError, SteerError};
use crate::crew::{Member, PATIENCE, Unresponsive};
use crate::events::{EventSender, EventStream, Subscription};
use crate::output::Sent;
use crate::ownership::Move;
use crate::port_book::{PortBook, PortNews};
use crate::recent_drops::Inherited;
use crate::route_keeper::{PortLinks, Resolver, RouteKeeper};
use crate::routing::Routing;
use crate::rule_loading::RuleExchange;
use crate::rules::{RuleCounts, Rules};
use crate::zone_changes::Spread;
use crate::zones::Zones;

/// Moves that are under way at the same time. Each needs one fence in each ring
/// to the old owner, which must fit beside the packets.
const MOVES_AT_ONCE: usize = 64;

/// Rings that a packet goes through at most: to its owner, once more when it was put together
/// from fragments, and with an alias to the owner of its connection and back.
const HOPS: usize = 4;

/// Everything about the gateway that is not on the packet path.
pub struct Coordinator {
    /// The configuration as it is now.
    pub config: Config,
    /// The ports.
    pub ports: PortBook,
    /// How many connections there may be.
    pub limit_pools: LimitPools,
    /// Connections that others have announced.
    pub expectations: Expectations,
    /// Tunnels whose packets come to many buckets.
    pub tunnels: KnownTunnels,
    /// The memory of fragments.
    pub fragment_pools: defrag::Pools,
    /// Who owns which bucket.
    pub table: IndirectionTable,
    /// How workers ask for neighbours; `None` in a bridge.
    resolver: Option<Resolver>,
    /// How the routes hear which interfaces the ports are; `None` in a bridge.
    port_links: Option<PortLinks>,
    /// What the kernel's routes are now; `None` in a bridge.
    pub routing: Option<Arc<Routing>>,
    /// Counters of workers that are gone.
    pub retired: Counters,
    /// What each port sent through workers that are gone.
    pub retired_sent: Vec<Sent>,
    /// What they dropped last.
    pub inherited_drops: Inherited,
    /// Completed bucket moves.
    pub moves: u64,
    members: Vec<Member>,
    subscriptions: Vec<Subscription<Event>>,
    expectation_subscriptions: Vec<Subscription<ExpectationEvent>>,
    /// How packets find their buckets.
    pub hasher: SteeringHasher,
    /// Which packets belong to which zone.
    pub zones: Zones,
    /// How often the zones have changed.
    pub zones_revision: u64,
    /// What packets are judged by.
    pub rules: Option<Arc<Rules>>,
    /// How often that has changed.
    pub rules_revision: u32,
    /// What workers that are gone have counted for these rules; what all had at the reset.
    pub retired_rules: RuleCounts,
    pub rules_reset_at: Option<RuleCounts>,
    /// Which workers may still judge by those before.
    pub rule_exchange: RuleExchange,
    /// What the host was last said to have.
    pub host_has: Vec<Forwarded>,
    /// Why the host guard was not even told what these rules leave to the host.
    pub untold_guard: Option<String>,
    /// What not every worker knows of it.
    pub spread: Spread,
    notices: Receiver<Notice>,
    notify: Sender<Notice>,
    /// Notices that came while something else was waited for.
    waiting: VecDeque<Notice>,
    next_marker: u64,
    /// CPUs that workers may run on; empty when they are not pinned.
    cpus: Vec<usize>,
    /// The workers that may own buckets.
    pub allowed: WorkerSet,
    /// Plans moves when the load is uneven.
    pub balance: BalanceState,
}

impl Coordinator {
    /// Opens the ports and starts the workers. When anything fails, everything
    /// that was started is stopped again.
    pub fn start(
        config: Config,
        mut ports: PortBook,
        cpus: Vec<usize>,
        routes: Option<&mut RouteKeeper>,
    ) -> Result<Self, StartError> {
        let cpus = if config.pin { cpus } else { Vec::new() };
        let count = config.workers.resolve(&cpus);
        let Placement { table, allowed, .. } = ports.place(count, &cpus, config.buckets)?;
        let mut hasher = SteeringHasher::new(config.steering());
        hasher.set_translated(Translated::new([], config.settings.steer.nat_ports()));
        let (notify, notices) = channel();
        ports.open_all(count)?;
        let mut coordinator = Self {
            zones: Zones::new(&config.zones, ports.len())?,
            zones_revision: 0,
            rules: None,
            rules_revision: 0,
            retired_rules: RuleCounts::default(),
            rules_reset_at: None,
            rule_exchange: RuleExchange::default(),
            host_has: Vec::new(),
            untold_guard: None,
            spread: Spread::default(),
            limit_pools: config.limit_pools()?,
            expectations: Expectations::new(config.secret),
            tunnels: KnownTunnels::new(config.secret),
            fragment_pools: defrag::Pools::new(&config.settings.defrag),
            resolver: routes.as_deref().map(RouteKeeper::resolver),
            port_links: routes.as_deref().map(RouteKeeper::port_links),
            routing: None,
            retired: Counters::default(),
            retired_sent: vec![Sent::default(); ports.len()],
            inherited_drops: Inherited::default(),
            moves: 0,
            members: Vec::new(),
            subscriptions: Vec::new(),
            expectation_subscriptions: Vec::new(),
            waiting: VecDeque::new(),
            next_marker: 0,
            config,
            ports,
            table,
            hasher,
            notices,
            notify,
            cpus,
            allowed,
            balance: BalanceState::default(),
        };
        coordinator.follow_ports()?;
        coordinator.routing = routes.map(RouteKeeper::routing);
        coordinator.load_first_rules(count)?;
        let started = (0..count).try_for_each(|_| coordinator.hire());
        match started.and_then(|()| Ok(coordinator.hand_out_queues(count)?)) {
            Ok(()) => Ok(coordinator),
            Err(error) => {
                coordinator.dismiss_all();
                Err(error)
            }
        }
    }

    /// How many workers there are.
    pub fn worker_count(&self) -> usize {
        self.members.len()
    }

    /// The workers' numbers and CPUs.
    pub fn members(&self) -> impl Iterator<Item = (WorkerId, Option<usize>)> {
        self.members.iter().map(|member| (member.id, member.cpu))
    }

    /// Tells every worker what the kernel's routes are now.
    pub fn set_routing(&mut self, routing: Arc<Routing>) -> Result<(), Unresponsive> {
        self.routing = Some(routing.clone());
        // First what replies will come to, then what lets anything be sent from there.
        if let Some(rules) = self.rules.clone()
            && let Err(error) = self.follow_addresses(&rules)
        {
            tracing::error!("{error}");
        }
        self.tell_all(|| Command::Routing(routing.clone()))
    }

    /// Tells every worker what part of the limits that are divided is its own.
    pub fn share_limits(&mut self) -> Result<(), Unresponsive> {
        let workers = self.members.len() as u32;
        self.tell_all(|| Command::ShareLimits(workers))
    }

    /// Has limits hold that have been taken over: a lower one when every worker has floors
    /// that fit it, so that nobody gives up what would fit.
    pub fn change_limits(&mut self) -> Result<(), Unresponsive> {
        self.share_limits()?;
        self.reports()?;
        self.limit_pools.settle();
        self.fragment_pools.settle();
        self.share_limits()
    }

    /// Gives every receive queue that nobody polls to the one of the first `workers`
    /// workers that polls the fewest.
    fn hand_out_queues(&mut self, workers: usize) -> Result<(), Unresponsive> {
        while let Some(queue) = self.ports.take_unassigned() {
            let worker = self.ports.least_loaded(workers);
            self.ports.assign(&queue, worker);
            self.tell(worker, Command::AddQueue(queue))?;
        }
        Ok(())
    }

    /// Subscribes to the events of the workers there are and will be.
    pub fn subscribe(&mut self, capacity: usize) -> Result<EventStream, Unresponsive> {
        let Self { members, subscriptions, .. } = self;
        subscribe(members, subscriptions, capacity, Command::Subscribe)
    }

    /// The same for what is expected.
    pub fn subscribe_expectations(
        &mut self,
        capacity: usize,
    ) -> Result<EventStream<ExpectationEvent>, Unresponsive> {
        let Self { members, expectation_subscriptions, .. } = self;
        subscribe(members, expectation_subscriptions, capacity, Command::SubscribeExpectations)
    }

    /// Sends a command to every worker, to the others also if one does not take it.
    pub fn tell_all(&mut self, command: impl Fn() -> Command) -> Result<(), Unresponsive> {
        self.members.iter_mut().map(|it| it.tell(command())).fold(Ok(()), Result::and)
    }

    /// Sends a command to one worker.
    pub fn tell_worker(&mut self, index: usize, command: Command) -> Result<(), Unresponsive> {
        self.members[index].tell(command)
    }

    /// True if a worker takes a command at once.
    pub fn has_room(&self, worker: WorkerId) -> bool {
        self.members.get(worker.index()).is_some_and(Member::has_room)
    }

    /// Sends a command to one worker.
    fn tell(&mut self, worker: WorkerId, command: Command) -> Result<(), Unresponsive> {
        self.members[worker.index()].tell(command)
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
        self.members[owner.index()].ask(question)
    }

    /// Asks a worker; `None` if there is none of that number.
    pub fn ask_worker<T>(
        &mut self,
        worker: WorkerId,
        question: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Question,
    ) -> Option<Result<T, Unresponsive>> {
        Some(self.members.get_mut(worker.index())?.ask(question))
    }

    /// Asks every worker for its report.
    pub fn reports(&mut self) -> Result<Vec<WorkerReport>, Unresponsive> {
        let pending = self.ask_all()?;
        let answers = self.members.iter().zip(pending);
        answers
            .map(|(member, answer)| {
                answer.recv_timeout(PATIENCE).map_err(|_| Unresponsive(member.id))
            })
            .collect()
    }

    /// The same; the answers come in the order of the workers.
    pub fn ask_all(&mut self) -> Result<Vec<Receiver<WorkerReport>>, Unresponsive> {
        self.members.iter_mut().map(|member| member.ask_later(Question::Report)).collect()
    }

    /// Moves buckets, a bounded number at a time, and waits until each is in its
    /// new place.
    pub fn carry_out(&mut self, moves: &[BucketMove]) -> Result<(), SteerError> {
        let workers = self.members.len() as u16;
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

    /// Takes a queue from its worker and waits until everything that came
    /// through it has been processed: whoever polls it next can not overtake.
    fn release_queue(&mut self, id: usize) -> Result<(), SteerError> {
        let Some(worker) = self.ports.poller(id) else { return Ok(()) };
        self.next_marker += 1;
        let marker = self.next_marker;
        self.tell(worker, Command::ReleaseQueue { id, marker })?;
        let released = self.await_notice(|notice| {
            matches!(notice, Notice::Released(queue) | Notice::Failed(queue, _) if queue.id == id)
        })?;
        match released {
            Notice::Released(queue) => {
                for _ in 1..self.members.len() {
                    self.await_notice(
                        |notice| matches!(notice, Notice::Marker(m) if *m == marker),
                    )?;
                }
                self.ports.unassign(queue);
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
        while let Some(id) = self.ports.surplus_queue(self.members.len()) {
            self.release_queue(id)?;
            self.hand_out_queues(self.members.len())?;
        }
        Ok(())
    }

    /// Waits until the workers have processed everything that is in their rings. What
    /// that leads to (a datagram that has become complete goes on to another worker)
    /// may be in the rings again.
    fn settle(&mut self) -> Result<(), SteerError> {
        self.next_marker += 1;
        let marker = self.next_marker;
        self.tell_all(|| Command::Mark(marker))?;
        for _ in 0..self.members.len() * self.members.len().saturating_sub(1) {
            self.await_notice(|notice| matches!(notice, Notice::Marker(m) if *m == marker))?;
        }
        Ok(())
    }

    /// The next notice that matters; others are kept for [`Coordinator::tend`].
    pub fn await_notice(&mut self, wanted: impl Fn(&Notice) -> bool) -> Result<Notice, SteerError> {
        if let Some(at) = self.waiting.iter().position(&wanted) {
            // The position was just found.
            return self.waiting.remove(at).ok_or(SteerError::Stuck);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.notices.recv_timeout(left) {
                Ok(notice) if wanted(&notice) => return Ok(notice),
                Ok(notice) => self.waiting.push_back(notice),
                Err(_) => return Err(SteerError::Stuck),
            }
        }
    }

    /// Looks after the ports: notes those that failed, opens again those whose
    /// interface is back, and passes changed MTUs on.
    pub fn tend(&mut self) -> Result<(), SteerError> {
        while let Ok(notice) = self.notices.recv_timeout(Duration::ZERO) {
            self.waiting.push_back(notice);
        }
        for notice in std::mem::take(&mut self.waiting) {
            match notice {
                Notice::Failed(queue, error) => self.port_failed(queue, &error)?,
                Notice::Freed => netio::return_free_memory(),
                Notice::Logged(log, line) => self.write_log_line(log, &line),
                Notice::Rules(worker, before) => self.rule_exchange.has_taken(worker, before),
                other => tracing::error!("unexpected notice {other:?}"),
            }
        }
        let opened = self.ports.reopen(self.members.len());
        self.follow_ports()?;
        for port in opened {
            for index in 0..self.members.len() {
                let worker = WorkerId(index as u16);
                if let Some(queue) = self.ports.take_transmit(port, worker) {
                    self.tell(worker, Command::SetOutput(port, Some(queue)))?;
                }
            }
        }
        self.tend_rules();
        self.tend_changes()?;
        Ok(self.hand_out_queues(self.members.len())?)
    }

    /// Looks at what the ports are now, and passes on what has changed: how much they take, what
    /// they are called, and which interfaces they are.
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
        if let Some(rules) = self.rules.as_ref().filter(|_| news.names) {
            let now = self.ports.names();
            for name in rules.program.ruleset().interfaces().into_keys() {
                if before.contains(&name) && !now.contains(&name) {
                    tracing::warn!("rules ask for interface {name}, and none is called so now");
                }
            }
            let names = rules.rename(&now);
            self.tell_all(|| Command::SetNames(names.clone()))?;
        }
        if news.mtus {
            let mtus = self.ports.mtus();
            self.tell_all(|| Command::SetMtus(mtus.clone()))?;
        }
        self.ports.is_told();
        Ok(())
    }

    fn port_failed(
        &mut self,
        queue: crate::command::Queue,
        error: &netio::PortError,
    ) -> Result<(), SteerError> {
        let port = queue.port;
        if self.ports.close_queue(queue, error) {
            // The other queues of the port are of no use either.
            for id in self.ports.queues_of(port) {
                self.release_queue(id)?;
            }
            self.ports.discard(port);
            self.tell_all(|| Command::SetOutput(port, None))?;
        }
        Ok(())
    }
}

/// Connects a new reader to all workers, and remembers it for those that will be.
fn subscribe<E>(
    members: &mut [Member],
    subscriptions: &mut Vec<Subscription<E>>,
    capacity: usize,
    command: fn(EventSender<E>) -> Command,
) -> Result<EventStream<E>, Unresponsive> {
    let (subscription, stream) = Subscription::new(capacity);
    for member in members {
        if let Some(sender) = subscription.connect(member.id) {
            member.tell(command(sender))?;
        }
    }
    subscriptions.retain(Subscription::is_read);
    subscriptions.push(subscription);
    Ok(stream)
}
