//! A UDP socket that gives many datagrams to the kernel at once, and takes many from it.
//!
//! Most of the time that a datagram costs its sender is the way through the network stack. The
//! kernel takes one buffer and cuts it into datagrams of one length behind that way, or leaves it
//! to the interface (`UDP_SEGMENT`). It joins datagrams that arrive together in the same manner
//! (`UDP_GRO`).

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Most datagrams that the kernel takes at once (`UDP_MAX_SEGMENTS`).
const TRAIN_DATAGRAMS: usize = 64;
/// Most bytes of them: what one UDP datagram over IPv4 could carry.
const TRAIN_BYTES: usize = 65_507;
/// Longest datagram or joined datagrams that come.
const RECEIVED_BYTES: usize = 65_536;

/// A connected UDP socket that does not block.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: UdpSocket,
    /// Datagrams that leave together: all have the length of the first, but the last may be shorter.
    train: Vec<u8>,
    /// The length of the first datagram of the train.
    segment: usize,
    /// Datagrams of this length in bytes and longer ones leave alone, because the kernel or the
    /// interface has not cut a train of them.
    single_from: usize,
    received: Box<[u8]>,
}

impl DatagramSocket {
    /// Takes over a socket that is connected.
    ///
    /// # Errors
    /// The system's error if the socket can not be set to return at once.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // A kernel before 5.0 does not know it, and then joins nothing.
        let _ = set_udp_option(&socket, libc::UDP_GRO, 1);
        let received = vec![0; RECEIVED_BYTES].into();
        Ok(Self { socket, train: Vec::new(), segment: 0, single_from: usize::MAX, received })
    }

    /// Sends a datagram with the next [`DatagramSocket::flush`], or before. A datagram that the
    /// kernel has no room for is lost, like one that the network loses. An empty one is not sent.
    pub fn send(&mut self, datagram: &[u8]) {
        let is_whole = self.train.len().is_multiple_of(self.segment.max(1));
        let joins = is_whole
            && self.segment < self.single_from
            && datagram.len() <= self.segment
            && self.train.len() < TRAIN_DATAGRAMS * self.segment
            && self.train.len() + datagram.len() <= TRAIN_BYTES;
        if !joins {
            self.flush();
            self.segment = datagram.len();
        }
        self.train.extend_from_slice(datagram);
    }

    /// Sends the datagrams that wait.
    pub fn flush(&mut self) {
        if self.train.is_empty() {
            return;
        }
        if self.train.len() <= self.segment {
            let _ = self.socket.send(&self.train);
        } else {
            if let Err(error) = send_train(&self.socket, &self.train, self.segment)
                && let Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP) =
                    error.raw_os_error()
            {
                // Other errors are about the train, and it is lost.
                self.single_from = self.segment;
                for datagram in self.train.chunks(self.segment) {
                    let _ = self.socket.send(datagram);
                }
            }
        }
        self.train.clear();
    }

    /// Takes what has come at once, and shows each datagram to `each`.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing has come; otherwise an error about a datagram that was
    /// sent, after which there may be more.
    pub fn receive(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let (length, segment) = receive_train(&self.socket, &mut self.received)?;
        match &self.received[..length] {
            [] => each(&[]),
            whole => whole.chunks(segment.unwrap_or(length).max(1)).for_each(each),
        }
        Ok(())
    }

    /// Takes what has come, in so many visits to the kernel at most, and shows each datagram to
    /// `each`. True if there may be more. An error about a datagram that was sent is a visit: the
    /// peer is not there.
    pub fn receive_in(&mut self, visits: usize, mut each: impl FnMut(&[u8])) -> bool {
        let is_empty = |result: io::Result<()>| {
            result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        (0..visits).all(|_| !is_empty(self.receive(&mut each)))
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn set_udp_option(socket: &UdpSocket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of_val(&value)` bytes of `value`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A control message with one number, as `CMSG_DATA(3)` finds it.
#[repr(C)]
pub(crate) struct Control<T> {
    pub header: libc::cmsghdr,
    pub value: T,
}

impl<T> Control<T> {
    /// The length in the header: up to the end of the number.
    pub const LENGTH: usize = size_of::<libc::cmsghdr>() + size_of::<T>();
}

/// An empty message.
pub(crate) fn message(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all of its fields are numbers and pointers, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

fn send_train(socket: &UdpSocket, train: &[u8], segment: usize) -> io::Result<()> {
    let value = u16::try_from(segment).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let mut control = Control {
        header: libc::cmsghdr {
            cmsg_len: Control::<u16>::LENGTH as _,
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        },
        value,
    };
    let mut part = libc::iovec { iov_base: train.as_ptr().cast_mut().cast(), iov_len: train.len() };
    let mut message = message(&mut part);
    message.msg_control = std::ptr::from_mut(&mut control).cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the kernel reads the `train.len()` bytes of `train` and the control message, which
    // live until the call returns, and writes neither.
    let result = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns how many bytes have come, and the length of each datagram if several were joined.
fn receive_train(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, Option<usize>)> {
    let mut control = Control {
        header: libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 },
        value: 0_i32,
    };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = message(&mut part);
    message.msg_control = std::ptr::from_mut(&mut control).cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer` and at most
    // `size_of_val(&control)` bytes to `control`, in which any bytes are valid. Both live until the
    // call returns.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, 0) };
    let length = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    let header = control.header;
    let is_joined = message.msg_controllen >= Control::<i32>::LENGTH as _
        && (header.cmsg_level, header.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO);
    Ok((length, is_joined.then_some(control.value as usize)))
}

#[cfg(test)]
#[path = "datagrams_tests.rs"]
mod tests;
