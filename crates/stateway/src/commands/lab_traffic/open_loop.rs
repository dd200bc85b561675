//! `stateway lab-traffic open-loop`: bulk frames at a fixed rate, and probes whose delay counts from
//! the time at which they ought to leave. One thread sends and receives, and never sleeps.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use netio::afpacket::{AfPacketOptions, AfPacketPort, AfPacketTx};
use netio::{Frame, FramePool, TxQueue, clock};
use serde::Serialize;

use super::transactions::part_of;
use crate::commands::lab_generate::{mac, templates};
use crate::print::Output;

/// Bulk frames that one call hands over.
const BATCH: u64 = 64;
/// Flows of bulk frames.
const FLOWS: u16 = 256;
/// Length of a bulk frame in bytes, without frame check sequence.
const FRAME_BYTES: u64 = 60;
/// Time after the one that counts in which late probes may come, under load as before.
const LATE: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(after_long_help = "Start it in the network namespace of the client.")]
pub struct Args {
    /// Interface to send from.
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// Destination of bulk frames, as 00:00:5e:00:53:01.
    #[arg(long, value_name = "MAC", value_parser = mac)]
    destination_mac: [u8; 6],
    /// Source address of bulk frames.
    #[arg(long, value_name = "ADDRESS")]
    source: Ipv4Addr,
    /// Destination address of bulk frames, which the server drops.
    #[arg(long, value_name = "ADDRESS")]
    sink: Ipv4Addr,
    /// Network namespace of the server, such as /proc/1234/ns/net.
    #[arg(long, value_name = "FILE")]
    server_network: PathBuf,
    /// Address and port of the server to which probes go.
    #[arg(long, value_name = "ADDRESS:PORT")]
    server: SocketAddr,
    /// Bulk frames a second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Probes a second.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    probes: u32,
    /// Milliseconds of traffic before those that count.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    warm_up_ms: u64,
    /// Milliseconds that count.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    milliseconds: u64,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    seconds: f64,
    /// Bulk frames that the interface took.
    sent: u64,
    /// Frames that the server's interfaces received, without probes.
    delivered: u64,
    probes_sent: u64,
    probes_received: u64,
    /// The delay of probes that arrived, in microseconds; `null` without any.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// Share of the passed time that this thread had its CPU.
    cpu_share: f64,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let server = Server::enter(&args.server_network, args.server)?;
    let (bulk, begin) = (Bulk::new(args)?, Instant::now());
    let from = Duration::from_millis(args.warm_up_ms);
    let to = from + Duration::from_millis(args.milliseconds);
    let probes = Probes::new(args, begin, from..to)?;
    let mut load = Load { begin, bulk, probes, server };
    while begin.elapsed() < from {
        load.step()?;
    }
    let before = load.reading()?;
    while begin.elapsed() < to {
        load.step()?;
    }
    let after = load.reading()?;
    while begin.elapsed() < to + LATE && !load.probes.are_complete() {
        load.step()?;
    }
    let (time, mut probes) = (after.at - before.at, load.probes);
    probes.times_ns.sort_unstable();
    let arrived = after.arrived - before.arrived;
    out.json(&Report {
        schema: control::SCHEMA,
        seconds: time.as_secs_f64(),
        sent: after.sent - before.sent,
        delivered: arrived.saturating_sub(after.probes - before.probes),
        probes_sent: probes.sent,
        probes_received: probes.times_ns.len() as u64,
        p50_us: part_of(&probes.times_ns, 50),
        p99_us: part_of(&probes.times_ns, 99),
        cpu_share: (after.own_ns - before.own_ns) as f64 / time.as_nanos() as f64,
    })
}

/// All that the thread does.
struct Load {
    begin: Instant,
    bulk: Bulk,
    probes: Probes,
    server: Server,
}

/// Counters at a moment.
struct Reading {
    at: Duration,
    sent: u64,
    /// Frames that have arrived, probes among them.
    arrived: u64,
    /// Probes that have arrived.
    probes: u64,
    own_ns: u64,
}

impl Load {
    fn step(&mut self) -> anyhow::Result<()> {
        self.bulk.send_due(self.begin.elapsed())?;
        self.probes.send_due()?;
        self.probes.receive(&self.server.socket)
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        Ok(Reading {
            at: self.begin.elapsed(),
            sent: self.bulk.sent,
            arrived: self.server.frames()?,
            probes: self.probes.arrived,
            own_ns: clock::thread_nanoseconds(),
        })
    }
}

/// The end of the server.
struct Server {
    socket: UdpSocket,
    /// The counters of its interfaces.
    devices: File,
}

