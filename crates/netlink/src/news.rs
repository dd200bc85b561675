//! The kernel's news of changes.

use std::io;

use netlink_sys::Socket;

/// The buffer for news is full, and some are lost.
const ENOBUFS: i32 = 105;

/// News that waited in a socket.
pub(crate) enum News {
    /// Messages of the kernel.
    Said(Vec<u8>),
    /// Some were lost, so everything has to be listed again.
    Lost,
}

/// The next news that wait in a socket that does not block, or `None`.
pub(crate) fn next(socket: &Socket) -> io::Result<Option<News>> {
    loop {
        match socket.recv_from_full() {
            // Any process may send to the socket; only the kernel has port 0.
            Ok((_, from)) if from.port_number() != 0 => {}
            Ok((bytes, _)) => return Ok(Some(News::Said(bytes))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => return Ok(Some(News::Lost)),
            Err(error) => return Err(error),
        }
    }
}
