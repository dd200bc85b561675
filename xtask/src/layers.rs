//! Tables of layers: what may use what. Each row names only those of rows above it, so there is no
//! circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::problem::Problem;

/// A kind of tables: where it is and how it begins.
#[derive(Clone, Copy, Debug)]
pub struct Kind<'a> {
    /// The document that contains it.
    pub document: &'a str,
    /// Its first line.
    pub header: &'a str,
    /// The things that it lists.
    pub of: &'a str,
}

/// A row of a table: what one may use directly.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Line in the document, from 1.
    pub line: usize,
    /// The names that it may use.
    pub uses: BTreeSet<String>,
}

/// Reads the table. A row may only name those of rows above it.
pub fn parse(kind: Kind<'_>, document: &str) -> (Vec<Row>, Vec<Problem>) {
    let mut rows: Vec<Row> = Vec::new();
    let mut problems = Vec::new();
    let lines = document.lines().enumerate().map(|(index, line)| (index + 1, line));
    // The header and the line of dashes below it.
    let table = lines.skip_while(|(_, line)| *line != kind.header).skip(2);
    for (line, text) in table.take_while(|(_, line)| line.starts_with('|')) {
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, uses] = cells[..] else {
            problems.push(Problem::new(
                kind.document,
                line,
                format!("a row of {} cells", cells.len()),
                format!("write three: {}", kind.header),
            ));
            continue;
        };
        let above: BTreeSet<String> = rows.iter().map(|row| row.name.clone()).collect();
        let uses: BTreeSet<String> = match uses {
            "-" => BTreeSet::new(),
            "all above" => above.clone(),
            list => list.split(',').map(|name| name.trim().to_owned()).collect(),
        };
        for upward in uses.difference(&above) {
            problems.push(Problem::new(
                kind.document,
                line,
                format!("{name} may use `{upward}`, which is not in a row above it"),
                "arrows point down only: order the rows so that each uses those above it",
            ));
        }
        rows.push(Row { name: name.trim_matches('`').to_owned(), line, uses });
    }
    if rows.is_empty() {
        let what = format!("the table of {} is missing", kind.of);
        let remedy = format!("it starts with: {}", kind.header);
        problems.push(Problem::new(kind.document, 1, what, remedy));
    }
    (rows, problems)
}

/// The names that each may use, directly or through another.
pub fn closure(rows: &[Row]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut closure: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // A row names only rows above it, so one pass is enough.
    for row in rows {
        let mut reached: BTreeSet<&str> = row.uses.iter().map(String::as_str).collect();
        for used in &row.uses {
            reached.extend(closure.get(used.as_str()).into_iter().flatten());
        }
        closure.insert(&row.name, reached);
    }
    closure
}
