use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn set(numbers: &[u8]) -> Labels {
    numbers.iter().map(|&number| Label::new(number).unwrap()).collect()
}

fn names(known: &[(u8, &str)]) -> LabelNames {
    let mut names = LabelNames::default();
    for &(number, name) in known {
        names.name(Label::new(number).unwrap(), name).unwrap();
    }
    names
}

#[test]
fn names_that_could_be_something_else_or_are_taken_are_refused() {
    let mut known = names(&[(40, "bulk")]);
    let label = |number| Label::new(number).unwrap();
    for wrong in ["", "7", "a,b", "a b", "\t", &"x".repeat(64)] {
        let error = NameError::Name { name: wrong.to_owned() };
        assert_eq!(known.name(label(1), wrong), Err(error));
    }
    let taken = Err(NameError::Taken { number: 40, name: "bulk".into() });
    assert_eq!(known.name(label(1), "bulk"), taken);
    assert_eq!(known.name(label(40), "last"), taken);
    assert_eq!(known, names(&[(40, "bulk")]), "nothing has changed");
    known.name(label(1), &"x".repeat(63)).unwrap();
    assert_eq!(Label::new(128), None);
}

#[test]
fn labels_are_read_by_name_or_number() {
    let names = names(&[(40, "bulk"), (127, "last"), (3, "7th")]);
    assert_eq!(names.read_list("last,bulk,7"), Ok(set(&[7, 40, 127])));
    assert_eq!(names.read_list("7th"), Ok(set(&[3])));
    for wrong in ["", "128", "bulk,", "Bulk", "-1", "bulk last"] {
        assert!(names.read_list(wrong).is_err(), "{wrong}");
    }
    let error = names.read_list("bulk,first").unwrap_err().to_string();
    assert_eq!(error, "\"first\" is no label; known are the numbers 0 to 127, 7th, bulk, last");
    assert_eq!(names.tell(set(&[0, 3, 127])), ["0", "7th", "last"]);
}

/// `conntrack` 1.4.7 printed the expected ends of lines on Linux 6.18, with a `connlabel.conf`
/// that names 0, 40 and 127.
#[test]
fn labels_stand_at_the_end_of_a_line_as_the_tool_prints_them() {
    let names = names(&[(0, "eth0-in"), (40, "bulk"), (127, "last")]);
    let end = |numbers| format!("mark=0 use=1{}", AtTheEnd(set(numbers), &names));
    assert_eq!(end(&[]), "mark=0 use=1");
    assert_eq!(end(&[127, 40, 0]), "mark=0 use=1 labels=eth0-in,bulk,last");
    assert_eq!(end(&[40, 100]), "mark=0 use=1 labels=bulk");
    assert_eq!(end(&[100]), "mark=0 use=1 labels");
}

proptest! {
    #[test]
    fn labels_are_a_set(
        a in prop::collection::btree_set(0u8..128, 0..12),
        b in prop::collection::btree_set(0u8..128, 0..12),
    ) {
        let of = |numbers: &BTreeSet<u8>| set(&numbers.iter().copied().collect::<Vec<_>>());
        let numbers = |labels: Labels| labels.iter().map(Label::number).collect::<BTreeSet<_>>();
        prop_assert_eq!(numbers(of(&a)), a.clone());
        prop_assert_eq!(numbers(of(&a) | of(&b)), a.union(&b).copied().collect());
        prop_assert_eq!(numbers(of(&a) & !of(&b)), a.difference(&b).copied().collect());
        prop_assert_eq!(of(&a).include(of(&b)), a.is_superset(&b));
        prop_assert_eq!(of(&a).is_empty(), a.is_empty());
        let names = LabelNames::default();
        prop_assert_eq!(names.read_list(&names.tell(of(&a)).join(",")).ok().unwrap_or_default(), of(&a));
    }
}
