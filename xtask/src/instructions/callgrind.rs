//! The files of callgrind: instructions by function.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};

/// Instructions that were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// All.
    pub total: u64,
    /// Of each function by itself, without those that it calls. Instances of a generic function
    /// have one name and stand together.
    pub functions: BTreeMap<String, u64>,
}

/// Reads the file of a run with `--compress-strings=no --compress-pos=no`, by its description
/// at <https://valgrind.org/docs/manual/cl-format.html>: lines of costs belong to the `fn=` above
/// them, but for the one behind `calls=`, which has the cost of the called function.
pub fn parse(text: &str) -> anyhow::Result<Profile> {
    let mut profile = Profile::default();
    let mut function = None;
    let mut total = None;
    let mut is_callee = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = Some(without_hash(name).to_owned());
        } else if line.starts_with("calls=") {
            is_callee = true;
        } else if let Some(sum) = line.strip_prefix("totals: ") {
            total = Some(sum.trim().parse().context("the total is no number")?);
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            if std::mem::take(&mut is_callee) {
                continue;
            }
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
            let Some((cost, function)) = cost.zip(function.as_ref()) else {
                bail!("line {} is not of the form that is expected: {line}", index + 1);
            };
            *profile.functions.entry(function.clone()).or_default() += cost;
        }
    }
    profile.total = total.context("there is no total: the run did not come to its end")?;
    profile.functions.retain(|_, cost| *cost > 0);
    Ok(profile)
}

/// A name without the hash that the compiler adds, which changes with every version, and without
/// the number that callgrind adds to recursive calls.
fn without_hash(name: &str) -> &str {
    let name = name.split_once('\'').filter(|(_, count)| is_number(count)).map_or(name, |it| it.0);
    match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|it| it.is_ascii_hexdigit()) => {
            name
        }
        _ => name,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
#[path = "callgrind_tests.rs"]
mod tests;
