//! An index over the rules of a chain: which of them a packet may match at all.
//!
//! For each field that rules of the chain ask about, the values are cut into segments
//! between which the answer of no rule changes, and each segment has a bit for each rule
//! that the field does not exclude (Lakshman and Stiliadis, "High-speed policy-based packet
//! forwarding using efficient multi-dimensional range matching", SIGCOMM 1998). The rules
//! left are those of the intersection. A summary of 64 rules to the bit lets long vectors
//! be skipped (Baboescu and Varghese, "Scalable packet classification", SIGCOMM 2001).
//!
//! The index only excludes rules: each candidate is still evaluated in full. So it may ignore
//! conditions of a rule, and it uses only those in front of the first side effect. Neighbouring
//! segments may share one vector, which then holds the candidates of all of them.

use std::collections::HashMap;
use std::hash::BuildHasher;

use wire::{Family, protocol};

use crate::field::{Field, Guard, HeaderBits, Layer};
use crate::kind::Interval;
use crate::model::{Item, Load, Set, ValidRuleset};

use super::lookup::is_dynamic;

/// Chains with fewer rules have no index: their rules are evaluated one by one.
const MIN_RULES: usize = 16;
/// A field is indexed if at least one rule in this many has a condition on it.
const SHARE: usize = 16;
/// The largest number of elements of a set that the index uses; a larger set does not restrict the
/// candidates.
const MAX_SET: usize = 256;
/// The largest memory of the bits of a chain for one family, words of 8 bytes for each rule.
/// Without this bound the bits would grow with the square of the chain's length where each rule
/// asks for another value. The builder merges neighbouring segments of a field that needs more than
/// its share.
const WORDS_PER_RULE: usize = 32;

/// A field that an index can cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Dimension {
    Protocol,
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    Input,
    Output,
}

impl Dimension {
    pub const ALL: [Self; 7] = [
        Self::Protocol,
        Self::Source,
        Self::Destination,
        Self::SourcePort,
        Self::DestinationPort,
        Self::Input,
        Self::Output,
    ];
}

/// The index of a chain for packets of one family.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// Words of the summary of a row; `width` counts all words of a row.
    summary: usize,
    width: usize,
    rows: Vec<u64>,
    /// The row of all rules that a packet of the family may match.
    alive: u32,
    pub fields: Vec<FieldIndex>,
}

/// The segments of one field.
#[derive(Clone, Debug)]
pub(crate) struct FieldIndex {
    pub dimension: Dimension,
    segments: Segments,
    /// The row of each segment, behind the row for values below all segments.
    segment_rows: Vec<u32>,
    /// The row for packets that do not have the field.
    absent: u32,
}

/// The first values of the segments.
#[derive(Clone, Debug)]
enum Segments {
    Narrow(Vec<u32>),
    Wide(Vec<u128>),
}

impl FieldIndex {
    #[inline]
    fn row(&self, value: Option<u128>) -> u32 {
        let Some(value) = value else { return self.absent };
        let segment = match &self.segments {
            Segments::Narrow(starts) => {
                let value = value as u32;
                starts.partition_point(|&start| start <= value)
            }
            Segments::Wide(starts) => starts.partition_point(|&start| start <= value),
        };
        self.segment_rows[segment]
    }
}

/// The values of one field that a rule lets through: sorted disjoint intervals.
type Allowed = Vec<Interval>;

/// The conditions of a rule in front of its first side effect.
#[derive(Default)]
struct Constraint {
    family: Option<Family>,
    /// The rule asks for both families, so no packet matches it.
    impossible: bool,
    fields: HashMap<Dimension, Allowed>,
}

/// The candidate rules for a packet, in order.
pub(crate) struct Candidates<'p> {
    rows: [&'p [u64]; Dimension::ALL.len()],
    used: usize,
    summary: usize,
    /// Word of the summary, the bits left of it, word of the row, the bits left of it.
    at: usize,
    summary_bits: u64,
    word: usize,
    bits: u64,
}

