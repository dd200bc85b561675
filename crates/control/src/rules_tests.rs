use super::*;

fn refused(document: &[u8]) -> String {
    match RuleBook::read(document.to_vec(), Options::default(), 7) {
        Ok(_) => panic!("it is taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_no_json_is_told_what_to_do() {
    assert!(refused(b"table inet t {\n}\n").contains("unshare --net sh -c 'nft -f RULES.nft"));
    assert!(refused(b"#!/usr/sbin/nft -f\n").contains("unshare --net"));
    assert!(refused(b" \n").contains("it is empty"));
    assert!(refused(b"{\"nftables\": [").contains("EOF"));
    assert!(refused(b"[]").contains("the list `nftables` is missing"));
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    assert!(refused(&deep).contains("recursion limit"));
}

#[test]
fn a_problem_shows_its_rule() {
    let document: &[u8] = br#"{"nftables": [
        {"table": {"family": "ip", "name": "t", "handle": 1}},
        {"chain": {"family": "ip", "table": "t", "name": "f", "handle": 2, "type": "filter",
                   "hook": "forward", "prio": 0, "policy": "drop"}},
        {"rule": {"family": "ip", "table": "t", "chain": "f", "handle": 3, "expr": [
            {"ct count": {"val": 20, "inv": true}}, {"drop": null}]}}]}"#;
    assert_eq!(
        refused(document),
        "ip t chain f rule handle 3, expr[0]: unsupported: `ct count`; left out, PACKETS THAT IT \
         DROPS GO ON (less is filtered): ct count over 20 drop; the ruleset is refused: 0 invalid \
         and 1 unsupported"
    );
    let options = Options { allow_unsupported: true };
    let report = RuleBook::read(document.to_vec(), options, 7).expect("it is allowed").report();
    assert!(report.loadable && report.unsupported == 1);
    assert_eq!(report.problems[0].effect.as_deref(), Some("open"));
    let summary = report.summary.expect("it is loadable");
    assert_eq!((summary.tables, summary.rules), (vec!["ip t".to_owned()], 0));
}
