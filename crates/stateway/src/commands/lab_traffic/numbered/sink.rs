//! `stateway lab-traffic sink`

use std::io::ErrorKind;
use std::net::{Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use super::{HEADER, LAST, Verifier};
use crate::print::Output;

/// Buffer for datagrams that wait, in bytes.
const BUFFER_BYTES: u32 = 64 << 20;
/// Time between two looks at the clock when nothing comes.
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_long_help = "Ends when the source does.")]
pub struct Args {
    /// Port to listen on, IPv4 and IPv6.
    #[arg(long, value_name = "PORT")]
    port: u16,
    /// Seconds to wait for the end.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=300))]
    seconds: u64,
}

#[derive(Default, Serialize)]
struct Report {
    schema: u32,
    /// Different datagrams with every byte right.
    received: u64,
    duplicates: u64,
    /// Datagrams that the source has not sent.
    corrupt: u64,
    /// True if the source announced the end.
    ended: bool,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, args.port))
        .with_context(|| format!("listening on UDP port {}", args.port))?;
    netio::enlarge_receive_buffer(&socket, BUFFER_BYTES)?;
    socket.set_read_timeout(Some(POLL))?;
    let (start, limit) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut report = Report { schema: control::SCHEMA, ..Report::default() };
    let mut verifier = Verifier::new();
    let mut seen = Vec::new();
    let mut buffer = vec![0; 65536];
    while start.elapsed() < limit && !report.ended {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error).context("receiving"),
        };
        let datagram = &buffer[..length];
        match verifier.check(datagram) {
            None => report.corrupt += 1,
            Some(LAST) => report.ended = true,
            Some(number) => {
                let new = note(&mut seen, number);
                *(if new { &mut report.received } else { &mut report.duplicates }) += 1;
                // The source takes care of lost acknowledgements.
                let _ = socket.send_to(&datagram[..HEADER], from);
            }
        }
    }
    out.json(&report)
}

/// Notes a number; true if it is new.
fn note(seen: &mut Vec<u64>, number: u64) -> bool {
    let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
    if seen.len() <= word {
        seen.resize(word + 1, 0);
    }
    let new = seen[word] & bit == 0;
    seen[word] |= bit;
    new
}
