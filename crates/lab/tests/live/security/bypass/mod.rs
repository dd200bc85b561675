//! No frame gets past the rules. Random frames go through a bridge and a router that let one flow
//! through, to a host with a real kernel.
//!
//! Two witnesses look for frames that should not arrive. One reads each frame that arrives, as
//! leniently as any receiver might. The other is the kernel of the host: its packet filter counts
//! the packets that it delivers and the packets that it sends. The generator of the frames shares
//! no code with the parsers that judge them.

mod link;
mod network;
mod offloads;

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::{Background, Capture, Family, Lab, Namespace, Random, Result, StatewaySpec};
use serde_json::Value;

use self::network::Maker;
use crate::scenario::{
    FAMILIES, StatewayLab, beside_others, bridge_spec, hex, inside, load, outside, ready, seeds,
    start, stateway_binary, stop_cleanly,
};

/// The number of bursts in each of the four labs unless `STATEWAY_SEEDS` gives another. A burst is
/// one frame or the fragments of one datagram.
const BURSTS: u64 = 11_000;
/// The number of bursts that are sent before the counters are read.
const AT_ONCE: u64 = 1000;
/// The time between two frames: a pace that every receiver keeps up with.
const INTERVAL: Duration = Duration::from_micros(20);
/// The time that the last frame of a batch may take to arrive.
const PATIENCE: Duration = Duration::from_secs(20);
/// All frames have arrived when none has come for this long.
const SETTLING: Duration = Duration::from_millis(100);
/// The number of findings that a failure lists.
const MOST_LISTED: usize = 8;
/// The source and destination port of the flow that the rules let through.
const OPEN_PORTS: (u16, u16) = (4000, 9);
/// The length in bytes of the datagram that ends a batch, with its header.
const END_BYTES: u16 = 777;

/// The addresses of the hosts in one family.
pub struct Hosts {
    /// The source and the destination of the flow that the rules let through.
    pub open: (IpAddr, IpAddr),
    /// The source addresses that the attacker uses.
    pub sources: Vec<IpAddr>,
    /// The destination addresses that the attacker uses. The rules let nothing through to the
    /// second, which is also the victim's.
    pub destinations: Vec<IpAddr>,
}

/// The facts about the lab that the generator needs.
pub struct World {
    v4: Hosts,
    v6: Hosts,
    pub open_ports: (u16, u16),
    pub source_mac: [u8; 6],
    pub destination_mac: [u8; 6],
}

impl World {
    pub fn of(&self, family: Family) -> &Hosts {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

/// The side that attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// The side that opens the flow.
    Client,
    /// The side that answers in the flow.
    Server,
}

struct Attack {
    lab: StatewayLab,
    world: World,
    from: From,
    witness: Background,
    /// Frames of real traffic. Some bursts start from one of them.
    captured: Vec<Vec<u8>>,
}

/// The counters of the victim's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    delivered: u64,
    answered: u64,
    ended: u64,
}

impl Counted {
    fn is_clean(self) -> bool {
        self.delivered + self.answered == 0
    }
}

fn closed(family: Family, routed: bool, from: From) -> IpAddr {
    let text = match (family, routed, from) {
        (Family::V4, true, From::Client) => "198.51.100.3",
        (Family::V4, _, From::Client) => "192.0.2.3",
        (Family::V4, _, From::Server) => "192.0.2.4",
        (Family::V6, true, From::Client) => "2001:db8:2::3",
        (Family::V6, _, From::Client) => "2001:db8:1::3",
        (Family::V6, _, From::Server) => "2001:db8:1::4",
    };
    text.parse().unwrap()
}

fn world(lab: &Lab, routed: bool, from: From) -> World {
    let hosts = |family: Family, group: &str, strange: &str| {
        let (client, server) = (lab.client_address(family), lab.server_address(family));
        let (near, far) = match from {
            From::Client => (client, server),
            From::Server => (server, client),
        };
        let parse = |text: &str| text.parse().unwrap();
        Hosts {
            open: (near, far),
            sources: vec![near, near, near, far, parse(strange)],
            destinations: vec![far, closed(family, routed, from), far, parse(group)],
        }
    };
    let (near, last) = match (from, routed) {
        (From::Client, false) => (1, 2),
        (From::Client, true) => (1, 3),
        (From::Server, false) => (2, 1),
        (From::Server, true) => (2, 4),
    };
    let mac = |last| [0, 0, 0x5e, 0, 0x53, last];
    World {
        v4: hosts(Family::V4, "224.0.0.1", "127.0.0.1"),
        v6: hosts(Family::V6, "ff02::1", "::1"),
        open_ports: match from {
            From::Client => OPEN_PORTS,
            From::Server => (OPEN_PORTS.1, OPEN_PORTS.0),
        },
        source_mac: mac(near),
        destination_mac: mac(last),
    }
}

