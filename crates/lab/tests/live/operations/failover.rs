//! Two routers with state sync, of which the other one takes over. keepalived decides when.

use std::time::{Duration, Instant};

use lab::{Background, Error, Namespace, PYTHON, Result, Stateway, StatewaySpec, ftp_server};

use crate::scenario::{TALKS, beside_others, echo, kill, processes_in, router_spec, start_in};

/// Connections that carry data meanwhile.
const CONNECTIONS: usize = 40;
/// Length of a file in bytes.
const BYTES: usize = 300_000;
/// Longest time until something happens that keepalived or the peers do by themselves.
const PATIENCE: Duration = Duration::from_secs(20);

/// The clients leave with the virtual address. No connection is picked up from its middle.
const RULES: &str = "
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

/// Sends a datagram in each of some flows again and again, and tells how many answers came before
/// and after the file `end` exists.
const ASKS: &str = "
import os, socket, sys, time
end, server = sys.argv[1:]
flows = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(10)]
for flow in flows:
    flow.connect((server, 7001))
    flow.settimeout(0.3)
ports = [set() for _ in flows]
def ask():
    answered = 0
    for flow, seen in zip(flows, ports):
        try:
            flow.send(b'x')
            seen.add(flow.recv(100))
            answered += 1
        except OSError: pass
    return answered
print('asking', ask(), flush=True)
while not os.path.exists(end):
    ask()
    time.sleep(0.05)
print('answered:', ask(), 'ports:', max(map(len, ports)), flush=True)
";

/// Answers each datagram with the port that it comes from.
const ANSWERS: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 7001))
print('ready', flush=True)
while True:
    _, sender = s.recvfrom(100)
    s.sendto(b'%d' % sender[1], sender)
";

/// Logs in, gets a file with an active data connection, and does so again when the file `end` exists.
const FTP: &str = "
import ftplib, os, sys, time
end, server = sys.argv[1:]
ftp = ftplib.FTP(server, timeout=8)
ftp.login()
ftp.set_pasv(False)
def get():
    parts = []
    ftp.retrbinary('RETR payload.bin', parts.append)
    return sum(map(len, parts))
first = get()
print('talking', flush=True)
while not os.path.exists(end): time.sleep(0.05)
print('got:', first, get(), flush=True)
";

/// A client and a server behind a switch each, with two routers between the switches and a link
/// from one to the other.
struct Cluster {
    client: Namespace,
    server: Namespace,
    routers: [Namespace; 2],
    _switches: [Namespace; 2],
}

impl Cluster {
    fn new() -> Result<Self> {
        let (client, server) = (Namespace::new("client")?, Namespace::new("server")?);
        let routers = [Namespace::new("one")?, Namespace::new("two")?];
        let switches = [Namespace::new("inside")?, Namespace::new("outside")?];
        let hosts = [(&client, "198.51.100.10/24"), (&server, "192.0.2.10/24")];
        for (switch, (host, address)) in switches.iter().zip(hosts) {
            switch.ip(&["link add br0 type bridge", "link set br0 up"])?;
            switch.join("host", host, "eth0")?;
            switch.ip(&["link set host master br0"])?;
            host.ip(&[&format!("addr add {address} dev eth0")])?;
        }
        client.ip(&["route add default via 198.51.100.1"])?;
        for (number, router) in (2..).zip(&routers) {
            let links = [("lan0", "198.51.100", &switches[0]), ("wan0", "192.0.2", &switches[1])];
            for (name, network, switch) in links {
                let port = format!("router{number}");
                switch.join(&port, router, name)?;
                switch.ip(&[&format!("link set {port} master br0")])?;
                router.ip(&[&format!("addr add {network}.{number}/24 dev {name}")])?;
            }
            router.sysctl(["net.ipv4.ip_forward=1"])?;
        }
        routers[0].join("sync0", &routers[1], "sync0")?;
        for (number, router) in (1..).zip(&routers) {
            router.ip(&[&format!("addr add 203.0.113.{number}/24 dev sync0")])?;
        }
        Ok(Self { client, server, routers, _switches: switches })
    }

    /// Starts one of the two gateways, on standby.
    fn start(&self, router: usize) -> Result<Stateway> {
        let namespace = &self.routers[router];
        let key = namespace.write_file("sync.key", b"a secret of these two gateways only\n")?;
        namespace.program("chmod").args(["600", &key]).check()?;
        let more = format!(
            "[[helper]]\nname = \"ftp\"\n\n[sync]\nnode = {}\npeer = \"203.0.113.{}\"\n\
             interface = \"sync0\"\nkey_file = \"{key}\"\n",
            router + 1,
            2 - router,
        );
        let spec = StatewaySpec { ruleset: Some(RULES.to_owned()), more, ..router_spec(2)? };
        start_in(namespace, &spec)
    }

