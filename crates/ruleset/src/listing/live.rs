//! A document with the counters and elements of now.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::value::json_of_key;
use crate::compile::{Program, is_dynamic};
use crate::document::{Document, DocumentError};
use crate::evaluate::{Counted, RuleState};
use crate::model::{Bound, CounterId, Item, Part, Quota, Rule, RuleId, Set, SetId, ValidRuleset};

/// The changes since a ruleset was loaded, of all workers together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// By [`CounterId`], without the values that the document had.
    pub counters: Vec<Counted>,
    /// Bytes of each quota that were used since, by [`QuotaId`](crate::QuotaId).
    pub quotas_used: Vec<u64>,
    /// True if everything was reset since, so that the document's values no longer count.
    pub is_reset: bool,
    /// Elements of the sets that rules fill, in any order.
    pub elements: Vec<LiveElement>,
    /// The time since the ruleset was loaded.
    pub age: Duration,
}

/// An element of a set that rules fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveElement {
    /// The set.
    pub set: SetId,
    /// The parts of its key.
    pub key: Vec<u128>,
    /// The time that it stays unless a packet refreshes it, if that is not the set's.
    pub timeout: Option<Duration>,
    /// Time after which it ends unless a packet refreshes it; `None` if it stays.
    pub expires: Option<Duration>,
    /// Packets and bytes of its counter.
    pub counted: Option<(u64, u64)>,
    /// True if it has none of the statements that rules give to the elements that they add.
    pub is_bare: bool,
    /// The operator's comment.
    pub comment: Option<String>,
}

/// The document that a program was made from, with the values of now, as nft would print it.
pub fn with_live(mut document: Value, program: &Program, live: &Live) -> Value {
    let Some(Value::Array(objects)) = document.get_mut("nftables") else { return document };
    let counts = |counter| counted(program, live, counter);
    let ruleset = program.ruleset();
    for rule in ruleset.rules() {
        if let Some(fields) = fields(objects, rule.position) {
            count_rule(fields, rule, program, live);
        }
    }
    for (id, counter) in ruleset.counter_ids() {
        if let Some(fields) = counter.position.and_then(|at| fields(objects, at)) {
            let (packets, bytes) = counts(id);
            fields.insert("packets".to_owned(), packets.into());
            fields.insert("bytes".to_owned(), bytes.into());
        }
    }
    for (number, quota) in ruleset.quotas().iter().enumerate() {
        if let Some(fields) = quota.position.and_then(|at| fields(objects, at)) {
            fields.insert("used".to_owned(), used(quota, number, live).into());
        }
    }
    for (id, set) in ruleset.set_ids() {
        if let Some(fields) = set.position.and_then(|at| fields(objects, at)) {
            list_elements(fields, id, program, live);
        }
    }
    document
}

/// The document that a program was made from, with the elements that its sets have now; `None` if
/// they have those of the document.
///
/// # Errors
/// [`DocumentError`] if it is too long.
pub fn with_live_elements(
    document: &Document<impl AsRef<[u8]>>,
    program: &Program,
    live: &Live,
) -> Result<Option<Document<Vec<u8>>>, DocumentError> {
    with_sets(document, program.ruleset(), is_dynamic, |id, fields| {
        list_elements(fields, id, program, live);
    })
}

/// The document of a ruleset, as it is when `age` has passed; `None` if none of its elements ends.
///
/// # Errors
/// [`DocumentError`] if it is too long.
pub fn with_age(
    document: &Document<impl AsRef<[u8]>>,
    ruleset: &ValidRuleset,
    age: Duration,
) -> Result<Option<Document<Vec<u8>>>, DocumentError> {
    with_sets(document, ruleset, |_| false, |_, fields| age_elements(fields, age))
}

