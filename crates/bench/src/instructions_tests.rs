use super::*;

#[test]
fn every_subject_runs_and_its_frames_go_where_they_should() {
    for subject in all() {
        let units = run(subject.kind.name(), subject.name)
            .unwrap_or_else(|error| panic!("{subject}: {error}"));
        let least = TURNS as u64 * if matches!(subject.frames, Frames::Churn(_)) { 32 } else { 64 };
        assert!(units >= least, "{subject}: {units}");
    }
}

#[test]
fn the_frames_of_each_are_made_by_something_that_is_counted_too() {
    let all = all();
    for subject in &all {
        let making = subject.frames.making();
        assert!(
            all.iter().any(|other| (other.kind, other.name) == (Kind::Making, making)),
            "{subject}"
        );
    }
    let mut names: Vec<_> = all.iter().map(|subject| (subject.kind.name(), subject.name)).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
}

#[test]
fn an_unknown_name_is_an_error() {
    let error = run("packet", "rool").unwrap_err();
    assert_eq!(error.to_string(), "instructions: there is no packet rool");
}
