use super::*;
use crate::build::{PacketBuilder, Tcp};
use crate::{TcpFlags, dissect};

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [198, 51, 100, 2];

fn tcp(builder: &PacketBuilder) -> Vec<u8> {
    let header =
        Tcp { source_port: 1, destination_port: 2, flags: TcpFlags::ACK, ..Tcp::default() };
    let mut frame = Vec::new();
    builder.tcp(&header, &[7; 3000], &mut frame);
    frame
}

/// Mends a frame, and is told before whether that is needed.
fn mend(frame: &mut [u8]) -> bool {
    let is_needed = needs_mending(frame);
    assert_eq!(mend_headers(frame), is_needed);
    is_needed
}

/// A packet of a tunnel with `inner` in it, behind `header`.
fn tunnel(protocol: u8, header: &[u8], inner: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let load = [header, inner].concat();
    PacketBuilder::v4([203, 0, 113, 1], [203, 0, 113, 2]).raw(protocol, &load, &mut frame);
    frame
}

/// Frames, each with the offsets of its IPv4 headers.
fn frames() -> Vec<(Vec<u8>, Vec<usize>)> {
    let plain = tcp(&PacketBuilder::v4(CLIENT, SERVER));
    let tagged = tcp(&PacketBuilder::v4(CLIENT, SERVER).vlan(5).vlan(6));
    let session = tcp(&PacketBuilder::v4(CLIENT, SERVER).pppoe(7));
    let gre = [0, 0, 0x08, 0];
    vec![
        (tunnel(protocol::IPIP, &[], &plain[14..]), vec![14, 34]),
        (tunnel(protocol::GRE, &gre, &plain[14..]), vec![14, 38]),
        (tunnel(protocol::GRE, &[0, 0, 0x65, 0x58], &tagged), vec![14, 60]),
        // With a sequence number.
        (tunnel(protocol::GRE, &[0x10, 0, 8, 0, 0, 0, 0, 1], &plain[14..]), vec![14, 42]),
        (plain, vec![14]),
        (tagged, vec![22]),
        (session, vec![22]),
    ]
}

#[test]
fn checksums_and_lengths_that_an_interface_would_write_are_written() {
    for (whole, headers) in frames() {
        assert!(dissect(&whole).is_ok());
        let mut same = whole.clone();
        assert!(!mend(&mut same));
        assert_eq!(same, whole);
        for checksum in [[0, 0], [0x12, 0x34]] {
            let mut broken = whole.clone();
            for &at in &headers {
                broken[at + 10..at + 12].copy_from_slice(&checksum);
            }
            assert!(mend(&mut broken));
            assert_eq!(broken, whole);
        }
        // Only the packet of TCP is to be cut.
        let mut broken = whole.clone();
        let last = headers[headers.len() - 1];
        broken[last + 2..last + 4].fill(0);
        assert!(mend(&mut broken));
        assert_eq!(broken, whole);
    }
    let whole = tcp(&PacketBuilder::v6([1; 16], [2; 16]));
    let mut broken = whole.clone();
    broken[18..20].fill(0);
    assert!(mend(&mut broken));
    assert_eq!(broken, whole);
}

#[test]
fn other_faults_stay() {
    let whole = tcp(&PacketBuilder::v4(CLIENT, SERVER));
    for (at, value) in [(14, 0x55), (14, 0x44), (14, 0x4f), (12, 0x81), (23, 47)] {
        let mut broken = whole.clone();
        broken[at] = value;
        let before = broken.clone();
        mend(&mut broken);
        // A checksum may be written, and nothing else.
        broken[24..26].copy_from_slice(&before[24..26]);
        assert_eq!(broken, before, "{at}");
    }
    for length in 0..whole.len() {
        mend(&mut whole[..length].to_vec());
    }
}
