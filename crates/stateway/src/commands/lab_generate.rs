//! `stateway lab-generate`: sends frames as fast as the interface takes them.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use netio::afpacket::{AfPacketOptions, AfPacketPort};
use netio::{FramePool, TxQueue};
use serde::Serialize;
use wire::build::PacketBuilder;

use crate::print::Output;

/// Frames that one call hands over.
const BATCH: usize = 64;
/// Source port of the first flow.
const FIRST_PORT: u16 = 1024;
/// The discard service, RFC 863.
const DISCARD_PORT: u16 = 9;
/// Ethernet, IPv4 and UDP headers, in bytes.
const HEADERS: u64 = 42;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The generator of the packet-rate measurements: UDP frames over many flows, for a bounded \
time. Point it at interfaces of a lab only.")]
pub struct Args {
    /// Interface to send from.
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// Destination of the frames, as 00:00:5e:00:53:01.
    #[arg(long, value_name = "MAC", value_parser = mac)]
    destination_mac: [u8; 6],
    /// Source address.
    #[arg(long, value_name = "ADDRESS")]
    source: Ipv4Addr,
    /// Destination address.
    #[arg(long, value_name = "ADDRESS")]
    destination: Ipv4Addr,
    /// Number of flows: source ports from 1024 up, one frame each in turn.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..=64512))]
    flows: u16,
    /// Length of a frame without frame check sequence.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(60..=1514))]
    frame_bytes: u64,
    /// Seconds to send.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

#[derive(Serialize)]
struct Sent {
    schema: u32,
    sent: u64,
    refused: u64,
    seconds: f64,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    // Only this program sends on the interface, so there is nothing to queue for.
    let options = AfPacketOptions { qdisc_bypass: true, ..AfPacketOptions::default() };
    let mut queue = AfPacketPort::open_transmit(&args.interface, &options)?;
    let addresses = (args.source, args.destination);
    let templates = templates(addresses, args.destination_mac, args.flows, args.frame_bytes);
    let mut pool = FramePool::new(2 * BATCH, 0);
    let mut frames = Vec::with_capacity(BATCH);
    let (mut sent, mut refused, mut next) = (0, 0, 0);
    let start = Instant::now();
    let length = Duration::from_secs(args.seconds);
    while start.elapsed() < length {
        while frames.len() < BATCH {
            frames.extend(pool.copy_of(&templates[next]));
            next = (next + 1) % templates.len();
        }
        let report = queue.transmit(&mut frames, &mut pool)?;
        sent += report.sent;
        refused += report.refused_full;
    }
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        return out.json(&Sent { schema: control::SCHEMA, sent, refused, seconds });
    }
    let rate = sent as f64 / seconds / 1e6;
    out.line(format_args!("sent {sent} frames in {seconds:.2} s, {rate:.3} M/s; refused {refused}"))
}

/// One frame for each flow, of at least 42 bytes. The addresses are source and destination.
pub fn templates(
    (source, destination): (Ipv4Addr, Ipv4Addr),
    destination_mac: [u8; 6],
    flows: u16,
    frame_bytes: u64,
) -> Vec<Vec<u8>> {
    let builder = PacketBuilder::v4(source.octets(), destination.octets())
        .macs([0, 0, 0x5e, 0, 0x53, 0xff], destination_mac);
    let payload = vec![0; (frame_bytes - HEADERS) as usize];
    (0..flows)
        .map(|flow| {
            let mut frame = Vec::new();
            builder.udp(FIRST_PORT + flow, DISCARD_PORT, &payload, &mut frame);
            frame
        })
        .collect()
}

/// Reads a hardware address.
pub fn mac(text: &str) -> Result<[u8; 6], String> {
    let error = || format!("{text:?} is not a hardware address such as 00:00:5e:00:53:01");
    let octets: Option<Vec<u8>> = text
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).ok().filter(|_| octet.len() == 2))
        .collect();
    octets.and_then(|octets| octets.try_into().ok()).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_six_octets() {
        assert_eq!(mac("00:00:5e:00:53:ff"), Ok([0, 0, 0x5e, 0, 0x53, 0xff]));
        for text in ["", "00:00:5e:00:53", "00:00:5e:00:53:1", "00:00:5e:00:53:gg", "+1:0:0:0:0:0"]
        {
            assert!(mac(text).is_err(), "{text}");
        }
    }
}
