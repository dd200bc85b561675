//! The IPv6 extension header chain (RFC 8200 section 4).

use crate::{Dissected, FragmentInfo, Malformed, tail};

pub(crate) const HOP_BY_HOP: u8 = 0;
pub(crate) const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const AUTHENTICATION: u8 = 51;
pub(crate) const DESTINATION_OPTIONS: u8 = 60;
pub(crate) const MOBILITY: u8 = 135;

/// Where the chain ends.
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
/// ESP and "no next header" end the chain like any transport. A second fragment
/// header is refused: no sender makes one (RFC 8200 section 4.1), and only one
/// can be described.
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
        if headers > Dissected::MAX_EXTENSION_HEADERS {
            return Err(Malformed::ExtensionHeaders);
        }
        // In a first fragment the rest of the chain may have been left for the next.
        let cut_short = match &fragment {
            Some(first) if first.more => Malformed::FirstFragment,
            _ => Malformed::ExtensionHeaders,
        };
        let rest = tail(packet, offset);
        let header: &[u8; 8] = rest.first_chunk().ok_or(cut_short)?;
        let length = length(protocol, header[1]);
        // The fixed fields of an authentication header alone take 12 bytes.
        if protocol == AUTHENTICATION && length < 12 {
            return Err(Malformed::ExtensionHeaders);
        }
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
    matches!(
        protocol,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY
    )
}

/// Bytes of an extension header whose second octet is `field`.
pub(crate) fn length(protocol: u8, field: u8) -> u16 {
    match protocol {
        FRAGMENT => 8,
        // RFC 4302 section 2.2: in 4-byte units, minus 2.
        AUTHENTICATION => (u16::from(field) + 2) * 4,
        _ => (u16::from(field) + 1) * 8,
    }
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
