//! Compares the mirror with the kernel in a network namespace: both have to send a packet the same
//! way.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "only tests call these functions")]

mod asking;
mod overruns;
// All tests that need a namespace of their own share this file.
#[path = "../../../netio/tests/afpacket/namespace.rs"]
mod namespace;
mod sources;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use asking::Kernel;
use fib::{Neighbour, NextHop, Query, RouteResult, Table, TableId};
use namespace::isolated;
use netlink::{LinkId, Mirror};

/// Number of random sets of rules and routes.
const WORLDS: u64 = 25;
/// Packets to compare in each set, at each stage of its changes.
const PACKETS: usize = 150;
const LINKS: [&str; 3] = ["a0", "b0", "c0"];
const TABLES: [u32; 3] = [254, 100, 101];
const METRICS: [u32; 3] = [10, 20, 30];

/// Numbers that look random and are the same in each run (Marsaglia, "Xorshift RNGs").
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % end as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A command for ip(8), such as "route add ...".
#[derive(Clone, Debug)]
struct Order {
    v6: bool,
    text: String,
}

impl Order {
    fn with(&self, text: String) -> Self {
        Self { v6: self.v6, text }
    }
}

/// Runs commands, of which ip(8) may refuse some, as "file exists".
fn try_all(orders: &[Order]) {
    for v6 in [false, true] {
        let of_family = orders.iter().filter(|order| order.v6 == v6);
        let text: Vec<&str> = of_family.map(|order| order.text.as_str()).collect();
        let mut ip = Command::new("ip")
            .args([if v6 { "-6" } else { "-4" }, "-force", "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        ip.stdin.take().unwrap().write_all(text.join("\n").as_bytes()).unwrap();
        ip.wait().unwrap();
    }
}

fn ip(orders: &str) {
    let output = Command::new("ip").args(orders.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {orders}: {}", String::from_utf8_lossy(&output.stderr));
}

fn set_up() {
    ip("link set lo up");
    for link in LINKS {
        let letter = &link[..1];
        ip(&format!("link add {letter}0 type veth peer name {letter}1"));
        // The tests need no link-local addresses, which would come a second later.
        ip(&format!("link set {letter}0 addrgenmode none up"));
        ip(&format!("link set {letter}1 addrgenmode none up"));
    }
    ip("link property add dev a0 altname also-a");
    for (number, link) in LINKS.iter().enumerate() {
        ip(&format!("addr add 192.0.2.{}/28 dev {link}", 16 * number + 1));
        ip(&format!("addr add 2001:db8:{number}::1/64 dev {link} nodad"));
    }
    for (path, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv6/conf/all/forwarding", "1"),
    ] {
        std::fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
    }
    for link in LINKS {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{link}/rp_filter"), "0").unwrap();
    }
}

/// One of a few addresses that routes and packets share.
fn address(random: &mut Random, v6: bool) -> String {
    let byte = random.pick(&[0u8, 1, 64, 65, 128, 129, 192, 255]);
    if v6 { format!("2001:db8:9:{byte:x}00::1") } else { format!("198.51.100.{byte}") }
}

fn prefix(random: &mut Random, v6: bool) -> String {
    let bits = random.pick(&[0usize, 1, 2, 8]);
    if random.chance(15) {
        return "default".to_owned();
    }
    let byte = random.pick(&[0u8, 64, 128, 192]) & !(255u16 >> bits) as u8;
    if v6 {
        format!("2001:db8:9:{byte:x}00::/{}", 48 + bits)
    } else {
        format!("198.51.100.{byte}/{}", 24 + bits)
    }
}

fn hop(random: &mut Random, v6: bool) -> String {
    let link = random.below(LINKS.len());
    let name = LINKS[link];
    match (random.below(3), v6) {
        (0, _) => format!("dev {name}"),
        (host, false) => format!("via 192.0.2.{} dev {name}", 16 * link + 1 + host),
        (host, true) => format!("via 2001:db8:{link}::{} dev {name}", 1 + host),
    }
}

fn route(random: &mut Random, v6: bool) -> String {
    let table = random.pick(&TABLES);
    let metric = random.pick(&METRICS);
    let destination = prefix(random, v6);
    let end = format!("table {table} metric {metric}");
    if v6 && random.chance(10) {
        // These routes have a prefix of their own: after a route without source to the same prefix
        // was removed, the kernel no longer finds those with a source.
        let source = random.pick(&["2001:db8:9::/49", "2001:db8:9:8000::/49"]);
        return format!("2001:db8:9:8100::/56 {} from {source} {end}", hop(random, v6));
    }
    let end = if !v6 && random.chance(20) { format!("{end} tos 0x10") } else { end };
    let end = if metric == 30 { format!("{end} mtu 1400") } else { end };
    match random.below(12) {
        0 => format!("unreachable {destination} {end}"),
        1 => format!("prohibit {destination} {end}"),
        2 => format!("blackhole {destination} {end}"),
        3 => format!("throw {destination} {end}"),
        4 | 5 => {
            let hops: Vec<String> = (0..2 + random.below(2))
                .map(|_| format!("nexthop {} weight {}", hop(random, v6), 1 + random.below(3)))
                .collect();
            format!("{destination} {end} {}", hops.join(" "))
        }
        6 if !v6 => format!("{destination} {end} via inet6 2001:db8:1::2 dev b0"),
        _ => format!("{destination} {} {end}", hop(random, v6)),
    }
}

fn rule(random: &mut Random, v6: bool) -> String {
    let mut order = format!("priority {}", 10 + random.below(8));
    if random.chance(10) {
        order = format!("not {order}");
    }
    for (percent, name) in [(40, "from"), (40, "to")] {
        if random.chance(percent) {
            let prefix = prefix(random, v6);
            let prefix = if prefix == "default" { "all" } else { &prefix };
            order += &format!(" {name} {prefix}");
        }
    }
    if random.chance(25) {
        order += &format!(" iif {}", random.pick(&["a0", "b0", "absent0", "also-a"]));
    }
    if random.chance(25) {
        order += &format!(" fwmark {}/{}", random.below(4), random.pick(&[1, 3]));
    }
    if random.chance(15) {
        order += " ipproto udp";
        if random.chance(50) {
            order += &format!(" dport {}-{}", random.below(3) + 1, 3);
        }
    }
    match random.below(10) {
        0 => order + " prohibit",
        1 => order + " unreachable",
        2 => order + " blackhole",
        3 => order + &format!(" goto {}", 18 + random.below(3)),
        4 => format!("{order} lookup 254 suppress_prefixlength {}", random.pick(&[0, 24, 25])),
        _ => format!("{order} lookup {}", random.pick(&TABLES)),
    }
}

fn packet(random: &mut Random, v6: bool, mirror: &Mirror) -> Query {
    let ip = |text: String| text.parse::<IpAddr>().unwrap();
    // An interface may have its second name for a while.
    let names = random.pick(&[["a0", "absent0"], ["b0", "b0"]]);
    let id = names.iter().find_map(|name| mirror.picture().link_named(name)).unwrap();
    let (source, destination) = (ip(address(random, v6)), ip(address(random, v6)));
    Query {
        mark: random.below(4) as u32,
        traffic_class: if !v6 && random.chance(20) { random.pick(&[0x10, 0xb0, 0x20]) } else { 0 },
        protocol: 17,
        ports: Some((9, random.below(5) as u16)),
        ..Query::new(source, destination, id)
    }
}

/// All ways that flows with the same fields as a packet may take.
fn ways(mirror: &Mirror, query: &Query) -> BTreeSet<String> {
    let flow = |number: u32| Query { flow_hash: number.wrapping_mul(0x9e37_79b1), ..*query };
    (0..64).map(|number| shown(mirror.picture().fib.look_up(&flow(number)))).collect()
}

fn shown(way: RouteResult) -> String {
    match way {
        RouteResult::Forward(NextHop { link: LinkId(link), gateway, mtu, .. }) => {
            format!("link {link} gateway {gateway:?} mtu {mtu:?}")
        }
        // The kernel reports one error for both, or two, depending on the family.
        RouteResult::NoRoute | RouteResult::Unreachable => "unreachable".to_owned(),
        other => format!("{other:?}"),
    }
}

fn routes(mirror: &Mirror) -> BTreeSet<String> {
    let tables = mirror.picture().fib.tables();
    let of_table = |(id, table): (TableId, &Table)| {
        table.routes().map(|route| format!("{id:?} {route:?}")).collect::<Vec<_>>()
    };
    tables.flat_map(of_table).collect()
}

/// Compares the followed mirror with a new one, and both with the kernel. Returns the number of
/// packets that are forwarded.
fn compare(random: &mut Random, mirror: &mut Mirror, kernel: &mut Kernel) -> usize {
    mirror.refresh().unwrap();
    let anew = Mirror::open().unwrap();
    assert_eq!(routes(mirror), routes(&anew));
    let (followed, listed) = (mirror.picture(), anew.picture());
    for v6 in [false, true] {
        assert_eq!(followed.fib.rules(v6), listed.fib.rules(v6));
    }
    assert_eq!(followed.links, listed.links);
    assert_eq!((&followed.unsupported, &listed.unsupported), (&BTreeSet::new(), &BTreeSet::new()));
    let mut forwarded = 0;
    for number in 0..PACKETS {
        let query = packet(random, number % 2 == 1, mirror);
        let (theirs, ours) = (kernel.way(&query), ways(mirror, &query));
        assert!(ours.contains(&theirs), "{query:?}\nkernel: {theirs}\nours: {ours:?}");
        forwarded += usize::from(theirs.starts_with("link"));
    }
    forwarded
}

/// The commands that make a world, and those that change it by adding, deleting and replacing.
fn orders(random: &mut Random) -> (Vec<Order>, Vec<Order>) {
    let mut orders = Vec::new();
    for v6 in [false, true] {
        for _ in 0..30 {
            orders.push(Order { v6, text: format!("route add {}", route(random, v6)) });
        }
        for _ in 0..5 {
            orders.push(Order { v6, text: format!("rule add {}", rule(random, v6)) });
        }
    }
    let mut changes = Vec::new();
    for order in &orders {
        let text = &order.text;
        match random.below(6) {
            0 => changes.push(order.with(text.replacen(" add ", " del ", 1))),
            1 => changes
                .push(order.with(text.replace("route add", "route replace").replace("a0", "c0"))),
            2 => changes
                .push(order.with(text.replace("route add", "route append").replace("b0", "c0"))),
            3 if !order.v6 => changes
                .push(order.with(text.replace("route add", "route prepend").replace("c0", "a0"))),
            _ => {}
        }
    }
    (orders, changes)
}

/// Removes everything that a world may have added.
fn clean_up() {
    let mut orders = Vec::new();
    for v6 in [false, true] {
        let mut push = |text: String| orders.push(Order { v6, text });
        for table in TABLES {
            for kind in ["unicast", "unreachable", "prohibit", "blackhole", "throw"] {
                for metric in METRICS {
                    push(format!("route flush table {table} type {kind} metric {metric}"));
                }
            }
        }
        // Each may have been added several times.
        for priority in (10..18).flat_map(|priority| [priority; 10]) {
            push(format!("rule del priority {priority}"));
        }
    }
    try_all(&orders);
}

#[test]
fn packets_go_where_the_kernel_sends_them() {
    isolated("packets_go_where_the_kernel_sends_them", || {
        set_up();
        let mut mirror = Mirror::open().unwrap();
        let mut kernel = Kernel::open();
        let (mut asked, mut forwarded) = (0, 0);
        for world in 1..=WORLDS {
            println!("world {world}");
            let mut random = Random(world.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let (orders, changes) = orders(&mut random);
            try_all(&orders);
            forwarded += compare(&mut random, &mut mirror, &mut kernel);
            try_all(&changes);
            forwarded += compare(&mut random, &mut mirror, &mut kernel);
            // The kernel removes routes with these, and does not report which.
            ip("link set b0 down");
            ip("addr del 192.0.2.33/28 dev c0");
            forwarded += compare(&mut random, &mut mirror, &mut kernel);
            // Rules name interfaces, and are detached by the new name.
            ip("link set a0 name absent0");
            forwarded += compare(&mut random, &mut mirror, &mut kernel);
            ip("link set absent0 name a0");
            forwarded += compare(&mut random, &mut mirror, &mut kernel);
            asked += 5 * PACKETS;
            ip("link set b0 up");
            ip("addr add 192.0.2.33/28 dev c0");
            ip("addr add 2001:db8:1::1/64 dev b0 nodad");
            clean_up();
        }
        println!("{asked} packets, {forwarded} forwarded");
        assert!(forwarded * 4 > asked, "too few packets have a way");
    });
}

#[test]
fn a_prepended_route_is_looked_up_and_replaced_before_others() {
    isolated("a_prepended_route_is_looked_up_and_replaced_before_others", || {
        set_up();
        let mut mirror = Mirror::open().unwrap();
        let mut kernel = Kernel::open();
        let source = "203.0.113.1".parse().unwrap();
        let from = mirror.picture().link_named("c0").unwrap();
        let ports = Some((1, 1));
        let query = Query {
            protocol: 17,
            ports,
            ..Query::new(source, "198.51.100.1".parse().unwrap(), from)
        };
        for (order, hop) in [
            ("add", "via 192.0.2.2 dev a0"),
            ("append", "via 192.0.2.18 dev b0"),
            ("prepend", "via 192.0.2.19 dev b0"),
            ("replace", "via 192.0.2.3 dev a0"),
            ("del", "via 192.0.2.3 dev a0"),
        ] {
            ip(&format!("route {order} 198.51.100.0/24 {hop}"));
            mirror.refresh().unwrap();
            assert_eq!(routes(&mirror), routes(&Mirror::open().unwrap()), "{order}");
            let theirs = kernel.way(&query);
            assert_eq!(ways(&mirror, &query), BTreeSet::from([theirs]), "{order}");
        }
    });
}

#[test]
fn neighbours_are_followed() {
    isolated("neighbours_are_followed", || {
        set_up();
        let mut mirror = Mirror::open().unwrap();
        let link = *mirror.picture().links.iter().find(|(_, link)| link.name == "a0").unwrap().0;
        let address: IpAddr = "192.0.2.5".parse().unwrap();
        let station = [2, 0, 0, 0, 0, 5];
        let known = |mirror: &mut Mirror| {
            mirror.refresh().unwrap();
            mirror.picture().neighbours.get(link, address).copied()
        };
        assert_eq!(known(&mut mirror), None);
        for (state, expected) in [
            ("permanent", Some(Neighbour::Known { station, is_fresh: true })),
            ("stale", Some(Neighbour::Known { station, is_fresh: false })),
            ("reachable", Some(Neighbour::Known { station, is_fresh: true })),
        ] {
            ip(&format!("neigh replace 192.0.2.5 lladdr 02:00:00:00:00:05 dev a0 nud {state}"));
            assert_eq!(known(&mut mirror), expected, "{state}");
            assert_eq!(known(&mut Mirror::open().unwrap()), expected, "{state}");
        }
        ip("neigh del 192.0.2.5 dev a0");
        assert!(matches!(known(&mut mirror), None | Some(Neighbour::Failed)));
        // No neighbour answers, and the kernel reports this.
        mirror.resolve(link, address).unwrap();
        let listed = known(&mut Mirror::open().unwrap());
        assert_eq!(listed, Some(Neighbour::Incomplete), "only its end is told");
        let addresses = &mirror.picture().links[&link].addresses;
        assert!(addresses.contains(&"192.0.2.1/28".parse().unwrap()), "{addresses:?}");
    });
}

#[test]
fn a_storm_of_news_loses_nothing() {
    isolated("a_storm_of_news_loses_nothing", || {
        set_up();
        let mut mirror = Mirror::open().unwrap();
        let order = |n: usize| format!("route add 198.18.{}.{}/32 dev a0", n / 256, n % 256);
        let orders: Vec<Order> =
            (0..60_000).map(|number| Order { v6: false, text: order(number) }).collect();
        try_all(&orders);
        mirror.refresh().unwrap();
        let table = mirror.picture().fib.tables().find(|(id, _)| *id == TableId::MAIN).unwrap().1;
        let hosts = table.routes().filter(|route| route.destination.prefix_len() == 32).count();
        assert_eq!(hosts, orders.len());
    });
}
