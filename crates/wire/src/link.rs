//! From the Ethernet header to the IP header: VLAN tags, PPPoE and MPLS.
//!
//! A frame in which a receiver finds an IP packet must not pass as another protocol. So this
//! module reads every header that it knows to its end. It refuses a stack of tags or labels
//! that is too deep, and PPP that hides its packet.

use std::fmt;

use crate::{Dissected, Family, Malformed, tail};

/// EtherTypes (IEEE registration authority) of headers that are read.
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
/// Protocol numbers of PPP from this one on carry no packets: they control the link or one of
/// the protocols on it (RFC 1661 section 2).
const PPP_CONTROL: u16 = 0x8000;
/// The least EtherType; a smaller number is the length of an LLC frame (IEEE 802.3 section
/// 3.2.6).
pub const FIRST_ETHERTYPE: u16 = 0x0600;

/// The link header of a frame.
pub(crate) struct Link {
    /// As in [`Dissected::ethertype`].
    pub(crate) ethertype: u16,
    /// As in [`Dissected::vlan`].
    pub(crate) vlan: u16,
    /// The place of the IP packet.
    pub(crate) ip: Option<IpPlace>,
}

/// An IP packet inside a frame.
#[derive(Clone, Copy)]
pub(crate) struct IpPlace {
    pub(crate) family: Family,
    pub(crate) offset: u16,
    /// One past the last byte that may belong to the packet.
    pub(crate) end: usize,
    /// True if no header says that this is IP: MPLS labels carry no protocol.
    pub(crate) guessed: bool,
}

/// Reads the Ethernet header at `start` and the headers between it and IP.
#[inline(always)]
pub(crate) fn read(frame: &[u8], start: u16) -> Result<Link, Malformed> {
    let header = untagged(frame, start)?;
    let ip = match header.ethertype {
        ethertype::IPV4 => known(Family::V4, header.end, frame.len()),
        ethertype::IPV6 => known(Family::V6, header.end, frame.len()),
        _ => return read_further(frame, header),
    };
    Ok(Link { ethertype: header.ethertype, vlan: 0, ip })
}

/// Reads the headers between an Ethernet header and an IP header that does not follow it
/// directly.
#[inline(never)]
fn read_further(frame: &[u8], header: Header) -> Result<Link, Malformed> {
    let Header { ethertype, vlan, end } = behind_tags(frame, header)?;
    let ip = match ethertype {
        ethertype::IPV4 => known(Family::V4, end, frame.len()),
        ethertype::IPV6 => known(Family::V6, end, frame.len()),
        ethertype::PPPOE => pppoe(frame, end)?,
        ethertype::MPLS | ethertype::MPLS_UPSTREAM => mpls(frame, end)?,
        _ => None,
    };
    let ethertype = match ip {
        Some(IpPlace { family: Family::V4, guessed: false, .. }) => ethertype::IPV4,
        Some(IpPlace { family: Family::V6, guessed: false, .. }) => ethertype::IPV6,
        _ => ethertype,
    };
    Ok(Link { ethertype, vlan, ip })
}

/// An Ethernet header with its tags.
struct Header {
    /// EtherType behind the tags, or the length of an LLC frame.
    ethertype: u16,
    /// As in [`Dissected::vlan`].
    vlan: u16,
    /// Offset of the payload.
    end: u16,
}

fn header(frame: &[u8], start: u16) -> Result<Header, Malformed> {
    behind_tags(frame, untagged(frame, start)?)
}

/// The header at `start` up to its first EtherType.
#[inline(always)]
fn untagged(frame: &[u8], start: u16) -> Result<Header, Malformed> {
    let header: &[u8; 14] = tail(frame, start).first_chunk().ok_or(Malformed::Link)?;
    let ethertype = u16::from_be_bytes([header[12], header[13]]);
    Ok(Header { ethertype, vlan: 0, end: advance(start, ETHERNET_LEN)? })
}

pub(crate) const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, ethertype::VLAN | ethertype::SERVICE_VLAN | ethertype::OLD_QINQ)
}

/// Reads the tags of a header. A tag with identifier 0 holds a priority and names no VLAN (IEEE
/// 802.1Q-2022 table 9-2); receivers take any number of such tags off.
fn behind_tags(frame: &[u8], header: Header) -> Result<Header, Malformed> {
    let Header { mut ethertype, mut vlan, mut end } = header;
    for _ in 0..Dissected::MAX_VLAN_TAGS {
        if !is_tag(ethertype) {
            break;
        }
        let &[i0, i1, t0, t1] = tail(frame, end).first_chunk().ok_or(Malformed::Link)?;
        if vlan == 0 {
            vlan = u16::from_be_bytes([i0, i1]) & 0x0fff;
        }
        ethertype = u16::from_be_bytes([t0, t1]);
        end = advance(end, 4)?;
    }
    if is_tag(ethertype) { Err(Malformed::LinkDepth) } else { Ok(Header { ethertype, vlan, end }) }
}

