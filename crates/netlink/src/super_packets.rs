//! The length of the super-packets of an interface.

use fib::LinkId;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkPayload, Nla};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::mirror::{Error, each_payload, serialized};

/// `gso_ipv4_max_size` and `gro_ipv4_max_size` (if_link.h).
const V4_SIZES: [u16; 2] = [63, 64];

/// The longest super-packet that an interface lets through uncut or puts together, bytes: the
/// largest of `gso_max_size`, `gro_max_size` and those of IPv4 (ip-link(8)).
///
/// # Errors
/// [`Error`], also if there is no such interface.
pub fn longest_super_packet(link: LinkId) -> Result<u32, Error> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = LinkMessage::default();
    request.header.index = link.0;
    socket.send(&serialized(RouteNetlinkMessage::GetLink(request), NLM_F_REQUEST), 0)?;
    let (bytes, _) = socket.recv_from_full()?;
    let (mut longest, mut failure) = (0, None);
    each_payload(&bytes, |_, payload| match payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(found)) => {
            longest = found.attributes.iter().filter_map(size).max().unwrap_or(0);
        }
        NetlinkPayload::Error(error) => failure = Some(error.to_io()),
        _ => {}
    })?;
    failure.map_or(Ok(longest), |error| Err(error.into()))
}

fn size(attribute: &LinkAttribute) -> Option<u32> {
    match attribute {
        LinkAttribute::GsoMaxSize(size) | LinkAttribute::GroMaxSize(size) => Some(*size),
        LinkAttribute::Other(other) if V4_SIZES.contains(&other.kind()) => {
            let mut bytes = [0; 4];
            (other.value_len() == bytes.len()).then(|| other.emit_value(&mut bytes))?;
            Some(u32::from_ne_bytes(bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_a_size_and_no_interface_has_none() {
        assert!(longest_super_packet(LinkId(1)).unwrap() >= 65_536);
        longest_super_packet(LinkId(i32::MAX.cast_unsigned())).unwrap_err();
    }
}