impl Index {
    /// The rules that a packet may match; `value` reads the packet's fields.
    #[inline]
    pub fn candidates<'p>(
        &'p self,
        mut value: impl FnMut(Dimension) -> Option<u128>,
    ) -> Candidates<'p> {
        let mut rows = [self.row(self.alive); Dimension::ALL.len()];
        for (row, field) in rows.iter_mut().zip(&self.fields) {
            *row = self.row(field.row(value(field.dimension)));
        }
        let mut candidates = Candidates {
            rows,
            used: self.fields.len().max(1),
            summary: self.summary,
            at: 0,
            summary_bits: 0,
            word: 0,
            bits: 0,
        };
        candidates.summary_bits = candidates.intersect(0);
        candidates
    }

    #[inline]
    fn row(&self, at: u32) -> &[u64] {
        let begin = at as usize * self.width;
        &self.rows[begin..begin + self.width]
    }

    /// Memory of the bits, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.rows.len() * size_of::<u64>()
    }
}

impl Candidates<'_> {
    #[inline]
    fn intersect(&self, word: usize) -> u64 {
        let rows = self.rows[..self.used].iter();
        rows.fold(u64::MAX, |bits, row| bits & row.get(word).copied().unwrap_or(0))
    }
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        loop {
            if self.bits != 0 {
                let bit = self.bits.trailing_zeros() as usize;
                self.bits &= self.bits - 1;
                return Some(64 * self.word + bit);
            }
            while self.summary_bits == 0 {
                self.at += 1;
                if self.at >= self.summary {
                    return None;
                }
                self.summary_bits = self.intersect(self.at);
            }
            self.word = 64 * self.at + self.summary_bits.trailing_zeros() as usize;
            self.summary_bits &= self.summary_bits - 1;
            self.bits = self.intersect(self.summary + self.word);
        }
    }
}

/// The indexes of a chain for IPv4 and IPv6; `None` if the chain does not need one.
pub(crate) fn build(
    ruleset: &ValidRuleset,
    rules: std::ops::Range<u32>,
) -> Option<Box<[Index; 2]>> {
    if rules.len() < MIN_RULES {
        return None;
    }
    let rules = &ruleset.rules[rules.start as usize..rules.end as usize];
    let of = |family| {
        let constraints: Vec<Constraint> =
            rules.iter().map(|rule| constraint(ruleset, &rule.items, family)).collect();
        Builder::new(&constraints, family).build(&constraints)
    };
    Some(Box::new([of(Family::V4), of(Family::V6)]))
}

struct Builder {
    family: Family,
    summary: usize,
    width: usize,
    rows: Vec<u64>,
    /// Rows by the hash of their rules; after a collision, by the next free number.
    known: HashMap<u64, u32>,
    alive: Vec<u64>,
}

impl Builder {
    fn new(constraints: &[Constraint], family: Family) -> Self {
        let words = constraints.len().div_ceil(64);
        let mut alive = vec![0; words];
        for (at, constraint) in constraints.iter().enumerate() {
            let lives =
                !constraint.impossible && constraint.family.is_none_or(|asked| asked == family);
            alive[at / 64] |= u64::from(lives) << (at % 64);
        }
        let summary = words.div_ceil(64);
        let (rows, known) = (Vec::new(), HashMap::new());
        Self { family, summary, width: summary + words, rows, known, alive }
    }

    /// The fields that enough rules ask about.
    fn dimensions(&self, constraints: &[Constraint]) -> Vec<Dimension> {
        let asked = |dimension: &Dimension| {
            let asking = constraints.iter().enumerate().filter(|(at, constraint)| {
                self.alive[at / 64] >> (at % 64) & 1 == 1
                    && constraint.fields.contains_key(dimension)
            });
            asking.count() >= (constraints.len() / SHARE).max(2)
        };
        Dimension::ALL.into_iter().filter(asked).collect()
    }

    fn build(mut self, constraints: &[Constraint]) -> Index {
        let dimensions = self.dimensions(constraints);
        let budget = WORDS_PER_RULE * constraints.len() / dimensions.len().max(1);
        let fields = dimensions.iter().map(|&it| self.field(it, constraints, budget)).collect();
        let alive = self.alive.clone();
        let alive = self.intern(&alive);
        let Self { summary, width, mut rows, .. } = self;
        rows.shrink_to_fit();
        Index { summary, width, rows, alive, fields }
    }

