//! Captures in memory, in pcap format with times in nanoseconds.

use std::time::Duration;

/// Version 2.4, link type Ethernet.
const FILE_HEADER: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, 1];
const RECORD_HEADER: usize = 16;

/// Frames with their times.
#[derive(Clone, Debug)]
pub struct Capture {
    bytes: Vec<u8>,
    frames: u64,
}

impl Capture {
    /// A capture without frames.
    #[must_use]
    pub fn new() -> Self {
        Self { bytes: FILE_HEADER.iter().flat_map(|word| word.to_le_bytes()).collect(), frames: 0 }
    }

    /// Adds a frame to send at `time` after the start. Times must not decrease.
    pub fn push(&mut self, time: Duration, frame: &[u8]) {
        let length = frame.len() as u32;
        for word in [time.as_secs() as u32, time.subsec_nanos(), length, length] {
            self.bytes.extend(word.to_le_bytes());
        }
        self.bytes.extend(frame);
        self.frames += 1;
    }

    /// Number of frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The capture as a file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The frames of a capture file in the format that this type writes, with times in nano- or
    /// microseconds; `None` if the file is something else or ends too early.
    #[must_use]
    pub fn read(file: &[u8]) -> Option<Vec<&[u8]>> {
        let magic = file.first_chunk()?;
        if ![FILE_HEADER[0], 0xa1b2_c3d4].contains(&u32::from_le_bytes(*magic)) {
            return None;
        }
        let mut rest = file.get(4 * FILE_HEADER.len()..)?;
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let length = u32::from_le_bytes(rest.get(8..12)?.try_into().ok()?) as usize;
            frames.push(rest.get(RECORD_HEADER..RECORD_HEADER + length)?);
            rest = &rest[RECORD_HEADER + length..];
        }
        Some(frames)
    }
}

impl Default for Capture {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_frames_are_read_back() {
        let mut capture = Capture::new();
        capture.push(Duration::ZERO, b"one");
        capture.push(Duration::from_nanos(1_000_000_001), b"three");
        let file = capture.bytes();
        assert_eq!(Capture::read(file), Some(vec![&b"one"[..], b"three"]));
        assert_eq!(file[24 + 16 + 3..][..8], [1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(Capture::read(&file[..file.len() - 1]), None);
        assert_eq!(Capture::read(&file[1..]), None);
    }
}
