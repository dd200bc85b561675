//! A gateway of several workers with its peer, and what can be asked about it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::sync::Arc;

use conntrack::helper::Kind;
use conntrack::{Connection, ConnectionRecord, Filter, Tuple, TupleTransport};
use engine::{
    Cable, Config, Gateway, Mode, Peer, PortSetup, Role, Stepper, WorkerCount, ZoneConfig,
};
use flow::{FlowKey, HashKey, Timestamp, Zone};
use lab::Random;
use netio::{Frame, FramePool};
use ruleset::{Options, ValidRuleset, import};
use steer::{BucketCount, WorkerId};
use sync::{
    Config as SessionConfig, HashSecret, Likeness, NodeId, NodeName, PreSharedKey, SecretRole,
    Seed, Session, Settings,
};

use crate::address::{PORTS, Side, picture};
use crate::failure::{Invariant, Violation};
use crate::fault::Planted;

/// Longest time of a gateway in work for one event, rounds of turns of all workers. A packet passes
/// four rings at most.
const ROUNDS: usize = 10_000;

/// Timeouts that are shorter than usual, so that they pass within a simulation.
const TIMEOUTS: [(&str, u64); 2] =
    [("nf_conntrack_udp_timeout", 12), ("nf_conntrack_udp_timeout_stream", 15)];

/// The zone of all packets, in plans that have one.
const ZONE: u16 = 7;

/// The properties of a gateway that a restart does not change.
#[derive(Clone, Debug)]
pub struct Build {
    /// 0 or 1.
    pub number: usize,
    /// Workers at the start.
    pub workers: usize,
    /// Number of buckets.
    pub buckets: usize,
    /// The secret of its hash.
    pub secret: HashKey,
    /// The rules of both gateways.
    pub rules: Arc<ValidRuleset>,
    /// Most connections.
    pub max_connections: u64,
    /// The settings of state sync.
    pub settings: Settings,
    /// The fault that is planted.
    pub planted: Planted,
}

/// Rules that translate what leaves outside, and lead a port to a host inside. Each new connection
/// gets a mark from its first packet, so connections that have the same ports one after another can
/// be told apart.
pub fn rules(masquerades: bool) -> Arc<ValidRuleset> {
    let source = match masquerades {
        true => r#"{"masquerade":null}"#,
        false => r#"{"snat":{"addr":"198.51.100.254"}}"#,
    };
    let text = format!(
        r#"{{"nftables":[{{"table":{{"family":"ip","name":"t","handle":1}}}},
        {{"chain":{{"family":"ip","table":"t","name":"mark","handle":2,"type":"filter",
            "hook":"prerouting","prio":-150,"policy":"accept"}}}},
        {{"chain":{{"family":"ip","table":"t","name":"in","handle":3,"type":"nat",
            "hook":"prerouting","prio":-100,"policy":"accept"}}}},
        {{"chain":{{"family":"ip","table":"t","name":"out","handle":4,"type":"nat",
            "hook":"postrouting","prio":100,"policy":"accept"}}}},
        {{"rule":{{"family":"ip","table":"t","chain":"mark","handle":5,"expr":[
            {{"match":{{"op":"in","left":{{"ct":{{"key":"state"}}}},"right":"new"}}}},
            {{"mangle":{{"key":{{"ct":{{"key":"mark"}}}},
                "value":{{"payload":{{"base":"th","offset":32,"len":32}}}}}}}}]}}}},
        {{"rule":{{"family":"ip","table":"t","chain":"in","handle":6,"expr":[
            {{"match":{{"op":"==","left":{{"meta":{{"key":"iifname"}}}},"right":"wan0"}}}},
            {{"match":{{"op":"==","left":{{"payload":{{"protocol":"tcp","field":"dport"}}}},
                "right":8080}}}},
            {{"dnat":{{"addr":"192.0.2.10","port":80}}}}]}}}},
        {{"rule":{{"family":"ip","table":"t","chain":"out","handle":7,"expr":[
            {{"match":{{"op":"==","left":{{"meta":{{"key":"oifname"}}}},"right":"wan0"}}}},
            {source}]}}}}]}}"#
    );
    #[expect(clippy::expect_used, reason = "the text is right, and the same for all seeds")]
    let imported = import(text.as_bytes(), Options::default()).expect("rules");
    Arc::new(imported.ruleset)
}

