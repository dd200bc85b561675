//! Routers whose `wan0` or `lan0` is a link over the cable that is there otherwise: a tunnel, or a
//! link whose packets have no Ethernet header.

use lab::{Family, Lab, Namespace, Result, Stateway, ping};

use super::{FAMILIES, every_client, fragments_arrive, inside, routes_show, soon};

/// The MTU that WireGuard chooses for its interface.
pub const WIREGUARD_MTU: u32 = 1420;
/// The addresses of the cable below a tunnel, at the router and at the other end.
pub const BELOW: [&str; 2] = ["203.0.113.193", "203.0.113.194"];

/// Turns the cable between the router and the host at its other end into one below a tunnel. Its
/// interfaces are called `below` then.
pub fn lay_below(lab: &Lab, host: &Namespace, port: &str) -> Result<()> {
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
pub fn addresses_of_wan(lab: &Lab) -> Result<()> {
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

/// The file with the private key, and the public key, of each end of a WireGuard tunnel.
pub type WireguardKeys = [(String, String); 2];

/// Makes keys for the router and the server.
pub fn wireguard_keys(lab: &Lab) -> Result<WireguardKeys> {
    let key = |host: &Namespace| -> Result<(String, String)> {
        let private = host.program("wg").args(["genkey"]).check()?;
        let public = host.program("wg").args(["pubkey"]).input(private.clone()).check()?;
        Ok((host.write_file("key", private.as_bytes())?, public.trim().to_owned()))
    };
    Ok([key(lab.gateway())?, key(lab.server())?])
}

/// Configures the ends of a WireGuard tunnel, `wan0` of the router and `eth0` of the server.
pub fn agree_on_wireguard(lab: &Lab, [own, other]: &WireguardKeys) -> Result<()> {
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

/// Checks that packets that are too long for the tunnel are refused with its MTU. The client
/// remembers that, and sends fragments that fit.
pub fn tells_mtu(lab: &Lab, mtu: u32) -> Result<()> {
    for family in FAMILIES {
        let to = lab.server_address(family).to_string();
        // Both are packets of 1500 bytes.
        let payload = match family {
            Family::V4 => "1472",
            Family::V6 => "1452",
        };
        let args = ["-n", "-c", "1", "-W", "2", "-M", "do", "-s", payload, &to];
        let said = lab.on_client("ping").args(args).run()?.stdout;
        let from = inside(family);
        let message = match family {
            Family::V4 => format!("From {from} icmp_seq=1 Frag needed and DF set (mtu = {mtu})"),
            Family::V6 => format!("From {from} icmp_seq=1 Packet too big: mtu={mtu}"),
        };
        assert!(said.contains(&message), "{said}");
    }
    Ok(())
}

/// Checks that every program and fragments get through, and that each hop is shown once.
pub fn carries(lab: &Lab) -> Result<()> {
    every_client(lab)?;
    fragments_arrive(lab)?;
    routes_show(lab, |family| vec![inside(family).parse().unwrap()])
}

pub fn stop(stateway: Stateway) -> Result<()> {
    let output = stateway.stop()?;
    assert_eq!(output.code, Some(0), "{}", output.stdout);
    Ok(())
}
