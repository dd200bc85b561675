//! Reassembly: beside the designs of 2012 under overload, with nothing missing, and under attack.
//!
//! # Overload
//!
//! In 2012 netperf senders filled links of 10 Gbit/s with UDP datagrams of 65507 and of 4416 bytes,
//! with flow control off. The receiver had memory for fewer datagrams than were on their way at
//! once. Two things decided the result: the choice of the datagram to evict, and the locks that
//! workers wait for. Both are rebuilt here, so that a run can be repeated:
//!
//! - 128 senders send one datagram after the other, and each begins somewhere in the middle of one.
//!   Their fragments come through a switch: every round has one fragment of each sender, in one of
//!   16 orders. So a datagram of 65507 bytes takes 45 rounds to arrive, and half of it is there on
//!   average: 6 MB in 2048-byte buffers. The limit is 4 MiB, and eviction goes down to 3 MiB (the
//!   kernel's limits since 2012). Datagrams of 4416 bytes need much less at a time.
//! - In every 3200 fragments 16 in a row are lost, as a receive ring loses them when it is full for
//!   a moment. Datagrams that lack a fragment stay until they are evicted, so memory is full with
//!   both sizes. The losses are the same for every design and do not depend on its speed.
//! - The designs see the clock of the link, 1.23 us for each fragment. It decides only on timeouts,
//!   which do not occur.
//! - Fragments come as fast as a worker takes them, as if the link were never the limit. *Offered*
//!   is the payload sent in that time, lost fragments included. *Goodput* is the payload of the
//!   datagrams that were completed. Their ratio shows the eviction, and the offered rate shows the
//!   locks.
//!
//! With two workers each has half of the senders. So in all designs the fragments of a datagram
//! come to one worker, as from an interface that hashes addresses. The cost of the gateway's
//! steering is part of `stateway bench steer`. Neither link is ever more than 512 fragments ahead
//! of the other. No design touches payload: frames are kept as they came.
//!
//! # Nothing missing
//!
//! One worker gets datagrams of 32 sources, 32 at a time: one after the other, each from its first
//! piece to its last; each with its pieces in any order; or all pieces in any order. Part of every
//! figure is to take a buffer, to write the headers into it, to read them again (no more than a
//! library that is told the header's place), and to give the buffers back. The cost of this without
//! reassembly is shown by itself. A batch has 64 pieces: hash, two stages of prefetch, one piece
//! after the other, timers.
//!
//! The cost of a piece of a datagram with thousands is measured with pieces of 8 bytes in any
//! order, in nanoseconds, because virtual machines have no counter of instructions.
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
/// Memory that the overload exceeds, in bytes: the kernel's limit since 2012, and the level to
/// which it evicts.
const HIGH: u64 = 4 << 20;
const LOW: u64 = 3 << 20;

/// Measures reassembly in a minute, or some seconds if quick.
///
/// # Errors
/// [`Error`] when a wrong datagram came out, a complete one did not, or more memory was held than
/// allowed.
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
