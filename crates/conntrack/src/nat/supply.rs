//! The candidates of a translation, and their order.

use flow::{Endpoint, FlowKey};

use super::{Addresses, BucketPorts, Ends, Ports, Request, TranslatedEnd};

/// Most addresses of a range that are tried. Each takes as many tries as there are ports.
const MOST_ADDRESSES: u128 = 4;

/// Most ports of other buckets that are tried with each address of a range that has several.
const TRIES_FOR_ADDRESS: u32 = 128;

/// The resources of a choice.
#[derive(Clone, Copy)]
pub struct Supply<'a> {
    /// The ports whose replies come to the bucket of the connection, and the part of all ports that
    /// this gateway gives away. A connection keeps its own port whichever part that is in.
    pub own: BucketPorts,
    /// A random number for each connection. It decides only choices that have to be random.
    pub seed: u64,
    /// The hash of a flow, the same as for the table's packets.
    pub hash: &'a dyn Fn(&FlowKey) -> u64,
}

/// A connection that is to be translated.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    /// The key of its originator's packets.
    pub key: FlowKey,
    /// The hash of that key, if it is known.
    pub hash: Option<u64>,
    /// Its present ends.
    pub ends: Ends,
    /// The port that its source has in place of its own.
    pub known_port: Option<u16>,
}

/// The candidates for a translation of a connection, best first, each with the number of places
/// up to and including its own: a later search can continue from there. Some places hold no
/// candidate. The list is finite, and has no duplicates apart from the packet's own port.
pub(crate) struct Candidates {
    end: TranslatedEnd,
    ends: Ends,
    walk: AddressWalk,
    choice: PortChoice,
    /// Places of the addresses before the present one.
    before: usize,
    /// The next place of the present address.
    place: usize,
}

impl Candidates {
    /// The candidates behind the first `places`.
    #[inline(always)]
    pub fn new(places: usize, request: &Request, subject: &Subject, supply: Supply<'_>) -> Self {
        let Subject { key, hash, ends, known_port } = subject;
        let own = match request.end {
            TranslatedEnd::Source => ends.source,
            TranslatedEnd::Destination => ends.destination,
        };
        let start = match (request.random, hash) {
            (true, _) => supply.seed,
            (false, Some(hash)) => *hash,
            (false, None) => (supply.hash)(key),
        };
        let choice = PortChoice::of(request, key, own.port, supply.own).starting(start, supply);
        let choice = known_port.map_or(choice, |port| choice.with_known(port));
        let mut walk = AddressWalk::of(request, own.address, key, ends, supply);
        let choice = choice.with_others(if walk.left > 0 { TRIES_FOR_ADDRESS } else { u32::MAX });
        let each = choice.places().max(1);
        let behind = places / each;
        (0..behind).for_each(|_| walk.step());
        let before = behind * each;
        // The place of a known port is there in any case, because it may become known during a
        // search.
        let place = (places - before).max(usize::from(choice.known.is_none()));
        Self { end: request.end, ends: *ends, walk, choice, before, place }
    }
}

impl Iterator for Candidates {
    type Item = (usize, Ends);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, Ends)> {
        loop {
            let address = self.walk.address?;
            let places = self.choice.places();
            while self.place < places {
                let place = self.place;
                self.place += 1;
                let Some(port) = self.choice.port(place) else { continue };
                let new = Endpoint { address, port };
                let ends = match self.end {
                    TranslatedEnd::Source => Ends { source: new, ..self.ends },
                    TranslatedEnd::Destination => Ends { destination: new, ..self.ends },
                };
                return Some((self.before + place + 1, ends));
            }
            self.before += places.max(1);
            self.place = 0;
            self.walk.step();
        }
    }
}

/// The addresses to try.
struct AddressWalk {
    /// The present one; `None` at the end.
    address: Option<[u8; 16]>,
    range: Option<Addresses>,
    /// Addresses behind the present one.
    left: u128,
}

impl AddressWalk {
    fn of(
        request: &Request,
        own: [u8; 16],
        key: &FlowKey,
        ends: &Ends,
        supply: Supply<'_>,
    ) -> Self {
        let range = request.addresses.filter(|range| range.family() == key.family);
        let (first, count) = match range {
            None => (own, 1),
            Some(range) if request.netmap => (range.map(own), 1),
            // A source in the range keeps its address, as with the kernel.
            Some(range) if request.end == TranslatedEnd::Source && range.contains(own) => {
                (own, range.count_up_to(MOST_ADDRESSES))
            }
            Some(range) => match range.single() {
                Some(address) => (address, 1),
                None => {
                    let first = range.pick(spread(request, key, ends, supply));
                    (first, range.count_up_to(MOST_ADDRESSES))
                }
            },
        };
        // A rule that wants one address for a client wants no other when its ports run out.
        let is_alone = request.persistent || request.end == TranslatedEnd::Destination;
        Self { address: Some(first), range, left: if is_alone { 0 } else { count - 1 } }
    }

    fn step(&mut self) {
        let next = |address| Some(self.range?.next(address));
        self.address = self.address.filter(|_| self.left > 0).and_then(next);
        self.left = self.left.saturating_sub(1);
    }
}

/// A number that is the same for all connections of a client, or of a client with a destination, and
/// the same at all workers. A client has one source towards all destinations (RFC 4787 section 4.1,
/// paired pooling).
#[cold]
fn spread(request: &Request, key: &FlowKey, ends: &Ends, supply: Supply<'_>) -> u128 {
    let client = Endpoint { port: 0, ..ends.source };
    let is_of_client = request.persistent || request.end == TranslatedEnd::Source;
    let other = if is_of_client { client } else { Endpoint { port: 0, ..ends.destination } };
    let flow = FlowKey { low: client, high: other, protocol: 0, kind: 0, ..*key };
    let half = |kind| u128::from((supply.hash)(&FlowKey { kind, ..flow }));
    half(0) << 64 | half(1)
}

