//! One rule of iptables-save: read into options, judged, and written for the translation.

use std::collections::HashMap;

use super::allowed::{CORE, Kind, advice, ends, of_match, of_target, parsed};
use super::direct::{Words, take};

/// The surroundings of a rule in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// True for a rule of ip6tables.
    pub is_v6: bool,
    /// The chains of the table so far, each with its name in the translation.
    pub chains: &'a HashMap<String, String>,
    /// The line of the rule, from 1.
    pub line: usize,
}

/// A rule for the translation. Free text is left out, with a word in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    /// The line for the program.
    pub text: String,
    /// The rules that its translation becomes: one with each of these words.
    pub words: Vec<Words>,
    /// The comment of the rule.
    pub comment: Option<String>,
    /// The prefix of its log lines.
    pub prefix: Option<String>,
    /// The table of hashlimit that it names.
    pub hash_table: Option<String>,
}

/// The comment that a rule of this line has for the translation.
pub(super) fn comment_of(line: usize) -> String {
    format!("stateway comment {line}")
}

/// The prefix that a rule of this line has for the translation.
pub(super) fn prefix_of(line: usize) -> String {
    format!("stateway prefix {line}")
}

/// The name that a chain, which is declared in this line, has for the translation. nft takes no word
/// of its own as a name, and all of these are in small letters.
pub(super) fn name_of_chain(name: &str, line: usize) -> String {
    let is_taken = name.starts_with(|it: char| it.is_ascii_alphabetic())
        && name.chars().all(|it| it.is_ascii_alphanumeric() || "_-.".contains(it))
        && name.chars().any(|it| it.is_ascii_uppercase());
    if is_taken { name.to_owned() } else { format!("stateway_chain_{line}") }
}

/// An option with its values.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// True behind `!`.
    pub negated: bool,
    /// Its name.
    pub name: &'static str,
    /// As many as its [`Kind`] has.
    pub values: Vec<String>,
}

impl Given {
    /// The first value, or nothing.
    pub fn value(&self) -> &str {
        self.values.first().map_or("", String::as_str)
    }
}

/// The options of one match, or of the target.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// `-m`, `-j` or `-g`; nothing for the options before.
    pub by: &'static str,
    /// Name of the match, the target or the chain.
    pub name: String,
    kinds: &'static [Kind],
    /// The options that are there.
    pub options: Vec<Given>,
}

impl Part {
    /// An option, if it is there.
    pub fn get(&self, option: &str) -> Option<&Given> {
        self.options.iter().find(|given| given.name == option)
    }
}

/// The words of a line, or nothing where a quotation does not end. A quotation ends its word, and a
/// backslash takes the next character as it is within one, as for iptables-restore.
pub(super) fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted => {
                words.push(std::mem::take(&mut word));
                is_quoted = false;
            }
            '\\' if is_quoted => word.push(letters.next()?),
            '"' => is_quoted = true,
            ' ' | '\t' if !is_quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => word.push(letter),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    (!is_quoted).then_some(words)
}

/// The rule of these words, which follow the name of its chain.
///
/// # Errors
/// The reason why it is refused.
pub(super) fn ready(chain: &str, words: &[String], place: Place<'_>) -> Result<Ready, String> {
    let mut parts = parts(words, place)?;
    let mut ready = Ready { words: vec![Words::default()], ..Ready::default() };
    parts = split_address_types(parts);
    let protocol = parts[0].get("-p").filter(|it| !it.negated).map(|it| it.value().to_owned());
    take_words(&mut parts, protocol.as_deref(), place, &mut ready)?;
    for part in &mut parts {
        judge(part, place)?;
        take_text(part, &mut ready, place);
        drop_whole(part)?;
        let module = implied(&part.name).filter(|_| part.by == "-m");
        if module.is_some() && protocol.as_deref().and_then(implied) != module {
            return Err(format!("`-m {}` needs the same protocol with `-p`", part.name));
        }
    }
    // The translation of a match without options loses its protocol, and a comment is added below.
    let is_bare = |part: &Part| {
        part.by == "-m"
            && part.options.is_empty()
            && (part.name == "comment"
                || implied(&part.name).is_some_and(|it| !it.starts_with("icmp")))
    };
    parts.retain(|part| !is_bare(part));
    if let Some(protocol) = protocol_behind_state(&parts, protocol.as_deref()) {
        let first = Words { before: format!("meta l4proto {protocol}"), ..Words::default() };
        ready.words.iter_mut().for_each(|words| *words = first.with(words));
    }
    ready.text = format!("-A {chain}");
    let mut comment = Some(format!(" -m comment --comment \"{}\"", comment_of(place.line)));
    for part in &parts {
        if ["-j", "-g"].contains(&part.by) {
            ready.text += &comment.take().unwrap_or_default();
        }
        write(part, &mut ready.text);
    }
    ready.text += &comment.unwrap_or_default();
    Ok(ready)
}

