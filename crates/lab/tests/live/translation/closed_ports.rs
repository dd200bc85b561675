//! Closed ports of a translation address, beside the kernel with the same rules: the sender hears
//! what the host itself would say, and connections of clients and of the host go on.

use lab::{Background, Family, Lab, Namespace, Result, Tracking};

use crate::scenario::{
    FAMILIES, alone, echo, edge_router, kernel_router, masquerading_router, nat_rules, outside,
    ready, soon, stateway, stop_cleanly,
};

/// Sends packets, and prints the answer to each.
const PROBE: &str = include_str!("closed_ports.py");
/// The time to wait for all answers, and the time after which there is none.
const ANSWERS: &str = "15";
const SILENCE: &str = "1";

/// Ports below 1024, those that no kernel takes for itself, and those that clients have.
const PORTS: &str = "1,79,1023,1024,8090,32767,40000,65535";
/// Segments of TCP by their control bits, and a datagram.
const KINDS: &str = "S,S+,SA,A,A+,FA,F,FPU,-,P+,SF,udp";

/// The kernel as gateway with these rules. It tells of as many closed ports as senders ask for.
fn kernel_with(rules: &str) -> Result<Lab> {
    let lab = kernel_router(Tracking::Off)?;
    lab.gateway().load_rules(rules)?;
    lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
    unlimited(&lab)?;
    Ok(lab)
}

/// Lets the host's kernel send as many ICMP errors as it wants, also to the prober alone.
fn unlimited(lab: &Lab) -> Result<()> {
    lab.gateway().sysctl(["net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"])
}

