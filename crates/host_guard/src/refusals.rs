//! Finds out whether the host would refuse a packet that the table keeps from it.
//!
//! The kernel refuses a packet for an address of its own if it has no socket for it, and none of its
//! chains drops the packet before. So both are asked. No chain is evaluated here: one that may drop
//! packets leaves all of them unanswered, because nobody can tell which.

use std::io;

use engine::{HostPart, ToHost};
use netlink::nf_tables::{BaseChain, BaseChains};
use netlink::{Ends, LinkId, Receiver, SocketProtocol, Sockets, Tracked};
use ruleset::{Forwarded, OWN_TABLE_PREFIX, address_bits};
use wire::{Family, protocol};

use crate::chains::LAST_SERVICE;
use crate::filter::HostFilter;
use crate::interface::NameTime;

/// Tables of the former iptables, a name a line. They are there from the first order of
/// iptables(8) to such a table on.
const LEGACY_TABLES: [&str; 2] =
    ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];

/// Asks the kernel.
#[derive(Debug)]
pub struct Refusals {
    sockets: Sockets,
    chains: BaseChains,
    tracked: Tracked,
}

impl Refusals {
    /// Prepares to ask.
    ///
    /// # Errors
    /// The system's error, also if it has no way to ask for sockets.
    pub fn new() -> io::Result<Self> {
        Ok(Self { sockets: Sockets::new()?, chains: BaseChains::new()?, tracked: Tracked::new()? })
    }

    /// The part that the host has in a packet, were there no table with this filter. If the kernel
    /// translates sources, the packet may be a reply to such a connection, which has no socket at this
    /// address.
    ///
    /// # Errors
    /// The system's error.
    pub fn part_of_host(&mut self, packet: &ToHost, filter: &HostFilter) -> io::Result<HostPart> {
        if filter.may_be_redirected(packet) && kernel_redirects(&mut self.chains)? {
            return Ok(HostPart::Destination);
        }
        let Some(link) = filter.kept(packet) else { return Ok(HostPart::Destination) };
        let protocol = match packet.protocol {
            protocol::TCP => SocketProtocol::Tcp,
            _ => SocketProtocol::Udp,
        };
        let ToHost { source, destination, .. } = *packet;
        let ends = Ends { protocol, source, destination, link };
        let receiver = self.sockets.receiver(&ends)?;
        Ok(match receiver {
            Receiver::Connected => HostPart::Flow,
            Receiver::Nobody if filter.kernel_translates && self.tracked.has(&ends)? => {
                HostPart::Flow
            }
            Receiver::Nobody if !self.may_drop()? => HostPart::Nothing,
            Receiver::Waiting | Receiver::Nobody => HostPart::Destination,
        })
    }

    /// True if the kernel may drop a packet for the host, or the host's answer.
    fn may_drop(&mut self) -> io::Result<bool> {
        Ok(self.chains.now()?.iter().any(may_drop) || has_legacy_filter()?)
    }
}

/// True if a chain may drop a packet for the host, or the host's answer.
fn may_drop(chain: &BaseChain) -> bool {
    let is_reachable = matches!(chain.hook, "prerouting" | "input" | "output");
    // Rules of translation drop nothing, unless by their policy.
    let drops = !chain.accepts || !(chain.is_empty || chain.is_nat);
    is_reachable && drops && !chain.table.starts_with(OWN_TABLE_PREFIX)
}

/// True if the kernel has rules that may translate sources of its own.
pub fn kernel_translates(chains: &mut BaseChains) -> io::Result<bool> {
    kernel_has(chains, BaseChain::translates_sources)
}

/// True if the kernel has rules that may lead packets to the host.
fn kernel_redirects(chains: &mut BaseChains) -> io::Result<bool> {
    kernel_has(chains, BaseChain::translates_destinations)
}

/// True if the kernel has such a chain, which translates, or a table of the former iptables that does.
fn kernel_has(chains: &mut BaseChains, is_meant: fn(&BaseChain) -> bool) -> io::Result<bool> {
    let is_other = |chain: &BaseChain| !chain.table.starts_with(OWN_TABLE_PREFIX);
    let mut others = chains.now()?.iter().filter(|chain| is_other(chain));
    Ok(others.any(is_meant) || has_legacy_table(|name| name == "nat")?)
}

/// True if the former iptables may drop packets.
fn has_legacy_filter() -> io::Result<bool> {
    has_legacy_table(|name| name != "nat")
}

/// True if the former iptables has a table of such a name.
fn has_legacy_table(is_meant: impl Fn(&str) -> bool) -> io::Result<bool> {
    for file in LEGACY_TABLES {
        match std::fs::read_to_string(file) {
            Ok(names) if names.lines().any(&is_meant) => return Ok(true),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

impl HostFilter {
    /// True for a packet that the kernel gets because a rule of its own may lead it to the host.
    fn may_be_redirected(&self, packet: &ToHost) -> bool {
        let mut left = self.redirected.iter().chain(&self.formerly_redirected);
        left.any(|it| self.is_meant(it, packet, NameTime::Ever))
    }

    /// The interface by which a packet came in, if the table keeps it from the host where the host
    /// has no socket for it and the kernel does not redirect it. `None` if the host has got it, and
    /// answers itself.
    fn kept(&self, packet: &ToHost) -> Option<LinkId> {
        let is_meant = |packets: &Forwarded, named| self.is_meant(packets, packet, named);
        let is_kept = if self.forwarded.iter().any(|it| is_meant(it, NameTime::Now)) {
            true
        } else {
            let renamed = self.forwarded.iter().any(|it| is_meant(it, NameTime::Before));
            let former = self.formerly_forwarded.iter().any(|it| is_meant(it, NameTime::Ever));
            let is_former = renamed || former;
            let to_service = u128::from(packet.destination.port()) <= LAST_SERVICE;
            let is_translated = self.translation_addresses.iter();
            let is_translated =
                is_translated.into_iter().any(|it| it.contains(&packet.destination.ip()));
            match packet.opens {
                true if self.expects => is_translated || is_former,
                true => is_translated && !is_former && !to_service,
                false => is_translated || is_former,
            }
        };
        let interface = self.interfaces.get(usize::from(packet.port.0))?;
        interface.index().filter(|_| is_kept).map(LinkId)
    }

    /// True if a packet is one of those that a rule is about.
    fn is_meant(&self, packets: &Forwarded, packet: &ToHost, named: NameTime) -> bool {
        let ToHost { source, destination, protocol, .. } = *packet;
        let family = if destination.is_ipv4() { Family::V4 } else { Family::V6 };
        let interface = self.interfaces.get(usize::from(packet.port.0));
        let ends = (address_bits(source.ip()), address_bits(destination.ip()));
        packets.may_be((family, protocol), ends, Some(destination.port()))
            && match packets.interfaces {
                Some(names) => interface.is_some_and(|it| it.is_named(names, named)),
                None => named != NameTime::Before,
            }
    }
}

#[cfg(test)]
#[path = "refusals_tests.rs"]
mod tests;
