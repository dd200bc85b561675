//! Tunnels between the kernels of client and server. Our rules also judge the packets inside.

use std::net::IpAddr;

use lab::{Background, Family, Lab, Namespace, Program, Result, StatewaySpec, Transport, ping};

use crate::scenario::{
    StatewayLab, beside_others, bridge_spec, drops, load, ready, start, stateway, stop_cleanly,
};

const TALK: &[u8] = include_bytes!("inner_packets.py");
/// Any host may open tunnels of these kinds, ping, and connect to port 80.
const RULES: &str = "
table inet gateway {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        meta l4proto { 4, 47 } accept
        icmp type echo-request accept
        tcp dport 80 accept
    }
}
";
/// The server's address inside the tunnel.
const SERVER: &str = "10.77.0.2";

fn lab(routed: bool, tunnels: &str) -> Result<StatewayLab> {
    let gateway = format!("tunnels = {tunnels:?}\n");
    let spec = StatewaySpec { routed, gateway, ..bridge_spec(2)? };
    let lab = start(spec)?;
    load(&lab, RULES)?;
    Ok(lab)
}

fn talk(host: &Namespace) -> Result<Program> {
    let script = host.write_file("inner_packets.py", TALK)?;
    Ok(host.program("python3").args([script]))
}

/// One end of a tunnel, which lasts until it is dropped.
fn end(host: &Namespace, number: u8, kind: &str, ends: [IpAddr; 2]) -> Result<Background> {
    let [local, remote] = ends.map(|end| end.to_string());
    let end = ready(talk(host)?.args(["tunnel", kind, &local, &remote]))?;
    let address = format!("addr add 10.77.0.{number}/24 dev tunnel");
    host.ip(&[&address, "link set tunnel mtu 1400 up"])?;
    Ok(end)
}

/// The answers of the server at ports 22 and 80 through a tunnel, and how many pings it answers.
fn answers(lab: &Lab, kind: &str) -> Result<(String, u32)> {
    let [client, server] = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
    let near = end(lab.client(), 1, kind, [client, server])?;
    let far = end(lab.server(), 2, kind, [server, client])?;
    let pinged = ping(lab.on_client("ping"), SERVER.parse().unwrap(), 1)?.received;
    let answered = talk(lab.client())?.args([SERVER, "22", "80"]).check()?.trim().to_owned();
    drop((near, far));
    Ok((answered, pinged))
}

#[test]
fn a_port_that_rules_close_is_closed_inside_tunnels_that_are_judged() {
    beside_others(|| {
        for (routed, tunnels, expected) in
            [(false, "inner", "yy"), (false, "judged", "ny"), (true, "judged", "ny")]
        {
            let mut lab = lab(routed, tunnels)?;
            let mut serving = talk(lab.server())?.args(["serve", "22", "80"]).spawn()?;
            for port in [22, 80] {
                serving.wait_for_port(Transport::Tcp, port)?;
            }
            for kind in ["ipip", "gre"] {
                let found = answers(&lab, kind)?;
                assert_eq!(found, (expected.to_owned(), 1), "{kind}, {tunnels}, routed: {routed}");
            }
            let refused = drops(stateway(&lab), "inside_refused")?;
            assert_eq!(refused > 0, tunnels == "judged");
            drop(serving);
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}
