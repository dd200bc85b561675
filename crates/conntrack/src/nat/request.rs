//! The translation that a rule asks for.

use std::net::IpAddr;

use flow::{Endpoint, FlowKey, KeyedPacket};
use wire::{Family, mapped};

use super::{Pool, Supply};

/// The end of a connection that changes, as its originator's packets name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TranslatedEnd {
    /// The sender: source translation, masquerade.
    Source,
    /// The receiver: destination translation, redirect.
    Destination,
}

/// A range of addresses of one family; it is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    family: Family,
    first: u128,
    last: u128,
}

/// A range of ports; it is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    pub(super) first: u16,
    pub(super) last: u16,
}

/// A translation that a rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The end that changes.
    pub end: TranslatedEnd,
    /// The addresses to choose from; `None`: the packet's own. Addresses of another family have
    /// no effect.
    pub addresses: Option<Addresses>,
    /// The ports to choose from, or the identifiers of ICMP. `None`: a source keeps its port if
    /// that is free, and gets another of the same kind otherwise, below 512, from 600 to 1023, or
    /// above, which those below get too as the last resort; a destination keeps its port.
    pub ports: Option<Ports>,
    /// True to choose the port at random, also if the packet's own would do. This stands for
    /// the kernel's `random` and for its `fully-random`.
    pub random: bool,
    /// True to choose a destination by the client alone, and to give a source no other address when
    /// the ports of its own are used up. A source is chosen by the client alone in any case.
    pub persistent: bool,
    /// True to keep the bits in which the addresses differ: this maps one network onto another,
    /// host by host.
    pub netmap: bool,
    /// For a masquerade the kernel's number of the interface: the connection ends when the
    /// interface loses its address.
    pub interface: Option<u32>,
}

impl Addresses {
    /// From `first` to `last`; `None` if they are of two families or in the wrong order.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        let family = |address: IpAddr| if address.is_ipv4() { Family::V4 } else { Family::V6 };
        let number = |address| u128::from_be_bytes(mapped(address));
        let (first, last, families) = (number(first), number(last), [first, last].map(family));
        let it = Self { family: families[0], first, last };
        (families[0] == families[1] && first <= last).then_some(it)
    }

    /// One address.
    pub fn one(address: IpAddr) -> Self {
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        let number = u128::from_be_bytes(mapped(address));
        Self { family, first: number, last: number }
    }

    /// Their family.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// True if the range contains this address (in the mapped form).
    pub fn contains(&self, address: [u8; 16]) -> bool {
        (self.first..=self.last).contains(&u128::from_be_bytes(address))
    }

    /// The address for a number. All addresses get the same share of the numbers, up to a
    /// difference of one.
    pub(super) fn pick(&self, number: u128) -> [u8; 16] {
        let offset = match (self.last - self.first).checked_add(1) {
            Some(count) => number % count,
            None => number,
        };
        (self.first + offset).to_be_bytes()
    }

    /// The address behind `address`; behind the last one follows the first.
    pub(super) fn next(&self, address: [u8; 16]) -> [u8; 16] {
        let number = u128::from_be_bytes(address);
        if number >= self.last { self.first.to_be_bytes() } else { (number + 1).to_be_bytes() }
    }

    /// Number of addresses, at most `most`.
    pub(super) fn count_up_to(&self, most: u128) -> u128 {
        (self.last - self.first).saturating_add(1).min(most)
    }

    /// The only address, if there is only one.
    pub(super) fn single(&self) -> Option<[u8; 16]> {
        (self.first == self.last).then(|| self.first.to_be_bytes())
    }

    /// The address that corresponds to `address` in the network of this range.
    pub(super) fn map(&self, address: [u8; 16]) -> [u8; 16] {
        let host = self.first ^ self.last;
        (self.first & !host | u128::from_be_bytes(address) & host).to_be_bytes()
    }
}

impl Ports {
    /// From `first` to `last`; `None` if they are in the wrong order.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first <= last { Some(Self { first, last }) } else { None }
    }

    /// The first port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The last port.
    pub const fn last(self) -> u16 {
        self.last
    }
}

impl Request {
    /// The ports that a source with this port may get.
    pub fn range(&self, port: u16) -> Ports {
        self.ports.unwrap_or(Ports::like(port))
    }

    /// A hash that identifies the ports of the request towards one destination, for a
    /// connection that leaves as `leaves_as`.
    pub fn pool_hash(&self, leaves_as: &KeyedPacket, hash: &dyn Fn(&FlowKey) -> u64) -> u64 {
        let KeyedPacket { key, sender } = leaves_as;
        let (source, destination) = (key.end(*sender), key.end(sender.opposite()));
        let Ports { first, last } = self.range(source.port);
        let source = Endpoint { port: first, ..source };
        let pool = FlowKey::of_ports(key.family, key.protocol, key.zone, source, destination);
        hash(&pool.key) ^ u64::from(last)
    }

    /// The same as the key of a count.
    pub(crate) fn pool(&self, leaves_as: &KeyedPacket, supply: Supply<'_>) -> Pool {
        Pool::of(self.pool_hash(leaves_as, supply.hash))
    }

    /// A translation of an end that changes nothing.
    pub const fn of(end: TranslatedEnd) -> Self {
        Self {
            end,
            addresses: None,
            ports: None,
            random: false,
            persistent: false,
            netmap: false,
            interface: None,
        }
    }
}
