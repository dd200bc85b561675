//! The part of a tracker that trackers of other makes know too.

use super::segment::MAX_SCALE;
use super::tracker::TcpTracker;
use super::window::{Mode, WindowState};
use super::{Seq, TcpState};
use crate::Direction;

/// A connection of TCP, as gateways of other makes know it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOutline {
    /// How far it has come.
    pub state: TcpState,
    /// The sender of the first FIN, if it is known.
    pub closed_first: Option<Direction>,
    /// The connection was picked up in its middle, so the scale of its windows is not known.
    pub is_picked_up: bool,
    /// The numbers of both senders, by direction; `None` for one that was not heard.
    pub senders: [Option<SenderOutline>; 2],
}

/// The numbers of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderOutline {
    /// One past the highest sequence number that it has sent.
    pub end: u32,
    /// Highest sequence number that its receiver has allowed.
    pub max_end: u32,
    /// Largest window that it has announced, not scaled.
    pub max_window: u16,
    /// The shift of its windows, if its SYN had one: up to 14 (RFC 7323 section 2.3).
    pub scale: Option<u8>,
}

impl TcpTracker {
    /// The part that others know too.
    pub(crate) fn outline(&self) -> TcpOutline {
        let has_closed = |direction: &Direction| {
            self.modes[direction.index()].has(Mode::CLOSED_FIRST) && self.state.is_closing()
        };
        TcpOutline {
            state: self.state,
            closed_first: [Direction::Original, Direction::Reply].into_iter().find(has_closed),
            is_picked_up: self.modes.iter().any(|mode| mode.has(Mode::LIBERAL)),
            senders: [0, 1].map(|from| self.sender(from)),
        }
    }

    fn sender(&self, from: usize) -> Option<SenderOutline> {
        let WindowState { end, max_end, max_window, .. } = self.windows[from];
        let is_heard = |at: usize| self.windows[at].max_window != 0;
        let (own, other) = (self.modes[from], self.modes[1 - from]);
        // Both have to offer it (RFC 7323 section 2.2).
        let scales = own.has(Mode::SCALING) && (other.has(Mode::SCALING) || !is_heard(1 - from));
        let scale = scales.then_some(own.scale.min(MAX_SCALE));
        let units = max_window.div_ceil(1 << scale.unwrap_or_default());
        let max_window = u16::try_from(units).unwrap_or(u16::MAX);
        is_heard(from).then_some(SenderOutline {
            end: end.0,
            max_end: max_end.0,
            max_window,
            scale,
        })
    }

    /// A tracker that knows no more than this. An end that has not told otherwise may send SACK, as
    /// one of a connection that is picked up in its middle.
    pub(crate) fn of_outline(outline: &TcpOutline) -> Self {
        let TcpOutline { state, closed_first, is_picked_up, senders } = outline;
        let both_scale = senders.iter().flatten().all(|it| it.scale.is_some());
        let mut modes = [Mode::with(Mode::SACK); 2];
        let mut windows = [WindowState::default(); 2];
        for (at, sender) in senders.iter().enumerate() {
            let Some(SenderOutline { end, max_end, max_window, scale }) = sender else { continue };
            let scale = scale.filter(|_| both_scale).map(|scale| scale.min(MAX_SCALE));
            if let Some(scale) = scale {
                modes[at].set(Mode::SCALING);
                modes[at].scale = scale;
            }
            windows[at] = WindowState {
                end: Seq(*end),
                max_end: Seq(*max_end),
                max_window: u32::from(*max_window).max(1) << scale.unwrap_or_default(),
                max_ack: Seq(0),
            };
        }
        for (at, window) in windows.iter_mut().enumerate() {
            if senders[at].is_none()
                && let Some(other) = senders[1 - at]
            {
                // As if the other one had just been heard alone.
                window.max_end = Seq(u32::from(other.max_window).max(1));
            }
        }
        if *is_picked_up {
            modes.iter_mut().for_each(|mode| mode.set(Mode::LIBERAL));
        }
        if let Some(first) = closed_first {
            modes[first.index()].set(Mode::CLOSED_FIRST);
        }
        Self {
            windows,
            last_sequence: Seq(0),
            last_acknowledgment: Seq(0),
            last_end: Seq(0),
            last_window: 0,
            modes,
            ignored_syn: Mode::default(),
            last: None,
            repetitions: 0,
            state: *state,
        }
    }
}
