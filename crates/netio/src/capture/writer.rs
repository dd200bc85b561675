//! A capture as output.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::{pcap, pcapng};
use crate::{Frame, FramePool, PortError, TxQueue, TxReport};

/// Bytes collected before they are written.
const WRITE_BYTES: usize = 256 << 10;

/// Writes a capture of Ethernet frames with nanoseconds.
///
/// Call [`CaptureWriter::finish`] at the end: only it reports whether everything reached the file.
/// Dropping the writer tries to write the rest, and ignores errors.
pub struct CaptureWriter {
    file: String,
    output: BufWriter<Box<dyn Write + Send>>,
    format: WriteFormat,
    /// The record under construction, so that it is written as a whole.
    record: Vec<u8>,
    packets: u64,
    /// Number of packets that the system has taken.
    kept: u64,
    /// Set by the first failure, because nothing behind a half-written packet can be read.
    failed: bool,
}

enum WriteFormat {
    Pcap,
    PcapNg { interfaces: u32 },
}

impl CaptureWriter {
    /// Creates or replaces a file: pcapng if its name ends in `.pcapng`, else
    /// pcap. `interfaces` are the names of ports 0, 1, ...; pcap has no place for
    /// them.
    ///
    /// # Errors
    /// [`PortError::System`] when the file can not be created.
    pub fn create(path: &Path, interfaces: &[&str]) -> Result<Self, PortError> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|source| PortError::System {
            what: "creating a capture",
            interface: name.clone(),
            source,
        })?;
        let is_pcapng = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("pcapng"));
        let mut record = Vec::new();
        let format = if is_pcapng {
            // Every packet belongs to an interface.
            let interfaces = if interfaces.is_empty() { &["any"] } else { interfaces };
            pcapng::write_header(&mut record, interfaces);
            WriteFormat::PcapNg { interfaces: interfaces.len() as u32 }
        } else {
            pcap::write_header(&mut record);
            WriteFormat::Pcap
        };
        let output = BufWriter::with_capacity(WRITE_BYTES, Box::new(file) as Box<dyn Write + Send>);
        let mut writer =
            Self { file: name, output, format, record, packets: 0, kept: 0, failed: false };
        writer.write_record()?;
        Ok(writer)
    }

    /// Appends a frame under its time stamp and port. In pcapng the comment, if it is not empty,
    /// goes with the packet, cut off at 65535 bytes. Pcap has no place for it.
    ///
    /// # Errors
    /// [`PortError::Capture`] when the file can not be written, for example because the disk is
    /// full. The error names the first packet that may be missing. Packets are collected, so this
    /// is often not the last one. Packets before it stay readable; every later call fails likewise.
    pub fn write(&mut self, frame: &Frame, comment: &str) -> Result<(), PortError> {
        self.record.clear();
        match self.format {
            WriteFormat::Pcap => {
                pcap::write_packet(&mut self.record, frame.timestamp, frame.bytes());
            }
            WriteFormat::PcapNg { interfaces } => {
                let interface = u32::from(frame.port.0).min(interfaces - 1);
                let (time, bytes) = (frame.timestamp, frame.bytes());
                pcapng::write_packet(&mut self.record, interface, time, bytes, comment);
            }
        }
        self.write_record()?;
        // The writer empties its buffer before a packet that does not fit.
        if self.output.buffer().len() <= self.record.len() {
            self.kept = self.packets;
        }
        self.packets += 1;
        Ok(())
    }

    /// Packets written so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Hands everything written so far to the system.
    ///
    /// # Errors
    /// As [`CaptureWriter::write`].
    pub fn flush(&mut self) -> Result<(), PortError> {
        self.attempt(|output, _| output.flush())?;
        self.kept = self.packets;
        Ok(())
    }

    /// Writes the rest and returns how many packets the file holds.
    ///
    /// # Errors
    /// As [`CaptureWriter::write`].
    pub fn finish(mut self) -> Result<u64, PortError> {
        self.flush()?;
        Ok(self.packets)
    }

    fn write_record(&mut self) -> Result<(), PortError> {
        self.attempt(|output, record| output.write_all(record))
    }

    fn attempt(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Box<dyn Write + Send>>, &[u8]) -> io::Result<()>,
    ) -> Result<(), PortError> {
        let result = if self.failed {
            Err(io::Error::other("an earlier write failed"))
        } else {
            write(&mut self.output, &self.record)
        };
        result.map_err(|error| {
            self.failed = true;
            PortError::Capture {
                file: self.file.clone(),
                packet: self.kept + 1,
                problem: format!("can not be written: {error}; the packets before it are kept"),
            }
        })
    }
}

/// Frames go to the file in the order in which they are sent.
impl TxQueue for CaptureWriter {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let mut report = TxReport::default();
        let mut result = Ok(());
        for frame in frames.drain(..) {
            if result.is_ok() {
                result = self.write(&frame, "");
            }
            if result.is_ok() {
                report.sent += 1;
                report.sent_bytes += frame.len() as u64;
            } else {
                report.refused_gone += 1;
            }
            pool.give_back(frame);
        }
        if report.sent == 0 {
            result?;
        }
        Ok(report)
    }
}

impl fmt::Debug for CaptureWriter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CaptureWriter")
            .field("file", &self.file)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}
