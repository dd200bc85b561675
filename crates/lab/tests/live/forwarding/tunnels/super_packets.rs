//! Tunnels of the kernel between client and server, with every offload on. TCP uses super-packets
//! of up to 64 KiB inside the tunnel.

use std::io::{Write, stderr};
use std::net::IpAddr;

use lab::{Family, HttpServer, Lab, Namespace, Result, iperf_tcp_to, ping};
use serde_json::Value;

use crate::scenario::{SHORT, beside_others, bridge, stateway, stop_cleanly};

/// The length of a download in bytes.
const DOWNLOAD: usize = 20_000_000;
/// Devices over IPv4 and IPv6, and IPv6 in IPv6 with and without a routing header. `{local}` and
/// `{remote}` are the addresses of the ends, `{n}` and `{m}` their numbers.
const TUNNELS: [Tunnel; 12] = [
    device(
        "vxlan over IPv4",
        Family::V4,
        &["link add tunnel type vxlan id 7 dstport 4789 local {local} remote {remote}"],
    ),
    device(
        "vxlan over IPv4 with UDP checksums",
        Family::V4,
        &["link add tunnel type vxlan id 7 dstport 8472 udpcsum local {local} remote {remote}"],
    ),
    device(
        "vxlan over IPv6",
        Family::V6,
        &["link add tunnel type vxlan id 7 dstport 4789 local {local} remote {remote}"],
    ),
    device("geneve", Family::V4, &["link add tunnel type geneve id 7 remote {remote}"]),
    device("gre", Family::V4, &["link add tunnel type gre local {local} remote {remote}"]),
    device(
        "gre with key and checksum",
        Family::V4,
        &["link add tunnel type gre local {local} remote {remote} key 7 csum"],
    ),
    device("gretap", Family::V4, &["link add tunnel type gretap local {local} remote {remote}"]),
    device(
        "gre over IPv6",
        Family::V6,
        &["link add tunnel type ip6gre local {local} remote {remote}"],
    ),
    device("ipip", Family::V4, &["link add tunnel type ipip local {local} remote {remote}"]),
    device(
        "ipip in UDP",
        Family::V4,
        &[
            "fou add port 5555 ipproto 4",
            "link add tunnel type ipip local {local} remote {remote} encap fou encap-sport auto encap-dport 5555",
        ],
    ),
    ip_in_ip("6in6", "encap.red"),
    ip_in_ip("6in6 with routing header", "encap"),
];

struct Tunnel {
    name: &'static str,
    outer: Family,
    inner: Family,
    add: &'static [&'static str],
    /// The mode in which routes add the outer header if there is no device.
    mode: &'static str,
    up: &'static [&'static str],
    down: &'static [&'static str],
}

