//! The traffic of real programs that every gateway must carry.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::{
    ConntrackLine, DnsServer, Family, FileServer, HttpServer, Lab, Result, Transport, iperf_tcp,
    iperf_udp, ping, traceroute,
};

use super::{FAMILIES, StatewayLab, stateway, stop_cleanly};

/// The duration of one `iperf3`.
pub const SHORT: Duration = Duration::from_secs(1);

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
            let all_arrive = || -> Result<bool> {
                let program = lab.on_client("ping").args(["-s", size]);
                Ok(ping(program, lab.server_address(family), 5)?.received == 5)
            };
            // On a busy machine a queue of the lab may overflow, which costs a fragment. A size that
            // is not carried never arrives.
            let arrives = all_arrive()? || all_arrive()? || all_arrive()?;
            assert!(arrives, "{family:?}, {size} bytes");
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

/// Runs `traffic` of 4 s while the number of workers changes, and checks a clean stop.
pub fn while_workers_change<R: Send>(
    mut live: StatewayLab,
    traffic: impl FnOnce(&Lab) -> Result<R> + Send,
) -> Result<R> {
    let lab: &Lab = &live;
    let report = thread::scope(|scope| {
        let traffic = scope.spawn(|| traffic(lab));
        let stateway = stateway(lab);
        for workers in ["2", "1", "2", "1"] {
            thread::sleep(Duration::from_millis(700));
            stateway.command(&["steer", "set", "--workers", workers]).check()?;
        }
        traffic.join().expect("a client does not panic")
    })?;
    stop_cleanly(&mut live)?;
    Ok(report)
}

/// Sends datagrams while the number of workers changes.
pub fn datagrams_stay_in_order(lab: StatewayLab) -> Result<()> {
    let report = while_workers_change(lab, |lab| {
        iperf_udp(lab, Family::V4, Duration::from_secs(4), 100_000_000, 1200)
    })?;
    println!("{report:?}");
    assert_eq!(report.out_of_order, 0, "{report:?}");
    // A busy machine may lose some datagrams; a gateway that stalls loses more.
    assert!(report.lost * 4 < report.packets, "{report:?}");
    Ok(())
}

/// For each FTP command that opens a data connection: the options that make `curl` use it, and
/// whether the server opens the connection.
pub fn ftp_modes(family: Family) -> &'static [(&'static [&'static str], bool)] {
    const ALL: [(&[&str], bool); 4] = [
        (&["--ftp-port", "-"], true),
        (&[], false),
        (&["--ftp-port", "-", "--disable-eprt"], true),
        (&["--disable-epsv"], false),
    ];
    match family {
        Family::V4 => &ALL,
        // The older commands have no room for IPv6 addresses.
        Family::V6 => &ALL[..2],
    }
}

/// Runs `traffic` while the number of workers changes twenty times. The flag is set when it is to
/// end.
pub fn until_workers_have_changed<R: Send>(
    lab: &Lab,
    traffic: impl FnOnce(&AtomicBool) -> Result<R> + Send,
) -> Result<R> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| traffic(&done));
        let changed = ["1", "2"].iter().cycle().take(20).try_for_each(|workers| {
            thread::sleep(Duration::from_millis(100));
            stateway(lab).command(&["steer", "set", "--workers", workers]).check().map(drop)
        });
        done.store(true, Ordering::Relaxed);
        let report = client.join().expect("a client does not panic");
        changed.and(report)
    })
}

/// Fetches files over IPv4 in all modes in turn, while the number of workers changes. Returns how
/// many files arrived.
pub fn transfers_while_workers_change(lab: &Lab, server: &FileServer) -> Result<u64> {
    until_workers_have_changed(lab, |done| {
        let mut transfers = 0;
        for (options, _) in ftp_modes(Family::V4).iter().cycle() {
            if done.load(Ordering::Relaxed) {
                break;
            }
            assert!(server.download(lab, options)?, "{options:?} after {transfers}");
            transfers += 1;
        }
        Ok(transfers)
    })
}
