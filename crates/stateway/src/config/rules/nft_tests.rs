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
        counter web { }
        map zones { typeof iifname . ip saddr : ct zone; flags interval
            elements = { \"lan0\" . 192.0.2.0/24 : 5 } }
        map marks { typeof ct zone : ct mark; elements = { 7 : 5 } }
        set seen { type ipv4_addr; size 100; flags dynamic,timeout; timeout 5m; }
        set filled { type inet_service; size 100; flags dynamic; }
        set ports { type inet_service; flags interval; auto-merge; elements = { 1-5, 9 } }
        map counters { type inet_service : counter; elements = { 80 : \"web\", * : \"web\" } }
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
    ] {
        assert!(listed.contains(line), "{line}{listed}");
    }
}
