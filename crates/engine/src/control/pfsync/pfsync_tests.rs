//! Two bridges that speak pfsync in virtual time, and hosts that talk through either.

use std::ops::ControlFlow;

use conntrack::{Connection, ConnectionRecord, Cursor, Filter, Outline};
use flow::{HashKey, PortPart};
use netio::FramePool;
use netlink::Picture;
use steer::{BucketId, WorkerId};
use sync::pfsync::{Packet, TTL};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use super::*;
use crate::path::change_ring::ChangeStream;
use crate::path::replication::{CopyReport, Passed, ReplicationPiece};
use crate::testing::cable::Cable;
use crate::{Config as EngineConfig, Gateway, PortSetup, Stepper, WorkerCount};

const CLIENT: [u8; 4] = [198, 51, 100, 1];
const SERVER: [u8; 4] = [192, 0, 2, 1];
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

struct Node {
    gateway: Gateway,
    stepper: Stepper,
    pfsync: Pfsync,
    lan: Cable,
    wan: Cable,
}

struct Duo {
    nodes: [Node; 2],
    now: Timestamp,
    pool: FramePool,
    /// Packets that were sent, with the sender.
    sent: Vec<(usize, Vec<u8>)>,
    is_cut: bool,
}

fn creator(number: u32) -> CreatorId {
    CreatorId::new(number).unwrap()
}

impl Node {
    /// Each has a hash secret of its own.
    fn new(number: u32, role: Role, dialect: Dialect, defers: bool, now: Timestamp) -> Self {
        let secret = HashKey(number.into(), 6);
        let workers = WorkerCount::fixed(2).unwrap();
        let config = EngineConfig { workers, ..EngineConfig::new(secret) };
        let (lan, wan) = (Cable::default(), Cable::default());
        let ports = vec![PortSetup::new("lan0", lan.clone()), PortSetup::new("wan0", wan.clone())];
        let stepper = Stepper::new(now);
        let gateway =
            Gateway::stepped(config, ports, &Picture::default(), stepper.clone()).unwrap();
        if defers {
            gateway.set_defers(Some(sync::pfsync::DEFER_TIME));
        }
        let flush_time = 5 * MILLISECOND;
        let speaker = Config { flush_time, defers, ..Config::new(dialect, creator(number)) };
        let pfsync = Pfsync::new(&gateway, speaker, 100, role, now).unwrap();
        Self { gateway, stepper, pfsync, lan, wan }
    }

    /// Its connections, without their timers.
    fn connections(&self) -> Vec<(flow::FlowKey, Option<&'static str>)> {
        let mut found = Vec::new();
        let mut each = |it: Connection| {
            found.push((it.key, it.state));
            ControlFlow::Continue(())
        };
        self.gateway.connections(&Filter::default(), &mut each).unwrap();
        found.sort();
        found
    }

    fn states(&self) -> usize {
        self.pfsync.speaker.states().count()
    }
}

impl Duo {
    fn with(dialect: Dialect, defers: bool) -> Self {
        let now = Timestamp::from_secs(1000);
        let nodes = [
            Node::new(1, Role::Active, dialect, defers, now),
            Node::new(2, Role::Standby, dialect, defers, now),
        ];
        let pool = FramePool::new(0, 0);
        let mut duo = Self { nodes, now, pool, sent: Vec::new(), is_cut: false };
        duo.pass(200 * MILLISECOND);
        duo
    }

