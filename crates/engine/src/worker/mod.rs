//! A worker: everything that one thread of the gateway owns.
//!
//! A worker knows nothing of threads or clocks. Its owner calls
//! [`Worker::turn`] with the time; a thread does so for ever, the replay in a
//! lockstep of several workers, a test as it likes.

pub mod bucket_moves;
pub mod calls;
pub mod command;
pub mod dispatch;
pub mod queue;
pub mod report;
pub mod selection;
pub mod thread;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use conntrack::{Cursor, Expectations, KnownTunnels, Limits};
use flow::{Counters, Timestamp};
use netio::{Frame, FramePool, PortError};
use rtrb::Consumer;
use steer::{BucketId, SteeringHasher, TunnelSteering, WorkerId};

use crate::egress::outputs::Outputs;
use crate::egress::resolver::Resolver;
use crate::egress::router::Router;
use crate::egress::stations::StationLimits;
use crate::path::events::Subscribers;
use crate::path::inner_packets::InsideTracking;
use crate::path::nat::translation::Translator;
use crate::path::packet::Item;
use crate::path::pass_list::PassList;
use crate::path::reassembly::{EXPIRE_DATAGRAMS, Reassembly};
use crate::path::recent_drops::RecentDrops;
use crate::path::rules::ruleset::Rules;
use crate::path::settings::Settings;
use crate::path::syn_proxy::SynProxy;
use crate::path::tracking::Tracking;
use crate::path::zones::Zones;
use crate::path::{PacketPath, TimeSource};
use crate::rings::link::Wakeup;
use crate::rings::ownership::{Departure, Ownership};
use crate::worker::bucket_moves::Flushing;
use crate::worker::command::{Command, Notice};
use crate::worker::queue::Queue;
use crate::{BATCH, Bucket};

/// Connections that expire in one turn at most, so that expiry never holds up a
/// batch of packets.
const EXPIRE_BUDGET: usize = 64;
/// Places of a table that are looked at in one go when connections are ended.
const PLACES_AT_ONCE: u32 = 256;
/// Buckets whose timer wheels are turned in one turn.
const EXPIRE_BUCKETS: usize = 4;
/// Free buffers that a worker keeps: small ones for 4 backlogs, and enough large
/// ones for two batches of super-packets.
const POOL_SMALL: usize = 4096;
const POOL_LARGE: usize = 256;

/// Bits of a generation that count; those above are the worker's.
const GENERATION_BITS: u32 = 48;

/// How often a worker looks at the memory that it does not need, and at what is expected no
/// more.
const TRIM_EVERY: Duration = Duration::from_secs(1);
/// Bytes of frames that were freed since the allocator was told to return what is free:
/// as many, and it is worth the while.
const WORTH_RETURNING: i64 = 2 << 20;

/// The parts that a worker is made from.
pub struct Equipment {
    /// Its number.
    pub id: WorkerId,
    /// How packets find their bucket.
    pub hasher: SteeringHasher,
    /// The protocols other than IP that pass.
    pub pass: PassList,
    /// Owner of each bucket.
    pub routes: Vec<WorkerId>,
    /// Which ports accept no new connections; as many as there are ports.
    pub refuses_new: Vec<bool>,
    /// Ports that frames leave by: the first so many.
    pub outputs: usize,
    /// Stations that a bridge remembers.
    pub stations: StationLimits,
    /// Tunables.
    pub settings: Settings,
    /// Zones, before any settings are applied to them.
    pub zones: Zones,
    /// Connections that the worker may hold.
    pub limits: Limits,
    /// Connections that others have announced.
    pub expectations: Expectations,
    /// Tunnels whose packets come to many buckets.
    pub tunnels: KnownTunnels,
    /// Bytes of fragments that the worker may hold.
    pub fragment_memory: defrag::Memory,
    /// The clock that counts.
    pub time: TimeSource,
    /// Commands from the coordinator.
    pub inbox: Consumer<Command>,
    /// Notices to the coordinator.
    pub notices: Sender<Notice>,
    /// How this worker is woken.
    pub wakeup: Wakeup,
    /// How neighbours are asked for: this makes it a router.
    pub resolver: Option<Resolver>,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Packets or commands were processed.
    Worked,
    /// There was nothing to do.
    Idle,
    /// The worker was told to stop.
    Stopped,
}

