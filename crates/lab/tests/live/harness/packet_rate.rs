//! Packet rates of gateways, with a stand-in for the generator and with the real one; the rates of
//! conntrackd.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use lab::{
    Contest, Gateway, GeneratorSpec, Lab, Load, Namespace, Placement, RatioSpec, Result, Tracking,
    Variant, conntrackd, kernel_conntrack, packet_rate, ratio,
};

use crate::scenario::{alone, bridge, stateway_binary, stop_cleanly};

/// The number of other frames on the server's interface, such as neighbour discovery.
const OTHERS: u64 = 50;

fn stand_in(lab: &Lab) -> Result<PathBuf> {
    let path = lab.client().write_file("generate", include_bytes!("generate.py"))?;
    let outside = lab.client().scratch().join("generate");
    set_permissions(outside, Permissions::from_mode(0o755)).unwrap();
    assert!(path.starts_with(Namespace::SCRATCH));
    Ok(path.into())
}

#[test]
fn packets_of_the_stand_in_generator_are_counted_behind_the_kernel() {
    alone(|| {
        for gateway in [Gateway::KernelBridge, Gateway::KernelForwarding(Tracking::Conntrack)] {
            let tracked = matches!(gateway, Gateway::KernelForwarding(_));
            let lab = Lab::new(gateway, Placement::free())?;
            let spec = GeneratorSpec::new(stand_in(&lab)?);
            let report = packet_rate(&lab, &spec)?;
            assert_eq!(report.sent, 8192);
            assert!((8192..8192 + OTHERS).contains(&report.received), "{report:?}");
            if tracked {
                let lines = kernel_conntrack(&lab)?;
                let discard = |port: Option<(u16, u16)>| {
                    port.is_some_and(|(_, destination)| destination == 9)
                };
                let flows = lines.iter().filter(|line| discard(line.original.ports)).count();
                assert_eq!(flows, 1024);
            }
        }
        Ok(())
    });
}

#[test]
fn the_generator_of_stateway_loads_every_gateway() {
    alone(|| {
        let mut spec = GeneratorSpec::new(stateway_binary()?);
        spec.time = Duration::from_secs(1);
        let through = |name: &str, lab: &Lab| -> Result<()> {
            let report = packet_rate(lab, &spec)?;
            println!("{name}: {:.0} packets/s, {report:?}", report.delivered_per_second());
            assert!(report.sent > 10_000, "{report:?}");
            assert!(report.received <= report.sent + OTHERS, "more came than was sent: {report:?}");
            assert!(report.received > 1_000, "{report:?}");
            Ok(())
        };
        for tracking in [Tracking::Off, Tracking::Conntrack, Tracking::Masquerade] {
            let lab = Lab::new(Gateway::KernelForwarding(tracking), Placement::split())?;
            through(&format!("{tracking:?}"), &lab)?;
        }
        let mut lab = bridge(1)?;
        through("stateway, 1 worker", &lab)?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn gateways_masquerade_what_is_measured() {
    alone(|| {
        let binary = stateway_binary()?;
        let report = ratio(&RatioSpec {
            binary: Some(binary.clone()),
            workers: 1,
            load: Load::Frames(binary),
            contest: Contest::Masquerade,
            rounds: 1,
            time: Duration::from_secs(1),
            placement: Placement::free(),
        })?;
        println!("{:#}", report.to_json());
        let ratio = report.ratio(Variant::StatewayMasquerade, Variant::KernelMasquerade);
        assert!(ratio.is_some_and(|ratio| ratio.is_finite() && ratio > 0.0), "{report:?}");
        Ok(())
    });
}

#[test]
fn conntrackd_brings_connections_to_a_second_kernel() {
    alone(|| {
        let report = conntrackd(&stateway_binary()?, 1, Duration::from_millis(300))?;
        println!("{report:?}");
        assert!(report.missing < report.opened, "{report:?}");
        let rates = [report.established, report.new].concat();
        assert!(rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
        Ok(())
    });
}
