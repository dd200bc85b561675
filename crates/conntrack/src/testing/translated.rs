//! For tests: the packets of translated connections that a helper reads.

use std::net::Ipv4Addr;
use std::ops::{Deref, DerefMut};

use flow::{FlowKey, Zone};
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, dissect};

use crate::helper::Kind;
use crate::nat::{Addresses, BucketPorts, Edit, Ends, Request, Supply, TranslatedEnd};
use crate::testing::{self, SECRET, usual_packet};
use crate::{Connection, Tracked, TrackedPacket};

pub const CLIENT: [u8; 4] = [192, 0, 2, 1];
pub const SERVER: [u8; 4] = [198, 51, 100, 2];
/// The gateway's address towards the outside.
pub const OUTSIDE: [u8; 4] = [203, 0, 113, 9];
pub const SYN: u8 = 2;
pub const ACK: u8 = 16;

pub type End4 = ([u8; 4], u16);

/// A segment with these flags, or a datagram without flags. The numbers are its sequence number and
/// what it acknowledges.
pub fn frame4(
    (from, to): (End4, End4),
    flags: Option<u8>,
    (sequence, acknowledgment): (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::v4(from.0, to.0);
    match flags {
        None => builder.udp(from.1, to.1, payload, &mut frame),
        Some(flags) => {
            let tcp = Tcp {
                source_port: from.1,
                destination_port: to.1,
                sequence,
                acknowledgment,
                window: 60000,
                flags: TcpFlags(flags),
                ..Tcp::default()
            };
            builder.tcp(&tcp, payload, &mut frame);
        }
    }
    frame
}

pub fn hash(key: &FlowKey) -> u64 {
    key.hash(SECRET)
}

pub fn supply() -> Supply<'static> {
    Supply { own: BucketPorts::ALL, seed: 1, hash: &hash }
}

pub fn one(address: [u8; 4]) -> Option<Addresses> {
    Some(Addresses::one(Ipv4Addr::from(address).into()))
}

/// A table that translates connections which a helper reads.
pub struct Lab(testing::Lab);

impl Deref for Lab {
    type Target = testing::Lab;

    fn deref(&self) -> &testing::Lab {
        &self.0
    }
}

impl DerefMut for Lab {
    fn deref_mut(&mut self) -> &mut testing::Lab {
        &mut self.0
    }
}

/// The result for a packet.
pub struct Sent {
    pub tracked: Tracked,
    pub edits: Vec<Edit>,
    /// Its ends as it leaves.
    pub leaves: Ends,
}

impl Lab {
    pub fn new(helper: Kind, port: u16) -> Self {
        let mut lab = testing::Lab::with_room_for(100);
        lab.settings.helpers.attach(helper, port).unwrap();
        Self(lab)
    }

    /// Takes a segment through the table as the engine does, or a datagram if there are no
    /// flags; `rules` translate a connection that it opens.
    pub fn send(
        &mut self,
        (from, to): (End4, End4),
        flags: Option<u8>,
        numbers: (u32, u32),
        payload: &[u8],
        rules: &[Request],
    ) -> Sent {
        let mut frame = frame4((from, to), flags, numbers, payload);
        // It comes to a gateway that has just taken over connections and announcements.
        self.take_over();
        let mut network = dissect(&frame).unwrap().network.unwrap();
        let keyed = FlowKey::of_packet(&network, Zone(0)).unwrap();
        let before = self.table.adjustment(&keyed, hash(&keyed.key), self.now);
        let is_syn = flags.is_some_and(|flags| flags & SYN != 0);
        if let Some((direction, adjustment)) = before.filter(|_| !is_syn) {
            let mut editor = wire::TcpEditor::new(&mut frame, &mut network, true).unwrap();
            adjustment.before_tracking(direction, &mut editor);
        }
        let packet =
            TrackedPacket { hash: hash(&keyed.key), ..usual_packet(&network, &frame, &keyed) };
        let mut edits = Vec::new();
        let (tracked, address_changes) = self.run(|table, context| {
            let tracked = table.track(&packet, context);
            if let (true, Some(id)) = (tracked.fresh, tracked.connection)
                && !table.translate_announced(id, supply(), context).unwrap()
            {
                for rule in rules {
                    table.translate(id, rule, supply(), context).unwrap();
                }
                table.make_reply_unique(id, supply(), context).unwrap();
            }
            let accepted = table.accept_with_edits(tracked, &packet, &mut edits, context);
            (accepted, table.translation(&tracked))
        });
        let original = Ends::of(&keyed.key, keyed.sender);
        let end = |old, new: Option<wire::TransportAddress>| {
            new.map_or(old, |new| flow::Endpoint { address: new.address, port: new.port })
        };
        let leaves = Ends {
            source: end(original.source, address_changes.source),
            destination: end(original.destination, address_changes.destination),
        };
        Sent { tracked, edits, leaves }
    }

    /// Opens a TCP connection; the numbers of both ends continue at 1. Returns the client's
    /// address as the server sees it, and the server's as the client sees it.
    pub fn control(&mut self, client: End4, named: End4, rules: &[Request]) -> (End4, End4) {
        let opened = self.send((client, named), Some(SYN), (0, 0), b"", rules);
        let (seen, server) = (end4(opened.leaves.source), end4(opened.leaves.destination));
        self.send((server, seen), Some(SYN | ACK), (0, 1), b"", &[]);
        self.send((client, named), Some(ACK), (1, 1), b"", &[]);
        (seen, server)
    }

    /// The same for FTP, with the first lines of both ends: the client continues at 9 and the
    /// server at 8.
    pub fn ftp(&mut self, client: End4, named: End4, rules: &[Request]) -> (End4, End4) {
        let (seen, server) = self.control(client, named, rules);
        self.send((server, seen), Some(ACK), (1, 1), b"220 a\r\n", &[]);
        self.send((client, named), Some(ACK), (1, 8), b"USER a\r\n", &[]);
        (seen, server)
    }

    pub fn connections(&self) -> Vec<Connection> {
        let mut found = Vec::new();
        self.table.list(Default::default(), 1000, self.now, |connection| found.push(connection));
        found
    }
}

pub fn end4(end: flow::Endpoint) -> End4 {
    (*end.address.last_chunk().unwrap(), end.port)
}

pub fn masquerade() -> [Request; 1] {
    [Request { addresses: one(OUTSIDE), interface: Some(3), ..Request::of(TranslatedEnd::Source) }]
}

pub fn forward() -> [Request; 1] {
    [Request { addresses: one(SERVER), ..Request::of(TranslatedEnd::Destination) }]
}

pub fn edited(payload: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut out = payload.to_vec();
    for edit in edits.iter().rev() {
        out.splice(edit.place.clone(), edit.text.iter().copied());
    }
    out
}
