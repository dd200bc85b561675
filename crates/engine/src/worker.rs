//! A worker: everything that one thread of the gateway owns.
//!
//! A worker knows nothing of threads or clocks. Its owner calls
//! [`Worker::turn`] with the time; a thread does so for ever, the replay in a
//! lockstep of several workers, a test as it likes.

use std::sync::mpsc::Sender;
use std::time::Duration;

use conntrack::{Cursor, Expectations, KnownTunnels, Limits};
use flow::{Counters, Timestamp};
use netio::{Frame, FramePool, PortError};
use rtrb::Consumer;
use steer::{BucketId, SteeringHasher, TunnelSteering, WorkerId};

use crate::aliasing::Flushing;
use crate::command::{Command, Notice, Queue};
use crate::events::Subscribers;
use crate::inside::InsideTracking;
use crate::output::Outputs;
use crate::ownership::{Departure, Ownership};
use crate::packet::{Item, Kept, Packet};
use crate::pass_list::PassList;
use crate::peers::{Link, Wakeup};
use crate::reassembly::{EXPIRE_DATAGRAMS, Reassembly};
use crate::recent_drops::RecentDrops;
use crate::route_keeper::Resolver;
use crate::router::Router;
use crate::rules::WorkerRules;
use crate::settings::Settings;
use crate::stations::StationLimits;
use crate::syn_proxy::SynProxy;
use crate::tracking::Tracking;
use crate::translating::Translator;
use crate::why::Why;
use crate::zones::Zones;
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

/// Whose time a packet is processed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeSource {
    /// The time of the turn.
    Turn,
    /// The capture time of the frame: replay.
    Frame,
}

