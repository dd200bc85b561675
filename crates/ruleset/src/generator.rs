//! Numbers that rules make for a packet, to spread traffic: `numgen`, `jhash` and `symhash`.

use crate::field::{CtField, Field};
use crate::kind::Kind;
use crate::model::Load;

/// A statement's own source of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Generator {
    pub source: Source,
    /// The numbers are `offset` to `offset + modulus - 1`.
    pub modulus: u32,
    pub offset: u32,
}

impl Generator {
    /// The values of the packet that the numbers depend on.
    pub fn hashed(&self) -> impl Iterator<Item = &Load> {
        let parts = match &self.source {
            Source::Hash { parts, .. } => parts.as_slice(),
            Source::Counting | Source::Random | Source::Symmetric => &[],
        };
        parts.iter().map(|part| &part.load)
    }
}

/// The origin of the numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// One after the other.
    Counting,
    /// At random.
    Random,
    /// A hash of some values of the packet; without a seed, one with a secret.
    Hash { parts: Vec<Hashed>, seed: Option<u32> },
    /// A hash that is the same for both directions of a flow.
    Symmetric,
}

/// A value that is hashed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hashed {
    pub load: Load,
    /// Its width, bytes.
    bytes: u8,
    /// True if the kernel holds it with the least significant byte first.
    is_swapped: bool,
}

impl Hashed {
    /// `None` for a value that is no whole number of bytes.
    pub fn new(load: Load, kind: Kind) -> Option<Self> {
        let bytes = kind.bits() / 8;
        let is_swapped = is_of_host(load.field);
        kind.bits().is_multiple_of(8).then_some(Self { load, bytes, is_swapped })
    }
}

/// True for values that the kernel computes itself, instead of reading them from a header. Those
/// are in the byte order of its machine, of which there is one here.
const fn is_of_host(field: Field) -> bool {
    match field {
        Field::Length
        | Field::Mark
        | Field::Priority
        | Field::Group(_)
        | Field::LinkType(_)
        | Field::RouteSegmentSize
        | Field::Cpu
        | Field::Generated(_) => true,
        Field::Connection(field) => !matches!(
            field,
            CtField::Source(..)
                | CtField::Destination(..)
                | CtField::SourcePort(_)
                | CtField::DestinationPort(_)
                | CtField::Helper
        ),
        _ => false,
    }
}

/// The longest key of a hash, bytes: all of the kernel's registers.
pub(crate) const LONGEST: usize = crate::limits::MAX_KEY_BYTES;

/// The bytes that a hash covers, as they lie in the kernel's registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    bytes: [u8; LONGEST],
    used: usize,
}

impl Bytes {
    pub const EMPTY: Self = Self { bytes: [0; LONGEST], used: 0 };

    /// Adds a value. Each but a single one takes whole registers of 4 bytes.
    pub fn push(&mut self, value: u128, part: &Hashed, is_single: bool) {
        let width = usize::from(part.bytes);
        let Some(place) = self.bytes.get_mut(self.used..self.used + width) else { return };
        if part.is_swapped {
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        } else {
            place.copy_from_slice(&value.to_be_bytes()[16 - width..]);
        }
        self.used += if is_single { width } else { width.next_multiple_of(4) };
    }

    pub fn slice(&self) -> &[u8] {
        &self.bytes[..self.used.min(LONGEST)]
    }
}

/// Scales 32 random bits to a number below `modulus`, as the kernel does.
pub(crate) const fn scaled(bits: u32, modulus: u32) -> u32 {
    ((bits as u64 * modulus as u64) >> 32) as u32
}

/// The kernel's `jhash`: lookup3 by Bob Jenkins (burtleburtle.net/bob/hash/evahash.html), which
/// takes three little-endian words at a time, with its own start value.
pub(crate) fn jenkins(key: &[u8], seed: u32) -> u32 {
    /// The start value of the kernel.
    const START: u32 = 0xdead_beef;
    let mut state = [START.wrapping_add(key.len() as u32).wrapping_add(seed); 3];
    let add = |state: &mut [u32; 3], bytes: &[u8]| {
        for (word, four) in state.iter_mut().zip(bytes.chunks(4)) {
            let value = four.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
            *word = word.wrapping_add(value);
        }
    };
    let mut rest = key;
    // The last three words are mixed in another way.
    while let Some((twelve, behind)) = rest.split_at_checked(12).filter(|(_, it)| !it.is_empty()) {
        add(&mut state, twelve);
        mix(&mut state);
        rest = behind;
    }
    if !rest.is_empty() {
        add(&mut state, rest);
        finish(&mut state);
    }
    state[2]
}

/// lookup3's `mix`: the amounts of its six rotations, each of another word.
fn mix(state: &mut [u32; 3]) {
    for (round, turn) in [4, 6, 8, 16, 19, 4].into_iter().enumerate() {
        let [here, next, last] = [round % 3, (round + 1) % 3, (round + 2) % 3];
        state[here] = state[here].wrapping_sub(state[last]) ^ state[last].rotate_left(turn);
        state[last] = state[last].wrapping_add(state[next]);
    }
}

/// lookup3's `final`: the amounts of its seven rotations.
fn finish(state: &mut [u32; 3]) {
    for (round, turn) in [14, 11, 25, 16, 4, 14, 24].into_iter().enumerate() {
        let [here, before] = [(round + 2) % 3, (round + 1) % 3];
        state[here] = (state[here] ^ state[before]).wrapping_sub(state[before].rotate_left(turn));
    }
}

#[cfg(test)]
#[path = "generator_tests.rs"]
mod tests;
