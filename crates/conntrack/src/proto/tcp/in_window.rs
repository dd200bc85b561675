//! The quick check of segments that lie in the windows of an established connection.

use super::segment::Segment;
use super::tracker::{TcpTracker, Timeout};
use super::window::Numbers;
use super::{FlagClass, TcpSettings, TcpState};
use crate::Direction;

impl TcpTracker {
    /// Takes an ACK, with or without data, that fits into the windows of an established
    /// connection. The connection must be assured and have seen a reply. `None`, with nothing
    /// changed, for any other segment: [`TcpTracker::advance`] must take that.
    ///
    /// The rules are the same. Only the timer of their outcome is not known in advance, so
    /// there is nothing to look up in the table of states and nothing else to return.
    // Inlined like its caller, so that its values stay in registers, which makes it fast.
    #[inline(always)]
    pub(crate) fn advance_in_window(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        settings: &TcpSettings,
    ) -> Option<Timeout> {
        let (from, to) = (direction.index(), direction.reversed().index());
        let is_ordinary = segment.class == FlagClass::Ack
            && self.state() == TcpState::Established
            && self.windows[from].max_window != 0;
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
#[path = "in_window_tests.rs"]
mod tests;
