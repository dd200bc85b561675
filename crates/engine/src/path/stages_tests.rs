use flow::{DropReason, HashKey};
use netio::{Frame, FramePool};
use ruleset::ValidRuleset;
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, protocol};

use super::observer::take;
use super::*;
use crate::Config;
use crate::egress::Mode;
use crate::path::rules::ruleset::Rules;
use crate::path::step::Wait;
use crate::testing::one_worker::Rig;
use crate::testing::router::{INSIDE, OUTSIDE, STATIONS, gateway};
use crate::testing::rules::one_chain;
use crate::worker::command::Command;

const SYN: u8 = 2;
const ACK: u8 = 16;
const OPEN_80: &str = r#"{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":80}},
    {"accept":null}"#;
const KNOWN: &str = r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established"]}},
    {"accept":null}"#;

/// The stages of all packets behind tracking, in their order.
const BEHIND: [Stage; 14] = [
    Stage::NumbersIn,
    Stage::Track,
    Stage::Destination,
    Stage::Route,
    Stage::ForwardRules,
    Stage::Source,
    Stage::Promise,
    Stage::Inner,
    Stage::Fit,
    Stage::Confirm,
    Stage::Record,
    Stage::NumbersOut,
    Stage::ProxiedOut,
    Stage::Replies,
];
/// The stages that take frames.
const OF_FRAMES: [Stage; 3] = [Stage::Arrive, Stage::Dissect, Stage::Steer];
/// The stages in front of tracking, without a reply of rules.
const IN_FRONT: [Stage; 8] = [
    Stage::FastPath,
    Stage::Bucket,
    Stage::Sender,
    Stage::Alias,
    Stage::Reassembly,
    Stage::Host,
    Stage::RawRules,
    Stage::Proxied,
];

/// A bridge that judges by this ruleset.
fn bridge(ruleset: ValidRuleset) -> Rig {
    let mut rig = Rig::new(&Config::new(HashKey(1, 2)));
    let names = ["lan0".to_owned(), "wan0".to_owned()];
    let rules = Rules::prepare(ruleset, Mode::Bridge, 7, &names).unwrap().load(1, rig.now);
    assert!(rig.commands.push(Command::Rules(Some(rules.for_worker()))).is_ok());
    rig.exchange(0, []);
    rig
}

/// A segment of the connection from 192.0.2.1 to this port of 198.51.100.2, or back.
fn segment(back: bool, port: u16, flags: u8, (sequence, acknowledgment): (u32, u32)) -> Frame {
    let (client, server) = ([192, 0, 2, 1], [198, 51, 100, 2]);
    let (from, to) = if back { (server, client) } else { (client, server) };
    let (source_port, destination_port) = if back { (port, 4000) } else { (4000, port) };
    let tcp = Tcp {
        source_port,
        destination_port,
        sequence,
        acknowledgment,
        flags: TcpFlags(flags),
        window: 5000,
        options: &[],
    };
    let mut bytes = Vec::new();
    PacketBuilder::v4(from, to).tcp(&tcp, &[], &mut bytes);
    FramePool::new(0, 0).copy_of(&bytes).unwrap()
}

/// The stages of what a port receives, each with the end of its packet.
fn stages(rig: &mut Rig, port: usize, frame: Frame) -> Vec<(Stage, Option<End>)> {
    take();
    rig.exchange(port, [frame]);
    take()
}

fn passed(seen: &[(Stage, Option<End>)]) -> Vec<Stage> {
    seen.iter().map(|(stage, _)| *stage).collect()
}

#[test]
fn the_first_packets_of_a_connection_take_every_stage_and_the_next_ones_the_fast_path() {
    let mut rig = bridge(one_chain("forward", 0, "drop", &[KNOWN, OPEN_80]));
    let all = [&OF_FRAMES[..], &IN_FRONT, &BEHIND].concat();
    for (port, flags, numbers) in
        [(0, SYN, (100, 0)), (1, SYN | ACK, (500, 101)), (0, ACK, (101, 501)), (1, ACK, (501, 101))]
    {
        let seen = stages(&mut rig, port, segment(port == 1, 80, flags, numbers));
        assert_eq!(passed(&seen), all);
        assert!(seen.iter().all(|(_, end)| end.is_none()), "{seen:?}");
    }
    for port in [0, 1] {
        let (seq, ack) = if port == 0 { (101, 501) } else { (501, 101) };
        let seen = stages(&mut rig, port, segment(port == 1, 80, ACK, (seq, ack)));
        assert_eq!(passed(&seen), [&OF_FRAMES[..], &[Stage::FastPath]].concat());
        assert_eq!(seen.last(), Some(&(Stage::FastPath, Some(End::Forward))));
    }
}

