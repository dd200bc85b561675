//! Ports under translation, beside the kernel with the same rules: a source keeps its port towards
//! every destination, services have as many clients as they want, and hosts behind two gateways
//! find each other.

use lab::{Family, Lab, Namespace, Result, Stateway, StatewaySpec, Tracking};

use crate::scenario::{
    FAMILIES, beside_others, drops, edge_router, kernel_router, nat_rules, outside, ready,
    router_spec, start_in, stateway, stop_cleanly,
};

/// Addresses of the server for IPv4: its own, and two more.
const SERVERS: [&str; 3] = ["198.51.100.2", "198.51.100.12", "198.51.100.13"];
const SERVERS_V6: [&str; 3] = ["2001:db8:2::2", "2001:db8:2::12", "2001:db8:2::13"];

/// Answers each datagram to one of its addresses with the source that it has seen.
const SEEN: &str = "
import socket, sys, threading
def serve(address):
    s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    s.bind((address, int(sys.argv[1])))
    bound.release()
    while True:
        data, source = s.recvfrom(100)
        s.sendto(f'{source[0]} {source[1]}'.encode(), source)
bound = threading.Semaphore(0)
for address in sys.argv[2:]:
    threading.Thread(target=serve, args=(address,), daemon=True).start()
for _ in sys.argv[2:]:
    bound.acquire()
print('ready', flush=True)
threading.Event().wait()
";

