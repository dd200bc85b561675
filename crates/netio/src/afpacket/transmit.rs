//! Sends frames in batches.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::bare::{self, LinkAddresses};
use super::socket::PacketSocket;
use super::transmit_ring::TransmitRing;
use super::vnet::VnetHeader;
use super::{BATCH, segments, system_error};
use crate::{Frame, FramePool, LinkState, PortError, TxQueue, TxRefusal, TxReport, wake};

/// How many times one call waits for room in the output queue before it gives up.
const WAITS: u32 = 4;
/// The longest of these waits.
const WAIT: Duration = Duration::from_micros(100);

/// The least number of short frames in a row that goes through the ring. Fewer go out as messages,
/// together with the frames behind them.
const SHORTEST_RUN: usize = 4;

/// A transmit queue of an interface.
#[derive(Debug)]
pub struct AfPacketTx {
    socket: PacketSocket,
    /// The ring for runs of short frames, if the kernel grants one.
    ring: Option<TransmitRing>,
    interface: String,
    /// Set for a bare link, by which frames go without their link header.
    bare: Option<LinkAddresses>,
    /// Every frame has a virtio header in front.
    offload: bool,
    /// Segments on their way out; empty between two calls.
    segments: Vec<Frame>,
    /// Frames that the last call has not sent, until somebody takes them.
    refused: Vec<(Frame, TxRefusal)>,
}

impl AfPacketTx {
    pub(super) fn new(
        socket: PacketSocket,
        ring: Option<TransmitRing>,
        link: &LinkState,
        offload: bool,
    ) -> Self {
        let segments = Vec::with_capacity(BATCH);
        let bare = link.is_bare().then(|| LinkAddresses::new(link.index));
        let (interface, refused) = (link.name.clone(), Vec::new());
        Self { socket, ring, interface, bare, offload, segments, refused }
    }

    /// Sends the first of `frames`, at most [`BATCH`], and returns how many went out. An error
    /// concerns the very first one.
    fn send(&mut self, frames: &mut [Frame]) -> io::Result<usize> {
        match self.send_from_ring(frames) {
            0 => self.send_messages(frames),
            sent => Ok(sent),
        }
    }

    /// As [`send`](Self::send), for runs of short frames. Returns 0 on any error.
    fn send_from_ring(&mut self, frames: &[Frame]) -> usize {
        let Some(ring) = &mut self.ring else { return 0 };
        let run = frames.iter().take(BATCH).take_while(|frame| TransmitRing::fits(frame)).count();
        if run < SHORTEST_RUN.min(frames.len()) { 0 } else { ring.send(&frames[..run]) }
    }

