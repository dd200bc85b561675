//! A capture as output.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::link::{ETHERNET, named};
use super::sink::Sink;
use super::{CapturedPacket, pcap, pcapng};
use crate::{Frame, FramePool, PortError, TxQueue, TxReport};

/// Bytes collected before they are written.
const WRITE_BYTES: usize = 256 << 10;

/// Writes a capture with nanoseconds: Ethernet frames, or packets as another capture holds them.
///
/// Call [`CaptureWriter::finish`] at the end: only it reports whether everything reached the file.
/// Dropping the writer tries to write the rest, and ignores errors.
pub struct CaptureWriter {
    file: String,
    output: Sink,
    format: WriteFormat,
    /// Whole records that the output has not got yet.
    buffer: Vec<u8>,
    packets: u64,
    /// Set by the first failure, because nothing behind a half-written packet can be read.
    failed: bool,
}

enum WriteFormat {
    /// All packets have one link type, known with the first of them.
    Pcap(Option<u16>),
    /// The interfaces that were written: their names and link types.
    PcapNg(Vec<(String, u16)>),
}

impl CaptureWriter {
    /// Creates or replaces a file of Ethernet frames: pcapng if its name ends in `.pcapng`, else
    /// pcap. `interfaces` are the names of ports 0, 1, ...; pcap has no place for
    /// them.
    ///
    /// # Errors
    /// [`PortError::System`] when the file can not be created.
    pub fn create(path: &Path, interfaces: &[&str]) -> Result<Self, PortError> {
        let mut writer = Self::create_for_captured(path)?;
        match &mut writer.format {
            WriteFormat::Pcap(link_type) => {
                *link_type = Some(ETHERNET);
                pcap::write_header(&mut writer.buffer, ETHERNET);
            }
            WriteFormat::PcapNg(written) => {
                // Every packet belongs to an interface.
                for name in if interfaces.is_empty() { &["any"] } else { interfaces } {
                    written.push(((*name).to_owned(), ETHERNET));
                    pcapng::write_interface(&mut writer.buffer, name, ETHERNET);
                }
            }
        }
        Ok(writer)
    }