/// Takes out of the parts what is said in nft's syntax at once. Parts of which nothing is left go.
fn take_words(
    parts: &mut Vec<Part>,
    protocol: Option<&str>,
    place: Place<'_>,
    ready: &mut Ready,
) -> Result<(), String> {
    let mut said = vec![false; parts.len()];
    let mut is_behind_state = false;
    for (part, said) in parts.iter_mut().zip(&mut said) {
        let Some(words) = take(part, protocol, place)? else {
            is_behind_state |= keeps_state(part);
            continue;
        };
        // The words stand in front of all that the translation says.
        if is_behind_state && words.iter().any(|it| !it.before.is_empty()) {
            return Err(format!(
                "`{} {}` is said in front of a limit here, and stands behind it; let it stand in \
                 front of the limit",
                part.by, part.name
            ));
        }
        *said = part.options.is_empty();
        let with = |one: &Words| words.iter().map(|other| one.with(other)).collect::<Vec<_>>();
        ready.words = ready.words.iter().flat_map(with).collect();
    }
    let depends = |part: &Part| keeps_state(part) || ["mark", "connmark"].contains(&&*part.name);
    if ready.words.len() > 1
        && let Some(part) = parts.iter().find(|part| depends(part))
    {
        return Err(format!(
            "`{} {}` stands in a rule that becomes {} rules in nft's syntax, each with a limit or a \
             mark of its own; write the rule in nft's syntax",
            part.by,
            part.name,
            ready.words.len()
        ));
    }
    let mut said = said.into_iter();
    parts.retain(|_| said.next() == Some(false));
    Ok(())
}

/// The protocol that packets need before they come to a match that counts them, in nft's words. The
/// translation asks for it together with what the match of the protocol asks, which stands behind.
fn protocol_behind_state(parts: &[Part], protocol: Option<&str>) -> Option<&'static str> {
    let module = implied(protocol?)?;
    let of_protocol = |part: &Part| part.by == "-m" && part.name == module;
    let counts = parts.iter().position(keeps_state)?;
    let is_behind = parts.iter().position(of_protocol).is_some_and(|at| at > counts);
    is_behind.then_some(if module == "icmp6" { "ipv6-icmp" } else { module })
}

/// True for a match whose result depends on the packets that it has met.
fn keeps_state(part: &Part) -> bool {
    part.by == "-m" && ["limit", "hashlimit", "connlimit", "statistic"].contains(&&*part.name)
}

fn write(part: &Part, text: &mut String) {
    if !part.by.is_empty() {
        *text += &format!(" {} {}", part.by, part.name);
    }
    for given in &part.options {
        *text += if given.negated { " ! " } else { " " };
        *text += given.name;
        for value in &given.values {
            // Words in the place of free text have spaces, and none has a quotation mark.
            *text +=
                &if value.contains(' ') { format!(" \"{value}\"") } else { format!(" {value}") };
        }
    }
}

/// The match of a protocol, by the names that it has for iptables.
pub(super) fn implied(protocol: &str) -> Option<&'static str> {
    Some(match protocol {
        "tcp" | "6" => "tcp",
        "udp" | "17" => "udp",
        "sctp" | "132" => "sctp",
        "dccp" | "33" => "dccp",
        "esp" | "50" => "esp",
        "ah" | "51" => "ah",
        "icmp" | "1" => "icmp",
        "icmp6" | "icmpv6" | "ipv6-icmp" | "58" => "icmp6",
        _ => return None,
    })
}

const UNKNOWN: &str = "is not known to be translated rightly by iptables-restore-translate; write \
                       the rule in nft's syntax";

fn short(option: &str) -> &str {
    match option {
        "--source" | "--src" => "-s",
        "--destination" | "--dst" => "-d",
        "--in-interface" => "-i",
        "--out-interface" => "-o",
        "--protocol" | "--proto" => "-p",
        "--fragment" => "-f",
        "--match" => "-m",
        "--jump" => "-j",
        "--goto" => "-g",
        "--source-port" => "--sport",
        "--destination-port" => "--dport",
        _ => option,
    }
}

