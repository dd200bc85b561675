//! `stateway bench io`: real traffic through the gateway and through the kernel's,
//! one after the other in the same lab.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use bench::Machine;
use indicatif::{ProgressBar, ProgressStyle};
use lab::{Load, Placement, RatioReport, RatioSpec, Variant, ratio};
use serde_json::json;

use crate::print::{Align, Output, Table};

/// Its name on the command line.
pub const NAME: &str = "io";

/// What is measured: title, key in JSON, unit, divisor to the unit.
struct Measurement {
    title: &'static str,
    key: &'static str,
    unit: &'static str,
    divisor: f64,
    load: fn(PathBuf) -> Load,
    placement: fn() -> Placement,
}

const MEASUREMENTS: [Measurement; 3] = [
    Measurement {
        title: "one TCP connection of iperf3, offloads on",
        key: "tcp_bit_s",
        unit: "Gbit/s",
        divisor: 1e9,
        load: |_| Load::Stream,
        placement: Placement::free,
    },
    Measurement {
        title: "60-byte UDP frames over 1024 flows, everything where the scheduler puts it",
        key: "udp60_free_frames_s",
        unit: "Mframes/s",
        divisor: 1e6,
        load: Load::Frames,
        placement: Placement::free,
    },
    // The generator has one CPU, the gateway the other with all its softirqs; so the
    // kernel's figure and this gateway's are figures of one CPU.
    Measurement {
        title: "60-byte UDP frames over 1024 flows, gateway on CPU 0, generator on CPU 1",
        key: "udp60_frames_s",
        unit: "Mframes/s",
        divisor: 1e6,
        load: Load::Frames,
        placement: Placement::split,
    },
];

pub fn run(quick: bool, json: bool, out: &mut Output) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("where this program is")?;
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
    if json { out.json(&object) } else { Ok(()) }
}

fn spinner(title: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(title);
    if let Ok(style) = ProgressStyle::with_template("  {spinner} {elapsed:>4}  {msg}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

fn table(report: &RatioReport, measurement: &Measurement) -> Table {
    let unit = measurement.unit;
    let mut table = Table::new(&[
        ("gateway", Align::Left),
        (unit, Align::Right),
        ("lowest", Align::Right),
        ("highest", Align::Right),
        ("stateway against it", Align::Right),
    ]);
    for series in &report.series {
        let figure = |value: f64| format!("{:.3}", value / measurement.divisor);
        let (low, high) = series.spread();
        let ratio = report
            .ratio(Variant::Stateway, series.variant)
            .filter(|_| series.variant != Variant::Stateway)
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
