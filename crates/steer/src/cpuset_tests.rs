use proptest::prelude::*;

use super::*;

fn list(text: &str) -> String {
    text.parse::<CpuSet>().map_or_else(|error| error.to_string(), |set| set.list().to_string())
}

#[test]
fn texts_are_read_as_the_table_says() {
    for (text, expected) in [
        ("", ""),
        (" \n", ""),
        ("0", ""),
        ("3", "0-1"),
        ("03\n", "0-1"),
        ("0x3", "0-1"),
        ("mask:10", "4"),
        ("10", "4"),
        ("0b", "0-1,3"),
        ("FF", "0-7"),
        ("1,00000000", "32"),
        ("00000000,00000003", "0-1"),
        ("80000000,00000000,00000000", "95"),
        ("ffffffffff", "0-39"),
        ("0,2", "0,2"),
        ("0,2,10", "0,2,10"),
        ("0-3,8", "0-3,8"),
        ("5-5", "5"),
        ("cpus:3", "3"),
        ("list:10", "10"),
        ("0-6:2", "0,2,4,6"),
        ("0-15:2/8", "0-1,8-9"),
        ("1023-1023", "1023"),
        ("3-4,4-5", "3-5"),
    ] {
        assert_eq!(list(text), expected, "{text:?}");
    }
}

#[test]
fn mistakes_in_a_cpu_set_are_named_with_their_column() {
    for (text, expected) in [
        ("3g", "column 2: 'g' in a hexadecimal mask; expected digits 0-9 and a-f"),
        ("0x3 4", "column 4: ' ' in a hexadecimal mask; expected digits 0-9 and a-f"),
        ("0-", "column 3: nothing in a CPU list; expected the last CPU of the range"),
        ("0,,2", "column 3: nothing in a CPU list; expected a CPU number"),
        ("cpus:", "column 6: nothing in a CPU list; expected a CPU number"),
        ("0,a", "column 3: 'a' in a CPU list; expected a CPU number"),
        ("  0-3x", "column 6: 'x' in a CPU list; expected ',' or ':'"),
        ("0,3x", "column 4: 'x' in a CPU list; expected ',' or '-'"),
        ("1,5-3", "column 3: the range 5-3 runs backwards; write 3-5"),
        ("0-6:0", "column 5: '0' in a CPU list; expected a number from 1"),
        ("cpus:1024", "column 6: CPU 1024 is beyond the limit, 1023"),
        ("0-7:2/", "column 7: nothing in a CPU list; expected a number of CPUs"),
    ] {
        assert_eq!(list(text), expected, "{text:?}");
    }
    let long = format!("1{}", "0".repeat(256));
    assert_eq!(list(&long), "column 1: CPU 1024 is beyond the limit, 1023");
}

#[test]
fn counts_written_as_masks_are_refused_where_it_can_be_told() {
    let two = CpuSet::first(2);
    let twelve = CpuSet::first(12);
    let error = |text: &str, existing| CpuSet::parse(text, existing).unwrap_err().to_string();
    insta::assert_snapshot!(error("8", &two), @r#"column 1: read as a hexadecimal mask this means CPUs 3, but there is no CPU 3: the CPUs are 0-1. For all of them write "3""#);
    insta::assert_snapshot!(error("10-12", &twelve), @r#"column 1: read as a CPU list this means CPUs 10-12, but there is no CPU 12: the CPUs are 0-11. For all of them write "fff""#);
    insta::assert_snapshot!(error("1,00000001", &twelve), @r#"column 1: read as a hexadecimal mask this means CPUs 0,32, but there is no CPU 32: the CPUs are 0-11. For all of them write "fff""#);
    let six = CpuSet::first(6);
    insta::assert_snapshot!(error("0040", &six), @r#"column 3: read as a hexadecimal mask this means CPUs 6, but there is no CPU 6: the CPUs are 0-5. For all of them write "3f""#);
    let four = CpuSet::first(4);
    insta::assert_snapshot!(error("11", &four), @r#"column 1: read as a hexadecimal mask this means CPUs 0,4, but there is no CPU 4: the CPUs are 0-3. For all of them write "f""#);
    let odd: CpuSet = [0, 2, 4, 6, 8, 10].into_iter().collect();
    insta::assert_snapshot!(error("2", &odd), @r#"column 1: read as a hexadecimal mask this means CPUs 1, but there is no CPU 1: the CPUs are 0,2,4,6,8,10. For all of them write "555"; for 2 CPUs write "5"; for CPU 2 alone write "cpus:2""#);
    assert_eq!(CpuSet::parse("3", &two), Ok(two));
    assert_eq!(CpuSet::parse("12", &twelve), Ok([1, 4].into_iter().collect()), "can not be told");
}

fn sets() -> impl Strategy<Value = CpuSet> {
    prop::collection::vec(0..MAX_CPUS, 0..40).prop_map(|cpus| cpus.into_iter().collect())
}

proptest! {
    #[test]
    fn both_forms_are_read_back(set in sets(), count in 0..70_usize) {
        for set in [set, CpuSet::first(count)] {
            prop_assert_eq!(set.mask().to_string().parse(), Ok(set));
            prop_assert_eq!(format!("0x{}", set.mask()).parse(), Ok(set));
            if !set.is_empty() {
                prop_assert_eq!(format!("cpus:{}", set.list()).parse(), Ok(set));
            }
            prop_assert_eq!(set.iter().count(), set.len());
        }
    }

    #[test]
    fn nothing_panics_and_columns_lie_in_the_text(text in "[0-9a-fx:,/ \u{e9}-]{0,24}") {
        let end = text.chars().count() + 1;
        if let Err(error) = CpuSet::parse(&text, &CpuSet::first(8)) {
            let (CpuSetError::Unexpected { column, .. }
            | CpuSetError::Backwards { column, .. }
            | CpuSetError::BeyondLimit { column, .. }
            | CpuSetError::NoSuchCpu { column, .. }) = error;
            prop_assert!((1..=end).contains(&column), "{text:?}: {column}");
        }
    }
}

#[test]
fn a_list_is_read_as_it_is_written() {
    for cpus in [CpuSet::EMPTY, CpuSet::first(1), CpuSet::first(4), CpuSet::from_iter([1, 8, 9])] {
        assert_eq!(CpuSet::of_list(&cpus.list().to_string()).unwrap(), cpus);
    }
    assert_eq!(CpuSet::of_list("10").unwrap(), CpuSet::from_iter([10]), "no mask");
    let error = CpuSet::of_list("1-").unwrap_err().to_string();
    assert!(error.starts_with("column 3: "), "{error}");
}
