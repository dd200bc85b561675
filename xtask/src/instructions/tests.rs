use super::*;

const LIST: &str = "\
packet no_rules datagrams
packet ipv6 datagrams_ipv6
connection no_rules connections
making datagrams
making datagrams_ipv6
making connections
";

fn names(variants: &[&str]) -> anyhow::Result<Vec<String>> {
    let variants: Vec<_> = variants.iter().map(|&name| name.to_owned()).collect();
    let wanted = selected(&subjects(LIST)?, &variants)?;
    Ok(wanted.into_iter().map(|subject| format!("{} {}", subject.kind, subject.name)).collect())
}

#[test]
fn a_variant_is_measured_together_with_making_its_frames() {
    assert_eq!(names(&[]).unwrap().len(), LIST.lines().count());
    assert_eq!(names(&["ipv6"]).unwrap(), ["packet ipv6", "making datagrams_ipv6"]);
    assert_eq!(
        names(&["no_rules"]).unwrap(),
        ["packet no_rules", "connection no_rules", "making datagrams", "making connections"]
    );
    assert_eq!(names(&["datagrams"]).unwrap(), ["making datagrams"]);
    let error = names(&["ipv7"]).unwrap_err().to_string();
    assert!(error.contains("ipv7") && error.contains("no_rules"), "{error}");
}

#[test]
fn a_figure_is_of_one_unit_and_less_making_its_frames() {
    let run = |line: &str, units, costs: &[(&str, u64)]| Run {
        subject: subjects(line).unwrap().remove(0),
        units,
        profile: Profile {
            total: costs.iter().map(|(_, cost)| cost).sum(),
            functions: costs.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect(),
        },
    };
    let runs = [
        run(
            "packet no_rules datagrams",
            100,
            &[("track", 90_049), ("rare", 49), ("dissect", 20_000)],
        ),
        run("making datagrams", 200, &[("dissect", 40_000), ("copy", 10_100)]),
    ];
    let found = less_making(&runs);
    assert_eq!(
        (found[0].cost, &found[0].making),
        (1101 - 251, &Some(("datagrams".to_owned(), 251)))
    );
    let functions: Vec<_> =
        found[0].functions.iter().map(|(name, cost)| (name.as_str(), *cost)).collect();
    assert_eq!(functions, [("dissect", 200), ("track", 900)]);
    assert_eq!((found[1].cost, &found[1].making), (251, &None));
}