    fn new() -> Self {
        Self::with(Dialect::Version1400, false)
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.now.after(MILLISECOND).min(end);
            let now = self.now;
            for at in [0, 1] {
                let Node { gateway, stepper, pfsync, .. } = &mut self.nodes[at];
                stepper.pass_to(now);
                while stepper.take_turns() {}
                let mut sent = Vec::new();
                let mut send = |packet: &[u8]| {
                    sent.push(packet.to_vec());
                    Carried::Sent
                };
                while pfsync.turn(&*gateway, now, &mut send).unwrap() {}
                for packet in sent {
                    if !self.is_cut {
                        let arrival = arrival();
                        self.nodes[1 - at].pfsync.handle(now, &arrival, &packet).unwrap();
                    }
                    self.sent.push((at, packet));
                }
            }
        }
    }

    fn put(&mut self, through: usize, is_reply: bool, bytes: &[u8]) {
        let frame = self.pool.copy_of(bytes).unwrap();
        let node = &self.nodes[through];
        let cable = if is_reply { &node.wan } else { &node.lan };
        cable.input.put([frame]);
        while node.stepper.take_turns() {}
    }

    fn udp(&mut self, through: usize, port: u16, is_reply: bool) {
        let mut bytes = Vec::new();
        match is_reply {
            false => PacketBuilder::v4(CLIENT, SERVER).udp(port, 53, b"question", &mut bytes),
            true => PacketBuilder::v4(SERVER, CLIENT).udp(53, port, b"answer", &mut bytes),
        }
        self.put(through, is_reply, &bytes);
    }

    fn tcp(
        &mut self,
        through: usize,
        port: u16,
        is_reply: bool,
        (flags, numbers): (TcpFlags, [u32; 2]),
    ) {
        let ports = if is_reply { [80, port] } else { [port, 80] };
        let tcp = Tcp {
            source_port: ports[0],
            destination_port: ports[1],
            sequence: numbers[0],
            acknowledgment: numbers[1],
            flags,
            window: 60_000,
            options: &[],
        };
        let (source, destination) = if is_reply { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
        let mut bytes = Vec::new();
        PacketBuilder::v4(source, destination).tcp(&tcp, b"", &mut bytes);
        self.put(through, is_reply, &bytes);
    }

    fn open(&mut self, through: usize, port: u16) {
        let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
        self.tcp(through, port, false, (syn, [1000, 0]));
        self.tcp(through, port, true, (syn.with(ack), [7000, 1001]));
        self.tcp(through, port, false, (ack, [1001, 7001]));
    }

    fn forwarded(&self, through: usize) -> usize {
        let node = &self.nodes[through];
        node.lan.output.take_all().len() + node.wan.output.take_all().len()
    }

    fn set_role(&mut self, at: usize, role: Role) {
        let Node { gateway, pfsync, .. } = &mut self.nodes[at];
        pfsync.set_role(&*gateway, role).unwrap();
    }

    fn assert_alike(&self) {
        assert_eq!(self.nodes[1].connections(), self.nodes[0].connections());
    }
}

fn arrival() -> Arrival {
    let source = std::net::Ipv4Addr::new(203, 0, 113, 1).into();
    Arrival { source, ttl: TTL, is_by_sync_link: true }
}

#[test]
fn connections_and_their_ends_come_to_the_standby_in_every_dialect() {
    for dialect in Dialect::ALL {
        let mut duo = Duo::with(dialect, false);
        duo.open(0, 2001);
        duo.udp(0, 2002, false);
        duo.udp(0, 2002, true);
        duo.pass(20 * MILLISECOND);
        assert_eq!(duo.nodes[1].connections().len(), 2, "{dialect:?}");
        duo.assert_alike();
        // Each has a state in and a state out.
        assert_eq!(duo.nodes[1].states(), 4);
        assert_eq!(duo.nodes[1].pfsync.copies(), 2);
        duo.tcp(0, 2001, false, (TcpFlags::RST.with(TcpFlags::ACK), [1001, 7001]));
        duo.pass(20 * MILLISECOND);
        duo.assert_alike();
        assert_eq!(duo.nodes[0].gateway.delete_connections(&Filter::default()).unwrap(), 2);
        duo.pass(20 * MILLISECOND);
        assert_eq!(duo.nodes[1].connections(), [], "{dialect:?}");
        assert_eq!((duo.nodes[0].states(), duo.nodes[1].states()), (0, 0));
    }
}

#[test]
fn connections_go_on_at_the_standby_with_their_names() {
    let mut duo = Duo::new();
    duo.open(0, 2001);
    duo.pass(20 * MILLISECOND);
    duo.is_cut = true;
    duo.set_role(1, Role::Active);
    duo.pass(20 * MILLISECOND);
    duo.forwarded(1);
    for number in 0..10 {
        duo.tcp(1, 2001, false, (TcpFlags::ACK, [1001 + number, 7001]));
        duo.tcp(1, 2001, true, (TcpFlags::ACK, [7001, 1001 + number]));
    }
    assert_eq!(duo.forwarded(1), 20);
    duo.pass(20 * MILLISECOND);
    // It owns them now, and their states keep the number of the gateway that has created them.
    assert_eq!(duo.nodes[1].pfsync.copies(), 0);
    for (state, is_owned) in duo.nodes[1].pfsync.speaker.states() {
        assert_eq!((state.id().creator, is_owned), (creator(1), true));
    }
    assert_eq!(duo.nodes[1].states(), 2);
}

