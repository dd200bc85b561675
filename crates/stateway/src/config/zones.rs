//! The tables `[[timeout_policy]]`, `[[zone]]` and `[conntrack]`.

use std::sync::Arc;

use conntrack::{Prefix, PrefixError, RESERVE_SHARE, Reserve};
use engine::{
    LAST_VLAN, MOST_CONNECTIONS, MOST_TIMEOUT_POLICIES, MOST_ZONES, ZoneConfig, ZoneError,
    ZoneTimeouts,
};
use flow::{SetTunableError, Zone};
use netio::PortId;
use toml::de::DeValue;

use super::Interface;
use super::document::{Reader, Section, number, show, text};
use super::sections::{table, tables};

/// The tables `[[timeout_policy]]`.
pub(super) fn policies(
    reader: &mut Reader<'_>,
    document: &mut Section<'_>,
) -> Vec<Arc<ZoneTimeouts>> {
    let mut policies: Vec<Arc<ZoneTimeouts>> = Vec::new();
    for mut section in tables(reader, document, "timeout_policy", MOST_TIMEOUT_POLICIES) {
        let offset = section.place_of("name");
        if !section.has("name") {
            let what = "is missing; for example name = \"short\"";
            reader.note(offset, "timeout_policy.name", what);
        }
        let policy = section.read(reader, "name", |value| {
            let name = text(value, "1 to 63 characters without blank")?;
            ZoneTimeouts::new(name).map_err(|error| error.to_string())
        });
        let is_named = policy.is_some();
        // A policy without a name is read too, for the mistakes in the rest of it.
        let Some(mut policy) = policy.or_else(|| ZoneTimeouts::new("unnamed").ok()) else {
            continue;
        };
        for entry in section.rest() {
            let timeout = entry.key.trim_start_matches("timeout_policy.").to_owned();
            tune(reader, &timeout, &entry, |value| policy.set(&timeout, value));
        }
        if !is_named {
            continue;
        }
        if policies.iter().any(|other| other.name() == policy.name()) {
            let what = format!("{:?} is already another policy", policy.name());
            reader.note(offset, "timeout_policy.name", what);
            continue;
        }
        policies.push(policy.into());
    }
    policies
}

/// The tables `[[zone]]`.
pub(super) fn read(
    reader: &mut Reader<'_>,
    document: &mut Section<'_>,
    interfaces: &[Interface],
    policies: &[Arc<ZoneTimeouts>],
) -> Vec<ZoneConfig> {
    let (mut zones, mut lines) = (Vec::<ZoneConfig>::new(), Vec::new());
    for section in tables(reader, document, "zone", MOST_ZONES) {
        let offset = section.place_of("id");
        let Some(zone) = zone(reader, section, interfaces, policies) else { continue };
        if zones.iter().any(|other| other.zone == zone.zone) {
            reader.note(offset, "zone.id", format!("{} is already another zone", zone.zone.0));
        }
        zones.push(zone);
        lines.push(reader.line(offset));
    }
    // A zone with mistakes would seem to take packets that it does not take.
    if reader.has_problems() {
        return zones;
    }
    for (at, fault) in engine::Zones::faults(&zones, interfaces.len()) {
        reader.note_line(lines[at], "zone", fault);
    }
    zones
}

fn zone(
    reader: &mut Reader<'_>,
    mut section: Section<'_>,
    interfaces: &[Interface],
    policies: &[Arc<ZoneTimeouts>],
) -> Option<ZoneConfig> {
    if !section.has("id") {
        reader.note(section.offset, "zone.id", "is missing; for example id = 1");
    }
    let id = section.read(reader, "id", |value| number(value, 1, u16::MAX.into()));
    let mut zone = ZoneConfig::new(Zone(id.unwrap_or_default() as u16));
    let refused = |error: ZoneError| error.to_string();
    section.read(reader, "interfaces", |value| {
        let ports = list(value, "names of interfaces", |name| port(name, interfaces))?;
        zone.set_ports(ports).map_err(refused)
    });
    section.read(reader, "vlans", |value| {
        let vlan = |vlan: &DeValue<'_>| Ok(number(vlan, 0, LAST_VLAN.into())? as u16);
        zone.set_vlans(list(value, "VLAN identifiers", vlan)?).map_err(refused)
    });
    section.read(reader, "max_connections", |value| {
        zone.set_max_connections(number(value, 1, MOST_CONNECTIONS)?).map_err(refused)
    });
    for key in ["half_open_per_source", "syn_proxy_half_open"] {
        if let Some(entry) = section.take(key) {
            let name = format!("stateway_{key}");
            tune(reader, &name, &entry, |value| zone.set(&name, value));
        }
    }
    zone.timeout_policy =
        section.read(reader, "timeout_policy", |value| find_policy(value, policies));
    if let Some(mut timeouts) = table(reader, &mut section, "timeouts") {
        for entry in timeouts.rest() {
            let name = entry.key.trim_start_matches("zone.timeouts.").to_owned();
            tune(reader, &name, &entry, |value| zone.set(&name, value));
        }
    }
    section.finish(reader);
    id.map(|_| zone)
}

