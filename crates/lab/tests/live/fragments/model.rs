//! What two reassemblers are to make of a sequence: the kernel's, and Stateway's in
//! front of the kernel's. The second is the first with the rules of [`Stricter`].

use std::collections::{BTreeSet, HashMap};

use lab::{Arrival, Piece, digest, udp_sum};

use super::sequence::{PORT, Sequence};

/// Where Stateway differs from the kernel by design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stricter {
    /// IPv4 only: a fragment before the last whose length is no multiple of 8 is
    /// dropped. The kernel cuts it to one, and so puts together what nobody sent.
    OddLength,
    /// A fragment without payload is dropped alone. It says nothing about the bytes
    /// of its datagram, for which the kernel gives the datagram up.
    Empty,
    /// IPv4 only: a fragment that ends behind byte 65535 is dropped alone, at once.
    /// The kernel holds it and drops the whole datagram when it is complete.
    Oversize,
    /// After a contradiction the identification stays condemned until its time is
    /// over (RFC 5722 section 4 for IPv6). The kernel begins anew, and what is left of
    /// the datagram may meet what an attacker sends next.
    Remembered,
    /// A fragment is a duplicate if all of its bytes are there, in whatever pieces
    /// they came. To the kernel it is an overlap if they lie in two runs.
    Duplicate,
    /// A fragment that says that more follows must end before the end of the datagram,
    /// and the last one behind all others. The kernel lets them end together.
    MoreAtEnd,
    /// A mixture of ECN fields that must be dropped (RFC 3168 section 5.3) condemns
    /// the datagram as soon as it is seen. The kernel looks when it is complete.
    EcnAtOnce,
    /// At most 128 fragments begin in 4 KiB: the smallest legal IPv4 link needs 86.
    ManyPieces,
    /// A duplicate does not show that a datagram goes on, so it does not reset the
    /// distance after which the identification may have come round.
    Distance,
}

/// What arrives, and which rules came into it.
#[derive(Debug, Default)]
pub struct Expected {
    pub arrivals: Vec<Arrival>,
    pub rules: BTreeSet<Stricter>,
}

/// Default of `ipfrag_max_dist`.
const MAX_DISTANCE: u32 = 64;
/// Default of `ipfrag_pieces_per_4k`.
const PIECES_PER_4K: u16 = 128;
const LONGEST: u32 = 65_535;

/// What a receiver without a gateway gets.
pub fn kernel(sequence: &Sequence) -> Expected {
    let mut model = Model::default();
    for piece in &sequence.pieces {
        let datagram =
            if is_whole(piece) { Some(piece.bytes.clone()) } else { model.kernel(piece) };
        model.deliver(piece, datagram);
    }
    model.expected
}

/// What a receiver behind Stateway gets: the kernel puts together without further ado
/// what Stateway lets through.
pub fn stateway(sequence: &Sequence) -> Expected {
    let mut model = Model::default();
    for piece in &sequence.pieces {
        let datagram =
            if is_whole(piece) { Some(piece.bytes.clone()) } else { model.stateway(piece) };
        model.deliver(piece, datagram);
    }
    model.expected
}

fn is_whole(piece: &Piece) -> bool {
    piece.offset == 0 && !piece.more
}

#[derive(Default)]
struct Model {
    queues: HashMap<u32, Queue>,
    /// Fragments of the source so far.
    count: u32,
    expected: Expected,
}

#[derive(Default)]
struct Queue {
    held: Vec<(u32, Vec<u8>)>,
    /// Stretches without a gap, by offset. The kernel lengthens the last one only.
    runs: Vec<(u32, u32)>,
    received: u32,
    reach: u32,
    total: Option<u32>,
    /// One bit for each ECN field that was seen.
    ecn: u8,
    /// The source's count when the queue was last added to, and when a fragment of
    /// it last came.
    added: u32,
    touched: u32,
    condemned: bool,
    /// Pieces that begin in each 4 KiB.
    begun: [u16; 16],
}

/// How a piece lies to what is held.
enum Fit {
    New,
    Duplicate,
    Overlap,
}

impl Model {
    fn deliver(&mut self, piece: &Piece, datagram: Option<Vec<u8>>) {
        let arrival = datagram.and_then(|datagram| arrival(piece, &datagram));
        self.expected.arrivals.extend(arrival);
    }

