//! Operators' rulesets on a running gateway: they are loaded, tried, listed and queried.

use std::thread;
use std::time::{Duration, Instant};

use lab::{Error, Family, Lab, Output, Result, Stateway, StatewaySpec, Tracking, ping};
use serde_json::{Value, json};

use crate::scenario::{
    beside_others, bridge, bridge_spec, drops, kernel_router, load, router, ruleset_file, soon,
    start, start_in, stateway, stateway_binary, stop_cleanly, with_config,
};

/// Counts traffic that is the same on a router and on a bridge: echo requests and replies.
const COUNTING: &str = r#"
table inet watch {
    counter requests { }
    set askers {
        type ipv4_addr
        flags dynamic,timeout
        timeout 10m
        size 100
    }
    chain echo {
        ct state new counter
        ct state established counter
        icmp type echo-request counter name requests add @askers { ip saddr }
        icmp type echo-reply counter comment "answers"
        icmpv6 type { echo-request, echo-reply } counter
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        icmp type { echo-request, echo-reply } jump echo
        icmpv6 type { echo-request, echo-reply } jump echo
        tcp dport 23 counter drop
    }
}
"#;

/// Looks up the ends of echo requests and replies in all ways that firewalls do.
const LOOKING_UP: &str = r#"
table inet watch {
    chain early {
        type filter hook prerouting priority filter; policy accept;
        icmp type != { echo-request, echo-reply } return
        icmpv6 type != { echo-request, echo-reply } return
        fib saddr type unicast counter
        fib saddr type { local, multicast, unreachable } counter
        fib daddr type local counter
        fib daddr . iif type unicast counter
        fib daddr . iif type != { local, broadcast, multicast } counter
        fib saddr . iif oif exists counter
        fib saddr . iif oif missing counter
        fib saddr . mark . iif oif missing counter
        fib saddr . iif oif != 0 counter
        fib saddr oifname "lan0" counter
        fib saddr oifname { "wan0", "lo" } counter
        fib daddr oifname "wan0" counter
        fib daddr . iif oif exists counter
        meta mark set 0x7
        fib daddr . mark oifname "wan0" counter
        meta mark set 0x0
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        icmp type != { echo-request, echo-reply } return
        icmpv6 type != { echo-request, echo-reply } return
        fib saddr . iif oif exists counter
        fib saddr . iif oif missing counter drop
        fib daddr . oif type unicast counter
        fib daddr oifname "wan0" counter
    }
}
"#;

/// Drops echo requests.
const REFUSING: &str = r"
table inet block {
    chain forward {
        type filter hook forward priority filter; policy accept;
        icmp type echo-request counter drop
    }
}
";

/// The number of pings in each family.
const PINGS: u32 = 4;

fn command(lab: &Lab, args: &[&str]) -> Result<Output> {
    stateway(lab).command(args).run()
}

fn done(lab: &Lab, args: &[&str]) -> Result<String> {
    let output = command(lab, args)?;
    assert_eq!(output.code, Some(0), "{args:?}: {output:?}");
    Ok(output.stdout)
}

/// Sends one request after the other, because a connection is established only after an answer.
fn ping_all(lab: &Lab) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        for _ in 0..PINGS {
            // A fixed identifier makes them one connection.
            let program = lab.on_client("ping").args(["-e", "77"]);
            assert_eq!(ping(program, lab.server_address(family), 1)?.received, 1, "{family:?}");
        }
    }
    Ok(())
}