fn tune(
    reader: &mut Reader<'_>,
    name: &str,
    entry: &super::document::Entry<'_>,
    set: impl FnOnce(u64) -> Result<(), SetTunableError>,
) {
    let set = number(&entry.value, 0, u64::MAX)
        .map_err(|_| format!("{} is not allowed; allowed: a whole number", show(&entry.value)))
        .and_then(|value| {
            set(value).map_err(|error| match error {
                SetTunableError::Unknown { .. } => {
                    format!(
                        "{name} is not a timeout of tracking; `stateway tunable list` shows all"
                    )
                }
                error => error.to_string(),
            })
        });
    if let Err(what) = set {
        reader.note(entry.offset, &entry.key, what);
    }
}

/// The largest number of names that a problem lists, because each zone may have one.
const MOST_NAMED: usize = 16;

fn find_policy(
    value: &DeValue<'_>,
    policies: &[Arc<ZoneTimeouts>],
) -> Result<Arc<ZoneTimeouts>, String> {
    let name = text(value, "the name of a [[timeout_policy]]")?;
    let found = policies.iter().find(|policy| policy.name() == name);
    found.cloned().ok_or_else(|| {
        let mut known: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
        if known.is_empty() {
            return format!("{name:?} is not the name of a [[timeout_policy]]; there is none");
        }
        if known.len() > MOST_NAMED {
            known.truncate(MOST_NAMED);
            known.push("and others");
        }
        let known = known.join(", ");
        format!("{name:?} is not the name of a [[timeout_policy]]; there are: {known}")
    })
}

fn port(value: &DeValue<'_>, interfaces: &[Interface]) -> Result<PortId, String> {
    let name = text(value, "the name of an interface")?;
    let at = interfaces.iter().position(|interface| interface.name == name);
    let at = at.ok_or_else(|| format!("{name:?} is not the name of an [[interface]]"))?;
    Ok(PortId(at as u16))
}

/// The table `[conntrack]`.
pub(super) fn conntrack(
    reader: &mut Reader<'_>,
    mut section: Section<'_>,
    max_entries: u64,
) -> Reserve {
    let offset = section.place_of("reserve");
    let belong_together = section.has("reserve") == section.has("reserve_connections");
    let sources = section.read(reader, "reserve", |value| {
        list(value, "prefixes", |prefix| {
            let prefix = text(prefix, "a prefix such as \"192.0.2.0/24\"")?;
            network(prefix)
        })
    });
    let place = section.place_of("reserve_connections");
    let connections =
        section.read(reader, "reserve_connections", |value| number(value, 1, MOST_CONNECTIONS));
    section.finish(reader);
    if !belong_together {
        let what = "reserve and reserve_connections belong together: the sources, and the number of connections";
        reader.note(offset, "conntrack", what);
    }
    let most = max_entries / RESERVE_SHARE;
    if connections.is_some_and(|connections| connections > most) {
        let what = format!(
            "nf_conntrack_max is {max_entries}, and half of it, {most}, may be reserved at most"
        );
        reader.note(place, "conntrack.reserve_connections", what);
    }
    Reserve { sources: sources.unwrap_or_default(), connections: connections.unwrap_or_default() }
}

/// A prefix. One with bits behind its length may mean a host or a network, so it is refused.
pub(super) fn network(text: &str) -> Result<Prefix, String> {
    let prefix: Prefix = text.parse().map_err(|error: PrefixError| error.to_string())?;
    let network = prefix.network();
    if prefix != network {
        let host = prefix.address();
        return Err(format!(
            "{text:?} has bits behind its length; write \"{network}\" for the network or \
             \"{host}\" for the host"
        ));
    }
    Ok(prefix)
}

/// A list that is not empty and has no element twice.
fn list<T: PartialEq>(
    value: &DeValue<'_>,
    what: &str,
    convert: impl Fn(&DeValue<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let elements = value.as_array().filter(|elements| !elements.is_empty());
    let elements = elements
        .ok_or_else(|| format!("{} is not allowed; allowed: a list of {what}", show(value)))?;
    let mut converted = Vec::new();
    for element in elements {
        let element = element.get_ref();
        let this = convert(element)?;
        if converted.contains(&this) {
            return Err(format!("{} appears twice", show(element)));
        }
        converted.push(this);
    }
    Ok(converted)
}
