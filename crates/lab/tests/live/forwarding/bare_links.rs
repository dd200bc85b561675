//! Routers with a link whose packets have no Ethernet header: WireGuard and OpenVPN in userspace, and
//! what the kernel of this machine has of tunnels.

use lab::{Background, Error, Family, Lab, Namespace, Result, Stateway, Tracking, ping};

use crate::scenario::{
    FAMILIES, alone, every_client, every_request, fragments_arrive, inside, kernel_router, load_of,
    nat_rules, outside, router_spec, routes_show, soon, start_in,
};

/// The MTU that WireGuard chooses for its interface.
const WIREGUARD_MTU: u32 = 1420;
/// The addresses of the cable below a tunnel, at the router and at the other end.
const BELOW: [&str; 2] = ["203.0.113.193", "203.0.113.194"];

/// Turns the cable between the router and the host at its other end into one below a tunnel. Its
/// interfaces are called `below` then.
fn lay_below(lab: &Lab, host: &Namespace, port: &str) -> Result<()> {
    for (end, name, address) in [(lab.gateway(), port, BELOW[0]), (host, "eth0", BELOW[1])] {
        end.ip(&[
            &format!("link set {name} down"),
            &format!("link set {name} name below"),
            "addr flush dev below",
            "link set below up",
            &format!("addr add {address}/30 dev below"),
        ])?;
    }
    Ok(())
}

/// Gives the tunnel `wan0` of the router, and `eth0` of the server, the addresses and routes of the
/// cable.
fn addresses_of_wan(lab: &Lab) -> Result<()> {
    lab.gateway().ip(&[
        "addr replace 198.51.100.254/24 dev wan0",
        "addr replace 2001:db8:2::fe/64 dev wan0 nodad",
        "link set wan0 up",
        "route replace default dev wan0",
        "route replace default via 2001:db8:2::2 dev wan0",
    ])?;
    lab.server().ip(&[
        "addr replace 198.51.100.2/24 dev eth0",
        "addr replace 2001:db8:2::2/64 dev eth0 nodad",
        "link set eth0 up",
        "route replace 192.0.2.0/24 dev eth0",
        "route replace 2001:db8:1::/64 dev eth0",
    ])
}

/// Starts WireGuard in userspace as interface `name`. Its command socket is in a directory of the
/// namespace.
fn wireguard(host: &Namespace, name: &str) -> Result<Background> {
    if host.program("which").args(["wireguard-go", "wg"]).check().is_err() {
        let why = "wireguard-go or wg (packages wireguard-go and wireguard-tools) is not there";
        return Err(Error::Unavailable { why: why.into() });
    }
    let mut running = host.program("wireguard-go").args(["-f", name]).spawn()?;
    let socket = format!("/run/wireguard/{name}.sock");
    running.wait_for("its command socket", || {
        Ok(host.program("test").args(["-S", &socket]).run()?.code == Some(0))
    })?;
    Ok(running)
}

/// A WireGuard tunnel as `wan0`, between the router and the server.
struct Tunnel {
    /// The two programs.
    ends: [Background; 2],
    /// The files with the private keys, and the public keys.
    keys: [(String, String); 2],
}

impl Tunnel {
    fn new(lab: &Lab) -> Result<Self> {
        lay_below(lab, lab.server(), "wan0")?;
        for host in [lab.gateway(), lab.server()] {
            let made = "mount -t tmpfs run /run && mkdir /run/wireguard";
            host.program("sh").args(["-c", made]).check()?;
        }
        let ends = [wireguard(lab.gateway(), "wan0")?, wireguard(lab.server(), "eth0")?];
        let key = |host: &Namespace| -> Result<(String, String)> {
            let private = host.program("wg").args(["genkey"]).check()?;
            let public = host.program("wg").args(["pubkey"]).input(private.clone()).check()?;
            Ok((host.write_file("key", private.as_bytes())?, public.trim().to_owned()))
        };
        let keys = [key(lab.gateway())?, key(lab.server())?];
        let tunnel = Self { ends, keys };
        tunnel.configure(lab)?;
        Ok(tunnel)
    }

    /// Ends the router's side, and with it the interface.
    fn end(self, lab: &Lab) -> Result<(Background, [(String, String); 2])> {
        let [own, other] = self.ends;
        own.terminate()?;
        soon("the interface has gone", || {
            let shown = lab.gateway().program("ip").args(["link", "show", "wan0"]).run()?;
            Ok(shown.code != Some(0))
        })?;
        Ok((other, self.keys))
    }

    /// Begins the router's side anew.
    fn again(lab: &Lab, other: Background, keys: [(String, String); 2]) -> Result<Self> {
        let tunnel = Self { ends: [wireguard(lab.gateway(), "wan0")?, other], keys };
        tunnel.configure(lab)?;
        Ok(tunnel)
    }

    fn configure(&self, lab: &Lab) -> Result<()> {
        let [own, other] = &self.keys;
        for (host, name, (key, _), (_, peer), at) in [
            (lab.gateway(), "wan0", own, other, BELOW[1]),
            (lab.server(), "eth0", other, own, BELOW[0]),
        ] {
            let endpoint = format!("{at}:51820");
            let args = ["set", name, "listen-port", "51820", "private-key", key, "peer", peer];
            let peer = ["endpoint", &endpoint, "allowed-ips", "0.0.0.0/0,::/0"];
            host.program("wg").args(args).args(peer).check()?;
        }
        addresses_of_wan(lab)?;
        soon("both ends of the tunnel have agreed on keys", || {
            let server = lab.server_address(Family::V4);
            Ok(ping(lab.gateway().program("ping"), server, 1)?.received == 1)
        })
    }
}

