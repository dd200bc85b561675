//! Properties that older versions of nft (1.0.6 among them) tell in their own syntax and not in JSON:
//! that a set joins its ranges, that packets may change it, expressions in the place of its types, the
//! comments of tables and chains, and flags of tables, which they print from memory that they have freed.

use std::collections::HashMap;

use serde_json::json;

/// The beginning of each object that may lack something in nft's JSON, up to the family.
const BEGINS: [&str; 4] = [r#"{"set": {"#, r#"{"map": {"#, r#"{"table": {"#, r#"{"chain": {"#];
/// The first field of an object in nft's JSON.
const FAMILY: &str = r#""family": ""#;
/// A set joins its ranges, as newer versions of nft say it in JSON.
const MERGES: &str = r#""auto-merge": true, "#;

/// A table is dormant.
const DORMANT: &str = r#""flags": ["dormant"], "#;
/// The flags of a table, of any text.
const FLAGS: &str = r#", "flags": "#;

/// The properties of an object that its JSON lacks.
#[derive(Default)]
struct Declared<'a> {
    merges: bool,
    is_dynamic: bool,
    /// A table that the kernel does not ask.
    is_dormant: bool,
    /// The expressions of the key and of a map's data.
    typeof_: Option<&'a str>,
    /// The comment of a table or chain.
    comment: Option<&'a str>,
}

impl Declared<'_> {
    /// The properties as fields in JSON, each with a comma behind it. `told` says that the JSON has
    /// `auto-merge` by itself.
    fn fields(&self, told: bool) -> String {
        let mut fields = String::new();
        if self.merges && !told {
            fields += MERGES;
        }
        if self.is_dynamic {
            fields += r#""dynamic": true, "#;
        }
        if self.is_dormant {
            fields += DORMANT;
        }
        if let Some(of) = self.typeof_ {
            let parts: Vec<&str> = of.split(" : ").collect();
            fields += &format!(r#""typeof": {}, "#, json!(parts));
        }
        if let Some(comment) = self.comment {
            fields += &format!(r#""comment": {}, "#, json!(comment));
        }
        fields
    }
}

/// The JSON of a ruleset with these properties of its objects. `declared` are their declarations in
/// nft's own syntax.
pub(super) fn with_declared(json: Vec<u8>, declared: &str) -> Vec<u8> {
    let declared = read(declared);
    let Ok(text) = str::from_utf8(&json) else { return json };
    let told = text.contains(MERGES.trim_end_matches(", "));
    let mut whole = String::with_capacity(text.len() + 64 * declared.len());
    let mut rest = text;
    // A quotation mark inside a text has a backslash in front, so none of these is in one.
    while let Some(at) = BEGINS.iter().filter_map(|begin| rest.find(begin)).min() {
        let begin = BEGINS.iter().find(|begin| rest[at..].starts_with(**begin)).unwrap_or(&"");
        let (before, object) = rest.split_at(at + begin.len());
        whole.push_str(before);
        let fields = object.strip_prefix(FAMILY).unwrap_or_default();
        let family = fields.split('"').next().unwrap_or_default();
        let text = |key: &str| {
            let mut words = fields.split('"').skip_while(|word| *word != key);
            words.nth(2).unwrap_or_default()
        };
        let kind = begin.split('"').nth(1).unwrap_or_default();
        let table = if kind == "table" { text("name") } else { text("table") };
        let place = Place { kind, family, table, name: text("name") };
        rest = object;
        let Some(declared) = declared.get(&place) else { continue };
        whole.push_str(&declared.fields(told));
        // A table has no fields with fields of their own.
        let own = object.split("}").next().unwrap_or_default();
        if declared.is_dormant
            && let Some((kept, _)) = own.split_once(FLAGS)
        {
            whole.push_str(kept);
            rest = &object[own.len()..];
        }
    }
    whole.push_str(rest);
    whole.into_bytes()
}

/// The place of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place<'a> {
    kind: &'a str,
    family: &'a str,
    table: &'a str,
    /// That of the table itself, for a table.
    name: &'a str,
}

