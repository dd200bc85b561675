//! Compares throughput and packet rate of gateways.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clients::iperf::iperf_tcp;
use crate::error::{Error, Result};
use crate::placement::Placement;
use crate::stateway::StatewaySpec;
use crate::topology::{Family, Gateway, Lab, Tracking};
use crate::traffic::{GeneratorSpec, packet_rate};

/// The parameters of a comparison.
#[derive(Clone, Debug)]
pub struct RatioSpec {
    /// The `stateway` binary; `None` compares the kernel's gateways only.
    pub binary: Option<PathBuf>,
    /// Number of workers of Stateway.
    pub workers: u32,
    /// The load.
    pub load: Load,
    /// The gateways.
    pub contest: Contest,
    /// Number of turns of each variant (at least 1).
    pub rounds: u32,
    /// Time of traffic in a turn.
    pub time: Duration,
    /// The CPUs to use.
    pub placement: Placement,
}

/// The traffic through the gateways.
#[derive(Clone, Debug)]
pub enum Load {
    /// One TCP connection of `iperf3` over IPv4; figures in bits per second.
    Stream,
    /// UDP frames of 60 bytes over 1024 flows from this program (see
    /// [`GeneratorSpec`]); figures in frames that arrive per second.
    Frames(PathBuf),
}

/// The gateways that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contest {
    /// Gateways that join two networks unchanged: [`Variant::Stateway`] beside a bridge and
    /// forwarding.
    Joining,
    /// Masquerade, beside routing with the same rules without it. Before the measurement the server
    /// checks that it really receives packets of the gateway, with right checksums.
    Masquerade,
}

/// A gateway in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `stateway run` in bridge mode.
    Stateway,
    /// The kernel's bridge.
    KernelBridge,
    /// The kernel's forwarding.
    KernelForwarding,
    /// The kernel's forwarding with connection tracking.
    KernelConntrack,
    /// `stateway run` as a router with the rules of [`Tracking::Conntrack`].
    StatewayRouted,
    /// `stateway run` as a router with the rules of [`Tracking::Masquerade`].
    StatewayMasquerade,
    /// The kernel's forwarding with the rules of [`Tracking::Masquerade`].
    KernelMasquerade,
}

/// The figures of one variant, in the unit of the [`Load`].
#[derive(Clone, Debug)]
pub struct Series {
    /// The variant.
    pub variant: Variant,
    /// One figure for each round, in ascending order; never empty.
    samples: Vec<f64>,
}

/// The figures of all variants of one run.
#[derive(Clone, Debug)]
pub struct RatioReport {
    /// The variant that is compared with the others.
    pub ours: Variant,
    /// One series for each variant, in the order in which they take their turns.
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
            Self::StatewayRouted => "stateway_routed",
            Self::StatewayMasquerade => "stateway_masquerade",
            Self::KernelMasquerade => "kernel_masquerade",
        }
    }

    const fn masquerades(self) -> bool {
        matches!(self, Self::StatewayMasquerade | Self::KernelMasquerade)
    }

    fn gateway(self, spec: &RatioSpec) -> Option<Gateway> {
        let stateway = || Some(StatewaySpec::new(spec.binary.clone()?, spec.workers));
        let routed = |rules| {
            let spec = stateway()?;
            Some(Gateway::Stateway(StatewaySpec { routed: true, rules, ..spec }))
        };
        Some(match self {
            Self::Stateway => Gateway::Stateway(stateway()?),
            Self::StatewayRouted => routed(Tracking::Conntrack)?,
            Self::StatewayMasquerade => routed(Tracking::Masquerade)?,
            Self::KernelMasquerade => Gateway::KernelForwarding(Tracking::Masquerade),
            Self::KernelBridge => Gateway::KernelBridge,
            Self::KernelForwarding => Gateway::KernelForwarding(Tracking::Off),
            Self::KernelConntrack => Gateway::KernelForwarding(Tracking::Conntrack),
        })
    }
}

impl Contest {
    /// The variants. The first is compared with the others.
    const fn variants(self) -> [Variant; 4] {
        match self {
            Self::Joining => [
                Variant::Stateway,
                Variant::KernelBridge,
                Variant::KernelForwarding,
                Variant::KernelConntrack,
            ],
            Self::Masquerade => [
                Variant::StatewayMasquerade,
                Variant::KernelMasquerade,
                Variant::StatewayRouted,
                Variant::KernelConntrack,
            ],
        }
    }
}

impl Series {
    /// The middle figure, or the mean of the two middle ones.
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
    /// Median of one variant over that of another; `None` if either did not take part.
    #[must_use]
    pub fn ratio(&self, of: Variant, to: Variant) -> Option<f64> {
        Some(self.find(of)?.median() / self.find(to)?.median())
    }

    fn find(&self, variant: Variant) -> Option<&Series> {
        self.series.iter().find(|series| series.variant == variant)
    }

    /// The report as a JSON object: for each variant the median, lowest and highest figure, and the
    /// ratio of ours to each of the others.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = json!({});
        for series in &self.series {
            let (low, high) = series.spread();
            let name = series.variant.name();
            object[name] = json!({ "median": series.median(), "min": low, "max": high });
            if series.variant != self.ours
                && let Some(ratio) = self.ratio(self.ours, series.variant)
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
    let mut series: Vec<Series> = Vec::new();
    for _ in 0..spec.rounds.max(1) {
        for variant in spec.contest.variants() {
            let Some(gateway) = variant.gateway(spec) else { continue };
            let lab = Lab::new(gateway, spec.placement.clone())?;
            let rate = match &spec.load {
                Load::Stream => iperf_tcp(&lab, Family::V4, spec.time, 1)?.bits_per_second,
                Load::Frames(program) => {
                    let generator =
                        GeneratorSpec { time: spec.time, ..GeneratorSpec::new(program.clone()) };
                    let has_run = series.iter().any(|series| series.variant == variant);
                    if variant.masquerades() && !has_run {
                        check_masquerade(&lab, &generator)?;
                    }
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
    let [ours, ..] = spec.contest.variants();
    Ok(RatioReport { ours, series })
}

/// Sends for a second, and checks that the server receives only packets of the gateway, with right
/// checksums.
fn check_masquerade(lab: &Lab, generator: &GeneratorSpec) -> Result<()> {
    const RULES: &str = "
        table ip check {
            counter ours { }
            counter wrong { }
            chain arrived {
                type filter hook prerouting priority filter; policy accept;
                udp dport 9 ct state invalid counter name wrong accept
                udp dport 9 ip saddr 198.51.100.254 counter name ours accept
                udp dport 9 counter name wrong
            }
        }
    ";
    lab.server().load_rules(RULES).map_err(Error::or_unavailable)?;
    let report =
        packet_rate(lab, &GeneratorSpec { time: Duration::from_secs(1), ..generator.clone() })?;
    let text = lab.server().program("nft").args(["-j", "list", "counters"]).check()?;
    lab.server().program("nft").args(["delete", "table", "ip", "check"]).check()?;
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    let count = |name: &str| {
        let mut all = json["nftables"].as_array()?.iter().map(|object| &object["counter"]);
        all.find(|counter| counter["name"] == name)?["packets"].as_u64()
    };
    match (count("ours"), count("wrong")) {
        (Some(ours), Some(0)) if ours > 0 => Ok(()),
        _ => {
            Err(Error::unexpected("nft", &format!("{report:?}, all of it from the gateway"), &text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_exact() {
        let series = |variant, samples: &[f64]| Series { variant, samples: samples.to_vec() };
        let report = RatioReport {
            ours: Variant::Stateway,
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
