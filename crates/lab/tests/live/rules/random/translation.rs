//! Checks of the kernel's translations against the rules.

use std::fmt::Write;
use std::net::IpAddr;

use lab::Side;
use ruleset::{NatKind, NatRequest};
use wire::{ChecksumCovers, Family, Network, Readdress, Transport, TransportAddress};

use super::kernel::Answer;
use super::stateway::read;
use crate::scenario::hex;

/// The side to which the kernel routes packets to an address.
pub fn side(address: IpAddr) -> Option<Side> {
    let text = address.to_string();
    let is_in = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
    if is_in(&["192.0.2.", "2001:db8:1:"]) {
        return Some(Side::Client);
    }
    is_in(&["198.51.100.", "2001:db8:2:"]).then_some(Side::Server)
}

/// An address and a port or identifier.
fn end(network: &Network, of_source: bool) -> TransportAddress {
    let (source, destination) = match network.transport {
        Transport::IcmpQuery(query) => (query.id, query.id),
        transport => transport.ports().unwrap_or_default(),
    };
    match of_source {
        true => TransportAddress { address: network.source, port: source },
        false => TransportAddress { address: network.destination, port: destination },
    }
}

/// An address as the rules represent it.
fn number(address: [u8; 16], family: Family) -> u128 {
    let bits = u128::from_be_bytes(address);
    if family == Family::V4 { bits & 0xffff_ffff } else { bits }
}

/// Translates a packet as the kernel did, or describes the part that the rule does not allow. A
/// packet that did not come out gets the first choice.
pub fn follow(
    request: &NatRequest,
    frame: &mut [u8],
    answer: &Answer,
    output: Side,
) -> Result<(), String> {
    let of_source = matches!(request.kind, NatKind::Source | NatKind::Masquerade);
    let mut network = read(frame);
    let before = end(&network, of_source);
    let after = match &answer.out {
        Some((_, out)) => end(&read(out), of_source),
        None => return Ok(()),
    };
    let (was, is) = (number(before.address, network.family), number(after.address, network.family));
    let mut why = String::new();
    match request.address {
        None if request.kind == NatKind::Masquerade => {
            let own = match (network.family, output) {
                (Family::V4, Side::Client) => "203.0.113.8",
                (Family::V4, Side::Server) => "203.0.113.9",
                (Family::V6, _) => "2001:db8:9::9",
            };
            let own = match own.parse().expect("an address") {
                IpAddr::V4(own) => own.to_ipv6_mapped().octets(),
                IpAddr::V6(own) => own.octets(),
            };
            if own != after.address {
                write!(why, "masqueraded as {is:x}").unwrap();
            }
        }
        None if was != is => write!(why, "another address: {is:x}").unwrap(),
        None => {}
        Some(range) if request.netmap => {
            let expected = range.low | (was & (range.low ^ range.high));
            if is != expected {
                write!(why, "mapped to {is:x}, not {expected:x}").unwrap();
            }
        }
        Some(range) if !range.holds(is) => write!(why, "{is:x}, not in {range:x?}").unwrap(),
        Some(_) => {}
    }
    let takes_any = request.flags.random || request.flags.fully_random;
    // The identifier of echo requests belongs to their source.
    let is_query = matches!(network.transport, Transport::IcmpQuery(_));
    let ports = request.ports.filter(|_| !is_query);
    match ports {
        Some((low, high)) if !(low..=high).contains(&after.port) => {
            write!(why, "port {} not in {low}-{high}", after.port).unwrap();
        }
        // No other connection has this port.
        None if after.port != before.port && !takes_any && (of_source || !is_query) => {
            write!(why, "port {}, not {}", after.port, before.port).unwrap();
        }
        _ => {}
    }
    if !why.is_empty() {
        return Err(why);
    }
    let (source, destination) = match of_source {
        true => (Some(after), None),
        false => {
            // With a random destination the kernel also chooses the identifier.
            let asker = TransportAddress { address: network.source, port: after.port };
            ((is_query && takes_any).then_some(asker), Some(after))
        }
    };
    let length = network.transport_len() as usize;
    Readdress { source, destination }.apply(frame, &mut network, length, ChecksumCovers::All);
    Ok(())
}

/// The difference between two packets that should be the same behind the link header.
pub fn difference(ours: &[u8], kernels: &[u8]) -> Option<String> {
    let parts = |frame: &[u8]| {
        let (mut frame, network) = (frame.to_vec(), read(frame));
        let mut sums = Vec::new();
        let take = |frame: &mut [u8], at: usize| {
            let field = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>);
            // Both forms of zero are the same sum.
            field.map(|field| u16::from_be_bytes(std::mem::take(field)) % 0xffff)
        };
        if network.family == Family::V4 {
            sums.extend(take(&mut frame, usize::from(network.offset) + 10));
        }
        // The kernel adds itself to a recorded route when it sends the packet, which is no part of
        // the rules.
        let has_options = network.family == Family::V4 && frame[usize::from(network.offset)] > 0x45;
        if let Some(at) = wire::checksum::field(network.protocol, network.family) {
            sums.extend(take(&mut frame, usize::from(network.transport_offset) + at));
        }
        if has_options {
            frame[usize::from(network.offset) + 20..usize::from(network.transport_offset)].fill(0);
            sums.remove(0);
        }
        frame.drain(..usize::from(network.offset));
        (hex(&frame), sums)
    };
    let (ours, kernels) = (parts(ours), parts(kernels));
    (ours != kernels).then(|| format!("the kernel's is {kernels:x?}, ours {ours:x?}"))
}
