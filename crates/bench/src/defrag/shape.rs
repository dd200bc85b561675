//! Datagrams in pieces, as a 1500-byte link cuts them.

use ::defrag::{DatagramKey, Ecn, Piece, Realm};
use wire::build::PacketBuilder;
use wire::{dissect, protocol};

/// Payload of a piece: the bytes that a 1500-byte link leaves behind the IPv4 header.
pub const PIECE: usize = 1480;
/// Length of the UDP header.
pub const UDP_HEADER: usize = 8;
/// Length of the link and the IPv4 header.
pub const HEADERS: usize = 34;
/// Destination of every datagram.
const RECEIVER: [u8; 4] = [198, 19, 0, 1];

/// UDP datagrams of one size. Only source, identification and piece differ between fragments; they
/// are written into the header.
#[derive(Clone, Debug)]
pub struct Shape {
    payload: usize,
    templates: Vec<Template>,
}

#[derive(Clone, Debug)]
struct Template {
    headers: [u8; HEADERS],
    piece: Piece,
}

impl Shape {
    /// Datagrams of `payload` bytes behind the UDP header, in pieces of at most
    /// `piece` bytes.
    pub fn new(payload: usize, piece: usize) -> Self {
        let builder = PacketBuilder::v4([198, 18, 0, 0], RECEIVER);
        let mut whole = Vec::new();
        builder.udp(5353, 5353, &vec![0; payload], &mut whole);
        let frames = builder.fragments(protocol::UDP, &whole[HEADERS..], piece);
        let templates = frames.iter().map(|frame| {
            let network = dissect(frame).ok().and_then(|found| found.network);
            let piece = network.and_then(|network| Piece::of(&network, Realm::default()));
            #[expect(clippy::expect_used, reason = "the builder makes fragments of IPv4")]
            let piece = piece.expect("a fragment");
            let mut headers = [0; HEADERS];
            headers.copy_from_slice(&frame[..HEADERS]);
            Template { headers, piece }
        });
        Self { payload, templates: templates.collect() }
    }

    /// Bytes behind the UDP header.
    pub fn payload(&self) -> usize {
        self.payload
    }

    /// The number of pieces of a datagram.
    pub fn pieces(&self) -> usize {
        self.templates.len()
    }

    /// Bytes behind the IP header that a piece carries on average.
    pub fn mean_piece(&self) -> f64 {
        (self.payload + UDP_HEADER) as f64 / self.pieces() as f64
    }

    /// Bytes of the frame that carries a piece.
    pub fn frame_length(&self, index: usize) -> usize {
        HEADERS + usize::from(self.templates[index].piece.length)
    }

    /// A piece of a datagram, as if an interface had parsed it.
    #[inline]
    pub fn piece(&self, index: usize, source: u32, id: u16) -> Piece {
        let mut piece = self.templates[index].piece;
        piece.key.source[12..].copy_from_slice(&source.to_be_bytes());
        piece.key = piece.key.with_id(id.into());
        piece
    }

    /// Writes the headers of a piece, without a new header checksum.
    #[inline]
    pub fn write(&self, index: usize, source: u32, id: u16, frame: &mut [u8]) {
        frame[..HEADERS].copy_from_slice(&self.templates[index].headers);
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[26..30].copy_from_slice(&source.to_be_bytes());
    }
}

/// Reads the piece from the header of an IPv4 fragment without options behind an Ethernet header.
/// A library that gets the header's place does as much.
#[inline]
pub fn read(frame: &[u8]) -> Piece {
    // One check of the length covers all that follows.
    let frame = &frame[..HEADERS];
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let address = |at: usize| {
        let mut address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        address[12..].copy_from_slice(&frame[at..at + 4]);
        address
    };
    let (size, place) = (word(16), word(20));
    Piece {
        key: DatagramKey::v4(
            Realm::default(),
            address(26),
            address(30),
            frame[23],
            word(18).into(),
        ),
        offset: (place & 0x1fff) * 8,
        length: size - 20,
        more: place & 0x2000 != 0,
        ecn: Ecn::of(frame[15]),
        header: 20,
    }
}
