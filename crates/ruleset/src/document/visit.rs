//! Visitors that walk over a text without keeping it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value;
use serde_json::value::RawValue;

use super::OBJECTS;

/// The name of a field by which the parser marks a raw value. No document may use it.
const RAW: &str = "$serde_json::private::RawValue";

/// A text that parses as a value; the value is not kept.
pub(crate) struct Checked;

impl<'t> Deserialize<'t> for Checked {
    fn deserialize<D: Deserializer<'t>>(parser: D) -> Result<Self, D::Error> {
        parser.deserialize_any(Self)
    }
}

impl<'t> Visitor<'t> for Checked {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'t>>(self, mut fields: A) -> Result<Self, A::Error> {
        while let Some(key) = fields.next_key::<String>()? {
            if key == RAW {
                return Err(A::Error::custom(format!("`{RAW}` is no name of a field")));
            }
            fields.next_value::<Self>()?;
        }
        Ok(self)
    }
}

/// Calls `call` for each element of a list, with its number; false if the text is not a list.
pub(crate) fn each_of<'t, V: Deserialize<'t>>(text: &'t [u8], call: impl FnMut(usize, V)) -> bool {
    let list = List { call, value: PhantomData };
    serde_json::Deserializer::from_slice(text).deserialize_seq(list).is_ok()
}

/// Calls `call` for each object of a ruleset in nft's JSON, in one pass; false if the text is no such
/// ruleset, of which `call` may have seen a part.
pub fn each_object(text: &[u8], call: impl FnMut(Value)) -> bool {
    let mut parser = serde_json::Deserializer::from_slice(text);
    parser.deserialize_map(Objects(call)).is_ok() && parser.end().is_ok()
}

struct Objects<F>(F);

impl<'t, F: FnMut(Value)> Visitor<'t> for Objects<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a ruleset")
    }

    fn visit_map<A: MapAccess<'t>>(mut self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<String>()? {
            if key == OBJECTS {
                let call = |_, object| (self.0)(object);
                fields.next_value_seed(List { call, value: PhantomData })?;
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

impl<'t, V: Deserialize<'t>, F: FnMut(usize, V)> DeserializeSeed<'t> for List<V, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'t>>(self, parser: D) -> Result<(), D::Error> {
        parser.deserialize_seq(self)
    }
}

struct List<V, F> {
    call: F,
    value: PhantomData<V>,
}

impl<'t, V: Deserialize<'t>, F: FnMut(usize, V)> Visitor<'t> for List<V, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'t>>(mut self, mut list: A) -> Result<(), A::Error> {
        let mut number = 0;
        while let Some(element) = list.next_element()? {
            (self.call)(number, element);
            number += 1;
        }
        Ok(())
    }
}

/// Calls `call` for each field of an object, with name and text; false if it is not an object.
pub(crate) fn each_field<'t>(text: &'t [u8], call: impl FnMut(String, &'t [u8])) -> bool {
    serde_json::Deserializer::from_slice(text).deserialize_map(Fields(call)).is_ok()
}

struct Fields<F>(F);

impl<'t, F: FnMut(String, &'t [u8])> Visitor<'t> for Fields<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(mut self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key()? {
            (self.0)(key, fields.next_value::<&RawValue>()?.get().as_bytes());
        }
        Ok(())
    }
}
