//! A connection that may have gone on at another gateway: its numbers are learnt anew.
//!
//! The windows of the tracker may be behind by any number of bytes, so segments that do not fit
//! pass. They teach the tracker nothing yet, because anybody who guesses addresses and ports can
//! send such a segment. Only the other end knows which of them are right. So the numbers of an end
//! count when the other end has acknowledged them, and the tracker takes them over when those of
//! both ends count. From then on it is strict again. docs/internals/tcp.md has the reasons.

use std::time::Duration;

use flow::Timestamp;

use super::segment::{MAX_SCALE, Segment};
use super::tracker::{Accepted, Step, TcpTracker, Timeout};
use super::window::{MIN_ACK_WINDOW, Mode, WindowState};
use super::{FlagClass, Seq, TcpSettings, TcpState, Transition, transition};
use crate::Direction;

/// The time in which both ends have to acknowledge each other's numbers. Then all that was heard is
/// forgotten, and the connection learns from the next segments. It has to be longer than the pause
/// between two retransmissions of a connection that has just lost its path (RFC 6298 section 2.4).
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The knowledge of a connection since it came from another gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relearning {
    /// By the direction of the sender.
    ends: [Numbers; 2],
    /// When that is forgotten, if anything was heard.
    until: Option<Timestamp>,
    /// Another gateway sees packets of the connection too: each may see one direction alone.
    is_shared: bool,
}

/// The knowledge of the numbers of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Numbers {
    /// It has sent nothing here.
    #[default]
    Unheard,
    /// It has sent these, or somebody in its name.
    Heard(Heard),
    /// The other end has acknowledged some of these.
    Acknowledged(Heard),
}

/// The numbers in segments of one end that lie within a window of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    /// The lowest sequence number, and one past the highest.
    first: Seq,
    end: Seq,
    /// The highest number that it has acknowledged.
    acknowledged: Seq,
    /// The highest number that it has allowed the other end to send.
    allowed: Seq,
    /// The largest window that it has announced, bytes.
    window: u32,
    /// A FIN is its last number.
    is_closed: bool,
}

/// The effect of a segment on the entry of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// As that of any segment.
    Step(Step),
    /// It passes while the numbers of the connection are learnt anew.
    Hold {
        /// Raise the timer to this if less is left.
        at_least: Timeout,
    },
}

/// The result for a segment of a connection that is learnt anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Relearnt {
    /// The effect on the entry.
    pub effect: Effect,
    /// `None` if the tracker knows the numbers and is strict from now on.
    pub rest: Option<Relearning>,
}

impl TcpTracker {
    /// Follows a connection that may have gone on at another gateway with its next segment. The
    /// arguments are those of [`TcpTracker::advance`].
    ///
    /// Window scale and SACK are those of the tracker, because no later segment tells them.
    #[expect(clippy::too_many_arguments, reason = "those of `advance`, time and what was heard")]
    pub fn relearn(
        &mut self,
        heard: Relearning,
        direction: Direction,
        segment: &Segment<'_>,
        seen_reply: bool,
        assured: bool,
        settings: &TcpSettings,
        now: Timestamp,
    ) -> Relearnt {
        let mut heard = heard.at(now);
        let before = *self;
        let step = self.advance(direction, segment, seen_reply, assured, settings);
        let fits = matches!(step, Step::Accept(_));
        let is_ordinary = matches!(segment.class, FlagClass::Ack | FlagClass::Fin);
        if segment.class == FlagClass::Rst {
            // Its receiver knows the numbers. Only one that fits ends the connection here.
            if matches!(step, Step::Invalid { .. }) {
                *self = before;
                return Relearnt { effect: Effect::Step(Step::Pass), rest: Some(heard) };
            }
            return Relearnt { effect: Effect::Step(step), rest: Some(heard) };
        }
        if !fits && !is_ordinary {
            return Relearnt { effect: Effect::Step(step), rest: Some(heard) };
        }
        // Both ends have agreed on other numbers, so those of the connection before say nothing.
        let is_opening = matches!(before.state, TcpState::SynSent | TcpState::SynSent2);
        if segment.class == FlagClass::SynAck && !is_opening {
            return Relearnt { effect: Effect::Step(step), rest: None };
        }
        if !fits && heard.is_shared {
            // The other gateway sees what is acknowledged, so nobody waits for that here.
            *self = before;
            if let Some(accepted) = self.follow_closing(direction, segment, assured, settings) {
                let effect = Effect::Step(Step::Accept(accepted));
                return Relearnt { effect, rest: Some(heard) };
            }
        }
        if !fits {
            // Windows that are far behind take what is new for old.
            *self = before;
        }
        let largest = self.windows[direction.reversed().index()].max_window;
        heard.hear(direction, segment, self.modes, largest.max(MIN_ACK_WINDOW));
        heard.until.get_or_insert(now.after(FORGOTTEN_AFTER));
        let Some(ends) = heard.both() else {
            let most = settings.timeouts.unacknowledged.min(settings.timeouts.of(self.state));
            let held = Effect::Hold { at_least: Timeout(most) };
            let effect = if fits { Effect::Step(step) } else { held };
            return Relearnt { effect, rest: Some(heard) };
        };
        if !fits {
            let accepted = self.take_over(ends, direction, segment, assured, settings);
            return Relearnt { effect: Effect::Step(Step::Accept(accepted)), rest: None };
        }
        if (0..2).any(|end| self.windows[end].end != ends[end].end) {
            self.learn_windows(ends);
        }
        Relearnt { effect: Effect::Step(step), rest: None }
    }

