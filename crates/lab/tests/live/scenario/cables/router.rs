//! A router between two cables, which is the kernel or Stateway.

use std::fmt::Write;
use std::time::Duration;

use lab::{Namespace, Result, Side, Stateway, StatewaySpec};
use serde_json::Value;
use wire::build::PacketBuilder;

use super::{ANSWER_ALL, player};
use crate::scenario::{bytes, hex, router_spec, start_in};

/// The router's interfaces.
const ENDS: [&str; 2] = ["client0", "server0"];

/// The link addresses (RFC 9542) of the router's ends and of the hosts, the client's side first.
const ROUTER: [[u8; 6]; 2] = [[0, 0, 0x5e, 0, 0x53, 3], [0, 0, 0x5e, 0, 0x53, 4]];
const HOSTS: [[u8; 6]; 2] = [[0, 0, 0x5e, 0, 0x53, 1], [0, 0, 0x5e, 0, 0x53, 2]];

/// The addresses of the hosts, and the router's addresses towards them.
pub const CLIENT: [u8; 4] = [192, 0, 2, 1];
pub const SERVER: [u8; 4] = [198, 51, 100, 2];
pub const OWN: [[u8; 4]; 2] = [[192, 0, 2, 254], [198, 51, 100, 254]];
/// 2001:db8:1::1 and 2001:db8:2::2.
pub const CLIENT_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub const SERVER_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// The time limit of sending.
const LIMIT: Duration = Duration::from_secs(120);

/// A frame from a host's side.
#[derive(Clone, Debug)]
pub struct Sent {
    pub side: Side,
    pub frame: Vec<u8>,
}

/// The outcome for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// The frames that came out, with their side.
    pub out: Vec<(Side, Vec<u8>)>,
    /// The ICMP errors to its sender.
    pub answers: Vec<Vec<u8>>,
}

impl Fate {
    /// True if neither a frame nor an error came out.
    pub fn is_silent(&self) -> bool {
        self.out.is_empty() && self.answers.is_empty()
    }
}

/// A namespace with the router, and one of the hosts.
pub struct Router {
    pub namespace: Namespace,
    hosts: Namespace,
}

