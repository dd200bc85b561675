//! Sets, maps and their elements.

use std::mem::discriminant;
use std::time::Duration;

use serde_json::{Value, json};

use super::document::Opened;
use super::scope::{Scope, resolve};
use super::statement;
use crate::compile::is_dynamic;
use crate::elements::{Datum, Elements, NewElement};
use crate::hook::TableFamily;
use crate::kind::{Interval, Kind, ObjectKind, names_of, only, outline};
use crate::limits::{
    DEFAULT_DYNAMIC_SIZE, MAX_DYNAMIC_SIZE, MAX_EXPRESSION_DEPTH, MAX_KEY_BYTES, MAX_KEY_FIELDS,
};
use crate::model::{Data, Part, Set, Verdict};
use crate::problem::{Parsed, Path};

/// The beginning of the message that refuses the element `*`.
pub(crate) const CATCH_ALL: &str = "the element `*` of a set";

/// The declaration of a named set, without its elements.
pub(crate) fn declaration(object: &Opened<'_, '_>, family: TableFamily) -> Parsed<Set> {
    let path = Path::root("type");
    let mut key = kinds(object.fields.get("type"), &path)?;
    // nft calls dates and durations `time`. The declaration in its own syntax tells them apart.
    if let Some(declared) = object.fields.get("typeof").and_then(|of| of.get(0)?.as_str()) {
        for (kind, part) in key.iter_mut().zip(declared.split(" . ")) {
            if *kind == Kind::Time && part == "meta time" {
                *kind = Kind::Date;
            }
        }
    }
    let data = match object.fields.get("map") {
        None => Data::None,
        Some(Value::String(name)) if name == "verdict" => Data::Verdicts,
        Some(Value::String(name)) if ObjectKind::named(name).is_some() => {
            Data::Values(ObjectKind::named(name).map(Kind::Object).into_iter().collect())
        }
        Some(value) => Data::Values(kinds(Some(value), &Path::root("map"))?),
    };
    if object.place.object == "map" && data == Data::None {
        return Err(Path::root("map").invalid("a map without the type of its values"));
    }
    let size = object.number("size").and_then(|size| u32::try_from(size).ok());
    let mut parts = Vec::new();
    if let Some(statements) = object.fields.get("stmt") {
        let path = Path::root("stmt");
        let list = statements.as_array().ok_or_else(|| path.invalid("no list"))?;
        for (at, statement) in list.iter().enumerate() {
            parts.push(part(statement, &path.index(at))?);
        }
    }
    check_parts(&parts, &Path::root("stmt"))?;
    if data != Data::None && parts.iter().any(|part| *part != Part::Counter) {
        return Err(Path::root("stmt")
            .unsupported("limits, quotas and `ct count` in the elements of a map"));
    }
    let elements = Elements::new(&key, &data);
    Ok(Set {
        family,
        table: object.place.table.clone(),
        name: Some(object.place.name.clone()),
        position: Some(object.position),
        key,
        data,
        dynamic: false,
        timeout: seconds(object.fields.get("timeout")),
        size: size.unwrap_or(DEFAULT_DYNAMIC_SIZE).clamp(1, MAX_DYNAMIC_SIZE),
        declares_parts: !parts.is_empty(),
        parts,
        elements,
    })
}

/// Types: one name, a list, or names joined by points.
pub(crate) fn kinds(value: Option<&Value>, path: &Path<'_>) -> Parsed<Vec<Kind>> {
    let names: Vec<&str> = match value {
        Some(Value::String(names)) => names.split('.').map(str::trim).collect(),
        Some(Value::Array(names)) => {
            let texts: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
            texts.ok_or_else(|| path.unsupported("a type that is no name"))?
        }
        Some(other) => return Err(path.unsupported(format!("{} as a type", outline(other)))),
        None => return Err(path.invalid("no type")),
    };
    if names.is_empty() || names.len() > MAX_KEY_FIELDS {
        return Err(path.invalid(format!("{} types", names.len())));
    }
    let of_type = |name: &&str| {
        let shown: String = name.chars().take(40).collect();
        Kind::of_type(name).ok_or_else(|| path.unsupported(format!("the type `{shown}`")))
    };
    let kinds: Vec<Kind> = names.iter().map(of_type).collect::<Parsed<_>>()?;
    if kinds.iter().map(|kind| 4 * kind.words()).sum::<usize>() > MAX_KEY_BYTES {
        return Err(path.invalid(format!("more than {MAX_KEY_BYTES} bytes")));
    }
    Ok(kinds)
}

/// A statement that each element of a set holds.
pub(crate) fn part(statement: &Value, path: &Path<'_>) -> Parsed<Part> {
    match only(statement) {
        Some(("counter", Value::Null | Value::Object(_))) => Ok(Part::Counter),
        Some(("limit", rate @ Value::Object(_))) => {
            statement::rate(rate, &path.key("limit")).map(Part::Limit)
        }
        Some(("quota", quota @ Value::Object(_))) => {
            let (bytes, _, over) = statement::quota(quota, &path.key("quota"))?;
            Ok(Part::Quota { bytes, over })
        }
        Some(("ct count", bound)) => {
            statement::bound(bound, &path.key("ct count")).map(Part::Connections)
        }
        _ => Err(path.unsupported(format!("{} in elements", outline(statement)))),
    }
}

