//! For tests: captures, and what a replay makes of them.

use std::path::{Path, PathBuf};

use netio::capture::{CaptureReader, CaptureWriter};
use netio::{FramePool, PortId};

use crate::Config;
use crate::replay::{REPLAY_SECRET, ReplayOptions, ReplayReport, replay};

pub fn config() -> Config {
    Config::new(REPLAY_SECRET)
}

/// Writes frames as a capture, one millisecond apart, and returns its path.
pub fn capture(directory: &Path, frames: &[Vec<u8>]) -> PathBuf {
    let path = directory.join("in.pcap");
    let mut writer = CaptureWriter::create(&path, &["in"]).unwrap();
    let mut pool = FramePool::new(1, 1);
    for (index, bytes) in frames.iter().enumerate() {
        let mut frame = pool.copy_of(bytes).unwrap();
        frame.timestamp = 1_700_000_000_000_000_000 + index as u64 * 1_000_000;
        writer.write(&frame, "").unwrap();
        pool.give_back(frame);
    }
    writer.finish().unwrap();
    path
}

/// Plays a capture. Returns the report and the bytes of the output file.
pub fn play(path: &Path, config: &Config, options: ReplayOptions) -> (ReplayReport, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out.pcapng");
    let output = CaptureWriter::create_for_captured(&out).unwrap();
    let input = CaptureReader::open(path, PortId(0)).unwrap();
    let report = replay(input, Some(output), config, options, &mut |_| {}).unwrap();
    (report, std::fs::read(&out).unwrap())
}

pub fn with_workers(workers: u16) -> ReplayOptions {
    ReplayOptions { workers, ..ReplayOptions::default() }
}