fn passes(lab: &Lab) -> Result<bool> {
    match ping(lab.on_client("ping"), lab.server_address(Family::V4), 1) {
        Ok(report) => Ok(report.received == 1),
        Err(Error::Failed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The counters of each rule and the named counter with their values, and the elements that are
/// present.
fn counted(document: &Value) -> Vec<String> {
    let mut texts = Vec::new();
    for object in document["nftables"].as_array().expect("a list") {
        if let Some(rule) = object.get("rule") {
            for statement in rule["expr"].as_array().expect("statements") {
                if let Some(counter) = statement.get("counter").filter(|it| it.is_object()) {
                    texts.push(format!("{} {counter}", rule["handle"]));
                }
            }
        }
        if let Some(counter) = object.get("counter") {
            let (packets, bytes) = (&counter["packets"], &counter["bytes"]);
            texts.push(format!("{} {packets} {bytes}", counter["name"]));
        }
        if let Some(set) = object.get("set") {
            let values = set["elem"].as_array().map(Vec::as_slice).unwrap_or_default();
            texts.extend(values.iter().map(|element| element["elem"]["val"].to_string()));
        }
    }
    texts
}

#[test]
fn rules_are_listed_with_the_counters_of_the_kernels() {
    beside_others(|| {
        stateway_binary()?;
        let kernel = kernel_router(Tracking::Conntrack)?;
        kernel.gateway().load_rules(COUNTING)?;
        ping_all(&kernel)?;
        let theirs = kernel.gateway().listed_rules()?;
        let theirs: Value = serde_json::from_str(&theirs).expect("JSON");
        drop(kernel);

        let mut lab = bridge(2)?;
        load(&lab, COUNTING)?;
        ping_all(&lab)?;
        let ours = stateway(&lab).query(&["rules", "list"])?;
        assert_eq!(counted(&ours), counted(&theirs));
        assert!(counted(&ours).iter().any(|line| line.contains("192.0.2.1")), "{ours}");

        let text = done(&lab, &["rules", "list", "-a"])?;
        assert!(text.contains("icmp type echo-reply counter packets 4"), "{text}");
        assert!(text.contains("comment \"answers\" # handle"), "{text}");
        stop_cleanly(&mut lab)
    });
}

/// Sends echo requests with the addresses of hosts, and with ones that the way back does not lead
/// to: of the other side, of nobody, and of the gateway's other link.
fn ping_with_forged_sources(lab: &Lab) -> Result<()> {
    ping_all(lab)?;
    let forged = [
        (Family::V4, "198.51.100.77/32"),
        (Family::V4, "203.0.113.77/32"),
        (Family::V6, "2001:db8:2::77/128"),
        (Family::V6, "2001:db8:77::77/128"),
    ];
    for (family, source) in forged {
        // Without `nodad` ping may ask for an IPv6 address before the kernel gives it to anybody.
        lab.client().ip(&[&format!("addr add {source} dev lo nodad")])?;
        let (address, _) = source.split_once('/').expect("a prefix");
        let server = lab.server_address(family).to_string();
        // Nobody answers.
        let asked = ["-c", "2", "-i", "0.2", "-W", "1", "-I", address, &server];
        lab.on_client("ping").args(asked).run()?;
    }
    Ok(())
}

#[test]
fn a_router_looks_addresses_up_as_the_kernel_does() {
    beside_others(|| {
        stateway_binary()?;
        let marked = |gateway: &lab::Namespace| {
            // Rules of the kernel see packets before their source is checked, ours behind that.
            gateway.sysctl(
                ["all", "lan0", "wan0"].map(|it| format!("net.ipv4.conf.{it}.rp_filter=0")),
            )?;
            gateway.ip(&["route add blackhole default table 7", "rule add fwmark 7 table 7"])
        };
        let kernel = kernel_router(Tracking::Conntrack)?;
        marked(kernel.gateway())?;
        kernel.gateway().load_rules(LOOKING_UP)?;
        ping_with_forged_sources(&kernel)?;
        let theirs = kernel.gateway().listed_rules()?;
        let theirs: Value = serde_json::from_str(&theirs).expect("JSON");
        drop(kernel);

        let gateway = "rp_filter = \"off\"\n".to_owned();
        let spec = StatewaySpec { routed: true, gateway, ..bridge_spec(2)? };
        let mut lab = start(spec)?;
        marked(lab.gateway())?;
        load(&lab, LOOKING_UP)?;
        ping_with_forged_sources(&lab)?;
        let ours = stateway(&lab).query(&["rules", "list"])?;
        let (ours, theirs) = (counted(&ours), counted(&theirs));
        let different: Vec<_> = theirs.iter().zip(&ours).filter(|(a, b)| a != b).collect();
        assert!(different.is_empty(), "kernel, ours: {different:#?}");
        assert_eq!(theirs.len(), ours.len());
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_ruleset_that_is_tried_goes_unless_it_is_confirmed() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        assert!(passes(&lab)?);
        let refusing = ruleset_file(&lab, "refusing.json", REFUSING)?;
        let counting = ruleset_file(&lab, "counting.json", COUNTING)?;
        done(&lab, &["rules", "load", &counting])?;

        // The client that loaded it is gone, and nothing confirms the ruleset.
        done(&lab, &["rules", "load", &refusing, "--confirm", "4"])?;
        let begin = Instant::now();
        assert!(!passes(&lab)?);
        let second = command(&lab, &["rules", "load", &counting])?;
        assert_eq!(second.code, Some(1), "{second:?}");
        assert!(second.stderr.contains("another ruleset is being tried"), "{second:?}");
        while !passes(&lab)? {
            assert!(begin.elapsed() < Duration::from_secs(20), "it never goes");
            thread::sleep(Duration::from_millis(100));
        }
        assert!(begin.elapsed() >= Duration::from_secs(3), "{:?}", begin.elapsed());
        let late = command(&lab, &["rules", "confirm"])?;
        assert_eq!(late.code, Some(1), "{late:?}");
        assert!(late.stderr.contains("no ruleset is being tried"), "{late:?}");

        // A rollback ends the trial at once.
        done(&lab, &["rules", "load", &refusing, "--confirm", "600"])?;
        assert!(!passes(&lab)?);
        done(&lab, &["rules", "rollback"])?;
        assert!(passes(&lab)?);

        // A confirmed ruleset stays.
        done(&lab, &["rules", "load", &refusing, "--confirm", "2"])?;
        done(&lab, &["rules", "confirm"])?;
        thread::sleep(Duration::from_secs(3));
        assert!(!passes(&lab)?);

        // A trial does not keep the gateway from stopping.
        done(&lab, &["rules", "load", &counting, "--confirm", "600"])?;
        stop_cleanly(&mut lab)
    });
}

/// A ruleset whose chains form a line of jumps; the last one may jump back. nft does not accept
/// such a ruleset, so it is written here.
fn jumps(chains: usize, last_to: Option<usize>) -> Value {
    let mut objects = vec![json!({"table": {"family": "inet", "name": "t", "handle": 1}})];
    for number in 0..chains {
        let mut chain = json!({"family": "inet", "table": "t", "name": format!("c{number}"),
            "handle": 100 + number});
        if number == 0 {
            let base = json!({"type": "filter", "hook": "forward", "prio": 0, "policy": "accept"});
            let fields = chain.as_object_mut().expect("an object");
            fields.extend(base.as_object().expect("an object").clone());
        }
        objects.push(json!({"chain": chain}));
    }
    for number in 0..chains {
        let next = if number + 1 < chains { Some(number + 1) } else { last_to };
        let Some(next) = next else { continue };
        objects
            .push(json!({"rule": {"family": "inet", "table": "t", "chain": format!("c{number}"),
            "handle": 200_000 + number, "expr": [{"jump": {"target": format!("c{next}")}}]}}));
    }
    json!({"nftables": objects})
}

#[test]
fn a_wrong_ruleset_leaves_the_one_that_runs() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        let refusing = ruleset_file(&lab, "refusing.json", REFUSING)?;
        done(&lab, &["rules", "load", &refusing])?;
        let right = lab.gateway().printed_rules(COUNTING)?;
        let cut = lab.gateway().write_file("cut.json", &right.as_bytes()[..right.len() / 2])?;
        let socket = "table inet t {\n chain f {\n type filter hook forward priority 0;\n \
                      meta skgid 1 drop\n }\n}\n";
        let unsupported = ruleset_file(&lab, "unsupported.json", socket)?;
        let bridged = "table ip t {\n chain n {\n type nat hook postrouting priority 100;\n \
                       masquerade\n }\n}\n";
        let translating = ruleset_file(&lab, "translating.json", bridged)?;
        let made = |name: &str, chains: usize, last_to: Option<usize>| {
            lab.gateway().write_file(name, jumps(chains, last_to).to_string().as_bytes())
        };
        let looped = made("looped.json", 3, Some(1))?;
        let deep = made("deep.json", 20, None)?;
        let huge = made("huge.json", 70_000, None)?;
        for (file, said) in [
            (looped, "inet t chain c1 handle 101: invalid: jumps of this chain lead back to it"),
            (deep, "inet t chain c0 handle 100: invalid: jumps more than 16 chains deep"),
            (huge, "inet t chain c65536 handle 65636: invalid: too many chains"),
            (cut, "it ends in the middle"),
            (unsupported, "meta skgid 1 drop"),
            (translating, "ip t chain n rule handle"),
        ] {
            let output = command(&lab, &["rules", "load", &file])?;
            let text = output.stdout.clone() + &output.stderr;
            assert_eq!(output.code, Some(2), "{text}");
            assert!(text.contains(said), "{text}");
            assert!(!passes(&lab)?, "the one before holds");
        }
        let listed = done(&lab, &["rules", "list"])?;
        assert!(listed.starts_with("table inet block {"), "{listed}");
        stop_cleanly(&mut lab)
    });
}

