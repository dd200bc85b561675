//! Start, stop, and cables that are pulled.

use lab::{Family, Side, Stateway, ping};

use crate::scenario::{
    beside_others, bridge, bridge_spec, start_in, stop_cleanly, wait_for_pings, with_config,
};

#[test]
fn sigterm_stops_with_code_0_and_frees_the_socket() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        stop_cleanly(&mut lab)?;
        let spec = bridge_spec(1)?;
        let again = start_in(lab.gateway(), &spec)?;
        let server = lab.server_address(Family::V4);
        assert_eq!(ping(lab.on_client("ping"), server, 3)?.received, 3);
        assert_eq!(again.stop()?.code, Some(0));
        Ok(())
    });
}

#[test]
fn a_second_instance_on_the_same_socket_is_refused() {
    beside_others(|| {
        let mut lab = bridge(1)?;
        let config = bridge_spec(1)?.config(&["lan0", "wan0"]);
        let refused = with_config(lab.gateway(), "run", &config)?.run()?;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(Stateway::SOCKET), "{}", refused.stderr);
        let server = lab.server_address(Family::V4);
        assert_eq!(ping(lab.on_client("ping"), server, 3)?.received, 3);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_missing_interface_is_named_with_its_file_and_line() {
    beside_others(|| {
        let lab = bridge(1)?;
        let config = bridge_spec(1)?.config(&["lan0", "absent0"]);
        let config = config.replace("stateway.sock", "other.sock");
        let line = config.lines().position(|line| line.contains("absent0")).unwrap() + 1;
        let refused = with_config(lab.gateway(), "run", &config)?.run()?;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        for part in ["tried.toml", "absent0"] {
            assert!(refused.stderr.contains(part), "no {part} in: {}", refused.stderr);
        }
        let mut numbers = refused.stderr.split(|c: char| !c.is_ascii_digit());
        assert!(numbers.any(|n| n == line.to_string()), "no line {line} in: {}", refused.stderr);
        Ok(())
    });
}

#[test]
fn an_interface_that_comes_back_carries_traffic_again() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        for side in [Side::Client, Side::Server] {
            lab.unplug(side)?;
            lab.plug(side)?;
            wait_for_pings(&lab)?;
        }
        stop_cleanly(&mut lab)
    });
}
