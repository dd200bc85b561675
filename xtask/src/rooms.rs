//! Arrows between the rooms of a crate point down. A room is a folder or a file beside `lib.rs`.
//! The table of rooms in a document says which arrows there may be, as that of the crates does.
//!
//! Arrows are read from the tokens of the sources: paths that begin with `crate`, or with as many
//! `super` as lead to the root of the crate. A name that `lib.rs` exports belongs to the room from
//! which it comes. Tests may use all rooms.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::layers::{self, Kind};
use crate::problem::Problem;
use crate::source;

/// The crates whose rooms are checked, each with the document that contains the table.
const CRATES: &[(&str, &str)] =
    &[("conntrack", "docs/internals/tracking.md"), ("engine", "docs/internals/packet-path.md")];
const HEADER: &str = "| room | what lives there | may use |";

/// A source file of a crate.
struct Source {
    /// Path relative to the workspace.
    file: String,
    /// Path relative to `src`, without the extension.
    modules: Vec<String>,
    tokens: TokenStream,
}

/// Compares the arrows between the rooms with the tables.
pub fn check(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for &(name, document) in CRATES {
        let folder = format!("crates/{name}/src");
        let mut sources = Vec::new();
        for file in source::files(root, &[&folder], "rs")? {
            // A file that is not Rust is reported by the check of the sources.
            if let Ok(tokens) = crate::read(root, &file)?.parse() {
                sources.push(Source::new(&folder, file, tokens));
            }
        }
        problems.extend(compare(document, &crate::read(root, document)?, &sources));
    }
    Ok(problems)
}

fn compare(document: &str, text: &str, sources: &[Source]) -> Vec<Problem> {
    let kind = Kind { document, header: HEADER, of: "rooms" };
    let (rows, mut problems) = layers::parse(kind, text);
    let allowed = layers::closure(&rows);
    let rooms: BTreeMap<&str, &str> = sources
        .iter()
        .filter(|source| !source.is_test())
        .filter_map(|source| Some((source.room()?, source.file.as_str())))
        .collect();
    for row in rows.iter().filter(|row| !rooms.contains_key(row.name.as_str())) {
        let what = format!("there is no room `{}`", row.name);
        problems.push(Problem::new(document, row.line, what, "take the row out of the table"));
    }
    for (room, file) in rooms.iter().filter(|(room, _)| !allowed.contains_key(*room)) {
        problems.push(Problem::new(
            *file,
            1,
            format!("room `{room}` is not in the table of {document}"),
            "add a row that says what lives there and what it may use",
        ));
    }
    let exported = exports(sources);
    for source in sources.iter().filter(|source| !source.is_test()) {
        let Some((room, allowed)) = source.room().and_then(|room| allowed.get_key_value(room))
        else {
            continue;
        };
        for (name, line) in source.names() {
            let used = if rooms.contains_key(name.as_str()) {
                name.as_str()
            } else if let Some(room) = exported.get(&name) {
                room.as_str()
            } else {
                continue;
            };
            if used != *room && !allowed.contains(used) {
                problems.push(Problem::new(
                    &source.file,
                    line,
                    format!("room `{room}` may not use `{used}`"),
                    format!(
                        "move the code down, or change the design with the table in {document}"
                    ),
                ));
            }
        }
    }
    problems
}

/// The names that the root of the crate exports, each with the room from which it comes.
fn exports(sources: &[Source]) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    let root = sources.iter().find(|source| source.modules == ["lib"]);
    let tokens = root.map(|root| root.tokens.clone().into_iter().collect::<Vec<_>>());
    let tokens = tokens.unwrap_or_default();
    for (at, token) in tokens.iter().enumerate() {
        if !is_word(token, "use") {
            continue;
        }
        let path = &tokens[at + 1..];
        let end = path.iter().position(|token| is_mark(token, ';')).unwrap_or(path.len());
        let path = match &path[..end] {
            [first, a, b, rest @ ..] if is_word(first, "self") && is_path(a, b) => rest,
            path => path,
        };
        if let Some(TokenTree::Ident(room)) = path.first() {
            let leaves = leaves(path);
            exports.extend(leaves.into_iter().map(|leaf| (leaf, room.to_string())));
        }
    }
    exports
}

