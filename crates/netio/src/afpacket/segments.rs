//! Work that the kernel can not be asked to do: the virtio header tells where a
//! checksum starts and how long segments are, and not that this is inside a tunnel.
//! Of a super-packet, the kernel then cuts up the outermost packet or refuses.

use wire::{checksum, dissect};

use crate::{Checksum, Frame};

/// Offset of SCTP's checksum, which is a CRC that the virtio header can not ask for.
const SCTP_CHECKSUM: u16 = 8;

/// Makes a frame ready for the kernel, which takes over what is left of the frame's
/// offload if `offload` is set. False for what [`Frame::cut_up`] has to cut up or refuse.
pub(super) fn make_ready(frame: &mut Frame, offload: bool) -> bool {
    let Checksum::Partial { start, offset } = frame.offload.checksum else {
        // Datagrams merged on receipt; the kernel takes those with a partial checksum.
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

/// What the kernel can make sense of, or at least decide upon: the checksum is that of
/// the outermost transport.
fn is_outermost(bytes: &[u8], start: u16) -> bool {
    let outer = dissect(bytes).ok().and_then(|outer| outer.network);
    outer.is_none_or(|network| network.transport_offset == start)
}
