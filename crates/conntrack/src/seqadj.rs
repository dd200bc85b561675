//! Connections whose two ends count sequence numbers from different starts, because a device
//! between them speaks for one of them or changes their payload.
//!
//! The tracker sees the numbers of each sender as the sender meant them. Before tracking, the
//! gateway corrects the numbers of a packet that refer to the other end; after it, the packet's
//! own numbers are changed for the receiver.

use wire::{Network, TcpEditor, TcpFlags};

use crate::Direction;
use crate::proto::tcp::Seq;
use flow::codec::{DecodeError, Reader, Write};

/// The shift of the sequence numbers of one direction, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// Last sequence number of the sender to which `before` applies.
    pub position: u32,
    /// Is added up to that number.
    pub before: u32,
    /// Is added beyond it.
    pub after: u32,
}

impl Shift {
    /// The same shift for all numbers.
    pub const fn fixed(by: u32) -> Self {
        Self { position: 0, before: by, after: by }
    }

    /// The number that the receiver sees for a sequence number of the sender.
    pub const fn seen(self, sequence: u32) -> u32 {
        let past = Seq(sequence).is_after(Seq(self.position));
        sequence.wrapping_add(if past { self.after } else { self.before })
    }

    /// The sequence number of the sender for one that the receiver acknowledges.
    pub const fn meant(self, acknowledged: u32) -> u32 {
        let sequence = acknowledged.wrapping_sub(self.before);
        let past = Seq(sequence).is_after(Seq(self.position));
        if past { acknowledged.wrapping_sub(self.after) } else { sequence }
    }
}

impl Shift {
    pub(crate) fn write(self, to: &mut Vec<u8>) {
        [self.position, self.before, self.after].into_iter().for_each(|number| to.u32(number));
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { position: from.u32()?, before: from.u32()?, after: from.u32()? })
    }
}

/// The conversion of windows between two ends that do not agree on a scale (RFC 7323 section
/// 2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescale {
    /// Shift that the sender uses.
    pub from: u8,
    /// Shift that the receiver assumes.
    pub to: u8,
}

impl Rescale {
    /// A window in the scale of the receiver; the largest possible one if it does not fit.
    pub fn window(self, window: u16) -> u16 {
        let bytes = u64::from(window) << self.from.min(MAX_SCALE);
        u16::try_from(bytes >> self.to.min(MAX_SCALE)).unwrap_or(u16::MAX)
    }
}

/// Largest shift of a window (RFC 7323 section 2.3).
const MAX_SCALE: u8 = 14;

/// The changes to the segments of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// Sequence numbers, by the direction of their sender.
    pub sequences: [Shift; 2],
    /// The same for timestamps.
    pub timestamps: [u32; 2],
    /// Windows, by the direction of their sender.
    pub windows: [Rescale; 2],
}

impl Adjustment {
    /// To be called before tracking. Converts the acknowledgment and the echo of a segment in
    /// `direction` to the numbers that the other end has sent, and the opener's windows to the
    /// scale that the other end assumes.
    pub fn before_tracking(&self, direction: Direction, segment: &mut TcpEditor<'_>) {
        let other = direction.reversed().index();
        segment.map_acknowledged(|number| self.sequences[other].meant(number));
        let timestamps = self.timestamps[other];
        segment.map_timestamps(|value| value, |echo| echo.wrapping_sub(timestamps));
        if direction == Direction::Original {
            self.rescale(direction, segment);
        }
    }

    /// To be called after tracking. Converts the sender's own numbers to those that the
    /// receiver expects.
    pub fn after_tracking(&self, direction: Direction, segment: &mut TcpEditor<'_>) {
        let own = direction.index();
        segment.set_sequence(self.sequences[own].seen(segment.tcp().sequence));
        let timestamps = self.timestamps[own];
        segment.map_timestamps(|value| value.wrapping_add(timestamps), |echo| echo);
        if direction == Direction::Reply {
            self.rescale(direction, segment);
        }
    }

    /// Converts a segment of a sender in `direction`, which an ICMP error to that sender
    /// quotes, back to its state when it was sent.
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
