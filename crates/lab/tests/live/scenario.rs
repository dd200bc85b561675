//! What all tests of this binary share: one at a time, how to skip, how to find
//! Stateway, and the traffic that every gateway must carry.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lab::{
    DnsServer, Error, Family, HttpServer, Lab, Result, Stateway, Transport, iperf_tcp, iperf_udp,
    ping, traceroute,
};

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// Traffic of one `iperf3`.
pub const SHORT: Duration = Duration::from_secs(1);

/// Runs a test alone. What this machine can not do is skipped and says so.
pub fn alone(test: impl FnOnce() -> Result<()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match test() {
        Ok(()) => {}
        Err(Error::Unavailable { why }) => println!("SKIPPED: {why}"),
        Err(error) => panic!("{error}"),
    }
}

/// The binary: `STATEWAY_BIN`, or what lies beside this test's own directory.
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

/// Every client through the gateway, over both families.
pub fn every_client(lab: &Lab) -> Result<()> {
    pings_are_answered(lab)?;
    web_pages_arrive_intact(lab)?;
    names_resolve(lab)?;
    streams_and_datagrams_flow(lab)
}

fn pings_are_answered(lab: &Lab) -> Result<()> {
    for family in FAMILIES {
        let report = ping(lab.on_client("ping"), lab.server_address(family), 10)?;
        assert_eq!((report.sent, report.received, report.duplicates), (10, 10, 0), "{family:?}");
        let back = ping(lab.on_server("ping"), lab.client_address(family), 3)?;
        assert_eq!((back.sent, back.received, back.duplicates), (3, 3, 0), "{family:?} back");
    }
    Ok(())
}

fn web_pages_arrive_intact(lab: &Lab) -> Result<()> {
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
        // Far below what any gateway loses at, and no excuse for a change of order.
        let udp = iperf_udp(lab, family, SHORT, 20_000_000)?;
        assert!(udp.packets > 1_000, "{family:?}: {udp:?}");
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

/// Errors that routers and hosts behind the gateway send must come back
/// through it. `first` are the hops before the server.
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

/// Traffic flows again within some seconds, and then without loss.
pub fn wait_for_pings(lab: &Lab) -> Result<()> {
    let server = lab.server_address(Family::V4);
    for _ in 0..5 {
        if ping(lab.on_client("ping"), server, 1)?.received == 1 {
            break;
        }
    }
    assert_eq!(
        ping(lab.on_client("ping"), server, 10)?.received,
        10,
        "log of stateway:\n{}",
        lab.stateway().map(Stateway::log).unwrap_or_default()
    );
    Ok(())
}
