//! Sequences of fragments as senders, networks and attackers produce them. The seed determines each
//! of them.

use std::net::IpAddr;

use lab::{Piece, Random, udp};

/// The destination port of the datagrams.
pub const PORT: u16 = 7001;
/// The number of identifications that a sequence may use, from its first one up.
pub const IDS: u32 = 1024;
/// The length in bytes of the longest UDP datagram over IPv4, with its header.
const LONGEST: usize = 65_515;
/// A datagram length in bytes: in fragments of 8 bytes, as many of them begin in 4 KiB as may.
const FULL_BLOCK: usize = 8 * 128;
/// The largest number of fragments of a datagram.
const MOST_PIECES: usize = 600;
/// The numbers of fragments of the same source that come in between. The first two let a datagram
/// go on. The last is above `ipfrag_max_dist` (64) even if the workers count separately, so that
/// the identification may have been reused.
const PAUSES: [usize; 3] = [5, 20, 400];

/// The addresses of a sequence, and the port and first identification that distinguish it from
/// others.
#[derive(Clone, Copy, Debug)]
pub struct SequenceEnds {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub port: u16,
    pub first_id: u32,
}

/// Fragments in the order in which they are sent.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub seed: u64,
    pub place: SequenceEnds,
    pub pieces: Vec<Piece>,
}

/// The ways in which fragments may go wrong.
#[derive(Clone, Copy, Debug)]
enum Defect {
    Missing,
    Duplicate,
    /// A repetition of bytes that a fragment has, or several have, with other boundaries.
    Again,
    /// The same as `Again` with other bytes.
    Conflict,
    /// A fragment before the last whose length is no multiple of 8.
    OddLength,
    /// A fragment that wrongly claims to be the last, or wrongly claims that it is not.
    OtherEnd,
    /// A fragment behind the last.
    PastEnd,
    Empty,
    /// A fragment that ends behind byte 65535.
    Oversize,
    Ecn,
    /// Another datagram with the same identification, after the first.
    SameId,
    /// Fragments of other datagrams of the same source come in between.
    Pause,
    /// A whole datagram with the same identification comes in between; with IPv6 it is an atomic
    /// fragment.
    Whole,
}

const DEFECTS: [Defect; 13] = [
    Defect::Missing,
    Defect::Duplicate,
    Defect::Again,
    Defect::Conflict,
    Defect::OddLength,
    Defect::OtherEnd,
    Defect::PastEnd,
    Defect::Empty,
    Defect::Oversize,
    Defect::Ecn,
    Defect::SameId,
    Defect::Pause,
    Defect::Whole,
];

impl Sequence {
    /// The sequence that this seed determines.
    pub fn generate(seed: u64, place: SequenceEnds) -> Self {
        let mut maker = Maker { random: Random::new(seed), place, datagram: Vec::new() };
        let mut pieces = maker.datagram_in_pieces();
        maker.reorder(&mut pieces);
        let defects = maker.random.one_of(&[0, 0, 0, 1, 1, 1, 1, 2, 2, 3]);
        for _ in 0..defects {
            let defect = maker.random.one_of(&DEFECTS);
            maker.inflict(defect, &mut pieces);
        }
        Self { seed, place, pieces }
    }
}

struct Maker {
    random: Random,
    place: SequenceEnds,
    /// The last datagram that was cut.
    datagram: Vec<u8>,
}

impl Maker {
    fn is_v4(&self) -> bool {
        self.place.source.is_ipv4()
    }

    /// The length in bytes of the longest fragment that fits into an Ethernet frame.
    fn longest_piece(&self) -> usize {
        if self.is_v4() { 1480 } else { 1448 }
    }

    fn datagram_in_pieces(&mut self) -> Vec<Piece> {
        let length = match self.random.between(0, 12) {
            0 => FULL_BLOCK + 8 * self.random.between(0, 4) - 16,
            1..=2 => self.random.between(9, 64),
            3..=5 => self.random.between(65, 3000),
            6..=9 => self.random.between(3001, 9000),
            10 => self.random.between(9001, LONGEST),
            11 => LONGEST,
            _ => self.random.between(9, 64),
        };
        // The last fragment should end on a unit of 8 bytes more often than by chance.
        let length = if self.random.once_in(4) { length.next_multiple_of(8) } else { length };
        let payload = self.random.bytes(length.min(LONGEST) - 8);
        let checksum = !self.is_v4() || self.random.once_in(2);
        let SequenceEnds { source, destination, port, .. } = self.place;
        self.datagram = udp((source, destination), (port, PORT), &payload, checksum);
        self.cut()
    }

    /// Cuts the datagram into fragments of one length or of several, in order.
    fn cut(&mut self) -> Vec<Piece> {
        let (length, longest) = (self.datagram.len(), self.longest_piece());
        let shortest = (length / MOST_PIECES).next_multiple_of(8).max(8);
        let one = self.random.one_of(&[shortest, 16, 64, 552, longest, longest, longest]);
        let one = one.max(shortest);
        let one = if length.abs_diff(FULL_BLOCK) <= 16 { 8 } else { one };
        let ragged = one > 8 && self.random.once_in(3);
        let ecn = self.random.one_of(&[0, 0, 0, 1, 2, 3]);
        let mut pieces = Vec::new();
        let mut offset = 0;
        while offset < length {
            let step =
                if ragged { self.random.between(shortest / 8, longest / 8) * 8 } else { one };
            let end = (offset + step).min(length);
            pieces.push(self.piece(offset, end, ecn));
            offset = end;
        }
        pieces
    }

