//! One worker of the sending node.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use conntrack::{Change, Cursor};
use engine::{ChangeSender, ReplicationPiece};
use flow::Timestamp;
use netio::{clock, cpu};
use steer::BucketId;

use super::clock::NodeClock;
use super::hub::{Mailbox, Request};
use super::load::Load;
use super::rivals::ChangeSink;
use super::{BATCH, PAYLOAD, REFRESH_TICKS, TICK};
use crate::conntrack::designs::{Buckets, Flow, Lane as _, Packet, steering};
use crate::traffic::{Pen, Random, Segment};

/// Places of a table that one answer covers, as in a gateway.
const PIECE: u32 = 256;
/// Batches between two looks at the CPU time.
const STRIDE: usize = 8;
/// A lane that has no packets looks for requests so often.
const IDLE: Duration = Duration::from_micros(100);

/// The stages of a turn.
pub mod stage {
    /// Lanes track packets.
    pub const WORK: u8 = 0;
    /// Lanes track nothing, and send what waits.
    pub const DRAIN: u8 = 1;
    /// All end.
    pub const OVER: u8 = 2;
}

/// Ends the turn when its thread panics, so that no other thread waits for ever.
pub struct TurnGuard<'a>(pub &'a AtomicU8);

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(stage::OVER, Ordering::Relaxed);
        }
    }
}

/// The work of a lane with packets besides making them.
pub enum Part {
    /// It finds the bucket of each.
    Forward,
    /// It tracks them.
    Track,
    /// It tracks them and follows what the peer has to hear of.
    Replicate(Option<Box<ChangeSender>>),
    /// It tracks them and tells a rival of each.
    Rival(RivalFeed),
}

/// The packets of a lane as a rival sees them.
pub struct RivalFeed {
    sink: Box<dyn ChangeSink>,
    /// The tick after which a packet of each connection is worth a record, by number.
    due: Vec<u32>,
    stamp: u64,
}

impl RivalFeed {
    /// Connections are due at different times, so that their number is about the same in each turn.
    pub fn new(sink: impl ChangeSink + 'static, flows: u32) -> Self {
        let mut random = Random(23);
        let due = (0..flows).map(|_| (random.next() % u64::from(REFRESH_TICKS)) as u32).collect();
        Self { sink: Box::new(sink), due, stamp: 0 }
    }
}

/// One worker.
pub struct Lane {
    pub tables: Buckets,
    part: Part,
    load: Load,
    pen: Pen,
    batch: Vec<Packet>,
    flows: Vec<u32>,
    dues: Vec<u32>,
    clock: Arc<NodeClock>,
    mailbox: Arc<Mailbox>,
}

/// The work that a lane has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Units of its load.
    pub units: u64,
    /// CPU time, nanoseconds.
    pub used: u64,
    /// CPU time over passed time, while it had packets.
    pub share: f64,
}

impl Lane {
    /// A lane without connections.
    pub fn new(part: Part, clock: Arc<NodeClock>, mailbox: Arc<Mailbox>) -> Self {
        let mut tables = Buckets::new(clock.now(), super::ENOUGH);
        tables.join_replication();
        Self {
            tables,
            part,
            load: Load::even(Vec::new()),
            pen: Pen::new(PAYLOAD),
            batch: Vec::with_capacity(BATCH),
            flows: Vec::with_capacity(BATCH),
            dues: Vec::with_capacity(BATCH),
            clock,
            mailbox,
        }
    }

    /// Opens connections: the first `segments` segments of each.
    pub fn open(&mut self, flows: &[u32], segments: usize) {
        for chunk in flows.chunks(BATCH) {
            for step in 0..segments {
                self.write(chunk.iter().map(|&flow| Segment::handshake(flow)[step]));
                self.track();
            }
        }
        let count = flows.len() as u64;
        self.mailbox.connections.fetch_add(count, Ordering::Relaxed);
    }

    /// Gives the lane its load.
    pub fn set_load(&mut self, load: Load) {
        self.load = load;
    }

    /// Changes the load.
    pub fn change_load(&mut self, change: impl FnOnce(Load) -> Load) {
        let load = std::mem::replace(&mut self.load, Load::even(Vec::new()));
        self.load = change(load);
    }

    fn write(&mut self, segments: impl Iterator<Item = Segment>) {
        self.batch.clear();
        self.flows.clear();
        for segment in segments {
            let network = self.pen.headers(&segment);
            self.batch.push(Packet { network, template: segment.template() });
            self.flows.push(segment.flow);
        }
    }

    fn track(&mut self) {
        let now = self.clock.now();
        self.tables.track(&self.batch, &self.pen, now, true);
    }

    /// Tracks a batch; returns its units.
    fn work(&mut self) -> u64 {
        let Self { load, batch, flows, pen, .. } = self;
        batch.clear();
        flows.clear();
        for _ in 0..BATCH {
            let segment = load.next();
            batch.push(Packet { network: pen.headers(&segment), template: segment.template() });
            flows.push(segment.flow);
        }
        self.handle();
        BATCH as u64 / self.load.segments_per_unit()
    }

    /// Does with the batch what the design does.
    pub fn handle(&mut self) {
        let now = self.clock.now();
        match &mut self.part {
            Part::Forward => {
                for packet in &self.batch {
                    black_box(Flow::of(self.tables.steering(), &packet.network).bucket);
                }
            }
            Part::Track => self.track(),
            Part::Replicate(_) => {
                self.begin_turn(now);
                self.track();
                self.send_changes(now);
            }
            Part::Rival(_) => {
                self.track();
                self.tell_rival(now);
            }
        }
        self.serve(now);
    }

