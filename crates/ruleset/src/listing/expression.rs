//! Expressions, as `nft list ruleset` writes them.

use serde_json::{Map, Value};

use crate::kind::{ObjectKind, only};

/// The notation of constants, which depends on the expression that they are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Unchanged.
    Plain,
    /// Numbers as marks: hexadecimal, eight digits.
    Mark,
    /// Numbers in hexadecimal.
    Hex,
    /// Texts in quotes.
    Quoted,
    /// Numbers as times.
    Seconds,
    /// Truth values as `exists` and `missing`.
    Presence,
}

impl Style {
    /// The notation of constants beside an expression.
    pub fn beside(expression: &Value) -> Self {
        let Some((name, inside)) = only(expression) else { return Self::Plain };
        let key = inside.get("key").and_then(Value::as_str).unwrap_or_default();
        match (name, key) {
            ("meta" | "ct", "mark") => Self::Mark,
            ("meta", "iif" | "oif" | "iifname" | "oifname" | "ibrname" | "obrname")
            | ("meta", "iifkind" | "oifkind" | "time" | "hour" | "day")
            | ("ct", "helper")
            | ("osf", _) => Self::Quoted,
            ("ct", "expiration") => Self::Seconds,
            ("payload", _) if inside.get("base").is_some() => Self::Hex,
            ("&" | "|" | "^" | "<<" | ">>", _) => inside.get(0).map_or(Self::Plain, Self::beside),
            _ => Self::Presence,
        }
    }

    /// The notation of constants of a declared type.
    pub fn of_type(name: &str) -> Self {
        match name {
            "mark" => Self::Mark,
            "ifname" => Self::Quoted,
            name if ObjectKind::named(name).is_some() => Self::Quoted,
            _ => Self::Plain,
        }
    }

    fn number(self, number: &Value) -> String {
        match (self, number.as_u64()) {
            (Self::Mark, Some(number)) => format!("{number:#010x}"),
            (Self::Hex, Some(number)) => format!("{number:#x}"),
            (Self::Seconds, Some(seconds)) => time(seconds),
            _ => number.to_string(),
        }
    }

    fn text(self, text: &str) -> String {
        // Neither names of sets nor `*`, which stands for all other keys, have quotes.
        let is_name = text.starts_with('@') || text == "*";
        // nft prints the number of an interface that is gone.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let is_quoted = self == Self::Quoted && !is_name && !is_number;
        if is_quoted { quoted(text) } else { text.to_owned() }
    }
}

/// An expression or constant.
pub(super) fn written(value: &Value, style: Style) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(yes) if style == Style::Presence => {
            if *yes { "exists" } else { "missing" }.to_owned()
        }
        Value::Bool(yes) => u8::from(*yes).to_string(),
        Value::Number(_) => style.number(value),
        Value::String(text) => style.text(text),
        // A list of bits, of which any may match.
        Value::Array(parts) => list(parts, style, ","),
        Value::Object(fields) => match only(value) {
            Some((name, inside)) => form(name, inside, style),
            None => fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" "),
        },
    }
}

fn list(parts: &[Value], style: Style, between: &str) -> String {
    let parts: Vec<String> = parts.iter().map(|part| written(part, style)).collect();
    parts.join(between)
}

fn form(name: &str, inside: &Value, style: Style) -> String {
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
        ("tcp option" | "ip option" | "sctp chunk" | "dccp option", _) => {
            words(name, &[text("name"), text("field")])
        }
        ("exthdr", _) if text("field").is_empty() => format!("exthdr {}", text("name")),
        ("exthdr", _) => format!("{} {}", text("name"), text("field")),
        ("fib", _) => {
            let flags = match inside.get("flags") {
                Some(Value::Array(flags)) => list(flags, Style::Plain, " . "),
                Some(flag) => written(flag, Style::Plain),
                None => String::new(),
            };
            words("fib", &[&flags, text("result")])
        }
        ("rt" | "socket", _) => words(name, &[text("family"), text("key")]),
        ("osf", _) => words(name, &[text("ttl"), text("key")]),
        ("ipsec", _) => words(name, &[text("dir"), text("family"), text("key")]),
        ("numgen" | "jhash" | "symhash", _) => generated(name, inside),
        ("concat", Value::Array(parts)) => list(parts, style, " . "),
        ("set", Value::Array(elements)) => {
            let elements: Vec<String> =
                elements.iter().map(|element| self::element(element, style, style)).collect();
            format!("{{ {} }}", elements.join(", "))
        }
        ("set", one) => format!("{{ {} }}", written(one, style)),
        ("map", Value::Object(map)) => mapped(map, style),
        ("prefix", _) => {
            let address = inside.get("addr").map(|address| written(address, style));
            format!("{}/{}", address.unwrap_or_default(), number(inside.get("len")))
        }
        ("range", Value::Array(ends)) => list(ends, style, "-"),
        ("elem", Value::Object(element)) => timed(element, style, None),
        ("&" | "|" | "^" | "<<" | ">>", Value::Array(parts)) => combined(name, parts, style),
        ("accept" | "drop" | "continue" | "return", Value::Null) => name.to_owned(),
        ("jump" | "goto", _) => format!("{name} {}", text("target")),
        (name, Value::Null) => name.to_owned(),
        (name, inside) => format!("{name} {}", written(inside, Style::Plain)),
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
    words.extend(inside.get("mode").map(|mode| written(mode, Style::Plain)));
    words.extend(inside.get("expr").map(|hashed| written(hashed, Style::Plain)));
    words.push(format!("mod {}", number(inside.get("mod"))));
    for key in ["seed", "offset"] {
        let given = inside.get(key).filter(|value| value.as_u64() != Some(0));
        words.extend(given.map(|value| format!("{key} {}", written(value, Style::Plain))));
    }
    words.join(" ")
}

