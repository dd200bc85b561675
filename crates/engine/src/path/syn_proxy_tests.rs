//! A client and a server on both sides of a worker whose SYN proxy stands between them.

use netio::{Checksum, FramePool, Segmentation};
use wire::build::{PacketBuilder, Tcp};
use wire::checksum;

use super::*;
use crate::path::stages::observer::take;
use crate::path::step::Stage;
use crate::testing::syn_proxy::*;

#[test]
fn a_client_reaches_a_server_with_all_that_it_offers() {
    for v6 in [false, true] {
        let mut scene = Scene::new(v6, 1);
        let answer = scene.knock(&OFFER);
        let promised_size: u16 = if v6 { 1440 } else { 1460 };
        assert_eq!(answer.option(2), Some(&promised_size.to_be_bytes()[..]));
        assert_eq!((answer.option(4), answer.option(3)), (Some(&[][..]), Some(&[7][..])));
        let [promised, echo] = answer.stamps();
        assert_eq!(echo, 5000);
        assert_eq!(scene.rig.connections(), 0, "nothing is kept");

        let [back, on] = scene.come_back(&answer, &stamped(5001, promised));
        assert!(back.is_empty());
        let syn = &on[0];
        assert_eq!((syn.tcp.flags, syn.tcp.sequence), (SYN, 100));
        assert_eq!(syn.tcp.window, 500 << 3);
        assert_eq!(syn.option(2), Some(&1400u16.to_be_bytes()[..]));
        assert_eq!((syn.option(4), syn.option(3)), (Some(&[][..]), Some(&[3][..])));
        assert_eq!(syn.stamps(), [5001, 0]);
        assert_eq!(syn.network.source, answer.network.destination);

        // The server has windows in units of 512, and timestamps of its own.
        let options = [&stamped(77, 5001)[..], &[1, 3, 3, 9]].concat();
        let syn_ack = Tcp {
            sequence: 900_000,
            acknowledgment: 101,
            flags: SYN_ACK,
            window: 60_000,
            options: &options,
            ..Tcp::default()
        };
        let [update, on] = scene.send(INSIDE, &syn_ack);
        let ack = &on[0].tcp;
        assert_eq!((ack.flags, ack.sequence, ack.acknowledgment), (ACK, 101, 900_001));
        assert_eq!((ack.window, on[0].stamps()), (500, [5001, 77]));
        let update = &update[0];
        let cookie = answer.tcp.sequence;
        assert_eq!(update.tcp.flags, ACK);
        let numbers = (update.tcp.sequence, update.tcp.acknowledgment);
        assert_eq!(numbers, (cookie.wrapping_add(1), 101));
        assert_eq!((update.tcp.window, update.stamps()), (60_000 >> 7, [promised, 5001]));

        // The server sends data, and the client has got a later piece of it.
        let server = Tcp {
            sequence: 900_001,
            acknowledgment: 101,
            flags: ACK,
            window: 100,
            options: &stamped(80, 5001),
            ..Tcp::default()
        };
        let [back, _] = scene.send(INSIDE, &server);
        assert_eq!(back[0].tcp.sequence, cookie.wrapping_add(1));
        assert_eq!((back[0].tcp.window, back[0].stamps()), (400, [promised + 3, 5001]));
        let edges = [10u32, 20].map(|n| cookie.wrapping_add(n).to_be_bytes()).concat();
        let options = [&stamped(5002, promised + 3)[..], &[1, 1, 5, 10], &edges].concat();
        let client = Tcp {
            sequence: 101,
            acknowledgment: cookie.wrapping_add(1),
            flags: ACK,
            window: 400,
            options: &options,
            ..Tcp::default()
        };
        let [_, on] = scene.send(OUTSIDE, &client);
        assert_eq!((on[0].tcp.sequence, on[0].tcp.acknowledgment), (101, 900_001));
        assert_eq!((on[0].tcp.window, on[0].stamps()), (400, [5002, 80]));
        let edges = [900_010u32, 900_020].map(u32::to_be_bytes).concat();
        assert_eq!(on[0].option(5), Some(&edges[..]));

        let counts = scene.counts();
        assert_eq!((counts.syn_received, counts.cookie_valid, scene.dropped()), (1, 1, 0));
    }
}

