//! Stateway as a router that translates. The server has no route to the client, so only translated
//! packets arrive.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use lab::{
    Family, Gateway, HttpServer, Lab, Placement, Result, StatewaySpec, Transport, ping, traceroute,
};

use crate::operations::datagrams_stay_in_order;
use crate::routed::drops;
use crate::scenario::{FAMILIES, alone, every_request, fragments_arrive, stateway_binary};
use crate::stateway::{Live, stop_cleanly};

/// Rules that masquerade sources towards the server, to a range of ports if one is given. The
/// client is reachable by the router's address on that side.
fn rules(ports: Option<(u16, u16)>) -> String {
    let at_8080 = |to: &str| {
        format!(
            r#"{{"rule":{{"family":"inet","table":"t","chain":"in","handle":4,"expr":[
            {{"match":{{"op":"==","left":{{"meta":{{"key":"iifname"}}}},"right":"wan0"}}}},
            {{"match":{{"op":"==","left":{{"payload":{{"protocol":"tcp","field":"dport"}}}},
                "right":8080}}}},
            {{"dnat":{{{to},"port":8000}}}}]}}}}"#
        )
    };
    let masquerade = ports.map_or("null".to_owned(), |(first, last)| {
        format!(r#"{{"port":{{"range":[{first},{last}]}}}}"#)
    });
    // As in nft, only a masquerade to a range needs a protocol.
    let protocol = ports.map_or(
        "",
        |_| r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"udp"}},"#,
    );
    format!(
        r#"{{"nftables":[
        {{"table":{{"family":"inet","name":"t","handle":1}}}},
        {{"chain":{{"family":"inet","table":"t","name":"in","handle":2,"type":"nat",
            "hook":"prerouting","prio":-100,"policy":"accept"}}}},
        {{"chain":{{"family":"inet","table":"t","name":"out","handle":3,"type":"nat",
            "hook":"postrouting","prio":100,"policy":"accept"}}}},
        {}, {},
        {{"rule":{{"family":"inet","table":"t","chain":"out","handle":6,"expr":[
            {{"match":{{"op":"==","left":{{"meta":{{"key":"oifname"}}}},"right":"wan0"}}}},
            {protocol}{{"masquerade":{masquerade}}}]}}}}]}}"#,
        at_8080(r#""family":"ip","addr":"192.0.2.1""#),
        at_8080(r#""family":"ip6","addr":"2001:db8:1::1""#),
    )
}

/// A file that is deleted when this is dropped.
struct RulesFile(PathBuf);

impl RulesFile {
    fn new(rules: &str) -> Self {
        let name = format!("stateway-translated-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, rules).expect("the system has a directory for such files");
        Self(path)
    }
}

impl Drop for RulesFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn translating_lab(workers: u32) -> Result<Live> {
    lab_with(workers, &rules(None))
}

fn lab_with(workers: u32, rules: &str) -> Result<Live> {
    lab_with_helpers(workers, rules, "")
}

/// A configuration in which no connection is evicted for a port.
const NOBODY_GIVES_WAY: &str = "[tunables]\nstateway_nat_source_share = 100\n";

/// A router with these rules and more lines of configuration, whose server has no route to the
/// client.
pub fn lab_with_helpers(workers: u32, rules: &str, helpers: &str) -> Result<Live> {
    let rules = RulesFile::new(rules);
    let spec = StatewaySpec {
        routed: true,
        more: format!("[rules]\nfile = {:?}\n{helpers}", rules.0),
        ..StatewaySpec::new(stateway_binary()?, workers)
    };
    let lab = Live::from(Lab::new(Gateway::Stateway(spec), Placement::free())?);
    lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
    Ok(lab)
}

/// The router's address towards the server.
pub fn outside(family: Family) -> &'static str {
    match family {
        Family::V4 => "198.51.100.254",
        Family::V6 => "2001:db8:2::fe",
    }
}

