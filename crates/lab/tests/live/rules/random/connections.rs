//! The tracking that rules see: none, a new connection for every packet, or connections of several
//! packets.

use std::net::IpAddr;

use conntrack::Verdict;
use conntrack::syn_proxy::Screening;
use conntrack::{
    Changes, Checksum, Connection as Entry, ConnectionId, Context, Direction, Expectations, Limits,
    Replication, Settings, Table, TrackedPacket, TupleTransport, class_without_flow,
};
use flow::{ConntrackCounters, FlowKey, HashKey, KeyedPacket, Timestamp, Zone};
use ruleset::{Connection, CtState, Details, Known, NatKind, Tuple};
use wire::{Network, Transport};

use super::generate::Traffic;

const SECRET: HashKey = HashKey(0x72, 0x75);

/// Status bits (`enum ip_conntrack_status` of the kernel's interface).
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const CONFIRMED: u32 = 1 << 3;
const SOURCE_TRANSLATED: u32 = 1 << 4;
const DESTINATION_TRANSLATED: u32 = 1 << 5;

/// The tracking of a case.
pub enum Connections {
    None,
    /// Every packet opens a connection.
    Fresh,
    Tracked(Box<Tracking>),
}

pub struct Tracking {
    table: Table,
    settings: Settings,
    limits: Limits,
    counters: ConntrackCounters,
    expectations: Expectations,
    tunnels: conntrack::KnownTunnels,
    replication: Replication,
}

/// The result of tracking for a packet.
pub struct Said {
    pub state: CtState,
    asked: Option<Asked>,
    key: Option<KeyedPacket>,
    /// The connection that the packet opened.
    opened: Option<ConnectionId>,
    marked: Option<u32>,
}

/// The properties of a connection that rules read.
struct Asked {
    reply: bool,
    status: u32,
    mark: u32,
    tuples: [Tuple; 2],
}

impl Details for Asked {
    fn tuple(&self, reply: bool) -> Tuple {
        self.tuples[usize::from(reply)]
    }

    fn counts(&self) -> Option<[(u64, u64); 2]> {
        None
    }

    fn expiration_ms(&self) -> u64 {
        0
    }

    fn helper(&self) -> u128 {
        0
    }

    fn label(&self) -> u128 {
        0
    }
}

fn tuple(entry: &conntrack::Tuple) -> Tuple {
    let bytes = |address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let (source_port, destination_port) = match entry.transport {
        TupleTransport::Ports { source, destination } => (source, destination),
        _ => (0, 0),
    };
    let (source, destination) = (bytes(entry.source), bytes(entry.destination));
    Tuple { source, destination, source_port, destination_port }
}

fn tuple_of(network: &Network) -> Tuple {
    let (source_port, destination_port) = network.transport.ports().unwrap_or_default();
    let Network { source, destination, .. } = *network;
    Tuple { source, destination, source_port, destination_port }
}

const fn swapped(tuple: Tuple) -> Tuple {
    let Tuple { source, destination, source_port, destination_port } = tuple;
    Tuple {
        source: destination,
        destination: source,
        source_port: destination_port,
        destination_port: source_port,
    }
}

impl Said {
    pub fn connection(&self) -> Connection<'_> {
        let known = self.asked.as_ref().map(|asked| Known {
            reply: asked.reply,
            status: asked.status,
            mark: asked.mark,
            zones: flow::ZonePair::default(),
            details: Some(asked),
        });
        Connection { state: self.state, known }
    }

    pub fn mark(&mut self, mark: u32) {
        self.marked = Some(mark);
        if let Some(asked) = &mut self.asked {
            asked.mark = mark;
        }
    }

    /// Takes over a translation: the packet has these addresses and ports now.
    pub fn translated(&mut self, kind: NatKind, network: &Network) {
        let Some(asked) = &mut self.asked else { return };
        let reply = swapped(tuple_of(network));
        if reply != asked.tuples[1] {
            asked.status |= match kind {
                NatKind::Source | NatKind::Masquerade => SOURCE_TRANSLATED,
                NatKind::Destination | NatKind::Redirect => DESTINATION_TRANSLATED,
            };
            asked.tuples[1] = reply;
        }
    }
}

