use flow::Timestamp;
use netio::memory::Source;
use netio::{PortId, Waker};
use rtrb::RingBuffer;
use steer::{HashKind, WorkerId};
use wire::build::PacketBuilder;

use crate::rings::link::{Wakeup, connect};
use crate::testing::one_worker::alone;
use crate::worker::Turn;
use crate::worker::command::Command;
use crate::worker::queue::Queue;
use crate::{Config, REPLAY_SECRET};

const BACKLOG: u64 = 400;

/// The number of these packets that worker 0 refuses. All of them belong to worker 1, which takes
/// none and limits the share of a flow.
fn refused(packets: Vec<Vec<u8>>) -> u64 {
    let mut config = Config::new(REPLAY_SECRET);
    config.hash = HashKind::ToeplitzSymmetric;
    config.settings.set("netdev_max_backlog", BACKLOG).unwrap();
    config.settings.set("flow_limit_cpu_bitmap", 0b10).unwrap();
    let (mut commands, inbox) = RingBuffer::new(4);
    let wakeup = || Wakeup::new(Waker::new().unwrap());
    let mut worker = alone(&config, inbox, WorkerId(1));
    let limits = |consumer| config.settings.steer.backlog_limits(consumer);
    let ends = [(WorkerId(0), &wakeup()), (WorkerId(1), &wakeup())];
    let [(peer, link), _other_end] = connect(2 * BACKLOG as usize, ends[0], ends[1], limits);
    let queue = Queue::new(0, PortId(0), Box::new(Source::packets(PortId(0), packets)));
    commands.push(Command::Connect(peer, Box::new(link))).ok().unwrap();
    commands.push(Command::AddQueue(queue)).ok().unwrap();
    while worker.turn(Timestamp::ZERO) == Turn::Worked {}
    assert_eq!(worker.path.counters.softnet.dropped, 0);
    worker.path.counters.softnet.flow_limit_count
}

fn udp(source_port: u16, destination_port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(
        source_port,
        destination_port,
        &[],
        &mut frame,
    );
    frame
}

#[test]
fn the_flow_limit_tells_flows_of_one_bucket_apart() {
    // The hash depends only on the exclusive or of the ports, so all these flows share a bucket.
    let flows = (0..BACKLOG as u16).map(|n| udp(1000 + n, (1000 + n) ^ 0x55));
    assert_eq!(refused(flows.collect()), 0);
    // One flow gets only 64 places in the upper half of the backlog.
    let one = (0..BACKLOG).map(|_| udp(1000, 2000));
    assert_eq!(refused(one.collect()), BACKLOG / 2 - 64);
}
