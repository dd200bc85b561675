//! Shared parts of the tests in this binary: they run one at a time, skip unavailable features,
//! find Stateway, and send the traffic that every gateway must carry.

use std::io::{Write, stderr};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lab::{
    ConntrackLine, DnsServer, Error, Family, HttpServer, Lab, Namespace, Result, Transport,
    iperf_tcp, iperf_udp, ping, traceroute,
};

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// The duration of one `iperf3`.
pub const SHORT: Duration = Duration::from_secs(1);

/// Runs a test alone. If this machine lacks a feature, it prints that the test is skipped.
pub fn alone(test: impl FnOnce() -> Result<()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match test() {
        Ok(()) => {}
        // `println!` shows nothing for a test that passes.
        Err(Error::Unavailable { why }) => {
            stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
        }
        Err(error) => panic!("{error}"),
    }
}

/// The binary: `STATEWAY_BIN`, or the one beside this test's directory.
pub fn stateway_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("STATEWAY_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().expect("a running program has a path");
    let beside = own.ancestors().nth(2).map(|profile| profile.join("stateway"));
    beside.filter(|path| path.exists()).ok_or_else(|| Error::Unavailable {
        why: "no stateway binary: run `cargo build -p stateway` or set STATEWAY_BIN".into(),
    })
}

/// Runs every client through the gateway, over both families and also from the server's side.
pub fn every_client(lab: &Lab) -> Result<()> {
    every_request(lab)?;
    for family in FAMILIES {
        let back = ping(lab.on_server("ping"), lab.client_address(family), 3)?;
        assert_eq!((back.sent, back.received, back.duplicates), (3, 3, 0), "{family:?} back");
    }
    Ok(())
}

/// Sends every request of the client to the server, over both families.
pub fn every_request(lab: &Lab) -> Result<()> {
    pings_are_answered(lab)?;
    web_pages_arrive_intact(lab)?;
    names_resolve(lab)?;
    streams_and_datagrams_flow(lab)
}

fn pings_are_answered(lab: &Lab) -> Result<()> {
    for family in FAMILIES {
        let report = ping(lab.on_client("ping"), lab.server_address(family), 10)?;
        assert_eq!((report.sent, report.received, report.duplicates), (10, 10, 0), "{family:?}");
    }
    Ok(())
}

/// Checks pings in three fragments and pings of nearly the largest size.
pub fn fragments_arrive(lab: &Lab) -> Result<()> {
    for family in FAMILIES {
        for size in ["4000", "65000"] {
            let program = lab.on_client("ping").args(["-s", size]);
            let report = ping(program, lab.server_address(family), 5)?;
            assert_eq!((report.sent, report.received), (5, 5), "{family:?}, {size} bytes");
        }
    }
    Ok(())
}

pub fn web_pages_arrive_intact(lab: &Lab) -> Result<()> {
    const BYTES: usize = 5_000_001;
    let server = HttpServer::start(lab, BYTES)?;
    for family in FAMILIES {
        let got = server.download(lab, family)?;
        assert_eq!((got.status, got.bytes, got.intact), (200, BYTES as u64, true), "{family:?}");
    }
    Ok(())
}

fn names_resolve(lab: &Lab) -> Result<()> {
    let server = DnsServer::start(lab)?;
    for family in FAMILIES {
        for transport in [Transport::Udp, Transport::Tcp] {
            let answer = server.resolve(lab, family, transport)?;
            assert_eq!(answer, [DnsServer::ADDRESS], "{family:?} {transport:?}");
        }
    }
    Ok(())
}

