//! The protocols with little state: a table of their reactions to each situation.

use super::*;
use crate::testing::dialogue::Dialogue;
use wire::{IcmpQuery, QueryKind};

fn advance(mut state: State, transport: Transport, at_secs: u64, before: Before) -> Step {
    let network = Network {
        family: wire::Family::V4,
        source: [0; 16],
        destination: [0; 16],
        offset: 14,
        transport_offset: 34,
        end: 60,
        protocol: 0,
        ttl: 64,
        traffic_class: 0,
        dont_fragment: false,
        fragment: None,
        transport,
    };
    let settings = crate::Settings::default();
    let now = Timestamp::from_secs(at_secs);
    state.advance(
        &Input {
            now,
            network: &network,
            frame: &[],
            timeouts: &settings.timeouts,
            tcp: &settings.tcp,
            dccp_loose: true,
            policy: None,
        },
        before,
    )
}

const UDP: Transport = Transport::Udp { source_port: 1, destination_port: 2, length: 8 };
const ECHO: IcmpQuery =
    IcmpQuery { kind: QueryKind::Echo, reply: false, icmp_type: 8, code: 0, id: 1 };

/// All situations of a connection that was opened at second 100.
fn situations(state: impl Fn() -> State, transport: Transport) -> String {
    let mut lines = String::new();
    for at_secs in [101, 102, 103] {
        for seen_reply in [false, true] {
            for direction in [Direction::Original, Direction::Reply] {
                let before = Before { direction, seen_reply, assured: false };
                let step = advance(state(), transport, at_secs, before);
                let replied = if seen_reply { "replied" } else { "unreplied" };
                lines += &format!("{at_secs} {replied} {direction:?}: {step:?}\n");
            }
        }
    }
    lines
}

#[test]
fn udp_becomes_a_stream_after_two_seconds_of_traffic_both_ways() {
    let opened = || {
        let stream_from = Timestamp::from_secs(102);
        State::Udp(udp::Udp { stream_from })
    };
    insta::assert_snapshot!(situations(opened, UDP));
}

#[test]
fn udp_lite_becomes_a_stream_with_the_first_reply() {
    insta::assert_snapshot!(situations(|| State::UdpLite, UDP));
}

#[test]
fn only_the_covered_part_of_udp_lite_is_verified() {
    let mut dialogue = Dialogue::of(wire::protocol::UDPLITE);
    // Ports, coverage of the header and two bytes, checksum.
    let packet = [0, 0, 0, 0, 0, 10, 0, 0, b'a', b'b', b'c', b'd'];
    let mut frame = dialogue.frame(Direction::Original, &packet);
    let last = frame.len() - 1;
    frame[last] ^= 1;
    assert_eq!(dialogue.sees(&frame), "new, - 30");
    assert_eq!(dialogue.says(Direction::Reply, &packet), "established, - 30");
    assert_eq!(dialogue.says(Direction::Original, &packet), "established, - 120 assured");
    frame[last - 2] ^= 1;
    assert_eq!(dialogue.sees(&frame), "bad_checksum, - 120 assured");
}

#[test]
fn states_are_named_for_the_protocols_that_have_some() {
    let names = |number| state_names(number).collect::<Vec<_>>();
    assert_eq!(names(wire::protocol::TCP).len(), 9);
    assert_eq!(names(wire::protocol::SCTP)[..2], ["CLOSED", "COOKIE_WAIT"]);
    assert_eq!(names(wire::protocol::DCCP)[6], "TIMEWAIT");
    assert_eq!(names(wire::protocol::UDP), [""; 0]);
}

#[test]
fn gre_becomes_a_stream_with_the_first_reply() {
    insta::assert_snapshot!(situations(|| State::Gre, Transport::Gre { version: 1, key: 5 }));
}

#[test]
fn icmp_and_the_rest_have_one_timeout() {
    insta::assert_snapshot!(situations(|| State::Icmp, Transport::IcmpQuery(ECHO)));
    insta::assert_snapshot!(situations(|| State::Generic, Transport::Other));
}

#[test]
fn only_a_question_opens_an_icmp_flow() {
    assert_eq!(icmp::open(ECHO), Ok(()));
    let answer = IcmpQuery { reply: true, icmp_type: 0, ..ECHO };
    assert_eq!(icmp::open(answer), Err(flow::DropReason::IcmpNotQuery.into()));
}
