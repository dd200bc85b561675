//! The pcapng format: blocks, with options.

use std::io::BufRead;

use super::{
    CapturedPacket, Fields, MAX_BLOCK_BYTES, MAX_PACKET, Order, Problem, Record, append_all,
    damaged, fill, fill_all,
};
use crate::PortId;

/// Type of the block that begins a section; it reads the same in both byte orders.
pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// The packet block that enhanced ones replaced.
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// The number whose byte order is that of the section.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

const OPTION_COMMENT: u16 = 1;
const OPTION_SECTION_PROGRAM: u16 = 4;
const OPTION_INTERFACE_NAME: u16 = 2;
const OPTION_INTERFACE_RESOLUTION: u16 = 9;
const OPTION_INTERFACE_OFFSET: u16 = 14;

/// The largest number of accepted interfaces of a section.
const MAX_INTERFACES: usize = 4096;

/// The section that is being read.
pub(super) struct PcapNg {
    order: Order,
    interfaces: Vec<Interface>,
    /// Names of interfaces whose ports are known.
    ports: Vec<String>,
}

struct Interface {
    /// The port of that name.
    port: Option<PortId>,
    link_type: u16,
    /// Empty if the capture does not name it.
    name: String,
    /// The option if_tsresol: negative power of 10, or of 2 with the upper bit set.
    resolution: u8,
    /// Seconds to be added to time stamps.
    offset: i64,
    /// The longest packet that was captured, in bytes; 0 where unlimited.
    snap_length: u32,
}

impl PcapNg {
    /// Reads the section header, after its block type has been read.
    pub(super) fn open(input: &mut impl BufRead, buffer: &mut Vec<u8>) -> Result<Self, Problem> {
        let mut section = Self { order: Order::Little, interfaces: Vec::new(), ports: Vec::new() };
        section.read_section_header(input, buffer)?;
        Ok(section)
    }

    /// Names the ports, before any packet is read.
    pub(super) fn name_ports(&mut self, names: Vec<String>) {
        self.ports = names;
    }

    /// The length of the block that begins here, bytes, if it holds a packet. `None` for any other, or
    /// if too few bytes are here to tell.
    pub(super) fn block_length(&self, here: &[u8]) -> Option<usize> {
        let mut fields = Fields { order: self.order, rest: here };
        match fields.u32()? {
            ENHANCED_PACKET | OBSOLETE_PACKET | SIMPLE_PACKET => Some(fields.u32()? as usize),
            _ => None,
        }
    }

