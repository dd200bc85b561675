//! The option `-o`: the form of connections in the output.

use std::time::{SystemTime, UNIX_EPOCH};

use ::conntrack::format::Extras;
use control::LineFormat;

/// The form of connections in the output.
#[derive(Debug, clap::Args)]
pub struct FormatArgs {
    /// Form of the output: table; json, one object on each line; or conntrack, lines of the
    /// kernel's conntrack tool. Instead of conntrack, further properties may be named, several with
    /// commas: labels at the end of a line, the network protocol at its beginning (extended), and
    /// for events the time at which they were read (timestamp).
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = parse)]
    output: Format,
    /// The same as -o json.
    #[arg(short, long, conflicts_with = "output")]
    json: bool,
}

impl FormatArgs {
    pub fn get(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Table,
    Conntrack {
        extras: Extras,
        /// Print the time at which each event was read.
        timestamp: bool,
    },
    Json,
}

impl Format {
    /// The form of lines to ask the gateway for.
    pub fn of_lines(self) -> LineFormat {
        match self {
            Self::Table | Self::Json => LineFormat::Json,
            Self::Conntrack { extras, .. } => LineFormat::Conntrack(extras),
        }
    }
}

fn parse(text: &str) -> Result<Format, String> {
    match text {
        "table" => return Ok(Format::Table),
        "json" => return Ok(Format::Json),
        _ => {}
    }
    let (mut extras, mut has_time) = (Extras::default(), false);
    for word in text.split(',') {
        match word {
            "conntrack" => {}
            "labels" => extras.labels = true,
            "extended" => extras.extended = true,
            "timestamp" => has_time = true,
            "id" | "ktimestamp" | "save" | "xml" | "userspace" => {
                return Err(format!(
                    "{word} is not supported; json has the age of a connection and everything else"
                ));
            }
            _ => {
                return Err("allowed: table, json, or conntrack, labels, extended, timestamp, \
                            several with commas"
                    .to_owned());
            }
        }
    }
    Ok(Format::Conntrack { extras, timestamp: has_time })
}

/// The time before an event, as the kernel's tool writes it.
#[expect(clippy::disallowed_methods, reason = "it is shown and decides nothing")]
pub fn now() -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("[{}.{:06}]\t", now.as_secs(), now.subsec_micros()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_tool_have_what_is_asked_for() {
        let with = |labels, extended, timestamp| Format::Conntrack {
            extras: Extras { labels, extended },
            timestamp,
        };
        for (text, format) in [
            ("table", Some(Format::Table)),
            ("json", Some(Format::Json)),
            ("conntrack", Some(with(false, false, false))),
            ("labels", Some(with(true, false, false))),
            ("conntrack,extended", Some(with(false, true, false))),
            ("timestamp,labels,extended", Some(with(true, true, true))),
            ("id", None),
            ("conntrack,xml", None),
            ("json,labels", None),
            ("", None),
        ] {
            assert_eq!(parse(text).ok(), format, "{text}");
        }
        let time = String::from_utf8(now()).unwrap();
        let (seconds, rest) = time[1..].split_once('.').unwrap();
        assert!(seconds.parse::<u64>().unwrap() > 0);
        assert!(rest.len() == 8 && rest.ends_with("]\t"), "{time:?}");
    }
}
