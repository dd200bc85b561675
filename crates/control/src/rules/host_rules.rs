//! The rules and chains that the kernel has to apply: they lead packets to the host, or are about its
//! own traffic.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ruleset::{Ending, EndsAt, HostChain, Interval, NatKind, Need, listing};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wire::Family;

use super::RuleBook;

/// A rule that leads packets to the host, or a chain about its own traffic. Only the kernel can apply
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRule {
    /// Family, table, chain, and the handle of a rule.
    pub place: String,
    /// The rule as nft writes it, or the hook of a chain and its policy.
    pub text: String,
    /// True if the kernel has the rule too; `None` if that is not known.
    pub is_there: Option<bool>,
    /// True for a chain that the gateway runs too: one of prerouting, for what is not for the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs_here: bool,
}

/// The kernel's chains as a ruleset sees them.
#[derive(Clone, Debug, Default)]
pub struct KernelLook {
    /// The chains about the host's own traffic, which only the kernel can run, and whether it has
    /// them now. Chains that accept everything are left out.
    pub chains: Vec<HostRule>,
    /// Warnings about what the kernel does beside the ruleset: it translates sources as well, or carries
    /// packets that the gateway does not see.
    pub remarks: Vec<String>,
}

impl RuleBook {
    /// The rules that the kernel has to apply: redirects, and translations to one of the host's
    /// `own` addresses. `kernel` is the output of `nft -j list ruleset` for the kernel's own rules.
    pub fn host_rules(&self, own: &[IpAddr], kernel: Option<&Value>) -> Vec<HostRule> {
        let ruleset = &self.ruleset;
        let number = |address: &IpAddr| match address {
            IpAddr::V4(address) => (Family::V4, u128::from(address.to_bits())),
            IpAddr::V6(address) => (Family::V6, address.to_bits()),
        };
        let own: Vec<(Family, u128)> = own.iter().map(number).collect();
        let has_own = |all: &[(Family, Interval)]| {
            all.iter().any(|&(family, it)| own.iter().any(|own| own.0 == family && it.holds(own.1)))
        };
        let is_local = |ending: &&Ending| match &ending.at {
            EndsAt::Host => true,
            EndsAt::Addresses(all) => has_own(all),
            // A rule that changes the port alone, for packets that may be for the host.
            EndsAt::OwnAddress => ending
                .packets
                .iter()
                .any(|packets| packets.addresses.is_none_or(|addresses| has_own(&[addresses]))),
        };
        let ends = ruleset.translations().ends;
        let rules = ends.iter().filter(is_local).filter_map(|ending| {
            let place = ruleset.place_of_rule(ending.rule)?.to_string();
            let own = self.object(ruleset.rules()[ending.rule].position)?;
            let is_there = kernel.map(|kernel| holds(kernel, &own));
            Some(HostRule { place, text: listing::rule_text(&own), is_there, runs_here: false })
        });
        rules.collect()
    }

    /// Family and name of each table that has rules of which [`host_rules`](Self::host_rules) tells.
    pub fn host_tables(&self) -> BTreeSet<(&'static str, &str)> {
        let ends = self.ruleset.translations().ends;
        let table = |rule: usize| {
            let chain = self.ruleset.rules()[rule].chain;
            let chain = &self.ruleset.chains()[chain.index()];
            (chain.family.name(), &*chain.table)
        };
        ends.iter().map(|ending| table(ending.rule)).collect()
    }

    /// Asks the kernel, once, for what this ruleset needs to know of its chains.
    pub fn look_at_kernel(&self) -> KernelLook {
        let of_source =
            |need| matches!(need, Need::Translation(NatKind::Source | NatKind::Masquerade));
        let translates_sources = self.ruleset.needs().any(|(_, need)| of_source(need));
        let bridges = self.isolated_bridges();
        // Nobody is asked for nothing.
        if self.ruleset.host_chains().is_empty() && !translates_sources && bridges.is_empty() {
            return KernelLook::default();
        }
        let kernel = engine::kernel_chains().ok();
        let chains = self.host_chains(kernel.as_ref().map(|kernel| &*kernel.all));
        let forwards = kernel.as_ref().map(|kernel| forwards(&kernel.all));
        let of_bridges = bridges.iter().filter_map(|bridge| bridge_warning(bridge, forwards));
        let of_bridges: Vec<String> = of_bridges.collect();
        let kernel = kernel.filter(|_| translates_sources).unwrap_or_default();
        let of_sources = source_warning(&kernel.source_translations);
        KernelLook { chains, remarks: of_sources.into_iter().chain(of_bridges).collect() }
    }

