//! What is wrong with a ruleset, or not done by it, and where.

use std::fmt;

use flow::Shown;

use crate::limits::MAX_PROBLEMS;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The kernel would not have printed it: the document is damaged or made up.
    Invalid,
    /// The kernel does it and Stateway does not.
    Unsupported,
    /// The kernel goes on doing it: chains of its own input and output.
    LeftToKernel,
    /// Good to know.
    Note,
}

/// What leaving a rule out does to the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What it would have accepted meets the rules behind it: stricter or equal.
    Stricter,
    /// What it would have dropped goes on: **less is filtered than intended**.
    Open,
    /// What it would have translated is not.
    Untranslated,
    /// Another chain, or the rest of the caller, would have decided.
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
            Self::Unclear => "left out, packets take another way: look at what it leads to",
            Self::SideEffect => "left out, only its side effect is missing",
        }
    }
}

/// Which object of the ruleset.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// Address family as written; empty for the document itself.
    pub family: String,
    /// Table.
    pub table: String,
    /// What it is: `chain`, `rule`, `set`, `map`, `counter` and so on.
    pub object: &'static str,
    /// Name of the chain, also of a rule, or of the set or object.
    pub name: String,
    /// The kernel's handle.
    pub handle: Option<u64>,
}

impl fmt::Display for Place {
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
    /// How bad.
    pub severity: Severity,
    /// Where.
    pub place: Place,
    /// Where inside the object: `expr[2].match.left`. Empty for all of it.
    pub path: String,
    /// What.
    pub what: String,
    /// What leaving it out does, for a rule that is unsupported.
    pub effect: Option<Effect>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, place, path, what, effect } = self;
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
}

impl Problems {
    /// Adds one.
    pub(crate) fn push(&mut self, problem: Problem) {
        if self.listed.len() < MAX_PROBLEMS {
            self.listed.push(problem);
        } else {
            match problem.severity {
                Severity::Invalid => self.unlisted[0] += 1,
                Severity::Unsupported => self.unlisted[1] += 1,
                Severity::LeftToKernel | Severity::Note => {}
            }
        }
    }

    /// Those that are told one by one.
    pub fn listed(&self) -> &[Problem] {
        &self.listed
    }

    /// How many there are of a severity that keeps a ruleset from loading.
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

/// Where inside an object, as a list that lives on the stack.
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

    /// How deep it is.
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

/// A problem of which only the object knows its place.
#[derive(Debug)]
pub(crate) struct Fault {
    pub severity: Severity,
    pub path: String,
    pub what: String,
}

pub(crate) type Parsed<T> = Result<T, Fault>;
