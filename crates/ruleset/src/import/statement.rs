//! Statements without expressions of their own: rates, quotas, logs, refusals.

use std::time::Duration;

use serde_json::Value;

use super::document::has_flag;
use crate::attached::SynProxy;
use crate::kind::{only, outline};
use crate::model::{Bound, Log, Rate, Reject, Unreachable};
use crate::names::{self, Names};
use crate::problem::{Effect, Parsed, Path};

/// Bytes that a unit stands for; `Some(None)` for packets.
fn unit(name: Option<&str>) -> Option<Option<u64>> {
    Some(match name {
        None | Some("packets") => None,
        Some("bytes") => Some(1),
        Some("kbytes") => Some(1 << 10),
        Some("mbytes") => Some(1 << 20),
        Some("gbytes") => Some(1 << 30),
        Some(_) => return None,
    })
}

/// A rate with its burst.
pub(crate) fn rate(value: &Value, path: &Path<'_>) -> Parsed<Rate> {
    /// The kernel's burst for a rate that names none, packets.
    const DEFAULT_BURST: u64 = 5;
    let number = |key| value.get(key).and_then(Value::as_u64);
    let text = |key| value.get(key).and_then(Value::as_str);
    let period = match text("per") {
        Some("second") | None => 1,
        Some("minute") => 60,
        Some("hour") => 3600,
        Some("day") => 86_400,
        Some("week") => 604_800,
        Some(_) => return Err(path.key("per").invalid("no period")),
    };
    let unit_of = |key| unit(text(key)).ok_or_else(|| path.key(key).invalid("no unit"));
    let (rate_unit, burst_unit) = (unit_of("rate_unit")?, unit_of("burst_unit")?);
    let amount = number("rate").and_then(|rate| rate.checked_mul(rate_unit.unwrap_or(1)));
    let amount = amount.filter(|amount| (1..1 << 48).contains(amount));
    let burst = match number("burst") {
        None | Some(0) if rate_unit.is_none() => Some(DEFAULT_BURST),
        None => Some(0),
        Some(burst) => burst.checked_mul(burst_unit.unwrap_or(1)),
    };
    let burst = burst.filter(|burst| *burst < 1 << 48);
    Ok(Rate {
        amount: amount.ok_or_else(|| path.key("rate").invalid("no rate"))?,
        period: Duration::from_secs(period),
        burst: burst.ok_or_else(|| path.key("burst").invalid("no burst"))?,
        in_bytes: rate_unit.is_some(),
        over: value.get("inv").and_then(Value::as_bool) == Some(true),
    })
}

/// Bytes, bytes used, and true if the quota matches once it is used up.
pub(crate) fn quota(value: &Value, path: &Path<'_>) -> Parsed<(u64, u64, bool)> {
    let bytes = |key: &str, unit_key: &str| {
        let factor =
            unit(value.get(unit_key).and_then(Value::as_str)).map(|unit| unit.unwrap_or(1));
        value.get(key).and_then(Value::as_u64)?.checked_mul(factor?)
    };
    let limit = bytes("val", "val_unit").or_else(|| bytes("bytes", "val_unit"));
    let limit = limit.ok_or_else(|| path.invalid("no number of bytes"))?;
    let over = value.get("inv").and_then(Value::as_bool) == Some(true);
    Ok((limit, bytes("used", "used_unit").unwrap_or(0), over))
}

/// A bound for the number of connections.
pub(crate) fn bound(value: &Value, path: &Path<'_>) -> Parsed<Bound> {
    let most = value.get("val").and_then(Value::as_u64).and_then(|most| u32::try_from(most).ok());
    let over = value.get("inv").and_then(Value::as_bool) == Some(true);
    Ok(Bound { most: most.ok_or_else(|| path.key("val").invalid("no number of 32 bits"))?, over })
}

pub(crate) fn log(value: &Value, path: &Path<'_>) -> Parsed<Log> {
    const LEVELS: Names = &[
        ("emerg", 0),
        ("alert", 1),
        ("crit", 2),
        ("err", 3),
        ("warn", 4),
        ("notice", 5),
        ("info", 6),
        ("debug", 7),
    ];
    /// The kernel's level for a statement that names none.
    const WARN: u64 = 4;
    const LONGEST_PREFIX: usize = 127;
    let number = |key| value.get(key).and_then(Value::as_u64);
    let level = match value.get("level").and_then(Value::as_str) {
        None => WARN,
        Some(name) => names::number(LEVELS, name).ok_or_else(|| {
            path.key("level").unsupported(format!("level {}", outline(&name.into())))
        })?,
    };
    let prefix = value.get("prefix").and_then(Value::as_str).unwrap_or_default();
    if prefix.len() > LONGEST_PREFIX {
        return Err(path.key("prefix").invalid("longer than the kernel's"));
    }
    let group = number("group").map(u16::try_from).transpose();
    Ok(Log {
        prefix: prefix.to_owned(),
        level: level as u8,
        group: group.map_err(|_| path.key("group").invalid("a group of more than 16 bits"))?,
        snaplen: number("snaplen").and_then(|length| u32::try_from(length).ok()).unwrap_or(0),
    })
}

