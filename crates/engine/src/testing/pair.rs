//! For tests: two bridges with state sync in virtual time, and hosts that talk through one of them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use conntrack::helper::Kind;
use conntrack::{Connection, Filter};
use flow::{HashKey, Timestamp};
use netio::FramePool;
use netlink::Picture;
use sync::{
    Config as SessionConfig, Faults, HashSecret, Likeness, NodeId, NodeName, PreSharedKey,
    SecretRole, Seed, Session, Settings,
};
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use crate::control::peer::{Peer, Role};
use crate::testing::cable::Cable;
use crate::{Config, Gateway, PortSetup, Stepper, WorkerCount};

const CLIENT: [u8; 4] = [198, 51, 100, 1];
const SERVER: [u8; 4] = [192, 0, 2, 1];
/// TCP connections with this number and higher ones go to a port whose connections the helper of SIP
/// reads.
pub const FIRST_OF_SIP: u16 = 60_000;
const SIP_PORT: u16 = 5060;
/// Time that a datagram takes from one gateway to the other.
const DELAY: Duration = Duration::from_micros(200);
/// Time between two looks at a peer while it is followed.
const PACE: Duration = Duration::from_micros(500);

/// A bridge with its peer.
pub struct Node {
    pub gateway: Gateway,
    pub stepper: Stepper,
    pub peer: Peer,
    pub lan: Cable,
    pub wan: Cable,
    /// Added to the time of the pair: clocks differ.
    clock: Duration,
}

/// The two ends of a TCP connection.
#[derive(Clone, Copy, Default)]
struct Ends {
    sent: [u32; 2],
}

/// Two bridges, the first of which is active at the start.
pub struct Pair {
    pub nodes: [Node; 2],
    now: Timestamp,
    /// Datagrams on their way, with the time of their arrival and the node that they go to.
    on_the_way: VecDeque<(Timestamp, usize, Vec<u8>)>,
    /// Each datagram with a number divisible by it is lost; 0: none.
    pub loses: u64,
    datagrams: u64,
    pool: FramePool,
    ends: BTreeMap<u16, Ends>,
}

impl Node {
    fn new(number: u16, role: Role, clock: Duration, now: Timestamp, settings: Settings) -> Self {
        let secret = HashKey(5, 6);
        let mut config = Config { workers: WorkerCount::fixed(2).unwrap(), ..Config::new(secret) };
        config.settings.conntrack.helpers.attach(Kind::Sip, SIP_PORT).unwrap();
        let (lan, wan) = (Cable::default(), Cable::default());
        let ports = vec![PortSetup::new("lan0", lan.clone()), PortSetup::new("wan0", wan.clone())];
        let stepper = Stepper::new(now.after(clock));
        let gateway =
            Gateway::stepped(config, ports, &Picture::default(), stepper.clone()).unwrap();
        let session = SessionConfig {
            node: NodeId(number.try_into().unwrap()),
            name: NodeName::new("node").unwrap(),
            peer: None,
            follows: role == Role::Standby,
            secret_role: SecretRole::Keeps,
            likeness: Likeness {
                hash_kind: "sip".into(),
                hash_secret: HashSecret::new([1; 16]),
                buckets: 256,
                translating_links: Default::default(),
                fragment_mode: String::new(),
                tunnel_mode: String::new(),
                zones: Vec::new(),
                rules: Vec::new(),
            },
            settings,
            faults: Faults::default(),
        };
        let shared = PreSharedKey::new(b"a secret of both").unwrap();
        let mut seed = [number as u8; 32];
        seed[..8].copy_from_slice(&now.as_nanos().to_be_bytes());
        let seed = Seed::new(seed);
        let now = now.after(clock);
        let session = Session::new(now, session, shared, seed);
        let peer = Peer::new(&gateway, session, role, HashKey(7, 8), now).unwrap();
        Self { gateway, stepper, peer, lan, wan, clock }
    }

    /// Its connections, without their timers.
    pub fn connections(&self) -> Vec<Connection> {
        let mut found = Vec::new();
        let mut each = |connection: Connection| {
            found.push(Connection { timeout_s: 0, ..connection });
            ControlFlow::Continue(())
        };
        self.gateway.connections(&Filter::default(), &mut each).unwrap();
        found.sort_by_key(|connection| connection.key);
        found
    }
}

impl Pair {
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    /// With other settings of the protocol.
    pub fn with(settings: Settings) -> Self {
        let now = Timestamp::from_secs(1000);
        let far = Duration::from_secs(40 * 365 * 86_400);
        Self {
            nodes: [
                Node::new(1, Role::Active, far, now, settings),
                Node::new(2, Role::Standby, Duration::ZERO, now, settings),
            ],
            now,
            on_the_way: VecDeque::new(),
            loses: 0,
            datagrams: 0,
            pool: FramePool::new(0, 0),
            ends: BTreeMap::new(),
        }
    }

    /// Starts a node anew, with an empty table and a clock that has just begun.
    pub fn restart(&mut self, at: usize, role: Role) {
        // Its greetings are fresh, as after any start. No two starts are at one moment.
        self.now = self.now.after(Duration::from_nanos(1));
        let number = at as u16 + 1;
        let settings = Settings::default();
        self.nodes[at] = Node::new(number, role, Duration::ZERO, self.now, settings);
    }

    /// Deletes all connections of a node. Returns how many there were.
    pub fn delete_all(&self, at: usize) -> u64 {
        self.nodes[at].gateway.delete_connections(&Filter::default()).unwrap()
    }

