//! The window rules.
//!
//! For each direction the tracker keeps the numbers that its sender has shown and those that
//! its receiver has allowed. A segment has to obey these rules, where `other` is the window of
//! the opposite direction:
//!
//! 1. `sequence <= max_end`: it starts inside the receiver's window;
//! 2. `end >= self.end - other.max_window`: it is at most one window old;
//! 3. `ack <= other.end`: it acknowledges data that was sent;
//! 4. `ack >= other.end - max(66000, max_window)`: and data that is not too old;
//!
//! In these rules `ack` is the acknowledgment number or the highest SACK edge. A segment over
//! an upper bound is invalid. One under a lower bound is a late duplicate: it passes and
//! teaches nothing.

use super::segment::{MAX_SCALE, Segment};
use super::tracker::TcpTracker;
use super::{FlagClass, Invalid, Seq, SynOptions, TcpSettings, TcpState};
use crate::Direction;

/// Rule 4 accepts acknowledgments that are at least this old, bytes: a little more than a full
/// unscaled window.
pub(super) const MIN_ACK_WINDOW: u32 = 66_000;

/// One direction: the numbers of its sender and the windows of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct WindowState {
    /// One past the highest sequence number sent.
    pub end: Seq,
    /// Highest sequence number inside the receiver's windows.
    pub max_end: Seq,
    /// Largest window that the sender has announced, bytes; 0 before its first segment.
    pub max_window: u32,
    /// Highest acknowledgment number that the sender sent, with `Mode::ACKED`.
    pub max_ack: Seq,
}

impl WindowState {
    /// The window of a sender whose first segment ends at `end`; it is assumed that its
    /// receiver's window is as large as its own.
    pub fn heard(end: Seq, window: u16) -> Self {
        let max_window = u32::from(window).max(1);
        Self { end, max_end: end.plus(max_window), max_window, max_ack: Seq(0) }
    }
}

/// The agreed options and observations of the sender of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Mode {
    /// Shift of the windows that the sender announces.
    pub scale: u8,
    flags: u8,
}

impl Mode {
    /// The sender understands SACK.
    pub const SACK: u8 = 1;
    /// The sender offered window scaling.
    pub const SCALING: u8 = 1 << 1;
    /// The connection was picked up in the middle: the scale is not known, so only resets are
    /// checked.
    pub const LIBERAL: u8 = 1 << 2;
    /// The sender was the first to send a FIN.
    pub const CLOSED_FIRST: u8 = 1 << 3;
    /// Some data of the sender is unacknowledged.
    pub const UNACKNOWLEDGED: u8 = 1 << 4;
    /// The sender has sent an acknowledgment.
    pub const ACKED: u8 = 1 << 5;
    /// For an ignored SYN: the answer may be a challenge ACK.
    pub const CHALLENGED: u8 = 1 << 6;
    /// Both ends sent a SYN.
    pub const SIMULTANEOUS: u8 = 1 << 7;

    pub const fn with(flags: u8) -> Self {
        Self { scale: 0, flags }
    }

    pub const fn flags(self) -> u8 {
        self.flags
    }

    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn set(&mut self, flag: u8) {
        self.flags |= flag;
    }

    pub fn clear(&mut self, flag: u8) {
        self.flags &= !flag;
    }

    /// Forgets everything except that the connection was picked up in the middle.
    pub fn forget(&mut self) {
        *self = Self::with(self.flags & Self::LIBERAL);
    }

    pub fn learn(&mut self, options: SynOptions) {
        self.forget();
        if let Some(scale) = options.scale {
            self.set(Self::SCALING);
            self.scale = scale;
        }
        if options.sack_permitted {
            self.set(Self::SACK);
        }
    }
}

/// The result of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Inside the windows, or accepted although it is not.
    Inside,
    /// It passes and teaches nothing.
    Stale,
    /// It is over an upper bound.
    Over(Invalid),
}

/// The rules that a segment breaks.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Broken {
    /// Rule 2.
    stale_data: bool,
    /// Rule 3.
    ack_over: bool,
    /// Rule 4.
    stale_ack: bool,
}

impl Broken {
    const NONE: Self = Self { stale_data: false, ack_over: false, stale_ack: false };
}