/// The options of a rule by the match that they belong to; the first part is that of no match.
fn parts(words: &[String], place: Place<'_>) -> Result<Vec<Part>, String> {
    let core = Part { by: "", name: String::new(), kinds: CORE, options: Vec::new() };
    let mut parts = vec![core];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let negated = word == "!";
        let word =
            if negated { words.next().ok_or("ends behind `!`: it is cut off")? } else { word };
        let option = short(word);
        let cut = || format!("has nothing behind `{word}`: it is cut off");
        if ["-m", "-j", "-g"].contains(&option) && !negated {
            let name = words.next().ok_or_else(cut)?;
            let part = part(option, name, words.as_slice(), place)?;
            if part.by != "-m" && parts.iter().any(|it| ["-j", "-g"].contains(&it.by)) {
                return Err("has more than one target".to_owned());
            }
            parts.push(part);
            continue;
        }
        let (at, kind) = owner(&mut parts, option)
            .ok_or_else(|| format!("{}: `{word}` {UNKNOWN}", label(&parts)))?;
        let values: Vec<String> = words.by_ref().take(kind.values).cloned().collect();
        if values.len() < kind.values {
            return Err(cut());
        }
        if negated && !kind.negatable {
            return Err(format!("{}: `! {word}` {UNKNOWN}", label(&parts)));
        }
        if parts[at].get(kind.name).is_some() {
            return Err(format!("has `{word}` twice in one match or target"));
        }
        if let Some(value) = values.iter().find(|value| !(kind.fits)(value)) {
            return Err(match kind.name {
                "-s" | "-d" => format!("`{word} {value}` names no address and no network"),
                _ => format!("`{word} {value}` {UNKNOWN}"),
            });
        }
        parts[at].options.push(Given { negated, name: kind.name, values });
    }
    // A target may stand before matches.
    parts.sort_by_key(|part| ["-j", "-g"].contains(&part.by));
    Ok(parts)
}

fn label(parts: &[Part]) -> String {
    match parts.last() {
        Some(Part { by, name, .. }) if !by.is_empty() => format!("{by} {name}"),
        _ => "rule".to_owned(),
    }
}

/// The match, target or chain of this name. `rest` are the words behind it.
fn part(by: &str, name: &str, rest: &[String], place: Place<'_>) -> Result<Part, String> {
    let chain = place.chains.get(name).filter(|_| by != "-m");
    let is_chain = chain.is_some();
    let (by, kinds) = match by {
        "-m" => ("-m", of_match(name)),
        "-g" => ("-g", is_chain.then_some(&[][..])),
        _ if is_chain => ("-j", Some(&[][..])),
        _ => ("-j", of_target(name)),
    };
    let kinds = kinds.ok_or_else(|| match by {
        _ if let Some(advice) = advice(by, name, rest, place.is_v6) => advice,
        "-m" => format!("`-m {name}` {UNKNOWN}"),
        _ => format!("`{by} {name}` names no chain of its table, and as a target it {UNKNOWN}"),
    })?;
    let name = chain.map_or(name, String::as_str).to_owned();
    Ok(Part { by, name, kinds, options: Vec::new() })
}

/// The part that an option belongs to: the last one, that of the protocol, or that of no match.
fn owner(parts: &mut Vec<Part>, option: &str) -> Option<(usize, &'static Kind)> {
    let kind_in = |kinds: &'static [Kind]| kinds.iter().find(|kind| kind.name == option);
    for at in [parts.len() - 1, 0] {
        if let Some(kind) = kind_in(parts[at].kinds) {
            return Some((at, kind));
        }
    }
    let module = implied(parts[0].get("-p").filter(|it| !it.negated)?.value())?;
    let kinds = of_match(module)?;
    let kind = kind_in(kinds)?;
    let at = parts.iter().position(|part| part.by == "-m" && part.name == module);
    let at = at.unwrap_or_else(|| {
        parts.push(Part { by: "-m", name: module.to_owned(), kinds, options: Vec::new() });
        parts.len() - 1
    });
    Some((at, kind))
}

/// The translation of `-m addrtype` has one type alone, so each becomes a match of its own.
fn split_address_types(parts: Vec<Part>) -> Vec<Part> {
    let mut split = Vec::with_capacity(parts.len());
    for mut part in parts {
        let types = ["--src-type", "--dst-type"].map(|name| part.get(name).cloned());
        if let ("addrtype", 2, [Some(_), Some(other)]) =
            (part.name.as_str(), part.options.len(), types)
        {
            let second = Part { options: vec![other], ..part.clone() };
            part.options.retain(|given| given.name == "--src-type");
            split.extend([part, second]);
        } else {
            split.push(part);
        }
    }
    split
}

/// Takes comments and prefixes out, since nft has no words for some of them.
fn take_text(part: &mut Part, ready: &mut Ready, place: Place<'_>) {
    for given in &mut part.options {
        match given.name {
            "--comment" => ready.comment = Some(given.values.concat()),
            "--log-prefix" | "--nflog-prefix" => {
                ready.prefix = Some(
                    std::mem::replace(&mut given.values, vec![prefix_of(place.line)]).concat(),
                );
            }
            "--hashlimit-name" => ready.hash_table = Some(given.value().to_owned()),
            _ => {}
        }
    }
    part.options.retain(|given| given.name != "--comment");
}

