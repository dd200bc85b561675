//! The matches and targets of iptables whose translation means the same as they do, with the
//! options and values for which this holds. They rest on the output of iptables 1.8.9 for each, and
//! on the live test that sends packets through each of them in the kernel and here
//! (`lab/tests/live/rules/iptables`).
//!
//! A rule with anything else is refused. The translation of what is not listed is often wrong
//! without a word about it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An option of a match or target.
#[derive(Debug)]
pub(super) struct Kind {
    /// Its name, as iptables-save writes it.
    pub name: &'static str,
    /// The number of words behind it.
    pub values: usize,
    /// True if `!` may stand before it.
    pub negatable: bool,
    /// True for values that are translated rightly.
    pub fits: fn(&str) -> bool,
}

const fn flag(name: &'static str) -> Kind {
    Kind { name, values: 0, negatable: false, fits: |_| true }
}

const fn one(name: &'static str, fits: fn(&str) -> bool) -> Kind {
    Kind { name, values: 1, negatable: false, fits }
}

const fn either(name: &'static str, fits: fn(&str) -> bool) -> Kind {
    Kind { name, values: 1, negatable: true, fits }
}

/// Options before those of matches.
pub(super) const CORE: &[Kind] = &[
    either("-s", network),
    either("-d", network),
    either("-i", interface),
    either("-o", interface),
    either("-p", protocol),
    Kind { name: "-f", values: 0, negatable: true, fits: |_| true },
];

const PORTS: &[Kind] = &[either("--sport", range), either("--dport", range)];

const TCP: &[Kind] = &[
    either("--sport", range),
    either("--dport", range),
    Kind { name: "--tcp-flags", values: 2, negatable: true, fits: tcp_flags },
    either("--tcp-option", number),
];

const CONNTRACK: &[Kind] = &[
    either("--ctstate", states),
    either("--ctstatus", |value| {
        is_list(value, &["EXPECTED", "SEEN_REPLY", "ASSURED", "CONFIRMED"])
    }),
    either("--ctproto", number),
    one("--ctdir", |value| ["ORIGINAL", "REPLY"].contains(&value)),
    either("--ctorigsrc", prefix),
    either("--ctorigdst", prefix),
    either("--ctreplsrc", prefix),
    either("--ctrepldst", prefix),
    either("--ctorigsrcport", range),
    either("--ctorigdstport", range),
    either("--ctreplsrcport", range),
    either("--ctrepldstport", range),
];

const HASHLIMIT: &[Kind] = &[
    one("--hashlimit-upto", rate),
    one("--hashlimit-above", rate),
    one("--hashlimit-burst", positive),
    one("--hashlimit-mode", |value| is_list(value, &["srcip", "dstip", "srcport", "dstport"])),
    one("--hashlimit-name", name),
    one("--hashlimit-srcmask", number),
    one("--hashlimit-dstmask", number),
];

const CONNLIMIT: &[Kind] = &[
    one("--connlimit-above", number),
    one("--connlimit-upto", number),
    one("--connlimit-mask", number),
    flag("--connlimit-saddr"),
    flag("--connlimit-daddr"),
];

const ADDRTYPE: &[Kind] = &[
    either("--src-type", address_types),
    either("--dst-type", address_types),
    flag("--limit-iface-in"),
    flag("--limit-iface-out"),
];

const STATISTIC: &[Kind] = &[
    one("--mode", |value| ["nth", "random"].contains(&value)),
    one("--every", positive),
    one("--packet", number),
    one("--probability", |value| value.parse().is_ok_and(|it: f64| (0.0..=1.0).contains(&it))),
];

const MULTIPORT: &[Kind] =
    &[either("--sports", ranges), either("--dports", ranges), either("--ports", ranges)];
const IPRANGE: &[Kind] = &[either("--src-range", addresses), either("--dst-range", addresses)];
const TTL: &[Kind] =
    &[either("--ttl-eq", number), one("--ttl-lt", number), one("--ttl-gt", number)];
const HL: &[Kind] = &[either("--hl-eq", number), one("--hl-lt", number), one("--hl-gt", number)];
const RPFILTER: &[Kind] = &[flag("--loose"), flag("--validmark"), flag("--invert")];
const PACKET_TYPE: &[Kind] =
    &[either("--pkt-type", |value| ["unicast", "broadcast", "multicast"].contains(&value))];

