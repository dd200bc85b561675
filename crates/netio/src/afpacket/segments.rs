//! Work that the kernel can not do. The virtio header gives the start of the checksum and the length
//! of the segments, but not that they are inside a tunnel. The kernel then segments the outermost
//! packet, or refuses.

use wire::{checksum, dissect};

use crate::{Checksum, Frame};

/// Offset of SCTP's checksum, which is a CRC that the virtio header can not ask for.
const SCTP_CHECKSUM: u16 = 8;

/// Makes a frame ready for the kernel. If `offload` is set, the kernel does the rest of the frame's
/// offload. False for a frame that [`Frame::cut_up`] has to cut up or refuse.
pub(super) fn make_ready(frame: &mut Frame, offload: bool) -> bool {
    let Checksum::Partial { start, offset } = frame.offload.checksum else {
        // These are datagrams that were merged on receipt; the kernel takes such with a partial
        // checksum only.
        return frame.offload.segmentation.is_none_or(|kind| offload && !kind.is_udp());
    };
    if offload && offset != SCTP_CHECKSUM && is_outermost(frame.bytes(), start) {
        return true;
    }
    if frame.offload.segmentation.is_some() || !checksum::complete(frame.bytes_mut(), start, offset)
    {
        return false;
    }
    frame.offload.checksum = Checksum::Complete;
    true
}

/// True if the checksum is that of the outermost transport, so that the kernel can do the work, or
/// at least decide.
fn is_outermost(bytes: &[u8], start: u16) -> bool {
    let outer = dissect(bytes).ok().and_then(|outer| outer.network);
    outer.is_none_or(|network| network.transport_offset == start)
}
