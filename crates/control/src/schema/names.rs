//! Counters by name, in a meaningful order.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Named numbers: a JSON object that keeps the order of its keys, because operators know these
/// counters as columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(Vec<(String, u64)>);

impl Names {
    /// Names and numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The number of a name; 0 if it is absent.
    pub fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
    }

    /// The sum of all numbers.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, value)| value).sum()
    }
}

impl<'n> FromIterator<(&'n str, u64)> for Names {
    fn from_iter<I: IntoIterator<Item = (&'n str, u64)>>(entries: I) -> Self {
        Self(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Names(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}