/// The options of a match, or nothing if no translation of it is known to be right.
pub(super) fn of_match(module: &str) -> Option<&'static [Kind]> {
    let kinds: &[Kind] = match module {
        "tcp" => TCP,
        "udp" | "sctp" | "dccp" => PORTS,
        "esp" => const { &[either("--espspi", range)] },
        "ah" => const { &[either("--ahspi", range)] },
        "icmp" => const { &[either("--icmp-type", icmp_type)] },
        "icmp6" => const { &[either("--icmpv6-type", icmp_type)] },
        "multiport" => MULTIPORT,
        "state" => const { &[either("--state", states)] },
        "conntrack" => CONNTRACK,
        "addrtype" => ADDRTYPE,
        "limit" => const { &[one("--limit", rate), one("--limit-burst", positive)] },
        "hashlimit" => HASHLIMIT,
        "connlimit" => CONNLIMIT,
        "comment" => const { &[one("--comment", |_| true)] },
        "mark" | "connmark" => const { &[either("--mark", masked)] },
        "mac" => const { &[either("--mac-source", mac)] },
        "iprange" => IPRANGE,
        "length" => const { &[either("--length", range)] },
        "ttl" => TTL,
        "hl" => HL,
        "dscp" => const { &[either("--dscp", number)] },
        "pkttype" => PACKET_TYPE,
        "statistic" => STATISTIC,
        "rpfilter" => RPFILTER,
        "tcpmss" => const { &[one("--mss", range)] },
        "helper" => const { &[one("--helper", name)] },
        "nfacct" => const { &[one("--nfacct-name", |_| true)] },
        "owner" => const { &[one("--uid-owner", number), one("--gid-owner", number)] },
        _ => return None,
    };
    Some(kinds)
}

/// Words about a match or target that nft says with sets of its own, which depend on more than the
/// rule. `rest` are the words behind its name.
pub(super) fn advice(by: &str, name: &str, rest: &[String], is_v6: bool) -> Option<String> {
    let (family, kind) = if is_v6 { ("ip6", "ipv6_addr") } else { ("ip", "ipv4_addr") };
    let set = || {
        let option = ["--match-set", "--add-set", "--del-set", "--map-set"];
        let at = rest.iter().position(|word| option.contains(&word.as_str()))?;
        let is_name = |name: &&String| !name.starts_with('-');
        Some((rest.get(at + 1).filter(is_name)?, rest.get(at + 2)?))
    };
    let unknown = (&"NAME".to_owned(), &"src".to_owned());
    let (set, of) = set().unwrap_or(unknown);
    let end = if of.starts_with("dst") { "daddr" } else { "saddr" };
    match (by, name) {
        ("-m", "set") if of.contains(',') => Some(format!(
            "`-m set` asks for the ipset {set}, whose elements iptables-save does not print; write \
             the set and the rule in nft's syntax, such as `set {set} {{ type {kind} . inet_proto . \
             inet_service; elements = {{ ... }}; }}` and `{family} {end} . meta l4proto . th dport \
             @{set}`"
        )),
        ("-m", "set") => Some(format!(
            "`-m set` asks for the ipset {set}, whose elements iptables-save does not print; write \
             the set and the rule in nft's syntax: `set {set} {{ type {kind}; flags interval; \
             elements = {{ ... }}; }}` and `{family} {end} @{set}`"
        )),
        ("-j", "SET") => Some(format!(
            "`-j SET` changes the ipset {set}, whose elements iptables-save does not print; write \
             the set and the rule in nft's syntax: `set {set} {{ type {kind}; flags \
             dynamic,timeout; }}` and `add @{set} {{ {family} {end} timeout 1h }}`"
        )),
        ("-m", "recent") => Some(of_recent(rest, family, kind)),
        _ => None,
    }
}

/// Words about `-m recent`.
fn of_recent(rest: &[String], family: &str, kind: &str) -> String {
    let value = |option: &str| {
        let at = rest.iter().position(|word| word == option)?;
        rest.get(at + 1).and_then(|it| parsed(it)).filter(|it| *it > 0)
    };
    let seconds = value("--seconds").unwrap_or(60);
    let set = format!("`set NAME {{ type {kind}; flags dynamic,timeout; }}`");
    let words = match value("--hitcount") {
        Some(hits) => {
            let an_hour = (u64::from(hits) * 3600 / u64::from(seconds)).max(1);
            format!(
                "`add @NAME {{ {family} saddr timeout {seconds}s limit rate over {an_hour}/hour burst \
                 {hits} packets }}` in the place of `--hitcount`; it needs no rule with `--set`"
            )
        }
        None => format!(
            "`update @NAME {{ {family} saddr timeout {seconds}s }}` in the place of `--set`, \
             `{family} saddr @NAME` in that of `--rcheck`"
        ),
    };
    format!(
        "`-m recent` keeps a list that nft has no words for; write the rule in nft's syntax with \
         {set}: {words}"
    )
}

