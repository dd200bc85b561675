use super::*;

/// The lines of the names that are found to be wrong.
fn found(text: &str) -> Vec<usize> {
    let files =
        ["crates/engine/src/path/nat/mod.rs", "crates/wire/src/lib.rs", "xtask/src/main.rs"]
            .map(str::to_owned);
    let problems = check_text("docs/a.md", text, &endings(&files));
    problems.into_iter().map(|problem| problem.line).collect()
}

#[test]
fn a_file_that_is_not_there_is_found() {
    for text in [
        "See `nat/gone.rs`.",
        "See `engine/src/nat/mod.rs`.",
        "See `at/mod.rs`, which is the end of a path and of no name.",
        "| a | `path/nat/mod.rs`, `mod_tests.rs` |",
        "`a` and `b.rs`",
    ] {
        assert_eq!(found(text), [1], "{text}");
    }
    assert_eq!(found("`main.rs`\n\nOne `a.rs`, two `b.rs`.\n"), [3, 3]);
}

#[test]
fn files_are_named_from_any_directory_on() {
    for text in [
        "`crates/wire/src/lib.rs`, `wire/src/lib.rs`, `lib.rs`",
        "`nat/mod.rs` and `xtask/src/main.rs`",
        "A file `foo.rs` has its tests in `foo_tests.rs`.",
        "Without backticks, gone.rs is a word.",
        "`docs/gone.md`, `path/*.rs`, `crates/lab/tests/live`",
    ] {
        assert_eq!(found(text), [0; 0], "{text}");
    }
}