    /// Follows the end of a connection by its states alone. `None` while it is not closing.
    fn follow_closing(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        assured: bool,
        settings: &TcpSettings,
    ) -> Option<Accepted> {
        let before = self.state;
        if segment.class != FlagClass::Fin && !before.is_closing() {
            return None;
        }
        let Transition::To(next) = transition(before, direction, segment.class) else {
            return None;
        };
        self.state = next;
        if before != next && next == TcpState::FinWait {
            self.modes[direction.index()].set(Mode::CLOSED_FIRST);
        }
        let timeout = self.note_last(direction, segment.class, settings);
        Some(Accepted { timeout, assured, state_changed: before != next })
    }

    /// Goes on with the numbers that both ends have acknowledged.
    fn take_over(
        &mut self,
        ends: [Heard; 2],
        direction: Direction,
        segment: &Segment<'_>,
        assured: bool,
        settings: &TcpSettings,
    ) -> Accepted {
        use TcpState::{Close, CloseWait, Established, FinWait, LastAck, TimeWait};

        self.learn_windows(ends);
        let before = self.state;
        // A FIN counts when it is acknowledged, like all numbers.
        let acknowledged = |end: usize| !ends[1 - end].acknowledged.is_before(ends[end].end);
        let closed = [0, 1].map(|end| ends[end].is_closed && acknowledged(end));
        let shown = match closed {
            [true, true] => TimeWait,
            [false, false] => Established,
            _ => CloseWait,
        };
        self.state = match (before, shown) {
            (FinWait | CloseWait | LastAck, Established) => before,
            (LastAck, CloseWait) => before,
            (Close | TimeWait, _) if shown == TimeWait => before,
            _ => shown,
        };
        if !before.is_closing()
            && let Some(end) = closed.iter().position(|it| *it)
        {
            self.modes[end].set(Mode::CLOSED_FIRST);
        }
        self.repetitions = 0;
        self.count_repetition(direction, segment);
        let timeout = self.note_last(direction, segment.class, settings);
        // Both ends have answered.
        let assured = assured || self.state == Established;
        Accepted { timeout, assured, state_changed: before != self.state }
    }

    fn learn_windows(&mut self, ends: [Heard; 2]) {
        for (own, other) in [(0, 1), (1, 0)] {
            let Heard { acknowledged, window, .. } = ends[own];
            let end = match ends[other].acknowledged {
                // A keep-alive repeats a number, and its answer acknowledges one more.
                answered if answered == ends[own].end.plus(1) => answered,
                _ => ends[own].end,
            };
            let max_end = ends[other].allowed.max(end);
            let max_window = self.windows[own].max_window.max(window);
            self.windows[own] = WindowState { end, max_end, max_window, max_ack: acknowledged };
            self.modes[own].set(Mode::ACKED);
            self.modes[own].clear(Mode::UNACKNOWLEDGED);
            if ends[other].acknowledged.is_before(end) {
                self.modes[own].set(Mode::UNACKNOWLEDGED);
            }
        }
    }
}

