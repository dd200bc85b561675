//! The virtio header that goes with every frame of a PACKET_VNET_HDR socket.

use crate::offload::headers;
use crate::{Checksum, Offload, Segmentation};

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;

const GSO_NONE: u8 = 0;

/// `struct virtio_net_hdr` (virtio 1.2 section 5.1.6), in the byte order of this
/// machine, as packet sockets have it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    header_length: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl VnetHeader {
    /// Its length, in bytes.
    pub(super) const LENGTH: usize = size_of::<Self>();

    /// Reads a received header.
    pub(super) fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = bytes;
        Self {
            flags,
            gso_type,
            header_length: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            checksum_start: u16::from_ne_bytes([s0, s1]),
            checksum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    /// The bytes of the header, for sending.
    pub(super) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let [h0, h1] = self.header_length.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.checksum_start.to_ne_bytes();
        let [o0, o1] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// The same header for a frame without its first `removed` bytes.
    pub(super) fn behind(self, removed: u16) -> Self {
        let checksum_start = self.checksum_start.saturating_sub(removed);
        let header_length = self.header_length.saturating_sub(removed);
        Self { header_length, checksum_start, ..self }
    }

    /// The same header with another length of the part that the kernel copies into one piece.
    pub(super) fn with_header_length(self, header_length: u16) -> Self {
        Self { header_length, ..self }
    }

    /// The offload that the header describes. `frame` holds the bytes behind it. Since it was
    /// received, `inserted` bytes were put in front of the network header.
    pub(super) fn offload(self, frame: &[u8], inserted: u16) -> Offload {
        let start = self.checksum_start.saturating_add(inserted);
        let checksum = if self.flags & NEEDS_CHECKSUM != 0 {
            Checksum::Partial { start, offset: self.checksum_offset }
        } else if self.flags & CHECKSUM_VALID != 0 {
            Checksum::Verified
        } else {
            Checksum::Complete
        };
        let segmentation = (self.gso_type != GSO_NONE).then(|| Segmentation {
            kind: self.gso_type,
            segment_size: self.gso_size,
            header_length: measured(frame, self.gso_type, checksum)
                .unwrap_or(self.header_length.saturating_add(inserted)),
        });
        Offload { checksum, segmentation }
    }

    /// The header to send a frame with.
    pub(super) fn new(offload: Offload) -> Self {
        let mut header = Self::default();
        // The header has no flag for a verified checksum on sending: it counts as complete.
        if let Checksum::Partial { start, offset } = offload.checksum {
            header.flags = NEEDS_CHECKSUM;
            header.checksum_start = start;
            header.checksum_offset = offset;
        }
        if let Some(segmentation) = offload.segmentation {
            header.gso_type = segmentation.kind;
            header.gso_size = segmentation.segment_size;
            header.header_length = segmentation.header_length;
        }
        header
    }
}

/// Length of all headers of a super-packet. The kernel's own figure is the length of the part that
/// lies in one piece in its memory. That may include much of the payload.
fn measured(frame: &[u8], kind: u8, checksum: Checksum) -> Option<u16> {
    let Checksum::Partial { start, .. } = checksum else { return None };
    headers(frame, kind, start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{GSO_ECN, GSO_TCP4, GSO_TCP6};

    #[test]
    fn headers_are_measured_in_the_packet() {
        let mut frame = [0; 100];
        frame[34 + 12] = 0x80;
        frame[38 + 12] = 0x80;
        let header = VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: GSO_TCP4 | GSO_ECN,
            header_length: 90,
            gso_size: 1448,
            checksum_start: 34,
            checksum_offset: 16,
        };
        for inserted in [0, 4] {
            let offload = header.offload(&frame, inserted);
            let start = 34 + inserted;
            assert_eq!(offload.checksum, Checksum::Partial { start, offset: 16 });
            let expected =
                Segmentation { kind: 0x81, segment_size: 1448, header_length: start + 32 };
            assert_eq!(offload.segmentation, Some(expected));
            let sent = VnetHeader::new(offload);
            let expected =
                VnetHeader { header_length: start + 32, checksum_start: start, ..header };
            assert_eq!(sent, expected);
        }
    }

    #[test]
    fn complete_frames_have_a_zero_header() {
        assert_eq!(VnetHeader::default().offload(&[], 4), Offload::default());
        assert_eq!(VnetHeader::new(Offload::default()), VnetHeader::default());
        let verified = VnetHeader { flags: CHECKSUM_VALID, ..VnetHeader::default() };
        let offload = verified.offload(&[], 0);
        assert_eq!(offload, Offload { checksum: Checksum::Verified, segmentation: None });
        assert_eq!(VnetHeader::new(offload), VnetHeader::default());
    }

    #[test]
    fn nonsense_from_outside_does_not_overflow() {
        let header = VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: GSO_TCP6,
            header_length: u16::MAX,
            gso_size: 0,
            checksum_start: u16::MAX,
            checksum_offset: u16::MAX,
        };
        let segmentation = header.offload(&[0; 64], 4).segmentation.unwrap();
        assert_eq!(segmentation.header_length, u16::MAX);
    }
}
