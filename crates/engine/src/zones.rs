//! Zones: what of the traffic each one is, and what is different in it.

use std::collections::HashMap;
use std::sync::Arc;

use flow::{SetTunableError, Zone};
use netio::PortId;

/// VLAN identifiers, 0 for frames without a tag among them.
const VLANS: u16 = 4096;
/// The last that a frame can have (IEEE 802.1Q section 9.6: 4095 is reserved).
const LAST_VLAN: u16 = 4094;

/// Timeouts that zones share by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeoutPolicy {
    name: String,
    timeouts: Vec<(String, u64)>,
}

impl TimeoutPolicy {
    /// A policy that says nothing yet.
    pub const fn new(name: String) -> Self {
        Self { name, timeouts: Vec::new() }
    }

    /// What zones call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets a timeout, a tunable of tracking with `_timeout` in its name.
    ///
    /// # Errors
    /// What is no such tunable is unknown here; a value may be out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        check(name, value, is_timeout(name))?;
        put(&mut self.timeouts, name, value);
        Ok(())
    }

    /// Tunables and their values.
    pub fn timeouts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.timeouts.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

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
    /// Timeouts where the zone has none of its own.
    pub timeout_policy: Option<Arc<TimeoutPolicy>>,
    tunables: Vec<(String, u64)>,
}

impl ZoneConfig {
    /// Most connections of a zone that can be asked for.
    pub const MOST_CONNECTIONS: u64 = 1 << 32;

    /// A zone of everything, with nothing different in it.
    pub const fn new(zone: Zone) -> Self {
        Self {
            zone,
            ports: None,
            vlans: None,
            max_connections: None,
            timeout_policy: None,
            tunables: Vec::new(),
        }
    }

    /// Gives a tunable of tracking a value of its own in this zone: a timeout,
    /// `stateway_half_open_per_source`, or `stateway_syn_proxy_half_open`.
    ///
    /// # Errors
    /// What is no such tunable is unknown here; a value may be out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        check(name, value, is_timeout(name) || HALF_OPEN.contains(&name))?;
        put(&mut self.tunables, name, value);
        Ok(())
    }

    /// The tunables that have values of their own, those of the policy left out.
    pub fn tunables(&self) -> impl Iterator<Item = (&str, u64)> {
        self.tunables.iter().map(|(name, value)| (name.as_str(), *value))
    }

    fn takes(&self, port: PortId, vlan: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
            && self.vlans.as_ref().is_none_or(|vlans| vlans.contains(&vlan))
    }

    /// Its policy, and where that says nothing or something else, its own tunables.
    fn differences(&self) -> impl Iterator<Item = (&str, u64)> {
        let policy = self.timeout_policy.iter().flat_map(|policy| policy.timeouts());
        policy.chain(self.tunables())
    }

    /// The settings of tracking in this zone.
    fn settings(&self, gateway: &conntrack::Settings) -> conntrack::Settings {
        let mut settings = gateway.clone();
        for (name, value) in self.differences() {
            // Both were checked when they were noted.
            let set = settings.set(name, value);
            debug_assert_eq!(set, Ok(()));
        }
        settings
    }
}

/// What zones can limit beside their connections.
const HALF_OPEN: [&str; 2] = ["stateway_half_open_per_source", "stateway_syn_proxy_half_open"];

fn is_timeout(name: &str) -> bool {
    name.contains("_timeout")
}

fn check(name: &str, value: u64, allowed: bool) -> Result<(), SetTunableError> {
    if !allowed {
        return Err(SetTunableError::Unknown { name: name.to_owned() });
    }
    conntrack::Settings::default().set(name, value)
}

fn put(values: &mut Vec<(String, u64)>, name: &str, value: u64) {
    values.retain(|(other, _)| other != name);
    values.push((name.to_owned(), value));
}

/// The limits of zones.
pub(crate) fn limits(zones: &[ZoneConfig]) -> Vec<(Zone, Option<u64>)> {
    zones.iter().map(|zone| (zone.zone, zone.max_connections)).collect()
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

/// Why zones do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZonesError {
    /// Zones and VLANs combine in too many ways.
    #[error(
        "zones and VLANs combine in more than 65536 ways, those before changes among them: name \
         the VLANs of each zone"
    )]
    TooManyOrigins,
    /// Two have one number.
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
        /// The one that takes the first of its packets.
        by: u16,
    },
    /// A zone names a VLAN of which it would never see a packet.
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

/// The zones of a gateway. The default has but zone 0.
#[derive(Clone, Debug, Default)]
pub struct Zones {
    configs: Arc<[ZoneConfig]>,
    /// By port and VLAN; empty if there is but zone 0.
    origins: Arc<[Box<[Origin]>]>,
    /// [`Origin::fragments`] of all zones but 0, of those that are gone too.
    numbers: Arc<HashMap<(Zone, u16), u16>>,
    /// Settings where they differ from the gateway's, by zone.
    settings: Vec<(Zone, conntrack::Settings)>,
}

impl Zones {
    /// The zones of a gateway with so many ports. A packet is in the first zone that takes
    /// its port and its VLAN, else in zone 0.
    ///
    /// # Errors
    /// [`ZonesError`].
    pub fn new(configs: &[ZoneConfig], ports: usize) -> Result<Self, ZonesError> {
        Self::default().changed(configs, ports)
    }

    /// Other zones in the place of these. What tells fragments apart keeps its meaning: those
    /// of datagrams that are not complete meet no others.
    ///
    /// # Errors
    /// [`ZonesError`].
    pub fn changed(&self, configs: &[ZoneConfig], ports: usize) -> Result<Self, ZonesError> {
        if let Some((_, error)) = Self::faults(configs, ports).into_iter().next() {
            return Err(error);
        }
        let mut numbers = HashMap::clone(&self.numbers);
        let mut origin = |port, vlan| {
            let takes = |zone: &&ZoneConfig| zone.takes(port, vlan);
            let zone = configs.iter().find(takes).map_or(Zone(0), |zone| zone.zone);
            if zone == Zone(0) {
                return Ok(Origin { zone, fragments: Zone(vlan) });
            }
            let next = usize::from(VLANS) + numbers.len();
            let next = u16::try_from(next).map_err(|_| ZonesError::TooManyOrigins);
            let fragments = match numbers.get(&(zone, vlan)) {
                Some(&number) => Zone(number),
                None => Zone(*numbers.entry((zone, vlan)).or_insert(next?)),
            };
            Ok(Origin { zone, fragments })
        };
        let ports = if configs.is_empty() { 0 } else { ports as u16 };
        let origins: Result<_, _> = (0..ports)
            .map(|port| (0..VLANS).map(|vlan| origin(PortId(port), vlan)).collect())
            .collect();
        Ok(Self {
            configs: configs.into(),
            origins: origins?,
            numbers: numbers.into(),
            settings: Vec::new(),
        })
    }

    /// What is wrong with the zones of a gateway with so many ports, each fault with the place
    /// of its zone.
    pub fn faults(configs: &[ZoneConfig], ports: usize) -> Vec<(usize, ZonesError)> {
        let mut faults = Vec::new();
        // Which zone has each port and VLAN.
        let mut taken: Vec<Option<u16>> = vec![None; ports * usize::from(LAST_VLAN + 1)];
        for (index, config) in configs.iter().enumerate() {
            let zone = config.zone.0;
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

    /// Takes over the settings of the gateway; a zone has them where it says nothing else.
    pub fn apply(&mut self, gateway: &conntrack::Settings) {
        let different = self.configs.iter().filter(|zone| zone.differences().next().is_some());
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
#[path = "zones_tests.rs"]
mod tests;
