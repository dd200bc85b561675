//! `stateway lab-traffic transactions`: both ends of TCP connections through a gateway, in one
//! thread that never sleeps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use netio::clock;
use serde::Serialize;
use socket2::SockRef;

use crate::print::Output;

/// Length of a request and of its response, in bytes.
const MESSAGE: usize = 64;
/// Most messages that are read at once.
const READ_AT_ONCE: usize = 64;
/// Time in which a connection has to be open.
const PATIENCE: Duration = Duration::from_secs(5);
/// Length of the unit of `/proc/stat` (USER_HZ).
const TICK: Duration = Duration::from_millis(10);

#[derive(Debug, clap::Args)]
#[command(after_long_help = "Start it in the network namespace of the client.")]
pub struct Args {
    /// Network namespace of the server, such as /proc/1234/ns/net.
    #[arg(long, value_name = "FILE")]
    server_network: PathBuf,
    /// Address and port of the server.
    #[arg(long, value_name = "ADDRESS:PORT")]
    server: SocketAddr,
    /// Another port of the server for connections that keep one request under way.
    #[arg(long, value_name = "PORT")]
    latency_port: Option<u16>,
    /// Number of connections that keep WINDOW requests under way.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000))]
    bulk: u16,
    /// Number of connections that keep one request under way.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000))]
    latency: u16,
    /// Requests that a connection of the first kind keeps under way.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    window: u16,
    /// Milliseconds of traffic before those that count.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    warm_up_ms: u64,
    /// Milliseconds that count.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    milliseconds: u64,
    /// The gateway's CPU, whose time is counted.
    #[arg(long, value_name = "CPU")]
    gateway_cpu: u32,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    seconds: f64,
    /// Transactions of each kind of connection.
    bulk: Transactions,
    latency: Transactions,
    /// Packets that the client's interfaces have sent and received.
    packets: u64,
    /// Time in which the gateway's CPU was not idle, in seconds.
    gateway_cpu_seconds: f64,
    /// Share of the passed time that this thread had its CPU.
    cpu_share: f64,
}

/// Completed transactions of one kind of connection.
#[derive(Default, Serialize)]
struct Transactions {
    count: u64,
    /// Time from request to response in microseconds; `null` without transactions.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    #[serde(skip)]
    times_ns: Vec<u32>,
}

/// Both ends of a connection.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    is_bulk: bool,
    window: usize,
    /// When the requests under way were sent, oldest first.
    under_way: VecDeque<Instant>,
    /// Bytes of a message that has come in part.
    client_part: usize,
    server_part: usize,
    /// Responses that are still to be sent.
    owed: usize,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let mut connections = connect(args)?;
    let [mut bulk, mut latency] = [Transactions::default(), Transactions::default()];
    run_for(
        &mut connections,
        Duration::from_millis(args.warm_up_ms),
        &mut [&mut bulk, &mut latency],
    )?;
    (bulk, latency) = Default::default();
    let before = Reading::now(args.gateway_cpu)?;
    run_for(
        &mut connections,
        Duration::from_millis(args.milliseconds),
        &mut [&mut bulk, &mut latency],
    )?;
    let after = Reading::now(args.gateway_cpu)?;
    let time = after.at - before.at;
    let idle = after.idle.saturating_sub(before.idle);
    out.json(&Report {
        schema: control::SCHEMA,
        seconds: time.as_secs_f64(),
        bulk: bulk.finish(),
        latency: latency.finish(),
        packets: after.packets - before.packets,
        gateway_cpu_seconds: time.saturating_sub(idle).as_secs_f64(),
        cpu_share: (after.own_ns - before.own_ns) as f64 / time.as_nanos() as f64,
    })
}

/// Opens the connections. The server's ends are in its network namespace.
fn connect(args: &Args) -> anyhow::Result<Vec<Connection>> {
    let own = File::open("/proc/thread-self/ns/net").context("the own network namespace")?;
    let theirs = File::open(&args.server_network)
        .with_context(|| format!("{}", args.server_network.display()))?;
    netio::enter_network(&theirs).context("entering the network namespace of the server")?;
    let latency =
        SocketAddr::new(args.server.ip(), args.latency_port.unwrap_or(args.server.port()));
    // One listener serves both kinds if they share a port.
    let listen = |to| Ok((to, TcpListener::bind(to).with_context(|| format!("{to}"))?));
    let addresses = BTreeSet::from([args.server, latency]);
    let listeners: anyhow::Result<BTreeMap<_, _>> = addresses.into_iter().map(listen).collect();
    netio::enter_network(&own).context("returning to the own network namespace")?;
    let listeners = listeners?;
    let bulk = std::iter::repeat_n((true, args.server, args.window), args.bulk.into());
    let connections = bulk.chain(std::iter::repeat_n((false, latency, 1), args.latency.into()));
    let connections = connections.map(|(is_bulk, to, window)| {
        let client = TcpStream::connect_timeout(&to, PATIENCE)
            .with_context(|| format!("connecting to {to}"))?;
        let listener = listeners.get(&to).context("no listener")?;
        let (server, _) = listener.accept().context("accepting")?;
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
            // A reset at the end leaves no socket behind that waits.
            SockRef::from(end).set_linger(Some(Duration::ZERO))?;
        }
        Ok(Connection {
            client,
            server,
            is_bulk,
            window: window.into(),
            under_way: VecDeque::new(),
            client_part: 0,
            server_part: 0,
            owed: 0,
        })
    });
    connections.collect()
}

