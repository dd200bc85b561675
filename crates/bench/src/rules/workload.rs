//! Rulesets and the packets that they judge.

use serde_json::{Value, json};
use wire::build::{PacketBuilder, Tcp};
use wire::{Network, TcpFlags, dissect};

use crate::Error;
use crate::traffic::Random;

/// Packets that are judged again and again, in an order that defeats branch prediction.
const PACKETS: usize = 1 << 14;
/// Addresses from a network for benchmarks (RFC 2544).
const NET: u32 = 0xc612_0000;

/// A ruleset as `nft -j list ruleset` prints it, the same without sets, and its packets.
pub struct Workload {
    /// Key in the report.
    pub key: &'static str,
    /// Description for people.
    pub what: &'static str,
    pub ruleset: Value,
    /// The same ruleset with a rule for each element.
    pub as_rules: Value,
    pub packets: Vec<Sample>,
}

/// A frame with its headers.
pub struct Sample {
    pub frame: Vec<u8>,
    pub network: Network,
}

/// All workloads; smaller ones to see that everything works.
pub fn all(quick: bool) -> Result<Vec<Workload>, Error> {
    let scale = if quick { 10 } else { 1 };
    Ok(vec![
        linear("rules_10", "10 rules", 10)?,
        linear("rules_1000", "1000 rules", 1000 / scale)?,
        linear("rules_10k", "10,000 rules", 10_000 / scale)?,
        set(100_000 / scale)?,
        verdict_map(10_000 / scale)?,
    ])
}

fn text(address: u32) -> String {
    std::net::Ipv4Addr::from(address).to_string()
}

fn matching(header: &str, field: &str, right: &Value) -> Value {
    let left = json!({"payload": {"protocol": header, "field": field}});
    json!({"match": {"op": "==", "left": left, "right": right}})
}

fn chain(name: &str, is_base: bool) -> Value {
    let mut chain = json!({"family": "inet", "table": "t", "name": name, "handle": 1});
    if is_base {
        chain["type"] = json!("filter");
        chain["hook"] = json!("forward");
        chain["prio"] = json!(0);
        chain["policy"] = json!("accept");
    }
    json!({ "chain": chain })
}

fn rule(chain: &str, statements: &Value) -> Value {
    json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": 2,
        "expr": statements}})
}

fn document(objects: Vec<Value>) -> Value {
    let mut all = vec![json!({"table": {"family": "inet", "name": "t", "handle": 1}})];
    all.extend(objects);
    json!({ "nftables": all })
}

fn sample(source: u32, destination: u32, port: u16) -> Result<Sample, Error> {
    let mut frame = Vec::new();
    let tcp =
        Tcp { source_port: 40_000, destination_port: port, flags: TcpFlags::SYN, ..Tcp::default() };
    let builder = PacketBuilder::v4(source.to_be_bytes(), destination.to_be_bytes());
    builder.tcp(&tcp, &[], &mut frame);
    let network = dissect(&frame).ok().and_then(|found| found.network);
    let network = network.ok_or_else(|| Error::Wrong {
        benchmark: "rules",
        problem: "a packet of the benchmark is malformed".into(),
    })?;
    Ok(Sample { frame, network })
}

fn packets(mut make: impl FnMut(u64) -> Result<Sample, Error>) -> Result<Vec<Sample>, Error> {
    let mut random = Random(23);
    (0..PACKETS).map(|_| make(random.next())).collect()
}

