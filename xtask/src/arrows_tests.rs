use super::*;

const TABLE: &str = "\
# Title

| crate | what lives there | may use |
| --- | --- | --- |
| `wire` | headers | - |
| `flow` | words | wire |
| `netio` | frames | wire |
| `engine` | workers | all above |
| `lab` | labs | - |

| crate | another table |
";

fn member(name: &str, uses: &[&str]) -> Crate {
    let mut text = "[lints]\nworkspace = true\n\n[dependencies]\n".to_owned();
    for used in uses {
        text.push_str(&format!("{used}.workspace = true\n"));
    }
    Crate {
        name: name.to_owned(),
        manifest: format!("crates/{name}/Cargo.toml"),
        text,
        uses: uses.iter().map(|&used| used.to_owned()).collect(),
    }
}

fn members() -> Vec<Crate> {
    vec![
        member("wire", &[]),
        member("flow", &["wire"]),
        member("netio", &["wire"]),
        member("engine", &["flow", "netio", "wire"]),
        member("lab", &[]),
        member("xtask", &["flow"]),
    ]
}

fn found(document: &str, crates: &[Crate]) -> Vec<String> {
    compare(document, crates)
        .into_iter()
        .map(|Problem { file, line, what, .. }| format!("{file}:{line}: {what}"))
        .collect()
}

#[test]
fn arrows_that_point_down_are_accepted() {
    assert_eq!(found(TABLE, &members()), [""; 0]);
}

#[test]
fn use_through_another_crate_is_allowed() {
    let table = TABLE.replace("all above", "flow");
    let mut members = members();
    members[3] = member("engine", &["flow", "wire"]);
    assert_eq!(found(&table, &members), [""; 0]);
}

#[test]
fn an_arrow_that_the_table_does_not_allow_is_found() {
    let mut members = members();
    members[1] = member("flow", &["wire", "netio"]);
    members[4] = member("lab", &["engine"]);
    assert_eq!(
        found(TABLE, &members),
        [
            "crates/flow/Cargo.toml:6: `flow` may not use `netio`",
            "crates/lab/Cargo.toml:5: `lab` may not use `engine`",
        ]
    );
}

#[test]
fn nothing_may_use_a_tool() {
    let mut members = members();
    members[3] = member("engine", &["xtask"]);
    assert_eq!(
        found(TABLE, &members),
        ["crates/engine/Cargo.toml:5: `engine` may not use `xtask`"]
    );
}

#[test]
fn a_table_with_an_upward_arrow_is_found() {
    let table = TABLE.replace("| headers | - |", "| headers | flow |");
    assert_eq!(
        found(&table, &members()),
        ["docs/architecture.md:5: `wire` may use `flow`, which is not in a row above it"]
    );
}

#[test]
fn table_and_workspace_name_the_same_crates() {
    let mut members = members();
    members.remove(4);
    members.push(member("sim", &[]));
    assert_eq!(
        found(TABLE, &members),
        [
            "docs/architecture.md:9: there is no crate `lab`",
            "crates/sim/Cargo.toml:1: crate `sim` is not in the table of docs/architecture.md",
        ]
    );
}

#[test]
fn a_missing_or_broken_table_is_found() {
    assert_eq!(found("# Title\n", &[]), ["docs/architecture.md:1: the table of crates is missing"]);
    let table = TABLE.replace("| frames | wire |", "| wire |");
    assert_eq!(
        found(&table, &members()),
        [
            "docs/architecture.md:7: a row of 2 cells",
            "crates/netio/Cargo.toml:1: crate `netio` is not in the table of docs/architecture.md",
            "crates/engine/Cargo.toml:6: `engine` may not use `netio`",
        ]
    );
}

#[test]
fn a_crate_that_leaves_the_lints_is_found() {
    let mut members = members();
    members[0].text.clear();
    assert_eq!(
        found(TABLE, &members),
        ["crates/wire/Cargo.toml:1: `wire` does not inherit the workspace's lints"]
    );
}
