//! The rulesets of the tests of the fast path.

fn test(key: &str, field: &str, operator: &str, right: &str) -> String {
    let left = match key {
        "meta" | "ct" => format!(r#"{{"{key}":{{"key":"{field}"}}}}"#),
        _ => format!(r#"{{"payload":{{"protocol":"{key}","field":"{field}"}}}}"#),
    };
    format!(r#"{{"match":{{"op":"{operator}","left":{left},"right":{right}}}}}"#)
}

/// A ruleset with rules in chains that have the names of their hooks. Rules that name no IPv4 address
/// are there for IPv6 too.
fn ruleset(rules: &[(&str, &[String])]) -> String {
    let mut objects = Vec::new();
    for family in ["ip", "ip6"] {
        let chain = |name: &str, kind: &str, hook: &str, priority: i32, policy: &str| {
            format!(
                r#"{{"chain":{{"family":"{family}","table":"t","name":"{name}","handle":2,
                    "type":"{kind}","hook":"{hook}","prio":{priority},"policy":"{policy}"}}}}"#
            )
        };
        objects.push(format!(r#"{{"table":{{"family":"{family}","name":"t","handle":1}}}}"#));
        objects.extend([
            chain("raw", "filter", "prerouting", -300, "accept"),
            chain("mangle", "filter", "prerouting", -150, "accept"),
            chain("dnat", "nat", "prerouting", -100, "accept"),
            chain("forward", "filter", "forward", 0, "drop"),
            chain("snat", "nat", "postrouting", 100, "accept"),
        ]);
        for (chain, statements) in rules {
            let statements = statements.join(",");
            let names_address = statements.contains(r#""protocol":"ip""#);
            if family == "ip6" && (names_address || statements.contains(r#""addr""#)) {
                continue;
            }
            objects.push(format!(
                r#"{{"rule":{{"family":"{family}","table":"t","chain":"{chain}","handle":9,
                    "expr":[{statements}]}}}}"#
            ));
        }
    }
    format!(r#"{{"nftables":[{}]}}"#, objects.join(","))
}

/// The elements that the set of a ruleset may have.
pub const CHOSEN: [&[&str]; 3] =
    [&["192.0.2.99"], &["192.0.2.1"], &["192.0.2.2", "192.0.2.99", "203.0.113.7"]];

