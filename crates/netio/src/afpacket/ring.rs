//! The ring in which the kernel lays down received frames (packet(7), TPACKET_V2).
//!
//! The ring is memory shared with the kernel, cut into slots of equal length. Each
//! has a status word that says whose it is. The kernel fills slots in order; this
//! side takes them in the same order and hands each back.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::PacketSocket;
use super::vnet::VnetHeader;
use crate::prefetch_line;

/// Length of a slot, bytes: room for a frame of a 1500-byte link with everything
/// that the kernel puts in front.
const SLOT: usize = 2048;
/// What the kernel allocates in one piece, bytes: a multiple of every page size.
const BLOCK: usize = 65_536;
/// Largest ring, bytes.
const MAX_RING: usize = 1 << 30;
/// How many slots ahead to ask for the memory of a frame.
const PREFETCH_AHEAD: usize = 4;
/// Cache lines that the headers and a short frame lie in.
const PREFETCH_LINES: usize = 3;
const CACHE_LINE: usize = 64;

/// The receive ring of one socket.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    /// Page aligned, `slots * SLOT` bytes.
    memory: NonNull<u8>,
    slots: usize,
    next: usize,
}

/// A received frame, as it lies in the ring.
pub(super) struct Slot<'a> {
    header: libc::tpacket2_hdr,
    /// All of the slot but its header.
    memory: &'a [u8],
}

// SAFETY: the mapping belongs to the ring and is not tied to a thread.
unsafe impl Send for ReceiveRing {}

impl ReceiveRing {
    /// Gives the socket a ring of about this length; frames that are too long for
    /// a slot are queued besides. The socket must not be bound yet, and options
    /// that change what lies in a slot must have been set before.
    pub(super) fn new(socket: &PacketSocket, bytes: u32) -> io::Result<Self> {
        let blocks = (bytes as usize).clamp(BLOCK, MAX_RING) / BLOCK;
        let slots = blocks * (BLOCK / SLOT);
        socket.set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
        // Any number but zero has the whole of a frame queued that is cut off.
        socket.set(libc::PACKET_COPY_THRESH, 1)?;
        socket.set_ring(&libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: slots as u32,
        })?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                slots * SLOT,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, slots, next: 0 })
    }

    /// Shows the oldest frame to `read` and hands its slot back to the kernel;
    /// `None` when there is no frame.
    pub(super) fn take<T>(&mut self, read: impl FnOnce(&Slot<'_>) -> T) -> Option<T> {
        let at = self.next * SLOT;
        let status = self.word(at + offset_of!(libc::tpacket2_hdr, tp_status));
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        self.prefetch(self.next + PREFETCH_AHEAD);
        // SAFETY: the slot is ours, and the kernel's writes happened before the
        // status was loaded; it leaves the slot alone until the status is stored
        // below. Any bytes are a valid header. What follows it in the slot is
        // initialised, because the kernel maps zeroed memory.
        let (header, memory) = unsafe {
            const HEADER: usize = size_of::<libc::tpacket2_hdr>();
            let start = self.memory.as_ptr().add(at);
            let memory = std::slice::from_raw_parts(start.add(HEADER), SLOT - HEADER);
            (start.cast::<libc::tpacket2_hdr>().read(), memory)
        };
        let result = read(&Slot { header, memory });
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.slots { 0 } else { self.next + 1 };
        Some(result)
    }

    /// The word at this offset in the ring, which the kernel may be writing.
    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.slots * SLOT);
        // SAFETY: the word is aligned and within the mapping, which lives as long as
        // `self`; this side accesses it only so while the kernel may.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    fn prefetch(&self, number: usize) {
        let number = if number < self.slots { number } else { number - self.slots };
        for line in 0..PREFETCH_LINES {
            prefetch_line(self.word(number * SLOT + line * CACHE_LINE));
        }
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing borrows from
        // it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.slots * SLOT) };
    }
}

impl Slot<'_> {
    /// Length of the frame, which may be more than what is here, bytes.
    pub(super) fn length(&self) -> usize {
        self.header.tp_len as usize
    }

    /// True when the whole frame is in the socket's queue too, as the next one
    /// there.
    pub(super) fn is_queued(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_COPY != 0
    }

    /// The frame, as far as it fits.
    pub(super) fn bytes(&self) -> &[u8] {
        self.part(usize::from(self.header.tp_mac), self.header.tp_snaplen as usize)
    }

    /// The virtio header in front of the frame, on a socket with PACKET_VNET_HDR.
    pub(super) fn vnet_header(&self) -> VnetHeader {
        let start = usize::from(self.header.tp_mac).saturating_sub(VnetHeader::LENGTH);
        let bytes = self.part(start, VnetHeader::LENGTH);
        bytes.try_into().map_or_else(|_| VnetHeader::default(), VnetHeader::from_bytes)
    }

    /// The VLAN tag that the kernel took off the frame, as it was on the wire.
    pub(super) fn vlan_tag(&self) -> Option<[u8; 4]> {
        let status = self.header.tp_status;
        if status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let has_protocol = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let protocol =
            if has_protocol { self.header.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
        let [p0, p1] = protocol.to_be_bytes();
        let [t0, t1] = self.header.tp_vlan_tci.to_be_bytes();
        Some([p0, p1, t0, t1])
    }

    /// What lies at a place that is counted from the start of the slot; nothing if
    /// it is not within.
    fn part(&self, start: usize, length: usize) -> &[u8] {
        let start = start.wrapping_sub(size_of_val(&self.header));
        self.memory.get(start..start.wrapping_add(length)).unwrap_or_default()
    }
}
