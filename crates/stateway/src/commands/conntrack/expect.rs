//! `stateway conntrack expect`

use std::net::{IpAddr, SocketAddr};

use control::schema::{Expectation, ExpectationEvent};
use control::{Client, ConnectionQuery};

use super::{Format, Json, Remote};
use crate::print::{Align, Output, Table, Widths, things};

const COLUMNS: [(&str, Align); 7] = [
    ("protocol", Align::Left),
    ("expires", Align::Right),
    ("source", Align::Left),
    ("destination", Align::Left),
    ("helper", Align::Left),
    ("class", Align::Left),
    ("announced by", Align::Left),
];

/// Lists expectations.
pub fn list(format: Format, remote: &Remote, out: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new(&COLUMNS);
    let mut listed: u64 = 0;
    let request = match format {
        Format::Conntrack { .. } => "/v1/expectations?format=conntrack",
        Format::Table | Format::Json => "/v1/expectations",
    };
    remote.client()?.lines(request, &mut |line| {
        listed += 1;
        match format {
            Format::Table => {
                table.row(cells(&serde_json::from_slice(line)?));
                Ok(())
            }
            Format::Conntrack { .. } | Format::Json => out.sent_line(line),
        }
    })?;
    if format == Format::Table && listed > 0 {
        table.print(out)?;
    }
    out.flush()?;
    match format {
        Format::Table if listed == 0 => tell!("there are no expectations"),
        Format::Table | Format::Conntrack { .. } => {
            tell!("{}", things(listed, "expectation"))
        }
        Format::Json => {}
    }
    Ok(())
}

/// Prints the number of expectations.
pub fn count(client: &Client, json: &Json, out: &mut Output) -> anyhow::Result<()> {
    let mut expected: u64 = 0;
    client.lines("/v1/expectations", &mut |_| {
        expected += 1;
        anyhow::Ok(())
    })?;
    if json.json {
        let schema = control::SCHEMA;
        return out.json(&serde_json::json!({ "schema": schema, "expectations": expected }));
    }
    out.line(expected)
}

/// Prints events of expectations until interrupted.
pub fn events(
    query: &ConnectionQuery,
    format: Format,
    remote: &Remote,
    out: &mut Output,
) -> anyhow::Result<()> {
    let mut columns = vec![("event", Align::Left)];
    columns.extend(COLUMNS);
    let mut widths = Widths::new(&columns);
    const ENDPOINT: &str = "203.0.113.100:65535";
    let usual = ["destroy", "tcp", "300", ENDPOINT, ENDPOINT, "ftp", "", ENDPOINT];
    widths.fit(&usual.map(str::to_owned));
    let mut begun = false;
    super::print_events(query, "/v1/expectations/events", format, remote, out, |line, out| {
        let event: ExpectationEvent = serde_json::from_slice(line)?;
        super::say_lost(event.lost);
        if !begun {
            begun = true;
            out.title(&widths.titles())?;
        }
        let mut row = vec![event.event];
        row.extend(cells(&event.expectation));
        widths.fit(&row);
        out.line(widths.row(&row))
    })
}

fn cells(expected: &Expectation) -> Vec<String> {
    let source = match (expected.source, expected.source_port) {
        (None, None) => "any".to_owned(),
        (None, Some(port)) => format!("any:{port}"),
        (Some(source), port) => end(source, port),
    };
    let master = &expected.master;
    vec![
        expected.protocol.clone(),
        expected.timeout_s.to_string(),
        source,
        end(expected.destination, Some(expected.destination_port)),
        expected.helper.clone(),
        expected.class.clone(),
        format!(
            "{} > {}",
            end(master.source, master.source_port),
            end(master.destination, master.destination_port)
        ),
    ]
}

fn end(address: IpAddr, port: Option<u16>) -> String {
    port.map_or(address.to_string(), |port| SocketAddr::new(address, port).to_string())
}
