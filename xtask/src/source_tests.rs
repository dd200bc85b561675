use super::*;

fn found(file: &str, text: &str) -> Vec<String> {
    check_file(file, text)
        .into_iter()
        .map(|Problem { line, what, .. }| format!("{line}: {what}"))
        .collect()
}

fn function(lines: usize) -> String {
    format!("fn long(a: u8)\nwhere\n    u8: Copy,\n{{{}}}\n", "\n".repeat(lines - 4))
}

#[test]
fn plain_code_is_accepted() {
    let text = r##"
        //! todo!() and unsafe in a comment, /* #[ignore] */ too.
        type Pointer = fn(u8) -> u8;
        const TEXT: &str = "todo!() unsafe #[ignore]";
        const RAW: &str = r#"fn never() { todo!() }"#;
        trait T { fn declared(&self); }
        fn todo(unimplemented: bool) -> bool { todo != unimplemented }
    "##;
    assert_eq!(found("crates/wire/src/lib.rs", text), [""; 0]);
}

#[test]
fn a_long_file_is_found() {
    assert_eq!(found("crates/wire/src/lib.rs", &"\n".repeat(600)), [""; 0]);
    assert_eq!(
        found("crates/wire/src/lib.rs", &"\n".repeat(601)),
        ["601: 601 lines, the limit is 600"]
    );
}

#[test]
fn a_long_function_is_found_wherever_it_is() {
    assert_eq!(found("crates/wire/src/lib.rs", &function(80)), [""; 0]);
    let long = "function `long` has 81 lines, the limit is 80";
    for text in [
        function(81),
        format!("impl X {{ pub const {} }}", function(81)),
        format!("proptest! {{ #[test] {} }}", function(81)),
    ] {
        assert_eq!(found("crates/wire/src/lib.rs", &text), [format!("1: {long}")]);
    }
}

#[test]
fn a_function_without_a_body_does_not_count_the_next_one() {
    let text = format!("trait T {{ fn short(); }} {}", function(81));
    assert_eq!(
        found("crates/wire/src/lib.rs", &text),
        ["1: function `long` has 81 lines, the limit is 80"]
    );
}

#[test]
fn a_vague_name_is_found() {
    for file in [
        "crates/wire/src/util.rs",
        "crates/wire/tests/helpers.rs",
        "crates/wire/tests/common/mod.rs",
        "crates/lab/src/helper.rs",
        "xtask/src/misc.rs",
    ] {
        assert_eq!(found(file, "").len(), 1, "{file}");
    }
    for file in ["crates/conntrack/src/helper/ftp.rs", "crates/conntrack/src/helper/mod.rs"] {
        assert_eq!(found(file, ""), [""; 0], "{file}");
    }
}

#[test]
fn unsafe_code_is_found_outside_netio() {
    let text = "fn f() {\n    unsafe{ g() }\n}";
    assert_eq!(found("crates/engine/src/lib.rs", text), ["2: unsafe code"]);
    assert_eq!(found("crates/netio/src/lib.rs", text), [""; 0]);
}

#[test]
fn unfinished_code_is_found() {
    assert_eq!(
        found("crates/wire/src/lib.rs", "fn f() { todo!() }\nfn g() { unimplemented!() }"),
        ["1: `todo!` is a panic in waiting", "2: `unimplemented!` is a panic in waiting"]
    );
}

#[test]
fn an_ignored_test_is_found() {
    for attribute in ["#[ignore]", "#[ignore = \"slow\"]", "#[cfg_attr(all(), ignore)]"] {
        let text = format!("#[test]\n{attribute}\nfn f() {{}}");
        assert_eq!(found("crates/wire/src/lib.rs", &text), ["2: a test that is ignored"]);
    }
}

#[test]
fn a_file_that_is_not_rust_is_found() {
    let found = found("crates/wire/src/lib.rs", "fn f() {}\n)");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("2: not Rust"), "{found:?}");
}
