use super::*;

const TEXT: &str = "\
# a comment

[connection]
masquerade = 20000

[making]
datagrams = 1200

[packet]
masquerade = 1000
";

fn figure(cost: u64, functions: &[(&str, u64)]) -> Figure {
    Figure {
        kind: "packet".to_owned(),
        name: "masquerade".to_owned(),
        cost,
        functions: functions.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect(),
        making: Some(("datagrams".to_owned(), 1200)),
    }
}

fn recorded() -> Recorded {
    let mut recorded = Recorded::default();
    let functions = [("steady", 1700), ("grows", 300), ("shrinks", 200), ("grows_little", 5)];
    recorded.update("rustc 1", &[figure(1000, &functions)]);
    recorded
}

fn verdict(figure: Figure) -> Verdict {
    let known = BTreeSet::from([
        ("connection", "masquerade"),
        ("making", "datagrams"),
        ("packet", "masquerade"),
    ]);
    compare(TEXT, &recorded(), &[figure], &known).unwrap()
}

#[test]
fn a_rise_of_more_than_two_per_cent_fails_and_names_the_functions_that_grew() {
    let functions =
        [("steady", 1700), ("grows", 311), ("shrinks", 190), ("grows_little", 7), ("new", 13)];
    let Verdict { problems, improvements } = verdict(figure(1021, &functions));
    assert_eq!(improvements, [""; 0]);
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!((problem.file.as_str(), problem.line), (BUDGETS, 10));
    assert_eq!(
        problem.what,
        "`packet.masquerade` takes 1021 instructions, 2.1 % over its budget of 1000; grown: \
         new (0 -> 13), grows (300 -> 311), grows_little (5 -> 7)"
    );
    assert!(problem.remedy.contains("target/instructions/packet-masquerade.out"));
    assert!(problem.remedy.contains("cargo xtask instructions --write"));
}

#[test]
fn a_rise_within_two_per_cent_passes() {
    for cost in [980, 1000, 1019, 1020] {
        assert_eq!(verdict(figure(cost, &[("grows", 400)])), Verdict::default(), "{cost}");
    }
}

#[test]
fn an_improvement_passes_and_is_told() {
    let Verdict { problems, improvements } = verdict(figure(979, &[]));
    assert_eq!(problems, []);
    let [message] = &improvements[..] else { panic!("{improvements:?}") };
    assert!(
        message.contains("979") && message.contains("2.1 % less") && message.contains("--write")
    );
}

#[test]
fn a_figure_without_a_budget_fails() {
    let figure = Figure { name: "router".to_owned(), ..figure(700, &[]) };
    let Verdict { problems, .. } = verdict(figure);
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(problem.line, 9);
    assert_eq!(problem.what, "`packet.router` has no budget; it takes 700 instructions");
}

#[test]
fn a_budget_for_nothing_fails_also_when_only_some_figures_are_measured() {
    let known = BTreeSet::from([("packet", "masquerade"), ("making", "datagrams")]);
    let Verdict { problems, .. } = compare(TEXT, &recorded(), &[], &known).unwrap();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(
        (problem.line, problem.what.as_str()),
        (4, "nothing is called `connection.masquerade`")
    );
}

#[test]
fn cheaper_frames_that_raise_a_figure_are_named() {
    let figure = Figure {
        making: Some(("datagrams".to_owned(), 1150)),
        ..figure(1050, &[("steady", 1700)])
    };
    let Verdict { problems, .. } = verdict(figure);
    let what = "grown: making.datagrams fell and less is taken off (1200 -> 1150)";
    assert!(problems[0].what.ends_with(what), "{problems:?}");
}

#[test]
fn written_files_can_be_read_again() {
    let found = [figure(1000, &[("<a::B<C> as d::E>::f::{{closure}}", 7)])];
    let text = write(&figures(&found)).unwrap();
    assert_eq!(toml::from_str::<Figures>(&text).unwrap(), figures(&found));
    let mut recorded = Recorded::default();
    recorded.update("rustc 1", &found);
    let text = recorded.write().unwrap();
    assert_eq!(toml::from_str::<Recorded>(&text).unwrap(), recorded);
}
