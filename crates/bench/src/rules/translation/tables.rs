//! Only tracking and translation, without rules, routes and queues: the gateway's tables, and one
//! table that all threads share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::conntrack::nat::{Addresses, BucketPorts, Request, Supply, TranslatedEnd};
use ::conntrack::syn_proxy::Screening;
use ::conntrack::{
    Checksum, Context, Expectations, Guess, KnownTunnels, Limits, Replication, Settings, Table,
    TrackedPacket,
};
use conntrack::Verdict;
use engine::Hardware;
use flow::{ConntrackCounters, Endpoint, FlowKey, HashKey, KeyedPacket, Timestamp, Zone};
use netio::{Frame, FramePool, clock};
use steer::{BucketCount, BucketId, Steered, SteeringHasher};
use wire::checksum::verify_transport;
use wire::{ChecksumCovers, Network, Readdress, TcpFlags, Transport, TransportAddress, dissect};

use super::wrong;
use crate::Error;
use crate::gateway::{self, BATCH, Ends, Flow, LAG, MASQUERADE, Style, churn, headers, steering};
use crate::measure::Work;
use crate::spin::Spin;

/// Free buffers.
const POOL: usize = 4 * BATCH;
const SECRET: HashKey = HashKey(0x6e61_7462, 0x656e_6368);
/// The largest number of connections.
const ROOM: u64 = 1 << 18;
/// Timeout of a connection in the shared table.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The owner of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// A table for each bucket, with ports of its own: the gateway's design.
    Buckets,
    /// One table with this many locks, and one more lock for the choice of a port.
    Locked(usize),
}

impl Design {
    pub const HASHED: Self = Self::Locked(256);
    pub const ONE: Self = Self::Locked(1);
    pub const ALL: [Self; 3] = [Self::Buckets, Self::HASHED, Self::ONE];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Buckets => "buckets",
            Self::Locked(1) => "one lock",
            Self::Locked(_) => "hashed locks, one for ports",
        }
    }
}

/// A packet that is being translated.
struct Packet {
    frame: Frame,
    network: Network,
    keyed: KeyedPacket,
    hash: u64,
    bucket: BucketId,
    guess: Guess,
}

/// Changes source and destination of a packet. False if the packet is not to go on.
trait Translates: Send {
    fn ask_ahead(&self, _packets: &mut [Packet]) {}

    fn translate(&mut self, packet: &mut Packet, now: Timestamp) -> bool;

    fn expire(&mut self, _now: Timestamp) {}
}

/// One thread with its part of the flows.
pub struct Lane {
    hasher: SteeringHasher,
    translator: Box<dyn Translates>,
    frames: Vec<gateway::Frame>,
    at: usize,
    pool: FramePool,
    batch: Vec<Packet>,
    refused: u64,
    frames_each: u64,
}

impl Lane {
    /// Lanes with those of `flows` flows that belong to them, and their first frames.
    fn lanes(
        design: Design,
        count: usize,
        flows: u32,
        first: fn(Flow) -> gateway::Frame,
    ) -> Result<Vec<(Self, Vec<Flow>)>, Error> {
        let hasher = steering();
        let shared = match design {
            Design::Locked(locks) => Some(Arc::new(Shared::new(locks))),
            _ => None,
        };
        (0..count)
            .map(|lane| {
                let translator: Box<dyn Translates> = match (design, &shared) {
                    (_, Some(shared)) => Box::new(shared.clone()),
                    _ => Box::new(Buckets::new(hasher.clone())),
                };
                let lane_of = |flow: &Flow| {
                    let network = headers(&first(*flow))?;
                    Ok::<_, Error>(
                        flow_of(&hasher, &network).map(|(.., bucket)| bucket.index() % count),
                    )
                };
                let mut own = Vec::new();
                for number in 0..flows {
                    let flow = Flow { number, style: Style::Ipv4 };
                    if lane_of(&flow)? == Some(lane) {
                        own.push(flow);
                    }
                }
                let pool = FramePool::new(POOL, 0);
                let lane = Self {
                    hasher: hasher.clone(),
                    translator,
                    frames: Vec::new(),
                    at: 0,
                    pool,
                    batch: Vec::with_capacity(BATCH),
                    refused: 0,
                    frames_each: 1,
                };
                Ok((lane, own))
            })
            .collect()
    }

