//! From the Ethernet header to the IP header: VLAN tags, PPPoE and MPLS.

use crate::{Dissected, Family, Malformed, tail};

/// EtherTypes (IEEE registration authority) that are looked into.
pub(crate) mod ethertype {
    pub(crate) const IPV4: u16 = 0x0800;
    pub(crate) const IPV6: u16 = 0x86dd;
    /// IEEE 802.1Q.
    pub(crate) const VLAN: u16 = 0x8100;
    /// IEEE 802.1ad service tag.
    pub(crate) const SERVICE_VLAN: u16 = 0x88a8;
    /// Stacked tags from before 802.1ad.
    pub(crate) const OLD_QINQ: u16 = 0x9100;
    /// PPPoE session stage, RFC 2516.
    pub(crate) const PPPOE: u16 = 0x8864;
    /// MPLS, downstream-assigned label, RFC 5332.
    pub(crate) const MPLS: u16 = 0x8847;
    /// MPLS, upstream-assigned label, RFC 5332.
    pub(crate) const MPLS_UPSTREAM: u16 = 0x8848;
    /// An Ethernet frame in GRE (RFC 7637 section 3.2).
    pub(crate) const BRIDGING: u16 = 0x6558;
}

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_LEN: u16 = 14;
/// PPPoE header and PPP protocol number.
const PPPOE_LEN: u16 = 8;
pub(crate) const PPP_IPV4: u16 = 0x0021;
pub(crate) const PPP_IPV6: u16 = 0x0057;

/// What lies below the network layer.
pub(crate) struct Link {
    /// As in [`Dissected::ethertype`].
    pub(crate) ethertype: u16,
    /// As in [`Dissected::vlan`].
    pub(crate) vlan: u16,
    /// Where the IP packet is.
    pub(crate) ip: Option<IpPlace>,
}

/// An IP packet inside a frame.
pub(crate) struct IpPlace {
    pub(crate) family: Family,
    pub(crate) offset: u16,
    /// One past the last byte that may belong to the packet.
    pub(crate) end: usize,
    /// Nothing below says that this is IP: MPLS labels carry no protocol.
    pub(crate) guessed: bool,
}

/// Reads the Ethernet header at `start` and whatever is between it and IP.
#[inline(always)]
pub(crate) fn read(frame: &[u8], start: u16) -> Result<Link, Malformed> {
    let header: &[u8; 14] = tail(frame, start).first_chunk().ok_or(Malformed::Link)?;
    let mut ethertype = u16::from_be_bytes([header[12], header[13]]);
    let mut offset = advance(start, ETHERNET_LEN)?;
    let mut vlan = 0;
    for depth in 0..Dissected::MAX_VLAN_TAGS {
        if !matches!(ethertype, ethertype::VLAN | ethertype::SERVICE_VLAN | ethertype::OLD_QINQ) {
            break;
        }
        let &[c0, c1, t0, t1] = tail(frame, offset).first_chunk().ok_or(Malformed::Link)?;
        if depth == 0 {
            vlan = u16::from_be_bytes([c0, c1]) & 0x0fff;
        }
        ethertype = u16::from_be_bytes([t0, t1]);
        offset = advance(offset, 4)?;
    }
    let ip = match ethertype {
        ethertype::IPV4 => known(Family::V4, offset, frame.len()),
        ethertype::IPV6 => known(Family::V6, offset, frame.len()),
        ethertype::PPPOE => {
            let place = pppoe(frame, offset)?;
            if let Some(place) = &place {
                ethertype = match place.family {
                    Family::V4 => ethertype::IPV4,
                    Family::V6 => ethertype::IPV6,
                };
            }
            place
        }
        ethertype::MPLS | ethertype::MPLS_UPSTREAM => mpls(frame, offset)?,
        _ => None,
    };
    Ok(Link { ethertype, vlan, ip })
}

/// The outermost VLAN identifier of a frame, 0 for none.
pub fn outermost_vlan(frame: &[u8]) -> u16 {
    read(frame, 0).map_or(0, |link| link.vlan)
}

fn known(family: Family, offset: u16, end: usize) -> Option<IpPlace> {
    Some(IpPlace { family, offset, end, guessed: false })
}

/// Makes a link header, which reaches up to IP, fit an IP packet of `ip_length`
/// bytes: PPPoE has a length field.
pub(crate) fn fit(header: &mut [u8], ip_length: usize) {
    // No EtherType ends so, nor a bottom label of MPLS, whose last byte but one is
    // odd.
    if let [.., l0, l1, p0, p1] = header
        && matches!(u16::from_be_bytes([*p0, *p1]), PPP_IPV4 | PPP_IPV6)
    {
        [*l0, *l1] = (ip_length as u16).saturating_add(2).to_be_bytes();
    }
}

fn advance(offset: u16, by: u16) -> Result<u16, Malformed> {
    offset.checked_add(by).ok_or(Malformed::Link)
}

/// RFC 2516 section 4. The length field has to fit, but the IP packet may reach
/// beyond it: access concentrators are seen to send short packets that state a
/// length of less than they carry.
#[cold]
#[inline(never)]
fn pppoe(frame: &[u8], offset: u16) -> Result<Option<IpPlace>, Malformed> {
    let &[version_type, code, _, _, l0, l1, p0, p1] =
        tail(frame, offset).first_chunk().ok_or(Malformed::Link)?;
    if version_type != 0x11 || code != 0 {
        return Ok(None);
    }
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    if length < 2 || usize::from(offset) + 6 + length > frame.len() {
        return Err(Malformed::Link);
    }
    let inner = advance(offset, PPPOE_LEN)?;
    Ok(match u16::from_be_bytes([p0, p1]) {
        PPP_IPV4 => known(Family::V4, inner, frame.len()),
        PPP_IPV6 => known(Family::V6, inner, frame.len()),
        _ => None,
    })
}

/// RFC 3032 section 2.1. A deeper stack than the limit counts as not IP.
#[cold]
#[inline(never)]
fn mpls(frame: &[u8], mut offset: u16) -> Result<Option<IpPlace>, Malformed> {
    for _ in 0..Dissected::MAX_MPLS_LABELS {
        let &[_, _, bottom, _] = tail(frame, offset).first_chunk().ok_or(Malformed::Link)?;
        offset = advance(offset, 4)?;
        if bottom & 1 != 0 {
            let family = match tail(frame, offset).first().map(|first| first >> 4) {
                Some(4) => Family::V4,
                Some(6) => Family::V6,
                _ => return Ok(None),
            };
            return Ok(Some(IpPlace { family, offset, end: frame.len(), guessed: true }));
        }
    }
    Ok(None)
}
