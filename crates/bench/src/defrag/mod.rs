//! Reassembly: beside the designs of 2012 under overload, with nothing missing, and
//! under attack.
//!
//! # Overload
//!
//! In 2012 netperf senders filled links of 10 Gbit/s with UDP datagrams of 65507 and of
//! 4416 bytes, with flow control off, and the receiver had memory for fewer datagrams
//! than were under way at once. What became of that was decided by two things: who is
//! evicted, and who waits for whose lock. Both are made again here, so that a run can
//! be repeated:
//!
//! - 128 senders send one datagram after the other, and each is somewhere in the middle
//!   of one when it begins. Their fragments come through a switch: every round has one
//!   of each sender, in one of 16 orders. So it takes 45 rounds for a datagram of 65507
//!   bytes to arrive, and half of it is there on average: 6 MB in 2048-byte buffers,
//!   where the limit is 4 MiB and eviction goes down to 3 MiB (the kernel's since
//!   2012). Datagrams of 4416 bytes need much less at a time.
//! - In every 3200 fragments 16 in a row are lost, as a receive ring loses them when it
//!   is full for a moment. Datagrams that lack a fragment stay until they are evicted,
//!   so that memory is full with both sizes. The losses are the same for every design
//!   and do not depend on how fast it is.
//! - The clock that the designs see is that of the link, 1.23 us for each fragment. It
//!   decides on nothing but timeouts, which do not come into it.
//! - Fragments come as fast as a worker takes them, as if the link were never the limit.
//!   *Offered* is what was sent in that time, lost fragments included, and *goodput*
//!   is the payload of the datagrams that were completed. Their ratio is that of
//!   eviction, and the offered rate is that of the locks.
//!
//! With two workers each has half of the senders, so that in all designs the fragments of
//! a datagram come to one worker, as they do from an interface that hashes addresses;
//! what the gateway's steering costs is part of `stateway bench steer`. Neither link
//! is ever more than 512 fragments ahead of the other. No design touches payload: frames
//! are kept as they came.
//!
//! # Nothing missing
//!
//! One worker, 32 datagrams at a time of 32 sources, from its first piece to its last,
//! one after the other; each with its pieces in any order; or all of their pieces in any
//! order. Part of every figure is to take a buffer, to write the headers into it, to read
//! them again (no more than a library does that is told where the header is), and
//! to give the buffers back; all that without reassembly is shown by itself. Pieces are
//! taken in 64 at a time: hash, two stages of prefetch, one after the other, timers.
//!
//! What a piece costs when its datagram has thousands is measured with pieces of 8 bytes
//! in any order, in nanoseconds: virtual machines have no counter of instructions.
//!
//! # Attack
//!
//! See the module `flood`: goodput of honest datagrams in the time of a model.

mod assembly;
mod attack;
mod designs;
mod flood;
mod frame;
mod historic;
mod honest;
mod overload;
mod rates;
mod report;
mod seed_table;
mod shape;

pub use self::assembly::Order;
pub use self::rates::reassemble;
pub use self::report::Report;
use crate::measure::{self, Schedule};
use crate::{Error, Options};

/// Name of the benchmark.
const NAME: &str = "defrag";
/// Memory that the overload exceeds, bytes: the kernel's limit since 2012, and what
/// it evicts down to.
const HIGH: u64 = 4 << 20;
const LOW: u64 = 3 << 20;

/// Measures reassembly: a minute, or some seconds if quick.
///
/// # Errors
/// [`Error`] when a datagram came out that was not what was sent, one did not come
/// out of which nothing was missing, or more memory was held than allowed.
pub fn run(options: Options) -> Result<Report, Error> {
    let schedule = Schedule::of(options);
    let cpus = measure::cpus()?;
    let seed_table = seed_table::measure(schedule, &cpus)?;
    let rates = rates::measure(schedule, &cpus)?;
    let floods = flood::measure(options)?;
    Ok(Report::new(options, seed_table, rates, floods))
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
