//! Expressions: the values that a rule reads of a packet.

use serde_json::Value;

use super::{keys, refusals};
use crate::field::{self, Field};
use crate::generator::{Generator, Hashed, Source};
use crate::hook::TableFamily;
use crate::kind::{Interval, Kind, only, outline};
use crate::limits::{MAX_EXPRESSION_DEPTH, MAX_KEY_BYTES, MAX_KEY_FIELDS};
use crate::model::{GeneratorId, Key, Load, TypedKey, plain};
use crate::problem::{Fault, Parsed, Path};

/// A field of an object that has to be a text.
fn text<'v>(value: &'v Value, key: &str, path: &Path<'_>) -> Parsed<&'v str> {
    let found = value.get(key).and_then(Value::as_str);
    found.ok_or_else(|| path.invalid(format!("no `{key}`")))
}

/// Reads the expressions of a table.
pub(crate) struct ExpressionReader<'a> {
    /// The family of the table.
    pub family: TableFamily,
    /// The generators of the ruleset so far.
    pub generators: &'a mut Vec<Generator>,
}

/// One value of a packet with its type.
pub(crate) fn load(
    value: &Value,
    reader: &mut ExpressionReader<'_>,
    path: &Path<'_>,
) -> Parsed<(Load, Kind)> {
    if path.depth() > MAX_EXPRESSION_DEPTH {
        return Err(path.unsupported("expressions are nested too deep"));
    }
    let Some((form, inside)) = only(value) else {
        return Err(path.invalid(format!("{} in place of an expression", outline(value))));
    };
    let path = path.key(form);
    if form == "payload" && inside.get("tunnel").is_some() {
        let part = |key| inside.get(key).and_then(Value::as_str).unwrap_or_default();
        let [tunnel, header, field] = ["tunnel", "protocol", "field"].map(part).map(shown);
        let message = format!("`{tunnel} {header} {field}`");
        return Err(path.unsupported(refusals::with_reason(message, INSIDE)));
    }
    keys::check(form, inside, &path)?;
    match form {
        "payload" => payload(inside, &path),
        "meta" => {
            let key = text(inside, "key", &path)?;
            if key == "random" {
                let (source, modulus, offset) = (Source::Random, u32::MAX, 0);
                return Ok(made(Generator { source, modulus, offset }, reader));
            }
            field::meta(key).map(plain).ok_or_else(|| refused(&format!("meta {key}"), &path))
        }
        "ct" => connection(inside, reader.family, &path),
        "tcp option" if inside.get("base").is_some() => {
            let number = |key| inside.get(key).and_then(Value::as_u64).unwrap_or_default();
            let known = field::raw_tcp_option(number("base"), number("offset"), number("len"));
            known.map(plain).ok_or_else(|| path.unsupported("these bits of an option of TCP"))
        }
        "fib" => {
            let flags: Vec<&str> = match inside.get("flags") {
                Some(Value::Array(flags)) => flags.iter().filter_map(Value::as_str).collect(),
                Some(Value::String(flag)) => vec![flag],
                _ => Vec::new(),
            };
            let result = text(inside, "result", &path)?;
            let known = field::route(&flags, result).map(plain);
            known.ok_or_else(|| {
                path.unsupported(format!("`fib {} {}`", shown(&flags.join(" . ")), shown(result)))
            })
        }
        "rt" => {
            let (key, family) = (text(inside, "key", &path)?, inside.get("family"));
            let known = field::of_route(key, family.and_then(Value::as_str)).map(plain);
            known.ok_or_else(|| refused(&format!("rt {key}"), &path))
        }
        "exthdr" | "ip option" | "tcp option" | "sctp chunk" => {
            let name = text(inside, "name", &path)?;
            let field = inside.get("field").and_then(Value::as_str);
            let known = match form {
                "exthdr" => field::extension(name, field),
                "tcp option" => field::tcp_option(name, field),
                "sctp chunk" => field::sctp_chunk(name, field),
                _ => field::ip_option(name, field),
            };
            known.map(plain).ok_or_else(|| {
                let field = field.unwrap_or_default();
                let message = format!("`{form} {} {}`", shown(name), shown(field));
                path.unsupported(refusals::with_reason(message, &format!("{form} {name}")))
            })
        }
        "numgen" | "jhash" | "symhash" => generated(form, inside, reader, &path),
        "&" | "|" | "^" => combined(form, inside, reader, &path),
        "<<" | ">>" => Err(path.unsupported("shifts")),
        "concat" => Err(path.invalid("a concatenation where one value is read")),
        other => Err(refused(other, &path)),
    }
}

