use proptest::prelude::*;

use super::*;

fn ack() -> impl Strategy<Value = Ack> {
    let ranges = prop::collection::vec((1u16.., 1u16..), 0..=ACK_RANGES_MAX);
    (any::<u32>(), any::<u64>(), ranges, any::<bool>()).prop_map(
        |(stream, next, mut ranges, is_at_once)| {
            if let (Some(first), true) = (ranges.first_mut(), is_at_once) {
                first.0 = 0;
            }
            Ack { stream, next, ranges }
        },
    )
}

proptest! {
    #[test]
    fn an_acknowledgment_comes_back_whole_or_not_at_all(ack in ack()) {
        let mut bytes = Vec::new();
        ack.encode(&mut bytes);
        let mut reader = Reader(&bytes);
        prop_assert_eq!(Ack::decode(&mut reader), Some(ack));
        prop_assert!(reader.end().is_some());
        for length in 0..bytes.len() {
            prop_assert_eq!(Ack::decode(&mut Reader(&bytes[..length])), None);
        }
    }

    #[test]
    fn spans_are_in_order_and_apart(ack in ack()) {
        let mut end = ack.next;
        for (at, (first, behind)) in ack.spans().unwrap_or_default().into_iter().enumerate() {
            prop_assert!(first > end || at == 0 && first >= end);
            prop_assert!(behind > first);
            end = behind;
        }
    }

    #[test]
    fn any_bytes_have_a_kind_or_a_reason(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
        let expected = match bytes.as_slice() {
            [VERSION, kind @ 1..=4, ..] => Ok(*kind),
            [] | [VERSION, ..] => Err(Refusal::Malformed),
            _ => Err(Refusal::WrongVersion),
        };
        prop_assert_eq!(Kind::of(&bytes).map(|kind| kind as u8), expected);
        let _ = SealedHeader::decode(&bytes);
        let _ = Ack::decode(&mut Reader(&bytes));
        let _ = Place::decode(&mut Reader(&bytes));
    }
}

#[test]
fn numbers_of_frames_do_not_wrap() {
    let ack = Ack { stream: 0, next: u64::MAX - 2, ranges: vec![(1, 2)] };
    assert_eq!(ack.spans(), None);
}
