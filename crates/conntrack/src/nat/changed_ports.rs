//! The ports that sources have got in place of their own.
//!
//! Where another connection has the port of a source towards a destination, the source gets another
//! one. It keeps that towards further destinations, so that hosts which tell each other its place
//! name the same port (RFC 4787 section 4.1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use flow::{Endpoint, HashKey, KeyedPacket};

/// Lines of the table, 64 bytes each. So 32,768 sources are remembered at most.
const LINES: usize = 1 << 12;
/// Places of a line.
const PLACES: usize = 8;
/// The bits of a place: from the lowest one the count, the port, and a part of the source's hash.
const COUNT_BITS: u32 = 20;
const PORT_BITS: u32 = 16;
/// An odd factor that spreads the bits of its argument.
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
/// A count that has come here stays, because nobody knows any longer how many there are.
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// The sources with such a port, as long as they have a connection with it; clones share them.
///
/// All workers share the table. A connection reads it when it gets a source, and changes it only if
/// its port changes. Its size is fixed: a source that finds no place in its line is not remembered.
#[derive(Clone, Debug)]
pub(crate) struct ChangedPorts {
    shared: Arc<Shared>,
    secret: HashKey,
}

#[derive(Debug)]
struct Shared {
    lines: Box<[Line]>,
    /// The number of sources. While it is 0, nobody has to look.
    sources: AtomicU32,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; PLACES]);

/// A source with its line and its part of a place.
struct Position<'a> {
    line: &'a Line,
    name: u64,
}

/// A source port that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortChange {
    /// The packets of the originator, as they come.
    pub original: KeyedPacket,
    /// The port with which they leave.
    pub port: u16,
}

impl PortChange {
    /// That of a connection with these packets of the originator; `None` if its port stays.
    pub fn of(original: KeyedPacket, leaves_as: &KeyedPacket) -> Option<Self> {
        let port = |packet: &KeyedPacket| packet.key.endpoint(packet.sender).port;
        let has_changed = original.key.is_identified() && port(&original) != port(leaves_as);
        has_changed.then(|| Self { original, port: port(leaves_as) })
    }
}

impl ChangedPorts {
    /// None yet.
    pub fn new() -> Self {
        let lines = std::iter::repeat_with(Line::default).take(LINES).collect();
        let shared = Shared { lines, sources: AtomicU32::new(0) };
        Self { shared: Arc::new(shared), secret: HashKey(0, 0) }
    }

    /// The same for a worker. All workers have the same secret, so that few can choose sources that
    /// share a line. Those who can only have a port changed that could stay.
    pub fn keyed(&self, secret: HashKey) -> Self {
        Self { secret, ..self.clone() }
    }

    /// The port that the originator of such packets has in place of its own.
    #[inline]
    pub fn of_source(&self, original: &KeyedPacket) -> Option<u16> {
        if self.shared.sources.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find(original)
    }

    #[cold]
    fn find(&self, original: &KeyedPacket) -> Option<u16> {
        let Position { line, name } = self.position(original);
        let place = line.0.iter().map(|place| place.load(Ordering::Relaxed));
        place.filter(|place| name_of(*place) == name && count_of(*place) > 0).map(port_of).next()
    }

    /// One more connection has such a port. The first port of a source stays, and another one is
    /// not remembered.
    pub fn enter(&self, change: &PortChange) {
        let Position { line, name } = self.position(&change.original);
        let places = || line.0.iter();
        let is_known = |place: u64| name_of(place) == name && count_of(place) > 0;
        for place in places() {
            let one_more = |place: u64| {
                let counts = is_known(place) && port_of(place) == change.port;
                (counts && count_of(place) < COUNT_MAX).then(|| place + 1)
            };
            let (Ok(before) | Err(before)) =
                place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
            if is_known(before) {
                return;
            }
        }
        let new = name << (COUNT_BITS + PORT_BITS) | u64::from(change.port) << COUNT_BITS | 1;
        let is_filed = |place: &AtomicU64| {
            place.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if places().any(is_filed) {
            self.shared.sources.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One of these connections has it no longer.
    pub fn leave(&self, change: &PortChange) {
        let Position { line, name } = self.position(&change.original);
        for place in &line.0 {
            let one_less = |place: u64| {
                let is_it = name_of(place) == name && port_of(place) == change.port;
                match count_of(place) {
                    0 | COUNT_MAX => None,
                    1 => is_it.then_some(0),
                    _ => is_it.then(|| place - 1),
                }
            };
            let before = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
            if let Ok(before) = before {
                if count_of(before) == 1 {
                    self.shared.sources.fetch_sub(1, Ordering::Relaxed);
                }
                return;
            }
        }
    }

    /// The number of remembered sources.
    #[cfg(test)]
    pub fn len(&self) -> u32 {
        self.shared.sources.load(Ordering::Relaxed)
    }

    /// Forgets all sources.
    #[cfg(test)]
    pub fn clear(&self) {
        if self.shared.sources.swap(0, Ordering::Relaxed) > 0 {
            let places = self.shared.lines.iter().flat_map(|line| &line.0);
            places.for_each(|place| place.store(0, Ordering::Relaxed));
        }
    }

    fn position(&self, KeyedPacket { key, sender }: &KeyedPacket) -> Position<'_> {
        let Endpoint { address, port } = key.endpoint(*sender);
        let address = u128::from_be_bytes(address);
        let rest = u64::from(key.zone.0) << 32 | u64::from(key.protocol) << 16 | u64::from(port);
        let HashKey(first, second) = self.secret;
        let hash = [first ^ (address >> 64) as u64, second ^ address as u64, rest]
            .into_iter()
            .fold(0, |hash: u64, word| folded((hash ^ word).wrapping_mul(FACTOR)));
        let hash = folded(hash.wrapping_mul(FACTOR));
        let line = &self.shared.lines[hash as usize % LINES];
        Position { line, name: hash >> (COUNT_BITS + PORT_BITS) }
    }
}

const fn folded(number: u64) -> u64 {
    number ^ number >> 32
}

const fn name_of(place: u64) -> u64 {
    place >> (COUNT_BITS + PORT_BITS)
}

const fn port_of(place: u64) -> u16 {
    (place >> COUNT_BITS) as u16
}

const fn count_of(place: u64) -> u64 {
    place & COUNT_MAX
}

#[cfg(test)]
#[path = "changed_ports_tests.rs"]
mod tests;
