use proptest::prelude::*;
use wire::protocol;

use super::*;
use crate::Direction::{Original as Client, Reply as Server};
use crate::testing::dialogue::{Dialogue, play};
use PacketType as Type;

/// A packet with sequence number `sequence`, acknowledging `acknowledgment`.
fn packet(kind: Type, sequence: u64, acknowledgment: u64) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 0, 0, 0, 0, (kind as u8) << 1 | 1, 0];
    bytes.extend(&sequence.to_be_bytes()[2..]);
    if !matches!(kind, Type::Request | Type::Data) {
        bytes.extend(acknowledgment.to_be_bytes());
    }
    bytes.extend([0; 4]);
    bytes[4] = (bytes.len() / 4) as u8;
    bytes
}

fn plain(kind: Type) -> Vec<u8> {
    packet(kind, 0, 0)
}

fn set_up(handshake: Type) -> Vec<(Direction, Vec<u8>, &'static str)> {
    vec![
        (Client, packet(Type::Request, 1 << 40, 0), "new, REQUEST 240"),
        (Server, packet(Type::Response, 7 << 40, 1 << 40), "established, RESPOND 480"),
        (Client, packet(handshake, 1, 7 << 40), "established, PARTOPEN 480 assured"),
        (Server, plain(Type::Data), "established, OPEN 43200 assured"),
    ]
}

fn connected() -> Dialogue {
    let mut dialogue = Dialogue::of(protocol::DCCP);
    play(&mut dialogue, &set_up(Type::Ack));
    dialogue
}

const OPEN: &str = "established, OPEN 43200 assured";

#[test]
fn a_connection_from_request_to_reset() {
    let lines = [
        (Client, plain(Type::Data), OPEN),
        (Client, plain(Type::Sync), OPEN),
        (Server, plain(Type::SyncAck), OPEN),
        (Server, plain(Type::CloseReq), "established, CLOSEREQ 64 assured"),
        (Client, plain(Type::Close), "established, CLOSING 64 assured"),
        (Client, plain(Type::Close), "established, CLOSING 64 assured"),
        (Server, plain(Type::Reset), "established, TIMEWAIT 240 assured"),
        (Client, plain(Type::Data), "protocol_state, TIMEWAIT 240 assured"),
    ];
    let mut dialogue = connected();
    play(&mut dialogue, &lines);
    dialogue.wait(100);
    let again = dialogue.says(Server, &plain(Type::Reset));
    assert_eq!(again, "established, TIMEWAIT 140 assured", "not refreshed");
    dialogue.wait(140);
    assert_eq!(dialogue.connection(), None);
}

#[test]
fn data_may_complete_the_handshake() {
    play(&mut Dialogue::of(protocol::DCCP), &set_up(Type::DataAck));
}

#[test]
fn only_the_acknowledged_response_assures() {
    let mut dialogue = Dialogue::of(protocol::DCCP);
    for (from, packet, _) in &set_up(Type::Ack)[..2] {
        dialogue.says(*from, packet);
    }
    let wrong = packet(Type::Ack, 1, 7);
    assert_eq!(dialogue.says(Client, &wrong), "established, PARTOPEN 480");
}

#[test]
fn a_reset_is_the_whole_answer_to_a_request() {
    let mut dialogue = Dialogue::of(protocol::DCCP);
    dialogue.says(Client, &plain(Type::Request));
    assert_eq!(dialogue.says(Server, &plain(Type::Reset)), "established, none");
}

#[test]
fn each_state_has_its_tunable_timeout() {
    for (steps, state) in ["request", "respond", "partopen", "open"].iter().enumerate() {
        let mut dialogue = Dialogue::of(protocol::DCCP);
        let name = format!("nf_conntrack_dccp_timeout_{state}");
        dialogue.settings.set(&name, 77).unwrap();
        for (from, packet, _) in &set_up(Type::Ack)[..=steps] {
            dialogue.says(*from, packet);
        }
        assert_eq!(dialogue.connection().unwrap().timeout_s, 77, "{state}");
    }
}

