//! Zones: what of the traffic each one is, and what is different in it.

use std::collections::HashMap;
use std::sync::Arc;

use flow::{SetTunableError, Zone};
use netio::PortId;

/// VLAN identifiers, 0 for frames without a tag among them.
const VLANS: u16 = 4096;

/// A zone as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneConfig {
    /// Its number. Flows of different zones never meet, even with equal addresses.
    pub zone: Zone,
    /// The ports whose packets may belong to it; `None`: all.
    pub ports: Option<Vec<PortId>>,
    /// The outermost VLAN identifiers of its packets, 0 for none; `None`: all.
    pub vlans: Option<Vec<u16>>,
    /// Most connections of the zone, inside the limit of the gateway; `None`: as many.
    pub max_connections: Option<u64>,
    tunables: Vec<(String, u64)>,
}

impl ZoneConfig {
    /// A zone of everything, with nothing different in it.
    pub const fn new(zone: Zone) -> Self {
        Self { zone, ports: None, vlans: None, max_connections: None, tunables: Vec::new() }
    }

    /// Gives a tunable of tracking a value of its own in this zone: a timeout,
    /// `stateway_half_open_per_source`, or `stateway_syn_proxy_half_open`.
    ///
    /// # Errors
    /// What is no such tunable is unknown here; a value may be out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        let is_of_zones = name.contains("_timeout")
            || matches!(name, "stateway_half_open_per_source" | "stateway_syn_proxy_half_open");
        if !is_of_zones {
            return Err(SetTunableError::Unknown { name: name.to_owned() });
        }
        conntrack::Settings::default().set(name, value)?;
        self.tunables.push((name.to_owned(), value));
        Ok(())
    }

    fn takes(&self, port: PortId, vlan: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
            && self.vlans.as_ref().is_none_or(|vlans| vlans.contains(&vlan))
    }

    /// The settings of tracking in this zone.
    fn settings(&self, gateway: &conntrack::Settings) -> conntrack::Settings {
        let mut settings = gateway.clone();
        for (name, value) in &self.tunables {
            // Both were checked when they were noted.
            let set = settings.set(name, *value);
            debug_assert_eq!(set, Ok(()));
        }
        settings
    }
}

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Origin {
    /// Zone of its flow.
    pub zone: Zone,
    /// A number for each combination of zone and outermost VLAN: what is fragmented in
    /// one is not put together with what is fragmented in another.
    pub fragments: Zone,
}

/// Zones and VLANs combine in too many ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("zones and VLANs combine in more than 65536 ways: name the VLANs of each zone")]
pub struct TooManyOrigins;

/// The zones of a gateway. The default has but zone 0.
#[derive(Clone, Debug, Default)]
pub struct Zones {
    configs: Arc<[ZoneConfig]>,
    /// By port and VLAN; empty if there is but zone 0.
    origins: Arc<[Box<[Origin]>]>,
    /// Settings where they differ from the gateway's, by zone.
    settings: Vec<(Zone, conntrack::Settings)>,
}

impl Zones {
    /// The zones of a gateway with so many ports. A packet is in the first zone that takes
    /// its port and its VLAN, else in zone 0.
    ///
    /// # Errors
    /// [`TooManyOrigins`].
    pub fn new(configs: &[ZoneConfig], ports: usize) -> Result<Self, TooManyOrigins> {
        if configs.is_empty() {
            return Ok(Self::default());
        }
        let mut known = HashMap::new();
        let mut origin = |port, vlan| {
            let takes = |zone: &&ZoneConfig| zone.takes(port, vlan);
            let zone = configs.iter().find(takes).map_or(Zone(0), |zone| zone.zone);
            let next = known.len();
            let number = *known.entry((zone, vlan)).or_insert(next);
            let fragments = Zone(u16::try_from(number).map_err(|_| TooManyOrigins)?);
            Ok(Origin { zone, fragments })
        };
        let origins: Result<_, _> = (0..ports as u16)
            .map(|port| (0..VLANS).map(|vlan| origin(PortId(port), vlan)).collect())
            .collect();
        Ok(Self { configs: configs.into(), origins: origins?, settings: Vec::new() })
    }

    /// Takes over the settings of the gateway; a zone has them where it says nothing else.
    pub fn apply(&mut self, gateway: &conntrack::Settings) {
        let different = self.configs.iter().filter(|zone| !zone.tunables.is_empty());
        self.settings = different.map(|zone| (zone.zone, zone.settings(gateway))).collect();
        self.settings.sort_by_key(|&(zone, _)| zone);
    }

    /// Where a packet comes from.
    #[inline]
    pub fn origin(&self, port: PortId, vlan: u16) -> Origin {
        let by_vlan = self.origins.get(usize::from(port.0));
        let known = by_vlan.and_then(|by_vlan| by_vlan.get(usize::from(vlan)));
        known.copied().unwrap_or(Origin { zone: Zone(0), fragments: Zone(vlan) })
    }

    /// The settings of a zone, `None` for those of the gateway.
    #[inline]
    pub fn settings(&self, zone: Zone) -> Option<&conntrack::Settings> {
        if self.settings.is_empty() {
            return None;
        }
        let found = self.settings.binary_search_by_key(&zone, |&(zone, _)| zone);
        found.ok().map(|at| &self.settings[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_zone_that_takes_port_and_vlan_has_the_packet() {
        let mut by_vlan = ZoneConfig::new(Zone(5));
        by_vlan.vlans = Some(vec![10, 11]);
        let mut by_port = ZoneConfig::new(Zone(6));
        by_port.ports = Some(vec![PortId(1)]);
        let map = Zones::new(&[by_vlan, by_port], 3).unwrap();
        let zone = |port, vlan| map.origin(PortId(port), vlan).zone.0;
        assert_eq!(
            [zone(0, 10), zone(1, 11), zone(1, 12), zone(1, 0), zone(2, 9)],
            [5, 5, 6, 6, 0]
        );
        let fragments = |port, vlan| map.origin(PortId(port), vlan).fragments;
        assert_eq!(fragments(0, 10), fragments(1, 10), "one zone and one VLAN");
        assert_ne!(fragments(0, 10), fragments(0, 11), "one zone and two VLANs");
        assert_ne!(fragments(0, 12), fragments(1, 12), "two zones and one VLAN");
    }

    #[test]
    fn without_zones_vlans_alone_keep_fragments_apart() {
        let map = Zones::new(&[], 2).unwrap();
        let origin = map.origin(PortId(1), 7);
        assert_eq!(origin, Origin { zone: Zone(0), fragments: Zone(7) });
    }

    #[test]
    fn more_combinations_than_numbers_are_refused() {
        let zone = |number: u16| ZoneConfig {
            ports: Some(vec![PortId(number)]),
            ..ZoneConfig::new(Zone(number))
        };
        let zones: Vec<_> = (1..17).map(zone).collect();
        assert!(Zones::new(&zones[..15], 16).is_ok());
        assert_eq!(Zones::new(&zones, 17).err(), Some(TooManyOrigins));
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
}
