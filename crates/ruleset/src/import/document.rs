//! The objects of a document in lists by kind, each with its place.

use std::ops::Deref;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::document::{self, Document};
use crate::kind::outline;
use crate::limits::MAX_NAME_BYTES;
use crate::problem::{Location, Problem, Problems, Severity};

/// The field of a set that may be as long as the document.
const ELEMENTS: &str = "elem";
/// The fields that say where an object is.
const PLACE: [&str; 5] = ["family", "table", "name", "chain", "handle"];

/// An object of the document.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    /// Its place in the document's list.
    pub position: usize,
    /// Its place without the handle, so that the rules of a chain share one.
    pub place: Rc<Location>,
    pub handle: Option<u64>,
    /// The text of its fields.
    text: &'a [u8],
}

/// An object with parsed fields.
pub(crate) struct Opened<'o, 'a> {
    object: &'o Object<'a>,
    /// All fields but the elements of a set.
    pub fields: Map<String, Value>,
}

impl<'a> Object<'a> {
    pub fn open(&self) -> Opened<'_, 'a> {
        let fields = document::fields(self.text, |name| name != ELEMENTS);
        Opened { object: self, fields: fields.unwrap_or_default() }
    }

    /// Calls `call` for each element of a set with its number. Elements that are not a list count
    /// as one, without a number.
    pub fn each_element(&self, mut call: impl FnMut(Option<usize>, Value)) {
        let Some(elements) = document::field(self.text, ELEMENTS) else { return };
        if !document::each_of(elements, |at, element| call(Some(at), element)) {
            call(None, document::value(elements));
        }
    }

    /// The number of elements of a set.
    pub fn element_count(&self) -> usize {
        let Some(elements) = document::field(self.text, ELEMENTS) else { return 0 };
        let mut count = 0;
        let is_list = document::each_of(elements, |_, _: serde::de::IgnoredAny| count += 1);
        if is_list { count } else { 1 }
    }

    pub fn problem(&self, severity: Severity, path: &str, what: impl Into<String>) -> Problem {
        let (place, path) = (Location::clone(&self.place), path.to_owned());
        let place = Location { handle: self.handle, ..place };
        let position = Some(self.position);
        Problem { severity, place, path, what: what.into(), effect: None, position }
    }
}

impl<'a> Deref for Opened<'_, 'a> {
    type Target = Object<'a>;

    fn deref(&self) -> &Object<'a> {
        self.object
    }
}

impl Opened<'_, '_> {
    pub fn text(&self, key: &str) -> Option<&str> {
        self.fields.get(key).and_then(Value::as_str)
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.fields.get(key).and_then(Value::as_u64)
    }

    /// True if the object's flags, a name or a list of names, have this one.
    pub fn has_flag(&self, name: &str) -> bool {
        has_flag(self.fields.get("flags"), name)
    }

    /// True if all of the object's flags are among these.
    pub fn has_no_flag_but(&self, known: &[&str]) -> bool {
        let is_known = |flag: &Value| flag.as_str().is_some_and(|flag| known.contains(&flag));
        match self.fields.get("flags") {
            Some(Value::Array(flags)) => flags.iter().all(is_known),
            Some(flag) => is_known(flag),
            None => true,
        }
    }
}

/// True if `flags`, a name or a list of names, has this one.
pub(crate) fn has_flag(flags: Option<&Value>, name: &str) -> bool {
    match flags {
        Some(Value::String(flag)) => flag == name,
        Some(Value::Array(flags)) => flags.iter().any(|flag| flag.as_str() == Some(name)),
        _ => false,
    }
}

/// The objects of a document by their kinds, each kind in the document's order.
#[derive(Default)]
pub(crate) struct Sorted<'a> {
    pub tables: Vec<Object<'a>>,
    pub chains: Vec<Object<'a>>,
    pub rules: Vec<Object<'a>>,
    /// Sets and maps.
    pub sets: Vec<Object<'a>>,
    /// Counters, limits and so on.
    pub named: Vec<Object<'a>>,
}

/// Sorts the objects. An entry that is not an object becomes a problem.
pub(crate) fn read<'a>(
    document: &'a Document<impl AsRef<[u8]>>,
    problems: &mut Problems,
) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    let invalid = |path: String, what: String| Problem {
        severity: Severity::Invalid,
        place: Location::default(),
        path,
        what,
        effect: None,
        position: None,
    };
    if !document.has_objects() {
        let what = "the list `nftables` is missing: print the ruleset with `nft -j list ruleset`";
        problems.push(invalid(String::new(), what.to_owned()));
        return sorted;
    }
    let mut before = Rc::new(Location::default());
    for (at, text) in document.objects().enumerate() {
        let path = || format!("nftables[{at}]");
        let Some((kind, text)) = document::only(text) else {
            let what = format!("{} is not an object", outline(&document::value(text)));
            problems.push(invalid(path(), what));
            continue;
        };
        let Some(fields) = document::fields(text, |name| PLACE.contains(&name)) else {
            problems.push(invalid(path(), format!("`{kind}` without fields")));
            continue;
        };
        match place(&kind, &fields) {
            Ok(None) => {}
            Ok(Some(place)) => {
                let list = match place.object {
                    "table" => &mut sorted.tables,
                    "chain" => &mut sorted.chains,
                    "rule" => &mut sorted.rules,
                    "set" | "map" => &mut sorted.sets,
                    _ => &mut sorted.named,
                };
                if *before != place {
                    before = Rc::new(place);
                }
                let handle = fields.get("handle").and_then(Value::as_u64);
                list.push(Object { position: at, place: before.clone(), handle, text });
            }
            Err(what) => problems.push(invalid(path(), what)),
        }
    }
    sorted
}

/// The place of an object, without its handle; `None` if it says nothing of the ruleset.
fn place(kind: &str, fields: &Map<String, Value>) -> Result<Option<Location>, String> {
    const KINDS: [&str; 14] = [
        "table",
        "chain",
        "rule",
        "set",
        "map",
        "counter",
        "quota",
        "limit",
        "ct helper",
        "ct timeout",
        "ct expectation",
        "synproxy",
        "secmark",
        "flowtable",
    ];
    if kind == "metainfo" {
        return Ok(None);
    }
    let known = KINDS.into_iter().find(|known| *known == kind);
    let object = known.ok_or_else(|| format!("`{}` is not a kind of object", cut(kind)))?;
    let text = |key: &str| match fields.get(key) {
        Some(Value::String(text)) if text.len() <= MAX_NAME_BYTES => Ok(text.clone()),
        Some(Value::String(_)) => Err(format!("{object}: `{key}` is too long")),
        _ => Err(format!("{object} without `{key}`")),
    };
    let family = text("family")?;
    let (table, name) = match object {
        "table" => (text("name")?, String::new()),
        "rule" => (text("table")?, text("chain")?),
        _ => (text("table")?, text("name")?),
    };
    Ok(Some(Location { family, table, object, name, handle: None }))
}

fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}
