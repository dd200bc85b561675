//! Connections and events as rows of a table of unknown length.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use control::schema::{Connection, Event, Tuple};

use crate::print::{Align, Output, Widths};

/// Rows that are read before the first is printed, to find widths that suit. A later row that is
/// wider pushes its cells to the right.
const ROWS_AHEAD: usize = 500;

const COLUMNS: [(&str, Align); 6] = [
    ("protocol", Align::Left),
    ("state", Align::Left),
    ("expires", Align::Right),
    ("source", Align::Left),
    ("destination", Align::Left),
    ("status", Align::Left),
];

/// A list of connections.
#[derive(Debug)]
pub struct ConnectionRows {
    widths: Widths,
    ahead: Vec<Vec<String>>,
    begun: bool,
}

impl ConnectionRows {
    /// A list without rows.
    pub fn new() -> Self {
        Self { widths: Widths::new(&COLUMNS), ahead: Vec::new(), begun: false }
    }

    /// Adds a connection.
    pub fn add(&mut self, connection: &Connection, out: &mut Output) -> anyhow::Result<()> {
        let row = cells(connection);
        if self.begun {
            return out.line(self.widths.row(&row));
        }
        self.widths.fit(&row);
        self.ahead.push(row);
        if self.ahead.len() < ROWS_AHEAD { Ok(()) } else { self.begin(out) }
    }

    /// Prints the rows that were held back.
    pub fn finish(mut self, out: &mut Output) -> anyhow::Result<()> {
        if self.ahead.is_empty() { Ok(()) } else { self.begin(out) }
    }

    fn begin(&mut self, out: &mut Output) -> anyhow::Result<()> {
        self.begun = true;
        out.title(&self.widths.titles())?;
        std::mem::take(&mut self.ahead).iter().try_for_each(|row| out.line(self.widths.row(row)))
    }
}

/// Events as they come.
#[derive(Debug)]
pub struct EventRows {
    widths: Widths,
    begun: bool,
}

impl EventRows {
    /// A table without rows, with room for usual IPv4 connections.
    pub fn new() -> Self {
        let mut columns = vec![("event", Align::Left)];
        columns.extend(COLUMNS);
        let mut widths = Widths::new(&columns);
        const ENDPOINT: &str = "203.0.113.100:65535";
        let usual = ["destroy", "icmpv6", "ESTABLISHED", "432000", ENDPOINT, ENDPOINT];
        widths.fit(&usual.map(str::to_owned));
        Self { widths, begun: false }
    }

    /// Prints an event.
    pub fn add(&mut self, event: &Event, out: &mut Output) -> anyhow::Result<()> {
        if !self.begun {
            self.begun = true;
            out.title(&self.widths.titles())?;
        }
        let mut row = vec![event.event.clone()];
        row.extend(cells(&event.connection));
        self.widths.fit(&row);
        out.line(self.widths.row(&row))
    }
}

fn cells(connection: &Connection) -> Vec<String> {
    let protocol = match connection.protocol.as_str() {
        "unknown" => connection.protocol_number.to_string(),
        name => name.to_owned(),
    };
    let (source, destination) = ends(&connection.original);
    vec![
        protocol,
        connection.state.clone().unwrap_or_else(|| "-".to_owned()),
        connection.timeout_s.to_string(),
        source,
        destination,
        status(connection),
    ]
}

fn end(address: IpAddr, port: Option<u16>) -> String {
    match port {
        Some(port) => SocketAddr::new(address, port).to_string(),
        None => address.to_string(),
    }
}

/// Both ends of a tuple, each with its port, type or key.
fn ends(tuple: &Tuple) -> (String, String) {
    let mut source = end(tuple.source, tuple.source_port);
    let mut destination = end(tuple.destination, tuple.destination_port);
    // Writing to a string does not fail.
    if let (Some(kind), Some(id)) = (tuple.icmp_type, tuple.icmp_id) {
        let _ = write!(destination, " type {kind} id {id}");
    }
    if let Some(key) = tuple.gre_key.filter(|&key| key != 0) {
        let _ = write!(destination, " key {key:#x}");
    }
    for (end, id) in
        [(&mut source, tuple.source_call_id), (&mut destination, tuple.destination_call_id)]
    {
        if let Some(id) = id {
            let _ = write!(end, " call {id:#x}");
        }
    }
    (source, destination)
}

/// The new ends of a translated connection.
fn translations(connection: &Connection) -> impl Iterator<Item = String> {
    let Connection { original, reply, .. } = connection;
    let ids = [original.icmp_id, reply.icmp_id];
    let source = (original.source, original.source_port, ids[0])
        != (reply.destination, reply.destination_port, ids[1]);
    let destination =
        (original.destination, original.destination_port) != (reply.source, reply.source_port);
    let source = source.then(|| format!("snat={}", end(reply.destination, reply.destination_port)));
    let destination = destination.then(|| format!("dnat={}", end(reply.source, reply.source_port)));
    source.into_iter().chain(destination)
}

fn status(connection: &Connection) -> String {
    let mut words = Vec::new();
    if !connection.seen_reply {
        words.push("unreplied".to_owned());
    }
    if connection.assured {
        words.push("assured".to_owned());
    }
    if connection.expected {
        words.push("expected".to_owned());
    }
    if connection.part {
        words.push("part".to_owned());
    }
    words.extend(translations(connection));
    if let Some(helper) = &connection.helper {
        words.push(format!("helper={helper}"));
    }
    if connection.mark != 0 {
        words.push(format!("mark={:#x}", connection.mark));
    }
    if !connection.labels.is_empty() {
        words.push(format!("labels={}", connection.labels.join(",")));
    }
    let zones = [
        ("zone", connection.zone),
        ("zone-orig", connection.original_zone),
        ("zone-reply", connection.reply_zone),
    ];
    let zones = zones.into_iter().filter(|(_, zone)| *zone != 0);
    words.extend(zones.map(|(name, zone)| format!("{name}={zone}")));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tcp(original: [&str; 4], reply: [&str; 4]) -> Connection {
        let tuple = |[source, source_port, destination, destination_port]: [&str; 4]| {
            json!({"source": source, "destination": destination,
                "source_port": source_port.parse::<u16>().unwrap(),
                "destination_port": destination_port.parse::<u16>().unwrap()})
        };
        serde_json::from_value(json!({"schema": 1, "family": 4, "protocol": "tcp",
            "protocol_number": 6, "state": "ESTABLISHED", "timeout_s": 9, "seen_reply": true,
            "original": tuple(original), "reply": tuple(reply), "assured": true,
            "expected": false, "helper": null, "mark": 0, "labels": [], "zone": 0,
            "age_s": null}))
        .unwrap()
    }

    #[test]
    fn the_status_says_what_ends_become() {
        let client = ["198.51.100.10", "4000", "203.0.113.9", "80"];
        let same = tcp(client, ["203.0.113.9", "80", "198.51.100.10", "4000"]);
        assert_eq!(status(&same), "assured");
        let masqueraded = tcp(client, ["203.0.113.9", "80", "192.0.2.2", "4000"]);
        assert_eq!(status(&masqueraded), "assured snat=192.0.2.2:4000");
        let other_port = tcp(client, ["203.0.113.9", "80", "198.51.100.10", "4001"]);
        assert_eq!(status(&other_port), "assured snat=198.51.100.10:4001");
        let both = tcp(client, ["203.0.113.10", "8080", "192.0.2.2", "4000"]);
        assert_eq!(status(&both), "assured snat=192.0.2.2:4000 dnat=203.0.113.10:8080");
    }
}
