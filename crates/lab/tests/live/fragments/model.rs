//! Models of two reassemblers, which predict the outcome of a sequence: the kernel's, and
//! Stateway's in front of the kernel's. The second is the first with the rules of [`Stricter`].

use std::collections::{BTreeSet, HashMap};

use lab::{Arrival, Piece, digest, udp_sum};

use super::sequence::{PORT, Sequence};

/// The rules by which Stateway differs from the kernel by design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stricter {
    /// IPv4 only: a fragment before the last whose length is no multiple of 8 is dropped. The
    /// kernel shortens it to a multiple of 8, and so assembles a datagram that nobody sent.
    OddLength,
    /// A fragment without payload is dropped alone. It has no bytes of the datagram, yet the kernel
    /// gives the datagram up because of it.
    Empty,
    /// IPv4 only: a fragment that ends behind byte 65535 is dropped beside_others, at once. The kernel
    /// holds it and drops the whole datagram when it is complete.
    Oversize,
    /// After a contradiction the identification stays condemned until it times out (RFC 5722
    /// section 4 for IPv6). The kernel starts a new datagram, and the remaining fragments may be
    /// combined with those that an attacker sends next.
    Remembered,
    /// A fragment is a duplicate if all of its bytes have arrived, in any fragments. The kernel
    /// sees an overlap if they lie in two runs.
    Duplicate,
    /// A fragment with "more fragments" must end before the end of the datagram, and the last
    /// fragment must end behind all others. The kernel lets both end at the same byte.
    MoreAtEnd,
    /// A forbidden mixture of ECN fields (RFC 3168 section 5.3) condemns the datagram when it
    /// appears. The kernel checks only when the datagram is complete.
    EcnAtOnce,
    /// At most 128 fragments begin in 4 KiB: the smallest legal IPv4 link needs 86.
    ManyPieces,
    /// A duplicate does not show that the sender still sends the datagram, so it does not reset the
    /// distance after which the identification may have been reused.
    Distance,
}

/// The expected arrivals, and the rules that were used.
#[derive(Debug, Default)]
pub struct Expected {
    pub arrivals: Vec<Arrival>,
    pub rules: BTreeSet<Stricter>,
}

/// The default of `ipfrag_max_dist`.
const MAX_DISTANCE: u32 = 64;
/// The default of `ipfrag_pieces_per_4k`.
const PIECES_PER_4K: u16 = 128;
const LONGEST: u32 = 65_535;

/// The arrivals at a receiver without a gateway.
pub fn kernel(sequence: &Sequence) -> Expected {
    let mut model = Model::default();
    for piece in &sequence.pieces {
        let datagram =
            if is_whole(piece) { Some(piece.bytes.clone()) } else { model.kernel(piece) };
        model.deliver(piece, datagram);
    }
    model.expected
}

/// The arrivals at a receiver behind Stateway. The kernel simply reassembles the fragments that
/// Stateway lets through.
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
    /// The number of fragments of the source so far.
    count: u32,
    expected: Expected,
}

#[derive(Default)]
struct Queue {
    held: Vec<(u32, Vec<u8>)>,
    /// Stretches without a gap, by offset. The kernel extends only the last one.
    runs: Vec<(u32, u32)>,
    received: u32,
    reach: u32,
    total: Option<u32>,
    /// One bit for each ECN field that was seen.
    ecn: u8,
    /// The values of `count` when a fragment was last added to the queue, and when one last arrived
    /// for it.
    added: u32,
    touched: u32,
    condemned: bool,
    /// The number of fragments that begin in each 4 KiB.
    begun: [u16; 16],
}

/// The relation of a fragment to those held.
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

    /// Follows `ip_frag_queue`, `ip6_frag_queue` and `inet_frag_queue_insert` of Linux 6.18.
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
        let verdict = self.check(&mut queue, piece, end);
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

    /// Decides about a fragment. `Overlap` stands for every contradiction that condemns the
    /// datagram.
    fn check(&mut self, queue: &mut Queue, piece: &Piece, end: u32) -> Fit {
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

/// The rule by which Stateway drops a fragment without comparing it with others, where the kernel
/// keeps it or drops more.
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
    /// Compares as the kernel does, and adds new bytes to the runs.
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

    /// Compares by units of 8 bytes.
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

    /// True if one fragment is not ECN-capable and another is.
    fn is_bad_mixture(&self) -> bool {
        self.ecn & 1 != 0 && self.ecn != 1
    }

    fn joined(mut self) -> Vec<u8> {
        self.held.sort_by_key(|(offset, _)| *offset);
        self.held.into_iter().flat_map(|(_, bytes)| bytes).collect()
    }
}

/// The payload that the socket receives from a datagram, if any.
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
