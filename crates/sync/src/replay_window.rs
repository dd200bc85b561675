//! The numbers of datagrams that have been accepted under a key.

/// How far a datagram may fall behind the newest one.
pub(crate) const REPLAY_WINDOW_FRAMES: u64 = 2048;
const WORDS: usize = (REPLAY_WINDOW_FRAMES / 64) as usize;

/// Remembers which numbers have been accepted, as RFC 6479 does: a ring of words, of which the
/// newest is cleared as it is entered. One word more than the window keeps the oldest whole.
#[derive(Clone, Debug)]
pub(crate) struct ReplayWindow {
    /// One more than the highest number accepted.
    next: u64,
    words: [u64; WORDS + 1],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { next: 0, words: [0; WORDS + 1] }
    }
}

impl ReplayWindow {
    /// True if a number may be accepted.
    pub fn is_fresh(&self, number: u64) -> bool {
        if number >= self.next {
            return true;
        }
        let is_in_reach = self.next - number <= REPLAY_WINDOW_FRAMES;
        is_in_reach && self.words[Self::word(number)] & Self::bit(number) == 0
    }

    /// Remembers a number that is accepted.
    pub fn accept(&mut self, number: u64) {
        if number >= self.next {
            let (from, to) = (self.next.div_ceil(64), number / 64);
            // More than one round clears each word once.
            for word in from..=to.min(from.saturating_add(WORDS as u64)) {
                self.words[(word % (WORDS as u64 + 1)) as usize] = 0;
            }
            self.next = number.saturating_add(1);
        }
        self.words[Self::word(number)] |= Self::bit(number);
    }

    fn word(number: u64) -> usize {
        (number / 64 % (WORDS as u64 + 1)) as usize
    }

    fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_number_is_accepted_twice(
            steps in prop::collection::vec((0u64..5000, any::<bool>()), 1..300),
        ) {
            let mut window = ReplayWindow::default();
            let (mut seen, mut base) = (BTreeSet::new(), 0u64);
            for (offset, is_ahead) in steps {
                let number = if is_ahead { base + offset } else { base.saturating_sub(offset) };
                let highest = seen.last().copied();
                let is_old = highest.is_some_and(|it| it + 1 >= number + 1 + REPLAY_WINDOW_FRAMES);
                let is_fresh = window.is_fresh(number);
                prop_assert_eq!(is_fresh, !is_old && !seen.contains(&number), "{}", number);
                if is_fresh {
                    window.accept(number);
                    seen.insert(number);
                    base = base.max(number);
                }
            }
        }
    }

    #[test]
    fn the_last_number_can_be_accepted_once() {
        let mut window = ReplayWindow::default();
        window.accept(u64::MAX - 1);
        assert!(!window.is_fresh(u64::MAX - 1));
        assert!(window.is_fresh(u64::MAX - 2));
        assert!(!window.is_fresh(5));
    }
}
