//! The facts about a connection that do not depend on its protocol: directions, labels, the first line
//! of its entry, the recorded forwarding decision.

mod direction;
mod forwarding;
mod head;
mod interface;
mod labels;
mod prefix;
mod zones;

use std::net::IpAddr;

use flow::Endpoint;
use wire::Family;

pub use self::direction::Direction;
pub use self::forwarding::Forwarding;
pub(crate) use self::head::{Head, Status};
pub use self::interface::{InterfaceName, Interfaces, NoInterfaces};
pub(crate) use self::labels::AtTheEnd;
pub use self::labels::{Label, LabelNames, Labels, NameError, UnknownLabel};
pub use self::prefix::{Prefix, PrefixError};
pub(crate) use self::zones::zone_of;

/// The part of an address that identifies its source: all of an IPv4 address, the first 64 bits
/// of an IPv6 address.
pub(crate) fn source_prefix(source: Endpoint, family: Family) -> u64 {
    let address = u128::from_be_bytes(source.address);
    match family {
        Family::V4 => u64::from(address as u32),
        Family::V6 => (address >> 64) as u64,
    }
}

/// The address in a flow key.
pub(crate) fn ip_address(bytes: [u8; 16], family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([bytes[12], bytes[13], bytes[14], bytes[15]]),
        Family::V6 => IpAddr::from(bytes),
    }
}
