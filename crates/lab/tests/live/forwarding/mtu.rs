//! A gateway between links of different MTUs.

use lab::{Family, HttpServer, Lab, Namespace, Result, Transport, ping};

use crate::scenario::{
    FAMILIES, beside_others, bridge, bridge_spec, drops, ready, soon, stateway, stop_cleanly,
    with_config,
};

/// Gives the server's side an MTU of 9000 bytes. The client, whose link has an MTU of 1500,
/// announces segments as long as the server's. Only path MTU discovery can find out that they do
/// not get there.
fn make_a_step(lab: &Lab) -> Result<()> {
    lab.gateway().ip(&["link set wan0 mtu 9000"])?;
    lab.server().ip(&["link set eth0 mtu 9000"])?;
    for family in FAMILIES {
        let prefix = if family == Family::V4 { 32 } else { 128 };
        let server = lab.server_address(family);
        let route = format!("route add {server}/{prefix} dev eth0 advmss 8900");
        lab.client().ip(&[&route])?;
    }
    Ok(())
}

/// The output of a `ping` of 4000 bytes from the server to the client.
fn long_ping(lab: &Lab, family: Family) -> Result<String> {
    let client = lab.client_address(family).to_string();
    let args = ["-n", "-c", "1", "-W", "3", "-M", "do", "-s", "4000", &client];
    Ok(lab.on_server("ping").args(args).run()?.stdout)
}

fn refusals(lab: &Lab) -> Result<u64> {
    drops(stateway(lab), "frag_needed")
}

/// True if the counters balance: the packets received and created are those sent or dropped. The
/// test sent at least five requests and answers in three fragments each, and two errors.
fn books_balance(lab: &Lab) -> Result<bool> {
    let status = stateway(lab).query(&["status"])?;
    let number = |value: &serde_json::Value| value.as_u64().expect("a counter");
    let of_ports = |name: &str| -> u64 {
        status["ports"].as_array().into_iter().flatten().map(|port| number(&port[name])).sum()
    };
    let output = &status["totals"]["output"];
    let drops = status["totals"]["drops"].as_object().expect("an object");
    let dropped: u64 = drops.values().map(number).sum();
    let [cut, failed, made, errors] = ["frag_oks", "frag_fails", "frag_creates", "icmp_out_msgs"]
        .map(|name| number(&output[name]));
    assert!(cut >= 5 && made >= 3 * cut, "{output}");
    assert_eq!((failed, errors), (2, 2), "{output}");
    // They do not balance while a packet is in flight.
    Ok(of_ports("received") + made + errors == cut + of_ports("sent") + dropped)
}

/// The path MTU to the client that the server has learnt, if any.
fn learnt(lab: &Lab, family: Family) -> Result<Option<String>> {
    let client = lab.client_address(family).to_string();
    let route = lab.on_server("ip").args(["route", "get", &client]).check()?;
    let mut words = route.split_whitespace().skip_while(|word| *word != "mtu");
    Ok(words.nth(1).map(str::to_owned))
}

#[test]
fn pings_cross_a_step_or_say_why_not() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        make_a_step(&lab)?;
        let program = lab.on_server("ping").args(["-M", "dont", "-s", "4000"]);
        let report = ping(program, lab.client_address(Family::V4), 5)?;
        assert_eq!((report.sent, report.received), (5, 5), "cut by the gateway");
        assert_eq!((refusals(&lab)?, learnt(&lab, Family::V4)?), (0, None), "nobody was told");
        for (family, expected) in [
            (Family::V4, "Frag needed and DF set (mtu = 1500)"),
            (Family::V6, "Packet too big: mtu=1500"),
        ] {
            let said = long_ping(&lab, family)?;
            let from = format!("From {} ", lab.client_address(family));
            assert!(said.contains(expected) && said.contains(&from), "{said}");
        }
        assert_eq!(refusals(&lab)?, 2);
        soon("the books balance", || books_balance(&lab))?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn tcp_finds_the_mtu_behind_a_step() {
    const BYTES: usize = 10_000_000;
    beside_others(|| {
        let mut lab = bridge(2)?;
        make_a_step(&lab)?;
        let server = HttpServer::start(&lab, BYTES)?;
        for family in FAMILIES {
            let before = refusals(&lab)?;
            let got = server.download(&lab, family)?;
            assert_eq!((got.bytes, got.intact), (BYTES as u64, true), "{family:?}");
            assert!(refusals(&lab)? > before, "{family:?}: no segment was too long");
            assert_eq!(learnt(&lab, family)?.as_deref(), Some("1500"), "{family:?}");
        }
        stop_cleanly(&mut lab)
    });
}