/// One worker.
pub struct Worker {
    pub(crate) path: PacketPath,
    pub(crate) queues: Vec<Queue>,
    inbox: Consumer<Command>,
    pub(crate) notices: Sender<Notice>,
    wakeup: Wakeup,
    received: Vec<Frame>,
    pub(crate) departures: Vec<Departure<Box<Bucket>>>,
    /// Buckets that leave when peers have processed what was sent in their name.
    pub(crate) flushing: Vec<Flushing>,
    /// Which bucket's timers are turned next.
    expire_at: usize,
    /// When the pool is trimmed next.
    trim_at: Timestamp,
    /// There may be expectations whose time is over.
    expire_expectations: bool,
    /// Most bytes in frames since memory was last returned to the system, as
    /// [`FramePool::trim`] counts.
    most_bytes: i64,
    pub(crate) busy_ns: u64,
    /// A CPU that its thread is to be pinned to.
    pub(crate) pin: Option<usize>,
}

impl Worker {
    /// A worker that owns no bucket and no queue yet.
    pub fn new(equipment: Equipment) -> Self {
        let Equipment { id, hasher, pass, routes, settings, mut zones, mut limits, time, .. } =
            equipment;
        limits.set_all_tables(routes.len() as u32);
        let key = hasher.config().key;
        let Equipment { expectations, tunnels, refuses_new, .. } = equipment;
        let outputs = Outputs::new(equipment.outputs, equipment.stations, key);
        let keep_limit = settings.steer.netdev_max_backlog();
        zones.apply(&settings.conntrack);
        let judges_inside = hasher.config().tunnels == TunnelSteering::Judged;
        let inside =
            judges_inside.then(|| Box::new(InsideTracking::new(&settings.conntrack, &limits, key)));
        let path = PacketPath {
            id,
            hasher,
            pass,
            time,
            reassembly: Reassembly::new(key, equipment.fragment_memory),
            tracking: Tracking {
                settings,
                zones,
                inside,
                limits,
                expectations,
                tunnels,
                refuses_new,
                promised_until: Timestamp::ZERO,
                subscribers: Subscribers::default(),
                expectation_subscribers: Subscribers::default(),
                ended: Vec::new(),
            },
            syn_proxy: SynProxy::new(key),
            translator: Translator::new(id.0, key),
            ownership: Ownership::new(id, routes, keep_limit),
            outputs,
            rules: None,
            router: equipment.resolver.map(|resolver| Box::new(Router::new(resolver))),
            links: Vec::new(),
            pool: FramePool::new(POOL_SMALL, POOL_LARGE),
            counters: Counters::default(),
            recent_drops: match time {
                TimeSource::Turn => RecentDrops::latest(),
                TimeSource::Frame => RecentDrops::All(Vec::new()),
            },
            logged: Vec::new(),
            generation: (u64::from(id.0) + 1) << GENERATION_BITS,
            now: Timestamp::ZERO,
            batch: Vec::with_capacity(2 * BATCH),
            evict_at: 0,
        };
        Self {
            path,
            queues: Vec::new(),
            inbox: equipment.inbox,
            notices: equipment.notices,
            wakeup: equipment.wakeup,
            received: Vec::with_capacity(BATCH),
            departures: Vec::new(),
            flushing: Vec::new(),
            expire_at: 0,
            trim_at: Timestamp::ZERO,
            expire_expectations: false,
            most_bytes: 0,
            busy_ns: 0,
            pin: None,
        }
    }

    /// Gives the worker a bucket before it starts.
    pub fn install(&mut self, bucket: BucketId, mut content: Box<Bucket>) {
        self.path.tracking.adopt(bucket, &mut content);
        self.path.ownership.install(bucket, content);
    }

    /// Judges by these rules from now on, and tells the other workers of changes in sets. This is
    /// for workers without a coordinator.
    pub fn set_rules(&mut self, rules: &Arc<Rules>) {
        let mut rules = rules.for_worker();
        rules.state.set_alone(false);
        self.path.rules = Some(rules);
    }

