//! Honest datagrams during a flood of fragments.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::attack::Attack;
use crate::capture::Capture;
use crate::contender::Contender;
use crate::datagram::{Datagrams, NumberedReport, NumberedSpec};
use crate::error::Result;
use crate::placement::Placement;
use crate::stateway::StatewaySpec;
use crate::topology::{Family, Gateway, Lab, Tracking};

/// Compared rates of the flood, fragments per second.
pub const FLOOD_RATES: [u32; 4] = [0, 1_000, 10_000, 100_000];
/// Length of a flood before the measurement, in seconds: the default of `ipfrag_time`. The
/// fragments that would be left of it are sent first, so that a reassembler that waits for that
/// time is full.
const BEFORE: u32 = 30;
/// The largest number of fragments of that. More would find no room in any of the compared
/// memories.
const MOST_BEFORE: u32 = 100_000;
/// Rate of that, fragments per second.
const RATE_BEFORE: u32 = 100_000;
/// Compared gateways with their `ipfrag_high_thresh` in bytes: the kernel's default, and as much as
/// a gateway of today can spare.
pub const FLOOD_GATEWAYS: [(Contender, u32); 4] = [
    (Contender::Kernel, 4 << 20),
    (Contender::Kernel, 64 << 20),
    (Contender::Stateway, 4 << 20),
    (Contender::Stateway, 64 << 20),
];
/// Time by which the flood outlasts the honest datagrams, whose programs take time to start.
const MARGIN: Duration = Duration::from_millis(600);

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct FloodSpec {
    /// The reassembler in between: a bridge, or a kernel that forwards with connection tracking,
    /// which defragments.
    pub reassembler: Contender,
    /// Its `ipfrag_high_thresh`, in bytes.
    pub memory: u32,
    /// Fragments per second of datagrams that are never complete.
    pub rate: u32,
    /// Time of sending honest datagrams, during the flood and again after it.
    pub time: Duration,
}

/// The result for the honest datagrams of 65507 bytes.
#[derive(Clone, Copy, Debug)]
pub struct FloodReport {
    /// The parameters.
    pub spec: FloodSpec,
    /// The result during the flood.
    pub during: NumberedReport,
    /// The result when the flood had just ended.
    pub after: NumberedReport,
}

/// A capture of `frames` at an even pace of `rate` per second.
#[must_use]
pub fn at_pace(frames: &[Vec<u8>], rate: u32) -> Capture {
    let mut capture = Capture::new();
    for (number, frame) in frames.iter().enumerate() {
        capture.push(Duration::from_secs(1) * number as u32 / rate, frame);
    }
    capture
}

/// Measures in a lab of its own. `program` is `stateway`, which also runs the end points.
///
/// # Errors
/// Those of [`Lab::new`] and [`Datagrams::numbered`].
pub fn flood(program: &Path, spec: FloodSpec) -> Result<FloodReport> {
    let lab = lab(program, spec.reassembler, spec.memory)?;
    let datagrams = Datagrams::new(&lab, program)?;
    let honest = NumberedSpec { family: Family::V4, bytes: 65507, time: spec.time, rate: None };
    let before = (spec.rate * BEFORE).min(MOST_BEFORE);
    let count = (f64::from(spec.rate) * (spec.time + MARGIN).as_secs_f64()) as usize;
    let frames = Attack::First.frames(&lab, before as usize + count, 1);
    let (first, rest) = frames.split_at(before as usize);
    let before = datagrams.start_sending(&lab, &at_pace(first, RATE_BEFORE))?;
    before.finish()?;
    let flood = datagrams.start_sending(&lab, &at_pace(rest, spec.rate))?;
    let during = datagrams.numbered(&lab, &honest)?;
    flood.finish()?;
    let after = datagrams.numbered(&lab, &honest)?;
    Ok(FloodReport { spec, during, after })
}

/// The lab of a contender with `memory` bytes for fragments.
fn lab(program: &Path, reassembler: Contender, memory: u32) -> Result<Lab> {
    let gateway = match reassembler {
        Contender::Stateway => Gateway::Stateway(StatewaySpec {
            // The end points want both CPUs too, so a worker may have to wait.
            more: format!(
                "[tunables]\nipfrag_high_thresh = {memory}\nnetdev_max_backlog = 65536\n"
            ),
            ..StatewaySpec::new(program.to_path_buf(), 2)
        }),
        Contender::Kernel => Gateway::KernelForwarding(Tracking::Conntrack),
    };
    let lab = Lab::new(gateway, Placement::free())?;
    if reassembler == Contender::Kernel {
        let setting = format!("net.ipv4.ipfrag_high_thresh={memory}");
        lab.gateway().sysctl([&setting])?;
    }
    Ok(lab)
}

impl FloodReport {
    /// The report as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { spec, during, after } = self;
        json!({
            "reassembler": spec.reassembler.name(),
            "memory": spec.memory,
            "flood_per_s": spec.rate,
            "goodput_gbit_s": during.bits_per_second / 1e9,
            "sent": during.sent,
            "delivered": during.received,
            "corrupt": during.corrupt + after.corrupt,
            "after_goodput_gbit_s": after.bits_per_second / 1e9,
        })
    }
}
