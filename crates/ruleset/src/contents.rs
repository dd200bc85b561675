//! The elements of a set as a document lists them, and changes of them while the ruleset runs.
//!
//! A set that packets do not change is part of the compiled ruleset. Its elements change in the
//! document, and the document is read anew as a whole. So an element that is added later is checked
//! exactly as one that the ruleset came with.

mod keys;
mod merging;

use std::collections::HashSet;
use std::slice;
use std::time::Duration;

use serde_json::{Map, Value, json};

use self::keys::Keys;
use self::merging::{Merging, merges};
use crate::document::{Document, DocumentError};
use crate::import::sets;
use crate::kind::{Interval, Kind, only};
use crate::listing::{element_text, names_of_types};
use crate::problem::{Parsed, Path};

/// How the elements of a set change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementChange {
    /// These elements are added. One that is there already stays, with the new timeout if it has
    /// one.
    Add,
    /// These elements are deleted; each has to be there.
    Delete,
    /// All elements are deleted.
    Flush,
}

/// The reason why one element does not allow a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{element}: {what}")]
pub struct ElementProblem {
    /// The element, as nft writes it.
    pub element: String,
    /// The reason.
    pub what: String,
}

/// The fate of elements that a set was to keep. The others are in the set as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The number of those that were added.
    pub added: usize,
    /// The number of those that are lost, because others overlap with them.
    pub overlapping: usize,
}

/// A set with its elements, as a document lists them.
#[derive(Debug)]
pub struct Contents {
    position: usize,
    /// `set` or `map`.
    kind: String,
    /// All fields but `elem`.
    fields: Map<String, Value>,
    types: Vec<Kind>,
    elements: Vec<Listed>,
}

/// An element with its key.
#[derive(Clone, Debug)]
struct Listed {
    /// Empty for the element `*`.
    key: Vec<Interval>,
    value: Value,
}

impl Contents {
    /// The set with this family, table and name; `None` if the document has none.
    ///
    /// # Errors
    /// The text says what of the set is not supported.
    pub fn find<T: AsRef<[u8]>>(
        document: &Document<T>,
        [family, table, name]: [&str; 3],
    ) -> Result<Option<Self>, String> {
        for (position, object) in document.objects().enumerate() {
            let Some((kind, text)) = crate::document::only(object) else { continue };
            if !matches!(kind.as_str(), "set" | "map") {
                continue;
            }
            let is_wanted = |key: &str| matches!(key, "family" | "table" | "name");
            let place = crate::document::fields(text, is_wanted).unwrap_or_default();
            let is =
                |key: &str, wanted: &str| place.get(key).and_then(Value::as_str) == Some(wanted);
            if is("family", family) && is("table", table) && is("name", name) {
                let object = crate::document::value(text);
                return Self::of(position, kind, object).map(Some);
            }
        }
        Ok(None)
    }

    fn of(position: usize, kind: String, object: Value) -> Result<Self, String> {
        let Value::Object(mut fields) = object else { return Err("it has no fields".to_owned()) };
        let types = sets::kinds(fields.get("type"), &Path::root("type"));
        let types = types.map_err(|fault| fault.what)?;
        let list = match fields.remove("elem") {
            None => Vec::new(),
            Some(Value::Array(list)) => list,
            Some(one) => vec![one],
        };
        let is_map = kind == "map";
        let listed = |value: Value| {
            let key = key_of(&value, is_map, &types).map_err(|fault| fault.what)?;
            Ok(Listed { key, value })
        };
        let elements = list.into_iter().map(listed).collect::<Result<_, String>>()?;
        Ok(Self { position, kind, fields, types, elements })
    }

    /// The place of the set in the document's list of objects.
    pub const fn position(&self) -> usize {
        self.position
    }

    /// The elements, in the order of the document.
    pub fn elements(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.elements.iter().map(|element| &element.value)
    }

    /// True if ranges that touch each other become one.
    fn merges(&self) -> bool {
        merges(&self.kind, &self.fields, &self.types)
    }

