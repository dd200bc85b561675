//! Senders whose datagrams show whether they arrive intact.

use wire::build::PacketBuilder;
use wire::checksum::Sum;
use wire::protocol;

use super::shape::{HEADERS, PIECE, UDP_HEADER};
use crate::traffic::Random;

/// Destination of all datagrams.
pub const RECEIVER: [u8; 4] = [198, 19, 0, 1];
/// The first sender's address.
const FIRST: u32 = 0xc612_0001;
/// Payloads behind the UDP header, in bytes: the largest datagram, three full pieces, and a little
/// more than one piece.
pub const SIZES: [usize; 3] = [65_507, 4416, 1800];
/// Senders of each size.
pub const SENDERS_PER_SIZE: usize = 4;
const SENDERS: usize = SIZES.len() * SENDERS_PER_SIZE;
/// Bytes of the number in front of a payload, and of the checksum behind it.
const NUMBER: usize = 8;

/// The addresses of all senders.
pub fn addresses() -> [u32; SENDERS] {
    std::array::from_fn(|number| FIRST + number as u32)
}

/// One sender.
#[derive(Debug)]
pub struct Sender {
    address: u32,
    size: usize,
    id: u16,
    /// The bits of its identification that count.
    ids: u16,
    sequence: u64,
    frames: std::vec::IntoIter<Vec<u8>>,
}

impl Sender {
    /// All senders. Each counts in these bits of its identifications: in all, or in the lower ones
    /// so that they repeat soon.
    pub fn all(ids: u16) -> Vec<Self> {
        let sender = |(number, address): (usize, u32)| Self {
            address,
            size: number / SENDERS_PER_SIZE,
            id: (number * 5000) as u16,
            ids,
            sequence: 0,
            frames: Vec::new().into_iter(),
        };
        addresses().into_iter().enumerate().map(sender).collect()
    }

    /// Position of its size in [`SIZES`].
    pub fn size(&self) -> usize {
        self.size
    }

    /// The next fragment.
    pub fn next(&mut self) -> Vec<u8> {
        loop {
            match self.frames.next() {
                Some(frame) => return frame,
                None => self.begin(),
            }
        }
    }

    /// Pieces of each of its datagrams.
    pub fn pieces(&self) -> usize {
        (SIZES[self.size] + UDP_HEADER).div_ceil(PIECE)
    }

    fn begin(&mut self) {
        self.sequence += 1;
        self.id = self.id & !self.ids | self.id.wrapping_add(1) & self.ids;
        let payload = payload(self.address, self.sequence, SIZES[self.size]);
        let builder = PacketBuilder::v4(self.address.to_be_bytes(), RECEIVER).id(self.id.into());
        let mut whole = Vec::with_capacity(HEADERS + UDP_HEADER + payload.len());
        builder.udp(5353, 5353, &payload, &mut whole);
        self.frames = builder.fragments(protocol::UDP, &whole[HEADERS..], PIECE).into_iter();
    }
}

/// The sequence number, bytes that follow from it, and a checksum over both.
fn payload(address: u32, sequence: u64, size: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(size);
    payload.extend(sequence.to_be_bytes());
    let mut random = Random(u64::from(address) << 32 ^ sequence);
    while payload.len() + NUMBER < size {
        payload.extend(random.next().to_be_bytes());
    }
    payload.truncate(size - NUMBER);
    let sum = digest(&payload);
    payload.extend(sum.to_be_bytes());
    payload
}

/// 64 bits over every byte and its place, in the manner of FNV-1a over words.
fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let step =
        |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
    let sum =
        words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| step(sum, u64::from_be_bytes(*word)));
    rest.iter().fold(sum, |sum, &byte| step(sum, byte.into()))
}

/// A receiver's result for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The datagram is as the sender with this number of [`addresses`] sent it.
    Intact {
        /// The sender.
        sender: usize,
    },
    /// The datagram is not of a sender.
    Foreign,
    /// The datagram has a sender's address and wrong content, and the UDP checksum shows it: any
    /// stack drops it.
    Refused,
    /// The datagram has a sender's address and wrong content, and the UDP checksum does not show
    /// it.
    Corrupt,
}

/// Checks the fragments of a completed datagram, in order.
pub fn receive<'a>(frames: impl Iterator<Item = &'a [u8]>, datagram: &mut Vec<u8>) -> Received {
    datagram.clear();
    let mut source = 0;
    for frame in frames {
        source = u32::from_be_bytes([frame[26], frame[27], frame[28], frame[29]]);
        let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        datagram.extend(&frame[HEADERS..end]);
    }
    let Some(sender) = addresses().iter().position(|&address| address == source) else {
        return Received::Foreign;
    };
    let whole = SIZES[sender / SENDERS_PER_SIZE] + UDP_HEADER;
    let intact = datagram.len() == whole && {
        let (payload, sum) = datagram[UDP_HEADER..].split_at(whole - UDP_HEADER - NUMBER);
        digest(payload).to_be_bytes() == *sum
    };
    if intact {
        return Received::Intact { sender };
    }
    let length = datagram.len() as u16;
    let sum = Sum::ZERO.bytes(&source.to_be_bytes()).bytes(&RECEIVER);
    let sum = sum.word(protocol::UDP.into()).word(length).bytes(datagram);
    if sum.finish() == 0 { Received::Corrupt } else { Received::Refused }
}