fn streams_and_datagrams_flow(lab: &Lab) -> Result<()> {
    for family in FAMILIES {
        let tcp = iperf_tcp(lab, family, SHORT, 2)?;
        assert!(tcp.bytes > 1_000_000, "{family:?}: {tcp:?}");
        // The rate is low, so that a receiver on a busy machine loses no datagram itself.
        let udp = iperf_udp(lab, family, SHORT, 5_000_000, 1200)?;
        assert!(udp.packets > 400, "{family:?}: {udp:?}");
        assert_eq!((udp.lost, udp.out_of_order), (0, 0), "{family:?}: {udp:?}");
        println!(
            "{family:?}: tcp {:.2} Gbit/s, {} retransmits; udp {} packets",
            tcp.bits_per_second / 1e9,
            tcp.retransmits,
            udp.packets
        );
    }
    Ok(())
}

/// Checks that errors from routers and hosts behind the gateway come back through it. `first` gives
/// the hops before the server.
pub fn routes_show(lab: &Lab, first: impl Fn(Family) -> Vec<IpAddr>) -> Result<()> {
    let far = lab.add_far_host()?;
    for family in FAMILIES {
        let mut hops: Vec<_> = first(family).into_iter().map(Some).collect();
        hops.push(Some(lab.server_address(family)));
        hops.push(Some(far.address(family)));
        let route = traceroute(lab.on_client("traceroute"), far.address(family))?;
        assert_eq!(route.addresses(), hops, "{family:?}");
    }
    Ok(())
}

/// Waits some seconds until pings are answered, and then checks that none is lost.
pub fn wait_for_pings(lab: &Lab) -> Result<()> {
    let server = lab.server_address(Family::V4);
    for _ in 0..5 {
        if ping(lab.on_client("ping"), server, 1)?.received == 1 {
            break;
        }
    }
    assert_eq!(ping(lab.on_client("ping"), server, 10)?.received, 10);
    Ok(())
}

/// Checks that `table` shows the control and the data connection of a running `iperf3` as
/// established and assured.
pub fn streams_are_assured(lab: &Lab, table: fn(&Lab) -> Result<Vec<ConntrackLine>>) -> Result<()> {
    for family in FAMILIES {
        let lines = thread::scope(|scope| {
            let traffic = scope.spawn(|| iperf_tcp(lab, family, 2 * SHORT, 1));
            thread::sleep(SHORT);
            let lines = table(lab);
            traffic.join().expect("a client does not panic")?;
            lines
        })?;
        let streams = lines.iter().filter(|line| {
            line.original.source == lab.client_address(family)
                && line.original.ports.is_some_and(|(_, to)| to == 5201)
                && line.state.as_deref() == Some("ESTABLISHED")
                && line.flags == ["ASSURED"]
        });
        assert_eq!(streams.count(), 2, "{family:?}: {lines:#?}");
    }
    Ok(())
}

/// A namespace that forwards between "client0" and "server0". The other ends of these cables are
/// "client1" and "server1", for the program that plays the hosts.
pub fn forwarding_namespace(name: &'static str) -> Result<Namespace> {
    let namespace = Namespace::new(name)?;
    let mut links = Vec::new();
    for (side, v4, v6) in [
        ("client", "192.0.2.0/24", "2001:db8:1::/64"),
        ("server", "198.51.100.0/24", "2001:db8:2::/64"),
    ] {
        let (near, far) = (format!("{side}0"), format!("{side}1"));
        links.push(format!("link add {near} arp off type veth peer name {far}"));
        for end in [&near, &far] {
            // Only the player of the hosts sends anything.
            links.push(format!("link set {end} multicast off addrgenmode none up"));
        }
        links.push(format!("route add {v4} dev {near}"));
        links.push(format!("route add {v6} dev {near}"));
    }
    namespace.ip(&links.iter().map(String::as_str).collect::<Vec<_>>())?;
    let sysctls = [
        "net.ipv4.ip_forward=1",
        "net.ipv6.conf.all.forwarding=1",
        "net.ipv4.conf.all.rp_filter=0",
        "net.ipv4.conf.client0.rp_filter=0",
        "net.ipv4.conf.server0.rp_filter=0",
    ];
    namespace.program("sysctl").args(["-qw"]).args(sysctls).check()?;
    Ok(namespace)
}
