//! The drop reasons in docs/drops.md. Names and meanings come from the code. The document has the
//! order and the advice to operators, which stay as they are.

use std::collections::BTreeMap;
use std::path::Path;

use flow::DropReason;

use crate::problem::Problem;

const DOCUMENT: &str = "docs/drops.md";
const HEADER: &str = "| reason | meaning | what to do |\n| --- | --- | --- |\n";
const UPDATE: &str = "run `cargo xtask drops --write`";

/// Compares the document with the code.
pub fn check(root: &Path) -> anyhow::Result<Vec<Problem>> {
    Ok(compare(&crate::read(root, DOCUMENT)?, &in_code()))
}

/// Brings names and meanings up to date. A reason that is not in the document is
/// added at its end, without advice, which [`check`] then asks for.
pub fn update(root: &Path) -> anyhow::Result<()> {
    let updated = rewrite(&crate::read(root, DOCUMENT)?, &in_code());
    Ok(std::fs::write(root.join(DOCUMENT), updated)?)
}

type Reason = (&'static str, &'static str);

fn in_code() -> Vec<Reason> {
    DropReason::ALL.iter().map(|reason| (reason.name(), reason.meaning())).collect()
}

/// Splits a row of the table: name, meaning, advice.
fn row(line: &str) -> Option<(&str, &str, &str)> {
    let cells = line.strip_prefix("| `")?.strip_suffix('|')?;
    let (name, rest) = cells.split_once("` |")?;
    let (meaning, advice) = rest.split_once('|')?;
    Some((name, meaning.trim(), advice.trim()))
}

fn compare(document: &str, reasons: &[Reason]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, text) in document.lines().enumerate() {
        let Some((name, meaning, advice)) = row(text) else { continue };
        let line = index + 1;
        let mut report = |what: String, remedy: &str| {
            problems.push(Problem::new(DOCUMENT, line, what, remedy));
        };
        match reasons.iter().find(|reason| reason.0 == name) {
            None => report(format!("there is no drop reason `{name}`"), UPDATE),
            Some(reason) if reason.1 != meaning => {
                report(format!("`{name}` means something else in the code: {}", reason.1), UPDATE);
            }
            Some(_) => {}
        }
        if advice.is_empty() {
            report(
                format!("`{name}` comes without advice"),
                "say in the last cell what an operator who sees it count should do",
            );
        }
        if let Some(first) = seen.insert(name, line) {
            report(format!("`{name}` is in line {first} already"), "take one of the two out");
        }
    }
    let missing = reasons.iter().filter(|reason| !seen.contains_key(reason.0));
    let end = document.lines().count().max(1);
    problems.extend(missing.map(|(name, _)| {
        Problem::new(DOCUMENT, end, format!("drop reason `{name}` is not documented"), UPDATE)
    }));
    problems
}

fn rewrite(document: &str, reasons: &[Reason]) -> String {
    let mut missing: Vec<Reason> = reasons.to_vec();
    let mut text = String::new();
    for line in document.lines() {
        let updated = match row(line) {
            None => line.to_owned(),
            Some((name, _, advice)) => {
                let Some(index) = missing.iter().position(|reason| reason.0 == name) else {
                    continue;
                };
                let (name, meaning) = missing.remove(index);
                format!("| `{name}` | {meaning} | {advice} |")
            }
        };
        text.push_str(&updated);
        text.push('\n');
    }
    if !missing.is_empty() {
        text.push_str("\n## To be sorted in\n\n");
        text.push_str(HEADER);
        for (name, meaning) in missing {
            text.push_str(&format!("| `{name}` | {meaning} | |\n"));
        }
    }
    text
}

#[cfg(test)]
#[path = "drops_tests.rs"]
mod tests;
