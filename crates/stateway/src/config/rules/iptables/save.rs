//! The file of iptables-save: tables, chains and rules, each with its line.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::allowed::{builtin_chains, of_target};
use super::rule::{Place, Ready, name_of_chain, ready, words};

/// Lines of a file that one program printed, ready for the translation.
#[derive(Debug, Default)]
pub(super) struct Save {
    /// The text for the program. Lines keep their numbers.
    pub text: String,
    /// The rules, with the numbers of their lines.
    pub rules: Vec<(usize, Ready)>,
    /// The chains that have another name in the text: that one and the name in the file.
    pub renamed: Vec<(String, String)>,
    /// Lines that are refused, and why. 0 is the whole file.
    pub refused: Vec<(usize, String)>,
}

/// A table that the file has begun.
struct Table<'a> {
    name: &'a str,
    line: usize,
    /// Its chains, each with its name in the translation.
    chains: HashMap<String, String>,
}

/// Reads the lines, of which those of another program are empty.
pub(super) fn read(lines: &[&str], is_v6: bool) -> Save {
    let mut save = Save::default();
    let mut reader =
        Reader { is_v6, table: None, finished: Vec::new(), hash_tables: HashSet::new() };
    for (line, number) in lines.iter().zip(1..) {
        match reader.line(line.trim(), number) {
            Ok(Read::Rule(ready)) => {
                save.text += &ready.text;
                save.rules.push((number, ready));
            }
            Ok(Read::Chain { text, renamed }) => {
                save.text += &text;
                save.renamed.extend(renamed);
            }
            Ok(Read::Other(text)) => save.text += &text,
            Err(why) => save.refused.push((number, why)),
        }
        save.text.push('\n');
    }
    if let Some(table) = reader.table {
        save.refused.push((table.line, cut_off(table.name)));
    }
    save
}

fn cut_off(table: &str) -> String {
    format!(
        "the table {table} begins here and has no COMMIT: the file is cut off; save it again with \
         iptables-save"
    )
}

enum Read {
    Rule(Ready),
    Chain { text: String, renamed: Option<(String, String)> },
    Other(String),
}

struct Reader<'a> {
    is_v6: bool,
    table: Option<Table<'a>>,
    finished: Vec<&'a str>,
    hash_tables: HashSet<String>,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a str, number: usize) -> Result<Read, String> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(Read::Other(String::new()));
        }
        if let Some(name) = line.strip_prefix('*') {
            return self.begin(name, number);
        }
        let Some(table) = &mut self.table else {
            return Err("stands outside of a table, which `*` and its name begin".to_owned());
        };
        if line == "COMMIT" {
            self.finished.push(table.name);
            self.table = None;
            return Ok(Read::Other(line.to_owned()));
        }
        if let Some(chain) = line.strip_prefix(':') {
            return declare(table, chain, number);
        }
        let rule = without_counters(line);
        let words = words(rule).ok_or("has a quotation without its end: it is cut off")?;
        let (chain, options) = match &words[..] {
            [add, chain, options @ ..] if ["-A", "--append"].contains(&add.as_str()) => {
                (chain, options)
            }
            _ => return Err("is no line of iptables-save, whose rules begin with `-A`".to_owned()),
        };
        let Some(name) = table.chains.get(chain) else {
            return Err(format!(
                "adds to the chain {chain}, which the table has not declared with `:{chain}`"
            ));
        };
        let place = Place { is_v6: self.is_v6, chains: &table.chains, line: number };
        let ready = ready(name, options, place)?;
        if let Some(name) = &ready.hash_table
            && !self.hash_tables.insert(name.clone())
        {
            return Err(format!(
                "shares the hash table {name} with a rule before, which is not known to be \
                 translated rightly by iptables-restore-translate; give it another name"
            ));
        }
        Ok(Read::Rule(ready))
    }

    fn begin(&mut self, name: &'a str, number: usize) -> Result<Read, String> {
        let before = self.table.replace(Table { name, line: number, chains: HashMap::new() });
        if let Some(before) = before {
            let why = format!("line {}: {}", before.line, cut_off(before.name));
            return Err(format!("begins a table within another; {why}"));
        }
        if self.finished.contains(&name) {
            return Err(format!(
                "the table {name} is there twice; iptables keeps the second alone"
            ));
        }
        if builtin_chains(name).is_none() {
            return Err(format!(
                "the table {name} is not known to be translated rightly by \
                 iptables-restore-translate; write its rules in nft's syntax"
            ));
        }
        Ok(Read::Other(format!("*{name}")))
    }
}

/// `INPUT ACCEPT [0:0]`, or `name - [0:0]`.
fn declare(table: &mut Table<'_>, declaration: &str, line: usize) -> Result<Read, String> {
    let mut words = declaration.split_whitespace();
    let (name, policy) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let taken = name_of_chain(name, line);
    // Known even if it is refused, so that its rules are not refused for it again.
    table.chains.insert(name.to_owned(), taken.clone());
    let builtin = builtin_chains(table.name).unwrap_or_default();
    let fits = match policy {
        "ACCEPT" | "DROP" => builtin.contains(&name),
        "-" => !builtin.contains(&name),
        "" => return Err("has no policy: it is cut off".to_owned()),
        _ => false,
    };
    if policy == "-" && of_target(name).is_some() {
        return Err(format!("the name {name} is that of a target; give the chain another"));
    }
    if !fits {
        return Err(format!(
            "a chain {name} with the policy {policy} is none of table {}",
            table.name
        ));
    }
    let text = format!(":{taken} {policy} [0:0]");
    let renamed = (taken != name).then(|| (taken, name.to_owned()));
    Ok(Read::Chain { text, renamed })
}

/// A rule without the counters that `iptables-save -c` writes before it.
fn without_counters(line: &str) -> &str {
    let is_count = |count: &str| !count.is_empty() && count.bytes().all(|it| it.is_ascii_digit());
    let rest = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match rest.and_then(|(counters, rest)| Some((counters.split_once(':')?, rest))) {
        Some(((packets, bytes), rest)) if is_count(packets) && is_count(bytes) => rest.trim_start(),
        _ => line,
    }
}

/// True for rules of ip6tables, by the first address or word outside of free text that one of both
/// programs alone has; `None` without one.
pub(super) fn is_v6_by_words(text: &str) -> Option<bool> {
    let is_v6_word = |before: &str, word: &str| {
        let address = word.split(['/', '-']).next().unwrap_or_default();
        let (is_v4, is_v6) = match before {
            "-p" | "-m" => (["icmp", "ttl"].contains(&word), ["ipv6-icmp", "hl"].contains(&word)),
            _ => (address.parse::<Ipv4Addr>().is_ok(), address.parse::<Ipv6Addr>().is_ok()),
        };
        let is_v6 = is_v6 || word.contains("icmp6");
        (is_v4 || is_v6).then_some(is_v6)
    };
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let words = words(line).unwrap_or_default();
        let is_text =
            |before: &str| ["--comment", "--log-prefix", "--nflog-prefix", "-A"].contains(&before);
        let mut said =
            words.iter().zip(words.iter().skip(1)).filter(|(before, _)| !is_text(before));
        said.find_map(|(before, word)| is_v6_word(before, word))
    })
}
