//! The rule for files that Markdown names between backticks: a Rust file of that path, or of a path
//! that ends so, is there.

use std::collections::BTreeSet;
use std::path::Path;

use crate::problem::Problem;
use crate::source;

/// Checks the Markdown of the workspace against its Rust files.
pub fn check(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let files = source::files(root, &["crates", "xtask"], "rs")?;
    let endings = endings(&files);
    let mut problems = Vec::new();
    for file in source::markdown(root)? {
        problems.extend(check_text(&file, &crate::read(root, &file)?, &endings));
    }
    Ok(problems)
}

/// Each path from each of its names on.
fn endings(files: &[String]) -> BTreeSet<&str> {
    let mut endings = BTreeSet::new();
    for path in files {
        let starts = path.match_indices('/').map(|(at, _)| at + 1);
        endings.extend(std::iter::once(0).chain(starts).map(|at| &path[at..]));
    }
    endings
}

fn check_text(file: &str, text: &str, endings: &BTreeSet<&str>) -> Vec<Problem> {
    let lines = (1..).zip(text.lines());
    let named = lines.flat_map(|(number, line)| {
        let quoted = line.split('`').skip(1).step_by(2);
        quoted.filter(|name| is_file_name(name)).map(move |name| (number, name))
    });
    named
        .filter(|(_, name)| !endings.contains(name))
        .map(|(number, name)| {
            Problem::new(
                file,
                number,
                format!("there is no file {name}"),
                "name the file where that is now, from any of its directories on",
            )
        })
        .collect()
}

/// True for the path of one Rust file. `foo_tests.rs` is the example of a name.
fn is_file_name(text: &str) -> bool {
    let is_part = |it: char| it.is_ascii_alphanumeric() || "_-./".contains(it);
    let is_example = matches!(text, "foo.rs" | "foo_tests.rs");
    text.ends_with(".rs") && text.chars().all(is_part) && !is_example
}

#[cfg(test)]
#[path = "file_names_tests.rs"]
mod tests;