const LOG: &[Kind] = &[
    one("--log-prefix", |_| true),
    one("--log-level", name),
    flag("--log-tcp-sequence"),
    flag("--log-tcp-options"),
    flag("--log-ip-options"),
    flag("--log-uid"),
    flag("--log-macdecode"),
];

const NFLOG: &[Kind] = &[
    one("--nflog-prefix", |_| true),
    one("--nflog-group", number),
    one("--nflog-size", number),
    one("--nflog-threshold", number),
];

const MARK: &[Kind] = &[
    one("--set-xmark", value_and_mask),
    one("--set-mark", number),
    one("--or-mark", number),
    one("--and-mark", number),
    one("--xor-mark", number),
];

const CONNMARK: &[Kind] = &[
    one("--set-xmark", value_and_mask),
    one("--set-mark", number),
    flag("--save-mark"),
    flag("--restore-mark"),
    one("--nfmask", number),
    one("--ctmask", number),
];

const SNAT: &[Kind] = &[
    one("--to-source", endpoints),
    flag("--random"),
    flag("--random-fully"),
    flag("--persistent"),
];
const DNAT: &[Kind] = &[one("--to-destination", endpoints), flag("--random"), flag("--persistent")];
const MASQUERADE: &[Kind] =
    &[one("--to-ports", dashed_ports), flag("--random"), flag("--random-fully")];
const REDIRECT: &[Kind] = &[one("--to-ports", dashed_ports), flag("--random")];
const TCPMSS: &[Kind] = &[one("--set-mss", positive), flag("--clamp-mss-to-pmtu")];

/// The options of a target, or nothing if no translation of it is known to be right.
pub(super) fn of_target(target: &str) -> Option<&'static [Kind]> {
    let kinds: &[Kind] = match target {
        "ACCEPT" | "DROP" | "RETURN" | "NOTRACK" | "TRACE" => &[],
        "REJECT" => const { &[one("--reject-with", |value| REJECTS.contains(&value))] },
        "LOG" => LOG,
        "NFLOG" => NFLOG,
        "MARK" => MARK,
        "CONNMARK" => CONNMARK,
        "SNAT" => SNAT,
        "DNAT" => DNAT,
        "MASQUERADE" => MASQUERADE,
        "REDIRECT" => REDIRECT,
        "TCPMSS" => TCPMSS,
        "DSCP" => const { &[one("--set-dscp", number)] },
        "CT" => const { &[flag("--notrack"), one("--zone", number)] },
        "TTL" => const { &[one("--ttl-set", number)] },
        "HL" => const { &[one("--hl-set", number)] },
        _ => return None,
    };
    Some(kinds)
}

const REJECTS: &[&str] = &[
    "icmp-net-unreachable",
    "icmp-host-unreachable",
    "icmp-port-unreachable",
    "icmp-proto-unreachable",
    "icmp-net-prohibited",
    "icmp-host-prohibited",
    "icmp-admin-prohibited",
    "icmp6-no-route",
    "icmp6-adm-prohibited",
    "icmp6-addr-unreachable",
    "icmp6-port-unreachable",
    "icmp6-policy-fail",
    "icmp6-reject-route",
    "tcp-reset",
];

