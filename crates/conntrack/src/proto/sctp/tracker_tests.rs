use proptest::prelude::*;
use wire::build::sctp::{chunk, init, packet};
use wire::protocol;
use wire::sctp::chunk_type as of;

use crate::Direction::{self, Original as Client, Reply as Server};
use crate::testing::dialogue::{Dialogue, play};

/// Tags that packets to the client and to the server carry.
const TO_CLIENT: u32 = 0xc1;
const TO_SERVER: u32 = 0x5e;

fn one(tag: u32, kind: u8) -> Vec<u8> {
    packet(tag, &[chunk(kind, 0, b"value")])
}

fn set_up() -> Vec<(Direction, Vec<u8>, &'static str)> {
    vec![
        (Client, init(0, of::INIT, TO_CLIENT), "new, CLOSED 10"),
        (Server, init(TO_CLIENT, of::INIT_ACK, TO_SERVER), "established, COOKIE_WAIT 3"),
        (Client, one(TO_SERVER, of::COOKIE_ECHO), "established, COOKIE_ECHOED 3"),
        (Server, one(TO_CLIENT, of::COOKIE_ACK), "established, ESTABLISHED 210 assured"),
    ]
}

/// A dialogue with an association.
fn associated() -> Dialogue {
    let mut dialogue = Dialogue::of(protocol::SCTP);
    play(&mut dialogue, &set_up());
    dialogue
}

const UP: &str = "established, ESTABLISHED 210 assured";
const WRONG_TAG: &str = "verification_tag, ESTABLISHED 210 assured";

#[test]
fn an_association_from_init_to_shutdown_complete() {
    let mut dialogue = associated();
    let last = "established, SHUTDOWN_ACK_SENT 3 assured";
    let lines = [
        (Client, packet(TO_SERVER, &[chunk(of::SACK, 0, &[0; 12]), chunk(0, 3, b"data")]), UP),
        (Server, one(TO_CLIENT, of::SACK), UP),
        (Server, one(TO_CLIENT, of::HEARTBEAT), UP),
        (Client, one(TO_SERVER, of::HEARTBEAT_ACK), UP),
        (Client, one(TO_SERVER, of::SHUTDOWN), "established, SHUTDOWN_SENT 3 assured"),
        (Server, one(TO_CLIENT, of::DATA), "established, SHUTDOWN_SENT 3 assured"),
        (Server, one(TO_CLIENT, of::SHUTDOWN_ACK), last),
        (Client, one(TO_SERVER, of::SHUTDOWN_COMPLETE), "established, CLOSED 10 assured"),
    ];
    play(&mut dialogue, &lines);
    dialogue.wait(10);
    assert_eq!(dialogue.connection(), None);
}

#[test]
fn the_server_may_shut_down_as_well() {
    let lines = [
        (Server, one(TO_CLIENT, of::SHUTDOWN), "established, SHUTDOWN_RECD 3 assured"),
        (Client, one(TO_SERVER, of::SHUTDOWN_ACK), "established, SHUTDOWN_ACK_SENT 3 assured"),
        (Server, one(TO_CLIENT, of::SHUTDOWN_COMPLETE), "established, CLOSED 10 assured"),
    ];
    play(&mut associated(), &lines);
}

#[test]
fn each_state_has_its_tunable_timeout() {
    for (steps, state) in
        ["closed", "cookie_wait", "cookie_echoed", "established"].iter().enumerate()
    {
        let mut dialogue = Dialogue::of(protocol::SCTP);
        let name = format!("nf_conntrack_sctp_timeout_{state}");
        dialogue.settings.set(&name, 77).unwrap();
        for (from, packet, _) in &set_up()[..=steps] {
            dialogue.says(*from, packet);
        }
        assert_eq!(dialogue.connection().unwrap().timeout_s, 77, "{state}");
        dialogue.wait(77);
        assert_eq!(dialogue.connection(), None);
    }
}

#[test]
fn tags_must_fit_their_direction() {
    let mut dialogue = associated();
    for kind in [of::DATA, of::SACK, of::SHUTDOWN, of::SHUTDOWN_ACK, of::ABORT, of::ERROR, 63] {
        for wrong in [0, TO_CLIENT, 7] {
            assert_eq!(dialogue.says(Client, &one(wrong, kind)), WRONG_TAG, "{kind} {wrong}");
        }
    }
    let with_tag = init(TO_SERVER, of::INIT, 9);
    assert_eq!(dialogue.says(Client, &with_tag), WRONG_TAG, "only zero with an INIT");
    assert_eq!(dialogue.says(Client, &one(TO_SERVER, of::DATA)), UP);
}

