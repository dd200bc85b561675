//! Real programs that send datagrams longer than a frame.

use std::thread;
use std::time::Duration;

use lab::{Datagrams, DnsServer, NumberedSpec, Result, StatewaySpec, iperf_udp, ping};

use crate::scenario::{
    FAMILIES, SHORT, alone, bridge, bridge_spec, start, stateway, stateway_binary, stop_cleanly,
};

#[test]
fn programs_that_send_fragments_work_through_two_workers() {
    alone(|| {
        let mut lab = bridge(2)?;
        let names = DnsServer::start(&lab)?;
        for family in FAMILIES {
            for size in ["8000", "60000"] {
                let program = lab.on_client("ping").args(["-s", size]);
                let report = ping(program, lab.server_address(family), 10)?;
                assert_eq!((report.received, report.duplicates), (10, 0), "{family:?} {size}");
            }
            assert_eq!(names.resolve_text(&lab, family)?, DnsServer::TEXT_BYTES, "{family:?}");
            // The rate is low because the receiver's buffer holds only one or two datagrams.
            let udp = iperf_udp(&lab, family, SHORT, 50_000_000, 60_000)?;
            assert!(udp.packets > 50, "{family:?}: {udp:?}");
            // A busy machine may lose some datagrams.
            assert!(udp.lost * 10 < udp.packets, "{family:?}: {udp:?}");
        }
        stop_cleanly(&mut lab)
    });
}

#[test]
fn no_datagram_in_fragments_is_lost_while_workers_change() {
    alone(|| {
        for family in FAMILIES {
            // A worker may wait for a CPU longer than the default queue lasts.
            let more = "[tunables]\nnetdev_max_backlog = 65536\n".to_owned();
            let spec = StatewaySpec { more, ..bridge_spec(1)? };
            let mut lab = start(spec)?;
            let datagrams = Datagrams::new(&lab, &stateway_binary()?)?;
            let spec = NumberedSpec {
                family,
                bytes: 65507,
                time: Duration::from_millis(2500),
                rate: Some(300),
            };
            let report = thread::scope(|scope| -> Result<_> {
                let traffic = scope.spawn(|| datagrams.numbered(&lab, &spec));
                let stateway = stateway(&lab);
                for workers in ["2", "1", "2", "1", "2"] {
                    thread::sleep(Duration::from_millis(450));
                    stateway.command(&["steer", "set", "--workers", workers]).check()?;
                }
                traffic.join().expect("a client does not panic")
            })?;
            println!("{family:?}: {report:?}");
            assert_eq!((report.received, report.corrupt), (report.sent, 0), "{report:?}");
            assert!(report.sent > 100, "{report:?}");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}
