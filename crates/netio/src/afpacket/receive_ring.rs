//! The ring into which the kernel writes received frames.

use std::io;
use std::sync::atomic::Ordering;

use super::slots::{HEADER, MAX_RING, Slots};
use super::socket::PacketSocket;
use super::vnet::VnetHeader;
use crate::RingPosition;

/// Length of a slot, in bytes: room for a frame of a 1500-byte link with everything
/// that the kernel puts in front.
const SLOT: usize = 2048;
/// Number of slots ahead of the current one to prefetch.
const PREFETCH_AHEAD: usize = 4;

/// The receive ring of one socket.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    slots: Slots<SLOT>,
    /// The slot that the kernel fills next, or has filled.
    next: usize,
}

/// A received frame in the ring.
pub(super) struct Slot<'a> {
    header: libc::tpacket2_hdr,
    /// The bytes behind the header.
    content: &'a [u8],
}

impl ReceiveRing {
    /// Gives the socket a ring of about this length. The kernel queues frames that are too long for
    /// a slot beside it. The socket must not be bound yet. Options that change the content of a
    /// slot must have been set before.
    pub(super) fn new(socket: &PacketSocket, bytes: u32) -> io::Result<Self> {
        // With any number but zero, the kernel queues the whole of a frame that is cut off here.
        socket.set(libc::PACKET_COPY_THRESH, 1)?;
        let slots = Slots::new(socket, libc::PACKET_RX_RING, bytes as usize)?;
        Ok(Self { slots, next: 0 })
    }

    /// Goes on with the ring that the socket has. The caller alone reads it from now on.
    pub(super) fn take_over(
        socket: &PacketSocket,
        RingPosition { slots, next }: RingPosition,
    ) -> io::Result<Self> {
        // The slots of a ring fill whole blocks, and the kernel makes none that is longer.
        let is_possible = slots > 0 && slots as usize <= MAX_RING / SLOT && next < slots;
        if !is_possible {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { slots: Slots::map(socket, slots as usize)?, next: next as usize })
    }

    /// Where it stands.
    pub(super) fn position(&self) -> RingPosition {
        RingPosition { slots: self.slots.count() as u32, next: self.next as u32 }
    }

    /// Goes on with the oldest frame, after another process has read the ring and ended. False if there
    /// is no frame, so that nobody can tell where the kernel puts the next one.
    ///
    /// The kernel fills slots in order, so the frames are a run of slots, and the one in front of the
    /// oldest is the kernel's. If the kernel has none, the earliest frame is the oldest.
    pub(super) fn find_place(&mut self) -> bool {
        let count = self.slots.count();
        let has_frame =
            |slot| self.slots.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        // A frame may come meanwhile. In this order of the two looks, it comes behind the oldest.
        let is_oldest = |&slot: &usize| has_frame(slot) && !has_frame(self.slots.before(slot));
        let oldest = (0..count).find(is_oldest).or_else(|| {
            let is_full = (0..count).all(has_frame);
            is_full.then(|| (0..count).min_by_key(|slot| self.time_of(*slot))).flatten()
        });
        self.next = oldest.unwrap_or(self.next);
        oldest.is_some()
    }

    /// When the frame in a slot came, which the kernel has filled: seconds and nanoseconds.
    fn time_of(&self, slot: usize) -> (u32, u32) {
        // SAFETY: the kernel does not touch a slot that it has filled until it gets the slot back, and
        // the caller has seen that it has filled this one.
        let header = unsafe { self.slots.header(slot) };
        (header.tp_sec, header.tp_nsec)
    }

    /// Shows the oldest frame to `read` and hands its slot back to the kernel;
    /// `None` when there is no frame.
    pub(super) fn take<T>(&mut self, read: impl FnOnce(&Slot<'_>) -> T) -> Option<T> {
        let status = self.slots.status(self.next);
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        self.slots.prefetch(self.next + PREFETCH_AHEAD);
        // SAFETY: the slot is ours, and what the kernel wrote happened before the
        // status was loaded; it does not touch the slot until the status is stored
        // below, when `slot` is used no more.
        let slot = unsafe {
            Slot { header: self.slots.header(self.next), content: self.slots.content(self.next) }
        };
        let result = read(&slot);
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = self.slots.after(self.next);
        Some(result)
    }
}

impl Slot<'_> {
    /// Length of the frame, in bytes. The slot may hold less.
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

    /// The bytes at a place counted from the start of the slot; none if it is not within the slot.
    fn part(&self, start: usize, length: usize) -> &[u8] {
        let start = start.wrapping_sub(HEADER);
        self.content.get(start..start.wrapping_add(length)).unwrap_or_default()
    }
}
