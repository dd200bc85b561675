//! Connections whose two ends count from different numbers, because something between
//! them speaks for one of them or changes what they say.
//!
//! The tracker sees the numbers of each sender as the sender meant them: what a packet
//! says about the numbers of the other end is put right before tracking, and its own
//! numbers are changed for the receiver after it.

use wire::{Network, TcpEditor, TcpFlags};

use crate::Direction;
use crate::proto::tcp::Seq;

/// By how much the sequence numbers of one direction are shifted, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// Sequence number of the sender up to which `before` holds.
    pub position: u32,
    /// Added up to there.
    pub before: u32,
    /// Added past it.
    pub after: u32,
}

impl Shift {
    /// The same for all numbers.
    pub const fn fixed(by: u32) -> Self {
        Self { position: 0, before: by, after: by }
    }

    /// What the receiver sees of a sequence number of the sender.
    pub const fn seen(self, sequence: u32) -> u32 {
        let past = Seq(sequence).is_after(Seq(self.position));
        sequence.wrapping_add(if past { self.after } else { self.before })
    }

    /// The sequence number of the sender behind one that the receiver acknowledges.
    pub const fn meant(self, acknowledged: u32) -> u32 {
        let sequence = acknowledged.wrapping_sub(self.before);
        let past = Seq(sequence).is_after(Seq(self.position));
        if past { acknowledged.wrapping_sub(self.after) } else { sequence }
    }
}

/// Two ends that do not agree about the scale of one's windows (RFC 7323 section 2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescale {
    /// Shift that the sender means.
    pub from: u8,
    /// Shift that the receiver assumes.
    pub to: u8,
}

impl Rescale {
    /// A window in the scale of the receiver; the largest if it can not say as much.
    pub fn window(self, window: u16) -> u16 {
        let bytes = u64::from(window) << self.from.min(MAX_SCALE);
        u16::try_from(bytes >> self.to.min(MAX_SCALE)).unwrap_or(u16::MAX)
    }
}

/// Largest shift of a window (RFC 7323 section 2.3).
const MAX_SCALE: u8 = 14;

/// What is changed in the segments of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// Sequence numbers, by the direction of their sender.
    pub sequences: [Shift; 2],
    /// Timestamps, as the sequence numbers.
    pub timestamps: [u32; 2],
    /// Windows, by the direction of their sender.
    pub windows: [Rescale; 2],
}

impl Adjustment {
    /// Before tracking: what a segment in `direction` acknowledges and echoes becomes what
    /// the other end has sent, and the opener's windows become what the other end takes
    /// them for.
    pub fn before_tracking(&self, direction: Direction, segment: &mut TcpEditor<'_>) {
        let other = direction.reversed().index();
        segment.map_acknowledged(|number| self.sequences[other].meant(number));
        let timestamps = self.timestamps[other];
        segment.map_timestamps(|value| value, |echo| echo.wrapping_sub(timestamps));
        if direction == Direction::Original {
            self.rescale(direction, segment);
        }
    }

    /// After tracking: the sender's own numbers become what the receiver expects.
    pub fn after_tracking(&self, direction: Direction, segment: &mut TcpEditor<'_>) {
        let own = direction.index();
        segment.set_sequence(self.sequences[own].seen(segment.tcp().sequence));
        let timestamps = self.timestamps[own];
        segment.map_timestamps(|value| value.wrapping_add(timestamps), |echo| echo);
        if direction == Direction::Reply {
            self.rescale(direction, segment);
        }
    }

    /// Changes the segment of a sender in `direction` that an ICMP error quotes back into
    /// what it was when it was sent: the error goes to that sender.
    pub fn quoted(&self, direction: Direction, frame: &mut [u8], network: &Network) {
        let (own, other) = (direction.index(), direction.reversed().index());
        wire::map_quoted(
            frame,
            network,
            |sequence| self.sequences[own].meant(sequence),
            |acknowledged| self.sequences[other].seen(acknowledged),
        );
    }

    /// The window of a SYN is never scaled (RFC 7323 section 2.2).
    fn rescale(&self, direction: Direction, segment: &mut TcpEditor<'_>) {
        let rescale = self.windows[direction.index()];
        let tcp = *segment.tcp();
        if rescale.from != rescale.to && !tcp.flags.contains(TcpFlags::SYN) {
            segment.set_window(rescale.window(tcp.window));
        }
    }
}

#[cfg(test)]
#[path = "seqadj_tests.rs"]
mod tests;
