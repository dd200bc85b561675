use wire::build::PacketBuilder;

use super::*;
use crate::{FramePool, Segmentation};

#[test]
fn priority_tags_are_taken_off_with_what_points_behind_them() {
    let mut plain = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(7, 9, b"payload", &mut plain);
    let offload = |tags: u16| Offload {
        checksum: Checksum::Partial { start: 34 + tags, offset: 6 },
        segmentation: Some(Segmentation { kind: 5, segment_size: 4, header_length: 42 + tags }),
    };
    let untagged = |tags: &[u8]| {
        let bytes = [&plain[..12], tags, &plain[12..]].concat();
        let mut frame = FramePool::new(0, 0).copy_of(&bytes).unwrap();
        frame.offload = offload(tags.len() as u16);
        frame.take_priority_tags();
        (frame.bytes().len(), frame.bytes() == plain, frame.offload)
    };
    for tags in [&[][..], &[0x81, 0, 0, 0], &[0x88, 0xa8, 0xe0, 0, 0x81, 0, 0x20, 0]] {
        assert_eq!(untagged(tags), (plain.len(), true, offload(0)), "{tags:02x?}");
    }
    for vlan in [&[0x81, 0, 0, 7][..], &[0x81, 0, 0, 0, 0x81, 0, 0, 7]] {
        let as_it_was = (plain.len() + vlan.len(), false, offload(vlan.len() as u16));
        assert_eq!(untagged(vlan), as_it_was, "{vlan:02x?}");
    }
}
