use super::*;

const FILE: &str = "\
# callgrind format
version: 1
creator: callgrind-3.19.0
desc: Trigger: Program termination

positions: line
events: Ir
summary: 160

fl=???
fn=engine::worker::Worker::turn
12 40
14 10
cfi=crates/wire/src/dissect.rs
cfn=wire::dissect::dissect
calls=2 7
15 60
fi=/rust/core/src/option.rs
90 20
fe=???
16 1

fl=crates/wire/src/dissect.rs
fn=wire::dissect::dissect
7 60
jump=3 9
jcnd=1/2 9
9 0

fn=wire::dissect::dissect::h0123456789abcdef
8 9

fn=walk'2
8 20

fn=idle
8 0

totals: 160
";

#[test]
fn a_function_has_what_it_does_by_itself_and_not_what_it_calls() {
    let profile = parse(FILE).unwrap();
    assert_eq!(profile.total, 160);
    let functions: Vec<_> =
        profile.functions.iter().map(|(name, cost)| (name.as_str(), *cost)).collect();
    assert_eq!(
        functions,
        [("engine::worker::Worker::turn", 71), ("walk", 20), ("wire::dissect::dissect", 69)]
    );
    assert_eq!(profile.functions.values().sum::<u64>(), profile.total);
}

#[test]
fn a_file_that_is_cut_off_or_of_another_form_is_refused() {
    let cut = FILE.split("totals").next().unwrap();
    assert!(parse(cut).unwrap_err().to_string().contains("no total"));
    let error = parse("fn=a\n12 many\ntotals: 5\n").unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("12 many"), "{error}");
    assert!(parse("12 5\ntotals: 5\n").is_err());
}

#[test]
fn a_name_keeps_what_only_looks_like_a_hash() {
    for (name, kept) in [
        ("a::b::h0123456789abcdef", "a::b"),
        ("a::b::h0123456789abcdeg", "a::b::h0123456789abcdeg"),
        ("a::hash", "a::hash"),
        ("walk'3", "walk"),
        ("<&'a str as T>::f", "<&'a str as T>::f"),
    ] {
        assert_eq!(without_hash(name), kept);
    }
}
