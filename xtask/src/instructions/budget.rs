//! Budgets: each figure at the time of its recording, and the share of each function.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// One number for each figure.
pub const BUDGETS: &str = "xtask/instructions.toml";
/// The shares of functions.
pub const FUNCTIONS: &str = "xtask/instructions-functions.toml";
/// Part of a budget by which a figure may be over it, per cent, and below it until somebody is
/// asked to lower it.
const TOLERANCE: u64 = 2;
/// Functions that are named at most.
const NAMED: usize = 5;

const HEADER: &str = "\
# Instructions for each packet and each connection, less making their frames, and for making
# those. Written by `cargo xtask instructions --write`; see CONTRIBUTING.md.
";
const FUNCTIONS_HEADER: &str = "\
# The functions' own instructions within the figures of instructions.toml, making frames
# included. They serve to name the functions that grow. Written by `cargo xtask instructions --write`.
";

/// Instructions by kind and name.
pub type Figures = BTreeMap<String, BTreeMap<String, u64>>;
/// Instructions by function.
pub type Functions = BTreeMap<String, u64>;

/// A figure that was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figure {
    /// Packet, connection or making.
    pub kind: String,
    /// The variant.
    pub name: String,
    /// Instructions, less making.
    pub cost: u64,
    /// How much of it each function has by itself, with making.
    pub functions: Functions,
    /// The name of making its frames, and the instructions that were taken off for it.
    pub making: Option<(String, u64)>,
}

/// The share of each function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Version of the compiler.
    pub compiler: String,
    /// By kind and name of the figure.
    pub functions: BTreeMap<String, BTreeMap<String, Functions>>,
}

impl Recorded {
    /// Takes over the figures that were found; others stay.
    pub fn update(&mut self, compiler: &str, found: &[Figure]) {
        compiler.clone_into(&mut self.compiler);
        for Figure { kind, name, functions, .. } in found {
            let kind = self.functions.entry(kind.clone()).or_default();
            kind.insert(name.clone(), functions.clone());
        }
    }

    /// As a file.
    ///
    /// # Errors
    /// If a name can not be written.
    pub fn write(&self) -> anyhow::Result<String> {
        Ok(format!("{FUNCTIONS_HEADER}{}", toml::to_string(self)?))
    }
}

/// The figures by kind and name.
pub fn figures(found: &[Figure]) -> Figures {
    let mut figures = Figures::new();
    for Figure { kind, name, cost, .. } in found {
        figures.entry(kind.clone()).or_default().insert(name.clone(), *cost);
    }
    figures
}

/// Budgets as a file.
///
/// # Errors
/// If a name can not be written.
pub fn write(budgets: &Figures) -> anyhow::Result<String> {
    Ok(format!("{HEADER}\n{}", toml::to_string(budgets)?))
}

/// The result of a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Figures over their budgets, and those without one.
    pub problems: Vec<Problem>,
    /// Figures so far below that their budgets should be lowered.
    pub improvements: Vec<String>,
}

/// Compares figures with the budgets in `text`. Budgets for figures that are not `known` are
/// problems too.
///
/// # Errors
/// If the file is of another form.
pub fn compare(
    text: &str,
    recorded: &Recorded,
    found: &[Figure],
    known: &BTreeSet<(&str, &str)>,
) -> anyhow::Result<Verdict> {
    let budgets: Figures = toml::from_str(text)?;
    let mut verdict = Verdict::default();
    for figure in found {
        let Figure { kind, name, cost, .. } = figure;
        let line = line_of(text, kind, name);
        let Some(&budget) = budgets.get(kind).and_then(|kind| kind.get(name)) else {
            let what = format!("`{kind}.{name}` has no budget; it takes {cost} instructions");
            verdict.problems.push(Problem::new(BUDGETS, line, what, RECORD));
            continue;
        };
        let percent = (cost.abs_diff(budget) as f64) * 100.0 / budget as f64;
        if cost * 100 > budget * (100 + TOLERANCE) {
            let what = format!(
                "`{kind}.{name}` takes {cost} instructions, {percent:.1} % over its budget of \
                 {budget}; grown: {}",
                growth(figure, recorded, &budgets)
            );
            let remedy = format!(
                "find out why with `callgrind_annotate target/instructions/{kind}-{name}.out`; if \
                 it is worth its price, {RECORD}, and say why in the commit"
            );
            verdict.problems.push(Problem::new(BUDGETS, line, what, remedy));
        } else if cost * 100 < budget * (100 - TOLERANCE) {
            verdict.improvements.push(format!(
                "`{kind}.{name}` takes {cost} instructions, {percent:.1} % less than its budget of \
                 {budget}: {RECORD}"
            ));
        }
    }
    for (kind, names) in &budgets {
        for name in names.keys().filter(|name| !known.contains(&(kind, name))) {
            let what = format!("nothing is called `{kind}.{name}`");
            let line = line_of(text, kind, name);
            verdict.problems.push(Problem::new(BUDGETS, line, what, "take its budget out"));
        }
    }
    Ok(verdict)
}

const RECORD: &str = "record it with `cargo xtask instructions --write`";

/// The functions that grew most, with their instructions before and now. Making frames is among
/// them where it fell: less is taken off then, which raises a figure as well.
fn growth(figure: &Figure, recorded: &Recorded, budgets: &Figures) -> String {
    let before = recorded.functions.get(&figure.kind).and_then(|kind| kind.get(&figure.name));
    let mut grown: Vec<(u64, String)> = Vec::new();
    for (function, &now) in &figure.functions {
        let before = before.and_then(|before| before.get(function)).copied().unwrap_or_default();
        if now > before {
            grown.push((now - before, format!("{function} ({before} -> {now})")));
        }
    }
    if let Some((name, now)) = &figure.making
        && let Some(&before) = budgets.get("making").and_then(|making| making.get(name))
        && before > *now
    {
        let what = format!("making.{name} fell and less is taken off ({before} -> {now})");
        grown.push((before - now, what));
    }
    grown.sort_by(|a, b| b.cmp(a));
    if grown.is_empty() {
        return "no function that is recorded".to_owned();
    }
    grown.into_iter().take(NAMED).map(|(_, what)| what).collect::<Vec<_>>().join(", ")
}

/// The line of a budget, or where its section begins, or the first.
fn line_of(text: &str, kind: &str, name: &str) -> usize {
    let section = format!("[{kind}]");
    let mut lines = (1..).zip(text.lines()).skip_while(|(_, line)| line.trim() != section);
    let Some((start, _)) = lines.next() else { return 1 };
    let is_it = |line: &str| line.split_once('=').is_some_and(|(key, _)| key.trim() == name);
    let section = lines.take_while(|(_, line)| !line.starts_with('['));
    section.into_iter().find(|(_, line)| is_it(line)).map_or(start, |(line, _)| line)
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
