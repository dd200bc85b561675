use super::*;

#[test]
fn a_name_that_is_none_is_answered_with_those_that_are() {
    let error = run("conntrak", Options::default(), &mut Vec::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no benchmark \"conntrak\"; there are: conntrack, defrag, rules, steer, sync"
    );
}