/// A document in which `change` has changed each declared set that lists elements with an end, and
/// each that `is_also` names; `None` if there are none.
fn with_sets(
    document: &Document<impl AsRef<[u8]>>,
    ruleset: &ValidRuleset,
    is_also: impl Fn(&Set) -> bool,
    mut change: impl FnMut(SetId, &mut Map<String, Value>),
) -> Result<Option<Document<Vec<u8>>>, DocumentError> {
    const END: &[u8] = b"\"expires\"";
    let mut objects = BTreeMap::new();
    for (id, set) in ruleset.set_ids() {
        let Some(position) = set.position else { continue };
        // The ruleset does not know the elements of a set that no rule asks.
        let has_end = |text: &[u8]| text.windows(END.len()).any(|part| part == END);
        if !is_also(set) && !document.objects().nth(position).is_some_and(has_end) {
            continue;
        }
        let Some(mut object) = document.object(position) else { continue };
        if let Some(fields) = fields(std::slice::from_mut(&mut object), 0) {
            change(id, fields);
            objects.insert(position, object.to_string());
        }
    }
    if objects.is_empty() { Ok(None) } else { document.with_objects(&objects).map(Some) }
}

/// A rule of the document that a program was made from, with the values of now: the object under
/// `rule`. `None` if the document is not the program's.
pub fn rule_with_live(
    document: &Document<impl AsRef<[u8]>>,
    program: &Program,
    live: &Live,
    rule: RuleId,
) -> Option<Value> {
    let rule = program.ruleset().rules().get(rule.index())?;
    let mut object = document.object(rule.position)?;
    let mut fields = fields(std::slice::from_mut(&mut object), 0).map(std::mem::take)?;
    count_rule(&mut fields, rule, program, live);
    Some(fields.into())
}

/// Bytes of a quota that were used.
fn used(quota: &Quota, number: usize, live: &Live) -> u64 {
    let before = if live.is_reset { 0 } else { quota.used };
    before + live.quotas_used.get(number).copied().unwrap_or(0)
}

/// Writes the counters of a rule into its statements.
fn count_rule(fields: &mut Map<String, Value>, rule: &Rule, program: &Program, live: &Live) {
    let Some(statements) = fields.get_mut("expr").and_then(Value::as_array_mut) else { return };
    let mut counters = rule.items.iter().filter_map(|item| match item {
        Item::Counter(id) => Some(*id),
        _ => None,
    });
    let mut quotas = rule.items.iter().filter_map(|item| match item {
        Item::Quota(id) => Some(*id),
        _ => None,
    });
    // The object of a map is listed with its own counts.
    let is_own = |statement: &&mut Value| statement.get("map").is_none();
    for statement in statements {
        if let Some(counter) = statement.get_mut("counter").filter(is_own)
            && let Some(id) = counters.next()
            && !counter.is_string()
        {
            let (packets, bytes) = counted(program, live, id);
            *counter = json!({ "packets": packets, "bytes": bytes });
        }
        if let Some(quota) = statement.get_mut("quota").filter(is_own)
            && let Some(id) = quotas.next()
            && let Value::Object(quota) = quota
        {
            let used = used(&program.ruleset().quotas()[id.index()], id.index(), live);
            if used > 0 || live.is_reset {
                quota.insert("used".to_owned(), used.into());
                quota.insert("used_unit".to_owned(), "bytes".into());
            }
        }
    }
}

/// Writes the elements of a set that rules fill, or the counters of other elements.
fn list_elements(fields: &mut Map<String, Value>, id: SetId, program: &Program, live: &Live) {
    let set = &program.ruleset().sets()[id.index()];
    if is_dynamic(set) {
        let elements = elements_of(program, id, &live.elements);
        match elements.is_empty() {
            true => drop(fields.remove("elem")),
            false => drop(fields.insert("elem".to_owned(), elements.into())),
        }
    } else if let Some(Value::Array(elements)) = fields.get_mut("elem") {
        if let Some(first) = program.sets[id.index()].counters {
            // A set that no rule uses is printed, but was not loaded.
            let counters = (first..).take(set.elements.len());
            for (element, counter) in elements.iter_mut().zip(counters) {
                count_element(element, counted(program, live, CounterId(counter)));
            }
        }
        age_elements(fields, live.age);
    }
}