impl Connections {
    pub fn new(traffic: Traffic) -> Self {
        match traffic {
            Traffic::Stateless => Self::None,
            Traffic::Translated => Self::Fresh,
            Traffic::Tracked => Self::Tracked(Box::new(Tracking {
                table: Table::new(Timestamp::ZERO),
                settings: Settings::default(),
                limits: Limits::alone(1 << 20, SECRET),
                counters: ConntrackCounters::default(),
                expectations: Expectations::new(SECRET),
                tunnels: conntrack::KnownTunnels::new(SECRET),
                replication: Replication::default(),
            })),
        }
    }

    pub fn track(&mut self, frame: &[u8], network: &Network, now: Timestamp) -> Said {
        let said = |state, asked| Said { state, asked, key: None, opened: None, marked: None };
        match self {
            Self::None => said(CtState::Untracked, None),
            Self::Fresh => {
                let original = tuple_of(network);
                let tuples = [original, swapped(original)];
                let asked = Asked { reply: false, status: 0, mark: 0, tuples };
                said(CtState::New, Some(asked))
            }
            Self::Tracked(tracking) => tracking.track(frame, network, now),
        }
    }

    /// Sets the connection's mark. If the first packet of a connection is dropped, the connection
    /// is removed.
    pub fn conclude(&mut self, said: &Said, passes: bool, now: Timestamp) {
        let (Self::Tracked(tracking), Some(keyed), Some(_)) = (self, said.key, &said.asked) else {
            return;
        };
        let hash = keyed.key.hash(SECRET);
        let (table, mut context) = tracking.context(now);
        match said.opened {
            Some(id) if passes => table.confirm(id, &mut context).unwrap(),
            Some(id) => table.withdraw(id, &mut context),
            None => {}
        }
        if let Some(mark) = said.marked {
            let changes = Changes { mark: Some((mark, u32::MAX)), ..Changes::default() };
            table.update(&keyed.key, hash, changes, &mut context);
        }
    }
}

impl Tracking {
    fn context(&mut self, now: Timestamp) -> (&mut Table, Context<'_>) {
        let Self { table, settings, limits, counters, expectations, tunnels, replication } = self;
        let (events, expectation_events) = (None, None);
        let context = Context {
            now,
            settings,
            limits,
            counters,
            expectations,
            tunnels,
            events,
            expectation_events,
            replication,
            ended: None,
        };
        (table, context)
    }

    fn track(&mut self, frame: &[u8], network: &Network, now: Timestamp) -> Said {
        let zone = Zone(0);
        let keyed = match network.transport {
            Transport::IcmpError(error) => {
                error.quoted.map(|quoted| FlowKey::of_quoted(&quoted, network.family, zone))
            }
            _ => FlowKey::of_packet(network, zone),
        };
        let Some(keyed) = keyed else {
            let state = class_without_flow(network).into();
            return Said { state, key: None, asked: None, opened: None, marked: None };
        };
        let hash = keyed.key.hash(SECRET);
        let (table, mut context) = self.context(now);
        let offered = TrackedPacket {
            network,
            frame,
            keyed: &keyed,
            hash,
            guess: conntrack::Guess::NONE,
            checksum: Checksum::Verify,
            segments: 1,
            may_open: true,
            screening: Screening::Off,
            map_epoch: 0,
            zones: None,
        };
        let tracked = table.track(&offered, &mut context);
        assert_eq!(tracked.verdict, Verdict::Accept, "there is room");
        let reply = tracked.direction == Some(Direction::Reply);
        let opened = tracked.connection.filter(|_| tracked.fresh);
        let asked = |entry: Entry| {
            let bit = |is_set, bit| if is_set { bit } else { 0 };
            let status = match opened {
                Some(_) => 0,
                None => CONFIRMED | bit(entry.seen_reply, SEEN_REPLY) | bit(entry.assured, ASSURED),
            };
            let tuples = [&entry.original, &entry.reply].map(tuple);
            Asked { reply, status, mark: entry.mark, tuples }
        };
        let asked = match tracked.class {
            flow::Class::Invalid(_) | flow::Class::Untracked => None,
            _ => table.get(&keyed.key, hash, now).map(asked),
        };
        Said { state: tracked.class.into(), key: Some(keyed), asked, opened, marked: None }
    }
}
