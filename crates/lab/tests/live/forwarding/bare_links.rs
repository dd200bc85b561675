//! Routers with a link whose packets have no Ethernet header: WireGuard and OpenVPN in userspace, and
//! what the kernel of this machine has of tunnels.

use lab::{Background, Error, Family, Lab, Namespace, Result, Tracking, ping};

use crate::scenario::{
    BELOW, FAMILIES, WIREGUARD_MTU, WireguardKeys, agree_on_wireguard, beside_others, carries,
    counted, every_request, fragments_arrive, kernel_router, lay_below, load_of, nat_rules,
    outside, router_spec, soon, start_in, stop, tells_mtu, wireguard_keys,
};

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
    keys: WireguardKeys,
}

impl Tunnel {
    fn new(lab: &Lab) -> Result<Self> {
        lay_below(lab, lab.server(), "wan0")?;
        for host in [lab.gateway(), lab.server()] {
            let made = "mount -t tmpfs run /run && mkdir /run/wireguard";
            host.program("sh").args(["-c", made]).check()?;
        }
        let ends = [wireguard(lab.gateway(), "wan0")?, wireguard(lab.server(), "eth0")?];
        let keys = wireguard_keys(lab)?;
        let tunnel = Self { ends, keys };
        agree_on_wireguard(lab, &tunnel.keys)?;
        Ok(tunnel)
    }

    /// Ends the router's side, and with it the interface.
    fn end(self, lab: &Lab) -> Result<(Background, WireguardKeys)> {
        let [own, other] = self.ends;
        own.terminate()?;
        soon("the interface has gone", || {
            let shown = lab.gateway().program("ip").args(["link", "show", "wan0"]).run()?;
            Ok(shown.code != Some(0))
        })?;
        Ok((other, self.keys))
    }

    /// Begins the router's side anew.
    fn again(lab: &Lab, other: Background, keys: WireguardKeys) -> Result<Self> {
        let tunnel = Self { ends: [wireguard(lab.gateway(), "wan0")?, other], keys };
        agree_on_wireguard(lab, &tunnel.keys)?;
        Ok(tunnel)
    }
}

fn wireguard_with(workers: u32) {
    beside_others(|| {
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
    beside_others(|| {
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

/// Counts echo requests and their replies by the types of links, in all forms that nft has for it.
const BY_TYPE: &str = "
table inet t {
    set bare {
        type iface_type
        elements = { ppp, 65534 }
    }
    chain early {
        type filter hook prerouting priority filter; policy accept;
        icmp type { echo-request, echo-reply } jump count
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        icmp type { echo-request, echo-reply } jump count
    }
    chain p {
        type filter hook postrouting priority filter; policy accept;
        icmp type { echo-request, echo-reply } jump count
    }
    chain count {
        iiftype ether counter
        iiftype 65534 counter
        iiftype != ether counter
        iiftype @bare counter
        oiftype ether counter
        oiftype 65534 counter
        oiftype != 65534 counter
        iiftype . oiftype { ether . 65534, 65534 . ether } counter
        jhash iiftype mod 1000 seed 0x1 < 500 counter
        ether saddr != 00:00:5e:00:53:99 counter
        ether type ip counter
        @ll,96,16 0x0800 counter
        ip saddr 192.0.2.1 ether saddr != 00:00:5e:00:53:99 counter
        ip saddr 198.51.100.1 ether daddr != 00:00:5e:00:53:99 counter
        counter
    }
}
";

#[test]
fn rules_know_the_types_of_links_as_the_kernels_do() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        let _tunnel = Tunnel::new(&lab)?;
        let pings = || {
            let server = lab.server_address(Family::V4);
            assert_eq!(ping(lab.on_client("ping"), server, 2)?.received, 2);
            Ok::<_, Error>(())
        };
        soon("the tunnel carries", || {
            let server = lab.server_address(Family::V4);
            Ok(ping(lab.on_client("ping"), server, 1)?.received == 1)
        })?;
        lab.gateway().load_rules(BY_TYPE)?;
        pings()?;
        let theirs = lab.gateway().listed_rules()?;
        let theirs = counted(&serde_json::from_str(&theirs).expect("JSON"));
        lab.gateway().flush_rules()?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        load_of(&lab, &stateway, BY_TYPE)?;
        pings()?;
        let ours = counted(&stateway.query(&["rules", "list"])?);
        assert!(theirs.last().is_some_and(|all| *all == 12), "{theirs:?}");
        assert_eq!(ours, theirs);
        stop(stateway)
    });
}

#[test]
fn a_bare_link_goes_and_comes_back() {
    beside_others(|| {
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
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        let _tunnel = openvpn_lan(&lab)?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        carries(&lab)?;
        stop(stateway)
    });
}
