//! Addresses that no packet from one link to another can have (RFC 1812 section 5.3.7, RFC 4291
//! section 2.5). Other reserved addresses, such as 240.0.0.0/4, are routed as in the kernel.

use std::net::IpAddr;

/// True for an address that can not be the source of a packet that is routed: "this network",
/// loopback, groups, link-local addresses, and IPv4-mapped IPv6 addresses, which stand for an IPv4
/// address inside a host.
pub(crate) fn is_no_source(address: IpAddr) -> bool {
    is_no_destination(address)
        || stays_on_link(address)
        || match address {
            IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_multicast(),
        }
}

/// True for an address that can not be a destination on any link.
pub(crate) fn is_no_destination(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => matches!(address.octets()[0], 0 | 127),
        IpAddr::V6(address) => {
            address.is_unspecified() || address.is_loopback() || address.to_ipv4_mapped().is_some()
        }
    }
}

/// True for an address that is valid on one link only.
pub(crate) fn stays_on_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
