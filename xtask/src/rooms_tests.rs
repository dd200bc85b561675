use super::*;

const TABLE: &str = "\
| room | what lives there | may use |
| --- | --- | --- |
| `base` | values | - |
| `store` | memory | base |
| `view` | copies | base |
| `top` | all of it | all above |
";

const ROOT: &str =
    "mod base; pub use base::Value; pub use self::store::{Cell, deep::Slot as Place};";

fn sources(files: &[(&str, &str)]) -> Vec<Source> {
    let all = [("lib", ROOT), ("base", ""), ("store/mod", ""), ("view", ""), ("top/mod", "")];
    let known = |name| !files.iter().any(|(other, _)| *other == name);
    let all = all.into_iter().filter(|(name, _)| known(*name)).chain(files.iter().copied());
    let source = |(name, text): (&str, &str)| {
        let file = format!("crates/it/src/{name}.rs");
        Source::new("crates/it/src", file, text.parse().unwrap())
    };
    all.map(source).collect()
}

fn found_with(table: &str, files: &[(&str, &str)]) -> Vec<String> {
    let problems = compare("TABLE.md", table, &sources(files));
    let text = |Problem { file, line, what, .. }| format!("{file}:{line}: {what}");
    problems.into_iter().map(text).collect()
}

fn found(file: &str, text: &str) -> Vec<String> {
    found_with(TABLE, &[(file, text)])
}

#[test]
fn arrows_that_point_down_are_accepted() {
    assert_eq!(found("store/mod", "use crate::base::Value; use crate::Cell;"), [""; 0]);
    assert_eq!(
        found("top/mod", "use crate::{store, view::X}; fn f() { crate::base::f() }"),
        [""; 0]
    );
    assert_eq!(found("top/part", "use super::inner; use crate::top::inner;"), [""; 0], "its own");
}

#[test]
fn an_arrow_that_the_table_does_not_allow_is_reported() {
    let report = |file: &str, used: &str| {
        [format!("crates/it/src/{file}.rs:2: room `store` may not use `{used}`")]
    };
    for text in [
        "\nuse crate::view::X;",
        "\nuse crate::{base, view};",
        "\nuse crate::{view::{X, Y}, base};",
        "\nfn f() { if true { crate::view::f() } }",
        "\nuse super::view::X;",
        "\nmac!(crate::view::X);",
    ] {
        assert_eq!(found("store/mod", text), report("store/mod", "view"), "{text}");
    }
    assert_eq!(found("store/part", "\nuse super::super::view;"), report("store/part", "view"));
    assert_eq!(found("store/a/b", "\nuse super::super::super::top;"), report("store/a/b", "top"));
    assert_eq!(found("store/a/b", "\nuse super::super::top;"), [""; 0], "a module of the room");
}

#[test]
fn an_exported_name_belongs_to_its_room() {
    for name in ["Cell", "Place"] {
        let report = ["crates/it/src/view.rs:1: room `view` may not use `store`"];
        assert_eq!(found("view", &format!("use crate::{name};")), report);
        assert_eq!(found("view", &format!("use crate::{{Value, {name}}};")), report);
    }
    assert_eq!(found("view", "use crate::Value;"), [""; 0]);
}

#[test]
fn tests_and_comments_may_name_all_rooms() {
    let text = "//! See [`crate::top`].\n/// And [`crate::top`].\nfn f() {}\n\
                #[cfg(test)]\n#[path = \"x\"]\nmod tests { use crate::top::X; }";
    assert_eq!(found("base", text), [""; 0]);
    assert_eq!(found("base", "#[cfg(test)] use crate::top; struct X;"), [""; 0]);
    assert_eq!(found("base/x_tests", "use crate::top;"), [""; 0]);
    assert_eq!(found("testing/mod", "use crate::top;"), [""; 0], "it needs no row");
    assert_eq!(found("base", "#[cfg(test)] use crate::top; use crate::top;").len(), 1);
}

#[test]
fn rooms_and_rows_must_agree() {
    assert_eq!(
        found("cellar/mod", ""),
        ["crates/it/src/cellar/mod.rs:1: room `cellar` is not in the table of TABLE.md"]
    );
    let table = format!("{TABLE}| `attic` | dust | - |\n");
    assert_eq!(found_with(&table, &[]), ["TABLE.md:7: there is no room `attic`"]);
}

#[test]
fn a_row_that_points_up_is_reported() {
    let table = TABLE.replace("| memory | base |", "| memory | base, top |");
    assert_eq!(
        found_with(&table, &[]),
        ["TABLE.md:4: `store` may use `top`, which is not in a row above it"]
    );
    let missing = found_with("", &[]);
    assert!(missing[0].starts_with("TABLE.md:1: the table of rooms is missing"), "{missing:?}");
}
