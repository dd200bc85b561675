//! Connection tracking: the bucket tables beside the designs that they replace.
//!
//! The flows are TCP connections that the tracker has seen open (SYN, SYN and ACK, ACK). Their
//! segments come in random order over all flows, request and response by turns, with timestamps,
//! advancing numbers, and windows that the tracker checks. A packet takes the same way as in a
//! worker: flow key, SipHash, bucket, two prefetch stages over a batch, look-up, tracker, timer.
//! The cost of making the packets is part of every figure and shown by itself.
//!
//! The bound of the memory system stands beside the designs: a loop of hash, index, entry and one
//! comparison, which every tracker with windows needs.
//!
//! A new and deleted connection is a SYN that opens a flow and, 4096 flows later, the RST that ends
//! it. In the SYN flood no connection ends by itself: the table is full, and each new connection
//! takes the place of the oldest.

mod bound;
pub(crate) mod designs;
mod growth;
mod report;
mod resize;

use flow::Timestamp;
use netio::clock;

use self::bound::Bound;
use self::designs::{Buckets, Lane, Locked, Map, Nothing, Packet, steering};
use self::report::{BOUND, MAKING, OURS};
pub use self::report::{Report, Row};
pub use self::resize::{LiveResize, Phase};
use crate::measure::{self, Schedule, Turn, Work};
use crate::traffic::{Payload, Pen, Segment, Traffic};
use crate::{Error, Options};

/// A request of 100 bytes, a response of 1000.
const PAYLOAD: Payload = [100, 1000];
/// Packets of a batch.
const BATCH: usize = 32;
/// Flows of the three populations, with their keys in the report.
const FLOWS: [(&str, u32); 3] =
    [("flows_1k", 1_000), ("flows_100k", 100_000), ("flows_1m", 1_000_000)];
/// The populations of a quick run, which only shows that everything works.
const QUICK_FLOWS: [(&str, u32); 3] =
    [("flows_1k", 1_000), ("flows_100k", 5_000), ("flows_1m", 20_000)];
/// Flows of a population for the gateway's design and the bound only.
const MOST_FLOWS: (&str, u32) = ("flows_4m", 4_000_000);
const QUICK_MOST_FLOWS: (&str, u32) = ("flows_4m", 30_000);
/// A limit of connections that is never reached.
const ENOUGH: u64 = 1 << 32;
/// Room for connections in the SYN flood, and the number of its flows.
const FLOOD: (u64, u32) = (1 << 18, 1 << 21);
const QUICK_FLOOD: (u64, u32) = (1 << 13, 1 << 15);
/// The first of the short-lived flows; lower numbers belong to flows that stay.
const FIRST_SHORT_LIVED: u32 = 1 << 21;
/// Stripes of the design with hashed locks: as many as there are buckets.
const STRIPES: usize = 256;
const STRIPED: &str = "hashed locks";
const CENTRAL: &str = "central lock";

/// The way of packets into a design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The headers are made, as if an interface had parsed the packet.
    Headers,
    /// Frames are written and dissected.
    Frames,
    /// As [`Headers`](Self::Headers), without asking for memory ahead.
    NoPrefetch,
}

/// One thread's share of a design and of the traffic.
struct Station {
    pen: Pen,
    traffic: Traffic,
    lane: Box<dyn Lane>,
    batch: Vec<Packet>,
    mode: Mode,
}

impl Station {
    /// Opens `flows` and prepares their talk.
    fn new(lane: impl Lane + 'static, flows: Vec<u32>) -> Self {
        let mut station = Self {
            pen: Pen::new(PAYLOAD),
            traffic: Traffic::talk(Vec::new(), PAYLOAD),
            lane: Box::new(lane),
            batch: Vec::with_capacity(BATCH),
            mode: Mode::Headers,
        };
        for chunk in flows.chunks(BATCH) {
            for step in 0..3 {
                station.track(chunk.iter().map(|&flow| Segment::handshake(flow)[step]));
            }
        }
        station.traffic = Traffic::talk(flows, PAYLOAD);
        station
    }