#[test]
fn a_packet_that_rules_refuse_ends_at_the_stage_of_their_chain() {
    for (hook, priority, last) in [
        ("prerouting", -300, Stage::RawRules),
        ("prerouting", -150, Stage::Destination),
        ("forward", 0, Stage::ForwardRules),
        ("postrouting", 0, Stage::Source),
    ] {
        let mut rig = bridge(one_chain(hook, priority, "drop", &[OPEN_80]));
        let seen = stages(&mut rig, 0, segment(false, 22, SYN, (100, 0)));
        let Some((stage, Some(End::Drop(cause, None)))) = seen.last() else { panic!("{seen:?}") };
        assert_eq!((*stage, cause.reason()), (last, DropReason::PolicyRefused));
        assert_eq!(rig.connections(), 0, "the driver withdraws the connection");
        assert!(passed(&seen).is_sorted(), "{seen:?}");
    }
}

#[test]
fn a_fragment_waits_at_reassembly_and_its_datagram_begins_again() {
    let mut rig = bridge(one_chain("forward", 0, "accept", &[]));
    let mut datagram = Vec::new();
    let payload = [7; 1600];
    datagram.extend([0x0f, 0xa0, 0, 80, 6, 0x48, 0, 0]);
    datagram.extend(payload);
    let mut fragments = PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2])
        .fragments(protocol::UDP, &datagram, 800)
        .into_iter()
        .map(|bytes| FramePool::new(0, 0).copy_of(&bytes).unwrap());
    let first = stages(&mut rig, 0, fragments.next().unwrap());
    assert_eq!(first.last(), Some(&(Stage::Reassembly, Some(End::Wait(Wait::Datagram)))));
    for fragment in fragments {
        let seen = stages(&mut rig, 0, fragment);
        let at = seen.iter().position(|it| *it == (Stage::Reassembly, Some(End::Steer(None))));
        let Some(at) = at else { continue };
        let all = [&IN_FRONT[..], &BEHIND[..]].concat();
        assert_eq!(passed(&seen[at + 1..]), all);
        return;
    }
    panic!("the datagram is complete");
}

/// The last stage of a frame that reaches no bucket, and its end.
fn end_in_front(seen: &[(Stage, Option<End>)]) -> (Stage, End) {
    let (last, before) = seen.split_last().unwrap();
    assert!(before.iter().all(|(_, end)| end.is_none()), "{seen:?}");
    assert!(OF_FRAMES.starts_with(&passed(seen)), "{seen:?}");
    (last.0, last.1.unwrap())
}

#[test]
fn the_observer_hears_of_frames_that_end_before_they_are_steered() {
    let frame = |bytes: &[u8]| FramePool::new(0, 0).copy_of(bytes).unwrap();
    let drop = |reason: DropReason| End::Drop(reason.into(), None);
    let header = |to: [u8; 6], ethertype: [u8; 2]| [&to[..], &INSIDE, &ethertype].concat();
    let mut rig = bridge(one_chain("forward", 0, "accept", &[]));
    for (ethertype, end) in [
        ([8, 6], End::Forward),
        ([0x12, 0x34], drop(DropReason::EthertypeRefused)),
        ([8, 0], drop(DropReason::MalformedIpv4)),
    ] {
        let bytes = [header(OUTSIDE, ethertype), vec![0; 46]].concat();
        let seen = stages(&mut rig, 0, frame(&bytes));
        assert_eq!(end_in_front(&seen), (Stage::Dissect, end));
    }
    let mut router = gateway(1);
    for (to, ethertype, end) in [
        (OUTSIDE, [8, 0], (Stage::Arrive, drop(DropReason::OtherStation))),
        ([0xff; 6], [8, 6], (Stage::Arrive, End::Host)),
        (STATIONS[0], [8, 6], (Stage::Dissect, End::Host)),
    ] {
        take();
        router.arrive(0, &[header(to, ethertype), vec![0; 46]].concat());
        router.run_until_idle();
        assert_eq!(end_in_front(&take()), end);
    }
}