/// A connection, as the invariants see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// IP protocol.
    pub protocol: u8,
    /// Its originator's packets.
    pub original: [(IpAddr, u16); 2],
    /// Its replies.
    pub reply: [(IpAddr, u16); 2],
    /// The number that its first packet had: see [`rules`].
    pub mark: u32,
    /// The state of its protocol.
    pub state: Option<&'static str>,
    /// Packets of both directions.
    pub packets: u64,
    /// Not a candidate for early drop.
    pub assured: bool,
    /// Seconds that it has left.
    pub left_s: u64,
    /// Its zone.
    pub zone: u16,
    /// Its helper.
    pub helper: Option<&'static str>,
}

/// Name of a connection: IP protocol, and the packets of its originator.
pub type Name = (u8, FlowKey, [(IpAddr, u16); 2]);

/// A gateway.
pub struct Node {
    pub build: Build,
    pub gateway: Gateway,
    pub stepper: Stepper,
    pub peer: Peer,
    /// Its interfaces, by [`Side::index`].
    pub cables: [Cable; 2],
    /// Which process it is: no other one of either gateway has this number.
    pub life: u64,
    /// Microseconds that are added to virtual time: clocks differ.
    pub clock: u64,
    /// True if it has the virtual address of each side.
    pub has_virtual: [bool; 2],
    pool: FramePool,
}

fn violation(error: impl std::fmt::Display) -> Violation {
    Violation::new(Invariant::Responsive, error.to_string())
}

impl Node {
    /// Starts a process.
    pub fn start(
        build: &Build,
        (life, clock): (u64, u64),
        role: Role,
        now: u64,
        random: &mut Random,
    ) -> Result<Self, Violation> {
        let at = Timestamp::from_nanos((clock + now) * 1000);
        let cables: [Cable; 2] = Default::default();
        // The first interface of one gateway is the second one of the other.
        let mut ports: Vec<_> = Side::BOTH
            .map(|side| PortSetup::new(PORTS[side.index()], cables[side.index()].clone()))
            .into();
        if build.number == 1 {
            ports.reverse();
        }
        let stepper = Stepper::new(at);
        stepper.shuffle(random.bits());
        let kernel = picture(build.number, [false; 2]);
        let gateway =
            Gateway::stepped(config(build), ports, &kernel, stepper.clone()).map_err(violation)?;
        let session = session(build, role);
        let shared = PreSharedKey::new(b"a secret of both").map_err(violation)?;
        let seed = Seed::new(std::array::from_fn(|_| random.bits() as u8));
        let session = Session::new(at, session, shared, seed);
        let peer = Peer::new(&gateway, session, role, HashKey(7, 8), at).map_err(violation)?;
        let (build, pool) = (build.clone(), FramePool::new(0, 0));
        let has_virtual = [false; 2];
        Ok(Self { build, gateway, stepper, peer, cables, life, clock, has_virtual, pool })
    }

    /// Virtual time on its clock.
    pub fn time(&self, now: u64) -> Timestamp {
        Timestamp::from_nanos((self.clock + now) * 1000)
    }

    /// When its session has to be looked at, in virtual time.
    pub fn next_timeout(&self) -> u64 {
        match self.peer.next_timeout() {
            Timestamp::NEVER => u64::MAX,
            at => at.as_nanos().div_ceil(1000).saturating_sub(self.clock),
        }
    }

    /// A frame arrives.
    pub fn receive(&mut self, side: Side, bytes: &[u8]) {
        // The pool takes memory of any size.
        self.cables[side.index()].input.put(self.pool.copy_of(bytes));
    }

