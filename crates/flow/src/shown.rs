//! Text from outside, made harmless for a terminal and for a log.

use std::fmt::{self, Write};

/// Text from outside as it is shown to people: in one line, and without a character that a
/// terminal obeys.
///
/// It escapes control characters except the tab (C0, DEL and C1 of ISO 6429, which begin a
/// terminal's commands; CR and LF, which would forge lines), the line and paragraph separators,
/// and the characters of Unicode's property `Bidi_Control` (UAX 9), which would show text in
/// another order than it has. A line end becomes `\n`, a return `\r`, every other character
/// `\u` with four hexadecimal digits.
///
/// A backslash stays as it is, so escaping twice gives the same text as escaping once. Code
/// that writes to a terminal or to a log escapes all of its text; code that composes several
/// lines escapes the parts. JSON uses the same escapes, so there they change how a text is
/// written and not its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Shown<T>(pub T);

impl<T: fmt::Display> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

/// True for text that is shown as it is.
pub fn is_harmless(text: &str) -> bool {
    !text.chars().any(is_escaped)
}

fn is_escaped(character: char) -> bool {
    match character {
        '\t' | ' '..='~' => false,
        '\0'..='\u{9f}' => true,
        '\u{61c}' | '\u{200e}' | '\u{200f}' => true,
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => false,
    }
}

struct Escaping<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_escaped) {
            let (harmless, from) = rest.split_at(at);
            self.0.write_str(harmless)?;
            let mut characters = from.chars();
            match characters.next() {
                Some('\n') => self.0.write_str("\\n")?,
                Some('\r') => self.0.write_str("\\r")?,
                Some(other) => write!(self.0, "\\u{:04x}", u32::from(other))?,
                None => {}
            }
            rest = characters.as_str();
        }
        self.0.write_str(rest)
    }
}

#[cfg(test)]
#[path = "shown_tests.rs"]
mod tests;
