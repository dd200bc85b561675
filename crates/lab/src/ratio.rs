//! Throughput and packet rate of gateways side by side.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clients::iperf::iperf_tcp;
use crate::error::Result;
use crate::placement::Placement;
use crate::stateway::StatewaySpec;
use crate::topology::{Family, Gateway, Lab, Tracking};
use crate::traffic::{GeneratorSpec, packet_rate};

/// What to compare and how long.
#[derive(Clone, Debug)]
pub struct RatioSpec {
    /// The `stateway` binary; none compares the kernel's gateways only.
    pub binary: Option<PathBuf>,
    /// Number of workers of Stateway.
    pub workers: u32,
    /// What is sent.
    pub load: Load,
    /// How often every variant has its turn (at least 1).
    pub rounds: u32,
    /// Traffic of one turn.
    pub time: Duration,
    /// Which CPUs to use.
    pub placement: Placement,
}

/// What is sent through the gateways.
#[derive(Clone, Debug)]
pub enum Load {
    /// One TCP connection of `iperf3` over IPv4; figures in bits per second.
    Stream,
    /// UDP frames of 60 bytes over 1024 flows from this program (see
    /// [`GeneratorSpec`]); figures in frames that arrive per second.
    Frames(PathBuf),
}

/// A gateway that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `stateway run` in bridge mode.
    Stateway,
    /// A bridge of the kernel.
    KernelBridge,
    /// Forwarding by the kernel.
    KernelForwarding,
    /// Forwarding by the kernel with connection tracking.
    KernelConntrack,
}

/// The figures of one variant, in the unit of the [`Load`].
#[derive(Clone, Debug)]
pub struct Series {
    /// Which.
    pub variant: Variant,
    /// One figure for each round, in ascending order; never empty.
    samples: Vec<f64>,
}

/// The figures of all variants of one run.
#[derive(Clone, Debug)]
pub struct RatioReport {
    /// In the order of [`Variant`].
    pub series: Vec<Series>,
}

impl Variant {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stateway => "stateway",
            Self::KernelBridge => "kernel_bridge",
            Self::KernelForwarding => "kernel_forwarding",
            Self::KernelConntrack => "kernel_conntrack",
        }
    }

    fn gateway(self, spec: &RatioSpec) -> Option<Gateway> {
        Some(match self {
            Self::Stateway => {
                Gateway::Stateway(StatewaySpec::new(spec.binary.clone()?, spec.workers))
            }
            Self::KernelBridge => Gateway::KernelBridge,
            Self::KernelForwarding => Gateway::KernelForwarding(Tracking::Off),
            Self::KernelConntrack => Gateway::KernelForwarding(Tracking::Conntrack),
        })
    }
}

impl Series {
    /// The middle figure; of an even number the mean of the middle two.
    #[must_use]
    pub fn median(&self) -> f64 {
        let (low, high) = ((self.samples.len() - 1) / 2, self.samples.len() / 2);
        f64::midpoint(self.samples[low], self.samples[high])
    }

    /// The lowest and the highest figure.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        (self.samples[0], self.samples[self.samples.len() - 1])
    }
}

impl RatioReport {
    /// Median of one variant over that of another; none if one did not take part.
    #[must_use]
    pub fn ratio(&self, of: Variant, to: Variant) -> Option<f64> {
        Some(self.find(of)?.median() / self.find(to)?.median())
    }

    fn find(&self, variant: Variant) -> Option<&Series> {
        self.series.iter().find(|series| series.variant == variant)
    }

    /// The report as an object: for each variant the median, lowest and highest
    /// figure, and Stateway's ratio to each of the others.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = json!({});
        for series in &self.series {
            let (low, high) = series.spread();
            let name = series.variant.name();
            object[name] = json!({ "median": series.median(), "min": low, "max": high });
            if series.variant != Variant::Stateway
                && let Some(ratio) = self.ratio(Variant::Stateway, series.variant)
            {
                object[format!("stateway_to_{name}")] = json!(ratio);
            }
        }
        object
    }
}

/// Sends the load through each variant in turn, `rounds` times, every turn in a lab
/// of its own.
///
/// # Errors
/// Those of [`Lab::new`], [`iperf_tcp`] and [`packet_rate`].
pub fn ratio(spec: &RatioSpec) -> Result<RatioReport> {
    const VARIANTS: [Variant; 4] = [
        Variant::Stateway,
        Variant::KernelBridge,
        Variant::KernelForwarding,
        Variant::KernelConntrack,
    ];
    let mut series: Vec<Series> = Vec::new();
    for _ in 0..spec.rounds.max(1) {
        for variant in VARIANTS {
            let Some(gateway) = variant.gateway(spec) else { continue };
            let lab = Lab::new(gateway, spec.placement.clone())?;
            let rate = match &spec.load {
                Load::Stream => iperf_tcp(&lab, Family::V4, spec.time, 1)?.bits_per_second,
                Load::Frames(program) => {
                    let generator =
                        GeneratorSpec { time: spec.time, ..GeneratorSpec::new(program.clone()) };
                    packet_rate(&lab, &generator)?.delivered_per_second()
                }
            };
            match series.iter_mut().find(|series| series.variant == variant) {
                Some(series) => series.samples.push(rate),
                None => series.push(Series { variant, samples: vec![rate] }),
            }
        }
    }
    for series in &mut series {
        series.samples.sort_by(f64::total_cmp);
    }
    Ok(RatioReport { series })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_exact() {
        let series = |variant, samples: &[f64]| Series { variant, samples: samples.to_vec() };
        let report = RatioReport {
            series: vec![
                series(Variant::Stateway, &[1.0, 3.0, 100.0]),
                series(Variant::KernelBridge, &[2.0, 4.0, 8.0, 16.0]),
            ],
        };
        assert_eq!(report.ratio(Variant::Stateway, Variant::KernelBridge), Some(0.5));
        assert_eq!(report.ratio(Variant::Stateway, Variant::KernelConntrack), None);
        let json = report.to_json();
        assert_eq!(json["kernel_bridge"]["median"], 6.0);
        assert_eq!(json["stateway"]["max"], 100.0);
        assert_eq!(json["stateway_to_kernel_bridge"], 0.5);
    }
}