    /// Takes commands, packets from peers, packets from its queues; processes
    /// them, and sends what they lead to. It answers one question at most: who asks on as
    /// soon as there is an answer must not keep packets waiting.
    pub fn turn(&mut self, now: Timestamp) -> Turn {
        self.path.now = now;
        self.path.recent_drops.begin();
        let mut worked = self.end_calls(now);
        while let Ok(command) = self.inbox.pop() {
            worked = true;
            if matches!(command, Command::Stop) {
                return Turn::Stopped;
            }
            let is_question = matches!(command, Command::Ask(_));
            self.obey(command, now);
            if is_question {
                break;
            }
        }
        worked |= self.take_from_peers(now);
        worked |= self.take_from_queues(now);
        self.flush();
        worked |= self.expire(now);
        if worked { Turn::Worked } else { Turn::Idle }
    }

    /// True when a command or an item of a peer waits, or something staged has
    /// not found room: to be asked after the doorbell was told of the sleep.
    pub fn has_work(&self) -> bool {
        !self.inbox.is_empty()
            || self
                .path
                .links
                .iter()
                .flatten()
                .any(|link| !link.from.is_empty() || link.has_staged())
    }

    /// How it is woken.
    pub fn wakeup(&self) -> &Wakeup {
        &self.wakeup
    }

    /// The CPU that the worker was told to run on, once.
    pub fn take_pin(&mut self) -> Option<usize> {
        self.pin.take()
    }

    /// Counts time spent with packets in hand.
    pub fn add_busy(&mut self, nanos: u64) {
        self.busy_ns += nanos;
    }

    /// Counts a wake-up by another worker.
    pub fn count_wakeup(&mut self) {
        self.path.counters.softnet.received_rps += 1;
    }

    fn take_from_peers(&mut self, now: Timestamp) -> bool {
        let mut worked = false;
        let budget = self.path.tracking.settings.steer.netdev_budget();
        for peer in 0..self.path.links.len() {
            let mut taken = 0;
            while taken < budget
                && let Some(item) = self.path.links[peer].as_mut().and_then(|link| link.take())
            {
                taken += 1;
                match item {
                    Item::Packet(packet) => {
                        self.path.batch.push(packet);
                        if self.path.batch.len() >= BATCH {
                            self.path.process_batch(now);
                        }
                    }
                    control => self.take_control(peer, control, now),
                }
            }
            if taken == budget {
                self.path.counters.softnet.time_squeeze += 1;
            }
            worked |= taken > 0;
            if let Some(link) = &mut self.path.links[peer] {
                link.exchange_buffers(&mut self.path.pool);
            }
        }
        self.path.process_batch(now);
        worked
    }

    /// A control item takes effect after every packet that came before it.
    fn take_control(&mut self, peer: usize, item: Item, now: Timestamp) {
        self.path.process_batch(now);
        match item {
            Item::Packet(packet) => self.path.batch.push(packet),
            Item::Fence(bucket) => {
                self.path.remove_aliases(now);
                if let Some(departure) = self.path.ownership.fence(bucket) {
                    self.depart(departure);
                }
            }
            Item::Bucket(bucket, content) => self.take_bucket(bucket, content, now),
            Item::Alias(bucket, message) => self.path.take_message(bucket, message, now),
            Item::Flush(bucket) => {
                if let Some(Some(link)) = self.path.links.get_mut(peer) {
                    link.stage(Item::Flushed(bucket));
                }
            }
            Item::Flushed(bucket) => self.flushed(bucket),
            Item::Station(heard) => self.path.outputs.learn_from_peer(heard),
            Item::Element(revision, element) => self.path.learn_element(revision, element, now),
            Item::Marker(marker) => self.notify(Notice::Marker(marker)),
        }
    }

    fn take_from_queues(&mut self, now: Timestamp) -> bool {
        let mut worked = false;
        let mut index = 0;
        while index < self.queues.len() {
            let queue = &mut self.queues[index];
            let result = queue.source.receive(&mut self.received, BATCH, &mut self.path.pool);
            worked |= !self.received.is_empty();
            let mut frames = std::mem::take(&mut self.received);
            for mut frame in frames.drain(..) {
                let queue = &mut self.queues[index];
                queue.received.frames += 1;
                queue.received.bytes += frame.len() as u64;
                frame.port = queue.port;
                if !queue.supplies_hash {
                    frame.supplied_hash = 0;
                }
                self.path.steer(frame, now);
            }
            self.received = frames;
            // Before this worker's own share: the owners can begin at once.
            for link in self.path.links.iter_mut().flatten() {
                link.flush();
            }
            self.path.process_batch(now);
            match result {
                Ok(_) => index += 1,
                Err(error) => self.drop_queue(index, error),
            }
        }
        worked
    }

