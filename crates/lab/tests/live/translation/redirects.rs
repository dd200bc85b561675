//! Rules that direct packets to the gateway's own host, on a machine whose kernel has the ruleset
//! as well. Clients ask any address for pages and names, and a program on the gateway answers. All
//! other traffic is forwarded and masqueraded.

use std::iter;
use std::net::{IpAddr, SocketAddr};

use lab::{Background, Family, Namespace, Result};

use crate::scenario::{
    FAMILIES, StatewayLab, answers_of_host, beside_others, edge_router, load, outside, own_tables,
    ready, ruleset_file, soon, stateway, stop_cleanly,
};

/// The gateway takes the clients' requests for pages and names. A port of its outside address leads
/// to a port of its inside address.
const RULES: &str = r#"
table inet nat {
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        iifname "lan0" tcp dport 80 counter redirect to :3128
        iifname "lan0" udp dport 53 counter redirect to :5353
        iifname "wan0" tcp dport 8443 dnat ip to 192.0.2.254:3128
        iifname "wan0" tcp dport 8443 dnat ip6 to [2001:db8:1::fe]:3128
        iifname "wan0" udp dport 53 redirect to :5353
    }
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname "wan0" masquerade
    }
}
table inet filter {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname "lan0" accept
    }
}
"#;

/// Answers requests to these ports of TCP (line by line) and UDP with its name and the request.
const ANSWERS: &str = "
import socketserver, sys, threading
name = sys.argv[1].encode()
class Talk(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            self.wfile.write(name + b' ' + line)
class Ask(socketserver.BaseRequestHandler):
    def handle(self):
        self.request[1].sendto(name + b' ' + self.request[0], self.client_address)
class Tcp(socketserver.ThreadingTCPServer):
    address_family, allow_reuse_address, daemon_threads = 10, True, True
class Udp(socketserver.UDPServer):
    address_family, max_packet_size = 10, 100
for text in sys.argv[2:]:
    protocol, port = text.split(':')
    kind = Tcp(('::', int(port)), Talk) if protocol == 'tcp' else Udp(('::', int(port)), Ask)
    threading.Thread(target=kind.serve_forever).start()
print('ready', flush=True)
";

/// Follows a file of orders: `open NAME PORT ADDRESS` opens a connection, `tcp NAME` sends over it,
/// `udp NAME PORT ADDRESS` asks from the socket of that name. Prints the number of the order and
/// the names of all programs that answered, or `nobody`.
const ASKS: &str = "
import socket, sys, time
streams, datagrams = {}, {}
def lines():
    with open(sys.argv[1]) as orders:
        while True:
            line = orders.readline()
            if line: yield line
            else: time.sleep(0.01)
def talk(name, text):
    try:
        streams[name].settimeout(5)
        streams[name].sendall(text)
        return streams[name].recv(100)
    except OSError:
        return b''
def ask(name, text, port, address):
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    if name not in datagrams:
        datagrams[name] = socket.socket(family, socket.SOCK_DGRAM)
    s = datagrams[name]
    s.settimeout(2)
    said = []
    try:
        s.sendto(text, (address, int(port)))
        while True:
            said.append(s.recv(100))
            # Another program may answer too.
            s.settimeout(0.1)
    except OSError:
        return said
for count, line in enumerate(lines()):
    what, name, *rest = line.split()
    text = b'%d\\n' % count
    if what == 'open':
        try:
            streams[name] = socket.create_connection((rest[1], int(rest[0])), timeout=3)
        except OSError:
            streams[name] = None
    if what == 'udp':
        said = ask(name, text, *rest)
    else:
        said = [talk(name, text)] if streams[name] else []
    who = [words[0].decode() for words in map(bytes.split, said) if words[1:] == text.split()]
    print(f'{count}:', *(who or ['nobody']), flush=True)
";

/// A program that asks when it gets an order.
struct Asker {
    program: Background,
    namespace: Namespace,
    orders: String,
    count: usize,
}

impl Asker {
    fn new(namespace: &Namespace) -> Result<Self> {
        let orders = namespace.write_file("orders", b"")?;
        let program = namespace.program("python3").args(["-c", ASKS, &orders]).spawn()?;
        Ok(Self { program, namespace: namespace.clone(), orders, count: 0 })
    }

    /// The names of the programs that answered an order.
    fn said(&mut self, order: &str) -> Result<String> {
        let append = ["-c", "echo \"$0\" >> \"$1\"", order, &self.orders];
        self.namespace.program("sh").args(append).check()?;
        let begin = format!("{}: ", self.count);
        self.count += 1;
        self.program.wait_for_text(&begin)?;
        let log = self.program.log();
        let line = log.lines().find_map(|line| line.strip_prefix(&begin));
        Ok(line.expect("it was waited for").to_owned())
    }
}

/// A router with rules to load while it runs. Its kernel has the same rules.
struct Rig {
    lab: StatewayLab,
    rules: String,
    programs: Vec<Background>,
}

impl Rig {
    fn new(workers: u32) -> Result<Self> {
        let lab = edge_router(workers, "", "")?;
        lab.gateway().load_rules(RULES)?;
        let rules = ruleset_file(&lab, "rules.json", RULES)?;
        let mut programs = Vec::new();
        for (namespace, name, ports) in [
            (lab.gateway(), "host", ["tcp:3128", "udp:5353", "tcp:8080"].as_slice()),
            (lab.server(), "server", &["tcp:80", "tcp:81", "udp:53", "udp:54"]),
        ] {
            let program = namespace.program("python3").args(["-c", ANSWERS, name]);
            let program = ready(program.args(ports))?;
            programs.push(program);
        }
        Ok(Self { lab, rules, programs })
    }

    fn load(&self, file: &str) -> Result<String> {
        stateway(&self.lab).command(&["rules", "load", file]).check()
    }

    /// The kernel's ruleset without counters and without our own table.
    fn kernels_rules(&self) -> Result<String> {
        let list = self.lab.gateway().program("nft").args(["-s", "list", "ruleset"]).check()?;
        let begins_own = |line: &&str| line.starts_with("table inet stateway");
        let own = list.lines().skip_while(|line| !begins_own(line));
        let own_len = own.clone().take_while(|line| *line != "}").count();
        let skip = list.lines().count() - own.count();
        let others = list.lines().take(skip).chain(list.lines().skip(skip + own_len));
        Ok(others.filter(|line| *line != "}" && !line.is_empty()).collect::<Vec<_>>().join("\n"))
    }
}

/// An address that no host has.
fn nobody(family: Family) -> &'static str {
    match family {
        Family::V4 => "203.0.113.77",
        Family::V6 => "2001:db8:77::1",
    }
}

