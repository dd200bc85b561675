//! Rings of packet(7), TPACKET_V2: memory shared with the kernel, cut into slots of equal length.
//! Each slot begins with a header. A status word in the header says whether the slot belongs to the
//! kernel or to this program. Both sides go through the slots in the same order.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::socket::PacketSocket;
use crate::prefetch_line;

/// Bytes that the kernel allocates in one piece: a multiple of every page size.
pub(super) const BLOCK: usize = 65_536;
/// The largest ring, in bytes.
pub(super) const MAX_RING: usize = 1 << 30;
/// Length of the header of a slot, in bytes.
pub(super) const HEADER: usize = size_of::<libc::tpacket2_hdr>();
/// Cache lines that the headers and a short frame lie in.
const PREFETCH_LINES: usize = 3;
const CACHE_LINE: usize = 64;

/// The slots of one ring. `SIZE` is the length of a slot, in bytes: a power of two, less
/// than [`BLOCK`] and not less than the lines of a prefetch.
#[derive(Debug)]
pub(super) struct Slots<const SIZE: usize> {
    /// Page aligned, `count * SIZE` bytes.
    memory: NonNull<u8>,
    count: usize,
}

// SAFETY: the mapping belongs to this value and is not tied to a thread.
unsafe impl<const SIZE: usize> Send for Slots<SIZE> {}

impl<const SIZE: usize> Slots<SIZE> {
    /// Makes the ring of `option`, PACKET_RX_RING or PACKET_TX_RING, about `bytes` long. Options
    /// that change the content of a slot must have been set before.
    pub(super) fn new(
        socket: &PacketSocket,
        option: libc::c_int,
        bytes: usize,
    ) -> io::Result<Self> {
        const { assert!(SIZE.is_power_of_two() && SIZE < BLOCK) };
        const { assert!(SIZE >= PREFETCH_LINES * CACHE_LINE) };
        let blocks = bytes.clamp(BLOCK, MAX_RING) / BLOCK;
        let count = blocks * (BLOCK / SIZE);
        socket.set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: SIZE as u32,
            tp_frame_nr: count as u32,
        };
        socket.set_ring(option, &request)?;
        Self::map(socket, count)
    }

    /// Maps the ring of a socket, which has so many slots.
    ///
    /// # Errors
    /// That of the kernel, which refuses another length than that of the ring.
    pub(super) fn map(socket: &PacketSocket, count: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * SIZE,
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
        Ok(Self { memory, count })
    }

    /// The number of the slot that follows.
    pub(super) fn after(&self, number: usize) -> usize {
        if number + 1 == self.count { 0 } else { number + 1 }
    }

    /// The slot in front of it.
    pub(super) fn before(&self, number: usize) -> usize {
        if number == 0 { self.count - 1 } else { number - 1 }
    }

    /// The number of slots.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The status word, which says who owns the slot.
    pub(super) fn status(&self, number: usize) -> &AtomicU32 {
        self.word(number, offset_of!(libc::tpacket2_hdr, tp_status))
    }

    /// The word in the header that holds the length of the frame.
    pub(super) fn length(&self, number: usize) -> &AtomicU32 {
        self.word(number, offset_of!(libc::tpacket2_hdr, tp_len))
    }

    /// Prefetches a slot, which may still be the kernel's.
    pub(super) fn prefetch(&self, number: usize) {
        for line in 0..PREFETCH_LINES {
            prefetch_line(self.word(number % self.count, line * CACHE_LINE));
        }
    }

    /// A copy of the header of a slot.
    ///
    /// # Safety
    /// The slot must not be the kernel's.
    pub(super) unsafe fn header(&self, number: usize) -> libc::tpacket2_hdr {
        // SAFETY: the slot begins with its header and is aligned for it, any bytes
        // are a valid header, and nobody writes it, as the caller promises.
        unsafe { self.start(number).cast::<libc::tpacket2_hdr>().read() }
    }

    /// The bytes behind the header of a slot.
    ///
    /// # Safety
    /// The slot must not be the kernel's for as long as the result is used.
    pub(super) unsafe fn content(&self, number: usize) -> &[u8] {
        // SAFETY: this is within the slot, and initialised because the kernel maps
        // zeroed memory; nobody writes it, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start(number).add(HEADER), SIZE - HEADER) }
    }

    /// The bytes behind the header of a slot, for writing.
    ///
    /// # Safety
    /// The slot must not be the kernel's for as long as the result is used.
    pub(super) unsafe fn content_mut(&mut self, number: usize) -> &mut [u8] {
        // SAFETY: as for `content`; `self` is borrowed mutably, so that there is no
        // other reference to what follows a header.
        unsafe { std::slice::from_raw_parts_mut(self.start(number).add(HEADER), SIZE - HEADER) }
    }

    fn word(&self, number: usize, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(size_of::<u32>()) && offset < SIZE);
        // SAFETY: the word is within the slot, aligned, and lives as long as `self`;
        // this side accesses it in no other way while the kernel may write it.
        unsafe { AtomicU32::from_ptr(self.start(number).add(offset).cast()) }
    }

    fn start(&self, number: usize) -> *mut u8 {
        assert!(number < self.count);
        // SAFETY: this is within the mapping, which is `count * SIZE` bytes long.
        unsafe { self.memory.as_ptr().add(number * SIZE) }
    }
}

impl<const SIZE: usize> Drop for Slots<SIZE> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing borrows from
        // it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.count * SIZE) };
    }
}