/// True for the EtherTypes of IP and of tags: the gateway always reads the headers that follow
/// these.
pub const fn is_read_behind(ethertype: u16) -> bool {
    matches!(ethertype, ethertype::IPV4 | ethertype::IPV6) || is_tag(ethertype)
}

/// [`Dissected::vlan`] of a frame; 0 also if the frame can not be read.
pub fn vlan_of(frame: &[u8]) -> u16 {
    header(frame, 0).map_or(0, |header| header.vlan)
}

/// Bytes of the tags of a frame with an IP packet, if none of them names a VLAN; `None` also
/// for a frame without tags.
pub fn priority_tags(frame: &[u8]) -> Option<u16> {
    let Header { ethertype, vlan, end } = header(frame, 0).ok()?;
    let is_ip = matches!(ethertype, ethertype::IPV4 | ethertype::IPV6);
    (is_ip && vlan == 0 && end > ETHERNET_LEN).then_some(end - ETHERNET_LEN)
}

/// The protocol that a frame carries according to its link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkProtocol {
    /// By its EtherType.
    EtherType(u16),
    /// By the LLC address that both ends have (IEEE 802.2), in frames without an EtherType.
    Llc(u8),
    /// By the organization that numbers its protocols (SNAP, IEEE 802-2014 clause 9).
    Snap([u8; 3]),
}

impl fmt::Display for LinkProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EtherType(number) => write!(f, "EtherType {number:#06x}"),
            Self::Llc(address) => write!(f, "LLC {address:#04x}"),
            Self::Snap([a, b, c]) => write!(f, "SNAP {a:02x}-{b:02x}-{c:02x}"),
        }
    }
}

impl LinkProtocol {
    /// The protocol behind the tags of a frame; `None` if the frame names none of a known form.
    pub fn of(frame: &[u8]) -> Option<Self> {
        /// Unnumbered information.
        const UI: u8 = 3;
        const SNAP: u8 = 0xaa;
        let Header { ethertype, end, .. } = header(frame, 0).ok()?;
        if ethertype >= FIRST_ETHERTYPE {
            return Some(Self::EtherType(ethertype));
        }
        match *tail(frame, end) {
            [SNAP, SNAP, UI, a, b, c, ..] => Some(Self::Snap([a, b, c])),
            [to, from, UI, ..] if to == from => Some(Self::Llc(to)),
            _ => None,
        }
    }
}

fn known(family: Family, offset: u16, end: usize) -> Option<IpPlace> {
    Some(IpPlace { family, offset, end, guessed: false })
}

/// Adapts a link header, which reaches up to IP, to an IP packet of `ip_length` bytes: PPPoE
/// has a length field.
pub(crate) fn fit(header: &mut [u8], ip_length: usize) {
    // Neither an EtherType nor a bottom label of MPLS ends with these bytes: the last byte but
    // one of such a label is odd.
    if let [.., l0, l1, p0, p1] = header
        && matches!(u16::from_be_bytes([*p0, *p1]), PPP_IPV4 | PPP_IPV6)
    {
        [*l0, *l1] = (ip_length as u16).saturating_add(2).to_be_bytes();
    }
}

fn advance(offset: u16, by: u16) -> Result<u16, Malformed> {
    offset.checked_add(by).ok_or(Malformed::Link)
}

/// RFC 2516 section 4. The length field has to fit, but the IP packet may reach beyond it: some
/// access concentrators send short packets with a length field that is too small. `None` for
/// control packets of PPP.
///
/// Everything else is refused, whether or not its receiver has agreed to it: a protocol field
/// of one byte (RFC 1661 section 6.5, which Linux accepts from anybody), compressed headers,
/// packets in several parts, compressed and encrypted data may all be IP.
#[cold]
#[inline(never)]
fn pppoe(frame: &[u8], offset: u16) -> Result<Option<IpPlace>, Malformed> {
    let &[version_type, code, _, _, l0, l1, p0, p1] =
        tail(frame, offset).first_chunk().ok_or(Malformed::Link)?;
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let fits = length >= 2 && usize::from(offset) + 6 + length <= frame.len();
    if version_type != 0x11 || code != 0 || !fits {
        return Err(Malformed::Link);
    }
    let inner = advance(offset, PPPOE_LEN)?;
    // RFC 1661 section 2: the first byte is even, the second is odd.
    let is_whole = p0 & 1 == 0 && p1 & 1 == 1;
    match u16::from_be_bytes([p0, p1]) {
        PPP_IPV4 => Ok(known(Family::V4, inner, frame.len())),
        PPP_IPV6 => Ok(known(Family::V6, inner, frame.len())),
        PPP_CONTROL.. if is_whole => Ok(None),
        _ => Err(Malformed::HiddenPpp),
    }
}

/// RFC 3032 section 2.1.
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
    Err(Malformed::LinkDepth)
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
