//! The IPv6 extension header chain (RFC 8200 section 4).

pub(crate) use crate::protocol::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
use crate::{Dissected, FragmentInfo, Malformed, tail};

/// The end of the chain.
pub(crate) struct Chain {
    /// Number of the first header that is no extension header; for a later
    /// fragment the number in its fragment header.
    pub(crate) protocol: u8,
    /// Offset of that header.
    pub(crate) offset: u16,
    pub(crate) fragment: Option<FragmentInfo>,
}

/// Follows the chain that starts at `offset` with a header numbered `protocol`.
///
/// ESP and "no next header" end the chain like any transport, and so do an authentication and a
/// mobility header: packet filters of the kernel stop there too, and a gateway that read on
/// would find ports that the receiver may never look at. A second fragment header is refused:
/// no sender makes one (RFC 8200 section 4.1), and only one can be described. A hop-by-hop
/// header behind another header is refused too, because every receiver has to refuse it
/// (section 4.1).
#[inline]
pub(crate) fn walk(packet: &[u8], offset: u16, protocol: u8) -> Result<Chain, Malformed> {
    if is_extension(protocol) {
        follow(packet, offset, protocol)
    } else {
        Ok(Chain { protocol, offset, fragment: None })
    }
}

fn follow(packet: &[u8], mut offset: u16, mut protocol: u8) -> Result<Chain, Malformed> {
    let mut fragment: Option<FragmentInfo> = None;
    let mut headers = 0;
    while is_extension(protocol) {
        headers += 1;
        let is_misplaced = protocol == HOP_BY_HOP && headers > 1;
        if is_misplaced || headers > Dissected::MAX_EXTENSION_HEADERS {
            return Err(Malformed::ExtensionHeaders);
        }
        // The sender of a first fragment may have left the rest of the chain for the next.
        let cut_short = match &fragment {
            Some(first) if first.more => Malformed::FirstFragment,
            _ => Malformed::ExtensionHeaders,
        };
        let rest = tail(packet, offset);
        let header: &[u8; 8] = rest.first_chunk().ok_or(cut_short)?;
        let length = length(protocol, header[1]);
        if rest.len() < usize::from(length) {
            return Err(cut_short);
        }
        offset = offset.checked_add(length).ok_or(Malformed::ExtensionHeaders)?;
        let is_fragment = protocol == FRAGMENT;
        protocol = header[0];
        if is_fragment {
            let found = read_fragment(header, offset);
            let later = found.offset != 0;
            if fragment.replace(found).is_some() {
                return Err(Malformed::ExtensionHeaders);
            }
            if later {
                break;
            }
        }
    }
    Ok(Chain { protocol, offset, fragment })
}

#[inline]
pub(crate) fn is_extension(protocol: u8) -> bool {
    matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS)
}

/// Bytes of an extension header whose second octet is `field`.
pub(crate) fn length(protocol: u8, field: u8) -> u16 {
    if protocol == FRAGMENT { 8 } else { (u16::from(field) + 1) * 8 }
}

/// RFC 8200 section 4.5.
pub(crate) fn read_fragment(header: &[u8; 8], payload_offset: u16) -> FragmentInfo {
    let &[_, _, o0, o1, i0, i1, i2, i3] = header;
    let field = u16::from_be_bytes([o0, o1]);
    FragmentInfo {
        id: u32::from_be_bytes([i0, i1, i2, i3]),
        offset: field & 0xfff8,
        more: field & 1 != 0,
        payload_offset,
    }
}
