//! A tracked connection.

use super::segment::Segment;
use super::window::{Fit, MIN_ACK_WINDOW, Mode, WindowState};
use super::{FlagClass, Invalid, Seq, TcpSettings, TcpState, Transition, opening, transition};
use crate::Direction;

/// A timer, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeout(pub u32);

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTracker {
    /// The numbers that were sent and allowed, by direction.
    pub(super) windows: [WindowState; 2],
    /// The numbers of the last ACK that fitted, to count its repetitions, or of the last
    /// ignored segment, to recognise its answer.
    pub(super) last_sequence: Seq,
    pub(super) last_acknowledgment: Seq,
    pub(super) last_end: Seq,
    pub(super) last_window: u16,
    /// The options that were agreed, by direction.
    pub(super) modes: [Mode; 2],
    /// The offers of the last ignored SYN.
    pub(super) ignored_syn: Mode,
    /// The last segment that was accepted or ignored.
    pub(super) last: Option<(Direction, FlagClass)>,
    /// Number of repetitions of the last ACK.
    pub(super) repetitions: u8,
    pub(super) state: TcpState,
}

const _: () = assert!(size_of::<TcpTracker>() <= 56);

/// A new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its tracker.
    pub tracker: TcpTracker,
    /// Its timer.
    pub timeout: Timeout,
}

/// The result for a segment and the entry of its connection.
///
/// An entry has seen a reply as soon as a segment in reply direction has led to `Accept` or
/// `Pass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// It belongs to the connection.
    Accept(Accepted),
    /// It passes without a change of the connection's timer or counters: a late duplicate, a
    /// repeated SYN that has no answer so far, or a segment that its receiver has to judge.
    Pass,
    /// It can not belong to the connection.
    Invalid {
        /// The reason.
        why: Invalid,
        /// Lower the timer to this if more is left.
        cap: Option<Timeout>,
    },
    /// It passes, and the connection is deleted: a RST before any answer.
    Delete,
    /// The connection is deleted, and the segment is the first of a new one.
    Reopen,
}

/// The effect of an accepted segment on the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The timer starts anew with this.
    pub timeout: Timeout,
    /// True if the connection is assured: it is not evicted early. It never becomes false
    /// again.
    pub assured: bool,
    /// True if the state changed.
    pub state_changed: bool,
}

/// The result of the state machine before the numbers of a segment are checked.
enum Plan {
    /// The next state, if the segment fits into the windows.
    Check(TcpState),
    /// The next state, whatever the windows are.
    Trust(TcpState),
    /// The final result.
    Done(Step),
}

impl TcpTracker {
    /// Begins to track a connection with its first segment.
    ///
    /// A SYN opens one. So does an ACK if [`TcpSettings::loose`] is set. The past of such a
    /// connection is unknown, and so is the scale of its windows, so only its resets are
    /// checked.
    ///
    /// # Errors
    /// [`Invalid::NotOpening`] for any other segment.
    // In line, as the next one, because trackers and results are copied on their way out.
    #[inline(always)]
    pub fn open(segment: &Segment<'_>, settings: &TcpSettings) -> Result<Opened, Invalid> {
        let class = segment.class;
        let state = match opening(class) {
            Transition::To(TcpState::SynSent) => TcpState::SynSent,
            Transition::To(state) if settings.loose => state,
            _ => return Err(Invalid::NotOpening { class }),
        };
        let mut tracker = Self {
            windows: [WindowState::heard(segment.end, segment.window), WindowState::default()],
            last_sequence: Seq(0),
            last_acknowledgment: Seq(0),
            last_end: Seq(0),
            last_window: 0,
            modes: [Mode::default(); 2],
            ignored_syn: Mode::default(),
            last: None,
            repetitions: 0,
            state,
        };
        let mut longest = u32::MAX;
        if class == FlagClass::Syn {
            tracker.windows[0].max_end = segment.end;
            tracker.modes[0].learn(segment.syn_options());
            // All that a SYN tells of the other end, whose numbers are not known yet, is its
            // window. A closed one may still be probed with one byte.
            tracker.windows[1].max_end = Seq(u32::from(segment.window).max(1));
        } else {
            tracker.modes = [Mode::with(Mode::SACK | Mode::LIBERAL); 2];
            longest = settings.timeouts.unacknowledged;
            // The first segment of a direction fits the numbers that were just learned from it.
            let _ = tracker.fit(Direction::Original, segment, settings);
        }
        tracker.last = Some((Direction::Original, class));
        let timeout = Timeout(tracker.timeout(class, settings).min(longest));
        Ok(Opened { tracker, timeout })
    }

