use proptest::prelude::*;

use super::*;
use crate::path::zone_config::ZoneTimeouts;

#[test]
fn the_first_zone_that_takes_port_and_vlan_has_the_packet() {
    let mut by_vlan = ZoneConfig::new(Zone(5));
    by_vlan.vlans = Some(vec![10, 11]);
    let mut by_port = ZoneConfig::new(Zone(6));
    by_port.ports = Some(vec![PortId(1)]);
    let map = Zones::new(&[by_vlan, by_port], 3).unwrap();
    let zone = |port, vlan| map.origin(PortId(port), vlan).zone.0;
    assert_eq!([zone(0, 10), zone(1, 11), zone(1, 12), zone(1, 0), zone(2, 9)], [5, 5, 6, 6, 0]);
    let fragments = |port, vlan| map.origin(PortId(port), vlan).realm();
    assert_eq!(fragments(0, 10), fragments(1, 10), "one zone and one VLAN");
    assert_ne!(fragments(0, 10), fragments(0, 11), "one zone and two VLANs");
    assert_ne!(fragments(0, 12), fragments(1, 12), "two zones and one VLAN");
}

#[test]
fn without_zones_vlans_alone_keep_fragments_apart() {
    let map = Zones::new(&[], 2).unwrap();
    let origin = map.origin(PortId(1), 7);
    assert_eq!(origin, Origin { zone: Zone(0), vlan: 7, map_epoch: 0 });
}

#[test]
fn zones_without_vlans_are_as_many_as_others_and_may_come_and_go() {
    let mut map = Zones::default();
    for round in 0..40 {
        let zones: Vec<_> = (0..16).map(|port| zone(1 + round * 16 + port, &[port], &[])).collect();
        map = map.changed(&zones, 17).unwrap();
        let realm = |port, vlan| map.origin(PortId(port), vlan).realm();
        assert_ne!(realm(0, 5), realm(1, 5));
        assert_ne!(realm(0, 5), realm(0, 6));
    }
}

#[test]
fn a_zone_that_gets_packets_of_others_has_another_epoch() {
    let epochs = |map: &Zones| {
        let origin = |port, vlan| map.origin(PortId(port), vlan);
        [origin(0, 0), origin(1, 5), origin(0, 5)].map(|origin| (origin.zone.0, origin.map_epoch))
    };
    let start = Zones::new(&[zone(1, &[], &[5])], 2).unwrap();
    assert_eq!(epochs(&start), [(0, 0), (1, 1), (1, 1)]);
    let fewer = start.changed(&[zone(1, &[0], &[5])], 2).unwrap();
    assert_eq!(epochs(&fewer), [(0, 2), (0, 2), (1, 1)], "what loses some keeps its epoch");
    let back = fewer.changed(&[zone(1, &[], &[5])], 2).unwrap();
    assert_eq!(epochs(&back), [(0, 2), (1, 3), (1, 3)]);
    let none = back.changed(&[], 2).unwrap();
    assert_eq!(epochs(&none), [(0, 4); 3]);
    let same = none.changed(&[], 2).unwrap();
    assert_eq!(epochs(&same), [(0, 4); 3]);
    let all = same.changed(&[zone(2, &[], &[])], 2).unwrap();
    assert_eq!(epochs(&all), [(2, 6); 3]);
    let none = all.changed(&[], 2).unwrap();
    assert_eq!(epochs(&none), [(0, 7); 3]);
}

#[test]
fn a_zone_has_its_own_timeouts_and_the_rest_of_the_gateway() {
    let mut zone = ZoneConfig::new(Zone(3));
    zone.set("nf_conntrack_udp_timeout", 5).unwrap();
    assert!(zone.set("nf_conntrack_udp_timeout", u64::MAX).is_err());
    assert!(zone.set("nf_conntrack_max", 5).is_err());
    let mut gateway = conntrack::Settings::default();
    let mut zones = Zones::new(&[zone], 1).unwrap();
    gateway.set("nf_conntrack_udp_timeout_stream", 77).unwrap();
    zones.apply(&gateway);
    let timeouts = &zones.settings(Zone(3)).unwrap().timeouts;
    assert_eq!((timeouts.udp, timeouts.udp_stream), (5, 77));
    assert!(zones.settings(Zone(0)).is_none());
}

