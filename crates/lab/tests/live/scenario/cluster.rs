//! Two routers with state sync, of which keepalived chooses the active one, and traffic whose losses
//! are counted.

use std::fmt;
use std::time::{Duration, Instant};

use lab::{Background, Error, Namespace, Placement, Result, Stateway, StatewaySpec};

use super::{kill, processes_in, router_spec, source_echo, start_in};

/// Longest time until something happens that keepalived or the peers do by themselves.
const PATIENCE: Duration = Duration::from_secs(20);

/// The clients leave with the virtual address over IPv4. No connection is picked up from its middle.
pub const STRICT_NAT: &str = "
table ip nat {
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname \"wan0\" snat to 192.0.2.1
    }
}
table inet strict {
    chain forward {
        type filter hook forward priority filter; policy accept;
        ct state invalid drop
        ct state new tcp flags & (fin | syn | rst | ack) != syn drop
    }
}";

/// Sends a numbered datagram in each of five flows to each server every few milliseconds until the
/// file exists, and prints what came back.
const STREAM: &str = "
import json, os, select, socket, sys, time
end, *servers = sys.argv[1:]
flows = []
for server in servers * 5:
    kind, _, _, _, place = socket.getaddrinfo(server, 7001, type=socket.SOCK_DGRAM)[0]
    flow = socket.socket(kind, socket.SOCK_DGRAM)
    flow.connect(place)
    flows.append(flow)
ports = [set() for _ in flows]
heard = [time.monotonic()] * len(flows)
silence, sent, missing, rounds = 0, 0, {}, 0
def hear(wait):
    global silence
    until = time.monotonic() + wait
    while (left := until - time.monotonic()) > 0:
        for flow in select.select(flows, [], [], left)[0]:
            at = flows.index(flow)
            try: number, _, port = flow.recv(100).split()
            except OSError: continue
            ports[at].add(port)
            missing.pop((at, int(number)), None)
            now = time.monotonic()
            silence = max(silence, now - heard[at])
            heard[at] = now
        if not missing and wait > 1: return
print('streaming', flush=True)
while not os.path.exists(end):
    for at, flow in enumerate(flows):
        missing[at, rounds] = time.monotonic()
        sent += 1
        try: flow.send(b'%d' % rounds)
        except OSError: pass
    rounds += 1
    hear(0.005)
last = time.monotonic() - 0.5
hear(3)
late = sum(at > last for at in missing.values())
print(json.dumps({'sent': sent, 'lost': len(missing), 'lost_at_the_end': late,
    'silence_ms': round(1000 * silence), 'ports': max(map(len, ports))}), flush=True)
";

/// A client and a server behind a switch each, with two routers between the switches and a link
/// from one to the other. All have addresses of both families.
pub struct Cluster {
    pub client: Namespace,
    pub server: Namespace,
    pub routers: [Namespace; 2],
    _switches: [Namespace; 2],
}

impl Cluster {
    /// The server's addresses.
    pub const SERVERS: [&str; 2] = ["192.0.2.10", "2001:db8:2::10"];
    /// The file in whose presence the programs of [`Self::python`] come to their end.
    const END: &str = "end";

