//! Our side: the ruleset as `nft` prints it, compiled, and a connection table before it.

use conntrack::{
    Changes, Checksum, Connection as Entry, ConnectionId, Context, Direction, Expectations, Limits,
    Settings, Table, TrackedPacket, TupleTransport, class_without_flow,
};
use flow::{ConntrackCounters, FlowKey, HashKey, KeyedPacket, Timestamp, Verdict, Zone};
use ruleset::{
    CompileOptions, Connection, CtState, Decision, Details, Known, Options, PacketView, Program,
    RuleState, SharedState, Stage, Step, ValidRuleset, explain, import, name_bits,
};
use wire::{Network, Transport, Tunnels, dissect};

use super::generate::Packet;

const SECRET: HashKey = HashKey(0x72, 0x75);

/// Status bits (`enum ip_conntrack_status` of the kernel's interface).
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const CONFIRMED: u32 = 1 << 3;

pub struct Ours {
    program: Program,
    state: RuleState,
    tracking: Option<Tracking>,
}

struct Tracking {
    table: Table,
    settings: Settings,
    limits: Limits,
    counters: ConntrackCounters,
    expectations: Expectations,
}

/// A connection as rules ask for it.
struct Asked(Entry);

impl Details for Asked {
    fn tuple(&self, reply: bool) -> ruleset::Tuple {
        let tuple = if reply { self.0.reply } else { self.0.original };
        let bytes = |address| match address {
            std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(address) => address.octets(),
        };
        let (source_port, destination_port) = match tuple.transport {
            TupleTransport::Ports { source, destination } => (source, destination),
            _ => (0, 0),
        };
        let (source, destination) = (bytes(tuple.source), bytes(tuple.destination));
        ruleset::Tuple { source, destination, source_port, destination_port }
    }

    fn counts(&self) -> Option<[(u64, u64); 2]> {
        self.0.counters.map(|counts| counts.map(|counts| (counts.packets, counts.bytes)))
    }

    fn expiration_ms(&self) -> u64 {
        self.0.timeout_s * 1000
    }

    fn helper(&self) -> u128 {
        self.0.helper.and_then(name_bits).unwrap_or(0)
    }

    fn label(&self) -> u128 {
        0
    }
}

/// A ruleset as it was printed.
pub fn imported(listed: &str) -> ValidRuleset {
    match import(listed.as_bytes(), Options::default()) {
        Ok(imported) => imported.ruleset,
        Err(refused) => panic!("{refused}"),
    }
}

