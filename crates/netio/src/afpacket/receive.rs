//! Receiving from the ring, and from the queue what is too long for it.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use super::receive_ring::{ReceiveRing, Slot};
use super::socket::PacketSocket;
use super::system_error;
use super::vnet::VnetHeader;
use crate::{Frame, FramePool, PortError, PortId, RxQueue};

/// Length of a VLAN tag, bytes.
const TAG: usize = 4;
/// Length of the two link addresses, behind which a tag goes, bytes.
const ADDRESSES: usize = 12;
/// Of how many calls in a row that find nothing one asks whether the interface is
/// still there.
const SILENT_CALLS: u32 = 16;

/// A receive queue of an interface.
#[derive(Debug)]
pub struct AfPacketRx {
    ring: ReceiveRing,
    socket: PacketSocket,
    interface: String,
    port: PortId,
    /// Every frame has a virtio header in front.
    offload: bool,
    sequence: u64,
    /// Frames that were taken off the ring and could not be delivered.
    lost: u64,
    /// Calls in a row that found nothing.
    silent: u32,
    gone: bool,
}

impl AfPacketRx {
    pub(super) fn new(
        ring: ReceiveRing,
        socket: PacketSocket,
        interface: &str,
        port: PortId,
        offload: bool,
    ) -> Self {
        let interface = interface.into();
        Self {
            ring,
            socket,
            interface,
            port,
            offload,
            sequence: 0,
            lost: 0,
            silent: 0,
            gone: false,
        }
    }

    /// An interface that has gone is no event in the ring, so it must be asked for.
    fn look_for_error(&mut self) -> io::Result<()> {
        self.silent += 1;
        if self.silent < SILENT_CALLS {
            return Ok(());
        }
        self.silent = 0;
        self.socket.take_error()
    }

    fn failed(&mut self, error: io::Error) -> PortError {
        let error = system_error(&self.interface, "receiving", error);
        self.gone = matches!(error, PortError::Gone { .. });
        error
    }
}

/// Copies the frame out of the ring, or fetches it from the queue, with its VLAN tag
/// put back. `None` for a frame that is not there as a whole.
fn copy(
    slot: &Slot<'_>,
    socket: &PacketSocket,
    offload: bool,
    pool: &mut FramePool,
) -> io::Result<Option<Frame>> {
    let length = slot.length();
    let tag = slot.vlan_tag().filter(|_| length >= ADDRESSES);
    let inserted = tag.map_or(0, |tag| tag.len());
    let Some(mut frame) = pool.take(length + inserted) else { return Ok(None) };
    let (addresses, rest) = match tag {
        None => frame.bytes_mut().split_at_mut(0),
        Some(tag) => {
            let (addresses, rest) = frame.bytes_mut().split_at_mut(ADDRESSES);
            let (place, rest) = rest.split_at_mut(TAG);
            place.copy_from_slice(&tag);
            (addresses, rest)
        }
    };
    let is_whole = if slot.bytes().len() == length {
        let (from_addresses, from_rest) = slot.bytes().split_at(addresses.len());
        addresses.copy_from_slice(from_addresses);
        rest.copy_from_slice(from_rest);
        true
    } else if slot.is_queued() {
        let mut header = [0; VnetHeader::LENGTH];
        let header = if offload { &mut header[..] } else { &mut [] };
        let expected = header.len() + length;
        let parts = [header, addresses, rest].map(IoSliceMut::new);
        socket.read(parts)? == expected
    } else {
        false
    };
    if !is_whole {
        pool.give_back(frame);
        return Ok(None);
    }
    if offload {
        frame.offload = slot.vnet_header().offload(frame.bytes(), inserted as u16);
    }
    Ok(Some(frame))
}

impl RxQueue for AfPacketRx {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        if self.gone {
            return Err(PortError::Gone { interface: self.interface.clone() });
        }
        let before = frames.len();
        for _ in 0..max {
            let (socket, offload) = (&self.socket, self.offload);
            match self.ring.take(|slot| copy(slot, socket, offload, pool)) {
                Some(Ok(Some(mut frame))) => {
                    frame.port = self.port;
                    frame.sequence = self.sequence;
                    self.sequence += 1;
                    frames.push(frame);
                }
                Some(Ok(None)) => self.lost += 1,
                Some(Err(error)) => return Err(self.failed(error)),
                None if frames.len() == before => {
                    self.look_for_error().map_err(|error| self.failed(error))?;
                    break;
                }
                None => break,
            }
            self.silent = 0;
        }
        Ok(frames.len() - before)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost) + u64::from(self.socket.take_lost().unwrap_or(0))
    }
}
