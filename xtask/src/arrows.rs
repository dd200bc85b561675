//! Arrows between crates point down. The table of crates in docs/architecture.md
//! is the one place that says which arrows there may be; it is read here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::Metadata;

use crate::problem::Problem;

const DOCUMENT: &str = "docs/architecture.md";
const HEADER: &str = "| crate | what lives there | may use |";
/// Crates that are no part of the product: nothing may use them, they may use all.
const TOOLS: &[&str] = &["xtask"];

/// A row of the table: what a crate may use directly.
#[derive(Debug)]
struct Row {
    name: String,
    line: usize,
    uses: BTreeSet<String>,
}

/// A crate of the workspace with its direct dependencies, all kinds alike.
struct Crate {
    name: String,
    manifest: String,
    /// Text of the manifest, to find lines in.
    text: String,
    uses: BTreeSet<String>,
}

/// Compares the dependencies of the workspace's crates with the table.
pub fn check(root: &Path, metadata: &Metadata) -> anyhow::Result<Vec<Problem>> {
    let packages = metadata.workspace_packages();
    let members: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut crates = Vec::new();
    for package in &packages {
        let manifest = package.manifest_path.strip_prefix(&metadata.workspace_root)?.to_string();
        crates.push(Crate {
            name: package.name.to_string(),
            text: crate::read(root, &manifest)?,
            manifest,
            uses: package
                .dependencies
                .iter()
                .filter(|dependency| members.contains(dependency.name.as_str()))
                .map(|dependency| dependency.name.clone())
                .collect(),
        });
    }
    Ok(judge(&crate::read(root, DOCUMENT)?, &crates))
}

fn judge(document: &str, crates: &[Crate]) -> Vec<Problem> {
    let (rows, mut problems) = parse_table(document);
    let allowed = closure(&rows);
    for row in &rows {
        if !crates.iter().any(|member| member.name == row.name) {
            problems.push(Problem::new(
                DOCUMENT,
                row.line,
                format!("there is no crate `{}`", row.name),
                "take the row out of the table",
            ));
        }
    }
    for member in crates {
        problems.extend(check_lints(member));
        if TOOLS.contains(&member.name.as_str()) {
            continue;
        }
        match allowed.get(member.name.as_str()) {
            Some(allowed) => problems.extend(check_uses(member, allowed)),
            None => problems.push(Problem::new(
                &member.manifest,
                1,
                format!("crate `{}` is not in the table of {DOCUMENT}", member.name),
                "add a row that says what lives there and what it may use",
            )),
        }
    }
    problems
}

fn check_uses(member: &Crate, allowed: &BTreeSet<&str>) -> Vec<Problem> {
    let forbidden = member.uses.iter().filter(|used| !allowed.contains(used.as_str()));
    let allowed = if allowed.is_empty() {
        "no crate of the workspace".to_owned()
    } else {
        allowed.iter().copied().collect::<Vec<_>>().join(", ")
    };
    forbidden
        .map(|used| {
            Problem::new(
                &member.manifest,
                dependency_line(&member.text, used),
                format!("`{}` may not use `{used}`", member.name),
                format!(
                    "it may use {allowed}; move the code down, or change the design with \
                     the table in {DOCUMENT}"
                ),
            )
        })
        .collect()
}

/// Only netio may leave the workspace's lints, which forbid unsafe code.
fn check_lints(member: &Crate) -> Option<Problem> {
    let inherits = member.text.contains("[lints]\nworkspace = true");
    (!inherits && member.name != "netio").then(|| {
        Problem::new(
            &member.manifest,
            1,
            format!("`{}` does not inherit the workspace's lints", member.name),
            "add `workspace = true` below `[lints]`",
        )
    })
}

/// The line on which a manifest names a dependency first; 1 if it is written in a
/// way that is not recognised.
fn dependency_line(manifest: &str, name: &str) -> usize {
    let names_it = |line: &str| {
        line.trim_start().strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    manifest.lines().position(names_it).map_or(1, |index| index + 1)
}

/// Reads the table. A row may only name crates of rows above it.
fn parse_table(document: &str) -> (Vec<Row>, Vec<Problem>) {
    let mut rows: Vec<Row> = Vec::new();
    let mut problems = Vec::new();
    let lines = document.lines().enumerate().map(|(index, line)| (index + 1, line));
    // The header and the line of dashes below it.
    let table = lines.skip_while(|(_, line)| *line != HEADER).skip(2);
    for (line, text) in table.take_while(|(_, line)| line.starts_with('|')) {
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, uses] = cells[..] else {
            problems.push(Problem::new(
                DOCUMENT,
                line,
                format!("a row of {} cells", cells.len()),
                format!("write three: {HEADER}"),
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
                DOCUMENT,
                line,
                format!("{name} may use `{upward}`, which is not in a row above it"),
                "arrows point down only: order the rows so that each uses those above it",
            ));
        }
        rows.push(Row { name: name.trim_matches('`').to_owned(), line, uses });
    }
    if rows.is_empty() {
        let what = "the table of crates is missing";
        problems.push(Problem::new(DOCUMENT, 1, what, format!("it starts with: {HEADER}")));
    }
    (rows, problems)
}

/// The crates that each crate may use, directly or through another.
fn closure(rows: &[Row]) -> BTreeMap<&str, BTreeSet<&str>> {
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

#[cfg(test)]
#[path = "arrows_tests.rs"]
mod tests;
