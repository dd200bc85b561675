//! Real programs that send datagrams longer than a frame.

use std::thread;
use std::time::Duration;

use lab::{Datagrams, DnsServer, Lab, NumberedSpec, Result, StatewaySpec, iperf_udp, ping};

use crate::scenario::{
    FAMILIES, SHORT, beside_others, bridge, bridge_spec, soon, start, stateway, stateway_binary,
    stop_cleanly,
};

#[test]
fn programs_that_send_fragments_work_through_two_workers() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        let names = DnsServer::start(&lab)?;
        for family in FAMILIES {
            for size in ["8000", "60000"] {
                // One question at a time (`-A`): the buffer of a ping that waits for a CPU holds
                // no more than two such answers.
                let program = lab.on_client("ping").args(["-A", "-s", size]);
                let report = ping(program, lab.server_address(family), 10)?;
                // A busy machine may lose a fragment in a queue of the kernel; the gateway loses
                // none, see below.
                assert!(report.received >= 8, "{family:?} {size}: {report:?}");
                assert_eq!(report.duplicates, 0, "{family:?} {size}");
            }
            assert_eq!(names.resolve_text(&lab, family)?, DnsServer::TEXT_BYTES, "{family:?}");
            // The rate is low because the receiver's buffer holds only one or two datagrams. A
            // receiver that waits for a CPU loses some, the gateway none.
            let udp = iperf_udp(&lab, family, SHORT, 10_000_000, 60_000)?;
            assert!(udp.packets > 10 && udp.lost * 2 < udp.packets, "{family:?}: {udp:?}");
        }
        let status = stateway(&lab).query(&["status"])?;
        let drops = status["totals"]["drops"].as_object().expect("an object");
        assert!(drops.values().all(|count| count == 0), "{drops:?}");
        stop_cleanly(&mut lab)
    });
}

/// True if all frames that came in by a port have left by the other, and none was dropped.
fn has_sent_all(lab: &Lab) -> Result<bool> {
    let status = stateway(lab).query(&["status"])?;
    let number = |value: &serde_json::Value| value.as_u64().expect("a counter");
    let of_ports = |name: &str| -> u64 {
        status["ports"].as_array().into_iter().flatten().map(|port| number(&port[name])).sum()
    };
    let drops = status["totals"]["drops"].as_object().expect("an object");
    assert_eq!(drops.values().map(number).sum::<u64>(), 0, "{status}");
    Ok(of_ports("received") > 1000 && of_ports("received") == of_ports("sent"))
}

#[test]
fn no_datagram_in_fragments_is_lost_while_workers_change() {
    beside_others(|| {
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
            assert!(report.sent > 100 && report.corrupt == 0, "{report:?}");
            soon("the gateway has sent all that came in", || has_sent_all(&lab))?;
            // A busy machine may lose a fragment in the kernel's queue in front of the server.
            assert!(report.received * 100 >= report.sent * 95, "{report:?}");
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}
