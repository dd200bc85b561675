//! Problems of a ruleset, with their places.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use flow::Shown;

use crate::limits::MAX_PROBLEMS;

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The kernel would not have printed this: the document is damaged or made up.
    Invalid,
    /// The kernel supports this and Stateway does not.
    Unsupported,
    /// The kernel goes on doing this itself: chains of its own input and output.
    LeftToKernel,
    /// Worth knowing.
    Note,
}

/// The effect on the traffic of leaving a rule out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Packets that it would accept meet the rules behind it: stricter or equal.
    Stricter,
    /// Packets that it would drop go on: **less is filtered than intended**.
    Open,
    /// Connections that it would translate are not translated.
    Untranslated,
    /// Another chain, or the rest of the calling chain, would have decided.
    Unclear,
    /// Only a side effect is missing: a counter, a mark, a log line.
    SideEffect,
}

impl Effect {
    /// One sentence for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Stricter => {
                "left out, packets that it accepts are left to the rules behind it (stricter)"
            }
            Self::Open => "left out, PACKETS THAT IT DROPS GO ON (less is filtered)",
            Self::Untranslated => "left out, connections are not translated by it",
            Self::Unclear => "left out, other rules decide about its packets: check which ones",
            Self::SideEffect => "left out, only its side effect is missing",
        }
    }
}

/// The place of an object in a ruleset.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Location {
    /// Address family as written; empty for the document itself.
    pub family: String,
    /// Table.
    pub table: String,
    /// Kind of the object: `chain`, `rule`, `set`, `map`, `counter` and so on.
    pub object: &'static str,
    /// Name of the set or object, or of the chain; for a rule, of its chain.
    pub name: String,
    /// The kernel's handle.
    pub handle: Option<u64>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, table, object, name, handle } = self;
        let (family, table, name) = (Shown(family), Shown(table), Shown(name));
        if self.family.is_empty() && self.table.is_empty() {
            return f.write_str("document");
        }
        write!(f, "{family} {table}")?;
        match *object {
            "table" => {}
            "rule" => write!(f, " chain {name} rule")?,
            object => write!(f, " {object} {name}")?,
        }
        match handle {
            Some(handle) => write!(f, " handle {handle}"),
            None => Ok(()),
        }
    }
}

/// Something that is wrong, unsupported or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Severity.
    pub severity: Severity,
    /// The object.
    pub place: Location,
    /// Path inside the object: `expr[2].match.left`. Empty for the whole object.
    pub path: String,
    /// Description.
    pub what: String,
    /// The effect of leaving it out, for a rule that is unsupported.
    pub effect: Option<Effect>,
    /// The place of the object in the document's list of objects, from 0; `None` for the document.
    pub position: Option<usize>,
}

impl Problem {
    /// The description of something that is left out, to stand beside its object.
    fn left_out(&self) -> String {
        // The path of a rule says no more than its text.
        let part = match self.path.as_str() {
            "" => String::new(),
            _ if self.place.object == "rule" => String::new(),
            path => format!("{path}: "),
        };
        let effect = self.effect.map(|effect| format!("; {}", effect.meaning()));
        format!("{part}{}{}", self.what, effect.unwrap_or_default())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, place, path, what, effect, .. } = self;
        let severity = match severity {
            Severity::Invalid => "invalid",
            Severity::Unsupported => "unsupported",
            Severity::LeftToKernel => "left to the kernel",
            Severity::Note => "note",
        };
        write!(f, "{place}")?;
        if !path.is_empty() {
            write!(f, ", {}", Shown(path))?;
        }
        write!(f, ": {severity}: {}", Shown(what))?;
        match effect {
            Some(effect) => write!(f, "; {}", effect.meaning()),
            None => Ok(()),
        }
    }
}

/// Problems in the order in which they were found, a bounded number of them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Problems {
    listed: Vec<Problem>,
    unlisted: [usize; 2],
    /// Objects with a part that is unsupported and not listed.
    unlisted_positions: BTreeSet<usize>,
}

impl Problems {
    /// Adds a problem.
    pub(crate) fn push(&mut self, problem: Problem) {
        if self.listed.len() < MAX_PROBLEMS {
            self.listed.push(problem);
        } else {
            match problem.severity {
                Severity::Invalid => self.unlisted[0] += 1,
                Severity::Unsupported => {
                    self.unlisted[1] += 1;
                    self.unlisted_positions.extend(problem.position);
                }
                Severity::LeftToKernel | Severity::Note => {}
            }
        }
    }

    /// The problems that are listed one by one.
    pub fn listed(&self) -> &[Problem] {
        &self.listed
    }

    /// The parts that are left out where unsupported ones are allowed, by the position of its object.
    pub fn left_out(&self) -> BTreeMap<usize, String> {
        let unlisted = self.unlisted_positions.iter().map(|at| (*at, "not supported".to_owned()));
        let mut all: BTreeMap<usize, String> = unlisted.collect();
        let is_left_out = |it: &&Problem| it.severity == Severity::Unsupported;
        for problem in self.listed.iter().filter(is_left_out) {
            let Some(position) = problem.position else { continue };
            let what = problem.left_out();
            all.entry(position).and_modify(|it| *it += &format!("; {what}")).or_insert(what);
        }
        all
    }

    /// True if some that keep a ruleset from loading are not listed.
    pub(crate) fn are_cut(&self) -> bool {
        self.unlisted != [0, 0]
    }

    /// The number of problems of a severity, including unlisted ones that keep a ruleset from
    /// loading.
    pub fn count(&self, severity: Severity) -> usize {
        let listed = self.listed.iter().filter(|problem| problem.severity == severity).count();
        listed
            + match severity {
                Severity::Invalid => self.unlisted[0],
                Severity::Unsupported => self.unlisted[1],
                Severity::LeftToKernel | Severity::Note => 0,
            }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.listed {
            writeln!(f, "{problem}")?;
        }
        match self.unlisted.iter().sum::<usize>() {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

/// A path inside an object, as a list on the stack.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
    depth: usize,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub fn root(key: &'a str) -> Self {
        Self { parent: None, step: Step::Key(key), depth: 0 }
    }

    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key), depth: self.depth + 1 }
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index), depth: self.depth + 1 }
    }

    /// Its depth: the number of keys and indices in it.
    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn invalid(&self, what: impl Into<String>) -> Fault {
        Fault { severity: Severity::Invalid, path: self.to_string(), what: what.into() }
    }

    pub fn unsupported(&self, what: impl Into<String>) -> Fault {
        Fault { severity: Severity::Unsupported, path: self.to_string(), what: what.into() }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Key(key) if self.parent.is_some() => write!(f, ".{key}"),
            Step::Key(key) => f.write_str(key),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A problem without its place, which the caller knows.
#[derive(Debug)]
pub(crate) struct Fault {
    pub severity: Severity,
    pub path: String,
    pub what: String,
}

pub(crate) type Parsed<T> = Result<T, Fault>;