/// A ruleset that drops packets from the addresses of a set, which has these elements.
pub fn with_chosen(elements: &[&str]) -> String {
    let accept = r#"{"accept":null}"#.to_owned();
    let chosen = [test("ip", "saddr", "==", r#""@chosen""#), r#"{"drop":null}"#.into()];
    let masquerade = [test("meta", "oifname", "==", r#""wan0""#), r#"{"masquerade":null}"#.into()];
    let set = format!(
        r#"{{"set":{{"family":"ip","table":"t","name":"chosen","type":"ipv4_addr","handle":8,
            "elem":["{}"]}}}}"#,
        elements.join(r#"",""#)
    );
    let rules: &[(&str, &[String])] =
        &[("snat", &masquerade), ("forward", &chosen), ("forward", &[accept])];
    let with_rules = ruleset(rules);
    // The set comes before the rules that look into it.
    with_rules.replacen(
        r#","name":"t","handle":1}}"#,
        &format!(r#","name":"t","handle":1}}}},{set}"#),
        1,
    )
}

/// How many rulesets there are.
pub const RULESETS: usize = 14;
/// Numbers of rulesets.
pub const WITH_CHOSEN: usize = 9;
pub const BY_MARK_OR_LABEL: usize = 10;
pub const WITH_ZONES: usize = 11;
pub const BY_NAME: usize = 12;
pub const WITH_ZONES_OF_ONE_WAY: usize = 13;

/// Rulesets that decide by elements, marks, labels, zones and names, from number 9 on. They have
/// rules for established packets.
fn by_facts(base: &[(&str, &[String])]) -> Vec<Option<String>> {
    let drop = r#"{"drop":null}"#.to_owned();
    let accept = [r#"{"accept":null}"#.to_owned()];
    let marked = [test("ct", "mark", "==", "2"), drop.clone()];
    let labelled = [test("ct", "label", "in", "5"), drop.clone()];
    let zoned = [
        test("udp", "dport", "==", "53"),
        r#"{"mangle":{"key":{"ct":{"key":"zone"}},"value":9}}"#.to_owned(),
    ];
    let zoned_one_way = [
        test("meta", "iifname", "==", r#""lan0""#),
        test("tcp", "dport", "==", "443"),
        r#"{"mangle":{"key":{"ct":{"key":"zone","dir":"original"}},"value":9}}"#.to_owned(),
    ];
    let named = [test("meta", "iifname", "==", r#""lan0""#), accept[0].clone()];
    let replies = [test("meta", "iifname", "==", r#""wan0""#), accept[0].clone()];
    let with = |rules: &[(&str, &[String])]| Some(ruleset(&[base, rules].concat()));
    vec![
        Some(with_chosen(CHOSEN[0])),
        with(&[("forward", &marked), ("forward", &labelled), ("forward", &accept)]),
        with(&[("raw", &zoned), ("forward", &accept)]),
        with(&[("forward", &named), ("forward", &replies)]),
        with(&[("raw", &zoned_one_way), ("forward", &accept)]),
    ]
}

/// Rulesets, each of which has another effect on what may be recorded.
pub fn rulesets() -> Vec<Option<String>> {
    let accept = r#"{"accept":null}"#.to_owned();
    let drop = r#"{"drop":null}"#.to_owned();
    let counter = r#"{"counter":{"packets":0,"bytes":0}}"#.to_owned();
    let masquerade = [test("meta", "oifname", "==", r#""wan0""#), r#"{"masquerade":null}"#.into()];
    let forward = [
        test("meta", "iifname", "==", r#""wan0""#),
        test("tcp", "dport", "==", "8080"),
        r#"{"dnat":{"addr":"192.0.2.1","port":80}}"#.into(),
    ];
    let established = [test("ct", "state", "in", r#"["established","related"]"#), accept.clone()];
    let counted = [established[0].clone(), counter.clone(), accept.clone()];
    let invalid = [test("ct", "state", "in", r#""invalid""#), drop.clone()];
    let new = [test("meta", "iifname", "==", r#""lan0""#), accept.clone()];
    let dnat = [test("ct", "status", "in", r#""dnat""#), accept.clone()];
    let long = [test("meta", "length", ">", "300"), drop.clone()];
    let named = [test("ip", "daddr", "==", r#""203.0.113.7""#), accept.clone()];
    let counts_web = [test("tcp", "dport", "==", "443"), counter];
    let mark = |key: &str, value: &str| {
        format!(r#"{{"mangle":{{"key":{{"{key}":{{"key":"mark"}}}},"value":{value}}}}}"#)
    };
    let marks = [test("ip", "saddr", "==", r#""192.0.2.2""#), mark("meta", "1")];
    let takes_mark = [mark("meta", r#"{"ct":{"key":"mark"}}"#)];
    let gives_mark = [test("udp", "dport", "==", "53"), mark("ct", "1")];
    let refuses = [test("udp", "dport", "==", "53"), drop];
    let set = |header: &str, field: &str, value: &str| {
        format!(
            r#"{{"mangle":{{"key":{{"payload":{{"protocol":"{header}","field":"{field}"}}}},
                "value":{value}}}}}"#
        )
    };
    let leads = [test("udp", "dport", "==", "53"), set("ip", "daddr", r#""203.0.113.7""#)];
    let leads_back = [test("udp", "sport", "==", "53"), set("udp", "sport", "5353")];
    let classes = [test("tcp", "dport", "==", "443"), set("ip", "dscp", r#""ef""#)];
    let base: &[(&str, &[String])] = &[("dnat", &forward), ("snat", &masquerade)];
    let with = |rules: &[(&str, &[String])]| Some(ruleset(&[base, rules].concat()));
    let mut all = vec![
        None,
        with(&[("forward", &established), ("forward", &new), ("forward", &dnat)]),
        with(&[("forward", &counted), ("forward", &new), ("forward", &dnat)]),
        with(&[
            ("forward", &invalid),
            ("forward", &long),
            ("forward", &established),
            ("forward", &new),
        ]),
        with(&[
            ("raw", &marks),
            ("forward", &counts_web),
            ("forward", &named),
            ("forward", &established),
            ("forward", &new),
        ]),
        with(&[
            ("mangle", &takes_mark),
            ("forward", &gives_mark),
            ("forward", &established),
            ("forward", &new),
        ]),
        with(&[("forward", &refuses), ("forward", &established), ("forward", &new)]),
        with(&[
            ("raw", &leads),
            ("raw", &leads_back),
            ("forward", &classes),
            ("forward", &established),
            ("forward", &new),
        ]),
        Some(ruleset(&[("forward", &established), ("forward", &new)])),
    ];
    all.extend(by_facts(base));
    all
}
