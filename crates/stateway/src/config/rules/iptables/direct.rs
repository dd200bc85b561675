//! Matches and targets that are written in nft's syntax at once, where iptables-restore-translate
//! says them wrongly or not at all and nft has words that mean the same.

use super::allowed::{ends, parsed};
use super::rule::{Given, Part, Place, implied};

/// Bits of a mark that `-j CONNMARK` copies at most. Each of them takes two rules.
const MOST_COPIED_BITS: u32 = 8;

/// Words of nft that stand in a rule beside its translation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// Conditions in front of it.
    pub before: String,
    /// A statement behind it.
    pub after: String,
}

impl Words {
    fn condition(before: impl Into<String>) -> Self {
        Self { before: before.into(), after: String::new() }
    }

    /// These words and others in one rule.
    pub fn with(&self, other: &Self) -> Self {
        let joined = |one: &str, other: &str| match (one, other) {
            ("", only) | (only, "") => only.to_owned(),
            (one, other) => format!("{one} {other}"),
        };
        Self {
            before: joined(&self.before, &other.before),
            after: joined(&self.after, &other.after),
        }
    }
}

/// Takes out of a part what nft can say at once. The rule then becomes one with each of the words
/// that this returns. No packet meets the conditions of two of them, or it may meet all of them in
/// turn; nothing is returned where the translation does.
///
/// # Errors
/// The reason why a form that the translation says wrongly can not be said here either.
pub(super) fn take(
    part: &mut Part,
    protocol: Option<&str>,
    place: Place<'_>,
) -> Result<Option<Vec<Words>>, String> {
    match (part.by, part.name.as_str()) {
        ("-m", "conntrack") => connection(part, protocol, place),
        ("-m", "tcp") => Ok(tcp(part)),
        ("-m", "udp") => Ok(other_port(part)),
        ("-m", "multiport") => either_port(part, protocol),
        ("-m", "icmp" | "icmp6") => Ok(kind_and_code(part)),
        ("-j", "CONNMARK") => connection_mark(part),
        ("-j", "TTL") => Ok(number_set(part, "--ttl-set", "ip ttl")),
        ("-j", "HL") => Ok(number_set(part, "--hl-set", "ip6 hoplimit")),
        ("-j", "CT") => Ok(number_set(part, "--zone", "ct zone")),
        // Each packet matches, and the rule has a counter of its own.
        ("-m", "nfacct") => {
            part.options.clear();
            Ok(Some(vec![Words::default()]))
        }
        _ => Ok(None),
    }
}

/// The states of `--ctstate`, as xt_conntrack.c judges them.
#[derive(Default)]
struct States<'a> {
    /// Those that a packet without a connection may have.
    without: Vec<&'a str>,
    /// Those that a packet of a connection may have.
    plain: Vec<&'a str>,
    /// `SNAT` and `DNAT`, which are bits of the connection's status.
    translated: Vec<&'a str>,
}

/// xt_conntrack.c: a packet has one of the states `INVALID`, `UNTRACKED`, `NEW`, `ESTABLISHED` and
/// `RELATED`, and one of a translated connection has `SNAT` or `DNAT` besides. The option matches if
/// the packet has any of those that it lists, and `!` turns this round as a whole. A packet without
/// a connection then matches, whatever the other options ask for, and does not match if there is no
/// `--ctstate`.
fn connection(
    part: &mut Part,
    protocol: Option<&str>,
    place: Place<'_>,
) -> Result<Option<Vec<Words>>, String> {
    let others = part.options.iter().filter(|given| given.name != "--ctstate");
    let others: Vec<String> =
        others.map(|given| of_connection(given, protocol, place)).collect::<Result<_, _>>()?;
    let others = others.join(" ");
    let Some(given) = part.get("--ctstate") else {
        if others.is_empty() {
            return Ok(None);
        }
        part.options.clear();
        return Ok(Some(vec![Words::condition(others)]));
    };
    let mut states = States::default();
    for state in given.value().split(',') {
        match state {
            "INVALID" | "UNTRACKED" => &mut states.without,
            "SNAT" | "DNAT" => &mut states.translated,
            _ => &mut states.plain,
        }
        .push(state);
    }
    if others.is_empty() && states.translated.is_empty() {
        return Ok(None);
    }
    let words = alternatives(&states, given.negated, &others);
    part.options.clear();
    Ok(Some(words))
}

