//! What a rule asks for.

use std::net::IpAddr;

use flow::{Endpoint, FlowKey, KeyedPacket};
use wire::{Family, mapped};

use super::Supply;
use crate::limits::Pool;

/// Which end of a connection's packets changes, seen from its originator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Whom they are from: source translation, masquerade.
    Source,
    /// Whom they are for: destination translation, redirect.
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
    first: u16,
    last: u16,
}

/// A translation that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which end changes.
    pub end: End,
    /// The addresses to choose from; `None`: the packet's own. Of another family than the
    /// packet's they leave it as it is.
    pub addresses: Option<Addresses>,
    /// The ports to choose from, or the identifiers of ICMP. `None`: a source keeps its port if
    /// that is free and of the bucket's block, and gets another of the block otherwise; a
    /// destination keeps it.
    pub ports: Option<Ports>,
    /// The port is chosen at random, also where the packet's own would do. The kernel's
    /// `random` and `fully-random` are both this.
    pub random: bool,
    /// The address is chosen by the client alone, so a client has the same address towards
    /// all destinations.
    pub persistent: bool,
    /// The bits that the addresses do not have in common stay as they are: a network is mapped
    /// onto another, host by host.
    pub netmap: bool,
    /// The connection lives no longer than this interface keeps its address: a masquerade.
    /// The number is the kernel's.
    pub interface: Option<u32>,
}

impl Addresses {
    /// From `first` to `last`; `None` if they are of two families or there is none between
    /// them.
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

    /// True for one of them, in the mapped form.
    pub fn contains(&self, address: [u8; 16]) -> bool {
        (self.first..=self.last).contains(&u128::from_be_bytes(address))
    }

    /// The address that a number stands for: each has as many numbers as any other, or one
    /// more.
    pub(super) fn pick(&self, number: u128) -> [u8; 16] {
        let offset = match (self.last - self.first).checked_add(1) {
            Some(count) => number % count,
            None => number,
        };
        (self.first + offset).to_be_bytes()
    }

    /// The one behind an address of them, round.
    pub(super) fn next(&self, address: [u8; 16]) -> [u8; 16] {
        let number = u128::from_be_bytes(address);
        if number >= self.last { self.first.to_be_bytes() } else { (number + 1).to_be_bytes() }
    }

    /// How many there are, at most `most`.
    pub(super) fn count_up_to(&self, most: u128) -> u128 {
        (self.last - self.first).saturating_add(1).min(most)
    }

    /// The address in the network of these that `address` is in its own.
    pub(super) fn map(&self, address: [u8; 16]) -> [u8; 16] {
        let host = self.first ^ self.last;
        (self.first & !host | u128::from_be_bytes(address) & host).to_be_bytes()
    }
}

impl Ports {
    /// From `first` to `last`; `None` if there is none between them.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first <= last { Some(Self { first, last }) } else { None }
    }

    /// The first.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The last.
    pub const fn last(self) -> u16 {
        self.last
    }
}

impl Request {
    /// A number for the ports of the request towards one destination, of a connection whose
    /// packets leave so: those that it names, or those of the bucket.
    pub fn pool_hash(
        &self,
        leaves_as: &KeyedPacket,
        Supply { block, hash, .. }: Supply<'_>,
    ) -> u64 {
        let KeyedPacket { key, sender } = leaves_as;
        let (first, last) = self.ports.map_or((block.first(), 0), |it| (it.first, it.last));
        let (source, destination) = (key.end(*sender), key.end(sender.opposite()));
        let source = Endpoint { port: first, ..source };
        let pool = FlowKey::of_ports(key.family, key.protocol, key.zone, source, destination);
        hash(&pool.key) ^ u64::from(last)
    }

    /// The same as what is counted by it.
    pub(crate) fn pool(&self, leaves_as: &KeyedPacket, supply: Supply<'_>) -> Pool {
        Pool::of(self.pool_hash(leaves_as, supply))
    }

    /// A translation of an end that leaves everything as it is.
    pub const fn of(end: End) -> Self {
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
