//! Elements that messages of H.225.0 have in common (H.225.0 Annex H, "common message
//! elements").

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use super::per::{Choice, Per, Read, Unreadable};

/// An address with a port, and their place in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub address: IpAddr,
    pub port: u16,
    pub place: Range<usize>,
}

/// An address and port in the encoding of both recommendations: the octets of the address, and
/// an INTEGER(0..65535).
pub(super) fn target<const N: usize>(per: &mut Per<'_>) -> Read<Target>
where
    IpAddr: From<[u8; N]>,
{
    let start = per.place();
    let octets: [u8; N] = per.octets(N)?.try_into().map_err(|_| Unreadable)?;
    let port = per.whole(0, u16::MAX.into())? as u16;
    Ok(Target { address: octets.into(), port, place: start..per.place() })
}

pub(super) const V4: usize = size_of::<Ipv4Addr>();
pub(super) const V6: usize = size_of::<Ipv6Addr>();

/// TransportAddress; `None` if it is not a plain IP address.
pub(super) fn transport_address(per: &mut Per<'_>) -> Read<Option<Target>> {
    let Choice::Root(alternative) = per.choice(7)? else { return Ok(None) };
    match alternative {
        0 => return target::<V4>(per).map(Some),
        1 => source_route(per)?,
        2 => {
            // A string of two octets is not aligned, but whole octets precede this one.
            per.octets(6 + 4 + 2)?;
        }
        3 => {
            let extended = per.bit()?;
            let target = target::<V6>(per)?;
            per.skip_additions(extended)?;
            return Ok(Some(target));
        }
        4 => drop(per.octets(16)?),
        5 => per.skip_octets(1, 20)?,
        _ => non_standard(per)?,
    }
    Ok(None)
}

fn source_route(per: &mut Per<'_>) -> Read {
    let extended = per.bit()?;
    target::<V4>(per)?;
    per.list(|per| per.octets(4).map(drop))?;
    per.choice(2)?;
    per.skip_additions(extended)
}

/// NonStandardParameter.
pub(super) fn non_standard(per: &mut Per<'_>) -> Read {
    match per.choice(2)? {
        Choice::Root(0) => drop(per.contained()?),
        Choice::Root(_) => h221_non_standard(per)?,
        Choice::Added(..) => {}
    }
    per.contained().map(drop)
}

fn h221_non_standard(per: &mut Per<'_>) -> Read {
    let extended = per.bit()?;
    per.octets(1 + 1 + 2)?;
    per.skip_additions(extended)
}

/// AliasAddress.
pub(super) fn alias(per: &mut Per<'_>) -> Read {
    match per.choice(2)? {
        // Each of the 13 characters takes four bits.
        Choice::Root(0) => {
            let digits = per.whole(1, 128)? as usize;
            per.nibbles(digits)
        }
        Choice::Root(_) => {
            let characters = per.whole(1, 256)? as usize;
            per.octets(2 * characters).map(drop)
        }
        Choice::Added(..) => Ok(()),
    }
}

/// GatekeeperIdentifier, EndpointIdentifier: BMPString(SIZE (1..128)).
pub(super) fn identifier(per: &mut Per<'_>) -> Read {
    let characters = per.whole(1, 128)? as usize;
    per.octets(2 * characters).map(drop)
}

/// EndpointType.
pub(super) fn endpoint_type(per: &mut Per<'_>) -> Read {
    let extended = per.bit()?;
    let [parameter, vendor, gatekeeper, gateway, mcu, terminal] = per.flags()?;
    if parameter {
        non_standard(per)?;
    }
    if vendor {
        vendor_identifier(per)?;
    }
    if gatekeeper {
        capabilities(per)?;
    }
    if gateway {
        gateway_info(per)?;
    }
    if mcu {
        capabilities(per)?;
    }
    if terminal {
        capabilities(per)?;
    }
    let [_mc, _undefined_node] = per.flags()?;
    per.skip_additions(extended)
}

/// VendorIdentifier.
pub(super) fn vendor_identifier(per: &mut Per<'_>) -> Read {
    let extended = per.bit()?;
    let present: [bool; 2] = per.flags()?;
    h221_non_standard(per)?;
    for _ in present.into_iter().filter(|&present| present) {
        per.skip_octets(1, 256)?;
    }
    per.skip_additions(extended)
}

fn gateway_info(per: &mut Per<'_>) -> Read {
    let extended = per.bit()?;
    let [protocols, parameter] = per.flags()?;
    if protocols {
        per.list(|per| match per.choice(9)? {
            Choice::Root(0) => non_standard(per),
            Choice::Root(_) => capabilities(per),
            Choice::Added(..) => Ok(()),
        })?;
    }
    if parameter {
        non_standard(per)?;
    }
    per.skip_additions(extended)
}

/// GatekeeperInfo, McuInfo, TerminalInfo, H310Caps and similar types: they begin in the same
/// way, and differ in additions only.
fn capabilities(per: &mut Per<'_>) -> Read {
    let extended = per.bit()?;
    if per.bit()? {
        non_standard(per)?;
    }
    per.skip_additions(extended)
}