    /// The bridges of the kernel whose ports a rule isolates from each other, each with the place of the
    /// rule, if the kernel's netfilter sees what they carry.
    fn isolated_bridges(&self) -> Vec<(String, String)> {
        let rules = self.ruleset.isolating();
        if rules.is_empty() {
            return Vec::new();
        }
        let rule_of = |name: &str| {
            rules.iter().copied().find(|rule| self.ruleset.is_of_interface(*rule, name))
        };
        let bridges = engine::filtered_bridges(|name| rule_of(name).is_some()).unwrap_or_default();
        let with_place = |bridge: String| {
            let place = self.ruleset.place_of_rule(rule_of(&bridge)?.index())?;
            Some((bridge, place.to_string()))
        };
        bridges.into_iter().filter_map(with_place).collect()
    }

    /// The chains about the host's own traffic, which only the kernel can run; `kernel` are those that
    /// it has. Chains that accept everything are left out.
    pub(super) fn host_chains(&self, kernel: Option<&[HostChain]>) -> Vec<HostRule> {
        let rules = self.ruleset.host_chains().iter().map(|chain| {
            let HostChain { family, table, name, hook, policy } = chain;
            HostRule {
                place: format!("{family} {table} chain {name}"),
                text: format!("hook {hook}, policy {policy}"),
                is_there: kernel.map(|kernel| kernel.contains(chain)),
                runs_here: hook == "prerouting",
            }
        });
        rules.collect()
    }
}

impl KernelLook {
    /// Warnings about chains that the kernel lacks, and about those that it has.
    pub fn warnings(&self) -> Vec<String> {
        let of_chains = [false, true].into_iter().filter_map(|it| warning(&self.chains, it));
        of_chains.chain(self.remarks.iter().cloned()).collect()
    }
}

/// A warning about chains of the kernel that translate sources.
fn source_warning(chains: &[String]) -> Option<String> {
    (!chains.is_empty()).then(|| {
        format!(
            "THE KERNEL TRANSLATES SOURCES TOO, in {}: connections of this host work, but those of \
             containers and virtual machines, which the kernel forwards, do not work over an \
             interface of the gateway: have the kernel translate nothing that leaves by one",
            chains.join(", ")
        )
    })
}

/// True if the kernel has rules of its own about what it forwards.
fn forwards(chains: &[HostChain]) -> bool {
    let is_own = |chain: &HostChain| chain.table.starts_with(ruleset::OWN_TABLE_PREFIX);
    chains.iter().any(|chain| chain.hook == "forward" && !is_own(chain))
}

/// A warning about a rule that isolates the ports of a bridge of the kernel, unless the kernel has rules
/// about forwarding itself.
fn bridge_warning((bridge, rule): &(String, String), forwards: Option<bool>) -> Option<String> {
    let kernel = match forwards {
        Some(true) => return None,
        Some(false) => "which has none",
        None => "and this process has no right to see whether there are any",
    };
    Some(format!(
        "NO PACKET between the ports of {bridge} MEETS {rule}, nor any other rule here: the kernel's bridge \
         carries it past the gateway. With br_netfilter the kernel asks its own chains of forward, {kernel}: \
         load this rule into the kernel too"
    ))
}

/// A warning about the chains that the kernel lacks, among those that the gateway runs too or among
/// the others.
fn warning(chains: &[HostRule], runs_here: bool) -> Option<String> {
    let lacks = chains.iter().filter(|it| it.is_there == Some(false) && it.runs_here == runs_here);
    let lacks: Vec<_> = lacks.map(|it| format!("{} ({})", it.place, it.text)).collect();
    let why = match runs_here {
        true => {
            " FOR THIS HOST: what it drops here reaches the host all the same, because the kernel \
             has a copy of its own, and the kernel does not have the chain"
        }
        false => {
            ": it is about this host's own traffic, which the gateway does not judge, and the kernel \
             does not have it"
        }
    };
    (!lacks.is_empty()).then(|| {
        format!(
            "NOBODY RUNS {}{why}: load the ruleset into the kernel too (nft -f; iptables-restore for \
             rules of iptables-save)",
            lacks.join(", ")
        )
    })
}

/// True if a document has a rule in the same chain. Counters do not matter.
fn holds(document: &Value, rule: &Value) -> bool {
    const PLACE: [&str; 3] = ["family", "table", "chain"];
    let objects = document.get("nftables").and_then(Value::as_array).into_iter().flatten();
    let mut rules = objects.filter_map(|object| object.get("rule"));
    let wanted = statements(rule);
    rules.any(|other| {
        PLACE.iter().all(|key| other.get(key) == rule.get(key)) && statements(other) == wanted
    })
}