/// Checks the origin of the rules in the status, also while other rules are tried for a moment.
fn tells_where_rules_came_from(lab: &Lab, gateway: &Stateway) -> Result<()> {
    let status = || gateway.command(&["status"]).check();
    let of_configuration = "refusing.json of the configuration: 1 rule, revision 1, loaded ";
    let text = status()?;
    assert!(text.contains("mode        bridge\n") && text.contains(of_configuration), "{text}");
    let counting = ruleset_file(lab, "counting.json", COUNTING)?;
    gateway.command(&["rules", "load", &counting, "--confirm", "600"]).check()?;
    let text = status()?;
    assert!(text.contains("rules       from `rules load`: "), "{text}");
    assert!(text.contains(", revision 2, loaded ") && text.contains(", tried for "), "{text}");
    gateway.command(&["rules", "rollback"]).check()?;
    let status = gateway.query(&["status"])?;
    let rules = &status["rules"];
    assert_eq!((&status["mode"], &rules["source"]), (&json!("bridge"), &json!("configuration")));
    assert!(rules["file"].as_str().is_some_and(|file| file.ends_with("refusing.json")), "{rules}");
    assert_eq!((&rules["revision"], &rules["confirm_s"]), (&json!(3), &Value::Null));
    Ok(())
}

#[test]
fn rules_of_the_configuration_hold_from_the_first_packet() {
    beside_others(|| {
        let mut lab = bridge(1)?;
        ruleset_file(&lab, "refusing.json", REFUSING)?;
        lab.gateway().write_file("cut.json", b"{\"nftables\": [")?;
        stop_cleanly(&mut lab)?;
        let binary = stateway_binary()?;
        let with_rules = |file: &str| StatewaySpec {
            // The path is relative to the directory of the configuration.
            more: format!("[rules]\nfile = \"{file}\"\n"),
            ..StatewaySpec::new(binary.clone(), 1)
        };
        let gateway = start_in(lab.gateway(), &with_rules("refusing.json"))?;
        assert!(!passes(&lab)?);
        let listed = gateway.command(&["rules", "list"]).check()?;
        assert!(listed.contains("icmp type echo-request counter packets 1 bytes 84 drop"));
        tells_where_rules_came_from(&lab, &gateway)?;
        assert_eq!(gateway.stop()?.code, Some(0));

        let config = with_rules("cut.json").config(&["lan0", "wan0"]);
        for command in ["run", "check"] {
            let refused = with_config(lab.gateway(), command, &config)?.run()?;
            assert_eq!(refused.code, Some(2), "{refused:?}");
            let text = refused.stdout + &refused.stderr;
            assert!(text.contains("cut.json: document: invalid: it ends in the middle"), "{text}");
        }
        Ok(())
    });
}