/// The answers to packets of these kinds, sent to each of these ports of the outside address.
fn answers(lab: &Lab, family: Family, wait: &str, ports: &str, kinds: &str) -> Result<Vec<String>> {
    let own = lab.server_address(family).to_string();
    let arguments = ["-c", PROBE, wait, &own, outside(family), ports, kinds];
    let said = lab.on_server("python3").args(arguments).check()?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// Panics unless every probe was met by silence.
fn assert_silent(answers: &[String]) {
    assert!(
        !answers.is_empty() && answers.iter().all(|it| it.ends_with(" silence")),
        "{answers:?}"
    );
}

/// Asks from everywhere: the server, and a client inside.
fn all_answers(lab: &Lab) -> Result<Vec<String>> {
    let mut said = Vec::new();
    for family in FAMILIES {
        for port in PORTS.split(',') {
            // No more in one go than may wait.
            said.extend(answers(lab, family, ANSWERS, port, KINDS)?);
        }
        let own = lab.client_address(family).to_string();
        let arguments = ["-c", PROBE, ANSWERS, &own, outside(family), "80,40000", "S,A,FA,udp"];
        said.extend(lab.on_client("python3").args(arguments).check()?.lines().map(str::to_owned));
    }
    Ok(said)
}

#[test]
fn closed_ports_answer_as_those_of_the_kernel() {
    alone(|| {
        let rules = nat_rules(&[("tcp dport 8080", ":8000")], "masquerade");
        let of_kernel = all_answers(&kernel_with(&rules)?)?;
        assert_eq!(of_kernel.len(), 2 * (8 * 12 + 8));
        let is_one = |said: &String| !said.ends_with(" silence") && !said.contains(" and ");
        assert!(of_kernel.iter().all(is_one), "{of_kernel:?}");
        for workers in [1, 2] {
            let mut lab = edge_router(workers, &rules, "")?;
            unlimited(&lab)?;
            assert_eq!(all_answers(&lab)?, of_kernel, "{workers} workers");
            // Nobody answers a reset.
            assert_silent(&answers(&lab, Family::V4, SILENCE, PORTS, "R,RA")?);
            // A trace by datagrams ends at the address.
            let trace = ["-n", "-q", "1", "-w", "20", outside(Family::V4)];
            let said = lab.on_server("traceroute").args(trace).check()?;
            let last = said.lines().last().unwrap_or_default();
            assert!(last.contains(outside(Family::V4)) && last.contains(" ms"), "{said}");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// Opens a socket and keeps it. It runs with: protocol, address, port.
const BIND: &str = "
import socket, sys, threading
kind = {'tcp': socket.SOCK_STREAM, 'udp': socket.SOCK_DGRAM}[sys.argv[1]]
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET, kind)
s.bind((sys.argv[2], int(sys.argv[3])))
if kind == socket.SOCK_STREAM:
    s.listen()
print('ready', flush=True)
threading.Event().wait()
";

/// A host with a socket.
fn bound(host: &Namespace, protocol: &str, address: &str, port: &str) -> Result<Background> {
    ready(host.program("python3").args(["-c", BIND, protocol, address, port]))
}

#[test]
fn a_socket_of_the_host_is_open_from_its_first_packet_to_its_last() {
    alone(|| {
        let mut lab = masquerading_router(2)?;
        let _services = [echo(lab.gateway(), 8081)?, echo(lab.gateway(), 443)?];
        let v4 = ["0.0.0.0", outside(Family::V4), "::"];
        let v6 = ["::", outside(Family::V6)];
        for (family, addresses) in [(Family::V4, &v4[..]), (Family::V6, &v6)] {
            let said = answers(&lab, family, ANSWERS, "443,8081", "S,udp")?;
            assert_eq!(said.iter().filter(|it| it.contains(" SA ")).count(), 2, "{said:?}");
            assert_eq!(said.iter().filter(|it| it.ends_with("b'hello'")).count(), 2, "{said:?}");
            for (port, address) in ["900", "9000", "40001"].iter().zip(addresses) {
                let says = |tcp: &str, udp: &str| -> Result<()> {
                    let wait = if udp == "silence" { SILENCE } else { ANSWERS };
                    let said = answers(&lab, family, wait, port, "S,udp")?;
                    assert!(said[0].contains(tcp) && said[1].contains(udp), "{address}: {said:?}");
                    Ok(())
                };
                says(" RA ", " icmp ")?;
                let tcp = bound(lab.gateway(), "tcp", address, port)?;
                says(" SA ", " icmp ")?;
                let udp = bound(lab.gateway(), "udp", address, port)?;
                says(" SA ", "silence")?;
                drop((tcp, udp));
                says(" RA ", " icmp ")?;
            }
        }
        stop_cleanly(&mut lab)
    });
}

#[test]
fn an_address_that_the_host_does_not_have_is_routed_as_by_the_kernel() {
    const POOL: [(Family, &str, &str); 2] = [
        (Family::V4, "203.0.113.5", "203.0.113.0/24"),
        (Family::V6, "2001:db8:9::5", "2001:db8:9::/64"),
    ];
    let rules = "table inet pool { chain source {
        type nat hook postrouting priority srcnat
        oifname wan0 snat ip to 203.0.113.5
        oifname wan0 snat ip6 to 2001:db8:9::5
    }
}";
    let prepare = |lab: &Lab| -> Result<()> {
        unlimited(lab)?;
        lab.gateway().ip(&["route del default", "route del default via 2001:db8:2::2"])?;
        POOL.iter().try_for_each(|(family, _, network)| {
            lab.server().ip(&[&format!("route add {network} via {}", outside(*family))])
        })
    };
    let said = |lab: &Lab| -> Result<Vec<String>> {
        let mut said = Vec::new();
        // The kernel tells one sender of no more than five such packets in a row.
        for (family, address, _) in POOL {
            let own = lab.server_address(family).to_string();
            let arguments = ["-c", PROBE, "3", &own, address, "40000", "S,A,udp"];
            let answers = lab.on_server("python3").args(arguments).check()?;
            said.extend(answers.lines().map(str::to_owned));
        }
        Ok(said)
    };
    alone(|| {
        let kernel = kernel_with(rules)?;
        prepare(&kernel)?;
        let of_kernel = said(&kernel)?;
        assert!(of_kernel.iter().all(|it| it.contains(" icmp ")), "{of_kernel:?}");
        drop(kernel);
        let mut lab = edge_router(2, rules, "")?;
        prepare(&lab)?;
        soon("the gateway follows the routes", || Ok(said(&lab)? == of_kernel))?;
        stop_cleanly(&mut lab)
    });
}

/// Sends a line and waits for its echo, again and again, until SIGTERM comes. Then it prints how many
/// lines came back. It runs with: own port, address and port of the other end.
const TALK: &str = "
import signal, socket, sys
is_over = []
signal.signal(signal.SIGTERM, lambda *_: is_over.append(1))
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('', int(sys.argv[1])))
s.connect((sys.argv[2], int(sys.argv[3])))
print('ready', flush=True)
lines = 0
while not is_over:
    s.sendall(b'line')
    assert s.recv(4) == b'line'
    lines += 1
print(lines)
";

/// Sends datagrams and segments that open connections to a port, each from a port of its own. It
/// runs with: address, port, how many of each.
const HAMMER: &str = "
import socket, sys
target, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ':' in target else socket.AF_INET
for source in range(20000, 20000 + int(sys.argv[3])):
    for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
        s = socket.socket(family, kind)
        s.setblocking(False)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(('', source))
        s.connect_ex((target, port))
        if kind == socket.SOCK_DGRAM:
            s.send(b'hello')
        s.close()
";

/// Sends all kinds of packets to a port of the outside address, and many of some.
fn hammer(lab: &Lab, family: Family, port: &str) -> Result<()> {
    answers(lab, family, SILENCE, port, KINDS)?;
    let arguments = ["-c", HAMMER, outside(family), port, "3000"];
    lab.on_server("python3").args(arguments).check().map(drop)
}

#[test]
fn connections_live_while_others_probe_their_ports() {
    alone(|| {
        let mut lab = masquerading_router(2)?;
        let _far = echo(lab.server(), 7001)?;
        let _near = echo(lab.gateway(), 8081)?;
        for family in FAMILIES {
            let talk = |host: &Namespace, port: &str, to: &str, at: &str| {
                ready(host.program("python3").args(["-c", TALK, port, to, at]))
            };
            let server = lab.server_address(family).to_string();
            // A client's connection, one of the host with a client outside, and one that it has
            // opened.
            let talks = [
                talk(lab.client(), "40000", &server, "7001")?,
                talk(lab.server(), "40001", outside(family), "8081")?,
                talk(lab.gateway(), "40002", &server, "7001")?,
            ];
            for port in ["40000", "8081", "40002"] {
                hammer(&lab, family, port)?;
            }
            for talk in talks {
                let said = talk.terminate()?;
                let lines = said.stdout.trim().trim_start_matches("ready").trim();
                assert!(lines.parse::<u32>().is_ok_and(|it| it > 0), "{}", said.stdout);
            }
        }
        stop_cleanly(&mut lab)
    });
}

/// Opens a connection and ends it with a reset. It runs with: own port, address and port of the
/// other end.
const RESET: &str = "
import socket, struct, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
s.bind(('', int(sys.argv[1])))
s.connect((sys.argv[2], int(sys.argv[3])))
s.close()
";

#[test]
fn the_port_of_a_connection_that_has_ended_answers_as_with_the_kernel() {
    // The probe comes from the port of the very server that the client has had.
    let probed = |lab: &Lab, forget: &dyn Fn() -> Result<()>| -> Result<Vec<String>> {
        let _far = echo(lab.server(), 20_000)?;
        let own = lab.server_address(Family::V4).to_string();
        lab.on_client("python3").args(["-c", RESET, "40000", &own, "20000"]).check()?;
        forget()?;
        answers(lab, Family::V4, ANSWERS, "40000", "PA+")
    };
    alone(|| {
        let rules = nat_rules(&[], "masquerade");
        let kernel = kernel_with(&rules)?;
        let flush = || kernel.gateway().program("conntrack").args(["-F"]).check().map(drop);
        let of_kernel = probed(&kernel, &flush)?;
        assert!(of_kernel[0].contains(" R "), "{of_kernel:?}");
        let mut lab = edge_router(2, &rules, "")?;
        let flush = || stateway(&lab).command(&["conntrack", "-F"]).check().map(drop);
        assert_eq!(probed(&lab, &flush)?, of_kernel);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_host_whose_own_chains_may_drop_packets_leaves_closed_ports_silent() {
    const HOLDING: [(&str, bool); 6] = [
        ("chain own { type filter hook input priority 0; policy drop; }", true),
        ("chain own { type filter hook input priority 0; policy accept; }", false),
        ("chain own { type filter hook prerouting priority 0; udp dport 53 drop; }", true),
        ("chain own { type filter hook output priority 0; policy drop; }", true),
        ("chain own { type nat hook prerouting priority -100; tcp dport 1 redirect to 2; }", false),
        ("chain own { type filter hook forward priority 0; policy drop; }", false),
    ];
    alone(|| {
        let mut lab = masquerading_router(2)?;
        for (chain, is_silent) in HOLDING {
            let table = format!("table inet of_host {{\n{chain}\n}}");
            lab.gateway().load_rules(&table)?;
            for family in FAMILIES {
                let wait = if is_silent { SILENCE } else { ANSWERS };
                let said = answers(&lab, family, wait, "40000", "S,A,udp")?;
                match is_silent {
                    true => assert_silent(&said),
                    false => assert!(
                        !said.iter().any(|it| it.ends_with(" silence")),
                        "{chain}: {said:?}"
                    ),
                }
            }
            lab.gateway().program("nft").args(["delete", "table", "inet", "of_host"]).check()?;
        }
        // The former iptables counts as soon as it has a table.
        let legacy = ["-A", "INPUT", "-p", "tcp", "--dport", "1", "-j", "DROP"];
        if lab.gateway().program("iptables-legacy").args(legacy).run()?.code == Some(0) {
            assert_silent(&answers(&lab, Family::V4, SILENCE, "40000", "S,A,udp")?);
        }
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_refusal_in_front_of_a_forward_is_told_as_by_the_kernel() {
    // Port 8080 is forwarded, and ports 8081 and 80 are the host's.
    const REFUSALS: [&str; 3] = ["reject", "reject with tcp reset", "drop"];
    alone(|| {
        let ruleset = |priority: &str, refusal: &str| {
            let chain = format!(
                "table inet early {{ chain early {{
                    type filter hook prerouting priority {priority}; policy accept;
                    iifname \"wan0\" meta l4proto tcp tcp dport 8080 {refusal}
                }}\n}}"
            );
            format!("{chain}\n{}", nat_rules(&[("tcp dport 8080", ":8000")], "masquerade"))
        };
        let said = |lab: &Lab, wait: &str| -> Result<Vec<String>> {
            let of_family = |family| answers(lab, family, wait, "8080,8081,80", "S,A");
            Ok([of_family(Family::V4)?, of_family(Family::V6)?].concat())
        };
        for priority in ["raw", "mangle"] {
            for refusal in REFUSALS {
                let rules = ruleset(priority, refusal);
                let wait = if refusal == "drop" { "3" } else { ANSWERS };
                let of_kernel = said(&kernel_with(&rules)?, wait)?;
                assert_eq!(of_kernel.iter().any(|it| it.ends_with(" silence")), refusal == "drop");
                let mut lab = edge_router(2, &rules, "")?;
                unlimited(&lab)?;
                assert_eq!(said(&lab, wait)?, of_kernel, "{priority} {refusal}");
                stop_cleanly(&mut lab)?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_port_answers_again_when_the_rule_that_led_it_away_or_to_the_host_has_gone() {
    alone(|| {
        let of = |rule: &str| {
            let chain = format!(
                "table inet first {{ chain first {{
                    type nat hook prerouting priority dstnat - 1; policy accept;
                    {rule}
                }}\n}}"
            );
            format!("{chain}\n{}", nat_rules(&[], "masquerade"))
        };
        let rules = [
            "tcp dport 8080 dnat ip to 192.0.2.1:8000",
            "tcp dport 8080 redirect to :8000",
            "tcp dport 8080 dnat ip to 198.51.100.254:8000",
            "tcp dport 9 accept",
        ];
        // Helpers may expect any connection, so that the gateway has to ask for each.
        let mut lab = edge_router(2, &of(rules[0]), "[[helper]]\nname = \"ftp\"\n")?;
        for rule in rules {
            let file = lab.gateway().write_file("next.nft", of(rule).as_bytes())?;
            stateway(&lab).command(&["rules", "load", &file]).check()?;
        }
        for family in FAMILIES {
            let said = answers(&lab, family, ANSWERS, "8080,8081", "S,A")?;
            assert!(said.iter().all(|it| !it.ends_with(" silence")), "{said:?}");
        }
        stop_cleanly(&mut lab)
    });
}