/// Asks each server from each port of a host, and prints the port that the server has seen, or 0
/// where no answer comes. With several sources each asks from all ports.
const ASK_FROM: &str = "
import socket, sys
port, sources, servers = int(sys.argv[1]), sys.argv[2].split(','), sys.argv[3].split(',')
for local in sys.argv[4].split(','):
    for source in sources:
        for server in servers:
            family = socket.AF_INET6 if ':' in server else socket.AF_INET
            s = socket.socket(family, socket.SOCK_DGRAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.settimeout(1)
            s.bind((source, int(local)))
            seen = 0
            for _ in range(5):
                s.sendto(b'who', (server, port))
                try:
                    seen = int(s.recv(100).split()[1])
                    break
                except TimeoutError:
                    pass
            print(local, seen)
            s.close()
";

/// Opens flows to a service, each from a port of its own, and prints how many were answered.
const ASK_SERVICE: &str = "
import resource, select, socket, sys
server, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
family = socket.AF_INET6 if ':' in server else socket.AF_INET
answered, every = 0, []
for first in range(0, count, 50):
    flows = []
    for number in range(first, first + 50):
        s = socket.socket(family, socket.SOCK_DGRAM)
        s.bind(('', 10000 + number))
        s.connect((server, port))
        flows.append(s)
    waiting = list(flows)
    for _ in range(5):
        for s in waiting:
            s.send(b'who')
        left = {s.fileno(): s for s in waiting}
        poll = select.poll()
        for number in left:
            poll.register(number, select.POLLIN)
        while left:
            came = poll.poll(1000)
            if not came:
                break
            for number, _ in came:
                left.pop(number).recv(100)
                poll.unregister(number)
        waiting = list(left.values())
    answered += 50 - len(waiting)
    every += flows
print(answered)
";

fn servers(family: Family) -> [&'static str; 3] {
    match family {
        Family::V4 => SERVERS,
        Family::V6 => SERVERS_V6,
    }
}

/// Gives the server its further addresses.
fn add_servers(lab: &Lab) -> Result<()> {
    lab.server().ip(&[
        "addr add 198.51.100.12/24 dev eth0",
        "addr add 198.51.100.13/24 dev eth0",
        "addr add 2001:db8:2::12/64 dev eth0 nodad",
        "addr add 2001:db8:2::13/64 dev eth0 nodad",
    ])
}

/// The kernel as gateway with these rules.
fn kernel_with(rules: &str) -> Result<Lab> {
    let lab = kernel_router(Tracking::Off)?;
    lab.gateway().load_rules(rules)?;
    lab.server().ip(&["route del 192.0.2.0/24", "route del 2001:db8:1::/64"])?;
    Ok(lab)
}

/// The number of flows that keep their port, of those from each of these ports to each server.
fn kept(lab: &Lab, ports: &str) -> Result<[usize; 2]> {
    add_servers(lab)?;
    let all: Vec<&str> = SERVERS.into_iter().chain(SERVERS_V6).collect();
    let _server = ready(lab.on_server("python3").args(["-c", SEEN, "7000"]).args(all))?;
    let mut kept = [0; 2];
    for (kept, family) in kept.iter_mut().zip(FAMILIES) {
        let own = lab.client_address(family).to_string();
        let arguments = ["-c", ASK_FROM, "7000", &own, &servers(family).join(","), ports];
        let seen = lab.on_client("python3").args(arguments).check()?;
        let is_kept = |line: &&str| line.split_once(' ').is_some_and(|(own, seen)| own == seen);
        *kept = seen.lines().filter(is_kept).count();
    }
    Ok(kept)
}

#[test]
fn a_source_keeps_its_port_towards_every_destination_as_by_the_kernel() {
    // Ports of programs with and without privileges, also one that many clients use.
    const PORTS: &str = "123,501,700,1023,1024,5060,8080,32768,51820,65535";
    beside_others(|| {
        let rules = nat_rules(&[], "masquerade");
        assert_eq!(kept(&kernel_with(&rules)?, PORTS)?, [30, 30], "the kernel");
        for workers in [1, 2] {
            let mut lab = edge_router(workers, &rules, "")?;
            assert_eq!(kept(&lab, PORTS)?, [30, 30], "{workers} workers");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// The ports that three servers see of a second host, whose port another host has towards the first
/// of them, and then those of that other host.
fn seen_of_two_hosts(lab: &Lab) -> Result<[Vec<u16>; 2]> {
    const PORT: &str = "51820";
    add_servers(lab)?;
    lab.client().ip(&["addr add 192.0.2.10/24 dev eth0"])?;
    let _server = ready(lab.on_server("python3").args(["-c", SEEN, "7000"]).args(SERVERS))?;
    let seen = |host: &str, servers: &[&str]| {
        let arguments = ["-c", ASK_FROM, "7000", host, &servers.join(","), PORT];
        let seen = lab.on_client("python3").args(arguments).check()?;
        let port = |line: &str| line.split_once(' ')?.1.parse().ok();
        Ok::<Vec<u16>, lab::Error>(seen.lines().filter_map(port).collect())
    };
    let first = seen("192.0.2.1", &SERVERS[..1])?;
    let second = seen("192.0.2.10", &SERVERS)?;
    Ok([second, [first, seen("192.0.2.1", &SERVERS[1..])?].concat()])
}

/// Otherwise a server would tell others of a port that the host does not have towards them.
#[test]
fn all_servers_see_one_port_of_a_host_whose_own_port_is_taken_as_behind_the_kernel() {
    let check = |[second, first]: [Vec<u16>; 2], who: &str| {
        assert_eq!(first, [51820; 3], "{who}");
        assert!(second[0] > 0 && second[0] != 51820, "{who}: {second:?}");
        assert_eq!(second, [second[0]; 3], "{who}");
    };
    beside_others(|| {
        let rules = nat_rules(&[], "masquerade");
        check(seen_of_two_hosts(&kernel_with(&rules)?)?, "the kernel");
        for workers in [1, 2] {
            let mut lab = edge_router(workers, &rules, "")?;
            check(seen_of_two_hosts(&lab)?, &format!("{workers} workers"));
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

#[test]
fn a_service_behind_the_router_has_four_thousand_clients() {
    const SERVICES: [u16; 4] = [80, 443, 8080, 30080];
    beside_others(|| {
        for behind in ["", "masquerade"] {
            let forwards = SERVICES.map(|port| (format!("udp dport {port}"), format!(":{port}")));
            let forwards = forwards.each_ref().map(|(what, port)| (&what[..], &port[..]));
            // With a masquerade, it is for all interfaces, so the service sees the router.
            let rules = nat_rules(&forwards, behind).replace("oifname \"wan0\" masquerade", behind);
            for workers in [1, 2] {
                let mut lab = edge_router(workers, &rules, "")?;
                let mut servers = Vec::new();
                for port in SERVICES {
                    let args = ["-c", SEEN, &port.to_string(), "192.0.2.1"];
                    servers.push(ready(lab.on_client("python3").args(args))?);
                }
                for port in SERVICES {
                    let args = ["-c", ASK_SERVICE, outside(Family::V4), &port.to_string(), "4000"];
                    let answered = lab.on_server("python3").args(args).check()?;
                    assert_eq!(answered.trim(), "4000", "{port} {behind} {workers} workers");
                }
                assert_eq!(drops(stateway(&lab), "port_pool_full")?, 0);
                stop_cleanly(&mut lab)?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_thousand_hosts_with_one_port_reach_one_server() {
    beside_others(|| {
        for workers in [1, 2] {
            let mut lab = edge_router(workers, &nat_rules(&[], "masquerade"), "")?;
            lab.gateway().ip(&["route add 10.7.0.0/16 via 192.0.2.1"])?;
            let hosts: Vec<String> =
                (0..1000).map(|host| format!("10.7.{}.{}", host / 250, host % 250 + 1)).collect();
            let add: Vec<String> =
                hosts.iter().map(|host| format!("addr add {host}/32 dev lo")).collect();
            lab.client().ip(&add.iter().map(String::as_str).collect::<Vec<_>>())?;
            for port in [53, 123, 5060] {
                let args = ["-c", SEEN, &port.to_string(), SERVERS[0]];
                let _server = ready(lab.on_server("python3").args(args))?;
                let args = [
                    "-c",
                    ASK_FROM,
                    &port.to_string(),
                    &hosts.join(","),
                    SERVERS[0],
                    &port.to_string(),
                ];
                let seen = lab.on_client("python3").args(args).check()?;
                let mut ports: Vec<u16> = seen
                    .lines()
                    .map(|line| line.split_once(' ').expect("two ports").1.parse().expect("a port"))
                    .collect();
                assert_eq!((ports.len(), ports[0]), (1000, port), "the first keeps its port");
                ports.sort_unstable();
                ports.dedup();
                assert!(ports[0] > 0 && ports.len() == 1000, "{} ports", ports.len());
            }
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// A STUN server with two addresses and two ports (RFC 5780), and what a client hears of its NAT.
fn discovered(lab: &Lab) -> Result<Vec<String>> {
    add_servers(lab)?;
    let mut server = lab
        .on_server("turnserver")
        .args(["-n", "--no-cli", "--no-tls", "--no-dtls", "--log-file", "stdout", "--simple-log"])
        .args(["--pidfile", "/dev/shm/turnserver.pid", "--userdb", "/dev/shm/turndb"])
        .args(["-L", SERVERS[0], "-L", SERVERS[1]])
        .spawn()?;
    server.wait_for_port(lab::Transport::Udp, 3478)?;
    let output = lab
        .on_client("turnutils_natdiscovery")
        .args(["-m", "-f", "-L", "192.0.2.1", SERVERS[0]])
        .run()?
        .stdout;
    Ok(output.lines().filter(|line| line.contains("NAT with")).map(str::to_owned).collect())
}

#[test]
fn a_client_hears_of_the_same_mapping_and_filtering_as_behind_the_kernel() {
    beside_others(|| {
        let rules = nat_rules(&[], "masquerade");
        let of_kernel = discovered(&kernel_with(&rules)?)?;
        assert!(of_kernel.iter().any(|line| line.contains("Endpoint Independent Mapping")));
        for workers in [1, 2] {
            let mut lab = edge_router(workers, &rules, "")?;
            assert_eq!(discovered(&lab)?, of_kernel, "{workers} workers");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// Sends to the other host's gateway from the port that it expects, until both hear each other.
const PUNCH: &str = "
import socket, sys, time
own, other, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.2)
s.bind((own, port))
heard = 0
for _ in range(30):
    s.sendto(b'hello', (other, port))
    try:
        s.recv(100)
        heard += 1
        time.sleep(0.05)
    except TimeoutError:
        pass
print('heard' if heard >= 3 else 'nothing')
";

/// Connects to the other host's gateway from the port that it expects. Both open the connection.
const PUNCH_TCP: &str = "
import socket, sys
own, other, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket()
s.settimeout(8)
s.bind((own, port))
try:
    s.connect((other, port))
    s.sendall(b'hello')
    print('heard' if s.recv(100) == b'hello' else 'nothing')
except OSError as error:
    print(error)
";

/// Two homes, each a host behind a gateway. The gateways share a link outside.
struct Homes {
    hosts: [Namespace; 2],
    gateways: [Namespace; 2],
}

impl Homes {
    fn new() -> Result<Self> {
        let pair = |names: [&'static str; 2]| -> Result<[Namespace; 2]> {
            Ok([Namespace::new(names[0])?, Namespace::new(names[1])?])
        };
        let it = Self { hosts: pair(["host 1", "host 2"])?, gateways: pair(["gate 1", "gate 2"])? };
        it.gateways[0].join("wan0", &it.gateways[1], "wan0")?;
        for (number, (host, gateway)) in (1..).zip(it.hosts.iter().zip(&it.gateways)) {
            host.join("eth0", gateway, "lan0")?;
            host.ip(&["addr add 192.0.2.1/24 dev eth0", "route add default via 192.0.2.254"])?;
            let outside = format!("addr add 203.0.113.{number}/24 dev wan0");
            gateway.ip(&["addr add 192.0.2.254/24 dev lan0", &outside])?;
            gateway.sysctl(["net.ipv4.ip_forward=1"])?;
        }
        Ok(it)
    }

    /// Has both hosts send to the outside address of the other's gateway from one port. Returns
    /// whether each has heard the other.
    fn punch(&self, program: &str, port: u16) -> Result<[String; 2]> {
        let port = port.to_string();
        let run = |host: usize, other: &str| {
            self.hosts[host]
                .program("python3")
                .args(["-c", program, "192.0.2.1", other, &port])
                .spawn()
        };
        let (first, second) = (run(0, "203.0.113.2")?, run(1, "203.0.113.1")?);
        Ok([first.finish()?.stdout.trim().to_owned(), second.finish()?.stdout.trim().to_owned()])
    }
}

#[test]
fn two_hosts_behind_two_gateways_punch_through_as_behind_two_kernels() {
    const INPUT: &str = "
        table inet gate {
            chain input {
                type filter hook input priority filter; policy accept;
                iifname wan0 ct state new drop
            }
        }";
    let rules = INPUT.to_owned()
        + "
        table inet gate {
            chain forward {
                type filter hook forward priority filter; policy drop;
                ct state established,related accept
                iifname lan0 accept
            }
            chain source {
                type nat hook postrouting priority srcnat; policy accept;
                oifname wan0 masquerade
            }
        }";
    let heard = ["heard"; 2].map(str::to_owned);
    beside_others(|| {
        let homes = Homes::new()?;
        homes.gateways.iter().try_for_each(|gateway| gateway.load_rules(&rules))?;
        assert_eq!(homes.punch(PUNCH, 40_000)?, heard, "behind two kernels");
        assert_eq!(homes.punch(PUNCH_TCP, 40_000)?, heard, "behind two kernels");
        let homes = Homes::new()?;
        let spec = StatewaySpec { ruleset: Some(rules.clone()), ..router_spec(2)? };
        let gateways: Vec<Stateway> =
            homes.gateways.iter().map(|gateway| start_in(gateway, &spec)).collect::<Result<_>>()?;
        // Their kernels judge what comes to themselves, and refuse nothing that comes too early.
        homes.gateways.iter().try_for_each(|gateway| gateway.load_rules(INPUT))?;
        for port in [40_000, 501, 51_820] {
            assert_eq!(homes.punch(PUNCH, port)?, heard, "behind two gateways");
        }
        assert_eq!(homes.punch(PUNCH_TCP, 40_000)?, heard, "behind two gateways");
        drop(gateways);
        Ok(())
    });
}
