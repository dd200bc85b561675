//! Reader of the aligned variant of the packed encoding rules (PER, X.691).
//!
//! The encoding does not describe itself: a reader must know the type of each value. Only
//! values behind an extension marker have their length in front.

/// The bytes end early, are no encoding of the type, or use a feature that this reader lacks:
/// lengths from 16 KiB on, which come in fragments (X.691 section 10.9.3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

pub(super) type Read<T = ()> = Result<T, Unreadable>;

/// Most octets of a number.
const LONGEST_NUMBER: usize = 8;

/// An encoding, read bit by bit from its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Per<'a> {
    bytes: &'a [u8],
    /// The next bit.
    bit: usize,
    /// Offset of the encoding in the message that it is part of.
    start: usize,
}

/// The alternative of a choice that comes next.
pub(super) enum Choice<'a> {
    /// An alternative in front of the extension marker, by its number from 0.
    Root(u64),
    /// An alternative behind the marker, by its number from 0, with its contents.
    Added(u64, Per<'a>),
}

impl<'a> Per<'a> {
    pub fn new(bytes: &'a [u8], start: usize) -> Self {
        Self { bytes, bit: 0, start }
    }

    /// Offset of the next aligned octet in the message.
    pub fn place(&self) -> usize {
        self.start + self.bit.div_ceil(8)
    }

    pub fn bit(&mut self) -> Read<bool> {
        let byte = self.bytes.get(self.bit / 8).ok_or(Unreadable)?;
        let set = byte << (self.bit % 8) & 0x80 != 0;
        self.bit += 1;
        Ok(set)
    }

    /// Bits in a row: the optional components that are present, or booleans.
    pub fn flags<const N: usize>(&mut self) -> Read<[bool; N]> {
        let mut flags = [false; N];
        for flag in &mut flags {
            *flag = self.bit()?;
        }
        Ok(flags)
    }

    fn bits(&mut self, count: u32) -> Read<u64> {
        let mut value = 0;
        for _ in 0..count {
            value = value << 1 | u64::from(self.bit()?);
        }
        Ok(value)
    }

    /// Reads `count` octets from the next octet boundary on.
    pub fn octets(&mut self, count: usize) -> Read<&'a [u8]> {
        let start = self.bit.div_ceil(8);
        let octets = self.bytes.get(start..).and_then(|rest| rest.get(..count));
        self.bit = (start + count) * 8;
        octets.ok_or(Unreadable)
    }

    fn number(&mut self, octets: usize) -> Read<u64> {
        if octets > LONGEST_NUMBER {
            return Err(Unreadable);
        }
        let octets = self.octets(octets)?;
        Ok(octets.iter().fold(0, |number, &octet| number << 8 | u64::from(octet)))
    }

    /// An integer from `low` to `high` (section 10.5.7).
    pub fn whole(&mut self, low: u64, high: u64) -> Read<u64> {
        let span = high - low;
        let bits = u64::BITS - span.leading_zeros();
        let offset = match span {
            0..=254 => self.bits(bits)?,
            255 => self.number(1)?,
            256..=65535 => self.number(2)?,
            _ => {
                let octets = self.whole(1, bits.div_ceil(8).into())?;
                self.number(octets as usize)?
            }
        };
        if offset <= span { Ok(low + offset) } else { Err(Unreadable) }
    }

    /// A length without limits (section 10.9.3).
    fn length(&mut self) -> Read<usize> {
        match self.number(1)? {
            short @ 0..0x80 => Ok(short as usize),
            high @ 0x80..0xc0 => Ok(((high & 0x3f) << 8 | self.number(1)?) as usize),
            _ => Err(Unreadable),
        }
    }

    /// A number that is usually small (section 10.6).
    fn small(&mut self) -> Read<u64> {
        if self.bit()? {
            let octets = self.length()?;
            self.number(octets)
        } else {
            self.bits(6)
        }
    }

    /// A value with its length in front: an open type, an octet string without limits, an
    /// object identifier.
    pub fn contained(&mut self) -> Read<Self> {
        let length = self.length()?;
        let start = self.place();
        Ok(Self::new(self.octets(length)?, start))
    }

    /// Skips `count` characters of four bits from the next octet boundary on (section 26.5.7).
    pub fn nibbles(&mut self, count: usize) -> Read {
        self.octets(count.div_ceil(2))?;
        self.bit -= count % 2 * 4;
        Ok(())
    }

    /// Skips an octet string of `low` to `high` octets; the two must differ, and `low` is at
    /// least 1.
    pub fn skip_octets(&mut self, low: u64, high: u64) -> Read {
        let octets = self.whole(low, high)?;
        self.octets(octets as usize).map(drop)
    }

    /// The alternative of a choice with `alternatives` ones in front of its extension marker
    /// (section 22).
    pub fn choice(&mut self, alternatives: u64) -> Read<Choice<'a>> {
        if self.bit()? {
            let index = self.small()?;
            Ok(Choice::Added(index, self.contained()?))
        } else {
            self.whole(0, alternatives - 1).map(Choice::Root)
        }
    }

    /// Calls `each` for the elements of a list without limits (section 19).
    pub fn list(&mut self, mut each: impl FnMut(&mut Self) -> Read) -> Read {
        for _ in 0..self.length()? {
            each(self)?;
        }
        Ok(())
    }

    /// Calls `each` for the additions behind the extension marker of a sequence, numbered from
    /// 0 (section 18.7 to 18.9). `extended` is the first bit of the sequence.
    pub fn additions(&mut self, extended: bool, mut each: impl FnMut(usize, Self) -> Read) -> Read {
        if !extended {
            return Ok(());
        }
        let count = if self.bit()? { self.length()? } else { self.bits(6)? as usize + 1 };
        let mut present = *self;
        self.bit += count;
        for index in 0..count {
            if present.bit()? {
                each(index, self.contained()?)?;
            }
        }
        Ok(())
    }

    /// Skips additions of no interest.
    pub fn skip_additions(&mut self, extended: bool) -> Read {
        self.additions(extended, |_, _| Ok(()))
    }
}

#[cfg(test)]
#[path = "per_tests.rs"]
mod tests;
