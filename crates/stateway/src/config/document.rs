//! A TOML file, read key by key, so that every problem names its line, and all are reported at
//! once.

use std::fmt;
use std::path::{Path, PathBuf};

use flow::Shown;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A problem in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file as it was named.
    pub file: PathBuf,
    /// Line, from 1; 0 for a problem of the whole file.
    pub line: usize,
    /// The key with its table, for example `gateway.workers`; empty for syntax.
    pub key: String,
    /// The problem, and the allowed values.
    pub what: String,
    /// The rule of a ruleset that has the problem.
    pub rule: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, key, what, rule } = self;
        write!(f, "{}:", Shown(file.display()))?;
        if *line > 0 {
            write!(f, "{line}:")?;
        }
        if !key.is_empty() {
            write!(f, " {}:", Shown(key))?;
        }
        write!(f, " {}", Shown(what))?;
        match rule {
            Some(rule) => write!(f, "\n    {}", Shown(rule)),
            None => Ok(()),
        }
    }
}

/// All problems of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl Problems {
    /// `value`, if there are no problems.
    ///
    /// # Errors
    /// The problems, if there are any.
    pub fn or_value<T>(problems: Vec<Problem>, value: T) -> Result<T, Self> {
        if problems.is_empty() { Ok(value) } else { Err(Self(problems)) }
    }
}

/// Collects problems while a document is read.
#[derive(Debug)]
pub struct Reader<'t> {
    file: &'t Path,
    /// Offsets of the ends of lines: a file may have as many problems as lines.
    line_ends: Vec<usize>,
    problems: Vec<Problem>,
}

impl<'t> Reader<'t> {
    /// Parses the text.
    ///
    /// # Errors
    /// All errors of syntax. Then nothing else of the file can be relied on.
    pub fn open(file: &'t Path, text: &'t str) -> Result<(Self, Spanned<DeTable<'t>>), Problems> {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_ends = ends.map(|(at, _)| at).collect();
        let mut reader = Self { file, line_ends, problems: Vec::new() };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let offset = error.span().map_or(text.len(), |span| span.start);
            reader.note(offset, "", error.message());
        }
        match reader.has_problems() {
            true => Err(Problems(reader.finish())),
            false => Ok((reader, table)),
        }
    }

    /// The line of a byte offset, from 1.
    pub fn line(&self, offset: usize) -> usize {
        self.line_ends.partition_point(|&end| end < offset) + 1
    }

    /// Notes a problem at a byte offset.
    pub fn note(&mut self, offset: usize, key: &str, what: impl fmt::Display) {
        self.note_line(self.line(offset), key, what);
    }

    /// Notes a problem at a line.
    pub fn note_line(&mut self, line: usize, key: &str, what: impl fmt::Display) {
        let (file, key, what) = (self.file.into(), key.into(), what.to_string());
        self.problems.push(Problem { file, line, key, what, rule: None });
    }

    /// True if a problem was noted.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// The problems in the order of their lines.
    pub fn finish(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| problem.line);
        self.problems
    }
}

/// A value and its place.
#[derive(Clone, Debug)]
pub struct Entry<'t> {
    /// The key with its table.
    pub key: String,
    /// Offset of the key in the text.
    pub offset: usize,
    /// The value.
    pub value: DeValue<'t>,
}

/// A table whose keys are taken out as they are read.
#[derive(Debug)]
pub struct Section<'t> {
    path: String,
    /// Offset of the table in the text.
    pub offset: usize,
    entries: Vec<(String, usize, DeValue<'t>)>,
    known: Vec<&'static str>,
}

impl<'t> Section<'t> {
    /// The table at `path` (empty for the whole document).
    pub fn new(path: &str, table: Spanned<DeTable<'t>>) -> Self {
        let offset = table.span().start;
        let mut entries: Vec<_> = table
            .into_inner()
            .into_iter()
            .map(|(key, value)| {
                let offset = key.span().start;
                (key.into_inner().into_owned(), offset, value.into_inner())
            })
            .collect();
        entries.sort_by_key(|&(_, offset, _)| offset);
        Self { path: path.to_owned(), offset, entries, known: Vec::new() }
    }

    fn full_key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// True if the key exists and was not taken yet.
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(name, ..)| name == key)
    }

    /// The offset of a key that was not taken yet, or of the table if there is no such key.
    pub fn place_of(&self, key: &str) -> usize {
        let entry = self.entries.iter().find(|(name, ..)| name == key);
        entry.map_or(self.offset, |&(_, offset, _)| offset)
    }

    /// Takes a key out of the table.
    pub fn take(&mut self, key: &'static str) -> Option<Entry<'t>> {
        self.known.push(key);
        let at = self.entries.iter().position(|(name, ..)| name == key)?;
        let (_, offset, value) = self.entries.remove(at);
        Some(Entry { key: self.full_key(key), offset, value })
    }

    /// Takes a key and converts its value. `None` if there is no such key, or if the value was
    /// refused and a problem noted.
    pub fn read<T>(
        &mut self,
        reader: &mut Reader<'_>,
        key: &'static str,
        convert: impl FnOnce(&DeValue<'t>) -> Result<T, String>,
    ) -> Option<T> {
        let entry = self.take(key)?;
        match convert(&entry.value) {
            Ok(value) => Some(value),
            Err(what) => {
                reader.note(entry.offset, &entry.key, what);
                None
            }
        }
    }

    /// All keys that were not taken, for tables whose keys are open.
    pub fn rest(&mut self) -> Vec<Entry<'t>> {
        let entries = std::mem::take(&mut self.entries);
        entries
            .into_iter()
            .map(|(key, offset, value)| Entry { key: self.full_key(&key), offset, value })
            .collect()
    }

    /// Notes every key that was not taken as unknown.
    pub fn finish(mut self, reader: &mut Reader<'_>) {
        let known = self.known.join(", ");
        for entry in self.rest() {
            reader.note(entry.offset, &entry.key, format!("unknown key; known here: {known}"));
        }
    }
}

/// A value for messages.
pub fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        other => format!("this {}", other.type_str()),
    }
}

/// A text.
pub fn text<'v>(value: &'v DeValue<'_>, allowed: &str) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| format!("{} is not a text; allowed: {allowed}", show(value)))
}

/// Yes or no.
pub fn flag(value: &DeValue<'_>) -> Result<bool, String> {
    match value {
        DeValue::Boolean(truth) => Ok(*truth),
        other => Err(format!("{} is not allowed; allowed: true, false", show(other))),
    }
}

/// A whole number from `min` to `max`.
pub fn number(value: &DeValue<'_>, min: u64, max: u64) -> Result<u64, String> {
    value
        .as_integer()
        .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok())
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| {
            format!("{} is not allowed; allowed: a whole number from {min} to {max}", show(value))
        })
}

/// One of several words; `None` marks words of a later version.
pub fn choice<T: Copy>(value: &DeValue<'_>, words: &[(&str, Option<T>)]) -> Result<T, String> {
    let allowed: Vec<String> = words
        .iter()
        .filter(|(_, meaning)| meaning.is_some())
        .map(|(word, _)| format!("{word:?}"))
        .collect();
    let allowed = allowed.join(", ");
    match words.iter().find(|(word, _)| value.as_str() == Some(word)) {
        Some((_, Some(meaning))) => Ok(*meaning),
        Some((word, None)) => Err(format!("{word:?} is not supported yet; allowed: {allowed}")),
        None => Err(format!("{} is not allowed; allowed: {allowed}", show(value))),
    }
}