/// Lets one flow and its answers through.
fn ruleset(lab: &Lab) -> String {
    let rule = |family, word: &str| {
        format!(
            "iifname lan0 {word} saddr {} {word} daddr {} udp sport {} udp dport {} accept\n",
            lab.client_address(family),
            lab.server_address(family),
            OPEN_PORTS.0,
            OPEN_PORTS.1,
        )
    };
    format!(
        "table inet gateway {{\nchain forward {{\n\
         type filter hook forward priority filter; policy drop;\n\
         ct state established accept\n{}{}}}\n}}\n",
        rule(Family::V4, "ip"),
        rule(Family::V6, "ip6")
    )
}

impl Attack {
    fn new(routed: bool, from: From) -> Result<Self> {
        let spec = StatewaySpec { routed, ..bridge_spec(2)? };
        let lab = start(spec)?;
        load(&lab, &ruleset(&lab))?;
        let world = world(&lab, routed, from);
        know_each_other(&lab, routed, from)?;
        let victim = if from == From::Client { lab.server() } else { lab.client() };
        victim.load_rules(&counters(&world))?;
        let script = victim.write_file("witness.py", include_bytes!("witness.py"))?;
        let mut args = vec![script, "eth0".to_owned()];
        for family in FAMILIES {
            let (source, destination) = world.of(family).open;
            args.extend([source.to_string(), destination.to_string()]);
        }
        args.extend([world.open_ports.0.to_string(), world.open_ports.1.to_string()]);
        let witness = ready(victim.program("python3").args(args))?;
        Ok(Self { lab, world, from, witness, captured: captured() })
    }

    fn victim(&self) -> &Namespace {
        if self.from == From::Client { self.lab.server() } else { self.lab.client() }
    }

    fn attacker(&self) -> &Namespace {
        if self.from == From::Client { self.lab.client() } else { self.lab.server() }
    }

    /// The frames that this seed generates.
    fn burst(&self, seed: u64) -> Vec<Vec<u8>> {
        let mut maker = Maker { random: Random::new(seed), world: &self.world };
        if !self.captured.is_empty() && maker.random.once_in(2) {
            let captured = &self.captured[maker.random.between(0, self.captured.len() - 1)];
            return vec![link::again(&mut maker.random, &self.world, captured)];
        }
        let packets = maker.packets();
        let frame = |packet: network::Packet| {
            let ethertype = network::ethertype(packet.family);
            link::frame(&mut maker.random, &self.world, ethertype, &packet.bytes)
        };
        packets.into_iter().map(frame).collect()
    }

    /// A datagram of the flow that the rules let through, from the attacker or from the victim.
    fn open(&self, from_attacker: bool, family: Family, bytes: u16) -> Vec<u8> {
        let (mut ends, mut ports) = (self.world.of(family).open, self.world.open_ports);
        if !from_attacker {
            (ends, ports) = ((ends.1, ends.0), (ports.1, ports.0));
        }
        let payload = vec![0; usize::from(bytes) - 8];
        let bytes = lab::udp(ends, ports, &payload, true);
        let (source, destination) = ends;
        let piece =
            lab::Piece { source, destination, id: 1, offset: 0, more: false, ecn: 0, bytes };
        let mut frame = piece.frame(self.world.destination_mac);
        frame[6..12].copy_from_slice(&self.world.source_mac);
        frame
    }

    /// Sends the frames, and then datagrams of the flow that the rules let through until one
    /// arrives. Returns what the victim's kernel has counted meanwhile.
    fn send(&self, frames: &[Vec<u8>]) -> Result<Counted> {
        let before = self.counted()?;
        self.keep_open()?;
        let mut capture = Capture::new();
        for (index, frame) in frames.iter().enumerate() {
            capture.push(INTERVAL * index as u32, frame);
        }
        let mut end = Capture::new();
        end.push(Duration::ZERO, &self.open(true, Family::V4, END_BYTES));
        self.play(self.attacker(), &capture)?;
        let start = Instant::now();
        loop {
            self.play(self.attacker(), &end)?;
            sleep(Duration::from_millis(20));
            let now = self.counted()?;
            if now.ended > before.ended {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "the flow that is let through does not arrive");
        }
        // Another worker may still have frames to forward.
        let mut last = self.counted()?;
        loop {
            sleep(SETTLING);
            let now = self.counted()?;
            if now == last {
                let delivered = now.delivered - before.delivered;
                let answered = now.answered - before.answered;
                return Ok(Counted { delivered, answered, ended: 0 });
            }
            last = now;
        }
    }

