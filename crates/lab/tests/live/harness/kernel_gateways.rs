//! Tests of the harness with the kernel's own gateways.

use std::time::Duration;

use lab::{
    Contest, CpuSet, Family, Gateway, HttpServer, Lab, Load, Namespace, Placement, RatioSpec, Side,
    Tracking, Variant, kernel_conntrack, ping, ratio,
};

use crate::scenario::{
    SHORT, alone, every_client, fragments_arrive, inside, kernel_bridge, kernel_router,
    routes_show, streams_are_assured, wait_for_pings,
};

#[test]
fn every_client_through_a_kernel_bridge() {
    alone(|| {
        let lab = kernel_bridge()?;
        every_client(&lab)?;
        fragments_arrive(&lab)?;
        routes_show(&lab, |_| vec![])
    });
}

#[test]
fn every_client_through_kernel_forwarding() {
    alone(|| {
        let lab = kernel_router(Tracking::Conntrack)?;
        every_client(&lab)?;
        fragments_arrive(&lab)?;
        routes_show(&lab, |family| vec![inside(family).parse().unwrap()])
    });
}

#[test]
fn masquerade_shows_in_the_kernels_table() {
    alone(|| {
        let lab = kernel_router(Tracking::Masquerade)?;
        let got = HttpServer::start(&lab, 1000)?.download(&lab, Family::V4)?;
        assert!(got.intact);
        let lines = kernel_conntrack(&lab)?;
        let line = lines
            .iter()
            .find(|line| line.original.ports == Some((got.client_port, 8080)))
            .unwrap_or_else(|| panic!("{lines:#?}"));
        assert_eq!(line.original.source, lab.client_address(Family::V4));
        assert_eq!(line.reply.destination.to_string(), "198.51.100.254");
        assert_eq!(line.flags, ["ASSURED"]);
        Ok(())
    });
}

#[test]
fn streams_in_progress_are_established_and_assured_in_the_kernel() {
    alone(|| streams_are_assured(&kernel_router(Tracking::Conntrack)?, kernel_conntrack));
}

#[test]
fn a_pulled_cable_stops_traffic_until_it_is_back() {
    alone(|| {
        for gateway in [Gateway::KernelBridge, Gateway::KernelForwarding(Tracking::Off)] {
            let lab = Lab::new(gateway, Placement::free())?;
            for side in [Side::Client, Side::Server] {
                let server = lab.server_address(Family::V4);
                assert_eq!(ping(lab.on_client("ping"), server, 2)?.received, 2);
                lab.unplug(side)?;
                let cut = ping(lab.on_client("ping"), server, 1);
                assert!(cut.is_err() || cut.is_ok_and(|report| report.received == 0));
                lab.plug(side)?;
                wait_for_pings(&lab)?;
            }
        }
        Ok(())
    });
}

#[test]
fn the_placement_is_what_the_programs_and_interfaces_have() {
    alone(|| {
        let lab = Lab::new(Gateway::KernelBridge, Placement::split())?;
        let cpus = lab.on_client("nproc").check()?;
        assert_eq!(cpus, "1\n");
        for (namespace, interface, mask) in
            [(lab.gateway(), "lan0", 1_u32), (lab.gateway(), "wan0", 1), (lab.server(), "eth0", 2)]
        {
            let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
            let text = namespace.program("cat").args([file]).check()?;
            assert_eq!(u32::from_str_radix(text.trim(), 16), Ok(mask), "{interface}");
        }
        Ok(())
    });
}

#[test]
fn a_placement_on_cpus_that_are_not_there_is_unavailable() {
    alone(|| {
        let absent = CpuSet::new([1023]);
        let placement = Placement { gateway: absent, ..Placement::free() };
        let result = Lab::new(Gateway::KernelForwarding(Tracking::Off), placement);
        assert!(matches!(result, Err(lab::Error::Unavailable { why }) if why.contains("1023")));
        Ok(())
    });
}

#[test]
fn gateways_of_the_kernel_are_compared() {
    alone(|| {
        let report = ratio(&RatioSpec {
            load: Load::Stream,
            contest: Contest::Joining,
            binary: None,
            workers: 1,
            rounds: 1,
            time: SHORT,
            placement: Placement::free(),
        })?;
        println!("{:#}", report.to_json());
        let ratio = report.ratio(Variant::KernelBridge, Variant::KernelForwarding);
        assert!(ratio.is_some_and(f64::is_finite));
        assert_eq!(report.ratio(Variant::Stateway, Variant::KernelBridge), None);
        Ok(())
    });
}

#[test]
fn programs_that_do_not_end_or_do_not_exist_are_errors() {
    alone(|| {
        let namespace = Namespace::new("one")?;
        let limit = Duration::from_millis(200);
        let result = namespace.program("sleep").args(["30"]).limit(limit).run();
        assert!(matches!(result, Err(lab::Error::TimedOut { .. })), "{result:?}");
        let result = namespace.program("no-such-program").run();
        assert!(matches!(result, Err(lab::Error::Unavailable { .. })), "{result:?}");
        let mut absent = namespace.program("no-such-program").spawn()?;
        let result = absent.wait_for("anything", || Ok(false));
        assert!(matches!(result, Err(lab::Error::Unavailable { .. })), "{result:?}");
        Ok(())
    });
}
