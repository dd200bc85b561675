//! The rulesets of the tests of the fast path.

fn test(key: &str, field: &str, operator: &str, right: &str) -> String {
    let left = match key {
        "meta" | "ct" => format!(r#"{{"{key}":{{"key":"{field}"}}}}"#),
        _ => format!(r#"{{"payload":{{"protocol":"{key}","field":"{field}"}}}}"#),
    };
    format!(r#"{{"match":{{"op":"{operator}","left":{left},"right":{right}}}}}"#)
}

/// A ruleset with rules in chains that have the names of their hooks.
fn ruleset(rules: &[(&str, &[String])]) -> String {
    let chain = |name: &str, kind: &str, hook: &str, priority: i32, policy: &str| {
        format!(
            r#"{{"chain":{{"family":"ip","table":"t","name":"{name}","handle":2,"type":"{kind}",
                "hook":"{hook}","prio":{priority},"policy":"{policy}"}}}}"#
        )
    };
    let mut objects = vec![
        r#"{"table":{"family":"ip","name":"t","handle":1}}"#.to_owned(),
        chain("raw", "filter", "prerouting", -300, "accept"),
        chain("mangle", "filter", "prerouting", -150, "accept"),
        chain("dnat", "nat", "prerouting", -100, "accept"),
        chain("forward", "filter", "forward", 0, "drop"),
        chain("snat", "nat", "postrouting", 100, "accept"),
    ];
    for (chain, statements) in rules {
        objects.push(format!(
            r#"{{"rule":{{"family":"ip","table":"t","chain":"{chain}","handle":9,"expr":[{}]}}}}"#,
            statements.join(",")
        ));
    }
    format!(r#"{{"nftables":[{}]}}"#, objects.join(","))
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
    vec![
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
    ]
}
