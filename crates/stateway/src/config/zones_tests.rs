use netio::PortId;

use super::testing::{parse, problems};

#[test]
fn zones_and_the_reserve_are_understood() {
    let config = parse(
        r#"
        [[interface]]
        name = "lan0"
        [[interface]]
        name = "wan0"

        [[zone]]
        id = 10
        interfaces = ["wan0", "lan0"]
        vlans = [0, 100]
        max_connections = 5000
        half_open_per_source = 50
        syn_proxy_half_open = 60
        [zone.timeouts]
        nf_conntrack_udp_timeout = 7

        [[timeout_policy]]
        name = "short"
        nf_conntrack_udp_timeout = 5
        nf_conntrack_tcp_timeout_established = 600

        [[zone]]
        id = 11
        timeout_policy = "short"
        vlans = [7, 8]

        [conntrack]
        reserve = ["192.0.2.0/28", "2001:db8::/64"]
        reserve_connections = 10
        "#,
    )
    .unwrap();
    let [first, second] = &config.zones[..] else { panic!("two zones") };
    assert_eq!((first.zone.0, first.max_connections()), (10, Some(5000)));
    assert_eq!(
        (first.ports(), first.vlans()),
        (Some(&[PortId(1), PortId(0)][..]), Some(&[0, 100][..]))
    );
    assert_eq!((second.zone.0, second.ports()), (11, None));
    assert!(first.timeout_policy.is_none());
    assert_eq!(second.timeout_policy.as_ref(), config.timeout_policies.first());
    let mut zones = engine::Zones::new(&config.zones, 2).unwrap();
    zones.apply(&config.settings.conntrack);
    let settings = zones.settings(first.zone).unwrap();
    assert_eq!((settings.timeouts.udp, settings.half_open_per_source), (7, 50));
    assert_eq!(settings.syn_proxy.half_open, 60);
    let settings = zones.settings(second.zone).unwrap();
    let established = settings.get("nf_conntrack_tcp_timeout_established");
    assert_eq!((settings.timeouts.udp, established), (5, Some(600)));
    assert_eq!((config.reserve.sources.len(), config.reserve.connections), (2, 10));
}

