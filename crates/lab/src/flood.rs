//! Honest datagrams through a flood of fragments.

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

/// Rates of the flood that are compared, fragments per second.
pub const FLOOD_RATES: [u32; 4] = [0, 1_000, 10_000, 100_000];
/// What is left of a flood that has gone on for this long, the default of
/// `ipfrag_time`, is sent first: a reassembler that waits for that time is full.
const BEFORE: u32 = 30;
/// More of it would find no room in any of the memories that are compared.
const MOST_BEFORE: u32 = 100_000;
/// How fast that is sent, fragments per second.
const RATE_BEFORE: u32 = 100_000;
/// Gateways that are compared, with their `ipfrag_high_thresh` in bytes: the kernel's
/// default, and as much as a gateway of today can spare.
pub const FLOOD_GATEWAYS: [(Contender, u32); 4] = [
    (Contender::Kernel, 4 << 20),
    (Contender::Kernel, 64 << 20),
    (Contender::Stateway, 4 << 20),
    (Contender::Stateway, 64 << 20),
];
/// The flood outlasts the honest datagrams by so much: their programs take time to start.
const MARGIN: Duration = Duration::from_millis(600);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct FloodSpec {
    /// Who puts the fragments together in between: a bridge, or a kernel that forwards with
    /// connection tracking, which defragments.
    pub reassembler: Contender,
    /// Its `ipfrag_high_thresh`, bytes.
    pub memory: u32,
    /// Fragments per second of datagrams that are never complete.
    pub rate: u32,
    /// For how long honest datagrams are sent, during the flood and after it.
    pub time: Duration,
}

/// What became of the honest datagrams of 65507 bytes.
#[derive(Clone, Copy, Debug)]
pub struct FloodReport {
    /// What was measured.
    pub spec: FloodSpec,
    /// During the flood.
    pub during: NumberedReport,
    /// When the flood had just ended.
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

/// Measures in a lab of its own. `program` is `stateway`, which is also the end points.
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

/// The lab of one of them with so much memory for fragments, bytes.
fn lab(program: &Path, reassembler: Contender, memory: u32) -> Result<Lab> {
    let gateway = match reassembler {
        Contender::Stateway => Gateway::Stateway(StatewaySpec {
            // The end points want both CPUs too, so that a worker may have to wait.
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
        lab.gateway().program("sysctl").args(["-qw", &setting]).check()?;
    }
    Ok(lab)
}

impl FloodReport {
    /// The report as an object.
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