/// The numbers of a segment as the rules use them.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    sequence: Seq,
    end: Seq,
    ack: Seq,
    highest_ack: Seq,
}

impl Numbers {
    /// The numbers in the segment. `receiver` is the mode of the end whose data the segment
    /// acknowledges.
    #[inline(always)]
    pub fn of(segment: &Segment<'_>, receiver: Mode) -> Self {
        let Segment { sequence, end, acknowledgment: ack, .. } = *segment;
        let highest_ack = if receiver.has(Mode::SACK) { segment.highest_ack() } else { ack };
        Self { sequence, end, ack, highest_ack }
    }
}

impl TcpTracker {
    /// Checks a segment against the windows and learns from one that fits.
    pub(super) fn fit(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        settings: &TcpSettings,
    ) -> Fit {
        let (from, to) = (direction.index(), direction.reversed().index());
        let mut numbers = Numbers::of(segment, self.modes[to]);

        let plain = segment.class == FlagClass::Ack && self.windows[from].max_window != 0;
        if !plain && self.prepare(direction, segment, &mut numbers) {
            return Fit::Inside;
        }
        let verdict = self.check(from, to, &numbers);
        if verdict != Fit::Inside {
            let liberal = settings.be_liberal || self.modes[from].has(Mode::LIBERAL);
            return if liberal { Fit::Inside } else { verdict };
        }
        self.learn(from, to, segment, &numbers);
        if segment.class == FlagClass::Ack {
            self.count_repetition(direction, segment);
        }
        Fit::Inside
    }

    /// Handles the segments that need more: the first segment of a sender, SYN, RST. Returns
    /// true if no other check is needed.
    #[cold]
    fn prepare(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        numbers: &mut Numbers,
    ) -> bool {
        let (from, to) = (direction.index(), direction.reversed().index());
        let unheard = self.windows[from].max_window == 0;
        let syn = segment.class.is_syn();
        // A SYN with a higher number replaces one that may never have arrived.
        let anew = syn
            && matches!(self.state(), TcpState::SynSent | TcpState::SynRecv)
            && numbers.end.is_after(self.windows[from].end);
        // Only the receiver of the opener's SYN can acknowledge it, so the other SYN was
        // forged.
        let anew = anew
            || segment.class == FlagClass::SynAck
                && direction == Direction::Reply
                && self.state() == TcpState::SynSent2
                && numbers.end != self.windows[from].end
                && self.answers_syn(segment);

        if syn && (unheard || anew) {
            self.begin(direction, segment);
            if !segment.has_ack && (unheard || direction == Direction::Reply) {
                return true;
            }
        } else if unheard {
            self.pick_up(from, to, segment, numbers);
        }

        // Some stacks set ACK in a RST without a number to go with it.
        let reset = segment.class == FlagClass::Rst;
        if !segment.has_ack || (reset && numbers.ack == Seq(0)) {
            numbers.ack = self.windows[to].end;
            numbers.highest_ack = numbers.ack;
        }
        // A RST that refuses a SYN has no sequence number of its own (RFC 9293 section 3.5.2).
        if reset && numbers.sequence == Seq(0) && self.state() == TcpState::SynSent {
            numbers.sequence = self.windows[from].end;
            numbers.end = numbers.sequence;
        }
        false
    }

    /// Takes the numbers and options of a SYN.
    fn begin(&mut self, direction: Direction, segment: &Segment<'_>) {
        let from = direction.index();
        let sender = &mut self.windows[from];
        sender.end = segment.end;
        sender.max_end = segment.end;
        sender.max_window = u32::from(segment.window).max(1);
        self.modes[from].learn(segment.syn_options());
        // Both ends must offer scaling (RFC 7323 section 2.2).
        let both = self.modes.iter().all(|mode| mode.has(Mode::SCALING));
        if direction == Direction::Reply && !both {
            for mode in &mut self.modes {
                mode.scale = 0;
            }
        }
    }

