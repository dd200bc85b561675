//! Receives by messages, a batch at a time, for a queue that had to give up its ring.

use std::io;
use std::os::fd::AsRawFd;

use super::BATCH;
use super::receive::Missing;
use super::socket::PacketSocket;
use super::vnet::VnetHeader;
use crate::{Frame, FramePool, MAX_FRAME, SMALL_BUFFER};

/// Length of a VLAN tag, and the headroom kept for putting one back, in bytes.
const TAG: usize = 4;
/// Length of the two link addresses, behind which a tag goes, in bytes.
const ADDRESSES: usize = 12;
/// The longest frame that fits a small buffer with its headroom, in bytes.
const SMALL_FRAME: usize = SMALL_BUFFER - TAG;

/// Room for the messages of a batch.
#[derive(Debug)]
pub(super) struct Messages {
    /// Every frame has a virtio header in front.
    offload: bool,
    slots: Vec<Slot>,
}

/// The buffers for one message of a batch. A frame fills the small buffer first and then the large
/// one, both behind some headroom. So most frames are never copied, and only the beginning of a
/// super-packet is.
pub(super) struct Slot {
    header: VnetHeader,
    small: Box<[u8]>,
    large: Box<[u8]>,
    control: AuxiliaryMessage,
    /// Bytes received, with the virtio header.
    length: usize,
    flags: libc::c_int,
}

/// The control message of PACKET_AUXDATA; it is laid out as CMSG_DATA(3) finds it.
#[repr(C)]
struct AuxiliaryMessage {
    header: libc::cmsghdr,
    data: libc::tpacket_auxdata,
}

impl Messages {
    pub(super) fn new(offload: bool) -> Self {
        Self { offload, slots: (0..BATCH).map(|_| Slot::new()).collect() }
    }

    /// Receives up to `wanted` frames and hands each to `give`; `None` stands for a frame that was
    /// too long. An error concerns the first frame.
    pub(super) fn receive(
        &mut self,
        socket: &PacketSocket,
        wanted: usize,
        pool: &mut FramePool,
        mut give: impl FnMut(Result<Frame, Missing>),
    ) -> io::Result<()> {
        let header_length = self.header_length();
        let count = self.fill_slots(socket, wanted)?;
        self.slots[..count]
            .iter_mut()
            .for_each(|slot| give(slot.take(header_length, pool).ok_or(Missing::TooLong)));
        Ok(())
    }

    /// Bytes in front of each frame.
    fn header_length(&self) -> usize {
        if self.offload { size_of::<VnetHeader>() } else { 0 }
    }

    /// Fills up to `wanted` slots, and returns their number.
    fn fill_slots(&mut self, socket: &PacketSocket, wanted: usize) -> io::Result<usize> {
        const NO_BYTES: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let header_length = self.header_length();
        let mut pieces = [[NO_BYTES; 3]; BATCH];
        // SAFETY: zero is a valid value of every field.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let wanted = wanted.min(self.slots.len()).min(BATCH);
        for ((slot, pieces), message) in
            self.slots.iter_mut().zip(&mut pieces).zip(&mut messages).take(wanted)
        {
            let header = std::ptr::from_mut(&mut slot.header).cast();
            let small = &mut slot.small[TAG..];
            let large = &mut slot.large[SMALL_BUFFER..];
            *pieces = [
                libc::iovec { iov_base: header, iov_len: header_length },
                libc::iovec { iov_base: small.as_mut_ptr().cast(), iov_len: small.len() },
                libc::iovec { iov_base: large.as_mut_ptr().cast(), iov_len: large.len() },
            ];
            message.msg_hdr.msg_iov = pieces.as_mut_ptr();
            message.msg_hdr.msg_iovlen = pieces.len();
            slot.control.header.cmsg_len = 0;
            message.msg_hdr.msg_control = std::ptr::from_mut(&mut slot.control).cast();
            message.msg_hdr.msg_controllen = size_of::<AuxiliaryMessage>();
        }
        // SAFETY: the first `wanted` messages point to pieces and control messages that live in
        // `pieces` and `self.slots` through the call, and nothing else uses them meanwhile. Each
        // length is that of the memory that its pointer points to. Any bytes are valid in a header,
        // a buffer and a control message.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                wanted as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (slot, message) in self.slots.iter_mut().zip(&messages).take(count) {
            slot.length = message.msg_len as usize;
            slot.flags = message.msg_hdr.msg_flags;
        }
        Ok(count)
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            header: VnetHeader::default(),
            small: vec![0; SMALL_BUFFER].into(),
            large: vec![0; MAX_FRAME].into(),
            // SAFETY: zero is a valid value of every field.
            control: unsafe { std::mem::zeroed() },
            length: 0,
            flags: 0,
        }
    }

    /// Takes the frame out, with its VLAN tag put back, and takes a new buffer from the pool.
    /// `None` if the frame was too long.
    fn take(&mut self, header_length: usize, pool: &mut FramePool) -> Option<Frame> {
        let length = self.length.checked_sub(header_length)?;
        if self.flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let mut frame = pool.take(if length <= SMALL_FRAME { SMALL_BUFFER } else { MAX_FRAME })?;
        if length <= SMALL_FRAME {
            std::mem::swap(&mut frame.buffer, &mut self.small);
        } else {
            std::mem::swap(&mut frame.buffer, &mut self.large);
            frame.buffer[TAG..SMALL_BUFFER].copy_from_slice(&self.small[TAG..]);
        }
        (frame.start, frame.length) = (TAG as u32, length as u32);
        let mut inserted = 0;
        if let Some(tag) = self.control.vlan_tag()
            && length >= ADDRESSES
        {
            frame.buffer.copy_within(TAG..TAG + ADDRESSES, 0);
            frame.buffer[ADDRESSES..ADDRESSES + TAG].copy_from_slice(&tag);
            (frame.start, frame.length) = (0, (length + TAG) as u32);
            inserted = TAG as u16;
        }
        if header_length > 0 {
            frame.offload = self.header.offload(frame.bytes(), inserted);
        }
        Some(frame)
    }
}

impl AuxiliaryMessage {
    /// The tag that the kernel took off the frame, as it was on the wire.
    fn vlan_tag(&self) -> Option<[u8; TAG]> {
        let is_present = self.header.cmsg_level == libc::SOL_PACKET
            && self.header.cmsg_type == libc::PACKET_AUXDATA
            && self.header.cmsg_len >= std::mem::offset_of!(Self, data) + size_of_val(&self.data);
        if !is_present || self.data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let has_protocol = self.data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let protocol = if has_protocol { self.data.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
        let [p0, p1] = protocol.to_be_bytes();
        let [t0, t1] = self.data.tp_vlan_tci.to_be_bytes();
        Some([p0, p1, t0, t1])
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Slot").field("length", &self.length).finish_non_exhaustive()
    }
}