#[test]
fn an_abort_has_its_own_tag_or_reflects_one() {
    let abort = |tag, flags| packet(tag, &[chunk(of::ABORT, flags, &[])]);
    for (tag, flags, fits) in
        [(TO_SERVER, 0, true), (TO_CLIENT, 1, true), (TO_SERVER, 1, false), (TO_CLIENT, 0, false)]
    {
        let expected = if fits { "established, CLOSED 10 assured" } else { WRONG_TAG };
        assert_eq!(associated().says(Client, &abort(tag, flags)), expected, "{tag} {flags}");
    }
    // The answer to an INIT, without a COOKIE ECHO after it.
    let mut dialogue = Dialogue::of(protocol::SCTP);
    dialogue.says(Client, &init(0, of::INIT, TO_CLIENT));
    assert_eq!(dialogue.says(Server, &abort(TO_CLIENT, 0)), "established, CLOSED 10");
}

#[test]
fn after_the_end_an_init_opens_anew_from_either_side() {
    let mut dialogue = associated();
    dialogue.says(Server, &one(TO_CLIENT, of::ABORT));
    let opened = dialogue.says(Server, &init(0, of::INIT, 5));
    assert_eq!(opened, "new, CLOSED 10");
    let original = dialogue.connection().unwrap().original;
    assert_eq!(original.source.to_string(), "198.51.100.2");
    // The former server is the client now.
    let lines = [
        (Client, init(5, of::INIT_ACK, 6), "established, COOKIE_WAIT 3"),
        (Server, one(6, of::COOKIE_ECHO), "established, COOKIE_ECHOED 3"),
        (Client, one(5, of::COOKIE_ACK), UP),
    ];
    play(&mut dialogue, &lines);
}

#[test]
fn a_restart_keeps_the_association_until_the_cookie() {
    let mut dialogue = associated();
    let lines = [
        (Client, init(0, of::INIT, 0xc2), UP),
        (Server, one(TO_CLIENT, of::DATA), UP),
        (Server, init(0xc2, of::INIT_ACK, 0x52), UP),
        (Client, one(0x52, of::COOKIE_ECHO), UP),
        (Server, one(TO_CLIENT, of::DATA), UP),
        (Server, one(0xc2, of::COOKIE_ACK), UP),
        (Server, one(0xc2, of::DATA), UP),
        (Client, one(0x52, of::DATA), UP),
        (Server, one(TO_CLIENT, of::DATA), WRONG_TAG),
        (Client, one(TO_SERVER, of::DATA), WRONG_TAG),
    ];
    play(&mut dialogue, &lines);
}

#[test]
fn forged_inits_do_not_cut_an_association_off() {
    let mut dialogue = associated();
    for forged in 1000..1010 {
        assert_eq!(dialogue.says(Client, &init(0, of::INIT, forged)), UP);
        assert_eq!(dialogue.says(Server, &init(0, of::INIT, forged)), UP);
        assert_eq!(dialogue.says(Server, &one(TO_CLIENT, of::DATA)), UP);
        assert_eq!(dialogue.says(Client, &one(TO_SERVER, of::DATA)), UP);
    }
    assert_eq!(dialogue.says(Client, &init(7, of::INIT_ACK, 8)), WRONG_TAG);
}

#[test]
fn inits_may_cross() {
    let mut dialogue = Dialogue::of(protocol::SCTP);
    let lines = [
        (Client, init(0, of::INIT, TO_CLIENT), "new, CLOSED 10"),
        (Server, init(0, of::INIT, TO_SERVER), "established, CLOSED 10"),
        (Client, init(TO_SERVER, of::INIT_ACK, 99), "verification_tag, CLOSED 10"),
        (Client, init(TO_SERVER, of::INIT_ACK, TO_CLIENT), "established, CLOSED 10"),
        (Server, init(TO_CLIENT, of::INIT_ACK, TO_SERVER), "established, COOKIE_WAIT 3"),
        (Server, one(TO_CLIENT, of::COOKIE_ECHO), "established, COOKIE_ECHOED 3"),
        (Client, one(TO_SERVER, of::COOKIE_ECHO), "established, COOKIE_ECHOED 3"),
        (Client, one(TO_SERVER, of::COOKIE_ACK), UP),
        (Server, one(TO_CLIENT, of::COOKIE_ACK), UP),
    ];
    play(&mut dialogue, &lines);
}

