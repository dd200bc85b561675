//! Zones: finds the zone of a packet, and the settings of a zone.

use std::collections::HashMap;
use std::sync::Arc;

use defrag::Realm;
use flow::Zone;
use netio::PortId;

use crate::path::zone_config::{LAST_VLAN, ZoneConfig};

/// Number of VLAN identifiers, including 0 for frames without a tag.
const VLANS: u16 = 4096;

/// The limits on the connections of zones.
pub(crate) fn limits(zones: &[ZoneConfig]) -> Vec<(Zone, Option<u64>)> {
    zones.iter().map(|zone| (zone.zone, zone.max_connections)).collect()
}

/// The origin of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Origin {
    /// The zone of its flow.
    pub zone: Zone,
    /// Its outermost VLAN, as in [`wire::Dissected::vlan`].
    pub vlan: u16,
    /// How often the zone has got packets that were in other zones before, modulo 2^16. Earlier
    /// maps count too.
    pub map_epoch: u16,
}

impl Origin {
    /// The realm of its fragments. Fragments of different zones or VLANs are not put together.
    pub const fn realm(self) -> Realm {
        Realm::new(self.zone, self.vlan)
    }
}

/// Most zones at a time.
pub const MOST_ZONES: usize = 1024;

/// Why zones contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZonesError {
    /// There are too many zones.
    #[error("there may be {MOST_ZONES} zones at most")]
    TooMany,
    /// A zone has the number 0, which is for packets in no zone.
    #[error("zone 0 is what no other takes; give a number from 1")]
    Zero,
    /// Two zones have the same number.
    #[error("{zone} is already another zone")]
    Repeated {
        /// The number.
        zone: u16,
    },
    /// A zone would never see a packet.
    #[error(
        "zone {zone} takes no packet, because zone {by} and those before it take them all; put \
         zone {zone} before them or take it out"
    )]
    Shadowed {
        /// The zone.
        zone: u16,
        /// The zone that takes the first of its packets.
        by: u16,
    },
    /// A zone names a VLAN but gets none of its packets.
    #[error(
        "zone {zone} takes no packet of VLAN {vlan}, because zone {by} comes before it; take {vlan} out"
    )]
    VlanTaken {
        /// The zone.
        zone: u16,
        /// The VLAN.
        vlan: u16,
        /// The zone that takes the first of its packets.
        by: u16,
    },
}

/// The zones of a gateway. The default has only zone 0.
#[derive(Clone, Debug, Default)]
pub struct Zones {
    configs: Arc<[ZoneConfig]>,
    /// The origins by port and VLAN. It is empty if there is only zone 0.
    origins: Arc<[Box<[Origin]>]>,
    /// [`Origin::map_epoch`] of zone 0, which also takes ports and VLANs without an entry.
    rest_epoch: u16,
    /// How often the zones were changed, modulo 2^16.
    changes: u16,
    /// The settings of zones that differ from the gateway's, by zone.
    settings: Vec<(Zone, conntrack::Settings)>,
}

impl Zones {
    /// Creates the zones of a gateway with this many ports. A packet is in the first zone that
    /// takes its port and its VLAN, or else in zone 0.
    ///
    /// # Errors
    /// [`ZonesError`].
    pub fn new(configs: &[ZoneConfig], ports: usize) -> Result<Self, ZonesError> {
        Self::default().changed(configs, ports)
    }

