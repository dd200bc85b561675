//! Rules: matches and statements.

use serde_json::Value;
use wire::Family;

use super::expression::{self, ExpressionReader, bare, kinds};
use super::scope::{Scope, resolve};
use super::sets;
use super::statement;
use super::{keys, refusals};
use crate::elements::Elements;
use crate::field::{CtField, Field, nfproto};
use crate::kind::{Interval, Kind, ObjectKind, only, outline};
use crate::limits::{DEFAULT_DYNAMIC_SIZE, MAX_DYNAMIC_SIZE, MAX_RULE_ITEMS, MAX_SETS};
use crate::listing::expression_text;
use crate::model::{
    BoundId, Counter, CounterId, Data, Item, Limit, LimitId, Load, LogId, NatId, NatKind, Operand,
    Parts, Quota, QuotaId, Reject, Set, SetId, SynProxyId, Target, TypedKey, Update, UpdateOp,
    plain,
};
use crate::problem::{Fault, Parsed, Path};

/// Reads the rules of a table.
pub(crate) struct Reader<'a, 'b> {
    pub scope: Scope<'a>,
    pub parts: &'b mut Parts,
    /// Notes about the rule at hand: path and text.
    pub notes: Vec<(String, &'static str)>,
}

/// Appends to a list of the ruleset and makes the index, which fits because rules are bounded.
macro_rules! add {
    ($list:expr, $id:ident, $value:expr) => {{
        $list.push($value);
        $id($list.len() as u32 - 1)
    }};
}

impl Reader<'_, '_> {
    /// The items of a rule, or everything that is wrong with it.
    pub fn rule(&mut self, statements: &[Value]) -> Result<Vec<Item>, Vec<Fault>> {
        let (mut items, mut faults) = (Vec::with_capacity(statements.len()), Vec::new());
        let root = Path::root("expr");
        if statements.len() > MAX_RULE_ITEMS {
            return Err(vec![root.unsupported(format!("more than {MAX_RULE_ITEMS} expressions"))]);
        }
        for (at, statement) in statements.iter().enumerate() {
            match self.item(statement, &root.index(at)) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => {}
                Err(fault) => faults.push(fault),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        if let Some(number) = self.unprinted_family(&items) {
            let (load, interval) = (Load::of(Field::Nfproto), Interval::one(number));
            items.insert(0, Item::Within { load, interval, negated: false });
        }
        Ok(items)
    }

    /// The family that nft asks for in front of the rule and may not print. A refusal by ICMP works
    /// for one family only, and only one has extension headers or options. Behind a statement that
    /// is no comparison nft prints the question.
    fn unprinted_family(&self, items: &[Item]) -> Option<u128> {
        let asks = |load: &&Load| self.asks_for_family(load);
        let asking = items.iter().position(|item| item.loads().iter().any(|it| asks(&it)));
        let family = match asking.map(|at| items.split_at(at)) {
            Some((before, [item, ..])) if before.iter().all(Item::compares) => {
                item.loads().iter().find(asks)?.field.layer()?.extended_family()?
            }
            Some(_) => return None,
            None => items.iter().find_map(|item| match item {
                Item::Reject(Reject::Icmp(_)) => Some(Some(Family::V4)),
                Item::Reject(Reject::Icmpv6(_)) => Some(Some(Family::V6)),
                // The question for the family stands in front of this one.
                Item::Assign { target: Target::Header(field), .. }
                    if Field::Header(*field).asks_for_family() =>
                {
                    Some(None)
                }
                _ => None,
            })??,
        };
        Some(nfproto(family).into())
    }

    /// True if only packets of one family have the value.
    fn asks_for_family(&self, load: &Load) -> bool {
        match load.field {
            Field::Generated(id) => {
                self.parts.generators[id.index()].hashed().any(|load| self.asks_for_family(load))
            }
            field => field.asks_for_family(),
        }
    }

    /// Reads expressions, and puts their generators with those of the ruleset.
    pub fn expressions(&mut self) -> ExpressionReader<'_> {
        ExpressionReader { family: self.scope.family, generators: &mut self.parts.generators }
    }

