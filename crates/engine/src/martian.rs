//! Addresses that no packet from one link to another can have (RFC 1812 section 5.3.7, RFC 4291
//! section 2.5). What is reserved beside them, such as 240.0.0.0/4, is routed as the kernel does.

use std::net::IpAddr;

/// True for what is the source of no packet on its way: "this network", loopback, groups, what
/// stays on its link, and IPv4 in the guise of IPv6, which stands for something else in every host.
pub(crate) fn is_no_source(address: IpAddr) -> bool {
    is_no_destination(address)
        || stays_on_link(address)
        || match address {
            IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_multicast(),
        }
}

/// True for what is no destination on any link.
pub(crate) fn is_no_destination(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => matches!(address.octets()[0], 0 | 127),
        IpAddr::V6(address) => {
            address.is_unspecified() || address.is_loopback() || address.to_ipv4_mapped().is_some()
        }
    }
}

/// True for an address that means something on one link only.
pub(crate) fn stays_on_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
