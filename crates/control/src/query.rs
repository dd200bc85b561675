//! Filters for the connections that a request is about.

use std::fmt::Write;

use conntrack::{EventKind, Filter, LabelNames, New, Prefix, UnknownLabel, format};
use ruleset::probe::protocol_number;
use serde::{Deserialize, Serialize};
use wire::Family;

/// A filter in the query of a request. An absent field does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionQuery {
    /// Name or number of the protocol.
    pub proto: Option<String>,
    /// Source address or prefix of the originator's packets.
    pub src: Option<String>,
    /// Destination address or prefix of the originator's packets.
    pub dst: Option<String>,
    /// Source port of the originator's packets.
    pub sport: Option<u16>,
    /// Destination port of the originator's packets.
    pub dport: Option<u16>,
    /// GRE: key of the source, decimal or, with 0x, hexadecimal.
    pub srckey: Option<String>,
    /// GRE: key of the destination.
    pub dstkey: Option<String>,
    /// Source of the replies: an address or a prefix.
    pub reply_src: Option<String>,
    /// Destination of the replies.
    pub reply_dst: Option<String>,
    /// Source port of the replies.
    pub reply_sport: Option<u16>,
    /// Destination port of the replies.
    pub reply_dport: Option<u16>,
    /// Connections with a translated source: `any`, or an address or prefix that it is translated
    /// to.
    pub src_nat: Option<String>,
    /// Connections with a translated destination, likewise.
    pub dst_nat: Option<String>,
    /// Connections with a translated source or destination, likewise.
    pub any_nat: Option<String>,
    /// ICMP type of the originator's packets.
    pub icmp_type: Option<u8>,
    /// ICMP code of the originator's packets.
    pub icmp_code: Option<u8>,
    /// ICMP identifier.
    pub icmp_id: Option<u16>,
    /// `ASSURED`, `SEEN_REPLY`, `EXPECTED`: all of those named, separated by commas.
    pub status: Option<String>,
    /// State of the protocol.
    pub state: Option<String>,
    /// `ipv4` or `ipv6`.
    pub family: Option<String>,
    /// Zone of both directions.
    pub zone: Option<u16>,
    /// Zone of the original direction alone.
    pub orig_zone: Option<u16>,
    /// Zone of the reply direction alone.
    pub reply_zone: Option<u16>,
    /// Mark, or mark and mask.
    pub mark: Option<String>,
    /// Labels that must all be there: names and numbers, separated by commas.
    pub label: Option<String>,
    /// Events, for a stream of them: `NEW`, `UPDATES`, `DESTROY`, separated by commas.
    pub events: Option<String>,
    /// Form of the lines.
    pub format: LineFormat,
}

/// The query of a stream of events without filters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// Events: `NEW`, `DESTROY`, separated by commas.
    pub events: Option<String>,
    /// Form of the lines.
    pub format: LineFormat,
}

impl EventQuery {
    /// The kinds of events that the query asks for.
    pub fn event_kinds(&self) -> Result<Vec<EventKind>, QueryError> {
        kinds_of(&self.events)
    }
}

/// The query of a stream without filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FormatQuery {
    /// Form of the lines.
    pub format: LineFormat,
}

/// Options for loading a ruleset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LoadQuery {
    /// Restore the previous ruleset after this many seconds, unless this one is confirmed.
    pub confirm_s: Option<u64>,
    /// Leave out rules that are not supported.
    pub allow_unsupported: bool,
    /// Keep the elements that sets have got since they were loaded.
    pub keep_elements: bool,
}

/// Options for counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CountQuery {
    /// Count only the connections of this zone.
    pub zone: Option<u16>,
}

/// Form of the lines of a stream: `json`, or `conntrack` with further properties behind commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum LineFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// Lines of the kernel's `conntrack` tool. A line that begins with `# ` is a remark of the
    /// gateway.
    Conntrack(format::Extras),
}

impl From<LineFormat> for String {
    fn from(form: LineFormat) -> Self {
        match form {
            LineFormat::Json => "json".to_owned(),
            LineFormat::Conntrack(format::Extras { labels, extended }) => {
                let more = [("labels", labels), ("extended", extended)];
                let more = more.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name);
                std::iter::once("conntrack").chain(more).collect::<Vec<_>>().join(",")
            }
        }
    }
}

impl TryFrom<String> for LineFormat {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no format: json, or conntrack with labels, extended behind commas")
        };
        let mut words = text.split(',');
        match words.next() {
            Some("json") if text == "json" => Ok(Self::Json),
            Some("conntrack") => {
                let mut extras = format::Extras::default();
                for word in words {
                    match word {
                        "labels" => extras.labels = true,
                        "extended" => extras.extended = true,
                        _ => return Err(wrong()),
                    }
                }
                Ok(Self::Conntrack(extras))
            }
            _ => Err(wrong()),
        }
    }
}

