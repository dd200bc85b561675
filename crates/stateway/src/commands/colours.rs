//! The colours of plots.

use plotters::style::RGBColor;

/// Those by Okabe and Ito, which colour-blind people can tell apart.
pub const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
];
