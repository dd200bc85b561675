//! Spoofed sources: `rp_filter`, and addresses that no host may have.

use std::net::IpAddr;

use lab::{Random, Result, Side};
use wire::build::PacketBuilder;

use crate::scenario::cables::{CLIENT, CLIENT_V6, Fate, Numbers, Router, SERVER, SERVER_V6, Sent};
use crate::scenario::{beside_others, drops};

/// The number of packets for each configuration.
const PACKETS: usize = 300;

/// The claimed sources: neighbours on both sides, hosts behind routers on both sides and on either,
/// unrouted addresses, and multicast addresses.
const SOURCES: [&str; 24] = [
    "192.0.2.77",
    "192.0.2.255",
    "192.0.2.254",
    "198.51.100.77",
    "203.0.113.1",
    "203.0.113.65",
    "203.0.113.129",
    "203.0.113.193",
    "198.18.0.1",
    "240.0.0.1",
    "127.0.0.1",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.9",
    "255.255.255.255",
    "2001:db8:1::77",
    "2001:db8:2::77",
    "2001:db8:1::fe",
    "2001:db8:8::1",
    "2001:db8:9::1",
    "2001:db8:a::1",
    "::1",
    "::ffff:192.0.2.1",
    "ff05::1",
];
/// Sources that the kernel accepts, some only with an `rp_filter` of 0: "this network" (RFC 1122
/// section 3.2.1.3), a broadcast address, an address of the router, and an IPv4-mapped IPv6
/// address.
const ALWAYS_REFUSED: [&str; 4] = ["0.1.2.3", "192.0.2.255", "2001:db8:1::fe", "::ffff:192.0.2.1"];
/// A source with a way back by either link. The model's rules take one of the two by a hash whose secret
/// the kernel draws when it starts. A strict check is about any of them.
const BY_EITHER: &str = "2001:db8:a::1";
/// The routes besides those to the neighbours.
const ROUTES: [&str; 9] = [
    "route add default via 192.0.2.1",
    "route add 203.0.113.0/26 via 198.51.100.2",
    "route add 203.0.113.64/26 nexthop via 192.0.2.1 nexthop via 198.51.100.2",
    "route add unreachable 203.0.113.128/26",
    "route add blackhole 198.18.0.0/15",
    "-6 route add default via 2001:db8:1::1",
    "-6 route add 2001:db8:8::/48 via 2001:db8:2::2",
    "-6 route add unreachable 2001:db8:9::/48",
    "-6 route add 2001:db8:a::/48 nexthop via 2001:db8:1::1 nexthop via 2001:db8:2::2",
];
/// The kernel has no `rp_filter` for IPv6; these rules do the same.
const RULES_V6: [&str; 2] = [
    "meta nfproto ipv6 fib saddr . iif oif missing drop",
    "meta nfproto ipv6 fib saddr oif missing drop",
];

fn packet(side: Side, source: IpAddr, payload: &[u8]) -> Sent {
    let builder = match (source, side) {
        (IpAddr::V4(source), Side::Client) => PacketBuilder::v4(source.octets(), SERVER),
        (IpAddr::V4(source), Side::Server) => PacketBuilder::v4(source.octets(), CLIENT),
        (IpAddr::V6(source), Side::Client) => PacketBuilder::v6(source.octets(), SERVER_V6),
        (IpAddr::V6(source), Side::Server) => PacketBuilder::v6(source.octets(), CLIENT_V6),
    };
    let mut frame = Vec::new();
    builder.udp(7, 9, payload, &mut frame);
    Sent { side, frame }
}

/// Makes the kernel filter sources like `rp_filter`, for IPv6 too.
fn have_kernel(router: &Router, value: usize) -> Result<()> {
    router.namespace.sysctl([&format!("net.ipv4.conf.all.rp_filter={value}")])?;
    let rule = value.checked_sub(1).map_or("", |at| RULES_V6[at]);
    let chain = "type filter hook prerouting priority raw; policy accept;";
    let rules = format!("table inet model {{ chain first {{ {chain}\n{rule}\n}}\n}}\n");
    router.namespace.load_rules(&rules).map(drop)
}

