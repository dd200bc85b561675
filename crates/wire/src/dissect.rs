//! The one pass over a frame.

use crate::{
    Dissected, Family, Malformed, Network, Transport,
    ip::{self, Header},
    link::{self, IpPlace, Link},
    transport::{self, Load, Loaded},
};

/// Dissects an Ethernet frame, without the frame check sequence.
///
/// Descends through VLAN tags (802.1Q, 802.1ad, 0x9100), PPPoE sessions and MPLS
/// to IPv4 or IPv6 and through the extension headers to the transport. What is not IP
/// is `Ok` without a network: other EtherTypes, PPP control packets (their
/// [`Dissected::ethertype`] stays 0x8864), LLC. More tags or labels than the limits are an
/// error, since receivers may take any number off. MPLS carries no protocol
/// number, so what lies below the labels is IP only if its header is valid; the
/// EtherType stays that of MPLS.
///
/// Padding behind the IP packet is allowed, and so are super-packets of a few
/// bytes more than 64 KiB.
///
/// # Tunnels
///
/// What comes back is always the outermost packet, which is the one that the next host reads:
/// whatever a packet is judged by has to be that. What lies inside is for [`inside`] to say.
///
/// # Errors
///
/// The first header that is cut short or contradicts itself, see [`Malformed`].
pub fn dissect(frame: &[u8]) -> Result<Dissected, Malformed> {
    let link = link::read(frame, 0)?;
    above_link(frame, &link)
}

/// What is above the link layer. The only value returned is `result`, so that it
/// is built where the caller wants it and not copied there.
fn above_link(frame: &[u8], link: &Link) -> Result<Dissected, Malformed> {
    let mut result = Ok(Dissected { network: None, ethertype: link.ethertype, vlan: link.vlan });
    if let (Ok(dissected), Some(place)) = (&mut result, &link.ip)
        && let Err(malformed) = network(frame, place, &mut dissected.network)
    {
        result = Err(malformed);
    }
    result
}

/// Puts the packet at `place` into `found`; leaves that as it is if `place` was guessed
/// and is no IP packet. Where the transport header is malformed the rest is there.
///
/// Results go into place, here and in the transport parsers: handed up through
/// nested `Result`s, copying would cost more than reading the packet.
#[inline(always)]
fn network(frame: &[u8], place: &IpPlace, found: &mut Option<Network>) -> Result<(), Malformed> {
    let bytes = &frame[..place.end];
    let read = match place.family {
        Family::V4 => match ip::ipv4(bytes, place.offset) {
            Ok(header) => return above(frame, &header, found),
            Err(malformed) => malformed,
        },
        Family::V6 => match ip::ipv6(bytes, place.offset) {
            Ok(header) => return above(frame, &header, found),
            Err(malformed) => malformed,
        },
    };
    match read {
        Malformed::Ipv4Header | Malformed::Ipv6Header if place.guessed => Ok(()),
        malformed => Err(malformed),
    }
}

/// What is above an IP header. Called once for each family, so that the compiler
/// makes a straight path for each.
#[inline(always)]
fn above(frame: &[u8], header: &Header<'_>, found: &mut Option<Network>) -> Result<(), Malformed> {
    let packet = &frame[..header.end as usize];
    let network = found.insert(header.with_transport(Transport::Other));
    if header.is_later_fragment() {
        network.transport = Transport::LaterFragment;
        return Ok(());
    }
    transport::read(packet, header, &mut network.transport)
}

/// The innermost packet that can be read inside `outer`, a packet of a tunnel in `frame`: IP in
/// IP (RFC 2003, RFC 2473, RFC 4213) and GRE version 0 (RFC 2784), up to
/// [`Dissected::MAX_TUNNELS`] inside one another. `None` if it is of no such tunnel, a fragment,
/// or nothing can be read inside.
///
/// Nobody has judged it and it may be anything, so it tells whom to give the packet to, and
/// nothing else. Where its transport header is malformed that is [`Transport::Other`].
///
/// GRE with sequence numbers (RFC 2890 section 2.2) is not looked into: its receiver wants all
/// packets in order.
#[cold]
#[inline(never)]
pub fn inside(frame: &[u8], outer: &Network) -> Option<Network> {
    let mut innermost = None;
    for _ in 0..Dissected::MAX_TUNNELS {
        let outer = innermost.as_ref().unwrap_or(outer);
        let Some(place) = place_inside(frame, outer) else { break };
        let mut found = None;
        // What is malformed has addresses all the same.
        let _ = network(frame, &place, &mut found);
        if found.is_none() {
            break;
        }
        innermost = found;
    }
    innermost
}

fn place_inside(frame: &[u8], outer: &Network) -> Option<IpPlace> {
    let Load { what, is_numbered } = transport::load(frame, outer)?;
    match what {
        _ if is_numbered => None,
        Loaded::Packet(place) => Some(place),
        Loaded::Frame(start) => link::read(&frame[..outer.end as usize], start).ok()?.ip,
    }
}

/// What a packet of a tunnel carries, see [`carried`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A packet.
    Packet {
        /// Its headers; offsets count from the start of the outer frame.
        network: Network,
        /// Of an Ethernet frame, as [`Dissected::vlan`]; else 0.
        vlan: u16,
    },
    /// An Ethernet frame without IP, which begins at this offset of the outer frame.
    Frame(u16),
}

/// What `outer`, a packet of a tunnel in `frame`, carries: the packet that the tunnel's end reads
/// next. Other than [`inside`] it descends one level only, and takes nothing that is malformed.
/// `None` if it is of no such tunnel or can not be read.
pub fn carried(frame: &[u8], outer: &Network) -> Option<Carried> {
    let (place, vlan, bare) = match transport::load(frame, outer)?.what {
        Loaded::Packet(place) => (Some(place), 0, None),
        Loaded::Frame(start) => {
            let link = link::read(&frame[..outer.end as usize], start).ok()?;
            (link.ip, link.vlan, Some(Carried::Frame(start)))
        }
    };
    let mut found = None;
    if let Some(place) = place {
        network(frame, &place, &mut found).ok()?;
    }
    found.map(|network| Carried::Packet { network, vlan }).or(bare)
}

#[cfg(test)]
#[path = "dissect_tests.rs"]
mod tests;
