//! Selectors: the flows that a device serves for short delay, and those that it serves in bulk.
//!
//! A selector looks only at what all packets of a flow have in common, in both directions: the
//! protocol, and addresses and ports of either end. So the packets of a flow never part.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use wire::{Network, protocol};

/// The purpose of a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Short delay.
    Latency,
    /// Throughput. Packets that no selector names belong here.
    #[default]
    Bulk,
}

impl Service {
    /// The name for programs and people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bulk => "bulk",
        }
    }
}

/// Flows, and the service that they get. A packet is one of them if it meets every condition. It meets
/// the prefix if either of its addresses is in it, and the ports if either of its ports is one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    service: Service,
    protocol: Option<u8>,
    prefix: Option<(IpAddr, u8)>,
    ports: Option<RangeInclusive<u16>>,
}

/// A condition that a packet may fail to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The protocol.
    Protocol,
    /// The prefix, which neither of its addresses is in.
    Prefix,
    /// The ports, none of which is one of its own.
    Ports,
}

/// Why conditions make no selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// There are none.
    #[error("names no flows; give it a protocol, a prefix or a port")]
    Empty,
    /// The ports are none.
    #[error("names no port: the first is behind the last")]
    NoPort,
    /// The protocol has no ports.
    #[error(
        "can not have both a port and protocol {0}; packets of tcp, udp, udplite, sctp and dccp have \
         ports"
    )]
    Portless(u8),
    /// The prefix is longer than an address.
    #[error("has a prefix of {0} bits, and an address has {1}")]
    Prefix(u8, u8),
}

/// Protocols whose headers begin with two ports.
pub(crate) const WITH_PORTS: [u8; 5] =
    [protocol::TCP, protocol::UDP, protocol::DCCP, protocol::SCTP, protocol::UDPLITE];

impl Selector {
    /// A selector by protocol number, prefix and ports.
    ///
    /// # Errors
    /// [`SelectorError`].
    pub fn new(
        service: Service,
        protocol: Option<u8>,
        prefix: Option<(IpAddr, u8)>,
        ports: Option<RangeInclusive<u16>>,
    ) -> Result<Self, SelectorError> {
        if protocol.is_none() && prefix.is_none() && ports.is_none() {
            return Err(SelectorError::Empty);
        }
        if ports.as_ref().is_some_and(RangeInclusive::is_empty) {
            return Err(SelectorError::NoPort);
        }
        if let (Some(protocol), Some(_)) = (protocol, &ports)
            && !WITH_PORTS.contains(&protocol)
        {
            return Err(SelectorError::Portless(protocol));
        }
        if let Some((address, length)) = prefix {
            let longest = if address.is_ipv4() { 32 } else { 128 };
            if length > longest {
                return Err(SelectorError::Prefix(length, longest));
            }
        }
        Ok(Self { service, protocol, prefix, ports })
    }

    /// The service of its flows.
    pub fn service(&self) -> Service {
        self.service
    }

    /// The protocol of its flows.
    pub fn protocol(&self) -> Option<u8> {
        self.protocol
    }

    /// An address of either end, as far as so many bits.
    pub fn prefix(&self) -> Option<(IpAddr, u8)> {
        self.prefix
    }

    /// Ports of either end.
    pub fn ports(&self) -> Option<&RangeInclusive<u16>> {
        self.ports.as_ref()
    }

    /// The first condition that a packet does not meet; `None` if it is one of the flows. It is what the
    /// [program of the kernel](crate::afpacket::AfPacketOptions::lanes) finds, for explanations.
    pub fn unmet(&self, packet: &Network) -> Option<Condition> {
        if self.protocol.is_some_and(|it| it != packet.protocol) {
            return Some(Condition::Protocol);
        }
        let mut addresses = [packet.source_ip(), packet.destination_ip()].into_iter();
        if self.prefix.is_some_and(|(own, length)| !addresses.any(|it| in_prefix(own, length, it)))
        {
            return Some(Condition::Prefix);
        }
        // Of a datagram in several fragments, only the first has ports.
        let is_whole = packet.fragment.is_none_or(|it| it.is_atomic());
        let ports = packet.transport.ports().filter(|_| is_whole);
        let has_port = |own: &RangeInclusive<u16>| {
            ports.is_some_and(|(a, b)| own.contains(&a) || own.contains(&b))
        };
        self.ports.as_ref().is_some_and(|own| !has_port(own)).then_some(Condition::Ports)
    }

