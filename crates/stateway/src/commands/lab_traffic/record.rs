//! `stateway lab-traffic record`

use std::io::ErrorKind;
use std::net::{Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use crate::print::Output;

/// Buffer for datagrams that wait, in bytes.
const BUFFER_BYTES: u32 = 256 << 20;
/// Silence after the announced end until the recorder stops.
const QUIET: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A line for each datagram: source address, source port, bytes, digest. The datagram \
`end` announces the end; datagrams that come before a silence of 0.3 s still count.")]
pub struct Args {
    /// Port to listen on, IPv4 and IPv6.
    #[arg(long, value_name = "PORT")]
    port: u16,
    /// Seconds to wait for the end.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=300))]
    seconds: u64,
}

#[derive(Serialize)]
struct Recorded {
    schema: u32,
    datagrams: u64,
    /// True if the end was announced.
    ended: bool,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, args.port))
        .with_context(|| format!("listening on UDP port {}", args.port))?;
    netio::enlarge_receive_buffer(&socket, BUFFER_BYTES)?;
    socket.set_read_timeout(Some(QUIET))?;
    let (start, limit) = (Instant::now(), Duration::from_secs(args.seconds));
    let (mut datagrams, mut ended) = (0, false);
    let mut buffer = vec![0; 65536];
    while start.elapsed() < limit {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if ended {
                    break;
                }
                continue;
            }
            Err(error) => return Err(error).context("receiving"),
        };
        let datagram = &buffer[..length];
        if datagram == lab::END {
            ended = true;
            continue;
        }
        datagrams += 1;
        let (address, port) = (from.ip().to_canonical(), from.port());
        out.line(format_args!("{address} {port} {length} {:016x}", lab::digest(datagram)))?;
    }
    out.json(&Recorded { schema: control::SCHEMA, datagrams, ended })
}
