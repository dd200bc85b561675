//! Named counters, limits, quotas, helpers, timeouts and SYN proxies.

use flow::declared::LONGEST_TIMEOUT;
use serde_json::Value;
use wire::Family;

use super::document::Opened;
use super::scope::Names;
use super::statement;
use crate::attached::{Helper, TimeoutObject, TimeoutState};
use crate::kind::outline;
use crate::model::{
    Counter, CounterId, HelperId, Limit, LimitId, Parts, Quota, QuotaId, SynProxyId, TimeoutId,
};
use crate::names;
use crate::problem::{Parsed, Path};

/// Adds a named object to the ruleset and to the names of its table.
pub(crate) fn declare(object: &Opened<'_, '_>, names: &mut Names, parts: &mut Parts) -> Parsed<()> {
    let name = object.place.name.clone();
    let full = (object.place.table.clone(), name.clone());
    let value = Value::Object(object.fields.clone());
    let path = Path::root(object.place.object);
    match object.place.object {
        "counter" => {
            let number = |key| object.number(key).unwrap_or(0);
            let (packets, bytes) = (number("packets"), number("bytes"));
            let position = Some(object.position);
            parts.counters.push(Counter { name: Some(full), position, packets, bytes });
            names.counters.insert(name, Some(CounterId(parts.counters.len() as u32 - 1)));
        }
        "limit" => {
            names.limits.insert(name.clone(), None);
            let rate = statement::rate(&value, &path)?;
            parts.limits.push(Limit { name: Some(full), rate });
            names.limits.insert(name, Some(LimitId(parts.limits.len() as u32 - 1)));
        }
        "quota" => {
            names.quotas.insert(name.clone(), None);
            let (bytes, used, over) = statement::quota(&value, &path)?;
            let position = Some(object.position);
            parts.quotas.push(Quota { name: Some(full), position, bytes, used, over });
            names.quotas.insert(name, Some(QuotaId(parts.quotas.len() as u32 - 1)));
        }
        "ct helper" => {
            names.helpers.insert(name.clone(), None);
            let kind = object.text("type").unwrap_or_default().to_owned();
            let protocol = protocol(object, &path)?;
            let family = match object.text("l3proto") {
                Some("ip") => Some(Family::V4),
                Some("ip6") => Some(Family::V6),
                _ => None,
            };
            parts.helpers.push(Helper { name: full, kind, protocol, family });
            names.helpers.insert(name, Some(HelperId(parts.helpers.len() as u32 - 1)));
        }
        "ct timeout" => {
            names.timeouts.insert(name.clone(), None);
            let protocol = protocol(object, &path)?;
            let seconds = timeouts(object, protocol, &path)?;
            parts.timeouts.push(TimeoutObject { name: full, protocol, seconds });
            names.timeouts.insert(name, Some(TimeoutId(parts.timeouts.len() as u32 - 1)));
        }
        "synproxy" => {
            names.syn_proxies.insert(name.clone(), None);
            let proxy = statement::syn_proxy(&value, &path)?;
            parts.syn_proxies.push(proxy);
            names.syn_proxies.insert(name, Some(SynProxyId(parts.syn_proxies.len() as u32 - 1)));
        }
        // Other objects are harmless by themselves: a rule that names one is unsupported.
        _ => {}
    }
    Ok(())
}

/// The timeouts that an object names, by state.
fn timeouts(
    object: &Opened<'_, '_>,
    protocol: u8,
    path: &Path<'_>,
) -> Parsed<Vec<(TimeoutState, u32)>> {
    let states: &[(&str, TimeoutState)] = match protocol {
        wire::protocol::TCP => TimeoutState::OF_TCP,
        wire::protocol::UDP => TimeoutState::OF_UDP,
        _ => {
            return Err(path
                .key("protocol")
                .unsupported("timeouts of other protocols than TCP and UDP"));
        }
    };
    let path = path.key("policy");
    let policy = object.fields.get("policy").and_then(Value::as_object);
    let timeout = |(name, value): (&String, &Value)| {
        let state = states.iter().find(|(known, _)| known == name);
        let (_, state) = state
            .ok_or_else(|| path.invalid(format!("no state {}", outline(&name.as_str().into()))))?;
        let seconds = value.as_u64().filter(|seconds| *seconds <= LONGEST_TIMEOUT);
        let seconds = seconds.ok_or_else(|| {
            path.invalid(format!(
                "{} is not a time of 0 to {LONGEST_TIMEOUT} seconds",
                outline(value)
            ))
        })?;
        Ok((*state, seconds as u32))
    };
    policy.into_iter().flatten().map(timeout).collect()
}

fn protocol(object: &Opened<'_, '_>, path: &Path<'_>) -> Parsed<u8> {
    let number = object.text("protocol").and_then(|name| names::number(names::PROTOCOLS, name));
    number
        .map(|number| number as u8)
        .ok_or_else(|| path.key("protocol").invalid("no transport protocol"))
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
