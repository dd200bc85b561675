use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::super::sample::{self, Random};
use super::super::{Dialect, Packet};
use super::*;

const V4: Carrier = Carrier::V4 { source: Ipv4Addr::new(192, 0, 2, 1), destination: MULTICAST_V4 };
const V6: Carrier = Carrier::V6 {
    source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    destination: MULTICAST_V6,
};

/// A capture of raw IP packets in the format of pcap.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    const LINKTYPE_RAW: u32 = 101;
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, LINKTYPE_RAW] {
        bytes.extend(u32::to_be_bytes(word));
    }
    for packet in packets {
        let length = packet.len() as u32;
        [0, 0, length, length].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        bytes.extend(packet);
    }
    bytes
}

/// The lines of tcpdump about some packets, two for each of IPv4; `None` if there is no tcpdump.
fn read_by_tcpdump(packets: &[Vec<u8>]) -> Option<Vec<String>> {
    let spawned = Command::new("tcpdump")
        .args(["-r", "-", "-n", "-v", "-t"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            println!("SKIPPED: tcpdump: {error}");
            return None;
        }
    };
    let mut stdin = child.stdin.take().unwrap();
    let bytes = capture(packets);
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let packets = text.split("\nIP").map(|it| it.trim_start_matches("IP").to_owned());
    Some(packets.collect())
}

#[test]
fn tcpdump_reads_our_packets() {
    let mut random = Random(11);
    let bodies: Vec<_> =
        Dialect::ALL.into_iter().map(|it| sample::packet(&mut random, it, 1_480).1).collect();
    let packets: Vec<_> = bodies.iter().map(|body| V4.packet(body)).collect();
    let Some(shown) = read_by_tcpdump(&packets) else { return };
    assert_eq!(shown.len(), packets.len(), "{shown:?}");
    for (shown, packet) in shown.iter().zip(&packets) {
        for part in ["tos 0x10,", "ttl 255,", "flags [DF]", "(240)"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(shown.contains(&format!("length {})", packet.len())), "{shown}");
        assert!(shown.contains("192.0.2.1 > 224.0.0.240"), "{shown}");
        assert!(!shown.contains("bad"), "a wrong checksum: {shown}");
    }
    let packets: Vec<_> = bodies.iter().map(|body| V6.packet(body)).collect();
    let Some(shown) = read_by_tcpdump(&packets) else { return };
    assert_eq!(shown.len(), packets.len(), "{shown:?}");
    for (shown, body) in shown.iter().zip(&bodies) {
        let length = format!("payload length: {}", body.len());
        for part in ["class 0x10", "hlim 255", "(240)", &length, "2001:db8::1 > ff12::f0"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }
}

#[test]
fn packets_come_back() {
    for (carrier, source) in [(V4, "192.0.2.1"), (V6, "2001:db8::1")] {
        let packet = carrier.packet(b"content");
        assert_eq!(packet.len(), carrier.header_bytes() + 7);
        let padded = [&packet[..], &[0; 9]].concat();
        let (arrival, content) = Arrival::of_packet(&padded, true).unwrap();
        assert_eq!(content, b"content");
        let source = source.parse().unwrap();
        assert_eq!(arrival, Arrival { source, ttl: 255, is_by_sync_link: true });
        for length in 0..packet.len() {
            assert_eq!(Arrival::of_packet(&packet[..length], true), Err(Refusal::NotPfsync));
        }
    }
}

#[test]
fn fragments_and_other_protocols_are_refused() {
    let packet = V4.packet(b"content");
    for (at, value) in [(9, 17), (6, 0x20), (7, 1), (0, 0x44), (0, 0x55)] {
        let mut packet = packet.clone();
        packet[at] = value;
        assert_eq!(Arrival::of_packet(&packet, true), Err(Refusal::NotPfsync), "{at}");
    }
    let mut packet = V6.packet(b"content");
    packet[6] = 44;
    assert_eq!(Arrival::of_packet(&packet, true), Err(Refusal::NotPfsync));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok((_, content)) = Arrival::of_packet(&bytes, true) {
            let _ = Packet::decode(Dialect::Version6, content);
        }
    }
}