    /// The hosts, whose way leads to the virtual addresses.
    pub fn new() -> Result<Self> {
        let (client, server) = (Namespace::new("client")?, Namespace::new("server")?);
        let routers = [Namespace::new("one")?, Namespace::new("two")?];
        let switches = [Namespace::new("inside")?, Namespace::new("outside")?];
        let hosts = [
            (&client, ["198.51.100.10/24", "2001:db8:1::10/64"]),
            (&server, ["192.0.2.10/24", "2001:db8:2::10/64"]),
        ];
        for (switch, (host, addresses)) in switches.iter().zip(hosts) {
            switch.ip(&["link add br0 type bridge mcast_snooping 0", "link set br0 up"])?;
            switch.join("host", host, "eth0")?;
            switch.ip(&["link set host master br0"])?;
            host.ip(&addresses
                .map(|it| format!("addr add {it} dev eth0"))
                .each_ref()
                .map(|it| &**it))?;
        }
        client
            .ip(&["route add default via 198.51.100.1", "route add default via 2001:db8:1::1"])?;
        server.ip(&["route add 2001:db8:1::/64 via 2001:db8:2::1"])?;
        for (number, router) in (2..).zip(&routers) {
            let links = [
                ("lan0", "198.51.100", "2001:db8:1", &switches[0]),
                ("wan0", "192.0.2", "2001:db8:2", &switches[1]),
            ];
            for (name, v4, v6, switch) in links {
                let port = format!("router{number}");
                switch.join(&port, router, name)?;
                switch.ip(&[&format!("link set {port} master br0")])?;
                router.ip(&[
                    &format!("addr add {v4}.{number}/24 dev {name}"),
                    &format!("addr add {v6}::{number}/64 dev {name} nodad"),
                ])?;
            }
            router.sysctl(["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        }
        let cluster = Self { client, server, routers, _switches: switches };
        cluster.join_sync()?;
        Ok(cluster)
    }

    /// Makes the link for state sync.
    pub fn join_sync(&self) -> Result<()> {
        self.routers[0].join("sync0", &self.routers[1], "sync0")?;
        for (number, router) in (1..).zip(&self.routers) {
            router.ip(&[&format!("addr add 203.0.113.{number}/24 dev sync0")])?;
        }
        Ok(())
    }

    /// Starts one of the two gateways, on standby, with these rules and more lines for `[sync]`.
    pub fn start(&self, router: usize, rules: &str, sync: &str) -> Result<Stateway> {
        self.start_with(router, rules, &(self.sync(router)? + sync))
    }

    /// The lines of `[sync]` of one of the two gateways.
    pub fn sync(&self, router: usize) -> Result<String> {
        let namespace = &self.routers[router];
        let key = namespace.write_file("sync.key", b"a secret of these two gateways only\n")?;
        namespace.program("chmod").args(["600", &key]).check()?;
        Ok(format!(
            "node = {}\npeer = \"203.0.113.{}\"\ninterface = \"sync0\"\nkey_file = \"{key}\"\n",
            router + 1,
            2 - router,
        ))
    }

    /// Starts a process that is to take the place of one of the two gateways, which [`Self::start`] has
    /// started, with more lines of configuration.
    pub fn take_over(&self, router: usize, more: &str) -> Result<Stateway> {
        self.take_over_with(router, &format!("{more}[sync]\n{}", self.sync(router)?))
    }

    /// The same for one that [`Self::start_with`] has started.
    pub fn take_over_with(&self, router: usize, more: &str) -> Result<Stateway> {
        let rules = format!("[rules]\nfile = \"{}/rules.json\"\n\n{more}", Namespace::SCRATCH);
        let spec = Self::spec(None, &rules)?;
        Stateway::spawn(&self.routers[router], &spec, &Placement::free(), &["--take-over"])
    }

    fn spec(ruleset: Option<String>, more: &str) -> Result<StatewaySpec> {
        let helpers = ["ftp", "pptp", "sip"].map(|it| format!("[[helper]]\nname = \"{it}\"\n\n"));
        Ok(StatewaySpec { ruleset, more: helpers.concat() + more, ..router_spec(2)? })
    }

    /// Starts one of the two gateways with these rules and lines of `[sync]`.
    pub fn start_with(&self, router: usize, rules: &str, sync: &str) -> Result<Stateway> {
        let spec = Self::spec(Some(rules.to_owned()), &format!("[sync]\n{sync}"))?;
        start_in(&self.routers[router], &spec)
    }

    /// Starts keepalived, which decides which of the two has the virtual addresses. The first one has
    /// them unless it is [set back](Self::set_back).
    pub fn keepalived(&self, router: usize) -> Result<Background> {
        let binary = router_spec(1)?.binary;
        let script = |role: &str| {
            format!("\"{} ha {role} --socket {}\"", binary.display(), Stateway::SOCKET)
        };
        self.set_back(router, false)?;
        let config = format!(
            "global_defs {{\n vrrp_version 3\n vrrp_garp_master_delay 1\n script_user root\n}}\n\
             track_file set_back {{\n file \"{}/set_back\"\n}}\n\
             vrrp_instance pair {{\n interface lan0\n virtual_router_id 51\n priority {}\n \
             advert_int 0.1\n state BACKUP\n virtual_ipaddress {{\n  \
             198.51.100.1/24 dev lan0\n  192.0.2.1/24 dev wan0\n }}\n \
             virtual_ipaddress_excluded {{\n  \
             2001:db8:1::1/64 dev lan0\n  2001:db8:2::1/64 dev wan0\n }}\n \
             track_file {{\n  set_back weight 1\n }}\n \
             notify_master {}\n notify_backup {}\n}}\n",
            Namespace::SCRATCH,
            150 - 10 * router,
            script("active"),
            script("standby"),
        );
        let namespace = &self.routers[router];
        let file = namespace.write_file("keepalived.conf", config.as_bytes())?;
        let pid = |name: &str| format!("{}/{name}.pid", Namespace::SCRATCH);
        namespace
            .program("keepalived")
            .args(["--dont-fork", "--log-console", "--use-file", &file])
            .args(["--pid", &pid("keepalived"), "--vrrp_pid", &pid("vrrp")])
            .spawn()
    }

    /// Lowers the priority of a router below that of the other one, or no longer does.
    pub fn set_back(&self, router: usize, is_back: bool) -> Result<()> {
        let value: &[u8] = if is_back { b"-50\n" } else { b"0\n" };
        self.routers[router].write_file("set_back", value).map(drop)
    }

    /// Both gateways with keepalived. The first one is active, and the second one has its connections.
    pub fn with_keepalived(&self, rules: &str) -> Result<([Stateway; 2], [Background; 2])> {
        let gateways = [self.start(0, rules, "")?, self.start(1, rules, "")?];
        let keepers = self.keep_alive(&gateways)?;
        Ok((gateways, keepers))
    }

    /// Starts keepalived beside both gateways. The first one is active, and the second one has its
    /// connections.
    pub fn keep_alive(&self, gateways: &[Stateway; 2]) -> Result<[Background; 2]> {
        let first = self.keepalived(0)?;
        wait_for(&gateways[0], "/role", "active")?;
        let second = self.keepalived(1)?;
        wait_for(&gateways[1], "/inflow/state", "level")?;
        Ok([first, second])
    }

    /// The router loses all links at once, and its gateway is killed.
    pub fn crash(&self, router: usize) -> Result<()> {
        let namespace = &self.routers[router];
        namespace.ip(&["link set sync0 down", "link set lan0 down", "link set wan0 down"])?;
        // The gateway, and its child that would tidy up.
        let name = |process: u32| std::fs::read_to_string(format!("/proc/{process}/comm"));
        let is_gateway = |process: &u32| name(*process).is_ok_and(|it| it == "stateway\n");
        processes_in(namespace).filter(is_gateway).for_each(kill);
        Ok(())
    }

    /// Starts a script at the client, with the path of the file that ends it and more arguments, and
    /// waits for a text of its.
    pub fn python(&self, script: &str, args: &[&str], text: &str) -> Result<Background> {
        let end = format!("{}/{}", Namespace::SCRATCH, Self::END);
        let mut started =
            self.client.program("python3").args(["-c", script, &end]).args(args).spawn()?;
        started.wait_for_text(text)?;
        Ok(started)
    }

    /// Has the scripts come to their end.
    pub fn end_scripts(&self) -> Result<()> {
        self.client.write_file(Self::END, b"").map(drop)
    }

    /// Starts to count losses of datagrams in ten flows, half of each family.
    pub fn stream(&self) -> Result<Stream> {
        let answers = source_echo(&self.server, 7001)?;
        let client = self.python(STREAM, &Self::SERVERS, "streaming")?;
        Ok(Stream { client, _answers: answers, before: self.tcp_counts()? })
    }

    /// Resets that client and server have sent, and segments that they have sent again.
    fn tcp_counts(&self) -> Result<[u64; 2]> {
        let mut sums = [0; 2];
        for host in [&self.client, &self.server] {
            let text = host.program("cat").args(["/proc/net/snmp"]).check()?;
            let mut lines = text.lines().filter(|line| line.starts_with("Tcp: "));
            let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
            for (name, value) in names.split(' ').zip(values.split(' ')) {
                let place = ["OutRsts", "RetransSegs"].iter().position(|it| *it == name);
                if let Some(place) = place {
                    sums[place] += value.parse::<u64>().expect("a number");
                }
            }
        }
        Ok(sums)
    }
}

/// Datagrams that are counted.
pub struct Stream {
    client: Background,
    _answers: Background,
    before: [u64; 2],
}

/// The losses of the traffic.
#[derive(Debug)]
pub struct Losses {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Those that were not answered.
    pub lost: u64,
    /// Those of the last half second.
    pub lost_at_the_end: u64,
    /// The longest time without an answer in a flow, milliseconds.
    pub silence_ms: u64,
    /// The most source ports with which a flow has come to the server.
    pub ports: u64,
    /// Resets that client and server have sent.
    pub resets: u64,
    /// Segments that they have sent again.
    pub retransmits: u64,
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, lost, silence_ms, resets, retransmits, .. } = self;
        write!(
            f,
            "{lost} of {sent} datagrams lost, longest silence {silence_ms} ms, {retransmits} \
             retransmits, {resets} resets"
        )
    }
}

impl Stream {
    /// The result, after [`Cluster::end_scripts`].
    pub fn finish(self, cluster: &Cluster) -> Result<Losses> {
        let [resets, retransmits] = cluster.tcp_counts()?;
        let said = self.client.finish()?.stdout;
        let counts = said.lines().last().and_then(|it| serde_json::from_str(it).ok());
        let counts: serde_json::Value = counts.unwrap_or_else(|| panic!("no counts: {said}"));
        let count = |name: &str| counts[name].as_u64().expect("a number");
        Ok(Losses {
            sent: count("sent"),
            lost: count("lost"),
            lost_at_the_end: count("lost_at_the_end"),
            silence_ms: count("silence_ms"),
            ports: count("ports"),
            resets: resets - self.before[0],
            retransmits: retransmits - self.before[1],
        })
    }
}

/// Waits until a part of the state of sync has this value.
pub fn wait_for(gateway: &Stateway, place: &str, wanted: &str) -> Result<()> {
    wait_until(gateway, &format!("{wanted} at {place}"), |status| {
        status.pointer(place).and_then(|it| it.as_str()) == Some(wanted)
    })
}

/// Waits until this is true of the state of sync.
pub fn wait_until(
    gateway: &Stateway,
    what: &str,
    is_so: impl Fn(&serde_json::Value) -> bool,
) -> Result<()> {
    let begin = Instant::now();
    loop {
        let status = gateway.query(&["sync", "status"])?;
        if is_so(&status) {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(Error::Unexpected {
                program: "stateway sync status".into(),
                what: what.to_owned(),
                output: status.to_string(),
            });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The number of connections of a gateway.
pub fn connections(gateway: &Stateway) -> Result<u64> {
    Ok(gateway.query(&["status"])?["connections"].as_u64().expect("a number"))
}

/// Packets of TCP, UDP and GRE that a gateway has dropped since it began, with the reasons.
pub fn refused(gateway: &Stateway) -> Result<Vec<(String, u64)>> {
    let answer = gateway.query(&["drops"])?;
    let all = answer["drops"].as_array().expect("a list of reasons");
    let counted = all.iter().map(|entry| {
        let name = entry["name"].as_str().expect("a name").to_owned();
        (name, entry["count"].as_u64().expect("a number"))
    });
    Ok(counted.filter(|(_, count)| *count > 0).collect())
}