    /// Changes the elements. `age` is the time since the document was loaded, from which `expires`
    /// counts in it. Returns the number of elements that were added, put off or deleted.
    ///
    /// # Errors
    /// All elements that do not allow it; nothing changes.
    pub fn change(
        &mut self,
        change: ElementChange,
        wanted: &[Value],
        age: Duration,
    ) -> Result<usize, Vec<ElementProblem>> {
        let mut problems = Vec::new();
        let wanted = self.listed(wanted, &mut problems);
        let age = age.as_secs();
        let has_ended = |element: &Listed| {
            let ends = property(&element.value, "expires").and_then(Value::as_u64);
            ends.is_some_and(|ends| ends <= age)
        };
        let mut elements: Vec<Listed> =
            self.elements.iter().filter(|it| !has_ended(it)).cloned().collect();
        let mut changed = 0;
        match change {
            ElementChange::Flush => {
                changed = elements.len();
                elements.clear();
            }
            ElementChange::Delete if self.merges() => {
                let mut merging = Merging::new(self.types[0], elements);
                for element in wanted {
                    if merging.cut(&element) {
                        changed += 1;
                    } else {
                        problems
                            .push(problem(&element.value, "is not in the set, or not all of it"));
                    }
                }
                elements = merging.into_elements();
            }
            ElementChange::Add if self.merges() => {
                let mut merging = Merging::new(self.types[0], elements);
                for element in wanted {
                    let value = self.dated(&element.value, age);
                    changed += usize::from(merging.add(Listed { value, ..element }));
                }
                elements = merging.into_elements();
            }
            ElementChange::Delete => {
                let keys = Keys::of(&elements);
                let mut gone = vec![false; elements.len()];
                for element in wanted {
                    match keys.place(&element.key) {
                        Some(at) => gone[at] = true,
                        None => problems.push(problem(&element.value, "is not in the set")),
                    }
                }
                changed = gone.iter().filter(|gone| **gone).count();
                let mut gone = gone.iter();
                elements.retain(|_| gone.next() != Some(&true));
            }
            ElementChange::Add => {
                let mut keys = Keys::of(&elements);
                for element in wanted {
                    match self.join(&mut elements, &mut keys, element, age) {
                        Ok(is_new) => changed += usize::from(is_new),
                        Err(problem) => problems.push(problem),
                    }
                }
            }
        }
        if change == ElementChange::Add {
            problems.extend(self.too_many(&elements));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        self.elements = elements;
        Ok(changed)
    }

    /// Adds an element to others, which have these keys. False if it changes nothing.
    fn join(
        &self,
        elements: &mut Vec<Listed>,
        keys: &mut Keys,
        element: Listed,
        age: u64,
    ) -> Result<bool, ElementProblem> {
        let value = self.dated(&element.value, age);
        if let Some(at) = keys.place(&element.key) {
            let known = &mut elements[at].value;
            if datum(known) != datum(&value) {
                let what = "is in the map with another value: delete it first";
                return Err(problem(&element.value, what));
            }
            let is_put_off = property(&value, "timeout").is_some();
            if is_put_off {
                *known = value;
            }
            return Ok(is_put_off);
        }
        if let Some(at) = keys.overlapping(&element.key) {
            let other = element_text(&elements[at].value);
            return Err(problem(
                &element.value,
                format!("overlaps with {other}, which the set holds"),
            ));
        }
        keys.insert(&element.key, elements.len());
        elements.push(Listed { value, ..element });
        Ok(true)
    }

    /// The set without the elements whose keys it had before; where ranges become one, without the
    /// values that it had before.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        if self.merges() {
            let mut merging = Merging::new(self.types[0], self.elements);
            for element in &before.elements {
                merging.cut(element);
            }
            return Self { elements: merging.into_elements(), ..self };
        }
        let known: HashSet<&[Interval]> = before.elements.iter().map(|it| &it.key[..]).collect();
        self.elements.retain(|element| !known.contains(&element.key[..]));
        self
    }

    /// Adds those elements of `more` whose keys overlap with none here, and those with which ranges
    /// here become one.
    ///
    /// # Errors
    /// The text says why this set can hold none of them.
    pub fn keep(&mut self, more: &Self) -> Result<Kept, String> {
        let types = [self.type_text(), more.type_text()];
        if types[0] != types[1] {
            return Err(format!("its type is `{}` now and was `{}`", types[0], types[1]));
        }
        let lost = more.flags().into_iter().find(|flag| !self.flags().contains(flag));
        if let Some(flag) = lost {
            return Err(format!("it had the flag `{flag}`, and has it no more"));
        }
        if self.merges() {
            let mut merging = Merging::new(self.types[0], self.elements.clone());
            let added = more.elements.iter().filter(|it| merging.keep((*it).clone())).count();
            let elements = merging.into_elements();
            self.check_kept_size(elements.len())?;
            self.elements = elements;
            return Ok(Kept { added, overlapping: 0 });
        }
        let (before, is_map) = (self.elements.len(), self.fields.contains_key("map"));
        let keys = Keys::of(&self.elements);
        let mut kept = Kept::default();
        for element in &more.elements {
            let Some(at) = keys.overlapping(&element.key) else {
                kept.added += 1;
                self.elements.push(element.clone());
                continue;
            };
            let known = &self.elements[at];
            let is_here = match is_map {
                true => known.value == element.value,
                false => contains(&known.key, &element.key),
            };
            kept.overlapping += usize::from(!is_here);
        }
        let fits = self.check_kept_size(self.elements.len());
        if fits.is_err() {
            self.elements.truncate(before);
        }
        fits.map(|()| kept)
    }

    fn check_kept_size(&self, whole: usize) -> Result<(), String> {
        match self.size_passed_by(whole) {
            None => Ok(()),
            Some(size) => {
                Err(format!("its size is {size} now, and it would have {whole} elements"))
            }
        }
    }

    /// The reason why the set can not have these elements, if they are too many. Elements stand in the
    /// order in which they were added, and ranges that merge in their own.
    fn too_many(&self, elements: &[Listed]) -> Option<ElementProblem> {
        let whole = elements.len();
        let size = self.size_passed_by(whole)?;
        let what = format!(
            "does not fit: the set's size is {size}, and it would have {whole} elements; delete \
             some, or load the set with a larger size"
        );
        Some(problem(&elements.last()?.value, what))
    }

    /// Its size, if so many elements are too many.
    fn size_passed_by(&self, elements: usize) -> Option<u64> {
        let size = self.fields.get("size").and_then(Value::as_u64);
        size.filter(|size| elements as u64 > *size)
    }

    /// Its flags that say what elements it can hold.
    fn flags(&self) -> Vec<&str> {
        let flags = match self.fields.get("flags") {
            Some(Value::Array(flags)) => &flags[..],
            Some(flag) => slice::from_ref(flag),
            None => &[],
        };
        let of_elements = |it: &&str| ["interval", "timeout"].contains(it);
        flags.iter().filter_map(Value::as_str).filter(of_elements).collect()
    }

    /// The type of its elements, as nft writes it.
    fn type_text(&self) -> String {
        let [keys, data] = ["type", "map"].map(|field| self.fields.get(field).map(names_of_types));
        let data = data.map(|data| format!(" : {data}")).unwrap_or_default();
        format!("{}{data}", keys.unwrap_or_default())
    }

    /// An element whose end counts from the time at which the document was loaded.
    fn dated(&self, value: &Value, age: u64) -> Value {
        let seconds = |key: &str| property(value, key).and_then(Value::as_u64);
        let own = seconds("expires").or_else(|| seconds("timeout"));
        let Some(left) = own.or_else(|| self.fields.get("timeout").and_then(Value::as_u64)) else {
            return value.clone();
        };
        let ends = Value::from(age.saturating_add(left));
        let mut value = value.clone();
        let key = match &mut value {
            Value::Array(pair) => pair.first_mut(),
            key => Some(key),
        };
        let Some(key) = key else { return value };
        match key.get_mut("elem").and_then(Value::as_object_mut) {
            Some(fields) => drop(fields.insert("expires".to_owned(), ends)),
            None => *key = json!({ "elem": { "val": key.take(), "expires": ends } }),
        }
        value
    }

    fn listed(&self, values: &[Value], problems: &mut Vec<ElementProblem>) -> Vec<Listed> {
        let mut listed: Vec<Listed> = Vec::new();
        for value in values {
            match key_of(value, self.kind == "map", &self.types) {
                Ok(key) => listed.push(Listed { key, value: value.clone() }),
                Err(fault) => problems.push(problem(value, fault.what)),
            }
        }
        listed
    }

    /// The document with these elements in the place of those that it lists.
    ///
    /// # Errors
    /// [`DocumentError`] if it is too long.
    pub fn put_into<T: AsRef<[u8]>>(
        &self,
        document: &Document<T>,
    ) -> Result<Document<Vec<u8>>, DocumentError> {
        let mut fields = self.fields.clone();
        if !self.elements.is_empty() {
            let elements: Vec<Value> = self.elements().cloned().collect();
            fields.insert("elem".to_owned(), elements.into());
        }
        let mut object = Map::new();
        object.insert(self.kind.clone(), fields.into());
        document.with_objects(&[(self.position, Value::from(object).to_string())].into())
    }
}

