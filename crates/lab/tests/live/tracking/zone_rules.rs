//! Comparison of zones that rules set with the kernel's: the same traffic is tracked in the same
//! zones.

use std::collections::BTreeSet;
use std::thread;

use lab::{
    Family, FileProtocol, FileServer, Lab, Namespace, Output, Result, Stateway, StatewaySpec,
    Tracking, ping,
};

use crate::scenario::{
    beside_others, bridge, echo, every_client, fragments_arrive, ftp_modes, kernel_router, load,
    router_spec, start_in, stateway, stop_cleanly,
};

/// Zones by map and by number, for both directions. A packet that has a zone keeps it.
const RULES: &str = "
table inet zoned {
    map by_port {
        typeof tcp sport : ct zone
        elements = { 53 : 3, 5201 : 9, 8080 : 7 }
    }
    chain raw {
        type filter hook prerouting priority raw; policy accept;
        ct zone set tcp dport map { 53 : 3, 5201 : 9, 8080 : 7 }
        ct zone set tcp sport map @by_port
        ct zone 9 ct zone set 10
        meta l4proto { icmp, icmpv6 } ct zone set 11
        meta l4proto icmp ct zone set 12
        meta l4proto icmp ct state new notrack
        udp dport 53 ct zone set 13
        udp sport 53 ct zone set 13
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ct state new ct zone { 0, 3, 7, 9, 11, 13 } accept
        meta l4proto icmpv6 ct state untracked accept
    }
}
";

/// For each connection its protocol, the port or type of its first packet, and its zone.
fn listed(text: &str) -> BTreeSet<(String, String, String)> {
    let connection = |line: &str| {
        let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
        let protocol = line.split_whitespace().next().expect("a protocol").to_owned();
        let what = field("dport=").or_else(|| field("type=")).unwrap_or_default().to_owned();
        (protocol, what, field("zone=").unwrap_or("0").to_owned())
    };
    // iperf3 chooses varying source ports, so the set has only destination ports.
    text.lines().filter(|line| line.contains("src=")).map(connection).collect()
}

#[test]
fn rules_put_connections_into_the_zones_of_the_kernel() {
    beside_others(|| {
        let kernel = kernel_router(Tracking::Conntrack)?;
        kernel.gateway().load_rules(RULES)?;
        every_client(&kernel)?;
        let list = |family| {
            let program = kernel.gateway().program("conntrack");
            program.args(["-L", "-f", family]).check()
        };
        let theirs = listed(&(list("ipv4")? + &list("ipv6")?));
        drop(kernel);

        let mut lab = bridge(2)?;
        load(&lab, RULES)?;
        let stateway = |args: &[&str]| stateway(&lab).command(args).check();
        every_client(&lab)?;
        let ours = listed(&stateway(&["conntrack", "-L", "-o", "conntrack"])?);
        assert_eq!(ours, theirs);
        let zones: BTreeSet<&str> = ours.iter().map(|(.., zone)| zone.as_str()).collect();
        assert!(zones.is_superset(&["7", "9", "11", "13"].into()), "{ours:?}");
        // A reassembled datagram gets its zone, although its fragments were steered otherwise.
        fragments_arrive(&lab)?;
        // The traffic also works while buckets move.
        stateway(&["steer", "balance"])?;
        every_client(&lab)?;
        stop_cleanly(&mut lab)
    });
}

/// Tenants with equal addresses. Their packets have different zones. They leave through a
/// masquerade, so the answers have no zone; the mark of the connection routes them back.
const TENANTS: &str = r#"
table inet tenants {
    chain raw {
        type filter hook prerouting priority raw; policy accept;
        iifname "lan0" ct original zone set 1
        iifname "lan1" ct original zone set 2
    }
    chain mangle {
        type filter hook prerouting priority mangle; policy accept;
        ct original zone 1 ct mark set 1
        ct original zone 2 ct mark set 2
        meta mark set ct mark
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname { "lan0", "lan1" } ct reply zone 0 ct zone { 1, 2 } accept
    }
}
table ip nat {
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        oifname "wan0" masquerade
    }
}
"#;

/// Asks an echo over TCP and UDP for three seconds, from ports that every tenant uses, and asks a closed port. After
/// two seconds of datagrams in both directions the kernel calls them a stream.
const ASK: &str = "
import socket, sys, time
def opened(kind, port):
    s = socket.socket(socket.AF_INET, kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('192.0.2.1', 4000))
    s.settimeout(5)
    s.connect((sys.argv[1], port))
    return s
