//! Sending in batches.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::socket::PacketSocket;
use super::vnet::VnetHeader;
use super::{BATCH, system_error};
use crate::{Checksum, Frame, FramePool, PortError, TxQueue, TxReport, wake};

/// How often one call waits for room in the output queue before it gives up.
const WAITS: u32 = 4;
/// How long each of these waits lasts at most.
const WAIT: Duration = Duration::from_micros(100);

/// A transmit queue of an interface.
#[derive(Debug)]
pub struct AfPacketTx {
    socket: PacketSocket,
    interface: String,
    /// Every frame has a virtio header in front.
    offload: bool,
}

impl AfPacketTx {
    pub(super) fn new(socket: PacketSocket, interface: &str, offload: bool) -> Self {
        Self { socket, interface: interface.into(), offload }
    }

    /// False for a frame with work left that there is no way to hand over.
    fn takes(&self, frame: &Frame) -> bool {
        let is_partial = matches!(frame.offload.checksum, Checksum::Partial { .. });
        self.offload || !(is_partial || frame.offload.segmentation.is_some())
    }

    /// Sends the first of `frames`, at most [`BATCH`], and returns how many went
    /// out. An error is about the very first one.
    fn send(&self, frames: &mut [Frame]) -> io::Result<usize> {
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
            let header = std::ptr::from_mut(header).cast();
            let bytes = frame.bytes_mut();
            *pieces = [
                libc::iovec { iov_base: header, iov_len: header_length },
                libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() },
            ];
            message.msg_hdr.msg_iov = pieces.as_mut_ptr();
            message.msg_hdr.msg_iovlen = pieces.len();
        }
        // SAFETY: the first `wanted` messages point to pieces that live in
        // `headers` and `frames` through the call; each length is that of what is
        // pointed to. The kernel only reads them.
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

    fn send_all(&self, frames: &mut [Frame]) -> Result<TxReport, PortError> {
        let mut report = TxReport::default();
        let mut waits = 0;
        let mut done = 0;
        while done < frames.len() {
            let run = frames[done..].iter().take(BATCH).take_while(|frame| self.takes(frame));
            let run = run.count();
            if run == 0 {
                report.refused_invalid += 1;
                done += 1;
                continue;
            }
            let error = match self.send(&mut frames[done..done + run]) {
                Ok(count) => {
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
                    report.refused_long += 1;
                    done += 1;
                }
                Some(libc::EINVAL) => {
                    report.refused_invalid += 1;
                    done += 1;
                }
                // So the kernel answers when it can not cut a super-packet up, for
                // example one inside a tunnel. It never will, and those behind it
                // must not suffer for it.
                Some(libc::ENOMEM) if frames[done].offload.segmentation.is_some() => {
                    report.refused_invalid += 1;
                    done += 1;
                }
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) if waits < WAITS => {
                    waits += 1;
                    wake::wait_for_room(self.socket.as_fd(), WAIT);
                }
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    report.refused_full += (frames.len() - done) as u64;
                    break;
                }
                _ if done > 0 => {
                    report.refused_gone += (frames.len() - done) as u64;
                    break;
                }
                _ => return Err(system_error(&self.interface, "sending", error)),
            }
        }
        Ok(report)
    }
}

impl TxQueue for AfPacketTx {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let report = self.send_all(frames);
        frames.drain(..).for_each(|frame| pool.give_back(frame));
        report
    }
}