/// Refuses statements that the elements of a set can not hold together.
pub(crate) fn check_parts(parts: &[Part], path: &Path<'_>) -> Parsed<()> {
    let counting = parts.iter().filter(|part| matches!(part, Part::Connections(_)));
    if counting.count() > 1 {
        return Err(path.unsupported("`ct count` twice in an element"));
    }
    Ok(())
}

/// An anonymous set with its elements.
pub(crate) fn anonymous(
    elements: &Value,
    key: Vec<Kind>,
    data: Data,
    scope: &Scope<'_>,
    path: &Path<'_>,
) -> Parsed<Set> {
    let mut held = Elements::new(&key, &data);
    let mut set = Set {
        family: scope.family,
        table: scope.table.to_owned(),
        name: None,
        position: None,
        key,
        data,
        dynamic: false,
        timeout: None,
        size: 1,
        parts: Vec::new(),
        declares_parts: false,
        elements: held.clone(),
    };
    let list = match elements {
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    for (at, value) in list.iter().enumerate() {
        push(&mut held, value, &set, scope, &path.index(at))?;
    }
    set.elements = held;
    check_disjoint(&set, path)?;
    Ok(set)
}

/// Adds an element as it stands in a list to those of its set.
pub(crate) fn push(
    held: &mut Elements,
    value: &Value,
    set: &Set,
    scope: &Scope<'_>,
    path: &Path<'_>,
) -> Parsed<()> {
    let element = element(value, set, scope, path)?;
    if element.catch_all && held.catch_all().is_some() {
        return Err(path.invalid("a second element `*`"));
    }
    if element.catch_all && is_dynamic(set) {
        return Err(path.unsupported(format!("{CATCH_ALL} whose elements have limits or quotas")));
    }
    held.push(&element);
    Ok(())
}

fn element(value: &Value, set: &Set, scope: &Scope<'_>, path: &Path<'_>) -> Parsed<NewElement> {
    let (key, datum) = match (&set.data, value) {
        (Data::None, key) => (key, None),
        (_, Value::Array(pair)) => {
            let [key, datum] = pair.as_slice() else {
                return Err(path.invalid("an element of a map is a pair"));
            };
            (key, Some(self::datum(datum, &set.data, scope, &path.index(1))?))
        }
        (_, other) => return Err(path.invalid(format!("{} is no pair", outline(other)))),
    };
    let (key_values, comment) = (Vec::new(), None);
    let mut element = NewElement {
        key: key_values,
        datum,
        expires: None,
        counted: (0, 0),
        has_parts: false,
        comment,
        catch_all: false,
    };
    let key = match only(key) {
        Some(("elem", inside)) => {
            let timeout = || seconds(inside.get("timeout"));
            element.expires = seconds(inside.get("expires")).or_else(timeout);
            // A set that packets do not change is listed from its document, with its comments.
            if set.data == Data::None {
                element.comment = inside.get("comment").and_then(Value::as_str).map(str::to_owned);
            }
            element.has_parts = check_own_parts(inside, set, path)?;
            let counted = |key| inside.get("counter")?.get(key)?.as_u64();
            element.counted = (counted("packets").unwrap_or(0), counted("bytes").unwrap_or(0));
            inside.get("val").ok_or_else(|| path.invalid("an element without `val`"))?
        }
        _ => key,
    };
    element.catch_all = is_catch_all(key);
    element.key = match element.catch_all {
        true => set.key.iter().map(|kind| Interval { low: 0, high: kind.greatest() }).collect(),
        false => intervals(key, &set.key, path)?,
    };
    Ok(element)
}

/// Refuses an element with another limit or the like than those of its set. Where the set has none,
/// rules give their own to the elements that they add. True if the element has any statement.
pub(crate) fn check_own_parts(inside: &Value, set: &Set, path: &Path<'_>) -> Parsed<bool> {
    let mut has_any = inside.get("counter").is_some();
    for name in ["limit", "quota", "ct count"] {
        let Some(own) = inside.get(name) else { continue };
        has_any = true;
        let own = part(&json!({ name: own }), path)?;
        let alike = |of_set: &&Part| discriminant(*of_set) == discriminant(&own);
        if set.parts.iter().find(alike).is_some_and(|of_set| *of_set != own) {
            let what = format!("an element whose `{name}` is another one than its set's");
            return Err(path.unsupported(what));
        }
    }
    Ok(has_any)
}

/// True for the key `*`, which stands for all keys that no other element has.
pub(crate) fn is_catch_all(key: &Value) -> bool {
    key.as_str() == Some("*")
}

/// The parts of a key or datum of these types.
pub(crate) fn intervals(value: &Value, kinds: &[Kind], path: &Path<'_>) -> Parsed<Vec<Interval>> {
    if let [kind] = kinds {
        return Ok(vec![kind.interval(value, path)?]);
    }
    let Some(("concat", Value::Array(parts))) = only(value) else {
        return Err(path.invalid(format!("{} is no concatenation", outline(value))));
    };
    if parts.len() != kinds.len() {
        return Err(path.invalid(format!("{} parts for {} types", parts.len(), kinds.len())));
    }
    let parts = kinds.iter().zip(parts).enumerate();
    parts.map(|(at, (kind, part))| kind.interval(part, &path.index(at))).collect()
}

fn datum(value: &Value, data: &Data, scope: &Scope<'_>, path: &Path<'_>) -> Parsed<Datum> {
    match data {
        Data::Verdicts => verdict(value, scope, path).map(Datum::Verdict),
        Data::Values(kinds) if let [Kind::Object(what)] = kinds.as_slice() => {
            let name = value.as_str().ok_or_else(|| path.invalid("no name of an object"))?;
            let names = scope.names;
            let id = match what {
                ObjectKind::Counter => resolve(&names.counters, what.name(), name, path)?.index(),
                ObjectKind::Limit => resolve(&names.limits, what.name(), name, path)?.index(),
                ObjectKind::Quota => resolve(&names.quotas, what.name(), name, path)?.index(),
                ObjectKind::Helper => resolve(&names.helpers, what.name(), name, path)?.index(),
                ObjectKind::Timeout => resolve(&names.timeouts, what.name(), name, path)?.index(),
                ObjectKind::SynProxy => {
                    resolve(&names.syn_proxies, what.name(), name, path)?.index()
                }
            };
            Ok(Datum::Values(vec![Interval::one(id as u128)]))
        }
        Data::Values(kinds) => intervals(value, kinds, path).map(Datum::Values),
        Data::None => Err(path.invalid("data in a set")),
    }
}

/// `{"accept": null}`, `{"jump": {"target": ...}}` and the like.
pub(crate) fn verdict(value: &Value, scope: &Scope<'_>, path: &Path<'_>) -> Parsed<Verdict> {
    let Some((name, inside)) = only(value) else {
        return Err(path.invalid(format!("{} is no verdict", outline(value))));
    };
    let target = || {
        let path = path.key(name);
        let target = inside.get("target").and_then(Value::as_str);
        scope.chain(target.ok_or_else(|| path.invalid("no `target`"))?, &path)
    };
    Ok(match name {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "continue" => Verdict::Continue,
        "return" => Verdict::Return,
        "jump" => Verdict::Jump(target()?),
        "goto" => Verdict::Goto(target()?),
        "queue" => return Err(path.unsupported("`queue`")),
        _ => return Err(path.invalid(format!("{} is no verdict", outline(value)))),
    })
}

/// Checks that the declared types of a set fit the values that a rule reads.
pub(crate) fn check_key(set: &Set, key: &[Kind], path: &Path<'_>) -> Parsed<()> {
    let fits = set.key.len() == key.len()
        && set.key.iter().zip(key).all(|(declared, read)| declared.fits(*read));
    if fits {
        return Ok(());
    }
    let name = set.name.as_deref().unwrap_or("the set");
    let has_numbers = set.key.iter().any(|kind| matches!(kind, Kind::Integer(_)));
    let (key, keys) = (names_of(key), names_of(&set.key));
    if has_numbers {
        return Err(path.unsupported(format!("reads {key}, but {name} has keys of {keys}")));
    }
    Err(path.invalid(format!("reads {key}, but {name} has keys of {keys}")))
}

/// Refuses a map whose elements are overlapping ranges: which one matches is not defined.
pub(crate) fn check_disjoint(set: &Set, path: &Path<'_>) -> Parsed<()> {
    if set.key.len() != 1 || set.data == Data::None {
        return Ok(());
    }
    let mut intervals: Vec<Interval> =
        set.elements.plain().filter_map(|(_, element)| element.part(0)).collect();
    intervals.sort_unstable();
    if intervals.windows(2).any(|pair| pair[0].high >= pair[1].low) {
        return Err(path.invalid("elements of the map overlap"));
    }
    Ok(())
}

pub(crate) fn seconds(value: Option<&Value>) -> Option<Duration> {
    value.and_then(Value::as_u64).map(Duration::from_secs)
}

/// Finds the chains that a value jumps to and the sets that it names.
pub(crate) fn mentions<'v>(value: &'v Value, depth: usize, found: &mut impl FnMut(Mention<'v>)) {
    // No rule this deep is understood, and one that is needed becomes a problem.
    if depth > 4 * MAX_EXPRESSION_DEPTH {
        return;
    }
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix('@') {
                found(Mention::Set(name));
            }
        }
        Value::Array(parts) => parts.iter().for_each(|part| mentions(part, depth + 1, found)),
        Value::Object(fields) => {
            for (name, inside) in fields {
                if matches!(name.as_str(), "jump" | "goto")
                    && let Some(target) = inside.get("target").and_then(Value::as_str)
                {
                    found(Mention::Chain(target));
                }
                mentions(inside, depth + 1, found);
            }
        }
        _ => {}
    }
}

/// A chain or set that a rule or element names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mention<'v> {
    Chain(&'v str),
    Set(&'v str),
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
