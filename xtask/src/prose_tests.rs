use super::*;

/// The lines of the sentences that are found in Markdown.
fn found(text: &str) -> Vec<usize> {
    check_text("docs/a.md", text.lines()).into_iter().map(|problem| problem.line).collect()
}

/// The same for the comments of a Rust file.
fn found_in_code(text: &str) -> Vec<usize> {
    let problems = check_text("crates/a/src/lib.rs", text.lines().map(comment));
    problems.into_iter().map(|problem| problem.line).collect()
}

#[test]
fn a_sentence_with_a_clause_as_its_subject_is_found() {
    for sentence in [
        "What waits is told that it is over.",
        "Who asks gets an answer (RFC 9293).",
        "Whose time is over is forgotten.",
        "Whoever comes by takes the lock.",
        "Whatever is said ends here.",
        "Whoever forwards the frame completes the checksum, which is wrong.",
        "Whatever is read is right, so it can be written.",
        "Whichever comes first counts.",
        "Whether the kernel may be asked is another matter.",
        "Whether it waits.",
        "Which port it gets is its own business.",
        "Which host has heard which packet.",
        "That it carries no frame says little.",
        "And what is known inside is not outside.",
        "It waits; whether it goes on is open.",
        "Of what is left, the oldest goes.",
        "Of which the answers are made.",
        "Of whose stream it is.",
        "Of the packets that wait, the oldest goes.",
        "Of those who ask, one gets it.",
        "What was said last.",
        "(A packet waits.) What is next goes on.",
        "It says \"go.\" What is next goes on.",
        "Is it over? What is next goes on.",
        "- What is an item of a list counts.",
        "1. What is numbered counts too.",
        "| name | What stands in a cell counts. |",
        "It waits; what comes next goes on.",
        "It waits; whoever asks is told.",
        "A replay does without: what gives way must not depend on it.",
        "One worker: what is sent first arrives first.",
        "What is too long lies behind the packet: its sender can not help.",
        "| name | Refused in time; what follows is not looked at |",
        "| name | It counts once. Whoever asks opens a port |",
        "| name | what is complete already stays, what is not goes |",
    ] {
        assert_eq!(found(sentence), [1], "{sentence}");
    }
}

#[test]
fn text_that_is_fine_is_left_alone() {
    for sentence in [
        "# What is promised",
        "What is promised? Much.",
        "What it does",
        "What to do about it.",
        "Who it is for: people who run firewalls.",
        "Whatever the bytes are, it never panics.",
        "Whoever sends it, a packet waits.",
        "Of course, that is so.",
        "Of the 32 bits of a number 28 are a hash.",
        "Of two routes, the first counts.",
        "Of TCP the kernel knows no state that it shows, as it says.",
        "It finds what waits. It is told who asks.",
        "Section 3.5 tells what it is.",
        "A packet waits, whatever is said.",
        "Run `a. What is b.` and see.",
        "| a | what is edited |",
        "| what any connection has: directions, labels |",
        "| what happens when a table is full |",
        "| What happens to a packet whose next hop is unknown? |",
        "| [a](a.md) | what is trusted, which attacks were tried |",
        "The scratch area: what its stages tell each other.",
        "It says one thing of each: what became of it.",
        "It is sent; whatever it is, it arrives.",
        "One is steered; of its kind, if that is one, nothing is known.",
        "| What it is | name |\n| --- | --- |\n| a | b. |",
        "```text\nWhat is code is not read.\n```",
        "Whole packets go on. That is so. That packet waits.",
        "Whether it waits or goes on, it is counted.",
        "Whatever options a packet has, it arrives.",
        "The router: which packets it takes, and where it sends them.",
        "Whichever worker owns it, it stays.",
        "Which of them goes?",
        "It says of each which one it is.",
        "And a packet waits. So do others.",
        "| whether it is there |",
    ] {
        assert_eq!(found(sentence), [0; 0], "{sentence}");
    }
}

#[test]
fn a_sentence_is_found_at_the_line_where_it_begins() {
    assert_eq!(found("One.\n\nTwo goes on\nhere. What waits\nis told."), [4]);
    assert_eq!(found("One\ntwo.\nWhat waits\nis told. Who asks too."), [3, 4]);
}

#[test]
fn of_code_only_comments_are_read() {
    let text =
        "//! What waits is told.\nfn f() {\n    // It is\n    // so. Who asks\n    // knows.\n}\n";
    assert_eq!(found_in_code(text), [1, 4]);
    assert_eq!(found_in_code("/// A.\n/// ```\n/// // What is code.\n/// ```\n"), [0; 0]);
    assert_eq!(found_in_code("let text = \"What waits is told.\";\nWhat::waits();\n"), [0; 0]);
}

#[test]
fn an_item_of_a_list_in_the_middle_of_a_line_is_found() {
    for text in [
        "- One.\n- Two is long\n  and ends. - Three.",
        "- one;\n- two, which is long,\n  and ends; - three.",
    ] {
        assert_eq!(found(text), [3], "{text}");
    }
    let comment = "//! - One.\n//! - Two. - Three.\n";
    assert_eq!(found_in_code(comment), [2]);
    for text in [
        "- One.\n- Two.",
        "It is - so.",
        "Run `a. - b`.",
        "| one. - two |",
        "- One.\n\n  More.\n- Two.",
    ] {
        assert_eq!(found(text), [0; 0], "{text}");
    }
}

#[test]
fn help_texts_are_read_as_comments_are() {
    let found = |text: &str| -> Vec<usize> {
        let texts = help_texts(text);
        let problems = check_text("crates/a/src/lib.rs", texts.iter().map(String::as_str));
        problems.into_iter().map(|problem| problem.line).collect()
    };
    let text = "#[command(\n    short_flag = 'L',\n    after_long_help = \"\\\nIt says \\\"so\\\". \\\n\
        What waits \\\nis told.\n\n  stateway What is code. Who waits is told.\")]\nstruct A;\n";
    assert_eq!(found(text), [5]);
    assert_eq!(found("#[arg(help = \"What waits is told.\")]\nstruct A;\n"), [1]);
    assert_eq!(found("const A: &str = \"What waits is told.\";\n"), [0; 0]);
}

#[test]
fn marks_that_a_merge_has_left_are_found() {
    let text = "Title\n=======\n\n<<<<<<< HEAD\nOne.\n=======\nTwo.\n>>>>>>> other\n";
    let lines: Vec<_> = merge_marks("a.md", text).iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [4, 8]);
}
