//! Standard output: data, as a table or as JSON. Prose goes to standard error.
//!
//! Names, comments and texts come from outside. This module escapes them ([`Shown`]), so that none
//! of them forges a line or commands the terminal.

mod table;
mod units;
mod worker_table;

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};

use flow::Shown;
use serde::Serialize;

use crate::errors::OutputError;

pub use table::{Align, Table, Widths};
pub use units::{bytes, count, duration, percent, things};
pub use worker_table::worker_table;

/// Writes a line to standard error, see [`crate::log::tell`].
macro_rules! tell {
    ($($text:tt)*) => { $crate::log::tell(format_args!($($text)*)) };
}

/// Zone and VLAN of a packet. Prints nothing if both are 0.
#[derive(Clone, Copy, Debug)]
pub struct ZoneAndVlan {
    /// Zone.
    pub zone: u16,
    /// Outermost VLAN, 0 for none.
    pub vlan: u16,
}

impl fmt::Display for ZoneAndVlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.zone != 0 {
            write!(f, ", zone {}", self.zone)?;
        }
        if self.vlan != 0 {
            write!(f, ", VLAN {}", self.vlan)?;
        }
        Ok(())
    }
}

/// Standard output, or standard error where something else has standard output.
pub struct Output {
    writer: BufWriter<Box<dyn Write>>,
    /// True to set titles in bold.
    bold_titles: bool,
    /// True if the screen can be cleared.
    terminal: bool,
}

impl Output {
    /// Standard output. Titles are bold only on a terminal and unless `NO_COLOR` is set
    /// (no-color.org).
    pub fn stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let writer = BufWriter::new(Box::new(io::stdout().lock()) as Box<dyn Write>);
        Self { writer, bold_titles: terminal && !no_color, terminal }
    }

    /// Standard error, in place of standard output.
    pub fn stderr() -> Self {
        let writer = BufWriter::new(Box::new(io::stderr()) as Box<dyn Write>);
        Self { writer, bold_titles: false, terminal: false }
    }

    /// The writer for bytes and text that are not escaped.
    pub fn writer(&mut self) -> &mut dyn Write {
        &mut self.writer
    }

    /// Writes a line.
    pub fn line(&mut self, text: impl fmt::Display) -> anyhow::Result<()> {
        writeln!(self.writer, "{}", Shown(text)).map_err(OutputError)?;
        Ok(())
    }

    /// Writes a line that a gateway sent. JSON keeps its meaning.
    pub fn sent_line(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.line(String::from_utf8_lossy(bytes))
    }

    /// Writes a line with titles.
    pub fn title(&mut self, text: &str) -> anyhow::Result<()> {
        let text = text.trim_end();
        if self.bold_titles {
            writeln!(self.writer, "\x1b[1m{}\x1b[0m", Shown(text)).map_err(OutputError)?;
            Ok(())
        } else {
            self.line(text)
        }
    }

    /// Writes an object as one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.line(serde_json::to_string(value)?)
    }

    /// Clears the screen, or writes an empty line if there is none.
    pub fn next_page(&mut self) -> anyhow::Result<()> {
        if self.terminal {
            write!(self.writer, "\x1b[H\x1b[2J").map_err(OutputError)?;
            Ok(())
        } else {
            self.line("")
        }
    }

    /// True if people read the output.
    pub const fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Flushes the output.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.writer.flush().map_err(OutputError)?;
        Ok(())
    }

    /// Has to be the last call: only then is it known that everything was written.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.flush()
    }
}