#[test]
fn a_gateway_that_comes_back_gets_its_connections_from_the_other_one() {
    let mut duo = Duo::new();
    duo.open(0, 2001);
    duo.pass(20 * MILLISECOND);
    duo.set_role(1, Role::Active);
    duo.nodes[0] = Node::new(3, Role::Standby, Dialect::Version1400, false, duo.now);
    duo.pass(3 * SECOND);
    assert_eq!(duo.nodes[0].connections().len(), 1);
    duo.assert_alike();
    assert_eq!((duo.nodes[0].pfsync.copies(), duo.nodes[1].pfsync.copies()), (1, 0));
    // The end comes with a foreign name, too.
    duo.nodes[1].gateway.delete_connections(&Filter::default()).unwrap();
    duo.pass(20 * MILLISECOND);
    assert_eq!(duo.nodes[0].connections(), []);
}

#[test]
fn an_active_gateway_takes_over_from_peers_that_do_not_answer() {
    let mut duo = Duo::new();
    duo.set_role(1, Role::Active);
    duo.pass(20 * MILLISECOND);
    duo.open(0, 2001);
    duo.pass(20 * MILLISECOND);
    // An idle peer answers questions, so it keeps its connections.
    duo.pass(30 * SECOND);
    assert_eq!(duo.nodes[1].pfsync.copies(), 1);
    duo.is_cut = true;
    duo.pass(12 * SECOND);
    assert_eq!(duo.nodes[1].pfsync.copies(), 0);
    assert_eq!(duo.nodes[1].connections().len(), 1);
}

#[test]
fn the_owner_hears_of_packets_that_came_to_its_peer() {
    let mut duo = Duo::new();
    duo.set_role(1, Role::Active);
    duo.pass(20 * MILLISECOND);
    duo.udp(0, 2002, false);
    duo.pass(20 * MILLISECOND);
    duo.udp(1, 2002, true);
    duo.pass(20 * MILLISECOND);
    let replied = |node: &Node| {
        let mut replied = false;
        let mut each = |it: Connection| {
            replied |= it.seen_reply;
            ControlFlow::Continue(())
        };
        node.gateway.connections(&Filter::default(), &mut each).unwrap();
        replied
    };
    assert!(replied(&duo.nodes[0]) && replied(&duo.nodes[1]));
    assert_eq!(duo.nodes[1].pfsync.copies(), 1, "the first one still owns it");
}

#[test]
fn both_decide_alike_when_both_have_opened_a_connection() {
    let mut duo = Duo::new();
    duo.set_role(1, Role::Active);
    duo.pass(20 * MILLISECOND);
    duo.is_cut = true;
    duo.udp(0, 2002, false);
    duo.udp(1, 2002, false);
    duo.pass(20 * MILLISECOND);
    duo.is_cut = false;
    for at in [0, 1] {
        let now = duo.now;
        duo.nodes[at].pfsync.speaker.request_bulk(now);
    }
    duo.pass(2 * SECOND);
    assert_eq!((duo.nodes[0].connections().len(), duo.nodes[1].connections().len()), (1, 1));
    // That of the higher number remains.
    assert_eq!((duo.nodes[0].pfsync.copies(), duo.nodes[1].pfsync.copies()), (1, 0));
    assert_eq!((duo.nodes[0].states(), duo.nodes[1].states()), (2, 2));
}

/// The connections of a gateway as records.
fn records(node: &Node) -> Vec<ConnectionRecord> {
    let mut all = Vec::new();
    let mut each = |record| {
        all.push(record);
        ControlFlow::Continue(())
    };
    node.gateway.export_connections(&mut each).unwrap();
    all
}

