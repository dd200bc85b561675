//! A claim makes sure that an interface has one gateway.
//!
//! Two gateways on one interface would each forward every packet. So a gateway opens a packet
//! socket for each of its interfaces, bound to a protocol that no frame has. The socket receives
//! nothing, but every process finds it in the kernel's list of packet sockets. It stays with the
//! interface when that is renamed, and belongs to a network namespace as interfaces do. It ends
//! with the process, and only a process with CAP_NET_RAW can open one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::socket::PacketSocket;
use super::system_error;
use crate::interface::link_state_by;
use crate::{LinkState, PortError};

/// The protocol to which a gateway binds its sockets. Numbers below 1536 are lengths in a frame
/// (IEEE 802.3 section 3.2.6), and the kernel gives this one no other meaning (if_ether.h).
const NO_FRAME: u16 = 0x0553;

/// The packet sockets of the network namespace that the calling thread is in.
const LIST: &str = "/proc/thread-self/net/packet";

/// A claim on an interface. It holds as long as this value and the interface exist.
#[derive(Debug)]
pub struct Claim {
    index: u32,
    socket: PacketSocket,
}

impl Claim {
    /// Claims an interface.
    ///
    /// # Errors
    /// [`PortError::Claimed`] if another gateway, or another claim of this one, has the interface;
    /// [`PortError::NoPermission`]; [`PortError::Gone`]; [`PortError::System`] for any other error.
    pub fn take(link: &LinkState) -> Result<Self, PortError> {
        let failed = |what| move |source| system_error(&link.name, what, source);
        let socket = bound(link.index).map_err(failed("claiming the interface"))?;
        // If two gateways claim it at once, both may be refused, but at least one is.
        match has_another(&socket, link.index) {
            Ok(false) => Ok(Self { index: link.index, socket }),
            Ok(true) => Err(PortError::Claimed { interface: link.name.clone() }),
            Err(source) => Err(failed("looking for another gateway")(source)),
        }
    }

    /// A claim on no interface, for a gateway whose interface comes later.
    ///
    /// # Errors
    /// The system has no socket.
    pub fn of_none() -> io::Result<Self> {
        Ok(Self { index: 0, socket: PacketSocket::new()? })
    }

    /// Goes on with the claim of another process.
    ///
    /// # Errors
    /// [`PortError::System`] if the descriptor is no packet socket of this interface.
    pub fn take_over(descriptor: OwnedFd, link: &LinkState) -> Result<Self, PortError> {
        let failed = |source| system_error(&link.name, "taking over the claim", source);
        let socket = PacketSocket::take_over(descriptor, link.index).map_err(failed)?;
        Ok(Self { index: link.index, socket })
    }

    /// The current state of the interface; `None` when it has gone. Needs no descriptor.
    ///
    /// # Errors
    /// As [`link_state`](crate::link_state).
    pub fn link(&self) -> io::Result<Option<LinkState>> {
        // Another interface may have got its number since.
        if self.socket.bound_to()? != Some(self.index) {
            return Ok(None);
        }
        link_state_by(self.socket.as_fd(), self.index)
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bound(index: u32) -> io::Result<PacketSocket> {
    let socket = PacketSocket::new()?;
    socket.admit_nothing()?;
    socket.bind_for(index, NO_FRAME)?;
    Ok(socket)
}

/// True if the interface has another socket like this one.
fn has_another(own: &PacketSocket, index: u32) -> io::Result<bool> {
    let own = own.inode()?;
    let list = std::fs::read_to_string(LIST)?;
    let others = list.lines().filter_map(listed).filter(|(_, _, inode)| *inode != own);
    Ok(others.into_iter().any(|(protocol, on, _)| (protocol, on) == (NO_FRAME, index)))
}

/// Protocol, interface and inode of the socket on a line of the list.
fn listed(line: &str) -> Option<(u16, u32, u64)> {
    // Columns: sk RefCnt Type Proto Iface R Rmem User Inode. Iface is -1 if the interface has gone.
    let mut columns = line.split_ascii_whitespace().skip(3);
    let protocol = u16::from_str_radix(columns.next()?, 16).ok()?;
    let index = columns.next()?.parse().ok()?;
    Some((protocol, index, columns.nth(3)?.parse().ok()?))
}
