//! A router that lets in only connections that a rule forwards: the setup of most home routers and
//! NAT gateways.

use std::fmt::Write as _;
use std::time::Duration;

use lab::Stateway;

use crate::scenario::{
    beside_others, echo, edge_router, ruleset_file, stateway, stateway_binary, stop_cleanly,
};

/// A connection from outside needs a forwarded port. No source is translated to such a port.
const FORWARDS: &str = r#"
table inet filter {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname "lan0" accept
        ct status dnat counter accept
    }
}
table ip nat {
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        iifname "wan0" tcp dport 88 dnat to 192.0.2.1:7
    }
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname "wan0" masquerade
    }
}
"#;

/// Asks for an echo this many times, five times a second. Prints how many came back.
const ASK: &str = "
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
answers = 0
for _ in range(int(sys.argv[3])):
    s.sendall(b'echo')
    answers += s.recv(1000) == b'echo'
    time.sleep(0.2)
print(answers)
";

#[test]
fn a_forwarded_connection_gets_in_and_outlives_its_rule() {
    beside_others(|| {
        let mut lab = edge_router(2, "", "")?;
        let mut gone = String::new();
        for line in FORWARDS.lines().filter(|line| !line.contains("dnat to")) {
            let _ = writeln!(gone, "{line}");
        }
        let forwards = ruleset_file(&lab, "forwards.json", FORWARDS)?;
        let gone = ruleset_file(&lab, "gone.json", &gone)?;
        let load = |file: &str| stateway(&lab).command(&["rules", "load", file]).check();
        load(&forwards)?;
        // In another network namespace the command says nothing about the kernel's rules, because
        // that kernel state is not the gateway's.
        let binary = stateway_binary()?;
        let elsewhere = lab.gateway().program("unshare").args(["--net", &binary.to_string_lossy()]);
        let load_there = ["rules", "load", &forwards, "--socket", Stateway::SOCKET];
        let text = elsewhere.args(load_there).check()?;
        assert!(text.contains("another network namespace"), "{text}");
        assert!(!text.contains("THE KERNEL"), "{text}");
        let _inside = echo(lab.client(), 7)?;
        let asks =
            |times: &str| lab.on_server("python3").args(["-c", ASK, "198.51.100.254", "88", times]);
        assert_eq!(asks("3").check()?.trim(), "3");
        let asking = asks("10").spawn()?;
        std::thread::sleep(Duration::from_secs(1));
        // The gateway's host answers new requests to the port, because it is the host's again.
        load(&gone)?;
        assert!(asks("1").check().is_err());
        let explain = |packet: &str| {
            let words = format!("rules explain {packet} in wan0");
            let words: Vec<&str> = words.split(' ').collect();
            stateway(&lab).command(&words).check()
        };
        let explanation = explain("tcp 198.51.100.2:5000 198.51.100.254:88")?;
        assert!(explanation.contains("it goes to this host"), "{explanation}");
        assert_eq!(asking.finish()?.stdout.trim(), "10");
        load(&forwards)?;
        let explanation = explain("tcp 198.51.100.2:5000 198.51.100.254:88")?;
        assert!(
            explanation.contains("destination translated to 192.0.2.1 port 7"),
            "{explanation}"
        );
        // Packets that no rule lets through, because of their own addresses.
        let explanation = explain("udp 198.51.100.254:5 192.0.2.1:53")?;
        assert!(explanation.contains("martian"), "{explanation}");
        let explanation = explain("udp 198.51.100.2:5 224.0.0.5:53")?;
        assert!(explanation.contains("it goes to this host"), "{explanation}");
        // The command explains both directions of a masqueraded connection.
        let _outside = echo(lab.server(), 7)?;
        let asked = lab.on_client("python3").args(["-c", ASK, "198.51.100.2", "7", "1"]).check()?;
        assert_eq!(asked.trim(), "1");
        let list = ["conntrack", "list", "-d", "198.51.100.2", "--json"];
        let list = stateway(&lab).command(&list).check()?;
        let listed: serde_json::Value = serde_json::from_str(list.trim()).expect("one object");
        let port = &listed["reply"]["destination_port"];
        let explanation = explain(&format!("tcp 198.51.100.2:7 198.51.100.254:{port} flags ack"))?;
        assert!(explanation.contains("accepted: it goes on its way"), "{explanation}");
        assert!(
            explanation.contains("is translated: destination 192.0.2.1 port "),
            "{explanation}"
        );
        stop_cleanly(&mut lab)
    });
}

