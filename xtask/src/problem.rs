//! A broken rule, as a check reports it.

use std::fmt;

/// A rule that is broken: where, what, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File, relative to the workspace.
    pub file: String,
    /// Line in it, from 1.
    pub line: usize,
    /// The fault.
    pub what: String,
    /// The way to mend it.
    pub remedy: String,
}

impl Problem {
    /// A problem at a line of a file.
    pub fn new(
        file: impl Into<String>,
        line: usize,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { file: file.into(), line, what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what, remedy } = self;
        write!(f, "{file}:{line}: {what}\n    {remedy}")
    }
}