#[test]
fn zones_share_a_policy_and_may_differ_from_it() {
    let mut policy = ZoneTimeouts::new("short").unwrap();
    policy.set("nf_conntrack_udp_timeout", 5).unwrap();
    policy.set("nf_conntrack_udp_timeout", 6).unwrap();
    policy.set("nf_conntrack_tcp_timeout_established", 60).unwrap();
    for (name, value) in [
        ("nf_conntrack_max", 5),
        ("stateway_half_open_per_source", 5),
        ("nf_conntrack_udp_timeout", u64::MAX),
        ("nf_conntrack_timeout", 5),
    ] {
        assert!(policy.set(name, value).is_err(), "{name}");
    }
    let policy = Arc::new(policy);
    let zone = |number| ZoneConfig {
        timeout_policy: Some(policy.clone()),
        vlans: Some(vec![number]),
        ..ZoneConfig::new(Zone(number))
    };
    let mut other = zone(2);
    other.set("nf_conntrack_udp_timeout", 9).unwrap();
    let mut zones = Zones::new(&[zone(1), other], 1).unwrap();
    let mut gateway = conntrack::Settings::default();
    gateway.set("nf_conntrack_udp_timeout_stream", 77).unwrap();
    zones.apply(&gateway);
    let udp = |zone| {
        let settings = zones.settings(Zone(zone)).unwrap();
        let established = settings.get("nf_conntrack_tcp_timeout_established").unwrap();
        (settings.timeouts.udp, settings.timeouts.udp_stream, established)
    };
    assert_eq!((udp(1), udp(2)), ((6, 77, 60), (9, 77, 60)));
}

fn zone(number: u16, ports: &[u16], vlans: &[u16]) -> ZoneConfig {
    let some = |list: &[u16]| (!list.is_empty()).then(|| list.to_vec());
    ZoneConfig {
        ports: some(ports).map(|ports| ports.into_iter().map(PortId).collect()),
        vlans: some(vlans),
        ..ZoneConfig::new(Zone(number))
    }
}

#[test]
fn zones_that_see_no_packet_are_found() {
    let faults = |zones: &[ZoneConfig]| Zones::faults(zones, 3);
    let shadowed = |zone, by| ZonesError::Shadowed { zone, by };
    assert_eq!(faults(&[zone(1, &[], &[]), zone(2, &[0, 1], &[7])]), [(1, shadowed(2, 1))]);
    assert_eq!(faults(&[zone(1, &[0, 1], &[7]), zone(2, &[], &[])]), []);
    let both = [zone(1, &[0, 1], &[7]), zone(2, &[2, 1], &[7]), zone(3, &[], &[7])];
    assert_eq!(faults(&both), [(2, shadowed(3, 1))], "by two together");
    assert_eq!(faults(&[zone(1, &[0, 1], &[7]), zone(2, &[1, 2], &[7])]), [], "in part");
    let taken = ZonesError::VlanTaken { zone: 2, vlan: 7, by: 1 };
    assert_eq!(faults(&[zone(1, &[], &[7]), zone(2, &[], &[7, 8])]), [(1, taken)]);
    let all: Vec<u16> = (0..=4094).collect();
    assert_eq!(faults(&[zone(1, &[], &all), zone(2, &[], &[])]), [(1, shadowed(2, 1))]);
    let twice = [zone(1, &[], &[1]), zone(1, &[], &[2])];
    assert_eq!(faults(&twice), [(1, ZonesError::Repeated { zone: 1 })]);
    assert!(Zones::new(&twice, 3).is_err());
}

proptest! {
    /// With any zones before, a packet is in the first zone that takes it. Fragments of two zones
    /// or VLANs never have the same realm, at any time.
    #[test]
    fn zones_change_and_fragments_of_different_zones_never_meet(
        changes in prop::collection::vec(
            prop::collection::vec(
                (1u16..6, prop::collection::vec(0u16..3, 0..3), prop::collection::vec(0u16..4, 1..3)),
                0..4,
            ),
            1..6,
        ),
    ) {
        let mut zones = Zones::default();
        let mut meanings = HashMap::new();
        for change in changes {
            let configs: Vec<_> =
                change.iter().map(|(id, ports, vlans)| zone(*id, ports, vlans)).collect();
            let Ok(changed) = zones.changed(&configs, 3) else {
                prop_assert!(!Zones::faults(&configs, 3).is_empty());
                continue;
            };
            let before = std::mem::replace(&mut zones, changed);
            let pairs = || (0..3).flat_map(|port| (0..5).map(move |vlan| (PortId(port), vlan)));
            for (port, vlan) in pairs() {
                let (was, is) = (before.origin(port, vlan), zones.origin(port, vlan));
                let gains = |zone| {
                    pairs().any(|(port, vlan)| {
                        zones.origin(port, vlan).zone == zone && before.origin(port, vlan).zone != zone
                    })
                };
                prop_assert_eq!(was.zone == is.zone && was.map_epoch == is.map_epoch, !gains(is.zone));
            }
            for (port, vlan) in (0..3).flat_map(|port| (0..5).map(move |vlan| (port, vlan))) {
                let has = |list: &[u16], one| list.is_empty() || list.contains(&one);
                let first = change.iter().find(|(_, ports, vlans)| has(ports, port) && has(vlans, vlan));
                let origin = zones.origin(PortId(port), vlan);
                prop_assert_eq!(origin.zone.0, first.map_or(0, |(id, ..)| *id));
                let meaning = *meanings.entry(origin.realm()).or_insert((origin.zone, vlan));
                prop_assert_eq!(meaning, (origin.zone, vlan));
            }
        }
    }
}
