use proptest::prelude::*;
use wire::build::{PacketBuilder, Tcp};
use wire::{Transport, checksum, dissect};

use super::*;

#[test]
fn a_shift_begins_past_its_position() {
    let shift = Shift { position: 1000, before: 10, after: 25 };
    assert_eq!([999, 1000, 1001].map(|n| shift.seen(n)), [1009, 1010, 1026]);
    for sequence in [0, 1000, 1001, u32::MAX] {
        assert_eq!(shift.meant(shift.seen(sequence)), sequence);
    }
}

#[test]
fn windows_keep_their_bytes_as_far_as_they_can_be_said() {
    let window = |from, to, window| Rescale { from, to }.window(window);
    assert_eq!(window(7, 7, 500), 500);
    assert_eq!(window(0, 7, 65_535), 511, "never more than there is");
    assert_eq!(window(9, 7, 100), 400);
    assert_eq!(window(14, 0, 65_535), 65_535);
    assert_eq!(window(255, 255, 3), 3);
}

proptest! {
    /// Each end's numbers reach the other as the other counts them. The tracker in between sees
    /// them as their sender counts.
    #[test]
    fn both_ends_read_their_own_numbers(
        by in any::<[u32; 2]>(),
        stamps in any::<[u32; 2]>(),
        (sequence, acknowledgment) in any::<(u32, u32)>(),
        (value, echo) in any::<(u32, u32)>(),
        edges in any::<[u32; 4]>(),
        back: bool,
    ) {
        let adjustment = Adjustment {
            sequences: by.map(Shift::fixed),
            timestamps: stamps,
            windows: Default::default(),
        };
        let direction = if back { Direction::Reply } else { Direction::Original };
        let (own, other) = (direction.index(), direction.reversed().index());
        let words = |numbers: &[u32]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
        };
        let mut options = vec![1, 8, 10];
        options.extend(words(&[value, echo]));
        options.extend([5, 18]);
        options.extend(words(&edges));
        let tcp = Tcp {
            sequence,
            acknowledgment,
            flags: TcpFlags::ACK,
            options: &options,
            ..Tcp::default()
        };
        let mut frame = Vec::new();
        PacketBuilder::v6([0x20; 16], [0x21; 16]).tcp(&tcp, b"odd", &mut frame);
        let mut network = dissect(&frame).unwrap().network.unwrap();
        let start = usize::from(network.transport_offset);

        let mut segment = TcpEditor::new(&mut frame, &mut network, true).unwrap();
        adjustment.before_tracking(direction, &mut segment);
        prop_assert_eq!(segment.tcp().sequence, sequence);
        prop_assert_eq!(segment.tcp().acknowledgment, acknowledgment.wrapping_sub(by[other]));
        adjustment.after_tracking(direction, &mut segment);
        prop_assert_eq!(segment.tcp().sequence, sequence.wrapping_add(by[own]));

        prop_assert!(checksum::verify_transport(&frame, &network));
        let Transport::Tcp(read) = dissect(&frame).unwrap().network.unwrap().transport
        else { panic!("no TCP") };
        prop_assert_eq!(Transport::Tcp(read), network.transport);
        let mut expected = vec![1, 8, 10];
        expected.extend(words(&[value.wrapping_add(stamps[own]), echo.wrapping_sub(stamps[other])]));
        expected.extend([5, 18]);
        expected.extend(words(&edges.map(|edge| edge.wrapping_sub(by[other]))));
        prop_assert_eq!(&frame[start + 20..start + 20 + expected.len()], &expected[..]);
    }
}