/// The stages of what the server and the client send, up to the segments that the proxy makes.
#[test]
fn the_observer_hears_of_the_segments_that_the_proxy_makes() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[]);
    take();
    scene.come_back(&answer, &[]);
    let seen = take();
    let at = seen.iter().position(|it| *it == (Stage::Track, Some(End::Retrack))).unwrap();
    assert_eq!(seen[at + 1..at + 3], [(Stage::NumbersIn, None), (Stage::Track, None)]);
    assert_eq!(seen.last(), Some(&(Stage::Replies, None)), "the SYN goes on to the server");
    let [update, ack] = scene.accept(7, 1000);
    assert_eq!((update.len(), ack.len()), (1, 1));
    let seen = take();
    let end = (Stage::ProxiedOut, Some(End::Answer(Answer::BothWays)));
    let at = seen.iter().position(|it| *it == end).unwrap();
    let made = [Stage::Track, Stage::Confirm, Stage::Translate].map(|stage| (stage, None));
    assert_eq!(seen[at + 1..], made);
}

#[test]
fn a_server_that_offers_nothing_is_translated_for() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&OFFER);
    let [promised, _] = answer.stamps();
    scene.come_back(&answer, &stamped(5001, promised));
    let [update, ack] = scene.accept(7, 60_000);
    assert_eq!((ack[0].tcp.window, ack[0].option(8)), (500 << 3, None));
    assert_eq!(update[0].tcp.window, 60_000 >> 7);
    let server =
        Tcp { sequence: 8, acknowledgment: 101, flags: ACK, window: 6_400, ..Tcp::default() };
    assert_eq!(scene.send(INSIDE, &server)[OUTSIDE][0].tcp.window, 50);
}

#[test]
fn an_answer_is_no_promise_without_timestamps() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[2, 4, 5, 120, 4, 2, 1, 3, 3, 3, 0, 0]);
    assert_eq!(answer.options.len(), 1, "the size of segments alone");
    let [_, syn] = scene.come_back(&answer, &[]);
    assert_eq!(syn[0].options, [(2, 1400u16.to_be_bytes().to_vec())]);
    assert_eq!(syn[0].tcp.window, 500);
}

#[test]
fn an_ack_without_a_valid_cookie_is_dropped_and_counted() {
    let mut scene = Scene::new(false, 1);
    let mut answer = scene.knock(&[]);
    answer.tcp.sequence ^= 1 << 20;
    assert!(scene.come_back(&answer, &[]).iter().all(Vec::is_empty), "forged");
    answer.tcp.sequence ^= 1 << 20;
    scene.rig.wait(Duration::from_secs(130));
    assert!(scene.come_back(&answer, &[]).iter().all(Vec::is_empty), "too old");
    let fresh = scene.knock(&[]);
    scene.client = 2;
    assert!(scene.come_back(&fresh, &[]).iter().all(Vec::is_empty), "another's");
    assert_eq!((scene.counts().cookie_invalid, scene.dropped()), (3, 3));
    assert_eq!(scene.rig.connections(), 0);
}

#[test]
fn a_syn_that_no_host_can_have_sent_is_not_answered() {
    let mut scene = Scene::new(false, 1);
    let syn = Tcp { sequence: 1, flags: SYN, window: 9, ..Tcp::default() };
    for source in [[127, 0, 0, 1], [224, 0, 0, 5], [0, 0, 0, 0]] {
        let mut bytes = Vec::new();
        PacketBuilder::v4(source, SERVER).tcp(&syn, &[], &mut bytes);
        assert!(scene.put(OUTSIDE, &bytes).iter().all(Vec::is_empty));
    }
    let pieces = PacketBuilder::v4(CLIENT, SERVER);
    let whole = scene.frame(OUTSIDE, &syn, &[7; 40]);
    for piece in pieces.fragments(wire::protocol::TCP, &whole[34..], 32) {
        assert!(scene.put(OUTSIDE, &piece).iter().all(Vec::is_empty));
    }
    assert_eq!(scene.dropped(), 5);
}

#[test]
fn a_server_sends_no_longer_segments_than_the_way_to_the_client_takes() {
    let mut scene = Scene::new(false, 1);
    scene.rig.worker.path.forwarder.set_mtus(&[Some(1300), Some(9000)]);
    let answer = scene.knock(&OFFER);
    let [promised, _] = answer.stamps();
    let [_, syn] = scene.come_back(&answer, &stamped(5001, promised));
    assert_eq!(syn[0].option(2), Some(&1260u16.to_be_bytes()[..]));
}

