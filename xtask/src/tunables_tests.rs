use super::*;

fn tunable(default: u64, unit: Unit) -> Tunable {
    Tunable { name: "nf_example", unit, default, min: 1, max: 9, meaning: "An example." }
}

fn written(tunable: &Tunable) -> String {
    let mut text = String::new();
    section(&mut text, "Examples", std::iter::once(tunable));
    text
}

#[test]
fn a_tunable_is_one_row() {
    let text = written(&tunable(5, Unit::Seconds));
    assert!(text.ends_with("| `nf_example` | 5 | s | 1 to 9 | An example. |\n"), "{text}");
    let text = written(&tunable(0, Unit::Switch));
    assert!(text.ends_with("| `nf_example` | 0 |  | 0 or 1 | An example. |\n"), "{text}");
}

#[test]
fn a_document_that_differs_is_found() {
    let code = written(&tunable(5, Unit::Seconds));
    assert_eq!(compare(&code, &code), None);

    let outdated = written(&tunable(4, Unit::Seconds));
    let problem = compare(&outdated, &code).unwrap();
    assert_eq!(problem.line, 6);
    assert!(problem.what.contains("| `nf_example` | 5 |"), "{problem}");

    let shorter = &code[..code.len() - 1];
    assert!(compare(shorter, &code).is_some());
    assert_eq!(compare(&format!("{code}more\n"), &code).unwrap().line, 7);
}
