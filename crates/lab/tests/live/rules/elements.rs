//! Elements that come and go while a ruleset runs, beside `nft add element` and the like.

use lab::{Family, Lab, Namespace, Output, Result, ping};
use serde_json::Value;

use crate::scenario::{beside_others, bridge, load, ruleset_file, stateway, stop_cleanly};

const RULES: &str = "
table inet filter {
    counter web { }
    counter mail { }
    map tallies {
        type inet_service : counter
        elements = { 80 : \"web\" }
    }
    set banned {
        type ipv4_addr
        flags timeout
    }
    set nets {
        type ipv4_addr
        flags interval
        elements = { 203.0.113.0/28 }
    }
    set pairs {
        type ipv4_addr . inet_service
        flags interval,timeout
        timeout 1h
    }
    set filled {
        type ipv4_addr
        flags dynamic,timeout
        size 100
    }
    set counted {
        type inet_service
        counter
        elements = { 22, 80 }
    }
    map marks {
        type inet_service : mark
        elements = { 80 : 1 }
    }
    map ways {
        type ipv4_addr : verdict
    }
    chain sub {
        counter drop
    }
    chain alone {
        limit rate 100/second counter
        goto behind
    }
    chain behind {
        counter accept
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        icmp type { echo-request, echo-reply } counter
        ip saddr @banned counter drop
        ip daddr @nets counter
        ip saddr . tcp dport @pairs counter
        tcp dport 9 update @filled { ip saddr timeout 5m }
        ip saddr @filled counter drop
        tcp dport @counted counter
        meta mark set tcp dport map @marks
        tcp dport 10 jump sub
        counter name tcp dport map @tallies
        ip saddr vmap @ways
    }
}
";

/// Changes of sets, one after the other. Some are refused.
const CHANGES: [(&str, &str, &str); 33] = [
    ("add", "banned", "192.0.2.77 timeout 5m comment \"too many logins\", 192.0.2.78"),
    ("add", "banned", "192.0.2.78"),
    ("add", "banned", "192.0.2.79 timeout 1h expires 10m"),
    ("delete", "banned", "192.0.2.99"),
    ("delete", "banned", "192.0.2.78, 192.0.2.99"),
    ("add", "banned", "192.0.2.80, 198.51.100.0/24"),
    ("delete", "banned", "192.0.2.78"),
    ("add", "banned", "nonsense!"),
    ("add", "nets", "192.0.2.64/26, 198.51.100.10-198.51.100.20, 198.51.100.99"),
    ("add", "nets", "203.0.113.4"),
    ("add", "nets", "198.51.100.15-198.51.100.25"),
    ("add", "nets", "203.0.113.0/28"),
    ("delete", "nets", "203.0.113.0/28, 198.51.100.99"),
    ("delete", "nets", "198.51.100.10-198.51.100.19"),
    ("add", "pairs", "192.0.2.0/24 . 80-90, 198.51.100.7 . 443 timeout 2h"),
    ("delete", "pairs", "192.0.2.0/24 . 80-90"),
    ("add", "filled", "192.0.2.90 timeout 1m comment \"by hand\", 192.0.2.91"),
    ("delete", "filled", "192.0.2.91, 192.0.2.92"),
    ("delete", "filled", "192.0.2.91"),
    ("add", "counted", "443, https, 8080"),
    ("delete", "counted", "22"),
    ("add", "marks", "443 : 0x2, 8443 : 3"),
    ("add", "marks", "80 : 7"),
    ("delete", "marks", "443 : 0x2"),
    ("add", "tallies", "443 : \"web\", 25 : \"mail\""),
    ("add", "tallies", "110 : \"nobody\""),
    ("delete", "tallies", "80 : \"web\""),
    ("add", "ways", "192.0.2.50 : drop, 192.0.2.51 : jump sub, 192.0.2.52 : accept"),
    ("add", "ways", "192.0.2.53 : jump nowhere"),
    ("delete", "ways", "192.0.2.50 : drop"),
    // Nothing led there before.
    ("add", "ways", "192.0.2.55 : goto alone, 192.0.2.56 : jump behind"),
    ("delete", "ways", "192.0.2.55 : goto alone, 192.0.2.56 : jump behind"),
    ("add", "ways", "192.0.2.57 : jump alone"),
];

fn element(lab: &Lab, args: &[&str]) -> Result<Output> {
    stateway(lab).command(&[&["rules", "element"], args].concat()).run()
}

/// The elements of a set as texts, in order, without the time that each has left.
fn texts_of(set: &Value) -> Vec<String> {
    let kind = set.get("set").or_else(|| set.get("map")).expect("a set or map");
    let list = kind["elem"].as_array().cloned().unwrap_or_default();
    let mut texts: Vec<String> = list
        .into_iter()
        .map(|mut value| {
            let key = match &mut value {
                Value::Array(pair) => pair.first_mut().expect("a key"),
                key => key,
            };
            if let Some(left) = key.get_mut("elem").and_then(|fields| fields.get_mut("expires")) {
                assert!(left.as_u64().is_some_and(|left| left <= 7200), "{left}");
                *left = "left".into();
            }
            value.to_string()
        })
        .collect();
    texts.sort();
    texts
}

fn of_kernel(kernel: &Namespace, set: &str) -> Result<Vec<String>> {
    let kind = if matches!(set, "marks" | "ways" | "tallies") { "map" } else { "set" };
    let args = ["-j", "list", kind, "inet", "filter", set];
    let listed: Value = serde_json::from_str(&kernel.program("nft").args(args).check()?).unwrap();
    let objects = listed["nftables"].as_array().expect("a list");
    Ok(texts_of(objects.iter().find(|it| it.get(kind).is_some()).expect("the set")))
}

fn of_ours(lab: &Lab, set: &str) -> Result<Vec<String>> {
    let listed = stateway(lab).query(&["rules", "element", "list", "inet", "filter", set])?;
    assert_eq!(listed["schema"], 1);
    Ok(texts_of(&listed["set"]))
}

#[test]
fn elements_change_as_those_of_the_kernel() {
    beside_others(|| {
        let kernel = Namespace::new("kernel")?;
        kernel.load_rules(RULES)?;
        let mut lab = bridge(2)?;
        load(&lab, RULES)?;
        let mut wrong = String::new();
        for (change, set, elements) in CHANGES {
            let listed = format!("{{ {elements} }}");
            let args = [change, "element", "inet", "filter", set, &listed];
            let theirs = kernel.program("nft").args(args).run()?;
            let ours = element(&lab, &[change, "inet", "filter", set, elements])?;
            // Wrong usage, whoever has found it.
            let wanted = if theirs.code == Some(0) { 0 } else { 2 };
            if ours.code != Some(wanted) {
                wrong += &format!("{change} {set} {elements}\n  {theirs:?}\n  {ours:?}\n");
            }
            let (theirs, ours) = (of_kernel(&kernel, set)?, of_ours(&lab, set)?);
            if theirs != ours {
                wrong += &format!("{change} {set} {elements}\n  {theirs:?}\n  {ours:?}\n");
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
        for set in ["banned", "nets", "pairs", "filled", "counted", "marks", "ways"] {
            kernel.program("nft").args(["flush", "set", "inet", "filter", set]).run()?;
            let ours = element(&lab, &["flush", "inet", "filter", set])?;
            assert_eq!(ours.code, Some(0), "{ours:?}");
            assert!(of_ours(&lab, set)?.is_empty(), "{set}");
        }
        stop_cleanly(&mut lab)
    });
}

/// Sets that join their ranges. nft 1.0.6 says so in its own syntax alone.
const MERGING: &str = "
table inet filter {
    set ports {
        type inet_service
        flags interval
        auto-merge
        elements = { 10-12 }
    }
    set nets {
        type ipv4_addr
        flags interval
        auto-merge
    }
    set ends {
        type inet_service
        flags interval,timeout
        auto-merge
    }
    set apart {
        type inet_service
        flags interval
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        tcp dport @ports counter
        ip saddr @nets counter
        tcp dport @ends counter
        tcp dport @apart counter
    }
}
";

/// Changes of these sets, one after the other.
const MERGES: [(&str, &str, &str); 19] = [
    ("add", "ports", "13-20, 30"),
    ("add", "ports", "21"),
    ("add", "ports", "15"),
    ("add", "ports", "14-60"),
    ("add", "ports", "100 comment \"x\""),
    ("add", "ports", "101 comment \"y\""),
    ("delete", "ports", "70"),
    ("delete", "ports", "10-60"),
    ("add", "nets", "192.0.2.0/25"),
    ("add", "nets", "192.0.2.128/25"),
    ("add", "nets", "192.0.2.0-192.0.4.5"),
    ("add", "nets", "192.0.4.6, 192.0.4.8"),
    ("add", "nets", "192.0.4.7"),
    ("delete", "nets", "192.0.2.0-192.0.4.8"),
    ("add", "ends", "100 timeout 5m"),
    ("add", "ends", "101 timeout 50m"),
    ("add", "ends", "90-120"),
    ("add", "apart", "10-20"),
    ("add", "apart", "15-25"),
];

#[test]
fn ranges_join_as_those_of_the_kernel_and_can_be_cut() {
    beside_others(|| {
        let kernel = Namespace::new("kernel")?;
        kernel.load_rules(MERGING)?;
        let mut lab = bridge(2)?;
        let file = lab.gateway().write_file("merging.nft", MERGING.as_bytes())?;
        stateway(&lab).command(&["rules", "load", &file]).check()?;
        let mut wrong = String::new();
        for (change, set, elements) in MERGES {
            let listed = format!("{{ {elements} }}");
            let args = [change, "element", "inet", "filter", set, &listed];
            let theirs = kernel.program("nft").args(args).run()?;
            let ours = element(&lab, &[change, "inet", "filter", set, elements])?;
            let lists = (of_kernel(&kernel, set)?, of_ours(&lab, set)?);
            if (theirs.code == Some(0)) != (ours.code == Some(0)) || lists.0 != lists.1 {
                wrong += &format!("{change} {set} {elements}\n  {theirs:?} {:?}\n", lists.0);
                wrong += &format!("  {ours:?} {:?}\n", lists.1);
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
        // Not every version of nft can delete a part of a range.
        let done = |change, elements| element(&lab, &[change, "inet", "filter", "ends", elements]);
        assert_eq!(done("delete", "95, 100-119")?.code, Some(0));
        assert_eq!(of_ours(&lab, "ends")?, ["120", r#"{"range":[90,94]}"#, r#"{"range":[96,99]}"#]);
        let bad = done("delete", "96, 95-97, 200")?;
        assert!(bad.stderr.contains("95-97: is not in the set, or not all of it"), "{bad:?}");
        assert!(bad.stderr.contains("200: is not in the set, or not all of it"), "{bad:?}");
        assert_eq!(of_ours(&lab, "ends")?.len(), 3, "nothing has changed");
        stop_cleanly(&mut lab)
    });
}

/// A map of verdicts with chains that a bridge can not run, or that nobody understands.
const WAYS: &str = "
table inet filter {
    map ways {
        type ipv4_addr : verdict
    }
    chain sent {
        socket transparent 1 drop
    }
    chain routed {
        fib daddr type local drop
        rt mtu 1460 drop
    }
    chain kept {
        limit rate 5/second burst 5 packets drop
        counter
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        ip daddr vmap @ways
        icmp type echo-request counter
    }
}
";

#[test]
fn an_element_that_leads_to_rules_that_can_not_run_is_refused_with_all_of_them() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        load(&lab, WAYS)?;
        let server = lab.server_address(Family::V4).to_string();
        let add = |to: &str| {
            element(&lab, &["add", "inet", "filter", "ways", &format!("{server} : jump {to}")])
        };
        let refused = add("sent")?;
        assert!(refused.stderr.contains("chain sent rule"), "{refused:?}");
        let refused = add("routed")?;
        let count = refused.stderr.matches("a bridge has no routes").count();
        assert_eq!(count, 2, "each rule is named: {refused:?}");
        assert!(of_ours(&lab, "ways")?.is_empty());
        // The rules from before go on, and rules that can run do.
        let pings = |count| {
            Ok::<_, lab::Error>(
                ping(lab.on_client("ping"), lab.server_address(Family::V4), count)?.received,
            )
        };
        assert_eq!(pings(3)?, 3);
        assert_eq!(add("kept")?.code, Some(0));
        assert_eq!(pings(3)?, 0);
        let deleted = element(&lab, &["delete", "inet", "filter", "ways", &server])?;
        assert_eq!(deleted.code, Some(0), "{deleted:?}");
        assert_eq!(pings(3)?, 3);
        stop_cleanly(&mut lab)
    });
}

/// The packets that the first rule has counted.
fn echos(lab: &Lab) -> Result<u64> {
    let listed = stateway(lab).query(&["rules", "list"])?;
    let objects = listed["nftables"].as_array().expect("a list");
    let rules = objects.iter().filter(|it| it["rule"]["chain"] == "forward");
    let mut counted = rules.filter_map(|it| it["rule"]["expr"][1]["counter"]["packets"].as_u64());
    Ok(counted.next().expect("the first rule counts"))
}

#[test]
fn an_element_holds_for_all_workers_and_survives_a_reload_if_asked() {
    beside_others(|| {
        let mut lab = bridge(3)?;
        load(&lab, RULES)?;
        let (client, server) =
            (lab.client_address(Family::V4).to_string(), lab.server_address(Family::V4));
        let passes = || -> Result<bool> {
            let answers = (0..2).map(|_| Ok(ping(lab.on_client("ping"), server, 1)?.received == 1));
            let answers: Vec<bool> = answers.collect::<Result<_>>()?;
            assert!(answers.iter().all(|it| *it == answers[0]), "{answers:?}");
            Ok(answers[0])
        };
        let done = |args: &[&str]| -> Result<String> {
            let output = stateway(&lab).command(&[&["rules"], args].concat()).run()?;
            assert_eq!(output.code, Some(0), "{output:?}");
            Ok(output.stdout)
        };
        assert!(passes()?);
        for set in ["banned", "filled"] {
            let before = echos(&lab)?;
            done(&[
                "element", "add", "inet", "filter", set, &client, "timeout", "1h", "comment",
                "\"x y\"",
            ])?;
            assert!(!passes()?, "{set}");
            // The counters go on: requests of both pings are counted, and no answer.
            assert_eq!(echos(&lab)? - before, 2, "{set}");
            let text = done(&["list"])?;
            assert!(text.contains(&format!("{client} timeout 1h expires ")), "{text}");
            assert!(text.contains("comment \"x y\""), "{text}");
            let file = ruleset_file(&lab, "again.json", RULES)?;
            done(&["load", &file, "--keep-elements"])?;
            assert!(!passes()?, "{set} is kept");
            assert_eq!(echos(&lab)?, 2, "the rules themselves are new");
            done(&["load", &file, "--keep-elements"])?;
            assert_eq!(of_ours(&lab, set)?.len(), 1, "it is kept again");
            done(&["element", "delete", "inet", "filter", set, &client])?;
            assert!(passes()?, "{set}");
            done(&["element", "add", "inet", "filter", set, &client])?;
            done(&["load", &file])?;
            assert!(passes()?, "{set} begins anew");
        }
        // Every element that is wrong is named, and none is added.
        let bad = element(
            &lab,
            &["add", "inet", "filter", "nets", "192.0.2.9, 300.1.1.1, 203.0.113.9, x!"],
        )?;
        assert_eq!(bad.code, Some(2));
        assert!(bad.stderr.contains("300.1.1.1") && bad.stderr.contains("x!"), "{bad:?}");
        let bad = element(&lab, &["delete", "inet", "filter", "banned", "192.0.2.9, 192.0.2.10"])?;
        assert_eq!(bad.code, Some(2));
        assert!(bad.stderr.contains("192.0.2.9: is not in the set"), "{bad:?}");
        assert!(bad.stderr.contains("192.0.2.10: is not in the set"), "{bad:?}");
        let none = element(&lab, &["add", "inet", "filter", "nothing", "192.0.2.9"])?;
        assert_eq!(none.code, Some(2));
        assert!(none.stderr.contains("no set inet filter nothing"), "{none:?}");
        let none = element(&lab, &["flush", "inet", "filter", "nothing"])?;
        assert_eq!(none.code, Some(2));
        assert!(none.stderr.contains("no set inet filter nothing"), "{none:?}");
        let none = element(&lab, &["add", "inet", "filter", "nets", "{ }"])?;
        assert_eq!(none.code, Some(2));
        assert!(none.stderr.contains("no element is named"), "{none:?}");
        assert_eq!(of_ours(&lab, "nets")?.len(), 1);
        stop_cleanly(&mut lab)
    });
}
