//! Rules that ask for the route of a packet, and for the CPU that judges it, beside the kernel.

use lab::{Family, FarHost, Lab, Result, Stateway, Tracking, ping};

use crate::scenario::{
    FAMILIES, alone, counted, kernel_router, load_of, router_spec, soon, start_in, stateway_binary,
    stop,
};

/// Counts packets by their routes, in all forms that nft has for it.
const BY_ROUTE: &str = "
table inet t {
    set hops {
        type ipv4_addr
        elements = { 198.51.100.2, 203.0.113.7 }
    }
    chain early {
        type filter hook prerouting priority filter; policy accept;
        rt ip nexthop 198.51.100.2 counter
        rt ip nexthop != 192.0.2.77 counter
    }
    chain in {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 203.0.113.5 dnat ip to 198.51.100.2
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        meta l4proto != { icmp, ipv6-icmp } return
        rt ip nexthop 198.51.100.2 counter
        rt ip nexthop != 198.51.100.2 counter
        rt ip nexthop 192.0.2.1 counter
        rt ip nexthop 203.0.113.129 counter
        rt ip nexthop 203.0.113.5 counter
        rt ip nexthop @hops counter
        rt ip6 nexthop 2001:db8:2::2 counter
        rt ip6 nexthop 2001:db8:1::/64 counter
        rt ip6 nexthop != 2001:db8:2::2 counter
        rt mtu 1460 counter
        rt mtu 1440 counter
        rt mtu 1260 counter
        rt mtu < 1300 counter
        rt mtu { 1240, 1340, 1360 } counter
        meta mark set rt mtu
        meta mark 1260 counter
        rt ip nexthop . meta l4proto { 198.51.100.2 . icmp, 192.0.2.1 . tcp } counter
        jhash rt ip nexthop mod 1000 seed 0x1 < 500 counter
        jhash rt mtu mod 1000 seed 0x1 < 500 counter
        jhash rt ip6 nexthop . rt mtu mod 1000 seed 0x1 < 500 counter
        counter
    }
    chain p {
        type filter hook postrouting priority filter; policy accept;
        meta l4proto != { icmp, ipv6-icmp } return
        rt ip nexthop 198.51.100.2 counter
        rt mtu 1260 counter
    }
}
";

/// A packet that the routes lead to the server, to a host behind it, and to an address that rules
/// translate; all are answered.
fn pings(lab: &Lab, far: &FarHost) -> Result<()> {
    for family in FAMILIES {
        for to in [lab.server_address(family), far.address(family)] {
            assert_eq!(ping(lab.on_client("ping"), to, 1)?.received, 1, "{to}");
        }
    }
    let translated = "203.0.113.5".parse().expect("an address");
    assert_eq!(ping(lab.on_client("ping"), translated, 1)?.received, 1);
    Ok(())
}

fn counted_by(stateway: &Stateway) -> Result<Vec<u64>> {
    Ok(counted(&stateway.query(&["rules", "list"])?))
}

#[test]
fn routes_are_those_that_the_kernel_tells_its_rules() {
    alone(|| {
        stateway_binary()?;
        let lab = kernel_router(Tracking::Off)?;
        let far = lab.add_far_host()?;
        lab.gateway().ip(&[
            "route add 203.0.113.128/25 via 198.51.100.2 mtu 1300",
            "route add 2001:db8:3::/64 via 2001:db8:2::2 mtu 1400",
        ])?;
        for mtu_of_lan in [1500, 1400] {
            lab.gateway().ip(&[&format!("link set lan0 mtu {mtu_of_lan}")])?;
            lab.gateway().load_rules(BY_ROUTE)?;
            pings(&lab, &far)?;
            let theirs = lab.gateway().listed_rules()?;
            let theirs = counted(&serde_json::from_str(&theirs).expect("JSON"));
            assert!(theirs.iter().sum::<u64>() > 40, "{theirs:?}");
            lab.gateway().flush_rules()?;

            let stateway = start_in(lab.gateway(), &router_spec(2)?)?;
            soon("neighbours are known", || {
                load_of(&lab, &stateway, BY_ROUTE)?;
                pings(&lab, &far)?;
                Ok(counted_by(&stateway)? == theirs)
            })?;
            stop(stateway)?;
        }
        Ok(())
    });
}

/// Counts packets by the CPU that judges them: on the first, on the second, on the others, on a CPU
/// that there is not, and all.
const BY_CPU: &str = "
table inet t {
    chain f {
        type filter hook forward priority filter; policy accept;
        meta cpu 0 counter
        meta cpu 1 counter
        meta cpu > 1 counter
        meta cpu 4095 counter
        meta cpu != 4095 counter
    }
}
";

#[test]
fn packets_are_judged_on_the_cpu_of_a_worker() {
    alone(|| {
        stateway_binary()?;
        for workers in [1, 2] {
            let lab = kernel_router(Tracking::Off)?;
            let stateway = start_in(lab.gateway(), &router_spec(workers)?)?;
            load_of(&lab, &stateway, BY_CPU)?;
            let server = lab.server_address(Family::V4);
            assert_eq!(ping(lab.on_client("ping"), server, 5)?.received, 5);
            let [first, second, others, none, all] = counted_by(&stateway)?[..] else {
                panic!("there are five counters")
            };
            assert_eq!((first + second + others, none, all), (10, 0, 10), "{workers} workers");
            if workers == 1 {
                let cpu = stateway.query(&["status"])?["workers"][0]["cpu"].as_u64();
                let expected = match cpu {
                    Some(0) => [10, 0, 0],
                    Some(1) => [0, 10, 0],
                    Some(_) => [0, 0, 10],
                    None => panic!("the worker is pinned"),
                };
                assert_eq!([first, second, others], expected, "it runs on CPU {cpu:?}");
            }
            stop(stateway)?;
        }
        Ok(())
    });
}