#[test]
fn zones_and_the_reserve_are_explained() {
    insta::assert_snapshot!(problems(
        r#"[[interface]]
name = "lan0"

[[zone]]
interfaces = ["lan1"]
vlans = [5000]
max_connections = 0
timeouts = 7

[[zone]]
id = 65536
interface = "lan0"
vlans = []

[[zone]]
id = 3
half_open_per_source = 2000000

[zone.timeouts]
nf_conntrack_udp_timeout = -1
nf_conntrack_max = 5
nf_conntrack_tcp_timeout_never = 5

[[zone]]
id = 3

[conntrack]
reserve = ["192.0.2.0/33"]
reserves = 4
"#
    ));
    let half = problems(
        "[[interface]]\nname = \"a\"\n[[zone]]\nid = 1\ninterfaces = [\"a\"]\n\
         [conntrack]\nreserve = [\"192.0.2.1\"]\nreserve_connections = 51\n\
         [tunables]\nnf_conntrack_max = 100\n",
    );
    insta::assert_snapshot!(half, @"
    gateway.toml:5: zone.interfaces: names one side only: replies come in by another interface, and both directions of a flow must be in one zone
    gateway.toml:8: conntrack.reserve_connections: nf_conntrack_max is 100, and half of it, 50, may be reserved at most
    ");
    let alone = problems("[conntrack]\nreserve_connections = 5\n");
    insta::assert_snapshot!(alone, @"gateway.toml:1: conntrack: reserve and reserve_connections belong together: the sources, and the number of connections");
}

#[test]
fn timeout_policies_are_explained() {
    insta::assert_snapshot!(problems(
        r#"[[interface]]
name = "lan0"

[[timeout_policy]]
nf_conntrack_udp_timeout = 5

[[timeout_policy]]
name = "short"
nf_conntrack_max = 5
nf_conntrack_udp_timeout = -5
udp = 5

[[timeout_policy]]
name = "short"

[[timeout_policy]]
name = "two words"

[[zone]]
id = 1
timeout_policy = "shot"
"#
    ), @r#"
    gateway.toml:4: timeout_policy.name: is missing; for example name = "short"
    gateway.toml:9: timeout_policy.nf_conntrack_max: nf_conntrack_max is not a timeout of tracking; `stateway tunable list` shows all
    gateway.toml:10: timeout_policy.nf_conntrack_udp_timeout: -5 is not allowed; allowed: a whole number
    gateway.toml:11: timeout_policy.udp: udp is not a timeout of tracking; `stateway tunable list` shows all
    gateway.toml:14: timeout_policy.name: "short" is already another policy
    gateway.toml:17: timeout_policy.name: "two words" can not name a policy; allowed: 1 to 63 characters without blank
    gateway.toml:21: zone.timeout_policy: "shot" is not the name of a [[timeout_policy]]; there are: short
    "#);
    let alone = problems("[[zone]]\nid = 1\ntimeout_policy = \"short\"\n");
    insta::assert_snapshot!(alone, @r#"gateway.toml:3: zone.timeout_policy: "short" is not the name of a [[timeout_policy]]; there is none"#);
}

#[test]
fn zones_that_would_see_no_packet_and_lists_with_mistakes_are_explained() {
    let zones = |zones: &str| {
        problems(&format!(
            "[[interface]]\nname = \"a\"\n[[interface]]\nname = \"b\"\n[[interface]]\nname = \"c\"\n{zones}"
        ))
    };
    insta::assert_snapshot!(zones(
        r#"[[zone]]
id = 5
[[zone]]
id = 6
vlans = [1]
"#
    ), @"gateway.toml:10: zone: zone 6 takes no packet, because zone 5 and those before it take them all; put zone 6 before them or take it out");
    insta::assert_snapshot!(zones(
        r#"[[zone]]
id = 5
interfaces = ["a", "b"]
vlans = [1, 2]
[[zone]]
id = 6
interfaces = ["a", "b"]
vlans = [2, 3]
[[zone]]
id = 7
vlans = [1, 2]
"#
    ), @"gateway.toml:12: zone: zone 6 takes no packet of VLAN 2, because zone 5 comes before it; take 2 out");
    insta::assert_snapshot!(zones(
        r#"[[zone]]
id = 5
vlans = [1, 2, 1]
interfaces = ["a", "a"]
[conntrack]
reserve = ["192.0.2.77/24"]
reserve_connections = 5
"#
    ), @r#"
    gateway.toml:9: zone.vlans: 1 appears twice
    gateway.toml:10: zone.interfaces: "a" appears twice
    gateway.toml:12: conntrack.reserve: "192.0.2.77/24" has bits behind its length; write "192.0.2.0/24" for the network or "192.0.2.77" for the host
    "#);
    insta::assert_snapshot!(zones(
        r#"[conntrack]
reserve = ["2001:db8::1/64", "192.0.2.7"]
reserve_connections = 5
"#
    ), @r#"gateway.toml:8: conntrack.reserve: "2001:db8::1/64" has bits behind its length; write "2001:db8::/64" for the network or "2001:db8::1" for the host"#);
}

/// A file with far too many zones gets one message about it, whatever else is wrong with them.
#[test]
fn a_hundred_thousand_zones_are_refused_at_once() {
    let interfaces = "[[interface]]\nname = \"a\"\n[[interface]]\nname = \"b\"\n";
    let file = |table: &dyn Fn(u32) -> String| {
        interfaces.to_owned() + &(1..=100_000).map(table).collect::<String>()
    };
    let message =
        "gateway.toml:2053: zone: there may be 1024 of them at most, and the file has 100000";
    // Zones with valid numbers, and zones whose numbers are all invalid.
    let numbered =
        |first: u32| problems(&file(&|zone| format!("[[zone]]\nid = {}\n", first + zone)));
    let (all, none) = (numbered(0), numbered(65_535));
    assert!(all.contains(message), "{}", &all[..all.len().min(500)]);
    assert!(none.contains(message) && none.lines().count() == 1025, "{}", none.lines().count());
    let policies = problems(&file(&|policy| format!("[[timeout_policy]]\nname = \"{policy}\"\n")));
    assert_eq!(policies, message.replace("zone:", "timeout_policy:"));
}

#[test]
fn a_policy_that_is_not_there_has_few_others_named() {
    let policies = (0..1024).map(|name| format!("[[timeout_policy]]\nname = \"{name}\"\n"));
    let zone = "[[zone]]\nid = 1\ntimeout_policy = \"absent\"\n";
    let message = problems(&(policies.collect::<String>() + zone));
    assert!(
        message.ends_with(
            "there are: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, and others"
        ),
        "{message}"
    );
}