    fn item(&mut self, statement: &Value, path: &Path<'_>) -> Parsed<Option<Item>> {
        if let Value::String(text) = statement {
            let text: String = text.chars().take(60).collect();
            return Err(path.unsupported(format!("`{text}`, for which this nft has no JSON")));
        }
        let Some((name, value)) = only(statement) else {
            return Err(path.invalid(format!("{} is no statement", outline(statement))));
        };
        let here = path.key(name);
        keys::check(name, value, &here)?;
        Ok(Some(match name {
            "match" => self.matching(value, &here)?,
            "counter" | "limit" | "quota" => self.measure(name, value, &here)?,
            "ct count" => {
                let bound = statement::bound(value, &here)?;
                Item::Connections(add!(self.parts.bounds, BoundId, bound))
            }
            "mangle" => return self.assignment(value, &here),
            "set" => self.update(value, &here)?,
            "flow" if value.get("op").and_then(Value::as_str) == Some("add") => {
                let what = "a hint that is not needed: established flows take a short way anyhow";
                self.notes.push((here.to_string(), what));
                return Ok(None);
            }
            "last" => {
                let what = "the time when a packet last met it is not listed";
                self.notes.push((here.to_string(), what));
                return Ok(None);
            }
            "meter" => self.meter(value, &here)?,
            "vmap" => self.verdict_map(value, &here)?,
            "log" => {
                let log = statement::log(value, &here)?;
                Item::Log(add!(self.parts.logs, LogId, log))
            }
            "reject" => Item::Reject(statement::reject(value, &here)?),
            "snat" => self.translation(NatKind::Source, value, &here)?,
            "dnat" => self.translation(NatKind::Destination, value, &here)?,
            "masquerade" => self.translation(NatKind::Masquerade, value, &here)?,
            "redirect" => self.translation(NatKind::Redirect, value, &here)?,
            "notrack" => Item::Notrack,
            "ct helper" | "ct timeout" | "synproxy" if value.get("map").is_some() => {
                self.object_by_map(name, &value["map"], &here.key("map"))?
            }
            "ct helper" => {
                Item::Helper(self.named(&self.scope.names.helpers, name, value, &here)?)
            }
            "ct timeout" => {
                Item::Timeout(self.named(&self.scope.names.timeouts, name, value, &here)?)
            }
            "synproxy" if value.is_string() => {
                Item::SynProxy(self.named(&self.scope.names.syn_proxies, name, value, &here)?)
            }
            "synproxy" => {
                let proxy = statement::syn_proxy(value, &here)?;
                Item::SynProxy(add!(self.parts.syn_proxies, SynProxyId, proxy))
            }
            "accept" | "drop" | "continue" | "return" | "jump" | "goto" => {
                Item::Verdict(sets::verdict(statement, &self.scope, path)?)
            }
            "xt" => {
                let part = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
                let name: String = part("name").chars().take(40).collect();
                let what = format!(
                    "`xt {} {name}`, an extension of iptables: save the rules by iptables-save and \
                     load that file, which iptables-restore-translate says in nft's words",
                    if part("type") == "target" { "target" } else { "match" }
                );
                return Err(path.unsupported(what));
            }
            other => {
                let word = if other == "ct expectation" { "ct expectation set" } else { other };
                let shown: String = other.chars().take(40).collect();
                return Err(path.unsupported(refusals::with_reason(format!("`{shown}`"), word)));
            }
        }))
    }

    fn named<Id: Copy>(
        &self,
        known: &super::scope::Known<Id>,
        what: &str,
        value: &Value,
        path: &Path<'_>,
    ) -> Parsed<Id> {
        match value {
            Value::String(name) => resolve(known, what, name, path),
            other => Err(path.unsupported(format!("{} instead of a name", outline(other)))),
        }
    }

    fn translation(&mut self, kind: NatKind, value: &Value, path: &Path<'_>) -> Parsed<Item> {
        let nat = self.nat(kind, value, path)?;
        Ok(Item::Nat(add!(self.parts.nats, NatId, nat)))
    }

