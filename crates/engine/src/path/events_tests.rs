use std::net::{IpAddr, Ipv4Addr};

use conntrack::{Connection, EventKind, Expected, Tuple, TupleTransport};
use flow::{Endpoint, Zone};
use proptest::prelude::*;
use wire::{Family, protocol};

use super::*;

/// The `number`th event of a connection.
fn event(connection: u16, number: u32) -> Event {
    const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let tuple = Tuple {
        source: NOBODY,
        destination: NOBODY,
        transport: TupleTransport::Ports { source: connection, destination: 0 },
    };
    let nobody = |port| Endpoint { address: [0; 16], port };
    let connection = Connection {
        family: Family::V4,
        protocol: protocol::UDP,
        zone: 0,
        original_zone: 0,
        reply_zone: 0,
        original: tuple,
        reply: tuple,
        key: FlowKey {
            low: nobody(0),
            high: nobody(connection),
            zone: Zone(0),
            protocol: protocol::UDP,
            kind: 0,
            family: Family::V4,
        },
        state: None,
        timeout_s: 0,
        seen_reply: false,
        assured: false,
        expected: false,
        part: false,
        helper: None,
        mark: number,
        labels: conntrack::Labels::NONE,
        counters: None,
        age_s: None,
    };
    Event { kind: EventKind::Update, connection }
}

/// Two connections, each in a bucket of its own.
const BUCKETS: u16 = 2;

#[derive(Clone, Debug)]
enum Action {
    /// The owner of a bucket reports an event of its connection.
    Report(u16),
    /// A bucket moves to the worker of this index, modulo their number.
    Move(u16, usize),
    /// One more worker joins.
    Hire,
    /// The last worker leaves, unless it is the only one.
    Leave,
}

fn any_actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        6 => (0..BUCKETS).prop_map(Action::Report),
        3 => (0..BUCKETS, 0usize..4).prop_map(|(bucket, to)| Action::Move(bucket, to)),
        1 => Just(Action::Hire),
        1 => Just(Action::Leave),
    ];
    proptest::collection::vec(action, 0..8)
}

/// Workers without threads, their buckets and one reader.
struct World {
    subscription: Subscription<Event>,
    stream: EventStream,
    workers: Vec<Subscribers<Event>>,
    hired: u16,
    /// The owner of each bucket, and the number of its last event.
    buckets: [(usize, u32); BUCKETS as usize],
    /// The number of the last event of each bucket that was read.
    read: [u32; BUCKETS as usize],
    reported: u64,
    lost: u64,
}

impl World {
    fn new(capacity: usize) -> Self {
        let (subscription, stream) = Subscription::new(capacity);
        let mut world = Self {
            subscription,
            stream,
            workers: Vec::new(),
            hired: 0,
            buckets: Default::default(),
            read: Default::default(),
            reported: 0,
            lost: 0,
        };
        world.act(&[Action::Hire]);
        world
    }

    fn act(&mut self, actions: &[Action]) {
        for action in actions {
            match *action {
                Action::Report(bucket) => {
                    let (owner, number) = &mut self.buckets[usize::from(bucket)];
                    *number += 1;
                    self.reported += 1;
                    self.workers[*owner].event(event(bucket, *number));
                }
                Action::Move(bucket, to) => self.give(bucket, to % self.workers.len()),
                Action::Hire => {
                    let mut worker = Subscribers::default();
                    worker.add(self.subscription.connect(WorkerId(self.hired)).unwrap());
                    self.hired += 1;
                    self.workers.push(worker);
                }
                Action::Leave if self.workers.len() > 1 => {
                    let last = self.workers.len() - 1;
                    for bucket in 0..BUCKETS {
                        if self.buckets[usize::from(bucket)].0 == last {
                            self.give(bucket, 0);
                        }
                    }
                    self.workers.pop();
                }
                Action::Leave => {}
            }
        }
    }

    fn give(&mut self, bucket: u16, to: usize) {
        let owner = &mut self.buckets[usize::from(bucket)].0;
        let clock = self.workers[*owner].clock();
        self.workers[to].advance_clock(clock);
        *owner = to;
    }

    /// Does the same as [`EventStream::try_next`], with actions of the workers before each look at
    /// a ring.
    fn gather(&mut self, mut meanwhile: impl Iterator<Item = Vec<Action>>) {
        let mut found = std::mem::take(&mut self.stream.held);
        let mut late = Vec::new();
        for into in [&mut found, &mut late] {
            self.stream.sources.append(&mut lock(&self.stream.joining));
            for index in 0..self.stream.sources.len() {
                self.act(&meanwhile.next().unwrap_or_default());
                self.stream.sources[index].drain(into);
            }
        }
        self.stream.put_in_order(found, late);
    }