def answer(s, said, tries):
    s.send(said)
    try:
        return s.recv(1000)
    except TimeoutError:
        if tries == 1:
            raise
        return answer(s, said, tries - 1)
stream, datagrams = opened(socket.SOCK_STREAM, 7), opened(socket.SOCK_DGRAM, 7)
tries = int(sys.argv[3])
answers = 0
for number in range(20):
    said = f'{sys.argv[2]} {number}'.encode()
    answers += answer(stream, said, 1) == said
    answers += answer(datagrams, said, tries) == said
    time.sleep(0.15)
datagrams.close()
nobody = opened(socket.SOCK_DGRAM, 8)
try:
    answer(nobody, b'anybody', tries)
except ConnectionRefusedError:
    answers += 1
print(answers)
";

/// The tenants' connections without times, and without the ports and identifiers that the gateway
/// chooses.
fn of_tenants(text: &str) -> BTreeSet<String> {
    let masked = |line: &str| {
        let mut sources = 0;
        let word = |(at, word): (usize, &str)| {
            sources += usize::from(word.starts_with("src="));
            let is_chosen = word.starts_with("dport=") && sources == 2 || word.starts_with("id=");
            (at != 2 && !is_chosen).then(|| word.to_owned())
        };
        line.split_whitespace().enumerate().filter_map(word).collect::<Vec<_>>().join(" ")
    };
    text.lines().filter(|line| line.contains("src=192.0.2.1 ")).map(masked).collect()
}

/// A second network with the addresses of the client's.
fn second_tenant(lab: &Lab) -> Result<Namespace> {
    let tenant = Namespace::new("tenant")?;
    lab.gateway().join("lan1", &tenant, "eth0")?;
    lab.gateway().ip(&[
        "addr add 192.0.2.254/24 dev lan1",
        "rule add fwmark 1 lookup 101",
        "rule add fwmark 2 lookup 102",
        "route add 192.0.2.0/24 dev lan0 table 101",
        "route add 192.0.2.0/24 dev lan1 table 102",
    ])?;
    for name in ["all", "lan0", "lan1"] {
        let setting = format!("net.ipv4.conf.{name}.rp_filter=0");
        lab.gateway().sysctl([&setting])?;
    }
    tenant.ip(&["addr add 192.0.2.1/24 dev eth0", "route add default via 192.0.2.254"])?;
    lab.server().ip(&["route del 192.0.2.0/24"])?;
    Ok(tenant)
}

/// Both tenants send the same traffic at the same time.
fn both_are_served(lab: &Lab, tenant: &Namespace, tries: &str) -> Result<()> {
    let server = lab.server_address(Family::V4);
    let _echo = echo(lab.server(), 7)?;
    let asks = |namespace: &Namespace, name: &str| -> Result<()> {
        for size in ["56", "4000"] {
            let program = namespace.program("ping").args(["-e", "77", "-s", size]);
            let report = ping(program, server, 5)?;
            // If the ends repeat their datagrams, the first pings of both tenants may collide.
            let wanted = if tries == "1" { 5..=5 } else { 4..=5 };
            assert!(wanted.contains(&report.received), "{name}, {size} bytes: {report:?}");
            assert_eq!(report.duplicates, 0, "{name}, {size} bytes");
        }
        let program =
            namespace.program("python3").args(["-c", ASK, &server.to_string(), name, tries]);
        assert_eq!(program.check()?.trim(), "41", "{name}");
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| asks(tenant, "the second"));
        asks(lab.client(), "the first")?;
        other.join().expect("its assertions hold")
    })
}

/// Data connections of the tenants stay apart as well, whichever end opens them.
fn both_get_files(lab: &Lab, tenant: &Namespace) -> Result<()> {
    const BYTES: usize = 300_000;
    let files = FileServer::start(lab, FileProtocol::Ftp, Family::V4, BYTES)?;
    let url = format!("ftp://{}/payload.bin", lab.server_address(Family::V4));
    thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> {
            for (options, _) in ftp_modes(Family::V4) {
                let program = tenant.program("curl").args(["-sS", "--noproxy", "*", "-m", "8"]);
                let program = program.args(["-o", "/dev/null", "-w", "%{size_download}"]);
                let size = program.args(options.iter()).args([&url]).check()?;
                assert_eq!(size, BYTES.to_string(), "the second, {options:?}");
            }
            Ok(())
        });
        for (options, _) in ftp_modes(Family::V4) {
            assert!(files.download(lab, options)?, "the first, {options:?}");
        }
        other.join().expect("its assertions hold")
    })
}

