//! The kernel's side: a namespace that forwards with rulesets.

use std::time::Duration;

use lab::{Namespace, Result, Side};
use serde_json::{Value, json};

use super::generate::{Case, name};
use crate::scenario::cables::{ANSWER_ALL, forwarding_namespace, player};
use crate::scenario::{bytes, hex};

/// The namespace. Each player has its own CPU if there are enough.
pub struct Kernel {
    namespace: Namespace,
    cpu: usize,
}

/// The outcome for a packet.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The time of sending.
    pub at: Duration,
    /// The frame that came out, and its side.
    pub out: Option<(Side, Vec<u8>)>,
    /// The answer to the sender of a refused packet: `reset`, or the type and code of an ICMP
    /// error.
    pub refused: Option<String>,
}

/// The outcome of a case.
#[derive(Clone, Debug)]
pub struct CaseOutcome {
    /// The rules that `nft` accepted. It refuses those whose parts exclude each other.
    pub rules: String,
    /// The rules as `nft` lists them before and after the packets; none if `nft` can not list them.
    pub listed: Option<[String; 2]>,
    pub answers: Vec<Answer>,
    /// Nanoseconds from the times of sending to the time since 1970, and seconds that the local
    /// time is ahead of UTC.
    pub wall: (i64, i32),
    /// The CPU that evaluated the rules for all packets.
    pub cpu: u32,
}

impl Kernel {
    /// # Errors
    /// Those of the namespace.
    pub fn new(cpu: usize) -> Result<Self> {
        let namespace = forwarding_namespace("rules")?;
        // Needed by translations and by answers to refused packets.
        namespace.ip(&[
            "addr add 203.0.113.8/32 dev client0",
            "addr add 203.0.113.9/32 dev server0",
            "link set lo up",
            "link set client0 group 5",
            "link set server0 group 7",
            // On `lo`, because another interface would send multicast reports for it.
            "addr add 2001:db8:9::9/128 dev lo",
        ])?;
        namespace.sysctl(ANSWER_ALL)?;
        Ok(Self { namespace, cpu })
    }

    /// Runs each case from an empty ruleset without connections.
    ///
    /// # Errors
    /// If `nft` does not accept a case.
    pub fn run(&self, cases: &[Case]) -> Result<Vec<CaseOutcome>> {
        const LIMIT: Duration = Duration::from_secs(120);
        let mut orders = String::new();
        for case in cases {
            let packets: Vec<Value> = case
                .packets
                .iter()
                .map(|packet| json!({"side": name(packet.side), "frame": hex(&packet.frame)}))
                .collect();
            orders += &json!({"rules": case.rules, "packets": packets}).to_string();
            orders.push('\n');
        }
        let orders = self.namespace.write_file("cases", orders.as_bytes())?;
        let player = player(&self.namespace, include_bytes!("player.py"))?;
        let player = player.args([&self.cpu.to_string(), &orders]);
        let output = player.limit(LIMIT).check()?;
        Ok(output.lines().map(read).collect())
    }
}

fn read(line: &str) -> CaseOutcome {
    let printed: Value = serde_json::from_str(line).expect("the player prints JSON");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let answers = printed["packets"].as_array().expect("a list").iter().map(|packet| Answer {
        at: Duration::from_micros(packet["at"].as_u64().expect("a time")),
        out: packet["out"].as_str().map(|frame| {
            let side = if packet["side"] == "client" { Side::Client } else { Side::Server };
            (side, bytes(frame))
        }),
        refused: text(&packet["answer"]),
    });
    CaseOutcome {
        rules: text(&printed["rules"]).expect("rules"),
        listed: text(&printed["before"]).zip(text(&printed["after"])).map(Into::into),
        answers: answers.collect(),
        cpu: printed["cpu"].as_u64().and_then(|cpu| cpu.try_into().ok()).expect("a number"),
        wall: (
            printed["ahead"].as_i64().expect("a number"),
            printed["zone"].as_i64().and_then(|zone| zone.try_into().ok()).expect("seconds"),
        ),
    }
}
