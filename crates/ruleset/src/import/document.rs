//! The document as a list of objects, each with its place.

use serde_json::{Map, Value};

use crate::kind::outline;
use crate::limits::MAX_NAME_BYTES;
use crate::problem::{Place, Problem, Problems, Severity};

/// An object of the document.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    /// Its place in the document's list.
    pub position: usize,
    pub place: Place,
    pub fields: &'a Map<String, Value>,
}

impl Object<'_> {
    pub fn text(&self, key: &str) -> Option<&str> {
        self.fields.get(key).and_then(Value::as_str)
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.fields.get(key).and_then(Value::as_u64)
    }

    /// True if a list of flags, or the one flag, has this name.
    pub fn has_flag(&self, name: &str) -> bool {
        has_flag(self.fields.get("flags"), name)
    }

    pub fn problem(&self, severity: Severity, path: &str, what: impl Into<String>) -> Problem {
        let (place, path) = (self.place.clone(), path.to_owned());
        Problem { severity, place, path, what: what.into(), effect: None }
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
pub(crate) struct Document<'a> {
    pub tables: Vec<Object<'a>>,
    pub chains: Vec<Object<'a>>,
    pub rules: Vec<Object<'a>>,
    /// Sets and maps.
    pub sets: Vec<Object<'a>>,
    /// Counters, limits and so on.
    pub named: Vec<Object<'a>>,
}

/// Sorts the objects; what is none is a problem.
pub(crate) fn read<'a>(document: &'a Value, problems: &mut Problems) -> Document<'a> {
    let mut sorted = Document::default();
    let invalid = |path: String, what: String| Problem {
        severity: Severity::Invalid,
        place: Place::default(),
        path,
        what,
        effect: None,
    };
    let Some(Value::Array(objects)) = document.get("nftables") else {
        let what = "no list `nftables`: print the ruleset with `nft -j list ruleset`";
        problems.push(invalid(String::new(), what.to_owned()));
        return sorted;
    };
    for (at, value) in objects.iter().enumerate() {
        let path = format!("nftables[{at}]");
        let fields = value.as_object().filter(|fields| fields.len() == 1);
        let Some((kind, fields)) = fields.and_then(|fields| fields.iter().next()) else {
            problems.push(invalid(path, format!("{} is no object", outline(value))));
            continue;
        };
        let Value::Object(fields) = fields else {
            problems.push(invalid(path, format!("`{kind}` without fields")));
            continue;
        };
        match place(kind, fields) {
            Ok(None) => {}
            Ok(Some(place)) => {
                let list = match place.object {
                    "table" => &mut sorted.tables,
                    "chain" => &mut sorted.chains,
                    "rule" => &mut sorted.rules,
                    "set" | "map" => &mut sorted.sets,
                    _ => &mut sorted.named,
                };
                list.push(Object { position: at, place, fields });
            }
            Err(what) => problems.push(invalid(path, what)),
        }
    }
    sorted
}

/// The place of an object; none for what says nothing of the ruleset.
fn place(kind: &str, fields: &Map<String, Value>) -> Result<Option<Place>, String> {
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
    let object = known.ok_or_else(|| format!("`{}` is no kind of object", cut(kind)))?;
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
    let handle = fields.get("handle").and_then(Value::as_u64);
    Ok(Some(Place { family, table, object, name, handle }))
}

fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}
