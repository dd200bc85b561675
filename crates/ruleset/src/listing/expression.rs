//! Expressions, as `nft list ruleset` writes them.

use serde_json::{Map, Value};

use crate::import::kind_of;
use crate::kind::{Kind, ObjectKind, only};
use crate::names;

/// The notation of constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    /// Unchanged.
    Plain,
    /// Numbers as marks: hexadecimal, eight digits.
    Mark,
    /// Numbers in hexadecimal.
    Hex,
    /// Texts in quotes.
    Quoted,
    /// Numbers as times, texts, which are dates, in quotes.
    Seconds,
    /// Truth values as `exists` and `missing`.
    Presence,
}

/// How constants are written, which depends on the value that they are compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    notation: Notation,
    kind: Option<Kind>,
}

/// The style of each part of a concatenation; one style for all else.
pub(super) type Styles = [Style];

/// Constants as they are.
pub(super) const PLAIN: &Styles = &[Style::new(Notation::Plain, None)];
/// Texts in quotes.
pub(super) const QUOTED: &Styles = &[Style::new(Notation::Quoted, None)];

impl Style {
    const fn new(notation: Notation, kind: Option<Kind>) -> Self {
        Self { notation, kind }
    }

    fn of_kind(kind: Kind) -> Self {
        let notation = match kind {
            Kind::Mark => Notation::Mark,
            Kind::Interface | Kind::Helper | Kind::Object(_) => Notation::Quoted,
            Kind::Date | Kind::Hour | Kind::Day => Notation::Quoted,
            Kind::Time => Notation::Seconds,
            _ => Notation::Presence,
        };
        Self::new(notation, Some(kind))
    }

    /// The styles of constants beside an expression.
    pub fn beside(expression: &Value) -> Vec<Self> {
        match only(expression) {
            Some(("concat", Value::Array(parts))) => parts.iter().map(Self::of_one).collect(),
            _ => vec![Self::of_one(expression)],
        }
    }

    /// The style beside a value that is no concatenation.
    fn of_one(expression: &Value) -> Self {
        let Some((name, inside)) = only(expression) else { return PLAIN[0] };
        match name {
            "payload" if inside.get("base").is_some() => Self::new(Notation::Hex, None),
            "&" | "|" | "^" | "<<" | ">>" => inside.get(0).map_or(PLAIN[0], Self::of_one),
            _ => match kind_of(expression) {
                Some(kind) => Self::of_kind(kind),
                // The gateway does not know these, but nft has their names in quotes.
                None if name == "osf" || names_an_interface(inside) => QUOTED[0],
                None => Self::new(Notation::Presence, None),
            },
        }
    }

    /// The styles of constants of declared types.
    pub fn of_types(names: &[String]) -> Vec<Self> {
        let kind = |name: &String| match ObjectKind::named(name) {
            Some(object) => Some(Kind::Object(object)),
            None => Kind::of_type(name),
        };
        names.iter().map(|name| kind(name).map_or(PLAIN[0], Self::of_kind)).collect()
    }

    fn number(self, number: &Value) -> String {
        match (self.notation, number.as_u64()) {
            (Notation::Mark, Some(number)) => format!("{number:#010x}"),
            (Notation::Hex, Some(number)) => format!("{number:#x}"),
            (Notation::Seconds, Some(seconds)) => time(seconds),
            _ => number.to_string(),
        }
    }

    fn text(self, text: &str) -> String {
        // nft 1.0.6 adds this to some numbers.
        let text = text.strip_suffix(" [invalid type]").unwrap_or(text);
        // Neither names of sets nor `*`, which stands for all other keys, have quotes.
        let is_name = text.starts_with('@') || text == "*";
        // nft prints the number of an interface that is gone.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let has_quotes = matches!(self.notation, Notation::Quoted | Notation::Seconds);
        let is_quoted = has_quotes && !is_name && !is_number;
        if is_quoted { quoted(text) } else { text.to_owned() }
    }