const fn device(name: &'static str, outer: Family, add: &'static [&'static str]) -> Tunnel {
    let up: &[&str] = &["addr add 198.51.100.{n}/24 dev tunnel", "link set tunnel up"];
    Tunnel { name, outer, inner: Family::V4, add, mode: "", up, down: &["link del tunnel"] }
}

/// Segment routing (RFC 8986), the only IP-in-IP tunnel without a device.
const fn ip_in_ip(name: &'static str, mode: &'static str) -> Tunnel {
    let add = &[
        "sr tunsrc set {local}",
        "route add 2001:db8:5::{n}/128 encap seg6local action End.DT6 table 255 dev eth0",
    ];
    let up = &[
        "addr add 2001:db8:7::{n}/128 dev lo nodad",
        "route add 2001:db8:5::{m}/128 via {remote}",
        "route add 2001:db8:7::{m}/128 encap seg6 mode {mode} segs 2001:db8:5::{m} dev eth0 mtu 1400 src 2001:db8:7::{n}",
    ];
    let down = &[
        "route del 2001:db8:5::{n}/128",
        "route del 2001:db8:5::{m}/128",
        "route del 2001:db8:7::{m}/128",
        "addr del 2001:db8:7::{n}/128 dev lo",
    ];
    Tunnel { name, outer: Family::V6, inner: Family::V6, add, mode, up, down }
}

impl Tunnel {
    /// Runs commands of ip(8) on the client, number 1, or the server, number 2.
    fn at(&self, lab: &Lab, number: u8, commands: &[&str]) -> Result<()> {
        let [client, server] = [lab.client_address(self.outer), lab.server_address(self.outer)];
        let (namespace, local, remote): (&Namespace, _, _) = match number {
            1 => (lab.client(), client, server),
            _ => (lab.server(), server, client),
        };
        let fill = |command: &&str| {
            command
                .replace("{local}", &local.to_string())
                .replace("{remote}", &remote.to_string())
                .replace("{n}", &number.to_string())
                .replace("{m}", &(3 - number).to_string())
                .replace("{mode}", self.mode)
        };
        let commands: Vec<_> = commands.iter().map(fill).collect();
        namespace.ip(&commands.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn server(&self) -> IpAddr {
        match self.inner {
            Family::V4 => [198, 51, 100, 2].into(),
            Family::V6 => [0x2001, 0xdb8, 7, 0, 0, 0, 0, 2].into(),
        }
    }
}

/// The frames and bytes that the client has sent.
fn from_client(lab: &Lab) -> Result<(u64, u64)> {
    let status = stateway(lab).query(&["status"])?;
    let ports = status["ports"].as_array().expect("an array");
    let port = ports.iter().find(|port| port["name"] == "lan0").expect("lan0 is a port");
    let number = |name: &str| port[name].as_u64().expect("a number");
    Ok((number("received"), number("received_bytes")))
}

fn refused(lab: &Lab) -> Result<Vec<Value>> {
    let status = stateway(lab).query(&["status"])?;
    let reasons = ["output_invalid", "output_too_long", "no_output_port"];
    Ok(reasons.map(|reason| status["totals"]["drops"][reason].clone()).to_vec())
}

/// Sends traffic through a tunnel whose device exists on the client.
fn carry(lab: &Lab, tunnel: &Tunnel, web: &HttpServer) -> Result<()> {
    let (name, server) = (tunnel.name, tunnel.server());
    tunnel.at(lab, 2, tunnel.add)?;
    for number in [1, 2] {
        tunnel.at(lab, number, tunnel.up)?;
    }
    // The kernel finishes a new IPv6 address in the background and has no route to it until then.
    // So the first ping may be lost, and a few on a busy machine.
    for _ in 0..20 {
        if ping(lab.on_client("ping"), server, 1)?.received == 1 {
            break;
        }
    }
    assert_eq!(ping(lab.on_client("ping"), server, 2)?.received, 2, "{name}");
    let before = from_client(lab)?;
    let report = iperf_tcp_to(lab, server, SHORT, 1)?;
    let after = from_client(lab)?;
    let got = web.download_from(lab, server)?;
    assert_eq!((got.status, got.bytes, got.intact), (200, DOWNLOAD as u64, true), "{name}");
    let length = (after.1 - before.1) / (after.0 - before.0);
    println!(
        "{name}: {:.2} Gbit/s, {} retransmits, {length} bytes a frame",
        report.bits_per_second / 1e9,
        report.retransmits
    );
    assert!(report.bytes > 10_000_000, "{name}: {report:?}");
    assert!(length > 4000, "{name}: no super-packets, frames have {length} bytes");
    assert_eq!(refused(lab)?, [0, 0, 0], "{name}");
    for number in [1, 2] {
        tunnel.at(lab, number, tunnel.down)?;
    }
    Ok(())
}

#[test]
fn super_packets_in_tunnels_arrive() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        let web = HttpServer::start(&lab, DOWNLOAD)?;
        let settings = ["net.ipv6.conf.all.seg6_enabled=1", "net.ipv6.conf.eth0.seg6_enabled=1"];
        for namespace in [lab.client(), lab.server()] {
            // If the kernel has no segment routing, those tunnels are skipped.
            let _ = namespace.sysctl(settings);
        }
        for tunnel in &TUNNELS {
            if let Err(error) = tunnel.at(&lab, 1, tunnel.add) {
                let text = format!("SKIPPED: {}: {error}\n", tunnel.name);
                stderr().write_all(text.as_bytes()).unwrap();
                continue;
            }
            carry(&lab, tunnel, &web)?;
        }
        stop_cleanly(&mut lab)
    });
}
