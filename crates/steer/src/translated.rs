//! Steering of packets to translated addresses by their port.
//!
//! Source translation gives a connection an address of this gateway and a port. The reply names
//! only these, so a hash of its key would lead to any bucket. Instead the bucket is read from
//! the port: a bucket gives away only the ports of its *block*, those whose low bits are its
//! number.
//!
//! ```text
//! 192.0.2.1:40000 -> 198.51.100.1:443     hash: bucket 7
//!    becomes 203.0.113.1:1031             1031 & 255 = 7
//! 198.51.100.1:443 -> 203.0.113.1:1031    bucket 7 again
//! ```
//!
//! This holds for packets to a *translation address* with a destination port inside the *port
//! range*, for all transports with ports, and for ICMP queries with their identifier as port. A
//! packet from such an address is steered by its source port, so that both directions of an
//! untranslated flow stay together. If both ends are translation addresses, the destination's
//! port counts. An ICMP error quotes a packet as it went out, so there the quoted source takes
//! the place of the destination.

use std::ops::RangeInclusive;
use std::sync::Arc;

use flow::{Endpoint, FlowKey, Side};
use wire::{Family, protocol};

use crate::{BucketCount, BucketId};

/// The ports that source translation gives away, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The first.
    pub min: u16,
    /// The last, not before the first.
    pub max: u16,
}

impl PortRange {
    /// True for a port inside.
    #[inline]
    pub const fn contains(self, port: u16) -> bool {
        self.min <= port && port <= self.max
    }
}

/// Addresses that connections are translated to, and the range of their ports. It is cheap to
/// clone, and steering costs nothing where there are no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    /// As numbers, sorted and not adjacent; IPv4 in the mapped form.
    addresses: Arc<[(u128, u128)]>,
    /// One bit for each value that the last six bits of an address inside can have, so that most
    /// packets need no search.
    last_bits: u64,
    ports: PortRange,
}

impl Translated {
    /// Takes ranges of addresses (IPv4 in the mapped form) in any order; they may overlap.
    pub fn new(
        addresses: impl IntoIterator<Item = RangeInclusive<[u8; 16]>>,
        ports: PortRange,
    ) -> Self {
        let as_numbers = |range: RangeInclusive<[u8; 16]>| {
            (u128::from_be_bytes(*range.start()), u128::from_be_bytes(*range.end()))
        };
        let mut ranges: Vec<_> =
            addresses.into_iter().map(as_numbers).filter(|(first, last)| first <= last).collect();
        ranges.sort_unstable();
        let mut apart: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match apart.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => apart.push((first, last)),
            }
        }
        let bits = |(first, last): &(u128, u128)| {
            let all = (0..64).take_while(|step| first.saturating_add(*step) <= *last);
            all.fold(0, |bits, step| bits | 1 << (first.wrapping_add(step) % 64))
        };
        let last_bits = apart.iter().map(bits).fold(0, |all, bits: u64| all | bits);
        Self { addresses: apart.into(), last_bits, ports }
    }

    /// The same addresses with another range of ports.
    #[must_use]
    pub fn with_ports(&self, ports: PortRange) -> Self {
        Self { ports, ..self.clone() }
    }

    /// The addresses, as ranges that neither overlap nor touch, in order.
    pub fn addresses(&self) -> impl Iterator<Item = RangeInclusive<[u8; 16]>> {
        self.addresses.iter().map(|(first, last)| first.to_be_bytes()..=last.to_be_bytes())
    }

    /// The ports that source translation gives away.
    pub const fn ports(&self) -> PortRange {
        self.ports
    }

    /// True if there are no addresses.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// True for an address that connections are translated to.
    #[inline]
    pub fn contains(&self, address: [u8; 16]) -> bool {
        self.last_bits >> (address[15] % 64) & 1 != 0 && self.is_in_range(address)
    }

    #[inline(never)]
    fn is_in_range(&self, address: [u8; 16]) -> bool {
        let address = u128::from_be_bytes(address);
        let behind = self.addresses.partition_point(|(first, _)| *first <= address);
        behind > 0 && address <= self.addresses[behind - 1].1
    }

    /// True if packets of this end are steered by its port: it is a translation address, and
    /// the port is inside the range.
    #[inline]
    pub fn takes(&self, end: Endpoint) -> bool {
        self.is_taken(&end, end.port)
    }

    #[inline]
    fn is_taken(&self, end: &Endpoint, port: u16) -> bool {
        self.ports.contains(port) && self.contains(end.address)
    }

    /// The bucket of a flow by the port of one of its ends: `first` if that is a translation
    /// address, else the other end; `None` if neither is.
    #[inline]
    pub fn bucket(&self, key: &FlowKey, first: Side, buckets: BucketCount) -> Option<BucketId> {
        if self.is_empty() {
            return None;
        }
        self.bucket_by_port(key, first, buckets)
    }

    #[inline(never)]
    fn bucket_by_port(&self, key: &FlowKey, first: Side, buckets: BucketCount) -> Option<BucketId> {
        if !has_ports(key) {
            return None;
        }
        let is_query = key.is_query();
        let (one, other) = match first {
            Side::Low => (&key.low, &key.high),
            Side::High => (&key.high, &key.low),
        };
        let port_of = |end: &Endpoint| if is_query { key.low.port } else { end.port };
        let (one_port, other_port) = (port_of(one), port_of(other));
        let port = if self.is_taken(one, one_port) {
            one_port
        } else if self.is_taken(other, other_port) {
            other_port
        } else {
            return None;
        };
        Some(BucketId(port & (buckets.get() - 1) as u16))
    }
}

impl Default for Translated {
    fn default() -> Self {
        Self::new([], crate::SteerSettings::default().nat_ports())
    }
}

/// True for protocols that tell connections apart by ports or by an identifier.
const fn has_ports(key: &FlowKey) -> bool {
    match key.protocol {
        protocol::TCP | protocol::UDP | protocol::UDPLITE | protocol::SCTP | protocol::DCCP => true,
        protocol::ICMP => matches!(key.family, Family::V4),
        protocol::ICMPV6 => matches!(key.family, Family::V6),
        _ => false,
    }
}

#[cfg(test)]
#[path = "translated_tests.rs"]
mod tests;