#[test]
fn a_connection_is_picked_up_where_that_is_allowed() {
    for kind in Type::ALL {
        for loose in [0, 1] {
            let mut dialogue = Dialogue::of(protocol::DCCP);
            dialogue.settings.set("nf_conntrack_dccp_loose", loose).unwrap();
            let said = dialogue.says(Client, &plain(kind));
            let midway = matches!(kind, Type::Data | Type::Ack | Type::DataAck);
            let expected = match (kind, loose) {
                (Type::Request, _) => "new, REQUEST 240",
                (_, 1) if midway => "new, OPEN 43200",
                _ => "protocol_state, none",
            };
            assert_eq!(said, expected, "{kind:?}");
        }
    }
    // The server spoke first: its CloseReq shows that it is the server.
    let lines = [
        (Client, plain(Type::Data), "new, OPEN 43200"),
        (Server, plain(Type::Data), "established, OPEN 43200"),
        (Client, plain(Type::Data), OPEN),
        (Client, plain(Type::CloseReq), "established, CLOSEREQ 64 assured"),
        (Client, plain(Type::Close), "protocol_state, CLOSEREQ 64 assured"),
        (Server, plain(Type::Close), "established, CLOSING 64 assured"),
    ];
    play(&mut Dialogue::of(protocol::DCCP), &lines);
}

#[test]
fn an_ignored_request_counts_when_it_is_answered() {
    let mut dialogue = connected();
    let lines = [
        (Server, plain(Type::Request), OPEN),
        (Client, packet(Type::Response, 9, 0), "established, RESPOND 480 assured"),
        // The former server is the client now.
        (Server, packet(Type::Ack, 0, 9), "established, PARTOPEN 480 assured"),
        (Client, plain(Type::CloseReq), "established, CLOSEREQ 64 assured"),
    ];
    play(&mut dialogue, &lines);
    let response = (Server, packet(Type::Response, 9, 0), OPEN);
    play(&mut connected(), &[response]);
}

#[test]
fn after_the_end_a_request_opens_anew_from_either_side() {
    for from in [Client, Server] {
        let mut dialogue = connected();
        dialogue.says(Client, &plain(Type::Reset));
        assert_eq!(dialogue.says(from, &plain(Type::Request)), "new, REQUEST 240");
        let answer = packet(Type::Response, 3, 0);
        assert_eq!(dialogue.says(from.reversed(), &answer), "established, RESPOND 480");
    }
}

#[test]
fn malformed_headers_change_nothing() {
    let mut dialogue = connected();
    let mut reserved = plain(Type::Reset);
    reserved[8] = 12 << 1 | 1;
    let mut short_numbers = plain(Type::Reset);
    short_numbers[8] &= !1;
    let mut cut = plain(Type::Reset);
    cut[4] = 6;
    for packet in [reserved, short_numbers, cut] {
        let said = dialogue.says(Client, &packet);
        assert_eq!(said, "malformed_dccp, OPEN 43200 assured", "{packet:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn invalid_packets_change_nothing(
        packets in proptest::collection::vec((any::<bool>(), 0usize..10, 0u64..3), 1..60),
    ) {
        let mut dialogue = Dialogue::of(protocol::DCCP);
        for (from_client, kind, number) in packets {
            let before = dialogue.connection();
            let from = if from_client { Client } else { Server };
            let said = dialogue.says(from, &packet(Type::ALL[kind], number, number));
            if said.starts_with("protocol_state") {
                prop_assert_eq!(dialogue.connection(), before, "{}", said);
            }
            dialogue.wait(1);
        }
    }
}

/// It has continued in another zone, where it was opened anew.
#[test]
fn a_connection_that_comes_back_to_its_zone_is_picked_up() {
    let over = [
        (Server, plain(Type::Reset), "established, TIMEWAIT 240 assured"),
        (Client, plain(Type::Data), "protocol_state, TIMEWAIT 240 assured"),
    ];
    let mut dialogue = connected();
    play(&mut dialogue, &over);
    dialogue.map_epoch = 1;
    play(&mut dialogue, &[(Client, plain(Type::Data), OPEN), (Server, plain(Type::Ack), OPEN)]);
    // It is not picked up if a restart would refuse it too.
    let mut dialogue = connected();
    dialogue.settings.set("nf_conntrack_dccp_loose", 0).unwrap();
    play(&mut dialogue, &over);
    dialogue.map_epoch = 1;
    play(&mut dialogue, &over[1..]);
}