    /// Has the flow be open: the client has sent something.
    fn keep_open(&self) -> Result<()> {
        if self.from == From::Client {
            return Ok(());
        }
        for family in FAMILIES {
            let (ends, ports) = (self.world.of(family).open, self.world.open_ports);
            let script = format!(
                "import socket; s = socket.socket(socket.AF_INET{}, socket.SOCK_DGRAM); \
                 s.bind(('{}', {})); s.sendto(b'open', ('{}', {}))",
                if ends.0.is_ipv4() { "" } else { "6" },
                ends.1,
                ports.1,
                ends.0,
                ports.0
            );
            self.victim().program("python3").args(["-c", &script]).check()?;
        }
        Ok(())
    }

    fn play(&self, from: &Namespace, capture: &Capture) -> Result<()> {
        let file = from.write_file("frames.pcap", capture.bytes())?;
        let binary = stateway_binary()?;
        let program = from.program(&binary.to_string_lossy());
        program.args(["lab-traffic", "send", &file, "--interface", "eth0"]).check().map(drop)
    }

    fn counted(&self) -> Result<Counted> {
        let text = self.victim().program("nft").args(["-j", "list", "counters"]).check()?;
        let listed: Value = serde_json::from_str(&text).expect("nft prints JSON");
        let objects = listed["nftables"].as_array().expect("an array");
        let count = |name: &str| {
            let found = objects.iter().find(|object| object["counter"]["name"] == name);
            found.and_then(|found| found["counter"]["packets"].as_u64()).expect("a counter")
        };
        Ok(Counted {
            delivered: count("delivered"),
            answered: count("answered"),
            ended: count("ended"),
        })
    }

    /// Sends the bursts of these seeds and describes those that got past the rules.
    fn attack(&self, seeds: std::ops::Range<u64>) -> Result<Vec<String>> {
        let frames: Vec<_> = seeds.clone().flat_map(|seed| self.burst(seed)).collect();
        let mut counted = self.send(&frames)?;
        if counted.is_clean() {
            return Ok(Vec::new());
        }
        // Bisects to a smaller range of seeds that still gets past.
        let mut guilty = seeds.clone();
        while guilty.end - guilty.start > 1 {
            let middle = guilty.start.midpoint(guilty.end);
            let halves = [guilty.start..middle, middle..guilty.end];
            let mut found = None;
            for half in halves {
                let frames: Vec<_> = half.clone().flat_map(|seed| self.burst(seed)).collect();
                let again = self.send(&frames)?;
                if !again.is_clean() {
                    found = Some((half, again));
                    break;
                }
            }
            let Some(half) = found else { break };
            (guilty, counted) = half;
        }
        let mut report = format!("seeds {guilty:?} reach the host's kernel: {counted:?}");
        for frame in guilty.clone().flat_map(|seed| self.burst(seed)).take(MOST_LISTED) {
            report.push_str(&format!("\n  {}", hex(&frame)));
        }
        Ok(vec![report])
    }
}

/// Gives the hosts static neighbours, so that they send no neighbour solicitations and only test
/// frames arrive.
fn know_each_other(lab: &Lab, routed: bool, from: From) -> Result<()> {
    let quiet = ["net.ipv6.conf.eth0.router_solicitations=0", "net.ipv6.conf.eth0.accept_ra=0"];
    for (host, side) in [(lab.client(), From::Client), (lab.server(), From::Server)] {
        host.sysctl(quiet)?;
        let closed = FAMILIES.map(|family| closed(family, routed, from));
        for family in FAMILIES {
            let other = match (routed, side) {
                (false, From::Client) => lab.server_address(family).to_string(),
                (false, From::Server) => lab.client_address(family).to_string(),
                (true, From::Client) => inside(family).to_owned(),
                (true, From::Server) => outside(family).to_owned(),
            };
            let last = match (routed, side) {
                (false, From::Client) => 2,
                (false, From::Server) => 1,
                (true, From::Client) => 3,
                (true, From::Server) => 4,
            };
            host.ip(&[&format!(
                "neigh replace {other} lladdr 00:00:5e:00:53:{last:02x} dev eth0 nud permanent"
            )])?;
        }
        if side != from {
            for address in closed {
                let length = if address.is_ipv4() { 24 } else { 64 };
                let nodad = if address.is_ipv4() { "" } else { " nodad" };
                host.ip(&[&format!("addr add {address}/{length} dev eth0{nodad}")])?;
            }
        }
    }
    if routed {
        let (port, last) = match from {
            From::Client => ("wan0", 2),
            From::Server => ("lan0", 1),
        };
        let far = |family| match from {
            From::Client => lab.server_address(family),
            From::Server => lab.client_address(family),
        };
        for address in FAMILIES.into_iter().flat_map(|it| [far(it), closed(it, routed, from)]) {
            lab.gateway().ip(&[&format!(
                "neigh replace {address} lladdr 00:00:5e:00:53:{last:02x} dev {port} nud permanent"
            )])?;
        }
    }
    Ok(())
}