/// The conditions of [`States`], of which no two match one packet.
fn alternatives(states: &States<'_>, negated: bool, others: &str) -> Vec<Words> {
    let state = |sign: &str, of: &[&str]| match of {
        [] => Words::default(),
        of => Words::condition(format!("ct state {sign}{}", of.join(",").to_lowercase())),
    };
    let status = |sign: &str| match &states.translated[..] {
        [] => Words::default(),
        of => Words::condition(format!("ct status {sign}{}", of.join(",").to_lowercase())),
    };
    let others = Words::condition(others);
    let without: Vec<&str> = ["INVALID", "UNTRACKED"]
        .into_iter()
        .filter(|state| states.without.contains(state) != negated)
        .collect();
    let mut words = Vec::new();
    if !without.is_empty() {
        words.push(state("", &without));
    }
    if negated {
        words.push(state("! ", &states.plain).with(&status("! ")).with(&others));
        return words;
    }
    if !states.plain.is_empty() {
        words.push(state("", &states.plain).with(&others));
    }
    if !states.translated.is_empty() {
        words.push(state("! ", &states.plain).with(&status("")).with(&others));
    }
    words
}

/// An option about the connection of a packet. nft matches no packet without one.
fn of_connection(
    given: &Given,
    protocol: Option<&str>,
    place: Place<'_>,
) -> Result<String, String> {
    let value = given.value();
    let not = if given.negated { "!= " } else { "" };
    let family = if place.is_v6 { "ip6" } else { "ip" };
    let port = |words: &str| {
        let Some(protocol) = protocol.and_then(with_ports) else {
            return Err(format!(
                "`{}` needs `-p` with the protocol here, since nft asks for the port of a protocol",
                given.name
            ));
        };
        let range = value.replace(':', "-");
        Ok(format!("meta l4proto {protocol} ct {words} {not}{range}"))
    };
    match given.name {
        "--ctstatus" => {
            let not = if given.negated { "! " } else { "" };
            Ok(format!("ct status {not}{}", value.to_lowercase().replace('_', "-")))
        }
        "--ctproto" => Ok(format!("ct original protocol {not}{value}")),
        "--ctdir" => Ok(format!("ct direction {}", value.to_lowercase())),
        "--ctorigsrc" => Ok(format!("ct original {family} saddr {not}{value}")),
        "--ctorigdst" => Ok(format!("ct original {family} daddr {not}{value}")),
        "--ctreplsrc" => Ok(format!("ct reply {family} saddr {not}{value}")),
        "--ctrepldst" => Ok(format!("ct reply {family} daddr {not}{value}")),
        "--ctorigsrcport" => port("original proto-src"),
        "--ctorigdstport" => port("original proto-dst"),
        "--ctreplsrcport" => port("reply proto-src"),
        _ => port("reply proto-dst"),
    }
}

/// The name of a protocol with ports, for nft.
fn with_ports(protocol: &str) -> Option<&'static str> {
    match protocol {
        "udplite" | "136" => Some("udplite"),
        _ => implied(protocol).filter(|it| ["tcp", "udp", "sctp", "dccp"].contains(it)),
    }
}

/// nft 1.0.6 does not read a mask of one flag before `/`. The translation of `! --tcp-option` loses
/// the protocol, so it matches every packet of another one.
fn tcp(part: &mut Part) -> Option<Vec<Words>> {
    let (mut words, mut is_said) = (Words::default(), false);
    part.options.retain(|given| {
        let said = match (given.name, given.negated) {
            ("--tcp-flags", _) => one_flag(given),
            ("--tcp-option", true) => {
                Some(format!("meta l4proto tcp tcp option {} missing", given.value()))
            }
            _ => None,
        };
        let Some(said) = said else { return true };
        words = words.with(&Words::condition(said));
        is_said = true;
        false
    });
    is_said.then(|| vec![words])
}

fn one_flag(given: &Given) -> Option<String> {
    let [mask, set] = &given.values[..] else { return None };
    if mask.contains(',') || ["ALL", "NONE"].contains(&mask.as_str()) {
        return None;
    }
    let flag = mask.to_lowercase();
    let sign = if given.negated { "!=" } else { "==" };
    let set = match set.as_str() {
        "NONE" => "0",
        set if set == mask => &flag,
        _ => return None,
    };
    Some(format!("tcp flags & {flag} {sign} {set}"))
}

