//! The kernel's side: a namespace that forwards with rulesets.

use std::time::Duration;

use lab::{Namespace, Result, Side};
use serde_json::{Value, json};

use super::generate::{Case, name};
use crate::scenario::forwarding_namespace;

/// The namespace. Each player has its own CPU if there are enough.
pub struct Kernel {
    namespace: Namespace,
    player: String,
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
pub struct Judged {
    /// The rules that `nft` accepted. It refuses those whose parts exclude each other.
    pub rules: String,
    /// The rules as `nft` lists them before and after the packets; none if `nft` can not list them.
    pub listed: Option<[String; 2]>,
    pub answers: Vec<Answer>,
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
            // On `lo`, because another interface would send multicast reports for it.
            "addr add 2001:db8:9::9/128 dev lo",
        ])?;
        let sysctls = [
            "net.ipv4.icmp_ratelimit=0",
            "net.ipv4.icmp_msgs_per_sec=100000",
            "net.ipv4.icmp_msgs_burst=100000",
            "net.ipv6.icmp.ratelimit=0",
            "net.ipv4.conf.all.send_redirects=0",
            "net.ipv4.conf.client0.send_redirects=0",
            "net.ipv4.conf.server0.send_redirects=0",
        ];
        namespace.program("sysctl").args(["-qw"]).args(sysctls).check()?;
        let player = namespace.write_file("player.py", include_bytes!("player.py"))?;
        Ok(Self { namespace, player, cpu })
    }

    /// Runs each case from an empty ruleset without connections.
    ///
    /// # Errors
    /// If `nft` does not accept a case.
    ///
    /// # Errors
    /// If `nft` does not take a case.
    pub fn judge(&self, cases: &[Case]) -> Result<Vec<Judged>> {
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
        let player = self.namespace.program("python3");
        let player = player.args([&self.player, &self.cpu.to_string(), &orders]);
        let told = player.limit(LIMIT).check()?;
        Ok(told.lines().map(read).collect())
    }
}

fn read(line: &str) -> Judged {
    let told: Value = serde_json::from_str(line).expect("the player prints JSON");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let answers = told["packets"].as_array().expect("a list").iter().map(|packet| Answer {
        at: Duration::from_micros(packet["at"].as_u64().expect("a time")),
        out: packet["out"].as_str().map(|frame| {
            let side = if packet["side"] == "client" { Side::Client } else { Side::Server };
            (side, bytes(frame))
        }),
        refused: text(&packet["answer"]),
    });
    Judged {
        rules: text(&told["rules"]).expect("rules"),
        listed: text(&told["before"]).zip(text(&told["after"])).map(Into::into),
        answers: answers.collect(),
    }
}

/// Bytes as the player writes them.
pub fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(digits).collect()
}
