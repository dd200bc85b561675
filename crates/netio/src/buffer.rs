//! Receive buffers of sockets that other crates make.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Gives the receive buffer of a socket room for `bytes` of packets, to which the kernel adds its
/// overhead. Goes beyond the system's limit (`net.core.rmem_max`) if that is permitted, else up to
/// it.
///
/// # Errors
/// The system's error if this is not a socket.
pub fn enlarge_receive_buffer(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    // The kernel doubles the figure and must not overflow.
    let bytes = bytes.min(1 << 30).cast_signed();
    let set = |option| {
        // SAFETY: the kernel reads `size_of_val(&bytes)` bytes of `bytes`.
        let result = unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                std::ptr::from_ref(&bytes).cast(),
                size_of_val(&bytes) as libc::socklen_t,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    set(libc::SO_RCVBUFFORCE).or_else(|_| set(libc::SO_RCVBUF))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_larger_buffer_holds_more() {
        let holds = |bytes| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            enlarge_receive_buffer(&socket, bytes).unwrap();
            let to = socket.local_addr().unwrap();
            socket.set_nonblocking(true).unwrap();
            for _ in 0..100 {
                socket.send_to(&[0; 8000], to).unwrap();
            }
            let mut buffer = [0; 8000];
            std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count()
        };
        // The system's limit decides how much more it holds.
        assert!(holds(4 << 20) > 4 * holds(1 << 15));
    }
}