#[test]
fn repeated_inits_do_not_keep_an_entry_and_either_answer_is_good() {
    let mut dialogue = Dialogue::of(protocol::SCTP);
    assert_eq!(dialogue.says(Client, &init(0, of::INIT, TO_CLIENT)), "new, CLOSED 10");
    dialogue.wait(4);
    assert_eq!(dialogue.says(Client, &init(0, of::INIT, TO_CLIENT)), "new, CLOSED 6");
    let lines = [
        (Server, init(TO_CLIENT, of::INIT_ACK, TO_SERVER), "established, COOKIE_WAIT 3"),
        (Server, init(TO_CLIENT, of::INIT_ACK, 0x77), "established, COOKIE_WAIT 3"),
        (Client, one(TO_SERVER, of::COOKIE_ECHO), "established, COOKIE_ECHOED 3"),
        (Server, one(TO_CLIENT, of::COOKIE_ACK), UP),
        (Client, one(0x77, of::DATA), WRONG_TAG),
    ];
    play(&mut dialogue, &lines);
}

#[test]
fn another_path_is_opened_by_its_heartbeats() {
    let mut dialogue = Dialogue::of(protocol::SCTP);
    let lines = [
        (Client, one(TO_SERVER, of::HEARTBEAT), "new, HEARTBEAT_SENT 30"),
        (Server, one(TO_CLIENT, of::DATA), "verification_tag, HEARTBEAT_SENT 30"),
        (Server, init(0, of::INIT, 3), "protocol_state, HEARTBEAT_SENT 30"),
        (Server, one(TO_CLIENT, of::HEARTBEAT_ACK), UP),
        (Client, one(TO_SERVER, of::DATA), UP),
        (Server, one(TO_CLIENT, of::DATA), UP),
    ];
    play(&mut dialogue, &lines);
}

#[test]
fn heartbeats_of_both_ends_correct_the_tags() {
    let mut dialogue = associated();
    let with_data = packet(8, &[chunk(of::HEARTBEAT, 0, b"1234"), chunk(of::DATA, 0, b"1234")]);
    let lines = [
        (Client, with_data, WRONG_TAG),
        (Server, one(9, of::HEARTBEAT_ACK), WRONG_TAG),
        (Client, one(8, of::HEARTBEAT), UP),
        (Client, one(8, of::HEARTBEAT_ACK), WRONG_TAG),
        (Client, one(8, of::DATA), WRONG_TAG),
        (Server, one(9, of::HEARTBEAT_ACK), UP),
        (Client, one(8, of::DATA), UP),
        (Server, one(9, of::DATA), UP),
        (Client, one(TO_SERVER, of::DATA), WRONG_TAG),
    ];
    play(&mut dialogue, &lines);
}

#[test]
fn a_shutdown_ack_out_of_the_blue_is_answered_with_its_tag() {
    let mut dialogue = Dialogue::of(protocol::SCTP);
    let complete = |flags| packet(3, &[chunk(of::SHUTDOWN_COMPLETE, flags, &[])]);
    let lines = [
        (Client, one(3, of::SHUTDOWN_ACK), "new, SHUTDOWN_ACK_SENT 3"),
        (Server, complete(0), "verification_tag, SHUTDOWN_ACK_SENT 3"),
        (Server, complete(1), "established, CLOSED 10"),
    ];
    play(&mut dialogue, &lines);
    // The receiver is opening another association.
    let mut dialogue = Dialogue::of(protocol::SCTP);
    dialogue.says(Client, &init(0, of::INIT, TO_CLIENT));
    assert_eq!(dialogue.says(Server, &one(3, of::SHUTDOWN_ACK)), "established, CLOSED 10");
}

#[test]
fn only_four_kinds_of_chunk_come_first() {
    let firsts = [of::INIT, of::HEARTBEAT, of::HEARTBEAT_ACK, of::SHUTDOWN_ACK];
    for kind in 0..=u8::MAX {
        for tag in [0, 7] {
            let mut dialogue = Dialogue::of(protocol::SCTP);
            let said = dialogue.says(Client, &init(tag, kind, 8));
            let opens = firsts.contains(&kind) && (kind == of::INIT) == (tag == 0);
            assert_eq!(said.starts_with("new"), opens, "{kind} with tag {tag}: {said}");
        }
    }
}