impl Relearning {
    /// The part that is not yet forgotten.
    fn at(self, now: Timestamp) -> Self {
        match self.until.is_some_and(|until| until <= now) {
            true => Self { is_shared: self.is_shared, ..Self::default() },
            false => self,
        }
    }

    /// True if nothing is known.
    pub fn is_empty(&self) -> bool {
        self.until.is_none() && !self.is_shared
    }

    /// Another gateway has told of the connection. If packets have come here too, both see some.
    #[must_use]
    pub fn after_news(self) -> Self {
        Self { is_shared: !self.is_empty(), ..Self::default() }
    }

    /// The numbers of both ends, if each has acknowledged those of the other.
    fn both(&self) -> Option<[Heard; 2]> {
        match self.ends {
            [Numbers::Acknowledged(first), Numbers::Acknowledged(second)] => Some([first, second]),
            _ => None,
        }
    }

    /// Takes the numbers of a segment. Numbers that are more than `near` bytes apart belong to
    /// different connections, or one of them is made up.
    fn hear(&mut self, direction: Direction, segment: &Segment<'_>, modes: [Mode; 2], near: u32) {
        let (from, to) = (direction.index(), direction.reversed().index());
        let sacks = modes[to].has(Mode::SACK);
        let highest_ack = if sacks { segment.highest_ack() } else { segment.acknowledgment };
        if segment.has_ack
            && let Numbers::Heard(heard) = self.ends[to]
            && [segment.acknowledgment, highest_ack].iter().any(|it| heard.has(*it))
        {
            self.ends[to] = Numbers::Acknowledged(heard);
        }
        let said = Heard::of(segment, highest_ack, modes[from]);
        self.ends[from] = match self.ends[from] {
            Numbers::Heard(heard) => Numbers::Heard(heard.with(said, near).unwrap_or(said)),
            Numbers::Acknowledged(heard) => {
                Numbers::Acknowledged(heard.with(said, near).unwrap_or(heard))
            }
            Numbers::Unheard => Numbers::Heard(said),
        };
    }
}

impl Heard {
    fn of(segment: &Segment<'_>, highest_ack: Seq, mode: Mode) -> Self {
        let scale = if segment.class.is_syn() { 0 } else { mode.scale.min(MAX_SCALE) };
        let window = u32::from(segment.window) << scale;
        Self {
            first: segment.sequence,
            end: segment.end,
            acknowledged: segment.acknowledgment,
            // A closed window may still be probed with one byte.
            allowed: highest_ack.plus(window.max(1)),
            window: window.max(1),
            is_closed: segment.class == FlagClass::Fin,
        }
    }

    /// True for a number that acknowledges some of these. The answer to a keep-alive acknowledges
    /// one more.
    fn has(&self, acknowledged: Seq) -> bool {
        acknowledged.since(self.first) <= self.end.since(self.first).saturating_add(1)
    }

    /// Both, if they are no more than `near` bytes apart. No more than that is kept, because an end
    /// acknowledges nothing older.
    fn with(self, later: Self, near: u32) -> Option<Self> {
        let (lowest, highest) = (self.first.minus(near), self.end.plus(near));
        if later.end.is_before(lowest) || later.first.is_after(highest) {
            return None;
        }
        let end = self.end.max(later.end);
        let first = if later.first.is_before(self.first) { later.first } else { self.first };
        let first = if end.since(first) > near { end.minus(near) } else { first };
        let is_closed =
            (self.is_closed && self.end == end) || (later.is_closed && later.end == end);
        Some(Self {
            first,
            end,
            acknowledged: self.acknowledged.max(later.acknowledged),
            allowed: self.allowed.max(later.allowed),
            window: self.window.max(later.window),
            is_closed,
        })
    }
}

#[cfg(test)]
#[path = "relearning_tests.rs"]
mod tests;