    /// Lanes with `flows` established flows in all.
    pub fn established(design: Design, count: usize, flows: u32) -> Result<Vec<Self>, Error> {
        let ends = Ends { client: Some(MASQUERADE), server: None };
        let check = |frames: &[gateway::Frame], is_answer| {
            frames.iter().try_for_each(|frame| gateway::check(frame, Style::Ipv4, is_answer, ends))
        };
        let set_up = |(mut lane, own): (Self, Vec<Flow>)| {
            let requests: Vec<_> = own.iter().flat_map(|flow| flow.request()).collect();
            let arrived = lane.pass(&requests)?;
            check(&arrived, false)?;
            let answers: Vec<_> =
                arrived.iter().map(|frame| gateway::answer(frame)).collect::<Result<_, _>>()?;
            check(&lane.pass(&answers)?, true)?;
            // In the order in which they come from two queues.
            let turns = requests.chunks(BATCH).zip(answers.chunks(BATCH));
            lane.frames = turns.flat_map(|(to, fro)| [to, fro].concat()).collect();
            Ok(lane)
        };
        Self::lanes(design, count, flows, |flow| flow.request().swap_remove(0))?
            .into_iter()
            .map(set_up)
            .collect()
    }

    /// Lanes whose clients open connections and give up, as those of the gateway.
    pub fn churning(design: Design, count: usize, flows: u32) -> Result<Vec<Self>, Error> {
        let set_up = |(mut lane, own): (Self, Vec<Flow>)| {
            let last = &own[own.len() - LAG..];
            let opened: Vec<_> = last.iter().map(|flow| flow.open()).collect();
            lane.pass(&opened)?;
            lane.frames = churn(&own)?;
            lane.frames_each = 2;
            Ok(lane)
        };
        Self::lanes(design, count, flows, Flow::open)?.into_iter().map(set_up).collect()
    }

    /// Translates these frames, and returns them.
    fn pass(&mut self, frames: &[gateway::Frame]) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = Vec::new();
        for frames in frames.chunks(BATCH) {
            self.frames = frames.to_vec();
            self.at = 0;
            self.translate(frames.len());
            all.extend(self.batch.iter().map(|packet| packet.frame.bytes().to_vec()));
        }
        self.check().map(|()| all)
    }

    /// Translates the next frames, which stay in the batch.
    fn translate(&mut self, count: usize) {
        let now = Timestamp::from_nanos(clock::monotonic_nanoseconds());
        for packet in self.batch.drain(..) {
            self.pool.give_back(packet.frame);
        }
        for _ in 0..count {
            let frame = self.pool.copy_of(&self.frames[self.at]);
            self.at = (self.at + 1) % self.frames.len();
            let packet = frame.and_then(|frame| {
                let network = dissect(frame.bytes()).ok()?.network?;
                let (keyed, hash, bucket) = flow_of(&self.hasher, &network)?;
                Some(Packet { frame, network, keyed, hash, bucket, guess: Guess::NONE })
            });
            match packet {
                Some(packet) => self.batch.push(packet),
                None => self.refused += 1,
            }
        }
        self.translator.ask_ahead(&mut self.batch);
        for packet in &mut self.batch {
            let is_right = verify_transport(packet.frame.bytes(), &packet.network);
            let goes_on = is_right && self.translator.translate(packet, now);
            self.refused += u64::from(!goes_on);
        }
        self.translator.expire(now);
    }

    /// Checks that no packet was refused.
    ///
    /// # Errors
    /// [`Error::Wrong`].
    pub fn check(&self) -> Result<(), Error> {
        match self.refused {
            0 => Ok(()),
            refused => Err(wrong(format!("{refused} packets were refused"))),
        }
    }
}

impl Work for Lane {
    fn batch(&mut self) -> u64 {
        self.translate(BATCH);
        BATCH as u64 / self.frames_each
    }
}