/// A connection whose packets go to another server than their client has named.
fn with_another_server(now: Timestamp, port: u16) -> ConnectionRecord {
    let node = Node::new(9, Role::Active, Dialect::Version1400, false, now);
    for server in [SERVER, [192, 0, 2, 9]] {
        let mut bytes = Vec::new();
        PacketBuilder::v4(CLIENT, server).udp(port, 53, b"question", &mut bytes);
        node.lan.input.put([FramePool::new(0, 0).copy_of(&bytes).unwrap()]);
        while node.stepper.take_turns() {}
    }
    let mut outlines = records(&node).into_iter().map(|it| it.outline().unwrap());
    let (one, other) = (outlines.next().unwrap(), outlines.next().unwrap());
    let is_named = |Outline { original, .. }: &Outline| {
        original.key.end(original.sender.opposite()).address[12..] == SERVER
    };
    let (named, real) = if is_named(&one) { (one, other) } else { (other, one) };
    ConnectionRecord::of_outline(&Outline { leaves_as: real.original, ..named }).unwrap()
}

/// The bug of two gateways that translate the same packets to different servers: each gave its own
/// connection up for that of the other one.
#[test]
fn both_decide_alike_when_both_have_chosen_a_server_for_the_same_packets() {
    for chooser in [0, 1] {
        let mut duo = Duo::new();
        duo.set_role(1, Role::Active);
        duo.pass(20 * MILLISECOND);
        let chosen = CopyChange::News(Box::new(with_another_server(duo.now, 2002)));
        duo.nodes[chooser].gateway.change_copies(vec![chosen]).unwrap();
        duo.udp(1 - chooser, 2002, false);
        duo.pass(2 * SECOND);
        // That of the higher number remains.
        let outlines = [0, 1].map(|at| records(&duo.nodes[at])[0].outline().unwrap());
        assert_eq!([0, 1].map(|at| duo.nodes[at].connections().len()), [1, 1]);
        assert_eq!(outlines[0].leaves_as, outlines[1].leaves_as);
        assert_eq!(outlines[0].leaves_as != outlines[0].original, chooser == 1);
        assert_eq!((duo.nodes[0].pfsync.copies(), duo.nodes[1].pfsync.copies()), (1, 0));
        assert_eq!((duo.nodes[0].states(), duo.nodes[1].states()), (2, 2));
        // Its end is the end of both.
        duo.nodes[1].gateway.delete_connections(&Filter::default()).unwrap();
        duo.pass(20 * MILLISECOND);
        assert_eq!([0, 1].map(|at| duo.nodes[at].connections().len()), [0, 0]);
    }
}

#[test]
fn a_gateway_on_standby_leaves_its_connections_to_its_peer() {
    let mut duo = Duo::new();
    duo.open(0, 2001);
    duo.pass(20 * MILLISECOND);
    duo.set_role(1, Role::Active);
    duo.set_role(0, Role::Standby);
    duo.pass(100 * MILLISECOND);
    assert_eq!((duo.nodes[0].pfsync.copies(), duo.nodes[1].pfsync.copies()), (1, 0));
    // The new owner ends it.
    duo.nodes[1].gateway.delete_connections(&Filter::default()).unwrap();
    duo.pass(20 * MILLISECOND);
    assert_eq!(duo.nodes[0].connections(), []);
}

#[test]
fn a_first_packet_waits_until_the_peer_has_its_connection() {
    let mut duo = Duo::with(Dialect::Version1400, true);
    duo.udp(0, 2001, false);
    duo.pass(30 * MILLISECOND);
    duo.forwarded(0);
    duo.udp(0, 2002, false);
    assert_eq!(duo.forwarded(0), 0, "it waits");
    duo.pass(10 * MILLISECOND);
    assert_eq!(duo.forwarded(0), 1);
    assert_eq!(duo.nodes[1].connections().len(), 2);
    let deferral = duo.nodes[0].gateway.status().unwrap().totals().deferral;
    assert!(deferral.acknowledged >= 1, "{deferral:?}");
}

#[test]
fn a_packet_that_is_refused_changes_nothing() {
    let mut duo = Duo::new();
    duo.open(0, 2001);
    duo.pass(20 * MILLISECOND);
    let (_, insert) = duo.sent.iter().rev().find(|(at, _)| *at == 0).unwrap().clone();
    assert!(Packet::decode(Dialect::Version1400, &insert).is_ok());
    let mut other = Duo::new();
    let now = other.now;
    for ttl in [0, 64, 254] {
        let arrival = Arrival { ttl, ..arrival() };
        let refused = other.nodes[1].pfsync.handle(now, &arrival, &insert);
        assert_eq!(refused, Err(Refusal::LowTtl));
    }
    for end in 0..insert.len() {
        assert!(other.nodes[1].pfsync.handle(now, &arrival(), &insert[..end]).is_err());
    }
    other.pass(20 * MILLISECOND);
    assert_eq!(other.nodes[1].connections(), []);
    assert_eq!(other.nodes[1].pfsync.refusals().of(Refusal::LowTtl), 3);
}

