//! Honest requests through a gateway during an attack.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use serde_json::{Value, json};
use wire::build::PacketBuilder;

use crate::attack::Attack;
use crate::contender::Contender;
use crate::datagram::Datagrams;
use crate::error::Result;
use crate::flood::at_pace;
use crate::honest::{self, Requests};
use crate::namespace::Namespace;
use crate::placement::Placement;
use crate::program::Transport;
use crate::spoofed::Spoofed;
use crate::stateway::{Stateway, StatewaySpec};
use crate::topology::{Family, Gateway, Lab, Tracking};

/// Packets of an attack per second.
const RATE: u32 = 50_000;
/// Packets before the first request: more connections than a kernel tracks by default.
const BEFORE: u32 = 300_000;
/// The largest number of packets while the honest clients ask.
const DURING: u32 = 15 * RATE;
/// Hosts of a bridge with three ports.
const HOSTS: [&str; 3] = ["client", "server", "attacker"];
const PORTS: [&str; 3] = ["lan0", "wan0", "opt0"];
/// Address of the bridge's server.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

/// The packets of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFlood {
    /// No attack.
    None,
    /// SYNs to the honest clients' port, each from another source.
    Syn,
    /// Datagrams of UDP, each from another source.
    Udp,
    /// First fragments of datagrams that will never be complete.
    Fragments,
    /// Frames from stations that do not exist, on a third port of a bridge; see
    /// [`requests_beside`].
    Stations,
}

/// The result of the requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestsReport {
    /// The gateway.
    pub contender: Contender,
    /// The attack.
    pub flood: PacketFlood,
    /// Requests by TCP.
    pub requests: Requests,
}

impl PacketFlood {
    /// All attacks.
    pub const ALL: [Self; 5] = [Self::None, Self::Syn, Self::Udp, Self::Fragments, Self::Stations];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Syn => "syn",
            Self::Udp => "udp",
            Self::Fragments => "fragments",
            Self::Stations => "stations",
        }
    }

    fn frames(self, lab: &Lab) -> Vec<Vec<u8>> {
        let count = BEFORE + DURING;
        let IpAddr::V4(server) = lab.server_address(Family::V4) else { return Vec::new() };
        let to = (server, honest::SERVICE);
        match self {
            Self::None | Self::Stations => Vec::new(),
            Self::Syn => Spoofed::Syn.frames(count, to, lab.next_hop_mac()),
            Self::Udp => Spoofed::Udp.frames(count, to, lab.next_hop_mac()),
            Self::Fragments => Attack::First.frames(lab, count as usize, 1),
        }
    }
}

/// A packet from the station with this number to an unused address.
fn from_a_station(number: u32) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 3], [192, 0, 2, 254])
        .macs([2, 1, a, b, c, d], [0, 0, 0x5e, 0, 0x53, 0xfe])
        .udp(9, 9, b"made up", &mut frame);
    frame
}

/// Measures in a lab of its own, with two workers. `program` is `stateway`. The gateway is a router
/// that tracks connections. Against made-up stations it is a bridge with three ports.
///
/// # Errors
/// Those of [`Lab::new`] and [`Datagrams::start_sending`];
/// [`Error::Unexpected`](crate::Error::Unexpected) if the honest clients print no report.
pub fn requests_beside(
    program: &Path,
    contender: Contender,
    flood: PacketFlood,
) -> Result<RequestsReport> {
    let requests = match flood {
        PacketFlood::Stations => in_a_bridge(program, contender)?,
        _ => in_a_router(program, contender, flood)?,
    };
    Ok(RequestsReport { contender, flood, requests })
}

fn in_a_router(program: &Path, contender: Contender, flood: PacketFlood) -> Result<Requests> {
    let gateway = match contender {
        Contender::Kernel => Gateway::KernelForwarding(Tracking::Conntrack),
        Contender::Stateway => Gateway::Stateway(StatewaySpec {
            routed: true,
            rules: Tracking::Conntrack,
            ..StatewaySpec::new(program.to_path_buf(), 2)
        }),
    };
    let lab = Lab::new(gateway, Placement::free())?;
    honest::settle(lab.client())?;
    let _answering = honest::serve(lab.server())?;
    let datagrams = Datagrams::new(&lab, program)?;
    let frames = flood.frames(&lab);
    let (before, during) = frames.split_at(frames.len().min(BEFORE as usize));
    datagrams.start_sending(&lab, &at_pace(before, RATE))?.finish()?;
    let _flood = datagrams.start_sending(&lab, &at_pace(during, RATE))?;
    honest::ask(lab.client(), Transport::Tcp, lab.server_address(Family::V4))
}

fn in_a_bridge(program: &Path, contender: Contender) -> Result<Requests> {
    let gateway = Namespace::new("gateway")?;
    let [client, server, attacker] = [host(&gateway, 0)?, host(&gateway, 1)?, host(&gateway, 2)?];
    let _stateway = match contender {
        Contender::Kernel => {
            gateway.ip(&["link add br0 type bridge", "link set br0 up"])?;
            for port in PORTS {
                gateway.ip(&[&format!("link set {port} master br0")])?;
            }
            None
        }
        Contender::Stateway => {
            let interfaces = PORTS.map(str::to_owned).to_vec();
            let spec = StatewaySpec { interfaces, ..StatewaySpec::new(program.to_path_buf(), 2) };
            Some(Stateway::start(&gateway, &spec, &Placement::free())?)
        }
    };
    honest::settle(&client)?;
    let _answering = honest::serve(&server)?;
    let frames: Vec<_> = (0..BEFORE + DURING).map(from_a_station).collect();
    let (before, during) = frames.split_at(BEFORE as usize);
    let send = |frames| {
        let file = attacker.write_file("flood", at_pace(frames, RATE).bytes())?;
        let sender = attacker.program(&program.to_string_lossy());
        sender.args(["lab-traffic", "send", &file, "--interface", "eth0"]).spawn()
    };
    send(before)?.finish()?;
    let _flood = send(during)?;
    honest::ask(&client, Transport::Tcp, SERVER)
}

fn host(gateway: &Namespace, number: usize) -> Result<Namespace> {
    let host = Namespace::new(HOSTS[number])?;
    gateway.join(PORTS[number], &host, "eth0")?;
    host.ip(&[&format!("addr add 192.0.2.{}/24 dev eth0", number + 1)])?;
    Ok(host)
}

impl RequestsReport {
    /// The report as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { contender, flood, requests } = self;
        json!({
            "gateway": contender.name(),
            "flood": flood.name(),
            "requests": requests.to_json(),
        })
    }
}
