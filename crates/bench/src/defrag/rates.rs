//! The cost of reassembly when nothing is missing.

use std::collections::BTreeMap;

use ::defrag::{Pools, Settings};

use super::assembly::{Assembly, Order};
use super::designs::{Owned, settings};
use super::shape::{PIECE, Shape, UDP_HEADER};
use super::{NAME, flood};
use crate::measure::{self, Schedule, Turn, Work};
use crate::{Error, Spread};

/// Datagrams on their way at once.
const DATAGRAMS: usize = 32;
/// Numbers of pieces of a datagram whose pieces have 8 bytes each, in any order.
pub const PIECES: [usize; 4] = [10, 100, 1000, 8189];
/// A bound of `ipfrag_pieces_per_4k` that allows pieces of 8 bytes.
const NO_BOUND: u64 = 512;

/// A variant with its rounds.
pub struct Measured {
    /// Name of the figure.
    pub key: &'static str,
    /// Rounds.
    pub turns: Vec<Turn>,
}

/// The rates of one worker.
pub struct Rates {
    /// Datagrams per second; the variants whose key begins with `making` only make the frames.
    pub datagrams: Vec<Measured>,
    /// Nanoseconds for each piece of a datagram, by its number of pieces, including the making.
    pub nanoseconds_per_piece: BTreeMap<usize, Spread>,
    /// The smallest part of a CPU that the thread of these had.
    pub share_of_many_pieces: f64,
    /// Two workers with datagrams of three pieces, shuffled.
    pub two_workers: Option<Vec<Turn>>,
}

/// Keys of the rates.
pub const MAKING_4416: &str = "making_4416";
pub const IN_ORDER: &str = "datagrams_4416_per_s";
pub const WITHIN: &str = "datagrams_4416_shuffled_within_per_s";
pub const OVER_32: &str = "datagrams_4416_shuffled32_per_s";
pub const MAKING_65507: &str = "making_65507";
pub const LARGE: &str = "datagrams_65507_per_s";
pub const LARGE_OVER_32: &str = "datagrams_65507_shuffled32_per_s";

/// Payload of the larger datagrams, bytes behind the UDP header.
pub const LARGEST: usize = 65_507;
const THREE_PIECES: usize = 4416;
/// Length of the pieces of [`PIECES`], in bytes.
const TINY: usize = 8;

/// Measures all rates.
pub fn measure(schedule: Schedule, cpus: &[usize]) -> Result<Rates, Error> {
    let settings = settings(flood::CAP, flood::LOW)?;
    let variants = [
        (MAKING_4416, THREE_PIECES, Order::Sequential),
        (IN_ORDER, THREE_PIECES, Order::Sequential),
        (WITHIN, THREE_PIECES, Order::ShuffledWithin),
        (OVER_32, THREE_PIECES, Order::Shuffled),
        (MAKING_65507, LARGEST, Order::Sequential),
        (LARGE, LARGEST, Order::Sequential),
        (LARGE_OVER_32, LARGEST, Order::Shuffled),
    ];
    let assembly = |(key, payload, order): (&str, usize, Order)| {
        let shape = Shape::new(payload, PIECE);
        let assembly = one(&settings, shape, DATAGRAMS, order);
        if [MAKING_4416, MAKING_65507].contains(&key) { assembly.idle() } else { assembly }
    };
    let mut groups: Vec<Vec<Assembly>> =
        variants.iter().map(|&variant| vec![assembly(variant)]).collect();
    if cpus.len() > 1 {
        groups.push(pair(&settings));
    }
    let mut turns = turns(&mut groups, schedule, cpus)?;
    let two_workers = if cpus.len() > 1 { turns.pop() } else { None };
    let (nanoseconds_per_piece, share_of_many_pieces) = many_pieces(settings, schedule, cpus)?;
    let datagrams = variants.iter().zip(turns).map(|(&(key, ..), turns)| Measured { key, turns });
    Ok(Rates {
        datagrams: datagrams.collect(),
        nanoseconds_per_piece,
        share_of_many_pieces,
        two_workers,
    })
}

