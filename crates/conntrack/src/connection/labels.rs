//! Labels of connections: 128 bits that operators set and filter by, each with a name.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::ops::{BitAnd, BitOr, Not};

/// One of the labels that a connection can have: a bit, 0 to [`Label::LAST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u8);

impl Label {
    /// The largest number, as in the kernel.
    pub const LAST: u8 = 127;

    /// The label of a number, `None` beyond [`Label::LAST`].
    pub const fn new(number: u8) -> Option<Self> {
        if number <= Self::LAST { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// A set of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Labels(u128);

impl Labels {
    /// No label.
    pub const NONE: Self = Self(0);
    /// All labels.
    pub const ALL: Self = Self(u128::MAX);

    /// True without any label.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if the set contains all of `wanted`.
    pub const fn include(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// The labels whose bits are set.
    pub const fn of_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The labels as bits: bit n for the label with number n.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// The labels by number.
    pub fn iter(self) -> impl Iterator<Item = Label> {
        (0..=Label::LAST).filter(move |&bit| self.0 >> bit & 1 != 0).map(Label)
    }
}

impl FromIterator<Label> for Labels {
    fn from_iter<I: IntoIterator<Item = Label>>(labels: I) -> Self {
        Self(labels.into_iter().fold(0, |set, Label(bit)| set | 1 << bit))
    }
}

impl BitOr for Labels {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Labels {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Labels {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0)
    }
}

/// The names of labels. A label without a name is shown by its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelNames {
    by_label: BTreeMap<Label, String>,
}

/// The reason why a label can not have a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name could be mistaken for something else.
    #[error(
        "{name:?} can not name a label; allowed: 1 to {max} characters without blank and comma, \
         and no number", max = LabelNames::LONGEST
    )]
    Name {
        /// The name as given.
        name: String,
    },
    /// The label has a name, or another label has this one.
    #[error("label {number} is already {name:?}")]
    Taken {
        /// Number of the label that has one of the two.
        number: u8,
        /// Its name.
        name: String,
    },
}

/// A text that is neither the name nor the number of a label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no label; known are the numbers 0 to {last}{names}", last = Label::LAST)]
pub struct UnknownLabel {
    given: String,
    /// The names, each after a comma.
    names: String,
}

impl LabelNames {
    /// Longest name, bytes.
    pub const LONGEST: usize = 63;

    /// Gives a label a name.
    ///
    /// # Errors
    /// [`NameError`]; nothing has changed.
    pub fn name(&mut self, label: Label, name: &str) -> Result<(), NameError> {
        let wrong = |c: char| c.is_whitespace() || c.is_control() || c == ',';
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        if is_number || name.len() > Self::LONGEST || name.contains(wrong) {
            return Err(NameError::Name { name: name.to_owned() });
        }
        let taken = |(other, known): &(&Label, &String)| **other == label || *known == name;
        if let Some((&Label(number), known)) = self.by_label.iter().find(taken) {
            return Err(NameError::Taken { number, name: known.clone() });
        }
        self.by_label.insert(label, name.to_owned());
        Ok(())
    }

    /// The name of a label, if it has one.
    pub fn of(&self, label: Label) -> Option<&str> {
        self.by_label.get(&label).map(String::as_str)
    }

    /// All labels that have names, by number.
    pub fn iter(&self) -> impl Iterator<Item = (Label, &str)> {
        self.by_label.iter().map(|(&label, name)| (label, name.as_str()))
    }

    /// The texts for labels, by number: the name of each, or its number if it has none.
    pub fn tell(&self, labels: Labels) -> Vec<String> {
        let text = |label: Label| {
            self.of(label).map_or_else(|| label.number().to_string(), ToOwned::to_owned)
        };
        labels.iter().map(text).collect()
    }

    /// The label of a name or number.
    ///
    /// # Errors
    /// [`UnknownLabel`].
    pub fn read(&self, text: &str) -> Result<Label, UnknownLabel> {
        let named = self.iter().find(|&(_, name)| name == text).map(|(label, _)| label);
        let numbered = || text.parse().ok().and_then(Label::new);
        named.or_else(numbered).ok_or_else(|| UnknownLabel {
            given: text.to_owned(),
            names: self.iter().map(|(_, name)| format!(", {name}")).collect(),
        })
    }

    /// The labels in a list of names and numbers that commas separate.
    ///
    /// # Errors
    /// [`UnknownLabel`] for the first text that is no label.
    pub fn read_list(&self, text: &str) -> Result<Labels, UnknownLabel> {
        text.split(',').map(|label| self.read(label)).collect()
    }
}

/// Labels at the end of a line of `conntrack -o labels` (version 1.4.7), with a blank in front.
/// The tool leaves out labels without a name; if none has a name, it prints the word alone.
pub struct AtTheEnd<'a>(pub Labels, pub &'a LabelNames);

impl Display for AtTheEnd<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self(labels, names) = self;
        if labels.is_empty() {
            return Ok(());
        }
        f.write_str(" labels")?;
        let names = labels.iter().filter_map(|label| names.of(label));
        for (index, name) in names.enumerate() {
            write!(f, "{}{name}", if index == 0 { '=' } else { ',' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "labels_tests.rs"]
mod tests;