    /// Opens and ends these flows from now on.
    fn churn(&mut self, flows: Vec<u32>) {
        let traffic = Traffic::churn(flows);
        for chunk in traffic.opened_before().chunks(BATCH) {
            self.track(chunk.iter().map(|&flow| Segment::handshake(flow)[0]));
        }
        self.traffic = traffic;
    }

    fn track(&mut self, segments: impl Iterator<Item = Segment>) {
        let Self { pen, lane, batch, mode, .. } = self;
        track(pen, &mut **lane, batch, *mode, segments);
    }
}

/// Makes packets of `segments` and lets the design track them.
fn track(
    pen: &mut Pen,
    lane: &mut dyn Lane,
    batch: &mut Vec<Packet>,
    mode: Mode,
    segments: impl Iterator<Item = Segment>,
) {
    batch.clear();
    batch.extend(segments.map(|segment| {
        let written =
            (mode == Mode::Frames).then(|| wire::dissect(pen.frame(&segment)).ok()?.network);
        // A frame has its headers already.
        let network = written.flatten().unwrap_or_else(|| pen.headers(&segment));
        Packet { network, template: segment.template() }
    }));
    let now = Timestamp::from_nanos(clock::monotonic_nanoseconds());
    lane.track(batch, pen, now, mode != Mode::NoPrefetch);
}

impl Work for Station {
    fn batch(&mut self) -> u64 {
        let Self { pen, lane, batch, mode, traffic } = self;
        track(pen, &mut **lane, batch, *mode, (0..BATCH).map(|_| traffic.next()));
        match traffic {
            Traffic::Talk { .. } | Traffic::Flood { .. } | Traffic::Stray { .. } => BATCH as u64,
            // A connection is two packets.
            Traffic::Churn { .. } => BATCH as u64 / 2,
        }
    }
}

/// A design on one or more threads, with the form of its packets.
struct Variant {
    name: &'static str,
    /// Index of its group of stations.
    group: usize,
    mode: Mode,
}

/// The rounds of a variant.
struct Measured {
    design: &'static str,
    workers: usize,
    turns: Vec<Turn>,
}

/// Lets `flows` established flows of the gateway's design send `packets` packets, or only makes
/// these: work for a counter of instructions.
///
/// # Errors
/// [`Error::Wrong`] when a packet was not accepted as one of its connection.
pub fn talk(flows: u32, packets: u64, only_make: bool) -> Result<(), Error> {
    let now = Timestamp::from_nanos(clock::monotonic_nanoseconds());
    let all = (0..flows).collect();
    let mut station = match only_make {
        false => Station::new(Buckets::new(now, ENOUGH), all),
        true => Station::new(Nothing, all),
    };
    let mut done = 0;
    while done < packets {
        done += station.batch();
    }
    match station.lane.wrong() {
        0 => Ok(()),
        wrong => {
            let problem = format!("{wrong} of {done} packets were refused");
            Err(Error::Wrong { benchmark: "conntrack", problem })
        }
    }
}

/// All designs with the same flows.
struct Field {
    groups: Vec<Vec<Station>>,
    variants: Vec<Variant>,
    cpus: Vec<usize>,
    /// True if the packets are meant to be refused.
    strays: bool,
}

/// The designs to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    /// The gateway's design and the bound.
    Ours,
    /// Every design on one thread.
    OneThread,
    /// Also shared designs on two threads, if there are two CPUs.
    TwoThreads,
}

