//! The text of a ruleset with the places of its objects.
//!
//! A parsed value takes up to a hundred times the memory of its text. So a document keeps its text,
//! and an object or an element becomes a value only while it is in use.

mod visit;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub use self::visit::each_object;
pub(crate) use self::visit::each_of;
use self::visit::{Checked, each_field};
use crate::limits::MAX_DOCUMENT_BYTES;

/// The name of the list of objects in a document.
const OBJECTS: &str = "nftables";

/// A ruleset as `nft -j list ruleset` prints it.
#[derive(Clone)]
pub struct Document<T> {
    text: T,
    /// The places of the objects in the text; `None` without a list of objects.
    objects: Option<Vec<Range<u32>>>,
}

impl<T: AsRef<[u8]>> fmt::Debug for Document<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, objects) = (self.text.as_ref().len(), self.objects().len());
        f.debug_struct("Document").field("bytes", &bytes).field("objects", &objects).finish()
    }
}

/// The reasons why a text is not a document.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The text is longer than the limit.
    #[error("longer than {} MiB, the limit for a ruleset", MAX_DOCUMENT_BYTES >> 20)]
    TooLong,
    /// The text is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl<T: AsRef<[u8]>> Document<T> {
    /// Finds the objects of a text.
    ///
    /// # Errors
    /// [`DocumentError`]. The parser also refuses values that are nested more than 128 deep.
    pub fn read(text: T) -> Result<Self, DocumentError> {
        let bytes = text.as_ref();
        if bytes.len() > MAX_DOCUMENT_BYTES {
            return Err(DocumentError::TooLong);
        }
        serde_json::from_slice::<Checked>(bytes)?;
        let mut objects = None;
        if let Some(list) = field(bytes, OBJECTS) {
            let begin = bytes.as_ptr().addr();
            let mut places = Vec::new();
            let is_list = each_of(list, |_, object: &RawValue| {
                let object = object.get();
                let at = object.as_ptr().addr() - begin;
                // The limit has less than 32 bits, so the places fit.
                places.push(at as u32..(at + object.len()) as u32);
            });
            objects = is_list.then_some(places);
        }
        Ok(Self { text, objects })
    }

    /// The text.
    pub const fn text(&self) -> &T {
        &self.text
    }

    /// True if there is a list of objects, even an empty one.
    pub(crate) const fn has_objects(&self) -> bool {
        self.objects.is_some()
    }

    /// The texts of the objects.
    pub(crate) fn objects(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let places = self.objects.as_deref().unwrap_or_default();
        places.iter().map(|place| &self.text.as_ref()[place.start as usize..place.end as usize])
    }

    /// The object at a position of the list, with its kind around it; `None` if there is none.
    pub fn object(&self, position: usize) -> Option<Value> {
        self.objects().nth(position).map(value)
    }

    /// The objects one by one, each with its kind around it.
    pub fn values(&self) -> impl Iterator<Item = Value> {
        self.objects().map(value)
    }

    /// The document with other objects at these positions of the list.
    ///
    /// # Errors
    /// [`DocumentError`] if it is too long.
    pub fn with_objects(
        &self,
        objects: &BTreeMap<usize, String>,
    ) -> Result<Document<Vec<u8>>, DocumentError> {
        let (bytes, places) = (self.text.as_ref(), self.objects.as_deref().unwrap_or_default());
        let (mut text, mut done) = (Vec::with_capacity(bytes.len()), 0);
        for (position, object) in objects {
            let Some(place) = places.get(*position) else { continue };
            text.extend_from_slice(&bytes[done..place.start as usize]);
            text.extend_from_slice(object.as_bytes());
            done = place.end as usize;
        }
        text.extend_from_slice(&bytes[done..]);
        Document::read(text)
    }

    /// The whole document, which takes many times the memory of the text.
    pub fn value(&self) -> Value {
        value(self.text.as_ref())
    }
}

/// A part of a document as a value. The whole text was parsed before, so this does not fail.
pub(crate) fn value(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_default()
}

/// The text of a field. If several fields have the name, the last counts, as in a parsed value.
pub(crate) fn field<'t>(text: &'t [u8], name: &str) -> Option<&'t [u8]> {
    let mut found = None;
    each_field(text, |key, value| {
        if key == name {
            found = Some(value);
        }
    });
    found
}

/// The name and text of an object's only field; `None` if it has none or several.
pub(crate) fn only(text: &[u8]) -> Option<(String, &[u8])> {
    let mut found: Option<(String, &[u8])> = None;
    let mut is_one = true;
    each_field(text, |key, value| {
        is_one &= found.as_ref().is_none_or(|(known, _)| *known == key);
        found = Some((key, value));
    });
    found.filter(|_| is_one)
}

/// The wanted fields of an object; `None` if the text is not an object.
pub(crate) fn fields(text: &[u8], is_wanted: impl Fn(&str) -> bool) -> Option<Map<String, Value>> {
    let mut fields = Map::new();
    let is_object = each_field(text, |key, inside| {
        if is_wanted(&key) {
            fields.insert(key, value(inside));
        }
    });
    is_object.then_some(fields)
}
