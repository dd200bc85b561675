//! The overload of 2012: more datagrams on their way at once than memory holds.

use std::time::Duration;

use ::defrag::Piece;
use flow::Timestamp;

use super::shape::Shape;
use crate::traffic::Random;

/// Senders, shared among the workers. Half of a datagram of 65507 bytes has arrived on average, so
/// all of them need 128 x 45 / 2 buffers: some 6 MB.
pub const SENDERS: u32 = 128;
/// Orders of the senders in a round, used in turn.
const ORDERS: usize = 16;
/// Time of one fragment on a full link of 10 Gbit/s.
const SPACING: Duration = Duration::from_nanos(1230);
/// The period of losses, in fragments.
const LOSS_PERIOD: u64 = 3200;
/// This many fragments in a row of each period are lost before they arrive, as in a receive ring
/// that is full for a moment.
const LOSS_RUN: u64 = 16;

/// The arrivals at one worker, for ever. They do not depend on the design.
#[derive(Debug)]
pub struct Arrivals {
    shape: Shape,
    senders: Vec<Sender>,
    orders: Vec<Vec<u32>>,
    at: usize,
    round: usize,
    sent: u64,
}

#[derive(Debug)]
struct Sender {
    address: u32,
    id: u16,
    next: u16,
}

impl Arrivals {
    /// The arrivals from the senders with these numbers. Each sends one datagram after the other,
    /// and begins in the middle of one.
    pub fn new(shape: &Shape, numbers: std::ops::Range<u32>) -> Self {
        let mut random = Random(u64::from(numbers.start) + 5);
        let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
        let orders = (0..ORDERS).map(|_| {
            random.shuffle(&mut order);
            order.clone()
        });
        let orders = orders.collect();
        let pieces = shape.pieces() as u64;
        let senders = numbers.map(|number| Sender {
            address: 0xc612_0000 + number,
            id: random.next() as u16,
            next: (random.next() % pieces) as u16,
        });
        let senders = senders.collect();
        Self { shape: shape.clone(), senders, orders, at: 0, round: 0, sent: 0 }
    }

    /// The time at which the next fragment arrives.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.sent * SPACING.as_nanos() as u64)
    }

    /// Fragments that the senders have sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The next fragment that arrives.
    pub fn next(&mut self) -> Piece {
        loop {
            let order = &self.orders[self.round % ORDERS];
            let sender = &mut self.senders[order[self.at] as usize];
            let (index, id) = (sender.next, sender.id);
            sender.next += 1;
            if usize::from(sender.next) == self.shape.pieces() {
                (sender.next, sender.id) = (0, id.wrapping_add(1));
            }
            self.at += 1;
            if self.at == order.len() {
                (self.at, self.round) = (0, self.round + 1);
            }
            self.sent += 1;
            if self.sent % LOSS_PERIOD >= LOSS_RUN {
                return self.shape.piece(index.into(), sender.address, id);
            }
        }
    }
}
