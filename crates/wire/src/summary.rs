//! A packet in one line, for people.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::{
    ClaimedFragment, LinkProtocol, Network, QuotedTransport, TcpInfo, Transport, dissect, inside,
    protocol,
};

/// Most bytes shown of a frame that can not be read.
const BYTES_SHOWN: usize = 32;

/// A frame in one line: addresses, ports, the transport and its numbers, and the same for the
/// innermost packet of a tunnel. For an invalid fragment it shows the claims of its headers,
/// for any other frame that can not be read the first bytes.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    /// The frame, link header first.
    pub frame: &'a [u8],
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match dissect(self.frame) {
            Ok(dissected) => match &dissected.network {
                Some(network) => {
                    packet(network, f)?;
                    match inside(self.frame, network) {
                        Some(inner) => {
                            f.write_str(" carrying ")?;
                            packet(&inner, f)
                        }
                        None => Ok(()),
                    }
                }
                None => match LinkProtocol::of(self.frame) {
                    Some(protocol) => write!(f, "{protocol}"),
                    None => write!(f, "LLC of {} bytes", dissected.ethertype),
                },
            },
            Err(_) => {
                if let Some(fragment) = ClaimedFragment::of(self.frame) {
                    return write!(f, "{fragment}");
                }
                let shown = self.frame.len().min(BYTES_SHOWN);
                self.frame[..shown].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                if shown < self.frame.len() { f.write_str("...") } else { Ok(()) }
            }
        }
    }
}

fn packet(network: &Network, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match &network.transport {
        Transport::Tcp(tcp) => {
            ends(network, tcp.source_port, tcp.destination_port, f)?;
            segment(network, tcp, f)?;
        }
        Transport::Udp { source_port, destination_port, .. }
        | Transport::Sctp { source_port, destination_port, .. }
        | Transport::Dccp { source_port, destination_port, .. } => {
            ends(network, *source_port, *destination_port, f)?;
            write!(f, " length {}", network.transport_len())?;
        }
        transport => {
            write!(f, "{} > {} ", network.source_ip(), network.destination_ip())?;
            name(network.protocol, f)?;
            without_ports(transport, f)?;
        }
    }
    match &network.fragment {
        Some(fragment) if !fragment.is_atomic() => {
            let more = if fragment.more { "+" } else { "" };
            write!(f, " fragment {:#x} at {}{more}", fragment.id, fragment.offset)
        }
        _ => Ok(()),
    }
}

fn ends(
    network: &Network,
    source: u16,
    destination: u16,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let source = SocketAddr::new(network.source_ip(), source);
    let destination = SocketAddr::new(network.destination_ip(), destination);
    write!(f, "{source} > {destination} ")?;
    name(network.protocol, f)
}

fn segment(network: &Network, tcp: &TcpInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let TcpInfo { flags, sequence, acknowledgment, window, header_len, .. } = tcp;
    let length = network.transport_len().saturating_sub(u32::from(*header_len));
    write!(f, " {flags:?} seq {sequence} ack {acknowledgment} window {window} length {length}")
}

fn without_ports(transport: &Transport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match transport {
        Transport::IcmpQuery(query) => {
            write!(f, " type {} code {} id {}", query.icmp_type, query.code, query.id)
        }
        Transport::IcmpOther { kind, code } => write!(f, " type {kind} code {code}"),
        Transport::IcmpError(error) => {
            write!(f, " type {} code {}", error.kind, error.code)?;
            let Some(quoted) = error.quoted else { return f.write_str(" without a quote") };
            let [source, destination] = [quoted.source, quoted.destination]
                .map(|address| IpAddr::from(address).to_canonical());
            match quoted.transport {
                QuotedTransport::Ports { source: from, destination: to } => {
                    let ends = [(source, from), (destination, to)].map(SocketAddr::from);
                    write!(f, " about {} > {} ", ends[0], ends[1])
                }
                _ => write!(f, " about {source} > {destination} "),
            }?;
            name(quoted.protocol, f)
        }
        Transport::Gre { version, key } => write!(f, " version {version} key {key:#x}"),
        _ => Ok(()),
    }
}

pub(crate) fn name(number: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(match number {
        protocol::TCP => "TCP",
        protocol::UDP => "UDP",
        protocol::UDPLITE => "UDP-Lite",
        protocol::SCTP => "SCTP",
        protocol::DCCP => "DCCP",
        protocol::ICMP => "ICMP",
        protocol::ICMPV6 => "ICMPv6",
        protocol::GRE => "GRE",
        number => return write!(f, "protocol {number}"),
    })
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
