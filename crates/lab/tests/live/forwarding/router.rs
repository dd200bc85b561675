//! Stateway as a router with the routes and neighbours of its host's kernel. The kernel would
//! forward as well if the gateway did not prevent it.

use std::thread;
use std::time::{Duration, Instant};

use lab::{Family, Lab, Result, ping};

use crate::scenario::{
    FAMILIES, beside_others, drops, every_client, fragments_arrive, inside, outside, router,
    router_spec, routes_show, soon, stateway, stateway_binary, stop_cleanly,
};

fn every_client_with(workers: u32) {
    beside_others(|| {
        let mut lab = router(workers)?;
        every_client(&lab)?;
        fragments_arrive(&lab)?;
        routes_show(&lab, |family| vec![inside(family).parse().unwrap()])?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn every_client_through_a_router_with_one_worker() {
    every_client_with(1);
}

#[test]
fn every_client_through_a_router_with_two_workers() {
    every_client_with(2);
}

#[test]
fn packets_for_the_host_reach_it_once() {
    beside_others(|| {
        let mut lab = router(2)?;
        for family in FAMILIES {
            for address in [inside(family), outside(family)] {
                let report = ping(lab.on_client("ping"), address.parse().unwrap(), 3)?;
                assert_eq!((report.received, report.duplicates), (3, 0), "{address}");
            }
            let out = ping(lab.gateway().program("ping"), lab.server_address(family), 3)?;
            assert_eq!((out.received, out.duplicates), (3, 0), "{family:?}");
        }
        stop_cleanly(&mut lab)
    });
}

/// The output of a ping of one packet, whatever the result.
fn one_ping(lab: &Lab, more: &[&str], address: &str) -> Result<String> {
    let output = lab
        .on_client("ping")
        .args(["-n", "-c", "1", "-W", "4"])
        .args(more)
        .args([address])
        .run()?;
    Ok(output.stdout)
}

#[test]
fn senders_hear_why_their_packets_do_not_go_on() {
    beside_others(|| {
        let mut lab = router(2)?;
        lab.gateway().ip(&[
            "route add prohibit 203.0.113.0/28",
            "route add unreachable 203.0.113.16/28",
            "route add blackhole 203.0.113.32/28",
            "route add prohibit 2001:db8:9::/48",
        ])?;
        thread::sleep(Duration::from_millis(200));
        for (address, more, says, reason) in [
            (
                "203.0.113.1",
                &[][..],
                "From 192.0.2.254 icmp_seq=1 Packet filtered",
                "route_prohibited",
            ),
            (
                "203.0.113.17",
                &[],
                "From 192.0.2.254 icmp_seq=1 Destination Host Unreachable",
                "no_route",
            ),
            ("203.0.113.33", &[], "0 received, 100% packet loss", "route_blackhole"),
            (
                "198.51.100.2",
                &["-t", "1"],
                "From 192.0.2.254 icmp_seq=1 Time to live exceeded",
                "ttl_exceeded",
            ),
            (
                "198.51.100.77",
                &[],
                "From 192.0.2.254 icmp_seq=1 Destination Host Unreachable",
                "no_neighbour",
            ),
            (
                "2001:db8:9::1",
                &[],
                "From 2001:db8:1::fe icmp_seq=1 Destination unreachable: Administratively prohibited",
                "route_prohibited",
            ),
            (
                "2001:db8:2::77",
                &[],
                "From 2001:db8:1::fe icmp_seq=1 Destination unreachable: Address unreachable",
                "no_neighbour",
            ),
            (
                "2001:db8:2::2",
                &["-t", "1"],
                "From 2001:db8:1::fe icmp_seq=1 Time exceeded: Hop limit",
                "ttl_exceeded",
            ),
        ] {
            let before = drops(stateway(&lab), reason)?;
            let said = one_ping(&lab, more, address)?;
            assert!(said.contains(says), "{address}: {said}");
            assert_eq!(drops(stateway(&lab), reason)?, before + 1, "{address}: {reason}");
        }
        lab.gateway().ip(&["link set wan0 mtu 1300"])?;
        thread::sleep(Duration::from_millis(700));
        let said = one_ping(&lab, &["-M", "do", "-s", "1350"], "198.51.100.2")?;
        assert!(
            said.contains("From 192.0.2.254 icmp_seq=1 Frag needed and DF set (mtu = 1300)"),
            "{said}"
        );
        a_route_allows_less_than_its_link(&lab)?;
        stop_cleanly(&mut lab)
    });
}

fn a_route_allows_less_than_its_link(lab: &Lab) -> Result<()> {
    for (host, ping_it, says) in [
        ("198.51.100.2", "1250", "From 192.0.2.254 icmp_seq=1 Frag needed and DF set (mtu = 1200)"),
        ("2001:db8:2::2", "1280", "From 2001:db8:1::fe icmp_seq=1 Packet too big: mtu=1290"),
    ] {
        let mtu = if host.contains(':') { 1290 } else { 1200 };
        lab.gateway().ip(&[&format!("route replace {host} dev wan0 mtu {mtu}")])?;
        soon(says, || Ok(one_ping(lab, &["-M", "do", "-s", ping_it], host)?.contains(says)))?;
    }
    let said = one_ping(lab, &["-M", "dont", "-s", "1250"], "198.51.100.2")?;
    assert!(said.contains(" 0% packet loss"), "{said}");
    Ok(())
}

#[test]
fn routes_and_neighbours_change_while_traffic_runs() {
    beside_others(|| {
        let mut lab = router(2)?;
        // The route to the server's second address is added, deleted and replaced.
        lab.server().ip(&["addr add 203.0.113.65/32 dev lo"])?;
        lab.gateway().ip(&["route add 203.0.113.65/32 via 198.51.100.2"])?;
        thread::sleep(Duration::from_millis(200));
        let lab_ref: &Lab = &lab;
        let report = thread::scope(|scope| {
            let pings = scope.spawn(|| {
                let program = lab_ref.on_client("ping").args(["-i", "0.01"]);
                ping(program, "203.0.113.65".parse().unwrap(), 300)
            });
            for round in 0..10 {
                thread::sleep(Duration::from_millis(200));
                let metric = 10 + round;
                lab_ref.gateway().ip(&[
                    &format!("route add 203.0.113.65/32 via 198.51.100.2 metric {metric}"),
                    "neigh flush dev wan0",
                    "route replace 203.0.113.65/32 via 198.51.100.2",
                    &format!("route del 203.0.113.65/32 via 198.51.100.2 metric {metric}"),
                ])?;
            }
            pings.join().expect("a client does not panic")
        })?;
        assert_eq!((report.received, report.duplicates), (300, 0));
        lab.gateway().ip(&["route del 203.0.113.65/32"])?;
        lab.gateway().ip(&["route add 203.0.113.64/28 via 192.0.2.77"])?;
        thread::sleep(Duration::from_millis(200));
        let said = one_ping(&lab, &[], "203.0.113.65")?;
        assert!(said.contains("Destination Host Unreachable"), "the new router is nobody: {said}");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn the_kernel_forwards_again_when_the_router_is_gone() {
    beside_others(|| {
        let mut lab = router(1)?;
        let tables = |lab: &Lab| lab.gateway().program("nft").args(["list", "tables"]).check();
        assert!(tables(&lab)?.contains("inet stateway_"));
        stop_cleanly(&mut lab)?;
        assert_eq!(tables(&lab)?, "");
        let report = ping(lab.on_client("ping"), lab.server_address(Family::V4), 3)?;
        assert_eq!(report.received, 3, "the kernel routes as before");
        Ok(())
    });
}

#[test]
fn a_router_without_the_rights_says_at_once_what_it_lacks() {
    beside_others(|| {
        let mut lab = router(1)?;
        stop_cleanly(&mut lab)?;
        let binary = stateway_binary()?;
        let spec = router_spec(1)?;
        let config = spec.config(&["lan0", "wan0"]);
        let config = lab.gateway().write_file("router.toml", config.as_bytes())?;
        let without = ["--bounding-set", "-net_admin", "--inh-caps", "-net_admin"];
        let binary = binary.to_string_lossy();
        let begin = Instant::now();
        let program = lab.gateway().program("setpriv").args(without);
        let refused = program.args([&*binary, "run", "-c", &config]).run()?;
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        for part in ["CAP_NET_ADMIN", "AmbientCapabilities"] {
            assert!(refused.stderr.contains(part), "no {part} in {}", refused.stderr);
        }
        Ok(())
    });
}
