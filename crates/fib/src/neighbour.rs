//! Neighbours: the stations that hold the addresses of a link.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::LinkId;

/// The address of a station on an Ethernet link.
pub type HardwareAddress = [u8; 6];

/// The state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Its station is known. If the kernel is not sure of it, the kernel has to be asked to
    /// look again while packets go there.
    Known {
        /// The station.
        station: HardwareAddress,
        /// False if the kernel calls it stale.
        is_fresh: bool,
    },
    /// The kernel has asked for it and has no answer yet.
    Incomplete,
    /// It does not answer.
    Failed,
}

/// All neighbours.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    // An ordered map: the stations of a link can choose addresses, and there is no secret here
    // to hash them with.
    known: Arc<BTreeMap<Key, Neighbour>>,
}

/// A link and an address on it as a number, which is compared at once. IPv4 has the mapped form (RFC
/// 4291 section 2.5.5.2), which no neighbour of IPv6 has.
type Key = (LinkId, u128);

fn key(link: LinkId, address: IpAddr) -> Key {
    let number = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    (link, number)
}

impl Neighbours {
    /// The state of an address on a link.
    pub fn get(&self, link: LinkId, address: IpAddr) -> Option<&Neighbour> {
        self.known.get(&key(link, address))
    }

    /// Sets the state of an address.
    pub fn insert(&mut self, link: LinkId, address: IpAddr, neighbour: Neighbour) {
        Arc::make_mut(&mut self.known).insert(key(link, address), neighbour);
    }

    /// Forgets an address.
    pub fn remove(&mut self, link: LinkId, address: IpAddr) {
        Arc::make_mut(&mut self.known).remove(&key(link, address));
    }

    /// Forgets all addresses.
    pub fn clear(&mut self) {
        self.known = Arc::default();
    }

    /// All addresses with their states, by link and address.
    pub fn iter(&self) -> impl Iterator<Item = (LinkId, IpAddr, &Neighbour)> {
        self.known.iter().map(|(&(link, number), neighbour)| {
            (link, Ipv6Addr::from_bits(number).to_canonical(), neighbour)
        })
    }
}
