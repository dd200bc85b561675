//! The short way for what nearly every packet is.

use super::segment::Segment;
use super::tracker::{TcpTracker, Timeout};
use super::window::Numbers;
use super::{FlagClass, TcpSettings, TcpState};
use crate::Direction;

impl TcpTracker {
    /// Takes in an ACK, with or without data, that fits into the windows of an established
    /// connection which is assured and has seen a reply. `None` for any other segment, and
    /// nothing has changed then: it is one for [`TcpTracker::advance`].
    ///
    /// The rules are the same, but of their outcome only the timer is open, so there is nothing
    /// to look up in the table of states and nothing to hand back but that.
    // As with its caller, what makes it short is that nothing of it goes through memory.
    #[inline(always)]
    pub(crate) fn keep_up(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        settings: &TcpSettings,
    ) -> Option<Timeout> {
        let (from, to) = (direction.index(), direction.reversed().index());
        let is_ordinary = segment.class == FlagClass::Ack
            && self.state() == TcpState::Established
            && self.halves[from].max_window != 0;
        if !is_ordinary {
            return None;
        }
        let numbers = Numbers::of(segment, self.modes[to]);
        if !self.is_inside(from, to, &numbers) {
            return None;
        }
        self.learn(from, to, segment, &numbers);
        self.count_repetition(direction, segment);
        Some(self.note_last(direction, FlagClass::Ack, settings))
    }
}

#[cfg(test)]
#[path = "ordinary_tests.rs"]
mod tests;
