//! Descriptions of packets for people.

use wire::sctp::chunks;
use wire::{Network, TcpFlags, Transport, dissect};

use super::dialogue::Side;

/// A description of a packet in one line.
pub fn outline(side: Side, frame: &[u8]) -> String {
    let arrow = if side == Side::Client { "client ->" } else { "server <-" };
    let network = match dissect(frame) {
        Ok(dissected) => dissected.network.expect("a packet of IP"),
        Err(malformed) => return format!("{arrow} {malformed:?}"),
    };
    let transport = match network.transport {
        Transport::Tcp(tcp) => {
            let header = usize::from(network.transport_offset);
            let options = &frame[header + 20..header + usize::from(tcp.header_len)];
            let length = network.transport_len() - u32::from(tcp.header_len);
            let data = &frame[header + usize::from(tcp.header_len)..network.end as usize];
            format!(
                "{}->{} {} seq {} end {} ack {} win {} options {options:02x?} {}",
                tcp.source_port,
                tcp.destination_port,
                flags(tcp.flags),
                tcp.sequence,
                tcp.sequence.wrapping_add(length),
                tcp.acknowledgment,
                tcp.window,
                data.escape_ascii(),
            )
        }
        Transport::Sctp { verification_tag, .. } => {
            let chunks = chunks(frame, &network).map_while(Result::ok);
            let kinds: Vec<u8> = chunks.map(|chunk| chunk.kind).collect();
            format!("tag {verification_tag:#x} chunks {kinds:?} {:02x?}", payload(frame, &network))
        }
        Transport::Udp { source_port, destination_port, .. } => {
            let data = &frame[usize::from(network.transport_offset) + 8..network.end as usize];
            format!("{source_port}->{destination_port} UDP {}", data.escape_ascii())
        }
        transport => format!("{transport:?} {:02x?}", payload(frame, &network)),
    };
    let (source, destination) = (network.source_ip(), network.destination_ip());
    format!("{arrow} {source} > {destination} {transport}")
}

fn flags(flags: TcpFlags) -> String {
    let names = [
        (TcpFlags::SYN, "SYN"),
        (TcpFlags::FIN, "FIN"),
        (TcpFlags::RST, "RST"),
        (TcpFlags::ACK, "ACK"),
        (TcpFlags::PSH, "PSH"),
        (TcpFlags::URG, "URG"),
    ];
    let set = names.iter().filter(|(flag, _)| flags.contains(*flag));
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

/// The first bytes behind the IP header, at most 64.
fn payload<'a>(frame: &'a [u8], network: &Network) -> &'a [u8] {
    let rest = &frame[usize::from(network.transport_offset)..];
    &rest[..rest.len().min(64)]
}
