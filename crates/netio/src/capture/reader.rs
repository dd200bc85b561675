//! A capture as a receive queue.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::fd::BorrowedFd;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::link::named;
use super::pcap::Pcap;
use super::pcapng::{PcapNg, SECTION_HEADER};
use super::{Problem, Stored, StoredPacket, fill};
use crate::{Frame, FramePool, PortError, PortId, RxQueue};

/// The beginning of a file that is packed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Bytes read from the file at a time.
const READ_BYTES: usize = 256 << 10;

/// The input, which is read in large pieces.
type Input = BufReader<Box<dyn Read + Send>>;

/// Reads a capture in pcap or pcapng format, whichever it is, also in gzip.
///
/// Every packet becomes an Ethernet frame: packets of other link types get a header in front, and
/// those whose link type is not read are counted ([`CaptureReader::foreign`]). The sequence number of a frame is its position in the file,
/// from 0; time stamps are those of the capture.
///
/// A packet of IP that was cut off behind its headers gets its length back: zeros stand for the
/// bytes that are missing, and its checksum is [`Checksum::Cut`](crate::Checksum::Cut). Every
/// other packet that was cut off is as long as it was captured.
pub struct CaptureReader {
    file: String,
    port: PortId,
    input: Input,
    format: Format,
    buffer: Vec<u8>,
    /// The frame of a packet that is not a frame of Ethernet as it is.
    frame: Vec<u8>,
    packets: u64,
    truncated: u64,
    /// How many packets were not read, by their link type.
    foreign: BTreeMap<u16, u64>,
    mends: bool,
    /// The error to report once the frames before it have been delivered.
    end: Option<PortError>,
}

/// A packet of a capture.
#[derive(Debug)]
pub enum Captured {
    /// As a frame of Ethernet.
    Frame(Frame),
    /// Its frame was longer than [`MAX_FRAME`](crate::MAX_FRAME): this many bytes.
    TooLong(u64),
    /// It is of a link type that is not read.
    Foreign,
}