    /// `budget` is the number of words that its rows may have.
    fn field(
        &mut self,
        dimension: Dimension,
        constraints: &[Constraint],
        budget: usize,
    ) -> FieldIndex {
        let mut others = self.alive.clone();
        // The values at which a rule begins or ceases to allow: each flips the rule's bit.
        let mut turns: Vec<(u128, u32)> = Vec::new();
        for (at, constraint) in (0..).zip(constraints) {
            let Some(allowed) = constraint.fields.get(&dimension) else { continue };
            if !is_set(&others, at) {
                continue;
            }
            turn(&mut others, at);
            for interval in allowed {
                turns.push((interval.low, at));
                turns.extend(interval.high.checked_add(1).map(|end| (end, at)));
            }
        }
        turns.sort_unstable();
        let absent = self.intern(&others);
        let begin = self.rows.len();
        let mut together = 1;
        let (starts, rows) = loop {
            if let Some(found) = self.segments(&turns, &others, together, begin + budget) {
                break found;
            }
            self.rows.truncate(begin);
            self.known.retain(|_, row| (*row as usize) * self.width < begin);
            together *= 2;
        };
        let is_wide = match dimension {
            Dimension::Source | Dimension::Destination => self.family == Family::V6,
            Dimension::Input | Dimension::Output => true,
            _ => false,
        };
        let segments = if is_wide {
            Segments::Wide(starts)
        } else {
            // A segment that begins beyond 32 bits is beyond every value of the field.
            let narrow = starts.iter().map_while(|start| u32::try_from(*start).ok());
            Segments::Narrow(narrow.collect())
        };
        let segment_rows = [&[absent], &rows[..]].concat();
        FieldIndex { dimension, segments, segment_rows, absent }
    }

    /// Goes through the values in order, with the rules that allow the value at hand. Returns the
    /// first values of the segments, and their rows. Merges `together` segments into one.
    /// `None` if all rows would have more than `most` words.
    fn segments(
        &mut self,
        turns: &[(u128, u32)],
        others: &[u64],
        together: usize,
        most: usize,
    ) -> Option<(Vec<u128>, Vec<u32>)> {
        let mut current = others.to_vec();
        let (mut starts, mut rows) = (Vec::new(), Vec::new());
        let mut values = turns.chunk_by(|(one, _), (next, _)| one == next).peekable();
        while let Some(&&[(start, _), ..]) = values.peek() {
            let mut any = vec![0; current.len()];
            for value in values.by_ref().take(together) {
                value.iter().for_each(|&(_, rule)| turn(&mut current, rule));
                any.iter_mut().zip(&current).for_each(|(any, it)| *any |= it);
            }
            let row = self.intern(&any);
            if rows.last() != Some(&row) {
                starts.push(start);
                rows.push(row);
            }
            // A single row is always allowed.
            if self.rows.len() > most && rows.len() > 1 {
                return None;
            }
        }
        Some((starts, rows))
    }

    /// The row of these rules; equal rows are stored once.
    fn intern(&mut self, rules: &[u64]) -> u32 {
        let mut hash = self.known.hasher().hash_one(rules);
        while let Some(&row) = self.known.get(&hash) {
            let begin = row as usize * self.width + self.summary;
            if self.rows[begin..].starts_with(rules) {
                return row;
            }
            hash = hash.wrapping_add(1);
        }
        let row = (self.rows.len() / self.width) as u32;
        let begin = self.rows.len();
        self.rows.resize(begin + self.summary, 0);
        for (word, bits) in rules.iter().enumerate().filter(|(_, bits)| **bits != 0) {
            let _ = bits;
            self.rows[begin + word / 64] |= 1 << (word % 64);
        }
        self.rows.extend_from_slice(rules);
        self.known.insert(hash, row);
        row
    }
}

fn is_set(bits: &[u64], at: u32) -> bool {
    bits[at as usize / 64] >> (at % 64) & 1 == 1
}

fn turn(bits: &mut [u64], at: u32) {
    bits[at as usize / 64] ^= 1 << (at % 64);
}

/// The conditions of a rule on packets of a family, in front of its first side effect.
fn constraint(ruleset: &ValidRuleset, items: &[Item], family: Family) -> Constraint {
    let mut constraint = Constraint::default();
    for item in items {
        // A number that was drawn is used up, whether or not the rule matches.
        if item.loads().iter().any(|load| matches!(load.field, Field::Generated(_))) {
            break;
        }
        match item {
            Item::Within { load, interval, negated } => {
                constraint.implied(load.field);
                let allowed = if *negated { outside(*interval) } else { vec![*interval] };
                constraint.narrow(load, allowed, family);
            }
            Item::Bits { load, .. } => constraint.implied(load.field),
            Item::Member { key, set, negated } => {
                let set = &ruleset.sets[set.index()];
                if !set.parts.is_empty() || is_dynamic(set) {
                    // The lookup may change the set.
                    break;
                }
                for load in &key.loads {
                    constraint.implied(load.field);
                }
                if let ([load], false) = (key.loads.as_slice(), *negated)
                    && let Some(allowed) = members(set)
                {
                    constraint.narrow(load, allowed, family);
                }
            }
            Item::VerdictMap { key, map } => {
                let set = &ruleset.sets[map.index()];
                if !set.parts.is_empty() {
                    break;
                }
                for load in &key.loads {
                    constraint.implied(load.field);
                }
                if let [load] = key.loads.as_slice()
                    && let Some(allowed) = members(set)
                {
                    constraint.narrow(load, allowed, family);
                }
                break;
            }
            _ => break,
        }
    }
    constraint
}

