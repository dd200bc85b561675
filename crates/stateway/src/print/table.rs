//! Aligned columns.

use flow::Shown;

use super::Output;

/// The side on which the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Between two columns.
const GAP: &str = "  ";

/// The columns of a table with their widths in characters.
#[derive(Clone, Debug)]
pub struct Widths {
    columns: Vec<(String, Align, usize)>,
}

impl Widths {
    /// Columns as wide as their titles.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let column = |&(title, align): &(&str, Align)| (title.to_owned(), align, width(title));
        Self { columns: columns.iter().map(column).collect() }
    }

    /// Makes room for a row.
    pub fn fit(&mut self, row: &[String]) {
        for ((_, _, wide), cell) in self.columns.iter_mut().zip(row) {
            *wide = (*wide).max(width(cell));
        }
    }

    /// The titles in their columns.
    pub fn titles(&self) -> String {
        self.row(&self.columns.iter().map(|(title, ..)| title.clone()).collect::<Vec<_>>())
    }

    /// A row in its columns, without blanks at the end. A cell that is too wide pushes the rest of
    /// the row to the right.
    pub fn row(&self, row: &[String]) -> String {
        let mut line = String::new();
        for ((_, align, wide), cell) in self.columns.iter().zip(row) {
            let blanks = " ".repeat(wide.saturating_sub(width(cell)));
            match align {
                Align::Left => line.extend([cell, blanks.as_str()]),
                Align::Right => line.extend([blanks.as_str(), cell]),
            }
            line.push_str(GAP);
        }
        line.truncate(line.trim_end().len());
        line
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// A table that is printed once all its rows are known.
#[derive(Clone, Debug)]
pub struct Table {
    widths: Widths,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self { widths: Widths::new(columns), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, row: impl IntoIterator<Item = String>) {
        let row: Vec<String> = row.into_iter().map(|cell| Shown(cell).to_string()).collect();
        self.widths.fit(&row);
        self.rows.push(row);
    }

    /// Prints titles and rows.
    pub fn print(&self, out: &mut Output) -> anyhow::Result<()> {
        out.title(&self.widths.titles())?;
        self.rows.iter().try_for_each(|row| out.line(self.widths.row(row)))
    }

    /// Prints the table below an empty line, or nothing if it has no rows.
    pub fn print_section(&self, out: &mut Output) -> anyhow::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        out.line("")?;
        self.print(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut widths = Widths::new(&[("name", Align::Left), ("count", Align::Right)]);
        let rows = [["a", "1"], ["longest", "1234567"]].map(|row| row.map(str::to_owned));
        rows.iter().for_each(|row| widths.fit(row));
        insta::assert_snapshot!(
            [widths.titles(), widths.row(&rows[0]), widths.row(&rows[1])].join("\n"),
            @r"
        name       count
        a              1
        longest  1234567
        "
        );
    }
}
