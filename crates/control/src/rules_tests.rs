use ruleset::HostChain;
use ruleset::probe::Probe;
use wire::build::PacketBuilder;

use super::*;

fn refused(document: &[u8]) -> String {
    match RuleBook::read(document.to_vec(), Options::default(), 7) {
        Ok(_) => panic!("it is taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_document_that_is_no_json_is_refused_with_advice() {
    assert!(refused(b"table inet t {\n}\n").contains("`stateway rules load RULES.nft`"));
    assert!(refused(b"#!/usr/sbin/nft -f\n").contains("in nft's own syntax"));
    assert!(refused(b" \n").contains("it is empty"));
    assert!(refused(b"{\"nftables\": [").contains("EOF"));
    assert!(refused(b"[]").contains("the list `nftables` is missing"));
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    assert!(refused(&deep).contains("recursion limit"));
}

#[test]
fn inner_packets_that_a_gateway_refuses_are_explained_as_refused() {
    let document: &[u8] = br#"{"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        {"chain": {"family": "inet", "table": "t", "name": "f", "handle": 2, "type": "filter",
                   "hook": "forward", "prio": 0, "policy": "accept"}}]}"#;
    let book = RuleBook::read(document, Options::default(), 7).unwrap();
    let (near, far) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    let wrapped = |inner: &[u8]| {
        let mut frame = Vec::new();
        PacketBuilder::v4(near, far).raw(wire::protocol::IPIP, inner, &mut frame);
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let probe = Probe::parse(&format!("{hex} in lan0 out wan0")).unwrap();
        book.explain(&probe).remarks.join("\n")
    };
    // An IP packet without the header of its link.
    let packet = |builder: PacketBuilder| {
        let mut frame = Vec::new();
        builder.udp(7, 53, b"16 bytes, a line", &mut frame);
        frame.split_off(14)
    };
    let plain = packet(PacketBuilder::v4(near, far));
    let (mut fragment, mut tunnel) = (Vec::new(), Vec::new());
    PacketBuilder::v4(near, far).fragment(
        wire::protocol::UDP,
        0,
        true,
        &plain[20..],
        &mut fragment,
    );
    PacketBuilder::v4(near, far).raw(wire::protocol::IPIP, &plain, &mut tunnel);
    assert!(wrapped(&plain).contains("they accept it"), "{}", wrapped(&plain));
    for inner in [fragment.split_off(14), tunnel.split_off(14)] {
        let explanation = wrapped(&inner);
        assert!(explanation.contains("it is dropped (inside_unreadable)"), "{explanation}");
    }
}

#[test]
fn chains_of_the_host_are_told_that_the_kernel_lacks() {
    let document = |policy: &str| {
        format!(
            r#"{{"nftables": [{{"table": {{"family": "inet", "name": "t", "handle": 1}}}},
            {{"chain": {{"family": "inet", "table": "t", "name": "in", "handle": 2,
                "type": "filter", "hook": "input", "prio": 0, "policy": "{policy}"}}}},
            {{"chain": {{"family": "inet", "table": "t", "name": "out", "handle": 3,
                "type": "filter", "hook": "output", "prio": 0, "policy": "accept"}}}}]}}"#
        )
    };
    let book = |policy: &str| {
        RuleBook::read(document(policy).into_bytes(), Options::default(), 7).unwrap()
    };
    let host_chains =
        |policy: &str, kernel: Option<&[ruleset::HostChain]>| -> Vec<(String, Option<bool>)> {
            let chains = book(policy).host_chains(kernel);
            chains.into_iter().map(|chain| (chain.place, chain.is_there)).collect()
        };
    let place = || "inet t chain in".to_owned();
    assert_eq!(host_chains("drop", None), [(place(), None)]);
    assert_eq!(host_chains("drop", Some(&[])), [(place(), Some(false))]);
    let kernel = book("drop").ruleset().host_chains().to_vec();
    assert_eq!(host_chains("drop", Some(&kernel)), [(place(), Some(true))]);
    let open = HostChain { policy: "accept".to_owned(), ..kernel[0].clone() };
    assert_eq!(host_chains("drop", Some(&[open])), [(place(), Some(false))]);
    // A chain that accepts everything needs nobody.
    assert_eq!(host_chains("accept", None), []);
}

