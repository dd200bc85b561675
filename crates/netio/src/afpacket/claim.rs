//! One gateway for each interface.
//!
//! Two gateways on one interface would each forward every packet. So a gateway has a packet
//! socket for each of its interfaces that receives nothing: it is bound for a protocol that no
//! frame has. Everybody finds it in the kernel's list of packet sockets. It stays with the
//! interface when that is renamed, belongs to a network namespace as interfaces do, and goes
//! with the process, however it ends. Nobody without CAP_NET_RAW can have one.

use std::io;
use std::os::fd::AsFd;

use super::socket::PacketSocket;
use super::system_error;
use crate::interface::link_state_by;
use crate::{LinkState, PortError};

/// What a gateway's sockets are bound for. Numbers below 1536 are lengths in a frame (IEEE 802.3
/// section 3.2.6), and the kernel gives none of its meanings to this one (if_ether.h).
const NO_FRAME: u16 = 0x0553;

/// The packet sockets of the network namespace that the calling thread is in.
const LIST: &str = "/proc/thread-self/net/packet";

/// An interface is this gateway's own as long as this exists and the interface is there.
#[derive(Debug)]
pub struct Claim {
    index: u32,
    socket: PacketSocket,
}

impl Claim {
    /// Claims an interface.
    ///
    /// # Errors
    /// [`PortError::Claimed`] if another gateway has it, or this one by another claim;
    /// [`PortError::NoPermission`]; [`PortError::Gone`]; [`PortError::System`] for anything
    /// else.
    pub fn take(link: &LinkState) -> Result<Self, PortError> {
        let failed = |what| move |source| system_error(&link.name, what, source);
        let socket = bound(link.index).map_err(failed("claiming the interface"))?;
        // Both of two that claim it at once may be refused, but never neither.
        match has_another(&socket, link.index) {
            Ok(false) => Ok(Self { index: link.index, socket }),
            Ok(true) => Err(PortError::Claimed { interface: link.name.clone() }),
            Err(source) => Err(failed("looking for another gateway")(source)),
        }
    }

    /// The interface as it is now; `None` when it has gone. Needs no descriptor.
    ///
    /// # Errors
    /// As [`link_state`](crate::link_state).
    pub fn link(&self) -> io::Result<Option<LinkState>> {
        // Another one may have its number since it has gone.
        if self.socket.bound_to()? != Some(self.index) {
            return Ok(None);
        }
        link_state_by(self.socket.as_fd(), self.index)
    }
}

fn bound(index: u32) -> io::Result<PacketSocket> {
    let socket = PacketSocket::new()?;
    socket.admit_nothing()?;
    socket.bind_for(index, NO_FRAME)?;
    Ok(socket)
}

/// True if an interface has another socket such as this.
fn has_another(own: &PacketSocket, index: u32) -> io::Result<bool> {
    let own = own.inode()?;
    let list = std::fs::read_to_string(LIST)?;
    let others = list.lines().filter_map(listed).filter(|(_, _, inode)| *inode != own);
    Ok(others.into_iter().any(|(protocol, on, _)| (protocol, on) == (NO_FRAME, index)))
}

/// Protocol, interface and number of a socket that stands on a line of the list.
fn listed(line: &str) -> Option<(u16, u32, u64)> {
    // sk RefCnt Type Proto Iface R Rmem User Inode; of one that has gone the interface is -1.
    let mut columns = line.split_ascii_whitespace().skip(3);
    let protocol = u16::from_str_radix(columns.next()?, 16).ok()?;
    let index = columns.next()?.parse().ok()?;
    Some((protocol, index, columns.nth(3)?.parse().ok()?))
}