/// The key of an element.
fn key_of(value: &Value, is_map: bool, types: &[Kind]) -> Parsed<Vec<Interval>> {
    let key = match value {
        // A map whose element is to be deleted need not be told its value.
        Value::Array(pair) if is_map => pair.first().unwrap_or(&Value::Null),
        key => key,
    };
    let key = match only(key) {
        Some(("elem", inside)) => inside.get("val").unwrap_or(&Value::Null),
        _ => key,
    };
    if sets::is_catch_all(key) {
        return Ok(Vec::new());
    }
    sets::intervals(key, types, &Path::root("elem"))
}

/// The value that a map's element holds.
fn datum(value: &Value) -> Option<&Value> {
    value.as_array()?.get(1)
}

/// A property of an element beside its key.
fn property<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let key = match value {
        Value::Array(pair) => pair.first()?,
        key => key,
    };
    key.get("elem")?.get(name)
}

fn is_single(key: &[Interval]) -> bool {
    key.iter().all(|part| part.is_one())
}

/// True if a key has both. The element `*` has only what no other has.
fn overlap(one: &[Interval], other: &[Interval]) -> bool {
    let are_alike = one.is_empty() == other.is_empty();
    are_alike
        && one.iter().zip(other).all(|(one, other)| one.low <= other.high && other.low <= one.high)
}

/// True if all values of `inner` are values of `outer`.
fn contains(outer: &[Interval], inner: &[Interval]) -> bool {
    let are_alike = outer.is_empty() == inner.is_empty();
    are_alike
        && outer
            .iter()
            .zip(inner)
            .all(|(outer, inner)| outer.low <= inner.low && inner.high <= outer.high)
}

fn problem(value: &Value, what: impl Into<String>) -> ElementProblem {
    ElementProblem { element: element_text(value), what: what.into() }
}

#[cfg(test)]
#[path = "contents_tests.rs"]
mod tests;