#[test]
fn chunks_that_can_not_stand_together_are_refused() {
    let alone = chunk(of::INIT, 0, &[1; 16]);
    let data = || chunk(of::DATA, 0, b"data");
    let echo = || chunk(of::COOKIE_ECHO, 0, b"cookie");
    for chunks in [
        vec![alone.clone(), data()],
        vec![data(), alone],
        vec![data(), echo()],
        vec![chunk(of::SHUTDOWN_COMPLETE, 0, &[]), data()],
    ] {
        let said = associated().says(Client, &packet(TO_SERVER, &chunks));
        assert!(!said.starts_with("established"), "{said}");
    }
    let together = packet(TO_SERVER, &[echo(), data()]);
    assert_eq!(associated().says(Client, &together), UP);
}

#[test]
fn malformed_chunks_and_checksums_change_nothing() {
    let mut dialogue = associated();
    let malformed = "malformed_sctp, ESTABLISHED 210 assured";
    // The first chunk would end the association.
    let abort = || chunk(of::ABORT, 0, &[]);
    for chunks in [vec![], vec![abort(), vec![0, 0, 0, 3]], vec![abort(), vec![0, 0, 0, 9, 0]]] {
        assert_eq!(dialogue.says(Client, &packet(TO_SERVER, &chunks)), malformed, "{chunks:?}");
    }
    let no_tag = init(0, of::INIT, 0);
    assert_eq!(dialogue.says(Client, &no_tag), malformed);
    let mut frame = dialogue.frame(Client, &one(TO_SERVER, of::ABORT));
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(dialogue.sees(&frame), "bad_checksum, ESTABLISHED 210 assured");
}

#[test]
fn an_association_on_its_way_out_makes_room() {
    for (kind, makes_room) in [(of::SHUTDOWN, true), (of::ABORT, true), (of::DATA, false)] {
        let mut dialogue = Dialogue::with_room_for(1, protocol::SCTP);
        play(&mut dialogue, &set_up());
        dialogue.says(Client, &one(TO_SERVER, kind));
        let other = dialogue.numbered(Client, &init(0, of::INIT, 1), 1);
        assert_eq!(dialogue.sees(&other) == "new, CLOSED 10", makes_room, "{kind}");
    }
}

/// Known and random chunks.
fn any_packet() -> impl Strategy<Value = (bool, Vec<u8>)> {
    let chunk = (prop_oneof![8 => 0u8..15, 1 => any::<u8>()], 0u8..2, 0u32..4).prop_map(
        |(kind, flags, tag)| {
            let mut value = tag.to_be_bytes().to_vec();
            value.resize(16, 0);
            chunk(kind, flags, &value)
        },
    );
    let chunks = proptest::collection::vec(chunk, 0..3);
    let cut = prop_oneof![9 => Just(0usize), 1 => 0usize..8];
    (any::<bool>(), 0u32..4, chunks, cut).prop_map(|(from_client, tag, chunks, cut)| {
        let mut packet = packet(tag, &chunks);
        packet.truncate((packet.len() - cut).max(12));
        (from_client, packet)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn invalid_packets_change_nothing(
        packets in proptest::collection::vec(any_packet(), 1..60),
    ) {
        let mut dialogue = Dialogue::of(protocol::SCTP);
        for (from_client, packet) in packets {
            let before = dialogue.connection();
            let from = if from_client { Client } else { Server };
            let said = dialogue.says(from, &packet);
            if !said.starts_with("new") && !said.starts_with("established") {
                prop_assert_eq!(dialogue.connection(), before, "{}", said);
            }
            prop_assert!(!said.contains("ESTABLISHED ") || said.ends_with("assured"), "{}", said);
            dialogue.wait(1);
        }
    }
}

/// It has continued in another zone, where its ends have begun another association.
#[test]
fn an_association_that_comes_back_to_its_zone_has_the_tags_of_its_next_packets() {
    let (to_client, to_server) = (0xc2, 0x5f);
    let mut dialogue = associated();
    assert_eq!(dialogue.says(Server, &one(to_client, of::SACK)), WRONG_TAG);
    // The importer of a record says whether the connection may have continued elsewhere.
    dialogue.takes_over = false;
    dialogue.map_epoch = 1;
    for kind in [of::SHUTDOWN, of::ABORT, of::COOKIE_ECHO] {
        assert_eq!(dialogue.says(Server, &one(to_client, kind)), WRONG_TAG, "{kind}");
    }
    let lines = [
        (Server, one(to_client, of::SACK), UP),
        (Client, one(to_server, of::DATA), UP),
        (Client, one(TO_SERVER, of::DATA), WRONG_TAG),
        (Server, one(TO_CLIENT, of::DATA), WRONG_TAG),
        (Server, one(to_client, of::SHUTDOWN), "established, SHUTDOWN_RECD 3 assured"),
    ];
    play(&mut dialogue, &lines);
}