    /// Tracks these segments as one batch.
    pub fn pass(&mut self, segments: impl Iterator<Item = Segment>) {
        self.write(segments);
        self.handle();
    }

    /// As a worker of the gateway: `PacketPath::begin_replication`.
    fn begin_turn(&mut self, now: Timestamp) {
        let Self { tables, part: Part::Replicate(sender), .. } = self else { return };
        let followed = sender.as_ref().map(|sender| now.since(sender.since()));
        tables.replication().begin_turn(followed);
    }

    /// As a worker of the gateway: `PacketPath::send_changes`. True if there is more.
    fn send_changes(&mut self, now: Timestamp) -> bool {
        let Self { tables, part: Part::Replicate(sender), .. } = self else { return false };
        if !tables.replication().has_news() {
            return false;
        }
        let Some(ring) = sender else { return false };
        if ring.is_abandoned() {
            *sender = None;
            return false;
        }
        ring.send_from(|budget, changes| {
            let place = tables.replication().next_table()?;
            Some(tables.take_changes(place, budget, now, |change| changes.push(change)))
        });
        tables.replication().has_tables()
    }

    fn tell_rival(&mut self, now: Timestamp) {
        let Self { tables, part: Part::Rival(feed), batch, flows, dues, .. } = self else { return };
        let tick = (now.as_nanos() / TICK.as_nanos() as u64) as u32;
        // One after the other, the memory of these is asked for at the same time.
        dues.clear();
        dues.extend(flows.iter().map(|&flow| feed.due[flow as usize]));
        for ((packet, &flow), &due) in batch.iter().zip(&*flows).zip(&*dues) {
            let change = (tick > due).then(|| {
                feed.due[flow as usize] = tick + REFRESH_TICKS;
                feed.stamp = (feed.stamp + 1).max(now.as_nanos() / 1000);
                let record = tables.record_of(&packet.network, now)?;
                Some(Change::State { stamp: feed.stamp, record, is_copy: false })
            });
            feed.sink.note(flow, change.flatten());
        }
    }

    /// Does what state sync asks for.
    fn serve(&mut self, now: Timestamp) {
        for request in self.mailbox.take() {
            match request {
                Request::Send(sender) => {
                    if let Part::Replicate(held) = &mut self.part {
                        *held = sender;
                        self.begin_turn(now);
                    }
                }
                Request::Tell(bucket, from, answer) => {
                    let _ = answer.send(self.tell_all(bucket, from, now));
                }
            }
        }
    }

    fn tell_all(&mut self, bucket: BucketId, from: Cursor, now: Timestamp) -> ReplicationPiece {
        let mut changes = Vec::new();
        let rest = self.tables.tell_all(bucket, from, PIECE, now, |change| changes.push(change));
        ReplicationPiece { changes, rest }
    }

    /// Spreads the times at which connections are due over a whole period, as they are after a long
    /// time. Otherwise all would be due when the period after the bulk transfer is over.
    pub fn spread_refresh(&mut self, refresh: Duration) {
        let now = self.clock.now();
        if !matches!(self.part, Part::Replicate(Some(_))) {
            return;
        }
        self.begin_turn(now);
        let buckets = self.tables.buckets();
        for bucket in 0..buckets {
            self.tables.replication().set_refresh(refresh * (bucket as u32 + 1) / buckets as u32);
            self.tables.tell_all(BucketId(bucket as u16), Cursor::default(), u32::MAX, now, |_| ());
        }
        self.tables.replication().set_refresh(refresh);
    }

    /// Works for so much CPU time, or until the stage is another; then sends what waits until all is
    /// over.
    pub fn run(
        &mut self,
        time: Duration,
        at: &AtomicU8,
        cpu: usize,
        has_sender: bool,
    ) -> std::io::Result<Done> {
        let pinned = cpu::pin_current_thread(cpu);
        let (began, used) = (Instant::now(), clock::thread_nanoseconds());
        let start = self.clock.now();
        let mut done = Done { share: 1.0, ..Done::default() };
        while at.load(Ordering::Relaxed) == stage::WORK {
            for _ in 0..STRIDE {
                done.units += self.work();
            }
            done.used = clock::thread_nanoseconds() - used;
            let passed = Duration::from_nanos(done.used);
            self.clock.pass_to(start.after(passed));
            if passed >= time {
                let _ = at.compare_exchange(
                    stage::WORK,
                    stage::DRAIN,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
            }
        }
        if done.units > 0 {
            let passed = began.elapsed().as_nanos().max(1) as f64;
            done.share = (done.used as f64 / passed).min(1.0);
        }
        while has_sender && at.load(Ordering::Relaxed) != stage::OVER {
            let now = self.clock.now();
            self.serve(now);
            // The time of the workers stands still.
            self.tables.replication().hurry();
            let has_more = self.send_changes(now);
            self.mailbox.is_clear.store(!has_more, Ordering::Release);
            // A change that finds no room in the ring waits for the sync thread.
            std::thread::sleep(IDLE);
        }
        done.used = clock::thread_nanoseconds() - used;
        pinned.map(|()| done)
    }
}

/// The flows of each of `lanes` lanes, by the owner of their buckets.
pub fn split(flows: std::ops::Range<u32>, lanes: usize) -> Vec<Vec<u32>> {
    let (steering, pen) = (steering(), Pen::new(PAYLOAD));
    let buckets = steering.config().buckets.get();
    let mut split = vec![Vec::new(); lanes];
    for flow in flows {
        let network = pen.headers(&Segment::handshake(flow)[0]);
        let bucket = Flow::of(&steering, &network).bucket;
        split[bucket.index() * lanes / buckets].push(flow);
    }
    split
}