fn mapped(map: &Map<String, Value>, style: Style) -> String {
    let key = map.get("key").unwrap_or(&Value::Null);
    let data = match map.get("data").and_then(|data| data.get("set")) {
        Some(Value::Array(elements)) => {
            let beside = Style::beside(key);
            let elements: Vec<String> =
                elements.iter().map(|pair| element(pair, beside, style)).collect();
            format!("{{ {} }}", elements.join(", "))
        }
        _ => written(map.get("data").unwrap_or(&Value::Null), Style::Plain),
    };
    format!("{} map {data}", written(key, Style::Plain))
}

/// A verdict map of a rule.
pub(super) fn verdict_map(key: &Value, data: &Value) -> String {
    let style = Style::beside(key);
    format!("{} vmap {}", written(key, Style::Plain), written(data, style))
}

/// An element of a set, or a pair of a map, which is a list of two.
pub(super) fn element(value: &Value, key: Style, datum: Style) -> String {
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
    style: Style,
    statements: Option<&Value>,
) -> String {
    let mut text = written(element.get("val").unwrap_or(&Value::Null), style);
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

fn combined(operator: &str, parts: &[Value], style: Style) -> String {
    let Some((first, constants)) = parts.split_first() else { return String::new() };
    let style = match Style::beside(first) {
        Style::Plain | Style::Presence => style,
        of_value => of_value,
    };
    let nested = |value: &Value| only(value).and_then(|(name, _)| precedence(name));
    let own = precedence(operator).unwrap_or(0);
    let first = match nested(first) {
        Some(inner) if inner < own => format!("({})", written(first, style)),
        _ => written(first, style),
    };
    constants.iter().fold(first, |text, constant| {
        let constant = match constant {
            Value::Array(bits) => format!("({})", list(bits, style, " | ")),
            other if nested(other).is_some_and(|inner| inner <= own) => {
                format!("({})", written(other, style))
            }
            other => written(other, style),
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
    let style = Style::beside(left);
    let masked = only(left).and_then(|(name, parts)| (name == "&").then_some(parts.as_array()?));
    if let (Some([value, Value::Array(mask)]), "==" | "!=") = (masked.map(Vec::as_slice), operator)
    {
        // `tcp flags syn / fin,syn`.
        let unequal = if operator == "!=" { "!= " } else { "" };
        let (bits, mask) = (written(right, style), list(mask, style, ","));
        return format!("{} {unequal}{bits} / {mask}", written(value, Style::Plain));
    }
    let is_flags = |value: &Value| value.get("field").and_then(Value::as_str) == Some("flags");
    let flags = only(left).is_some_and(|(name, inside)| name == "payload" && is_flags(inside));
    match (operator, right) {
        ("==", Value::Number(bits)) if flags => {
            format!("{} == {:#x}", written(left, Style::Plain), bits.as_u64().unwrap_or(0))
        }
        ("==", _) if masked.is_some() => {
            format!("{} == {}", written(left, style), written(right, style))
        }
        ("==" | "in", _) => format!("{} {}", written(left, style), written(right, style)),
        (other, _) => format!("{} {other} {}", written(left, style), written(right, style)),
    }
}

fn number(value: Option<&Value>) -> u64 {
    value.and_then(Value::as_u64).unwrap_or(0)
}

/// A text in quotes.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{text}\"")
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