/// Keeps requests under way for a time, and notes the transactions of each kind.
fn run_for(
    connections: &mut [Connection],
    time: Duration,
    [bulk, latency]: &mut [&mut Transactions; 2],
) -> anyhow::Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        for connection in &mut *connections {
            connection.ask()?;
            connection.serve()?;
            let kind = if connection.is_bulk { &mut **bulk } else { &mut **latency };
            connection.take_responses(kind)?;
        }
    }
    Ok(())
}

impl Connection {
    fn ask(&mut self) -> anyhow::Result<()> {
        while self.under_way.len() < self.window {
            let now = Instant::now();
            if !send(&mut self.client)? {
                break;
            }
            self.under_way.push_back(now);
        }
        Ok(())
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        self.owed += receive(&mut self.server, &mut self.server_part)?;
        while self.owed > 0 && send(&mut self.server)? {
            self.owed -= 1;
        }
        Ok(())
    }

    fn take_responses(&mut self, transactions: &mut Transactions) -> anyhow::Result<()> {
        let responses = receive(&mut self.client, &mut self.client_part)?;
        if responses == 0 {
            return Ok(());
        }
        let now = Instant::now();
        ensure!(responses <= self.under_way.len(), "more responses than requests");
        transactions.count += responses as u64;
        for sent in self.under_way.drain(..responses) {
            let time = now.duration_since(sent).as_nanos();
            transactions.times_ns.push(u32::try_from(time).unwrap_or(u32::MAX));
        }
        Ok(())
    }
}

impl Transactions {
    fn finish(mut self) -> Self {
        self.times_ns.sort_unstable();
        (self.p50_us, self.p99_us) = (part_of(&self.times_ns, 50), part_of(&self.times_ns, 99));
        self
    }
}

/// The time, in microseconds, that so many percent of the sorted times take at most; `None` without
/// any.
pub fn part_of(times_ns: &[u32], percent: usize) -> Option<f64> {
    let last = times_ns.len().saturating_sub(1);
    times_ns.get(last * percent / 100).map(|time| f64::from(*time) / 1e3)
}

/// Sends a message in a segment of its own; false if there is no room for it.
fn send(to: &mut TcpStream) -> anyhow::Result<bool> {
    match to.write(&[0; MESSAGE]) {
        Ok(MESSAGE) => Ok(true),
        Ok(length) => bail!("only {length} bytes of a message were sent"),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error).context("sending"),
    }
}

/// Reads, and returns how many messages are complete with it.
fn receive(from: &mut TcpStream, part: &mut usize) -> anyhow::Result<usize> {
    match from.read(&mut [0; MESSAGE * READ_AT_ONCE]) {
        Ok(0) => bail!("the other end has closed a connection"),
        Ok(length) => {
            let bytes = *part + length;
            *part = bytes % MESSAGE;
            Ok(bytes / MESSAGE)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error).context("receiving"),
    }
}

/// Counters at a moment.
struct Reading {
    at: Instant,
    /// Time in which the gateway's CPU was idle or another virtual machine's.
    idle: Duration,
    packets: u64,
    own_ns: u64,
}

impl Reading {
    fn now(cpu: u32) -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let ticks =
            idle_ticks(&stat, cpu).with_context(|| format!("/proc/stat has no CPU {cpu}"))?;
        let devices = "/proc/thread-self/net/dev";
        let devices = std::fs::read_to_string(devices).context(devices)?;
        let idle = TICK * ticks;
        let (at, own_ns) = (Instant::now(), clock::thread_nanoseconds());
        Ok(Self { at, idle, packets: packets(&devices), own_ns })
    }
}

/// The ticks in which a CPU was idle, waited for a disk or was another virtual machine's.
fn idle_ticks(stat: &str, cpu: u32) -> Option<u32> {
    const PARTS: [usize; 3] = [3, 4, 7];
    let name = format!("cpu{cpu}");
    let mut lines = stat.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.first().is_some_and(|word| **word == name))?;
    PARTS.into_iter().map(|part| line.get(1 + part)?.parse::<u32>().ok()).sum()
}

/// The packets that all interfaces but the loopback have received and sent.
fn packets(devices: &str) -> u64 {
    const RECEIVED: usize = 1;
    const SENT: usize = 9;
    let counters = devices.lines().filter_map(|line| line.split_once(':'));
    let counters = counters.filter(|(name, _)| name.trim() != "lo");
    let each = |(_, counters): (_, &str)| {
        let counters: Vec<u64> =
            counters.split_ascii_whitespace().map_while(|it| it.parse().ok()).collect();
        [RECEIVED, SENT].iter().filter_map(|at| counters.get(*at)).sum::<u64>()
    };
    counters.map(each).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_kernel_are_read() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 800 9 10\nctxt 5\n";
        assert_eq!(idle_ticks(stat, 0), Some(845));
        assert_eq!(idle_ticks(stat, 1), None);
        let devices = "Inter-| Receive\n face |bytes\n    lo: 5 5 0 0 0 0 0 0 5 5\n  eth0: 100 3 0 \
                       0 0 0 0 0 200 4 0 0 0 0 0 0\n";
        assert_eq!(packets(devices), 7);
    }

    #[test]
    fn percentiles_are_of_all_times() {
        let times_ns = (0..=1000).rev().map(|time| time * 1000).collect();
        let all = Transactions { times_ns, ..Transactions::default() }.finish();
        assert_eq!((all.p50_us, all.p99_us), (Some(500.0), Some(990.0)));
        assert_eq!(Transactions::default().finish().p50_us, None);
    }
}
