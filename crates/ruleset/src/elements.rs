//! The elements of a set in few words each, as there may be millions.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::kind::{Interval, Kind};
use crate::model::{Data, Verdict};

/// The elements of a set, side by side.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Elements {
    count: usize,
    keys: Rows,
    data: Held,
    /// Time that elements stay after loading, by number. Elements that do not end are absent.
    expires: BTreeMap<u32, Duration>,
    /// Initial packets and bytes, up to the last element that has any.
    counted: Vec<(u64, u64)>,
    /// The numbers of the elements with statements of their own, in order.
    with_parts: Vec<u32>,
    /// The operator's comments, by number.
    comments: BTreeMap<u32, String>,
    /// The number of the element `*`.
    catch_all: Option<u32>,
}

/// The data of a map's elements.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Nothing,
    Values(Rows),
    Verdicts(Vec<Verdict>),
}

/// An element before it is added.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewElement {
    pub key: Vec<Interval>,
    pub datum: Option<Datum>,
    /// The time after loading at which it ends.
    pub expires: Option<Duration>,
    /// Initial packets and bytes.
    pub counted: (u64, u64),
    /// True if it has a statement of its own.
    pub has_parts: bool,
    /// The operator's comment.
    pub comment: Option<String>,
    /// True for the element `*`, which holds each key that no other element holds. Its key is all
    /// values.
    pub catch_all: bool,
}

/// The value of a map's element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Datum {
    Values(Vec<Interval>),
    Verdict(Verdict),
}

impl Elements {
    /// No elements, for keys and data of these types.
    pub fn new(key: &[Kind], data: &Data) -> Self {
        let data = match data {
            Data::None => Held::Nothing,
            Data::Values(kinds) => Held::Values(Rows::new(kinds)),
            Data::Verdicts => Held::Verdicts(Vec::new()),
        };
        let (expires, comments) = (BTreeMap::new(), BTreeMap::new());
        let (keys, counted, with_parts) = (Rows::new(key), Vec::new(), Vec::new());
        Self { count: 0, keys, data, expires, counted, with_parts, comments, catch_all: None }
    }

    /// Reserves memory for `count` more elements.
    pub fn reserve(&mut self, count: usize) {
        self.keys.reserve(count);
        match &mut self.data {
            Held::Nothing => {}
            Held::Values(rows) => rows.reserve(count),
            Held::Verdicts(verdicts) => verdicts.reserve_exact(count),
        }
    }

    /// Adds an element. Its key and datum have the types of the set.
    pub fn push(&mut self, element: &NewElement) {
        let NewElement { key, datum, expires, counted, has_parts, comment, catch_all } = element;
        let number = self.count;
        self.count += 1;
        self.keys.push(key);
        match (&mut self.data, datum) {
            (Held::Values(rows), Some(Datum::Values(values))) => rows.push(values),
            (Held::Verdicts(verdicts), Some(Datum::Verdict(verdict))) => verdicts.push(*verdict),
            _ => {}
        }
        if let Some(expires) = expires {
            self.expires.insert(number as u32, *expires);
        }
        if let Some(comment) = comment {
            self.comments.insert(number as u32, comment.clone());
        }
        if *has_parts {
            self.with_parts.push(number as u32);
        }
        if *catch_all {
            self.catch_all = Some(number as u32);
        }
        if *counted != (0, 0) {
            self.counted.resize(number, (0, 0));
            self.counted.push(*counted);
        }
    }

    /// The number of elements.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// The element of a number.
    pub fn get(&self, number: usize) -> Option<Element<'_>> {
        (number < self.count).then_some(Element { of: self, number })
    }

    /// The elements in the order of the document.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Element<'_>> {
        (0..self.count).map(|number| Element { of: self, number })
    }

    /// True if an element ends some time after loading.
    pub fn any_expires(&self) -> bool {
        !self.expires.is_empty()
    }

    /// The number of the element `*`, which holds each key that no other element holds.
    pub const fn catch_all(&self) -> Option<u32> {
        self.catch_all
    }

    /// The elements but `*`, with their numbers.
    pub fn plain(&self) -> impl Iterator<Item = (u32, Element<'_>)> {
        (0..).zip(self.iter()).filter(|(number, _)| Some(*number) != self.catch_all)
    }

    /// True if no key but that of `*` has a part of more than one value.
    pub fn is_exact(&self) -> bool {
        self.keys.highs.is_empty() || self.plain().all(|(_, it)| it.key().all(|it| it.is_one()))
    }
}

