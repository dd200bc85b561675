//! Our lists of rulesets, loaded into the kernel again. It has to get the same as from the original,
//! instruction by instruction.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests are tests too"
)]

mod nft;

use std::collections::BTreeMap;

use nft::output_of;
use serde_json::Value;

/// The kernel's instructions of each rule, and the elements of each named set, from `nft
/// --debug=netlink list ruleset`. Names of anonymous sets become their elements.
fn instructions(debug: &str) -> BTreeMap<String, Vec<String>> {
    let mut blocks: Vec<(String, Vec<String>)> = Vec::new();
    for line in debug.lines().take_while(|line| !line.starts_with("table ")) {
        match line.trim() {
            "" => {}
            body if line.starts_with(['\t', ' ']) => {
                blocks.last_mut().expect("a header stands first").1.push(body.to_owned());
            }
            header => blocks.push((header.to_owned(), Vec::new())),
        }
    }
    let (sets, rules): (Vec<_>, Vec<_>) =
        blocks.into_iter().partition(|(header, _)| header.contains(" @"));
    let mut named = BTreeMap::new();
    let mut anonymous = BTreeMap::new();
    for (header, mut elements) in sets {
        elements.sort();
        match header.split_once(" @__") {
            Some((_, name)) => drop(anonymous.insert(format!("__{name}"), elements)),
            None => drop(named.insert(header, elements)),
        }
    }
    let mut number = BTreeMap::new();
    for (header, steps) in rules {
        // `inet table chain handle ...`: the handle is another one in each kernel.
        let chain = header.split(' ').take(3).collect::<Vec<_>>().join(" ");
        let count: &mut usize = number.entry(chain.clone()).or_default();
        *count += 1;
        let step = |step: String| match step.split(' ').find(|word| word.starts_with("__")) {
            Some(name) => match anonymous.get(name) {
                Some(elements) => step.replacen(name, &format!("{elements:?}"), 1),
                None => step,
            },
            None => step,
        };
        named.insert(format!("{chain} {count:03}"), steps.into_iter().map(step).collect());
    }
    named
}

fn relisted(rules: &str) {
    let script = "nft -j list ruleset && echo === && nft --debug=netlink list ruleset";
    let first = match output_of(rules, script) {
        Ok(first) => String::from_utf8_lossy(&first).into_owned(),
        Err(why) => return println!("SKIPPED: {}", why.trim()),
    };
    let (json, theirs) = first.split_once("===\n").expect("two listings");
    let json: Value = serde_json::from_str(json).expect("JSON");
    let list = ruleset::listing::text(&json, false, &|_, _, _, _| "");
    let ours = output_of(&list, "nft --debug=netlink list ruleset");
    let ours = String::from_utf8(ours.expect("the same machine")).expect("it is text");
    let (theirs, ours) = (instructions(theirs), instructions(&ours));
    assert!(theirs.len() > 5 && theirs.len() == ours.len(), "{} {}", theirs.len(), ours.len());
    let different: Vec<_> = theirs
        .iter()
        .filter(|(name, steps)| ours.get(*name) != Some(*steps))
        .map(|(name, steps)| format!("{name}\n{steps:#?}\n{:#?}", ours.get(name)))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn the_kernel_gets_from_our_list_the_same_as_from_the_original() {
    // nft lists this one as a prefix, which it loads in a shorter way.
    let everything =
        include_str!("everything.nft").replace("    ip saddr & 255.0.0.0 == 10.0.0.0 accept\n", "");
    for rules in [
        include_str!("relisted.nft"),
        &everything,
        include_str!("../../../examples/rulesets/home-router.nft"),
        include_str!("../../../examples/rulesets/server.nft"),
        include_str!("../../../examples/rulesets/containers.nft"),
        include_str!("../../../examples/rulesets/nat-gateway.nft"),
    ] {
        relisted(rules);
    }
}