    fn matching(&mut self, value: &Value, path: &Path<'_>) -> Parsed<Item> {
        let part =
            |key: &'static str| value.get(key).ok_or_else(|| path.invalid(format!("no `{key}`")));
        let (left, right) = (part("left")?, part("right")?);
        let operator = value.get("op").and_then(Value::as_str).unwrap_or("==");
        let (left_path, right_path) = (path.key("left"), path.key("right"));
        let key = expression::key(left, &mut self.expressions(), &left_path)?;
        if let Some(set) = self.set_of(right, &key, &right_path)? {
            let negated = match operator {
                "==" | "in" => false,
                "!=" => true,
                _ => return Err(path.invalid("a set is compared with `==` or `!=`")),
            };
            return Ok(Item::Member { key: bare(&key), set, negated });
        }
        let [(load, kind)] = key.as_slice() else {
            return Err(right_path.unsupported("a concatenation compared with a constant"));
        };
        let (load, kind) = (*load, *kind);
        // A route that leads to no interface is asked for by the number of none.
        if !matches!(load.field, Field::Route(_)) && Self::missing_interface(right, kind) {
            self.notes.push((right_path.to_string(), "the interface does not exist"));
        }
        match operator {
            // The question whether there is a way to an address. nft writes the number 0 for none, too.
            "==" | "!=" if matches!(load.field, Field::Route(_)) && presence(right).is_some() => {
                let negated = presence(right) == Some(operator == "==");
                return Ok(Item::Within { load, interval: Interval::one(0), negated });
            }
            // nft has a number for an option of TCP without a name, and bits of it where the question
            // is whether it is there.
            "==" | "!="
                if let (Field::Header(bits), Some(there)) = (load.field, right.as_bool()) =>
            {
                let load = plain((Field::Has(bits.layer), Kind::Boolean)).0;
                let interval = Interval::one(there.into());
                return Ok(Item::Within { load, interval, negated: operator == "!=" });
            }
            // A list of bits: `in` matches if one is set, `!` matches if none is.
            "in" | "!" if kind.is_bits() => {
                let mask = kind.constant(right, &right_path)?;
                return Ok(Item::Bits { load, mask, any: operator == "in" });
            }
            _ => {}
        }
        let interval = kind.interval(right, &right_path)?;
        if expression::may_be_cut_prefix(left, kind, interval) {
            return Err(right_path.unsupported(CUT_PREFIX));
        }
        let (interval, negated) = compared(operator, interval, kind)
            .ok_or_else(|| path.invalid(format!("the operator {}", outline(&operator.into()))))?;
        Ok(Item::Within { load, interval, negated })
    }

    /// True for a number in place of an interface's name: the interface with that index is gone.
    fn missing_interface(value: &Value, kind: Kind) -> bool {
        let is_index = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        kind == Kind::Interface && (value.is_number() || value.as_str().is_some_and(is_index))
    }

    /// The named or anonymous set that a value means; `None` for a constant.
    fn set_of(&mut self, value: &Value, key: &TypedKey, path: &Path<'_>) -> Parsed<Option<SetId>> {
        let by_name = value.as_str().is_some_and(|text| text.starts_with('@'));
        let anonymous = only(value).is_some_and(|(form, _)| form == "set");
        if !by_name && !anonymous {
            return Ok(None);
        }
        self.map(value, key, Data::None, path).map(Some)
    }

    /// The named or anonymous map that a key is looked up in.
    pub(super) fn map(
        &mut self,
        value: &Value,
        key: &TypedKey,
        data: Data,
        path: &Path<'_>,
    ) -> Parsed<SetId> {
        if let Some(name) = value.as_str().and_then(|text| text.strip_prefix('@')) {
            let id = resolve(&self.scope.names.sets, "set", name, path)?;
            let set = &self.parts.sets[id.index()];
            sets::check_key(set, &kinds(key), path)?;
            let is_right = match (&data, &set.data) {
                (Data::Values(_), Data::Values(_)) | (Data::None, _) => true,
                (wanted, held) => wanted == held,
            };
            if !is_right {
                return Err(path.invalid(format!("`{name}` holds no data of that type")));
            }
            check_listing(set, key, path)?;
            return Ok(id);
        }
        let Some(("set", elements)) = only(value) else {
            return Err(path.invalid(format!("{} is no set", outline(value))));
        };
        if self.parts.sets.len() >= MAX_SETS {
            return Err(path.unsupported(format!("more than {MAX_SETS} sets")));
        }
        let set = sets::anonymous(elements, kinds(key), data, &self.scope, &path.key("set"))?;
        check_listing(&set, key, path)?;
        Ok(add!(self.parts.sets, SetId, set))
    }