impl Ours {
    pub fn new(ruleset: ValidRuleset, with_tracking: bool, index: bool) -> Self {
        let program = Program::compile(ruleset, CompileOptions { index, seed: 5 }).unwrap();
        let state = RuleState::new(&program, &SharedState::new(&program, 1), Timestamp::ZERO);
        let tracking = with_tracking.then(|| Tracking {
            table: Table::new(Timestamp::ZERO),
            settings: Settings::default(),
            limits: Limits::alone(1 << 20, SECRET),
            counters: ConntrackCounters::default(),
            expectations: Expectations::new(SECRET),
        });
        Self { program, state, tracking }
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn state(&self) -> &RuleState {
        &self.state
    }

    /// True if a packet passes, and the rules that matched.
    pub fn judge(&mut self, packet: &Packet, now: Timestamp) -> (bool, Vec<Step>) {
        let dissected = dissect(&packet.frame, Tunnels::Outer).expect("packets are right");
        let network = dissected.network.expect("packets are IP");
        let tracked = self.tracking.as_mut().map(|tracking| tracking.track(packet, &network, now));
        let entry = tracked.as_ref().and_then(|tracked| tracked.entry.as_ref());
        let connection = match &tracked {
            None => Connection::UNTRACKED,
            Some(tracked) => Connection {
                state: tracked.state,
                known: entry.map(|(asked, reply)| Known {
                    reply: *reply,
                    status: if tracked.opened.is_some() {
                        0
                    } else {
                        let bit = |is_set, bit| if is_set { bit } else { 0 };
                        CONFIRMED
                            | bit(asked.0.seen_reply, SEEN_REPLY)
                            | bit(asked.0.assured, ASSURED)
                    },
                    mark: asked.0.mark,
                    zone: 0,
                    details: Some(asked),
                }),
            },
        };
        let (input, output) = match packet.side {
            "client" => ("client0", "server0"),
            _ => ("server0", "client0"),
        };
        // The kernel counts a hop before it asks.
        let mut frame = packet.frame.clone();
        let at = usize::from(network.offset) + if frame[12] == 8 { 8 } else { 7 };
        frame[at] -= 1;
        let view = PacketView {
            frame: &frame,
            network: &network,
            vlan: 0,
            packet_type: 0,
            input: name_bits(input).unwrap(),
            output: name_bits(output).unwrap(),
            mark: 0,
            priority: 0,
            connection,
        };
        let mut steps = Vec::new();
        let Self { program, state, .. } = self;
        let outcome =
            explain(program, Stage::Forward, &view, state, now, &mut |step| steps.push(step));
        let passes = outcome.decision == Decision::Accept;
        if let (Some(tracking), Some(tracked)) = (&mut self.tracking, &tracked) {
            tracking.conclude(tracked, passes, outcome.ct_mark, now);
        }
        (passes, steps)
    }
}

/// What tracking said of a packet.
struct Said {
    state: CtState,
    key: Option<KeyedPacket>,
    entry: Option<(Asked, bool)>,
    /// The connection that the packet has opened.
    opened: Option<ConnectionId>,
}

impl Tracking {
    fn context(&mut self, now: Timestamp) -> (&mut Table, Context<'_>) {
        let Self { table, settings, limits, counters, expectations } = self;
        let (events, expectation_events) = (None, None);
        let context = Context {
            now,
            settings,
            limits,
            counters,
            expectations,
            events,
            expectation_events,
            ended: None,
        };
        (table, context)
    }

    fn track(&mut self, packet: &Packet, network: &Network, now: Timestamp) -> Said {
        let zone = Zone(0);
        let keyed = match network.transport {
            Transport::IcmpError(error) => {
                error.quoted.map(|quoted| FlowKey::of_quoted(&quoted, network.family, zone))
            }
            _ => FlowKey::of_packet(network, zone),
        };
        let Some(keyed) = keyed else {
            let state = class_without_flow(network).into();
            return Said { state, key: None, entry: None, opened: None };
        };
        let hash = keyed.key.hash(SECRET);
        let (table, mut context) = self.context(now);
        let offered = TrackedPacket {
            network,
            frame: &packet.frame,
            keyed: &keyed,
            hash,
            checksum: Checksum::Verify,
            segments: 1,
            may_open: true,
            screened: false,
            map_epoch: 0,
        };
        let tracked = table.track(&offered, &mut context);
        assert_eq!(tracked.verdict, Verdict::Accept, "there is room");
        let reply = tracked.direction == Some(Direction::Reply);
        let entry = match tracked.class {
            flow::Class::Invalid(_) | flow::Class::Untracked => None,
            _ => table.get(&keyed.key, hash, now).map(|entry| (Asked(entry), reply)),
        };
        let opened = tracked.connection.filter(|_| tracked.fresh);
        Said { state: tracked.class.into(), key: Some(keyed), entry, opened }
    }

    /// The connection gets its mark; one whose first packet is dropped never was.
    fn conclude(&mut self, said: &Said, passes: bool, mark: Option<u32>, now: Timestamp) {
        let (Some(keyed), true) = (said.key, said.entry.is_some()) else { return };
        let hash = keyed.key.hash(SECRET);
        let (table, mut context) = self.context(now);
        match said.opened {
            Some(id) if passes => table.confirm(id, &mut context),
            Some(id) => table.withdraw(id, &mut context),
            None => {}
        }
        if mark.is_some() {
            let changes = Changes { mark, ..Changes::default() };
            table.update(&keyed.key, hash, changes, &mut context);
        }
    }
}
