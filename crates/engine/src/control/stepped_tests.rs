use std::collections::BTreeMap;
use std::time::Duration;

use flow::HashKey;
use netio::{Frame, FramePool};
use proptest::prelude::*;
use steer::{BucketId, WorkerId};
use wire::build::PacketBuilder;

use super::*;
use crate::WorkerCount;
use crate::testing::cable::Cable;

const FLOWS: u16 = 20;

/// A bridge in virtual time.
struct Lab {
    gateway: Gateway,
    stepper: Stepper,
    lan: Cable,
    wan: Cable,
    pool: FramePool,
    /// Datagrams sent in each flow.
    sent: BTreeMap<u16, u32>,
}

impl Lab {
    fn new(workers: usize, begin: Timestamp) -> Self {
        let config =
            Config { workers: WorkerCount::fixed(workers).unwrap(), ..Config::new(HashKey(5, 6)) };
        let (lan, wan) = (Cable::default(), Cable::default());
        let ports = vec![PortSetup::new("lan0", lan.clone()), PortSetup::new("wan0", wan.clone())];
        let stepper = Stepper::new(begin);
        let gateway =
            Gateway::stepped(config, ports, &Picture::default(), stepper.clone()).unwrap();
        Self { gateway, stepper, lan, wan, pool: FramePool::new(0, 0), sent: BTreeMap::new() }
    }

    /// Sends the next datagram of a flow, which has its number as payload.
    fn send(&mut self, flow: u16) {
        let number = self.sent.entry(flow).or_default();
        *number += 1;
        let (number, mut bytes) = (number.to_be_bytes(), Vec::new());
        let packet = PacketBuilder::v4([198, 51, 100, 1], [192, 0, 2, 1]);
        packet.udp(1024 + flow, 53, &number, &mut bytes);
        self.lan.input.put([self.pool.copy_of(&bytes).unwrap()]);
    }

    fn settle(&self) {
        while self.stepper.take_turns() {}
    }

    fn connections(&self) -> u64 {
        self.gateway.connection_count().unwrap()
    }
}

/// The flow of a datagram, and its number within it.
fn read(frame: &Frame) -> (u16, u32) {
    let bytes = frame.bytes();
    let (_, number) = bytes.split_last_chunk::<4>().unwrap();
    (u16::from_be_bytes([bytes[34], bytes[35]]) - 1024, u32::from_be_bytes(*number))
}

#[derive(Clone, Debug)]
enum Step {
    Send(u16),
    Turn(u16),
    Move(u16, u16),
    Workers(usize),
    Pass(Duration),
    Tend,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..FLOWS).prop_map(Step::Send),
        10 => (0..4_u16).prop_map(Step::Turn),
        2 => (0..256_u16, 0..4_u16).prop_map(|(bucket, to)| Step::Move(bucket, to)),
        1 => (1..=4_usize).prop_map(Step::Workers),
        1 => (0..20_000_u64).prop_map(|ms| Step::Pass(Duration::from_millis(ms))),
        1 => Just(Step::Tend),
    ]
}

/// The datagrams in the order in which they left, and all counters at the end.
fn play(steps: &[Step], begin: Timestamp) -> (Vec<(u16, u32)>, String) {
    let mut lab = Lab::new(2, begin);
    for step in steps {
        match *step {
            Step::Send(flow) => lab.send(flow),
            Step::Turn(worker) => {
                lab.stepper.take_turn(WorkerId(worker));
            }
            Step::Move(bucket, to) => {
                let to = WorkerId(to % lab.gateway.status().unwrap().workers.len() as u16);
                lab.gateway.move_bucket(BucketId(bucket), to).unwrap();
            }
            Step::Workers(count) => {
                lab.gateway.set_workers(count).unwrap();
            }
            Step::Pass(time) => lab.stepper.pass_to(lab.stepper.now().after(time)),
            Step::Tend => lab.gateway.tend().unwrap(),
        }
    }
    lab.settle();
    let left = lab.wan.output.take_all().iter().map(read).collect();
    (left, format!("{:?}", lab.gateway.stop().unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Promise: order. Buckets move and workers come and go between single turns, and no datagram
    /// is lost, doubled or reordered. The same input leads to the same output, to the last counter.
    #[test]
    fn a_gateway_with_its_coordinator_is_a_function_of_its_input(
        steps in prop::collection::vec(step(), 1..200), years in 0..200_u64,
    ) {
        let first = Timestamp::from_secs(1000);
        let (left, counters) = play(&steps, first);
        let mut next = BTreeMap::<u16, u32>::new();
        for &(flow, number) in &left {
            let next = next.entry(flow).or_default();
            *next += 1;
            prop_assert_eq!(number, *next, "flow {}", flow);
        }
        let sent = steps.iter().filter(|step| matches!(step, Step::Send(_))).count();
        prop_assert_eq!(left.len(), sent);
        prop_assert_eq!(&(left.clone(), counters), &play(&steps, first));
        // Timers run by ticks of the clock, so only their last moments depend on it.
        let (later, _) = play(&steps, Timestamp::from_secs(years * 365 * 86_400));
        prop_assert_eq!(left, later);
    }
}

#[test]
fn connections_expire_in_the_time_that_is_given() {
    let mut lab = Lab::new(2, Timestamp::from_secs(1));
    (0..FLOWS).for_each(|flow| lab.send(flow));
    lab.settle();
    assert_eq!(lab.connections(), u64::from(FLOWS));
    let wait = |lab: &Lab, seconds| {
        lab.stepper.pass_to(lab.stepper.now().after(Duration::from_secs(seconds)));
        lab.settle();
    };
    wait(&lab, 29);
    assert_eq!(lab.connections(), u64::from(FLOWS), "nf_conntrack_udp_timeout is 30 seconds");
    // A turn looks at a bounded number of timers.
    for _ in 0..100 {
        wait(&lab, 2);
    }
    assert_eq!(lab.connections(), 0);
}

#[test]
fn a_gateway_whose_workers_are_gone_says_so() {
    let lab = Lab::new(2, Timestamp::from_secs(1));
    drop(lab.stepper.clone().into_workers());
    assert_eq!(lab.gateway.status().unwrap_err(), Unresponsive(WorkerId(0)));
    lab.gateway.forsake();
}
