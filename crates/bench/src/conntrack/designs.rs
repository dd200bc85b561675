//! The designs that are compared: the work of each thread on a batch of packets.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use ::conntrack::proto::tcp::{Segment, Step, TcpTracker};
use ::conntrack::syn_proxy::Screening;
use ::conntrack::{
    Action, Change, Checksum, ConnectionRecord, Context, Cursor, Direction, Expectations, Filter,
    Guess, KnownTunnels, Limits, NoInterfaces, Replication, Settings, Table, TrackedPacket,
};
use conntrack::Verdict;
use engine::Hardware;
use flow::{Class, ConntrackCounters, FlowKey, HashKey, KeyedPacket, Side, Timestamp, Zone};
use steer::{
    BucketCount, BucketId, FragmentSteering, HashKind, Steered, SteeringConfig, SteeringHasher,
    TunnelSteering,
};
use wire::{Network, Transport};

use crate::spin::Spin;
use crate::traffic::Pen;

/// Timers that one call expires at most, as in a worker.
const EXPIRE_BUDGET: usize = 64;
/// Buckets whose timers are advanced after each batch: a worker advances four for 64 packets.
const EXPIRE_BUCKETS: usize = 2;

/// A packet whose headers are known.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub network: Network,
    /// The template of the [`Pen`] with the packet's options.
    pub template: usize,
}

/// One thread's part of a design.
pub trait Lane: Send {
    /// Tracks a batch. With `prefetch`, asks for memory ahead if the design can.
    fn track(&mut self, batch: &[Packet], pen: &Pen, now: Timestamp, prefetch: bool);

    /// Packets with a wrong result.
    fn wrong(&self) -> u64;

    /// Memory of the connections, bytes, if the design knows it.
    fn memory_bytes(&self) -> usize {
        0
    }
}

const SECRET: HashKey = HashKey(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);

/// The hash that all designs with buckets use.
pub fn steering() -> SteeringHasher {
    SteeringHasher::new(SteeringConfig {
        kind: HashKind::Sip,
        key: SECRET,
        buckets: BucketCount::DEFAULT,
        fragments: FragmentSteering::default(),
        tunnels: TunnelSteering::default(),
    })
}

/// The parts of tracking beside the table.
struct Desk {
    settings: Settings,
    counters: ConntrackCounters,
    expectations: Expectations,
    tunnels: KnownTunnels,
    replication: Replication,
    refused: u64,
}

impl Desk {
    fn new() -> Self {
        Self {
            settings: Settings::default(),
            counters: ConntrackCounters::default(),
            expectations: Expectations::new(SECRET),
            tunnels: KnownTunnels::new(SECRET),
            replication: Replication::default(),
            refused: 0,
        }
    }

    fn context<'a>(&'a mut self, limits: &'a mut Limits, now: Timestamp) -> Context<'a> {
        Context {
            now,
            settings: &self.settings,
            limits,
            counters: &mut self.counters,
            expectations: &self.expectations,
            tunnels: &self.tunnels,
            events: None,
            expectation_events: None,
            replication: &mut self.replication,
            ended: None,
        }
    }

    fn track(
        &mut self,
        table: &mut Table,
        limits: &mut Limits,
        packet: &Packet,
        flow: &Flow,
        pen: &Pen,
        now: Timestamp,
    ) {
        let packet = TrackedPacket {
            network: &packet.network,
            frame: pen.template(packet.template),
            keyed: &flow.keyed,
            hash: flow.hash,
            guess: flow.guess,
            checksum: Checksum::Trust,
            segments: 1,
            may_open: true,
            screening: Screening::Off,
            map_epoch: 0,
            zones: None,
        };
        let mut context = self.context(limits, now);
        let tracked = table.track(&packet, &mut context);
        let tracked = table.accept(tracked, &packet, &mut context);
        let belongs = matches!(tracked.class, Class::New | Class::Established);
        self.refused += u64::from(!belongs || tracked.verdict != Verdict::Accept);
    }
}

/// The flow of a packet, as steering finds it.
pub struct Flow {
    pub keyed: KeyedPacket,
    pub hash: u64,
    pub bucket: BucketId,
    /// The place of its connection, once the memory was asked for ahead.
    guess: Guess,
}

impl Flow {
    #[inline]
    pub fn of(steering: &SteeringHasher, network: &Network) -> Self {
        match steering.steer(network, Zone::default(), None) {
            Steered::Flow { keyed, hash: Some(hash), bucket } => {
                Self { keyed, hash, bucket, guess: Guess::NONE }
            }
            _ => unreachable!("every packet of the benchmark is TCP, and the hash is SipHash"),
        }
    }
}

/// A table for each bucket, each with one owner: the gateway's design.
pub struct Buckets {
    steering: SteeringHasher,
    tables: Vec<Table>,
    limits: Limits,
    desk: Desk,
    flows: Vec<Flow>,
    expire_at: usize,
}

