//! The tables `[[zone]]` and `[conntrack]`.

use conntrack::{Prefix, RESERVE_SHARE, Reserve};
use engine::ZoneConfig;
use flow::{SetTunableError, Zone};
use netio::PortId;
use toml::de::DeValue;

use super::Interface;
use super::document::{Reader, Section, number, show, text};
use super::sections::{table, tables};

/// Most zones.
const MAX_ZONES: usize = 1024;
/// Largest VLAN identifier of IEEE 802.1Q; 0 stands for no tag.
const MAX_VLAN: u64 = 4094;
/// Most connections of a zone, or of the reserve, that can be asked for.
const MAX_CONNECTIONS: u64 = 1 << 32;

pub(super) fn read(
    reader: &mut Reader<'_>,
    document: &mut Section<'_>,
    interfaces: &[Interface],
) -> Vec<ZoneConfig> {
    let mut zones: Vec<ZoneConfig> = Vec::new();
    for section in tables(reader, document, "zone") {
        let offset = section.place_of("id");
        let Some(zone) = zone(reader, section, interfaces) else { continue };
        if zones.iter().any(|other| other.zone == zone.zone) {
            reader.note(offset, "zone.id", format!("{} is already another zone", zone.zone.0));
        }
        if zones.len() == MAX_ZONES {
            reader.note(offset, "zone", format!("there may be {MAX_ZONES} zones at most"));
            break;
        }
        zones.push(zone);
    }
    if let Err(error) = engine::Zones::new(&zones, interfaces.len()) {
        reader.note_line(0, "zone", error);
    }
    zones
}

fn zone(
    reader: &mut Reader<'_>,
    mut section: Section<'_>,
    interfaces: &[Interface],
) -> Option<ZoneConfig> {
    if !section.has("id") {
        reader.note(section.offset, "zone.id", "is missing; for example id = 1");
    }
    let id = section.read(reader, "id", |value| number(value, 1, u16::MAX.into()));
    let mut zone = ZoneConfig::new(Zone(id.unwrap_or_default() as u16));
    let place = section.place_of("interfaces");
    zone.ports = section.read(reader, "interfaces", |value| {
        list(value, "names of interfaces", |name| port(name, interfaces))
    });
    if zone.ports.as_ref().is_some_and(|ports| ports.len() == 1) {
        let what = "names one side only: replies come in by another interface, and both \
                    directions of a flow must be in one zone";
        reader.note(place, "zone.interfaces", what);
    }
    zone.vlans = section.read(reader, "vlans", |value| {
        list(value, "VLAN identifiers", |vlan| Ok(number(vlan, 0, MAX_VLAN)? as u16))
    });
    zone.max_connections =
        section.read(reader, "max_connections", |value| number(value, 1, MAX_CONNECTIONS));
    for key in ["half_open_per_source", "syn_proxy_half_open"] {
        if let Some(entry) = section.take(key) {
            tune(reader, &mut zone, &format!("stateway_{key}"), &entry);
        }
    }
    if let Some(mut timeouts) = table(reader, &mut section, "timeouts") {
        for entry in timeouts.rest() {
            let name = entry.key.trim_start_matches("zone.timeouts.").to_owned();
            tune(reader, &mut zone, &name, &entry);
        }
    }
    section.finish(reader);
    id.map(|_| zone)
}

fn tune(
    reader: &mut Reader<'_>,
    zone: &mut ZoneConfig,
    name: &str,
    entry: &super::document::Entry<'_>,
) {
    let set = number(&entry.value, 0, u64::MAX)
        .map_err(|_| format!("{} is not allowed; allowed: a whole number", show(&entry.value)))
        .and_then(|value| {
            zone.set(name, value).map_err(|error| match error {
                SetTunableError::Unknown { .. } => {
                    format!("{name} is no timeout of tracking; `stateway tunable list` shows all")
                }
                error => error.to_string(),
            })
        });
    if let Err(what) = set {
        reader.note(entry.offset, &entry.key, what);
    }
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
    let sources = section.read(reader, "reserve", |value| {
        list(value, "prefixes", |prefix| {
            let prefix = text(prefix, "a prefix such as \"192.0.2.0/24\"")?;
            prefix.parse::<Prefix>().map_err(|error| error.to_string())
        })
    });
    let place = section.place_of("reserve_connections");
    let connections =
        section.read(reader, "reserve_connections", |value| number(value, 1, MAX_CONNECTIONS));
    section.finish(reader);
    if sources.is_some() != connections.is_some() {
        let what = "reserve and reserve_connections belong together: who, and how many";
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

/// A list that is not empty.
fn list<T>(
    value: &DeValue<'_>,
    what: &str,
    convert: impl Fn(&DeValue<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let elements = value.as_array().filter(|elements| !elements.is_empty());
    let elements = elements
        .ok_or_else(|| format!("{} is not allowed; allowed: a list of {what}", show(value)))?;
    elements.iter().map(|element| convert(element.get_ref())).collect()
}