/// About the host alone.
const OF_HOST: &str = r"
table inet host {
    chain own {
        type filter hook input priority filter; policy drop;
        ct state established,related accept
    }
    chain open {
        type filter hook output priority filter; policy accept;
    }
}
";

#[test]
fn a_ruleset_about_the_host_alone_is_told_to_judge_nobody_here_and_nobody_there() {
    const UNRUN: &str = "NOBODY RUNS inet host chain own (hook input, policy drop): ";
    const OPEN: &str = "none of its chains judges packets that are forwarded";
    beside_others(|| {
        let mut lab = bridge(1)?;
        ruleset_file(&lab, "host.json", OF_HOST)?;
        let refusing = ruleset_file(&lab, "refusing.json", REFUSING)?;
        stop_cleanly(&mut lab)?;
        let more = "[rules]\nfile = \"host.json\"\n".to_owned();
        let spec = StatewaySpec { more, ..bridge_spec(1)? };
        let gateway = start_in(lab.gateway(), &spec)?;
        for warning in [UNRUN, OPEN] {
            assert!(gateway.log().contains(warning), "no {warning:?} in {}", gateway.log());
        }
        let warnings = || -> Result<String> {
            let loaded = gateway.command(&["rules", "load", "/dev/shm/host.json"]).run()?;
            assert_eq!(loaded.code, Some(0), "{loaded:?}");
            let status = gateway.query(&["status"])?;
            let all = status["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let (open, others): (Vec<&str>, Vec<&str>) = all.partition(|it| it.contains(OPEN));
            assert_eq!(open.len(), 1, "{others:?}");
            let warns = loaded.stderr.contains(&format!("warning: {UNRUN}"));
            assert_eq!(warns, !others.is_empty(), "{loaded:?}");
            Ok(others.concat())
        };
        assert!(warnings()?.starts_with(UNRUN), "{}", warnings()?);
        // It is said beside each such chain, wherever one is shown.
        let remarks = || -> Result<Vec<String>> {
            let mut found = Vec::new();
            for command in
                [&["rules", "list"][..], &["status"], &["rules", "load", "/dev/shm/host.json"]]
            {
                let output = gateway.command(command).check()?;
                let is_remark = |line: &&str| {
                    let others = ["warning", "left to the kernel"];
                    line.contains("chain ") && !others.iter().any(|other| line.contains(other))
                };
                let lines = output.lines().filter(is_remark);
                found.extend(lines.map(|line| line.trim().to_owned()));
            }
            Ok(found)
        };
        let remark = "NOBODY RUNS IT: only this host's kernel can, and does not have it";
        assert_eq!(
            remarks()?,
            [
                format!("chain own {{ # {remark}"),
                "chain open { # only this host's kernel runs it".to_owned(),
                format!("inet host chain own (hook input, policy drop): {remark}"),
                "inet host chain own: THE KERNEL DOES NOT HAVE IT".to_owned(),
            ]
        );
        let checked = gateway.command(&["rules", "check", "/dev/shm/host.json"]).check()?;
        let place = "inet host chain own: THE KERNEL DOES NOT HAVE IT";
        assert!(checked.contains(place) && !checked.contains("chain open: THE"), "{checked}");
        // One that lets everything through is another.
        let nft = |text: &str| lab.gateway().load_rules(text);
        nft(&OF_HOST.replace("policy drop", "policy accept"))?;
        assert!(warnings()?.starts_with(UNRUN));
        nft("flush ruleset")?;
        nft(OF_HOST)?;
        assert_eq!(warnings()?, "");
        let remark = "only this host's kernel runs it, and has it";
        assert_eq!(
            remarks()?,
            [
                format!("chain own {{ # {remark}"),
                "chain open { # only this host's kernel runs it".to_owned(),
                format!("inet host chain own (hook input, policy drop): {remark}"),
                "inet host chain own: the kernel has it".to_owned(),
            ]
        );
        nft("flush ruleset")?;
        gateway.command(&["rules", "load", &refusing]).check()?;
        let status = gateway.query(&["status"])?;
        assert_eq!(status["warnings"], json!([]), "others have no such chain");
        assert_eq!(gateway.stop()?.code, Some(0));
        Ok(())
    });
}

#[test]
fn packets_are_explained_with_what_the_gateway_knows() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        let counting = ruleset_file(&lab, "counting.json", COUNTING)?;
        done(&lab, &["rules", "load", &counting])?;
        let (client, server) = ("192.0.2.1", lab.server_address(Family::V4));
        let question = format!("icmp {server} {client} type echo-reply id 7 in wan0 out lan0");
        let ask = |question: &str| done(&lab, &["rules", "explain", question]);
        assert!(ask(&question)?.contains("state new"));
        ping_all(&lab)?;
        let listed = done(&lab, &["conntrack", "list", "-p", "icmp", "-o", "conntrack"])?;
        let id = listed.split("id=").nth(1).and_then(|rest| rest.split(' ').next());
        let question = question.replace("id 7", &format!("id {}", id.expect("a ping is tracked")));
        let explanation = ask(&question)?;
        assert!(explanation.contains("state established"), "{explanation}");
        assert!(
            explanation.contains("icmp type echo-reply counter packets 4 bytes 336"),
            "{explanation}"
        );
        assert!(ask(&question)?.contains("packets 4 "), "a question counts nothing");
        let refused = ask(&format!("tcp {client} {server}:23 in lan0 out wan0"))?;
        assert!(refused.contains("verdict  dropped in forward by inet watch chain forward"));
        // A bridge of two interfaces has one way out.
        let explanation = ask(&format!("tcp {client} {server}:23 in lan0"))?;
        assert!(explanation.contains("in lan0, out wan0, state new"), "{explanation}");
        stop_cleanly(&mut lab)
    });
}