    /// Creates or replaces a file for packets of another capture: pcapng if its name ends in
    /// `.pcapng`, else pcap.
    ///
    /// # Errors
    /// [`PortError::System`] when the file can not be created.
    pub fn create_for_captured(path: &Path) -> Result<Self, PortError> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|source| PortError::System {
            what: "creating a capture",
            interface: name.clone(),
            source,
        })?;
        let is_pcapng = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("pcapng"));
        Self::new(name, file, is_pcapng)
    }

    /// Writes packets of another capture to any output, such as standard output, as pcapng or
    /// pcap; `file` is its name in errors.
    ///
    /// # Errors
    /// As [`CaptureWriter::write`].
    pub fn new(
        file: String,
        output: impl Write + Send + 'static,
        is_pcapng: bool,
    ) -> Result<Self, PortError> {
        let mut buffer = Vec::with_capacity(WRITE_BYTES);
        let format = if is_pcapng {
            pcapng::write_header(&mut buffer);
            WriteFormat::PcapNg(Vec::new())
        } else {
            WriteFormat::Pcap(None)
        };
        let output = Sink::new(Box::new(output));
        Ok(Self { file, output, format, buffer, packets: 0, failed: false })
    }

    /// Writes on a thread of its own. An error then comes later: when the next packets have been
    /// collected, or with [`CaptureWriter::flush`] and [`CaptureWriter::finish`]. It still names the
    /// first packet that may be missing.
    ///
    /// # Errors
    /// The system's error if there is no thread.
    pub fn behind(mut self) -> io::Result<Self> {
        self.output.go_behind()?;
        Ok(self)
    }

    /// Appends a frame under its time stamp and port. In pcapng the comment, if it is not empty,
    /// goes with the packet, cut off at 65535 bytes. Pcap has no place for it.
    ///
    /// # Errors
    /// [`PortError::Capture`] when the file can not be written, for example because the disk is
    /// full. The error names the first packet that may be missing. Packets are collected, so this
    /// is often not the last one. Packets before it stay readable; every later call fails likewise.
    pub fn write(&mut self, frame: &Frame, comment: &str) -> Result<(), PortError> {
        let packet = CapturedPacket {
            bytes: frame.bytes(),
            link_type: ETHERNET,
            interface: "",
            timestamp: frame.timestamp,
            original_length: frame.len() as u32,
        };
        self.append(&packet, Some(frame.port.0.into()), comment)
    }

    /// Appends a packet as another capture holds it, with its interface. The comment is that of
    /// [`CaptureWriter::write`].
    ///
    /// # Errors
    /// As [`CaptureWriter::write`], and [`PortError::Capture`] for a packet that pcap has no place
    /// for: of another link type than the first one, or captured after February 2106.
    pub fn write_captured(
        &mut self,
        packet: &CapturedPacket<'_>,
        comment: &str,
    ) -> Result<(), PortError> {
        self.append(packet, None, comment)
    }

    /// Appends a packet of one of the interfaces that are written, or of the interface that it
    /// names.
    fn append(
        &mut self,
        packet: &CapturedPacket<'_>,
        interface: Option<usize>,
        comment: &str,
    ) -> Result<(), PortError> {
        if self.failed {
            return Err(self.failure(&earlier_failure()));
        }
        let start = self.buffer.len();
        let problem = match &mut self.format {
            WriteFormat::Pcap(link_type) => {
                if link_type.is_none() {
                    pcap::write_header(&mut self.buffer, packet.link_type);
                }
                let of_file = *link_type.get_or_insert(packet.link_type);
                if of_file != packet.link_type {
                    let (packet, file) = (named(packet.link_type), named(of_file));
                    Some(format!("is of {packet}, and a pcap file of {file} holds nothing else"))
                } else if pcap::write_packet(&mut self.buffer, packet).is_none() {
                    Some("was captured after 2106, and a pcap file has no such time".to_owned())
                } else {
                    None
                }
            }
            WriteFormat::PcapNg(written) => {
                let is_its = |(name, link_type): &(String, u16)| {
                    *link_type == packet.link_type && name == packet.interface
                };
                let interface = match interface {
                    Some(number) => Some(number.min(written.len().saturating_sub(1))),
                    None => written.iter().position(is_its),
                };
                let interface = interface.unwrap_or_else(|| {
                    let (name, link_type) = (packet.interface, packet.link_type);
                    pcapng::write_interface(&mut self.buffer, name, link_type);
                    written.push((name.to_owned(), link_type));
                    written.len() - 1
                });
                pcapng::write_packet(&mut self.buffer, interface as u32, packet, comment);
                None
            }
        };
        if let Some(problem) = problem {
            return Err(self.refused(&problem));
        }
        // A record is written as a whole.
        if self.buffer.len() > WRITE_BYTES && start > 0 {
            let record = self.buffer.split_off(start);
            self.put()?;
            self.buffer.extend(record);
        }
        self.packets += 1;
        Ok(())
    }

    /// The error for a packet that the format can not hold. It ends the file.
    fn refused(&mut self, problem: &str) -> PortError {
        // A new file has its header all the same.
        if let Err(error) = self.flush() {
            return error;
        }
        self.failed = true;
        let problem = format!("{problem}: write to a file whose name ends in .pcapng");
        PortError::Capture { file: self.file.clone(), packet: self.packets + 1, problem }
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
        self.put()?;
        self.output.flush().map_err(|error| self.failure(&error))
    }

    /// Writes the rest and returns how many packets the file holds.
    ///
    /// # Errors
    /// As [`CaptureWriter::write`].
    pub fn finish(mut self) -> Result<u64, PortError> {
        if let WriteFormat::Pcap(None) = self.format {
            // A capture without packets is a capture.
            pcap::write_header(&mut self.buffer, ETHERNET);
        }
        self.flush()?;
        Ok(self.packets)
    }

    /// Gives the output what was collected.
    fn put(&mut self) -> Result<(), PortError> {
        let result = match self.failed {
            true => Err(earlier_failure()),
            false if self.buffer.is_empty() => Ok(()),
            false => self.output.put(&mut self.buffer, self.packets),
        };
        result.map_err(|error| self.failure(&error))
    }

    /// The failure to write, which ends the file.
    fn failure(&mut self, error: &io::Error) -> PortError {
        self.failed = true;
        PortError::Capture {
            file: self.file.clone(),
            packet: self.output.kept() + 1,
            problem: format!("can not be written: {error}; the packets before it are kept"),
        }
    }
}

fn earlier_failure() -> io::Error {
    io::Error::other("an earlier write failed")
}

impl Drop for CaptureWriter {
    fn drop(&mut self) {
        if !self.failed {
            let _ = self.flush();
        }
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
