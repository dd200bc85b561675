//! An established connection goes on, and new ones get through, while spoofed packets open far more
//! connections than the table holds.

use std::net::IpAddr;
use std::thread::{self, sleep};
use std::time::Duration;

use lab::{Datagrams, Family, Lab, Result, Spoofed, StatewaySpec, at_pace, iperf_tcp, ping};

use crate::scenario::{alone, start, stateway, stateway_binary, stop_cleanly, table};

/// The largest number of connections in the table.
const ROOM: u64 = 4096;
/// The packets of each flood, and their rate in packets per second.
const PACKETS: u32 = 20_000;
const RATE: u32 = 20_000;
/// The duration of the honest stream, longer than all floods together.
const STREAM: Duration = Duration::from_secs(7);

fn connections(lab: &Lab) -> Result<u64> {
    let answer = stateway(lab).query(&["conntrack", "count"])?;
    Ok(answer["connections"].as_u64().expect("a number"))
}

#[test]
fn an_established_stream_goes_on_through_floods() {
    alone(|| {
        let binary = stateway_binary()?;
        let spec = StatewaySpec {
            more: format!(
                "[tunables]\nnf_conntrack_max = {ROOM}\nnetdev_max_backlog = 65536\n\
                nf_conntrack_tcp_timeout_syn_sent = 3\nnf_conntrack_udp_timeout = 3\n\
                nf_conntrack_tcp_timeout_unacknowledged = 3\n\
                nf_conntrack_tcp_timeout_max_retrans = 3\n"
            ),
            ..StatewaySpec::new(binary.clone(), 2)
        };
        let mut lab = start(spec)?;
        let datagrams = Datagrams::new(&lab, &binary)?;
        let report = thread::scope(|scope| {
            let (lab, datagrams) = (&*lab, &datagrams);
            let stream = scope.spawn(|| iperf_tcp(lab, Family::V4, STREAM, 1));
            sleep(Duration::from_millis(500));
            for flood in [Spoofed::Syn, Spoofed::Ack, Spoofed::Udp] {
                through(lab, datagrams, flood)?;
            }
            stream.join().expect("a client does not panic")
        })?;
        println!("{report:?}");
        assert!(report.bytes > 1_000_000, "{report:?}");
        let drops = stateway(&lab).command(&["drops"]).check()?;
        assert!(!drops.contains("table_full"), "{drops}");
        recovers(&lab)?;
        stop_cleanly(&mut lab)
    });
}

/// Sends one flood. The stream stays assured in the table, the table keeps its limits, and a new
/// client gets through.
fn through(lab: &Lab, datagrams: &Datagrams, flood: Spoofed) -> Result<()> {
    let IpAddr::V4(server) = lab.server_address(Family::V4) else { unreachable!("it is of IPv4") };
    let frames = flood.frames(PACKETS, (server, 80), lab.next_hop_mac());
    let sending = datagrams.start_sending(lab, &at_pace(&frames, RATE))?;
    sleep(Duration::from_millis(500));
    let answered = ping(lab.on_client("ping"), lab.server_address(Family::V4), 3)?.received;
    sending.finish()?;
    let (count, lines) = (connections(lab)?, table(lab)?);
    let assured = lines.iter().filter(|line| line.flags == ["ASSURED"]).count();
    println!("{flood:?}: {count} connections, {assured} assured, {answered} of 3 pings answered");
    assert!((ROOM / 2..=ROOM).contains(&count), "{flood:?} fills the table, {count}");
    assert!(assured >= 2, "{flood:?}: both streams of iperf3 are there");
    assert!(answered >= 2, "{flood:?}");
    Ok(())
}

/// Waits until the connections of the floods have timed out.
fn recovers(lab: &Lab) -> Result<()> {
    for _ in 0..100 {
        if connections(lab)? < 100 {
            return Ok(());
        }
        sleep(Duration::from_millis(100));
    }
    panic!("{} connections are left of the floods", connections(lab)?)
}
