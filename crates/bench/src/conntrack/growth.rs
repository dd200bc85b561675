//! Growth under load: the longest batch while the tables grow, and the cost of operators' requests
//! meanwhile.

use ::conntrack::Filter;
use flow::Timestamp;
use netio::clock;
use serde::Serialize;

use super::designs::{Buckets, Lane, Packet};
use super::{BATCH, ENOUGH, PAYLOAD};
use crate::Error;
use crate::traffic::{Pen, Random, Segment};

/// The costs of growth and of requests.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Growth {
    /// Connections at the beginning.
    pub from: u32,
    /// Connections at the end.
    pub to: u32,
    /// CPU time of the longest batch, microseconds, including page faults for new memory.
    pub worst_stall_us: f64,
    /// CPU time of the median batch, in microseconds.
    pub median_us: f64,
    /// Connections at the time of the requests.
    pub live: u32,
    /// Time to delete one connection that is named by its flow, in microseconds.
    pub delete_one_us: f64,
    /// Time to find and delete all connections of one source, in milliseconds.
    pub flush_source_ms: f64,
}

/// Opens `to` connections, and lets open ones talk in between.
pub fn measure(from: u32, live: u32, to: u32) -> Result<Growth, Error> {
    let mut grower = Grower {
        buckets: Buckets::new(now(), ENOUGH),
        pen: Pen::new(PAYLOAD),
        random: Random(3),
        batch: Vec::with_capacity(BATCH),
    };
    grower.open(0..from);
    let mut times = grower.open(from..live);
    let (delete_one_us, flush_source_ms) = grower.operate(live)?;
    times.extend(grower.open(live..to));
    if grower.buckets.wrong() > 0 {
        let problem = format!("{} packets were lost while tables grew", grower.buckets.wrong());
        return Err(Error::Wrong { benchmark: "conntrack", problem });
    }
    times.sort_unstable();
    let microseconds = |at: usize| times.get(at).map_or(0.0, |&time| time as f64 / 1e3);
    Ok(Growth {
        from,
        to,
        worst_stall_us: microseconds(times.len().saturating_sub(1)),
        median_us: microseconds(times.len() / 2),
        live,
        delete_one_us,
        flush_source_ms,
    })
}

struct Grower {
    buckets: Buckets,
    pen: Pen,
    random: Random,
    batch: Vec<Packet>,
}

impl Grower {
    /// Opens flows; returns the CPU time of each batch, in nanoseconds.
    fn open(&mut self, flows: std::ops::Range<u32>) -> Vec<u64> {
        let mut times = Vec::new();
        let mut first = flows.start;
        while first < flows.end {
            let next = flows.end.min(first + BATCH as u32);
            for step in 0..3 {
                times.push(self.track((first..next).map(|flow| Segment::handshake(flow)[step])));
            }
            let random = &mut self.random;
            let known = std::array::from_fn::<_, BATCH, _>(|_| random.next() as u32 % next);
            times.push(self.track(known.iter().map(|&flow| Segment::talk(flow, 0, PAYLOAD))));
            first = next;
        }
        times
    }

    fn track(&mut self, segments: impl Iterator<Item = Segment>) -> u64 {
        self.batch.clear();
        self.batch.extend(segments.map(|segment| Packet {
            network: self.pen.headers(&segment),
            template: segment.template(),
        }));
        let (now, begun) = (now(), clock::thread_nanoseconds());
        self.buckets.track(&self.batch, &self.pen, now, true);
        clock::thread_nanoseconds() - begun
    }

    /// Deletes one flow by name, then all flows of one source, and opens them again.
    fn operate(&mut self, live: u32) -> Result<(f64, f64), Error> {
        let syn = self.pen.headers(&Segment::handshake(live / 2)[0]);
        let begun = clock::thread_nanoseconds();
        let deleted = self.buckets.delete(&syn, now());
        let one = clock::thread_nanoseconds() - begun;
        let text = std::net::Ipv4Addr::from_octets([198, 18, 0, 2]).to_string();
        let filter = Filter { source: text.parse().ok(), ..Filter::default() };
        let begun = clock::thread_nanoseconds();
        let flushed = self.buckets.delete_all(&filter, now());
        let all = clock::thread_nanoseconds() - begun;
        // One flow in each 2^16 has this client.
        let expected = u64::from(live.saturating_sub(2) >> 16) + 1;
        if !deleted || flushed != expected {
            let problem = format!("{flushed} connections were deleted in place of {expected}");
            return Err(Error::Wrong { benchmark: "conntrack", problem });
        }
        let again = [live / 2].into_iter().chain((2..live).step_by(1 << 16));
        for flow in again {
            self.open(flow..flow + 1);
        }
        Ok((one as f64 / 1e3, all as f64 / 1e6))
    }
}

fn now() -> Timestamp {
    Timestamp::from_nanos(clock::monotonic_nanoseconds())
}
