//! A dialogue of two ends through a table, for tests of trackers.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use flow::{Class, FlowKey, KeyedPacket, Zone};
use wire::{Network, build::PacketBuilder, dissect};

use crate::testing::{Lab, SECRET, usual_packet};
use crate::{Connection, Direction, Tracked, TrackedPacket, TrackingCause};

/// The client's port in the first dialogue.
const FIRST_PORT: u16 = 5000;
const ADDRESSES: [[u8; 4]; 2] = [[192, 0, 2, 1], [198, 51, 100, 2]];

/// A dialogue of one protocol between two ends.
pub struct Dialogue {
    protocol: u8,
    lab: Lab,
    last: Option<FlowKey>,
    /// The reason why the last packet was refused.
    pub why: Option<TrackingCause>,
}

impl Deref for Dialogue {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl DerefMut for Dialogue {
    fn deref_mut(&mut self) -> &mut Lab {
        &mut self.lab
    }
}

impl Dialogue {
    pub fn of(protocol: u8) -> Self {
        Self::with_room_for(2, protocol)
    }

    pub fn with_room_for(connections: u64, protocol: u8) -> Self {
        Self { protocol, lab: Lab::with_room_for(connections), last: None, why: None }
    }

    /// Tracks a packet whose first four bytes are replaced by the ports. Returns its class or
    /// the reason, then state, timeout and flags of the connection.
    pub fn says(&mut self, from: Direction, transport: &[u8]) -> String {
        let frame = self.frame(from, transport);
        self.sees(&frame)
    }

    pub fn frame(&self, from: Direction, transport: &[u8]) -> Vec<u8> {
        self.numbered(from, transport, 0)
    }

    /// A frame of one of several dialogues, which differ in the client's port.
    pub fn numbered(&self, from: Direction, transport: &[u8], dialogue: u16) -> Vec<u8> {
        let (here, there) = (from.index(), from.reversed().index());
        let mut bytes = transport.to_vec();
        let ports = [(FIRST_PORT + dialogue).to_be_bytes(), 53_u16.to_be_bytes()];
        bytes[..2].copy_from_slice(&ports[here]);
        bytes[2..4].copy_from_slice(&ports[there]);
        let mut frame = Vec::new();
        let builder = PacketBuilder::v4(ADDRESSES[here], ADDRESSES[there]);
        builder.transport(self.protocol, &bytes, &mut frame);
        frame
    }

    pub fn sees(&mut self, frame: &[u8]) -> String {
        let network = dissect(frame).unwrap().network.unwrap();
        let keyed = FlowKey::of_packet(&network, Zone(0)).unwrap();
        let tracked = self.track(frame, &network, &keyed);
        self.why = tracked.why;
        let class = match tracked.class {
            Class::New => "new",
            Class::Established => "established",
            Class::Invalid(reason) => reason.name(),
            _ => "other",
        };
        self.last = Some(keyed.key);
        let Some(connection) = self.connection() else { return format!("{class}, none") };
        let (state, timeout_s) = (connection.state.unwrap_or("-"), connection.timeout_s);
        let assured = if connection.assured { " assured" } else { "" };
        format!("{class}, {state} {timeout_s}{assured}")
    }

    /// Each packet comes to a gateway that has just taken over the connections.
    fn track(&mut self, frame: &[u8], network: &Network, keyed: &KeyedPacket) -> Tracked {
        self.take_over();
        let map_epoch = self.map_epoch;
        let packet = TrackedPacket { map_epoch, ..usual_packet(network, frame, keyed) };
        self.run(|table, context| table.track_and_accept(&packet, context))
    }

    pub fn connection(&self) -> Option<Connection> {
        let key = self.last?;
        self.table.get(&key, key.hash(SECRET), self.now)
    }

    pub fn wait(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }
}

/// Plays packets in turn and compares the answers of the table.
pub fn play(dialogue: &mut Dialogue, lines: &[(Direction, Vec<u8>, &str)]) {
    for (at, (from, packet, expected)) in lines.iter().enumerate() {
        assert_eq!(dialogue.says(*from, packet), *expected, "packet {at}");
    }
}