/// Builtin chains of the tables that are translated rightly.
pub(super) fn builtin_chains(table: &str) -> Option<&'static [&'static str]> {
    match table {
        "filter" => Some(&["INPUT", "FORWARD", "OUTPUT"]),
        "nat" => Some(&["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
        "mangle" => Some(&["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]),
        "raw" => Some(&["PREROUTING", "OUTPUT"]),
        // Its translation has the priority of the table filter.
        _ => None,
    }
}

/// A number of iptables, which may be hexadecimal.
pub(super) fn parsed(value: &str) -> Option<u32> {
    let is_digits = |digits: &str| digits.chars().all(|it| it.is_ascii_hexdigit());
    match value.strip_prefix("0x") {
        Some(hex) if is_digits(hex) => u32::from_str_radix(hex, 16).ok(),
        // A leading zero is octal for iptables.
        None if is_digits(value) && (value == "0" || !value.starts_with('0')) => value.parse().ok(),
        _ => None,
    }
}

/// Both ends of `5`, `5:9`, `5:` or `:9`, where an end that is left out is that of `most`.
pub(super) fn ends(value: &str, most: u32) -> Option<(u32, u32)> {
    let Some((first, last)) = value.split_once(':') else {
        return parsed(value).map(|only| (only, only));
    };
    let first = if first.is_empty() { Some(0) } else { parsed(first) }?;
    let last = if last.is_empty() { Some(most) } else { parsed(last) }?;
    Some((first, last)).filter(|(first, last)| first <= last)
}

fn number(value: &str) -> bool {
    parsed(value).is_some()
}

fn positive(value: &str) -> bool {
    parsed(value).is_some_and(|it| it > 0)
}

fn range(value: &str) -> bool {
    ends(value, u32::MAX).is_some()
}

fn ranges(value: &str) -> bool {
    value.split(',').all(range)
}

fn value_and_mask(value: &str) -> bool {
    let (value, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
    number(value) && number(mask)
}

/// A value with a mask that covers it, since the translation compares it as it is.
fn masked(value: &str) -> bool {
    let (value, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
    matches!((parsed(value), parsed(mask)), (Some(value), Some(mask)) if value & !mask == 0)
}

fn is_list(value: &str, of: &[&str]) -> bool {
    value.split(',').all(|part| of.contains(&part))
}

fn tcp_flags(value: &str) -> bool {
    is_list(value, &["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ALL", "NONE"])
}

fn states(value: &str) -> bool {
    let known = ["INVALID", "NEW", "ESTABLISHED", "RELATED", "UNTRACKED", "SNAT", "DNAT"];
    is_list(value, &known)
}

fn address_types(value: &str) -> bool {
    let known = [
        "UNICAST",
        "LOCAL",
        "BROADCAST",
        "ANYCAST",
        "MULTICAST",
        "BLACKHOLE",
        "UNREACHABLE",
        "PROHIBIT",
    ];
    is_list(value, &known)
}

fn name(value: &str) -> bool {
    value.starts_with(|it: char| it.is_ascii_alphanumeric())
        && value.chars().all(|it| it.is_ascii_alphanumeric() || "_-".contains(it))
}

fn protocol(value: &str) -> bool {
    name(value) && !["0", "all"].contains(&value)
}

/// An interface's name; nft reads some characters in another way.
fn interface(value: &str) -> bool {
    let stem = value.strip_suffix('+').unwrap_or(value);
    value.len() < 16
        && !value.is_empty()
        && stem.chars().all(|it| it.is_ascii_alphanumeric() || "._-:@".contains(it))
}

fn network(value: &str) -> bool {
    let (address, mask) = match value.split_once('/') {
        Some((address, mask)) => (address, Some(mask)),
        None => (value, None),
    };
    let bits = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    mask.is_none_or(|mask| {
        let is_v4 = bits == 32 && mask.parse::<Ipv4Addr>().is_ok();
        is_v4 || parsed(mask).is_some_and(|length| length <= bits)
    })
}

/// An address, with the length of a prefix or without.
fn prefix(value: &str) -> bool {
    network(value) && value.split_once('/').is_none_or(|(_, length)| number(length))
}

fn addresses(value: &str) -> bool {
    let (first, last) = value.split_once('-').unwrap_or((value, value));
    first.parse::<IpAddr>().is_ok() && last.parse::<IpAddr>().is_ok()
}

fn dashed_ports(value: &str) -> bool {
    let (first, last) = value.split_once('-').unwrap_or((value, value));
    [first, last].iter().all(|port| parsed(port).is_some_and(|port| port <= 65_535))
}

/// Addresses, ports, or both, as targets of translation have them.
fn endpoints(value: &str) -> bool {
    if addresses(value) {
        return true;
    }
    let Some((address, ports)) = value.rsplit_once(':') else { return false };
    let v6 = address.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let is_address = match v6 {
        Some(v6) => {
            v6.split('-').count() <= 2 && v6.split('-').all(|it| it.parse::<Ipv6Addr>().is_ok())
        }
        None => address.is_empty() || (!address.contains(':') && addresses(address)),
    };
    is_address && dashed_ports(ports)
}

/// A rate whose translation has the same number.
fn rate(value: &str) -> bool {
    let Some((count, unit)) = value.split_once('/') else { return false };
    let units = ["sec", "second", "min", "minute", "hour", "day"];
    positive(count) && units.contains(&unit)
}

fn icmp_type(value: &str) -> bool {
    let (kind, code) = value.split_once('/').unwrap_or((value, "0"));
    (value == "any" || parsed(kind).is_some_and(|it| it <= 255)) && number(code)
}

fn mac(value: &str) -> bool {
    value.split(':').count() == 6
        && value.split(':').all(|byte| byte.len() == 2 && u8::from_str_radix(byte, 16).is_ok())
}
