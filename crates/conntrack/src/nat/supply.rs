//! The candidates of a translation, and their order.

use flow::{Endpoint, FlowKey};

use super::{Addresses, Ends, Ports, Request, TranslatedEnd};

/// Most addresses of a range that are tried. Each takes as many tries as the block has ports.
const MOST_ADDRESSES: u128 = 4;

/// The ports that a bucket may give away: each `stride`-th of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    first: u16,
    stride: u32,
    len: u32,
}

/// The resources of a choice.
#[derive(Clone, Copy)]
pub struct Supply<'a> {
    /// The ports of the bucket.
    pub block: Block,
    /// A random number for each connection. It decides only choices that have to be random.
    pub seed: u64,
    /// The hash of a flow, the same as for the table's packets.
    pub hash: &'a dyn Fn(&FlowKey) -> u64,
}

impl Block {
    /// All ports for a gateway with one bucket.
    pub const ALL: Self = Self { first: 1024, stride: 1, len: 64512 };

    /// The ports `p` in a range with `p & (buckets - 1) == bucket`. `buckets` is a power of
    /// two. The block may be empty if there are more than 65536 buckets or if the range is too
    /// short.
    pub fn of_bucket(range: Ports, bucket: u32, buckets: u32) -> Self {
        debug_assert!(buckets.is_power_of_two() && bucket < buckets);
        let (first, last) = (u32::from(range.first()), u32::from(range.last()));
        let ahead = bucket.wrapping_sub(first) & (buckets - 1);
        Self::spaced(first + ahead, last, buckets)
    }

    /// Every `stride`-th port from `first` to `last`.
    fn spaced(first: u32, last: u32, stride: u32) -> Self {
        match u16::try_from(first) {
            Ok(first) if u32::from(first) <= last => {
                Self { first, stride, len: (last - u32::from(first)) / stride + 1 }
            }
            _ => Self { first: 0, stride, len: 0 },
        }
    }

    /// The ports of the block that also lie in a range.
    #[must_use]
    pub fn within(self, range: Ports) -> Self {
        let Self { first, stride, len } = self;
        if len == 0 {
            return self;
        }
        let (first, last) = (u32::from(first), u32::from(first) + (len - 1) * stride);
        let steps = u32::from(range.first()).saturating_sub(first).div_ceil(stride);
        Self::spaced(first + steps * stride, last.min(range.last().into()), stride)
    }

    /// Number of ports.
    pub const fn len(self) -> u32 {
        self.len
    }

    /// The first port, which is different in each bucket.
    pub(crate) const fn first(self) -> u16 {
        self.first
    }

    /// True if there are no ports.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// True for a port of the block.
    pub fn contains(self, port: u16) -> bool {
        let Some(ahead) = u32::from(port).checked_sub(self.first.into()) else { return false };
        ahead.is_multiple_of(self.stride) && ahead / self.stride < self.len
    }

    /// True if a port lies between the first and the last of the block, so that it belongs to
    /// the block of some bucket.
    pub(crate) fn spans(self, port: u16) -> bool {
        let ahead = u32::from(port).checked_sub(self.first.into());
        ahead.is_some_and(|ahead| self.len > 0 && ahead <= (self.len - 1) * self.stride)
    }

    /// The port at position `at`, counted round.
    fn nth_round(self, at: u32) -> u16 {
        // It lies within the range of the block.
        self.first.wrapping_add((at % self.len.max(1) * self.stride) as u16)
    }

    /// All ports once, beginning at a position that `start` chooses.
    pub(crate) fn all_from(self, start: u64) -> impl Iterator<Item = u16> {
        let start = self.position(start);
        (0..self.len).map(move |at| self.nth_round(start + at))
    }

    /// The position that a number chooses.
    fn position(self, number: u64) -> u32 {
        (number % u64::from(self.len.max(1))) as u32
    }
}

