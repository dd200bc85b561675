//! Running Stateway: start, stop, change while traffic flows.

use std::thread;
use std::time::Duration;

use lab::{
    ConntrackLine, Family, Gateway, HttpServer, Lab, Namespace, Output, Placement, Result, Side,
    Stateway, StatewaySpec, Tracking, iperf_tcp, kernel_conntrack, ping,
};

use crate::scenario::{SHORT, alone, stateway_binary, wait_for_pings};
use crate::stateway::{stateway_lab, stop_cleanly};

/// Runs a Stateway that is expected to end at once.
fn run_refused(gateway: &Namespace, config: &str) -> Result<Output> {
    let file = gateway.write_file("refused.toml", config.as_bytes())?;
    let binary = stateway_binary()?;
    gateway.program(&binary.to_string_lossy()).args(["run", "-c", &file]).run()
}

#[test]
fn sigterm_stops_with_code_0_and_frees_the_socket() {
    alone(|| {
        let mut lab = stateway_lab(2)?;
        stop_cleanly(&mut lab)?;
        let spec = StatewaySpec::new(stateway_binary()?, 1);
        let again = Stateway::start(lab.gateway(), &spec, &Placement::free())?;
        let server = lab.server_address(Family::V4);
        assert_eq!(ping(lab.on_client("ping"), server, 3)?.received, 3);
        assert_eq!(again.stop()?.code, Some(0));
        Ok(())
    });
}

#[test]
fn a_second_instance_on_the_same_socket_is_refused() {
    alone(|| {
        let mut lab = stateway_lab(1)?;
        let config = StatewaySpec::new(stateway_binary()?, 1).config(&["lan0", "wan0"]);
        let refused = run_refused(lab.gateway(), &config)?;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(Stateway::SOCKET), "{}", refused.stderr);
        let server = lab.server_address(Family::V4);
        assert_eq!(ping(lab.on_client("ping"), server, 3)?.received, 3);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_missing_interface_is_named_with_its_file_and_line() {
    alone(|| {
        let lab = stateway_lab(1)?;
        let config = StatewaySpec::new(stateway_binary()?, 1).config(&["lan0", "absent0"]);
        let config = config.replace("stateway.sock", "other.sock");
        let line = config.lines().position(|line| line.contains("absent0")).unwrap() + 1;
        let refused = run_refused(lab.gateway(), &config)?;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        for part in ["refused.toml", "absent0", &line.to_string()] {
            assert!(refused.stderr.contains(part), "no {part} in: {}", refused.stderr);
        }
        Ok(())
    });
}

#[test]
fn an_interface_that_comes_back_carries_traffic_again() {
    alone(|| {
        let mut lab = stateway_lab(2)?;
        for side in [Side::Client, Side::Server] {
            lab.unplug(side)?;
            lab.plug(side)?;
            wait_for_pings(&lab)?;
        }
        stop_cleanly(&mut lab)
    });
}

#[test]
fn the_number_of_workers_changes_under_load() {
    alone(|| {
        let mut lab = stateway_lab(1)?;
        thread::scope(|scope| {
            let traffic = scope.spawn(|| iperf_tcp(&lab, Family::V4, Duration::from_secs(4), 4));
            let stateway = lab.stateway().expect("it runs");
            for workers in ["2", "1", "2", "1"] {
                thread::sleep(Duration::from_millis(700));
                stateway.command(&["steer", "set", "--workers", workers]).check()?;
            }
            let report = traffic.join().expect("iperf3 does not panic")?;
            assert!(report.bytes > 1_000_000, "{report:?}");
            Ok(())
        })?;
        stop_cleanly(&mut lab)
    });
}

/// The line of the connection of a download.
fn line_of(lines: &[ConntrackLine], client_port: u16) -> ConntrackLine {
    let found = lines.iter().find(|line| line.original.ports == Some((client_port, 8080)));
    found.unwrap_or_else(|| panic!("no port {client_port} in {lines:#?}")).clone()
}

#[test]
fn the_table_reads_like_the_kernels() {
    alone(|| {
        for family in [Family::V4, Family::V6] {
            let lab = Lab::new(Gateway::KernelForwarding(Tracking::Conntrack), Placement::free())?;
            let port = HttpServer::start(&lab, 1000)?.download(&lab, family)?.client_port;
            let theirs = line_of(&kernel_conntrack(&lab)?, port);
            let server_there = lab.server_address(family);

            let mut lab = stateway_lab(2)?;
            let port_here = HttpServer::start(&lab, 1000)?.download(&lab, family)?.client_port;
            let list = ["conntrack", "list", "-o", "conntrack"];
            let text = lab.stateway().expect("it runs").command(&list).check()?;
            let ours = line_of(&ConntrackLine::parse_all(&text), port_here);

            // The same but for the server's address and the client's port.
            let mut expected = theirs;
            for address in [&mut expected.original.destination, &mut expected.reply.source] {
                assert_eq!(*address, server_there);
                *address = lab.server_address(family);
            }
            expected.original.ports = Some((port_here, 8080));
            expected.reply.ports = Some((8080, port_here));
            assert_eq!(ours, expected);
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

#[test]
fn a_stream_in_progress_is_established_and_assured() {
    alone(|| {
        let mut lab = stateway_lab(2)?;
        let lines = thread::scope(|scope| {
            let traffic = scope.spawn(|| iperf_tcp(&lab, Family::V4, 2 * SHORT, 1));
            thread::sleep(SHORT);
            let list = ["conntrack", "list", "-o", "conntrack"];
            let text = lab.stateway().expect("it runs").command(&list).check()?;
            traffic.join().expect("iperf3 does not panic")?;
            lab::Result::Ok(ConntrackLine::parse_all(&text))
        })?;
        let established = lines.iter().filter(|line| {
            line.state.as_deref() == Some("ESTABLISHED")
                && line.original.ports.is_some_and(|(_, to)| to == 5201)
                && line.flags == ["ASSURED"]
        });
        // One for control, one for data.
        assert_eq!(established.count(), 2, "{lines:#?}");
        stop_cleanly(&mut lab)
    });
}
