//! Tables of recent answers to questions that every packet asks.

/// The last answers by question. Each question has one place, and a later one may take it over.
pub(crate) struct RecentAnswers<Q, A> {
    places: Box<[Option<(Q, A)>]>,
}

impl<Q: Copy, A: Copy> RecentAnswers<Q, A> {
    /// No answers, with 2 to the power of `bits` places.
    pub fn new(bits: u32) -> Self {
        Self { places: vec![None; 1 << bits].into() }
    }

    /// Forgets all answers.
    pub fn forget(&mut self) {
        self.places.fill(None);
    }

    /// The place of a question whose content folds to this number.
    #[inline]
    pub fn place(&mut self, folded: u64) -> &mut Option<(Q, A)> {
        // Fibonacci hashing spreads neighbouring addresses over the upper half of the product
        // (Knuth, The Art of Computer Programming 6.4).
        let spread = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let last = self.places.len() - 1;
        &mut self.places[spread as usize & last]
    }
}

/// An address as a number for [`RecentAnswers::place`].
#[inline]
pub(crate) fn fold(address: [u8; 16]) -> u64 {
    let bits = u128::from_be_bytes(address);
    (bits >> 64) as u64 ^ bits as u64
}
