//! The transparent bridge: by which port a frame leaves.
//!
//! With two ports a frame leaves by the other one. With more, each worker learns behind which port
//! a station lives, from the frames that it receives and from what other workers tell it. A
//! worker floods frames to stations that it does not know, so nothing needs to be shared.

use flow::{DropReason, HashKey};
use netio::{Frame, PortId};

use crate::egress::port_set::PortSet;
use crate::egress::stations::{StationLimits, StationUpdate, Stations};

/// The ports that a frame leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputPorts {
    /// That of its station.
    One(PortId),
    /// These, because nobody knows its station or it is for many.
    Many(PortSet),
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeDecision {
    /// One port.
    Port(PortId),
    /// Every port but the one it came from.
    Flood,
    /// Nowhere.
    Drop(DropReason),
}

/// One worker's view of which station is behind which port.
#[derive(Debug)]
pub enum Bridge {
    /// Fewer than three ports.
    Wire {
        /// How many.
        ports: usize,
    },
    /// More ports.
    Learning(Stations),
}

impl Default for Bridge {
    fn default() -> Self {
        Self::Wire { ports: 0 }
    }
}

impl Bridge {
    /// A bridge of so many ports. `key` is a secret.
    pub fn new(ports: usize, limits: StationLimits, key: HashKey) -> Self {
        match ports {
            0..=2 => Self::Wire { ports },
            _ => Self::Learning(Stations::new(ports, limits, key)),
        }
    }

    /// Notes where the station is that a frame comes from, and tells the other workers if they do
    /// not know. `tell` returns false if it could not.
    pub fn learn(&mut self, frame: &Frame, now_ns: u64, tell: impl FnOnce(StationUpdate) -> bool) {
        let Self::Learning(stations) = self else { return };
        let source = frame.bytes().get(6..).and_then(|rest| rest.first_chunk::<6>());
        if let Some(source) = source.filter(|source| !is_group(source)) {
            stations.learn(*source, frame.port, now_ns, tell);
        }
    }

    /// True if it remembers stations.
    #[inline]
    pub const fn learns(&self) -> bool {
        matches!(self, Self::Learning(_))
    }

    /// Takes over what another worker has heard.
    pub fn learn_from_peer(&mut self, heard: StationUpdate) {
        if let Self::Learning(stations) = self {
            stations.learn_from_peer(heard);
        }
    }

    /// A piece of the stations that it knows, see [`Stations::known_stations`].
    pub fn known_stations(
        &self,
        from: usize,
        budget: usize,
    ) -> (Vec<StationUpdate>, Option<usize>) {
        match self {
            Self::Wire { .. } => (Vec::new(), None),
            Self::Learning(stations) => stations.known_stations(from, budget),
        }
    }

    /// Chooses the way of a frame.
    #[inline]
    pub fn decide(&self, frame: &Frame, now_ns: u64) -> BridgeDecision {
        let Some(destination) = frame.bytes().first_chunk::<6>() else {
            return BridgeDecision::Drop(DropReason::MalformedLink);
        };
        if is_never_forwarded(frame.bytes()) {
            return BridgeDecision::Drop(DropReason::LinkLocal);
        }
        match self {
            Self::Wire { ports: 2 } => BridgeDecision::Port(PortId(1 - frame.port.0.min(1))),
            Self::Wire { .. } => BridgeDecision::Drop(DropReason::NoOutputPort),
            Self::Learning(stations) => match stations.port_of(*destination, now_ns) {
                // The frame has already been seen by the station's own link.
                Some(port) if port == frame.port => BridgeDecision::Drop(DropReason::NoOutputPort),
                Some(port) => BridgeDecision::Port(port),
                None => BridgeDecision::Flood,
            },
        }
    }
}

/// A group address is never a source (IEEE 802.3 section 3.2.3).
const fn is_group(station: &[u8; 6]) -> bool {
    station[0] & 1 != 0
}

/// IEEE 802.1D-2004 table 7-10: the groups 01-80-C2-00-00-01 to -0F end at a
/// bridge. The spanning tree group -00 is passed on, because this bridge takes no
/// part in a spanning tree and must not hide one from the others.
#[inline]
pub(crate) fn is_never_forwarded(frame: &[u8]) -> bool {
    matches!(frame, [0x01, 0x80, 0xc2, 0, 0, 1..=15, ..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use netio::FramePool;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const SECOND: u64 = 1_000_000_000;

    fn bridge(ports: usize) -> Bridge {
        Bridge::new(ports, StationLimits::default(), HashKey(1, 2))
    }

    fn frame(port: u16, destination: [u8; 6], source: [u8; 6]) -> Frame {
        let mut bytes = [0; 60];
        bytes[..6].copy_from_slice(&destination);
        bytes[6..12].copy_from_slice(&source);
        let mut frame = FramePool::new(0, 0).copy_of(&bytes).unwrap();
        frame.port = PortId(port);
        frame
    }

    #[test]
    fn two_ports_are_a_wire() {
        let bridge = bridge(2);
        assert_eq!(bridge.decide(&frame(0, B, A), 0), BridgeDecision::Port(PortId(1)));
        assert_eq!(bridge.decide(&frame(1, A, B), 0), BridgeDecision::Port(PortId(0)));
    }

    #[test]
    fn three_ports_learn_flood_and_forget() {
        let mut bridge = bridge(3);
        let mut decide = |frame: Frame, now_ns: u64| {
            bridge.learn(&frame, now_ns, |_| true);
            bridge.decide(&frame, now_ns)
        };
        assert_eq!(decide(frame(0, B, A), 0), BridgeDecision::Flood);
        assert_eq!(decide(frame(2, A, B), SECOND), BridgeDecision::Port(PortId(0)));
        assert_eq!(decide(frame(0, B, A), SECOND), BridgeDecision::Port(PortId(2)));
        assert_eq!(
            decide(frame(2, B, A), SECOND),
            BridgeDecision::Drop(DropReason::NoOutputPort),
            "both stations are behind the port it came from"
        );
        assert_eq!(decide(frame(1, B, A), 400 * SECOND), BridgeDecision::Flood);
    }

    #[test]
    fn control_groups_of_bridges_are_not_forwarded_but_spanning_tree_is() {
        let bridge = bridge(2);
        let group = |last| [0x01, 0x80, 0xc2, 0, 0, last];
        assert_eq!(bridge.decide(&frame(0, group(0), A), 0), BridgeDecision::Port(PortId(1)));
        let dropped = BridgeDecision::Drop(DropReason::LinkLocal);
        assert_eq!(bridge.decide(&frame(0, group(1), A), 0), dropped);
        assert_eq!(bridge.decide(&frame(0, group(14), A), 0), dropped);
        assert_eq!(bridge.decide(&frame(0, group(16), A), 0), BridgeDecision::Port(PortId(1)));
    }
}