/// A worker that shares nothing.
fn one(settings: &Settings, shape: Shape, datagrams: usize, order: Order) -> Assembly {
    let owned = Owned::new(&Pools::new(settings), 1, settings);
    Assembly::new(owned, shape, datagrams, order)
}

/// Two workers that share the memory.
fn pair(settings: &Settings) -> Vec<Assembly> {
    let pools = Pools::new(settings);
    let worker = |_| {
        let shape = Shape::new(THREE_PIECES, PIECE);
        Assembly::new(Owned::new(&pools, 2, settings), shape, DATAGRAMS, Order::Shuffled)
    };
    (0..2).map(worker).collect()
}

/// Runs every group in turns. Fails if a datagram did not come out.
fn turns(
    groups: &mut [Vec<Assembly>],
    schedule: Schedule,
    cpus: &[usize],
) -> Result<Vec<Vec<Turn>>, Error> {
    let turns = measure::rounds(schedule, groups.len(), |index| {
        let mut works: Vec<&mut dyn Work> = Vec::new();
        groups[index].iter_mut().for_each(|assembly| works.push(assembly));
        measure::turn(&mut works, cpus, schedule.turn)
    })?;
    let lost: u64 = groups.iter().flatten().map(Assembly::lost).sum();
    if lost > 0 {
        let problem = format!("{lost} datagrams did not come out although nothing was missing");
        return Err(Error::Wrong { benchmark: NAME, problem });
    }
    Ok(turns)
}

fn many_pieces(
    settings: Settings,
    schedule: Schedule,
    cpus: &[usize],
) -> Result<(BTreeMap<usize, Spread>, f64), Error> {
    let mut groups: Vec<_> =
        PIECES.iter().map(|&pieces| vec![tiny(settings.clone(), pieces)]).collect();
    let turns = turns(&mut groups, schedule, cpus)?;
    let per_piece = |(&pieces, turns): (&usize, Vec<Turn>)| {
        let figures = turns.iter().map(|turn| 1e9 / (turn.rate.max(1e-9) * pieces as f64));
        (pieces, Spread::of(figures.collect()))
    };
    let share = measure::least_share(&turns);
    Ok((PIECES.iter().zip(turns).map(per_piece).collect(), share))
}

/// Datagrams in `pieces` pieces of 8 bytes, in any order.
fn tiny(mut settings: Settings, pieces: usize) -> Assembly {
    // Within the range of the tunable, so it can not be refused.
    let _ = settings.set("ipfrag_pieces_per_4k", NO_BOUND);
    one(&settings, shape_of(pieces, TINY), 1, Order::Shuffled)
}

/// Datagrams in `pieces` pieces of `bytes` bytes.
fn shape_of(pieces: usize, bytes: usize) -> Shape {
    Shape::new((pieces * bytes).saturating_sub(UDP_HEADER), bytes)
}

/// Makes and, unless `idle`, reassembles at least `datagrams` datagrams of `pieces` pieces (1 to
/// 8189). The pieces are those of a 1500-byte link or, if the datagram would be too long, of 8
/// bytes. Datagrams come one at a time or, shuffled, 32 together. Measures nothing.
///
/// # Errors
/// [`Error::Wrong`] when a datagram did not come out.
pub fn reassemble(pieces: usize, order: Order, datagrams: usize, idle: bool) -> Result<(), Error> {
    let settings = settings(flood::CAP, flood::LOW)?;
    let pieces = pieces.clamp(1, PIECES[3]);
    let mut assembly = if pieces * PIECE <= LARGEST + PIECE {
        one(&settings, shape_of(pieces, PIECE), DATAGRAMS, order)
    } else {
        tiny(settings, pieces)
    };
    if idle {
        assembly = assembly.idle();
    }
    let mut done = 0;
    for _ in 0..datagrams.div_ceil(assembly.datagrams()) {
        done += assembly.burst();
    }
    if done < datagrams as u64 {
        let problem = format!("{done} of {datagrams} datagrams came out");
        return Err(Error::Wrong { benchmark: NAME, problem });
    }
    Ok(())
}
