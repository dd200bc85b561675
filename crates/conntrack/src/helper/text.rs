//! Reading text protocols byte by byte.

use std::ops::Range;

/// The decimal number at the beginning, after blanks, and the text behind it. `None` without a
/// digit and above 32 bits.
pub(crate) fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    Some((number, &text[digits..]))
}

/// The range of a part of a text.
pub(crate) fn place(text: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    start..start + part.len()
}

/// Lines with their ends, LF or CRLF.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    rest: &'a [u8],
    folded: bool,
}

impl<'a> Lines<'a> {
    pub fn of(text: &'a [u8]) -> Self {
        Self { rest: text, folded: false }
    }

    /// Joins a line that begins with a blank to the line before it.
    #[must_use]
    pub fn folded(self) -> Self {
        Self { folded: true, ..self }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.rest;
        let goes_on = |end: usize| self.folded && matches!(text.get(end), Some(b' ' | b'\t'));
        let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let mut ends = ends.map(|(at, _)| at + 1).filter(|&end| !goes_on(end));
        let (line, rest) = text.split_at(ends.next().unwrap_or(text.len()));
        self.rest = rest;
        (!line.is_empty()).then_some(line)
    }
}
