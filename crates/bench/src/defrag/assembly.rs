//! Reassembly when nothing is missing: the capacity of one worker.

use flow::Timestamp;
use netio::clock;

use ::defrag::Piece;

use super::designs::Owned;
use super::frame::Frame;
use super::shape::{Shape, read};
use crate::measure::Work;
use crate::traffic::Random;

/// Fragments of a batch, as in a worker.
pub const BATCH: usize = 64;
/// Number of different orders before the first comes again.
const ORDERS: usize = 64;
/// The first source address.
const SOURCE: u32 = 0xc612_0000;

/// The order in which the pieces of a burst of datagrams arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One datagram after the other, each from the first piece to the last.
    Sequential,
    /// One datagram after the other, its pieces in any order.
    ShuffledWithin,
    /// The pieces of all datagrams in any order.
    Shuffled,
}

/// One worker and bursts of datagrams, for ever.
pub struct Assembly {
    shape: Shape,
    orders: Vec<Vec<FragmentPosition>>,
    round: usize,
    /// Datagrams in a burst, each of a source of its own.
    datagrams: usize,
    owned: Owned,
    id: u16,
    /// True to make the frames only and give them back.
    idle: bool,
    frames: Vec<Frame>,
    pieces: Vec<Piece>,
    lost: u64,
}

#[derive(Clone, Copy)]
struct FragmentPosition {
    datagram: u16,
    piece: u16,
}

impl Assembly {
    /// Bursts of `datagrams` datagrams.
    pub fn new(owned: Owned, shape: Shape, datagrams: usize, order: Order) -> Self {
        let mut random = Random(3);
        let orders = if order == Order::Sequential { 1 } else { ORDERS };
        Self {
            orders: (0..orders).map(|_| places(&mut random, &shape, datagrams, order)).collect(),
            shape,
            round: 0,
            datagrams,
            owned,
            id: 0,
            idle: false,
            frames: Vec::with_capacity(BATCH),
            pieces: Vec::with_capacity(BATCH),
            lost: 0,
        }
    }

    /// Stops reassembling: the rest is the price of the frames, which is part of every other
    /// figure.
    pub fn idle(mut self) -> Self {
        self.idle = true;
        self
    }

    /// Datagrams that did not come out.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Datagrams in a burst.
    pub fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Sends a burst and returns how many datagrams came out.
    pub fn burst(&mut self) -> u64 {
        let Self { shape, orders, datagrams, owned, id, idle, frames, pieces, .. } = self;
        let mut done = 0;
        let order = &orders[self.round % orders.len()];
        for places in order.chunks(BATCH) {
            frames.clear();
            pieces.clear();
            for place in places {
                let index = usize::from(place.piece);
                let source = SOURCE + u32::from(place.datagram);
                frames.push(owned.pool().take(shape.frame_length(index)));
                // The frame is written in place, because each move would copy it.
                if let Some(frame) = frames.last_mut() {
                    shape.write(index, source, *id, frame.bytes_mut());
                    owned.pool().compact(frame);
                }
            }
            if *idle {
                frames.drain(..).for_each(|frame| owned.pool().give_back(frame));
                continue;
            }
            pieces.extend(frames.iter().map(|frame| read(frame.bytes())));
            let now = Timestamp::from_nanos(clock::monotonic_nanoseconds());
            done += owned.reassemble(pieces, frames.drain(..), now, |_| {}).datagrams;
        }
        self.round += 1;
        *id = id.wrapping_add(1);
        if *idle { *datagrams as u64 } else { done }
    }
}

fn places(
    random: &mut Random,
    shape: &Shape,
    datagrams: usize,
    order: Order,
) -> Vec<FragmentPosition> {
    let pieces = shape.pieces();
    let mut numbers: Vec<u32> = (0..(datagrams * pieces) as u32).collect();
    match order {
        Order::Sequential => {}
        Order::ShuffledWithin => {
            numbers.chunks_mut(pieces).for_each(|numbers| random.shuffle(numbers));
        }
        Order::Shuffled => random.shuffle(&mut numbers),
    }
    let place = |number: u32| FragmentPosition {
        datagram: (number as usize / pieces) as u16,
        piece: (number as usize % pieces) as u16,
    };
    numbers.into_iter().map(place).collect()
}

impl Work for Assembly {
    fn batch(&mut self) -> u64 {
        let done = self.burst();
        self.lost += self.datagrams as u64 - done;
        done
    }
}