impl Field {
    /// Designs with room for `room` connections.
    fn new(flows: u32, cpus: &[usize], extent: Extent, room: u64) -> Self {
        let now = Timestamp::from_nanos(clock::monotonic_nanoseconds());
        let (groups, variants, cpus) = (Vec::new(), Vec::new(), cpus.to_vec());
        let mut field = Self { groups, variants, cpus, strays: false };
        let one = || split(0..flows, 1);
        let buckets = field.group(vec![Buckets::new(now, room)], one());
        let nothing = field.group(vec![Nothing], one());
        let bound = field.group(vec![Bound::new()], one());
        field.add(OURS, buckets, Mode::Headers);
        field.add("buckets, frames dissected", buckets, Mode::Frames);
        field.add("buckets, no prefetch", buckets, Mode::NoPrefetch);
        field.add(BOUND, bound, Mode::Headers);
        field.add(MAKING, nothing, Mode::Headers);
        field.add("(making and dissecting frames)", nothing, Mode::Frames);
        if extent >= Extent::OneThread {
            let striped = field.group(Locked::lanes(STRIPES, 1, now, room), one());
            field.add(STRIPED, striped, Mode::Headers);
            let central = field.group(Locked::lanes(1, 1, now, room), one());
            field.add(CENTRAL, central, Mode::Headers);
            let map = field.group(vec![Map::new()], one());
            field.add("map with SipHash", map, Mode::Headers);
        }
        if extent == Extent::TwoThreads && field.cpus.len() > 1 {
            let two = || split(0..flows, 2);
            let both = [(); 2].map(|()| Buckets::new(now, room / 2));
            let buckets = field.group(both.into(), two());
            field.add(OURS, buckets, Mode::Headers);
            let striped = field.group(Locked::lanes(STRIPES, 2, now, room), two());
            field.add(STRIPED, striped, Mode::Headers);
            let central = field.group(Locked::lanes(1, 2, now, room), two());
            field.add(CENTRAL, central, Mode::Headers);
            let nothing = field.group(vec![Nothing, Nothing], two());
            field.add(MAKING, nothing, Mode::Headers);
        }
        field
    }

    fn group(&mut self, lanes: Vec<impl Lane + 'static>, flows: Vec<Vec<u32>>) -> usize {
        let stations =
            lanes.into_iter().zip(flows).map(|(lane, flows)| Station::new(lane, flows)).collect();
        self.groups.push(stations);
        self.groups.len() - 1
    }

    fn add(&mut self, name: &'static str, group: usize, mode: Mode) {
        self.variants.push(Variant { name, group, mode });
    }

    /// Replaces talk by flows that come and go, and drops the variants that only concern talk.
    fn churn(&mut self, flows: u32) {
        self.variants.retain(|variant| variant.mode == Mode::Headers && variant.name != BOUND);
        for group in &mut self.groups {
            let pools = split(FIRST_SHORT_LIVED..FIRST_SHORT_LIVED + flows, group.len());
            for (station, pool) in group.iter_mut().zip(pools) {
                station.mode = Mode::Headers;
                station.churn(pool);
            }
        }
    }

    /// Replaces talk by nothing but new flows, and drops designs that never make room.
    fn flood(&mut self, flows: u32) {
        let full = [OURS, STRIPED, CENTRAL];
        self.variants.retain(|v| v.mode == Mode::Headers && full.contains(&v.name));
        for group in &mut self.groups {
            let pools = split(0..flows, group.len());
            for (station, pool) in group.iter_mut().zip(pools) {
                station.mode = Mode::Headers;
                station.traffic = Traffic::flood(pool);
            }
        }
    }

    /// Lets the gateway's design refuse segments of these flows.
    fn stray(&mut self, flows: u32) {
        self.variants.retain(|v| v.mode == Mode::Headers && v.name == OURS);
        self.variants.truncate(1);
        self.groups[0][0].traffic = Traffic::stray((0..flows).collect());
        self.strays = true;
    }

