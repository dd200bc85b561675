//! Dissecting a frame in one pass.

use crate::{
    Dissected, Family, Malformed, Network, Transport,
    ip::{self, Header},
    link::{self, IpPlace, Link},
    transport::{self, Load, Loaded},
};

/// Dissects an Ethernet frame, without the frame check sequence.
///
/// Descends through VLAN tags (802.1Q, 802.1ad, 0x9100), PPPoE sessions and MPLS to IPv4 or
/// IPv6 and through the extension headers to the transport. A frame that is not IP is `Ok`
/// without a network: other EtherTypes, PPP control packets (their [`Dissected::ethertype`]
/// stays 0x8864), LLC. More tags or labels than the limits are an error, since receivers may
/// take any number off. MPLS carries no protocol number, so the payload below the labels is IP
/// only if its header is valid; the EtherType stays that of MPLS.
///
/// Padding behind the IP packet is allowed, and so are super-packets of a few bytes more than
/// 64 KiB.
///
/// # Tunnels
///
/// The result always describes the outermost packet. The next host reads that packet, so the
/// rules have to judge it. [`inside`] reads the packets within a tunnel.
///
/// # Errors
///
/// [`Malformed`] for the first header that is cut short or contradicts itself.
pub fn dissect(frame: &[u8]) -> Result<Dissected, Malformed> {
    let link = link::read(frame, 0)?;
    above_link(frame, &link)
}

/// Dissects the layers above the link. The only value returned is `result`, so that the
/// compiler builds it where the caller wants it and does not copy it.
fn above_link(frame: &[u8], link: &Link) -> Result<Dissected, Malformed> {
    let mut result = Ok(Dissected { network: None, ethertype: link.ethertype, vlan: link.vlan });
    if let (Ok(dissected), Some(place)) = (&mut result, &link.ip)
        && let Err(malformed) = network(frame, place, &mut dissected.network)
    {
        result = Err(malformed);
    }
    result
}

/// Puts the packet at `place` into `found`. If `place` was guessed and holds no IP packet,
/// `found` stays as it is. With a malformed transport header the rest of the packet is
/// described.
///
/// Results are written to their place, here and in the transport parsers: returning them
/// through nested `Result`s would copy them, which costs more than reading the packet.
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

/// Dissects the layers above an IP header. It is called once for each family, so that the
/// compiler makes a straight path for each.
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
/// [`Dissected::MAX_TUNNELS`] levels. `None` if `outer` belongs to no such tunnel, if it is a
/// fragment, or if nothing inside can be read.
///
/// No rule has judged the inner packet and it may be anything, so it may decide which worker
/// gets the outer one, and nothing else. A malformed transport header inside is
/// [`Transport::Other`].
///
/// GRE with sequence numbers (RFC 2890 section 2.2) gives `None`: its receiver wants all
/// packets in order.
#[cold]
#[inline(never)]
pub fn inside(frame: &[u8], outer: &Network) -> Option<Network> {
    let mut innermost = None;
    for _ in 0..Dissected::MAX_TUNNELS {
        let outer = innermost.as_ref().unwrap_or(outer);
        let Some(place) = place_inside(frame, outer) else { break };
        let mut found = None;
        // A packet with a malformed transport header has addresses all the same.
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
    if is_numbered { None } else { place_of(&what, frame, outer) }
}

fn place_of(what: &Loaded, frame: &[u8], outer: &Network) -> Option<IpPlace> {
    match *what {
        Loaded::Packet(place) => Some(place),
        Loaded::Frame(start) => link::read(&frame[..outer.end as usize], start).ok()?.ip,
    }
}

/// The place of the packet inside the packet of a tunnel at `place`, whether its receiver wants
/// all packets in order or not.
#[cold]
pub(crate) fn place_within(frame: &[u8], place: &IpPlace) -> Option<IpPlace> {
    let mut outer = None;
    network(frame, place, &mut outer).ok()?;
    let outer = outer?;
    place_of(&transport::load(frame, &outer)?.what, frame, &outer)
}

/// The payload of a tunnel's packet, see [`carried`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A packet.
    Packet {
        /// Its headers; offsets count from the start of the outer frame.
        network: Network,
        /// VLAN of the inner Ethernet frame, as in [`Dissected::vlan`]; 0 if there is none.
        vlan: u16,
    },
    /// An Ethernet frame without IP, which begins at this offset of the outer frame.
    Frame(u16),
}

/// The payload of `outer`, a packet of a tunnel in `frame`: the packet that the tunnel's end
/// reads next. Unlike [`inside`] it descends one level only and accepts nothing malformed.
/// `None` if `outer` belongs to no such tunnel or its payload can not be read.
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