/// Sends eight datagrams in one super-packet (UDP_SEGMENT, udp(7)), without "don't fragment".
const SEND: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: IP_PMTUDISC_DONT
s.setsockopt(socket.IPPROTO_UDP, 103, 4000)  # UDP_SEGMENT
s.sendto(bytes(n // 4000 for n in range(31000)), (sys.argv[1], 4002))
";
const RECEIVE: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 4002))
s.settimeout(5)
for n in range(8):
    d = s.recv(9000)
    print(len(d), d == bytes([n]) * len(d), flush=True)
";

#[test]
fn datagrams_of_a_super_packet_cross_a_step_in_fragments() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        make_a_step(&lab)?;
        let mut receiver = lab.on_client("python3").args(["-c", RECEIVE]).spawn()?;
        receiver.wait_for_port(Transport::Udp, 4002)?;
        let client = lab.client_address(Family::V4).to_string();
        lab.on_server("python3").args(["-c", SEND, &client]).check()?;
        let received = receiver.finish()?.stdout;
        assert_eq!(received, ["4000 True\n".repeat(7), "3000 True\n".into()].concat());
        let status = stateway(&lab).query(&["status"])?;
        let output = &status["totals"]["output"];
        assert_eq!((&output["frag_oks"], &output["frag_creates"]), (&1.into(), &24.into()));
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_changed_mtu_is_noticed() {
    beside_others(|| {
        let mut lab = bridge(1)?;
        lab.server().ip(&["link set eth0 mtu 9000"])?;
        lab.client().ip(&["link set eth0 mtu 9000"])?;
        lab.gateway().ip(&["link set wan0 mtu 9000", "link set lan0 mtu 9000"])?;
        soon("packets of 8000 bytes get through", || {
            lab.server().ip(&["route flush cache"])?;
            let program = lab.on_server("ping").args(["-M", "do", "-s", "8000"]);
            Ok(ping(program, lab.client_address(Family::V4), 1)?.received == 1)
        })?;
        lab.gateway().ip(&["link set lan0 mtu 1500"])?;
        soon("packets of 4000 bytes are answered", || {
            Ok(long_ping(&lab, Family::V4)?.contains("mtu = 1500"))
        })?;
        stop_cleanly(&mut lab)
    });
}

const SINK: &str = "
import socket
c, _ = socket.create_server(('::', 4003), family=socket.AF_INET6).accept()
while c.recv(1 << 20):
    pass
";
const SOURCE: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], 4003))
while True:
    s.sendall(bytes(1 << 22))
";

/// Super-packets of more than 64 KiB (ip-link(8), `gso_max_size`).
#[test]
fn super_packets_that_are_too_long_have_a_reason() {
    beside_others(|| {
        let mut lab = bridge(1)?;
        let size = "link set eth0 gso_max_size 200000";
        if let Err(error) = lab.client().ip(&[size]) {
            println!("SKIPPED: {error}");
            return Ok(());
        }
        let mut sink = lab.on_server("python3").args(["-c", SINK]).spawn()?;
        sink.wait_for_port(Transport::Tcp, 4003)?;
        let server = lab.server_address(Family::V6).to_string();
        let source = lab.on_client("python3").args(["-c", SOURCE, &server]).spawn()?;
        soon("a super-packet is too long", || Ok(drops(stateway(&lab), "frame_too_long")? > 0))?;
        source.terminate()?;
        let status = stateway(&lab).query(&["status"])?;
        let lost = |port: &serde_json::Value| port["lost"] == 0;
        assert!(status["ports"].as_array().is_some_and(|ports| ports.iter().all(lost)), "{status}");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn an_interface_that_makes_super_packets_too_long_is_named_at_the_start() {
    beside_others(|| {
        let namespace = Namespace::new("long")?;
        for name in ["lan0", "wan0"] {
            let add = format!("link add {name} type veth peer name other-{name}");
            namespace.ip(&[&add, &format!("link set {name} up")])?;
        }
        namespace.ip(&["link set wan0 gso_max_size 200000"])?;
        let config = bridge_spec(1)?.config(&["lan0", "wan0"]);
        let gateway = ready(with_config(&namespace, "run", &config)?)?;
        let log = gateway.terminate()?.stdout;
        let said = "wan0 makes super-packets of up to 200000 bytes";
        assert!(log.contains(said) && !log.contains("lan0 makes"), "{log}");
        Ok(())
    });
}
