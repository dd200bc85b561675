//! Bucket moves under the model checker. In every schedule that shuttle tries, each packet must be
//! delivered exactly once, in the order in which its producer sent it, and nothing may get stuck.

use super::*;
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;

const BUCKET: BucketId = BucketId(0);

#[derive(Debug)]
enum Item {
    Packet { producer: usize, number: u32 },
    Fence,
    Bucket(Log),
    Move(Move),
}

/// The content of the bucket: everything that was processed in it.
type Log = Vec<(usize, u32)>;

/// A worker that produces numbered packets of the bucket and takes part in moves.
struct Node {
    me: usize,
    ownership: Ownership<Log, (usize, u32)>,
    peers: Vec<Sender<Item>>,
    inbox: Receiver<Item>,
    installed: Sender<()>,
}

impl Node {
    fn send(&self, to: WorkerId, item: Item) {
        self.peers[to.index()].send(item).unwrap();
    }

    fn process(&mut self, producer: usize, number: u32) {
        match self.ownership.get_mut(BUCKET) {
            Some(log) => log.push((producer, number)),
            // The buffer has room for all packets.
            None => self.ownership.keep(BUCKET, (producer, number), 1).unwrap(),
        }
    }

    fn depart(&self, departure: Departure<Log>) {
        self.send(departure.to, Item::Bucket(departure.content));
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Packet { producer, number } => self.process(producer, number),
            Item::Fence => {
                if let Some(departure) = self.ownership.fence(BUCKET) {
                    self.depart(departure);
                }
            }
            Item::Bucket(log) => {
                for (producer, number) in self.ownership.arrive(BUCKET, log) {
                    self.process(producer, number);
                }
                self.installed.send(()).unwrap();
            }
            Item::Move(order) => match self.ownership.switch(order) {
                Switched::SendFence => self.send(order.from, Item::Fence),
                Switched::Leaving => {}
                Switched::Departs(departure) => self.depart(departure),
            },
        }
    }

    fn produce(&mut self, number: u32) {
        let to = self.ownership.route(BUCKET);
        if to.index() == self.me {
            self.process(self.me, number);
        } else {
            self.send(to, Item::Packet { producer: self.me, number });
        }
    }

    /// Produces packets and does other work in between. Then serves until it is told to stop.
    fn run(mut self, packets: u32, stop: Receiver<()>) -> Option<Log> {
        for number in 0..packets {
            while let Ok(item) = self.inbox.try_recv() {
                self.take(item);
            }
            self.produce(number);
        }
        loop {
            while let Ok(item) = self.inbox.try_recv() {
                self.take(item);
            }
            if stop.try_recv().is_ok() {
                while let Ok(item) = self.inbox.try_recv() {
                    self.take(item);
                }
                return self.ownership.get(BUCKET).cloned();
            }
            thread::yield_now();
        }
    }
}

/// Workers produce packets for one bucket while it moves along `path`.
fn scenario(workers: usize, packets: u32, path: &[u16]) {
    let (inboxes, outboxes): (Vec<_>, Vec<_>) = (0..workers)
        .map(|_| {
            let (sender, receiver) = channel();
            (receiver, sender)
        })
        .unzip();
    let (installed, arrivals) = channel();
    let mut stops = Vec::new();
    let mut done = Vec::new();
    for (me, inbox) in inboxes.into_iter().enumerate() {
        let mut ownership = Ownership::new(WorkerId(me as u16), vec![WorkerId(0)], usize::MAX);
        if me == 0 {
            ownership.install(BUCKET, Log::new());
        }
        let node =
            Node { me, ownership, peers: outboxes.clone(), inbox, installed: installed.clone() };
        let (stop, stopped) = channel();
        stops.push(stop);
        done.push(thread::spawn(move || node.run(packets, stopped)));
    }
    let mut owner = WorkerId(0);
    for &to in path {
        let order = Move { bucket: BUCKET, from: owner, to: WorkerId(to), workers: workers as u16 };
        for outbox in &outboxes {
            outbox.send(Item::Move(order)).unwrap();
        }
        arrivals.recv().unwrap();
        owner = WorkerId(to);
    }
    // All producers have finished, and their packets are in the inboxes, before any worker stops.
    // The owner stops last.
    for (index, stop) in stops.iter().enumerate() {
        if index != owner.index() {
            stop.send(()).unwrap();
        }
    }
    let last = done.remove(owner.index());
    for node in done {
        assert!(node.join().unwrap().is_none(), "only the owner has the bucket");
    }
    stops[owner.index()].send(()).unwrap();
    check(&last.join().unwrap().unwrap(), workers, packets);
}

fn check(log: &Log, workers: usize, packets: u32) {
    for producer in 0..workers {
        let numbers: Vec<u32> =
            log.iter().filter(|(from, _)| *from == producer).map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..packets).collect::<Vec<_>>(), "packets of worker {producer}");
    }
}

#[test]
fn a_moving_bucket_loses_nothing_and_keeps_the_order() {
    shuttle::check_random(|| scenario(3, 4, &[1, 2, 0]), 3_000);
}

#[test]
fn adversarial_schedules_of_a_move_lose_nothing() {
    shuttle::check_pct(|| scenario(3, 3, &[1, 0]), 3_000, 4);
}

#[test]
fn packets_beyond_the_limit_are_refused_and_handed_back() {
    let mut ownership: Ownership<(), u32> = Ownership::new(WorkerId(0), vec![WorkerId(0)], 2);
    assert_eq!(ownership.keep(BUCKET, 1, 1), Ok(()));
    assert_eq!(ownership.keep(BUCKET, 2, 1), Ok(()));
    assert_eq!(ownership.keep(BUCKET, 3, 1), Err(3));
    assert_eq!(ownership.arrive(BUCKET, ()), [1, 2]);
    assert!(ownership.get_mut(BUCKET).is_some());
}

#[test]
fn waiting_packets_are_bounded_by_their_weight_over_all_buckets() {
    let (a, b) = (BucketId(0), BucketId(1));
    let mut ownership: Ownership<(), u32> = Ownership::new(WorkerId(0), vec![WorkerId(0); 2], 10);
    assert_eq!(ownership.keep(a, 1, 9), Ok(()));
    assert_eq!(ownership.keep(b, 2, 3000), Ok(()), "less than the limit was there");
    assert_eq!(ownership.keep(a, 3, 1), Err(3));
    assert_eq!(ownership.arrive(b, ()), [2]);
    assert_eq!(ownership.keep(a, 4, 1), Ok(()));
    assert_eq!(ownership.keep(a, 5, 1), Err(5));
}
