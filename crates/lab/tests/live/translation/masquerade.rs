//! Stateway as a router that translates. The server has no route to the client, so only translated
//! packets arrive.

use std::thread;
use std::time::Duration;

use lab::{Family, HttpServer, Lab, Result, Tracking, Transport, ping};

use crate::scenario::{
    FAMILIES, StatewayLab, answers_of_host, beside_others, datagrams_stay_in_order, drops,
    edge_router, every_request, fragments_arrive, inside, kernel_router, masquerading_router,
    nat_rules, outside, routes_show, soon, source_echo, stateway, stop_cleanly,
};

/// A configuration in which no connection is evicted for a port.
const NOBODY_GIVES_WAY: &str = "[tunables]\nstateway_nat_source_share = 100\n";

/// A router that masquerades datagrams to these ports.
fn range_router((first, last): (u16, u16)) -> Result<StatewayLab> {
    let masquerade = format!("meta l4proto udp masquerade to :{first}-{last}");
    edge_router(2, &nat_rules(&[], &masquerade), NOBODY_GIVES_WAY)
}

fn every_client_with(workers: u32) {
    beside_others(|| {
        let mut lab = masquerading_router(workers)?;
        every_request(&lab)?;
        fragments_arrive(&lab)?;
        routes_show(&lab, |family| vec![inside(family).parse().unwrap()])?;
        assert_eq!(answers_of_host(&lab)?, [0, 0], "the host has taken replies for its own");
        stop_cleanly(&mut lab)
    });
}

/// Sends a packet of a protocol without ports, which the peer gives back. Prints what came back, and
/// the ICMP messages that the peer got.
const WITHOUT_PORTS: &str = "
import socket, sys
side, peer, protocol = sys.argv[1], sys.argv[2], int(sys.argv[3])
own = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
own.settimeout(10)
if side == 'client':
    own.sendto(b'a packet', (peer, 0))
    print(own.recv(2000)[20:].decode())
else:
    icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    print('ready', flush=True)
    packet, sender = own.recvfrom(2000)
    own.sendto(b'its answer', sender)
    icmp.settimeout(1)
    try:
        while True:
            print('ICMP', icmp.recv(2000)[20])
    except TimeoutError:
        pass
";

#[test]
fn the_host_does_not_refuse_protocols_without_ports_that_are_masqueraded() {
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
        lab.gateway().sysctl(["net.ipv4.icmp_ratelimit=0"])?;
        let server = lab.server_address(Family::V4).to_string();
        // ESP (RFC 4303), and one for experiments (RFC 3692).
        for protocol in ["50", "253"] {
            let arguments =
                |side| ["-c", WITHOUT_PORTS, side, &server, protocol].map(str::to_owned);
            let mut peer = lab.on_server("python3").args(arguments("server")).spawn()?;
            peer.wait_for_text("ready")?;
            let came = lab.on_client("python3").args(arguments("client")).check()?;
            assert_eq!(came.trim(), "its answer", "protocol {protocol}");
            assert_eq!(peer.finish()?.stdout.trim(), "ready", "protocol {protocol}");
        }
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
    let named = "udp dport 5201 snat ip to 198.51.100.254:40000\noifname wan0 masquerade";
    let rules = nat_rules(&[], named);
    beside_others(|| datagrams_stay_in_order(edge_router(1, &rules, "")?));
}

