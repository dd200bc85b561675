//! `stateway rules element`

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use control::schema::{ActiveRules, ChangeElements, Done};
use ruleset::listing;
use serde_json::{Value, json};

use crate::commands::remote::{Json, Remote};
use crate::config::in_json;
use crate::errors::UsageError;
use crate::print::{Output, things};

/// Most elements that are tried one by one to find those that are wrong.
const MOST_TRIED: usize = 200;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway rules element add inet filter banned 192.0.2.1 timeout 5m comment '\"too many logins\"'
  stateway rules element add inet filter nets '{ 198.51.100.0/24, 203.0.113.1-203.0.113.9 }'
  stateway rules element add inet nat ports 8080 : 192.0.2.80
  stateway rules element delete inet filter banned 192.0.2.1
  stateway rules element list inet filter banned
  stateway rules element flush inet filter banned
  zcat list.gz | stateway rules element add inet filter banned -

A set is named by the family of its table, the table and its name. Elements are written as for \
`nft add element`, separated by commas, with or without braces around them, and nft itself reads \
them; `-` reads them from standard input. They change for all workers at once, between two batches \
of packets, and all of them or none: the message names each element that is wrong. Connections, \
counters, rates and quotas stay. In a set with auto-merge, ranges that overlap or lie side by side \
become one, with the timeout and comment of the last, and a part of a range can be deleted.

Elements that are added hold until they time out, are deleted, or the ruleset is exchanged; \
`stateway rules load --keep-elements` keeps them in sets of the same name and type.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Add elements; one that is there already gets the new timeout, if it has one.
    Add(Change),
    /// Delete elements; each has to be in the set.
    Delete(Change),
    /// Show a set with its elements, their comments and the time that they have left.
    List(List),
    /// Delete all elements of a set.
    Flush(Flush),
}

#[derive(Debug, clap::Args)]
struct Change {
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    set: SetName,
    /// The elements in nft's words; `-` for standard input.
    #[arg(required = true)]
    elements: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    set: SetName,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, clap::Args)]
struct Flush {
    #[command(flatten)]
    set: SetName,
    #[command(flatten)]
    remote: Remote,
}

/// The name of a set.
#[derive(Debug, clap::Args)]
struct SetName {
    /// Family of its table: ip, ip6 or inet.
    family: String,
    /// Table.
    table: String,
    /// Name of the set or map.
    set: String,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    match &args.action {
        Action::Add(change) => add(change),
        Action::Delete(change) => delete(change),
        Action::List(list) => show(list, out),
        Action::Flush(flush) => {
            let affected = flush.set.change(&flush.remote, "flush", Vec::new())?;
            tell!("deleted: {}", things(affected, "element"));
            Ok(())
        }
    }
}

fn add(Change { remote, set, elements }: &Change) -> anyhow::Result<()> {
    let declaration = set.declaration(remote)?;
    let elements = declaration.read(&text_of(elements)?)?;
    let affected = set.change(remote, "add", elements)?;
    tell!("added: {}", things(affected, "element"));
    Ok(())
}

fn delete(Change { remote, set, elements }: &Change) -> anyhow::Result<()> {
    let (declaration, text) = (set.declaration(remote)?, text_of(elements)?);
    // The value of a map's element may be left out.
    let elements = match declaration.keys_only() {
        Some(keys) => keys.read(&text).or_else(|_| declaration.read(&text))?,
        None => declaration.read(&text)?,
    };
    let affected = set.change(remote, "delete", elements)?;
    tell!("deleted: {}", things(affected, "element"));
    Ok(())
}

fn show(List { set, remote, json }: &List, out: &mut Output) -> anyhow::Result<()> {
    let Declaration { table, object, .. } = set.declaration(remote)?;
    if json.json {
        return out.json(&json!({ "schema": control::SCHEMA, "set": object }));
    }
    let text = listing::text(&json!({ "nftables": [table, object] }), false, &|_, _, _, _| "");
    text.lines().try_for_each(|line| out.line(line))
}

/// The elements as one text, without braces around them.
fn text_of(words: &[String]) -> anyhow::Result<String> {
    let text = if words == ["-"] {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
        text
    } else {
        words.join(" ")
    };
    let text = text.trim();
    let inside = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let inside = inside.trim().trim_end_matches(',');
    if inside.is_empty() {
        let what = "no element is named; write them as for `nft add element`, such as 192.0.2.1";
        return Err(UsageError(what.to_owned()).into());
    }
    Ok(inside.to_owned())
}

/// A set as the gateway lists it.
struct Declaration {
    table: Value,
    /// The chains and objects that its elements may name.
    named: Vec<Value>,
    /// The set, with its kind around it.
    object: Value,
}

impl SetName {
    fn declaration(&self, remote: &Remote) -> anyhow::Result<Declaration> {
        let Self { family, table, set } = self;
        let ActiveRules { ruleset, .. } = remote.client()?.get("/v1/rules")?;
        let Some(mut ruleset) = ruleset else {
            bail!("the gateway runs no ruleset; `stateway rules load FILE` loads one");
        };
        let (mut found, mut named) = (None, Vec::new());
        for object in ruleset["nftables"].as_array_mut().into_iter().flatten() {
            let Some((kind, inside)) = object.as_object().and_then(|it| it.iter().next()) else {
                continue;
            };
            let is = |key: &str, wanted: &str| inside[key].as_str() == Some(wanted);
            if !is("family", family) || !is("table", table) {
                continue;
            }
            match kind.as_str() {
                "set" | "map" if is("name", set) => found = Some(object.take()),
                "set" | "map" | "rule" | "element" | "flowtable" => {}
                "chain" if !inside["hook"].is_null() => {}
                _ => named.push(object.take()),
            }
        }
        let Some(object) = found else {
            let what = "`stateway rules list` shows all";
            let what = format!("the ruleset has no set {family} {table} {set}; {what}");
            return Err(UsageError(what).into());
        };
        let table = json!({ "table": { "family": family, "name": table } });
        Ok(Declaration { table, named, object })
    }

