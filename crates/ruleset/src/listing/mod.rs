//! A ruleset as text, as close as possible to `nft list ruleset`.
//!
//! The text is made from the document and not from the validated ruleset. So rules look as the
//! operator knows them, and rules that are not supported appear too.

mod expression;
mod live;
mod selection;
mod statement;
mod value;
mod words;

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use self::expression::{PLAIN, Style, element, quoted, time};
pub(crate) use self::value::json_of;
use self::value::shown;
use crate::hook::TableFamily;
use crate::kind::only;

pub use self::live::{Live, LiveElement, rule_with_live, with_age, with_live, with_live_elements};
pub use self::selection::Selection;

/// The field of an object that the gateway leaves out, whole or in part. nft does not know it, and
/// reads over it.
const LEFT_OUT: &str = "left_out";
/// Elements on one line of a list, as nft breaks it.
const ELEMENTS_A_LINE: usize = 2;

/// The text of a rule: its statements and its comment. `rule` is the object that the
/// document has under `rule`. Names and texts of the document are escaped, see [`flow::Shown`].
pub fn rule_text(rule: &Value) -> String {
    text_of_rule(&shown(rule))
}

/// The text of an element. Names and texts of the document are escaped.
pub fn element_text(value: &Value) -> String {
    element(&shown(value), PLAIN, PLAIN)
}

/// The text of an expression. Names and texts of the document are escaped.
pub(crate) fn expression_text(expression: &Value) -> String {
    expression::written(&shown(expression), PLAIN)
}

fn text_of_rule(rule: &Value) -> String {
    let statements = rule.get("expr").and_then(Value::as_array);
    let mut words: Vec<String> = statements.into_iter().flatten().map(statement::written).collect();
    if let Some(comment) = rule.get("comment").and_then(Value::as_str) {
        words.push(format!("comment {}", quoted(comment)));
    }
    words.join(" ")
}

/// The document with a mark in each object that the gateway leaves out, whole or in part; `left_out`
/// has the reasons by the positions of the objects.
pub fn with_left_out(mut document: Value, left_out: &BTreeMap<usize, String>) -> Value {
    if let Some(Value::Array(objects)) = document.get_mut("nftables") {
        for position in 0..objects.len() {
            let Some(fields) = live::fields(objects, position) else { continue };
            match left_out.get(&position) {
                Some(why) => drop(fields.insert(LEFT_OUT.to_owned(), json!(why))),
                // The document may be the list of another gateway.
                None => drop(fields.remove(LEFT_OUT)),
            }
        }
    }
    document
}

/// The remark beside a chain about the host's own traffic, from its family, table, name and hook.
pub type HostRemark<'a> = &'a dyn Fn(&str, &str, &str, &str) -> &'static str;

/// A whole ruleset, table by table; `handles` adds the handle of each object. `of_host` is asked for
/// a remark about each chain of input, output and prerouting, and an empty one is not written. Names
/// and texts of the document are escaped (see [`flow::Shown`]), so no text can add a line.
pub fn text(document: &Value, handles: bool, of_host: HostRemark<'_>) -> String {
    let document = shown(document);
    let mut out = String::new();
    let objects: Vec<(&str, &Value)> = document
        .get("nftables")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(only)
        .collect();
    // One pass, because a ruleset may have millions of objects in few tables.
    let mut tables: Vec<Table<'_>> = Vec::new();
    for &(kind, object) in &objects {
        let name = if kind == "table" { "name" } else { "table" };
        let key = (part(object, "family"), part(object, name));
        match tables.iter_mut().find(|table| table.key == key) {
            Some(table) => table.objects.push((kind, object)),
            None if kind == "table" => tables.push(Table { key, object, objects: Vec::new() }),
            None => {}
        }
    }
    for table in &tables {
        table.write(&mut out, handles, of_host);
    }
    out
}

/// The objects of one table.
struct Table<'a> {
    key: (&'a str, &'a str),
    object: &'a Value,
    objects: Vec<(&'a str, &'a Value)>,
}