    /// The next packet, whose bytes are appended to `buffer`; `None` at the end.
    pub(super) fn next(
        &mut self,
        input: &mut impl BufRead,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Record>, Problem> {
        let start = buffer.len();
        loop {
            // Blocks without a packet do not stay.
            buffer.truncate(start);
            let mut kind = [0; 4];
            match fill(input, &mut kind)? {
                0 => return Ok(None),
                4 => {}
                _ => return damaged("the file ends here, in the middle of a block type"),
            }
            let kind = self.order.u32(kind);
            if kind == SECTION_HEADER {
                self.read_section_header(input, buffer)?;
                continue;
            }
            let mut length = [0; 4];
            fill_all(input, &mut length, "block length")?;
            self.read_body(input, buffer, length, 8)?;
            let body = &buffer[start..];
            let record = match kind {
                INTERFACE => {
                    self.add_interface(body)?;
                    continue;
                }
                ENHANCED_PACKET | OBSOLETE_PACKET => self.packet(kind, body)?,
                SIMPLE_PACKET => self.simple_packet(body)?,
                _ => continue,
            };
            let Some(mut record) = record else {
                return damaged("the block is too short for its fields");
            };
            record.range = start + record.range.start..start + record.range.end;
            return Ok(Some(record));
        }
    }

    fn read_section_header(
        &mut self,
        input: &mut impl BufRead,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Problem> {
        let start = buffer.len();
        let mut header = [0; 8];
        fill_all(input, &mut header, "section header")?;
        let [l0, l1, l2, l3, magic @ ..] = header;
        self.order = if u32::from_le_bytes(magic) == BYTE_ORDER {
            Order::Little
        } else if u32::from_be_bytes(magic) == BYTE_ORDER {
            Order::Big
        } else {
            return damaged(format!("{magic:02x?} is not the byte order mark of a pcapng section"));
        };
        self.interfaces.clear();
        self.read_body(input, buffer, [l0, l1, l2, l3], 12)?;
        match (Fields { order: self.order, rest: &buffer[start..] }).u16() {
            Some(1) => Ok(()),
            Some(major) => {
                damaged(format!("version {major} of the pcapng format is not known, only 1"))
            }
            None => damaged("the section header is too short"),
        }
    }

    /// Appends the rest of a block of which `consumed` bytes have been read.
    fn read_body(
        &self,
        input: &mut impl BufRead,
        buffer: &mut Vec<u8>,
        length: [u8; 4],
        consumed: usize,
    ) -> Result<(), Problem> {
        let total = self.order.u32(length) as usize;
        if total < consumed + 4 || total > MAX_BLOCK_BYTES || !total.is_multiple_of(4) {
            return damaged(format!(
                "the block length {total} is not a multiple of 4 from {} to {MAX_BLOCK_BYTES}",
                consumed + 4
            ));
        }
        append_all(input, buffer, total - consumed, "block")?;
        let repeated = buffer.len() - 4;
        if buffer[repeated..] != length {
            return damaged("the block length at the end of the block differs from the first one");
        }
        buffer.truncate(repeated);
        Ok(())
    }

    fn add_interface(&mut self, body: &[u8]) -> Result<(), Problem> {
        if self.interfaces.len() == MAX_INTERFACES {
            return damaged(format!("the section has more than {MAX_INTERFACES} interfaces"));
        }
        let mut fields = Fields { order: self.order, rest: body };
        let (Some(link_type), Some(_), Some(snap_length)) =
            (fields.u16(), fields.u16(), fields.u32())
        else {
            return damaged("the interface block is too short for its fields");
        };
        let mut interface = Interface {
            port: None,
            link_type,
            name: String::new(),
            resolution: 6,
            offset: 0,
            snap_length,
        };
        while let (Some(code), Some(length)) = (fields.u16(), fields.u16()) {
            let length = usize::from(length);
            let Some(value) = fields.bytes(length) else {
                return damaged("an option is longer than its interface block");
            };
            match (code, value) {
                (OPTION_INTERFACE_NAME, name) => {
                    let port = self.ports.iter().position(|port| port.as_bytes() == name);
                    interface.port = port.map(|port| PortId(port as u16));
                    interface.name = String::from_utf8_lossy(name).into_owned();
                }
                (OPTION_INTERFACE_RESOLUTION, &[resolution]) => interface.resolution = resolution,
                (OPTION_INTERFACE_OFFSET, value) => {
                    let mut value = Fields { order: self.order, rest: value };
                    if let (Some(first), Some(second)) = (value.u32(), value.u32()) {
                        let (high, low) = match self.order {
                            Order::Little => (second, first),
                            Order::Big => (first, second),
                        };
                        interface.offset = (u64::from(high) << 32 | u64::from(low)).cast_signed();
                    }
                }
                _ => {}
            }
            fields.bytes(length.next_multiple_of(4) - length);
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn interface(&self, number: usize) -> Result<&Interface, Problem> {
        match self.interfaces.get(number) {
            Some(interface) => Ok(interface),
            None => damaged(format!("belongs to interface {number}, which is not described")),
        }
    }

    /// The name of an interface; empty if the capture does not tell it.
    pub(super) fn interface_name(&self, number: usize) -> &str {
        self.interfaces.get(number).map_or("", |interface| &interface.name)
    }

    fn packet(&self, kind: u32, body: &[u8]) -> Result<Option<Record>, Problem> {
        let mut fields = Fields { order: self.order, rest: body };
        let number = if kind == ENHANCED_PACKET {
            fields.u32()
        } else {
            let number = fields.u16().map(u32::from);
            fields.u16();
            number
        };
        let (Some(number), Some(high), Some(low), Some(length), Some(original_length)) =
            (number, fields.u32(), fields.u32(), fields.u32(), fields.u32())
        else {
            return Ok(None);
        };
        let number = number as usize;
        let interface = self.interface(number)?;
        let range = range(body.len() - fields.rest.len(), length as usize, body)?;
        let timestamp = interface.nanoseconds(u64::from(high) << 32 | u64::from(low));
        let &Interface { link_type, port, .. } = interface;
        let (interface, order) = (number, self.order);
        Ok(Some(Record { range, link_type, order, interface, port, timestamp, original_length }))
    }

    fn simple_packet(&self, body: &[u8]) -> Result<Option<Record>, Problem> {
        let mut fields = Fields { order: self.order, rest: body };
        let Some(original_length) = fields.u32() else { return Ok(None) };
        let interface = self.interface(0)?;
        let limit = if interface.snap_length == 0 { u32::MAX } else { interface.snap_length };
        let range = range(4, original_length.min(limit) as usize, body)?;
        let &Interface { link_type, port, .. } = interface;
        let (interface, timestamp, order) = (0, 0, self.order);
        Ok(Some(Record { range, link_type, order, interface, port, timestamp, original_length }))
    }
}

/// The place of the packet in its block.
fn range(start: usize, length: usize, body: &[u8]) -> Result<std::ops::Range<usize>, Problem> {
    if length > MAX_PACKET {
        return damaged(format!(
            "claims {length} bytes, and no packet is longer than {MAX_PACKET}"
        ));
    }
    if length > body.len() - start {
        return damaged(format!(
            "claims {length} bytes, and its block holds only {}",
            body.len() - start
        ));
    }
    Ok(start..start + length)
}

impl Interface {
    /// Nanoseconds since the Unix epoch; 0 for a time outside of the range of 64 bits.
    fn nanoseconds(&self, ticks: u64) -> u64 {
        const PER_SECOND: u128 = 1_000_000_000;
        let exponent = u32::from(self.resolution & 0x7f);
        let ticks = u128::from(ticks);
        let nanoseconds = if self.resolution & 0x80 != 0 {
            (ticks * PER_SECOND) >> exponent
        } else if exponent <= 9 {
            ticks * 10_u128.pow(9 - exponent)
        } else {
            10_u128.checked_pow(exponent - 9).map_or(0, |divisor| ticks / divisor)
        };
        // Below 2^94, so the conversion is exact and the sum can not overflow.
        let sum = nanoseconds.cast_signed() + i128::from(self.offset) * PER_SECOND.cast_signed();
        u64::try_from(sum).unwrap_or(0)
    }
}

/// Writes one block around the output of `write`.
fn block(output: &mut Vec<u8>, kind: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let start = output.len();
    output.extend(kind.to_ne_bytes());
    output.extend([0; 4]);
    write(output);
    let length = ((output.len() - start + 4) as u32).to_ne_bytes();
    output[start + 4..start + 8].copy_from_slice(&length);
    output.extend(length);
}

/// Writes bytes and fills up to a multiple of 4.
fn padded(output: &mut Vec<u8>, bytes: &[u8]) {
    output.extend(bytes);
    output.extend(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()]);
}

fn option(output: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    output.extend(code.to_ne_bytes());
    output.extend((value.len() as u16).to_ne_bytes());
    padded(output, value);
}

/// Ends a list of options.
fn end_of_options(output: &mut Vec<u8>) {
    output.extend([0; 4]);
}

/// The beginning of a section.
pub(super) fn write_header(output: &mut Vec<u8>) {
    block(output, SECTION_HEADER, |output| {
        output.extend(BYTE_ORDER.to_ne_bytes());
        output.extend(1_u16.to_ne_bytes());
        output.extend(0_u16.to_ne_bytes());
        output.extend(u64::MAX.to_ne_bytes());
        option(output, OPTION_SECTION_PROGRAM, b"stateway");
        end_of_options(output);
    });
}

/// An interface with nanoseconds. An empty name is left out.
pub(super) fn write_interface(output: &mut Vec<u8>, name: &str, link_type: u16) {
    block(output, INTERFACE, |output| {
        output.extend(link_type.to_ne_bytes());
        output.extend(0_u16.to_ne_bytes());
        output.extend((MAX_PACKET as u32).to_ne_bytes());
        if !name.is_empty() {
            option(output, OPTION_INTERFACE_NAME, name.as_bytes());
        }
        option(output, OPTION_INTERFACE_RESOLUTION, &[9]);
        end_of_options(output);
    });
}

/// One packet of an interface, with a comment if it is not empty.
pub(super) fn write_packet(
    output: &mut Vec<u8>,
    interface: u32,
    packet: &CapturedPacket<'_>,
    comment: &str,
) {
    block(output, ENHANCED_PACKET, |output| {
        let time = packet.timestamp;
        let length = packet.bytes.len() as u32;
        let fields = [interface, (time >> 32) as u32, time as u32, length, packet.original_length];
        for field in fields {
            output.extend(field.to_ne_bytes());
        }
        padded(output, packet.bytes);
        if !comment.is_empty() {
            option(output, OPTION_COMMENT, comment.as_bytes());
            end_of_options(output);
        }
    });
}
