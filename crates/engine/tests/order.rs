//! Promise 1: no packet of a flow is reordered, lost or duplicated while buckets move and workers
//! come and go. Promise 2, in part: every packet that a limit refuses is counted.
//!
//! A source numbers the packets of each flow. There is a sink for each worker, and all sinks stamp
//! the packets with one common counter. So the order in which packets left the gateway is known.
//! Real threads and rings run in between.
//!
//! In the tests with fragments, the source cuts each datagram in three and numbers the fragments.
//! No fragment may be lost either. Datagrams stay in order only in the ordered mode.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod queues;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::{Config, Gateway, Policy, PortOpener, PortSetup, WorkerCount};
use flow::HashKey;
use netio::{Frame, FramePool, PortError, RxQueue, Service, TxQueue, TxReport};
use steer::{BucketId, FragmentSteering, WorkerId};
use wire::build::PacketBuilder;

use queues::Queues;

const FLOWS: u32 = 512;
/// Fragments of a datagram, in the tests with fragments.
const PIECES: u64 = 3;
/// Payload of a fragment, bytes.
const PIECE: usize = 24;

/// The packets that went out: position in the common order, flow, number.
type Log = Vec<(u64, u32, u64)>;

#[derive(Clone, Default)]
struct Shared {
    /// Packets that the source has produced.
    produced: Arc<AtomicU64>,
    /// Packets that the sinks have taken.
    taken: Arc<AtomicU64>,
    /// Most packets under way. It is below every limit, so that no packet may be lost.
    window: u64,
    stop: Arc<AtomicBool>,
    order: Arc<AtomicU64>,
    log: Arc<Mutex<Log>>,
    /// True if datagrams come in fragments.
    cut: bool,
    /// True if the packets of every other queue are of the service latency.
    has_lanes: bool,
}

/// One of the receive queues. It numbers the packets of its own flows.
struct Numbered {
    shared: Shared,
    queue: u32,
    queues: u32,
    next: u64,
    scratch: Vec<u8>,
    service: Service,
}

impl Numbered {
    /// Writes the next packet or fragment. The flows take turns.
    fn write_next(&mut self) {
        let own = u64::from(FLOWS / self.queues);
        let per_datagram = if self.shared.cut { PIECES } else { 1 };
        let (datagram, piece) = (self.next / per_datagram, self.next % per_datagram);
        let flow = (datagram % own) as u32 * self.queues + self.queue;
        let number = datagram / own * per_datagram + piece;
        self.next += 1;
        self.scratch.clear();
        let mut payload = [0; 12];
        payload[..4].copy_from_slice(&flow.to_be_bytes());
        payload[4..].copy_from_slice(&number.to_be_bytes());
        let [_, _, high, low] = flow.to_be_bytes();
        let builder = PacketBuilder::v4([198, 51, 100, low], [192, 0, 2, 1]);
        let port = 1024 + u16::from(high);
        if !self.shared.cut {
            return builder.udp(port, 53, &payload, &mut self.scratch);
        }
        let mut body = [0; PIECE];
        if piece == 0 {
            body[..2].copy_from_slice(&port.to_be_bytes());
            body[3] = 53;
            body[5] = PIECE as u8 * PIECES as u8;
        }
        // The first 8 bytes are a UDP header without a checksum, or zeros.
        body[8..20].copy_from_slice(&payload);
        // Flows of one address never share an identification.
        let id = (datagram / own * u64::from(FLOWS / 256)) as u32 + u32::from(high);
        builder.id(id).fragment(
            wire::protocol::UDP,
            piece as u16 * PIECE as u16,
            piece + 1 < PIECES,
            &body,
            &mut self.scratch,
        );
    }
}