    fn verdict_map(&mut self, value: &Value, path: &Path<'_>) -> Parsed<Item> {
        let part =
            |key: &'static str| value.get(key).ok_or_else(|| path.invalid(format!("no `{key}`")));
        let key = expression::key(part("key")?, &mut self.expressions(), &path.key("key"))?;
        let map = self.map(part("data")?, &key, Data::Verdicts, &path.key("data"))?;
        Ok(Item::VerdictMap { key: bare(&key), map })
    }

    fn measure(&mut self, name: &str, value: &Value, path: &Path<'_>) -> Parsed<Item> {
        Ok(match (name, value) {
            ("counter", Value::String(_)) => {
                Item::Counter(self.named(&self.scope.names.counters, name, value, path)?)
            }
            ("limit", Value::String(_)) => {
                Item::Limit(self.named(&self.scope.names.limits, name, value, path)?)
            }
            ("quota", Value::String(_)) => {
                Item::Quota(self.named(&self.scope.names.quotas, name, value, path)?)
            }
            (_, value) if value.get("map").is_some() => {
                return self.object_by_map(name, &value["map"], &path.key("map"));
            }
            ("counter", value) => {
                let number = |key| value.get(key).and_then(Value::as_u64).unwrap_or(0);
                let (packets, bytes) = (number("packets"), number("bytes"));
                let counter = Counter { name: None, position: None, packets, bytes };
                Item::Counter(add!(self.parts.counters, CounterId, counter))
            }
            ("limit", value) => {
                let rate = statement::rate(value, path)?;
                Item::Limit(add!(self.parts.limits, LimitId, Limit { name: None, rate }))
            }
            (_, value) => {
                let (bytes, used, over) = statement::quota(value, path)?;
                let quota = Quota { name: None, position: None, bytes, used, over };
                Item::Quota(add!(self.parts.quotas, QuotaId, quota))
            }
        })
    }

    /// An object that a map holds.
    fn object_by_map(&mut self, name: &str, value: &Value, path: &Path<'_>) -> Parsed<Item> {
        keys::check("map", value, path)?;
        let part =
            |key: &'static str| value.get(key).ok_or_else(|| path.invalid(format!("no `{key}`")));
        let what = ObjectKind::named(name).ok_or_else(|| path.unsupported("objects by map"))?;
        let key = expression::key(part("key")?, &mut self.expressions(), &path.key("key"))?;
        let (data, path) = (Data::Values(vec![Kind::Object(what)]), path.key("data"));
        let map = self.map(part("data")?, &key, data.clone(), &path)?;
        if self.parts.sets[map.index()].data != data {
            return Err(path.invalid(format!("a map that holds no {name}")));
        }
        Ok(Item::Object { what, key: bare(&key), map })
    }

    fn assignment(&mut self, value: &Value, path: &Path<'_>) -> Parsed<Option<Item>> {
        let part =
            |key: &'static str| value.get(key).ok_or_else(|| path.invalid(format!("no `{key}`")));
        let (inner, wanted) = (part("key")?, part("value")?);
        let (target, target_path) = (inner, path.key("key"));
        if target.get("meta").and_then(|meta| meta.get("key")?.as_str()) == Some("nftrace") {
            self.notes.push((target_path.to_string(), "tracing by rules is ignored"));
            return Ok(None);
        }
        let (load, kind) = expression::load(target, &mut self.expressions(), &target_path)?;
        let target = match load.field {
            _ if !load.is_plain() => None,
            Field::Mark => Some(Target::Mark),
            Field::Priority => Some(Target::Priority),
            Field::SegmentSize => Some(Target::SegmentSize),
            Field::Connection(CtField::Mark) => Some(Target::CtMark),
            Field::Connection(CtField::Zone(way)) => Some(Target::CtZone(way)),
            Field::Connection(CtField::Label) => Some(Target::CtLabel),
            field => field.written().map(Target::Header),
        };
        let target = target.ok_or_else(|| {
            let text = expression_text(inner);
            let word = format!("{text} set");
            target_path.unsupported(refusals::with_reason(format!("setting `{text}`"), &word))
        })?;
        let value = self.operand(wanted, kind, target, &path.key("value"))?;
        if matches!((target, &value), (Target::CtZone(_), Operand::Computed(_))) {
            let what = "a zone that is neither a number nor from a map";
            return Err(path.key("value").unsupported(what));
        }
        Ok(Some(Item::Assign { target, value }))
    }

