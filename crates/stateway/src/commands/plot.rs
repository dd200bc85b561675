//! The common parts of all plots: the picture with its title, colours and legends.

use std::error::Error;
use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::chart::ChartContext;
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;

/// Those by Okabe and Ito, which colour-blind people can tell apart.
pub const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
];

/// A part of a picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The result of drawing.
pub type Drawn = Result<(), Box<dyn Error>>;

/// A picture with a title over what `draw` draws, as SVG.
///
/// # Errors
/// Those of `draw`.
pub fn picture(
    size: (u32, u32),
    title: &str,
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(title, ("sans-serif", 20))?;
        draw(&area)?;
        area.present()?;
    }
    Ok(text)
}

/// Writes a picture to a file.
///
/// # Errors
/// When it could not be drawn; when the file can not be written, with its name.
pub fn write(path: &Path, picture: Result<String, Box<dyn Error>>) -> anyhow::Result<()> {
    let text = picture.map_err(|error| anyhow!("the plot can not be drawn: {error}"))?;
    std::fs::write(path, text).with_context(|| format!("can not write {}", path.display()))
}

/// Draws the legend of the lines of a chart.
///
/// # Errors
/// Those of drawing.
pub fn legend<'a, 'b: 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, C>,
    position: SeriesLabelPosition,
) -> Drawn {
    let mut labels = chart.configure_series_labels();
    let labels = labels.position(position).background_style(WHITE.mix(0.8));
    Ok(labels.border_style(BLACK.mix(0.3)).draw()?)
}
