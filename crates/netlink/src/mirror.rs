//! The picture of the kernel's state, and its upkeep.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::news::{self, News};
use crate::reading::{self, LinkExtras, NeighbourNews};
use crate::{Link, LinkId, Picture};

/// Buffer for news that wait in the kernel, in bytes. The kernel may grant less. When it overflows,
/// everything is listed again.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The largest number of attempts at a listing that the kernel says has changed meanwhile.
const MAX_ATTEMPTS: usize = 8;
/// Multicast groups (rtnetlink.h): links, neighbours, and for each family addresses, routes
/// and rules.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 8, 9, 11, 19];

/// The reasons why the kernel could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket does not work.
    #[error("rtnetlink: {0}")]
    Socket(#[from] io::Error),
    /// A message of the kernel can not be parsed.
    #[error("rtnetlink: a message of the kernel can not be read: {0}")]
    Message(String),
    /// The state changed during each attempt to list it.
    #[error("rtnetlink: the {0} changed {MAX_ATTEMPTS} times while they were listed")]
    Restless(&'static str),
}

impl From<netlink_packet_core::DecodeError> for Error {
    fn from(error: netlink_packet_core::DecodeError) -> Self {
        Self::Message(error.to_string())
    }
}

/// The parts of the picture that have to be listed again because their notifications are incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Relist {
    links: bool,
    neighbours: bool,
    /// Rules and routes of both families; they share one list of unsupported ones.
    routing: bool,
}

impl Relist {
    const ALL: Self = Self { links: true, neighbours: true, routing: true };
}

/// A picture of the kernel's state in this network namespace.
pub struct Mirror {
    /// Receives news of changes; never blocks.
    news: Socket,
    /// Asks for listings.
    asks: Socket,
    /// Gives orders, and ignores the answers.
    orders: Socket,
    picture: Picture,
    /// Properties of links that are not in [`Link`] but decide about routes and rules.
    extras: BTreeMap<LinkId, LinkExtras>,
    /// The parts that still have to be listed, also after a listing failed.
    relist: Relist,
}