fn flow_of(hasher: &SteeringHasher, network: &Network) -> Option<(KeyedPacket, u64, BucketId)> {
    match hasher.steer(network, Zone::default(), None) {
        Steered::Flow { keyed, hash, bucket } => {
            Some((keyed, hash.unwrap_or_else(|| hasher.packet_hash(&keyed.key)), bucket))
        }
        _ => None,
    }
}

fn readdress(packet: &mut Packet, change: &Readdress) {
    let Packet { frame, network, .. } = packet;
    let length = network.end.saturating_sub(network.transport_offset.into()) as usize;
    change.apply(frame.bytes_mut(), network, length, ChecksumCovers::All);
}

/// The gateway's tables.
struct Buckets {
    hasher: SteeringHasher,
    tables: Vec<Table>,
    limits: Limits,
    settings: Settings,
    counters: ConntrackCounters,
    expectations: Expectations,
    tunnels: KnownTunnels,
    replication: Replication,
    request: Request,
    expire_at: usize,
}

impl Buckets {
    fn new(hasher: SteeringHasher) -> Self {
        let source = Some(Addresses::one(IpAddr::V4(MASQUERADE)));
        Self {
            hasher,
            tables: BucketCount::DEFAULT.iter().map(|_| Table::new(Timestamp::ZERO)).collect(),
            limits: Limits::alone(ROOM, SECRET),
            settings: Settings::default(),
            counters: ConntrackCounters::default(),
            expectations: Expectations::new(SECRET),
            tunnels: KnownTunnels::new(SECRET),
            replication: Replication::default(),
            request: Request { addresses: source, ..Request::of(TranslatedEnd::Source) },
            expire_at: 0,
        }
    }
}

impl Translates for Buckets {
    fn ask_ahead(&self, packets: &mut [Packet]) {
        for packet in &*packets {
            self.tables[packet.bucket.index()].prefetch_index(packet.hash, Hardware);
        }
        for packet in packets {
            let table = &self.tables[packet.bucket.index()];
            packet.guess = table.prefetch_entry(packet.hash, Hardware);
        }
    }

    fn translate(&mut self, packet: &mut Packet, now: Timestamp) -> bool {
        let Self {
            hasher,
            tables,
            limits,
            settings,
            counters,
            expectations,
            tunnels,
            replication,
            request,
            ..
        } = self;
        let table = &mut tables[packet.bucket.index()];
        let mut context =
            context(now, settings, limits, counters, (expectations, tunnels), replication);
        let offered = TrackedPacket {
            network: &packet.network,
            frame: packet.frame.bytes(),
            keyed: &packet.keyed,
            hash: packet.hash,
            guess: packet.guess,
            checksum: Checksum::Trust,
            segments: 1,
            may_open: true,
            screening: Screening::Off,
            map_epoch: 0,
            zones: None,
        };
        let tracked = table.track(&offered, &mut context);
        if let (true, Some(id)) = (tracked.fresh, tracked.connection) {
            let reply = tables[packet.bucket.index()].reply(id);
            let own = hasher.local_ports(packet.bucket, &reply.key, reply.key.end(reply.sender));
            let own = own.unwrap_or(BucketPorts::ALL);
            let hash = |key: &FlowKey| hasher.table_hash(key);
            let supply = Supply { own, seed: packet.hash, hash: &hash };
            let table = &mut tables[packet.bucket.index()];
            if table.translate(id, request, supply, &mut context).is_err() {
                return false;
            }
        }
        let table = &mut tables[packet.bucket.index()];
        let tracked = table.accept(tracked, &offered, &mut context);
        let halves = table.translation(&tracked);
        readdress(packet, &halves.whole());
        tracked.verdict == Verdict::Accept && !halves.is_identity()
    }