    fn operand(
        &mut self,
        value: &Value,
        kind: Kind,
        target: Target,
        path: &Path<'_>,
    ) -> Parsed<Operand> {
        match only(value) {
            Some(("map", map)) => {
                let path = path.key("map");
                keys::check("map", map, &path)?;
                let part = |key: &'static str| {
                    map.get(key).ok_or_else(|| path.invalid(format!("no `{key}`")))
                };
                let key = expression::key(part("key")?, &mut self.expressions(), &path.key("key"))?;
                let data_path = path.key("data");
                let map = self.map(part("data")?, &key, Data::Values(vec![kind]), &data_path)?;
                let fits = matches!(&self.parts.sets[map.index()].data,
                    Data::Values(held) if held.len() == 1 && held[0].fits(kind));
                if !fits {
                    return Err(data_path.invalid("a map to another type"));
                }
                Ok(Operand::Mapped { key: bare(&key), map })
            }
            Some(("rt", route))
                if target == Target::SegmentSize
                    && route.get("key").and_then(Value::as_str) == Some("mtu") =>
            {
                Ok(Operand::PathMtu)
            }
            Some(("|", Value::Array(parts)))
                if kind.is_bits() && parts[..].iter().all(is_plain) =>
            {
                kind.constant(value, path).map(Operand::Constant)
            }
            Some(_) => {
                let (load, read) = expression::load(value, &mut self.expressions(), path)?;
                if !read.fits(kind) && read.words() != kind.words() {
                    return Err(path.invalid(format!("{read} for {kind}")));
                }
                Ok(Operand::Computed(load))
            }
            None => kind.constant(value, path).map(Operand::Constant),
        }
    }

    /// `add`, `update` and `delete` on a named set.
    fn update(&mut self, value: &Value, path: &Path<'_>) -> Parsed<Item> {
        let name = value.get("set").and_then(Value::as_str).and_then(|name| name.strip_prefix('@'));
        let name = name.ok_or_else(|| path.invalid("no set"))?;
        let set = resolve(&self.scope.names.sets, "set", name, &path.key("set"))?;
        let op = match value.get("op").and_then(Value::as_str) {
            Some("add") => UpdateOp::Add,
            Some("update") => UpdateOp::Refresh,
            Some("delete") => UpdateOp::Delete,
            _ => return Err(path.key("op").invalid("neither add, update nor delete")),
        };
        let element = value.get("elem").ok_or_else(|| path.invalid("no `elem`"))?;
        let declared = self.parts.sets[set.index()].key.clone();
        let (key, timeout) =
            element_key(element, &declared, &mut self.expressions(), &path.key("elem"))?;
        let declared = &self.parts.sets[set.index()];
        sets::check_key(declared, &kinds(&key), &path.key("elem"))?;
        if declared.data != Data::None {
            return Err(path.unsupported("adding to a map"));
        }
        if declared.elements.catch_all().is_some() {
            return Err(path.unsupported(format!("{} that packets change", sets::CATCH_ALL)));
        }
        let mut parts = Vec::new();
        if let Some(statements) = value.get("stmt") {
            let path = path.key("stmt");
            let list = statements.as_array().ok_or_else(|| path.invalid("no list"))?;
            for (at, statement) in list.iter().enumerate() {
                parts.push(sets::part(statement, &path.index(at))?);
            }
        }
        sets::check_parts(&parts, &path.key("stmt"))?;
        let declared = &mut self.parts.sets[set.index()];
        if parts.is_empty() || op == UpdateOp::Delete {
            parts.clone_from(&declared.parts);
        } else if declared.parts.is_empty() && !declared.dynamic {
            declared.parts.clone_from(&parts);
        }
        if parts != declared.parts {
            return Err(path
                .key("stmt")
                .unsupported("statements that its other elements do not have"));
        }
        declared.dynamic = true;
        Ok(Item::Update(Update { set, op, key: bare(&key), timeout }))
    }