fn redirected_with(workers: u32) {
    beside_others(|| {
        let mut all = Rig::new(workers)?;
        let before = all.kernels_rules()?;
        assert!(before.contains("redirect to :3128"), "{before}");
        all.load(&all.rules)?;
        let lab = &all.lab;
        let mut client = Asker::new(lab.client())?;
        let mut remote = Asker::new(lab.server())?;
        for family in FAMILIES {
            let server: IpAddr = lab.server_address(family);
            for round in 0..2 {
                for (order, who) in [
                    (format!("open a{round} 80 {server}"), "host"),
                    (format!("tcp a{round}"), "host"),
                    (format!("open b{round} 80 {}", nobody(family)), "host"),
                    (format!("open c{round} 81 {server}"), "server"),
                    (format!("tcp c{round}"), "server"),
                    (format!("udp d{round}{family:?} 53 {server}"), "host"),
                    (format!("udp d{round}{family:?} 53 {server}"), "host"),
                    (format!("udp e{round}{family:?} 53 {}", nobody(family)), "host"),
                    (format!("udp f{round}{family:?} 54 {server}"), "server"),
                    (format!("tcp b{round}"), "host"),
                ] {
                    assert_eq!(client.said(&order)?, who, "{order}, round {round}");
                }
                let outside = outside(family);
                for (order, who) in [
                    (format!("open a{round} 8443 {outside}"), "host"),
                    (format!("tcp a{round}"), "host"),
                    (format!("open b{round} 8080 {outside}"), "host"),
                    (format!("udp c{round}{family:?} 53 {outside}"), "host"),
                ] {
                    assert_eq!(remote.said(&order)?, who, "{order}, round {round}");
                }
            }
            let page = format!("http://{}/", SocketAddr::new(server, 80));
            let said = lab
                .on_client("curl")
                .args(["-sS", "--http0.9", "--globoff", "--noproxy", "*", "-m", "5", &page])
                .args(["--max-filesize", "10"])
                .run()?;
            assert!(said.stdout.starts_with("host GET"), "{said:?}");
        }
        assert_eq!(answers_of_host(lab)?, [0, 0], "the host has taken others' for its own");
        let drops = stateway(lab).query(&["drops"])?;
        assert_eq!(drops["total"], 0, "{drops}");
        drop((client, remote));
        stop_cleanly(&mut all.lab)?;
        assert_eq!(all.kernels_rules()?, before);
        drop(all.programs);
        Ok(())
    });
}

#[test]
fn redirected_with_one_worker() {
    redirected_with(1);
}