/// What a worker is made from.
pub struct Equipment {
    /// Its number.
    pub id: WorkerId,
    /// How packets find their bucket.
    pub hasher: SteeringHasher,
    /// What passes that is not IP.
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
    /// Whose time counts.
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

/// What a turn did.
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
    pub(crate) id: WorkerId,
    pub(crate) hasher: SteeringHasher,
    pub(crate) pass: PassList,
    pub(crate) time: TimeSource,
    pub(crate) reassembly: Reassembly,
    pub(crate) tracking: Tracking,
    pub(crate) syn_proxy: SynProxy,
    pub(crate) translator: Translator,
    pub(crate) ownership: Ownership<Box<Bucket>, Kept>,
    pub(crate) outputs: Outputs,
    /// `None` in a bridge.
    pub(crate) router: Option<Box<Router>>,
    /// What packets are judged by.
    pub(crate) rules: Option<Box<WorkerRules>>,
    pub(crate) links: Vec<Option<Box<Link>>>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) pool: FramePool,
    pub(crate) counters: Counters,
    pub(crate) recent_drops: RecentDrops,
    /// Names what recorded decisions were made from: no other worker has the same number, and
    /// this one another after each change.
    pub(crate) generation: u64,
    /// When the turn began.
    pub(crate) now: Timestamp,
    inbox: Consumer<Command>,
    pub(crate) notices: Sender<Notice>,
    wakeup: Wakeup,
    received: Vec<Frame>,
    pub(crate) batch: Vec<Packet>,
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
    /// Which bucket was asked last to make room for another.
    pub(crate) evict_at: u16,
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
        Self {
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
            queues: Vec::new(),
            pool: FramePool::new(POOL_SMALL, POOL_LARGE),
            counters: Counters::default(),
            recent_drops: match time {
                TimeSource::Turn => RecentDrops::latest(),
                TimeSource::Frame => RecentDrops::All(Vec::new()),
            },
            generation: (u64::from(id.0) + 1) << GENERATION_BITS,
            now: Timestamp::ZERO,
            inbox: equipment.inbox,
            notices: equipment.notices,
            wakeup: equipment.wakeup,
            received: Vec::with_capacity(BATCH),
            batch: Vec::with_capacity(2 * BATCH),
            departures: Vec::new(),
            flushing: Vec::new(),
            expire_at: 0,
            trim_at: Timestamp::ZERO,
            expire_expectations: false,
            most_bytes: 0,
            evict_at: 0,
            busy_ns: 0,
            pin: None,
        }
    }

    /// Gives the worker a bucket before it starts.
    pub fn install(&mut self, bucket: BucketId, mut content: Box<Bucket>) {
        self.tracking.adopt(bucket, &mut content);
        self.ownership.install(bucket, content);
    }

    /// Takes commands, packets from peers, packets from its queues; processes
    /// them, and sends what they lead to. It answers one question at most: who asks on as
    /// soon as there is an answer must not keep packets waiting.
    pub fn turn(&mut self, now: Timestamp) -> Turn {
        self.now = now;
        self.recent_drops.begin();
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
            || self.links.iter().flatten().any(|link| !link.from.is_empty() || link.has_staged())
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
        self.counters.softnet.received_rps += 1;
    }

    fn take_from_peers(&mut self, now: Timestamp) -> bool {
        let mut worked = false;
        let budget = self.tracking.settings.steer.netdev_budget();
        for peer in 0..self.links.len() {
            let mut taken = 0;
            while taken < budget
                && let Some(item) = self.links[peer].as_mut().and_then(|link| link.take())
            {
                taken += 1;
                match item {
                    Item::Packet(packet) => {
                        self.batch.push(packet);
                        if self.batch.len() >= BATCH {
                            self.process_batch(now);
                        }
                    }
                    control => self.take_control(peer, control, now),
                }
            }
            if taken == budget {
                self.counters.softnet.time_squeeze += 1;
            }
            worked |= taken > 0;
            if let Some(link) = &mut self.links[peer] {
                link.exchange_buffers(&mut self.pool);
            }
        }
        self.process_batch(now);
        worked
    }

    /// A control item takes effect after every packet that came before it.
    fn take_control(&mut self, peer: usize, item: Item, now: Timestamp) {
        self.process_batch(now);
        match item {
            Item::Packet(packet) => self.batch.push(packet),
            Item::Fence(bucket) => {
                self.remove_aliases(now);
                if let Some(departure) = self.ownership.fence(bucket) {
                    self.depart(departure);
                }
            }
            Item::Bucket(bucket, content) => self.take_bucket(bucket, content, now),
            Item::Alias(bucket, message) => self.take_message(bucket, message, now),
            Item::Flush(bucket) => {
                if let Some(Some(link)) = self.links.get_mut(peer) {
                    link.stage_control(Item::Flushed(bucket));
                }
            }
            Item::Flushed(bucket) => self.flushed(bucket),
            Item::Station(heard) => self.outputs.learn_from_peer(heard),
            Item::Element(revision, element) => self.learn_element(revision, element, now),
            Item::Marker(marker) => self.notify(Notice::Marker(marker)),
        }
    }

    fn take_bucket(&mut self, bucket: BucketId, mut content: Box<Bucket>, now: Timestamp) {
        if let Some(parcel) = content.datagrams.take() {
            self.unpack_datagrams(parcel, now);
        }
        let unsent = std::mem::take(&mut content.unsent);
        self.with_router(|router, exits| {
            for (next, frame) in unsent {
                router.send_to(next, frame, now.as_nanos(), exits);
            }
        });
        self.tracking.adopt(bucket, &mut content);
        self.tracking.subscribers.advance_clock(content.event_clock);
        self.learn_promises(content.promises.drain(..));
        for kept in self.ownership.arrive(bucket, content) {
            match kept {
                Kept::Packet(packet) => {
                    self.batch.push(packet);
                    if self.batch.len() >= BATCH {
                        self.process_batch(now);
                    }
                }
                Kept::Message(message) => {
                    self.process_batch(now);
                    self.take_message(bucket, message, now);
                }
            }
        }
        self.process_batch(now);
        self.notify(Notice::Arrived(bucket));
    }

    fn take_from_queues(&mut self, now: Timestamp) -> bool {
        let mut worked = false;
        let mut index = 0;
        while index < self.queues.len() {
            let queue = &mut self.queues[index];
            let result = queue.source.receive(&mut self.received, BATCH, &mut self.pool);
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
                self.steer(frame, now);
            }
            self.received = frames;
            // Before this worker's own share: the owners can begin at once.
            for link in self.links.iter_mut().flatten() {
                link.flush();
            }
            self.process_batch(now);
            match result {
                Ok(_) => index += 1,
                Err(error) => self.drop_queue(index, error),
            }
        }
        worked
    }

    fn drop_queue(&mut self, index: usize, error: PortError) {
        let mut queue = self.queues.swap_remove(index);
        queue.count_missing(&mut self.counters);
        self.notify(Notice::Failed(queue, error));
    }

    /// Takes note of a bucket that leaves at the end of the turn.
    pub(crate) fn depart(&mut self, departure: Departure<Box<Bucket>>) {
        self.tracking.forget_table(departure.bucket);
        self.departures.push(departure);
    }

    fn flush(&mut self) {
        self.remove_aliases(self.now);
        self.outputs.flush(&mut self.pool, &mut self.counters);
        self.drop_refused();
        // Only now has everything of a departing bucket left this worker.
        while let Some(departure) = self.departures.pop() {
            let Some(departure) = self.flush_bucket(departure) else { continue };
            let Departure { bucket, to, mut content } = departure;
            content.datagrams = self.pack_datagrams(bucket);
            content.unsent = self.router.as_mut().map_or_else(Vec::new, |it| it.unsent(bucket));
            self.tracking.surrender(&content);
            content.event_clock = self.tracking.subscribers.clock();
            content.promises = self.syn_proxy.promises(self.now);
            match self.links.get_mut(to.index()) {
                Some(Some(link)) => link.stage_control(Item::Bucket(bucket, content)),
                _ => debug_assert!(false, "a bucket was ordered to a worker without rings"),
            }
        }
        self.tell_elements();
        for link in self.links.iter_mut().flatten() {
            link.flush();
        }
    }

    /// Drops what no output takes.
    #[inline]
    pub(crate) fn drop_refused(&mut self) {
        while let Some((frame, reason)) = self.outputs.take_refused() {
            self.drop_frame(frame, reason.into());
        }
    }

    pub(crate) fn drop_frame(&mut self, frame: Frame, why: Why) {
        self.counters.drop_packet(why.reason());
        self.recent_drops.see(&frame, why, self.now, &self.tracking.zones);
        self.pool.give_back(frame);
    }

    /// Turns the timers of a few buckets, and gives up a few datagrams; true if there
    /// may be more of these, so that the worker does not sleep over them.
    fn expire(&mut self, now: Timestamp) -> bool {
        if self.time == TimeSource::Frame {
            return false;
        }
        let has_more = self.expire_datagrams(now) >= EXPIRE_DATAGRAMS;
        self.settle_limits(now);
        self.with_router(|router, exits| router.expire(now.as_nanos(), exits));
        for _ in 0..EXPIRE_BUCKETS {
            self.expire_at = (self.expire_at + 1) % self.ownership.routes().len();
            self.expire_bucket(BucketId(self.expire_at as u16), EXPIRE_BUDGET, now);
        }
        if now >= self.trim_at {
            self.trim_at = now.after(TRIM_EVERY);
            self.trim();
            self.expire_expectations = true;
        }
        if self.expire_expectations {
            let mut context = self.tracking.context(now, &mut self.counters);
            let sink = &mut context.expectation_events;
            self.expire_expectations = context.expectations.expire(now, sink);
        }
        has_more
    }

    /// Frees buffers that a burst has left, and says so when they are many: the
    /// allocator keeps them, and to make it return them is no work for the packet path.
    fn trim(&mut self) {
        let bytes = self.pool.trim();
        self.most_bytes = self.most_bytes.max(bytes);
        if self.most_bytes - bytes >= WORTH_RETURNING {
            self.most_bytes = bytes;
            self.notify(Notice::Freed);
        }
    }

    /// Turns the timers of all buckets: replay, where memory must be returned at
    /// the same time however many workers there are.
    pub fn expire_all(&mut self, now: Timestamp) {
        while self.expire_datagrams(now) > 0 {}
        for index in 0..self.ownership.routes().len() {
            self.expire_bucket(BucketId(index as u16), usize::MAX, now);
        }
    }

    fn expire_bucket(&mut self, id: BucketId, budget: usize, now: Timestamp) {
        if let Some(bucket) = self.ownership.get_mut(id) {
            let mut context = self.tracking.context(now, &mut self.counters);
            bucket.connections.expire(budget, &mut context);
            if bucket.inside.is_some() {
                self.tracking.expire_inside(bucket, budget, now, &mut self.counters);
            }
        }
    }

    /// Ends connections, at least one and not many more than `wanted` if there
    /// are any; returns how many.
    pub fn end_connections(&mut self, wanted: usize, now: Timestamp) -> usize {
        let mut ended = 0;
        for index in 0..self.ownership.routes().len() {
            let Some(bucket) = self.ownership.get_mut(BucketId(index as u16)) else { continue };
            let mut next = Some(Cursor::default());
            while let Some(from) = next.filter(|_| ended < wanted) {
                let mut context = self.tracking.context(now, &mut self.counters);
                let (count, rest) =
                    bucket.connections.flush(from, PLACES_AT_ONCE, |_| true, &mut context);
                ended += count;
                next = rest;
            }
            ended += self.tracking.flush_inside(bucket, now, &mut self.counters);
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