/// The names that a path or a group of paths brings in.
fn leaves(path: &[TokenTree]) -> Vec<String> {
    match path.last() {
        Some(TokenTree::Group(group)) => {
            let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
            tokens.split(|token| is_mark(token, ',')).flat_map(leaves).collect()
        }
        Some(TokenTree::Ident(name)) => vec![name.to_string()],
        _ => Vec::new(),
    }
}

impl Source {
    fn new(folder: &str, file: String, tokens: TokenStream) -> Self {
        let path = file.trim_start_matches(folder).trim_end_matches(".rs");
        let modules = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        Self { file, modules, tokens }
    }

    /// The room that contains the file; `None` for the root of the crate.
    fn room(&self) -> Option<&str> {
        let first = self.modules.first()?;
        (!matches!(first.as_str(), "lib" | "main")).then_some(first)
    }

    fn is_test(&self) -> bool {
        let is_test =
            |name: &String| name == "testing" || name == "tests" || name.ends_with("_tests");
        self.modules.iter().any(is_test)
    }

    /// Number of `super` that lead from the file to the root of the crate.
    fn depth(&self) -> usize {
        let is_folder = self.modules.last().is_some_and(|last| last == "mod");
        self.modules.len() - usize::from(is_folder)
    }

    /// The first names behind the root of the crate in all paths, each with its line.
    fn names(&self) -> BTreeSet<(String, usize)> {
        let mut names = BTreeSet::new();
        find(self.tokens.clone(), self.depth(), &mut names);
        names
    }
}

/// Looks at one level of tokens and goes into its groups; leaves out what only tests have.
fn find(tokens: TokenStream, depth: usize, names: &mut BTreeSet<(String, usize)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let rest = &tokens[at + 1..];
        at += 1;
        match token {
            TokenTree::Punct(_) if is_mark(token, '#') && is_for_tests(rest) => {
                let is_end = |token: &TokenTree| match token {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    token => is_mark(token, ';') || is_mark(token, ','),
                };
                at += rest.iter().position(is_end).map_or(rest.len(), |end| end + 1);
            }
            TokenTree::Ident(_) if is_word(token, "crate") => first_names(rest, names),
            TokenTree::Ident(_) if is_word(token, "super") => {
                let more = rest.chunks(3).take_while(
                    |it| matches!(it, [a, b, c] if is_path(a, b) && is_word(c, "super")),
                );
                let more = more.count();
                at += 3 * more;
                if more + 1 >= depth {
                    first_names(&tokens[at..], names);
                }
            }
            TokenTree::Group(group) => find(group.stream(), depth, names),
            _ => {}
        }
    }
}

/// The names that follow the root of the crate: `::name`, or `::{name::x, name}`.
fn first_names(rest: &[TokenTree], names: &mut BTreeSet<(String, usize)>) {
    let mut add = |token: &TokenTree| {
        if let TokenTree::Ident(name) = token {
            names.insert((name.to_string(), name.span().start().line));
        }
    };
    match rest {
        [a, b, TokenTree::Group(group), ..] if is_path(a, b) => {
            let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
            tokens.split(|token| is_mark(token, ',')).filter_map(<[_]>::first).for_each(add);
        }
        [a, b, name, ..] if is_path(a, b) => add(name),
        _ => {}
    }
}

/// True behind the `#` of `#[cfg(test)]`.
fn is_for_tests(rest: &[TokenTree]) -> bool {
    matches!(rest, [TokenTree::Group(group), ..]
        if group.stream().to_string().replace(' ', "") == "cfg(test)")
}

fn is_path(one: &TokenTree, other: &TokenTree) -> bool {
    is_mark(one, ':') && is_mark(other, ':')
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

#[cfg(test)]
#[path = "rooms_tests.rs"]
mod tests;
