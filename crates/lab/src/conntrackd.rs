//! Debian's conntrackd between two gateways of the kernel, which state sync is compared with.

use std::fs::read_to_string;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use wire::build::PacketBuilder;

use crate::capture::Capture;
use crate::datagram::Datagrams;
use crate::error::{Error, Result};
use crate::flood::at_pace;
use crate::namespace::Namespace;
use crate::placement::Placement;
use crate::program::{Background, TICK};
use crate::topology::{Family, Gateway, Lab, Tracking};

/// The gateway's CPU in [`Placement::split`].
const GATEWAY_CPU: u32 = 0;
/// Addresses of the sync link.
const SYNC: [Ipv4Addr; 2] = [Ipv4Addr::new(203, 0, 113, 65), Ipv4Addr::new(203, 0, 113, 66)];
/// Connections of the load whose packets belong to connections that are there.
const ESTABLISHED: u32 = 10_000;
/// Its rate, packets per second.
const ESTABLISHED_RATE: u32 = 100_000;
/// The rate of the load that opens connections, per second. A kernel with conntrackd keeps up.
const OPENED_RATE: u32 = 10_000;
/// Connections that are opened before the active gateway dies.
const OPENED: u32 = 10_000;
/// Time in which conntrackd does what the packets have left to do.
const AFTER: Duration = Duration::from_millis(500);
/// The time that a connection of these loads stays without a packet, in seconds: some end while
/// others are opened.
const TIMEOUT: u32 = 2;
/// The largest number of connections that a load leaves.
const MOST: u32 = 1 << 17;

/// The costs of conntrackd, and its losses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConntrackdReport {
    /// By round: the rate of packets of established connections with conntrackd over that without.
    pub established: Vec<f64>,
    /// By round: the same of packets that open connections.
    pub new: Vec<f64>,
    /// Connections that were opened before the active gateway died, and that the standby does not
    /// have after its commit.
    pub missing: u32,
    /// The number of those that were opened.
    pub opened: u32,
}

/// Measures in a lab of its own. `program` is `stateway`, which sends the packets. A rate is packets
/// for each second of CPU time of the gateway, that of conntrackd and of the kernel included.
///
/// # Errors
/// [`Error::Unavailable`] without conntrackd, and those of [`Lab::new`].
pub fn conntrackd(program: &Path, rounds: usize, time: Duration) -> Result<ConntrackdReport> {
    let pair = Pair::new(program)?;
    let mut report = ConntrackdReport { opened: OPENED, ..ConntrackdReport::default() };
    for _ in 0..rounds {
        let without = pair.costs(time)?;
        let daemons = pair.start()?;
        let with = pair.costs(time)?;
        daemons.into_iter().try_for_each(|daemon| daemon.terminate().map(drop))?;
        report.established.push(without.established / with.established);
        report.new.push(without.new / with.new);
    }
    report.missing = pair.lost()?;
    Ok(report)
}

/// Seconds of the gateway's CPU for each load.
struct Costs {
    established: f64,
    new: f64,
}

/// Two gateways, of which one forwards.
struct Pair {
    lab: Lab,
    standby: Namespace,
    datagrams: Datagrams,
}

impl Pair {
    fn new(program: &Path) -> Result<Self> {
        let lab = Lab::new(Gateway::KernelForwarding(Tracking::Conntrack), Placement::split())?;
        let standby = Namespace::new("standby")?;
        // The kernel tracks connections, and has their settings, where rules ask for them.
        Tracking::Conntrack.rules().map_or(Ok(()), |rules| standby.load_rules(&rules))?;
        lab.gateway().join("sync0", &standby, "sync0")?;
        for (at, [own, _]) in [(lab.gateway(), SYNC), (&standby, [SYNC[1], SYNC[0]])] {
            at.ip(&[&format!("addr add {own}/30 dev sync0")])?;
            for setting in ["udp_timeout", "udp_timeout_stream"] {
                at.sysctl([format!("net.netfilter.nf_conntrack_{setting}={TIMEOUT}")])?;
            }
        }
        let datagrams = Datagrams::new(&lab, program)?;
        Ok(Self { lab, standby, datagrams })
    }

    /// Starts conntrackd on both.
    fn start(&self) -> Result<[Background; 2]> {
        let active = self.daemon(self.lab.gateway(), SYNC)?;
        Ok([active, self.daemon(&self.standby, [SYNC[1], SYNC[0]])?])
    }

    fn daemon(&self, at: &Namespace, [own, peer]: [Ipv4Addr; 2]) -> Result<Background> {
        at.program("conntrack").args(["-F"]).run()?;
        let file = at.write_file("conntrackd.conf", configuration(own, peer).as_bytes())?;
        let placement = Placement::split();
        let is_active = own == SYNC[0];
        let cpus = if is_active { placement.gateway } else { placement.endpoints };
        let mut daemon = at.program("conntrackd").args(["-C", &file]).cpus(&cpus).spawn()?;
        daemon.wait_for_text("starting in console mode")?;
        Ok(daemon)
    }

