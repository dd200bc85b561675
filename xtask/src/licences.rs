//! Licences of all that is built, tested or measured with, on every platform.

use std::collections::{BTreeMap, VecDeque};

use cargo_metadata::{Metadata, Package, PackageId};
use spdx::{AdditionItem, Expression, LicenseItem, LicenseReq, ParseMode};

use crate::problem::Problem;

/// The licences that the project accepts: MIT, Apache 2.0, BSD, Zlib and Unicode.
/// ISC is the two-clause BSD licence in fewer words, and 0BSD asks for less than
/// any BSD licence, so both count as BSD.
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Zlib",
];
/// An exception only permits more.
const ACCEPTED_EXCEPTION: &str = "LLVM-exception";

/// Checks all packages that the lock file resolves to.
pub fn check(metadata: &Metadata) -> anyhow::Result<Vec<Problem>> {
    let ways = ways_in(metadata);
    let mut problems = Vec::new();
    for package in &metadata.packages {
        if let Err(what) = check_expression(package.license.as_deref()) {
            problems.push(problem(metadata, package, &what, &ways));
        }
    }
    Ok(problems)
}

/// Says why an SPDX expression can not be met with accepted licences alone.
fn check_expression(license: Option<&str>) -> Result<(), String> {
    let license = license.ok_or("names no licence")?;
    // Old packages write "MIT/Apache-2.0".
    let expression = Expression::parse_mode(license, ParseMode::LAX).map_err(|error| {
        format!("has a licence that can not be read: {license}: {}", error.reason)
    })?;
    if expression.evaluate(accepts) {
        Ok(())
    } else {
        Err(format!("has a licence that is not accepted: {license}"))
    }
}

fn accepts(required: &LicenseReq) -> bool {
    let LicenseItem::Spdx { id, .. } = &required.license else { return false };
    let exception = match &required.addition {
        None => true,
        Some(AdditionItem::Spdx(exception)) => exception.name == ACCEPTED_EXCEPTION,
        Some(AdditionItem::Other(_)) => false,
    };
    exception && ACCEPTED.contains(&id.name)
}

/// For each package, the one that pulls it in on a shortest way from the workspace.
fn ways_in(metadata: &Metadata) -> BTreeMap<&PackageId, &PackageId> {
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    let uses: BTreeMap<_, _> = nodes.map(|node| (&node.id, &node.dependencies)).collect();
    let mut waiting: VecDeque<&PackageId> = metadata.workspace_members.iter().collect();
    let mut ways = BTreeMap::new();
    while let Some(user) = waiting.pop_front() {
        for used in uses.get(user).into_iter().copied().flatten() {
            if !ways.contains_key(used) && !metadata.workspace_members.contains(used) {
                ways.insert(used, user);
                waiting.push_back(used);
            }
        }
    }
    ways
}

fn problem(
    metadata: &Metadata,
    package: &Package,
    what: &str,
    ways: &BTreeMap<&PackageId, &PackageId>,
) -> Problem {
    let mut way = vec![package.name.to_string()];
    let mut id = &package.id;
    while let Some(&user) = ways.get(id) {
        way.insert(0, metadata[user].name.to_string());
        id = user;
    }
    Problem::new(
        metadata[id].manifest_path.strip_prefix(&metadata.workspace_root).map_or_else(
            |_| metadata[id].manifest_path.to_string(),
            |manifest| manifest.to_string(),
        ),
        1,
        format!("{} {} {what}", package.name, package.version),
        format!(
            "pulled in by {}; use another crate or switch off the feature that needs it \
             (accepted: {})",
            way.join(" -> "),
            ACCEPTED.join(", ")
        ),
    )
}

#[cfg(test)]
#[path = "licences_tests.rs"]
mod tests;
