//! Zones that rules set, beside the kernel's: the same traffic is tracked in the same zones.

use std::collections::BTreeSet;

use lab::{Gateway, Lab, Placement, Result, StatewaySpec, Tracking};

use crate::rulesets::ruleset_file;
use crate::scenario::{alone, every_client, fragments_arrive, stateway_binary};
use crate::stateway::{Live, stop_cleanly};

/// By map and by number, for both directions; whoever has a zone keeps it.
const RULES: &str = "
table inet zoned {
    chain raw {
        type filter hook prerouting priority raw; policy accept;
        ct zone set tcp dport map { 53 : 3, 5201 : 9, 8080 : 7 }
        ct zone set tcp sport map { 53 : 3, 5201 : 9, 8080 : 7 }
        ct zone 9 ct zone set 10
        meta l4proto { icmp, icmpv6 } ct zone set 11
        meta l4proto icmp ct zone set 12
        meta l4proto icmp ct state new notrack
        udp dport 53 ct zone set 13
        udp sport 53 ct zone set 13
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ct state new ct zone { 0, 3, 7, 9, 11, 13 } accept
        meta l4proto icmpv6 ct state untracked accept
    }
}
";

/// Of each connection its protocol, the port or type that its first packet was for, and its
/// zone.
fn listed(text: &str) -> BTreeSet<(String, String, String)> {
    let connection = |line: &str| {
        let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
        let protocol = line.split_whitespace().next().expect("a protocol").to_owned();
        let what = field("dport=").or_else(|| field("type=")).unwrap_or_default().to_owned();
        (protocol, what, field("zone=").unwrap_or("0").to_owned())
    };
    // What iperf3 opens beside is at ports that change.
    text.lines().filter(|line| line.contains("src=")).map(connection).collect()
}

#[test]
fn rules_put_connections_into_the_zones_of_the_kernel() {
    alone(|| {
        let kernel = Lab::new(Gateway::KernelForwarding(Tracking::Conntrack), Placement::free())?;
        kernel.gateway().program("nft").args(["-f", "-"]).input(RULES.to_owned()).check()?;
        every_client(&kernel)?;
        let list = |family| {
            let program = kernel.gateway().program("conntrack");
            program.args(["-L", "-f", family]).check()
        };
        let theirs = listed(&(list("ipv4")? + &list("ipv6")?));
        drop(kernel);

        let spec = StatewaySpec::new(stateway_binary()?, 2);
        let mut lab = Live::from(Lab::new(Gateway::Stateway(spec), Placement::free())?);
        let file = ruleset_file(&lab, "zoned.json", RULES)?;
        let stateway = |args: &[&str]| -> Result<String> {
            lab.stateway().expect("the lab has a Stateway").command(args).check()
        };
        stateway(&["rules", "load", &file])?;
        every_client(&lab)?;
        let ours = listed(&stateway(&["conntrack", "-L", "-o", "conntrack"])?);
        assert_eq!(ours, theirs);
        let zones: BTreeSet<&str> = ours.iter().map(|(.., zone)| zone.as_str()).collect();
        assert!(zones.is_superset(&["7", "9", "11", "13"].into()), "{ours:?}");
        // A whole datagram has the zone, though its fragments went elsewhere.
        fragments_arrive(&lab)?;
        // The same while buckets move, and rules that set no zones find nothing of these.
        stateway(&["steer", "balance"])?;
        every_client(&lab)?;
        stop_cleanly(&mut lab)
    });
}
