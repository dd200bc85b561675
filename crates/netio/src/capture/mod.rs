//! Captures as input and output: pcap and pcapng.
//!
//! Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. The reader takes both byte orders,
//! micro- and nanoseconds, and several interfaces and sections in a pcapng file. The writer uses
//! nanoseconds and the byte order of this machine.

mod link;
mod pcap;
mod pcapng;
mod reader;
mod sink;
mod stored;
mod writer;

pub use link::named as name_of_link_type;
pub use reader::{CaptureReader, Captured, CapturedPacket};
pub use stored::{Stored, StoredPacket};
pub use writer::CaptureWriter;

use std::io::{self, BufRead};

/// The longest accepted block of a pcapng file, in bytes. A longer one is a sign of a damaged file,
/// and must not make this program allocate that much.
const MAX_BLOCK_BYTES: usize = 16 << 20;

/// Byte order of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// Fields of a record, read one after the other.
struct Fields<'a> {
    order: Order,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(|bytes| self.order.u16(bytes))
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(|bytes| self.order.u32(bytes))
    }
}

/// The longest packet that a capture can hold, in bytes: the longest snap length of capturing
/// programs. A longer one is a sign of a damaged file.
const MAX_PACKET: usize = 262_144;

/// One packet of a capture; its bytes are `range` of the buffer that it was appended to.
struct Record {
    range: std::ops::Range<usize>,
    /// The number of its link type.
    link_type: u16,
    /// The byte order of the capture, which NFLOG follows.
    order: Order,
    /// The number of its interface in its section; 0 in a file without interfaces.
    interface: usize,
    /// The port by which it came, if the capture names it.
    port: Option<crate::PortId>,
    /// Nanoseconds since the Unix epoch.
    timestamp: u64,
    /// Bytes that the packet had on the wire.
    original_length: u32,
}

/// The reasons why a record can not be read.
enum Problem {
    Io(io::Error),
    Damaged(String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Problem::Io(error)
    }
}

fn damaged<T>(problem: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Damaged(problem.into()))
}

/// Reads until `buffer` is full or the input ends; returns the bytes read.
fn fill(input: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    take(input, buffer.len(), |bytes| {
        buffer[filled..][..bytes.len()].copy_from_slice(bytes);
        filled += bytes.len();
    })
}

/// Fills `buffer`, or says how many bytes of `what` are missing.
fn fill_all(input: &mut impl BufRead, buffer: &mut [u8], what: &str) -> Result<(), Problem> {
    let filled = fill(input, buffer)?;
    is_whole(filled, buffer.len(), what)
}

/// Appends `count` bytes to `buffer`, or says how many bytes of `what` are missing.
fn append_all(
    input: &mut impl BufRead,
    buffer: &mut Vec<u8>,
    count: usize,
    what: &str,
) -> Result<(), Problem> {
    let appended = take(input, count, |bytes| buffer.extend_from_slice(bytes))?;
    is_whole(appended, count, what)
}

/// Takes `count` bytes, or those in front of the end of the input; returns how many. They come in
/// one piece if they are here.
#[inline(always)]
fn take(input: &mut impl BufRead, count: usize, mut each: impl FnMut(&[u8])) -> io::Result<usize> {
    let mut taken = 0;
    while taken < count {
        let here = match input.fill_buf() {
            Ok([]) => break,
            Ok(here) => &here[..here.len().min(count - taken)],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        each(here);
        let piece = here.len();
        taken += piece;
        input.consume(piece);
    }
    Ok(taken)
}

fn is_whole(filled: usize, all: usize, what: &str) -> Result<(), Problem> {
    if filled == all {
        return Ok(());
    }
    let missing = all - filled;
    damaged(format!("the file ends here: {missing} of {all} bytes of the {what} are missing"))
}

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;
