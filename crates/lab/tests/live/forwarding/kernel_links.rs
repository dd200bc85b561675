//! Routers on the links that Linux distributions have and some kernels are built without: PPP, WireGuard,
//! tunnels of IP packets, VLANs and bonds. Each test names what it lacks where it is skipped.

use lab::{Background, Error, Lab, Namespace, Result, StatewaySpec, Tracking, ping};

use crate::scenario::{
    BELOW, FAMILIES, WIREGUARD_MTU, addresses_of_wan, agree_on_wireguard, beside_others, carries,
    every_request, fragments_arrive, inside, kernel_router, lay_below, load_of, nat_rules,
    router_spec, soon, start_in, stop, tells_mtu, wireguard_keys, with_config,
};

/// The MTU of PPP in an Ethernet frame (RFC 2516), which most PPP links have.
const PPP_MTU: u32 = 1492;

/// Makes a link in the kernel. A kernel that has none of its kind makes the test skip.
fn made(host: &Namespace, link: &str) -> Result<()> {
    let made = host.ip(&[&format!("link add {link}")]);
    made.map_err(|error| Error::Unavailable { why: format!("no such links here: {error}") })
}

/// Makes a pair of pseudo-terminals whose ends are a cable, and prints their names.
const CABLE: &str = "
import os, select, tty
pairs = [os.openpty(), os.openpty()]
for master, slave in pairs:
    tty.setraw(slave)
print(*(os.ttyname(slave) for _, slave in pairs), flush=True)
ends = {pairs[0][0]: pairs[1][0], pairs[1][0]: pairs[0][0]}
while True:
    for end in select.select(list(ends), [], [])[0]:
        data = os.read(end, 65536)
        while data:
            data = data[os.write(ends[end], data):]
";

/// A PPP link as `wan0` of the router, over pseudo-terminals.
fn ppp(lab: &Lab) -> Result<[Background; 3]> {
    let host = lab.gateway();
    if host.program("which").args(["pppd"]).check().is_err() {
        return Err(Error::Unavailable { why: "pppd (package ppp) is not there".into() });
    }
    lab.gateway().ip(&["link del wan0"])?;
    let mut cable = host.program("python3").args(["-c", CABLE]).spawn()?;
    cable.wait_for_text("\n")?;
    let said = cable.log();
    let terminals: Vec<&str> = said.split_whitespace().collect();
    let start = |host: &Namespace, terminal: &str, name: &str, ends: [&str; 2]| {
        let mtu = PPP_MTU.to_string();
        host.program("pppd")
            .args([terminal, "115200", "nodetach", "local", "noauth", "nocrtscts", "nolock"])
            .args(["noccp", "nobsdcomp", "nodeflate", "novj", "nopcomp", "noaccomp"])
            .args(["ifname", name, "mtu", &mtu, "mru", &mtu, ends[0], "ipv6", ends[1]])
            .spawn()
    };
    let mut running = [
        start(lab.gateway(), terminals[0], "wan0", ["198.51.100.254:198.51.100.2", "::fe,::2"])?,
        start(lab.server(), terminals[1], "eth0", ["198.51.100.2:198.51.100.254", "::2,::fe"])?,
    ];
    for end in &mut running {
        match end.wait_for_text("remote LL address") {
            Err(Error::NotReady { log, .. })
                if ["PPP discipline", "/dev/ppp", "kernel lacks"]
                    .iter()
                    .any(|it| log.contains(it)) =>
            {
                let why = format!("this kernel has no PPP: {}", log.trim());
                return Err(Error::Unavailable { why });
            }
            ready => ready?,
        }
    }
    addresses_of_wan(lab)?;
    let [own, other] = running;
    Ok([own, other, cable])
}

#[test]
fn ppp_is_a_wan() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        let _link = ppp(&lab)?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        tells_mtu(&lab, PPP_MTU)?;
        carries(&lab)?;
        stop(stateway)
    });
}

/// Checks that clients are masqueraded behind `wan0`, and only translated packets are answered.
fn masquerades(lab: &Lab) -> Result<()> {
    lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
    let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
    load_of(lab, &stateway, &nat_rules(&[], "masquerade"))?;
    every_request(lab)?;
    fragments_arrive(lab)?;
    stop(stateway)
}

#[test]
fn clients_are_masqueraded_behind_ppp() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        let _link = ppp(&lab)?;
        masquerades(&lab)
    });
}

