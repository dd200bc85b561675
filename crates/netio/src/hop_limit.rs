//! Packets of raw IPv6 sockets with their hop limits, which say whether a router has forwarded them.

use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, AsRawFd};

use crate::datagrams::{Control, message};

/// A packet that a raw IPv6 socket has taken, without its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopPacket {
    /// Its length, bytes.
    pub length: usize,
    /// Its sender.
    pub source: Ipv6Addr,
    /// Its hop limit, if the socket tells it (`IPV6_RECVHOPLIMIT`).
    pub hop_limit: Option<u8>,
}

/// Takes one packet from a raw IPv6 socket, which writes its content to the buffer. A longer one is
/// cut.
///
/// # Errors
/// The system's error; [`io::ErrorKind::WouldBlock`] if nothing has come and the socket does not
/// block.
pub fn receive_with_hop_limit(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<HopPacket> {
    // SAFETY: all of its fields are numbers, for which zeros are valid.
    let mut sender: libc::sockaddr_in6 = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut control = Control {
        header: libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 },
        value: 0_i32,
    };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = message(&mut part);
    message.msg_name = std::ptr::from_mut(&mut sender).cast();
    message.msg_namelen = size_of_val(&sender) as libc::socklen_t;
    message.msg_control = std::ptr::from_mut(&mut control).cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, at most
    // `size_of_val(&control)` bytes to `control` and at most `size_of_val(&sender)` bytes to `sender`,
    // in which any bytes are valid. All live until the call returns.
    let result = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut message, 0) };
    let length = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    let header = control.header;
    let is_told = message.msg_controllen >= Control::<i32>::LENGTH as _
        && (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT);
    let hop_limit = u8::try_from(control.value).ok().filter(|_| is_told);
    Ok(HopPacket { length, source: Ipv6Addr::from(sender.sin6_addr.s6_addr), hop_limit })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    fn tell_hop_limits(socket: &UdpSocket) {
        let value: libc::c_int = 1;
        // SAFETY: the kernel reads `size_of_val(&value)` bytes of `value`.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IPV6,
                libc::IPV6_RECVHOPLIMIT,
                std::ptr::from_ref(&value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
    }

    /// A UDP socket tells them as a raw one does, which needs rights that a test may not have.
    #[test]
    fn the_hop_limit_and_the_sender_are_told() {
        let Ok(socket) = UdpSocket::bind("[::1]:0") else {
            println!("SKIPPED: this machine has no IPv6");
            return;
        };
        let mut buffer = [0; 16];
        socket.set_nonblocking(true).unwrap();
        let nothing = receive_with_hop_limit(&socket.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let send = || socket.send_to(b"seven b", socket.local_addr().unwrap()).unwrap();
        send();
        let source = Ipv6Addr::LOCALHOST;
        let untold = HopPacket { length: 7, source, hop_limit: None };
        assert_eq!(receive_with_hop_limit(&socket, &mut buffer).unwrap(), untold);
        tell_hop_limits(&socket);
        send();
        let told = receive_with_hop_limit(&socket, &mut buffer).unwrap();
        assert_eq!(told, HopPacket { hop_limit: Some(64), ..untold });
        assert_eq!(&buffer[..7], b"seven b");
    }
}
