//! The explanation that an operator gets for a refused packet.

use wire::{TcpFlags, protocol, sctp::chunk_type};

use crate::Direction::{self, Original, Reply};
use crate::testing::dialogue::Dialogue;

const SYN: u8 = TcpFlags::SYN.0;
const ACK: u8 = TcpFlags::ACK.0;
const RST: u8 = TcpFlags::RST.0;

/// A TCP header with a window of 1000 and without a checksum.
fn tcp(flags: u8, sequence: u32, acknowledgment: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(acknowledgment.to_be_bytes());
    bytes.extend([5 << 4, flags, 3, 232, 0, 0, 0, 0]);
    bytes
}

/// A packet with one chunk and without a checksum.
fn sctp(tag: u32, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0, 0, 0, 0, kind, 0, 0, 4 + value.len() as u8]);
    bytes.extend(value);
    bytes
}

/// The explanation for the last of these packets.
fn explained(protocol: u8, packets: &[(Direction, Vec<u8>)]) -> String {
    let mut dialogue = Dialogue::of(protocol);
    dialogue.settings.verify_checksums = false;
    for (at, (from, packet)) in packets.iter().enumerate() {
        dialogue.says(*from, packet);
        assert_eq!(dialogue.why.is_some(), at + 1 == packets.len(), "packet {at}");
    }
    dialogue.why.map(|why| format!("{}: {why}", why.reason())).unwrap_or_default()
}

/// The client starts at 100, the server at 500; both windows are 1000.
fn after_handshake(from: Direction, last: Vec<u8>) -> String {
    explained(
        protocol::TCP,
        &[
            (Original, tcp(SYN, 100, 0)),
            (Reply, tcp(SYN | ACK, 500, 101)),
            (Original, tcp(ACK, 101, 501)),
            (from, last),
        ],
    )
}

#[test]
fn the_numbers_that_decide_about_a_tcp_segment_are_named() {
    assert_eq!(
        after_handshake(Original, tcp(ACK, 9000, 501)),
        "tcp_sequence: sequence number 9000 is over 1101, the receiver's window \
         (original direction, ESTABLISHED)"
    );
    assert_eq!(
        after_handshake(Reply, tcp(ACK, 501, 7000)),
        "tcp_ack: acknowledges 7000, but only 101 was sent (reply direction, ESTABLISHED)"
    );
    assert_eq!(
        after_handshake(Reply, tcp(RST, 400, 0)),
        "tcp_reset: reset at 400 is under 501, which is acknowledged already \
         (reply direction, ESTABLISHED)"
    );
    assert_eq!(
        after_handshake(Reply, tcp(SYN | RST, 501, 0)),
        "tcp_flags: control bits SYN|RST are never sent together (reply direction, ESTABLISHED)"
    );
}

#[test]
fn a_packet_that_a_state_does_not_allow_is_named_with_the_state() {
    assert_eq!(
        explained(protocol::TCP, &[(Original, tcp(SYN, 1, 0)), (Original, tcp(ACK, 2, 0))]),
        "tcp_state: ACK in original direction is not possible in SYN_SENT"
    );
    assert_eq!(
        explained(protocol::TCP, &[(Original, tcp(SYN | ACK, 1, 1))]),
        "tcp_not_syn: SYN+ACK does not open a connection"
    );
    assert_eq!(
        explained(protocol::SCTP, &[(Original, sctp(1, chunk_type::DATA, &[0; 12]))]),
        "protocol_state: DATA does not open a connection"
    );
    assert_eq!(
        explained(
            protocol::SCTP,
            &[
                (Original, sctp(0xc1, chunk_type::HEARTBEAT, &[0; 4])),
                (Reply, sctp(0x5e, chunk_type::HEARTBEAT, &[0; 4])),
                (Reply, sctp(0x5e, chunk_type::COOKIE_ACK, &[])),
            ]
        ),
        "protocol_state: COOKIE ACK in reply direction is not possible in HEARTBEAT_SENT"
    );
}

#[test]
fn a_wrong_verification_tag_is_named_with_those_that_fit() {
    let value = [0, 0, 0, 0xc1, 0, 1, 0, 0, 0, 10, 0, 10, 0, 0, 0, 1];
    let init = |tag| sctp(tag, chunk_type::INIT, &value);
    let answer = (Reply, sctp(0xdead, chunk_type::INIT_ACK, &value));
    assert_eq!(
        explained(protocol::SCTP, &[(Original, init(0)), answer]),
        "verification_tag: verification tag 0x0000dead is not 0x000000c1"
    );
    assert_eq!(
        explained(
            protocol::SCTP,
            &[(Original, init(0)), (Original, sctp(7, chunk_type::COOKIE_ECHO, &[]))]
        ),
        "verification_tag: verification tag 0x00000007 is not known: no INIT was seen"
    );
}
