//! The check that a malformed header has failed, with its numbers.

use crate::{
    Dissected, ETHERNET_LEN, Family, Malformed, dissect,
    extension::{self, FRAGMENT, HOP_BY_HOP},
    ip,
    link::{self, ethertype},
    protocol, tail,
};

/// The check that a frame has failed which [`dissect`] calls malformed, in words. `None` for a
/// frame that is not malformed, or whose [`Malformed`] says it all.
#[cold]
pub fn fault(frame: &[u8]) -> Option<String> {
    let malformed = dissect(frame).err()?;
    match malformed {
        Malformed::Link => Some(link_fault(frame)),
        Malformed::Ipv4Header | Malformed::Ipv6Header | Malformed::ExtensionHeaders => {
            let place = link::read(frame, 0).ok()?.ip?;
            let packet = tail(&frame[..place.end], place.offset);
            match malformed {
                Malformed::Ipv4Header => Some(ipv4_fault(packet)),
                Malformed::Ipv6Header => Some(ipv6_fault(packet)),
                _ => Some(extension_fault(packet)),
            }
        }
        Malformed::Tcp
        | Malformed::Udp
        | Malformed::Icmp
        | Malformed::Sctp
        | Malformed::Dccp
        | Malformed::Gre => transport_fault(frame, malformed),
        _ => None,
    }
}

fn short(what: &str, needed: usize, there: usize) -> String {
    format!("{what} has {needed} bytes, and {there} are there")
}

fn link_fault(frame: &[u8]) -> String {
    let mut at = usize::from(ETHERNET_LEN);
    if frame.len() < at {
        return short("an Ethernet header", at, frame.len());
    }
    let number =
        |at: usize| frame.get(at..at + 2).map_or(0, |it| u16::from_be_bytes([it[0], it[1]]));
    while link::is_tag(number(at - 2)) {
        at += 4;
        if frame.len() < at {
            return short("a VLAN tag", 4, frame.len() + 4 - at);
        }
    }
    let rest = &frame[at..];
    if number(at - 2) != ethertype::PPPOE {
        return short("a label of MPLS", 4, rest.len() % 4);
    }
    let &[version_type, code, _, _, l0, l1, ..] = rest else {
        return short("a PPPoE header with its protocol", 8, rest.len());
    };
    let (length, there) = (u16::from_be_bytes([l0, l1]), rest.len() - 6);
    match (version_type, code) {
        (0x11, 0) if rest.len() < 8 => short("a PPPoE header with its protocol", 8, rest.len()),
        (0x11, 0) => format!("the PPPoE length is {length}, and {there} bytes are there"),
        _ => format!(
            "PPPoE version {} type {} code {code}, and a session has version 1 type 1 code 0",
            version_type >> 4,
            version_type & 15
        ),
    }
}

fn ipv4_fault(packet: &[u8]) -> String {
    let Some(&[version_ihl, _, l0, l1, ..]) = packet.first_chunk::<20>() else {
        return short("an IPv4 header", 20, packet.len());
    };
    let (version, header) = (version_ihl >> 4, usize::from(version_ihl & 15) * 4);
    let total = usize::from(u16::from_be_bytes([l0, l1]));
    let there = packet.len();
    if version != 4 {
        format!("the IP version is {version}, and the link header says 4")
    } else if header < 20 {
        format!("the IPv4 header says that it has {header} bytes, and none has fewer than 20")
    } else if total < header {
        format!("the IPv4 total length is {total}, less than the {header} bytes of the header")
    } else if header > there {
        short("the IPv4 header", header, there)
    } else if !crate::checksum::is_intact(&packet[..header]) {
        let mut right = packet[..header].to_vec();
        crate::checksum::fill_ipv4_header(&mut right);
        let read = |bytes: &[u8]| u16::from_be_bytes([bytes[10], bytes[11]]);
        format!("the IPv4 header checksum is {:#06x}, not {:#06x}", read(packet), read(&right))
    } else {
        format!("the IPv4 total length is {total}, and {there} bytes are there")
    }
}