#[test]
fn sources_are_refused_as_by_a_kernel_that_forwards() {
    beside_others(|| {
        let router = Router::new()?;
        for route in ROUTES {
            router.namespace.program("ip").args(route.split(' ')).check()?;
        }
        let (mut random, mut numbers) = (Random::new(2), Numbers::default());
        for (value, word) in [(0, "0"), (1, "\"strict\""), (2, "\"loose\"")] {
            let mut sent = Vec::new();
            for _ in 0..PACKETS {
                let source = random.one_of(&SOURCES).parse().expect("an address");
                let side = random.one_of(&[Side::Client, Side::Server]);
                sent.push(packet(side, source, &numbers.payload()));
            }
            have_kernel(&router, value)?;
            let theirs = router.play(&sent)?;
            router.namespace.flush_rules()?;
            let key = format!("rp_filter = {word}");
            let stateway = router.stateway([&key; 2])?;
            let ours = router.play(&sent)?;
            println!("{}", stateway.command(&["drops"]).check()?);
            let mut differences = Vec::new();
            for ((sent, theirs), ours) in sent.iter().zip(&theirs).zip(&ours) {
                let passes = |fate: &Fate| fate.out.len();
                let network = wire::dissect(&sent.frame).unwrap().network.unwrap();
                let source = network.source_ip().to_string();
                let is_refused = ALWAYS_REFUSED.contains(&source.as_str());
                let expected = match &*source {
                    _ if is_refused => 0,
                    BY_EITHER => 1,
                    _ => passes(theirs),
                };
                if passes(ours) != expected {
                    let frame = &sent.frame[14..];
                    differences.push(format!("{:?} {frame:x?}: {ours:?}", sent.side));
                }
            }
            let passed = theirs.iter().filter(|fate| !fate.out.is_empty()).count();
            println!("rp_filter {value}: {passed} of {PACKETS} pass");
            assert_eq!(differences, Vec::<String>::new(), "rp_filter {value}");
            assert!((PACKETS / 8..PACKETS * 7 / 8).contains(&passed), "{passed}");
            let refused = drops(&stateway, "rp_filter")?;
            assert_eq!(refused > 0, value > 0, "{refused}");
            assert!(drops(&stateway, "martian")? > 0);
            stateway.stop()?;
        }
        Ok(())
    });
}

/// A host behind the other link is no neighbour on this one, whatever the kernel's setting.
#[test]
fn a_spoofed_neighbour_is_refused_where_nothing_is_configured() {
    beside_others(|| {
        let router = Router::new()?;
        router
            .namespace
            .ip(&["route add default via 198.51.100.2", "route add default via 2001:db8:2::2"])?;
        let mut numbers = Numbers::default();
        let mut packet = |side, source: &str| {
            packet(side, source.parse().expect("an address"), &numbers.payload())
        };
        let (lan, wan) = (Side::Client, Side::Server);
        let sent = [
            packet(wan, "192.0.2.77"),
            packet(wan, "2001:db8:1::77"),
            packet(lan, "192.0.2.77"),
            packet(lan, "2001:db8:1::77"),
            packet(wan, "203.0.113.1"),
            // The route back may differ.
            packet(lan, "203.0.113.1"),
            packet(lan, "2001:db8:9::1"),
        ];
        let passes =
            |fates: Vec<Fate>| -> Vec<usize> { fates.iter().map(|fate| fate.out.len()).collect() };
        let stateway = router.stateway([""; 2])?;
        assert_eq!(passes(router.play(&sent)?), [0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(drops(&stateway, "rp_filter")?, 2);
        // A route that is added while the gateway runs counts at once.
        router.namespace.ip(&["route add 192.0.2.77 via 198.51.100.2"])?;
        let mut after = passes(router.play(&sent)?);
        for _ in 0..50 {
            if after[0] == 1 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            after = passes(router.play(&sent)?);
        }
        assert_eq!(after, [1, 0, 1, 1, 1, 1, 1]);
        stateway.stop()?;
        // The kernel's stricter setting applies here, too.
        router.namespace.sysctl(["net.ipv4.conf.all.rp_filter=1"])?;
        let stateway = router.stateway([""; 2])?;
        assert_eq!(passes(router.play(&sent)?), [1, 0, 0, 1, 1, 0, 0]);
        stateway.stop().map(drop)
    });
}
