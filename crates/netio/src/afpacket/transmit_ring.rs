//! The ring from which the kernel sends short frames.
//!
//! A frame in a ring costs less than a message: there is no message header to fetch and no list of
//! pieces to check.
//!
//! But the kernel sends the bytes of a ring from their place. A veth cable releases a packet, and
//! the slot with it, before the receiver has read the bytes. A kernel that is new enough to know of
//! this danger copies the bytes to its own pages first. It always copies the part that the virtio
//! header calls header, which is safe and cheap. So every frame here is all header.

use std::io;
use std::sync::atomic::Ordering;

use super::slots::{BLOCK, HEADER, Slots};
use super::socket::PacketSocket;
use super::vnet::VnetHeader;
use crate::Frame;

/// Length of a slot, in bytes.
const SLOT: usize = 512;

/// A transmit ring with its socket.
#[derive(Debug)]
pub(super) struct TransmitRing {
    slots: Slots<SLOT>,
    socket: PacketSocket,
    /// The slot that the kernel sends from next.
    next: usize,
}

impl TransmitRing {
    /// The longest frame that fits, in bytes. With a virtio header the kernel does not compare
    /// lengths with the MTU, so this must not exceed the MTU.
    pub(super) const LONGEST: usize = SLOT - HEADER - VnetHeader::LENGTH;

    /// Gives a ring to the socket, which has PACKET_VNET_HDR and is not bound yet, and binds it to
    /// an interface.
    pub(super) fn new(socket: PacketSocket, index: u32) -> io::Result<Self> {
        let slots = Slots::new(&socket, libc::PACKET_TX_RING, BLOCK)?;
        socket.bind(index, false)?;
        Ok(Self { slots, socket, next: 0 })
    }

    /// True for a frame that can be sent from the ring.
    pub(super) fn fits(frame: &Frame) -> bool {
        frame.len() <= Self::LONGEST && frame.offload.segmentation.is_none()
    }

    /// Sends the first of `frames`, which all fit, and returns how many went out. A caller learns
    /// the error by sending the rest as messages.
    pub(super) fn send(&mut self, frames: &[Frame]) -> usize {
        let first = self.next;
        let mut filled = 0;
        for frame in frames.iter().take(self.slots.count()) {
            if !self.fill(frame) {
                break;
            }
            filled += 1;
        }
        if filled > 0 {
            self.socket.send_ring();
        }
        self.next = first;
        let mut sent = 0;
        while sent < filled && !self.is_left(self.next) {
            sent += 1;
            self.next = self.slots.after(self.next);
        }
        // A frame that is left must not go out later, out of order.
        let mut left = self.next;
        for _ in sent..filled {
            self.slots.status(left).store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
            left = self.slots.after(left);
        }
        sent
    }

    /// Puts a frame into the next slot, if that is free.
    fn fill(&mut self, frame: &Frame) -> bool {
        let number = self.next;
        if self.slots.status(number).load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE {
            return false;
        }
        let length = frame.len();
        let header = VnetHeader::new(frame.offload).with_header_length(length as u16);
        // SAFETY: the slot is ours until the status is stored below.
        let content = unsafe { self.slots.content_mut(number) };
        let (place, rest) = content.split_at_mut(VnetHeader::LENGTH);
        place.copy_from_slice(&header.to_bytes());
        rest[..length].copy_from_slice(frame.bytes());
        let length = (VnetHeader::LENGTH + length) as u32;
        self.slots.length(number).store(length, Ordering::Relaxed);
        self.slots.status(number).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next = self.slots.after(number);
        true
    }

    /// True for a slot that was filled and not sent.
    fn is_left(&self, number: usize) -> bool {
        let status = self.slots.status(number).load(Ordering::Acquire);
        status & (libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_WRONG_FORMAT) != 0
    }
}
