//! A capture as output.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::link::{ETHERNET, named};
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
        writer.record.clear();
        match &mut writer.format {
            WriteFormat::Pcap(link_type) => {
                *link_type = Some(ETHERNET);
                pcap::write_header(&mut writer.record, ETHERNET);
            }
            WriteFormat::PcapNg(written) => {
                // Every packet belongs to an interface.
                for name in if interfaces.is_empty() { &["any"] } else { interfaces } {
                    written.push(((*name).to_owned(), ETHERNET));
                    pcapng::write_interface(&mut writer.record, name, ETHERNET);
                }
            }
        }
        writer.write_record()?;
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
        let mut record = Vec::new();
        let format = if is_pcapng {
            pcapng::write_header(&mut record);
            WriteFormat::PcapNg(Vec::new())
        } else {
            WriteFormat::Pcap(None)
        };
        let output =
            BufWriter::with_capacity(WRITE_BYTES, Box::new(output) as Box<dyn Write + Send>);
        let mut writer = Self { file, output, format, record, packets: 0, kept: 0, failed: false };
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
        self.record.clear();
        let problem = match &mut self.format {
            WriteFormat::Pcap(link_type) => {
                if link_type.is_none() {
                    pcap::write_header(&mut self.record, packet.link_type);
                }
                let of_file = *link_type.get_or_insert(packet.link_type);
                if of_file != packet.link_type {
                    let (packet, file) = (named(packet.link_type), named(of_file));
                    Some(format!("is of {packet}, and a pcap file of {file} holds nothing else"))
                } else if pcap::write_packet(&mut self.record, packet).is_none() {
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
                    pcapng::write_interface(&mut self.record, name, link_type);
                    written.push((name.to_owned(), link_type));
                    written.len() - 1
                });
                pcapng::write_packet(&mut self.record, interface as u32, packet, comment);
                None
            }
        };
        if let Some(problem) = problem {
            return Err(self.refused(&problem));
        }
        self.write_record()?;
        // The writer empties its buffer before a packet that does not fit.
        if self.output.buffer().len() <= self.record.len() {
            self.kept = self.packets;
        }
        self.packets += 1;
        Ok(())
    }

    /// The error for a packet that the format can not hold. It ends the file.
    fn refused(&mut self, problem: &str) -> PortError {
        // A new file has its header all the same.
        if let Err(error) = self.write_record().and_then(|()| self.flush()) {
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
        self.attempt(|output, _| output.flush())?;
        self.kept = self.packets;
        Ok(())
    }

    /// Writes the rest and returns how many packets the file holds.
    ///
    /// # Errors
    /// As [`CaptureWriter::write`].
    pub fn finish(mut self) -> Result<u64, PortError> {
        if let WriteFormat::Pcap(None) = self.format {
            // A capture without packets is a capture.
            self.record.clear();
            pcap::write_header(&mut self.record, ETHERNET);
            self.write_record()?;
        }
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