impl Buckets {
    /// A table for each bucket, with room for `room` connections in all; the tables of other lanes
    /// stay empty.
    pub fn new(now: Timestamp, room: u64) -> Self {
        Self {
            steering: steering(),
            tables: BucketCount::DEFAULT.iter().map(|_| Table::new(now)).collect(),
            limits: Limits::alone(room, SECRET),
            desk: Desk::new(),
            flows: Vec::new(),
            expire_at: 0,
        }
    }
}

impl Buckets {
    /// Deletes the connection of a packet by its flow; false if there is none.
    pub fn delete(&mut self, network: &Network, now: Timestamp) -> bool {
        let Flow { keyed, hash, bucket, .. } = Flow::of(&self.steering, network);
        let mut context = self.desk.context(&mut self.limits, now);
        self.tables[bucket.index()].delete(&keyed.key, hash, &mut context)
    }

    /// Deletes the connections that a filter chooses, by a look at every connection; returns their
    /// number.
    pub fn delete_all(&mut self, filter: &Filter, now: Timestamp) -> u64 {
        let mut context = self.desk.context(&mut self.limits, now);
        let whole = (Cursor::default(), u32::MAX);
        let tables = self.tables.iter_mut();
        tables.map(|table| table.select(filter, Action::Delete, whole, &mut context).0).sum()
    }
}

/// State sync needs these of the tables.
impl Buckets {
    /// The hash that chooses the buckets.
    pub fn steering(&self) -> &SteeringHasher {
        &self.steering
    }

    /// The number of tables.
    pub fn buckets(&self) -> usize {
        self.tables.len()
    }

    /// Makes each table known by its place.
    pub fn join_replication(&mut self) {
        for (table, place) in self.tables.iter_mut().zip(0..) {
            table.join_replication(&mut self.desk.replication, place);
        }
    }

    /// How changes are collected.
    pub fn replication(&mut self) -> &mut Replication {
        &mut self.desk.replication
    }

    /// Shows changes of a table; see [`Table::take_changes`].
    pub fn take_changes(
        &mut self,
        place: u16,
        budget: usize,
        now: Timestamp,
        each: impl FnMut(Change),
    ) -> bool {
        let mut context = self.desk.context(&mut self.limits, now);
        let table = &mut self.tables[usize::from(place)];
        table.take_changes(budget, &NoInterfaces, Hardware, &mut context, each)
    }

    /// Shows connections of a table; see [`Table::tell_all_from`].
    pub fn tell_all(
        &mut self,
        bucket: BucketId,
        from: Cursor,
        budget: u32,
        now: Timestamp,
        each: impl FnMut(Change),
    ) -> Option<Cursor> {
        let context = self.desk.context(&mut self.limits, now);
        self.tables[bucket.index()].tell_all_from(from, budget, &NoInterfaces, &context, each)
    }

    /// The record of the connection of a packet.
    pub fn record_of(&self, network: &Network, now: Timestamp) -> Option<ConnectionRecord> {
        let Flow { keyed, hash, bucket, .. } = Flow::of(&self.steering, network);
        self.tables[bucket.index()].record_of(&keyed, hash, &NoInterfaces, now)
    }

    /// Shows all connections.
    pub fn list(&self, now: Timestamp, mut each: impl FnMut(::conntrack::Connection)) {
        for table in &self.tables {
            table.list(Cursor::default(), u32::MAX, now, &mut each);
        }
    }
}

impl Lane for Buckets {
    fn track(&mut self, batch: &[Packet], pen: &Pen, now: Timestamp, prefetch: bool) {
        self.flows.clear();
        self.flows.extend(batch.iter().map(|packet| Flow::of(&self.steering, &packet.network)));
        if prefetch {
            for flow in &self.flows {
                self.tables[flow.bucket.index()].prefetch_index(flow.hash, Hardware);
            }
            for flow in &mut self.flows {
                let table = &self.tables[flow.bucket.index()];
                flow.guess = table.prefetch_entry(flow.hash, Hardware);
            }
        }
        for (packet, flow) in batch.iter().zip(&self.flows) {
            let table = &mut self.tables[flow.bucket.index()];
            self.desk.track(table, &mut self.limits, packet, flow, pen, now);
        }
        for _ in 0..EXPIRE_BUCKETS {
            self.expire_at = (self.expire_at + 1) % self.tables.len();
            let table = &mut self.tables[self.expire_at];
            table.expire(EXPIRE_BUDGET, &mut self.desk.context(&mut self.limits, now));
        }
    }

    fn wrong(&self) -> u64 {
        self.desk.refused
    }

    fn memory_bytes(&self) -> usize {
        self.tables.iter().map(Table::memory_bytes).sum()
    }
}