    /// Replaces the zones. A zone that gets packets of other zones has another `Origin::map_epoch`
    /// from now on.
    ///
    /// # Errors
    /// [`ZonesError`].
    pub fn changed(&self, configs: &[ZoneConfig], ports: usize) -> Result<Self, ZonesError> {
        if let Some((_, error)) = Self::faults(configs, ports).into_iter().next() {
            return Err(error);
        }
        let changes = self.changes.wrapping_add(1);
        let zone_of = |port: PortId, vlan| {
            let takes = |zone: &&ZoneConfig| zone.takes(port, vlan);
            configs.iter().find(takes).map_or(Zone(0), |zone| zone.zone)
        };
        let places =
            (0..ports as u16).flat_map(|port| (0..VLANS).map(move |vlan| (PortId(port), vlan)));
        let mut epochs = HashMap::new();
        for (port, vlan) in places {
            let (now, before) = (zone_of(port, vlan), self.origin(port, vlan));
            let epoch = epochs.entry(now).or_insert(before.map_epoch);
            if now != before.zone {
                *epoch = changes;
            }
        }
        let origin = |port, vlan| {
            let zone = zone_of(port, vlan);
            let map_epoch = epochs.get(&zone).copied().unwrap_or_default();
            Origin { zone, vlan, map_epoch }
        };
        let mapped = if configs.is_empty() { 0 } else { ports as u16 };
        let origins = (0..mapped)
            .map(|port| (0..VLANS).map(|vlan| origin(PortId(port), vlan)).collect())
            .collect();
        Ok(Self {
            configs: configs.into(),
            origins,
            rest_epoch: epochs.get(&Zone(0)).copied().unwrap_or(self.rest_epoch),
            changes,
            settings: Vec::new(),
        })
    }

    /// The contradictions in the zones of a gateway with this many ports. Each comes with the
    /// index of its zone.
    pub fn faults(configs: &[ZoneConfig], ports: usize) -> Vec<(usize, ZonesError)> {
        let mut faults = Vec::new();
        // The zone of each port and VLAN.
        let mut taken: Vec<Option<u16>> = vec![None; ports * usize::from(LAST_VLAN + 1)];
        for (index, config) in configs.iter().enumerate() {
            let zone = config.zone.0;
            if index == MOST_ZONES {
                faults.push((index, ZonesError::TooMany));
                break;
            }
            if zone == 0 {
                faults.push((index, ZonesError::Zero));
            }
            if configs[..index].iter().any(|other| other.zone == config.zone) {
                faults.push((index, ZonesError::Repeated { zone }));
            }
            let mut gone = Vec::new();
            let mut has_any = false;
            for vlan in 0..=LAST_VLAN {
                let (mut by, mut has_some) = (None, false);
                for port in (0..ports).filter(|&port| config.takes(PortId(port as u16), vlan)) {
                    let place = &mut taken[port * usize::from(LAST_VLAN + 1) + usize::from(vlan)];
                    by = by.or(*place);
                    has_some |= place.is_none();
                    place.get_or_insert(zone);
                }
                has_any |= has_some;
                gone.extend(by.filter(|_| !has_some).map(|by| (vlan, by)));
            }
            match gone.first() {
                Some(&(_, by)) if !has_any => {
                    faults.push((index, ZonesError::Shadowed { zone, by }));
                }
                _ if config.vlans.is_some() => faults.extend(
                    gone.into_iter()
                        .map(|(vlan, by)| (index, ZonesError::VlanTaken { zone, vlan, by })),
                ),
                _ => {}
            }
        }
        faults
    }

    /// Takes over the settings of the gateway, for everything that a zone does not set itself.
    pub fn apply(&mut self, gateway: &conntrack::Settings) {
        let different = self.configs.iter().filter(|zone| zone.differences().next().is_some());
        self.settings = different.map(|zone| (zone.zone, zone.settings(gateway))).collect();
        self.settings.sort_by_key(|&(zone, _)| zone);
    }

    /// The origin of a packet.
    #[inline]
    pub fn origin(&self, port: PortId, vlan: u16) -> Origin {
        let by_vlan = self.origins.get(usize::from(port.0));
        let known = by_vlan.and_then(|by_vlan| by_vlan.get(usize::from(vlan)));
        known.copied().unwrap_or(Origin { zone: Zone(0), vlan, map_epoch: self.rest_epoch })
    }

    /// The count of changes of the zone map that packets of a zone carry (`Origin::map_epoch`).
    pub fn map_epoch(&self, zone: Zone) -> u16 {
        let origins = self.origins.iter().flatten();
        let own = origins.filter(|origin| origin.zone == zone).map(|origin| origin.map_epoch);
        let rest = (zone == Zone(0)).then_some(self.rest_epoch);
        own.chain(rest).next().unwrap_or_default()
    }

    /// True if a zone has settings of its own.
    #[inline]
    pub const fn differ(&self) -> bool {
        !self.settings.is_empty()
    }

    /// The settings of a zone; `None` if it has those of the gateway.
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
#[path = "zones_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "most_zones_tests.rs"]
mod most;
