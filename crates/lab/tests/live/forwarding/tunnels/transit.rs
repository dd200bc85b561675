//! Tunnels between hosts, through the forwarding kernel, a bridge and a router of ours with the
//! same rules. The tests compare which packets each host receives, from which address and with
//! which content.

use lab::{Background, Family, Lab, Namespace, Program, Result, StatewaySpec, Tracking, ping};

use crate::scenario::{
    beside_others, bridge_spec, drops, kernel_router, ready, soon, start, stateway_binary,
    stop_cleanly,
};

const TALK: &[u8] = include_bytes!("transit.py");
const V4: [&str; 5] = ["ipip", "6in4", "gre", "gre-key", "gre-number"];
const V6: [&str; 3] = ["4in6", "6in6", "gre6"];

/// Clients may open tunnels, and any host may ask for names, also inside the tunnels.
const RULES: &str = "
table inet gateway {
    chain forward {
        type filter hook forward priority filter; policy drop;
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        ct state established,related counter accept
        iifname lan0 meta l4proto { 4, 41, 47 } counter accept
        udp dport 53 counter accept
    }
}
";
const MASQUERADE: &str = "
table inet translated {
    chain out {
        type nat hook postrouting priority srcnat; policy accept;
        oifname wan0 masquerade
    }
}
";

fn talk(host: &Namespace) -> Result<Program> {
    let script = host.write_file("transit.py", TALK)?;
    Ok(host.program("python3").args([script]))
}

fn hearing(host: &Namespace) -> Result<Background> {
    ready(talk(host)?.args(["hear"]))
}

/// Sends packets of this many flows inside tunnels of each of these kinds.
fn say(
    host: &Namespace,
    from: &str,
    kinds: &[&str],
    to: &str,
    flows: u32,
    what: &str,
) -> Result<()> {
    let words = kinds.iter().map(|kind| format!("{from},{kind},{to},{flows},{what}"));
    talk(host)?.args(["say"]).args(words).check().map(drop)
}

/// The lines that a host has printed until the end, sorted. The first line says that it is ready,
/// and is left out.
fn heard(hearing: Background) -> Result<Vec<String>> {
    let said = hearing.finish()?.stdout;
    let mut lines: Vec<String> = said.lines().skip(1).map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
}

/// Waits until a host has heard all flows of this many kinds.
fn has_heard(hearing: &Background, kinds: usize) -> Result<()> {
    let all = 1 + FLOWS as usize * kinds;
    soon("the packets have come", || Ok(hearing.log().lines().count() >= all))
}

/// Compares what hosts hear with the same rules in the forwarding kernel and in a gateway of ours.
fn both(rules: &str, routed: bool, talks: impl Fn(&Lab) -> Result<Vec<Vec<String>>>) -> Result<()> {
    stateway_binary()?;
    let kernel = kernel_router(Tracking::Conntrack)?;
    kernel.gateway().load_rules(&format!("flush ruleset\n{rules}"))?;
    let theirs = talks(&kernel)?;
    let spec = StatewaySpec { routed, ruleset: Some(rules.to_owned()), ..bridge_spec(2)? };
    let mut lab = start(spec)?;
    if routed {
        // A burst to a host with an unresolved link address would overflow the queue of waiting
        // packets.
        for host in [lab.client_address(Family::V4), lab.server_address(Family::V4)] {
            assert_eq!(ping(lab.gateway().program("ping"), host, 1)?.received, 1);
        }
    }
    let ours = talks(&lab)?;
    assert_eq!(ours, theirs, "routed: {routed}");
    stop_cleanly(&mut lab)
}

const FLOWS: u32 = 40;

/// The replies that the client and the server get. The server's address depends on whether the gateway is a
/// bridge.
fn opened_by_the_client(lab: &Lab) -> Result<Vec<Vec<String>>> {
    let (client, server) = (lab.client(), lab.server());
    let ways = [(&V4[..], Family::V4), (&V6[..], Family::V6)].map(|(kinds, family)| {
        let [inside, outside] = [lab.client_address(family), lab.server_address(family)];
        (kinds, inside.to_string(), outside.to_string())
    });
    let hearing = [hearing(client)?, hearing(server)?];
    for (kinds, inside, _) in &ways {
        say(server, "-", kinds, inside, FLOWS, "before")?;
    }
    let kinds = V4.len() + V6.len();
    // Each worker takes its packets in its own time.
    if let Some(gateway) = lab.stateway() {
        let all = u64::from(FLOWS) * kinds as u64;
        soon("all are refused", || Ok(drops(gateway, "policy_refused")? >= all))?;
    }
    for (kinds, _, outside) in &ways {
        say(client, "-", kinds, outside, FLOWS, "opens")?;
    }
    has_heard(&hearing[1], kinds)?;
    for (kinds, inside, _) in &ways {
        say(server, "-", kinds, inside, FLOWS, "answers")?;
    }
    has_heard(&hearing[0], kinds)?;
    say(server, "-", &V4[..1], &ways[0].1, 1, "end")?;
    say(client, "-", &V4[..1], &ways[0].2, 1, "end")?;
    let heard = hearing.map(heard);
    let mut heard = heard.into_iter().collect::<Result<Vec<_>>>()?;
    for lines in &mut heard {
        assert_eq!(lines.len(), 1 + FLOWS as usize * kinds);
        for line in lines {
            for (_, _, outside) in &ways {
                *line = line.replace(outside, "server");
            }
        }
    }
    Ok(heard)
}

#[test]
fn a_host_that_rules_close_hears_of_no_tunnel_whatever_it_carries() {
    beside_others(|| {
        for routed in [false, true] {
            both(RULES, routed, opened_by_the_client)?;
        }
        Ok(())
    });
}

/// The replies that the hosts get if the server has no route to the two clients.
fn behind_one_address(lab: &Lab) -> Result<Vec<Vec<String>>> {
    let (client, server) = (lab.client(), lab.server());
    server.ip(&["route del 192.0.2.0/24"])?;
    client.ip(&["addr add 192.0.2.21/24 dev eth0"])?;
    let hearing = [hearing(client)?, hearing(server)?];
    let (own, to) = ("198.51.100.254", "198.51.100.2");
    say(client, "192.0.2.1", &V4, to, FLOWS, "first")?;
    has_heard(&hearing[1], V4.len())?;
    say(client, "192.0.2.21", &V4, to, FLOWS, "second")?;
    say(server, "-", &V4, own, FLOWS, "answers")?;
    say(server, "-", &V4[..1], own, 1, "end")?;
    say(client, "192.0.2.1", &V4[..1], to, 1, "end")?;
    hearing.into_iter().map(heard).collect()
}

#[test]
fn a_masquerade_changes_tunnels_and_nothing_inside_as_the_kernels() {
    beside_others(|| both(&format!("{RULES}{MASQUERADE}"), true, behind_one_address));
}