    /// Lets the workers work until nothing is left to do. Returns what they have sent.
    pub fn work(&mut self, now: u64) -> Result<Vec<(Side, Frame)>, Violation> {
        self.stepper.pass_to(self.time(now));
        for _ in 0..ROUNDS {
            if !self.stepper.take_turns() {
                let sent = Side::BOTH.map(|side| {
                    let frames = self.cables[side.index()].output.take_all();
                    frames.into_iter().map(move |frame| (side, frame))
                });
                return Ok(sent.into_iter().flatten().collect());
            }
        }
        Err(Violation::new(Invariant::Responsive, "the workers find no end"))
    }

    /// Lets the peer work. `send` gets its datagrams. True if there is more to do at once.
    pub fn look(&mut self, now: u64, send: impl FnMut(&[u8])) -> Result<bool, Violation> {
        let at = self.time(now);
        self.stepper.pass_to(at);
        self.peer.turn(&self.gateway, at, send).map_err(violation)
    }

    /// Gives it the virtual addresses of these sides.
    pub fn set_virtual(&mut self, has_virtual: [bool; 2], now: u64) -> Result<(), Violation> {
        self.stepper.pass_to(self.time(now));
        self.has_virtual = has_virtual;
        let kernel = picture(self.build.number, has_virtual);
        self.gateway.set_kernel(&kernel).map_err(violation)
    }

    /// Gives it another part.
    pub fn set_role(&mut self, role: Role, now: u64) -> Result<(), Violation> {
        self.stepper.pass_to(self.time(now));
        self.peer.set_role(&self.gateway, role).map_err(violation)
    }

    /// Moves a bucket to a worker while its packets arrive.
    pub fn move_bucket(&mut self, random: &mut Random, now: u64) -> Result<(), Violation> {
        self.stepper.pass_to(self.time(now));
        let workers = self.gateway.status().map_err(violation)?.workers.len();
        let bucket = steer::BucketId(random.between(0, self.build.buckets - 1) as u16);
        let worker = WorkerId(random.between(0, workers - 1) as u16);
        self.gateway.move_bucket(bucket, worker).map_err(violation)
    }

    /// Gives it another number of workers.
    pub fn set_workers(&mut self, count: usize, now: u64) -> Result<(), Violation> {
        self.stepper.pass_to(self.time(now));
        self.gateway.set_workers(count).map_err(violation).map(drop)
    }

    /// Ends the connection of TCP with these ends.
    pub fn delete(
        &mut self,
        (from, to): ((Ipv4Addr, u16), (Ipv4Addr, u16)),
        now: u64,
    ) -> Result<(), Violation> {
        self.stepper.pass_to(self.time(now));
        let filter = Filter {
            protocol: Some(6),
            source: Some(IpAddr::from(from.0).into()),
            source_port: Some(from.1),
            destination: Some(IpAddr::from(to.0).into()),
            destination_port: Some(to.1),
            ..Filter::default()
        };
        self.gateway.delete_connections(&filter).map_err(violation).map(drop)
    }

    /// From now on all packets are in a zone.
    pub fn learn_zone(&mut self, now: u64) -> Result<(), Violation> {
        self.stepper.pass_to(self.time(now));
        let mut book = self.gateway.zones();
        book.zones = vec![ZoneConfig::new(Zone(ZONE))];
        self.gateway.set_zones(book).map_err(violation)
    }

    /// The connections that the gateway counts in the zone.
    pub fn counted_in_zone(&self) -> Result<Option<u64>, Violation> {
        let status = self.gateway.status().map_err(violation)?;
        let zone = status.zones.iter().find(|status| status.zone == Zone(ZONE));
        Ok(zone.map(|status| status.connections))
    }