/// A value of a filter that has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The value is not allowed.
    #[error("{key}: {value:?} is not {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// A label that does not exist.
    #[error("label: {error}")]
    Label {
        /// The error.
        error: UnknownLabel,
    },
}

/// Characters that stand in a query as they are (RFC 3986 section 3.4, without
/// those that separate its parts).
const PLAIN: &[u8] = b"-._~:/,";

impl ConnectionQuery {
    /// The connections that the query chooses; `names` are the names of labels.
    ///
    /// # Errors
    /// [`QueryError`] for the first value that has no meaning.
    pub fn filter(&self, names: &LabelNames) -> Result<Filter, QueryError> {
        let labels = self.label.as_ref().map(|text| {
            let refused = |error| QueryError::Label { error };
            names.read_list(text).map_err(refused)
        });
        Ok(Filter { labels: labels.transpose()?.unwrap_or_default(), ..self.unlabelled()? })
    }

    /// Checks all values but labels, whose names only the gateway knows.
    ///
    /// # Errors
    /// [`QueryError`] for the first value that has no meaning.
    pub fn check(&self) -> Result<(), QueryError> {
        self.unlabelled().map(drop)
    }

    fn unlabelled(&self) -> Result<Filter, QueryError> {
        let protocol = read("proto", &self.proto, "a protocol name or number", protocol_number)?;
        Ok(Filter {
            family: read("family", &self.family, "ipv4 or ipv6", family)?,
            protocol,
            zone: self.zone,
            original_zone: self.orig_zone,
            reply_zone: self.reply_zone,
            source: read("src", &self.src, PREFIX, prefix)?,
            destination: read("dst", &self.dst, PREFIX, prefix)?,
            source_port: self.sport,
            destination_port: self.dport,
            source_key: read("srckey", &self.srckey, KEY, number)?,
            destination_key: read("dstkey", &self.dstkey, KEY, number)?,
            reply_source: read("reply_src", &self.reply_src, PREFIX, prefix)?,
            reply_destination: read("reply_dst", &self.reply_dst, PREFIX, prefix)?,
            reply_source_port: self.reply_sport,
            reply_destination_port: self.reply_dport,
            new_source: read("src_nat", &self.src_nat, NEW, new)?,
            new_destination: read("dst_nat", &self.dst_nat, NEW, new)?,
            new_end: read("any_nat", &self.any_nat, NEW, new)?,
            state: self.checked_state(protocol)?,
            mark: read("mark", &self.mark, MARK, mark)?,
            icmp_type: self.icmp_type,
            icmp_code: self.icmp_code,
            icmp_id: self.icmp_id,
            ..read("status", &self.status, STATUS, status)?.unwrap_or_default()
        })
    }