/// The objects that lack something.
fn read(declared: &str) -> HashMap<Place<'_>, Declared<'_>> {
    let mut found: HashMap<_, Declared<'_>> = HashMap::new();
    let (mut of_table, mut place) = (None, None);
    for line in declared.lines().map(str::trim) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            ["table", family, table, "{"] => {
                of_table = Some(Place { kind: "table", family, table, name: table });
                place = of_table;
            }
            [kind @ ("set" | "map" | "chain"), name, "{"] => {
                place = of_table.map(|table| Place { kind, name, ..table });
            }
            // An object whose properties are all in its JSON.
            [_, .., "{"] => place = None,
            _ => {}
        }
        let Some(place) = place else { continue };
        match *words.as_slice() {
            ["auto-merge"] => found.entry(place).or_default().merges = true,
            ["flags", flags] if mentions(flags, "dynamic") => {
                found.entry(place).or_default().is_dynamic = true;
            }
            ["flags", flags] if place.kind == "table" && mentions(flags, "dormant") => {
                found.entry(place).or_default().is_dormant = true;
            }
            ["typeof", ..] => {
                found.entry(place).or_default().typeof_ = line.strip_prefix("typeof ");
            }
            ["comment", ..] if matches!(place.kind, "table" | "chain") => {
                let comment = line.strip_prefix("comment \"").and_then(|it| it.strip_suffix('"'));
                found.entry(place).or_default().comment = comment;
            }
            _ => {}
        }
    }
    found
}

fn mentions(flags: &str, name: &str) -> bool {
    flags.split(',').any(|flag| flag == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_get_the_properties_that_their_json_lacks_and_no_others() {
        let object = |kind: &str, family: &str, name: &str, table: &str| {
            format!(
                r#"{{"{kind}": {{"family": "{family}", "name": "{name}", "table": "{table}", "type": "ipv4_addr", "comment": "a \"set\": {{\"family\": \"inet\""}}}}"#
            )
        };
        let all = [
            object("set", "inet", "a", "t"),
            object("set", "inet", "b", "t"),
            object("set", "ip", "a", "t"),
            object("map", "inet", "m", "t"),
            r#"{"table": {"family": "inet", "name": "t", "handle": 1}}"#.to_owned(),
            r#"{"chain": {"family": "inet", "table": "t", "name": "c", "handle": 2}}"#.to_owned(),
            r#"{"chain": {"family": "ip", "table": "t", "name": "c", "handle": 2}}"#.to_owned(),
        ];
        let json = format!(r#"{{"nftables": [{}]}}"#, all.join(", "));
        let declared = "table inet t {\n\tset a {\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\t\
             auto-merge\n\t}\n\tset b {\n\t\ttype ipv4_addr\n\t\tflags dynamic,timeout\n\t\t\
             comment \"auto-merge\"\n\t}\n}\ntable ip t {\n\tset a {\n\t\ttype ipv4_addr\n\t}\n}\n\
             table inet t {\n\tmap m {\n\t\ttypeof iifname . ip saddr : ct zone\n\t}\n}\n\
             table inet t {\n\tcomment \"of all\"\n\tset b {\n\tchain c {\n\t\tcomment \"of c\"\n}\n";
        let text = String::from_utf8(with_declared(json.clone().into_bytes(), declared)).unwrap();
        let (of_table, of_chain) = (r#""comment": "of all", "#, r#""comment": "of c", "#);
        let of_map = r#""typeof": ["iifname . ip saddr","ct zone"], "#;
        for (fields, place) in [
            (MERGES, r#"{"set": {*"family": "inet", "name": "a", "table": "t""#),
            (r#""dynamic": true, "#, r#"{"set": {*"family": "inet", "name": "b""#),
            (of_map, r#"{"map": {*"family": "inet", "name": "m""#),
            (of_table, r#"{"table": {*"family": "inet""#),
            (of_chain, r#"{"chain": {*"family": "inet""#),
        ] {
            assert!(text.contains(&place.replace('*', fields)), "{fields}: {text}");
            assert_eq!(text.matches(fields).count(), 1);
        }
        let bare = [MERGES, r#""dynamic": true, "#, of_map, of_table, of_chain]
            .iter()
            .fold(text.clone(), |text, fields| text.replace(fields, ""));
        assert_eq!(bare, json);
        // The flags of a table may be anything.
        let table = r#"{"nftables": [{"table": {"family": "ip", "name": "t", "handle": 1, "flags": "x"}}]}"#.to_owned();
        let asleep = "table ip t {\n\tflags dormant\n\tchain c {\n\t}\n}\n";
        let asleep = String::from_utf8(with_declared(table.into_bytes(), asleep)).unwrap();
        let asleep: serde_json::Value = serde_json::from_str(&asleep).unwrap();
        let fields = &asleep["nftables"][0]["table"];
        assert_eq!((&fields["flags"], &fields["handle"]), (&json!(["dormant"]), &json!(1)));
        // A newer nft has told it itself.
        let newer = json.replacen(r#"{"set": {"#, &format!("{}{MERGES}", r#"{"set": {"#), 1);
        let newer = String::from_utf8(with_declared(newer.into_bytes(), declared)).unwrap();
        assert_eq!(newer.matches(MERGES).count(), 1);
        assert_eq!(with_declared(json.clone().into_bytes(), ""), json.as_bytes());
    }
}