#[test]
fn redirected_with_two_workers() {
    redirected_with(2);
}

#[test]
fn a_reload_takes_redirects_away_and_brings_them_back_and_connections_stay() {
    beside_others(|| {
        let mut all = Rig::new(2)?;
        let without: Vec<&str> = RULES.lines().filter(|it| !it.contains("redirect")).collect();
        let gone = ruleset_file(&all.lab, "gone.json", &without.join("\n"))?;
        let lab = &all.lab;
        let mut client = Asker::new(lab.client())?;
        let families = FAMILIES.map(|family| (format!("{family:?}"), lab.server_address(family)));
        all.load(&all.rules)?;
        let mut expect = |order: String, who: &str| -> Result<()> {
            assert_eq!(client.said(&order)?, who, "{order}");
            Ok(())
        };
        for round in 0..2 {
            for (name, server) in &families {
                expect(format!("open a{round}{name} 80 {server}"), "host")?;
                expect(format!("open other{round}{name} 81 {server}"), "server")?;
                expect(format!("udp a{round}{name} 53 {server}"), "host")?;
            }
            all.load(&gone)?;
            // The kernel still has the rule and its connections.
            for (name, server) in &families {
                expect(format!("tcp a{round}{name}"), "host")?;
                expect(format!("udp a{round}{name} 53 {server}"), "host")?;
                expect(format!("open b{round}{name} 80 {server}"), "server")?;
                expect(format!("udp b{round}{name} 53 {server}"), "server")?;
                expect(format!("udp b{round}{name} 53 {server}"), "server")?;
            }
            all.load(&all.rules)?;
            for (name, server) in &families {
                for at in 0..=round {
                    expect(format!("tcp a{at}{name}"), "host")?;
                    expect(format!("tcp b{at}{name}"), "server")?;
                    expect(format!("tcp other{at}{name}"), "server")?;
                }
                // There is exactly one answer, whichever program answered before.
                expect(format!("udp b{round}{name} 53 {server}"), "host")?;
                expect(format!("udp a{round}{name} 53 {server}"), "host")?;
            }
        }
        assert_eq!(answers_of_host(lab)?, [0, 0], "the host has taken others' for its own");
        drop(client);
        stop_cleanly(&mut all.lab)?;
        drop(all.programs);
        Ok(())
    });
}

/// Sends numbered datagrams, and prints when it is done.
const SENDS: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
for number in range(2000):
    s.sendto(b'%d' % number, (sys.argv[1], int(sys.argv[2])))
    time.sleep(0.0002)
";

/// Prints how many datagrams came, and how many different ones, when none has come for a second.
const COUNTS: &str = "
import socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.bind(('::', int(sys.argv[1])))
print('ready', flush=True)
all = []
s.settimeout(15)
try:
    while True:
        all.append(s.recv(100))
        s.settimeout(1)
except OSError:
    print(len(all), len(set(all)), flush=True)
";

#[test]
fn packets_forwarded_beside_redirects_arrive_once() {
    beside_others(|| {
        let mut all = Rig::new(2)?;
        // The rules decide about redirects by more properties than the gateway's table in the
        // kernel can match. So the kernel gets the other packets, too.
        let marked = RULES.replace(
            r#"iifname "lan0" udp dport 53 counter"#,
            r#"iifname "lan0" ip dscp cs1 meta l4proto udp"#,
        );
        let gateway = all.lab.gateway();
        for table in ["nat", "filter"] {
            gateway.program("nft").args(["delete", "table", "inet", table]).check()?;
        }
        gateway.load_rules(&marked)?;
        load(&all.lab, &marked)?;
        let lab = &all.lab;
        for family in FAMILIES {
            let counts = ready(lab.on_server("python3").args(["-c", COUNTS, "7000"]))?;
            let to = lab.server_address(family).to_string();
            lab.on_client("python3").args(["-c", SENDS, &to, "7000"]).check()?;
            let said = counts.finish()?.stdout;
            assert_eq!(said.lines().last(), Some("2000 2000"), "{family:?}: {said}");
        }
        assert_eq!(answers_of_host(lab)?, [0, 0]);
        stop_cleanly(&mut all.lab)?;
        drop(all.programs);
        Ok(())
    });
}