impl Table<'_> {
    fn write(&self, out: &mut String, handles: bool, of_host: HostRemark<'_>) {
        let (family, name) = self.key;
        remark_name(out, 0, name);
        left_out(out, 0, self.object);
        line(out, 0, &format!("table {family} {name} {{{}", handle(self.object, handles)));
        if let Some(flags) = self.object.get("flags") {
            line(out, 1, &format!("flags {}", names(flags)));
        }
        comment(out, 1, self.object);
        let mut rules: std::collections::HashMap<&str, Vec<&Value>> = Default::default();
        for (kind, object) in &self.objects {
            if *kind == "rule" {
                rules.entry(part(object, "chain")).or_default().push(object);
            }
        }
        let mut is_first = true;
        for (kind, object) in self.objects.iter().filter(|(kind, _)| *kind != "rule") {
            if !std::mem::take(&mut is_first) {
                out.push('\n');
            }
            let name = part(object, "name");
            let remark = match (*kind, part(object, "hook")) {
                ("chain", hook @ ("input" | "output" | "prerouting")) => {
                    of_host(family, self.key.1, name, hook)
                }
                _ => "",
            };
            let remark = if remark.is_empty() { String::new() } else { format!(" # {remark}") };
            remark_name(out, 1, name);
            left_out(out, 1, object);
            line(out, 1, &format!("{kind} {name} {{{}{remark}", handle(object, handles)));
            match *kind {
                "chain" => chain(out, object, rules.get(name), handles),
                "set" | "map" => set(out, object, kind),
                kind => named(out, kind, object),
            }
            line(out, 1, "}");
        }
        line(out, 0, "}");
    }
}

/// The comment of an object.
fn comment(out: &mut String, depth: usize, object: &Value) {
    if let Some(comment) = object.get("comment").and_then(Value::as_str) {
        line(out, depth, &format!("comment {}", quoted(comment)));
    }
}

fn line(out: &mut String, depth: usize, text: &str) {
    out.extend(std::iter::repeat_n('\t', depth));
    out.push_str(text);
    out.push('\n');
}

/// The remark in front of a table or an object whose name nft does not read in its own syntax. Such a
/// name comes from JSON, which takes any.
fn remark_name(out: &mut String, depth: usize, name: &str) {
    if !words::is_readable(name) {
        let what = "# nft does not read this name here, only in JSON: `stateway rules list --json`";
        line(out, depth, what);
    }
}

/// The remark in front of an object that the gateway leaves out, whole or in part.
fn left_out(out: &mut String, depth: usize, object: &Value) {
    if let Some(why) = object.get(LEFT_OUT).and_then(Value::as_str) {
        line(out, depth, &format!("# LEFT OUT: {why}"));
    }
}

fn part<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn handle(object: &Value, wanted: bool) -> String {
    let handle = object.get("handle").and_then(Value::as_u64).filter(|_| wanted);
    handle.map(|handle| format!(" # handle {handle}")).unwrap_or_default()
}