    fn expire(&mut self, now: Timestamp) {
        /// As in a worker.
        const BUCKETS: usize = 4;
        const BUDGET: usize = 64;
        let Self {
            tables,
            limits,
            settings,
            counters,
            expectations,
            tunnels,
            replication,
            expire_at,
            ..
        } = self;
        for _ in 0..BUCKETS {
            *expire_at = (*expire_at + 1) % tables.len();
            let mut context =
                context(now, settings, limits, counters, (expectations, tunnels), replication);
            tables[*expire_at].expire(BUDGET, &mut context);
        }
    }
}

fn context<'a>(
    now: Timestamp,
    settings: &'a Settings,
    limits: &'a mut Limits,
    counters: &'a mut ConntrackCounters,
    (expectations, tunnels): (&'a Expectations, &'a KnownTunnels),
    replication: &'a mut Replication,
) -> Context<'a> {
    Context {
        now,
        settings,
        limits,
        counters,
        expectations,
        tunnels,
        events: None,
        expectation_events: None,
        replication,
        ended: None,
    }
}

/// One table of all threads. A connection lies in it under the key of each of its directions. The
/// hash of a key chooses the part of the table, and each part has a lock. A thread that chooses a
/// port holds one more lock, so that no other chooses the same. A connection has only a deadline:
/// no states, counters or timers.
struct Shared {
    parts: Vec<Spin<HashMap<FlowKey, Known>>>,
    choice: Spin<()>,
}

/// One direction of a connection.
#[derive(Clone, Copy)]
struct Known {
    change: Readdress,
    /// The key of the other direction.
    other: FlowKey,
    deadline: Timestamp,
}

impl Shared {
    fn new(locks: usize) -> Self {
        Self {
            parts: (0..locks).map(|_| Spin::new(HashMap::new())).collect(),
            choice: Spin::new(()),
        }
    }

    fn part(&self, key: &FlowKey) -> &Spin<HashMap<FlowKey, Known>> {
        &self.parts[key.hash(SECRET) as usize % self.parts.len()]
    }

    /// Chooses a port, and files both directions.
    fn open(&self, packet: &Packet, hash: u64, now: Timestamp) -> Option<Readdress> {
        let KeyedPacket { key, sender } = packet.keyed;
        let (source, destination) = (key.end(sender), key.end(sender.opposite()));
        let address = MASQUERADE.to_ipv6_mapped().octets();
        let deadline = now.after(TIMEOUT);
        let to = |end: Endpoint| Some(TransportAddress { address: end.address, port: end.port });
        let chosen = self.choice.lock();
        // A client keeps its port if that is free (RFC 4787, REQ-3), as with the kernel.
        let ports = std::iter::once(source.port)
            .chain((0..64512).map(|step| 1024 + ((hash % 64512 + step) % 64512) as u16));
        for port in ports {
            let outside = Endpoint { address, port };
            let answers = key.between(sender, outside, destination).key;
            let mut part = self.part(&answers).lock();
            if part.contains_key(&answers) {
                continue;
            }
            let change = Readdress { source: None, destination: to(source) };
            part.insert(answers, Known { change, other: key, deadline });
            drop(part);
            let change = Readdress { source: to(outside), destination: None };
            self.part(&key).lock().insert(key, Known { change, other: answers, deadline });
            drop(chosen);
            return Some(change);
        }
        None
    }
}

impl Translates for Arc<Shared> {
    fn translate(&mut self, packet: &mut Packet, now: Timestamp) -> bool {
        let key = packet.keyed.key;
        let ends = matches!(&packet.network.transport, Transport::Tcp(tcp)
            if tcp.flags.contains(TcpFlags::RST));
        let mut part = self.part(&key).lock();
        let known = match part.get_mut(&key) {
            Some(known) if known.deadline > now => {
                known.deadline = now.after(TIMEOUT);
                let found = *known;
                if ends {
                    part.remove(&key);
                }
                Some(found)
            }
            _ => None,
        };
        drop(part);
        if let (Some(known), true) = (known, ends) {
            self.part(&known.other).lock().remove(&known.other);
        }
        let change = match known {
            Some(known) => Some(known.change),
            None if ends => None,
            None => self.open(packet, packet.hash, now),
        };
        change.inspect(|change| readdress(packet, change)).is_some()
    }
}
