//! Rules and packets for tests.

use flow::Timestamp;
use serde_json::{Value, json};
use wire::build::{PacketBuilder, Tcp};
use wire::dissect;

use crate::evaluate::{
    Decision, Interface, Outcome, PacketView, Routes, RuleState, SharedState, evaluate,
};
use crate::hook::Hook;
use crate::import::import_value;
use crate::{CompileOptions, Options, Program, name_bits};

/// Type of an Ethernet link (`linux/if_arp.h`).
pub const ETHER: u16 = 1;

/// The surroundings of a packet that rules see.
pub struct Surroundings<'a> {
    pub hook: Hook,
    /// The types of the links that the packet comes from and goes to.
    pub links: (u16, u16),
    pub routes: Option<&'a dyn Routes>,
    pub cpu: Option<u32>,
    /// The header of a TCP segment, but for its ports; `None`: the packet is one of UDP.
    pub tcp: Option<Tcp<'a>>,
}

impl Default for Surroundings<'_> {
    fn default() -> Self {
        Self { hook: Hook::Forward, links: (ETHER, ETHER), routes: None, cpu: None, tcp: None }
    }
}

/// True if a UDP packet from 192.0.2.1 to 198.51.100.2 matches a condition. The set `types` has two
/// types of links.
pub fn matches(condition: &Value, surroundings: &Surroundings<'_>) -> bool {
    let types = json!({"set": {"family": "inet", "table": "t", "name": "types",
        "type": "iface_type", "elem": ["ether", "ppp"]}});
    drops(&one_rule(surroundings.hook, &[types], &json!([condition, {"drop": null}])), surroundings)
}

/// A table `t` with these objects and a chain with one rule.
pub fn one_rule(hook: Hook, objects: &[Value], rule: &Value) -> Value {
    let mut all = vec![json!({"table": {"family": "inet", "name": "t"}})];
    all.extend_from_slice(objects);
    all.extend([
        json!({"chain": {"family": "inet", "table": "t", "name": "c", "type": "filter",
            "hook": hook.name(), "prio": 0, "policy": "accept"}}),
        json!({"rule": {"family": "inet", "table": "t", "chain": "c", "handle": 4, "expr": rule}}),
    ]);
    json!({ "nftables": all })
}

/// True if a ruleset drops a packet from 192.0.2.1:1000 to 198.51.100.2:53.
pub fn drops(document: &Value, surroundings: &Surroundings<'_>) -> bool {
    outcome(document, surroundings).decision == Decision::Drop
}

/// The outcome of a ruleset for that packet.
pub fn outcome(document: &Value, surroundings: &Surroundings<'_>) -> Outcome {
    let Surroundings { hook, links: (from, to), routes, cpu, tcp } = *surroundings;
    let imported = import_value(document, Options::default()).expect("it is right");
    let options = CompileOptions { index: false, seed: 3 };
    let program = Program::compile(imported.ruleset, options).expect("it is small");
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
    let bits = |text| name_bits(text).expect("a name");
    let interface = |(text, link_type)| Interface { link_type, ..Interface::ethernet(bits(text)) };
    state.set_interfaces([("in0", from), ("out0", to)].map(interface).into());
    if let Some(cpu) = cpu {
        state.set_cpu(cpu);
    }
    let mut bytes = Vec::new();
    let packet = PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]);
    match tcp {
        Some(header) => {
            let header = Tcp { source_port: 1000, destination_port: 53, ..header };
            packet.tcp(&header, b"", &mut bytes);
        }
        None => packet.udp(1000, 53, b"x", &mut bytes),
    }
    let network = dissect(&bytes).expect("it is right").network.expect("it is IP");
    let view = PacketView {
        input: bits("in0"),
        output: bits("out0"),
        routes,
        ..PacketView::untracked(&bytes, &network)
    };
    evaluate(&program, hook, &view, &mut state, Timestamp::ZERO)
}