#[test]
fn a_server_behind_the_router_is_reached_by_its_address() {
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
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
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
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
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
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
            let [inside, outside] = [inside(family), outside(family)]
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
    let _echo = source_echo(lab.server(), 7000)?;
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
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
        assert_eq!(answered_flows(&lab, 60, 10)?, 600);
        assert_eq!(drops(stateway(&lab), "port_pool_full")?, 0);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn flows_that_find_no_port_are_counted() {
    // Two ports for each of 256 buckets. A bucket may also get ports of others.
    const RANGE: (u16, u16) = (20_000, 20_511);
    beside_others(|| {
        let mut lab = range_router(RANGE)?;
        assert_eq!(answered_flows(&lab, 45, 20)?, 512);
        // On a busy machine another worker answers so late that some flows do not wait for it.
        let count = |reason| drops(stateway(&lab), reason);
        let refused = count("port_pool_full")? + count("alias_queue_full")?;
        assert!(refused >= 900 - 512, "{refused} are refused");
        assert_eq!(drops(stateway(&lab), "alias_taken")?, 0);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_range_that_most_buckets_have_no_port_of_is_used_up() {
    const RANGE: (u16, u16) = (20_000, 20_063);
    beside_others(|| {
        let mut lab = range_router(RANGE)?;
        assert_eq!(answered_flows(&lab, 30, 10)?, 64);
        let refused = drops(stateway(&lab), "port_pool_full")?;
        assert!(refused >= 300 - 64, "{refused} are refused");
        assert_eq!(drops(stateway(&lab), "alias_taken")?, 0);
        stop_cleanly(&mut lab)
    });
}

/// Counts the replies to pings that the host's own rules meet.
const COUNTED: &str = "
table inet watch {
    chain input {
        type filter hook input priority filter; policy accept;
        icmp type echo-reply counter
        icmpv6 type echo-reply counter
    }
}";

fn counted_replies(lab: &Lab) -> Result<u64> {
    let listed = lab.gateway().program("nft").args(["list", "chain", "inet", "watch", "input"]);
    let listed = listed.check()?;
    let packets =
        listed.lines().filter_map(|line| line.split_once("packets ")?.1.split(' ').next());
    Ok(packets.map(|count| count.parse::<u64>().expect("a count")).sum())
}

#[test]
fn the_host_hears_replies_to_its_own_pings_alone() {
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
        lab.gateway().load_rules(COUNTED)?;
        for family in FAMILIES {
            let server = lab.server_address(family);
            assert_eq!(ping(lab.on_client("ping"), server, 3)?.received, 3, "{family:?}");
            assert_eq!(counted_replies(&lab)?, 0, "{family:?}");
            assert_eq!(ping(lab.gateway().program("ping"), server, 3)?.received, 3, "{family:?}");
            assert_eq!(counted_replies(&lab)?, 3, "{family:?}");
            lab.gateway().program("nft").args(["delete", "table", "inet", "watch"]).check()?;
            lab.gateway().load_rules(COUNTED)?;
        }
        stop_cleanly(&mut lab)
    });
}

#[test]
fn the_host_refuses_connections_to_closed_service_ports_of_its_translation_address() {
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
        for family in FAMILIES {
            for port in ["1", "22", "443", "1023"] {
                let connect = format!(
                    "import socket
try:
    socket.create_connection(('{}', {port}), timeout=5)
except ConnectionRefusedError:
    print('refused')",
                    outside(family)
                );
                let said = lab.on_server("python3").args(["-c", &connect]).check()?;
                assert_eq!(said.trim(), "refused", "{family:?} {port}");
            }
        }
        stop_cleanly(&mut lab)
    });
}

/// Sends a datagram from a port.
const SEND: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5000))
s.sendto(b'x', (sys.argv[1], 7010))
";

#[test]
fn a_masqueraded_connection_ends_as_in_the_kernel_when_its_route_moves() {
    beside_others(|| {
        let rules = "table inet t {
            chain out {
                type nat hook postrouting priority srcnat; policy accept;
                udp dport 7010 masquerade
            }
        }";
        let moved = |lab: &Lab, word: &str, list: &dyn Fn() -> Result<String>| -> Result<()> {
            let server = lab.server_address(Family::V4).to_string();
            let send = || lab.on_client("python3").args(["-c", SEND, &server]).check();
            send()?;
            let translated = format!("{word}={}", outside(Family::V4));
            assert!(list()?.contains(&translated), "{}", list()?);
            let client = lab.client_address(Family::V4);
            lab.gateway().ip(&[&format!("route add {server}/32 via {client} dev lan0")])?;
            // It is the address of the other interface.
            let translated = format!("{word}={}", inside(Family::V4));
            soon("the packets leave with another address", || {
                send()?;
                Ok(list()?.contains(&translated))
            })
        };
        let kernel = kernel_router(Tracking::Off)?;
        kernel.gateway().load_rules(rules)?;
        let list = ["-L", "-p", "udp", "--dport", "7010"];
        moved(&kernel, "dst", &|| kernel.gateway().program("conntrack").args(list).check())?;
        let mut lab = edge_router(2, rules, "")?;
        let of_stateway = [&["conntrack"], &list[..]].concat();
        moved(&lab, "snat", &|| stateway(&lab).command(&of_stateway).check())?;
        assert!(drops(stateway(&lab), "route_changed")? > 0);
        stop_cleanly(&mut lab)
    });
}