/// A gateway that prints its log when it is dropped; a failed test shows it.
struct Running(Option<Stateway>);

impl Running {
    /// Starts a router for the tenants, with more lines of configuration.
    fn with_tenants(lab: &Lab, more: &str) -> Result<Self> {
        let spec = StatewaySpec {
            ruleset: Some(TENANTS.to_owned()),
            more: format!(
                "[[interface]]\nname = \"lan1\"\nio = \"afpacket\"\n\n[[helper]]\nname = \"ftp\"\n\n\
                 {more}"
            ),
            ..router_spec(2)?
        };
        start_in(lab.gateway(), &spec).map(|it| Self(Some(it)))
    }

    fn get(&self) -> &Stateway {
        self.0.as_ref().expect("it runs")
    }

    fn stop(mut self) -> Result<Output> {
        self.0.take().expect("it runs").stop()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(stateway) = &self.0 {
            println!("log of stateway:\n{}", stateway.log());
        }
    }
}

#[test]
fn tenants_with_the_same_addresses_leave_by_one_gateway() {
    beside_others(|| {
        let kernel = kernel_router(Tracking::Off)?;
        let tenant = second_tenant(&kernel)?;
        kernel.gateway().load_rules(TENANTS)?;
        // The kernel gives one port to two simultaneous first packets, and drops the second.
        both_are_served(&kernel, &tenant, "3")?;
        let theirs = kernel.gateway().program("conntrack").args(["-L"]).check()?;
        drop((kernel, tenant));

        let lab = kernel_router(Tracking::Off)?;
        let tenant = second_tenant(&lab)?;
        let running = Running::with_tenants(&lab, "")?;
        let stateway = |args: &[&str]| running.get().command(args).check();
        both_are_served(&lab, &tenant, "1")?;
        let ours = stateway(&["conntrack", "-L", "-o", "conntrack"])?;
        assert_eq!(of_tenants(&ours), of_tenants(&theirs));
        for zone in ["zone-orig=1 ", "zone-orig=2 "] {
            assert!(of_tenants(&ours).iter().any(|line| line.contains(zone)), "{ours}");
        }
        let chosen = stateway(&["conntrack", "-L", "-o", "conntrack", "--orig-zone", "2"])?;
        let all = of_tenants(&ours);
        assert_eq!(
            of_tenants(&chosen),
            all.into_iter().filter(|it| it.contains("zone-orig=2")).collect()
        );
        // A packet of the second tenant belongs to its connection. The same packet from the server's
        // side belongs to none.
        let explained =
            stateway(&["rules", "explain", "udp 192.0.2.1:4000 198.51.100.2:7 in lan1"])?;
        assert!(explained.contains("original zone 2"), "{explained}");
        assert!(explained.contains("its tracked connection"), "{explained}");
        let explained =
            stateway(&["rules", "explain", "udp 192.0.2.1:4000 198.51.100.2:7 in wan0"])?;
        assert!(!explained.contains("its tracked connection"), "{explained}");
        both_get_files(&lab, &tenant)?;
        let output = running.stop()?;
        assert_eq!(output.code, Some(0), "log of stateway:\n{}", output.stdout);
        Ok(())
    });
}

#[test]
fn tenants_with_the_same_addresses_are_answered_for() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        let tenant = second_tenant(&lab)?;
        let running =
            Running::with_tenants(&lab, "[tunables]\nstateway_syn_proxy_half_open = 1\n")?;
        both_are_served(&lab, &tenant, "1")?;
        both_get_files(&lab, &tenant)?;
        let totals = running.get().query(&["status"])?["totals"].clone();
        assert!(totals["syn_proxy"]["cookie_valid"].as_u64() >= Some(4), "{totals}");
        let output = running.stop()?;
        assert_eq!(output.code, Some(0), "log of stateway:\n{}", output.stdout);
        Ok(())
    });
}
