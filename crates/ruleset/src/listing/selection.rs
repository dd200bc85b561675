//! A part of a document, as `nft list table` and `nft list chain` show it.

use serde_json::Value;

use crate::kind::only;

/// A table of a ruleset, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection<'a> {
    /// The table's family.
    pub family: &'a str,
    /// The table's name.
    pub table: &'a str,
    /// The name of a chain, set, map or other object in it; `None`: the whole table.
    pub object: Option<&'a str>,
}

impl Selection<'_> {
    /// The objects of a document that are selected, with the table. `None` if there are none.
    pub fn of(&self, mut document: Value) -> Option<Value> {
        let Some(Value::Array(objects)) = document.get_mut("nftables") else { return None };
        objects.retain(|object| only(object).is_some_and(|(kind, it)| self.has(kind, it)));
        let is_found = |(kind, _): (&str, &Value)| {
            kind != "metainfo" && (kind != "table" || self.object.is_none())
        };
        objects.iter().filter_map(only).any(is_found).then_some(document)
    }

    fn has(&self, kind: &str, object: &Value) -> bool {
        let is = |field: &str, wanted: &str| object.get(field).is_some_and(|it| it == wanted);
        match kind {
            "metainfo" => true,
            "table" => is("family", self.family) && is("name", self.table),
            _ => {
                let name = if kind == "rule" { "chain" } else { "name" };
                is("family", self.family)
                    && is("table", self.table)
                    && self.object.is_none_or(|wanted| is(name, wanted))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_or_one_object_of_it_is_selected() {
        let document = json!({"nftables": [
            {"metainfo": {"json_schema_version": 1}},
            {"table": {"family": "inet", "name": "f"}},
            {"table": {"family": "ip", "name": "f"}},
            {"chain": {"family": "inet", "table": "f", "name": "in"}},
            {"chain": {"family": "inet", "table": "f", "name": "out"}},
            {"set": {"family": "inet", "table": "f", "name": "banned"}},
            {"rule": {"family": "inet", "table": "f", "chain": "in", "expr": []}},
            {"rule": {"family": "inet", "table": "f", "chain": "out", "expr": []}},
        ]});
        let kinds = |family, table, object| {
            let found = Selection { family, table, object }.of(document.clone())?;
            let objects = found["nftables"].as_array()?;
            Some(
                objects
                    .iter()
                    .filter_map(only)
                    .map(|(kind, _)| kind.to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        let all = ["metainfo", "table", "chain", "chain", "set", "rule", "rule"].map(str::to_owned);
        assert_eq!(kinds("inet", "f", None), Some(all.to_vec()));
        assert_eq!(kinds("ip", "f", None), Some(["metainfo", "table"].map(str::to_owned).to_vec()));
        let chain = ["metainfo", "table", "chain", "rule"].map(str::to_owned);
        assert_eq!(kinds("inet", "f", Some("out")), Some(chain.to_vec()));
        let set = ["metainfo", "table", "set"].map(str::to_owned);
        assert_eq!(kinds("inet", "f", Some("banned")), Some(set.to_vec()));
        for (family, table, object) in
            [("inet", "g", None), ("ip6", "f", None), ("ip", "f", Some("in"))]
        {
            assert_eq!(kinds(family, table, object), None, "{family} {table} {object:?}");
        }
    }
}