/// Checks that packets that are too long for the tunnel are refused with its MTU. The client
/// remembers that, and sends fragments that fit.
fn tells_mtu(lab: &Lab, mtu: u32) -> Result<()> {
    for family in FAMILIES {
        let to = lab.server_address(family).to_string();
        let args = ["-n", "-c", "1", "-W", "2", "-M", "do", "-s", "1450", &to];
        let said = lab.on_client("ping").args(args).run()?.stdout;
        let from = inside(family);
        let told = match family {
            Family::V4 => format!("From {from} icmp_seq=1 Frag needed and DF set (mtu = {mtu})"),
            Family::V6 => format!("From {from} icmp_seq=1 Packet too big: mtu={mtu}"),
        };
        assert!(said.contains(&told), "{said}");
    }
    Ok(())
}

/// Checks that every program and fragments get through, and that each hop is shown once.
fn carries(lab: &Lab) -> Result<()> {
    every_client(lab)?;
    fragments_arrive(lab)?;
    routes_show(lab, |family| vec![inside(family).parse().unwrap()])
}

fn stop(stateway: Stateway) -> Result<()> {
    let output = stateway.stop()?;
    assert_eq!(output.code, Some(0), "{}", output.stdout);
    Ok(())
}

fn wireguard_with(workers: u32) {
    alone(|| {
        let lab = kernel_router(Tracking::Off)?;
        let _tunnel = Tunnel::new(&lab)?;
        let stateway = start_in(lab.gateway(), &router_spec(workers)?)?;
        tells_mtu(&lab, WIREGUARD_MTU)?;
        carries(&lab)?;
        // The host itself goes on using the tunnel.
        for family in FAMILIES {
            let to = outside(family).parse().unwrap();
            assert_eq!(ping(lab.on_server("ping"), to, 3)?.received, 3, "{family:?}");
        }
        stop(stateway)
    });
}

#[test]
fn wireguard_is_a_wan_with_one_worker() {
    wireguard_with(1);
}

#[test]
fn wireguard_is_a_wan_with_two_workers() {
    wireguard_with(2);
}

#[test]
fn clients_are_masqueraded_behind_wireguard() {
    alone(|| {
        let lab = kernel_router(Tracking::Off)?;
        let _tunnel = Tunnel::new(&lab)?;
        // Only translated packets are answered.
        lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        load_of(&lab, &stateway, &nat_rules(&[], "masquerade"))?;
        tells_mtu(&lab, WIREGUARD_MTU)?;
        every_request(&lab)?;
        fragments_arrive(&lab)?;
        stop(stateway)
    });
}

#[test]
fn a_bare_link_goes_and_comes_back() {
    alone(|| {
        let lab = kernel_router(Tracking::Off)?;
        let tunnel = Tunnel::new(&lab)?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        every_request(&lab)?;
        let (other, keys) = tunnel.end(&lab)?;
        let is_up = |up: bool| -> Result<bool> {
            let status = stateway.query(&["status"])?;
            Ok(status["ports"][1]["up"] == up)
        };
        soon("the gateway has noticed", || is_up(false))?;
        let _tunnel = Tunnel::again(&lab, other, keys)?;
        soon("the gateway has noticed that it is back", || is_up(true))?;
        every_request(&lab)?;
        stop(stateway)
    });
}

/// Starts OpenVPN between the router, as `lan0`, and the client, as `eth0`.
fn openvpn_lan(lab: &Lab) -> Result<[Background; 2]> {
    if lab.gateway().program("which").args(["openvpn"]).check().is_err() {
        return Err(Error::Unavailable { why: "openvpn is not there".into() });
    }
    lay_below(lab, lab.client(), "lan0")?;
    let key =
        lab.gateway().program("openvpn").args(["--genkey", "secret", "/dev/stdout"]).check()?;
    let start = |host: &Namespace, name: &str, to: &str, ends: [&str; 4]| -> Result<Background> {
        let key = host.write_file("key", key.as_bytes())?;
        let [v4, peer, v6, peer_v6] = ends;
        host.program("openvpn")
            .args(["--dev", name, "--dev-type", "tun", "--proto", "udp", "--remote", to])
            .args(["--secret", &key, "--cipher", "AES-256-CBC", "--ping", "1"])
            .args(["--ifconfig", v4, peer, "--ifconfig-ipv6", v6, peer_v6])
            .spawn()
    };
    let (v4, v6) = (["192.0.2.254", "192.0.2.1"], ["2001:db8:1::fe", "2001:db8:1::1"]);
    let v6_net = v6.map(|address| format!("{address}/64"));
    let ends = [[v4[0], v4[1], &v6_net[0], v6[1]], [v4[1], v4[0], &v6_net[1], v6[0]]];
    let mut running = [
        start(lab.gateway(), "lan0", BELOW[1], ends[0])?,
        start(lab.client(), "eth0", BELOW[0], ends[1])?,
    ];
    for end in &mut running {
        end.wait_for_text("Initialization Sequence Completed")?;
    }
    lab.client().ip(&[
        "route replace default dev eth0",
        "route replace default via 2001:db8:1::fe dev eth0",
    ])?;
    Ok(running)
}

#[test]
fn openvpn_is_a_lan() {
    alone(|| {
        let lab = kernel_router(Tracking::Off)?;
        let _tunnel = openvpn_lan(&lab)?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        carries(&lab)?;
        stop(stateway)
    });
}
