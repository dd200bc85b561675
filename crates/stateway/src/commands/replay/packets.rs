//! The packets of a replay one by one, for people and as JSON.

use engine::{Fate, Seen};
use serde::Serialize;

use crate::print::{Output, ZoneAndVlan};

/// A packet.
#[derive(Debug, Serialize)]
struct Packet<'a> {
    schema: u32,
    /// Its number in the capture, from 1.
    number: u64,
    outcome: &'static str,
    /// Why it was dropped.
    reason: Option<&'static str>,
    /// The check that decided.
    why: Option<String>,
    class: Option<&'static str>,
    connection: Option<&'a str>,
    /// Its direction in the connection.
    direction: Option<String>,
    packet: &'a str,
    length: u32,
    zone: u16,
    /// Outermost VLAN, 0 for none.
    vlan: u16,
}

/// Shows what became of a packet.
pub fn tell(seen: &Seen, as_json: bool, out: &mut Output) -> anyhow::Result<()> {
    let (number, fate, summary, length, zone, vlan) = match seen {
        Seen::Packets(_) | Seen::Paused => return Ok(()),
        Seen::Passed { number, fate, summary, length, zone, vlan }
        | Seen::Dropped { number, fate, summary, length, zone, vlan, .. } => {
            (*number, fate, summary, *length, zone.0, *vlan)
        }
    };
    let drop = match seen {
        Seen::Dropped { why, refused_by, .. } => {
            Some((why.reason().name(), refused_by.clone().unwrap_or_else(|| why.to_string())))
        }
        _ => None,
    };
    if as_json {
        let Fate { class, connection, direction } = fate;
        let (reason, why) = drop.unzip();
        return out.json(&Packet {
            schema: control::SCHEMA,
            number,
            outcome: if reason.is_some() { "dropped" } else { "passed" },
            reason,
            why,
            class: *class,
            connection: connection.as_deref(),
            direction: direction.map(|it| it.to_string()),
            packet: summary,
            length,
            zone,
            vlan,
        });
    }
    let place = ZoneAndVlan { zone, vlan };
    match drop {
        Some((reason, why)) => {
            out.line(format_args!("{number}: dropped{place}: {fate}; {reason}: {why}"))?;
        }
        None => out.line(format_args!("{number}: passed{place}: {fate}"))?,
    }
    out.line(format_args!("    {summary}"))
}