fn names(value: &Value) -> String {
    match value {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

/// True if the values of a map are ranges. Older versions of nft (1.0.6 among them) tell that in their
/// own syntax alone, so it follows from the values, or from the field `interval`.
pub fn maps_to_ranges(map: &Value) -> bool {
    let is_range = |value: &Value| matches!(only(value), Some(("range" | "prefix", _)));
    let has_range = |pair: &Value| {
        let datum = pair.get(1).unwrap_or(&Value::Null);
        let parts = datum.get("concat").and_then(Value::as_array);
        is_range(datum) || parts.is_some_and(|parts| parts.iter().any(is_range))
    };
    let elements = map.get("elem").and_then(Value::as_array);
    map.get("interval") == Some(&Value::Bool(true))
        || map.get("map").is_some() && elements.is_some_and(|all| all.iter().any(has_range))
}

fn mentions(flags: &Value, name: &str) -> bool {
    names(flags).split(',').any(|flag| flag == name)
}

fn chain(out: &mut String, chain: &Value, rules: Option<&Vec<&Value>>, handles: bool) {
    comment(out, 2, chain);
    if let Some(hook) = chain.get("hook").and_then(Value::as_str) {
        let priority = chain.get("prio").and_then(Value::as_i64).unwrap_or(0);
        let device = match chain.get("dev") {
            Some(Value::String(device)) => format!(" device {}", quoted(device)),
            Some(Value::Array(devices)) => {
                let devices = devices.iter().filter_map(Value::as_str).map(quoted);
                format!(" devices = {{ {} }}", devices.collect::<Vec<_>>().join(", "))
            }
            _ => String::new(),
        };
        let text = format!(
            "type {} hook {hook}{device} priority {}; policy {};",
            part(chain, "type"),
            priority_name(part(chain, "family"), hook, priority),
            chain.get("policy").and_then(Value::as_str).unwrap_or("accept")
        );
        line(out, 2, &text);
    }
    for rule in rules.into_iter().flatten() {
        left_out(out, 2, rule);
        line(out, 2, &format!("{}{}", text_of_rule(rule), handle(rule, handles)));
    }
}

/// The kernel's name for a priority, with an offset if it is near one, as nft prints it.
fn priority_name(family: &str, hook: &str, priority: i64) -> String {
    const NAMES: [(&str, i64); 6] = [
        ("raw", -300),
        ("mangle", -150),
        ("dstnat", -100),
        ("filter", 0),
        ("security", 50),
        ("srcnat", 100),
    ];
    /// The largest distance to a name for which nft writes an offset.
    const NEAR: i64 = 10;
    let is_known = |name: &str| match family {
        _ if name == "dstnat" && hook != "prerouting" => false,
        _ if name == "srcnat" && hook != "postrouting" => false,
        "arp" | "netdev" => name == "filter",
        // The bridge family has other priorities.
        family => TableFamily::named(family).is_some(),
    };
    let is_near = |(name, known): &&(&str, i64)| is_known(name) && (priority - known).abs() <= NEAR;
    let near = NAMES.iter().find(is_near);
    match near {
        Some((name, known)) => match priority - known {
            0 => (*name).to_owned(),
            above @ 1.. => format!("{name} + {above}"),
            below => format!("{name} - {}", -below),
        },
        None => priority.to_string(),
    }
}

fn set_flags(out: &mut String, set: &Value) {
    let flags = set.get("flags").unwrap_or(&Value::Null);
    let is_dynamic = set.get("dynamic") == Some(&Value::Bool(true)) && !mentions(flags, "dynamic");
    let flags = [if is_dynamic { "dynamic" } else { "" }, &names(flags)].map(str::to_owned);
    let flags: Vec<&str> = flags.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
    // A timeout says so by itself.
    if !(flags.is_empty() || flags == ["timeout"] && set.get("timeout").is_some()) {
        line(out, 2, &format!("flags {}", flags.join(",")));
    }
}

fn set(out: &mut String, set: &Value, kind: &str) {
    let types = match set.get("type") {
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        }
        other => vec![other.and_then(Value::as_str).unwrap_or_default().to_owned()],
    };
    let data = set.get("map").map(names_of_types);
    let ranges = if maps_to_ranges(set) { "interval " } else { "" };
    let data_text = data.as_ref().map(|data| format!(" : {ranges}{data}")).unwrap_or_default();
    // The types of some expressions have no name that nft would read.
    match set.get("typeof").and_then(Value::as_array).map(Vec::as_slice) {
        Some([Value::String(key), of_data @ ..]) => {
            let of_data = of_data.first().and_then(Value::as_str).filter(|_| data.is_some());
            let data = of_data.map_or(data_text, |data| format!(" : {ranges}{data}"));
            line(out, 2, &format!("typeof {key}{data}"));
        }
        _ => match types.as_slice() {
            // nft has no name for these types.
            [one] if matches!(one.as_str(), "hour" | "day") => {
                line(out, 2, &format!("typeof meta {one}{data_text}"));
            }
            types => line(out, 2, &format!("type {}{data_text}", types.join(" . "))),
        },
    }
    if let Some(size) = set.get("size").and_then(Value::as_u64) {
        line(out, 2, &format!("size {size}"));
    }
    set_flags(out, set);
    for statement in set.get("stmt").and_then(Value::as_array).into_iter().flatten() {
        line(out, 2, &statement::written(statement));
    }
    if let Some(timeout) = set.get("timeout").and_then(Value::as_u64) {
        line(out, 2, &format!("timeout {}", time(timeout)));
    }
    if let Some(interval) = set.get("gc-interval").and_then(Value::as_u64) {
        line(out, 2, &format!("gc-interval {}", time(interval)));
    }
    if let Some(policy) = set.get("policy").and_then(Value::as_str) {
        line(out, 2, &format!("policy {policy}"));
    }
    if set.get("auto-merge").and_then(Value::as_bool) == Some(true) {
        line(out, 2, "auto-merge");
    }
    comment(out, 2, set);
    let one;
    let elements = match set.get("elem") {
        Some(Value::Array(list)) => list.as_slice(),
        Some(element) => {
            one = [element.clone()];
            &one
        }
        None => return,
    };
    let keys = Style::of_types(&types);
    let data = data.map(|data| data.split(" . ").map(str::to_owned).collect::<Vec<_>>());
    let data = Style::of_types(&data.unwrap_or_default());
    let is_map = kind == "map";
    let texts: Vec<String> = elements
        .iter()
        .map(|value| match (is_map, value.as_array().map(Vec::as_slice)) {
            (true, Some([left, right])) => {
                let pair = [left.clone(), right.clone()];
                element(&Value::Array(pair.to_vec()), &keys, &data)
            }
            _ => element(value, &keys, &keys),
        })
        .collect();
    if texts.is_empty() {
        return;
    }
    let lines: Vec<String> = texts.chunks(ELEMENTS_A_LINE).map(|row| row.join(", ")).collect();
    line(out, 2, &format!("elements = {{ {} }}", lines.join(",\n\t\t\t     ")));
}

/// The types of a key or of data.
pub(crate) fn names_of_types(value: &Value) -> String {
    match value {
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" . ")
        }
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

/// Counters, limits, helpers and so on.
fn named(out: &mut String, kind: &str, object: &Value) {
    comment(out, 2, object);
    let number = |key: &str| object.get(key).and_then(Value::as_u64).unwrap_or(0);
    let l3proto = object.get("l3proto").and_then(Value::as_str).unwrap_or("inet");
    match kind {
        "counter" => {
            line(out, 2, &format!("packets {} bytes {}", number("packets"), number("bytes")));
        }
        "quota" => line(out, 2, &statement::quota_bytes(object)),
        "limit" => line(out, 2, &statement::rate(object)),
        "ct helper" => {
            let text = format!(
                "type {} protocol {}",
                quoted(part(object, "type")),
                part(object, "protocol")
            );
            line(out, 2, &text);
            line(out, 2, &format!("l3proto {l3proto}"));
        }
        "ct timeout" => {
            line(out, 2, &format!("protocol {}", part(object, "protocol")));
            line(out, 2, &format!("l3proto {l3proto}"));
            let policy = object.get("policy").map(statement::policy).unwrap_or_default();
            line(out, 2, &format!("policy = {{ {policy} }}"));
        }
        "ct expectation" => {
            line(out, 2, &format!("protocol {}", part(object, "protocol")));
            line(out, 2, &format!("dport {}", number("dport")));
            let timeout = statement::milliseconds(object.get("timeout")).unwrap_or_default();
            line(out, 2, &format!("timeout {timeout}"));
            line(out, 2, &format!("size {}", number("size")));
            line(out, 2, &format!("l3proto {l3proto}"));
        }
        "synproxy" => {
            statement::synproxy(object, "\n").lines().for_each(|text| line(out, 2, text));
        }
        _ => {
            // The gateway does not use such an object: it is shown as it is.
            let fields: Map<String, Value> = object
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(key, _)| {
                    !["family", "table", "name", "handle", "comment"].contains(&key.as_str())
                })
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            for (key, value) in fields {
                let mut text = String::new();
                // Writing to a text does not fail.
                let _ = write!(text, "{key} {value}");
                line(out, 2, &text);
            }
        }
    }
}

#[cfg(test)]
#[path = "../listing_tests.rs"]
mod tests;