impl Server {
    fn enter(network: &Path, address: SocketAddr) -> anyhow::Result<Self> {
        let own = File::open("/proc/thread-self/ns/net").context("the own network namespace")?;
        let theirs = File::open(network).with_context(|| format!("{}", network.display()))?;
        netio::enter_network(&theirs).context("entering the network namespace of the server")?;
        let socket = UdpSocket::bind(address).with_context(|| format!("{address}"));
        let devices = File::open("/proc/thread-self/net/dev").context("/proc/thread-self/net/dev");
        netio::enter_network(&own).context("returning to the own network namespace")?;
        let (socket, devices) = (socket?, devices?);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, devices })
    }

    /// Frames that its interfaces but the loopback have received.
    fn frames(&mut self) -> anyhow::Result<u64> {
        let mut text = String::new();
        self.devices.rewind().and_then(|()| self.devices.read_to_string(&mut text))?;
        Ok(received(&text))
    }
}

fn received(devices: &str) -> u64 {
    let counters = devices.lines().filter_map(|line| line.split_once(':'));
    let counters = counters.filter(|(name, _)| name.trim() != "lo");
    let frames = |counters: &str| counters.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    counters.filter_map(|(_, counters)| frames(counters)).sum()
}

/// Bulk frames on their way out.
struct Bulk {
    queue: AfPacketTx,
    templates: Vec<Vec<u8>>,
    next: usize,
    pool: FramePool,
    frames: Vec<Frame>,
    /// Frames a second.
    rate: u32,
    /// Frames that were handed over, also those for which the interface had no room.
    offered: u64,
    sent: u64,
}

impl Bulk {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let options = AfPacketOptions { qdisc_bypass: true, ..AfPacketOptions::default() };
        let queue = AfPacketPort::open_transmit(&args.interface, &options)?;
        let addresses = (args.source, args.sink);
        Ok(Self {
            queue,
            templates: templates(addresses, args.destination_mac, FLOWS, FRAME_BYTES),
            next: 0,
            pool: FramePool::new(2 * BATCH as usize, 0),
            frames: Vec::with_capacity(BATCH as usize),
            rate: args.rate,
            offered: 0,
            sent: 0,
        })
    }

    /// Sends the frames that ought to have left by now. A sender that is late catches up.
    fn send_due(&mut self, elapsed: Duration) -> anyhow::Result<()> {
        let due = (elapsed.as_nanos() * u128::from(self.rate) / 1_000_000_000) as u64;
        let count = (due - self.offered.min(due)).min(BATCH);
        if count == 0 {
            return Ok(());
        }
        for _ in 0..count {
            self.frames.extend(self.pool.copy_of(&self.templates[self.next]));
            self.next = (self.next + 1) % self.templates.len();
        }
        self.sent += self.queue.transmit(&mut self.frames, &mut self.pool)?.sent;
        self.offered += count;
        Ok(())
    }
}

/// Probes on their way, and the delays of those that have come.
struct Probes {
    socket: UdpSocket,
    begin: Instant,
    interval: Duration,
    /// Probes that were sent in the whole time, and those that arrived.
    all: u64,
    arrived: u64,
    /// Probes whose time is within this one count.
    counted: Range<Duration>,
    /// Those of them that were sent.
    sent: u64,
    times_ns: Vec<u32>,
}

impl Probes {
    fn new(args: &Args, begin: Instant, counted: Range<Duration>) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((args.source, 0)).context("a socket for probes")?;
        socket.connect(args.server).with_context(|| format!("{}", args.server))?;
        socket.set_nonblocking(true)?;
        let interval = Duration::from_secs(1) / args.probes;
        let times_ns = Vec::new();
        Ok(Self { socket, begin, interval, all: 0, arrived: 0, counted, sent: 0, times_ns })
    }

    /// Sends each probe whose time has come, with that time in it.
    fn send_due(&mut self) -> anyhow::Result<()> {
        loop {
            // An hour of probes, at most, is far below the end of 32 bits.
            let at = self.interval * self.all as u32;
            if self.begin.elapsed() < at {
                return Ok(());
            }
            let stamp = (at.as_nanos() as u64).to_be_bytes();
            match self.socket.send(&stamp) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("sending a probe"),
            }
            self.all += 1;
            self.sent += u64::from(self.counted.contains(&at));
        }
    }

    fn receive(&mut self, socket: &UdpSocket) -> anyhow::Result<()> {
        let mut stamp = [0; 8];
        loop {
            match socket.recv(&mut stamp) {
                Ok(length) if length == stamp.len() => {
                    self.arrived += 1;
                    let at = Duration::from_nanos(u64::from_be_bytes(stamp));
                    if self.counted.contains(&at) {
                        let delay = self.begin.elapsed().saturating_sub(at).as_nanos();
                        self.times_ns.push(u32::try_from(delay).unwrap_or(u32::MAX));
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("receiving a probe"),
            }
        }
    }

    fn are_complete(&self) -> bool {
        self.times_ns.len() as u64 >= self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_frames_of_the_loopback_do_not_count() {
        let devices = "Inter-| Receive\n face |bytes packets\n    lo: 5 5 0 0 0 0 0 0 5 5\n  eth0: 100 \
                       3 0 0 0 0 0 0 200 4 0 0 0 0 0 0\n";
        assert_eq!(received(devices), 3);
    }
}
