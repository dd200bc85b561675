//! `stateway lab-traffic source`

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use super::{HEADER, LAST, fill, number};
use crate::print::Output;

/// Datagrams that may be on their way.
const WINDOW: u64 = 8;
/// Time after which an unacknowledged datagram counts as lost. On a busy machine the sink may have
/// to wait for a CPU.
const PATIENCE: Duration = Duration::from_millis(30);
/// The number of times that the end is announced.
const ENDS: u32 = 3;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address and port of the sink.
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// Bytes of a datagram, without the UDP header.
    #[arg(long, default_value_t = 65507, value_parser = clap::value_parser!(u16).range(HEADER as i64..=65507))]
    bytes: u16,
    /// Milliseconds to send.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    milliseconds: u64,
    /// The largest number of datagrams per second.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    sent: u64,
    acknowledged: u64,
    seconds: f64,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let any = if args.to.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(args.to).with_context(|| format!("can not connect to {}", args.to))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let time = Duration::from_millis(args.milliseconds);
    let interval = args.rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate);
    let mut datagram = vec![0; usize::from(args.bytes)];
    let mut flow = Flow::default();
    let start = Instant::now();
    let mut due = Duration::ZERO;
    while start.elapsed() < time {
        if flow.outstanding() == WINDOW {
            flow.await_one(&socket)?;
            continue;
        }
        sleep(due.saturating_sub(start.elapsed()));
        due += interval;
        fill(&mut datagram, flow.sent);
        socket.send(&datagram).context("sending")?;
        flow.sent += 1;
    }
    while flow.outstanding() > 0 {
        flow.await_one(&socket)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    for _ in 0..ENDS {
        let mut end = [0; HEADER];
        fill(&mut end, LAST);
        // The sink may be gone after the first announcement.
        let _ = socket.send(&end);
    }
    let Flow { sent, acknowledged, .. } = flow;
    out.json(&Report { schema: control::SCHEMA, sent, acknowledged, seconds })
}

#[derive(Default)]
struct Flow {
    sent: u64,
    acknowledged: u64,
    /// Datagrams that were not acknowledged in time. A late acknowledgement leaves this too large,
    /// so that a little more than [`WINDOW`] is on its way.
    lost: u64,
}

impl Flow {
    fn outstanding(&self) -> u64 {
        self.sent.saturating_sub(self.acknowledged + self.lost)
    }

    /// Takes an acknowledgement, or counts the outstanding datagrams as lost.
    fn await_one(&mut self, socket: &UdpSocket) -> anyhow::Result<()> {
        let mut acknowledgement = [0; HEADER];
        match socket.recv(&mut acknowledgement) {
            Ok(length) if number(&acknowledgement[..length]).is_some() => self.acknowledged += 1,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                self.lost += self.outstanding();
            }
            Err(error) => return Err(error).context("waiting for an acknowledgement"),
        }
        Ok(())
    }
}
