//! Settings that were changed while a gateway ran, on their way to the process that takes its place.
//!
//! A change goes on there if the file says the same as before. If the file says something else, it was
//! changed for the new process, and counts.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{Gateway, Policy, SettingsInForce, WorkerCount};
use serde_json::{Value, json};

use crate::SCHEMA;
use crate::schema::{ChangedSetting, ChangedSettings, SetZones};

/// The prefix of the names of tunables.
const TUNABLE: &str = "tunables.";
const WORKERS: &str = "gateway.workers";
const BALANCE: &str = "gateway.balance";
const ZONES: &str = "zones";
/// The beginning and the end of the names of policies.
const POLICY: (&str, &str) = ("interface.", ".policy");

/// The settings of a gateway that are others now than in the configuration with which it was started,
/// without the trial of a ruleset.
pub fn changed_settings(gateway: &Gateway) -> ChangedSettings {
    let interfaces = gateway.interfaces();
    let at_start = values(&gateway.settings_at_start(), &interfaces);
    let mut now = values(&gateway.settings_in_force(), &interfaces);
    let changed = at_start.into_iter().filter_map(|(name, at_start)| {
        let now = now.remove(&name).filter(|now| *now != at_start)?;
        Some(ChangedSetting { name, at_start, now })
    });
    ChangedSettings { schema: SCHEMA, settings: changed.collect(), trial_s: None }
}

/// Has a gateway go on with the settings that were changed while another one ran. Those that it has
/// taken over before and that are not among them become again what its own configuration says. Returns
/// those that it does not take over, each with the reason.
pub fn carry_settings(gateway: &Gateway, changed: &ChangedSettings) -> Vec<String> {
    let is_meant = |name: &str| changed.settings.iter().any(|setting| setting.name == name);
    let mut not_carried = Vec::new();
    if let Some(left) = changed.trial_s {
        not_carried.push(format!(
            "the trial of the rules, which had {left} s left, does not go on, so nothing takes them back"
        ));
    }
    for ChangedSetting { name, at_start, .. } in changed_settings(gateway).settings {
        if !is_meant(&name)
            && let Err(why) = set(gateway, &name, &at_start)
        {
            not_carried.push(format!("{name} is not {} again: {why}", shown(&at_start)));
        }
    }
    let own = values(&gateway.settings_at_start(), &gateway.interfaces());
    for ChangedSetting { name, at_start, now } in &changed.settings {
        let lost = format!("{name}: {}, set while the gateway ran, does not go on", shown(now));
        match own.get(name) {
            None => not_carried.push(format!("{lost}: there is no such setting here")),
            Some(own) if own == at_start => match set(gateway, name, now) {
                Ok(()) => tracing::info!("{name}: {}, as set while it ran, goes on", shown(now)),
                Err(why) => not_carried.push(format!("{lost}: {why}")),
            },
            Some(own) if own == now => {}
            Some(own) if own.is_object() => not_carried.push(format!(
                "{name}: none of those set while the gateway ran goes on: the file has others than \
                 before, which count"
            )),
            Some(own) => not_carried.push(format!(
                "{lost}: the file has changed from {} to {}, which counts",
                shown(at_start),
                shown(own)
            )),
        }
    }
    not_carried
}

/// The settings by name.
fn values(settings: &SettingsInForce, interfaces: &[String]) -> BTreeMap<String, Value> {
    let SettingsInForce { tunables, zones, workers, balance, policies } = settings;
    let mut values: BTreeMap<String, Value> =
        tunables.iter().map(|(name, value)| (format!("{TUNABLE}{name}"), json!(value))).collect();
    let workers = match workers {
        WorkerCount::PerCpu => None,
        WorkerCount::Fixed(count) => Some(count),
    };
    values.insert(WORKERS.to_owned(), json!(workers));
    let balance = balance.map(|every| every.as_millis() as u64);
    values.insert(BALANCE.to_owned(), json!(balance));
    values.insert(ZONES.to_owned(), json!(SetZones::new(zones, interfaces)));
    let (before, behind) = POLICY;
    values.extend(interfaces.iter().zip(policies).map(|(interface, policy)| {
        (format!("{before}{interface}{behind}"), json!(policy.to_string()))
    }));
    values
}

/// Gives a setting this value.
///
/// # Errors
/// The reason for people; nothing has changed.
fn set(gateway: &Gateway, name: &str, value: &Value) -> Result<(), String> {
    let (before, behind) = POLICY;
    let device = name.strip_prefix(before).and_then(|it| it.strip_suffix(behind));
    match (name, device, value) {
        (_, Some(device), Value::String(policy)) => {
            let policy = policy.parse::<Policy>().map_err(|it| it.to_string())?;
            gateway.set_policy(device, policy).map(drop).map_err(|it| it.to_string())
        }
        (WORKERS, _, Value::Number(count)) => {
            let count = count.as_u64().and_then(|count| usize::try_from(count).ok());
            let set = gateway.set_workers(count.unwrap_or_default());
            set.map(drop).map_err(|it| it.to_string())
        }
        (BALANCE, _, Value::Null | Value::Number(_)) => {
            gateway.set_balance(value.as_u64().map(Duration::from_millis));
            Ok(())
        }
        (ZONES, ..) => {
            let request: SetZones =
                serde_json::from_value(value.clone()).map_err(|it| it.to_string())?;
            let book = request.book(&gateway.interfaces(), gateway.zones().revision);
            let book = book.map_err(|fault| format!("{}: {}", fault.place, fault.what))?;
            gateway.set_zones(book).map_err(|it| it.to_string())
        }
        (_, None, Value::Number(value)) if name.starts_with(TUNABLE) => {
            let value = value.as_u64().ok_or("it is no whole number")?;
            gateway.set_tunable(&name[TUNABLE.len()..], value).map_err(|it| it.to_string())
        }
        _ => Err("its value has another form here".to_owned()),
    }
}

/// A value for people. Zones are too long for a line.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(_) => "others".to_owned(),
        value => value.to_string(),
    }
}