    /// Follows the connection with its next segment.
    ///
    /// `seen_reply` and `assured` are the flags of the entry from earlier segments.
    #[inline(always)]
    pub fn advance(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        seen_reply: bool,
        assured: bool,
        settings: &TcpSettings,
    ) -> Step {
        let (from, class) = (self.state, segment.class);
        let next = match self.plan(direction, segment, seen_reply, assured, settings) {
            Plan::Done(step) => return step,
            Plan::Trust(next) => next,
            Plan::Check(next) => match self.fit(direction, segment, settings) {
                Fit::Inside => next,
                Fit::Stale => return Step::Pass,
                Fit::Over(why) => {
                    let cap = self.closing_out_of_window(direction, class, assured, settings);
                    return Step::Invalid { why, cap };
                }
            },
        };

        self.state = next;
        if from != next && next == TcpState::FinWait {
            self.modes[direction.index()].set(Mode::CLOSED_FIRST);
        }
        let Timeout(mut timeout) = self.note_last(direction, class, settings);
        if !seen_reply {
            match class {
                FlagClass::Rst => return Step::Delete,
                // Otherwise repeated SYNs to a silent host would keep an entry for ever.
                FlagClass::Syn if from == TcpState::SynSent => return Step::Pass,
                _ if next == TcpState::Established => {
                    timeout = timeout.min(settings.timeouts.unacknowledged);
                }
                _ => {}
            }
        }
        let answered = seen_reply
            && next == TcpState::Established
            && matches!(from, TcpState::SynRecv | TcpState::Established);
        Step::Accept(Accepted {
            timeout: Timeout(timeout),
            assured: assured || answered,
            state_changed: from != next,
        })
    }

    /// Records that the connection was reset in the name of one end.
    pub(crate) fn was_reset(&mut self) {
        self.state = TcpState::Close;
    }

    /// State of the connection.
    pub const fn state(&self) -> TcpState {
        self.state
    }

    /// Applies the transition table and the rules that it can not express.
    fn plan(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        seen_reply: bool,
        assured: bool,
        settings: &TcpSettings,
    ) -> Plan {
        use FlagClass::{Ack, Rst, Syn, SynAck};
        use TcpState::{Close, Established, LastAck, SynRecv, SynSent, SynSent2, TimeWait};

        let (state, class) = (self.state, segment.class);
        let next = match transition(state, direction, class) {
            Transition::To(next) => next,
            Transition::Ignore => return self.ignore(direction, segment),
            Transition::Invalid => {
                let why = Invalid::State { state, direction, class };
                return Plan::Done(Step::Invalid { why, cap: None });
            }
        };
        match (class, next) {
            (Rst, _) => self.reset(direction, segment, seen_reply, assured, settings),
            (Syn, SynSent) if matches!(state, TimeWait | Close) => {
                if self.may_reopen(direction) {
                    Plan::Done(Step::Reopen)
                } else {
                    self.ignore(direction, segment)
                }
            }
            (Syn, SynSent2) => {
                self.ignored_syn.set(Mode::SIMULTANEOUS);
                Plan::Check(SynSent2)
            }
            (SynAck, SynRecv)
                if state == SynSent
                    && direction == Direction::Reply
                    && !self.answers_syn(segment) =>
            {
                Plan::Done(self.not_an_answer(segment))
            }
            // Both ends of a simultaneous open send a SYN+ACK, and the ACK of either completes
            // it.
            (Ack, SynRecv) if self.ignored_syn.has(Mode::SIMULTANEOUS) => Plan::Check(Established),
            (Ack, TimeWait) if state == LastAck && self.takes_challenge(direction) => {
                Plan::Done(Step::Pass)
            }
            _ => Plan::Check(next),
        }
    }

    /// True if a SYN may open the connection anew: one end has closed it, or the sender of the
    /// SYN has reset it (RFC 9293 section 3.6.1 has the condition for an end; the middle knows
    /// less).
    fn may_reopen(&self, direction: Direction) -> bool {
        self.modes.iter().any(|mode| mode.has(Mode::CLOSED_FIRST))
            || self.last == Some((direction, FlagClass::Rst))
    }

    /// True once for the ACK that challenges an ignored SYN (RFC 5961 section
    /// 4.2): it must not be taken for the ACK of the last FIN.
    fn takes_challenge(&mut self, direction: Direction) -> bool {
        let challenge = self.last == Some((direction.reversed(), FlagClass::Syn))
            && self.ignored_syn.has(Mode::CHALLENGED);
        if challenge {
            self.ignored_syn.clear(Mode::CHALLENGED);
        }
        challenge
    }