    /// An end of a range. Names have hyphens in them, so nft reads no name there.
    fn end(self, end: &Value) -> String {
        let names = self.kind.map_or(&[][..], Kind::names);
        match end.as_str().and_then(|name| names::number(names, name)) {
            Some(number) => number.to_string(),
            None => written(end, &[self]),
        }
    }
}

/// True for the part of `meta` that names an interface or what it is.
fn names_an_interface(meta: &Value) -> bool {
    let key = meta.get("key").and_then(Value::as_str).unwrap_or_default();
    matches!(key, "ibrname" | "obrname" | "iifkind" | "oifkind" | "sdif" | "sdifname")
}

/// The style of a value that is no concatenation.
fn first(styles: &Styles) -> Style {
    styles.first().copied().unwrap_or(PLAIN[0])
}

/// An expression or constant.
pub(super) fn written(value: &Value, styles: &Styles) -> String {
    let style = first(styles);
    match value {
        Value::Null => String::new(),
        Value::Bool(yes) if style.notation != Notation::Plain => {
            if *yes { "exists" } else { "missing" }.to_owned()
        }
        Value::Bool(yes) => u8::from(*yes).to_string(),
        Value::Number(_) => style.number(value),
        Value::String(text) => style.text(text),
        // A list of bits, of which any may match.
        Value::Array(parts) => list(parts, styles, ","),
        Value::Object(fields) => match only(value) {
            Some((name, inside)) => form(name, inside, styles),
            None => fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" "),
        },
    }
}

fn list(parts: &[Value], styles: &Styles, between: &str) -> String {
    let parts: Vec<String> = parts.iter().map(|part| written(part, styles)).collect();
    parts.join(between)
}

fn concatenated(parts: &[Value], styles: &Styles) -> String {
    let style = |at| styles.get(at..=at).unwrap_or(PLAIN);
    let parts: Vec<String> =
        parts.iter().enumerate().map(|(at, part)| written(part, style(at))).collect();
    parts.join(" . ")
}

fn form(name: &str, inside: &Value, styles: &Styles) -> String {
    let text = |key: &str| inside.get(key).and_then(Value::as_str).unwrap_or_default();
    match (name, inside) {
        ("payload", _) => payload(inside),
        ("meta", _) => match text("key") {
            key @ ("iif" | "oif" | "iifname" | "oifname" | "iifgroup" | "oifgroup") => {
                key.to_owned()
            }
            key => format!("meta {key}"),
        },
        ("ct", _) => {
            let words = ["ct", text("dir"), text("key")];
            words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        }
        ("tcp option", _) if inside.get("base").is_some() => {
            let [kind, offset, bits] = ["base", "offset", "len"].map(|key| number(inside.get(key)));
            format!("tcp option @{kind},{offset},{bits}")
        }
        ("tcp option" | "ip option" | "sctp chunk" | "dccp option", _) => {
            words(name, &[text("name"), text("field")])
        }
        ("exthdr", _) if text("field").is_empty() => format!("exthdr {}", text("name")),
        ("exthdr", _) => format!("{} {}", text("name"), text("field")),
        ("fib", _) => {
            let flags = match inside.get("flags") {
                Some(Value::Array(flags)) => list(flags, PLAIN, " . "),
                Some(flag) => written(flag, PLAIN),
                None => String::new(),
            };
            words("fib", &[&flags, text("result")])
        }
        ("rt" | "socket", _) => words(name, &[text("family"), text("key")]),
        ("osf", _) => words(name, &[text("ttl"), text("key")]),
        ("ipsec", _) => words(name, &[text("dir"), text("family"), text("key")]),
        ("numgen" | "jhash" | "symhash", _) => generated(name, inside),
        ("concat", Value::Array(parts)) => concatenated(parts, styles),
        ("set", Value::Array(elements)) => {
            let elements: Vec<String> =
                elements.iter().map(|element| self::element(element, styles, styles)).collect();
            format!("{{ {} }}", elements.join(", "))
        }
        ("set", one) => format!("{{ {} }}", written(one, styles)),
        ("map", Value::Object(map)) => mapped(map, styles),
        ("prefix", _) => {
            let address = inside.get("addr").map(|address| written(address, styles));
            format!("{}/{}", address.unwrap_or_default(), number(inside.get("len")))
        }
        ("range", Value::Array(ends)) => {
            let style = first(styles);
            ends.iter().map(|end| style.end(end)).collect::<Vec<_>>().join("-")
        }
        ("elem", Value::Object(element)) => timed(element, styles, None),
        ("&" | "|" | "^" | "<<" | ">>", Value::Array(parts)) => combined(name, parts, styles),
        ("accept" | "drop" | "continue" | "return", Value::Null) => name.to_owned(),
        ("jump" | "goto", _) => format!("{name} {}", text("target")),
        (name, Value::Null) => name.to_owned(),
        (name, inside) => format!("{name} {}", written(inside, PLAIN)),
    }
}