    fn send_messages(&self, frames: &mut [Frame]) -> io::Result<usize> {
        const NO_BYTES: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let header_length = if self.offload { size_of::<VnetHeader>() } else { 0 };
        let mut headers = [VnetHeader::default(); BATCH];
        let mut pieces = [[NO_BYTES; 2]; BATCH];
        // SAFETY: zero is a valid value of every field.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let wanted = frames.len().min(BATCH);
        for (((frame, header), pieces), message) in
            frames.iter_mut().zip(&mut headers).zip(&mut pieces).zip(&mut messages)
        {
            *header = VnetHeader::new(frame.offload);
            let mut bytes = frame.bytes_mut();
            if let Some(addresses) = &self.bare {
                *header = header.behind(bare::HEADER as u16);
                let address = addresses.of(bytes);
                message.msg_hdr.msg_name = std::ptr::from_ref(address).cast_mut().cast();
                message.msg_hdr.msg_namelen = size_of_val(address) as libc::socklen_t;
                bytes = bytes.get_mut(bare::HEADER..).unwrap_or_default();
            }
            let header = std::ptr::from_mut(header).cast();
            *pieces = [
                libc::iovec { iov_base: header, iov_len: header_length },
                libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() },
            ];
            message.msg_hdr.msg_iov = pieces.as_mut_ptr();
            message.msg_hdr.msg_iovlen = pieces.len();
        }
        // SAFETY: the first `wanted` messages point to pieces that live in
        // `headers` and `frames` through the call, and to addresses that live in
        // `self`; each length is that of what is pointed to. The kernel only reads
        // them.
        let count = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                wanted as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Sends frames that need no cutting.
    fn send_ready(&mut self, frames: &mut [Frame], sending: &mut Sending) -> Result<(), Stop> {
        let mut done = 0;
        while done < frames.len() {
            let error = match self.send(&mut frames[done..]) {
                Ok(count) => {
                    let report = &mut sending.report;
                    let sent = &frames[done..done + count];
                    report.sent += count as u64;
                    report.sent_bytes += sent.iter().map(|frame| frame.len() as u64).sum::<u64>();
                    done += count;
                    continue;
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EMSGSIZE) => {
                    sending.refuse(&mut frames[done], TxRefusal::TooLong);
                    done += 1;
                }
                Some(libc::EINVAL) => {
                    sending.refuse(&mut frames[done], TxRefusal::Invalid);
                    done += 1;
                }
                // The kernel answers so when it can not cut a super-packet up. It never will, so
                // the frames behind this one go on.
                Some(libc::ENOMEM) if frames[done].offload.segmentation.is_some() => {
                    sending.refuse(&mut frames[done], TxRefusal::Invalid);
                    done += 1;
                }
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) if sending.waits < WAITS => {
                    sending.waits += 1;
                    wake::wait_for_room(self.socket.as_fd(), WAIT);
                }
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Err(Stop::Full),
                _ => return Err(Stop::Broken(system_error(&self.interface, "sending", error))),
            }
        }
        Ok(())
    }

    /// Cuts a super-packet up and sends the segments, a batch at a time. The super-packet counts as
    /// one frame, which is sent once all of its segments are.
    fn send_segments(
        &mut self,
        frame: &mut Frame,
        pool: &mut FramePool,
        sending: &mut Sending,
    ) -> Result<(), Stop> {
        let Some(segments) = frame.cut_up() else {
            sending.refuse(frame, TxRefusal::Invalid);
            return Ok(());
        };
        let mut own = Sending { waits: sending.waits, refused: None, ..Sending::default() };
        let mut batch = std::mem::take(&mut self.segments);
        let mut result = Ok(());
        let mut indices = 0..segments.count();
        while result.is_ok() && !indices.is_empty() {
            // Every segment gets a buffer, because none is longer than the frame, which has one.
            batch.extend(indices.by_ref().take(BATCH).filter_map(|index| {
                let mut segment = pool.take(segments.length(index))?;
                segments.write(index, segment.bytes_mut());
                Some(segment)
            }));
            result = self.send_ready(&mut batch, &mut own);
            batch.drain(..).for_each(|segment| pool.give_back(segment));
        }
        self.segments = batch;
        sending.waits = own.waits;
        result?;
        match own.report {
            TxReport { refused_long: 1.., .. } => sending.refuse(frame, TxRefusal::TooLong),
            TxReport { refused_invalid: 1.., .. } => sending.refuse(frame, TxRefusal::Invalid),
            _ => {
                sending.report.sent += 1;
                sending.report.sent_bytes += frame.len() as u64;
            }
        }
        Ok(())
    }

    fn send_in_order(
        &mut self,
        mut frames: &mut [Frame],
        pool: &mut FramePool,
        sending: &mut Sending,
    ) -> Result<(), Stop> {
        while !frames.is_empty() {
            let to_cut = frames.iter_mut().position(|f| !segments::make_ready(f, self.offload));
            let (ready, rest) = frames.split_at_mut(to_cut.unwrap_or(frames.len()));
            self.send_ready(ready, sending)?;
            let Some((super_packet, rest)) = rest.split_first_mut() else { break };
            self.send_segments(super_packet, pool, sending)?;
            frames = rest;
        }
        Ok(())
    }

    fn send_all(
        &mut self,
        frames: &mut [Frame],
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let refused = std::mem::take(&mut self.refused);
        let mut sending = Sending { refused: Some(refused), ..Sending::default() };
        let result = self.send_in_order(frames, pool, &mut sending);
        // Each frame in front of those that are left was counted.
        let left = sending.report.frames() as usize..;
        let result = match result {
            Ok(()) => Ok(()),
            Err(Stop::Full) => {
                sending.refuse_all(&mut frames[left], TxRefusal::Full);
                Ok(())
            }
            Err(Stop::Broken(error)) => {
                let is_first = sending.report == TxReport::default();
                sending.refuse_all(&mut frames[left], TxRefusal::Gone);
                if is_first { Err(error) } else { Ok(()) }
            }
        };
        self.refused = sending.refused.unwrap_or_default();
        result.map(|()| sending.report)
    }
}

/// One call of [`AfPacketTx::transmit`].
#[derive(Default)]
struct Sending {
    report: TxReport,
    /// How many times the call has waited for room in the output queue.
    waits: u32,
    /// The frames that were refused; `None` for segments, whose super-packet is.
    refused: Option<Vec<(Frame, TxRefusal)>>,
}

impl Sending {
    /// Counts a frame that is not sent, and takes it.
    #[cold]
    fn refuse(&mut self, frame: &mut Frame, why: TxRefusal) {
        *self.report.refused_mut(why) += 1;
        if let Some(refused) = &mut self.refused {
            refused.push((std::mem::take(frame), why));
        }
    }

    #[cold]
    fn refuse_all(&mut self, frames: &mut [Frame], why: TxRefusal) {
        frames.iter_mut().for_each(|frame| self.refuse(frame, why));
    }
}

/// The reason why the rest of the frames is not sent.
enum Stop {
    /// The output queue stays full.
    Full,
    Broken(PortError),
}

impl TxQueue for AfPacketTx {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        self.refused.drain(..).for_each(|(frame, _)| pool.give_back(frame));
        let report = self.send_all(frames, pool);
        frames.drain(..).for_each(|frame| pool.give_back(frame));
        report
    }

    fn take_refused(&mut self) -> Option<(Frame, TxRefusal)> {
        self.refused.pop()
    }
}
