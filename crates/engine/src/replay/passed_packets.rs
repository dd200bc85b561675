//! The output of a replay: packets that pass, as the capture holds them.

use std::collections::BTreeMap;

use netio::capture::{CaptureWriter, CapturedPacket};
use netio::{Frame, PortError};

use crate::replay::read_ahead::ReadAhead;

/// Writes packets that pass, also those that pass later: fragments wait for the rest of their
/// datagram. No more wait than the memory of reassembly holds.
#[derive(Debug)]
pub struct PassedPackets {
    writer: CaptureWriter,
    /// Packets that were neither passed nor dropped yet, by their number in the capture.
    waiting: BTreeMap<u64, Waiting>,
}

/// A copy of a [`CapturedPacket`].
#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    link_type: u16,
    interface: String,
    timestamp: u64,
    original_length: u32,
}

impl PassedPackets {
    /// Nothing has passed yet.
    pub const fn new(writer: CaptureWriter) -> Self {
        Self { writer, waiting: BTreeMap::new() }
    }

    /// Hands on what is written so far.
    pub fn flush(&mut self) -> Result<(), PortError> {
        self.writer.flush()
    }

    /// Notes what became of packets after the last one of `input` was played: the frames that
    /// passed then, with a comment, and the numbers of those that were dropped.
    pub fn settle(
        &mut self,
        input: &ReadAhead,
        passed: &[Frame],
        comment: &str,
        dropped: &[u64],
    ) -> Result<(), PortError> {
        let Some(last) = input.captured() else { return Ok(()) };
        let number = input.taken().packets;
        for number in dropped {
            self.waiting.remove(number);
        }
        let mut is_open = !dropped.contains(&number);
        for frame in passed {
            if frame.sequence == number {
                if std::mem::take(&mut is_open) {
                    self.writer.write_captured(&last, comment)?;
                }
            } else if let Some(packet) = self.waiting.remove(&frame.sequence) {
                self.writer.write_captured(&packet.captured(), comment)?;
            }
        }
        if is_open {
            self.waiting.insert(number, Waiting::of(&last));
        }
        Ok(())
    }

    /// Writes the rest and returns how many packets the output holds.
    pub fn finish(self) -> Result<u64, PortError> {
        self.writer.finish()
    }
}

impl Waiting {
    fn of(packet: &CapturedPacket<'_>) -> Self {
        let &CapturedPacket { bytes, link_type, interface, timestamp, original_length } = packet;
        let (bytes, interface) = (bytes.to_vec(), interface.to_owned());
        Self { bytes, link_type, interface, timestamp, original_length }
    }

    fn captured(&self) -> CapturedPacket<'_> {
        let Self { bytes, link_type, interface, timestamp, original_length } = self;
        CapturedPacket {
            bytes,
            link_type: *link_type,
            interface,
            timestamp: *timestamp,
            original_length: *original_length,
        }
    }
}