/// A name, followed by those words that are not empty.
fn words(name: &str, rest: &[&str]) -> String {
    let all = [name].into_iter().chain(rest.iter().copied());
    all.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn payload(inside: &Value) -> String {
    let text = |key: &str| inside.get(key).and_then(Value::as_str).unwrap_or_default();
    match inside.get("base").and_then(Value::as_str) {
        Some(base) => {
            format!("@{base},{},{}", number(inside.get("offset")), number(inside.get("len")))
        }
        None if inside.get("tunnel").is_some() => {
            words(text("tunnel"), &[text("protocol"), text("field")])
        }
        None => words(text("protocol"), &[text("field")]),
    }
}

fn generated(name: &str, inside: &Value) -> String {
    let mut words = vec![name.to_owned()];
    words.extend(inside.get("mode").map(|mode| written(mode, PLAIN)));
    words.extend(inside.get("expr").map(|hashed| written(hashed, PLAIN)));
    words.push(format!("mod {}", number(inside.get("mod"))));
    let given = |key: &str| inside.get(key).and_then(Value::as_u64).filter(|value| *value != 0);
    words.extend(given("seed").map(|seed| format!("seed {seed:#x}")));
    words.extend(given("offset").map(|offset| format!("offset {offset}")));
    words.join(" ")
}

fn mapped(map: &Map<String, Value>, styles: &Styles) -> String {
    let key = map.get("key").unwrap_or(&Value::Null);
    let data = match map.get("data").and_then(|data| data.get("set")) {
        Some(Value::Array(elements)) => {
            let beside = Style::beside(key);
            let elements: Vec<String> =
                elements.iter().map(|pair| element(pair, &beside, styles)).collect();
            format!("{{ {} }}", elements.join(", "))
        }
        _ => written(map.get("data").unwrap_or(&Value::Null), PLAIN),
    };
    format!("{} map {data}", written(key, PLAIN))
}

/// A verdict map of a rule.
pub(super) fn verdict_map(key: &Value, data: &Value) -> String {
    let styles = Style::beside(key);
    format!("{} vmap {}", written(key, PLAIN), written(data, &styles))
}

/// An element of a set, or a pair of a map, which is a list of two.
pub(super) fn element(value: &Value, key: &Styles, datum: &Styles) -> String {
    match value.as_array().map(Vec::as_slice) {
        Some([left, right]) => {
            format!("{} : {}", written(left, key), written(right, datum))
        }
        // In a set whose keys are sets of bits, a list is a union.
        Some(bits) => list(bits, key, " | "),
        None => match only(value) {
            Some(("|", Value::Array(bits))) => list(bits, key, " | "),
            _ => written(value, key),
        },
    }
}

/// A key with the properties of its element; `statements` are those that are added with it.
pub(super) fn timed(
    element: &Map<String, Value>,
    styles: &Styles,
    statements: Option<&Value>,
) -> String {
    let mut text = written(element.get("val").unwrap_or(&Value::Null), styles);
    let measured = |name: &str| element.get(name).filter(|value| value.is_object());
    for name in ["counter", "limit", "quota", "ct count"] {
        if let Some(inside) = measured(name) {
            let statement = serde_json::json!({ (name): inside });
            text = format!("{text} {}", super::statement::written(&statement));
        }
    }
    for key in ["timeout", "expires"] {
        if let Some(seconds) = element.get(key).and_then(Value::as_u64) {
            text = format!("{text} {key} {}", time(seconds));
        }
    }
    if let Some(comment) = element.get("comment").and_then(Value::as_str) {
        text = format!("{text} comment {}", quoted(comment));
    }
    match statements {
        Some(Value::Array(statements)) => statements.iter().fold(text, |text, statement| {
            format!("{text} {}", super::statement::written(statement))
        }),
        Some(statement) => format!("{text} {}", super::statement::written(statement)),
        None => text,
    }
}

fn combined(operator: &str, parts: &[Value], styles: &Styles) -> String {
    let Some((first, constants)) = parts.split_first() else { return String::new() };
    let beside = [Style::of_one(first)];
    let styles = match beside[0].notation {
        Notation::Plain | Notation::Presence => styles,
        _ => &beside,
    };
    let nested = |value: &Value| only(value).and_then(|(name, _)| precedence(name));
    let own = precedence(operator).unwrap_or(0);
    let first = match nested(first) {
        Some(inner) if inner < own => format!("({})", written(first, styles)),
        _ => written(first, styles),
    };
    constants.iter().fold(first, |text, constant| {
        let constant = match constant {
            Value::Array(bits) => format!("({})", list(bits, styles, " | ")),
            other if nested(other).is_some_and(|inner| inner <= own) => {
                format!("({})", written(other, styles))
            }
            other => written(other, styles),
        };
        format!("{text} {operator} {constant}")
    })
}

/// How tight an operator binds in nft's grammar; `None` for what is no operator.
fn precedence(operator: &str) -> Option<u8> {
    match operator {
        "|" => Some(1),
        "^" => Some(2),
        "&" => Some(3),
        "<<" | ">>" => Some(4),
        _ => None,
    }
}

/// A comparison.
pub(super) fn comparison(left: &Value, operator: &str, right: &Value) -> String {
    if let (Some(("tcp option", option)), Value::Bool(there)) = (only(left), right)
        && let Some(kind) = option.get("base")
    {
        // nft reads the number of an option in this question alone.
        let negated = if operator == "!=" { "!= " } else { "" };
        return format!("tcp option {kind} {negated}{}", if *there { "exists" } else { "missing" });
    }
    let styles = &Style::beside(left)[..];
    let masked = only(left).and_then(|(name, parts)| (name == "&").then_some(parts.as_array()?));
    if let (Some([value, Value::Array(mask)]), "==" | "!=") = (masked.map(Vec::as_slice), operator)
    {
        // `tcp flags syn / fin,syn`.
        let unequal = if operator == "!=" { "!= " } else { "" };
        let (bits, mask) = (written(right, styles), list(mask, styles, ","));
        return format!("{} {unequal}{bits} / {mask}", written(value, PLAIN));
    }
    let is_flags = |value: &Value| value.get("field").and_then(Value::as_str) == Some("flags");
    let flags = only(left).is_some_and(|(name, inside)| name == "payload" && is_flags(inside));
    match (operator, right) {
        ("==", Value::Number(bits)) if flags => {
            format!("{} == {:#x}", written(left, PLAIN), bits.as_u64().unwrap_or(0))
        }
        ("==", _) if masked.is_some() => {
            format!("{} == {}", written(left, styles), written(right, styles))
        }
        ("==" | "in", _) => format!("{} {}", written(left, styles), written(right, styles)),
        (other, _) => format!("{} {other} {}", written(left, styles), written(right, styles)),
    }
}

fn number(value: Option<&Value>) -> u64 {
    value.and_then(Value::as_u64).unwrap_or(0)
}

/// A text in quotes. Rules of iptables may have quotation marks inside, for which nft has no notation.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "'"))
}

/// A time, as in `1h30m`.
pub(super) fn time(seconds: u64) -> String {
    let parts = [
        (seconds / 86_400, 'd'),
        (seconds / 3600 % 24, 'h'),
        (seconds / 60 % 60, 'm'),
        (seconds % 60, 's'),
    ];
    let text: String = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(n, unit)| format!("{n}{unit}"))
        .collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}