    /// The state, if the chosen protocols have it.
    fn checked_state(&self, protocol: Option<u8>) -> Result<Option<String>, QueryError> {
        let Some(state) = &self.state else { return Ok(None) };
        let meant = |number: &u8| protocol.is_none_or(|protocol| protocol == *number);
        let mut names: Vec<&str> = Vec::new();
        for name in (0..=u8::MAX).filter(meant).flat_map(conntrack::proto::state_names) {
            // Several protocols share some names.
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.iter().any(|name| name.eq_ignore_ascii_case(state)) {
            return Ok(Some(state.clone()));
        }
        let allowed = match names.as_slice() {
            [] => "possible: this protocol has no states".to_owned(),
            names => format!("one of {}", names.join(", ")),
        };
        Err(QueryError::Value { key: "state", value: state.clone(), allowed })
    }

    /// The kinds of events that the query asks for; all if it names none.
    ///
    /// # Errors
    /// [`QueryError`] for an unknown name.
    pub fn event_kinds(&self) -> Result<Vec<EventKind>, QueryError> {
        kinds_of(&self.events)
    }

    /// The request for `path` with this query.
    pub fn request(&self, path: &str) -> String {
        let port = |port: Option<u16>| port.map(|port| port.to_string());
        let format = (self.format != LineFormat::Json).then(|| self.format.into());
        let parts = [
            ("proto", self.proto.clone()),
            ("src", self.src.clone()),
            ("dst", self.dst.clone()),
            ("sport", port(self.sport)),
            ("dport", port(self.dport)),
            ("icmp_type", port(self.icmp_type.map(u16::from))),
            ("icmp_code", port(self.icmp_code.map(u16::from))),
            ("icmp_id", port(self.icmp_id)),
            ("status", self.status.clone()),
            ("srckey", self.srckey.clone()),
            ("dstkey", self.dstkey.clone()),
            ("reply_src", self.reply_src.clone()),
            ("reply_dst", self.reply_dst.clone()),
            ("reply_sport", port(self.reply_sport)),
            ("reply_dport", port(self.reply_dport)),
            ("src_nat", self.src_nat.clone()),
            ("dst_nat", self.dst_nat.clone()),
            ("any_nat", self.any_nat.clone()),
            ("state", self.state.clone()),
            ("family", self.family.clone()),
            ("zone", port(self.zone)),
            ("orig_zone", port(self.orig_zone)),
            ("reply_zone", port(self.reply_zone)),
            ("mark", self.mark.clone()),
            ("label", self.label.clone()),
            ("events", self.events.clone()),
            ("format", format),
        ];
        let mut request = path.to_owned();
        let mut separator = '?';
        for (key, value) in parts {
            if let Some(value) = value {
                request.push(separator);
                request.push_str(key);
                request.push('=');
                encode(&value, &mut request);
                separator = '&';
            }
        }
        request
    }
}

fn encode(value: &str, into: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) {
            into.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

fn read<T>(
    key: &'static str,
    value: &Option<String>,
    allowed: &'static str,
    convert: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, QueryError> {
    let Some(text) = value else { return Ok(None) };
    let refused = || QueryError::Value { key, value: text.clone(), allowed: allowed.to_owned() };
    convert(text).map(Some).ok_or_else(refused)
}

const PREFIX: &str = "an address or a prefix such as 192.0.2.0/24";

fn prefix(text: &str) -> Option<Prefix> {
    text.parse().ok()
}

const NEW: &str = "`any`, an address or a prefix such as 192.0.2.0/24";

fn new(text: &str) -> Option<New> {
    if text == "any" { Some(New::Any) } else { prefix(text).map(New::Address) }
}

fn family(text: &str) -> Option<Family> {
    match text {
        "ipv4" | "4" => Some(Family::V4),
        "ipv6" | "6" => Some(Family::V6),
        _ => None,
    }
}

const STATUS: &str =
    "ASSURED, SEEN_REPLY, EXPECTED, or several with commas between; no connection has another here";

/// The status bits that must all be set, as a filter of nothing else.
fn status(text: &str) -> Option<Filter> {
    let mut filter = Filter::default();
    for name in text.split(',') {
        let bit = match name.trim().to_ascii_uppercase().as_str() {
            "ASSURED" => &mut filter.assured,
            "SEEN_REPLY" => &mut filter.seen_reply,
            "EXPECTED" => &mut filter.expected,
            _ => return None,
        };
        *bit = Some(true);
    }
    Some(filter)
}

const KEY: &str = "a number such as 16, 0x10 or, octal, 020";
const MARK: &str = "a number such as 16, 0x10 or, octal, 020, or two with a slash between";

/// Reads a number in the notation of C, which the kernel's tool uses: decimal, hexadecimal behind
/// 0x, octal behind 0.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix('0') {
        Some(rest) if rest.starts_with(['x', 'X']) => (&rest[1..], 16),
        Some(rest) if !rest.is_empty() => (rest, 8),
        _ => (text, 10),
    };
    // The parser would accept another sign.
    let is_number = digits.starts_with(|first: char| first.is_ascii_hexdigit());
    u32::from_str_radix(digits, radix).ok().filter(|_| is_number)
}

/// A value and a mask of the bits that count, each read by [`number`].
fn mark(text: &str) -> Option<(u32, u32)> {
    match text.split_once('/') {
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
        None => Some((number(text)?, u32::MAX)),
    }
}

const ALL_KINDS: [EventKind; 3] = [EventKind::New, EventKind::Update, EventKind::Destroy];

fn kinds_of(events: &Option<String>) -> Result<Vec<EventKind>, QueryError> {
    let allowed = "NEW, UPDATES, DESTROY, ALL, or several with commas between";
    let kinds = read("events", events, allowed, event_kinds)?;
    Ok(kinds.unwrap_or_else(|| ALL_KINDS.to_vec()))
}

fn event_kinds(text: &str) -> Option<Vec<EventKind>> {
    let kind = |name: &str| match name.trim().to_ascii_uppercase().as_str() {
        "NEW" => Some(vec![EventKind::New]),
        "UPDATE" | "UPDATES" => Some(vec![EventKind::Update]),
        "DESTROY" => Some(vec![EventKind::Destroy]),
        "ALL" => Some(ALL_KINDS.to_vec()),
        _ => None,
    };
    text.split(',').map(kind).collect::<Option<Vec<_>>>().map(|kinds| kinds.concat())
}

#[cfg(test)]
#[path = "query_tests.rs"]
mod tests;
