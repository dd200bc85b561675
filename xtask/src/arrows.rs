//! Arrows between crates point down. The table of crates in docs/architecture.md
//! is the one place that says which arrows there may be; it is read here.

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::Metadata;

use crate::layers::{self, Kind};
use crate::problem::Problem;

const DOCUMENT: &str = "docs/architecture.md";
/// The table of crates.
const CRATES: Kind =
    Kind { document: DOCUMENT, header: "| crate | what lives there | may use |", of: "crates" };
/// Crates that are no part of the product: nothing may use them, they may use all.
const TOOLS: &[&str] = &["xtask"];

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
    Ok(compare(&crate::read(root, DOCUMENT)?, &crates))
}

fn compare(document: &str, crates: &[Crate]) -> Vec<Problem> {
    let (rows, mut problems) = layers::parse(CRATES, document);
    let allowed = layers::closure(&rows);
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

#[cfg(test)]
#[path = "arrows_tests.rs"]
mod tests;
