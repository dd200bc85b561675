//! A capture as a receive queue.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::pcap::Pcap;
use super::pcapng::{PcapNg, SECTION_HEADER};
use super::{Problem, Record, fill};
use crate::{Frame, FramePool, PortError, PortId, RxQueue};

/// Bytes read from the file at a time.
const READ_BYTES: usize = 256 << 10;

/// Reads a capture in pcap or pcapng format, whichever it is.
///
/// Every packet becomes an Ethernet frame: raw IP and Linux cooked captures get a
/// header in front. The sequence number of a frame is its position in the file,
/// from 0; time stamps are those of the capture.
///
/// A packet of IP that was cut off behind its headers gets its length back: zeros stand for the
/// bytes that are missing, and its checksum is [`Checksum::Cut`](crate::Checksum::Cut). Every
/// other packet that was cut off is as long as it was captured.
pub struct CaptureReader {
    file: String,
    port: PortId,
    input: Box<dyn Read + Send>,
    format: Format,
    buffer: Vec<u8>,
    packets: u64,
    truncated: u64,
    /// The error to report once the frames before it have been delivered.
    end: Option<PortError>,
}

enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
    /// The end of the file, or damage, was reached.
    Ended,
}

impl CaptureReader {
    /// Opens a file. Its packets come in through `port`.
    ///
    /// # Errors
    /// [`PortError::System`] when the file can not be opened or read,
    /// [`PortError::NoCapture`] when it is empty, not a capture, or of an unknown link type.
    pub fn open(path: &Path, port: PortId) -> Result<Self, PortError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(name, BufReader::with_capacity(READ_BYTES, file), port),
            Err(source) => {
                Err(PortError::System { what: "opening a capture", interface: name, source })
            }
        }
    }

    /// Reads from any input, such as standard input; `file` is its name in errors.
    ///
    /// # Errors
    /// As [`CaptureReader::open`].
    pub fn new(
        file: String,
        mut input: impl Read + Send + 'static,
        port: PortId,
    ) -> Result<Self, PortError> {
        let mut buffer = Vec::new();
        let format = open_format(&mut input, &mut buffer).map_err(|problem| match problem {
            Problem::Damaged(problem) => PortError::NoCapture { file: file.clone(), problem },
            Problem::Io(source) => read_error(&file, source),
        })?;
        let input = Box::new(input);
        Ok(Self { file, port, input, format, buffer, packets: 0, truncated: 0, end: None })
    }

    /// Gives packets of the interfaces with these names the ports 0, 1, and so on. All other
    /// packets get the port with which the capture was opened. These include all packets of a pcap
    /// file, which has no names of interfaces.
    #[must_use]
    pub fn with_ports(mut self, names: Vec<String>) -> Self {
        if let Format::PcapNg(section) = &mut self.format {
            section.name_ports(names);
        }
        self
    }

    /// Packets read so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Number of these packets that the capturing program had cut off (snap length).
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// The next frame; `None` at the end.
    ///
    /// # Errors
    /// [`PortError::Capture`] where the file is damaged or ends too early, and
    /// [`PortError::System`] when it can not be read. The capture ends with either.
    pub fn next_frame(&mut self, pool: &mut FramePool) -> Result<Option<Frame>, PortError> {
        let record = match &mut self.format {
            Format::Pcap(pcap) => pcap.next(&mut self.input, &mut self.buffer),
            Format::PcapNg(section) => section.next(&mut self.input, &mut self.buffer),
            Format::Ended => Ok(None),
        };
        let frame = match record {
            Ok(Some(record)) => self.frame(&record, pool).map(Some),
            Ok(None) => Ok(None),
            Err(problem) => Err(problem),
        };
        if !matches!(frame, Ok(Some(_))) {
            self.format = Format::Ended;
        }
        frame.map_err(|problem| match problem {
            Problem::Io(source) => read_error(&self.file, source),
            Problem::Damaged(problem) => {
                PortError::Capture { file: self.file.clone(), packet: self.packets + 1, problem }
            }
        })
    }

    fn frame(&mut self, record: &Record, pool: &mut FramePool) -> Result<Frame, Problem> {
        let packet = &self.buffer[record.range.clone()];
        let (header, payload) = record.link.split(packet).map_err(Problem::Damaged)?;
        let header = header.as_ref().map_or(&[][..], |header| header);
        let cut = (record.original_length as usize).saturating_sub(packet.len());
        let captured = header.len() + payload.len();
        let too_long = || Problem::Damaged("is longer than any frame".into());
        let mut frame = pool.take(captured + cut).ok_or_else(too_long)?;
        let (start, rest) = frame.bytes_mut().split_at_mut(header.len());
        let (middle, missing) = rest.split_at_mut(payload.len());
        start.copy_from_slice(header);
        middle.copy_from_slice(payload);
        if cut > 0 {
            missing.fill(0);
            frame.note_cut(captured);
        }
        frame.port = record.port.unwrap_or(self.port);
        frame.timestamp = record.timestamp;
        frame.sequence = self.packets;
        self.packets += 1;
        self.truncated += u64::from(cut > 0);
        Ok(frame)
    }
}

/// Simple use: frames in buffers of their own.
impl Iterator for CaptureReader {
    type Item = Result<Frame, PortError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_frame(&mut FramePool::new(0, 0)).transpose()
    }
}

impl RxQueue for CaptureReader {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        if let Some(end) = self.end.take() {
            return Err(end);
        }
        for count in 0..max {
            let end = match self.next_frame(pool) {
                Ok(Some(frame)) => {
                    frames.push(frame);
                    continue;
                }
                Ok(None) => PortError::Finished,
                Err(error) => error,
            };
            if count == 0 {
                return Err(end);
            }
            self.end = Some(end);
            return Ok(count);
        }
        Ok(max)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl fmt::Debug for CaptureReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CaptureReader")
            .field("file", &self.file)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

fn open_format(input: &mut impl Read, buffer: &mut Vec<u8>) -> Result<Format, Problem> {
    let mut magic = [0; 4];
    let problem = match fill(input, &mut magic)? {
        0 => "the file is empty".into(),
        4 if u32::from_le_bytes(magic) == SECTION_HEADER => {
            return PcapNg::open(input, buffer).map(Format::PcapNg);
        }
        4 => match Pcap::open(magic, input)? {
            Some(pcap) => return Ok(Format::Pcap(pcap)),
            None => format!("it begins with {magic:02x?}, as neither pcap nor pcapng files do"),
        },
        filled => format!("it has only {filled} bytes"),
    };
    Err(Problem::Damaged(problem))
}

fn read_error(file: &str, source: io::Error) -> PortError {
    PortError::System { what: "reading a capture", interface: file.into(), source }
}