impl RxQueue for Numbered {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        for count in 0..max {
            // This is read first. Packets that go through meanwhile only make the result too high.
            let taken = self.shared.taken.load(Ordering::SeqCst);
            let under_way = self.shared.produced.load(Ordering::SeqCst).saturating_sub(taken);
            let in_datagram = self.shared.cut && !self.next.is_multiple_of(PIECES);
            let is_over = self.shared.stop.load(Ordering::Relaxed);
            // A datagram that was begun is completed.
            if !in_datagram && (under_way >= self.shared.window || is_over) {
                return Ok(count);
            }
            self.write_next();
            frames.extend(pool.copy_of(&self.scratch));
            self.shared.produced.fetch_add(1, Ordering::Relaxed);
        }
        Ok(max)
    }

    fn service(&self) -> Service {
        self.service
    }

    fn wait_handle(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl TxQueue for Shared {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let mut log = self.log.lock().unwrap();
        let report = TxReport { sent: frames.len() as u64, ..TxReport::default() };
        for frame in frames.drain(..) {
            let payload = &frame.bytes()[42..];
            let flow = u32::from_be_bytes(payload[..4].try_into().unwrap());
            let number = u64::from_be_bytes(payload[4..12].try_into().unwrap());
            log.push((self.order.fetch_add(1, Ordering::Relaxed), flow, number));
            self.taken.fetch_add(1, Ordering::Relaxed);
            pool.give_back(frame);
        }
        Ok(report)
    }
}

/// The numbered source with this many queues, or the sink.
fn port(shared: &Shared, sends: bool) -> impl PortOpener + 'static {
    let (source, sink) = (shared.clone(), shared.clone());
    let receive = move |queues: usize| {
        let numbered = |queue| Numbered {
            shared: source.clone(),
            queue: queue as u32,
            queues: queues as u32,
            next: 0,
            scratch: Vec::new(),
            service: match source.has_lanes && queue % 2 == 1 {
                true => Service::Latency,
                false => Service::Bulk,
            },
        };
        (0..if sends { queues } else { 0 }).map(numbered).collect::<Vec<_>>()
    };
    Queues { receive, transmit: move || sink.clone(), mtu: None }
}

fn start(workers: usize, queues: usize, window: u64) -> (Gateway, Shared) {
    start_with(workers, queues, Shared { window, ..Shared::default() }, FragmentSteering::Spread)
}

fn start_with(
    workers: usize,
    queues: usize,
    shared: Shared,
    fragments: FragmentSteering,
) -> (Gateway, Shared) {
    let mut config = Config::new(HashKey(1, 2));
    config.workers = WorkerCount::fixed(workers).unwrap();
    config.fragments = fragments;
    let mut source = PortSetup::new("source", port(&shared, true));
    source.rx_queues = queues;
    source.policy = if shared.has_lanes { Policy::Mix } else { Policy::None };
    let sink = PortSetup::new("sink", port(&shared, false));
    let gateway = Gateway::start(config, vec![source, sink]).unwrap();
    (gateway, shared)
}

/// Stops the source, waits until no packet is under way, and stops the gateway. Checks that every
/// flow came out complete and in order.
fn finish(gateway: Gateway, shared: &Shared) {
    let log = drain(gateway, shared);
    let mut next: HashMap<u32, u64> = HashMap::new();
    for (_, flow, number) in &log {
        let expected = next.entry(*flow).or_default();
        assert_eq!(number, expected, "flow {flow} is out of order");
        *expected += 1;
    }
    assert_eq!(next.len() as u32, FLOWS, "every flow was there");
}

/// The same for datagrams in fragments. Each datagram has to be complete, and its fragments have
/// to leave one after the other. Datagrams of a flow may have overtaken one another.
fn finish_spread(gateway: Gateway, shared: &Shared) {
    let log = drain(gateway, shared);
    let mut flows: HashMap<u32, Vec<u64>> = HashMap::new();
    for (_, flow, number) in &log {
        flows.entry(*flow).or_default().push(*number);
    }
    assert_eq!(flows.len() as u32, FLOWS, "every flow was there");
    for (flow, mut numbers) in flows {
        for pieces in 0..PIECES {
            let places = numbers.iter().map(|number| number % PIECES);
            let seen = places.filter(|&place| place == pieces).count();
            assert_eq!(seen as u64 * PIECES, numbers.len() as u64, "flow {flow}");
        }
        numbers.sort_unstable();
        assert!((0..).zip(&numbers).all(|(at, &number)| at == number), "flow {flow}: {numbers:?}");
    }
}

