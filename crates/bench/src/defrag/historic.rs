//! The designs of 2012: a table that all workers share. When its memory is over the high threshold,
//! datagrams are evicted from the end of an LRU list until it is below the low one, however
//! complete they are.
//!
//! They have no timers, no limit of pieces and no protection against wrapped
//! identifications, which is in their favour.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use ::defrag::{Buffer, DatagramKey, Piece};
use flow::Timestamp;

use super::designs::{Lane, SECRET};
use super::frame::{Frame, Pool};
use super::{HIGH, LOW};
use crate::spin::Spin;

/// Memory of a datagram in progress beside its frames, in bytes.
const QUEUE: u64 = 192;

/// A hash of 64 bits, made with a key, stands for its datagram. A datagram that meets another key
/// under its hash counts as damaged.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only hashes are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Table = HashMap<u64, Queue, BuildHasherDefault<Identity>>;

/// A datagram in progress.
struct Queue {
    key: DatagramKey,
    /// Ascending by offset.
    pieces: Vec<(u16, Frame)>,
    received: u32,
    /// Known when the last piece has arrived.
    length: Option<u32>,
    charged: u64,
    /// Its place in the LRU list.
    node: usize,
}

impl Queue {
    /// Adds a piece; true if it was the last missing one.
    fn add(&mut self, piece: &Piece, frame: Frame) -> bool {
        let after = |&(offset, _): &(u16, Frame)| offset > piece.offset;
        let place = match self.pieces.last() {
            Some(last) if after(last) => self.pieces.iter().position(after),
            _ => None,
        };
        self.pieces.insert(place.unwrap_or(self.pieces.len()), (piece.offset, frame));
        self.received += u32::from(piece.length);
        if !piece.more {
            self.length = Some(u32::from(piece.end()));
        }
        self.length == Some(self.received)
    }
}

/// Memory in use, and the order of use.
#[derive(Default)]
struct Books {
    memory: u64,
    recent: Recent,
}

/// The result of adding a piece.
enum Added {
    Held,
    Complete(Queue),
    /// Another datagram has the same hash.
    Damaged(Frame),
}

impl Books {
    fn add(
        &mut self,
        table: &mut Table,
        piece: &Piece,
        hash: u64,
        frame: Frame,
        spare: &mut Vec<Vec<(u16, Frame)>>,
    ) -> Added {
        let charge = frame.footprint() as u64;
        let queue = table.entry(hash).or_insert_with(|| {
            self.memory += QUEUE;
            Queue {
                key: piece.key,
                pieces: spare.pop().unwrap_or_default(),
                received: 0,
                length: None,
                charged: QUEUE,
                node: self.recent.append(hash),
            }
        });
        if queue.key != piece.key {
            return Added::Damaged(frame);
        }
        queue.charged += charge;
        self.memory += charge;
        self.recent.touch(queue.node);
        if !queue.add(piece, frame) {
            return Added::Held;
        }
        match table.remove(&hash) {
            Some(queue) => {
                self.forget(&queue);
                Added::Complete(queue)
            }
            None => Added::Held,
        }
    }

    fn forget(&mut self, queue: &Queue) {
        self.memory -= queue.charged;
        self.recent.remove(queue.node);
    }

    /// The datagram to evict next; `None` if memory is below `limit`.
    fn victim(&self, limit: u64) -> Option<u64> {
        if self.memory > limit { self.recent.oldest() } else { None }
    }
}

/// A list of hashes by the time of their last use.
#[derive(Default)]
struct Recent {
    nodes: Vec<Node>,
    free: Vec<usize>,
    /// First and last.
    ends: Option<(usize, usize)>,
}

#[derive(Clone, Copy)]
struct Node {
    hash: u64,
    before: Option<usize>,
    after: Option<usize>,
}

impl Recent {
    fn append(&mut self, hash: u64) -> usize {
        let node = Node { hash, before: None, after: None };
        let at = self.free.pop().unwrap_or(self.nodes.len());
        if at == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[at] = node;
        }
        self.link(at);
        at
    }

    fn link(&mut self, at: usize) {
        let before = self.ends.map(|(_, last)| last);
        self.nodes[at].before = before;
        self.nodes[at].after = None;
        if let Some(before) = before {
            self.nodes[before].after = Some(at);
        }
        self.ends = Some((self.ends.map_or(at, |(first, _)| first), at));
    }

    fn unlink(&mut self, at: usize) {
        let Node { before, after, .. } = self.nodes[at];
        if let Some(before) = before {
            self.nodes[before].after = after;
        }
        if let Some(after) = after {
            self.nodes[after].before = before;
        }
        self.ends = self.ends.and_then(|(first, last)| {
            let first = if first == at { after } else { Some(first) };
            let last = if last == at { before } else { Some(last) };
            first.zip(last)
        });
    }

    fn touch(&mut self, at: usize) {
        self.unlink(at);
        self.link(at);
    }

    fn remove(&mut self, at: usize) {
        self.unlink(at);
        self.free.push(at);
    }

    fn oldest(&self) -> Option<u64> {
        self.ends.map(|(first, _)| self.nodes[first].hash)
    }
}

