//! `stateway bench io`: real traffic through the gateway and through the kernel's, one after the
//! other in the same lab.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use bench::Machine;
use lab::{
    Contest, FLOOD_GATEWAYS, FLOOD_RATES, FloodSpec, Load, Placement, RatioReport, RatioSpec,
    flood, ratio,
};
use serde_json::{Value, json};

use super::spinner;
use crate::print::{Align, Output, Table};

/// Its name on the command line.
pub const NAME: &str = "io";

/// A measurement: title, key in JSON, unit, divisor to the unit.
struct Measurement {
    title: &'static str,
    key: &'static str,
    unit: &'static str,
    divisor: f64,
    load: fn(PathBuf) -> Load,
    contest: Contest,
    placement: fn() -> Placement,
}

const MEASUREMENTS: [Measurement; 5] = [
    Measurement {
        title: "one TCP connection of iperf3, offloads on",
        key: "tcp_bit_s",
        unit: "Gbit/s",
        divisor: 1e9,
        load: |_| Load::Stream,
        contest: Contest::Joining,
        placement: Placement::free,
    },
    Measurement {
        title: "60-byte UDP frames over 1024 flows, everything where the scheduler puts it",
        key: "udp60_free_frames_s",
        unit: "Mframes/s",
        divisor: 1e6,
        load: Load::Frames,
        contest: Contest::Joining,
        placement: Placement::free,
    },
    // The generator has one CPU, and the gateway has the other with all its softirqs. So the
    // figures of the kernel and of this gateway are figures of one CPU.
    Measurement {
        title: "60-byte UDP frames over 1024 flows, gateway on CPU 0, generator on CPU 1",
        key: "udp60_frames_s",
        unit: "Mframes/s",
        divisor: 1e6,
        load: Load::Frames,
        contest: Contest::Joining,
        placement: Placement::split,
    },
    Measurement {
        title: "the same with masquerade, everything where the scheduler puts it",
        key: "udp60_masquerade_free_frames_s",
        unit: "Mframes/s",
        divisor: 1e6,
        load: Load::Frames,
        contest: Contest::Masquerade,
        placement: Placement::free,
    },
    Measurement {
        title: "the same with masquerade, gateway on CPU 0, generator on CPU 1",
        key: "udp60_masquerade_frames_s",
        unit: "Mframes/s",
        divisor: 1e6,
        load: Load::Frames,
        contest: Contest::Masquerade,
        placement: Placement::split,
    },
];

pub fn run(quick: bool, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("the path of this program is unknown")?;
    let (rounds, seconds) = if quick { (1, 1) } else { (5, 4) };
    let machine = Machine::here();
    out.line(&machine)?;
    let mut object = json!({ "schema": control::SCHEMA, "machine": machine });
    for measurement in MEASUREMENTS {
        let spinner = spinner(measurement.title);
        let report = ratio(&RatioSpec {
            binary: Some(binary.clone()),
            workers: 1,
            load: (measurement.load)(binary.clone()),
            contest: measurement.contest,
            rounds,
            time: Duration::from_secs(seconds),
            placement: (measurement.placement)(),
        })?;
        spinner.finish_and_clear();
        out.line("")?;
        out.title(measurement.title)?;
        table(&report, &measurement).print(out)?;
        out.flush()?;
        object[measurement.key] = report.to_json();
    }
    let seconds = if quick { 1 } else { 4 };
    object["fragment_flood"] = floods(&binary, Duration::from_secs(seconds), out)?;
    if json { out.json(&object) } else { Ok(()) }
}

/// Datagrams in fragments, during a flood of fragments that are never complete.
fn floods(binary: &Path, time: Duration, out: &mut Output) -> anyhow::Result<Value> {
    const TITLE: &str = "65507-byte UDP, in a flood of incomplete fragments and after it";
    let spinner = spinner(TITLE);
    let mut table = Table::new(&[
        ("reassembly", Align::Left),
        ("MiB", Align::Right),
        ("flood/s", Align::Right),
        ("Gbit/s", Align::Right),
        ("sent", Align::Right),
        ("delivered", Align::Right),
        ("corrupt", Align::Right),
        ("Gbit/s after it", Align::Right),
    ]);
    let mut rows = Vec::new();
    for (reassembler, memory) in FLOOD_GATEWAYS {
        for rate in FLOOD_RATES {
            let report = flood(binary, FloodSpec { reassembler, memory, rate, time })?;
            let (during, after) = (report.during, report.after);
            table.row([
                reassembler.name().to_owned(),
                (memory >> 20).to_string(),
                rate.to_string(),
                format!("{:.3}", during.bits_per_second / 1e9),
                during.sent.to_string(),
                during.received.to_string(),
                (during.corrupt + after.corrupt).to_string(),
                format!("{:.3}", after.bits_per_second / 1e9),
            ]);
            rows.push(report.to_json());
        }
    }
    spinner.finish_and_clear();
    out.line("")?;
    out.title(TITLE)?;
    table.print(out)?;
    Ok(rows.into())
}

fn table(report: &RatioReport, measurement: &Measurement) -> Table {
    let unit = measurement.unit;
    let mut table = Table::new(&[
        ("gateway", Align::Left),
        (unit, Align::Right),
        ("lowest", Align::Right),
        ("highest", Align::Right),
        (&format!("{} against it", report.ours.name()), Align::Right),
    ]);
    for series in &report.series {
        let figure = |value: f64| format!("{:.3}", value / measurement.divisor);
        let (low, high) = series.spread();
        let ratio = report
            .ratio(report.ours, series.variant)
            .filter(|_| series.variant != report.ours)
            .map_or(String::new(), |ratio| format!("{ratio:.2}x"));
        table.row([
            series.variant.name().to_owned(),
            figure(series.median()),
            figure(low),
            figure(high),
            ratio,
        ]);
    }
    table
}