fn drain(gateway: Gateway, shared: &Shared) -> Log {
    shared.stop.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(20);
    while shared.produced.load(Ordering::Relaxed) != shared.taken.load(Ordering::Relaxed) {
        assert!(Instant::now() < deadline, "packets are missing: {:?}", gateway.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = gateway.stop().unwrap();
    assert_eq!(status.totals().dropped_total(), 0);
    let mut log = std::mem::take(&mut *shared.log.lock().unwrap());
    log.sort_unstable();
    assert_eq!(log.len() as u64, shared.produced.load(Ordering::Relaxed));
    assert_eq!(status.totals().transmitted, log.len() as u64);
    log
}

#[test]
fn order_holds_while_a_thousand_buckets_move() {
    let (gateway, shared) = start(3, 2, 400);
    for step in 0..1000u16 {
        let bucket = BucketId(step.wrapping_mul(31) % 256);
        gateway.move_bucket(bucket, WorkerId(step % 3)).unwrap();
    }
    let moves = gateway.status().unwrap().moves;
    assert!(moves > 500, "only {moves} of the orders were moves");
    finish(gateway, &shared);
}

#[test]
fn order_holds_while_workers_come_and_go() {
    let (gateway, shared) = start(2, 2, 400);
    for count in [1, 4, 2, 3, 1, 2, 8, 1, 5, 2] {
        gateway.set_workers(count).unwrap();
        let status = gateway.status().unwrap();
        assert_eq!(status.workers.len(), count);
        assert!(status.workers.iter().all(|worker| worker.buckets > 0), "all own buckets");
        let queues: usize = status.workers.iter().map(|worker| worker.queues).sum();
        assert_eq!(queues, 2, "no queue is lost");
        std::thread::sleep(Duration::from_millis(5));
    }
    finish(gateway, &shared);
}

#[test]
fn order_holds_and_connections_stay_while_inside_addresses_change() {
    let (gateway, shared) = start(3, 2, 400);
    let deadline = Instant::now() + Duration::from_secs(20);
    while gateway.connection_count().unwrap() < u64::from(FLOWS) {
        assert!(Instant::now() < deadline, "every flow has a connection");
        std::thread::sleep(Duration::from_millis(1));
    }
    let v4 = |[a, b, c, d]: [u8; 4]| Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets();
    // First every flow crosses, then ever fewer do.
    let server = std::iter::once([192, 0, 2, 1]);
    let inside = server.chain((0..16).map(|client| [198, 51, 100, client * 13]));
    for (step, address) in (0..).zip(inside) {
        gateway.add_translation_addresses([v4(address)..=v4(address)]).unwrap();
        gateway.move_bucket(BucketId(step * 31 % 256), WorkerId(step % 3)).unwrap();
        if step % 8 == 7 {
            gateway.set_workers(2 + usize::from(step) % 3).unwrap();
        }
    }
    let status = gateway.status().unwrap();
    assert_eq!(gateway.connection_count().unwrap(), u64::from(FLOWS), "none was opened again");
    let queues: usize = status.workers.iter().map(|worker| worker.queues).sum();
    assert_eq!(queues, 2, "no queue is lost");
    finish(gateway, &shared);
}

#[test]
fn order_holds_while_the_set_of_cpus_changes() {
    let shared = Shared { window: 400, ..Shared::default() };
    let cpus = Arc::new(Mutex::new(vec![0]));
    let mut config = Config::new(HashKey(1, 2));
    config.workers = WorkerCount::PerCpu;
    let source = PortSetup::new("source", port(&shared, true));
    let sink = PortSetup::new("sink", port(&shared, false));
    let seen = cpus.clone();
    let gateway = Gateway::start_on(
        config,
        vec![source, sink],
        Box::new(move || seen.lock().unwrap().clone()),
    )
    .unwrap();
    // These CPUs need not exist: the workers run unpinned, and their number follows.
    for set in [vec![0, 1, 2], vec![1], vec![0, 1]] {
        *cpus.lock().unwrap() = set.clone();
        let deadline = Instant::now() + Duration::from_secs(10);
        while gateway.status().unwrap().workers.len() != set.len() {
            assert!(Instant::now() < deadline, "the workers did not follow the CPUs {set:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    finish(gateway, &shared);
}

#[test]
fn rps_cpus_are_applied_anew_when_cpus_come_and_go() {
    let shared = Shared { window: 400, ..Shared::default() };
    let cpus = Arc::new(Mutex::new(vec![0, 1]));
    let mut source = PortSetup::new("source", port(&shared, true));
    source.rps_cpus = Some("2".parse().unwrap());
    let sink = PortSetup::new("sink", port(&shared, false));
    let seen = cpus.clone();
    let gateway = Gateway::start_on(
        Config::new(HashKey(1, 2)),
        vec![source, sink],
        Box::new(move || seen.lock().unwrap().clone()),
    )
    .unwrap();
    // The mask allows CPU 1. If that is gone, traffic must still go on.
    for (set, owned) in
        [(vec![0, 1], vec![0, 256]), (vec![0], vec![256]), (vec![0, 1], vec![0, 256])]
    {
        *cpus.lock().unwrap() = set.clone();
        let buckets = || -> Vec<usize> {
            gateway.status().unwrap().workers.iter().map(|worker| worker.buckets).collect()
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while buckets() != owned {
            assert!(Instant::now() < deadline, "CPUs {set:?}: buckets {:?}", buckets());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    finish(gateway, &shared);
}

fn unrest(gateway: &Gateway) {
    for step in 0..600u16 {
        let bucket = BucketId(step.wrapping_mul(31) % 256);
        gateway.move_bucket(bucket, WorkerId(step % 3)).unwrap();
    }
    for count in [1, 4, 2, 3, 1, 5] {
        gateway.set_workers(count).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_fragment_is_lost_while_buckets_move_and_workers_come_and_go() {
    let shared = Shared { window: 400, cut: true, ..Shared::default() };
    let (gateway, shared) = start_with(3, 2, shared, FragmentSteering::Spread);
    unrest(&gateway);
    finish_spread(gateway, &shared);
}

#[test]
fn datagrams_in_fragments_keep_their_order_in_the_ordered_mode() {
    let shared = Shared { window: 400, cut: true, ..Shared::default() };
    let (gateway, shared) = start_with(3, 2, shared, FragmentSteering::Ordered);
    unrest(&gateway);
    finish(gateway, &shared);
}

#[test]
fn order_holds_in_both_lanes_while_buckets_move_and_policies_change() {
    let shared = Shared { window: 400, has_lanes: true, ..Shared::default() };
    let (gateway, shared) = start_with(3, 4, shared, FragmentSteering::Spread);
    for policy in [Policy::None, Policy::Mix, Policy::Latency, Policy::Mix] {
        gateway.set_policy("source", policy).unwrap();
        unrest(&gateway);
    }
    let received = gateway.status().unwrap().ports[0].received_latency.unwrap();
    assert!(received.frames > 0);
    finish(gateway, &shared);
}

#[test]
fn datagrams_in_fragments_keep_their_order_in_each_lane() {
    let shared = Shared { window: 400, cut: true, has_lanes: true, ..Shared::default() };
    let (gateway, shared) = start_with(3, 2, shared, FragmentSteering::Ordered);
    unrest(&gateway);
    finish(gateway, &shared);
}

#[test]
fn packets_that_a_backlog_refuses_are_counted_and_no_others_are_lost() {
    // More packets are under way than the limits admit. Some are lost, but every one is counted.
    let (gateway, shared) = start(3, 2, 50_000);
    gateway.set_tunable("netdev_max_backlog", 16).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for step in 0..100u16 {
        gateway.move_bucket(BucketId(step), WorkerId(step % 3)).unwrap();
    }
    shared.stop.store(true, Ordering::Relaxed);
    let status = gateway.stop().unwrap();
    let totals = status.totals();
    let log = std::mem::take(&mut *shared.log.lock().unwrap());
    assert_eq!(totals.transmitted, log.len() as u64);
    assert_eq!(
        totals.transmitted + totals.dropped_total(),
        shared.produced.load(Ordering::Relaxed)
    );
    assert_eq!(totals.classes.iter().sum::<u64>(), totals.transmitted);
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut log = log;
    log.sort_unstable();
    for (_, flow, number) in log {
        let before = last.insert(flow, number);
        assert!(before < Some(number), "flow {flow} is out of order");
    }
}
