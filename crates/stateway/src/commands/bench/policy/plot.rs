//! The plot of delays against the load.

use std::error::Error;
use std::path::Path;

use engine::Policy;
use plotters::prelude::*;

use super::delay::Point;
use crate::commands::plot::{Area, COLOURS, Drawn, legend, picture};

const SIZE: (u32, u32) = (1000, 420);

/// Draws the delay of half and of 99 % of the probes, a line for each policy.
///
/// # Errors
/// When the file can not be written, with its name.
pub fn write(path: &Path, points: &[Point]) -> anyhow::Result<()> {
    crate::commands::plot::write(path, draw(points))
}

fn draw(points: &[Point]) -> Result<String, Box<dyn Error>> {
    picture(SIZE, "Delay of probes against the load", |area| {
        let (left, right) = area.split_horizontally(SIZE.0 / 2);
        chart(&left, points, "half of the probes, us", |point| point.p50_us)?;
        chart(&right, points, "99 % of the probes, us", |point| point.p99_us)
    })
}

fn chart(
    area: &Area<'_>,
    points: &[Point],
    title: &str,
    figure: fn(&Point) -> Option<f64>,
) -> Drawn {
    let figures = || points.iter().filter_map(figure);
    let (least, most) = (figures().fold(100.0, f64::min), figures().fold(1000.0, f64::max));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..130.0, (least * 0.8..most * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("offered, % of what the gateway carries without a policy")
        .y_desc(title)
        .x_label_formatter(&|load| format!("{load:.0}"))
        .y_label_formatter(&|delay| format!("{delay:.0}"))
        .draw()?;
    for (policy, colour) in Policy::ALL.into_iter().zip(COLOURS) {
        let of_policy = points.iter().filter(move |point| point.policy == policy);
        let line = of_policy.filter_map(|point| Some((point.at * 100.0, figure(point)?)));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(3))?
            .label(policy.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_line_for_each_policy() {
        let points: Vec<Point> = Policy::ALL
            .into_iter()
            .flat_map(|policy| {
                [0.1, 1.2].map(|at| Point {
                    policy,
                    at,
                    p50_us: Some(at * 100.0),
                    p99_us: Some(at * 900.0),
                    cpu: 0.5,
                })
            })
            .collect();
        let text = draw(&points).unwrap();
        for (policy, RGBColor(red, green, blue)) in Policy::ALL.into_iter().zip(COLOURS) {
            let stroke = format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"");
            let is_line = |line: &&str| line.contains("<polyline") && line.contains(&stroke);
            // A line and its sample in the legend, in both charts.
            assert_eq!(text.lines().filter(is_line).count(), 4, "{policy}");
            assert!(text.contains(policy.name()), "{policy}");
        }
    }
}
