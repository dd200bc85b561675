//! Our side: the same packets at the same times through a table. Packets of tunnels go through
//! several tables.

use std::time::Duration;

use conntrack::Verdict;
use conntrack::helper::Kind;
use conntrack::nat::{BucketPorts, Supply};
use conntrack::syn_proxy::Screening;
use conntrack::{
    Changes, Checksum, Connection, Context, Direction, Expectations, Limits, Replication, Settings,
    Table, TimeoutPolicy, TrackedPacket, TrackingCause, class_without_flow, format,
};
use flow::{ConntrackCounters, FlowKey, HashKey, KeyedPacket, Timestamp, Zone, ZonePair};
use wire::{Network, Transport, dissect};

use super::kernel::Answer;
use super::outcome::{Class, Entry, Outcome, Way};

const SECRET: HashKey = HashKey(0x6b, 0x65);
/// The limit of connections, above the number of dialogues.
const ROOM: u64 = 1 << 20;

/// The timeouts and zones that rules give to connections.
#[derive(Clone, Copy, Default)]
pub struct Given {
    policy: Option<TimeoutPolicy>,
    /// The zones by the TTL or hop limit of a packet.
    zones: Option<fn(u8) -> ZonePair>,
}

impl Given {
    pub fn timeouts(policy: TimeoutPolicy) -> Self {
        Self { policy: Some(policy), zones: None }
    }

    pub fn zones(of: fn(u8) -> ZonePair) -> Self {
        Self { policy: None, zones: Some(of) }
    }
}

/// The number of tables. The content of a tunnel's packet chooses one; all other packets use the
/// first.
const BUCKETS: usize = 3;

pub struct Ours {
    tables: [Table; BUCKETS],
    /// The index of the table that the last packet used.
    last: usize,
    pub settings: Settings,
    limits: Limits,
    counters: ConntrackCounters,
    expectations: Expectations,
    tunnels: conntrack::KnownTunnels,
    replication: Replication,
    given: Given,
    now: Timestamp,
}

struct Classification {
    class: Class,
    way: Option<Way>,
    why: Option<TrackingCause>,
}

impl Classification {
    fn invalid(why: TrackingCause) -> Self {
        Self { class: Class::Invalid, way: None, why: Some(why) }
    }
}

fn named(class: flow::Class) -> Class {
    match class {
        flow::Class::New => Class::New,
        flow::Class::Established => Class::Established,
        flow::Class::Related => Class::Related,
        flow::Class::Untracked => Class::Untracked,
        flow::Class::Invalid(_) => Class::Invalid,
    }
}

impl Ours {
    pub fn new(tunables: &[(String, u64)], given: Given) -> Self {
        let mut settings = Settings::default();
        for (name, value) in tunables {
            settings.set(name, *value).expect("a tunable of ours");
        }
        for &kind in Kind::ALL {
            settings.helpers.attach(kind, kind.default_port()).expect("the port is free");
        }
        let now = Timestamp::ZERO;
        Self {
            tables: std::array::from_fn(|_| Table::new(now)),
            last: 0,
            settings,
            limits: Limits::alone(ROOM, SECRET),
            counters: ConntrackCounters::default(),
            expectations: Expectations::new(SECRET),
            tunnels: conntrack::KnownTunnels::new(SECRET),
            replication: Replication::default(),
            given,
            now,
        }
    }

    /// Tracks a frame at the time when the kernel did. Returns the result, and the reason if the
    /// frame is invalid.
    pub fn track(
        &mut self,
        frame: &[u8],
        flow: &FlowKey,
        answer: &Answer,
    ) -> (Outcome, Option<TrackingCause>) {
        self.now = Timestamp::ZERO.after(answer.at);
        let Classification { class, way, why } = self.classify(frame);
        self.now = Timestamp::ZERO.after(answer.until);
        (Outcome { class, way, entry: self.entry(flow) }, why)
    }

    /// Follows the same steps as the engine.
    fn classify(&mut self, frame: &[u8]) -> Classification {
        let network = match dissect(frame) {
            Ok(dissected) => dissected.network.expect("a packet of IP"),
            Err(malformed) => return Classification::invalid(malformed.into()),
        };
        let zone = Zone(0);
        let keyed = match network.transport {
            Transport::IcmpError(error) => {
                error.quoted.map(|quoted| FlowKey::of_quoted(&quoted, network.family, zone))
            }
            _ => FlowKey::of_packet(&network, zone),
        };
        let Some(keyed) = keyed else {
            return match class_without_flow(&network) {
                flow::Class::Invalid(reason) => Classification::invalid(reason.into()),
                class => Classification { class: named(class), way: None, why: None },
            };
        };
        let (keyed, zones) = self.zoned(keyed, &network);
        let packet = TrackedPacket {
            network: &network,
            frame,
            keyed: &keyed,
            hash: keyed.key.hash(SECRET),
            guess: conntrack::Guess::NONE,
            checksum: Checksum::Verify,
            segments: 1,
            may_open: true,
            screening: Screening::Off,
            map_epoch: 0,
            zones,
        };
        self.end_calls();
        let Given { policy, zones } = self.given;
        self.last = bucket_of(frame, &keyed, &network);
        let last = self.last;
        let (tables, mut context) = self.parts();
        let table = &mut tables[last];
        let tracked = table.track(&packet, &mut context);
        if let Some(policy) = &policy {
            table.set_policy(&tracked, policy, context.now);
        }
        if let (true, true, Some(id)) = (zones.is_some(), tracked.fresh, tracked.connection) {
            let supply = Supply { own: BucketPorts::ALL, seed: 1, hash: &|key| key.hash(SECRET) };
            table.make_reply_unique(id, supply, &mut context).expect("there are ports");
            table.confirm(id, &mut context).unwrap();
        }
        let tracked = table.accept(tracked, &packet, &mut context);
        if tracked.verdict != Verdict::Accept {
            return Classification { class: Class::Lost, way: None, why: tracked.why };
        }
        let way = tracked.direction.map(|direction| match direction {
            Direction::Original => Way::Original,
            Direction::Reply => Way::Reply,
        });
        Classification { class: named(tracked.class), way, why: tracked.why }
    }