/// Workers that do not answer.
struct Hanging;

impl Connections for Hanging {
    fn follow_changes(&self) -> Result<ChangeStream, Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }

    fn unfollow_changes(&self) -> Result<(), Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }

    fn set_stands_by(&self, _: bool) -> Result<(), Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }

    fn connection_count(&self) -> Result<u64, Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }

    fn tell_connections(
        &self,
        _: BucketId,
        _: Cursor,
    ) -> Result<Option<ReplicationPiece>, Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }

    fn change_copies(&self, _: Vec<CopyChange>) -> Result<CopyReport, Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }

    fn adopt_connections(&self, _: BucketId, _: Cursor) -> Result<Option<Passed>, Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }

    fn give_connections_away(
        &self,
        _: BucketId,
        _: Cursor,
    ) -> Result<Option<Passed>, Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }

    fn divide_ports(&self, _: PortPart) -> Result<(), Unresponsive> {
        Err(Unresponsive(WorkerId(0)))
    }
}

#[test]
fn nothing_that_peers_have_told_is_lost_while_workers_hang() {
    let mut duo = Duo::new();
    duo.open(0, 2001);
    duo.pass(20 * MILLISECOND);
    assert_eq!(duo.nodes[1].connections().len(), 1);
    duo.is_cut = true;
    let before = duo.sent.len();
    duo.nodes[0].gateway.delete_connections(&Filter::default()).unwrap();
    duo.open(0, 2002);
    duo.pass(20 * MILLISECOND);
    let told: Vec<_> = duo.sent.split_off(before).into_iter().map(|(_, packet)| packet).collect();
    let now = duo.now;
    let Node { pfsync, .. } = &mut duo.nodes[1];
    told.iter().for_each(|packet| pfsync.handle(now, &arrival(), packet).unwrap());
    for _ in 0..3 {
        assert!(pfsync.turn(&Hanging, now, |_| Carried::Sent).is_err());
    }
    duo.pass(20 * MILLISECOND);
    duo.assert_alike();
    assert_eq!(duo.nodes[1].connections().len(), 1);
}

#[test]
fn connections_of_which_pfsync_can_not_tell_stay_where_they_are() {
    let mut duo = Duo::new();
    let mut bytes = Vec::new();
    // GRE: parts of a tunnel are in several buckets.
    PacketBuilder::v4(CLIENT, SERVER).raw(47, &[0, 0, 8, 0, 1, 2, 3, 4], &mut bytes);
    duo.put(0, false, &bytes);
    duo.pass(20 * MILLISECOND);
    let known = duo.nodes[0].connections().len();
    assert_eq!(duo.nodes[1].connections().len(), 0);
    assert!(duo.nodes[0].pfsync.counters().untold.get(&Untold::Protocol).copied() >= Some(1));
    // On standby it keeps them, because nobody else ends them.
    duo.set_role(0, Role::Standby);
    duo.pass(20 * MILLISECOND);
    assert_eq!(duo.nodes[0].connections().len(), known);
    duo.now = duo.now.after(700 * SECOND);
    duo.pass(2 * SECOND);
    assert_eq!(duo.nodes[0].connections(), []);
}

#[test]
fn a_socket_without_room_loses_nothing() {
    let mut duo = Duo::new();
    duo.open(0, 2001);
    duo.is_cut = true;
    let Node { gateway, stepper, pfsync, .. } = &mut duo.nodes[0];
    let mut offered = Vec::new();
    for step in 1..40 {
        let now = duo.now.after(step * MILLISECOND);
        stepper.pass_to(now);
        while stepper.take_turns() {}
        let send = |packet: &[u8]| {
            offered.push(packet.to_vec());
            if step < 30 { Carried::Later } else { Carried::Sent }
        };
        let _ = pfsync.turn(&*gateway, now, send).unwrap();
    }
    let (last, before) = offered.split_last().unwrap();
    assert!(before.len() > 10 && before.iter().all(|it| it == last), "the same packet again");
}
