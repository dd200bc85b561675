//! Packets that wait for the station of their next hop while their buckets move and the workers
//! take their turns in any order.

use flow::HashKey;
use proptest::prelude::*;
use steer::BucketCount;
use wire::build::PacketBuilder;

use super::*;
use crate::Config;
use crate::egress::Mode;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::{INSIDE, OUTSIDE, STATIONS, ip, picture_with, routing_of};
use crate::worker::command::Command;

const WORKERS: u16 = 3;
const BUCKETS: u16 = 8;
const FLOWS: u16 = 6;

struct Routers {
    gateway: TestGateway,
    /// Packets of each flow that were sent.
    sent: [u8; FLOWS as usize],
}

impl Routers {
    fn new() -> Self {
        let mut config = Config::new(HashKey(5, 6));
        config.mode = Mode::Routed;
        config.buckets = BucketCount::new(BUCKETS.into()).unwrap();
        let gateway = TestGateway::new(&config, WORKERS, true);
        let mut routers = Self { gateway, sent: [0; FLOWS as usize] };
        routers.learn(None);
        routers.gateway.run_until_idle();
        routers
    }

    /// Tells the workers the next hop. Each learns it when it takes its turn.
    fn learn(&mut self, next_hop: Option<Neighbour>) {
        let mut picture = picture_with("198.51.100.254");
        if let Some(neighbour) = next_hop {
            picture.neighbours.insert(LinkId(11), ip("198.51.100.2"), neighbour);
        }
        let routing = Arc::new(routing_of(&picture));
        for handle in &mut self.gateway.handles {
            handle.tell(Command::Routing(routing.clone())).unwrap();
        }
    }

    /// The next packet of a flow arrives.
    fn arrive(&mut self, flow: u16) {
        let number = &mut self.sent[usize::from(flow)];
        // No more packets are sent than may wait.
        if usize::from(*number) * usize::from(FLOWS) < MAX_WAITING - usize::from(FLOWS) {
            let mut bytes = Vec::new();
            PacketBuilder::v4([192, 0, 2, 1], [203, 0, 113, 1]).macs(INSIDE, STATIONS[0]).udp(
                3000 + flow,
                53,
                &[flow as u8, *number],
                &mut bytes,
            );
            self.gateway.arrive(0, &bytes);
            *number += 1;
        }
    }
}

proptest! {
    #[test]
    fn packets_that_wait_for_their_next_hop_stay_in_order_while_buckets_move(
        steps in prop::collection::vec((0..8_u8, any::<u16>(), any::<u16>()), 50..500),
    ) {
        let mut routers = Routers::new();
        let known = Neighbour::Known { station: OUTSIDE, is_fresh: true };
        for (step, a, b) in steps {
            match step {
                0 => routers.gateway.start_move(a, b),
                1 => routers.learn((b % 3 == 0).then_some(known)),
                2 | 3 => routers.arrive(a % FLOWS),
                _ => drop(routers.gateway.turn(usize::from(a % WORKERS))),
            }
        }
        routers.gateway.run_until_idle();
        // All packets wait until now, in the buckets where they are.
        routers.learn(Some(known));
        routers.gateway.run_until_idle();
        let mut seen = [0; FLOWS as usize];
        for frame in routers.gateway.sent(1) {
            let &[.., flow, number] = frame.bytes() else { panic!("no payload") };
            prop_assert_eq!(number, seen[usize::from(flow)], "flow {}", flow);
            seen[usize::from(flow)] += 1;
        }
        prop_assert_eq!(seen, routers.sent);
        prop_assert_eq!(routers.gateway.dropped(), 0);
    }
}

#[test]
fn waiting_packets_move_with_their_bucket_and_leave_nothing_behind() {
    let mut routers = Routers::new();
    (0..FLOWS).for_each(|flow| routers.arrive(flow));
    routers.gateway.run_until_idle();
    for bucket in 0..BUCKETS {
        routers.gateway.start_move(bucket, 1);
        routers.gateway.run_until_idle();
    }
    let waits = |worker: &crate::worker::Worker| {
        let router = worker.path.router().unwrap();
        router.waiting.values().map(|it| (it.frames.len(), it.bytes)).collect::<Vec<_>>()
    };
    let of_each: Vec<_> = routers.gateway.workers.iter().map(waits).collect();
    let bytes = u64::from(FLOWS) * (14 + 20 + 8 + 2 + 128);
    assert_eq!(of_each, [vec![], vec![(usize::from(FLOWS), bytes)], vec![]]);
}