#[test]
fn chains_of_prerouting_that_may_drop_are_told_that_the_kernel_lacks() {
    let chain = |name: &str, hook: &str, policy: &str| {
        format!(
            r#"{{"chain": {{"family": "ip", "table": "t", "name": "{name}", "handle": 2,
                "type": "filter", "hook": "{hook}", "prio": -300, "policy": "{policy}"}}}}"#
        )
    };
    let rule = |chain: &str, expr: &str| {
        format!(
            r#"{{"rule": {{"family": "ip", "table": "t", "chain": "{chain}", "handle": 9,
                "expr": [{expr}]}}}}"#
        )
    };
    let objects = [
        r#"{"table": {"family": "ip", "name": "t", "handle": 1}}"#.to_owned(),
        chain("closed", "prerouting", "drop"),
        chain("open", "prerouting", "accept"),
        chain("jumps", "prerouting", "accept"),
        chain("forward", "forward", "drop"),
        r#"{"chain": {"family": "ip", "table": "t", "name": "bans", "handle": 3}}"#.to_owned(),
        rule("open", r#"{"notrack": null}"#),
        rule("jumps", r#"{"jump": {"target": "bans"}}"#),
        rule("bans", r#"{"drop": null}"#),
    ];
    let document = format!(r#"{{"nftables": [{}]}}"#, objects.join(", "));
    let book = RuleBook::read(document.into_bytes(), Options::default(), 7).unwrap();
    let told = |kernel: Option<&[HostChain]>| -> Vec<_> {
        let chains = book.host_chains(kernel).into_iter();
        chains.map(|it| (it.place, it.text, it.is_there, it.runs_here)).collect()
    };
    let place = |name: &str| format!("ip t chain {name}");
    let closed = "hook prerouting, policy drop".to_owned();
    let jumps = "hook prerouting, policy accept".to_owned();
    let known = book.ruleset().host_chains()[..1].to_vec();
    assert_eq!(
        told(Some(&known)),
        [(place("closed"), closed, Some(true), true), (place("jumps"), jumps, Some(false), true)]
    );
    let look = super::KernelLook { chains: book.host_chains(Some(&known)), clashes: Vec::new() };
    let warnings = look.warnings();
    let warning = "NOBODY RUNS ip t chain jumps (hook prerouting, policy accept) FOR THIS HOST: ";
    assert!(warnings.len() == 1 && warnings[0].starts_with(warning), "{warnings:?}");
}

#[test]
fn a_problem_shows_its_rule() {
    let document: &[u8] = br#"{"nftables": [
        {"table": {"family": "ip", "name": "t", "handle": 1}},
        {"chain": {"family": "ip", "table": "t", "name": "f", "handle": 2, "type": "filter",
                   "hook": "forward", "prio": 0, "policy": "drop"}},
        {"rule": {"family": "ip", "table": "t", "chain": "f", "handle": 3, "expr": [
            {"queue": null}, {"drop": null}]}}]}"#;
    assert_eq!(
        refused(document),
        "ip t chain f rule handle 3, expr[0]: unsupported: `queue`: the gateway hands packets \
         to no other program; left out, PACKETS THAT IT DROPS GO ON (less is filtered): queue drop; \
         the ruleset is refused: 0 invalid and 1 unsupported"
    );
    let options = Options { allow_unsupported: true };
    let book = RuleBook::read(document.to_vec(), options, 7).expect("it is allowed");
    let report = book.report();
    assert!(report.loadable && report.unsupported == 1);
    assert_eq!(report.problems[0].effect.as_deref(), Some("open"));
    let summary = report.summary.expect("it is loadable");
    assert_eq!((summary.tables, summary.rules), (vec!["ip t".to_owned()], 0));
    let probe = Probe::parse("udp 192.0.2.1 192.0.2.2:53 in lan0 out wan0").unwrap();
    assert_eq!(
        book.explain(&probe).remarks.last().map(String::as_str),
        Some(
            "the verdict is without ip t chain f rule handle 3, which is not supported and left out"
        )
    );
}

#[test]
fn a_verdict_without_the_routes_that_a_rule_asks_for_is_told_as_a_guess() {
    let document: &[u8] = br#"{"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        {"chain": {"family": "inet", "table": "t", "name": "f", "handle": 2, "type": "filter",
                   "hook": "forward", "prio": 0, "policy": "accept"}},
        {"rule": {"family": "inet", "table": "t", "chain": "f", "handle": 3, "expr": [
            {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}},
            {"match": {"op": "==", "left": {"fib": {"result": "oif", "flags": ["saddr", "iif"]}},
                       "right": false}}, {"drop": null}]}}]}"#;
    let book = RuleBook::read(document, Options::default(), 7).unwrap();
    let explain = |protocol: &str| {
        let question = format!("{protocol} 192.0.2.1:7 192.0.2.2:53 in lan0 out wan0");
        book.explain(&Probe::parse(&question).unwrap())
    };
    let asked = explain("tcp");
    assert_eq!(
        asked.outcome,
        "accepted: it goes on its way; A GUESS, since a rule asks for routes"
    );
    assert!(asked.is_guess && asked.remarks.join("").contains("nobody knows routes"));
    let other = explain("udp");
    assert_eq!((other.outcome.as_str(), other.is_guess), ("accepted: it goes on its way", false));
    assert_eq!(other.remarks.len(), 1, "no rule that it meets asks: {:?}", other.remarks);
}

#[test]
fn a_list_marks_each_object_that_is_left_out() {
    let document: &[u8] = br#"{"nftables": [
        {"table": {"family": "ip", "name": "t", "handle": 1}},
        {"chain": {"family": "ip", "table": "t", "name": "f", "handle": 2, "type": "filter",
                   "hook": "forward", "prio": 0, "policy": "accept"}},
        {"rule": {"family": "ip", "table": "t", "chain": "f", "handle": 3, "expr": [
            {"queue": null}, {"drop": null}]}},
        {"rule": {"family": "ip", "table": "t", "chain": "f", "handle": 4, "left_out": "of old",
                  "expr": [{"drop": null}]}},
        {"table": {"family": "netdev", "name": "n", "handle": 5}}]}"#;
    let options = Options { allow_unsupported: true };
    let book = RuleBook::read(document, options, 7).expect("it is allowed");
    let marked = listing::with_left_out(book.document().value(), &book.left_out());
    let mark = |at: usize, kind: &str| marked["nftables"][at][kind]["left_out"].as_str();
    assert_eq!(mark(4, "table"), Some("tables of this family; their rules are not run"));
    assert_eq!((mark(0, "table"), mark(3, "rule")), (None, None));
    let text = listing::text(&marked, true, &|_, _, _, _| "");
    let of_rule = "\t\t# LEFT OUT: `queue`: the gateway hands packets to no other program; left out, \
                   PACKETS THAT IT DROPS GO ON (less is filtered)\n\t\tqueue drop # handle 3\n\
                   \t\tdrop # handle 4\n";
    assert!(text.contains(of_rule), "{text}");
    let of_table =
        "}\n# LEFT OUT: tables of this family; their rules are not run\ntable netdev n {";
    assert!(text.contains(of_table), "{text}");
}
