use std::io::{Cursor, Read};
use std::sync::mpsc::channel;
use std::time::Duration;

use netio::PortId;

use super::*;

/// A pcap file with these packets of raw IP, the first `cut` of them cut off.
fn pcap(packets: u32, cut: u32) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101_u32] {
        file.extend(word.to_le_bytes());
    }
    for number in 0..packets {
        for word in [1000, number, 4, 4 + u32::from(number < cut), number] {
            file.extend(word.to_le_bytes());
        }
    }
    file
}

fn ahead(input: impl Read + Send + 'static) -> ReadAhead {
    let reader = CaptureReader::new("x".into(), input, PortId(0)).unwrap();
    ReadAhead::new(reader, |_, _| None).unwrap()
}

#[test]
fn packets_of_many_batches_come_in_their_order_as_they_were_captured() {
    const MANY: u32 = 3 * (BATCHES * PACKETS) as u32 + 7;
    let mut input = ahead(Cursor::new(pcap(MANY, 5)));
    for number in 0..MANY {
        let Some(Captured::Frame(frame)) = input.next_packet() else { panic!("{number}") };
        assert_eq!(frame.bytes()[14..18], number.to_le_bytes());
        let captured = input.captured().unwrap();
        assert_eq!((captured.bytes, captured.link_type), (&number.to_le_bytes()[..], 101));
        assert_eq!(captured.original_length, 4 + u32::from(number < 5));
        let taken = u64::from(number) + 1;
        let (packets, truncated) = (input.taken().packets, input.taken().truncated);
        assert_eq!((packets, truncated), (taken, taken.min(5)), "not what was read ahead");
        input.give_back(frame);
    }
    assert!(input.next_packet().is_none() && input.next_packet().is_none());
    assert_eq!(input.problem(), None);
}

#[test]
fn damage_comes_behind_the_packets_in_front_of_it() {
    let mut file = pcap(200, 0);
    file.truncate(file.len() - 1);
    let mut input = ahead(Cursor::new(file));
    assert_eq!(std::iter::from_fn(|| input.next_packet()).count(), 199);
    assert!(input.problem().is_some_and(|why| why.contains("packet 200: the file ends here")));
}

/// A stream whose pieces come from the test.
struct Stream(Receiver<Vec<u8>>);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = self.0.recv_timeout(Duration::from_secs(60)).unwrap_or_default();
        buffer[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

#[test]
fn a_packet_of_a_stream_does_not_wait_for_the_next_one() {
    let (sender, pieces) = channel();
    let file = pcap(3, 0);
    // A part of the second packet is there, and the third only when the second was taken.
    sender.send(file[..24 + 20 + 7].to_vec()).unwrap();
    let mut input = ahead(Stream(pieces));
    assert!(input.next_packet().is_some());
    sender.send(file[24 + 20 + 7..24 + 40].to_vec()).unwrap();
    assert!(input.next_packet().is_some());
    sender.send(file[24 + 40..].to_vec()).unwrap();
    assert!(input.next_packet().is_some());
    // A replay that ends earlier than its capture does not wait for more of it.
    drop(input);
    drop(sender);
}