    /// A packet with the zone in which rules have it looked up, and the pair of zones if there are
    /// two.
    fn zoned(&self, packet: KeyedPacket, network: &Network) -> (KeyedPacket, Option<ZonePair>) {
        let Some(of) = self.given.zones else { return (packet, None) };
        let zones = of(network.ttl);
        let mut looked_up = packet;
        if matches!(network.transport, Transport::IcmpError(_)) {
            looked_up.sender = looked_up.sender.opposite();
        }
        let hash = packet.key.hash(SECRET);
        let zones_of_two = Some(zones).filter(|zones| !zones.is_one());
        let found = zones_of_two.and_then(|zones| {
            let known = self.tables[0].zone_of(zones, &looked_up, hash, self.now);
            known.or_else(|| self.tunnels.zone_of(zones, &looked_up, self.now))
        });
        (packet.in_zone(found.unwrap_or(zones.original)), zones_of_two)
    }

    /// Ends the calls that are over, as the owner of their bucket does.
    fn end_calls(&mut self) {
        for call in self.expectations.calls_over() {
            let (tables, mut context) = self.parts();
            tables[0].end_call(&call, call.hash(SECRET), &mut context);
        }
    }

    pub fn age(&mut self, flow: &FlowKey, seconds: u32, at: Duration) {
        self.now = Timestamp::ZERO.after(at);
        let (tables, mut context) = self.parts();
        let changes = Changes { timeout_s: Some(seconds), ..Changes::default() };
        for table in tables {
            table.update(flow, flow.hash(SECRET), changes, &mut context);
        }
    }

    /// The tables as `conntrack -L` prints them. A tunnel appears once, without the remaining time,
    /// because each part has its own.
    pub fn list(&mut self) -> Vec<String> {
        self.end_calls();
        let (mut lines, mut listed) = (Vec::new(), Vec::new());
        for table in &self.tables {
            let rest = table.list(Default::default(), u32::MAX, self.now, |connection| {
                let whole = Connection { part: false, ..connection };
                if !listed.contains(&(whole.key, whole.original)) {
                    lines.push(format::Listed(&whole).to_string());
                }
                listed.push((whole.key, whole.original));
            });
            assert_eq!(rest, None);
        }
        lines
    }

    /// The expectations as `conntrack -L expect` prints them.
    pub fn list_expected(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.expectations.list(Default::default(), usize::MAX, self.now, |expected| {
            lines.push(format::ListedExpectation(&expected).to_string());
        });
        lines
    }

    fn entry(&self, flow: &FlowKey) -> Option<Entry> {
        let get = |table: &Table| table.get(flow, flow.hash(SECRET), self.now);
        // A tunnel lives as long as one of its parts. That is the part of the last packet, unless a
        // test has set the times.
        let connection = get(&self.tables[self.last])
            .or_else(|| self.tables.iter().filter_map(get).max_by_key(|part| part.timeout_s))?;
        Some(Entry {
            source: connection.original.source,
            state: connection.state,
            seen_reply: connection.seen_reply,
            assured: connection.assured,
            timeout_s: connection.timeout_s,
        })
    }

    fn parts(&mut self) -> (&mut [Table], Context<'_>) {
        let Self {
            tables,
            settings,
            limits,
            counters,
            expectations,
            tunnels,
            replication,
            now,
            ..
        } = self;
        let now = *now;
        (
            tables,
            Context {
                now,
                settings,
                limits,
                counters,
                expectations,
                tunnels,
                events: None,
                expectation_events: None,
                replication,
                ended: None,
            },
        )
    }
}

/// The bucket of a tunnel's packet. Its content chooses the bucket, by
/// any of its bits.
fn bucket_of(frame: &[u8], packet: &KeyedPacket, network: &Network) -> usize {
    let is_error = matches!(network.transport, Transport::IcmpError(_));
    let inside = frame.iter().skip(network.transport_offset.into());
    match packet.key.is_tunnel() && !is_error {
        true => inside.map(|&byte| usize::from(byte)).sum::<usize>() % BUCKETS,
        false => 0,
    }
}