    /// Lets a segment pass that may be right where the tracker is wrong, and remembers it: its
    /// answer will tell.
    fn ignore(&mut self, direction: Direction, segment: &Segment<'_>) -> Plan {
        let class = segment.class;
        let answers = self.last == Some((direction.reversed(), FlagClass::Syn))
            && segment.acknowledgment == self.last_end;
        if class == FlagClass::SynAck && answers {
            self.restart(direction);
            return Plan::Check(TcpState::SynRecv);
        }
        self.last = Some((direction, class));
        self.last_sequence = segment.sequence;
        self.last_end = segment.end;
        self.last_window = segment.window;
        if class == FlagClass::Syn && direction == Direction::Original {
            self.ignored_syn = Mode::default();
            self.ignored_syn.learn(segment.syn_options());
            if self.state == TcpState::LastAck {
                self.ignored_syn.set(Mode::CHALLENGED);
            }
        }
        let half_open = class == FlagClass::Ack && direction == Direction::Reply;
        if half_open && self.state == TcpState::SynSent {
            self.last_acknowledgment = segment.acknowledgment;
        }
        Plan::Done(Step::Pass)
    }

    /// Starts over from an ignored SYN whose SYN+ACK is now travelling in `direction`: both
    /// ends agree, so the tracker had lost track.
    fn restart(&mut self, direction: Direction) {
        let (from, to) = (direction.index(), direction.reversed().index());
        self.windows[to] = WindowState::heard(self.last_end, self.last_window);
        self.windows[to].max_end = self.last_end;
        self.ignored_syn.clear(Mode::CHALLENGED);
        self.modes[to] = self.ignored_syn;
        self.windows[from] = WindowState::default();
        self.modes[from].forget();
    }

    /// True for a segment that acknowledges the data of the opener; an attacker who does not
    /// see the connection can only guess that number. It may be one higher in the answer to a
    /// keep-alive.
    pub(super) fn answers_syn(&self, segment: &Segment<'_>) -> bool {
        let sent = self.windows[Direction::Original.index()].end;
        let ack = segment.acknowledgment;
        segment.has_ack && !ack.is_after(sent.plus(1)) && ack.is_after(sent.minus(MIN_ACK_WINDOW))
    }

    /// The step for a SYN+ACK or RST that does not answer the SYN. Its receiver refuses it (RFC
    /// 9293 section 3.10.7.3), so the tracker learns nothing from it.
    fn not_an_answer(&self, segment: &Segment<'_>) -> Step {
        self.acknowledges_too_much(Direction::Reply, segment).unwrap_or(Step::Pass)
    }

    /// The step for a segment that acknowledges data which its peer has not sent; `None` for
    /// other segments.
    fn acknowledges_too_much(&self, direction: Direction, segment: &Segment<'_>) -> Option<Step> {
        let peer = direction.reversed().index();
        let highest = self.windows[peer].end;
        let acknowledged = match self.modes[peer].has(Mode::SACK) {
            true => segment.highest_ack(),
            false => segment.acknowledgment,
        };
        let says = segment.has_ack && segment.acknowledgment != Seq(0);
        let why = Invalid::AckOver { acknowledged, highest };
        (says && acknowledged.is_after(highest)).then_some(Step::Invalid { why, cap: None })
    }

    /// The step for a RST that may be a guess by an attacker who does not see the connection.
    /// It applies where the windows can not tell, because one end has sent nothing yet or has
    /// closed. The receiver of the RST knows better, so the RST passes and closes nothing here.
    fn guessed(&self, direction: Direction, segment: &Segment<'_>) -> Option<Step> {
        let (sender, sequence) = (&self.windows[direction.index()], segment.sequence);
        let (peer, highest) = (direction.reversed().index(), sender.max_end);
        match (self.state, direction) {
            (TcpState::SynSent, Direction::Reply) if !self.answers_syn(segment) => {
                Some(self.not_an_answer(segment))
            }
            (TcpState::SynSent, Direction::Original) | (TcpState::SynSent2, _) => {
                let why = Invalid::SequenceOver { sequence, highest };
                let over = sequence.is_after(highest).then_some(Step::Invalid { why, cap: None });
                over.or_else(|| self.acknowledges_too_much(direction, segment))
                    .or((sequence != sender.end).then_some(Step::Pass))
            }
            (state, _) if state.is_closing() && self.modes[peer].has(Mode::ACKED) => {
                // A FIN may follow a window that is full.
                let highest = highest.max(sender.end);
                let expected = self.windows[peer].max_ack;
                let fits = !sequence.is_before(expected) && !sequence.is_after(highest);
                (!fits).then_some(Step::Pass)
            }
            _ => None,
        }
    }