#[test]
fn a_silent_server_is_asked_as_often_as_its_client_asks() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[]);
    for _ in 0..3 {
        let [back, on] = scene.come_back(&answer, &[]);
        assert!(back.is_empty());
        assert_eq!((on[0].tcp.flags, on[0].tcp.sequence), (SYN, 100));
    }
    // A probe of the closed window repeats a sequence number.
    let probe = Tcp {
        sequence: 100,
        acknowledgment: answer.tcp.sequence.wrapping_add(1),
        flags: ACK,
        ..Tcp::default()
    };
    assert_eq!(scene.send(OUTSIDE, &probe)[INSIDE][0].tcp.flags, SYN);
    let counts = scene.counts();
    assert_eq!((counts.cookie_valid, counts.cookie_retrans), (1, 3));
    assert_eq!(scene.rig.connections(), 1);
}

#[test]
fn a_probe_alone_returns_the_cookie_too() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[]);
    let probe = Tcp {
        sequence: 100,
        acknowledgment: answer.tcp.sequence.wrapping_add(1),
        flags: ACK,
        ..Tcp::default()
    };
    let [_, syn] = scene.send(OUTSIDE, &probe);
    assert_eq!((syn[0].tcp.flags, syn[0].tcp.sequence), (SYN, 100));
}

#[test]
fn a_refusal_reaches_the_client_in_its_numbers() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[]);
    scene.come_back(&answer, &[]);
    let refusal = Tcp { acknowledgment: 101, flags: RST.with(ACK), ..Tcp::default() };
    let [back, on] = scene.send(INSIDE, &refusal);
    assert!(on.is_empty());
    assert_eq!(back[0].tcp.sequence, answer.tcp.sequence.wrapping_add(1));
    assert_eq!(back[0].tcp.acknowledgment, 101);
}

#[test]
fn a_server_that_remembers_an_older_connection_is_reset_and_asked_again() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[]);
    scene.come_back(&answer, &[]);
    let challenge =
        Tcp { sequence: 4000, acknowledgment: 3000, flags: ACK, window: 9, ..Tcp::default() };
    let [back, on] = scene.send(INSIDE, &challenge);
    assert!(back.is_empty(), "the client knows nothing of it");
    assert_eq!((on[0].tcp.flags, on[0].tcp.sequence), (RST, 3000));
    let [_, on] = scene.come_back(&answer, &[]);
    assert_eq!(on[0].tcp.flags, SYN);
    let [update, ack] = scene.accept(7, 9);
    assert_eq!((update.len(), ack[0].tcp.flags), (1, ACK));
}

#[test]
fn a_client_that_gives_up_early_takes_the_server_along() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[]);
    scene.come_back(&answer, &[]);
    let acknowledgment = answer.tcp.sequence.wrapping_add(1);
    let reset = Tcp { sequence: 101, acknowledgment, flags: RST.with(ACK), ..Tcp::default() };
    let [_, on] = scene.send(OUTSIDE, &reset);
    assert_eq!((on[0].tcp.flags, on[0].tcp.sequence), (RST, 101));
    assert_eq!(scene.rig.connections(), 0);
}

#[test]
fn a_repeated_answer_of_the_server_is_acknowledged_again() {
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[]);
    scene.come_back(&answer, &[]);
    let syn_ack =
        Tcp { sequence: 7, acknowledgment: 101, flags: SYN_ACK, window: 9, ..Tcp::default() };
    for _ in 0..2 {
        let [update, ack] = scene.send(INSIDE, &syn_ack);
        assert_eq!((update[0].tcp.flags, ack[0].tcp.flags), (ACK, ACK));
        assert_eq!(ack[0].tcp.acknowledgment, 8);
    }
}