/// The ports to try for each address.
#[derive(Clone, Copy)]
struct PortChoice {
    /// The port that the source has in place of its own; tried first if present.
    known: Option<u16>,
    /// The packet's own port; tried next if present.
    keep: Option<u16>,
    /// The ports that are allowed; `None`: no other than its own.
    range: Option<Ports>,
    /// The ports of the bucket. Those of them that are allowed are tried then.
    own: BucketPorts,
    /// The position in `own` from which they are tried.
    own_start: u32,
    /// The position in `range` from which the others are tried, last. This worker does not know
    /// whether other buckets have given them away, so each connection begins with another.
    start: u32,
    /// The distance between two tries of those; 0 while it is not known.
    step: u32,
    /// Number of these tries.
    others: u32,
    /// The ports that are tried at the end, where privileged ones are used up.
    at_last: Option<Ports>,
}

impl PortChoice {
    fn of(request: &Request, key: &FlowKey, port: u16, own: BucketPorts) -> Self {
        let as_it_is = Self {
            known: None,
            keep: Some(port),
            range: None,
            own: BucketPorts::NONE,
            own_start: 0,
            start: 0,
            step: 0,
            others: 0,
            at_last: None,
        };
        if !key.is_identified() {
            return as_it_is;
        }
        let (range, own) = match (request.end, request.ports) {
            // An identifier belongs to the end that asks, so the destination of a query has no
            // port.
            (TranslatedEnd::Destination, _) if key.is_query() => return as_it_is,
            (TranslatedEnd::Destination, None) => return as_it_is,
            (TranslatedEnd::Destination, Some(range)) => (range, BucketPorts::NONE),
            // Few ports belong to a bucket, so a choice among them would be easy to guess.
            (TranslatedEnd::Source, _) if request.random => (request.range(port), own.emptied()),
            (TranslatedEnd::Source, _) => (request.range(port), own),
        };
        // A port that no rule restricts is kept even if no other would become it (port 0).
        let may_stay = !request.random && request.ports.is_none_or(|range| range.contains(port));
        let is_in_order = request.end == TranslatedEnd::Destination && !request.random;
        let keep = may_stay.then_some(port);
        let is_privileged = request.end == TranslatedEnd::Source
            && request.ports.is_none()
            && !Ports::UNPRIVILEGED.contains(port);
        let at_last = is_privileged.then_some(Ports::UNPRIVILEGED);
        Self {
            keep,
            range: Some(range),
            own,
            step: is_in_order.into(),
            others: range.len(),
            at_last,
            ..as_it_is
        }
    }

    /// The same with the port that the source has in place of its own, if that is allowed.
    fn with_known(self, port: u16) -> Self {
        let mut ranges = [self.range, self.at_last].into_iter().flatten();
        let is_allowed = ranges.any(|range| range.contains(port)) && self.own.may_give(port);
        Self { known: is_allowed.then_some(port), ..self }
    }

    /// The same with this many tries of ports of other buckets at most.
    fn with_others(self, most: u32) -> Self {
        Self { others: self.others.min(most), ..self }
    }

    /// The same with the positions at which it begins to try ports.
    fn starting(self, start: u64, supply: Supply<'_>) -> Self {
        let position = |number: u64, len: u32| (number % u64::from(len.max(1))) as u32;
        let own_start = position(start, self.own.len());
        let start = match self.range {
            // The first try of a destination is the first port.
            Some(range) if self.step == 0 => position(supply.seed, range.len()),
            _ => 0,
        };
        Self { own_start, start, ..self }
    }

    /// Number of places.
    fn places(&self) -> usize {
        let others = self.range.map_or(0, |_| self.own.len() + self.others);
        let at_last = self.at_last.map_or(0, Ports::len);
        1 + usize::from(self.keep.is_some()) + (others + at_last) as usize
    }

    /// The port at a place, if that holds a candidate.
    #[inline]
    fn port(&mut self, place: usize) -> Option<u16> {
        let Some(place) = place.checked_sub(1) else { return self.known };
        let kept = usize::from(self.keep.is_some());
        let Some(at) = place.checked_sub(kept) else {
            return self.keep.filter(|port| Some(*port) != self.known);
        };
        let range = self.range?;
        // Both are at most the number of ports.
        let at = at as u32;
        let port = match at.checked_sub(self.own.len()) {
            None => Some(self.own.nth_round(self.own_start + at)).filter(|it| range.contains(*it)),
            Some(at) => match (at.checked_sub(self.others), self.at_last) {
                (Some(at), Some(last)) => Some(at_last(last, self.start, at)),
                _ => Some(self.other(range, at)).filter(|it| !self.own.contains(*it)),
            },
        };
        // A port is kept only if the table has no connection on it, copies of a peer's included.
        let is_first = |port| port == self.keep || port == self.known;
        port.filter(|port| !is_first(Some(*port)) && self.own.may_give(*port))
    }

    /// The port of the range that is tried at a place behind those of the bucket.
    #[cold]
    fn other(&mut self, range: Ports, at: u32) -> u16 {
        if self.step == 0 {
            self.step = range.step();
        }
        let ahead = u64::from(at) * u64::from(self.step) % u64::from(range.len());
        range.nth_round(self.start + ahead as u32)
    }
}

/// The port that is tried at a place behind all others.
#[cold]
fn at_last(last: Ports, start: u32, at: u32) -> u16 {
    let ahead = u64::from(at) * u64::from(last.step()) % u64::from(last.len());
    last.nth_round(start + ahead as u32)
}

#[cfg(test)]
#[path = "supply_tests.rs"]
mod tests;
