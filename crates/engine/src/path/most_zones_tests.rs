//! The largest number of zones.

use wire::build::PacketBuilder;

use super::*;
use crate::testing::many_workers::TestGateway;
use crate::{Config, REPLAY_SECRET};

/// Most connections of each zone.
const LIMIT: u64 = 4;

fn config() -> Config {
    let mut config = Config::new(REPLAY_SECRET);
    config.zones = (1..=MOST_ZONES as u16)
        .map(|number| {
            let mut zone = ZoneConfig::new(Zone(number));
            zone.set_vlans(vec![number]).unwrap();
            zone.set_max_connections(LIMIT).unwrap();
            zone
        })
        .collect();
    config
}

/// Connections by zone, of all workers together.
fn connections(gateway: &TestGateway) -> Vec<u64> {
    let mut all = vec![0; MOST_ZONES];
    for worker in &gateway.workers {
        for (zone, connections) in worker.path.tracking.limits().zones() {
            all[usize::from(zone.0) - 1] += connections;
        }
    }
    all
}

#[test]
fn each_of_the_most_zones_gets_its_limit_and_no_more() {
    let mut gateway = TestGateway::new(&config(), 3, false);
    let [client, server] = [[192, 0, 2, 1], [198, 51, 100, 2]];
    let stations = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    for round in 0..3 * LIMIT as u16 {
        for zone in 1..=MOST_ZONES as u16 {
            // The zones have equal flows. Every second one is asked for more than its limit.
            if zone % 2 == 0 && u64::from(round) >= LIMIT {
                continue;
            }
            for (port, from, to, ports) in
                [(0, client, server, (1000 + round, 53)), (1, server, client, (53, 1000 + round))]
            {
                let mut frame = Vec::new();
                PacketBuilder::v4(from, to)
                    .macs(stations[port], stations[1 - port])
                    .vlan(zone)
                    .udp(ports.0, ports.1, b"x", &mut frame);
                gateway.arrive(port, &frame);
            }
        }
        gateway.run_until_idle();
        let most = connections(&gateway).into_iter().max();
        assert!(most <= Some(LIMIT), "{most:?}");
    }
    assert_eq!(connections(&gateway), vec![LIMIT; MOST_ZONES]);
}

#[test]
fn one_zone_more_is_refused() {
    let mut zones = config().zones;
    zones.push(ZoneConfig::new(Zone(MOST_ZONES as u16 + 1)));
    assert_eq!(Zones::new(&zones, 2).unwrap_err(), ZonesError::TooMany);
}
