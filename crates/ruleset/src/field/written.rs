//! The fields of headers that rules may set.

use wire::{Family, protocol};

use super::{Field, Guard, HeaderBits, Layer};

impl Field {
    /// The place of a field of a header that rules may set; `None` for others. Lengths, checksums
    /// and fields that say what follows stay as they are: a packet with others would be another
    /// packet, or damaged.
    pub(crate) fn written(self) -> Option<HeaderBits> {
        let place = |layer, offset, bits| Some(HeaderBits { layer, offset, bits });
        match self {
            Self::Source(Family::V4) => place(Layer::Network(Some(Family::V4)), 96, 32),
            Self::Destination(Family::V4) => place(Layer::Network(Some(Family::V4)), 128, 32),
            Self::Source(Family::V6) => place(Layer::Network(Some(Family::V6)), 64, 128),
            Self::Destination(Family::V6) => place(Layer::Network(Some(Family::V6)), 192, 128),
            // The kernel knows no checksum of a transport that the rule does not name.
            Self::SourcePort(Guard::Any) | Self::DestinationPort(Guard::Any) => None,
            Self::SourcePort(guard) => place(Layer::Transport(guard), 0, 16),
            Self::DestinationPort(guard) => place(Layer::Transport(guard), 16, 16),
            Self::Header(bits) if bits.may_be_written() => Some(bits),
            _ => None,
        }
    }
}

impl HeaderBits {
    /// True for a field that rules may set, see [`Field::written`].
    const fn may_be_written(self) -> bool {
        const TCP: u8 = protocol::TCP;
        match (self.layer, self.offset, self.bits) {
            // DSCP, ECN, identification, time to live.
            (Layer::Network(Some(Family::V4)), 8, 6)
            | (Layer::Network(Some(Family::V4)), 14, 2)
            | (Layer::Network(Some(Family::V4)), 32, 16)
            | (Layer::Network(Some(Family::V4)), 64, 8) => true,
            // DSCP, ECN, flow label, hop limit.
            (Layer::Network(Some(Family::V6)), 4, 6)
            | (Layer::Network(Some(Family::V6)), 10, 2)
            | (Layer::Network(Some(Family::V6)), 12, 20)
            | (Layer::Network(Some(Family::V6)), 56, 8) => true,
            // Sequence and acknowledgment number, window, urgent pointer.
            (Layer::Transport(Guard::Protocol(TCP)), 32 | 64, 32)
            | (Layer::Transport(Guard::Protocol(TCP)), 112 | 144, 16) => true,
            // Code; identifier; sequence number or MTU.
            (Layer::Transport(Guard::Over(..)), 8, 8)
            | (Layer::Transport(Guard::Over(..)), 32 | 48, 16) => true,
            _ => false,
        }
    }

    /// True for an address or a port.
    pub(crate) const fn is_end(self) -> bool {
        match self.layer {
            Layer::Network(Some(Family::V4)) => self.offset >= 96,
            Layer::Network(Some(Family::V6)) => self.offset >= 64,
            Layer::Transport(_) => self.offset < 32 && self.bits == 16,
            _ => false,
        }
    }
}
