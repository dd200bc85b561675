//! The configuration of one zone, and timeouts that zones share. All sources of a configuration
//! get the same errors from here.

use std::sync::Arc;

use flow::{SetTunableError, Zone};
use netio::PortId;

/// The last VLAN identifier that a frame can have (IEEE 802.1Q section 9.6: 4095 is reserved).
pub const LAST_VLAN: u16 = 4094;
/// Most timeout policies: as many as zones that could have one.
pub const MOST_TIMEOUT_POLICIES: usize = crate::MOST_ZONES;
/// Most connections that the limit of a zone may have.
pub const MOST_CONNECTIONS: u64 = 1 << 32;

/// Why a value is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// Fewer than two interfaces are named.
    #[error(
        "names one side only: replies come in by another interface, and both directions of a \
         flow must be in one zone"
    )]
    OneSided,
    /// An interface is named twice.
    #[error("an interface is there twice")]
    PortTwice,
    /// No VLAN is named.
    #[error("names no VLAN; leave it out for all")]
    NoVlan,
    /// No frame can have the VLAN identifier.
    #[error("{vlan} is not allowed; allowed: a whole number from 0 to {LAST_VLAN}")]
    Vlan {
        /// The identifier.
        vlan: u16,
    },
    /// A VLAN is named twice.
    #[error("{vlan} is there twice")]
    VlanTwice {
        /// The identifier.
        vlan: u16,
    },
    /// The limit on connections is out of range.
    #[error("{given} is not allowed; allowed: a whole number from 1 to {MOST_CONNECTIONS}")]
    Connections {
        /// The value.
        given: u64,
    },
    /// The text can not be the name of a policy.
    #[error("{given:?} can not name a policy; allowed: 1 to 63 characters without blank")]
    Name {
        /// The text.
        given: String,
    },
}

fn repeated<T: PartialEq + Copy>(values: &[T]) -> Option<T> {
    let again = |(at, value): (usize, &T)| values[..at].contains(value).then_some(*value);
    values.iter().enumerate().find_map(again)
}

/// Timeouts that zones share by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneTimeouts {
    name: String,
    timeouts: Vec<(String, u64)>,
}

impl ZoneTimeouts {
    /// Creates a policy without timeouts.
    ///
    /// # Errors
    /// [`ZoneError::Name`].
    pub fn new(name: &str) -> Result<Self, ZoneError> {
        let is_wrong = name.is_empty() || name.len() > 63 || name.contains(char::is_whitespace);
        if is_wrong {
            return Err(ZoneError::Name { given: name.to_owned() });
        }
        Ok(Self { name: name.to_owned(), timeouts: Vec::new() })
    }

    /// The name by which zones refer to it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets a timeout. It is a tunable of tracking with `_timeout` in its name.
    ///
    /// # Errors
    /// [`SetTunableError`] if there is no such timeout, or the value is out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        check(name, value, is_timeout(name))?;
        put(&mut self.timeouts, name, value);
        Ok(())
    }

    /// The timeouts and their values.
    pub fn timeouts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.timeouts.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

/// The configuration of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneConfig {
    /// Its number. Flows of different zones never meet, even with equal addresses.
    pub zone: Zone,
    pub(crate) ports: Option<Vec<PortId>>,
    pub(crate) vlans: Option<Vec<u16>>,
    pub(crate) max_connections: Option<u64>,
    /// The timeouts that the zone does not set itself.
    pub timeout_policy: Option<Arc<ZoneTimeouts>>,
    pub(crate) tunables: Vec<(String, u64)>,
}

impl ZoneConfig {
    /// Creates a zone that takes all packets, without settings of its own.
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

    /// The ports whose packets may be in it; `None`: all ports.
    pub fn ports(&self) -> Option<&[PortId]> {
        self.ports.as_deref()
    }

    /// Restricts it to packets of these ports.
    ///
    /// # Errors
    /// There must be two ports at least, because both directions of a flow must be in one zone.
    /// None may be there twice.
    pub fn set_ports(&mut self, ports: Vec<PortId>) -> Result<(), ZoneError> {
        if repeated(&ports).is_some() {
            return Err(ZoneError::PortTwice);
        }
        if ports.len() < 2 {
            return Err(ZoneError::OneSided);
        }
        self.ports = Some(ports);
        Ok(())
    }

    /// The outermost VLAN identifiers of its packets, 0 for packets without a tag; `None`: all.
    pub fn vlans(&self) -> Option<&[u16]> {
        self.vlans.as_deref()
    }

    /// Restricts it to packets of these VLANs.
    ///
    /// # Errors
    /// There must be at least one. None may be there twice or be out of range.
    pub fn set_vlans(&mut self, vlans: Vec<u16>) -> Result<(), ZoneError> {
        if vlans.is_empty() {
            return Err(ZoneError::NoVlan);
        }
        if let Some(&vlan) = vlans.iter().find(|&&vlan| vlan > LAST_VLAN) {
            return Err(ZoneError::Vlan { vlan });
        }
        if let Some(vlan) = repeated(&vlans) {
            return Err(ZoneError::VlanTwice { vlan });
        }
        self.vlans = Some(vlans);
        Ok(())
    }

    /// Most connections of the zone, within the limit of the gateway; `None`: no limit of its own.
    pub const fn max_connections(&self) -> Option<u64> {
        self.max_connections
    }

    /// Limits its connections.
    ///
    /// # Errors
    /// [`ZoneError::Connections`] if the number is not within 1 to [`MOST_CONNECTIONS`].
    pub fn set_max_connections(&mut self, most: u64) -> Result<(), ZoneError> {
        if !(1..=MOST_CONNECTIONS).contains(&most) {
            return Err(ZoneError::Connections { given: most });
        }
        self.max_connections = Some(most);
        Ok(())
    }

    /// Sets a tunable of tracking for this zone: a timeout, `stateway_half_open_per_source`, or
    /// `stateway_syn_proxy_half_open`.
    ///
    /// # Errors
    /// [`SetTunableError`] if a zone can not set this tunable, or the value is out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        check(name, value, is_timeout(name) || HALF_OPEN.contains(&name))?;
        put(&mut self.tunables, name, value);
        Ok(())
    }

    /// The tunables that the zone sets itself, without those of its policy.
    pub fn tunables(&self) -> impl Iterator<Item = (&str, u64)> {
        self.tunables.iter().map(|(name, value)| (name.as_str(), *value))
    }

    pub(crate) fn takes(&self, port: PortId, vlan: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
            && self.vlans.as_ref().is_none_or(|vlans| vlans.contains(&vlan))
    }

    /// The tunables of its policy, and then its own, which override them.
    pub(crate) fn differences(&self) -> impl Iterator<Item = (&str, u64)> {
        let policy = self.timeout_policy.iter().flat_map(|policy| policy.timeouts());
        policy.chain(self.tunables())
    }

    /// The settings of tracking in this zone.
    pub(crate) fn settings(&self, gateway: &conntrack::Settings) -> conntrack::Settings {
        let mut settings = gateway.clone();
        for (name, value) in self.differences() {
            // The names and values were checked when they were set.
            let set = settings.set(name, value);
            debug_assert_eq!(set, Ok(()));
        }
        settings
    }
}

/// Tunables that zones may set beside timeouts.
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
