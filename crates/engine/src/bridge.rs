//! The transparent bridge: by which port a frame leaves.
//!
//! With two ports a frame leaves by the other one. With more, each worker learns
//! for itself behind which port a station lives; what a worker has not learnt yet
//! it floods, so that nothing needs to be shared.

use std::collections::HashMap;

use flow::DropReason;
use netio::{Frame, PortId};

/// Stations that a worker remembers at most.
const MAX_STATIONS: usize = 4096;
/// How long a silent station is remembered, nanoseconds (IEEE 802.1D-2004 table
/// 7-5: 300 s).
const STATION_AGE_NS: u64 = 300 * 1_000_000_000;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// One port.
    Port(PortId),
    /// Every port but the one it came from.
    Flood,
    /// Nowhere.
    Drop(DropReason),
}

/// One worker's view of which station is behind which port.
#[derive(Debug, Default)]
pub struct Bridge {
    ports: usize,
    stations: HashMap<[u8; 6], Station>,
}

#[derive(Clone, Copy, Debug)]
struct Station {
    port: PortId,
    seen_ns: u64,
}

impl Bridge {
    /// A bridge of so many ports.
    pub fn new(ports: usize) -> Self {
        Self { ports, stations: HashMap::new() }
    }

    /// Chooses the way of a frame and learns from it.
    pub fn egress(&mut self, frame: &Frame, now_ns: u64) -> Egress {
        let Some((destination, rest)) = frame.bytes().split_first_chunk::<6>() else {
            return Egress::Drop(DropReason::MalformedLink);
        };
        if is_never_forwarded(destination) {
            return Egress::Drop(DropReason::LinkLocal);
        }
        match self.ports {
            0 | 1 => Egress::Drop(DropReason::NoOutputPort),
            2 => Egress::Port(PortId(1 - frame.port.0.min(1))),
            _ => {
                if let Some(source) = rest.first_chunk::<6>() {
                    self.learn(*source, frame.port, now_ns);
                }
                self.look_up(*destination, frame.port, now_ns)
            }
        }
    }

    /// The port that a frame will leave by, if it is one and known.
    pub fn way_of(&self, frame: &Frame) -> Option<PortId> {
        match self.ports {
            0 | 1 => None,
            2 => Some(PortId(1 - frame.port.0.min(1))),
            _ => self.stations.get(frame.bytes().first_chunk()?).map(|station| station.port),
        }
    }

    fn learn(&mut self, source: [u8; 6], port: PortId, now_ns: u64) {
        // A group address is never a source (IEEE 802.3 section 3.2.3).
        if source[0] & 1 != 0 {
            return;
        }
        if self.stations.len() >= MAX_STATIONS && !self.stations.contains_key(&source) {
            self.stations
                .retain(|_, station| now_ns.saturating_sub(station.seen_ns) < STATION_AGE_NS);
            if self.stations.len() >= MAX_STATIONS {
                return;
            }
        }
        self.stations.insert(source, Station { port, seen_ns: now_ns });
    }

    fn look_up(&self, destination: [u8; 6], from: PortId, now_ns: u64) -> Egress {
        match self.stations.get(&destination) {
            Some(station) if now_ns.saturating_sub(station.seen_ns) >= STATION_AGE_NS => {
                Egress::Flood
            }
            // The frame has already been seen by the station's own link.
            Some(station) if station.port == from => Egress::Drop(DropReason::NoOutputPort),
            Some(station) => Egress::Port(station.port),
            None => Egress::Flood,
        }
    }
}

/// IEEE 802.1D-2004 table 7-10: the groups 01-80-C2-00-00-01 to -0F end at a
/// bridge. The spanning tree group -00 is passed on, because this bridge takes no
/// part in a spanning tree and must not hide one from the others.
fn is_never_forwarded(destination: &[u8; 6]) -> bool {
    destination[..5] == [0x01, 0x80, 0xc2, 0, 0] && (1..=15).contains(&destination[5])
}

#[cfg(test)]
mod tests {
    use super::*;
    use netio::FramePool;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const SECOND: u64 = 1_000_000_000;

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
        let mut bridge = Bridge::new(2);
        assert_eq!(bridge.egress(&frame(0, B, A), 0), Egress::Port(PortId(1)));
        assert_eq!(bridge.egress(&frame(1, A, B), 0), Egress::Port(PortId(0)));
    }

    #[test]
    fn three_ports_learn_flood_and_forget() {
        let mut bridge = Bridge::new(3);
        assert_eq!(bridge.egress(&frame(0, B, A), 0), Egress::Flood);
        assert_eq!(bridge.egress(&frame(2, A, B), SECOND), Egress::Port(PortId(0)));
        assert_eq!(bridge.egress(&frame(0, B, A), SECOND), Egress::Port(PortId(2)));
        assert_eq!(
            bridge.egress(&frame(2, B, A), SECOND),
            Egress::Drop(DropReason::NoOutputPort),
            "both stations are behind the port it came from"
        );
        assert_eq!(bridge.egress(&frame(1, B, A), 400 * SECOND), Egress::Flood);
    }

    #[test]
    fn the_station_table_is_bounded() {
        let mut bridge = Bridge::new(3);
        for n in 0..2 * MAX_STATIONS as u32 {
            let [a, b, c, d] = n.to_be_bytes();
            bridge.egress(&frame(0, B, [2, 1, a, b, c, d]), 0);
        }
        assert_eq!(bridge.stations.len(), MAX_STATIONS);
        bridge.egress(&frame(1, B, A), 400 * SECOND);
        assert_eq!(bridge.stations.len(), 1, "the old ones made room");
    }

    #[test]
    fn control_groups_of_bridges_are_not_forwarded_but_spanning_tree_is() {
        let mut bridge = Bridge::new(2);
        let group = |last| [0x01, 0x80, 0xc2, 0, 0, last];
        assert_eq!(bridge.egress(&frame(0, group(0), A), 0), Egress::Port(PortId(1)));
        let dropped = Egress::Drop(DropReason::LinkLocal);
        assert_eq!(bridge.egress(&frame(0, group(1), A), 0), dropped);
        assert_eq!(bridge.egress(&frame(0, group(14), A), 0), dropped);
        assert_eq!(bridge.egress(&frame(0, group(16), A), 0), Egress::Port(PortId(1)));
    }
}