    /// True if both nodes have the same connections within four seconds. One whose time is over just
    /// now is not listed any more, and ends within a second.
    pub fn becomes_alike(&mut self) -> bool {
        (0..4).any(|_| {
            self.pass(Duration::from_secs(1));
            self.nodes[1].connections() == self.nodes[0].connections()
        })
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.now.after(PACE).min(end);
            self.work();
        }
    }

    /// Lets so much time pass at once that nobody does anything meanwhile.
    pub fn jump(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.work();
    }

    fn work(&mut self) {
        for at in [0, 1] {
            let arrived =
                |(arrives, to, _): &(Timestamp, usize, Vec<u8>)| *to == at && *arrives <= self.now;
            let (due, rest): (Vec<_>, Vec<_>) =
                self.on_the_way.drain(..).partition(|it| arrived(it));
            self.on_the_way = rest.into();
            let node = &mut self.nodes[at];
            let now = self.now.after(node.clock);
            node.stepper.pass_to(now);
            while node.stepper.take_turns() {}
            for (_, _, datagram) in due {
                // A greeting that crosses another is refused.
                let _ = node.peer.handle(now, &datagram);
            }
            let mut sent = Vec::new();
            while node.peer.turn(&node.gateway, now, |it| sent.push(it.to_vec())).unwrap() {}
            for datagram in sent {
                self.datagrams += 1;
                if self.loses == 0 || !self.datagrams.is_multiple_of(self.loses) {
                    self.on_the_way.push_back((self.now.after(DELAY), 1 - at, datagram));
                }
            }
        }
    }

    /// Sends a datagram in a flow through a node.
    pub fn udp(&mut self, through: usize, flow: u16, is_reply: bool) {
        self.datagram(through, flow, is_reply, if is_reply { b"answer" } else { b"question" });
    }

    /// Sends a datagram with this content.
    pub fn datagram(&mut self, through: usize, flow: u16, is_reply: bool, content: &[u8]) {
        let mut bytes = Vec::new();
        match is_reply {
            false => PacketBuilder::v4(CLIENT, SERVER).udp(flow, 53, content, &mut bytes),
            true => PacketBuilder::v4(SERVER, CLIENT).udp(53, flow, content, &mut bytes),
        }
        self.put(through, is_reply, &bytes);
    }

    /// Opens a TCP connection.
    pub fn open(&mut self, through: usize, flow: u16) {
        self.ends.insert(flow, Ends { sent: [u32::from(flow) << 16, u32::from(flow) << 8] });
        self.tcp(through, flow, false, TcpFlags::SYN, b"");
        self.tcp(through, flow, true, TcpFlags::SYN.with(TcpFlags::ACK), b"");
        self.tcp(through, flow, false, TcpFlags::ACK, b"");
    }

    /// Sends a segment without data in a TCP connection.
    pub fn segment(&mut self, through: usize, flow: u16, is_reply: bool, flags: TcpFlags) {
        self.tcp(through, flow, is_reply, flags, b"");
    }

    /// Sends data in a TCP connection.
    pub fn data(&mut self, through: usize, flow: u16, is_reply: bool) {
        self.text(through, flow, is_reply, &[7; 1000]);
    }

    /// Sends this in a TCP connection.
    pub fn text(&mut self, through: usize, flow: u16, is_reply: bool, text: &[u8]) {
        self.tcp(through, flow, is_reply, TcpFlags::ACK.with(TcpFlags::PSH), text);
    }

    /// An end of a TCP connection goes on with a number so far ahead.
    pub fn skip(&mut self, flow: u16, is_reply: bool, bytes: u32) {
        let next = &mut self.ends.entry(flow).or_default().sent[usize::from(is_reply)];
        *next = next.wrapping_add(bytes);
    }

    /// Resets a TCP connection.
    pub fn reset(&mut self, through: usize, flow: u16) {
        self.tcp(through, flow, false, TcpFlags::RST.with(TcpFlags::ACK), b"");
    }

    fn tcp(&mut self, through: usize, flow: u16, is_reply: bool, flags: TcpFlags, data: &[u8]) {
        let ends = self.ends.entry(flow).or_default();
        let from = usize::from(is_reply);
        let ports = [flow, if flow < FIRST_OF_SIP { 80 } else { SIP_PORT }];
        let tcp = Tcp {
            source_port: ports[from],
            destination_port: ports[1 - from],
            sequence: ends.sent[from],
            acknowledgment: if flags.contains(TcpFlags::ACK) { ends.sent[1 - from] } else { 0 },
            flags,
            window: 60_000,
            options: &[],
        };
        let counted = [TcpFlags::SYN, TcpFlags::FIN].map(|flag| u32::from(flags.contains(flag)));
        let length = data.len() as u32 + counted.iter().sum::<u32>();
        ends.sent[from] = ends.sent[from].wrapping_add(length);
        let (source, destination) = if is_reply { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
        let mut bytes = Vec::new();
        PacketBuilder::v4(source, destination).tcp(&tcp, data, &mut bytes);
        self.put(through, is_reply, &bytes);
    }

    fn put(&mut self, through: usize, is_reply: bool, bytes: &[u8]) {
        let frame = self.pool.copy_of(bytes).unwrap();
        let node = &self.nodes[through];
        let cable = if is_reply { &node.wan } else { &node.lan };
        cable.input.put([frame]);
        while node.stepper.take_turns() {}
    }

    /// Frames that have left a node since the last call.
    pub fn forwarded(&self, through: usize) -> usize {
        let node = &self.nodes[through];
        node.lan.output.take_all().len() + node.wan.output.take_all().len()
    }
}