    /// Guesses the window of a sender whose first segment comes in the middle of a connection.
    fn pick_up(&mut self, from: usize, to: usize, segment: &Segment<'_>, numbers: &Numbers) {
        let window = (u32::from(segment.window) << self.modes[from].scale).max(1);
        let sender = &mut self.windows[from];
        sender.end = numbers.end;
        sender.max_window = window;
        sender.max_end = numbers.end.plus(window);
        let other = &mut self.windows[to];
        // A keep-alive repeats a number, and its answer acknowledges one more.
        if numbers.highest_ack == other.end.plus(1) {
            other.end = numbers.highest_ack;
        }
    }

    /// True for a segment that obeys the four rules.
    #[inline(always)]
    pub(super) fn is_inside(&self, from: usize, to: usize, numbers: &Numbers) -> bool {
        let sender = &self.windows[from];
        !numbers.sequence.is_after(sender.max_end) && self.broken(from, to, numbers) == Broken::NONE
    }

    /// The rules 2 to 4 that a segment breaks.
    #[inline(always)]
    fn broken(&self, from: usize, to: usize, numbers: &Numbers) -> Broken {
        let (sender, other) = (&self.windows[from], &self.windows[to]);
        let oldest_ack = other.end.minus(sender.max_window.max(MIN_ACK_WINDOW));
        let heard = other.max_window != 0;
        Broken {
            stale_data: heard && numbers.end.is_before(sender.end.minus(other.max_window)),
            ack_over: numbers.highest_ack.is_after(other.end),
            stale_ack: numbers.highest_ack.is_before(oldest_ack),
        }
    }

    /// Applies the four rules.
    fn check(&mut self, from: usize, to: usize, numbers: &Numbers) -> Fit {
        let Numbers { sequence, end, highest_ack, .. } = *numbers;
        let (sender, other) = (self.windows[from], self.windows[to]);
        let broken = self.broken(from, to, numbers);

        if sequence.is_after(sender.max_end) {
            // Some receivers accept more than they announced. If only this rule fails, and by
            // less than a window, the answer will tell.
            let excess = end.since(sender.max_end).wrapping_add(1);
            let heard = other.max_window != 0;
            if heard && broken == Broken::NONE && excess <= other.max_window {
                self.windows[from].end = end;
                self.modes[from].set(Mode::UNACKNOWLEDGED);
                return Fit::Stale;
            }
            return Fit::Over(Invalid::SequenceOver { sequence, highest: sender.max_end });
        }
        if broken.ack_over {
            return Fit::Over(Invalid::AckOver { acknowledged: highest_ack, highest: other.end });
        }
        if broken == Broken::NONE { Fit::Inside } else { Fit::Stale }
    }

    /// Moves both windows along with a segment that fits.
    #[inline(always)]
    pub(super) fn learn(
        &mut self,
        from: usize,
        to: usize,
        segment: &Segment<'_>,
        numbers: &Numbers,
    ) {
        let Numbers { end, ack, highest_ack, .. } = *numbers;
        // The window of a SYN is never scaled (RFC 7323 section 2.2).
        let scale = if segment.class.is_syn() { 0 } else { self.modes[from].scale };
        let window = u32::from(segment.window) << scale.min(MAX_SCALE);

        let sender = &mut self.windows[from];
        let previous_max_end = sender.max_end;
        // Data above a gap occupies room that the announced window does not count.
        sender.max_window = sender.max_window.max(window.wrapping_add(highest_ack.since(ack)));
        if end.is_after(sender.end) {
            sender.end = end;
            self.modes[from].set(Mode::UNACKNOWLEDGED);
        }
        if segment.has_ack {
            let known = self.modes[from].has(Mode::ACKED);
            sender.max_ack = if known { sender.max_ack.max(ack) } else { ack };
            self.modes[from].set(Mode::ACKED);
        }

        let other = &mut self.windows[to];
        if other.max_window != 0 && end.is_after(previous_max_end) {
            other.max_window = other.max_window.wrapping_add(end.since(previous_max_end));
        }
        let allowed = highest_ack.plus(window);
        if !allowed.is_before(other.max_end) {
            // A closed window may still be probed with one byte.
            other.max_end = allowed.plus(u32::from(window == 0));
        }
        if ack == other.end {
            self.modes[to].clear(Mode::UNACKNOWLEDGED);
        }
    }
}
