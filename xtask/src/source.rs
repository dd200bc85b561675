//! Rules for Rust files that need no more than their tokens: sizes, names, and
//! words that have no place. Tokens rather than a syntax tree, because they show
//! the inside of macro calls too.

use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::problem::Problem;

/// Longest file, tests included.
const FILE_LINES: usize = 600;
/// Longest function, from `fn` to its closing brace.
const FUNCTION_LINES: usize = 80;
/// Names that say nothing of what a file holds.
const VAGUE_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc"];
/// The crate in which `helper` is the field's term for an application-level tracker.
const HELPER_CRATE: &str = "crates/conntrack/";
/// The one crate with unsafe code.
const UNSAFE_CRATE: &str = "crates/netio/";

/// Checks every Rust file of the workspace.
pub fn check(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for file in files(root, &["crates", "xtask"], "rs")? {
        problems.extend(check_file(&file, &crate::read(root, &file)?));
    }
    Ok(problems)
}

/// The files below some directories that have an extension, as paths relative to the root.
pub fn files(root: &Path, directories: &[&str], extension: &str) -> anyhow::Result<Vec<String>> {
    let mut files = Vec::new();
    for directory in directories {
        collect(root, &root.join(directory), extension, &mut files)?;
    }
    files.sort();
    Ok(files)
}

/// The Markdown files of the root and of the directories with text.
pub fn markdown(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut files = files(root, &["crates", "docs", "examples", "xtask"], "md")?;
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        files.extend(Some(name).filter(|name| name.ends_with(".md")));
    }
    Ok(files)
}

fn collect(
    root: &Path,
    directory: &Path,
    extension: &str,
    files: &mut Vec<String>,
) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, extension, files)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path.strip_prefix(root)?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn check_file(file: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(check_name(file));
    let lines = text.lines().count();
    if lines > FILE_LINES {
        problems.push(Problem::new(
            file,
            FILE_LINES + 1,
            format!("{lines} lines, the limit is {FILE_LINES}"),
            "split the file by what its parts do; tests go into a file beside it",
        ));
    }
    match text.parse::<TokenStream>() {
        Ok(tokens) => scan(file, tokens, &mut problems),
        Err(error) => problems.push(Problem::new(
            file,
            error.span().start().line.max(1),
            format!("not Rust: {error}"),
            "`cargo check` says more; a file that is not Rust needs another extension",
        )),
    }
    problems
}

fn check_name(file: &str) -> Option<Problem> {
    let path = Path::new(file);
    // The name of a module in `NAME/mod.rs` is that of its directory.
    let named = if path.ends_with("mod.rs") { path.parent()? } else { path };
    let name = named.file_stem()?.to_str()?;
    let is_term = name == "helper" && file.starts_with(HELPER_CRATE);
    (VAGUE_NAMES.contains(&name) && !is_term).then(|| {
        Problem::new(
            file,
            1,
            format!("the name `{name}` does not say what the file holds"),
            "name it after the thing that lives in it, or move its content to where it is used",
        )
    })
}

/// Looks at one level of tokens and goes into its groups.
fn scan(file: &str, tokens: TokenStream, problems: &mut Vec<Problem>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        let rest = &tokens[index + 1..];
        match token {
            TokenTree::Ident(word) => {
                let line = word.span().start().line;
                problems.extend(check_word(file, line, &word.to_string(), rest));
            }
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let line = punct.span().start().line;
                problems.extend(check_attribute(file, line, rest));
            }
            TokenTree::Group(group) => scan(file, group.stream(), problems),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn check_word(file: &str, line: usize, word: &str, rest: &[TokenTree]) -> Option<Problem> {
    match word {
        "fn" => check_function(file, line, rest),
        "unsafe" if !file.starts_with(UNSAFE_CRATE) => Some(Problem::new(
            file,
            line,
            "unsafe code",
            format!("write it without, or put it into {UNSAFE_CRATE} with its proof"),
        )),
        "todo" | "unimplemented" if is_macro_call(rest) => Some(Problem::new(
            file,
            line,
            format!("`{word}!` is a panic in waiting"),
            "finish it, or leave it out and return an error that says so",
        )),
        _ => None,
    }
}

/// `rest` follows the word `fn`, which is also the start of a pointer type.
fn check_function(file: &str, line: usize, rest: &[TokenTree]) -> Option<Problem> {
    let Some(TokenTree::Ident(name)) = rest.first() else { return None };
    let end =
        rest.iter().take_while(|token| !is_punct(Some(token), ';')).find_map(
            |token| match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    Some(group.span_close().end().line)
                }
                _ => None,
            },
        )?;
    let lines = end - line + 1;
    (lines > FUNCTION_LINES).then(|| {
        Problem::new(
            file,
            line,
            format!("function `{name}` has {lines} lines, the limit is {FUNCTION_LINES}"),
            "split it into steps that have names",
        )
    })
}

/// `rest` follows the `#` of what may be an attribute.
fn check_attribute(file: &str, line: usize, rest: &[TokenTree]) -> Option<Problem> {
    let attribute = match rest {
        [TokenTree::Group(attribute), ..] => attribute,
        [TokenTree::Punct(_), TokenTree::Group(attribute), ..] => attribute,
        _ => return None,
    };
    (attribute.delimiter() == Delimiter::Bracket && has_word(attribute.stream(), "ignore")).then(
        || {
            Problem::new(
                file,
                line,
                "a test that is ignored",
                "mend it or delete it; one that lacks something on this machine says SKIPPED",
            )
        },
    )
}

fn has_word(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == word,
        TokenTree::Group(group) => has_word(group.stream(), word),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// `rest` follows a word: `name!(...)` and not `name != ...`.
fn is_macro_call(rest: &[TokenTree]) -> bool {
    is_punct(rest.first(), '!') && matches!(rest.get(1), Some(TokenTree::Group(_)))
}

fn is_punct(token: Option<&TokenTree>, punct: char) -> bool {
    matches!(token, Some(TokenTree::Punct(found)) if found.as_char() == punct)
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