fn ipv6_fault(packet: &[u8]) -> String {
    let Some(&[first, _, _, _, l0, l1, next, ..]) = packet.first_chunk::<40>() else {
        return short("an IPv6 header", 40, packet.len());
    };
    let (length, there) = (u16::from_be_bytes([l0, l1]), packet.len() - 40);
    match (first >> 4, length) {
        (6, 0) if next == HOP_BY_HOP => {
            "the IPv6 payload length is 0, and the jumbo option does not fit the packet".to_owned()
        }
        (6, _) => format!("the IPv6 payload length is {length}, and {there} bytes are there"),
        (version, _) => format!("the IP version is {version}, and the link header says 6"),
    }
}

fn extension_fault(packet: &[u8]) -> String {
    let (mut next, mut at) = (packet.get(6).copied().unwrap_or_default(), 40);
    let mut seen = Vec::new();
    while extension::is_extension(next) {
        if next == HOP_BY_HOP && !seen.is_empty() {
            return "a hop-by-hop header comes behind another header".to_owned();
        }
        if next == FRAGMENT && seen.contains(&FRAGMENT) {
            return "it has two fragment headers".to_owned();
        }
        if seen.len() == Dissected::MAX_EXTENSION_HEADERS {
            break;
        }
        seen.push(next);
        let rest = packet.get(at..).unwrap_or_default();
        let length = match rest {
            [_, length, ..] => usize::from(extension::length(next, *length)),
            _ => 8,
        };
        if rest.len() < length {
            return short(&format!("the extension header {next}"), length, rest.len());
        }
        (next, at) = (rest[0], at + length);
    }
    format!("it has more than {} extension headers", Dissected::MAX_EXTENSION_HEADERS)
}

fn transport_fault(frame: &[u8], malformed: Malformed) -> Option<String> {
    let place = link::read(frame, 0).ok()?.ip?;
    let packet = &frame[..place.end];
    let header = match place.family {
        Family::V4 => ip::ipv4(packet, place.offset),
        Family::V6 => ip::ipv6(packet, place.offset),
    };
    let header = header.ok()?;
    let bytes = tail(&frame[..header.end as usize], header.transport_offset);
    let there = bytes.len();
    let (name, least, claimed) = match malformed {
        Malformed::Tcp => ("TCP", 20, bytes.get(12).map(|it| usize::from(it >> 4) * 4)),
        Malformed::Udp => {
            let length = bytes.get(4..6).map(|it| u16::from_be_bytes([it[0], it[1]]));
            return Some(match length {
                Some(length) if there >= 8 => {
                    let field = match header.protocol {
                        protocol::UDPLITE => "UDP-Lite coverage",
                        _ => "UDP length",
                    };
                    format!("the {field} is {length}, and the packet has {there} bytes of it")
                }
                _ => short("a UDP header", 8, there),
            });
        }
        Malformed::Icmp => ("ICMP", 8, None),
        Malformed::Sctp => ("SCTP", 12, None),
        Malformed::Dccp => {
            let is_long = bytes.get(8).is_some_and(|type_x| type_x & 1 != 0);
            ("DCCP", if is_long { 16 } else { 12 }, bytes.get(4).map(|it| usize::from(*it) * 4))
        }
        _ if bytes.first().is_some_and(|flags| flags & 0x40 != 0) => {
            return Some("the GRE header has source routes".to_owned());
        }
        _ => {
            return Some(format!("the GRE header is longer than the {there} bytes that are there"));
        }
    };
    Some(match claimed {
        Some(claimed) if claimed < least && there >= least => {
            format!(
                "the {name} header says that it has {claimed} bytes, and none has fewer than {least}"
            )
        }
        Some(claimed) if there >= least => short(&format!("the {name} header"), claimed, there),
        _ => {
            let article =
                if matches!(malformed, Malformed::Icmp | Malformed::Sctp) { "an" } else { "a" };
            short(&format!("{article} {name} header"), least, there)
        }
    })
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