/// An explanation looks up addresses and next hops as the rules do.
#[test]
fn a_port_published_for_local_addresses_is_explained_with_the_routes() {
    const PUBLISHED: &str = "\
table ip publish {
    chain prerouting {
        type nat hook prerouting priority dstnat;
        fib daddr type local tcp dport 88 dnat to 192.0.2.1:7
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established accept
        fib saddr . iif oif missing drop
        rt ip nexthop 192.0.2.1 rt mtu 1460 ct status dnat accept
    }
}
";
    beside_others(|| {
        let mut lab = edge_router(1, "", "")?;
        let file = ruleset_file(&lab, "publish.json", PUBLISHED)?;
        stateway(&lab).command(&["rules", "load", &file]).check()?;
        let explain = |packet: &str| {
            let words = format!("rules explain {packet} in wan0");
            let words: Vec<&str> = words.split(' ').collect();
            stateway(&lab).command(&words).check()
        };
        let _inside = echo(lab.client(), 7)?;
        let ask = ["-c", ASK, "198.51.100.254", "88", "1"];
        assert_eq!(lab.on_server("python3").args(ask).check()?.trim(), "1");
        let published = explain("tcp 198.51.100.2:5000 198.51.100.254:88")?;
        let leads_on = published.contains("destination translated to 192.0.2.1 port 7")
            && published.contains("accepted: it goes on its way");
        assert!(leads_on, "{published}");
        assert!(!published.contains("knows routes"), "{published}");
        // The address is nobody's here, so the rule does not match.
        let other = explain("tcp 198.51.100.2:5000 192.0.2.1:88")?;
        assert!(other.contains("dropped"), "{other}");
        stop_cleanly(&mut lab)
    });
}

/// The port stands in a rule that leads to the one that translates.
#[test]
fn a_port_that_leads_to_the_rule_is_forwarded_after_a_reload_too() {
    beside_others(|| {
        let mut lab = edge_router(2, "", "")?;
        let by_name = FORWARDS.replace("tcp dport 88 dnat to 192.0.2.1:7", "CALL");
        let chain = "chain web { meta l4proto tcp dnat to 192.0.2.1:7; }\n    chain prerouting";
        let by_name = by_name.replace("chain prerouting", chain);
        let vmap = by_name.replace("CALL", "tcp dport vmap { 88 : goto web, 30080 : goto web }");
        let jump = by_name.replace("CALL", "tcp dport { 88, 30080 } jump web");
        let marked = "meta mark 7 meta l4proto tcp dnat to 192.0.2.1:7
    }
    chain marks {
        type filter hook prerouting priority mangle; policy accept;
        iifname \"wan0\" tcp dport { 88, 30080 } meta mark set 7";
        let mark = FORWARDS.replace("tcp dport 88 dnat to 192.0.2.1:7", marked);
        let _inside = echo(lab.client(), 7)?;
        for (name, rules) in
            [("direct", FORWARDS), ("vmap", &vmap), ("jump", &jump), ("mark", &mark)]
        {
            let file = ruleset_file(&lab, &format!("{name}.json"), rules)?;
            let loaded = stateway(&lab).command(&["rules", "load", &file]).run()?;
            assert!(loaded.code == Some(0), "{name}: {loaded:?}");
            assert!(!loaded.stderr.contains("THE KERNEL MAY ANSWER"), "{name}: {loaded:?}");
            let ports = if name == "direct" { &["88"][..] } else { &["88", "30080"] };
            for port in ports {
                let ask = ["-c", ASK, "198.51.100.254", port, "1"];
                let answered = lab.on_server("python3").args(ask).check()?;
                assert_eq!(answered.trim(), "1", "{name} {port}");
            }
        }
        // A rule whose port nobody knows is told of.
        let vague = FORWARDS.replace("tcp dport 88 dnat", "meta length 60 meta l4proto tcp dnat");
        let file = ruleset_file(&lab, "vague.json", &vague)?;
        let loaded = stateway(&lab).command(&["rules", "load", &file]).run()?;
        assert!(loaded.stderr.contains("THE KERNEL MAY ANSWER"), "{loaded:?}");
        let status = stateway(&lab).query(&["status"])?["warnings"].to_string();
        assert!(status.contains("THE KERNEL MAY ANSWER"), "{status}");
        stop_cleanly(&mut lab)
    });
}

/// Both directions: connections to the forwarded port, and connections that are masqueraded.
#[test]
fn the_syn_proxy_answers_for_what_is_translated() {
    beside_others(|| {
        let more = "[tunables]\nstateway_syn_proxy_half_open = 1\n";
        let mut lab = edge_router(2, FORWARDS, more)?;
        let stateway = stateway(&lab);
        let _echoes = [echo(lab.client(), 7)?, echo(lab.server(), 7)?];
        // The port of a reply may select the bucket of its connection or another, from which the
        // worker is redirected. Several connections make both happen.
        for _ in 0..8 {
            let ask = ["-c", ASK, "198.51.100.254", "88", "2"];
            assert_eq!(lab.on_server("python3").args(ask).check()?.trim(), "2");
            let ask = ["-c", ASK, "198.51.100.2", "7", "2"];
            assert_eq!(lab.on_client("python3").args(ask).check()?.trim(), "2");
        }
        // A port without a rule belongs to the host.
        let _own = echo(lab.gateway(), 7)?;
        let ask = ["-c", ASK, "198.51.100.254", "7", "2"];
        assert_eq!(lab.on_server("python3").args(ask).check()?.trim(), "2");
        let totals = stateway.query(&["status"])?["totals"].clone();
        assert_eq!(totals["syn_proxy"]["cookie_valid"], 16, "{totals}");
        assert_eq!(totals["syn_proxy"]["cookie_invalid"], 0, "{totals}");
        assert_eq!(totals["classes"]["invalid"], 0, "{totals}");
        stop_cleanly(&mut lab)
    });
}
