//! Questions to the kernel about one thing, which it has or has not (netlink(7)).

use std::io;

use netlink_packet_core::{NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr};

use crate::sockets::{Ends, SocketProtocol};

/// Address families (socket(2)).
const INET: u8 = 2;
const INET6: u8 = 10;
/// Protocols.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The kernel's code for "there is none" (ENOENT).
const NONE: i32 = 2;

impl SocketProtocol {
    /// Its number in IP.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Tcp => TCP,
            Self::Udp => UDP,
        }
    }
}

impl Ends {
    /// The number of their address family.
    pub(crate) const fn family(&self) -> u8 {
        if self.destination.is_ipv4() { INET } else { INET6 }
    }
}

/// A netlink socket for such questions.
#[derive(Debug)]
pub(crate) struct Lookup {
    socket: Socket,
    /// The number of the last question.
    sequence: u32,
}

impl Lookup {
    /// Prepares to ask by this netlink protocol.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        // The answer is there once the question was sent.
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Asks, and returns the content of the answer; `None` if there is no such thing. `question`
    /// writes the message with this sequence number.
    ///
    /// # Errors
    /// The system's error, also if the kernel has not answered.
    pub fn ask(&mut self, question: impl FnOnce(u32) -> Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send_to(&question(self.sequence), &SocketAddr::new(0, 0), 0)?;
        loop {
            let (bytes, from) = match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            let Ok(answer) = NetlinkBuffer::new_checked(&bytes) else { continue };
            // Anybody may send to the socket; only the kernel has port 0.
            if from.port_number() != 0 || answer.sequence_number() != self.sequence {
                continue;
            }
            if answer.message_type() != NLMSG_ERROR {
                return Ok(Some(answer.payload().to_vec()));
            }
            let code = answer.payload().first_chunk().map_or(0, |it| i32::from_ne_bytes(*it));
            return match -code {
                NONE => Ok(None),
                code => Err(io::Error::from_raw_os_error(code)),
            };
        }
    }
}
