//! Receives by messages, a batch at a time, for a queue that had to give up its ring.

use std::io;
use std::os::fd::AsRawFd;

use super::BATCH;
use super::bare;
use super::receive::{Form, Missing};
use super::socket::PacketSocket;
use super::vnet::VnetHeader;
use crate::{Frame, FramePool, MAX_FRAME, SMALL_BUFFER};

/// Length of a VLAN tag, in bytes.
const TAG: usize = 4;
/// The headroom that is kept for putting a tag back, or for the header that a bare link lacks, in
/// bytes.
const HEADROOM: usize = bare::HEADER;
/// Length of the two link addresses, behind which a tag goes, in bytes.
const ADDRESSES: usize = 12;
/// The longest frame that fits a small buffer with its headroom, in bytes.
const SMALL_FRAME: usize = SMALL_BUFFER - HEADROOM;

/// Room for the messages of a batch.
#[derive(Debug)]
pub(super) struct Messages {
    form: Form,
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
    pub(super) fn new(form: Form) -> Self {
        Self { form, slots: (0..BATCH).map(|_| Slot::new()).collect() }
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
        let (header_length, bare) = (self.header_length(), self.form.bare);
        let count = self.fill_slots(socket, wanted)?;
        self.slots[..count]
            .iter_mut()
            .for_each(|slot| give(slot.take(header_length, bare, pool).ok_or(Missing::TooLong)));
        Ok(())
    }

    /// Bytes in front of each frame.
    fn header_length(&self) -> usize {
        if self.form.offload { size_of::<VnetHeader>() } else { 0 }
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
            let small = &mut slot.small[HEADROOM..];
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

    /// Takes the frame out, with its VLAN tag put back, or the header in front that a bare link
    /// lacks, and takes a new buffer from the pool. `None` if the frame was too long.
    fn take(&mut self, header_length: usize, bare: bool, pool: &mut FramePool) -> Option<Frame> {
        let length = self.length.checked_sub(header_length)?;
        if self.flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let mut frame = pool.take(if length <= SMALL_FRAME { SMALL_BUFFER } else { MAX_FRAME })?;
        if length <= SMALL_FRAME {
            std::mem::swap(&mut frame.buffer, &mut self.small);
        } else {
            std::mem::swap(&mut frame.buffer, &mut self.large);
            frame.buffer[HEADROOM..SMALL_BUFFER].copy_from_slice(&self.small[HEADROOM..]);
        }
        let tag = self.control.vlan_tag().filter(|_| length >= ADDRESSES && !bare);
        let inserted = if bare { bare::HEADER } else { tag.map_or(0, |tag| tag.len()) };
        (frame.start, frame.length) = ((HEADROOM - inserted) as u32, (length + inserted) as u32);
        if let Some(tag) = tag {
            frame.buffer.copy_within(HEADROOM..HEADROOM + ADDRESSES, HEADROOM - TAG);
            frame.bytes_mut()[ADDRESSES..ADDRESSES + TAG].copy_from_slice(&tag);
        }
        if bare {
            bare::write_header(frame.bytes_mut());
        }
        if header_length > 0 {
            frame.offload = self.header.offload(frame.bytes(), inserted as u16);
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