#[test]
fn a_kernel_without_the_rules_neither_forwards_nor_answers() {
    beside_others(|| {
        let mut all = Rig::new(1)?;
        for table in ["nat", "filter"] {
            let delete = all.lab.gateway().program("nft");
            delete.args(["delete", "table", "inet", table]).check()?;
        }
        all.load(&all.rules)?;
        let lab = &all.lab;
        let mut client = Asker::new(lab.client())?;
        for family in FAMILIES {
            let server = lab.server_address(family);
            assert_eq!(client.said(&format!("udp a{family:?} 53 {server}"))?, "nobody");
            assert_eq!(client.said(&format!("open a 80 {server}"))?, "nobody");
            assert_eq!(client.said(&format!("open b 81 {server}"))?, "server");
        }
        assert_eq!(answers_of_host(lab)?, [0, 0]);
        drop(client);
        stop_cleanly(&mut all.lab)?;
        drop(all.programs);
        Ok(())
    });
}

#[test]
fn the_kernel_is_told_again_what_it_could_not_be_told_and_meanwhile_people_are_warned() {
    beside_others(|| {
        let all = Rig::new(1)?;
        let lab = &all.lab;
        let names = "        iifname \"lan0\" udp dport 53 counter redirect to :5353\n";
        assert!(RULES.contains(names));
        load(lab, &RULES.replace(names, ""))?;
        // Only the owner of a table may replace it. The gateway may choose another name for its
        // table as long as one of the next names is free, so the test takes these at once.
        let tables = || lab.gateway().program("nft").args(["list", "tables"]).check();
        let take = || {
            let before = own_tables(&tables()?);
            let [(gateway, table)] = before[..] else { return Ok(None) };
            let names =
                (table + 1..=table + 100).map(|it| format!("inet stateway_{gateway}_{it}\n"));
            let names: Vec<_> = names.collect();
            let all: String = names.iter().map(|name| format!("add table {name}")).collect();
            let taken = lab.gateway().load_rules(&all);
            Ok(taken.is_ok().then_some((gateway, table, names)))
        };
        let (gateway, table, names) = iter::repeat_with(take)
            .take(50)
            .find_map(Result::transpose)
            .expect("nobody takes them")?;
        let stateway = stateway(lab);
        let loaded = stateway.command(&["rules", "load", &all.rules]).run()?;
        let status = stateway.query(&["status"])?;
        let warns = "the kernel does not follow the rules yet: the kernel does not make the table";
        assert_eq!(loaded.code, Some(0), "{loaded:?}");
        assert!(loaded.stderr.contains(&format!("warning: {warns}")), "{loaded:?}");
        assert!(status["warnings"][0].as_str().is_some_and(|it| it.starts_with(warns)), "{status}");
        assert!(own_tables(&tables()?).contains(&(gateway, table)), "the one before stays");
        let all_names: String = names.iter().map(|name| format!("delete table {name}")).collect();
        lab.gateway().load_rules(&all_names)?;
        soon("no such warning", || {
            let status = stateway.query(&["status"])?;
            let is_other =
                |it: &serde_json::Value| it.as_str().is_some_and(|it| !it.starts_with(warns));
            Ok(status["warnings"].as_array().is_some_and(|all| all.iter().all(is_other)))
        })?;
        let mut client = Asker::new(lab.client())?;
        assert_eq!(client.said("udp names 53 203.0.113.77")?, "host");
        assert!(!own_tables(&tables()?).contains(&(gateway, table)), "there is another");
        let mut all = all;
        stop_cleanly(&mut all.lab)
    });
}

#[test]
fn a_flow_that_was_left_to_the_host_is_explained_as_one() {
    beside_others(|| {
        let mut all = Rig::new(2)?;
        all.load(&all.rules)?;
        let server = all.lab.server_address(Family::V4);
        let mut client = Asker::new(all.lab.client())?;
        assert_eq!(client.said(&format!("open web 80 {server}"))?, "host");
        let sockets = all.lab.on_client("ss").args(["-Htn", "dport = :80"]).check()?;
        let end = sockets.split_whitespace().nth(3).expect("its own end").to_owned();
        let port: u16 = end.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let pages = "        iifname \"lan0\" tcp dport 80 counter redirect to :3128\n";
        assert!(RULES.contains(pages));
        load(&all.lab, &RULES.replace(pages, ""))?;
        let explain = |port: u16| {
            let question = format!("tcp 192.0.2.1:{port} {server}:80 in lan0 out wan0");
            let stateway = stateway(&all.lab);
            stateway.command(&["rules", "explain", &question]).check()
        };
        let explanation = explain(port)?;
        assert!(
            explanation.contains("rules have led its flow to this host"),
            "{end}: {explanation}"
        );
        let explanation = explain(port ^ 1)?;
        assert!(!explanation.contains("to this host"), "{explanation}");
        assert_eq!(client.said("tcp web")?, "host");
        stop_cleanly(&mut all.lab)
    });
}
