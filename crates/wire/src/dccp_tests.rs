use proptest::prelude::*;

use super::*;

/// A header of `words` words; the numbers are 1, 2, 3 and so on, byte by byte.
fn bytes(kind: u8, extended: bool, words: u8) -> Vec<u8> {
    let mut bytes = vec![0, 1, 0, 2, words, 0, 0, 0, kind << 1 | u8::from(extended)];
    let rest = usize::from(words) * 4 - bytes.len();
    bytes.extend((1..).take(rest));
    bytes
}

#[test]
fn numbers_are_read_in_both_lengths() {
    let ack = read(&bytes(3, true, 6)).unwrap();
    let (sequence, acknowledgment) = (0x0203_0405_0607, Some(0x0a0b_0c0d_0e0f));
    assert_eq!(ack, Header { kind: PacketType::Ack, sequence, acknowledgment, extended: true });
    assert!(ack.acknowledges(0x0a0b_0c0d_0e0f) && !ack.acknowledges(0x0b_0c0d_0e0f));
    let short = read(&bytes(4, false, 4)).unwrap();
    let (sequence, acknowledgment) = (0x01_0203, Some(0x05_0607));
    let kind = PacketType::DataAck;
    assert_eq!(short, Header { kind, sequence, acknowledgment, extended: false });
    assert!(short.acknowledges(0xffff_ff05_0607) && !short.acknowledges(0x05_0608));
}

/// RFC 4340 sections 5.1 to 5.6: words of the fixed fields.
#[test]
fn a_header_holds_the_fields_of_its_type() {
    for (kind, words) in [5, 7, 4, 6, 6, 6, 6, 7, 6, 6].into_iter().enumerate() {
        let read = |words| read(&bytes(kind as u8, true, words));
        assert_eq!(read(words).map(|header| header.kind as usize), Some(kind));
        assert_eq!(read(words - 1), None, "type {kind}");
        let mut cut = bytes(kind as u8, true, words);
        cut.pop();
        assert_eq!(super::read(&cut), None, "type {kind}");
    }
    for (kind, words) in [(2, 3), (3, 4), (4, 4)] {
        assert!(read(&bytes(kind, false, words)).is_some());
    }
    assert_eq!(read(&bytes(3, false, 3)), None);
}

#[test]
fn short_numbers_and_reserved_types_are_refused() {
    for kind in [0, 1, 5, 6, 7, 8, 9] {
        assert_eq!(read(&bytes(kind, false, 10)), None, "type {kind}");
    }
    for kind in 10..16 {
        assert_eq!(read(&bytes(kind, true, 10)), None, "type {kind}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Some(header) = read(&bytes) {
            prop_assert!(header.sequence < 1 << 48);
        }
    }
}
