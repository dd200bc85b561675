//! Zones of the gateway, and requests to change them.

use std::sync::Arc;

use engine::{MOST_TIMEOUT_POLICIES, MOST_ZONES, ZoneBook, ZoneConfig, ZoneTimeouts, ZonesError};
use netio::PortId;
use serde::{Deserialize, Serialize};

use super::Names;

/// The zones of the gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Zones {
    /// Schema version.
    pub schema: u32,
    /// How many times the zones were changed since the start.
    pub revision: u64,
    /// Timeouts that zones may share.
    pub timeout_policies: Vec<NamedTimeouts>,
    /// The zones. A packet belongs to the first zone that takes it.
    pub zones: Vec<Zone>,
}

/// A request to replace all zones.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetZones {
    /// The revision that the request changes. The gateway refuses it if another one is in force.
    /// `null`: any revision.
    #[serde(default)]
    pub revision: Option<u64>,
    /// Timeouts that zones may share.
    #[serde(default)]
    pub timeout_policies: Vec<NamedTimeouts>,
    /// The zones. A packet belongs to the first zone that takes it.
    pub zones: Vec<Zone>,
}

/// A named set of timeouts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedTimeouts {
    /// The name.
    pub name: String,
    /// Tunables of tracking with `_timeout` in their names, in seconds.
    pub timeouts: Names,
}

/// One zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Zone {
    /// Its number, from 1.
    pub zone: u16,
    /// Interfaces whose packets it takes; `null`: all.
    pub interfaces: Option<Vec<String>>,
    /// Outermost VLANs whose packets it takes, 0 for untagged packets; `null`: all.
    pub vlans: Option<Vec<u16>>,
    /// The largest number of connections; `null` if it has no limit of its own.
    pub max_connections: Option<u64>,
    /// Name of its timeout policy.
    pub timeout_policy: Option<String>,
    /// Tunables with values of its own.
    pub tunables: Names,
    /// Number of its connections; ignored in a request.
    pub connections: u64,
}

impl Zones {
    /// The zones of a gateway with these interfaces.
    pub fn new(book: &ZoneBook, interfaces: &[String], status: &engine::Status) -> Self {
        let mut zones = Zone::all(book, interfaces);
        for zone in &mut zones {
            let known = status.zones.iter().find(|known| known.zone.0 == zone.zone);
            zone.connections = known.map_or(0, |known| known.connections);
        }
        let timeout_policies = NamedTimeouts::all(book);
        Self { schema: crate::SCHEMA, revision: book.revision, timeout_policies, zones }
    }
}

/// A problem of zones.
#[derive(Debug)]
pub(crate) struct ZoneFault {
    /// The zone, or all of them.
    pub place: String,
    pub what: String,
}

impl ZoneFault {
    pub fn of_all(what: impl ToString) -> Self {
        Self { place: "zones".to_owned(), what: what.to_string() }
    }
}

impl SetZones {
    /// A request for the zones of `book`, whatever the revision; `interfaces` are the names of its
    /// ports.
    pub fn new(book: &ZoneBook, interfaces: &[String]) -> Self {
        let timeout_policies = NamedTimeouts::all(book);
        Self { revision: None, timeout_policies, zones: Zone::all(book, interfaces) }
    }

    /// The zones of the request, for a gateway with these interfaces at revision `now`.
    ///
    /// # Errors
    /// The problem and its place.
    pub(crate) fn book(&self, interfaces: &[String], now: u64) -> Result<ZoneBook, ZoneFault> {
        // The check compares each zone with all others.
        if self.zones.len() > MOST_ZONES {
            return Err(ZoneFault::of_all(ZonesError::TooMany));
        }
        if self.timeout_policies.len() > MOST_TIMEOUT_POLICIES {
            let what = format!("there may be {MOST_TIMEOUT_POLICIES} timeout policies at most");
            return Err(ZoneFault::of_all(what));
        }
        let mut policies: Vec<Arc<ZoneTimeouts>> = Vec::new();
        for NamedTimeouts { name, timeouts } in &self.timeout_policies {
            if policies.iter().any(|other| other.name() == name) {
                return Err(ZoneFault::of_all(format!("timeout policy {name:?} appears twice")));
            }
            let mut policy = ZoneTimeouts::new(name).map_err(ZoneFault::of_all)?;
            for (timeout, value) in timeouts.iter() {
                policy.set(timeout, value).map_err(ZoneFault::of_all)?;
            }
            policies.push(policy.into());
        }
        let zones = self.zones.iter().map(|zone| {
            let fault = |what| ZoneFault { place: format!("zone {}", zone.zone), what };
            zone.config(interfaces, &policies).map_err(fault)
        });
        Ok(ZoneBook {
            revision: self.revision.unwrap_or(now),
            zones: zones.collect::<Result<_, _>>()?,
            timeout_policies: policies,
        })
    }
}

impl NamedTimeouts {
    fn all(book: &ZoneBook) -> Vec<Self> {
        let policy = |policy: &Arc<ZoneTimeouts>| Self {
            name: policy.name().to_owned(),
            timeouts: policy.timeouts().collect(),
        };
        book.timeout_policies.iter().map(policy).collect()
    }
}

impl Zone {
    fn all(book: &ZoneBook, interfaces: &[String]) -> Vec<Self> {
        let names = |ports: &[PortId]| {
            ports.iter().map(|port| interfaces[usize::from(port.0)].clone()).collect()
        };
        let zone = |zone: &ZoneConfig| Self {
            zone: zone.zone.0,
            interfaces: zone.ports().map(names),
            vlans: zone.vlans().map(<[u16]>::to_vec),
            max_connections: zone.max_connections(),
            timeout_policy: zone.timeout_policy.as_ref().map(|policy| policy.name().to_owned()),
            tunables: zone.tunables().collect(),
            connections: 0,
        };
        book.zones.iter().map(zone).collect()
    }

    fn config(
        &self,
        interfaces: &[String],
        policies: &[Arc<ZoneTimeouts>],
    ) -> Result<ZoneConfig, String> {
        let mut config = ZoneConfig::new(flow::Zone(self.zone));
        let port = |name: &String| {
            let port = interfaces.iter().position(|interface| interface == name);
            let port = port.ok_or_else(|| format!("there is no interface {name:?}"))?;
            Ok::<_, String>(PortId(port as u16))
        };
        if let Some(names) = &self.interfaces {
            let ports = names.iter().map(port).collect::<Result<_, _>>()?;
            config.set_ports(ports).map_err(|error| format!("interfaces: {error}"))?;
        }
        if let Some(vlans) = &self.vlans {
            let set = config.set_vlans(vlans.clone());
            set.map_err(|error| format!("vlans: {error}"))?;
        }
        if let Some(most) = self.max_connections {
            let set = config.set_max_connections(most);
            set.map_err(|error| format!("max_connections: {error}"))?;
        }
        if let Some(name) = &self.timeout_policy {
            let policy = policies.iter().find(|policy| policy.name() == name);
            let unknown = || format!("there is no timeout policy {name:?}");
            config.timeout_policy = Some(policy.ok_or_else(unknown)?.clone());
        }
        for (name, value) in self.tunables.iter() {
            config.set(name, value).map_err(|error| error.to_string())?;
        }
        Ok(config)
    }
}
