//! The plot of a demo: throughput above, load of each worker below.

use std::path::Path;

use plotters::prelude::*;

use super::{Run, Sample};
use crate::commands::plot::{Area, COLOURS, Drawn, legend, picture};

const SIZE: (u32, u32) = (900, 560);

/// Draws a run.
///
/// # Errors
/// When the file can not be written, with its name.
pub fn write(path: &Path, run: &Run) -> anyhow::Result<()> {
    let drawn = picture(SIZE, &run.title, |area| {
        let (above, below) = area.split_vertically(300);
        let end = run.samples.last().map_or(1.0, |sample| sample.at).max(0.1);
        throughput(&above, &run.samples, end)?;
        load(&below, &run.samples, end)
    });
    crate::commands::plot::write(path, drawn)
}

fn throughput(area: &Area<'_>, samples: &[Sample], end: f64) -> Drawn {
    let points: Vec<(f64, f64)> =
        samples.iter().map(|sample| (sample.at, sample.bits_per_second / 1e9)).collect();
    let top = points.iter().map(|point| point.1).fold(0.1, f64::max) * 1.15;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(24)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart.configure_mesh().light_line_style(WHITE).y_desc("Gbit/s sent").draw()?;
    chart.draw_series(AreaSeries::new(points, 0.0, BLUE.mix(0.15)).border_style(BLUE))?;
    for (at, workers) in changes(samples) {
        let line = [(at, 0.0), (at, top)];
        chart.draw_series(LineSeries::new(line, BLACK.mix(0.5)))?;
        let plural = if workers == 1 { "" } else { "s" };
        let label = format!("{workers} worker{plural}");
        let at = (at + end * 0.01, top * 0.97);
        chart.draw_series([Text::new(label, at, ("sans-serif", 14))])?;
    }
    Ok(())
}

fn load(area: &Area<'_>, samples: &[Sample], end: f64) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, 0.0..105.0)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("seconds")
        .y_desc("% busy")
        .y_labels(5)
        .draw()?;
    let workers = samples.iter().map(|sample| sample.load.len()).max().unwrap_or_default();
    for worker in 0..workers {
        let colour = COLOURS[worker % COLOURS.len()];
        let points = samples.iter().filter_map(|sample| {
            Some((sample.at, sample.load.get(worker).copied().flatten()? * 100.0))
        });
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(format!("worker {worker}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

/// The times at which the number of workers changed, with the new numbers.
fn changes(samples: &[Sample]) -> Vec<(f64, usize)> {
    let mut changes: Vec<(f64, usize)> = Vec::new();
    let mut begin = 0.0;
    for sample in samples {
        let workers = sample.load.iter().flatten().count();
        if changes.last().is_none_or(|(_, before)| *before != workers) {
            changes.push((begin, workers));
        }
        begin = sample.at;
    }
    changes
}