    /// The checks of a RST. They are stricter than the windows, because a RST is cheap to forge
    /// (RFC 5961 section 3).
    fn reset(
        &self,
        direction: Direction,
        segment: &Segment<'_>,
        seen_reply: bool,
        assured: bool,
        settings: &TcpSettings,
    ) -> Plan {
        use TcpState::{Close, Established, SynSent};

        let Segment { sequence, acknowledgment, .. } = *segment;
        let peer = direction.reversed();
        // In a closing connection the ports may already be in use by a new one whose beginning
        // the tracker did not see.
        if self.state.is_closing() {
            return self.guessed(direction, segment).map_or(Plan::Trust(Close), Plan::Done);
        }
        let established = self.state == Established && assured;
        let mut next = Close;
        let after_syn = matches!(self.last, Some((_, FlagClass::Syn)));
        if self.modes[peer.index()].has(Mode::ACKED) && !after_syn {
            let expected = self.windows[peer.index()].max_ack;
            if !established && sequence == Seq(0) {
                return Plan::Check(Close);
            }
            if sequence.is_before(expected) && !settings.ignore_invalid_rst {
                let why = Invalid::ResetUnder { sequence, lowest: expected };
                return Plan::Done(Step::Invalid { why, cap: None });
            }
            // Exactly the expected number, or the end of the data that its sender just sent.
            let follows =
                self.last == Some((direction, FlagClass::Ack)) && sequence == self.last_end;
            if !established || sequence == expected || follows {
                return Plan::Check(Close);
            }
            // Its receiver will challenge it instead of closing.
            next = self.state;
        }
        // The answer to an ignored segment acknowledges numbers outside of all windows. Without
        // an acknowledgment number it answers nothing, also if no ignored segment was recorded.
        let answers_ignored = acknowledgment != Seq(0)
            && acknowledgment == self.last_end
            && match self.last {
                Some((sender, FlagClass::Syn)) => seen_reply && sender == peer,
                Some((_, FlagClass::Ack)) => !assured,
                _ => false,
            };
        let answers_challenge = self.state == SynSent
            && self.last == Some((Direction::Reply, FlagClass::Ack))
            && sequence == self.last_acknowledgment;
        if answers_challenge {
            // Its sender goes on opening the connection (RFC 9293 section 3.5.1), and the
            // segment that it answers may have been forged.
            return Plan::Done(Step::Pass);
        }
        if answers_ignored {
            return Plan::Trust(next);
        }
        self.guessed(direction, segment).map_or(Plan::Check(next), Plan::Done)
    }

    /// After a FIN or RST outside the windows in both directions the ends have most likely
    /// closed and the tracker is out of step. So the entry should not be kept for days.
    fn closing_out_of_window(
        &mut self,
        direction: Direction,
        class: FlagClass,
        assured: bool,
        settings: &TcpSettings,
    ) -> Option<Timeout> {
        use FlagClass::{Fin, Rst};
        if !assured || !matches!(class, Fin | Rst) {
            return None;
        }
        if matches!(self.last, Some((sender, Fin | Rst)) if sender != direction) {
            return Some(Timeout(settings.timeouts.unacknowledged));
        }
        self.last = Some((direction, class));
        None
    }

    /// Records a segment that was accepted, and returns the timer that it starts.
    #[inline(always)]
    pub(super) fn note_last(
        &mut self,
        direction: Direction,
        class: FlagClass,
        settings: &TcpSettings,
    ) -> Timeout {
        self.last = Some((direction, class));
        Timeout(self.timeout(class, settings))
    }

    /// Counts the unchanged repetitions of one ACK, with or without data.
    #[inline(always)]
    pub(super) fn count_repetition(&mut self, direction: Direction, segment: &Segment<'_>) {
        let repeats = matches!(self.last, Some((sender, _)) if sender == direction)
            && self.last_sequence == segment.sequence
            && self.last_acknowledgment == segment.acknowledgment
            && self.last_end == segment.end
            && self.last_window == segment.window;
        self.repetitions = if repeats { self.repetitions.saturating_add(1) } else { 0 };
        self.last_sequence = segment.sequence;
        self.last_acknowledgment = segment.acknowledgment;
        self.last_end = segment.end;
        self.last_window = segment.window;
    }

    /// Timer after a segment, seconds.
    #[inline(always)]
    fn timeout(&self, class: FlagClass, settings: &TcpSettings) -> u32 {
        let usual = settings.timeouts.of(self.state);
        let retransmitted = usual.min(settings.timeouts.retransmitted);
        if self.repetitions >= settings.max_retransmissions && retransmitted < usual {
            retransmitted
        } else if class == FlagClass::Rst {
            settings.timeouts.of(TcpState::Close)
        } else if self.modes.iter().any(|mode| mode.has(Mode::UNACKNOWLEDGED))
            && settings.timeouts.unacknowledged < usual
        {
            settings.timeouts.unacknowledged
        } else if self.last_window == 0 {
            retransmitted
        } else {
            usual
        }
    }
}

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
