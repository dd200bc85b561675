use ruleset::listing;
use serde_json::Value;

use super::*;

/// The sets and maps of a ruleset in nft's JSON, without what changes from one reading to the next.
fn sets(json: &[u8]) -> Vec<Value> {
    let mut document: Value = serde_json::from_slice(json).unwrap();
    let objects = document["nftables"].as_array_mut().unwrap();
    let sets = objects.iter_mut().filter(|it| it.get("set").is_some() || it.get("map").is_some());
    let bare = |object: &mut Value| {
        for kind in ["set", "map"] {
            if let Some(fields) = object.get_mut(kind).and_then(Value::as_object_mut) {
                fields.remove("handle");
            }
        }
        object.take()
    };
    sets.map(bare).collect()
}

#[test]
fn nft_reads_again_what_is_listed_of_its_sets() {
    let text = "table inet t {
        comment \"of table\"
        counter web { comment \"of counter\"; }
        map zones { typeof iifname . ip saddr : ct zone; flags interval
            elements = { \"lan0\" . 192.0.2.0/24 : 5 } }
        map marks { typeof ct zone : ct mark; elements = { 7 : 5 } }
        set seen { type ipv4_addr; size 100; flags dynamic,timeout; timeout 5m; }
        set filled { type inet_service; size 100; flags dynamic; }
        set ports { type inet_service; flags interval; auto-merge; elements = { 1-5, 9 } }
        map counters { type inet_service : counter; elements = { 80 : \"web\", * : \"web\" } }
        set short { type ipv4_addr; timeout 5m; gc-interval 1m; comment \"of set\"; }
        chain c { comment \"of chain\"; }
    }";
    let read = |text: &str| {
        let file = Path::new("rules.nft");
        NftText { text: text.as_bytes(), file, directory: None }.to_json()
    };
    let json = match read(text) {
        Ok(json) => json,
        Err(problems) if Command::new("nft").arg("--version").output().is_err() => {
            tell!("SKIPPED: {problems}");
            return;
        }
        Err(problems) => panic!("{problems}"),
    };
    let document: Value = serde_json::from_slice(&json).unwrap();
    let listed = listing::text(&document, false, &|_, _, _, _| "");
    let again = read(&listed).unwrap_or_else(|problems| panic!("{problems}\n{listed}"));
    assert_eq!(sets(&again), sets(&json), "{listed}");
    for line in [
        "typeof iifname . ip saddr : ct zone\n",
        "typeof ct zone : ct mark\n",
        "flags dynamic,timeout\n",
        "flags dynamic\n",
        "auto-merge\n",
        "\tcomment \"of table\"\n",
        "comment \"of counter\"\n",
        "gc-interval 1m\n",
        "comment \"of set\"\n",
        "\t\tcomment \"of chain\"\n",
    ] {
        assert!(listed.contains(line), "{line}{listed}");
    }
}

#[test]
fn refusals_of_the_kernel_are_told_with_their_remedy() {
    let said = |columns: &str, refusal: &str, line: &str| {
        let messages = format!(
            "{INPUT}:3:{columns}: Error: Could not process rule: {refusal}\n{line}\n   ^^^\n"
        );
        let problems = problems_in(&messages, Path::new("rules.nft"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!((problems[0].line, problems[0].rule.as_deref()), (3, Some(line)));
        problems[0].what.clone()
    };
    let missing = "No such file or directory";
    assert_eq!(
        said("8-14", missing, "  jump nowhere"),
        "the kernel refuses it: No such file or directory (columns 8-14); its table has no chain \
         nowhere: declare that, or correct the name"
    );
    for (columns, refusal, line, remedy) in [
        (
            "16-22",
            missing,
            "  counter name \"nocnt\"",
            "its table has no counter \"nocnt\": declare",
        ),
        ("17-19", missing, "  ct helper set \"x\"", "its table has no helper \"x\": declare"),
        (
            "16-20",
            missing,
            "  tcp dport 22 queue num 3",
            "lacks the module for `queue`, and the gateway refuses that as well (the gateway hands \
             packets to no other program): take the rule out",
        ),
        ("8-8", "Operation not supported", "  jump f", "the jumps of chain f lead back to it"),
        ("3-12", "Operation not supported", "  masquerade", "the type of chain, the hook"),
        ("8-8", "File exists", " chain f {", "take one of them out"),
        ("12-13", missing, " flowtable fl {", "modprobe nf_flow_table"),
        ("900-999", "Numerical result out of range", " x", "larger than the kernel allows"),
        ("8-8", "Too many links", "  jump f", "jumps of its chain lead back to it"),
        ("40-46", "Too many open files in system", " set s {", "more elements than its size"),
        ("1-2", "Bad message", " x", "see nft(8)"),
    ] {
        let said = said(columns, refusal, line);
        assert!(said.contains(remedy), "{line}: {said}");
    }
}