impl From<Ports> for Block {
    fn from(range: Ports) -> Self {
        Self::spaced(range.first().into(), range.last().into(), 1)
    }
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
        let Subject { key, hash, ends } = subject;
        let own = match request.end {
            TranslatedEnd::Source => ends.source,
            TranslatedEnd::Destination => ends.destination,
        };
        let start = match (request.random, hash) {
            (true, _) => supply.seed,
            (false, Some(hash)) => *hash,
            (false, None) => (supply.hash)(key),
        };
        let choice = PortChoice::of(request, key, own.port, supply.block).starting(start, supply);
        let mut walk = AddressWalk::of(request, own.address, key, ends, supply);
        let each = choice.places().max(1);
        let behind = places / each;
        (0..behind).for_each(|_| walk.step());
        let before = behind * each;
        Self { end: request.end, ends: *ends, walk, choice, before, place: places - before }
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

/// A number that is the same for all connections of a client, or of a client with a
/// destination, and the same at all workers.
#[cold]
fn spread(request: &Request, key: &FlowKey, ends: &Ends, supply: Supply<'_>) -> u128 {
    let client = Endpoint { port: 0, ..ends.source };
    let other = if request.persistent { client } else { Endpoint { port: 0, ..ends.destination } };
    let flow = FlowKey { low: client, high: other, protocol: 0, kind: 0, ..*key };
    let half = |kind| u128::from((supply.hash)(&FlowKey { kind, ..flow }));
    half(0) << 64 | half(1)
}

/// The ports to try for each address.
#[derive(Clone, Copy)]
struct PortChoice {
    /// The packet's own port; tried first if present.
    keep: Option<u16>,
    /// The ports that are tried then.
    others: Block,
    /// True to start with the first port of `others`, false to start anywhere.
    in_order: bool,
    /// The ports of the rule that belong to other blocks; tried last. This worker does not know
    /// whether their buckets have given them away, so each connection begins with another.
    shared: Block,
    /// The position in `others` from which they are tried.
    start: u32,
    /// The position in `shared` from which they are tried.
    of_shared: u32,
}

impl PortChoice {
    const NONE: Block = Block { first: 0, stride: 1, len: 0 };

    fn of(request: &Request, key: &FlowKey, own: u16, block: Block) -> Self {
        let (others, shared) = (Self::NONE, Self::NONE);
        let as_it_is =
            Self { keep: Some(own), others, in_order: false, shared, start: 0, of_shared: 0 };
        if !key.is_identified() {
            return as_it_is;
        }
        let others = match (request.end, request.ports) {
            // An identifier belongs to the end that asks, so the destination of a query has no
            // port.
            (TranslatedEnd::Destination, _) if key.is_query() => return as_it_is,
            (TranslatedEnd::Destination, None) => return as_it_is,
            (TranslatedEnd::Destination, Some(range)) => range.into(),
            (TranslatedEnd::Source, None) => block,
            // The range of the rule goes before the block.
            (TranslatedEnd::Source, Some(range)) => block.within(range),
        };
        let shared = match request.ports {
            Some(range) if request.end == TranslatedEnd::Source => range.into(),
            _ => Self::NONE,
        };
        let is_own = others.contains(own) || others.is_empty() && shared.contains(own);
        let may_stay = !request.random && is_own;
        let in_order = request.end == TranslatedEnd::Destination && !request.random;
        let keep = may_stay.then_some(own);
        Self { keep, others, in_order, shared, start: 0, of_shared: 0 }
    }

    /// The same with the positions at which it begins to try ports.
    fn starting(self, start: u64, supply: Supply<'_>) -> Self {
        let start = if self.in_order { 0 } else { self.others.position(start) };
        let of_shared = match self.shared.is_empty() {
            true => 0,
            false => self.shared.position(supply.seed),
        };
        Self { start, of_shared, ..self }
    }

    /// Number of places.
    fn places(&self) -> usize {
        usize::from(self.keep.is_some()) + (self.others.len() + self.shared.len()) as usize
    }

    /// The port at a place, if that holds a candidate.
    #[inline]
    fn port(&self, place: usize) -> Option<u16> {
        let kept = usize::from(self.keep.is_some());
        let Some(at) = place.checked_sub(kept) else { return self.keep };
        // Both are less than the number of ports.
        let at = at as u32;
        let port = match at.checked_sub(self.others.len()) {
            None => self.others.nth_round(self.start + at),
            Some(at) => {
                let port = self.shared.nth_round(self.of_shared + at);
                Some(port).filter(|&port| !self.others.contains(port))?
            }
        };
        (Some(port) != self.keep).then_some(port)
    }
}

#[cfg(test)]
#[path = "supply_tests.rs"]
mod tests;
