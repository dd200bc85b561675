//! Receives from the ring, and from the queue beside it frames that are too long for the ring.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::bare;
use super::messages::Messages;
use super::receive_ring::{ReceiveRing, Slot};
use super::socket::PacketSocket;
use super::system_error;
use super::vnet::VnetHeader;
use crate::{Frame, FramePool, LinkState, PortError, PortId, QueuePosition, RxQueue, Service};

/// Length of a VLAN tag, in bytes.
const TAG: usize = 4;
/// Length of the two link addresses, behind which a tag goes, in bytes.
const ADDRESSES: usize = 12;
/// The number of calls in a row without a frame after which the queue checks that the interface is
/// still there.
const SILENT_CALLS: u32 = 16;

/// The source of frames.
#[derive(Debug)]
enum Source {
    Ring(ReceiveRing),
    /// The ring got stuck and was given up.
    Messages(Messages),
}

/// Why there is no frame where there should be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is longer than any buffer.
    TooLong,
    /// The rest of it was lost.
    CutOff,
}

/// The form in which packets come out of the socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Every packet has a virtio header in front.
    pub(super) offload: bool,
    /// Packets have no link header.
    pub(super) bare: bool,
}

/// A receive queue of an interface.
#[derive(Debug)]
pub struct AfPacketRx {
    source: Source,
    socket: PacketSocket,
    interface: String,
    port: PortId,
    form: Form,
    service: Service,
    sequence: u64,
    /// Frames that were taken off the ring and could not be delivered.
    lost: u64,
    /// Frames that are longer than any buffer.
    too_long: u64,
    /// Calls in a row that found nothing.
    silent: u32,
    gone: bool,
    /// Another process has read the ring, and no frame has shown yet where it stands.
    is_astray: bool,
}

impl AfPacketRx {
    pub(super) fn new(
        ring: ReceiveRing,
        socket: PacketSocket,
        link: &LinkState,
        port: PortId,
        offload: bool,
        service: Service,
    ) -> Self {
        let interface = link.name.clone();
        let form = Form { offload, bare: link.is_bare() };
        Self {
            source: Source::Ring(ring),
            socket,
            interface,
            port,
            form,
            service,
            sequence: 0,
            lost: 0,
            too_long: 0,
            silent: 0,
            gone: false,
            is_astray: false,
        }
    }

    /// Goes on with a queue of another process, which no longer reads it.
    ///
    /// # Errors
    /// [`PortError::System`] if the descriptor is no packet socket of this interface, or its ring is
    /// another one.
    pub fn take_over(
        descriptor: OwnedFd,
        position: QueuePosition,
        link: &LinkState,
        port: PortId,
    ) -> Result<Self, PortError> {
        let QueuePosition { sequence, offload, ring, service } = position;
        let failed = |source| system_error(&link.name, "taking over a queue", source);
        let socket = PacketSocket::take_over(descriptor, link.index).map_err(failed)?;
        let form = Form { offload, bare: link.is_bare() };
        let source = match ring {
            Some(ring) => Source::Ring(ReceiveRing::take_over(&socket, ring).map_err(failed)?),
            None => Source::Messages(Messages::new(form)),
        };
        let interface = link.name.clone();
        Ok(Self {
            source,
            socket,
            interface,
            port,
            form,
            service,
            sequence,
            lost: 0,
            too_long: 0,
            silent: 0,
            gone: false,
            is_astray: false,
        })
    }