/// The type of a value of a packet; `None` if the gateway does not know the expression.
pub(crate) fn kind_of(expression: &Value) -> Option<Kind> {
    // A list has expressions of rules that passed without their table. The family matters for names
    // of addresses alone.
    let mut reader = ExpressionReader { family: TableFamily::Inet, generators: &mut Vec::new() };
    load(expression, &mut reader, &Path::root("expr")).ok().map(|(_, kind)| kind)
}

/// A field of a packet inside a tunnel, as `docs/nft.md` lists it.
const INSIDE: &str = "TUNNEL HEADER FIELD";

/// A word that is not supported, with the reason.
fn refused(word: &str, path: &Path<'_>) -> Fault {
    path.unsupported(refusals::with_reason(format!("`{}`", shown(word)), word))
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn payload(value: &Value, path: &Path<'_>) -> Parsed<(Load, Kind)> {
    if value.get("base").is_some() {
        let number = |key| value.get(key).and_then(Value::as_u64);
        let (base, offset, bits) = (text(value, "base", path)?, number("offset"), number("len"));
        let (Some(offset), Some(bits)) = (offset, bits) else {
            return Err(path.invalid("no `offset` or `len`"));
        };
        let raw = field::raw(base, offset, bits).map(plain);
        return raw.ok_or_else(|| {
            path.unsupported(format!("{bits} bits at {offset} of `{}`", shown(base)))
        });
    }
    let (header, name) = (text(value, "protocol", path)?, text(value, "field", path)?);
    let known = field::payload(header, name).map(plain);
    known.ok_or_else(|| refused(&format!("{} {}", shown(header), shown(name)), path))
}

fn connection(value: &Value, family: TableFamily, path: &Path<'_>) -> Parsed<(Load, Kind)> {
    let key = text(value, "key", path)?;
    // In a table of one family the address may stand without it.
    let key = match (key, family) {
        ("saddr", TableFamily::Ip) => "ip saddr",
        ("daddr", TableFamily::Ip) => "ip daddr",
        ("saddr", TableFamily::Ip6) => "ip6 saddr",
        ("daddr", TableFamily::Ip6) => "ip6 daddr",
        _ => key,
    };
    let reply = match value.get("dir").and_then(Value::as_str) {
        None => None,
        Some("original") => Some(false),
        Some("reply") => Some(true),
        Some(other) => return Err(path.invalid(format!("direction `{}`", shown(other)))),
    };
    let known = field::ct(key, reply).map(plain);
    known.ok_or_else(|| refused(&format!("ct {key}"), path))
}

/// True if nft may have printed this constant for a prefix. It shifts a prefix of whole bytes behind
/// `ct saddr` and `ct daddr` without a family: `192.0.2.0/24` becomes `0.192.0.2` (seen in 1.0.6).
pub(crate) fn may_be_cut_prefix(value: &Value, kind: Kind, interval: Interval) -> bool {
    let key = value.get("ct").and_then(|ct| ct.get("key")?.as_str());
    let first_byte = kind.greatest() ^ (kind.greatest() >> 8);
    matches!(key, Some("saddr" | "daddr")) && interval.is_one() && interval.low & first_byte == 0
}

/// `numgen`, `jhash`, `symhash`: a number that the rule makes.
fn generated(
    form: &str,
    value: &Value,
    reader: &mut ExpressionReader<'_>,
    path: &Path<'_>,
) -> Parsed<(Load, Kind)> {
    let number = |key: &str| match value.get(key) {
        None => Ok(0),
        Some(number) => number
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| path.key(key).invalid(format!("{} of 32 bits", outline(number)))),
    };
    let (modulus, offset, seed) = (number("mod")?, number("offset")?, number("seed")?);
    if modulus == 0 || offset.checked_add(modulus - 1).is_none() {
        return Err(path.key("mod").invalid("0, or more than 32 bits with the offset"));
    }
    let source = match form {
        "numgen" => match value.get("mode").and_then(Value::as_str) {
            Some("inc") => Source::Counting,
            Some("random") => Source::Random,
            _ => return Err(path.key("mode").invalid("neither `inc` nor `random`")),
        },
        "jhash" => {
            let hashed = value.get("expr").ok_or_else(|| path.invalid("no `expr`"))?;
            let path = path.key("expr");
            if reads_index(hashed) {
                return Err(path.unsupported("a hash over an interface's number: use its name"));
            }
            let parts = key(hashed, reader, &path)?.into_iter().map(|(load, kind)| {
                let whole = Hashed::new(load, kind);
                whole.ok_or_else(|| path.unsupported("a hash over a part of a byte"))
            });
            let seed = value.get("seed").map(|_| seed);
            Source::Hash { parts: parts.collect::<Parsed<_>>()?, seed }
        }
        _ => Source::Symmetric,
    };
    Ok(made(Generator { source, modulus, offset }, reader))
}