#[test]
fn wireguard_of_the_kernel_is_a_wan() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        made(lab.gateway(), "probe type wireguard")?;
        lab.gateway().ip(&["link del probe"])?;
        lay_below(&lab, lab.server(), "wan0")?;
        lab.gateway().ip(&["link add wan0 type wireguard"])?;
        lab.server().ip(&["link add eth0 type wireguard"])?;
        agree_on_wireguard(&lab, &wireguard_keys(&lab)?)?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        tells_mtu(&lab, WIREGUARD_MTU)?;
        carries(&lab)?;
        stop(stateway)?;
        masquerades(&lab)
    });
}

/// Has a tunnel of the kernel as `wan0`, of the kind that `ip link` knows by `kind`.
fn is_a_wan(kind: &str, mtu: u32) {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        lay_below(&lab, lab.server(), "wan0")?;
        let [own, other] = BELOW;
        made(lab.gateway(), &format!("wan0 type {kind} local {own} remote {other}"))?;
        made(lab.server(), &format!("eth0 type {kind} local {other} remote {own}"))?;
        addresses_of_wan(&lab)?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        tells_mtu(&lab, mtu)?;
        carries(&lab)?;
        stop(stateway)?;
        masquerades(&lab)
    });
}

#[test]
fn gre_is_a_wan() {
    is_a_wan("gre", 1476);
}

#[test]
fn ip_in_ip_is_a_wan() {
    is_a_wan("sit mode any", 1480);
}

#[test]
fn a_router_has_a_link_and_a_vlan_of_it() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        made(lab.gateway(), "link lan0 name lan0.5 type vlan id 5")?;
        made(lab.client(), "link eth0 name eth0.5 type vlan id 5")?;
        lab.gateway().ip(&[
            "link set lan0.5 up",
            "addr add 203.0.113.126/25 dev lan0.5",
            "addr add 2001:db8:5::fe/64 dev lan0.5 nodad",
        ])?;
        lab.client().ip(&[
            "link set eth0.5 up",
            "addr add 203.0.113.2/25 dev eth0.5",
            "addr add 2001:db8:5::2/64 dev eth0.5 nodad",
        ])?;
        lab.server().ip(&[
            "route add 203.0.113.0/25 via 198.51.100.254",
            "route add 2001:db8:5::/64 via 2001:db8:2::fe",
        ])?;
        let interfaces = ["lan0", "lan0.5", "wan0"].map(str::to_owned).to_vec();
        let stateway = start_in(lab.gateway(), &StatewaySpec { interfaces, ..router_spec(2)? })?;
        carries(&lab)?;
        lab.client().ip(&[
            "route replace default via 203.0.113.126 dev eth0.5 src 203.0.113.2",
            "route replace default via 2001:db8:5::fe dev eth0.5 src 2001:db8:5::2",
        ])?;
        every_request(&lab)?;
        fragments_arrive(&lab)?;
        // Rules tell the two apart.
        let closed = "table inet filter {
            chain forward {
                type filter hook forward priority filter;
                iifname \"lan0.5\" drop
            }
        }";
        load_of(&lab, &stateway, closed)?;
        for family in FAMILIES {
            assert_eq!(ping(lab.on_client("ping"), lab.server_address(family), 3)?.received, 0);
        }
        stop(stateway)
    });
}

#[test]
fn a_bond_is_a_lan_and_its_parts_are_refused() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        lab.gateway().ip(&["link set lan0 down", "link set lan0 name part0"])?;
        made(lab.gateway(), "lan0 type bond mode active-backup miimon 100")?;
        lab.gateway().ip(&[
            "addr flush dev part0",
            "link set part0 master lan0",
            "link set lan0 up",
            "addr add 192.0.2.254/24 dev lan0",
            "addr add 2001:db8:1::fe/64 dev lan0 nodad",
        ])?;
        let config = router_spec(1)?.config(&["part0", "wan0"]);
        let refused = with_config(lab.gateway(), "check", &config)?.run()?;
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("part0 belongs to bond lan0"), "{}", refused.stderr);
        soon("the bond carries packets", || {
            let at = inside(lab::Family::V6).parse().unwrap();
            Ok(ping(lab.on_client("ping"), at, 1)?.received == 1)
        })?;
        let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
        carries(&lab)?;
        stop(stateway)
    });
}