impl Mirror {
    /// Begins to listen, and takes the first picture.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open() -> Result<Self, Error> {
        let mut news = Socket::new(NETLINK_ROUTE)?;
        news.bind(&SocketAddr::new(0, 0))?;
        news.set_rx_buf_sz(RECEIVE_BUFFER)?;
        for group in GROUPS {
            news.add_membership(group)?;
        }
        news.set_non_blocking(true)?;
        let mut asks = Socket::new(NETLINK_ROUTE)?;
        asks.bind_auto()?;
        asks.connect(&SocketAddr::new(0, 0))?;
        let mut orders = Socket::new(NETLINK_ROUTE)?;
        orders.bind_auto()?;
        orders.set_non_blocking(true)?;
        let (picture, relist) = (Picture::default(), Relist::ALL);
        let extras = BTreeMap::new();
        let mut mirror = Self { news, asks, orders, picture, extras, relist };
        // The socket hears every change from here on. A change that the listing already shows does
        // no harm as news.
        mirror.settle()?;
        Ok(mirror)
    }

    /// The kernel's state at the last news that were taken.
    pub fn picture(&self) -> &Picture {
        &self.picture
    }

    /// Takes all news that wait, and returns whether there were any. Does not block.
    ///
    /// Between calls, wait until the socket is readable ([`AsFd`]).
    ///
    /// # Errors
    /// [`Error`]. The picture may then be out of date. The next call lists its doubtful parts again
    /// ([`Mirror::is_doubtful`]).
    pub fn refresh(&mut self) -> Result<bool, Error> {
        let mut any = self.is_doubtful();
        while let Some(news) = news::next(&self.news)? {
            any = true;
            match news {
                News::Said(bytes) => self.hear(&bytes)?,
                News::Lost => {
                    self.relist = Relist::ALL;
                    self.picture.overruns += 1;
                }
            }
        }
        self.settle()?;
        Ok(any)
    }

    /// True if the picture may be out of date although there are no news, because a listing failed.
    /// Then [`Mirror::refresh`] has to be called again.
    pub fn is_doubtful(&self) -> bool {
        self.relist != Relist::default()
    }

    /// Takes news. If they can not be read, everything is in doubt.
    fn hear(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut relist = self.relist;
        let read = each_message(bytes, |header, message| self.take(header, message, &mut relist));
        self.relist = if read.is_ok() { relist } else { Relist::ALL };
        read
    }

    /// Lists the doubtful parts.
    fn settle(&mut self) -> Result<(), Error> {
        if self.is_doubtful() {
            self.list(self.relist)?;
            self.relist = Relist::default();
        }
        Ok(())
    }

    /// Makes the kernel look for a neighbour, or confirm one that it is not sure of. The result
    /// comes as news.
    ///
    /// # Errors
    /// The socket's error. The kernel's refusal is ignored: it requires CAP_NET_ADMIN.
    pub fn resolve(&mut self, link: LinkId, address: IpAddr) -> Result<(), Error> {
        let mut request = NeighbourMessage::default();
        request.header.ifindex = link.0;
        request.header.flags = NeighbourFlags::Use;
        let (family, address) = match address {
            IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
            IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
        };
        request.header.family = family;
        request.attributes = vec![NeighbourAttribute::Destination(address)];
        let request = RouteNetlinkMessage::NewNeighbour(request);
        let bytes = serialized(request, NLM_F_REQUEST | NLM_F_CREATE);
        self.orders.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        // The kernel answers errors only, and the caller could do nothing about one.
        while self.orders.recv_from_full().is_ok() {}
        Ok(())
    }

    fn take(&mut self, header: &NetlinkHeader, news: RouteNetlinkMessage, relist: &mut Relist) {
        let fib = &mut self.picture.fib;
        match news {
            RouteNetlinkMessage::NewRoute(message) => {
                let Some((table, route)) = reading::route(&message, &mut self.picture.unsupported)
                else {
                    return;
                };
                let is_v6 = message.header.address_family == AddressFamily::Inet6;
                // The kernel joins IPv6 routes of equal metric to one, and reports the whole.
                if is_v6 && header.flags & NLM_F_APPEND != 0 {
                    relist.routing = true;
                } else if header.flags & NLM_F_REPLACE != 0 {
                    fib.replace(table, route);
                } else if is_v6 || header.flags & NLM_F_APPEND != 0 {
                    fib.insert(table, route);
                } else {
                    // The existing routes moved behind it (`ip route prepend`).
                    fib.prepend(table, route);
                }
            }
            RouteNetlinkMessage::DelRoute(message) => {
                let mut ignored = Default::default();
                if let Some((table, route)) = reading::route(&message, &mut ignored) {
                    relist.routing |= !fib.remove(table, &route) || !ignored.is_empty();
                }
            }
            RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => {
                relist.routing = true;
            }
            RouteNetlinkMessage::NewNeighbour(message) => self.take_neighbour(&message),
            RouteNetlinkMessage::DelNeighbour(message) => {
                if let Some((link, address)) = reading::neighbour_key(&message) {
                    self.picture.neighbours.remove(link, address);
                }
            }
            // The kernel repeats these for lifetimes of addresses and statistics of links.
            RouteNetlinkMessage::NewLink(message) if self.is_known_link(&message) => {}
            RouteNetlinkMessage::NewAddress(message) if self.is_known_address(&message) => {}
            // The kernel does not report the IPv4 routes that go with an address or a link, and
            // rules name interfaces that may not exist yet.
            RouteNetlinkMessage::NewLink(_)
            | RouteNetlinkMessage::DelLink(_)
            | RouteNetlinkMessage::NewAddress(_)
            | RouteNetlinkMessage::DelAddress(_) => {
                (relist.links, relist.routing) = (true, true);
            }
            _ => {}
        }
    }

    /// True if nothing changed of a link that matters for the picture or the kernel's routes.
    fn is_known_link(&self, message: &LinkMessage) -> bool {
        let id = LinkId(message.header.index);
        self.picture.links.get(&id).is_some_and(|known| {
            let link = reading::link(message);
            Link { addresses: known.addresses.clone(), ..link } == *known
        }) && self.extras.get(&id) == Some(&reading::link_extras(message))
    }

    /// True if the picture has the address already.
    fn is_known_address(&self, message: &AddressMessage) -> bool {
        reading::address(message).is_some_and(|(link, address)| {
            self.picture.links.get(&link).is_some_and(|link| link.addresses.contains(&address))
        })
    }

    fn take_neighbour(&mut self, message: &NeighbourMessage) {
        let neighbours = &mut self.picture.neighbours;
        match reading::neighbour(message) {
            Some(NeighbourNews::Is(link, address, neighbour)) => {
                neighbours.insert(link, address, neighbour);
            }
            Some(NeighbourNews::IsNot(link, address)) => neighbours.remove(link, address),
            None => {}
        }
    }

    /// Lists the doubtful parts again.
    fn list(&mut self, relist: Relist) -> Result<(), Error> {
        if relist.links {
            let mut links: BTreeMap<LinkId, Link> = BTreeMap::new();
            let mut extras = BTreeMap::new();
            let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
            for message in self.dump("links", request)? {
                if let RouteNetlinkMessage::NewLink(message) = message {
                    let id = LinkId(message.header.index);
                    links.insert(id, reading::link(&message));
                    extras.insert(id, reading::link_extras(&message));
                }
            }
            let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
            for message in self.dump("addresses", request)? {
                if let RouteNetlinkMessage::NewAddress(message) = message
                    && let Some((link, address)) = reading::address(&message)
                    && let Some(link) = links.get_mut(&link)
                {
                    link.addresses.push(address);
                }
            }
            (self.picture.links, self.extras) = (links, extras);
        }
        if relist.routing {
            self.picture.unsupported.clear();
            for (family, v6) in [(AddressFamily::Inet, false), (AddressFamily::Inet6, true)] {
                self.list_rules(family, v6)?;
                self.list_routes(family, v6)?;
            }
        }
        if relist.neighbours {
            self.picture.neighbours.clear();
            let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
            for message in self.dump("neighbours", request)? {
                if let RouteNetlinkMessage::NewNeighbour(message) = message {
                    self.take_neighbour(&message);
                }
            }
        }
        Ok(())
    }

    fn list_rules(&mut self, family: AddressFamily, v6: bool) -> Result<(), Error> {
        let mut request = RuleMessage::default();
        request.header.family = family;
        let messages = self.dump("rules", RouteNetlinkMessage::GetRule(request))?;
        let (Picture { links, unsupported, .. }, extras) = (&mut self.picture, &self.extras);
        let link_named = |name: &str| {
            let is_named = |(id, link): &(&LinkId, &Link)| {
                link.name == name || extras.get(id).is_some_and(|it| it.has_name(name))
            };
            links.iter().find(is_named).map(|(id, _)| *id)
        };
        let rules = messages.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewRule(message) => {
                reading::rule(message, link_named, unsupported)
            }
            _ => None,
        });
        let rules = rules.collect();
        self.picture.fib.set_rules(v6, rules);
        Ok(())
    }

    fn list_routes(&mut self, family: AddressFamily, v6: bool) -> Result<(), Error> {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        let messages = self.dump("routes", RouteNetlinkMessage::GetRoute(request))?;
        let Picture { fib, unsupported, .. } = &mut self.picture;
        fib.clear(v6);
        for message in &messages {
            if let RouteNetlinkMessage::NewRoute(message) = message
                && let Some((table, route)) = reading::route(message, unsupported)
            {
                fib.insert(table, route);
            }
        }
        Ok(())
    }

    /// Lists everything of a kind, as of one moment.
    fn dump(
        &self,
        what: &'static str,
        request: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        dump(&self.asks, what, request)
    }
}