/// One table that all threads share, in stripes with a lock each. One stripe is the central lock,
/// many are an array of hashed locks. The design takes the lock for each packet. It can ask for no
/// memory ahead, because even a look at the index needs the lock.
pub struct Locked {
    stripes: Arc<[Spin<(Table, Limits)>]>,
    steering: SteeringHasher,
    desk: Desk,
    expire_at: usize,
}

impl Locked {
    /// A table of this many stripes with room for `room` connections in all. `lanes` lanes share it.
    pub fn lanes(stripes: usize, lanes: usize, now: Timestamp, room: u64) -> Vec<Self> {
        let room = room / stripes as u64;
        let stripe = |_| Spin::new((Table::new(now), Limits::alone(room, SECRET)));
        let stripes: Arc<[_]> = (0..stripes).map(stripe).collect();
        let lane = |_| Self {
            stripes: stripes.clone(),
            steering: steering(),
            desk: Desk::new(),
            expire_at: 0,
        };
        (0..lanes).map(lane).collect()
    }
}

impl Lane for Locked {
    fn track(&mut self, batch: &[Packet], pen: &Pen, now: Timestamp, _prefetch: bool) {
        let count = self.stripes.len();
        for packet in batch {
            let flow = Flow::of(&self.steering, &packet.network);
            let mut stripe = self.stripes[flow.bucket.index() % count].lock();
            let (table, limits) = &mut *stripe;
            self.desk.track(table, limits, packet, &flow, pen, now);
        }
        for _ in 0..EXPIRE_BUCKETS {
            self.expire_at = (self.expire_at + 1) % count;
            let mut stripe = self.stripes[self.expire_at].lock();
            let (table, limits) = &mut *stripe;
            table.expire(EXPIRE_BUDGET, &mut self.desk.context(limits, now));
        }
    }

    fn wrong(&self) -> u64 {
        self.desk.refused
    }
}

/// The simplest design: a map of the standard library (hashbrown, SipHash-1-3) with the same TCP
/// tracker behind it, one look-up for each packet, and no timers.
pub struct Map {
    connections: HashMap<FlowKey, Connection>,
    settings: Settings,
    wrong: u64,
}

struct Connection {
    tracker: TcpTracker,
    originator: Side,
    seen_reply: bool,
    assured: bool,
    deadline: Timestamp,
}

impl Map {
    /// An empty map.
    pub fn new() -> Self {
        Self { connections: HashMap::new(), settings: Settings::default(), wrong: 0 }
    }

    /// `None` for a packet that does not belong to its connection.
    fn track_packet(&mut self, packet: &Packet, pen: &Pen, now: Timestamp) -> Option<()> {
        let Transport::Tcp(tcp) = &packet.network.transport else { return None };
        let KeyedPacket { key, sender } = FlowKey::of_packet(&packet.network, Zone::default())?;
        let frame = pen.template(packet.template);
        let segment = Segment::parse(tcp, &packet.network, frame).ok()?;
        let settings = &self.settings.tcp;
        let Some(known) = self.connections.get_mut(&key).filter(|known| known.deadline > now)
        else {
            let opened = TcpTracker::open(&segment, settings).ok()?;
            let connection = Connection {
                tracker: opened.tracker,
                originator: sender,
                seen_reply: false,
                assured: false,
                deadline: after(now, opened.timeout.0),
            };
            self.connections.insert(key, connection);
            return Some(());
        };
        let direction =
            if sender == known.originator { Direction::Original } else { Direction::Reply };
        let (seen, assured) = (known.seen_reply, known.assured);
        match known.tracker.advance(direction, &segment, seen, assured, settings) {
            Step::Accept(accepted) => {
                known.seen_reply |= direction == Direction::Reply;
                known.assured = accepted.assured;
                known.deadline = after(now, accepted.timeout.0);
            }
            Step::Delete => {
                self.connections.remove(&key);
            }
            Step::Pass => {}
            Step::Invalid { .. } | Step::Reopen => return None,
        }
        Some(())
    }
}

fn after(now: Timestamp, seconds: u32) -> Timestamp {
    now.after(std::time::Duration::from_secs(seconds.into()))
}

impl Lane for Map {
    fn track(&mut self, batch: &[Packet], pen: &Pen, now: Timestamp, _prefetch: bool) {
        for packet in batch {
            let belongs = self.track_packet(packet, pen, now).is_some();
            self.wrong += u64::from(!belongs);
        }
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// Does nothing with the packets: the price of making them, which is part of every other figure.
pub struct Nothing;

impl Lane for Nothing {
    fn track(&mut self, batch: &[Packet], _pen: &Pen, _now: Timestamp, _prefetch: bool) {
        black_box(batch);
    }

    fn wrong(&self) -> u64 {
        0
    }
}
