//! Statements, as `nft list ruleset` writes them.

use serde_json::Value;

use super::expression::{self, PLAIN, QUOTED, Style, quoted, time, verdict_map};
use crate::TimeoutState;
use crate::kind::only;

/// A statement of a rule.
pub(super) fn written(statement: &Value) -> String {
    let Some((name, inside)) = only(statement) else {
        return match statement {
            // nft prints a statement as text if it has no JSON for it.
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
    };
    let part = |key: &str| inside.get(key).unwrap_or(&Value::Null);
    match name {
        "match" => {
            let operator = part("op").as_str().unwrap_or("==");
            expression::comparison(part("left"), operator, part("right"))
        }
        "counter" | "limit" | "quota" => measure(name, inside),
        "mangle" => {
            let styles = Style::beside(part("key"));
            let key = expression::written(part("key"), PLAIN);
            format!("{key} set {}", expression::written(part("value"), &styles))
        }
        "vmap" => verdict_map(part("key"), part("data")),
        "set" | "map" => update(inside),
        "meter" => {
            let size = part("size").as_u64().map(|size| format!(" size {size}"));
            let name = part("name").as_str().unwrap_or_default();
            let element = added(part("key"), Some(part("stmt")));
            format!("meter {name}{} {{ {element} }}", size.unwrap_or_default())
        }
        "log" => log(inside),
        "reject" => reject(inside),
        "snat" | "dnat" | "masquerade" | "redirect" => translation(name, inside),
        "ct helper" | "ct timeout" if inside.get("map").is_some() => {
            format!("{name} set {}", named_by_map(inside))
        }
        "ct helper" | "ct timeout" | "ct expectation" => {
            format!("{name} set {}", quoted(inside.as_str().unwrap_or_default()))
        }
        "ct count" => {
            let over = if part("inv").as_bool() == Some(true) { "over " } else { "" };
            format!("ct count {over}{}", part("val"))
        }
        "synproxy" if inside.get("map").is_some() => {
            format!("synproxy name {}", named_by_map(inside))
        }
        "synproxy" => match inside.as_str() {
            Some(name) => format!("synproxy name {}", quoted(name)),
            None => synproxy(inside, " "),
        },
        "queue" => {
            let flags = part("flags");
            let flags = if flags.is_null() {
                String::new()
            } else {
                format!(" flags {}", super::names(flags))
            };
            let to = inside.get("num").map(|to| format!(" to {}", expression::written(to, PLAIN)));
            format!("queue{flags}{}", to.unwrap_or_default())
        }
        "flow" => format!("flow add {}", part("flowtable").as_str().unwrap_or_default()),
        "xt" => {
            let text = |key| part(key).as_str().unwrap_or_default();
            format!("xt {} {}", text("type"), quoted(text("name")))
        }
        "accept" | "drop" | "continue" | "return" | "notrack" => name.to_owned(),
        "jump" | "goto" => {
            format!("{name} {}", part("target").as_str().unwrap_or_default())
        }
        _ if inside.is_null() => name.to_owned(),
        // An unknown statement is shown as it is.
        _ => format!("{name} {inside}"),
    }
}

/// A counter, limit or quota, by name or with its values.
pub(super) fn measure(name: &str, inside: &Value) -> String {
    let number = |key: &str| inside.get(key).and_then(Value::as_u64);
    match (name, inside) {
        (_, Value::String(of)) => format!("{name} name {}", quoted(of)),
        (_, Value::Object(fields)) if fields.contains_key("map") => {
            format!("{name} name {}", named_by_map(inside))
        }
        ("counter", _) => match (number("packets"), number("bytes")) {
            (Some(packets), Some(bytes)) => format!("counter packets {packets} bytes {bytes}"),
            _ => "counter".to_owned(),
        },
        ("limit", _) => format!("limit {}", rate(inside)),
        (_, _) => format!("quota {}", quota(inside)),
    }
}

fn named_by_map(inside: &Value) -> String {
    let map = inside.get("map").unwrap_or(&Value::Null);
    let key = map.get("key").unwrap_or(&Value::Null);
    let styles = Style::beside(key);
    let key = expression::written(key, PLAIN);
    let data = map.get("data").unwrap_or(&Value::Null);
    if data.is_string() {
        return format!("{key} map {}", expression::written(data, PLAIN));
    }
    let elements = data.get("set").and_then(Value::as_array);
    let elements: Vec<String> = elements
        .into_iter()
        .flatten()
        .map(|pair| expression::element(pair, &styles, QUOTED))
        .collect();
    format!("{key} map {{ {} }}", elements.join(", "))
}

/// `rate over 10/second burst 7 packets`; nft leaves out a burst that is the default.
pub(super) fn rate(inside: &Value) -> String {
    const DEFAULT_BURST: u64 = 5;
    let number = |key: &str| inside.get(key).and_then(Value::as_u64).unwrap_or(0);
    let text = |key: &str| inside.get(key).and_then(Value::as_str);
    let over = if inside.get("inv").and_then(Value::as_bool) == Some(true) { "over " } else { "" };
    let unit = text("rate_unit").map(|unit| format!(" {unit}")).unwrap_or_default();
    let burst = match (text("rate_unit"), number("burst")) {
        (None, DEFAULT_BURST) | (_, 0) => String::new(),
        (None, burst) => format!(" burst {burst} packets"),
        (Some(_), burst) => format!(" burst {burst} {}", text("burst_unit").unwrap_or("bytes")),
    };
    format!("rate {over}{}{unit}/{}{burst}", number("rate"), text("per").unwrap_or("second"))
}

fn quota(inside: &Value) -> String {
    let number = |key: &str| inside.get(key).and_then(Value::as_u64);
    let unit = |key: &str| inside.get(key).and_then(Value::as_str).unwrap_or("bytes");
    let over = if inside.get("inv").and_then(Value::as_bool) == Some(true) { "over " } else { "" };
    let used = number("used").filter(|used| *used > 0);
    let used = used.map(|used| format!(" used {used} {}", unit("used_unit")));
    let limit = number("val").unwrap_or(0);
    format!("{over}{limit} {}{}", unit("val_unit"), used.unwrap_or_default())
}

/// As [`quota`], for a named one, which nft prints in bytes only.
pub(super) fn quota_bytes(inside: &Value) -> String {
    let scaled = |bytes: u64| {
        let units = [("gbytes", 30), ("mbytes", 20), ("kbytes", 10)];
        let fits = units.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
        fits.map_or(format!("{bytes} bytes"), |(unit, shift)| format!("{} {unit}", bytes >> shift))
    };
    let number = |key: &str| inside.get(key).and_then(Value::as_u64).unwrap_or(0);
    let over = if inside.get("inv").and_then(Value::as_bool) == Some(true) { "over " } else { "" };
    let used = match number("used") {
        0 => String::new(),
        used => format!(" used {}", scaled(used)),
    };
    format!("{over}{}{used}", scaled(number("bytes")))
}

/// `add @set { ip saddr timeout 5m }`.
fn update(inside: &Value) -> String {
    let text = |key: &str| inside.get(key).and_then(Value::as_str).unwrap_or_default();
    let set = if text("set").is_empty() { text("map") } else { text("set") };
    let element = added(inside.get("elem").unwrap_or(&Value::Null), inside.get("stmt"));
    let datum = inside.get("data").map(|data| format!(" : {}", expression::written(data, PLAIN)));
    format!("{} {set} {{ {element}{} }}", text("op"), datum.unwrap_or_default())
}

fn added(element: &Value, statements: Option<&Value>) -> String {
    let plain;
    let fields = match only(element) {
        Some(("elem", Value::Object(fields))) => fields,
        _ => {
            plain = [("val".to_owned(), element.clone())].into_iter().collect();
            &plain
        }
    };
    expression::timed(fields, PLAIN, statements)
}

fn log(inside: &Value) -> String {
    let text = |key: &str| inside.get(key).and_then(Value::as_str);
    let number = |key: &str| inside.get(key).and_then(Value::as_u64);
    let mut words = vec!["log".to_owned()];
    words.extend(text("prefix").map(|prefix| format!("prefix {}", quoted(prefix))));
    words.extend(text("level").map(|level| format!("level {level}")));
    for key in ["group", "snaplen", "queue-threshold"] {
        words.extend(number(key).map(|value| format!("{key} {value}")));
    }
    match inside.get("flags") {
        Some(Value::String(flag)) => words.push(format!("flags {flag}")),
        Some(Value::Array(flags)) => {
            // The flags for TCP share one word.
            let flags: Vec<&str> = flags.iter().filter_map(Value::as_str).collect();
            let (of_tcp, others): (Vec<&str>, Vec<&str>) =
                flags.iter().partition(|flag| flag.starts_with("tcp "));
            if !of_tcp.is_empty() {
                let names: Vec<&str> =
                    of_tcp.iter().filter_map(|flag| flag.strip_prefix("tcp ")).collect();
                words.push(format!("flags tcp {}", names.join(",")));
            }
            words.extend(others.iter().map(|flag| format!("flags {flag}")));
        }
        _ => {}
    }
    words.join(" ")
}

fn reject(inside: &Value) -> String {
    let text = |key: &str| inside.get(key).and_then(Value::as_str);
    let code = inside.get("expr").map(|code| expression::written(code, PLAIN));
    match (text("type"), code.as_deref()) {
        (None, _) | (Some("icmpx"), Some("port-unreachable")) => "reject".to_owned(),
        (Some("tcp reset"), _) => "reject with tcp reset".to_owned(),
        (Some(kind), Some(code)) => format!("reject with {kind} {code}"),
        (Some(kind), None) => format!("reject with {kind}"),
    }
}

fn translation(name: &str, inside: &Value) -> String {
    let mut text = name.to_owned();
    let family = inside.get("family").and_then(Value::as_str);
    let is_six = family == Some("ip6");
    let address = inside.get("addr").map(|address| match only(address) {
        // Behind a port each end of IPv6 has brackets of its own.
        Some(("range", Value::Array(ends))) if is_six && inside.get("port").is_some() => {
            ends.iter().map(|end| expression::written(end, PLAIN)).collect::<Vec<_>>().join("]-[")
        }
        _ => expression::written(address, PLAIN),
    });
    let port = inside.get("port").map(|port| expression::written(port, PLAIN));
    text.extend(family.map(|family| format!(" {family}")));
    if inside.get("type_flags").is_some_and(|flags| super::mentions(flags, "prefix")) {
        text.push_str(" prefix");
    }
    match (address, port) {
        (Some(address), Some(port)) if address.contains(':') && family != Some("ip") => {
            text = format!("{text} to [{address}]:{port}");
        }
        (Some(address), Some(port)) => text = format!("{text} to {address}:{port}"),
        (Some(address), None) => text = format!("{text} to {address}"),
        (None, Some(port)) => text = format!("{text} to :{port}"),
        (None, None) => {}
    }
    // The word `prefix` already says netmap.
    let flags: Vec<&str> = match inside.get("flags") {
        Some(Value::String(flag)) => vec![flag],
        Some(Value::Array(flags)) => flags.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let flags: Vec<&str> = flags.into_iter().filter(|flag| *flag != "netmap").collect();
    if flags.is_empty() { text } else { format!("{text} {}", flags.join(",")) }
}

/// The parts of a SYN proxy with something between its lines or words.
pub(super) fn synproxy(inside: &Value, between: &str) -> String {
    let number = |key: &str| inside.get(key).and_then(Value::as_u64);
    let mut words = Vec::new();
    words.extend(number("mss").map(|mss| format!("mss {mss}")));
    words.extend(number("wscale").map(|wscale| format!("wscale {wscale}")));
    let flags: Vec<&str> = match inside.get("flags") {
        Some(Value::String(flag)) => vec![flag],
        Some(Value::Array(flags)) => flags.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !flags.is_empty() {
        words.push(flags.join(" "));
    }
    let text = words.join(between);
    if between == " " { format!("synproxy {text}") } else { text }
}

/// `established : 100, close : 4`.
pub(super) fn policy(inside: &Value) -> String {
    let mut states: Vec<(&String, &Value)> = inside.as_object().into_iter().flatten().collect();
    // nft prints them in the order of the kernel's numbers.
    let known = TimeoutState::OF_TCP.iter().chain(TimeoutState::OF_UDP);
    states.sort_by_key(|(state, _)| known.clone().position(|(name, _)| name == state));
    let states = states.iter().map(|(state, seconds)| format!("{state} : {seconds}"));
    states.collect::<Vec<_>>().join(", ")
}

/// A time in milliseconds.
pub(super) fn milliseconds(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_u64).map(|millis| time(millis / 1000))
}
