//! Hash tables of fixed content: from a key of a few words to the number of an element.

/// Keys of one length, with open addressing at most half full.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Words of a key.
    stride: usize,
    keys: Vec<u64>,
    /// Tag and number + 1 of the key in each slot; 0 for a free slot.
    slots: Vec<(u32, u32)>,
    /// The value of each key.
    values: Vec<u32>,
    seed: u64,
}

/// The multiplier of Fibonacci hashing (Knuth, The Art of Computer Programming 6.4). It is odd.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a key with a secret, so that a sender can not choose keys that collide.
#[inline]
fn hash(key: &[u64], seed: u64) -> u64 {
    key.iter().fold(seed, |hash, &word| {
        let product = u128::from(hash ^ word) * u128::from(ODD ^ seed);
        (product >> 64) as u64 ^ product as u64
    })
}

impl Table {
    /// An empty table for `count` keys.
    pub fn new(stride: usize, count: usize, seed: u64) -> Self {
        let slots = vec![(0, 0); (2 * count).next_power_of_two().max(4)];
        Self {
            stride,
            keys: Vec::with_capacity(stride * count),
            slots,
            values: Vec::new(),
            // An even seed leaves the multiplier odd. It would be 0 for one of the odd seeds.
            seed: seed & !1,
        }
    }

    /// Files a value under a key; false if the key is there already. The caller adds no more keys
    /// than the table was made for.
    pub fn insert(&mut self, key: &[u64], value: u32) -> bool {
        let hash = hash(key, self.seed);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at].1 != 0 {
            if self.slots[at].0 == (hash >> 32) as u32 && self.key(self.slots[at].1 - 1) == key {
                return false;
            }
            at = (at + 1) & mask;
        }
        self.keys.extend_from_slice(key);
        self.values.push(value);
        self.slots[at] = ((hash >> 32) as u32, self.values.len() as u32);
        true
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: &[u64]) -> Option<u32> {
        let hash = hash(key, self.seed);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let (tag, number) = self.slots[at];
            if number == 0 {
                return None;
            }
            if tag == (hash >> 32) as u32 && self.key(number - 1) == key {
                return Some(self.values[number as usize - 1]);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn key(&self, number: u32) -> &[u64] {
        let begin = number as usize * self.stride;
        &self.keys[begin..begin + self.stride]
    }
}

/// Disjoint ranges in order.
#[derive(Clone, Debug)]
pub(crate) struct Ranges<T> {
    starts: Vec<T>,
    ends: Vec<T>,
    values: Vec<u32>,
    /// For ranges of 32 bits: the first range whose start has these upper 16 bits.
    directory: Vec<u32>,
}

/// Least number of ranges for which a directory is built.
const DIRECTORY_FROM: usize = 512;

impl<T: Copy + Ord + Into<u128>> Ranges<T> {
    /// Takes ranges that are sorted and disjoint, each with its value.
    pub fn new(ranges: impl Iterator<Item = (T, T, u32)>, bits: u32) -> Self {
        let mut made = Self {
            starts: Vec::new(),
            ends: Vec::new(),
            values: Vec::new(),
            directory: Vec::new(),
        };
        for (start, end, value) in ranges {
            made.starts.push(start);
            made.ends.push(end);
            made.values.push(value);
        }
        if bits == 32 && made.starts.len() >= DIRECTORY_FROM {
            let below = |upper: u128| {
                made.starts.partition_point(|&start| (start.into() >> 16) < upper) as u32
            };
            made.directory = (0..=1 << 16).map(below).collect();
        }
        made
    }

    /// The value of the range that holds a key.
    #[inline]
    pub fn get(&self, key: T) -> Option<u32> {
        let (from, to) = match self.directory.get((key.into() >> 16) as usize..) {
            Some([from, to, ..]) => (*from as usize, *to as usize),
            _ => (0, self.starts.len()),
        };
        let at = from + self.starts[from..to].partition_point(|&start| start <= key);
        // The last range that begins at or before the key; it may begin before this part of the
        // directory.
        let at = at.checked_sub(1)?;
        (key <= self.ends[at]).then(|| self.values[at])
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
