//! Fixtures of this crate's tests: a table with its surroundings, and packets for it.

pub mod conversation;
pub mod dialogue;
pub mod pptp;
pub mod records;
pub mod translated;

use std::net::IpAddr;
use std::time::Duration;

use flow::replica::Origin;
use flow::{ConntrackCounters, FlowKey, HashKey, KeyedPacket, NoPrefetch, Timestamp, Zone};
use wire::{Family, IcmpError, Network, TcpFlags, TcpInfo, Transport, protocol};

use crate::syn_proxy::Screening;
use crate::{
    AnnouncementCursor, AnnouncementRecord, Checksum, Connection, ConnectionRecord, Context,
    Cursor, Event, EventKind, Expectations, Guess, Importing, InterfaceName, Interfaces,
    KnownTunnels, Limits, Replication, Settings, Table, Tracked, TrackedPacket,
};

pub const SECRET: HashKey = HashKey(3, 4);

impl Table {
    /// Tracks a packet and accepts it at once, so a connection that it opens is confirmed.
    pub fn track_and_accept(
        &mut self,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        let tracked = self.track(packet, context);
        self.accept(tracked, packet, context)
    }
}

/// A table with its surroundings.
pub struct Lab {
    pub table: Table,
    pub now: Timestamp,
    pub settings: Settings,
    pub limits: Limits,
    pub counters: ConntrackCounters,
    pub expectations: Expectations,
    pub tunnels: KnownTunnels,
    pub map_epoch: u16,
    /// Number of packets on the wire that each packet stands for.
    pub segments: u32,
    pub events: Vec<Event>,
    pub replication: Replication,
    /// The guess for an earlier packet, and the number of packets so far.
    guesses: (Guess, u32),
    room: u64,
    /// False: [`Lab::take_over`] does nothing.
    pub takes_over: bool,
    /// The epoch of the last packet.
    epoch_before: u16,
}

/// The interface that has no address.
pub const WITHOUT_ADDRESS: u32 = 99;

/// Interfaces with names that tell their numbers.
pub struct NumberedInterfaces;

impl Interfaces for NumberedInterfaces {
    fn name_of(&self, number: u32) -> Option<InterfaceName> {
        InterfaceName::new(&format!("eth{number}"))
    }

    fn number_of(&self, name: &InterfaceName) -> Option<u32> {
        name.as_str().strip_prefix("eth")?.parse().ok()
    }

    fn has_address(&self, number: u32, _: IpAddr) -> bool {
        number != WITHOUT_ADDRESS
    }
}

impl Lab {
    pub fn with_room_for(entries: u64) -> Self {
        let now = Timestamp::from_secs(1000);
        Self {
            table: Table::new(now),
            now,
            settings: Settings::default(),
            limits: Limits::alone(entries, SECRET),
            counters: ConntrackCounters::default(),
            expectations: Expectations::new(SECRET),
            tunnels: KnownTunnels::new(SECRET),
            map_epoch: 0,
            segments: 1,
            events: Vec::new(),
            replication: Replication::default(),
            guesses: (Guess::NONE, 0),
            room: entries,
            takes_over: true,
            epoch_before: 0,
        }
    }

    /// Lets another gateway take over all connections and announcements. It gets them as bytes.
    pub fn take_over(&mut self) {
        if !self.takes_over {
            return;
        }
        let (before, records) = (self.records(), self.records_as_they_lie());
        let announcements = self.announcements();
        let expired = self.table.len() - records.len();
        let limits = Limits::alone(self.room + expired as u64, SECRET);
        (self.table, self.limits) = (Table::new(self.now), limits);
        self.tunnels = KnownTunnels::new(SECRET);
        self.expectations = Expectations::new(SECRET);
        let counters = self.counters;
        let importing = Importing {
            hash: &|key| key.hash(SECRET),
            interfaces: &NumberedInterfaces,
            map_epoch: std::mem::replace(&mut self.epoch_before, self.map_epoch),
            needs_addresses: true,
        };
        for record in &records {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let read = ConnectionRecord::decode(&bytes).unwrap();
            assert_eq!(read, *record);
            self.run(|table, context| table.import(&read, importing, context)).unwrap();
        }
        assert_eq!(self.counters.imported - counters.imported, records.len() as u64);
        assert_eq!(self.records(), before);
        for record in &announcements {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let read = AnnouncementRecord::decode(&bytes).unwrap();
            assert_eq!(read, *record);
            self.run(|table, context| {
                table.import_announcement(&read, Origin::File, importing, context)
            })
            .unwrap();
        }
        assert_eq!(self.announcements(), announcements);
        self.counters = counters;
    }

    /// The records of all announcements, in pieces as they are exported.
    pub fn announcements(&self) -> Vec<AnnouncementRecord> {
        let mut records = Vec::new();
        let mut next = Some(AnnouncementCursor::default());
        while let Some(from) = next {
            let each = |record| records.push(record);
            let it = &self.expectations;
            next = it.records_from(from, 2, &NumberedInterfaces, self.now, each);
        }
        records
    }