/// Drops options that every packet matches. The translation loses the protocol with them, and reads
/// the contrary as the same.
fn drop_whole(part: &mut Part) -> Result<(), String> {
    let is_whole = |given: &Given| match given.name {
        "-i" | "-o" => given.value() == "+",
        "-s" | "-d" => given.value().ends_with("/0") || given.value().ends_with("/0.0.0.0"),
        "--sport" | "--dport" => ends(given.value(), 65_535) == Some((0, 65_535)),
        "--espspi" | "--ahspi" => ends(given.value(), u32::MAX) == Some((0, u32::MAX)),
        _ => false,
    };
    if let Some(never) = part.options.iter().find(|given| given.negated && is_whole(given)) {
        let (name, value) = (never.name, never.value());
        return Err(format!("`! {name} {value}` matches no packet; leave the rule out"));
    }
    part.options.retain(|given| !is_whole(given));
    Ok(())
}

/// Refuses options that are translated wrongly together, or without each other.
fn judge(part: &Part, place: Place<'_>) -> Result<(), String> {
    let has = |name: &str| part.get(name).is_some();
    let is_wrong = match (part.by, part.name.as_str()) {
        ("-m", "addrtype") => return judge_address_type(part, place),
        ("-m", "icmp" | "icmp6") => part
            .options
            .iter()
            .any(|given| given.negated && ["any", "255"].contains(&given.value())),
        ("-m", "tcp") => part.get("--tcp-flags").is_some_and(|flags| {
            let [mask, set] = &flags.values[..] else { return true };
            // Without bits, or with others than those of the mask.
            mask == "NONE"
                || (mask != "ALL" && set == "ALL")
                || !(mask == "ALL"
                    || set == "NONE"
                    || set.split(',').all(|it| mask.split(',').any(|of| of == it)))
        }),
        ("-m", "hashlimit") => {
            has("--hashlimit-upto") == has("--hashlimit-above")
                || !has("--hashlimit-mode")
                || !has("--hashlimit-name")
        }
        ("-m", "connlimit") => has("--connlimit-upto") == has("--connlimit-above"),
        ("-m", "statistic") => match part.get("--mode").map(Given::value) {
            Some("nth") => !has("--every") || has("--probability"),
            _ => !has("--probability") || has("--every") || has("--packet"),
        },
        // One condition for each match.
        ("-m", "multiport" | "ttl" | "hl" | "owner") => part.options.len() != 1,
        ("-j", "MARK") => part.options.len() != 1,
        ("-j", "CONNMARK") => is_connection_mark_wrong(part),
        ("-j", "CT") => !has("--notrack"),
        ("-j", "SNAT") => !has("--to-source"),
        ("-j", "DNAT") => !has("--to-destination"),
        ("-j", "TCPMSS") => part.options.len() != 1,
        ("-m", "rpfilter" | "comment" | "udp" | "sctp" | "dccp" | "esp" | "ah") => false,
        ("-m", _) => part.options.is_empty(),
        _ => false,
    };
    match is_wrong {
        true => Err(format!("`{} {}` with these options {UNKNOWN}", part.by, part.name)),
        false => Ok(()),
    }
}

fn judge_address_type(part: &Part, place: Place<'_>) -> Result<(), String> {
    let types = ["--src-type", "--dst-type"].map(|name| part.get(name));
    let one = match types {
        [Some(one), None] | [None, Some(one)] => one,
        [Some(_), Some(_)] => {
            return Err("`-m addrtype` with both addresses loses one of them in \
                        iptables-restore-translate; write it twice, with one type each"
                .to_owned());
        }
        [None, None] => return Err(format!("`-m addrtype` without a type {UNKNOWN}")),
    };
    // ip6tables asks for all types of a list, and takes other addresses as unicast.
    let is_v6_wrong =
        place.is_v6 && (!["LOCAL", "MULTICAST"].contains(&one.value()) || part.options.len() > 1);
    if is_v6_wrong || part.options.len() > 2 {
        return Err(format!("`-m addrtype {} {}` {UNKNOWN}", one.name, one.value()));
    }
    Ok(())
}

/// True for options of `-j CONNMARK` that are translated wrongly.
fn is_connection_mark_wrong(part: &Part) -> bool {
    let is_full = |mask: &str| parsed(mask) == Some(u32::MAX);
    let orders = ["--set-xmark", "--set-mark", "--save-mark", "--restore-mark"];
    let given = orders.iter().filter(|name| part.get(name).is_some()).count();
    let masks = ["--nfmask", "--ctmask"].map(|name| part.get(name).map(Given::value));
    let set = part.get("--set-xmark").map(Given::value).unwrap_or_default();
    let is_set_full = set.split_once('/').is_none_or(|(_, mask)| is_full(mask));
    given != 1 || !masks.iter().flatten().all(|mask| is_full(mask)) || !is_set_full
}
