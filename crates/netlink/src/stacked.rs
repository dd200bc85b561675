//! Interfaces that stand on another one, and take in a part of its frames; and bridges of the kernel.

use std::collections::BTreeMap;
use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::mirror::dump;
use crate::{Error, LinkId, news};

/// Multicast group: links (rtnetlink.h).
const LINKS: u32 = 1;

/// Follows which interfaces of this network namespace stand on which others (ip-link(8), `link`):
/// VLANs, and devices of macvlan, ipvlan and macsec. Tunnels do not count, because packets inside
/// them are no frames of the other interface. Neither do the ends of a veth pair. It also follows the
/// stations of bridges.
#[derive(Debug)]
pub struct Stacked {
    /// Receives news of changes; never blocks.
    news: Socket,
    asks: Socket,
    /// The interface below each that stands on one.
    below: BTreeMap<LinkId, LinkId>,
    /// The stations of bridges.
    bridges: BTreeMap<LinkId, [u8; 6]>,
    /// The interfaces have to be listed again.
    is_doubtful: bool,
}

impl Stacked {
    /// Begins to listen. [`Stacked::refresh`] has to be called for a first list.
    ///
    /// # Errors
    /// That of the system if there is no socket left.
    pub fn new() -> io::Result<Self> {
        let mut news = Socket::new(NETLINK_ROUTE)?;
        news.bind_auto()?;
        news.add_membership(LINKS)?;
        news.set_non_blocking(true)?;
        let mut asks = Socket::new(NETLINK_ROUTE)?;
        asks.bind_auto()?;
        asks.connect(&SocketAddr::new(0, 0))?;
        let (below, bridges) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { news, asks, below, bridges, is_doubtful: true })
    }

    /// Takes all news that wait. Lists the interfaces again only if there are any.
    ///
    /// # Errors
    /// [`Error`]. The next call tries again then.
    pub fn refresh(&mut self) -> Result<(), Error> {
        while news::next(&self.news)?.is_some() {
            self.is_doubtful = true;
        }
        if self.is_doubtful {
            let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
            let links = dump(&self.asks, "links", request)?;
            self.below = links.iter().filter_map(below).collect();
            self.bridges = links.iter().filter_map(bridge).collect();
            self.is_doubtful = false;
        }
        Ok(())
    }

    /// The interfaces that stand on one of these, also on each other.
    pub fn on(&self, links: &[LinkId]) -> Vec<LinkId> {
        let stands = |&link: &LinkId| {
            // The kernel allows no circle.
            let below = std::iter::successors(Some(link), |link| self.below.get(link).copied());
            below.skip(1).take(self.below.len()).any(|below| links.contains(&below))
        };
        self.below.keys().copied().filter(stands).collect()
    }

    /// Those of these interfaces that are bridges of the kernel, each with its own station.
    pub fn bridges(&self, links: &[LinkId]) -> Vec<(LinkId, [u8; 6])> {
        let is_wanted = |(link, _): &(LinkId, [u8; 6])| links.contains(link);
        self.bridges.iter().map(|(link, station)| (*link, *station)).filter(is_wanted).collect()
    }
}

/// An interface with the one that it stands on.
fn below(message: &RouteNetlinkMessage) -> Option<(LinkId, LinkId)> {
    let RouteNetlinkMessage::NewLink(message) = message else { return None };
    let (mut below, mut stands) = (None, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Link(number) => below = Some(LinkId(*number)),
            // That number is one of another network namespace.
            LinkAttribute::LinkNetNsId(_) => return None,
            LinkAttribute::LinkInfo(infos) => {
                use InfoKind::{IpVlan, IpVtap, MacSec, MacVlan, MacVtap, VirtWifi, Vlan};
                let is_one = |info: &LinkInfo| {
                    let LinkInfo::Kind(kind) = info else { return false };
                    matches!(kind, Vlan | MacVlan | MacVtap | IpVlan | IpVtap | MacSec | VirtWifi)
                };
                stands = infos.iter().any(is_one);
            }
            _ => {}
        }
    }
    Some((LinkId(message.header.index), below.filter(|_| stands)?))
}

/// A bridge with its station.
fn bridge(message: &RouteNetlinkMessage) -> Option<(LinkId, [u8; 6])> {
    let RouteNetlinkMessage::NewLink(message) = message else { return None };
    let is_bridge = |attribute: &LinkAttribute| {
        let LinkAttribute::LinkInfo(infos) = attribute else { return false };
        infos.contains(&LinkInfo::Kind(InfoKind::Bridge))
    };
    let station = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::Address(address) => address.as_slice().try_into().ok(),
        _ => None,
    };
    let mut attributes = message.attributes.iter();
    attributes.clone().any(is_bridge).then_some(())?;
    Some((LinkId(message.header.index), attributes.find_map(station)?))
}

#[cfg(test)]
#[path = "stacked_tests.rs"]
mod tests;