    fn measure(&mut self, schedule: Schedule) -> Result<Vec<Measured>, Error> {
        let Self { groups, variants, cpus, .. } = self;
        let turns = measure::rounds(schedule, variants.len(), |index| {
            let Variant { group, mode, .. } = variants[index];
            let mut works: Vec<&mut dyn Work> = Vec::new();
            for station in &mut groups[group] {
                station.mode = mode;
                works.push(station);
            }
            measure::turn(&mut works, cpus, schedule.turn)
        })?;
        self.check()?;
        let measured = self.variants.iter().zip(turns).map(|(variant, turns)| Measured {
            design: variant.name,
            workers: self.groups[variant.group].len(),
            turns,
        });
        Ok(measured.collect())
    }

    /// Fails if a packet was judged otherwise than intended: the figure would be one of other work.
    fn check(&self) -> Result<(), Error> {
        for variant in &self.variants {
            let wrong: u64 = self.groups[variant.group].iter().map(|s| s.lane.wrong()).sum();
            if (wrong > 0) != self.strays {
                let problem = format!("{}: {wrong} packets were taken for invalid", variant.name);
                return Err(Error::Wrong { benchmark: "conntrack", problem });
            }
        }
        Ok(())
    }

    /// Memory of the bucket tables, in bytes.
    fn memory_bytes(&self) -> usize {
        self.groups[0].iter().map(|station| station.lane.memory_bytes()).sum()
    }
}

/// The flows of each of `lanes` lanes, by the owner of their buckets.
fn split(flows: std::ops::Range<u32>, lanes: usize) -> Vec<Vec<u32>> {
    let (steering, pen) = (steering(), Pen::new(PAYLOAD));
    let buckets = steering.config().buckets.get();
    let mut split = vec![Vec::new(); lanes];
    for flow in flows {
        let bucket = if lanes == 1 {
            0
        } else {
            let network = pen.headers(&Segment::handshake(flow)[0]);
            steering.steer(&network, flow::Zone::default(), None).bucket().index()
        };
        split[bucket * lanes / buckets].push(flow);
    }
    split
}

/// Measures connection tracking in about two minutes, or some seconds if quick.
///
/// # Errors
/// [`Error`] when a packet was not tracked as it should have been or a thread
/// could not be pinned.
pub fn run(options: Options) -> Result<Report, Error> {
    let schedule = Schedule::of(options);
    let cpus = measure::cpus()?;
    let mut report = Report::begin(options);
    let populations = if options.quick { QUICK_FLOWS } else { FLOWS };
    let short_lived = if options.quick { 1 << 14 } else { 1 << 20 };

    let (room, flood) = if options.quick { QUICK_FLOOD } else { FLOOD };
    let most = if options.quick { QUICK_MOST_FLOWS } else { MOST_FLOWS };

    let mut empty = Field::new(0, &cpus, Extent::OneThread, ENOUGH);
    empty.churn(short_lived);
    report.new_deleted("live_0", &empty.measure(schedule)?);
    drop(empty);
    let mut full = Field::new(0, &cpus, Extent::TwoThreads, room);
    full.flood(flood);
    report.flooded(&full.measure(schedule)?);
    drop(full);
    let [first, .., largest] = populations;
    for (key, flows) in populations {
        let is_largest = key == largest.0;
        let extent = if is_largest { Extent::TwoThreads } else { Extent::OneThread };
        let mut field = Field::new(flows, &cpus, extent, ENOUGH);
        report.established(key, flows, &field.measure(schedule)?);
        if is_largest {
            report.bytes_per_connection = field.memory_bytes() as f64 / f64::from(flows);
            field.churn(short_lived);
            report.new_deleted("live_1m", &field.measure(schedule)?);
            field.stray(flows);
            report.refused(&field.measure(schedule)?);
        }
    }
    let mut field = Field::new(most.1, &cpus, Extent::Ours, ENOUGH);
    report.established(most.0, most.1, &field.measure(schedule)?);
    drop(field);
    report.grown(growth::measure(first.1, largest.1, most.1)?);
    for (key, workers) in [("workers_1", 1), ("workers_2", 2)] {
        if workers <= cpus.len() {
            report.resized(key, resize::measure(most.1, workers, &cpus, schedule.turn)?);
        }
    }
    Ok(report)
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