/// One worker's own part of these designs.
struct Desk {
    pool: Pool,
    spare: Vec<Vec<(u16, Frame)>>,
    evicted: Vec<Queue>,
    damaged: u64,
}

impl Desk {
    fn new() -> Self {
        Self { pool: Pool::new(1 << 16), spare: Vec::new(), evicted: Vec::new(), damaged: 0 }
    }

    /// Recycles memory outside of every lock. Returns the bytes of the datagram if one is complete.
    fn settle(&mut self, added: Added) -> u64 {
        for queue in std::mem::take(&mut self.evicted) {
            self.recycle(queue);
        }
        match added {
            Added::Held => 0,
            Added::Damaged(frame) => {
                self.damaged += 1;
                self.pool.give_back(frame);
                0
            }
            Added::Complete(queue) => {
                let bytes = queue.received.into();
                self.recycle(queue);
                bytes
            }
        }
    }

    fn recycle(&mut self, queue: Queue) {
        let mut pieces = queue.pieces;
        pieces.drain(..).for_each(|(_, frame)| self.pool.give_back(frame));
        self.spare.push(pieces);
    }
}

/// One lock around the table, one counter, one LRU list.
pub struct Central {
    shared: Arc<Spin<(Table, Books)>>,
    desk: Desk,
}

impl Central {
    /// The lanes of this many workers.
    pub fn lanes(lanes: usize) -> Vec<Self> {
        let shared = Arc::new(Spin::new(<(Table, Books)>::default()));
        (0..lanes).map(|_| Self { shared: shared.clone(), desk: Desk::new() }).collect()
    }
}

impl Central {
    fn add(&mut self, piece: &Piece) -> u64 {
        let hash = piece.key.hash(SECRET);
        let frame = self.desk.pool.frame_of(piece);
        let mut shared = self.shared.lock();
        let (table, books) = &mut *shared;
        if books.memory > HIGH {
            while let Some(victim) = books.victim(LOW) {
                if let Some(queue) = table.remove(&victim) {
                    books.forget(&queue);
                    self.desk.evicted.push(queue);
                }
            }
        }
        let added = books.add(table, piece, hash, frame, &mut self.desk.spare);
        drop(shared);
        self.desk.settle(added)
    }
}

impl Lane for Central {
    fn take(&mut self, batch: &[Piece], _now: Timestamp) -> u64 {
        batch.iter().map(|piece| self.add(piece)).sum()
    }

    fn damaged(&self) -> u64 {
        self.desk.damaged
    }
}

/// A counter and an LRU list for each worker, which has its share of the memory, and a table in
/// stripes with a lock each. One stripe is the table with one lock.
///
/// The interface brings all fragments of a sender to one worker. So a worker's list has only
/// datagrams that the worker itself has put into the table.
pub struct PerWorker {
    stripes: Arc<[Stripe]>,
    books: Books,
    desk: Desk,
    high: u64,
    low: u64,
}

/// A stripe has two cache lines of its own, because processors fetch lines in pairs.
#[repr(align(128))]
struct Stripe(Spin<Table>);

impl PerWorker {
    /// The lanes of this many workers.
    pub fn lanes(stripes: usize, lanes: usize) -> Vec<Self> {
        let stripes: Arc<[_]> = (0..stripes).map(|_| Stripe(Spin::new(Table::default()))).collect();
        let lane = |_| Self {
            stripes: stripes.clone(),
            books: Books::default(),
            desk: Desk::new(),
            high: HIGH / lanes as u64,
            low: LOW / lanes as u64,
        };
        (0..lanes).map(lane).collect()
    }

    fn stripe(&self, hash: u64) -> &Spin<Table> {
        &self.stripes[(hash >> 32) as usize % self.stripes.len()].0
    }

    fn add(&mut self, piece: &Piece) -> u64 {
        let hash = piece.key.hash(SECRET);
        let frame = self.desk.pool.frame_of(piece);
        if self.books.memory > self.high {
            while let Some(victim) = self.books.victim(self.low) {
                let evicted = self.stripe(victim).lock().remove(&victim);
                if let Some(queue) = evicted {
                    self.books.forget(&queue);
                    self.desk.evicted.push(queue);
                }
            }
        }
        let Self { stripes, books, desk, .. } = self;
        let stripe = &stripes[(hash >> 32) as usize % stripes.len()].0;
        let added = books.add(&mut stripe.lock(), piece, hash, frame, &mut desk.spare);
        desk.settle(added)
    }
}

impl Lane for PerWorker {
    fn take(&mut self, batch: &[Piece], _now: Timestamp) -> u64 {
        batch.iter().map(|piece| self.add(piece)).sum()
    }

    fn damaged(&self) -> u64 {
        self.desk.damaged
    }
}