pub(crate) fn reject(value: &Value, path: &Path<'_>) -> Parsed<Reject> {
    if value.is_null() {
        return Ok(Reject::Icmpx(Unreachable::Port));
    }
    let text = |key| value.get(key).and_then(Value::as_str);
    let code = |names: Names| match value.get("expr") {
        Some(Value::Number(number)) => number.as_u64().and_then(|code| u8::try_from(code).ok()),
        Some(Value::String(name)) => names::number(names, name).map(|code| code as u8),
        // The kernel's default.
        None => names::number(names, "port-unreachable").map(|code| code as u8),
        Some(_) => None,
    };
    let known = match text("type") {
        Some("tcp reset") => Some(Reject::TcpReset),
        Some("icmp") => code(names::ICMP_CODES).map(Reject::Icmp),
        Some("icmpv6") => code(names::ICMPV6_CODES).map(Reject::Icmpv6),
        Some("icmpx") | None => match code(names::ICMPX_CODES) {
            Some(0) => Some(Reject::Icmpx(Unreachable::NoRoute)),
            Some(1) => Some(Reject::Icmpx(Unreachable::Port)),
            Some(2) => Some(Reject::Icmpx(Unreachable::Host)),
            Some(3) => Some(Reject::Icmpx(Unreachable::Prohibited)),
            _ => None,
        },
        Some(_) => None,
    };
    known.ok_or_else(|| path.invalid("not a known kind of refusal"))
}

pub(crate) fn syn_proxy(value: &Value, path: &Path<'_>) -> Parsed<SynProxy> {
    /// The largest shift of RFC 7323.
    const MAX_WSCALE: u64 = 14;
    let number = |key| value.get(key).and_then(Value::as_u64);
    let mss = number("mss").map(u16::try_from).transpose();
    let wscale = number("wscale").filter(|scale| *scale <= MAX_WSCALE);
    if wscale != number("wscale") {
        return Err(path.key("wscale").invalid("more than 14"));
    }
    let flags = value.get("flags");
    Ok(SynProxy {
        mss: mss.map_err(|_| path.key("mss").invalid("more than 16 bits"))?,
        wscale: wscale.map(|scale| scale as u8),
        timestamp: has_flag(flags, "timestamp"),
        sack: has_flag(flags, "sack-perm"),
    })
}

/// Statements that neither decide about a packet nor change where it goes, and the comparisons
/// in front of them.
const SIDE_EFFECTS: [&str; 16] = [
    "match",
    "counter",
    "quota",
    "limit",
    "ct count",
    "ct helper",
    "ct timeout",
    "ct expectation",
    "log",
    "mangle",
    "meter",
    "set",
    "map",
    "flow",
    "secmark",
    "last",
];

/// The effect of leaving out an extension of iptables; `None` for one that only asks or counts.
fn extension(statement: &Value) -> Option<Effect> {
    let text = |key: &str| statement.get("xt")?.get(key)?.as_str();
    match (text("type"), text("name")) {
        (Some("match"), _) => None,
        (Some("target"), Some("REJECT" | "DROP" | "TARPIT")) => Some(Effect::Open),
        (Some("target"), Some("DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP")) => {
            Some(Effect::Untranslated)
        }
        (Some("target"), Some("LOG" | "NFLOG" | "AUDIT" | "MARK" | "CONNMARK" | "TCPMSS")) => None,
        _ => Some(Effect::Unclear),
    }
}

/// The effect of leaving out a rule with these statements.
pub(crate) fn effect(statements: &[Value]) -> Effect {
    let mut effect = Effect::SideEffect;
    for statement in statements {
        let found = match only(statement).map(|(name, _)| name) {
            Some("accept") => Effect::Stricter,
            Some("drop" | "reject" | "synproxy") => Effect::Open,
            Some("snat" | "dnat" | "masquerade" | "redirect") => Effect::Untranslated,
            Some(
                "jump" | "goto" | "return" | "vmap" | "queue" | "tproxy" | "fwd" | "dup"
                | "notrack",
            )
            | None => Effect::Unclear,
            Some("xt") => match extension(statement) {
                Some(effect) => effect,
                None => continue,
            },
            Some(name) if SIDE_EFFECTS.contains(&name) => continue,
            // A newer nft may have another verdict.
            Some(_) => Effect::Unclear,
        };
        effect = match (effect, found) {
            (Effect::SideEffect, found) => found,
            (Effect::Open, _) | (_, Effect::Open) => Effect::Open,
            _ => found,
        };
    }
    effect
}
