use proptest::prelude::*;

use super::*;
use crate::build::PacketBuilder;
use crate::{Network, Summary, dissect};

fn builder(v6: bool) -> PacketBuilder {
    if v6 {
        PacketBuilder::v6([0x20; 16], [0x21; 16])
    } else {
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
    }
}

proptest! {
    /// For a valid fragment it agrees with the dissector.
    #[test]
    fn agrees_with_the_dissector(
        v6: bool,
        id: u16,
        offset in 0u16..8000,
        more: bool,
        units in 1usize..150,
        tags in prop::collection::vec(any::<u16>(), 0..3),
    ) {
        let mut frame = Vec::new();
        let builder = builder(v6).id(id.into());
        let builder = tags.iter().fold(builder, |builder, tag| builder.vlan(*tag));
        builder.fragment(200, offset / 8 * 8, more, &vec![0; units * 8], &mut frame);
        let claimed = ClaimedFragment::of(&frame);
        let Ok(Dissected { network: Some(network), .. }) = dissect(&frame) else {
            return Ok(());
        };
        let Network { fragment, protocol, end, .. } = network;
        let expected = fragment.filter(|fragment| !fragment.is_atomic()).map(|fragment| {
            ClaimedFragment {
                source: network.source_ip(),
                destination: network.destination_ip(),
                protocol,
                id: fragment.id,
                offset: fragment.offset,
                length: end - u32::from(fragment.payload_offset),
                more: fragment.more,
                header: if v6 { 0 } else { 20 },
            }
        });
        prop_assert_eq!(claimed, expected);
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 14..200), v6: bool) {
        bytes[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        if let Some(claimed) = ClaimedFragment::of(&bytes) {
            prop_assert!(claimed.to_string().contains("fragment"));
        }
    }
}

#[test]
fn a_fragment_that_can_not_be_is_shown_in_words() {
    let mut frame = Vec::new();
    builder(false).id(7).fragment(17, 65_528, false, &[0; 16], &mut frame);
    assert!(dissect(&frame).is_err());
    assert_eq!(
        Summary { frame: &frame }.to_string(),
        "192.0.2.1 > 192.0.2.2 UDP fragment 0x7 at 65528 length 16"
    );
    frame.clear();
    builder(true).id(7).fragment(17, 8, true, &[0; 15], &mut frame);
    assert!(dissect(&frame).is_err());
    let shown = Summary { frame: &frame }.to_string();
    assert!(shown.ends_with(" UDP fragment 0x7 at 8+ length 15"), "{shown}");
}
