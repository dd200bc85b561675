//! The pcap format: one header, then records.

use std::io::BufRead;

use super::link::{Link, named};
use super::{
    CapturedPacket, Fields, MAX_PACKET, Order, Problem, Record, append_all, damaged, fill, fill_all,
};

/// Magic number of files with microseconds.
const MICROSECONDS: u32 = 0xa1b2_c3d4;
/// Magic number of files with nanoseconds.
pub(super) const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Bytes of the file header behind the magic number.
const HEADER_REST: usize = 20;
/// Bytes of the header of a record.
pub(super) const RECORD_HEADER: usize = 16;

/// The properties of a file in its header.
pub(super) struct Pcap {
    order: Order,
    link_type: u16,
    /// Nanoseconds of one unit of the fraction of a second.
    unit: u64,
}

impl Pcap {
    /// `None` when `magic` is not that of a pcap file.
    pub(super) fn open(magic: [u8; 4], input: &mut impl BufRead) -> Result<Option<Self>, Problem> {
        let (order, unit) = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (MICROSECONDS, _) => (Order::Little, 1000),
            (NANOSECONDS, _) => (Order::Little, 1),
            (_, MICROSECONDS) => (Order::Big, 1000),
            (_, NANOSECONDS) => (Order::Big, 1),
            _ => return Ok(None),
        };
        let mut header = [0; HEADER_REST];
        fill_all(input, &mut header, "file header")?;
        let [major_high, major_low, .., a, b, c, d] = header;
        let major = order.u16([major_high, major_low]);
        if major != 2 {
            return damaged(format!("version {major} of the pcap format is not known, only 2"));
        }
        // The upper half holds the length of frame check sequences.
        let link_type = (order.u32([a, b, c, d]) & 0xffff) as u16;
        if Link::from_number(link_type).is_none() {
            return damaged(format!(
                "its packets are of {}, which can not be read; known are Ethernet (1), loopback \
                 (0, 108), PPP (9, 50), raw IP (12, 14, 101, 228, 229), Linux cooked (113, 276) and \
                 NFLOG (239)",
                named(link_type)
            ));
        }
        Ok(Some(Self { order, link_type, unit }))
    }

    /// The length of the record that begins here, bytes, its header included. `None` if too few bytes
    /// are here to tell.
    pub(super) fn record_length(&self, here: &[u8]) -> Option<usize> {
        let length = here.get(8..12)?.first_chunk()?;
        Some(RECORD_HEADER + self.order.u32(*length) as usize)
    }

    /// The next record, whose bytes are appended to `buffer`; `None` at the end.
    pub(super) fn next(
        &mut self,
        input: &mut impl BufRead,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Record>, Problem> {
        let mut header = [0; RECORD_HEADER];
        match fill(input, &mut header)? {
            0 => return Ok(None),
            RECORD_HEADER => {}
            filled => {
                let missing = RECORD_HEADER - filled;
                return damaged(format!(
                    "the file ends here: {missing} of {RECORD_HEADER} bytes of the packet header \
                     are missing"
                ));
            }
        }
        let mut fields = Fields { order: self.order, rest: &header };
        let (Some(seconds), Some(fraction), Some(length), Some(original_length)) =
            (fields.u32(), fields.u32(), fields.u32(), fields.u32())
        else {
            return damaged("the packet header is too short");
        };
        let length = length as usize;
        if length > MAX_PACKET {
            return damaged(format!(
                "claims {length} bytes, and no packet is longer than {MAX_PACKET}; the file is \
                 damaged here"
            ));
        }
        let start = buffer.len();
        append_all(input, buffer, length, "packet")?;
        let timestamp = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.unit;
        Ok(Some(Record {
            range: start..start + length,
            link_type: self.link_type,
            order: self.order,
            interface: 0,
            port: None,
            timestamp,
            original_length,
        }))
    }
}

/// A file header with nanoseconds.
pub(super) fn write_header(output: &mut Vec<u8>, link_type: u16) {
    output.extend(NANOSECONDS.to_ne_bytes());
    output.extend(2_u16.to_ne_bytes());
    output.extend(4_u16.to_ne_bytes());
    output.extend([0; 8]);
    output.extend((MAX_PACKET as u32).to_ne_bytes());
    output.extend(u32::from(link_type).to_ne_bytes());
}

/// One packet. `None` if its time is after what 32 bits of seconds hold.
pub(super) fn write_packet(output: &mut Vec<u8>, packet: &CapturedPacket<'_>) -> Option<()> {
    let seconds = u32::try_from(packet.timestamp / 1_000_000_000).ok()?;
    let nanoseconds = (packet.timestamp % 1_000_000_000) as u32;
    // Copied as a whole: a small packet costs hardly more than its header.
    let mut header = [0; 16];
    let fields = [seconds, nanoseconds, packet.bytes.len() as u32, packet.original_length];
    for (place, field) in header.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_ne_bytes());
    }
    output.extend_from_slice(&header);
    output.extend_from_slice(packet.bytes);
    Some(())
}
