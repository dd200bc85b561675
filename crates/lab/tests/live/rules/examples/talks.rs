//! The exchanges between hosts: every kind between each source and each target on another
//! interface.

use lab::Random;
use serde_json::{Value, json};

use super::sites::{Site, Source, Target};

/// The flags of segments: ordinary ones, and those that only attackers send.
const FLAGS: [u8; 7] = [0x10, 0x11, 0x04, 0x03, 0x06, 0x00, 0x29];
/// The first source port.
const FIRST_PORT: u16 = 10_000;

/// At most this many of all possible exchanges.
pub fn talks(site: &Site, seed: u64, most: usize) -> Vec<Value> {
    let mut random = Random::new(seed);
    let mut kinds = Vec::new();
    for source in site.sources {
        for target in site.targets.iter().filter(|target| meet(source, target)) {
            kinds.extend(between(&mut random, source, target));
        }
    }
    random.shuffle(&mut kinds);
    kinds.truncate(most);
    for (number, talk) in kinds.iter_mut().enumerate() {
        talk["sport"] = json!(FIRST_PORT + number as u16);
    }
    kinds
}

fn meet(source: &Source, target: &Target) -> bool {
    source.address != target.address
        && target.at != Some(source.at)
        && source.address.contains(':') == target.address.contains(':')
}

fn between(random: &mut Random, source: &Source, target: &Target) -> Vec<Value> {
    let mut found = Vec::new();
    let mut add = |kind: &str, port: u16, flags: u8| {
        found.push(json!({
            "kind": kind, "at": source.at, "from": source.address, "to": target.address,
            "dport": port, "flags": flags,
        }));
    };
    for port in target.tcp {
        add("connect", *port, 0);
        if random.once_in(3) {
            add("refused", *port, 0);
        }
        if random.once_in(3) {
            add("stray", *port, random.one_of(&FLAGS));
        }
    }
    for port in target.udp {
        add("ask", *port, 0);
        if random.once_in(2) {
            add(random.one_of(&["unreachable", "long", "last_hop"]), *port, 0);
        }
    }
    add("ping", 0, 0);
    if random.once_in(2) {
        add("about_nothing", 53, 0);
    }
    found
}
