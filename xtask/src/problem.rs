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

    /// The first line in which a document differs from what the code generates.
    pub fn of_generated(file: &str, document: &str, code: &str, remedy: &str) -> Option<Self> {
        if document == code {
            return None;
        }
        let same = document.lines().zip(code.lines()).take_while(|(left, right)| left == right);
        let line = same.count() + 1;
        let expected = code.lines().nth(line - 1).unwrap_or("nothing here");
        Some(Self::new(file, line, format!("differs from the code: {expected}"), remedy))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, what, remedy } = self;
        write!(f, "{file}:{line}: {what}\n    {remedy}")
    }
}