    /// A fragment with these bytes of the datagram, up to its end.
    fn piece(&self, offset: usize, end: usize, ecn: u8) -> Piece {
        let end = end.min(self.datagram.len());
        Piece {
            source: self.place.source,
            destination: self.place.destination,
            id: self.place.first_id,
            offset: offset as u32,
            more: end < self.datagram.len(),
            ecn,
            bytes: self.datagram[offset..end].to_vec(),
        }
    }

    fn reorder(&mut self, pieces: &mut [Piece]) {
        match self.random.between(0, 7) {
            0..=3 => {}
            4 => pieces.reverse(),
            5 => self.random.shuffle(pieces),
            6 => pieces.rotate_right(1),
            _ => {
                for pair in pieces.chunks_exact_mut(2) {
                    if self.random.once_in(3) {
                        pair.swap(0, 1);
                    }
                }
            }
        }
    }

    fn inflict(&mut self, defect: Defect, pieces: &mut Vec<Piece>) {
        if pieces.is_empty() {
            return;
        }
        let victim = self.random.between(0, pieces.len() - 1);
        match defect {
            Defect::Missing => {
                pieces.remove(victim);
            }
            Defect::OddLength if self.random.once_in(2) => {
                pieces[victim] = self.wrong_piece(defect, pieces, victim);
            }
            Defect::Ecn => {
                let ecn = self.random.between(0, 3) as u8;
                let share = self.random.between(1, 4);
                for piece in pieces.iter_mut() {
                    if self.random.once_in(share) {
                        piece.ecn = ecn;
                    }
                }
            }
            Defect::SameId => {
                let mut second = self.datagram_in_pieces();
                self.reorder(&mut second);
                pieces.append(&mut second);
            }
            Defect::Pause => {
                let pause = self.pause();
                pieces.splice(victim..victim, pause);
            }
            _ => {
                let piece = self.wrong_piece(defect, pieces, victim);
                let at = self.random.between(0, pieces.len());
                pieces.insert(at, piece);
            }
        }
    }

    /// A fragment that does not belong, mostly made from the one at `victim`.
    fn wrong_piece(&mut self, defect: Defect, pieces: &[Piece], victim: usize) -> Piece {
        let mut piece = pieces[victim].clone();
        match defect {
            Defect::Again => piece = self.other_cut(piece.ecn),
            Defect::Conflict => {
                piece = self.other_cut(piece.ecn);
                // The UDP header stays: otherwise the datagram would not reach the socket.
                let from = if piece.offset == 0 { 8.min(piece.bytes.len()) } else { 0 };
                piece.bytes[from..].iter_mut().for_each(|byte| *byte ^= 0x55);
            }
            Defect::OddLength => {
                piece.more = true;
                let length = piece.bytes.len();
                piece.bytes.truncate(length.saturating_sub(self.random.between(1, 7)).max(1));
            }
            Defect::OtherEnd if self.random.once_in(2) => {
                if let Some(last) = pieces.iter().find(|piece| !piece.more) {
                    piece = Piece { more: true, ..last.clone() };
                }
            }
            Defect::OtherEnd => {
                piece = self.other_cut(piece.ecn);
                piece.more = false;
            }
            Defect::PastEnd => {
                let end = self.datagram.len().next_multiple_of(8) + 8 * self.random.between(0, 3);
                piece.offset = end.min(65_528) as u32;
                piece.more = self.random.once_in(2);
                piece.bytes = self.random.bytes(8);
            }
            Defect::Empty => piece.bytes.clear(),
            Defect::Oversize => {
                piece.offset = (65_528 - 8 * self.random.between(0, 3)) as u32;
                piece.more = self.random.once_in(2);
                let length = 8 * self.random.between(4, 20);
                piece.bytes = self.random.bytes(length);
            }
            Defect::Whole => {
                let SequenceEnds { source, destination, port, .. } = self.place;
                let payload = self.random.bytes(100);
                piece.bytes = udp((source, destination), (port, PORT), &payload, true);
                (piece.offset, piece.more) = (0, false);
            }
            // These use the fragment itself.
            Defect::Duplicate | Defect::Missing | Defect::Ecn | Defect::SameId | Defect::Pause => {}
        }
        piece
    }

    /// A random part of the datagram that fits into a frame.
    fn other_cut(&mut self, ecn: u8) -> Piece {
        let units = self.datagram.len().div_ceil(8);
        let start = self.random.between(0, units - 1);
        let length = match self.random.between(0, 2) {
            0 => 8,
            1 => 8 * self.random.between(1, 20),
            _ => 8 * self.random.between(1, self.longest_piece() / 8),
        };
        self.piece(8 * start, 8 * start + length, ecn)
    }

    /// First fragments of other datagrams.
    fn pause(&mut self) -> Vec<Piece> {
        let count = self.random.one_of(&PAUSES);
        let SequenceEnds { source, destination, port, .. } = self.place;
        let header = udp((source, destination), (port, PORT), &[0; 100], false);
        let filler = |id| Piece {
            source,
            destination,
            id,
            offset: 0,
            more: true,
            ecn: 0,
            bytes: header[..8].to_vec(),
        };
        // Two pauses may use the same identifications; the fragments of the second are then
        // duplicates.
        (1..=count as u32).map(|number| filler(self.place.first_id + number)).collect()
    }
}