/// The number of answers that the gateway's host has sent to packets of other connections: resets,
/// and datagrams for closed ports.
pub fn answers_of_host(lab: &Lab) -> Result<[u64; 2]> {
    let mut sums = [0; 2];
    let text = lab.gateway().program("cat").args(["/proc/net/snmp", "/proc/net/snmp6"]).check()?;
    let lines: Vec<Vec<&str>> = text.lines().map(|it| it.split_whitespace().collect()).collect();
    for (names, values) in lines.iter().zip(lines.iter().skip(1)) {
        if names.first() != values.first() {
            continue;
        }
        for (name, value) in names.iter().zip(values) {
            match (names[0], *name) {
                ("Tcp:", "OutRsts") => sums[0] += value.parse::<u64>().expect("a number"),
                ("Udp:", "NoPorts") => sums[1] += value.parse::<u64>().expect("a number"),
                _ => {}
            }
        }
    }
    for line in &lines {
        if let ["Udp6NoPorts", value] = line[..] {
            sums[1] += value.parse::<u64>().expect("a number");
        }
    }
    Ok(sums)
}

fn every_client_with(workers: u32) {
    alone(|| {
        let mut lab = translating_lab(workers)?;
        every_request(&lab)?;
        fragments_arrive(&lab)?;
        let far = lab.add_far_host()?;
        for family in FAMILIES {
            let route = traceroute(lab.on_client("traceroute"), far.address(family))?;
            let first: std::net::IpAddr = match family {
                Family::V4 => "192.0.2.254",
                Family::V6 => "2001:db8:1::fe",
            }
            .parse()
            .expect("an address");
            let hops = [first, lab.server_address(family), far.address(family)];
            assert_eq!(route.addresses(), hops.map(Some), "{family:?}");
        }
        assert_eq!(answers_of_host(&lab)?, [0, 0], "the host has taken replies for its own");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn every_client_is_masqueraded_with_one_worker() {
    every_client_with(1);
}

#[test]
fn every_client_is_masqueraded_with_two_workers() {
    every_client_with(2);
}

/// A rule names their port, so most of them use another bucket than their answers.
#[test]
fn datagrams_stay_in_order_under_translation_while_workers_change() {
    let named = r#"{"rule":{"family":"inet","table":"t","chain":"out","handle":5,"expr":[
        {"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":5201}},
        {"snat":{"family":"ip","addr":"198.51.100.254","port":40000}}]}}"#;
    let masquerade = r#"{"rule":{"family":"inet","table":"t","chain":"out","handle":6"#;
    let rules = rules(None).replace(masquerade, &format!("{named},{masquerade}"));
    assert!(rules.contains("40000"));
    alone(|| datagrams_stay_in_order(lab_with(1, &rules)?));
}

