//! Sets that join their ranges. Older versions of nft (1.0.6 among them) do not tell that of a set
//! in JSON, but in their own syntax.

use std::collections::HashSet;

/// The beginning of a set in nft's JSON, up to its family.
const SET: &str = r#"{"set": {"family": ""#;
/// A set joins its ranges, as newer versions of nft say it in JSON.
const FIELD: &str = r#""auto-merge": true, "#;

/// The JSON of a ruleset in which the sets that join their ranges are marked. `declared` are the
/// declarations of all sets in nft's own syntax.
pub(super) fn marked(json: Vec<u8>, declared: &str) -> Vec<u8> {
    let merging = merging(declared);
    let Ok(text) = str::from_utf8(&json) else { return json };
    if merging.is_empty() || text.contains(FIELD.trim_end_matches(", ")) {
        return json;
    }
    let mut marked = String::with_capacity(text.len() + merging.len() * FIELD.len());
    let mut parts = text.split(SET);
    marked.push_str(parts.next().unwrap_or_default());
    for part in parts {
        // A quotation mark inside a text has a backslash in front, so none of these is in one.
        let mut words = part.split('"');
        let family = words.next().unwrap_or_default();
        let name = words.by_ref().skip_while(|word| *word != "name").nth(2).unwrap_or_default();
        let table = words.skip_while(|word| *word != "table").nth(2).unwrap_or_default();
        match merging.contains(&(family, table, name)) {
            true => marked.push_str(&SET.replacen(r#"{"family"#, &format!("{{{FIELD}\"family"), 1)),
            false => marked.push_str(SET),
        }
        marked.push_str(part);
    }
    marked.into_bytes()
}

/// Family, table and name of the sets that join their ranges.
fn merging(declared: &str) -> HashSet<(&str, &str, &str)> {
    let mut found = HashSet::new();
    let (mut table, mut set) = (None, None);
    for line in declared.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            ["table", family, name, "{"] => table = Some((family, name)),
            ["set" | "map", name, "{"] => set = Some(name),
            ["auto-merge"] => {
                found.extend(table.zip(set).map(|((family, table), set)| (family, table, set)))
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_join_their_ranges_are_marked_and_no_others() {
        let set = |family: &str, name: &str, table: &str| {
            format!(
                r#"{{"set": {{"family": "{family}", "name": "{name}", "table": "{table}", "type": "ipv4_addr", "comment": "a \"set\": {{\"family\": \"inet\""}}}}"#
            )
        };
        let all = [set("inet", "a", "t"), set("inet", "b", "t"), set("ip", "a", "t")].join(", ");
        let json = format!(r#"{{"nftables": [{all}]}}"#);
        let declared = "table inet t {\n\tset a {\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\t\
             auto-merge\n\t}\n\tset b {\n\t\ttype ipv4_addr\n\t\tcomment \"auto-merge\"\n\t}\n}\n\
             table ip t {\n\tset a {\n\t\ttype ipv4_addr\n\t}\n}\n";
        let text = String::from_utf8(marked(json.clone().into_bytes(), declared)).unwrap();
        let one = r#"{"set": {"auto-merge": true, "family": "inet", "name": "a", "table": "t""#;
        assert!(text.contains(one), "{text}");
        assert_eq!(text.replace(FIELD, ""), json);
        assert_eq!(text.matches(FIELD).count(), 1);
        // A newer nft has told it itself.
        assert_eq!(marked(text.clone().into_bytes(), declared), text.as_bytes());
        assert_eq!(marked(json.clone().into_bytes(), ""), json.as_bytes());
    }
}