/// The translation of `! --dport` loses its negation.
fn other_port(part: &mut Part) -> Option<Vec<Words>> {
    let given = part.get("--dport").filter(|given| given.negated)?;
    // One that matches no packet is refused.
    let (first, last) = ends(given.value(), 65_535).filter(|all| *all != (0, 65_535))?;
    let ports = if first == last { first.to_string() } else { format!("{first}-{last}") };
    part.options.retain(|given| given.name != "--dport");
    Some(vec![Words::condition(format!("udp dport != {ports}"))])
}

/// `! --ports` matches if neither port is in the list; its translation, if one of them is not.
fn either_port(part: &mut Part, protocol: Option<&str>) -> Result<Option<Vec<Words>>, String> {
    let Some(given) = part.get("--ports").filter(|given| given.negated) else { return Ok(None) };
    let protocol = protocol.and_then(with_ports);
    let protocol = protocol.ok_or("`-m multiport ! --ports` needs a protocol with ports")?;
    let ports = given.value().replace(':', "-").replace(',', ", ");
    let words = format!("{protocol} sport != {{ {ports} }} {protocol} dport != {{ {ports} }}");
    part.options.clear();
    Ok(Some(vec![Words::condition(words)]))
}

/// A type with a code has no translation.
fn kind_and_code(part: &mut Part) -> Option<Vec<Words>> {
    let given = part.get("--icmp-type").or(part.get("--icmpv6-type"))?;
    let (kind, code) = given.value().split_once('/')?;
    parsed(kind)?;
    let word = if part.name == "icmp" { "icmp" } else { "icmpv6" };
    let with =
        |sign: &str| Words::condition(format!("{word} type {kind} {word} code {sign}{code}"));
    let words = match given.negated {
        true => vec![Words::condition(format!("{word} type != {kind}")), with("!= ")],
        false => vec![with("")],
    };
    part.options.clear();
    Some(words)
}

/// A target that sets one field to a number, and has no translation.
fn number_set(part: &mut Part, option: &str, field: &str) -> Option<Vec<Words>> {
    let number = parsed(part.get(option)?.value())?;
    part.options.clear();
    Some(vec![Words { before: String::new(), after: format!("{field} set {number}") }])
}

/// `-j CONNMARK` with a mask, of which the translation changes other bits.
fn connection_mark(part: &mut Part) -> Result<Option<Vec<Words>>, String> {
    let full = u32::MAX;
    if let Some(set) = part.get("--set-xmark") {
        let (value, mask) = set.value().split_once('/').unwrap_or((set.value(), "0xffffffff"));
        let (Some(value), Some(mask)) = (parsed(value), parsed(mask)) else { return Ok(None) };
        if mask == full || part.options.len() > 1 {
            return Ok(None);
        }
        let after = format!("ct mark set ct mark and {:#x} xor {value:#x}", !mask);
        part.options.clear();
        return Ok(Some(vec![Words { before: String::new(), after }]));
    }
    let (from, to) = match (part.get("--save-mark"), part.get("--restore-mark")) {
        (Some(_), None) => ("meta mark", "ct mark"),
        (None, Some(_)) => ("ct mark", "meta mark"),
        _ => return Ok(None),
    };
    let mask = |name: &str| part.get(name).map_or(Some(full), |it| parsed(it.value()));
    let (Some(ours), Some(theirs)) = (mask("--nfmask"), mask("--ctmask")) else { return Ok(None) };
    if (ours, theirs) == (full, full) {
        return Ok(None);
    }
    if ours != theirs || !(1..=MOST_COPIED_BITS).contains(&ours.count_ones()) {
        return Err(format!(
            "`-j CONNMARK` copies a mark here only as a whole, or with equal masks (`--nfmask`, \
             `--ctmask`) of 1 to {MOST_COPIED_BITS} bits; write the rule in nft's syntax"
        ));
    }
    let bits = (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| ours & bit != 0);
    // A packet without a connection has no `ct mark`, so it meets none of them.
    let copy = |bit: u32| {
        [
            Words {
                before: format!("{from} and {bit:#x} == {bit:#x}"),
                after: format!("{to} set {to} or {bit:#x}"),
            },
            Words {
                before: format!("{from} and {bit:#x} == 0"),
                after: format!("{to} set {to} and {:#x}", !bit),
            },
        ]
    };
    let words: Vec<Words> = bits.flat_map(copy).collect();
    part.options.clear();
    Ok(Some(words))
}