#[test]
fn a_server_behind_the_router_is_reached_by_its_address() {
    alone(|| {
        let mut lab = translating_lab(2)?;
        let path = lab.client().write_file("page", &[b'x'; 200_000])?;
        let directory = std::path::Path::new(&path).parent().expect("a directory").to_owned();
        let mut server = lab
            .on_client("python3")
            .args(["-m", "http.server", "--bind", "::", "--directory"])
            .args([directory.as_os_str()])
            .args(["8000"])
            .spawn()?;
        server.wait_for_port(Transport::Tcp, 8000)?;
        for family in FAMILIES {
            for _ in 0..20 {
                let host = match family {
                    Family::V4 => outside(family).to_owned(),
                    Family::V6 => format!("[{}]", outside(family)),
                };
                let size = lab
                    .on_server("curl")
                    .args(["-sS", "--globoff", "--noproxy", "*", "-o", "/dev/null", "-m", "10"])
                    .args(["-w", "%{http_code} %{size_download}"])
                    .args([format!("http://{host}:8080/page")])
                    .check()?;
                assert_eq!(size, "200 200000", "{family:?}");
            }
        }
        assert_eq!(answers_of_host(&lab)?, [0, 0], "the host has answered for the server");
        // The host still receives its own traffic.
        for family in FAMILIES {
            let address = outside(family).parse().expect("an address");
            let report = ping(lab.on_server("ping"), address, 3)?;
            assert_eq!((report.received, report.duplicates), (3, 0), "{family:?}");
            let out = ping(lab.gateway().program("ping"), lab.server_address(family), 3)?;
            assert_eq!((out.received, out.duplicates), (3, 0), "{family:?}");
        }
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_sender_hears_of_a_shorter_link_behind_its_translation() {
    alone(|| {
        let mut lab = translating_lab(2)?;
        // Both ends of the link, because it drops packets longer than either MTU.
        lab.gateway().ip(&["link set wan0 mtu 1300"])?;
        lab.server().ip(&["link set eth0 mtu 1300"])?;
        thread::sleep(Duration::from_millis(700));
        let said = lab
            .on_client("ping")
            .args(["-n", "-c", "1", "-W", "4", "-M", "do", "-s", "1350", "198.51.100.2"])
            .run()?
            .stdout;
        let expected = "From 192.0.2.254 icmp_seq=1 Frag needed and DF set (mtu = 1300)";
        assert!(said.contains(expected), "{said}");
        let server = HttpServer::start(&lab, 1_000_000)?;
        for family in FAMILIES {
            let download = server.download(&lab, family)?;
            assert!(download.status == 200 && download.intact, "{family:?}: {download:?}");
        }
        stop_cleanly(&mut lab)
    });
}

/// Gets a page from the host at this address.
fn gets_a_page(from: lab::Program, host: std::net::IpAddr, port: u16) -> Result<()> {
    let host = std::net::SocketAddr::new(host, port);
    let got = from
        .args(["-sS", "--globoff", "--noproxy", "*", "-o", "/dev/null", "-m", "10"])
        .args(["-w", "%{http_code} %{size_download}"])
        .args([format!("http://{host}/page")])
        .check()
        .unwrap_or_else(|error| panic!("{host}: {error}"));
    assert_eq!(got, "200 200000", "{host}");
    Ok(())
}

#[test]
fn the_host_keeps_its_own_connections() {
    // A port of the kernel's ephemeral range, and one of those to which sources are translated.
    const PORTS: [u16; 2] = [40_080, 9000];
    alone(|| {
        let mut lab = translating_lab(2)?;
        let mut servers = Vec::new();
        for (namespace, ports) in [(lab.gateway(), &PORTS[..]), (lab.server(), &[8080][..])] {
            let path = namespace.write_file("page", &[b'x'; 200_000])?;
            let directory = std::path::Path::new(&path).parent().expect("a directory").to_owned();
            for port in ports {
                let mut server = namespace
                    .program("python3")
                    .args(["-m", "http.server", "--bind", "::", "--directory"])
                    .args([directory.as_os_str()])
                    .args([port.to_string()])
                    .spawn()?;
                server.wait_for_port(Transport::Tcp, *port)?;
                servers.push(server);
            }
        }
        for family in FAMILIES {
            let inside = match family {
                Family::V4 => "192.0.2.254",
                Family::V6 => "2001:db8:1::fe",
            };
            let [inside, outside] = [inside, outside(family)]
                .map(|text| text.parse::<std::net::IpAddr>().expect("an address"));
            for _ in 0..3 {
                gets_a_page(lab.gateway().program("curl"), lab.server_address(family), 8080)?;
                for port in PORTS {
                    gets_a_page(lab.on_client("curl"), inside, port)?;
                    gets_a_page(lab.on_client("curl"), outside, port)?;
                    gets_a_page(lab.on_server("curl"), outside, port)?;
                }
            }
        }
        stop_cleanly(&mut lab)
    });
}

/// Echoes each datagram together with its source.
const ECHO: &str = "
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.bind(('::', 7000))
print('ready', flush=True)
while True:
    data, source = s.recvfrom(100)
    s.sendto(data + b' ' + source[0].encode() + b' ' + str(source[1]).encode(), source)
";

/// Plays many hosts that all use the same ports. Prints how many got an answer, how many different
/// sources the server saw, and how many got the answer of another.
const HOSTS: &str = "
import selectors, socket, sys, time
hosts, ports = int(sys.argv[1]), int(sys.argv[2])
selector, own = selectors.DefaultSelector(), []
for host in range(hosts):
    for port in range(ports):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind((f'192.0.2.{host + 10}', 5000 + port))
        s.connect(('198.51.100.2', 7000))
        s.setblocking(False)
        selector.register(s, selectors.EVENT_READ, str(len(own)))
        own.append(s)
seen, wrong = {}, 0
def take(patience):
    global wrong
    for key, _ in selector.select(patience):
        try:
            name, address, port = key.fileobj.recv(200).decode().split()
        except OSError:
            continue
        wrong += name != key.data
        seen.setdefault(name, set()).add((address, port))
for _ in range(4):
    for index, s in enumerate(own):
        if str(index) not in seen or index % 5 == 0:
            try:
                s.send(str(index).encode())
            except OSError:
                pass
        take(0)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        take(0.05)
sources = set().union(*seen.values())
moved = sum(len(them) > 1 for them in seen.values())
print(len(seen), len(sources), wrong, moved)
";

/// The number of flows that got an answer, among so many hosts with so many ports each. Checks that
/// each has its own source.
fn answered_flows(lab: &Lab, hosts: u32, ports: u32) -> Result<usize> {
    let mut echo = lab.on_server("python3").args(["-c", ECHO]).spawn()?;
    echo.wait_for_text("ready")?;
    let addresses: Vec<_> =
        (0..hosts).map(|host| format!("addr add 192.0.2.{}/24 dev eth0", host + 10)).collect();
    lab.client().ip(&addresses.iter().map(String::as_str).collect::<Vec<_>>())?;
    let said = lab
        .on_client("python3")
        .args(["-c", HOSTS, &hosts.to_string(), &ports.to_string()])
        .limit(Duration::from_secs(40))
        .check()?;
    let numbers: Vec<usize> =
        said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [answered, sources, wrong, moved] = numbers[..] else { panic!("{said}") };
    assert_eq!((sources, wrong, moved), (answered, 0, 0), "{said}");
    Ok(answered)
}

#[test]
fn no_two_flows_of_many_hosts_have_one_source() {
    alone(|| {
        let mut lab = translating_lab(2)?;
        assert_eq!(answered_flows(&lab, 60, 10)?, 600);
        assert_eq!(drops(&lab, "port_pool_full")?, 0);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn flows_that_find_no_port_are_counted() {
    // Two ports for each of 256 buckets. A bucket may also get ports of others.
    const RANGE: (u16, u16) = (20_000, 20_511);
    alone(|| {
        let mut lab = lab_with_helpers(2, &rules(Some(RANGE)), NOBODY_GIVES_WAY)?;
        assert_eq!(answered_flows(&lab, 45, 20)?, 512);
        let refused = drops(&lab, "port_pool_full")?;
        assert!(refused >= 900 - 512, "{refused} are refused");
        assert_eq!(drops(&lab, "alias_taken")?, 0);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_range_that_most_buckets_have_no_port_of_is_used_up() {
    const RANGE: (u16, u16) = (20_000, 20_063);
    alone(|| {
        let mut lab = lab_with_helpers(2, &rules(Some(RANGE)), NOBODY_GIVES_WAY)?;
        assert_eq!(answered_flows(&lab, 30, 10)?, 64);
        let refused = drops(&lab, "port_pool_full")?;
        assert!(refused >= 300 - 64, "{refused} are refused");
        assert_eq!(drops(&lab, "alias_taken")?, 0);
        stop_cleanly(&mut lab)
    });
}
