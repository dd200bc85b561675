//! The packets for the host's addresses whose copies reach the host's kernel although rules
//! translate destinations.

use wire::{Family, Network};

use crate::kind::{Interval, address_bits};
use crate::translations::{Ending, Forwarded, Translations};

/// Knows which packets for the host are kept from its kernel, because a rule may lead them elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCopies {
    /// Packets to one port whose destination a rule may translate, in the order of their ports.
    to_one_port: Vec<(u16, Forwarded)>,
    /// Other packets whose destination a rule may translate.
    others: Vec<Forwarded>,
    ends: Vec<Ending>,
}

/// A packet as the conditions of [`Forwarded`] see it.
struct Arrival {
    input: u128,
    family: Family,
    protocol: u8,
    ends: (u128, u128),
    port: Option<u16>,
}

impl HostCopies {
    /// The copies under rules that make these translations.
    pub fn new(translations: &Translations) -> Self {
        let mut copies = Self { ends: translations.ends.clone(), ..Self::default() };
        for packets in &translations.destinations {
            match packets.ports {
                Some((low, high)) if low == high => copies.to_one_port.push((low, *packets)),
                _ => copies.others.push(*packets),
            }
        }
        copies.to_one_port.sort_by_key(|(port, _)| *port);
        copies
    }

    /// True if the kernel gets its copy of a packet that no connection translates: the packet is for
    /// an address of the host and no rule may lead it elsewhere, or a rule may lead it to the host.
    /// `input` is the interface by which it came in, see [`name_bits`](crate::name_bits). `is_host`
    /// says whether any of these addresses belongs to the host.
    pub fn has(
        &self,
        packet: &Network,
        input: u128,
        is_host: impl Fn(Family, Interval) -> bool,
    ) -> bool {
        let arrival = Arrival::of(packet, input);
        let is_local = is_host(arrival.family, Interval::one(arrival.ends.1));
        (is_local && !self.leads_elsewhere(&arrival)) || self.may_lead_to_host(&arrival, is_host)
    }

    fn leads_elsewhere(&self, arrival: &Arrival) -> bool {
        let to_port = arrival.port.is_some_and(|port| {
            let first = self.to_one_port.partition_point(|(it, _)| *it < port);
            let candidates = self.to_one_port.iter().skip(first);
            let mut candidates = candidates.take_while(|(it, _)| *it == port);
            candidates.any(|(_, packets)| arrival.is_among(packets))
        });
        to_port || self.others.iter().any(|packets| arrival.is_among(packets))
    }

    fn may_lead_to_host(
        &self,
        arrival: &Arrival,
        is_host: impl Fn(Family, Interval) -> bool,
    ) -> bool {
        self.ends.iter().any(|ending| {
            let mut meant = ending.packets.iter().filter(|packets| arrival.is_among(packets));
            meant.any(|packets| ending.may_be_host(packets, &is_host))
        })
    }
}

impl Arrival {
    fn of(packet: &Network, input: u128) -> Self {
        Self {
            input,
            family: packet.family,
            protocol: packet.protocol,
            ends: (address_bits(packet.source_ip()), address_bits(packet.destination_ip())),
            port: packet.transport.ports().map(|(_, port)| port),
        }
    }

    fn is_among(&self, packets: &Forwarded) -> bool {
        packets.interfaces.is_none_or(|names| names.holds(self.input))
            && packets.may_be((self.family, self.protocol), self.ends, self.port)
    }
}

#[cfg(test)]
#[path = "host_copies_tests.rs"]
mod tests;