    /// The records of all connections, in the order of their keys.
    pub fn records(&self) -> Vec<ConnectionRecord> {
        let mut records = self.records_as_they_lie();
        records.sort_by_key(|it| (it.original().key, it.original().sender.index()));
        records
    }

    fn records_as_they_lie(&self) -> Vec<ConnectionRecord> {
        let mut records = Vec::new();
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            let each = |record| records.push(record);
            next = self.table.records_from(from, 50, &NumberedInterfaces, self.now, each);
        }
        records
    }

    pub fn new() -> Self {
        Self::with_room_for(1 << 20)
    }

    pub fn run<T>(&mut self, act: impl FnOnce(&mut Table, &mut Context<'_>) -> T) -> T {
        let mut context = Context {
            now: self.now,
            settings: &self.settings,
            limits: &mut self.limits,
            counters: &mut self.counters,
            expectations: &self.expectations,
            tunnels: &self.tunnels,
            events: Some(&mut self.events),
            expectation_events: None,
            replication: &mut self.replication,
            ended: None,
        };
        act(&mut self.table, &mut context)
    }

    pub fn track(&mut self, network: &Network) -> Tracked {
        self.offer(network, Table::track_and_accept)
    }

    /// Tracks a packet with one of the table's functions.
    pub fn offer(
        &mut self,
        network: &Network,
        track: impl FnOnce(&mut Table, &TrackedPacket<'_>, &mut Context<'_>) -> Tracked,
    ) -> Tracked {
        let keyed = keyed(network);
        let hash = keyed.key.hash(SECRET);
        let packet = TrackedPacket {
            guess: self.guess(hash),
            checksum: Checksum::Trust,
            segments: self.segments,
            map_epoch: self.map_epoch,
            ..usual_packet(network, &[], &keyed)
        };
        self.run(|table, context| track(table, &packet, context))
    }

    /// In turn no guess, the right one, that of an earlier packet, and any.
    fn guess(&mut self, hash: u64) -> Guess {
        let (earlier, turn) = &mut self.guesses;
        *turn += 1;
        match *turn % 4 {
            0 => Guess::NONE,
            1 => *earlier,
            2 => Guess(*turn % 7),
            _ => {
                *earlier = self.table.prefetch_entry(hash, NoPrefetch);
                *earlier
            }
        }
    }

    pub fn wait(&mut self, duration: Duration) {
        self.now = self.now.after(duration);
    }

    pub fn listed(&self) -> Vec<Connection> {
        let mut found = Vec::new();
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            cursor = self.table.list(from, 50, self.now, |connection| found.push(connection));
        }
        found
    }

    pub fn kinds(&self) -> Vec<EventKind> {
        self.events.iter().map(|event| event.kind).collect()
    }
}

/// A packet that may open a connection and has nothing unusual, for a table of a [`Lab`].
pub fn usual_packet<'a>(
    network: &'a Network,
    frame: &'a [u8],
    keyed: &'a KeyedPacket,
) -> TrackedPacket<'a> {
    TrackedPacket {
        network,
        frame,
        keyed,
        hash: keyed.key.hash(SECRET),
        guess: Guess::NONE,
        checksum: Checksum::Verify,
        segments: 1,
        may_open: true,
        screening: Screening::Off,
        map_epoch: 0,
        zones: None,
    }
}

pub fn keyed(network: &Network) -> KeyedPacket {
    match network.transport {
        Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) => {
            FlowKey::of_quoted(&quoted, network.family, Zone(0))
        }
        _ => FlowKey::of_packet(network, Zone(0)).expect("a packet with a flow"),
    }
}

fn v4(last: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, last]);
    bytes
}

fn v6(last: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    bytes[15] = last;
    bytes
}

pub fn address(family: Family, last: u8) -> [u8; 16] {
    match family {
        Family::V4 => v4(last),
        Family::V6 => v6(last),
    }
}

pub fn network(family: Family, from: u8, to: u8, protocol: u8, transport: Transport) -> Network {
    Network {
        family,
        source: address(family, from),
        destination: address(family, to),
        offset: 14,
        transport_offset: 34,
        end: 62,
        protocol,
        ttl: 64,
        traffic_class: 0,
        dont_fragment: false,
        fragment: None,
        transport,
    }
}

pub fn udp(family: Family, from: (u8, u16), to: (u8, u16)) -> Network {
    let transport = Transport::Udp { source_port: from.1, destination_port: to.1, length: 28 };
    network(family, from.0, to.0, protocol::UDP, transport)
}

/// A segment with 8 bytes of data; `numbers` are sequence and acknowledgment.
pub fn tcp(
    family: Family,
    from: (u8, u16),
    to: (u8, u16),
    flags: u8,
    numbers: (u8, u8),
) -> Network {
    let transport = Transport::Tcp(TcpInfo {
        source_port: from.1,
        destination_port: to.1,
        sequence: u32::from(numbers.0),
        acknowledgment: u32::from(numbers.1),
        window: 100,
        flags: TcpFlags(flags),
        header_len: 20,
    });
    network(family, from.0, to.0, protocol::TCP, transport)
}