/// The counters of the victim's kernel, in nft's syntax. The rules use connection tracking, so that
/// the kernel reassembles IPv6 fragments before it reads them. The counters leave out the multicast
/// reports that the host sends by itself, because they answer nothing. They leave out errors as
/// well: the witness sees each packet that could cause one.
fn counters(world: &World) -> String {
    let (from, to) = world.open_ports;
    let open = |family, word: &str, then: &str| {
        let (source, destination) = world.of(family).open;
        format!(
            "{word} saddr {source} {word} daddr {destination} udp sport {from} udp dport {to} {then}\n"
        )
    };
    let end = format!("udp length {END_BYTES} counter name ended drop");
    format!(
        "table inet victim {{\n\
         counter ended {{ }}\ncounter delivered {{ }}\ncounter answered {{ }}\n\
         chain whole {{\ntype filter hook prerouting priority filter; ct state invalid\n}}\n\
         chain input {{\ntype filter hook input priority raw; policy accept;\n\
         iif lo accept\nip6 saddr fe80::/10 accept\nip protocol igmp accept\n{}{}{}{}counter name delivered\n}}\n\
         chain output {{\ntype filter hook output priority raw; policy accept;\n\
         oif lo accept\nip6 saddr fe80::/10 accept\nip daddr 224.0.0.0/4 accept\nip6 daddr ff00::/8 accept\n\
         udp sport {to} udp dport {from} udp length 12 accept\n\
         icmp type {{ destination-unreachable, time-exceeded, parameter-problem }} accept\n\
         icmpv6 type {{ destination-unreachable, time-exceeded, parameter-problem }} accept\n\
         counter name answered\n}}\n}}\n",
        open(Family::V4, "ip", &end),
        open(Family::V6, "ip6", &end),
        open(Family::V4, "ip", "drop"),
        open(Family::V6, "ip6", "drop"),
    )
}

/// The frames of the captures in the directory that `STATEWAY_CAPTURES` names.
fn captured() -> Vec<Vec<u8>> {
    let Some(directory) = std::env::var_os("STATEWAY_CAPTURES") else { return Vec::new() };
    let files = std::fs::read_dir(directory).expect("STATEWAY_CAPTURES is a directory");
    let mut paths: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    paths.sort();
    let frames = paths.iter().flat_map(|path| {
        let bytes = std::fs::read(path).expect("a file that may be read");
        let frames = Capture::read(&bytes).unwrap_or_default();
        frames.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
    });
    frames.filter(|frame| (link::HEADER..=link::LONGEST_CAPTURED).contains(&frame.len())).collect()
}

fn nothing_gets_past(routed: bool, from: From) {
    beside_others(|| {
        let mut attack = Attack::new(routed, from)?;
        let seeds = seeds(BURSTS);
        let (mut reports, mut frames) = (Vec::new(), 0);
        for first in seeds.clone().step_by(AT_ONCE as usize) {
            let batch = first..(first + AT_ONCE).min(seeds.end);
            frames += batch.clone().map(|seed| attack.burst(seed).len()).sum::<usize>();
            reports.extend(attack.attack(batch)?);
            if reports.len() >= MOST_LISTED {
                break;
            }
        }
        let seen = attack.witness.log();
        let passed = seen.lines().filter(|line| line.starts_with("passed"));
        reports.extend(passed.clone().take(MOST_LISTED).map(str::to_owned));
        println!("{frames} frames; {} arrived that should not", passed.count());
        assert!(reports.is_empty(), "past the rules:\n{}", reports.join("\n"));
        stop_cleanly(&mut attack.lab)
    });
}

#[test]
fn nothing_gets_past_a_bridge() {
    nothing_gets_past(false, From::Client);
}

#[test]
fn nothing_gets_back_past_a_bridge() {
    nothing_gets_past(false, From::Server);
}

#[test]
fn nothing_gets_past_a_router() {
    nothing_gets_past(true, From::Client);
}

#[test]
fn nothing_gets_back_past_a_router() {
    nothing_gets_past(true, From::Server);
}
