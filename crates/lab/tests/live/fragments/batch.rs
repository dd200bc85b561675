//! Many sequences in one capture, and the check of what arrives.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use lab::{Arrival, Capture, END, Family, Piece, Random, udp};

use super::model::Expected;
use super::sequence::{IDS, PORT, Sequence, SequenceEnds};
use crate::scenario::FAMILIES;

/// The number of sequences of each family in a batch. Each has its own source address.
pub const SEQUENCES: u64 = 250;
/// The number of sequences whose fragments are interleaved.
const TOGETHER: usize = 4;
/// The time between two frames: a pace that every receiver keeps up with.
const INTERVAL: Duration = Duration::from_micros(20);
/// The number of sequences that a failure lists.
const MOST_LISTED: usize = 5;

/// Sequences that differ in their source addresses.
pub struct Batch {
    pub sequences: Vec<Sequence>,
}

impl Batch {
    /// The batch of this number. Each batch has its own seeds and identifications.
    pub fn generate(number: u32, destination: impl Fn(Family) -> IpAddr) -> Self {
        let mut sequences = Vec::new();
        for family in FAMILIES {
            for host in 1..=SEQUENCES as u16 {
                let source = match family {
                    Family::V4 => Ipv4Addr::new(198, 51, 100, host as u8).into(),
                    Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, host).into(),
                };
                let seed = 2 * (u64::from(number) * SEQUENCES + u64::from(host))
                    + u64::from(family == Family::V6);
                // Identification 0 is left out: with it some senders let the kernel choose.
                let first_id = 1 + number * IDS;
                let destination = destination(family);
                let place = SequenceEnds { source, destination, port: 1024 + host, first_id };
                sequences.push(Sequence::generate(seed, place));
            }
        }
        Random::new(number.into()).shuffle(&mut sequences);
        Self { sequences }
    }

    /// The fragments, interleaved, and then the frame that announces the end.
    pub fn capture(&self, mac: [u8; 6], end: (IpAddr, IpAddr)) -> Capture {
        let mut random = Random::new(self.sequences[0].seed);
        let (mut capture, mut time) = (Capture::new(), Duration::ZERO);
        let mut push = |piece: &Piece| {
            capture.push(time, &piece.frame(mac));
            time += INTERVAL;
        };
        for group in self.sequences.chunks(TOGETHER) {
            let mut left: Vec<&[Piece]> = group.iter().map(|one| &one.pieces[..]).collect();
            left.retain(|pieces| !pieces.is_empty());
            while !left.is_empty() {
                let turn = random.between(0, left.len() - 1);
                push(&left[turn][0]);
                left[turn] = &left[turn][1..];
                left.retain(|pieces| !pieces.is_empty());
            }
        }
        let (source, destination) = end;
        let bytes = udp(end, (PORT, PORT), END, true);
        push(&Piece { source, destination, id: 1, offset: 0, more: false, ecn: 0, bytes });
        capture
    }

    /// A description, with its seed, of each sequence whose arrivals differ from `expected`.
    pub fn complaints(
        &self,
        arrivals: Vec<Arrival>,
        expected: impl Fn(&Sequence) -> Expected,
    ) -> String {
        let mut by_source: HashMap<String, Vec<Arrival>> = HashMap::new();
        for arrival in arrivals {
            by_source.entry(arrival.source.clone()).or_default().push(arrival);
        }
        let mut complaints = Vec::new();
        for sequence in &self.sequences {
            let source = sequence.place.source.to_string();
            let mut arrived = by_source.remove(&source).unwrap_or_default();
            let expected = expected(sequence);
            let (mut wanted, rules) = (expected.arrivals, expected.rules);
            arrived.sort();
            wanted.sort();
            if arrived != wanted {
                complaints.push(format!(
                    "seed {} from {source}, {} fragments: arrived {arrived:?}, expected {wanted:?}, \
                    rules {rules:?}\n{}",
                    sequence.seed,
                    sequence.pieces.len(),
                    outline(sequence)
                ));
            }
        }
        complaints.extend(by_source.keys().map(|source| format!("unknown source {source}")));
        let count = complaints.len();
        complaints.truncate(MOST_LISTED);
        match count {
            0 => String::new(),
            _ => format!("{count} of {}:\n{}", self.sequences.len(), complaints.join("\n")),
        }
    }
}

/// The fragments in short: `id offset+length`, `*` for "more fragments", `e` and the ECN field.
fn outline(sequence: &Sequence) -> String {
    const SHOWN: usize = 60;
    let piece = |piece: &Piece| {
        let id = piece.id - sequence.place.first_id;
        let more = if piece.more { "*" } else { "" };
        format!("{id}:{}+{}{more}e{}", piece.offset, piece.bytes.len(), piece.ecn)
    };
    let shown: Vec<String> = sequence.pieces.iter().take(SHOWN).map(piece).collect();
    shown.join(" ")
}
