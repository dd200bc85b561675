//! Bare links, whose packets begin with their IP header: tun, WireGuard, PPP and tunnels of IP
//! packets.
//!
//! The stages above see one kind of frame. So a packet gets an Ethernet header when it is received,
//! and loses it when it is sent. Both ends have the same made-up station address there: a frame
//! that comes in by a bare link was sent to this end, and one that leaves goes to the other end.

use std::mem::zeroed;

/// The station address of both ends of a bare link in the frames of this program. It is a locally
/// administered one, and no station of an Ethernet link is compared with it.
pub const BARE_STATION: [u8; 6] = [2, 0, 0, 0, 0, 0];

/// Length of the made-up header, in bytes.
pub(super) const HEADER: usize = 14;
/// EtherType in front of a packet that is neither IPv4 nor IPv6: Local Experimental Ethertype 1
/// (IEEE 802). Nobody takes it for an IP packet.
const NOT_IP: u16 = 0x88b5;

/// Writes the header of a received frame into its first [`HEADER`] bytes. The packet is behind them.
pub(super) fn write_header(frame: &mut [u8]) {
    let Some((header, packet)) = frame.split_first_chunk_mut::<HEADER>() else { return };
    let ethertype = match packet.first().map(|first| first >> 4) {
        Some(4) => libc::ETH_P_IP as u16,
        Some(6) => libc::ETH_P_IPV6 as u16,
        _ => NOT_IP,
    };
    header[..6].copy_from_slice(&BARE_STATION);
    header[6..12].copy_from_slice(&BARE_STATION);
    header[12..].copy_from_slice(&ethertype.to_be_bytes());
}

/// The addresses of a bare link that packets are sent to. They tell the kernel which protocol a
/// packet has, because not every kind of link reads that from the packet.
pub(super) struct LinkAddresses([libc::sockaddr_ll; 2]);

impl LinkAddresses {
    pub(super) fn new(index: u32) -> Self {
        Self([libc::ETH_P_IP, libc::ETH_P_IPV6].map(|protocol| {
            // SAFETY: zero is a valid value of every field.
            let mut address: libc::sockaddr_ll = unsafe { zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = (protocol as u16).to_be();
            address.sll_ifindex = index.cast_signed();
            address
        }))
    }

    /// The address for a frame that still has its header.
    pub(super) fn of(&self, frame: &[u8]) -> &libc::sockaddr_ll {
        let is_v6 = frame.get(12..HEADER) == Some(&(libc::ETH_P_IPV6 as u16).to_be_bytes());
        &self.0[usize::from(is_v6)]
    }
}

impl std::fmt::Debug for LinkAddresses {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("LinkAddresses").field(&self.0[0].sll_ifindex).finish()
    }
}