/// The elements of a set as intervals; `None` if there are more than [`MAX_SET`].
fn members(set: &Set) -> Option<Allowed> {
    if set.elements.len() > MAX_SET {
        return None;
    }
    let mut allowed: Allowed = set.elements.iter().filter_map(|element| element.part(0)).collect();
    allowed.sort_unstable();
    allowed.dedup_by(|next, kept| {
        let touches = kept.high.checked_add(1).is_none_or(|end| next.low <= end);
        if touches {
            kept.high = kept.high.max(next.high);
        }
        touches
    });
    Some(allowed)
}

fn outside(interval: Interval) -> Allowed {
    let below = interval.low.checked_sub(1).map(|high| Interval { low: 0, high });
    let above = interval.high.checked_add(1).map(|low| Interval { low, high: u128::MAX });
    below.into_iter().chain(above).collect()
}

impl Constraint {
    /// The conditions on a packet that reading a field implies, such as its protocol.
    fn implied(&mut self, field: Field) {
        match field {
            Field::Source(family) | Field::Destination(family) => self.of_family(family),
            Field::SourcePort(guard) | Field::DestinationPort(guard) => self.guarded(guard),
            Field::Header(HeaderBits { layer: Layer::Network(Some(family)), .. }) => {
                self.of_family(family);
            }
            Field::Header(HeaderBits { layer: Layer::Transport(guard), .. }) => self.guarded(guard),
            Field::Header(HeaderBits { layer, .. }) | Field::Has(layer) => {
                if let Some(family) = layer.extended_family() {
                    self.of_family(family);
                }
            }
            Field::SegmentSize => self.of_protocol(protocol::TCP),
            _ => {}
        }
    }

    fn guarded(&mut self, guard: Guard) {
        match guard {
            Guard::Any => {}
            Guard::Protocol(number) => self.of_protocol(number),
            Guard::Over(number, family) => {
                self.of_protocol(number);
                self.of_family(family);
            }
        }
    }

    fn of_family(&mut self, family: Family) {
        self.impossible |= self.family.is_some_and(|asked| asked != family);
        self.family = Some(family);
    }

    fn of_protocol(&mut self, number: u8) {
        self.allow(Dimension::Protocol, vec![Interval::one(number.into())]);
    }

    fn narrow(&mut self, load: &Load, allowed: Allowed, family: Family) {
        if !load.is_plain() || !load.field.is_immutable() {
            return;
        }
        let dimension = match load.field {
            Field::Source(of) if of == family => Dimension::Source,
            Field::Destination(of) if of == family => Dimension::Destination,
            Field::SourcePort(_) => Dimension::SourcePort,
            Field::DestinationPort(_) => Dimension::DestinationPort,
            Field::L4Protocol => Dimension::Protocol,
            Field::Input => Dimension::Input,
            Field::Output => Dimension::Output,
            Field::Nfproto => {
                let number = if family == Family::V4 { 2 } else { 10 };
                self.impossible |= !allowed.iter().any(|interval| interval.holds(number));
                return;
            }
            _ => return,
        };
        self.allow(dimension, allowed);
    }

    fn allow(&mut self, dimension: Dimension, allowed: Allowed) {
        let both = match self.fields.get(&dimension) {
            None => allowed,
            Some(already) => {
                let meet = |a: &Interval, b: &Interval| {
                    let (low, high) = (a.low.max(b.low), a.high.min(b.high));
                    (low <= high).then_some(Interval { low, high })
                };
                let pairs =
                    already.iter().flat_map(|a| allowed.iter().filter_map(move |b| meet(a, b)));
                pairs.collect()
            }
        };
        self.fields.insert(dimension, both);
    }
}