/// An element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'e> {
    of: &'e Elements,
    number: usize,
}

impl<'e> Element<'e> {
    /// The parts of its key.
    pub fn key(self) -> impl Iterator<Item = Interval> + 'e {
        (0..self.of.keys.words.len()).map(move |at| self.of.keys.interval(self.number, at))
    }

    /// A part of its key.
    pub fn part(self, at: usize) -> Option<Interval> {
        (at < self.of.keys.words.len()).then(|| self.of.keys.interval(self.number, at))
    }

    /// A part of the value that a map holds.
    pub fn value(self, at: usize) -> Option<Interval> {
        match &self.of.data {
            Held::Values(rows) => (at < rows.words.len()).then(|| rows.interval(self.number, at)),
            _ => None,
        }
    }

    /// The verdict that a map holds.
    pub fn verdict(self) -> Option<Verdict> {
        match &self.of.data {
            Held::Verdicts(verdicts) => verdicts.get(self.number).copied(),
            _ => None,
        }
    }

    /// The time after loading at which it ends.
    pub fn expires(self) -> Option<Duration> {
        self.of.expires.get(&(self.number as u32)).copied()
    }

    /// The operator's comment.
    pub fn comment(self) -> Option<&'e str> {
        self.of.comments.get(&(self.number as u32)).map(String::as_str)
    }

    /// True if it has a statement of its own.
    pub fn has_parts(self) -> bool {
        self.of.with_parts.binary_search(&(self.number as u32)).is_ok()
    }

    /// Initial packets and bytes.
    pub fn counted(self) -> (u64, u64) {
        self.of.counted.get(self.number).copied().unwrap_or_default()
    }
}

/// Rows of intervals as words of 32 bits. The types of a row are the same for all rows.
#[derive(Clone, Debug, PartialEq)]
struct Rows {
    /// Words of each part of a row.
    words: Vec<u8>,
    /// Words of a row.
    stride: usize,
    lows: Vec<u32>,
    /// Empty while every interval is a single value.
    highs: Vec<u32>,
}

impl Rows {
    fn new(kinds: &[Kind]) -> Self {
        let words: Vec<u8> = kinds.iter().map(|kind| kind.words() as u8).collect();
        let stride = kinds.iter().map(|kind| kind.words()).sum();
        Self { words, stride, lows: Vec::new(), highs: Vec::new() }
    }

    fn reserve(&mut self, rows: usize) {
        self.lows.reserve_exact(rows * self.stride);
    }

    fn push(&mut self, row: &[Interval]) {
        if self.highs.is_empty() && !row.iter().all(|part| part.is_one()) {
            self.highs.reserve_exact(self.lows.capacity());
            self.highs.extend_from_slice(&self.lows);
        }
        let has_highs = !self.highs.is_empty() || !row.iter().all(|part| part.is_one());
        let add = |list: &mut Vec<u32>, value: u128, words: u8| {
            list.extend((0..words).rev().map(|word| (value >> (32 * word)) as u32));
        };
        for (part, words) in row.iter().zip(&self.words) {
            add(&mut self.lows, part.low, *words);
            if has_highs {
                add(&mut self.highs, part.high, *words);
            }
        }
    }

    #[inline]
    fn interval(&self, row: usize, at: usize) -> Interval {
        let before: usize = self.words[..at].iter().map(|words| usize::from(*words)).sum();
        let begin = row * self.stride + before;
        let number = |list: &[u32]| {
            let words = &list[begin..begin + usize::from(self.words[at])];
            words.iter().fold(0, |value, word| value << 32 | u128::from(*word))
        };
        let low = number(&self.lows);
        Interval { low, high: if self.highs.is_empty() { low } else { number(&self.highs) } }
    }
}