/// The statements of a rule without their counters.
fn statements(rule: &Value) -> Vec<Value> {
    let all = rule.get("expr").and_then(Value::as_array).into_iter().flatten().cloned();
    all.map(|mut statement| {
        for (kind, counted) in [("counter", ["packets", "bytes"]), ("quota", ["used", "used_unit"])]
        {
            if let Some(fields) = statement.get_mut(kind).and_then(Value::as_object_mut) {
                counted.iter().for_each(|field| drop(fields.remove(*field)));
            }
        }
        statement
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use ruleset::Options;
    use serde_json::json;

    use super::*;

    fn document(rules: &[(u64, Value)]) -> Value {
        let mut all = vec![
            json!({"table": {"family": "inet", "name": "t", "handle": 1}}),
            json!({"chain": {"family": "inet", "table": "t", "name": "in", "handle": 2,
                "type": "nat", "hook": "prerouting", "prio": -100, "policy": "accept"}}),
        ];
        all.extend(rules.iter().map(|(handle, expr)| {
            json!({"rule": {"family": "inet", "table": "t", "chain": "in", "handle": handle,
                "expr": expr}})
        }));
        json!({ "nftables": all })
    }

    #[test]
    fn the_kernels_rules_are_told_and_whether_it_has_them() {
        let port = |port: u16| {
            json!({"match": {"op": "==", "right": port,
                "left": {"payload": {"protocol": "tcp", "field": "dport"}}}})
        };
        let to = |address: &str| json!({"dnat": {"family": "ip", "addr": address, "port": 81}});
        let to_address = |address: &str| {
            json!({"match": {"op": "==", "right": address,
                "left": {"payload": {"protocol": "ip", "field": "daddr"}}}})
        };
        let counter = |packets: u64| json!({"counter": {"packets": packets, "bytes": 9}});
        let redirect = json!({"redirect": {"port": 3128}});
        let own = document(&[
            (4, json!([port(80), counter(1), redirect])),
            (5, json!([port(81), redirect])),
            (6, json!([port(82), to("192.0.2.254")])),
            (7, json!([port(83), to("192.0.2.1")])),
            // The kernel may choose any address of a range; a network leaves no choice.
            (
                8,
                json!([port(84), {"dnat": {"family": "ip",
                "addr": {"range": ["192.0.2.253", "192.0.2.254"]}}}]),
            ),
            (
                9,
                json!([port(85), {"dnat": {"family": "ip", "flags": "netmap",
                "addr": {"prefix": {"addr": "192.0.2.0", "len": 24}}}}]),
            ),
            // A port of the address that the packet has.
            (10, json!([port(86), {"dnat": {"port": 22}}])),
            (11, json!([port(87), to_address("192.0.2.254"), {"dnat": {"port": 22}}])),
            (12, json!([port(88), to_address("192.0.2.1"), {"dnat": {"port": 22}}])),
        ]);
        let book = RuleBook::read(own.to_string(), Options::default(), 7).unwrap();
        let host = [IpAddr::from([192, 0, 2, 254])];
        let kernels =
            document(&[(14, json!([port(80), counter(70), redirect])), (15, json!([port(81)]))]);
        let rules = book.host_rules(&host, Some(&kernels));
        let texts: Vec<_> = rules.iter().map(|it| (it.text.as_str(), it.is_there)).collect();
        assert_eq!(
            texts,
            [
                ("tcp dport 80 counter packets 1 bytes 9 redirect to :3128", Some(true)),
                ("tcp dport 81 redirect to :3128", Some(false)),
                ("tcp dport 82 dnat ip to 192.0.2.254:81", Some(false)),
                ("tcp dport 85 dnat ip to 192.0.2.0/24", Some(false)),
                ("tcp dport 86 dnat to :22", Some(false)),
                ("tcp dport 87 ip daddr 192.0.2.254 dnat to :22", Some(false)),
            ]
        );
        assert_eq!(rules[0].place, "inet t chain in rule handle 4");
        let rules = book.host_rules(&[], None);
        assert_eq!((rules.len(), rules[0].is_there), (3, None));
    }

    #[test]
    fn a_kernel_that_translates_sources_is_warned_of() {
        assert_eq!(source_warning(&[]), None);
        let chains = ["ip nat chain postrouting", "ip6 nat chain out"].map(str::to_owned);
        let warning = source_warning(&chains).unwrap();
        assert!(warning.contains("in ip nat chain postrouting, ip6 nat chain out: "), "{warning}");
    }
}