    fn note(&mut self, rule: Stricter) {
        self.expected.rules.insert(rule);
    }

    /// Linux 6.18, `ip_frag_queue`, `ip6_frag_queue` and `inet_frag_queue_insert`.
    fn kernel(&mut self, piece: &Piece) -> Option<Vec<u8>> {
        let v4 = piece.source.is_ipv4();
        let mut end = piece.offset + piece.bytes.len() as u32;
        let first_without_header = piece.offset == 0 && piece.bytes.len() < 8;
        let odd = piece.more && !end.is_multiple_of(8);
        if !v4 && (first_without_header || end > LONGEST || odd) {
            return None;
        }
        if odd {
            end -= end % 8;
        }
        self.count += 1;
        let queue = self.queues.entry(piece.id).or_default();
        if v4 && !queue.held.is_empty() && self.count - queue.touched > MAX_DISTANCE {
            *queue = Queue::default();
        }
        queue.touched = self.count;
        let contradiction = match (piece.more, queue.total) {
            (true, None) => false,
            (true, Some(total)) => end > total,
            (false, None) => end < queue.reach,
            (false, Some(total)) => end != total,
        };
        if contradiction || end == piece.offset {
            self.queues.remove(&piece.id);
            return None;
        }
        if !piece.more {
            queue.total = Some(end);
        }
        queue.reach = queue.reach.max(end);
        match queue.fit_in_runs(piece.offset, end) {
            Fit::Duplicate => return None,
            Fit::Overlap => {
                self.queues.remove(&piece.id);
                return None;
            }
            Fit::New => {}
        }
        queue.ecn |= 1 << piece.ecn;
        queue.hold(piece.offset, &piece.bytes[..(end - piece.offset) as usize]);
        if queue.total != Some(queue.received) {
            return None;
        }
        let queue = self.queues.remove(&piece.id)?;
        let too_long = v4 && 20 + queue.received > LONGEST;
        (!too_long && !queue.is_bad_mixture()).then(|| queue.joined())
    }

    fn stateway(&mut self, piece: &Piece) -> Option<Vec<u8>> {
        let v4 = piece.source.is_ipv4();
        let end = piece.offset + piece.bytes.len() as u32;
        if let Some(rule) = wrong_by_itself(piece, v4) {
            self.note(rule);
            return None;
        }
        self.count += 1;
        let mut queue = self.queues.remove(&piece.id).unwrap_or_default();
        let pause = |since| v4 && since != 0 && self.count - since > MAX_DISTANCE;
        if pause(queue.added) {
            if !pause(queue.touched) {
                self.note(Stricter::Distance);
            }
            queue = Queue::default();
        }
        queue.touched = self.count;
        let verdict = self.judge(&mut queue, piece, end);
        match verdict {
            Fit::Duplicate => {}
            Fit::Overlap => queue.condemned = true,
            Fit::New => {
                queue.added = self.count;
                queue.ecn |= 1 << piece.ecn;
                queue.begun[piece.offset as usize / 4096] += 1;
                queue.reach = queue.reach.max(end);
                if !piece.more {
                    queue.total = Some(end);
                }
                queue.hold(piece.offset, &piece.bytes);
                if queue.total == Some(queue.received) {
                    return Some(queue.joined());
                }
            }
        }
        self.queues.insert(piece.id, queue);
        None
    }

    /// `Overlap` stands for everything that condemns the datagram.
    fn judge(&mut self, queue: &mut Queue, piece: &Piece, end: u32) -> Fit {
        if queue.condemned {
            self.note(Stricter::Remembered);
            return Fit::Duplicate;
        }
        let (conflict, together) = match (piece.more, queue.total) {
            (true, None) => (false, false),
            (true, Some(total)) => (end > total, end == total),
            (false, None) => (end < queue.reach, end == queue.reach),
            (false, Some(total)) => (end != total, false),
        };
        if together {
            self.note(Stricter::MoreAtEnd);
        }
        if conflict || together {
            return Fit::Overlap;
        }
        match queue.fit(piece.offset, end) {
            Fit::New => {}
            Fit::Duplicate => {
                let is_copy = queue.held.iter().any(|(offset, bytes)| {
                    (*offset, bytes.len()) == (piece.offset, piece.bytes.len())
                });
                if !is_copy {
                    self.note(Stricter::Duplicate);
                }
                return Fit::Duplicate;
            }
            Fit::Overlap => return Fit::Overlap,
        }
        let bad_mixture = Queue { ecn: queue.ecn | 1 << piece.ecn, ..Queue::default() };
        if bad_mixture.is_bad_mixture() {
            self.note(Stricter::EcnAtOnce);
            return Fit::Overlap;
        }
        if queue.begun[piece.offset as usize / 4096] >= PIECES_PER_4K {
            self.note(Stricter::ManyPieces);
            return Fit::Overlap;
        }
        Fit::New
    }
}

