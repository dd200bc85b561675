//! `stateway lab-traffic send`

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netio::afpacket::{AfPacketOptions, AfPacketPort};
use netio::capture::CaptureReader;
use netio::{Frame, FramePool, PortId, TxQueue};
use serde::Serialize;

use crate::print::Output;

/// Frames that one call hands over.
const BATCH: usize = 64;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The capture: pcap or pcapng.
    file: PathBuf,
    /// Interface to send from.
    #[arg(long, value_name = "NAME")]
    interface: String,
}

#[derive(Serialize)]
struct Sent {
    schema: u32,
    sent: u64,
    refused: u64,
    seconds: f64,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let frames: Vec<Frame> =
        CaptureReader::open(&args.file, PortId(0))?.collect::<Result<_, _>>()?;
    let first = frames.first().map_or(0, |frame| frame.timestamp);
    let mut queue = AfPacketPort::open_transmit(&args.interface, &AfPacketOptions::default())?;
    let mut pool = FramePool::new(0, 0);
    let mut batch = Vec::with_capacity(BATCH);
    let (mut sent, mut refused) = (0, 0);
    let mut transmit = |batch: &mut Vec<Frame>| -> anyhow::Result<()> {
        let report = queue.transmit(batch, &mut pool)?;
        sent += report.sent;
        refused += report.refused_full + report.refused_invalid + report.refused_long;
        Ok(())
    };
    let start = Instant::now();
    for frame in frames {
        let due = Duration::from_nanos(frame.timestamp.saturating_sub(first));
        let early = due.saturating_sub(start.elapsed());
        if !early.is_zero() || batch.len() == BATCH {
            transmit(&mut batch)?;
            sleep(early);
        }
        batch.push(frame);
    }
    transmit(&mut batch)?;
    let seconds = start.elapsed().as_secs_f64();
    out.json(&Sent { schema: control::SCHEMA, sent, refused, seconds })
}