    /// Starts keepalived, which decides which of the two has the virtual addresses.
    fn keepalived(&self, router: usize) -> Result<Background> {
        let binary = router_spec(1)?.binary;
        let script = |role: &str| {
            format!("\"{} ha {role} --socket {}\"", binary.display(), Stateway::SOCKET)
        };
        let config = format!(
            "global_defs {{\n vrrp_version 3\n vrrp_garp_master_delay 1\n script_user root\n}}\n\
             vrrp_instance pair {{\n interface lan0\n virtual_router_id 51\n priority {}\n \
             advert_int 0.1\n nopreempt\n state BACKUP\n virtual_ipaddress {{\n  \
             198.51.100.1/24 dev lan0\n  192.0.2.1/24 dev wan0\n }}\n \
             notify_master {}\n notify_backup {}\n}}\n",
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

    /// The router loses all links at once, and its gateway is killed.
    fn crash(&self, router: usize) -> Result<()> {
        let namespace = &self.routers[router];
        namespace.ip(&["link set sync0 down", "link set lan0 down", "link set wan0 down"])?;
        // The gateway, and its child that would tidy up.
        let name = |process: u32| std::fs::read_to_string(format!("/proc/{process}/comm"));
        let is_gateway = |process: &u32| name(*process).is_ok_and(|it| it == "stateway\n");
        processes_in(namespace).filter(is_gateway).for_each(kill);
        Ok(())
    }
}

/// Waits until a part of the state of sync has this value.
fn wait_for(gateway: &Stateway, place: &str, wanted: &str) -> Result<()> {
    let begin = Instant::now();
    loop {
        let status = gateway.query(&["sync", "status"])?;
        let value = status.pointer(place).and_then(|it| it.as_str()).unwrap_or_default();
        if value == wanted {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(Error::Unexpected {
                program: "stateway sync status".into(),
                what: format!("{wanted} at {place}"),
                output: status.to_string(),
            });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn connections_go_on_at_the_standby_when_the_active_router_dies() {
    beside_others(|| {
        let cluster = Cluster::new()?;
        let (one, two) = (cluster.start(0)?, cluster.start(1)?);
        let _first = cluster.keepalived(0)?;
        wait_for(&one, "/role", "active")?;
        let _second = cluster.keepalived(1)?;
        wait_for(&two, "/inflow/state", "level")?;
        let _echo = echo(&cluster.server, 7000)?;
        let mut answers = cluster.server.program("python3").args(["-c", ANSWERS]).spawn()?;
        answers.wait_for_text("ready")?;
        cluster.server.write_file("payload.bin", &[7; BYTES])?;
        let _files = ftp_server(cluster.server.program(PYTHON), "192.0.2.10")?;
        let end = format!("{}/end", Namespace::SCRATCH);
        let python = |script: &str, args: &[&str], text: &str| -> Result<Background> {
            let program = cluster.client.program("python3").args(["-c", script, &end]);
            let mut started = program.args(args).spawn()?;
            started.wait_for_text(text)?;
            Ok(started)
        };
        let count = CONNECTIONS.to_string();
        let talks = python(TALKS, &[&count, "192.0.2.10"], "talking")?;
        let asks = python(ASKS, &["192.0.2.10"], "asking 10")?;
        let transfer = python(FTP, &["192.0.2.10"], "talking")?;
        cluster.crash(0)?;
        wait_for(&two, "/role", "active")?;
        std::thread::sleep(Duration::from_secs(2));
        cluster.client.write_file("end", b"")?;
        let (talks, asks) = (talks.finish()?.stdout, asks.finish()?.stdout);
        let transfer = transfer.finish()?.stdout;
        println!("log of the second gateway:\n{}", two.log());
        assert_eq!(talks.lines().last(), Some(&*format!("well: {CONNECTIONS}")), "{talks}");
        assert_eq!(asks.lines().last(), Some("answered: 10 ports: 1"), "{asks}");
        assert_eq!(transfer.lines().last(), Some(&*format!("got: {BYTES} {BYTES}")), "{transfer}");
        two.stop()?;
        let killed = one.stop()?;
        assert_ne!(killed.code, Some(0), "it was killed");
        Ok(())
    });
}
