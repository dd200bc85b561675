//! The packets that the kernel keeps from the host, and those that it lets through to it.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;

use engine::FromHost;
use ruleset::Forwarded;

use crate::interface::Interface;

/// The largest number of kinds of packets of former rules that are remembered, the latest ones.
/// Connections that such a rule translated may live.
const MAX_FORMER: usize = 256;

/// The packets that the table in the kernel is about, beside those that are not for the host: packets
/// for the host's addresses that it must not get, and packets for other addresses that it may get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFilter {
    /// The gateway's interfaces.
    pub interfaces: Vec<Interface>,
    /// The numbers of the interfaces that stand on one of these, such as VLANs, in order.
    pub stacked: Vec<u32>,
    /// The gateway may take a connection to any port: helpers expect connections, or rules translate
    /// packets that can not be described.
    pub expects: bool,
    /// The numbers of those of these interfaces that are bridges of the kernel, in order, and the
    /// station of each.
    pub bridges: Vec<(u32, [u8; 6])>,
    /// The kernel translates sources too, so replies to its connections may come for a translation
    /// address.
    pub kernel_translates: bool,
    /// Addresses that sources are translated to.
    pub translation_addresses: Vec<RangeInclusive<IpAddr>>,
    /// Packets whose destination a rule translates.
    pub forwarded: Vec<Forwarded>,
    /// Packets whose destination a former rule translated, the latest last. A packet that opens a
    /// connection is the host's. Others may belong to a translated connection until it ends.
    pub formerly_forwarded: Vec<Forwarded>,
    /// Packets that the kernel may redirect to the host.
    pub redirected: Vec<Forwarded>,
    /// Packets that the kernel might redirect before, the latest last. Packets of its connections
    /// still are redirected.
    pub formerly_redirected: Vec<Forwarded>,
}

impl HostFilter {
    /// The filter of the present rules, without interfaces.
    pub fn new(from_host: &FromHost<'_>) -> Self {
        let FromHost { translated, expects, forwarded, left } = *from_host;
        let address = |bytes: [u8; 16]| Ipv6Addr::from(bytes).to_canonical();
        let addresses =
            translated.ranges().map(|range| address(*range.start())..=address(*range.end()));
        Self {
            interfaces: Vec::new(),
            stacked: Vec::new(),
            expects,
            bridges: Vec::new(),
            kernel_translates: false,
            translation_addresses: addresses.collect(),
            forwarded: forwarded.to_vec(),
            formerly_forwarded: Vec::new(),
            redirected: left.to_vec(),
            formerly_redirected: Vec::new(),
        }
    }

    /// True if the filter is also about packets that rules translate or redirect. Otherwise the
    /// kernel keeps only packets from the host that are not for it.
    pub fn translates(&self) -> bool {
        let packets = [
            &self.forwarded,
            &self.formerly_forwarded,
            &self.redirected,
            &self.formerly_redirected,
        ];
        !self.translation_addresses.is_empty() || packets.iter().any(|it| !it.is_empty())
    }

    /// The filter of the present rules, which remembers the interfaces and the packets of the filter
    /// `before` it.
    pub fn after(mut self, before: &Self) -> Self {
        self.interfaces.clone_from(&before.interfaces);
        self.stacked.clone_from(&before.stacked);
        self.bridges.clone_from(&before.bridges);
        self.kernel_translates = before.kernel_translates;
        self.formerly_forwarded =
            latest_gone(&before.formerly_forwarded, &before.forwarded, &self.forwarded);
        self.formerly_redirected =
            latest_gone(&before.formerly_redirected, &before.redirected, &self.redirected);
        self
    }
}

/// Entries that were there before and are gone, the latest last.
fn latest_gone(gone: &[Forwarded], before: &[Forwarded], now: &[Forwarded]) -> Vec<Forwarded> {
    let mut latest: Vec<Forwarded> = Vec::new();
    for packets in gone.iter().chain(before).filter(|packets| !now.contains(packets)) {
        latest.retain(|known| known != packets);
        latest.push(*packets);
    }
    let too_many = latest.len().saturating_sub(MAX_FORMER);
    latest.drain(..too_many);
    latest
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
