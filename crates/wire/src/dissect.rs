//! The one pass over a frame.

use crate::{
    Dissected, Family, Malformed, Network, Transport, Tunnels,
    ip::{self, Header},
    link::{self, IpPlace, Link},
    transport,
};

/// Dissects an Ethernet frame, without the frame check sequence.
///
/// Descends through VLAN tags (802.1Q, 802.1ad, 0x9100), PPPoE sessions and MPLS
/// to IPv4 or IPv6, through the extension headers to the transport, and with
/// [`Tunnels::Inner`] through tunnels. What is not IP is `Ok` without a network:
/// other EtherTypes, PPP control packets (their [`Dissected::ethertype`] stays
/// 0x8864), more tags or labels than the limits. MPLS carries no protocol
/// number, so what lies below the labels is IP only if its header is valid; the
/// EtherType stays that of MPLS.
///
/// Padding behind the IP packet is allowed, and so are super-packets of a few
/// bytes more than 64 KiB.
///
/// # Tunnels
///
/// The innermost packet decides, also where it is malformed: the tunnel's end
/// would hand it to a host that throws it away, and one that could not be read
/// can not be tracked or filtered either, so letting it pass under the name of
/// the tunnel would be a way around both. An operator who wants tunnels carried
/// unseen chooses [`Tunnels::Outer`]. A tunnel packet that is a fragment, GRE
/// version 1, and GRE with a payload that is not IP are not descended into: they
/// are packets of the tunnel. A quote in an ICMP error is never descended into.
///
/// # Errors
///
/// The first header that is cut short or contradicts itself, see [`Malformed`].
pub fn dissect(frame: &[u8], tunnels: Tunnels) -> Result<Dissected, Malformed> {
    let link = link::read(frame, 0)?;
    above_link(frame, &link, tunnels)
}

/// What is above the link layer. The only value returned is `result`, so that it
/// is built where the caller wants it and not copied there.
fn above_link(frame: &[u8], link: &Link, tunnels: Tunnels) -> Result<Dissected, Malformed> {
    let mut result = Ok(Dissected { network: None, ethertype: link.ethertype, vlan: link.vlan });
    if let (Ok(dissected), Some(place)) = (&mut result, &link.ip)
        && let Err(malformed) = network(frame, place, tunnels, 0, &mut dissected.network)
    {
        result = Err(malformed);
    }
    result
}

/// Puts the innermost packet from `place` on, which lies in `depth` tunnels, into
/// `found`; leaves that as it is if `place` was guessed and is no IP packet.
///
/// Results go into place, here and in the transport parsers: handed up through
/// nested `Result`s, copying would cost more than reading the packet.
#[inline(always)]
fn network(
    frame: &[u8],
    place: &IpPlace,
    tunnels: Tunnels,
    depth: usize,
    found: &mut Option<Network>,
) -> Result<(), Malformed> {
    let bytes = &frame[..place.end];
    let read = match place.family {
        Family::V4 => match ip::ipv4(bytes, place.offset) {
            Ok(header) => return above(frame, &header, tunnels, depth, found),
            Err(malformed) => malformed,
        },
        Family::V6 => match ip::ipv6(bytes, place.offset) {
            Ok(header) => return above(frame, &header, tunnels, depth, found),
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
fn above(
    frame: &[u8],
    header: &Header<'_>,
    tunnels: Tunnels,
    depth: usize,
    found: &mut Option<Network>,
) -> Result<(), Malformed> {
    let packet = &frame[..header.end as usize];
    let network = found.insert(header.with_transport(Transport::Other));
    if header.is_later_fragment() {
        network.transport = Transport::LaterFragment;
        return Ok(());
    }
    transport::read(packet, header, &mut network.transport)?;
    if tunnels == Tunnels::Inner && transport::is_tunnel(header) {
        descend(packet, header, depth, found)?;
    }
    Ok(())
}

/// Replaces the tunnel packet that was found by the innermost packet inside it,
/// if there is one.
#[cold]
#[inline(never)]
fn descend(
    packet: &[u8],
    outer: &Header<'_>,
    depth: usize,
    found: &mut Option<Network>,
) -> Result<(), Malformed> {
    match transport::tunnel(packet, outer)? {
        None => Ok(()),
        Some(_) if depth == Dissected::MAX_TUNNELS => Err(Malformed::TunnelDepth),
        Some(place) => network(packet, &place, Tunnels::Inner, depth + 1, found),
    }
}

#[cfg(test)]
#[path = "dissect_tests.rs"]
mod tests;