/// A packet as the capture holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket<'a> {
    /// The bytes that were captured, the link header included.
    pub bytes: &'a [u8],
    /// The number of its link type.
    pub link_type: u16,
    /// The name of its interface, empty if the capture does not tell it.
    pub interface: &'a str,
    /// Nanoseconds since the Unix epoch.
    pub timestamp: u64,
    /// Bytes that it had before the capture cut it off.
    pub original_length: u32,
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
            Ok(file) => Self::new(name, file, port),
            Err(source) => {
                Err(PortError::System { what: "opening a capture", interface: name, source })
            }
        }
    }

    /// Reads from any input, such as standard input, in large pieces; `file` is its name in errors.
    ///
    /// # Errors
    /// As [`CaptureReader::open`].
    pub fn new(
        file: String,
        input: impl Read + Send + 'static,
        port: PortId,
    ) -> Result<Self, PortError> {
        let mut buffer = Vec::new();
        let problem = |problem| match problem {
            Problem::Damaged(problem) => PortError::NoCapture { file: file.clone(), problem },
            Problem::Io(source) => read_error(&file, source),
        };
        let (input, format) = open_packed(input, &mut buffer).map_err(problem)?;
        Ok(Self {
            file,
            port,
            input,
            format,
            buffer,
            frame: Vec::new(),
            packets: 0,
            truncated: 0,
            foreign: BTreeMap::new(),
            mends: false,
            end: None,
        })
    }

    /// Has the headers of IP mended that an interface would have filled in behind the capture, see
    /// [`wire::mend_headers`].
    #[must_use]
    pub fn with_headers_mended(mut self) -> Self {
        self.mends = true;
        self
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

    /// True if the next packet is here, so that nobody has to wait for it.
    pub fn has_packet(&self) -> bool {
        let here = self.input.buffer();
        let record = match &self.format {
            Format::Pcap(pcap) => pcap.record_length(here),
            Format::PcapNg(section) => section.block_length(here),
            Format::Ended => None,
        };
        record.is_some_and(|length| length <= here.len())
    }

    /// Packets read so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Number of these packets that the capturing program had cut off (snap length).
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// How many packets were not read because of their link type, by its number and name.
    pub fn foreign(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        self.foreign.iter().map(|(&link_type, &packets)| (named(link_type), packets))
    }

    /// The name of the interface of the packet that was read last, by its number; empty if the
    /// capture does not tell it.
    pub fn interface_name(&self, number: usize) -> &str {
        match &self.format {
            Format::PcapNg(section) => section.interface_name(number),
            Format::Pcap(_) | Format::Ended => "",
        }
    }

    /// The next frame, without the packets that are none; `None` at the end.
    ///
    /// # Errors
    /// As [`CaptureReader::next_packet`].
    pub fn next_frame(&mut self, pool: &mut FramePool) -> Result<Option<Frame>, PortError> {
        loop {
            match self.next_packet(pool)? {
                Some(Captured::Frame(frame)) => return Ok(Some(frame)),
                Some(Captured::TooLong(_) | Captured::Foreign) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next packet; `None` at the end.
    ///
    /// # Errors
    /// [`PortError::Capture`] where the file is damaged or ends too early, and
    /// [`PortError::System`] when it can not be read. The capture ends with either.
    pub fn next_packet(&mut self, pool: &mut FramePool) -> Result<Option<Captured>, PortError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let packet = self.append_packet(&mut buffer);
        let captured = packet.map(|packet| packet.map(|packet| packet.take(&buffer, pool)));
        self.buffer = buffer;
        let mut captured = captured?;
        if let Some(Captured::Frame(frame)) = &mut captured {
            frame.sequence = self.packets - 1;
        }
        Ok(captured)
    }

    /// Appends the bytes of the next packet to `buffer`; `None` at the end.
    ///
    /// # Errors
    /// As [`CaptureReader::next_packet`].
    pub fn append_packet(
        &mut self,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<StoredPacket>, PortError> {
        let record = match &mut self.format {
            Format::Pcap(pcap) => pcap.next(&mut self.input, buffer),
            Format::PcapNg(section) => section.next(&mut self.input, buffer),
            Format::Ended => Ok(None),
        };
        match record {
            Ok(Some(record)) => {
                let Self { frame, port, mends, .. } = self;
                let packet = StoredPacket::store(record, buffer, frame, *port, *mends);
                self.packets += 1;
                self.truncated += u64::from(packet.is_truncated());
                if packet.frame == Stored::Foreign {
                    *self.foreign.entry(packet.link_type).or_default() += 1;
                }
                Ok(Some(packet))
            }
            end => {
                self.format = Format::Ended;
                end.map(|_| None).map_err(|problem| match problem {
                    Problem::Io(source) => read_error(&self.file, source),
                    Problem::Damaged(problem) => {
                        let (file, packet) = (self.file.clone(), self.packets + 1);
                        PortError::Capture { file, packet, problem }
                    }
                })
            }
        }
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

/// The capture in a file, which may be packed with gzip (RFC 1952), in one part or several.
fn open_packed(
    input: impl Read + Send + 'static,
    buffer: &mut Vec<u8>,
) -> Result<(Input, Format), Problem> {
    let in_pieces = |input: Box<dyn Read + Send>| BufReader::with_capacity(READ_BYTES, input);
    let mut input: Input = in_pieces(Box::new(input));
    let mut start = [0; 4];
    let mut filled = fill(&mut input, &mut start)?;
    if start.starts_with(&GZIP) {
        let packed = Cursor::new(start).take(filled as u64).chain(input);
        input = in_pieces(Box::new(MultiGzDecoder::new(packed)));
        filled = fill(&mut input, &mut start)?;
    }
    let format = open_format(start, filled, &mut input, buffer)?;
    Ok((input, format))
}

/// Reads the beginning of a capture behind its first four bytes, of which `filled` are there.
fn open_format(
    magic: [u8; 4],
    filled: usize,
    input: &mut impl BufRead,
    buffer: &mut Vec<u8>,
) -> Result<Format, Problem> {
    let problem = match filled {
        0 => "the file is empty".into(),
        4 if u32::from_le_bytes(magic) == SECTION_HEADER => {
            return PcapNg::open(input, buffer).map(Format::PcapNg);
        }
        4 => match (Pcap::open(magic, input)?, packing(magic)) {
            (Some(pcap), _) => return Ok(Format::Pcap(pcap)),
            (None, Some((name, unpack))) => format!("it is packed with {name}: {unpack} it first"),
            (None, None) => {
                format!("it begins with {magic:02x?}, as neither pcap nor pcapng files do")
            }
        },
        filled => format!("it has only {filled} bytes"),
    };
    Err(Problem::Damaged(problem))
}

/// How a file is packed that begins so, and the command that unpacks it.
fn packing(magic: [u8; 4]) -> Option<(&'static str, &'static str)> {
    match magic {
        [0x28, 0xb5, 0x2f, 0xfd] => Some(("zstd", "unzstd")),
        [0xfd, b'7', b'z', b'X'] => Some(("xz", "unxz")),
        [b'B', b'Z', b'h', _] => Some(("bzip2", "bunzip2")),
        [b'P', b'K', 3, 4] => Some(("zip", "unzip")),
        [0x04, 0x22, 0x4d, 0x18] => Some(("lz4", "unlz4")),
        _ => None,
    }
}

fn read_error(file: &str, source: io::Error) -> PortError {
    PortError::System { what: "reading a capture", interface: file.into(), source }
}