/// Lets only what leaves by the outside interface open connections. Marks choose a route.
const OUTWARDS: &str = r#"
table inet edge {
    chain marks {
        type filter hook prerouting priority mangle; policy accept;
        tcp dport 7 meta mark set 7
    }
    chain translate {
        type nat hook prerouting priority dstnat; policy accept;
        iifname "wan0" tcp dport 8080 dnat ip to 192.0.2.1:80
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        oifname "wan0" accept
        ct status dnat accept
        tcp dport 81 accept
    }
}
"#;

#[test]
fn a_packet_without_an_output_interface_is_explained_by_the_route_that_it_takes() {
    beside_others(|| {
        let mut lab = router(1)?;
        lab.gateway().ip(&[
            "rule add fwmark 7 lookup 100",
            "route add unreachable 203.0.113.200/32",
            "route add blackhole default table 100",
            "link add else0 type veth peer name else1",
            "link set else1 up",
            "addr add 203.0.113.1/25 dev else0",
            "link set else0 up",
        ])?;
        let text = lab.gateway().write_file("outwards.nft", OUTWARDS.as_bytes())?;
        done(&lab, &["rules", "load", &text])?;
        let (client, server) = ("192.0.2.1", lab.server_address(Family::V4).to_string());
        let ask = |question: &str| done(&lab, &["rules", "explain", question]);
        let expect = |question: &str, way: &str, verdict: &str| -> Result<()> {
            let explanation = ask(question)?;
            assert!(
                explanation.contains(way) && explanation.contains(verdict),
                "{question}: {explanation}"
            );
            assert!(!explanation.contains("without `out`, rules"), "{explanation}");
            Ok(())
        };
        // The gateway does with a packet the same as it says of it.
        assert!(passes(&lab)?);
        let echo = format!("icmp {client} {server} type echo-request in lan0");
        expect(&echo, "in lan0, out wan0", "verdict  accepted")?;
        let back = format!("tcp {server} {client}:22 in wan0");
        expect(&back, "in wan0, out lan0", "by the policy of inet edge chain forward")?;
        let forwarded = format!("tcp {server} 198.51.100.254:8080 in wan0");
        expect(&forwarded, "in wan0, out lan0", "verdict  accepted")?;
        let own = format!("tcp {client} 192.0.2.254:22 in lan0");
        expect(&own, "in lan0, out -", "accepted: it goes to this host")?;
        for (to, reason) in [
            ("203.0.113.200:80", "no_route"),
            ("203.0.113.2:80", "policy_refused"),
            ("203.0.113.2:81", "no_output_port"),
            (&format!("{server}:7"), "route_blackhole"),
        ] {
            let verdict = match reason {
                "policy_refused" => "by the policy of inet edge chain forward".to_owned(),
                reason => format!("dropped: no way leads on ({reason})"),
            };
            soon("the route is known", || {
                Ok(ask(&format!("tcp {client} {to} in lan0"))?.contains(&verdict))
            })?;
            let before = drops(stateway(&lab), reason)?;

            let connect = lab.on_client("curl").args(["-sm", "1", &format!("http://{to}/")]).run();
            assert_ne!(connect?.code, Some(0));
            assert!(drops(stateway(&lab), reason)? > before, "{reason}");
        }
        stop_cleanly(&mut lab)
    });
}