    /// True if every packet that meets the other one meets this one.
    fn covers(&self, other: &Self) -> bool {
        let protocol = self.protocol.is_none() || self.protocol == other.protocol;
        let ports = self.ports.as_ref().is_none_or(|own| {
            let other = other.ports.as_ref();
            other.is_some_and(|it| own.contains(it.start()) && own.contains(it.end()))
        });
        let prefix = self.prefix.is_none_or(|(own, length)| {
            let other = other.prefix.filter(|(_, longer)| *longer >= length);
            other.is_some_and(|(it, _)| in_prefix(own, length, it))
        });
        protocol && ports && prefix
    }
}

/// True if an address agrees with another in so many bits.
fn in_prefix(prefix: IpAddr, length: u8, address: IpAddr) -> bool {
    let differing = match (prefix, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return false,
    };
    differing >= length.into()
}

/// The selectors of a device. The first that a packet meets decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selectors(Arc<[Selector]>);

/// Why selectors do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorsError {
    /// There are too many for a program of the kernel.
    #[error("a device has {max} selectors at most, and {0} were given", max = Selectors::MAX)]
    TooMany(usize),
    /// A selector never decides, because an earlier one names all of its flows. Both by their place.
    #[error("selector {later} never decides, because selector {earlier} names all of its flows")]
    Covered {
        /// The one that decides.
        earlier: usize,
        /// The one that never does.
        later: usize,
    },
}

impl Selectors {
    /// The largest number of selectors of a device.
    pub const MAX: usize = 32;

    /// Selectors in the order in which they are looked at.
    ///
    /// # Errors
    /// [`SelectorsError`].
    pub fn new(selectors: Vec<Selector>) -> Result<Self, SelectorsError> {
        if selectors.len() > Self::MAX {
            return Err(SelectorsError::TooMany(selectors.len()));
        }
        for (later, selector) in selectors.iter().enumerate() {
            let earlier = selectors[..later].iter().position(|first| first.covers(selector));
            if let Some(earlier) = earlier {
                return Err(SelectorsError::Covered { earlier, later });
            }
        }
        Ok(Self(selectors.into()))
    }

    /// The service of a packet.
    pub fn service_of(&self, packet: &Network) -> Service {
        let deciding = self.iter().find(|it| it.unmet(packet).is_none());
        deciding.map_or(Service::default(), Selector::service)
    }

    /// The selectors.
    pub fn iter(&self) -> impl Iterator<Item = &Selector> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(protocol: Option<u8>, prefix: Option<&str>, ports: Option<(u16, u16)>) -> Selector {
        let prefix = prefix.map(|it| (it.parse().unwrap(), if it.contains(':') { 32 } else { 24 }));
        let ports = ports.map(|(first, last)| first..=last);
        Selector::new(Service::Latency, protocol, prefix, ports).unwrap()
    }

    #[test]
    fn conditions_that_name_no_flow_are_refused() {
        let refused = |protocol, prefix, ports: Option<RangeInclusive<u16>>| {
            Selector::new(Service::Bulk, protocol, prefix, ports).unwrap_err()
        };
        let address = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(refused(None, None, None), SelectorError::Empty);
        let (first, last) = (2, 1);
        assert_eq!(refused(None, None, Some(first..=last)), SelectorError::NoPort);
        assert_eq!(refused(Some(1), None, Some(1..=2)), SelectorError::Portless(1));
        assert_eq!(refused(None, Some((address, 33)), None), SelectorError::Prefix(33, 32));
    }

    #[test]
    fn a_selector_that_never_decides_is_refused() {
        let udp = selector(Some(17), None, None);
        let dns = selector(Some(17), None, Some((53, 53)));
        let ports = selector(None, None, Some((50, 60)));
        let net = selector(None, Some("192.0.2.0"), None);
        let net_dns = selector(Some(17), Some("192.0.2.1"), Some((53, 53)));
        let other = selector(None, Some("2001:db8::"), None);
        let covered = |list: &[&Selector]| match Selectors::new(
            list.iter().map(|&it| it.clone()).collect(),
        ) {
            Err(SelectorsError::Covered { earlier, later }) => Some((earlier, later)),
            _ => None,
        };
        assert_eq!(covered(&[&udp, &dns]), Some((0, 1)));
        assert_eq!(covered(&[&dns, &udp]), None);
        assert_eq!(covered(&[&other, &ports, &dns]), Some((1, 2)));
        assert_eq!(covered(&[&net, &net_dns]), Some((0, 1)));
        assert_eq!(covered(&[&net_dns, &net, &other, &udp]), None);
        let many = vec![udp; Selectors::MAX + 1];
        assert_eq!(Selectors::new(many), Err(SelectorsError::TooMany(Selectors::MAX + 1)));
    }
}
