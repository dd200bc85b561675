//! The one pass over a frame.

use crate::{
    Dissected, Malformed, Network, Transport, Tunnels, ip,
    link::{self, IpPlace},
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
    let network = match link.ip {
        Some(place) => network(frame, place, tunnels, 0)?,
        None => None,
    };
    Ok(Dissected { network, ethertype: link.ethertype, vlan: link.vlan })
}

/// The innermost packet from `place` on, which lies in `depth` tunnels; `None` if
/// `place` was guessed and is no IP packet.
fn network(
    frame: &[u8],
    place: IpPlace,
    tunnels: Tunnels,
    depth: usize,
) -> Result<Option<Network>, Malformed> {
    let mut network = match ip::read(&frame[..place.end], place.family, place.offset) {
        Ok(network) => network,
        Err(Malformed::Ipv4Header | Malformed::Ipv6Header) if place.guessed => return Ok(None),
        Err(malformed) => return Err(malformed),
    };
    if network.transport == Transport::LaterFragment {
        return Ok(Some(network));
    }
    let packet = &frame[..network.end as usize];
    if tunnels == Tunnels::Inner
        && let Some(place) = transport::tunnel(packet, &network)?
    {
        if depth == Dissected::MAX_TUNNELS {
            return Err(Malformed::TunnelDepth);
        }
        let inner = self::network(frame, place, tunnels, depth + 1)?;
        if inner.is_some() {
            return Ok(inner);
        }
    }
    network.transport = transport::read(packet, &network)?;
    Ok(Some(network))
}

#[cfg(test)]
#[path = "dissect_tests.rs"]
mod tests;
