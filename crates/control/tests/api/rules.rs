//! Rules of a running gateway.

use std::net::Ipv4Addr;

use control::schema::{
    ActiveRules, AskRules, ChangeElements, Explanation, ImportedRecords, LoadedRules, NotKept,
};
use serde_json::{Value, json};

use super::*;

/// A ruleset that drops packets for a port.
fn dropping(port: u16) -> Vec<u8> {
    let to_port = json!({"match": {"op": "==",
        "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": port}});
    let by_name = json!({"match": {"op": "==",
        "left": {"meta": {"key": "iifname"}}, "right": "dmz0"}});
    let seen = json!({"set": {"op": "add", "elem": {"payload": {"protocol": "ip", "field": "saddr"}},
        "set": "@seen"}});
    let rule = |handle: u64, expr: Value| {
        json!({"rule": {"family": "inet", "table": "t", "chain": "f", "handle": handle,
            "expr": expr}})
    };
    serde_json::to_vec(&json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        {"chain": {"family": "inet", "table": "t", "name": "f", "handle": 2, "type": "filter",
            "hook": "forward", "prio": 0, "policy": "accept"}},
        {"set": {"family": "inet", "table": "t", "name": "seen", "handle": 3, "size": 100,
            "type": "ipv4_addr"}},
        rule(4, json!([by_name, {"accept": null}])),
        rule(5, json!([to_port, seen, {"counter": {"packets": 3, "bytes": 300}}, {"drop": null}])),
    ]}))
    .unwrap()
}

fn load(running: &Running, query: &str, document: Vec<u8>) -> Result<LoadedRules, ClientError> {
    running.client.put_bytes(&format!("/v1/rules{query}"), document)
}

fn active(running: &Running) -> ActiveRules {
    running.client.get("/v1/rules").unwrap()
}

#[test]
fn a_ruleset_is_loaded_and_listed_with_what_it_has_done() {
    let mut running = Running::start();
    assert!(active(&running).ruleset.is_none());
    let loaded = load(&running, "", dropping(53)).unwrap();
    assert_eq!(loaded.missing_interfaces, ["dmz0"]);
    // The packets are dropped, so there are no connections to wait for.
    running.send_flows(7);
    let begin = Instant::now();
    let counted = loop {
        let rules = active(&running).ruleset.unwrap();
        let rule = rules["nftables"][4]["rule"].clone();
        if rule["expr"][2]["counter"]["packets"] == 10 || begin.elapsed() > PATIENCE {
            break rules;
        }
    };
    assert_eq!(counted["nftables"][4]["rule"]["expr"][2]["counter"]["packets"], 10);
    // A moment later all workers know the elements.
    let elements = |rules: &Value| rules["nftables"][2]["set"]["elem"].clone();
    let known = loop {
        let rules = active(&running).ruleset.unwrap();
        if elements(&rules) == json!(["198.18.0.0"]) || begin.elapsed() > PATIENCE {
            break elements(&rules);
        }
    };
    assert_eq!(known, json!(["198.18.0.0"]));
    assert_eq!(running.connections(), 0, "a dropped packet leaves no connection");

    let question = AskRules { packet: "udp 192.0.2.1 192.0.2.2:53 in lan0 out wan0".into() };
    let explanation: Explanation = running.client.post("/v1/rules/explain", &question).unwrap();
    assert_eq!(
        (explanation.verdict.as_str(), explanation.stages[0].steps[0].place.handle),
        ("drop", Some(5))
    );
    running.stop();
}

#[test]
fn counters_and_quotas_that_are_reset_begin_at_zero_and_again() {
    let mut running = Running::start();
    let refused = running.client.post::<Done>("/v1/rules/reset", &()).unwrap_err().to_string();
    assert!(refused.contains("runs no ruleset"), "{refused}");
    // Packets within the quota are dropped and counted. A datagram has 29 bytes.
    let quota = json!({"quota": {"val": 150, "val_unit": "bytes", "used": 10}});
    let mut document: Value = serde_json::from_slice(&dropping(53)).unwrap();
    document["nftables"][4]["rule"]["expr"].as_array_mut().unwrap().insert(2, quota);
    load(&running, "", serde_json::to_vec(&document).unwrap()).unwrap();
    let shown = |running: &Running| {
        let rules = active(running).ruleset.unwrap();
        let expr = rules["nftables"][4]["rule"]["expr"].clone();
        let used = expr[2]["quota"]["used"].as_u64().unwrap_or(0);
        (expr[3]["counter"]["packets"].as_u64().unwrap(), used)
    };
    let settles_at = |running: &Running, wanted: (u64, u64)| {
        let begin = Instant::now();
        while shown(running) != wanted && begin.elapsed() < PATIENCE {}
        assert_eq!(shown(running), wanted);
    };
    assert_eq!(shown(&running), (3, 10));
    for wanted in [(3 + 4, 10 + 116), (5, 145), (5, 145)] {
        running.send_flows(10);
        settles_at(&running, wanted);
        let done: Done = running.client.post("/v1/rules/reset", &()).unwrap();
        assert_eq!(done.affected, 2);
        assert_eq!(shown(&running), (0, 0));
    }
    running.stop();
}