    fn change(&self, remote: &Remote, change: &str, elements: Vec<Value>) -> anyhow::Result<u64> {
        let Self { family, table, set } = self;
        let wanted = ChangeElements {
            family: family.clone(),
            table: table.clone(),
            set: set.clone(),
            change: change.to_owned(),
            elements,
        };
        let Done { affected, .. } = remote.client()?.post("/v1/rules/elements", &wanted)?;
        Ok(affected)
    }
}

impl Declaration {
    fn inside(&self) -> (&str, &Value) {
        let field = self.object.as_object().and_then(|it| it.iter().next());
        field.map_or(("set", &Value::Null), |(kind, inside)| (kind.as_str(), inside))
    }

    /// A set with the keys of a map; `None` for a set.
    fn keys_only(&self) -> Option<Self> {
        let (kind, inside) = self.inside();
        if kind != "map" {
            return None;
        }
        let mut inside = inside.clone();
        inside.as_object_mut()?.remove("map");
        let (table, object) = (self.table.clone(), json!({ "set": inside }));
        Some(Self { table, named: Vec::new(), object })
    }

    /// Reads elements in nft's words. Each one that is wrong is named.
    fn read(&self, text: &str) -> Result<Vec<Value>, UsageError> {
        let parts = split(text).ok_or_else(|| {
            let what = "this closes a brace that it does not open, so it is no list of elements";
            UsageError(format!("{text}: {what}"))
        })?;
        let whole = match self.ask(text) {
            Ok(elements) => return Ok(elements),
            Err(error) => error,
        };
        let single = parts.len() > 1 && parts.len() <= MOST_TRIED;
        let wrong = parts.iter().filter(|_| single).filter_map(|part| {
            let error = self.ask(part).err()?;
            Some(format!("{}: {error}", part.trim()))
        });
        let wrong: Vec<String> = wrong.collect();
        if wrong.is_empty() {
            return Err(UsageError(format!("{text}: {whole}")));
        }
        Err(UsageError(wrong.join("; ")))
    }

    /// Has nft read elements.
    ///
    /// # Errors
    /// The messages of nft.
    fn ask(&self, text: &str) -> Result<Vec<Value>, String> {
        let (kind, inside) = self.inside();
        let mut empty = inside.clone();
        if let Some(fields) = empty.as_object_mut() {
            fields.remove("elem");
            if listing::maps_to_ranges(inside) {
                fields.insert("interval".to_owned(), true.into());
            }
            // Elements are read one after the other where more may be tried than fit.
            fields.remove("comment");
        }
        let mut objects = vec![self.table.clone()];
        objects.extend(self.named.iter().cloned());
        objects.push(json!({ (kind): empty }));
        let mut document = listing::text(&json!({ "nftables": objects }), false, &|_, _, _, _| "");
        let word = |key: &str| inside[key].as_str().unwrap_or_default().to_owned();
        let [family, table, name] = ["family", "table", "name"].map(word);
        document += &format!("add element {family} {table} {name} {{ {text}\n}}\n");
        let printed = in_json(document.into_bytes(), Path::new("elements"), None);
        let printed = printed.map_err(|problems| {
            let texts: Vec<&str> = problems.0.iter().map(|problem| problem.what.as_str()).collect();
            texts.join("; ")
        })?;
        let mut printed: Value =
            serde_json::from_slice(&printed).map_err(|error| error.to_string())?;
        let mut elements = Vec::new();
        for object in printed["nftables"].as_array_mut().into_iter().flatten() {
            if let Some(Value::Array(list)) = object.get_mut(kind).map(|it| it["elem"].take()) {
                elements.extend(list);
            }
        }
        // Otherwise the time that is left is that of the timeout, and nft has begun to count.
        if !text.split_whitespace().any(|word| word == "expires") {
            elements.iter_mut().for_each(without_expires);
        }
        Ok(elements)
    }
}

fn without_expires(element: &mut Value) {
    let key = match element {
        Value::Array(pair) if pair.len() == 2 => pair.first_mut(),
        key => Some(key),
    };
    if let Some(Value::Object(fields)) = key.and_then(|key| key.get_mut("elem")) {
        fields.remove("expires");
    }
}

/// The elements of a list: its commas outside of quotes, comments and braces divide it. `None` if the
/// list ends before the text does: the rest would be other commands.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_u32);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => drop(letters.find(|(_, letter)| *letter == '"')),
            '#' => drop(letters.find(|(_, letter)| *letter == '\n')),
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_elements_holds_no_other_command() {
        let list = "192.0.2.1 comment \"a, } b\", 192.0.2.2 : jump { x, y } # }, {\n, 192.0.2.3";
        assert_eq!(split(list).unwrap().len(), 3);
        for more in
            ["192.0.2.1 }; flush ruleset; add element ip t s { 192.0.2.2", "} # {", "# {\n}"]
        {
            assert_eq!(split(more), None, "{more}");
        }
    }
}