#[test]
fn errors_quote_what_their_receiver_has_sent() {
    let mut scene = Scene::new(false, 1);
    let cookie = scene.open(5000);
    // The error comes from beyond the client, about a segment of the server as it arrived there.
    let about = Tcp {
        sequence: cookie.wrapping_add(1),
        acknowledgment: 101,
        flags: ACK,
        window: 100,
        ..Tcp::default()
    };
    let about = scene.frame(INSIDE, &about, &[]);
    let mut error = Vec::new();
    PacketBuilder::v4([203, 0, 113, 9], SERVER).icmp_error(
        3,
        4,
        [0, 0, 5, 0],
        &about[14..],
        &mut error,
    );
    let [_, on] = scene.put(OUTSIDE, &error);
    let bytes = on[0].bytes();
    let network = wire::dissect(bytes).unwrap().network.unwrap();
    assert!(checksum::verify_transport(bytes, &network));
    let Transport::IcmpError(wire::IcmpError { quoted: Some(quoted), .. }) = network.transport
    else {
        panic!("no quote")
    };
    let at = usize::from(quoted.transport_offset) + 4;
    assert_eq!(bytes[at..at + 4], 5001u32.to_be_bytes());
}

#[test]
fn a_super_packet_is_shifted_and_its_partial_checksum_stays() {
    let mut scene = Scene::new(false, 1);
    let cookie = scene.open(5000);
    let data =
        Tcp { sequence: 5001, acknowledgment: 101, flags: ACK, window: 100, ..Tcp::default() };
    let bytes = scene.frame(INSIDE, &data, &[7; 400]);
    let mut frame = FramePool::new(0, 0).copy_of(&bytes).unwrap();
    frame.bytes_mut()[50..52].copy_from_slice(&[0xab, 0xcd]);
    frame.offload.checksum = Checksum::Partial { start: 34, offset: 16 };
    frame.offload.segmentation =
        Some(Segmentation { kind: 1, segment_size: 100, header_length: 54 });
    let offload = frame.offload;
    scene.received += 1;
    let [back, _] = scene.rig.exchange(INSIDE, [frame]);
    assert_eq!(back[0].offload, offload);
    let sent = back[0].bytes();
    assert_eq!(sent[38..42], cookie.wrapping_add(1).to_be_bytes());
    assert_eq!(sent[50..52], [0xab, 0xcd]);
    assert_eq!(sent[54..], bytes[54..]);
}

#[test]
fn a_segment_in_fragments_is_shifted_where_its_header_lies() {
    let mut scene = Scene::new(false, 1);
    let cookie = scene.open(5000);
    let data = Tcp { sequence: 5001, acknowledgment: 101, flags: ACK, window: 9, ..Tcp::default() };
    let whole = scene.frame(INSIDE, &data, &[7; 400]);
    let pieces = PacketBuilder::v4(SERVER, CLIENT)
        .macs([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .id(9)
        .fragments(wire::protocol::TCP, &whole[34..], 200);
    let mut sent = Vec::new();
    for piece in &pieces {
        sent.append(&mut scene.put(INSIDE, piece)[OUTSIDE]);
    }
    assert_eq!(sent.len(), pieces.len());
    let mut joined = whole[..34].to_vec();
    joined.extend(sent.iter().flat_map(|piece| piece.bytes()[34..].to_vec()));
    assert_eq!(joined[38..42], cookie.wrapping_add(1).to_be_bytes());
    let network = wire::dissect(&joined).unwrap().network.unwrap();
    assert!(checksum::verify_transport(&joined, &network));
}

#[test]
fn a_connection_that_has_closed_is_opened_anew_without_the_proxy() {
    let mut scene = Scene::new(false, 1);
    let cookie = scene.open(5000);
    let fin = TcpFlags::FIN.with(ACK);
    let acknowledgment = cookie.wrapping_add(1);
    let client = Tcp { sequence: 101, acknowledgment, flags: fin, window: 9, ..Tcp::default() };
    let server = Tcp { sequence: 5001, acknowledgment: 102, ..client };
    let last = Tcp { sequence: 102, acknowledgment: acknowledgment + 1, flags: ACK, ..client };
    for (from, tcp) in [(OUTSIDE, client), (INSIDE, server), (OUTSIDE, last)] {
        assert_eq!(scene.send(from, &tcp)[1 - from].len(), 1);
    }
    let syn = Tcp { sequence: 900, flags: SYN, window: 100, ..Tcp::default() };
    let [back, on] = scene.send(OUTSIDE, &syn);
    assert_eq!((back.len(), on[0].tcp.sequence), (0, 900));
    let syn_ack =
        Tcp { sequence: 7, acknowledgment: 901, flags: SYN_ACK, window: 9, ..Tcp::default() };
    assert_eq!(scene.send(INSIDE, &syn_ack)[OUTSIDE][0].tcp.sequence, 7, "as it is");
    assert_eq!(scene.counts().conn_reopened, 1);
}
