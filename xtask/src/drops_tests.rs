use super::*;

const CODE: &[Reason] = &[("cut_short", "Header cut short."), ("full", "Table full.")];

const DOCUMENTED: &str = "\
# Drops

| reason | meaning | what to do |
| --- | --- | --- |
| `full` | Table full. | Raise the limit. |

## Shape

| `cut_short` | Header cut short. | Look at the sender. |
";

fn found(document: &str) -> Vec<String> {
    compare(document, CODE)
        .into_iter()
        .map(|Problem { line, what, .. }| format!("{line}: {what}"))
        .collect()
}

#[test]
fn a_document_that_agrees_is_accepted_and_stays() {
    assert_eq!(found(DOCUMENTED), [""; 0]);
    assert_eq!(rewrite(DOCUMENTED, CODE), DOCUMENTED);
}

#[test]
fn a_reason_that_is_not_documented_is_found_and_added() {
    let document = DOCUMENTED.replace("| `full` | Table full. | Raise the limit. |\n", "");
    assert_eq!(found(&document), ["8: drop reason `full` is not documented"]);
    let written = rewrite(&document, CODE);
    assert!(written.ends_with("| --- | --- | --- |\n| `full` | Table full. | |\n"), "{written}");
    assert_eq!(found(&written), ["14: `full` comes without advice"]);
}

#[test]
fn a_reason_that_is_gone_is_found_and_removed() {
    let document = DOCUMENTED.replace("`full`", "`empty`");
    assert_eq!(
        found(&document),
        ["5: there is no drop reason `empty`", "9: drop reason `full` is not documented"]
    );
    assert!(!rewrite(&document, CODE).contains("empty"));
}

#[test]
fn a_meaning_that_changed_is_found_and_brought_up_to_date() {
    let document = DOCUMENTED.replace("Table full.", "No room.");
    assert_eq!(found(&document), ["5: `full` means something else in the code: Table full."]);
    assert_eq!(rewrite(&document, CODE), DOCUMENTED);
}

#[test]
fn a_row_twice_is_found_and_removed() {
    let document = format!("{DOCUMENTED}| `full` | Table full. | Wait. |\n");
    assert_eq!(found(&document), ["10: `full` is in line 5 already"]);
    assert_eq!(rewrite(&document, CODE), DOCUMENTED);
}