/// Why Stateway drops a fragment without looking at the others, where the kernel does
/// not or does more.
fn wrong_by_itself(piece: &Piece, v4: bool) -> Option<Stricter> {
    let header = if v4 { 20 } else { 0 };
    if piece.bytes.is_empty() {
        Some(Stricter::Empty)
    } else if piece.more && !piece.bytes.len().is_multiple_of(8) {
        Some(Stricter::OddLength)
    } else {
        let end = header + piece.offset + piece.bytes.len() as u32;
        (end > LONGEST).then_some(Stricter::Oversize)
    }
}

impl Queue {
    /// As the kernel sees it. What is new is added to the runs.
    fn fit_in_runs(&mut self, start: u32, end: u32) -> Fit {
        match self.runs.last_mut() {
            Some(last) if last.1 < end => {
                if start < last.1 {
                    return Fit::Overlap;
                }
                if start == last.1 {
                    last.1 = end;
                } else {
                    self.runs.push((start, end));
                }
                Fit::New
            }
            _ => {
                let touched = self.runs.iter().find(|run| start < run.1 && run.0 < end);
                match touched {
                    Some(run) if run.0 <= start && end <= run.1 => Fit::Duplicate,
                    Some(_) => Fit::Overlap,
                    None => {
                        let at = self.runs.partition_point(|run| run.0 < start);
                        self.runs.insert(at, (start, end));
                        Fit::New
                    }
                }
            }
        }
    }

    /// By the units of 8 bytes that are there.
    fn fit(&self, start: u32, end: u32) -> Fit {
        let units = |start: u32, end: u32| start / 8..end.div_ceil(8);
        let wanted = units(start, end);
        let there = |unit: &u32| {
            let holds = |(offset, bytes): &(u32, Vec<u8>)| {
                units(*offset, offset + bytes.len() as u32).contains(unit)
            };
            self.held.iter().any(holds)
        };
        match wanted.clone().filter(there).count() {
            0 => Fit::New,
            count if count == wanted.len() => Fit::Duplicate,
            _ => Fit::Overlap,
        }
    }

    fn hold(&mut self, offset: u32, bytes: &[u8]) {
        self.received += bytes.len() as u32;
        self.held.push((offset, bytes.to_vec()));
    }

    /// A fragment that can not carry a mark together with one that can.
    fn is_bad_mixture(&self) -> bool {
        self.ecn & 1 != 0 && self.ecn != 1
    }

    fn joined(mut self) -> Vec<u8> {
        self.held.sort_by_key(|(offset, _)| *offset);
        self.held.into_iter().flat_map(|(_, bytes)| bytes).collect()
    }
}

/// What the socket gets of a datagram, if anything.
fn arrival(piece: &Piece, datagram: &[u8]) -> Option<Arrival> {
    let field = |at: usize| Some(u16::from_be_bytes([*datagram.get(at)?, *datagram.get(at + 1)?]));
    let (port, to, length, checksum) = (field(0)?, field(2)?, field(4)?, field(6)?);
    let datagram = datagram.get(..usize::from(length).max(8))?;
    let addresses = (piece.source, piece.destination);
    let unchecked = checksum == 0 && piece.source.is_ipv4();
    if to != PORT || length < 8 || !(unchecked || udp_sum(addresses, datagram) == 0xffff) {
        return None;
    }
    let payload = &datagram[8..];
    let source = piece.source.to_string();
    Some(Arrival { source, port, length: payload.len(), digest: digest(payload) })
}