/// Lists everything of a kind, as of one moment, by a socket that has no other use.
pub(crate) fn dump(
    asks: &Socket,
    what: &'static str,
    request: RouteNetlinkMessage,
) -> Result<Vec<RouteNetlinkMessage>, Error> {
    for _ in 0..MAX_ATTEMPTS {
        let bytes = serialized(request.clone(), NLM_F_REQUEST | NLM_F_DUMP);
        asks.send(&bytes, 0)?;
        if let Some(messages) = answer(asks)? {
            return Ok(messages);
        }
    }
    Err(Error::Restless(what))
}

/// The answer to a request; `None` if the kernel's state changed meanwhile.
fn answer(asks: &Socket) -> Result<Option<Vec<RouteNetlinkMessage>>, Error> {
    let mut messages = Vec::new();
    let mut is_consistent = true;
    loop {
        let (bytes, _) = asks.recv_from_full()?;
        let mut end = None;
        each_payload(&bytes, |header, payload| {
            is_consistent &= header.flags & NLM_F_DUMP_INTR == 0;
            match payload {
                NetlinkPayload::InnerMessage(message) => messages.push(message),
                NetlinkPayload::Done(_) => end = Some(Ok(())),
                NetlinkPayload::Error(error) => end = Some(Err(error.to_io())),
                _ => {}
            }
        })?;
        match end {
            Some(Ok(())) => return Ok(is_consistent.then_some(messages)),
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
    }
}

impl AsFd for Mirror {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

pub(crate) fn serialized(request: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

pub(crate) fn each_message(
    bytes: &[u8],
    mut take: impl FnMut(&NetlinkHeader, RouteNetlinkMessage),
) -> Result<(), Error> {
    each_payload(bytes, |header, payload| {
        if let NetlinkPayload::InnerMessage(message) = payload {
            take(header, message);
        }
    })
}

pub(crate) fn each_payload(
    mut bytes: &[u8],
    mut take: impl FnMut(&NetlinkHeader, NetlinkPayload<RouteNetlinkMessage>),
) -> Result<(), Error> {
    while !bytes.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes)?;
        // Messages begin at multiples of four.
        let length = (message.header.length as usize).next_multiple_of(4).max(16);
        take(&message.header, message.payload);
        bytes = bytes.get(length..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkFlags;

    use super::*;

    #[test]
    fn news_that_cannot_be_read_are_asked_for_later() {
        let mut mirror = Mirror::open().unwrap();
        assert!(!mirror.is_doubtful());
        // The emptied picture stands for one that is out of date.
        mirror.picture = Picture::default();
        assert!(mirror.hear(&[16, 0, 0, 0]).is_err());
        assert!(mirror.is_doubtful());
        assert!(mirror.refresh().unwrap());
        assert!(!mirror.is_doubtful() && !mirror.picture().links.is_empty());
    }

    #[test]
    fn a_link_that_goes_down_causes_a_new_listing_and_repeated_news_cause_none() {
        let mut mirror = Mirror::open().unwrap();
        let header = NetlinkHeader::default();
        let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let mut messages = mirror.dump("links", links).unwrap();
        messages.extend(mirror.dump("addresses", addresses).unwrap());
        let mut relist = Relist::default();
        for message in &messages {
            mirror.take(&header, message.clone(), &mut relist);
        }
        assert_eq!(relist, Relist::default());
        // The kernel removes IPv4 routes with a link that goes down, even if it had no carrier.
        let RouteNetlinkMessage::NewLink(mut link) = messages.remove(0) else { panic!("no link") };
        link.header.flags ^= LinkFlags::Up;
        mirror.take(&header, RouteNetlinkMessage::NewLink(link), &mut relist);
        assert!(relist.links && relist.routing);
    }
}