/// Rules as people write them: from here to there, this port. Seven packets of eight match one of
/// them, the eighth matches none.
fn linear(key: &'static str, what: &'static str, count: u32) -> Result<Workload, Error> {
    let source = |at: u32| NET + ((at / 4) << 6);
    let destination = |at: u32| NET + (1 << 16) + at;
    let port = |at: u32| 1000 + (at % 200) as u16;
    let mut objects = vec![chain("f", true)];
    for at in 0..count {
        let from = json!({"prefix": {"addr": text(source(at)), "len": 26}});
        let to = json!(text(destination(at)));
        let asked = match at % 4 {
            0 => vec![matching("ip", "saddr", &from), matching("tcp", "dport", &json!(port(at)))],
            1 => vec![matching("ip", "daddr", &to), matching("tcp", "dport", &json!(port(at)))],
            2 => vec![matching("ip", "saddr", &from), matching("ip", "daddr", &to)],
            _ => {
                let ports = json!({"range": [port(at), port(at) + 3]});
                vec![matching("ip", "daddr", &to), matching("tcp", "dport", &ports)]
            }
        };
        let last = if at % 2 == 0 { json!({"drop": null}) } else { json!({"accept": null}) };
        objects
            .push(rule("f", &Value::from([asked, vec![json!({"counter": null}), last]].concat())));
    }
    let ruleset = document(objects);
    let packets = packets(|random| {
        let at = ((random >> 8) % u64::from(count)) as u32;
        if random.is_multiple_of(8) {
            return sample(NET + (3 << 16), NET, 1);
        }
        sample(source(at) + (random >> 40) as u32 % 64, destination(at), port(at))
    })?;
    Ok(Workload { key, what, as_rules: ruleset.clone(), ruleset, packets })
}

/// One set of addresses; half of the packets come from one of them.
fn set(count: u32) -> Result<Workload, Error> {
    // An odd factor spreads them over the network, none twice.
    let address = |at: u32| NET + (at.wrapping_mul(0x9e37_79b1) & 0x1_ffff);
    let elements: Vec<Value> = (0..count).map(|at| json!(text(address(at)))).collect();
    let set = json!({"set": {"family": "inet", "table": "t", "name": "s", "handle": 3,
        "type": "ipv4_addr", "elem": elements}});
    let ask = matching("ip", "saddr", &json!("@s"));
    let ruleset = document(vec![chain("f", true), set, rule("f", &json!([ask, {"drop": null}]))]);
    let mut objects = vec![chain("f", true)];
    objects.extend((0..count).map(|at| {
        let ask = matching("ip", "saddr", &json!(text(address(at))));
        rule("f", &json!([ask, {"drop": null}]))
    }));
    let packets = packets(|random| {
        let at = ((random >> 8) % u64::from(count)) as u32;
        let source = if random.is_multiple_of(2) { address(at) } else { address(at) ^ (1 << 17) };
        sample(source, NET, 80)
    })?;
    let (key, what) = ("set_100k", "a set of 100,000 addresses");
    Ok(Workload { key, what, ruleset, as_rules: document(objects), packets })
}

/// A dispatch by address to one of 64 chains of two rules. Seven packets of eight are for one of
/// the addresses.
fn verdict_map(count: u32) -> Result<Workload, Error> {
    const CHAINS: u32 = 64;
    let address = |at: u32| NET + at;
    let verdict = |at: u32| json!({"jump": {"target": format!("c{}", at % CHAINS)}});
    let elements: Vec<Value> =
        (0..count).map(|at| json!([text(address(at)), verdict(at)])).collect();
    let map = json!({"map": {"family": "inet", "table": "t", "name": "m", "handle": 3,
        "type": "ipv4_addr", "map": "verdict", "elem": elements}});
    let mut chains = vec![chain("f", true)];
    for number in 0..CHAINS {
        let name = format!("c{number}");
        chains.push(chain(&name, false));
        let asked = matching("tcp", "dport", &json!(number));
        chains.push(rule(&name, &json!([asked, {"accept": null}])));
        chains.push(rule(&name, &json!([{"counter": null}, {"drop": null}])));
    }
    let key = json!({"payload": {"protocol": "ip", "field": "daddr"}});
    let dispatch = rule("f", &json!([{"vmap": {"key": key, "data": "@m"}}]));
    let ruleset = document([chains.clone(), vec![map, dispatch]].concat());
    let rules = (0..count).map(|at| {
        rule("f", &json!([matching("ip", "daddr", &json!(text(address(at)))), verdict(at)]))
    });
    let as_rules = document(chains.into_iter().chain(rules).collect());
    let packets = packets(|random| {
        let at = ((random >> 8) % u64::from(count)) as u32;
        let beside = if random.is_multiple_of(8) { 1 << 17 } else { 0 };
        sample(NET + (1 << 16), address(at) ^ beside, (random >> 40) as u16 % 128)
    })?;
    let (key, what) = ("verdict_map_10k", "a verdict map of 10,000 addresses");
    Ok(Workload { key, what, ruleset, as_rules, packets })
}