    /// Reads all events that are ready.
    fn read(&mut self) -> Result<(), TestCaseError> {
        while !self.stream.ready.is_empty() {
            self.read_one()?;
        }
        Ok(())
    }

    /// Reads one event, if there is one.
    fn read_one(&mut self) -> Result<bool, TestCaseError> {
        let sequence = self.stream.sequence;
        let Some(next) = self.stream.try_next() else { return Ok(false) };
        prop_assert_eq!(next.sequence, sequence);
        prop_assert_eq!(self.stream.sequence, sequence + 1);
        let Connection { key, mark, .. } = next.event.connection;
        let last = &mut self.read[usize::from(key.high.port)];
        prop_assert!(*last < mark, "event {mark} of {key:?} after {last}");
        *last = mark;
        self.lost += next.lost;
        Ok(true)
    }
}

proptest! {
    /// The workers do anything while the reader looks at their rings. The events of one connection
    /// still come in order, and each is read or counted as lost.
    #[test]
    fn order_holds_while_buckets_move_and_workers_come_and_go(
        rounds in proptest::collection::vec(proptest::collection::vec(any_actions(), 1..9), 1..9),
        capacity in prop::sample::select(&[2usize, 4, 1000][..]),
    ) {
        let mut world = World::new(capacity);
        for meanwhile in rounds {
            world.gather(meanwhile.into_iter());
            world.read()?;
        }
        world.workers.clear();
        while world.read_one()? {}
        let unread = world.stream.lost_at_end;
        prop_assert!(world.stream.sources.is_empty(), "those that have left are forgotten");
        prop_assert_eq!(world.stream.sequence + world.lost + unread, world.reported);
        if capacity == 1000 {
            prop_assert_eq!(world.lost + unread, 0);
            prop_assert_eq!(world.read, world.buckets.map(|(_, number)| number));
        }
    }
}

#[test]
fn losses_are_told_with_the_first_event_after_them() {
    let mut world = World::new(2);
    let next_event = |world: &mut World| {
        let next = world.stream.try_next().unwrap();
        (next.event.connection.mark, next.lost)
    };
    world.act(&[Action::Report(0), Action::Report(0), Action::Report(0), Action::Report(0)]);
    assert_eq!([next_event(&mut world), next_event(&mut world)], [(1, 0), (2, 0)]);
    world.act(&[Action::Report(0)]);
    assert_eq!(next_event(&mut world), (5, 2));
}

#[test]
fn nobody_is_told_anything_after_the_reader_has_gone() {
    let World { subscription, stream, mut workers, .. } = World::new(2);
    drop(stream);
    assert!(!subscription.is_read());
    assert!(subscription.connect(WorkerId(1)).is_none());
    workers[0].event(event(0, 1));
    assert!(workers[0].sink().is_none());
}

/// One worker announces an expectation, and another one reports its end.
#[test]
fn events_of_expectations_are_read_in_the_order_of_their_stamps() {
    let address = IpAddr::from([192, 0, 2, 1]);
    let transport = TupleTransport::Ports { source: 5000, destination: 21 };
    let expected = |port| Expected {
        zone: 0,
        protocol: 6,
        source: None,
        source_port: None,
        destination: address,
        destination_port: port,
        timeout_s: 300,
        permanent: false,
        master: Tuple { source: address, destination: address, transport },
        helper: "ftp",
        class: ("data", 0),
        mark: 0,
    };
    let (subscription, mut stream) = Subscription::new(8);
    let mut workers = [0, 1].map(|id| {
        let mut worker = Subscribers::default();
        worker.add(subscription.connect(WorkerId(id)).unwrap());
        worker
    });
    for (stamp, worker) in (1u16..).zip([0, 1, 1, 0, 1, 0]) {
        let kind = [EventKind::Destroy, EventKind::New][usize::from(stamp % 2)];
        let event = ExpectationEvent { kind, expected: expected(stamp) };
        workers[worker].expectation(stamp.into(), event);
    }
    let read = std::iter::from_fn(|| stream.try_next());
    let read: Vec<_> = read.map(|it| (it.worker.0, it.event.expected.destination_port)).collect();
    assert_eq!(read, [(0, 1), (1, 2), (1, 3), (0, 4), (1, 5), (0, 6)]);
}
