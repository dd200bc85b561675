//! IP headers of packets that a gateway makes.

use std::net::IpAddr;

use crate::{Family, checksum};

/// Time to live of a packet that the gateway makes.
pub(crate) const TTL: u8 = 64;

/// An IP header without options.
pub(crate) struct IpHeader {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) traffic_class: u8,
    pub(crate) ttl: u8,
}

impl IpHeader {
    /// Bytes of the header.
    pub(crate) const fn length(family: Family) -> usize {
        match family {
            Family::V4 => 20,
            Family::V6 => 40,
        }
    }

    /// Writes the header to all of `header`, whose length must fit the family of the addresses;
    /// `None` if these are of two families.
    ///
    /// For IPv4 it sets "don't fragment", so the datagram needs no identification (RFC 6864
    /// section 4.1). The packets written here are so short that they fit every link.
    pub(crate) fn write(&self, header: &mut [u8], payload: usize) -> Option<()> {
        let Self { protocol, traffic_class, ttl, .. } = *self;
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let length = (header.len() + payload) as u16;
                header[..2].copy_from_slice(&[0x45, traffic_class]);
                header[2..4].copy_from_slice(&length.to_be_bytes());
                header[4..12].copy_from_slice(&[0, 0, 0x40, 0, ttl, protocol, 0, 0]);
                header[12..16].copy_from_slice(&from.octets());
                header[16..].copy_from_slice(&to.octets());
                checksum::fill_ipv4_header(header);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let [high, low] = [0x60 | traffic_class >> 4, traffic_class << 4];
                header[..4].copy_from_slice(&[high, low, 0, 0]);
                header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
                header[6..8].copy_from_slice(&[protocol, ttl]);
                header[8..24].copy_from_slice(&from.octets());
                header[24..].copy_from_slice(&to.octets());
            }
            _ => return None,
        }
        Some(())
    }
}