#[test]
fn a_rule_that_has_refused_a_packet_is_named_after_it_has_gone() {
    let mut running = Running::start();
    load(&running, "", dropping(53)).unwrap();
    running.send_flows(1);
    let why = |running: &Running| {
        let begin = Instant::now();
        loop {
            let drops: RecentDrops = running.client.get("/v1/drops/recent").unwrap();
            if let Some(dropped) = drops.packets.into_iter().next() {
                return dropped.why;
            }
            assert!(begin.elapsed() < PATIENCE);
        }
    };
    assert_eq!(why(&running), "inet t chain f rule handle 5 refuses it");
    // Its number would be that of another rule.
    for _ in 0..2 {
        load(&running, "", dropping(54)).unwrap();
        let expected = "inet t chain f rule handle 5 refuses it, in rules that are gone now";
        assert_eq!(why(&running), expected);
    }
    running.stop();
}

#[test]
fn wrong_requests_about_rules_change_nothing() {
    let running = Running::start();
    load(&running, "", dropping(53)).unwrap();
    let cut = dropping(54)[..50].to_vec();
    for (query, document, said) in [
        ("", cut, "EOF"),
        ("?confirm_s=0", dropping(54), "a trial lasts 1 to 86400 seconds"),
        ("?confirm=5", dropping(54), "unknown field"),
    ] {
        let error = load(&running, query, document).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    for request in ["confirm", "rollback"] {
        let path = format!("/v1/rules/{request}");
        let error = running.client.post::<Done>(&path, &()).unwrap_err().to_string();
        assert!(error.contains("no ruleset is being tried"), "{error}");
    }
    let question = AskRules { packet: "udp nonsense".into() };
    let asked = running.client.post::<Explanation>("/v1/rules/explain", &question);
    assert!(asked.unwrap_err().to_string().contains("\"nonsense\" is no source"));
    assert_eq!(active(&running).revision, Some(1));
    running.stop();
}

/// A ruleset of so many bytes.
fn padded(mut document: Vec<u8>, length: usize) -> Vec<u8> {
    document.resize(length, b' ');
    document
}

#[test]
fn long_rulesets_come_one_at_a_time() {
    const LONG: usize = 2 << 20;
    let running = Running::start();
    let begun = |length: usize, sent: usize| {
        let mut stream = UnixStream::connect(&running.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let header =
            format!("PUT /v1/rules HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(header.as_bytes()).unwrap();
        stream.write_all(&padded(dropping(53), sent)).unwrap();
        stream
    };
    let answer = |mut stream: UnixStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    // It comes through only if the gateway reads it, so its turn has begun.
    let mut first = begun(LONG, LONG - 1);
    for _ in 0..3 {
        let refused = answer(begun(LONG, LONG));
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        assert!(refused.contains("retry-after: 1"), "{refused}");
        assert!(refused.contains("somebody else loads a long ruleset"), "{refused}");
    }
    let error = load(&running, "", padded(dropping(53), LONG)).unwrap_err().to_string();
    assert!(error.contains("try again when it is loaded"), "{error}");
    // Short ones do not wait for it.
    load(&running, "", dropping(53)).unwrap();
    first.write_all(b" ").unwrap();
    assert!(answer(first).starts_with("HTTP/1.1 200"));
    load(&running, "", padded(dropping(53), LONG)).unwrap();
    running.stop();
}

#[test]
fn the_status_tells_which_rules_run() {
    let running = Running::start();
    let status = || running.client.get::<Status>("/v1/status").unwrap();
    assert_eq!((status().mode.as_str(), status().rules), ("bridge", None));
    load(&running, "", dropping(53)).unwrap();
    load(&running, "?confirm_s=600", dropping(54)).unwrap();
    let rules = status().rules.unwrap();
    assert_eq!((rules.source.as_str(), rules.file, rules.revision), ("load", None, 2));
    assert!(rules.confirm_s.is_some_and(|left| left > 500) && rules.age_s < 60);
    running.client.post::<Done>("/v1/rules/rollback", &()).unwrap();
    let rules = status().rules.unwrap();
    assert_eq!((rules.revision, rules.confirm_s, rules.left_out), (3, None, 0));
    let mut document: Value = serde_json::from_slice(&dropping(53)).unwrap();
    document["nftables"][4]["rule"]["expr"] = json!([{"queue": null}]);
    load(&running, "?allow_unsupported=true", document.to_string().into_bytes()).unwrap();
    assert_eq!((status().rules.unwrap().left_out, status().warnings), (1, vec![]));
    let listed = active(&running).ruleset.unwrap();
    let marks = |at: usize| listed["nftables"][at]["rule"]["left_out"].is_string();
    assert!(marks(4) && !marks(3), "{listed}");
    load(&running, "", br#"{"nftables": []}"#.to_vec()).unwrap();
    assert!(status().warnings[0].contains("ALL OF THEM PASS"), "{:?}", status().warnings);
    let of_iptables = json!({"nftables": [
        {"table": {"family": "ip", "name": "filter", "handle": 1}},
        {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "handle": 2,
            "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}},
        {"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "handle": 3,
            "expr": [{"counter": {"packets": 0, "bytes": 0}}, {"drop": null}]}}]});
    load(&running, "", of_iptables.to_string().into_bytes()).unwrap();
    assert!(status().warnings[0].contains("(table ip filter)"), "{:?}", status().warnings);
    running.stop();
}

#[test]
fn a_ruleset_on_trial_goes_by_itself() {
    let running = Running::start();
    load(&running, "?confirm_s=1", dropping(53)).unwrap();
    assert!(active(&running).confirm_s.is_some());
    let error = load(&running, "", dropping(54)).unwrap_err().to_string();
    assert!(error.contains("another ruleset is being tried"), "{error}");
    let begin = Instant::now();
    while active(&running).ruleset.is_some() {
        assert!(begin.elapsed() < PATIENCE, "it never goes");
        std::thread::sleep(Duration::from_millis(20));
    }
    load(&running, "?confirm_s=600", dropping(54)).unwrap();
    running.client.post::<Done>("/v1/rules/confirm", &()).unwrap();
    assert!(active(&running).confirm_s.is_none());
    // A trial does not keep the gateway from stopping.
    load(&running, "?confirm_s=600", dropping(55)).unwrap();
    running.stop();
}

#[test]
fn a_trial_that_ends_gives_back_the_elements_that_there_were() {
    let running = Running::start();
    let mut document: Value = serde_json::from_slice(&dropping(53)).unwrap();
    let objects = document["nftables"].as_array_mut().unwrap();
    objects.push(json!({"set": {"family": "inet", "table": "t", "name": "banned", "handle": 9,
        "type": "ipv4_addr", "flags": ["timeout"], "elem": ["192.0.2.1", "192.0.2.2"]}}));
    let whole = document.to_string().into_bytes();
    load(&running, "", whole.clone()).unwrap();
    let change = |set: &str, change: &str, element: Value| {
        let [family, table, set, change] = ["inet", "t", set, change].map(str::to_owned);
        let change = ChangeElements { family, table, set, change, elements: vec![element] };
        let _: Done = running.client.post("/v1/rules/elements", &change).unwrap();
    };
    let timed = |address: &str, left: u64| json!({"elem": {"val": address, "timeout": 100, "expires": left}});
    change("banned", "add", timed("192.0.2.3", 50));
    change("banned", "add", timed("192.0.2.4", 1));
    change("banned", "delete", json!("192.0.2.2"));
    change("seen", "add", json!("192.0.2.5"));
    load(&running, "?confirm_s=600", whole).unwrap();
    // One ends while the trial lasts.
    std::thread::sleep(Duration::from_millis(1200));
    running.client.post::<Done>("/v1/rules/rollback", &()).unwrap();
    let listed = active(&running).ruleset.unwrap();
    let elements = |at: usize| listed["nftables"][at]["set"]["elem"].clone();
    assert_eq!(elements(2), json!(["192.0.2.5"]));
    let left = elements(5)[1]["elem"]["expires"].as_u64().unwrap();
    assert!((1..50).contains(&left), "{left}");
    assert_eq!(elements(5), json!(["192.0.2.1", timed("192.0.2.3", left)]));
    running.stop();
}

#[test]
fn elements_may_be_as_many_as_a_ruleset_has() {
    let running = Running::start();
    let mut document: Value = serde_json::from_slice(&dropping(53)).unwrap();
    let objects = document["nftables"].as_array_mut().unwrap();
    objects.push(json!({"set": {"family": "inet", "table": "t", "name": "nets", "handle": 9,
        "type": "ipv4_addr", "flags": ["interval"], "elem": []}}));
    load(&running, "", document.to_string().into_bytes()).unwrap();
    let pair = |number: u32| {
        let first = Ipv4Addr::from_bits(0x0a00_0000 + 4 * number).to_string();
        json!({"prefix": {"addr": first, "len": 31}})
    };
    let [family, table, set, change] = ["inet", "t", "nets", "add"].map(str::to_owned);
    let elements = (0..100_000).map(pair).collect();
    let mut change = ChangeElements { family, table, set, change, elements };
    assert!(serde_json::to_vec(&change).unwrap().len() > 4 << 20);
    let Done { affected, .. } = running.client.post("/v1/rules/elements", &change).unwrap();
    assert_eq!(affected, 100_000);
    change.elements = vec![json!({"range": ["10.0.0.2", "10.0.0.4"]})];
    let refused = running.client.post::<Done>("/v1/rules/elements", &change).unwrap_err();
    assert!(refused.to_string().contains("overlaps with 10.0.0.4/31"), "{refused}");
    running.stop();
}

#[test]
fn elements_that_rules_have_added_come_back_as_records() {
    const RECORDS: &str = "/v1/connections/records";
    let mut running = Running::start();
    load(&running, "", dropping(53)).unwrap();
    running.send_flows(7);
    let elements =
        |running: &Running| active(running).ruleset.unwrap()["nftables"][2]["set"]["elem"].clone();
    let begin = Instant::now();
    while elements(&running) != json!(["198.18.0.0"]) {
        assert!(begin.elapsed() < PATIENCE, "{}", elements(&running));
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut batch = Vec::new();
    let mut keep = |chunk: &[u8]| {
        batch.extend_from_slice(chunk);
        Ok(())
    };
    running.client.chunks::<ClientError>(RECORDS, &mut keep).unwrap();
    // The packets were dropped, so there is nothing else. The end is 0 and the number.
    assert_eq!(batch[batch.len() - 9..], [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    batch.truncate(batch.len() - 9);
    let import = |running: &Running| -> ImportedRecords {
        running.client.post_bytes(RECORDS, batch.clone()).unwrap()
    };
    let said = import(&running);
    assert_eq!((said.elements, said.refused["known"]), (0, 1), "{said:?}");
    load(&running, "", dropping(53)).unwrap();
    assert_eq!(elements(&running), Value::Null);
    let said = import(&running);
    assert_eq!((said.elements, said.imported, said.refused.len()), (1, 0, 0), "{said:?}");
    assert_eq!(elements(&running), json!(["198.18.0.0"]));
    // Rules without such a set.
    load(&running, "", br#"{"nftables": []}"#.to_vec()).unwrap();
    let said = import(&running);
    assert_eq!(said.refused["set_unknown"], 1, "{said:?}");
    running.stop();
}

#[test]
fn sets_whose_elements_can_not_be_kept_are_named_with_the_reason() {
    let running = Running::start();
    let of = |sets: &[(&str, Value)]| {
        let mut objects = vec![json!({"table": {"family": "inet", "name": "t", "handle": 1}})];
        objects.extend(sets.iter().map(|(name, types)| {
            json!({"set": {"family": "inet", "table": "t", "name": name, "handle": 2,
                "type": types, "elem": []}})
        }));
        serde_json::to_vec(&json!({ "nftables": objects })).unwrap()
    };
    let all = ["stays", "changes", "goes", "empty"].map(|name| (name, json!("ipv4_addr")));
    load(&running, "", of(&all)).unwrap();
    for name in ["stays", "changes", "goes"] {
        let change = ChangeElements {
            family: "inet".to_owned(),
            table: "t".to_owned(),
            set: name.to_owned(),
            change: "add".to_owned(),
            elements: vec![json!("192.0.2.1"), json!("192.0.2.2")],
        };
        let _: Done = running.client.post("/v1/rules/elements", &change).unwrap();
    }
    let next = [("stays", json!("ipv4_addr")), ("changes", json!(["ipv4_addr", "inet_service"]))];
    let loaded = load(&running, "?keep_elements=true", of(&next)).unwrap();
    let not_kept = |set: &str, why: &str| NotKept {
        family: "inet".to_owned(),
        table: "t".to_owned(),
        set: set.to_owned(),
        elements: 2,
        why: why.to_owned(),
    };
    let expected = [
        not_kept("changes", "its type is `ipv4_addr . inet_service` now and was `ipv4_addr`"),
        not_kept("goes", "the new ruleset has no such set"),
    ];
    assert_eq!(loaded.not_kept, expected);
    let rules = active(&running).ruleset.unwrap();
    assert_eq!(rules["nftables"][1]["set"]["elem"], json!(["192.0.2.1", "192.0.2.2"]));
    running.stop();
}