/// Has the elements of a set show the time that they have left when `age` has passed, without those
/// that have ended.
fn age_elements(fields: &mut Map<String, Value>, age: Duration) {
    if let Some(Value::Array(elements)) = fields.get_mut("elem") {
        elements.retain_mut(|element| has_time_left(element, age.as_secs()));
    }
}

/// Packets and bytes that a counter shows.
fn counted(program: &Program, live: &Live, counter: CounterId) -> (u64, u64) {
    let before = match live.is_reset {
        true => Counted::default(),
        false => RuleState::counted_before(program, counter),
    };
    let since = live.counters.get(counter.index()).copied().unwrap_or_default();
    (before.packets + since.packets, before.bytes + since.bytes)
}

/// The fields of the object at a place of the list.
pub(super) fn fields(objects: &mut [Value], position: usize) -> Option<&mut Map<String, Value>> {
    objects.get_mut(position)?.as_object_mut()?.values_mut().next()?.as_object_mut()
}

fn count_element(element: &mut Value, (packets, bytes): (u64, u64)) {
    // An element of a map is a pair.
    let key = match element {
        Value::Array(pair) => pair.first_mut(),
        key => Some(key),
    };
    let fields = key.and_then(|key| key.get_mut("elem")).and_then(Value::as_object_mut);
    if let Some(fields) = fields {
        fields.insert("counter".to_owned(), json!({ "packets": packets, "bytes": bytes }));
    }
}

/// Has an element show the time that it has left; false if it has ended.
fn has_time_left(element: &mut Value, age: u64) -> bool {
    let key = match element {
        Value::Array(pair) => pair.first_mut(),
        key => Some(key),
    };
    let expires = key.and_then(|key| key.get_mut("elem")?.get_mut("expires"));
    let Some((shown, ends)) = expires.and_then(|it| it.as_u64().map(|ends| (it, ends))) else {
        return true;
    };
    *shown = ends.saturating_sub(age).into();
    ends > age
}

/// A statement that each element holds, but for counters.
fn json_of_part(part: &Part) -> (&'static str, Option<Value>) {
    match part {
        Part::Counter => ("counter", None),
        Part::Limit(rate) => {
            let per = match rate.period.as_secs() {
                60 => "minute",
                3600 => "hour",
                86_400 => "day",
                604_800 => "week",
                _ => "second",
            };
            let mut limit = json!({"rate": rate.amount, "burst": rate.burst, "per": per});
            if rate.in_bytes {
                (limit["rate_unit"], limit["burst_unit"]) = (json!("bytes"), json!("bytes"));
            }
            if rate.over {
                limit["inv"] = json!(true);
            }
            ("limit", Some(limit))
        }
        Part::Quota { bytes, over } => {
            ("quota", Some(json!({"val": bytes, "val_unit": "bytes", "inv": over})))
        }
        Part::Connections(Bound { most, over }) => {
            ("ct count", Some(json!({"val": most, "inv": over})))
        }
    }
}

fn elements_of(program: &Program, id: SetId, all: &[LiveElement]) -> Vec<Value> {
    let set = &program.ruleset().sets()[id.index()];
    let mut elements: Vec<&LiveElement> = all.iter().filter(|element| element.set == id).collect();
    elements.sort_by(|one, other| one.key.cmp(&other.key));
    let element = |element: &LiveElement| {
        let key = json_of_key(&set.key, &element.key);
        let LiveElement { timeout, expires, counted, is_bare, comment, .. } = element;
        let mut fields = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("timeout", timeout.map(|timeout| timeout.as_secs().into()));
        put("expires", expires.map(|expires| expires.as_secs().into()));
        put("comment", comment.as_deref().map(Value::from));
        put("counter", counted.map(|(packets, bytes)| json!({"packets": packets, "bytes": bytes})));
        for part in set.parts.iter().filter(|_| !is_bare) {
            let (name, value) = json_of_part(part);
            put(name, value);
        }
        if fields.is_empty() {
            return key;
        }
        fields.insert("val".to_owned(), key);
        json!({ "elem": fields })
    };
    elements.into_iter().map(element).collect()
}
