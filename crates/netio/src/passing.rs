//! Descriptors that go to another process with the bytes of a unix socket (unix(7), `SCM_RIGHTS`).

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::datagrams::message;

/// Most descriptors that one message carries.
pub const DESCRIPTORS_AT_ONCE: usize = 4;

/// A control message with descriptors, laid out as CMSG_DATA(3) finds it.
#[repr(C)]
struct Rights {
    header: libc::cmsghdr,
    descriptors: [RawFd; DESCRIPTORS_AT_ONCE],
}

/// The length of a control message with so many descriptors, in bytes.
const fn length(descriptors: usize) -> usize {
    std::mem::offset_of!(Rights, descriptors) + descriptors * size_of::<RawFd>()
}

/// Sends the first of `bytes`, and with them copies of the descriptors. Returns how many bytes went.
///
/// # Errors
/// The system's error; nothing was sent then. [`ErrorKind::InvalidInput`] for more than
/// [`DESCRIPTORS_AT_ONCE`], or for descriptors without a byte.
pub fn send_with_descriptors(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS_AT_ONCE || bytes.is_empty() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut rights = Rights {
        header: libc::cmsghdr {
            cmsg_len: length(descriptors.len()) as _,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        descriptors: [-1; DESCRIPTORS_AT_ONCE],
    };
    for (place, descriptor) in rights.descriptors.iter_mut().zip(descriptors) {
        *place = descriptor.as_raw_fd();
    }
    let start = bytes.as_ptr().cast_mut().cast();
    let mut part = libc::iovec { iov_base: start, iov_len: bytes.len() };
    let mut message = message(&mut part);
    if !descriptors.is_empty() {
        message.msg_control = std::ptr::from_mut(&mut rights).cast();
        message.msg_controllen = length(descriptors.len()) as _;
    }
    // SAFETY: the kernel only reads `bytes` and the first `msg_controllen` bytes of `rights`. Both live
    // until the call returns, and the descriptors are open until then.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes into `buffer`, and appends descriptors that came with them to `descriptors`. Returns
/// how many bytes came; 0 at the end of the stream.
///
/// # Errors
/// The system's error. [`ErrorKind::InvalidData`] if more descriptors came than
/// [`DESCRIPTORS_AT_ONCE`]; they are closed.
pub fn receive_with_descriptors(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut rights = Rights {
        header: libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 },
        descriptors: [-1; DESCRIPTORS_AT_ONCE],
    };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = message(&mut part);
    message.msg_control = std::ptr::from_mut(&mut rights).cast();
    message.msg_controllen = length(DESCRIPTORS_AT_ONCE) as _;
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, and at most `msg_controllen`
    // bytes to `rights`, in which any bytes are valid. Both live until the call returns.
    let received =
        unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let header = rights.header;
    if message.msg_controllen >= length(0) as _
        && (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
    {
        let is_length = |count: &usize| header.cmsg_len == length(*count) as _;
        let count = (0..=DESCRIPTORS_AT_ONCE).find(is_length).unwrap_or(0);
        // SAFETY: the kernel has just opened these for this process, and nobody else has them.
        let opened =
            rights.descriptors[..count].iter().map(|it| unsafe { OwnedFd::from_raw_fd(*it) });
        descriptors.extend(opened);
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        // The kernel has closed those that did not fit.
        descriptors.clear();
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(received)
}

/// Tells the kernel that this process listens on a socket that another one has made, so that clients see
/// the number of this process.
///
/// # Errors
/// The system's error.
pub fn listen_again(listener: &UnixListener, backlog: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::listen(listener.as_raw_fd(), backlog) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_come_with_the_bytes_that_they_were_sent_with() {
        let (one, two) = UnixStream::pair().unwrap();
        let (read, write) = std::io::pipe().unwrap();
        assert_eq!(send_with_descriptors(&one, b"none", &[]).unwrap(), 4);
        let both = [read.as_fd(), write.as_fd()];
        assert_eq!(send_with_descriptors(&one, b"both", &both).unwrap(), 4);
        drop((read, write));
        let (mut buffer, mut came) = ([0; 16], Vec::new());
        // The kernel may hand out the bytes of both at once, with the descriptors.
        assert_eq!(receive_with_descriptors(&two, &mut buffer[..4], &mut came).unwrap(), 4);
        assert_eq!((&buffer[..4], came.len()), (&b"none"[..], 0));
        assert_eq!(receive_with_descriptors(&two, &mut buffer, &mut came).unwrap(), 4);
        assert_eq!((&buffer[..4], came.len()), (&b"both"[..], 2));
        let mut files = came.into_iter().map(File::from);
        let (mut read, mut write) = (files.next().unwrap(), files.next().unwrap());
        write.write_all(b"x").unwrap();
        drop(write);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        drop(one);
        assert_eq!(receive_with_descriptors(&two, &mut buffer, &mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn too_many_descriptors_are_refused() {
        let (one, _two) = UnixStream::pair().unwrap();
        let many = [one.as_fd(); DESCRIPTORS_AT_ONCE + 1];
        let refused = send_with_descriptors(&one, b"x", &many).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let refused = send_with_descriptors(&one, b"", &many[..1]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}