    /// The interface of each masqueraded connection.
    pub fn interfaces(&self) -> Result<BTreeMap<FlowKey, String>, Violation> {
        let mut found = BTreeMap::new();
        let mut each = |record: ConnectionRecord| {
            let name = record.interface().map(|name| name.as_str().to_owned());
            found.insert(*record.key(), name.unwrap_or_default());
            ControlFlow::Continue(())
        };
        self.gateway.export_connections(&mut each).map_err(violation)?;
        Ok(found)
    }

    /// Its connections by name.
    pub fn table(&self) -> Result<BTreeMap<Name, Seen>, Violation> {
        let (mut found, mut twice) = (BTreeMap::new(), None);
        let mut each = |connection: Connection| {
            let Connection { protocol, key, .. } = connection;
            let seen = Seen {
                protocol,
                original: ends(&connection.original),
                reply: ends(&connection.reply),
                mark: connection.mark,
                state: connection.state,
                packets: connection.counters.map_or(0, |it| it[0].packets + it[1].packets),
                assured: connection.assured,
                left_s: connection.timeout_s,
                zone: connection.zone,
                helper: connection.helper,
            };
            let again = found.insert((protocol, key, seen.original), seen);
            twice = twice.take().or(again);
            ControlFlow::Continue(())
        };
        self.gateway.connections(&Filter::default(), &mut each).map_err(violation)?;
        match twice {
            None => Ok(found),
            Some(seen) => {
                let what = format!("gateway {} has two of {:?}", self.build.number, seen);
                Err(Violation::new(Invariant::OneTupleOneConnection, what))
            }
        }
    }

    /// The part of this gateway.
    pub fn role(&self) -> Role {
        self.peer.role()
    }

    /// The state of its session.
    pub fn status(&self, now: u64) -> sync::Status {
        self.peer.status(self.time(now))
    }
}

fn ends(tuple: &Tuple) -> [(IpAddr, u16); 2] {
    let (source, destination) = match tuple.transport {
        TupleTransport::Ports { source, destination } => (source, destination),
        _ => (0, 0),
    };
    [(tuple.source, source), (tuple.destination, destination)]
}

fn config(build: &Build) -> Config {
    let mut config = Config::new(build.secret);
    config.mode = Mode::Routed;
    config.workers = WorkerCount::Fixed(build.workers as u16);
    #[expect(clippy::expect_used, reason = "plans have numbers of buckets that are possible")]
    let buckets = BucketCount::new(build.buckets as u64).expect("a number of buckets");
    config.buckets = buckets;
    config.rules = Some(build.rules.clone());
    config.settings.conntrack.accounting = true;
    config.settings.conntrack.max_entries = build.max_connections;
    #[expect(clippy::expect_used, reason = "it is the only one")]
    config.settings.conntrack.helpers.attach(Kind::Ftp, crate::talk::FTP).expect("a free port");
    for (name, value) in TIMEOUTS {
        #[expect(clippy::expect_used, reason = "the names and values are possible")]
        config.settings.conntrack.set(name, value).expect("a timeout");
    }
    build.planted.plant_in(&mut config.settings.conntrack);
    config
}

fn session(build: &Build, role: Role) -> SessionConfig {
    let number = build.number as u16 + 1;
    let secret = [build.secret.0.to_be_bytes(), build.secret.1.to_be_bytes()].concat();
    #[expect(clippy::expect_used, reason = "one or two, and a short name")]
    let (node, name) = (
        NodeId(number.try_into().expect("not 0")),
        NodeName::new(&format!("gateway{number}")).expect("a short name"),
    );
    SessionConfig {
        node,
        name,
        peer: None,
        follows: role == Role::Standby,
        secret_role: SecretRole::Keeps,
        likeness: Likeness {
            hash_kind: "sip".into(),
            hash_secret: HashSecret::new(std::array::from_fn(|at| secret[at])),
            buckets: build.buckets as u32,
            translating_links: Default::default(),
            fragment_mode: String::new(),
            tunnel_mode: String::new(),
            zones: Vec::new(),
            rules: Vec::new(),
        },
        settings: build.settings,
        faults: build.planted.of_session(),
    }
}