    /// A set that a rule declares and fills itself.
    fn meter(&mut self, value: &Value, path: &Path<'_>) -> Parsed<Item> {
        let element = value.get("key").ok_or_else(|| path.invalid("no `key`"))?;
        let (key, timeout) = element_key(element, &[], &mut self.expressions(), &path.key("key"))?;
        let statement = value.get("stmt").ok_or_else(|| path.invalid("no `stmt`"))?;
        let parts = vec![sets::part(statement, &path.key("stmt"))?];
        let size = value.get("size").and_then(Value::as_u64);
        let size = size.and_then(|size| u32::try_from(size).ok());
        let set = Set {
            family: self.scope.family,
            table: self.scope.table.to_owned(),
            name: value.get("name").and_then(Value::as_str).map(str::to_owned),
            position: None,
            key: kinds(&key),
            data: Data::None,
            dynamic: true,
            timeout,
            size: size.unwrap_or(DEFAULT_DYNAMIC_SIZE).clamp(1, MAX_DYNAMIC_SIZE),
            parts,
            declares_parts: false,
            elements: Elements::new(&kinds(&key), &Data::None),
        };
        let set = add!(self.parts.sets, SetId, set);
        let op = if timeout.is_some() { UpdateOp::Refresh } else { UpdateOp::Add };
        Ok(Item::Update(Update { set, op, key: bare(&key), timeout }))
    }
}

/// The refusal of an address that nft may have printed in place of a prefix.
const CUT_PREFIX: &str = "an address of a connection that begins with 0: nft prints some prefixes \
                          in this wrong way; write the family, as in `ct original ip saddr`";

/// The key that is added to a set, and its timeout.
fn element_key(
    value: &Value,
    declared: &[Kind],
    reader: &mut ExpressionReader<'_>,
    path: &Path<'_>,
) -> Parsed<(TypedKey, Option<std::time::Duration>)> {
    match only(value) {
        Some(("elem", inside)) => {
            let path = path.key("elem");
            let key = inside.get("val").ok_or_else(|| path.invalid("no `val`"))?;
            let key = expression::element(key, declared, reader, &path.key("val"))?;
            Ok((key, sets::seconds(inside.get("timeout"))))
        }
        _ => Ok((expression::element(value, declared, reader, path)?, None)),
    }
}

/// `exists` and `missing`, as nft writes them of a look-up in the routes.
fn presence(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(exists) => Some(*exists),
        value => (value.as_str() == Some("0")).then_some(false),
    }
}

fn is_plain(value: &Value) -> bool {
    value.is_string() || value.is_number()
}

/// The interval that an operator makes of a constant; the second value is true if values outside it
/// match.
fn compared(operator: &str, interval: Interval, kind: Kind) -> Option<(Interval, bool)> {
    let (low, greatest) = (interval.low, kind.greatest());
    let everything = Interval { low: 0, high: greatest };
    if !matches!(operator, "==" | "!=" | "in") && !interval.is_one() {
        return None;
    }
    Some(match operator {
        "==" | "in" => (interval, false),
        "!=" => (interval, true),
        "<" if low == 0 => (everything, true),
        "<" => (Interval { low: 0, high: low - 1 }, false),
        "<=" => (Interval { low: 0, high: low }, false),
        ">" if low == greatest => (everything, true),
        ">" => (Interval { low: low + 1, high: greatest }, false),
        ">=" => (Interval { low, high: greatest }, false),
        _ => return None,
    })
}

/// Refuses concatenations that nft 1.0.6 may have listed wrongly: of a set with ranges, a number that
/// the kernel holds in the byte order of its machine is listed as 0 or as a range, and the parts behind
/// it have other values than in the kernel.
fn check_listing(set: &Set, key: &TypedKey, path: &Path<'_>) -> Parsed<()> {
    let is_swapped = |(load, _): &(Load, Kind)| {
        matches!(
            load.field,
            Field::Length
                | Field::Cpu
                | Field::RouteSegmentSize
                | Field::Generated(_)
                | Field::Connection(
                    CtField::Zone(_)
                        | CtField::Packets(_)
                        | CtField::Bytes(_)
                        | CtField::Average(_)
                )
        )
    };
    let swapped = key.iter().enumerate().filter(|(_, part)| is_swapped(part)).map(|(at, _)| at);
    let swapped: Vec<usize> = if key.len() < 2 { Vec::new() } else { swapped.collect() };
    let is_doubtful = |part: Interval| part.low == 0 || !part.is_one();
    let mut elements = set.elements.plain().map(|(_, element)| element);
    if elements.any(|it| swapped.iter().filter_map(|at| it.part(*at)).any(is_doubtful)) {
        return Err(path.unsupported(
            "a concatenation with a length, CPU, zone, count or computed number that is 0 or a \
             range: nft 1.0.6 lists sets with ranges so, and other values than the kernel has; write \
             a rule for each range",
        ));
    }
    Ok(())
}