    fn drop_queue(&mut self, index: usize, error: PortError) {
        let mut queue = self.queues.swap_remove(index);
        queue.count_missing(&mut self.path.counters);
        self.notify(Notice::Failed(queue, error));
    }

    fn flush(&mut self) {
        self.path.remove_aliases(self.path.now);
        self.path.outputs.flush(&mut self.path.pool, &mut self.path.counters);
        self.path.drop_refused();
        self.send_departures();
        self.path.tell_elements();
        for (log, line) in self.path.logged.drain(..) {
            // This fails only after the coordinator has gone.
            let _ = self.notices.send(Notice::Logged(log, line));
        }
        for link in self.path.links.iter_mut().flatten() {
            link.flush();
        }
    }

    /// Turns the timers of a few buckets, and gives up a few datagrams; true if there
    /// may be more of these, so that the worker does not sleep over them.
    fn expire(&mut self, now: Timestamp) -> bool {
        if self.path.time == TimeSource::Frame {
            return false;
        }
        let has_more = self.path.expire_datagrams(now) >= EXPIRE_DATAGRAMS;
        self.path.settle_limits(now);
        self.path.with_router(|router, exits| router.expire(now.as_nanos(), exits));
        for _ in 0..EXPIRE_BUCKETS {
            self.expire_at = (self.expire_at + 1) % self.path.ownership.routes().len();
            self.expire_bucket(BucketId(self.expire_at as u16), EXPIRE_BUDGET, now);
        }
        if now >= self.trim_at {
            self.trim_at = now.after(TRIM_EVERY);
            self.trim();
            self.expire_expectations = true;
        }
        if self.expire_expectations {
            let mut context = self.path.tracking.context(now, &mut self.path.counters);
            let sink = &mut context.expectation_events;
            self.expire_expectations = context.expectations.expire(now, sink);
        }
        has_more
    }

    /// Frees buffers that a burst has left, and says so when they are many: the
    /// allocator keeps them, and to make it return them is no work for the packet path.
    fn trim(&mut self) {
        let bytes = self.path.pool.trim();
        self.most_bytes = self.most_bytes.max(bytes);
        if self.most_bytes - bytes >= WORTH_RETURNING {
            self.most_bytes = bytes;
            self.notify(Notice::Freed);
        }
    }

    /// Turns the timers of all buckets: replay, where memory must be returned at
    /// the same time however many workers there are.
    pub fn expire_all(&mut self, now: Timestamp) {
        while self.path.expire_datagrams(now) > 0 {}
        for index in 0..self.path.ownership.routes().len() {
            self.expire_bucket(BucketId(index as u16), usize::MAX, now);
        }
    }

    fn expire_bucket(&mut self, id: BucketId, budget: usize, now: Timestamp) {
        if let Some(bucket) = self.path.ownership.get_mut(id) {
            let mut context = self.path.tracking.context(now, &mut self.path.counters);
            bucket.connections.expire(budget, &mut context);
            if bucket.inside.is_some() {
                self.path.tracking.expire_inside(bucket, budget, now, &mut self.path.counters);
            }
        }
    }

    /// Ends connections, at least one and not many more than `wanted` if there
    /// are any; returns how many.
    pub fn end_connections(&mut self, wanted: usize, now: Timestamp) -> usize {
        let mut ended = 0;
        for index in 0..self.path.ownership.routes().len() {
            let Some(bucket) = self.path.ownership.get_mut(BucketId(index as u16)) else {
                continue;
            };
            let mut next = Some(Cursor::default());
            while let Some(from) = next.filter(|_| ended < wanted) {
                let mut context = self.path.tracking.context(now, &mut self.path.counters);
                let (count, rest) =
                    bucket.connections.flush(from, PLACES_AT_ONCE, |_| true, &mut context);
                ended += count;
                next = rest;
            }
            ended += self.path.tracking.flush_inside(bucket, now, &mut self.path.counters);
        }
        ended
    }

    pub(crate) fn notify(&self, notice: Notice) {
        // A coordinator that is gone needs no notices.
        let _ = self.notices.send(notice);
    }
}

#[cfg(test)]
#[path = "flood_tests.rs"]
mod flood_tests;

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
