//! Our side: the same packets at the same times through a table.

use std::time::Duration;

use conntrack::helper::Kind;
use conntrack::{
    Changes, Checksum, Context, Direction, Expectations, Limits, Settings, Table, TimeoutPolicy,
    TrackedPacket, Why, class_without_flow, format,
};
use flow::{ConntrackCounters, FlowKey, HashKey, Timestamp, Verdict, Zone};
use wire::{Transport, Tunnels, dissect};

use super::kernel::Answer;
use super::said::{Class, Entry, Said, Way};

const SECRET: HashKey = HashKey(0x6b, 0x65);
/// More connections than dialogues have.
const ROOM: u64 = 1 << 20;

pub struct Ours {
    table: Table,
    pub settings: Settings,
    limits: Limits,
    counters: ConntrackCounters,
    expectations: Expectations,
    /// What a rule gives to connections.
    policy: Option<TimeoutPolicy>,
    now: Timestamp,
}

struct Judgement {
    class: Class,
    way: Option<Way>,
    why: Option<Why>,
}

impl Judgement {
    fn invalid(why: Why) -> Self {
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
    pub fn new(tunables: &[(String, u64)], policy: Option<TimeoutPolicy>) -> Self {
        let mut settings = Settings::default();
        for (name, value) in tunables {
            settings.set(name, *value).expect("a tunable of ours");
        }
        for &kind in Kind::ALL {
            settings.helpers.attach(kind, kind.default_port()).expect("the port is free");
        }
        let now = Timestamp::ZERO;
        Self {
            table: Table::new(now),
            settings,
            limits: Limits::alone(ROOM, SECRET),
            counters: ConntrackCounters::default(),
            expectations: Expectations::new(SECRET),
            policy,
            now,
        }
    }

    /// Tracks a frame when the kernel did; what is said of it, and why if it is invalid.
    pub fn track(&mut self, frame: &[u8], flow: &FlowKey, answer: &Answer) -> (Said, Option<Why>) {
        self.now = Timestamp::ZERO.after(answer.at);
        let Judgement { class, way, why } = self.judge(frame);
        self.now = Timestamp::ZERO.after(answer.until);
        (Said { class, way, entry: self.entry(flow) }, why)
    }

    /// The same steps as in the engine.
    fn judge(&mut self, frame: &[u8]) -> Judgement {
        let network = match dissect(frame, Tunnels::Outer) {
            Ok(dissected) => dissected.network.expect("a packet of IP"),
            Err(malformed) => return Judgement::invalid(malformed.into()),
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
                flow::Class::Invalid(reason) => Judgement::invalid(reason.into()),
                class => Judgement { class: named(class), way: None, why: None },
            };
        };
        let packet = TrackedPacket {
            network: &network,
            frame,
            keyed: &keyed,
            hash: keyed.key.hash(SECRET),
            guess: conntrack::Guess::NONE,
            checksum: Checksum::Verify,
            segments: 1,
            may_open: true,
            screened: false,
            map_epoch: 0,
            zones: None,
        };
        self.end_calls();
        let policy = self.policy;
        let (table, mut context) = self.parts();
        let tracked = table.track(&packet, &mut context);
        if let Some(policy) = &policy {
            table.set_policy(&tracked, policy, context.now);
        }
        let tracked = table.pass(tracked, &packet, &mut context);
        if tracked.verdict != Verdict::Accept {
            return Judgement { class: Class::Lost, way: None, why: tracked.why };
        }
        let way = tracked.direction.map(|direction| match direction {
            Direction::Original => Way::Original,
            Direction::Reply => Way::Reply,
        });
        Judgement { class: named(tracked.class), way, why: tracked.why }
    }

    /// As the owner of their bucket does.
    fn end_calls(&mut self) {
        for call in self.expectations.calls_over() {
            let (table, mut context) = self.parts();
            table.end_call(&call, call.hash(SECRET), &mut context);
        }
    }

    pub fn age(&mut self, flow: &FlowKey, seconds: u32, at: Duration) {
        self.now = Timestamp::ZERO.after(at);
        let (table, mut context) = self.parts();
        let changes = Changes { timeout_s: Some(seconds), ..Changes::default() };
        table.update(flow, flow.hash(SECRET), changes, &mut context);
    }

    /// The table as `conntrack -L` prints it.
    pub fn list(&mut self) -> Vec<String> {
        self.end_calls();
        let mut lines = Vec::new();
        let rest = self.table.list(Default::default(), u32::MAX, self.now, |connection| {
            lines.push(format::Listed(&connection).to_string());
        });
        assert_eq!(rest, None);
        lines
    }

    fn entry(&self, flow: &FlowKey) -> Option<Entry> {
        let connection = self.table.get(flow, flow.hash(SECRET), self.now)?;
        Some(Entry {
            source: connection.original.source,
            state: connection.state,
            seen_reply: connection.seen_reply,
            assured: connection.assured,
            timeout_s: connection.timeout_s,
        })
    }

    fn parts(&mut self) -> (&mut Table, Context<'_>) {
        let Self { table, settings, limits, counters, expectations, now, .. } = self;
        let now = *now;
        (
            table,
            Context {
                now,
                settings,
                limits,
                counters,
                expectations,
                events: None,
                expectation_events: None,
                ended: None,
            },
        )
    }
}