/// The number of one more generator.
fn made(generator: Generator, reader: &mut ExpressionReader<'_>) -> (Load, Kind) {
    reader.generators.push(generator);
    let id = GeneratorId(reader.generators.len() as u32 - 1);
    plain((Field::Generated(id), Kind::Integer(32)))
}

/// True if a value, or one inside, is the index of an interface. Rules know interfaces by name.
fn reads_index(value: &Value) -> bool {
    match only(value) {
        Some(("concat", Value::Array(parts))) => parts.iter().any(reads_index),
        Some(("meta", meta)) => {
            matches!(meta.get("key").and_then(Value::as_str), Some("iif" | "oif"))
        }
        Some(("&" | "|" | "^", Value::Array(parts))) => parts.first().is_some_and(reads_index),
        _ => false,
    }
}

/// A value and constants, bit by bit.
fn combined(
    operator: &str,
    value: &Value,
    reader: &mut ExpressionReader<'_>,
    path: &Path<'_>,
) -> Parsed<(Load, Kind)> {
    let Some([first, constants @ ..]) = value.as_array().map(Vec::as_slice) else {
        return Err(path.invalid("no operands"));
    };
    let (mut combined, kind) = load(first, reader, &path.index(0))?;
    for (at, constant) in constants.iter().enumerate() {
        let path = path.index(at + 1);
        if let Some(("payload" | "meta" | "ct" | "rt" | "&" | "|" | "^" | "<<" | ">>", _)) =
            only(constant)
            && !kind.is_bits()
        {
            return Err(path.unsupported("two values of a packet combined bit by bit"));
        }
        let constant = kind.constant(constant, &path)?;
        match operator {
            "&" => {
                combined.and &= constant;
                combined.xor &= constant;
            }
            "|" => {
                combined.and &= !constant;
                combined.xor = (combined.xor & !constant) | constant;
            }
            _ => combined.xor ^= constant,
        }
    }
    Ok((combined, kind))
}

/// One value, or a concatenation of them.
pub(crate) fn key(
    value: &Value,
    reader: &mut ExpressionReader<'_>,
    path: &Path<'_>,
) -> Parsed<TypedKey> {
    element(value, &[], reader, path)
}

/// The same for an element that a rule adds to a set with keys of these types. Constants may stand
/// in it.
pub(crate) fn element(
    value: &Value,
    declared: &[Kind],
    reader: &mut ExpressionReader<'_>,
    path: &Path<'_>,
) -> Parsed<TypedKey> {
    let mut part = |at: usize, value: &Value, path: &Path<'_>| match declared.get(at) {
        Some(kind) if value.is_string() || value.is_number() => {
            Ok((constant(kind.constant(value, path)?), *kind))
        }
        _ => load(value, reader, path),
    };
    let Some(("concat", parts)) = only(value) else {
        return Ok(vec![part(0, value, path)?]);
    };
    let path = path.key("concat");
    let parts = parts.as_array().ok_or_else(|| path.invalid("no list"))?;
    if parts.is_empty() || parts.len() > MAX_KEY_FIELDS {
        return Err(path.unsupported(format!("a concatenation of {} values", parts.len())));
    }
    let parts = parts.iter().enumerate();
    let key: TypedKey =
        parts.map(|(at, value)| part(at, value, &path.index(at))).collect::<Parsed<_>>()?;
    if key.iter().map(|(_, kind)| 4 * kind.words()).sum::<usize>() > MAX_KEY_BYTES {
        return Err(path.invalid(format!("a key of more than {MAX_KEY_BYTES} bytes")));
    }
    Ok(key)
}

/// The same value for every packet. Every packet has the field, and nothing of it is left.
const fn constant(value: u128) -> Load {
    Load { field: Field::Nfproto, and: 0, xor: value }
}

/// The types of a key.
pub(crate) fn kinds(key: &TypedKey) -> Vec<Kind> {
    key.iter().map(|(_, kind)| *kind).collect()
}

/// A key without its types.
pub(crate) fn bare(key: &TypedKey) -> Key {
    Key { loads: key.iter().map(|(load, _)| *load).collect() }
}

#[cfg(test)]
#[path = "expression_tests.rs"]
mod tests;