impl Router {
    /// A router whose kernel forwards.
    pub fn new() -> Result<Self> {
        let (namespace, hosts) = (Namespace::new("router")?, Namespace::new("hosts")?);
        for (at, side, subnet) in [(0, "client", "192.0.2"), (1, "server", "198.51.100")] {
            let (near, far) = (format!("{side}0"), format!("{side}1"));
            namespace.join(&near, &hosts, &far)?;
            // Only the player sends anything.
            let quiet = |end, station: [u8; 6]| {
                let station = station.map(|byte| format!("{byte:02x}")).join(":");
                format!("link set {end} address {station} multicast off addrgenmode none")
            };
            hosts.ip(&[&quiet(&far, HOSTS[at]), &format!("link set {far} arp off")])?;
            let number = at + 1;
            let station = HOSTS[at].map(|byte| format!("{byte:02x}")).join(":");
            let known = |address| format!("neigh add {address} lladdr {station} dev {near}");
            namespace.ip(&[
                &quiet(&near, ROUTER[at]),
                &format!("addr add {subnet}.254/24 dev {near}"),
                &format!("addr add 2001:db8:{number}::fe/64 dev {near} nodad"),
                &known(format!("{subnet}.{number}")),
                &known(format!("2001:db8:{number}::{number}")),
            ])?;
        }
        namespace.sysctl(["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        namespace.sysctl(ANSWER_ALL)?;
        Ok(Self { namespace, hosts })
    }

    /// Starts Stateway in place of the kernel. `keys` follows the name of each interface in the
    /// configuration.
    pub fn stateway(&self, keys: [&str; 2]) -> Result<Stateway> {
        let interface = |(name, keys)| format!("[[interface]]\nname = \"{name}\"\n{keys}\n");
        let interfaces: String = ENDS.iter().zip(keys).map(interface).collect();
        let spec = StatewaySpec { interfaces: Vec::new(), more: interfaces, ..router_spec(1)? };
        start_in(&self.namespace, &spec)
    }

    /// The same with rules in nft's syntax. A single bucket lets translation keep all free
    /// ports, as the kernel's does.
    pub fn stateway_with_rules(&self, rules: &str, tunables: &str) -> Result<Stateway> {
        let spec = StatewaySpec {
            interfaces: ENDS.map(str::to_owned).to_vec(),
            gateway: "buckets = 1\n".to_owned(),
            ruleset: Some(rules.to_owned()),
            more: format!("[tunables]\n{tunables}\n"),
            ..router_spec(1)?
        };
        start_in(&self.namespace, &spec)
    }

    /// Sends frames and returns the outcome of each.
    pub fn play(&self, sent: &[Sent]) -> Result<Vec<Fate>> {
        let mut text = String::new();
        let ends = [64, 1].map(|ttl| {
            let mut frame = Vec::new();
            PacketBuilder::v4(CLIENT, SERVER).ttl(ttl).udp(9, 9, &[ttl; 24], &mut frame);
            Sent { side: Side::Client, frame }
        });
        sent.iter().chain(&ends).for_each(|sent| order(&mut text, sent));
        let file = self.hosts.write_file("frames", text.as_bytes())?;
        let player = player(&self.hosts, include_bytes!("packets.py"))?.args([file]);
        let output = player.limit(LIMIT).check()?;
        let fates: Vec<Fate> = output.lines().map(read).collect();
        assert_eq!(fates.len(), sent.len());
        Ok(fates)
    }

    /// Sends frames as fast as the router forwards them, and returns all that came out. True marks
    /// a frame as a mark: the player sends nothing behind it before it came out, and its last 8
    /// bytes are unique.
    pub fn burst(&self, sent: &[(Sent, bool)]) -> Result<Vec<Sent>> {
        let mut text = String::new();
        for (sent, is_mark) in sent {
            text += if *is_mark { "- " } else { "" };
            order(&mut text, sent);
        }
        let file = self.hosts.write_file("frames", text.as_bytes())?;
        let player = player(&self.hosts, include_bytes!("burst.py"))?.args([file]);
        let output = player.limit(LIMIT).check()?;
        let came = output.lines().filter_map(|line| line.split_once(' '));
        Ok(came.map(|(name, frame)| Sent { side: side(name), frame: bytes(frame) }).collect())
    }
}

/// Writes a line that makes a player send a frame to the router.
fn order(text: &mut String, Sent { side, frame }: &Sent) {
    let (name, at) = match side {
        Side::Client => ("client", 0),
        Side::Server => ("server", 1),
    };
    let link: Vec<u8> = [ROUTER[at], HOSTS[at]].concat();
    // Writing to a string does not fail.
    let _ = writeln!(text, "{name} {}{}", hex(&link), hex(&frame[12..]));
}

fn side(name: &str) -> Side {
    if name == "client" { Side::Client } else { Side::Server }
}

fn read(line: &str) -> Fate {
    let printed: Value = serde_json::from_str(line).expect("the player prints JSON");
    let list = |key: &str| printed[key].as_array().expect("a list");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let out = list("out").iter().map(|out| (side(&text(&out[0])), bytes(&text(&out[1]))));
    let answers = list("answers").iter().map(|answer| bytes(&text(answer))).collect();
    Fate { out: out.collect(), answers }
}

/// Numbers frames, so that no two are equal.
#[derive(Default)]
pub struct Numbers(u64);

impl Numbers {
    /// A payload that is unique and fills the shortest Ethernet frame.
    pub fn payload(&mut self) -> Vec<u8> {
        self.0 += 1;
        [&[0; 24][..], &self.0.to_be_bytes()].concat()
    }
}
