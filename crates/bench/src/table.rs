//! Tables for people.

use std::fmt;

use crate::Spread;

/// Rows under a title; each row has a label and one cell per column.
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<Option<Cell>>)>,
}

/// A figure with its spread and the number of significant digits behind the point.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    spread: Spread,
    digits: usize,
}

impl Cell {
    /// A figure with `digits` digits behind the point.
    pub fn new(spread: Spread, digits: usize) -> Self {
        Self { spread, digits }
    }
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row; `None` stands for a figure that was not measured.
    pub fn row(&mut self, label: impl Into<String>, cells: Vec<Option<Cell>>) {
        self.rows.push((label.into(), cells));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CELL: usize = 24;
        let label = self.rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        let label = label.max(self.title.len());
        write!(f, "{:label$}", self.title)?;
        for column in &self.columns {
            write!(f, "  {column:>CELL$}")?;
        }
        writeln!(f)?;
        for (name, cells) in &self.rows {
            write!(f, "{name:label$}")?;
            for cell in cells {
                let text = cell.as_ref().map_or_else(|| "-".to_owned(), Cell::to_string);
                write!(f, "  {text:>CELL$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spread: Spread { median, min, max }, digits } = self;
        write!(f, "{median:.digits$} ({min:.digits$}-{max:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let spread = Spread { median: 2.04, min: 1.0, max: 12.5 };
        let mut table = Table::new("Mpps", &["one", "two"]);
        table.row("ours", vec![Some(Cell::new(spread, 1)), None]);
        let expected = "Mpps                       one                       two
ours            2.0 (1.0-12.5)                         -
";
        assert_eq!(table.to_string(), expected);
    }
}