    fn costs(&self, time: Duration) -> Result<Costs> {
        let count = |rate: u32| (f64::from(rate) * time.as_secs_f64()) as u32;
        let opening = self.capture(0..ESTABLISHED, ESTABLISHED, ESTABLISHED_RATE);
        self.datagrams.start_sending(&self.lab, &opening)?.finish()?;
        sleep(AFTER);
        let packets = self.capture(0..count(ESTABLISHED_RATE), ESTABLISHED, ESTABLISHED_RATE);
        let established = self.cost(&packets)?;
        let numbers = ESTABLISHED..ESTABLISHED + count(OPENED_RATE).min(MOST);
        let new = self.cost(&self.capture(numbers, u32::MAX, OPENED_RATE))?;
        // Connections of this load end before another load begins.
        sleep(Duration::from_secs(u64::from(TIMEOUT)));
        Ok(Costs { established, new })
    }

    /// Seconds of the gateway's CPU for the packets of a capture.
    fn cost(&self, capture: &Capture) -> Result<f64> {
        let before = (Instant::now(), idle(GATEWAY_CPU)?);
        self.datagrams.start_sending(&self.lab, capture)?.finish()?;
        sleep(AFTER);
        let passed = before.0.elapsed();
        Ok(passed.saturating_sub(idle(GATEWAY_CPU)? - before.1).max(TICK).as_secs_f64())
    }

    /// Packets of connections with these numbers, modulo `connections`.
    fn capture(&self, numbers: std::ops::Range<u32>, connections: u32, rate: u32) -> Capture {
        let frames: Vec<_> = numbers.map(|number| self.frame(number % connections)).collect();
        at_pace(&frames, rate)
    }

    /// A datagram to the sink.
    fn frame(&self, number: u32) -> Vec<u8> {
        /// The first port, from which on each host has so many.
        const PORTS: [u32; 2] = [1024, 50_000];
        let source = match self.lab.client_address(Family::V4) {
            IpAddr::V4(source) => source,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        let sink: Ipv4Addr = Lab::SINK.parse().unwrap_or(Ipv4Addr::UNSPECIFIED);
        let [first, count] = PORTS;
        let (source_port, port) = (first + number % count, 1 + number / count);
        let packet = PacketBuilder::v4(source.octets(), sink.octets())
            .macs([0, 0, 0x5e, 0, 0x53, 0x01], self.lab.next_hop_mac());
        let mut frame = Vec::new();
        packet.udp(source_port as u16, port as u16, b"compared", &mut frame);
        frame
    }

    /// Opens connections, and kills the conntrackd of the active gateway behind the last packet.
    /// Returns the number of connections that the standby lacks.
    fn lost(&self) -> Result<u32> {
        let long = "net.netfilter.nf_conntrack_udp_timeout=60";
        self.lab.gateway().sysctl([long])?;
        let [active, standby] = self.start()?;
        let capture = self.capture(0..OPENED, u32::MAX, OPENED_RATE);
        self.datagrams.start_sending(&self.lab, &capture)?.finish()?;
        // Background programs end by SIGKILL.
        drop(active);
        sleep(AFTER);
        let file = format!("{}/conntrackd.conf", Namespace::SCRATCH);
        self.standby.program("conntrackd").args(["-C", &file, "-c"]).check()?;
        sleep(AFTER);
        let listed = self.standby.program("conntrack").args(["-L", "-p", "udp", "-d", Lab::SINK]);
        let held = listed.run()?.stdout.lines().filter(|line| line.contains("src=")).count();
        drop(standby);
        Ok(OPENED.saturating_sub(held as u32))
    }
}

/// The time in which a CPU was idle, waited for a disk or was another virtual machine's (proc(5)).
fn idle(cpu: u32) -> Result<Duration> {
    const PARTS: [usize; 3] = [3, 4, 7];
    let file = "/proc/stat";
    let stat = read_to_string(file).map_err(Error::io(file))?;
    let name = format!("cpu{cpu} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(name.as_str()));
    let ticks = line.and_then(|line| {
        let ticks: Vec<u32> =
            line.split_ascii_whitespace().map_while(|it| it.parse().ok()).collect();
        PARTS.into_iter().map(|part| ticks.get(part).copied()).sum::<Option<u32>>()
    });
    ticks.map(|ticks| TICK * ticks).ok_or_else(|| Error::unexpected(file, &name, &stat))
}

/// The reliable mode (FTFW) over a link of its own, with buffers for bursts.
fn configuration(own: Ipv4Addr, peer: Ipv4Addr) -> String {
    let scratch = Namespace::SCRATCH;
    format!(
        "Sync {{
    Mode FTFW {{
    }}
    UDP {{
        IPv4_address {own}
        IPv4_Destination_Address {peer}
        Port 3780
        Interface sync0
        SndSocketBuffer 16777216
        RcvSocketBuffer 16777216
        Checksum on
    }}
}}
General {{
    HashSize 65536
    HashLimit 1048576
    LockFile {scratch}/conntrackd.lock
    UNIX {{
        Path {scratch}/conntrackd.ctl
    }}
    NetlinkBufferSize 16777216
    NetlinkBufferSizeMaxGrowth 67108864
}}
"
    )
}