    /// Receives into `frames`. Frames that can not be delivered count as lost.
    fn take(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> io::Result<()> {
        let Self { source, socket, port, form, sequence, lost, too_long, .. } = self;
        let mut give = |frame: Result<Frame, Missing>| match frame {
            Ok(mut frame) => {
                (frame.port, frame.sequence) = (*port, *sequence);
                *sequence += 1;
                frames.push(frame);
            }
            Err(Missing::TooLong) => *too_long += 1,
            Err(Missing::CutOff) => *lost += 1,
        };
        let ring = match source {
            Source::Ring(ring) => ring,
            Source::Messages(messages) => return messages.receive(socket, max, pool, give),
        };
        if self.is_astray {
            self.is_astray = !ring.find_place();
            if self.is_astray {
                return Ok(());
            }
        }
        for taken in 0..max {
            match ring.take(|slot| copy(slot, socket, *form, pool)) {
                Some(frame) => give(frame?),
                None if taken == 0 => return self.look_after_silence(),
                None => break,
            }
            self.silent = 0;
        }
        Ok(())
    }

    /// Checks, after some calls without a frame, for two conditions that are no events in the ring:
    /// the interface has gone, or the ring is stuck.
    ///
    /// The ring gets stuck when the kernel (6.18) meets a super-packet that a virtio header can not
    /// describe, such as one of SCTP. The kernel counts the packet as lost, takes its slot for one
    /// that is still being filled, and loses all packets that follow. So no frame came, and yet
    /// some were lost.
    fn look_after_silence(&mut self) -> io::Result<()> {
        self.silent = self.silent.wrapping_add(1);
        if !self.silent.is_multiple_of(SILENT_CALLS) {
            return Ok(());
        }
        self.socket.take_error()?;
        let lost = self.socket.take_lost()?;
        self.lost += u64::from(lost);
        // A loss before the first of these calls may be for lack of buffer.
        if lost > 0 && self.silent > SILENT_CALLS {
            // The kernel removes no ring that is still mapped, so this unmaps it first.
            self.source = Source::Messages(Messages::new(self.form));
            self.socket.remove_receive_ring()?;
        }
        Ok(())
    }

    fn failed(&mut self, error: io::Error) -> PortError {
        let error = system_error(&self.interface, "receiving", error);
        self.gone = matches!(error, PortError::Gone { .. });
        error
    }
}

/// Copies the frame out of the ring, or reads it from the queue, with its VLAN tag put back, or the
/// header in front that a bare link lacks. `None` if no buffer is free or the frame is not complete.
fn copy(
    slot: &Slot<'_>,
    socket: &PacketSocket,
    Form { offload, bare }: Form,
    pool: &mut FramePool,
) -> io::Result<Result<Frame, Missing>> {
    let length = slot.length();
    let tag = slot.vlan_tag().filter(|_| length >= ADDRESSES && !bare);
    let inserted = if bare { bare::HEADER } else { tag.map_or(0, |tag| tag.len()) };
    let Some(mut frame) = pool.take(length + inserted) else {
        if slot.is_queued() {
            // The next frame must not take this one's turn in the queue.
            socket.read([IoSliceMut::new(&mut [0; VnetHeader::LENGTH + 1])])?;
        }
        return Ok(Err(Missing::TooLong));
    };
    let (addresses, rest): (&mut [u8], _) = match tag {
        None => (&mut [], &mut frame.bytes_mut()[inserted..]),
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
        return Ok(Err(Missing::CutOff));
    }
    if bare {
        bare::write_header(frame.bytes_mut());
    }
    if offload {
        frame.offload = slot.vnet_header().offload(frame.bytes(), inserted as u16);
    }
    Ok(Ok(frame))
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
        // Each turn but the last takes a frame off the queue, so that `max` of them
        // are enough.
        for _ in 0..max {
            match self.take(frames, max, pool) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // A super-packet of a kind that the virtio header can not describe.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.lost += 1,
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(frames.len() - before)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn service(&self) -> Service {
        self.service
    }

    fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost) + u64::from(self.socket.take_lost().unwrap_or(0))
    }

    fn take_too_long(&mut self) -> u64 {
        std::mem::take(&mut self.too_long)
    }

    fn to_hand_over(&self) -> Option<(BorrowedFd<'_>, QueuePosition)> {
        let ring = match &self.source {
            Source::Ring(ring) => Some(ring.position()),
            Source::Messages(_) => None,
        };
        let Self { sequence, service, form: Form { offload, .. }, .. } = *self;
        let position = QueuePosition { sequence, offload, ring, service };
        // Where it stands, only a frame can tell.
        (!self.gone && !self.is_astray).then(|| (self.socket.as_fd(), position))
    }

    fn find_place(&mut self) {
        self.is_astray = true;
    }
}
