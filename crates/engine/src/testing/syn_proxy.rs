//! For tests: a model client and a model server on both sides of a worker whose SYN proxy stands
//! between them. They count as in RFC 9293 and RFC 7323.

use flow::{DropReason, SynProxyCounters};
use netio::{Frame, FramePool};
use ruleset::{Options, import};
use wire::build::{PacketBuilder, Tcp};
use wire::tcp_option::{TcpOption, TcpOptions, of_segment};
use wire::{Network, TcpFlags, TcpInfo, Transport, checksum};

use crate::egress::Mode;
use crate::path::rules::ruleset::Rules;
use crate::path::settings::Settings;
use crate::testing::one_worker::Rig;
use crate::worker::command::Command;
use crate::{Config, REPLAY_SECRET};

pub const CLIENT: [u8; 4] = [192, 0, 2, 1];
pub const SERVER: [u8; 4] = [198, 51, 100, 2];
pub const SYN: TcpFlags = TcpFlags::SYN;
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const RST: TcpFlags = TcpFlags::RST;
pub const SYN_ACK: TcpFlags = SYN.with(ACK);
/// The ports: clients are outside, and the server is inside.
pub const OUTSIDE: usize = 0;
pub const INSIDE: usize = 1;

/// MSS 1400, SACK permitted, timestamps 5000 and 0, window scale 3.
pub const OFFER: [u8; 20] = [2, 4, 5, 120, 4, 2, 8, 10, 0, 0, 19, 136, 0, 0, 0, 0, 1, 3, 3, 3];

/// A segment that came out, with its options.
#[derive(Clone, Debug)]
pub struct Seen {
    pub tcp: TcpInfo,
    pub options: Vec<(u8, Vec<u8>)>,
    pub network: Network,
}

impl Seen {
    pub fn option(&self, kind: u8) -> Option<&[u8]> {
        self.options.iter().find(|option| option.0 == kind).map(|option| &option.1[..])
    }

    /// The value and the echo of the timestamps option.
    pub fn stamps(&self) -> [u32; 2] {
        let stamps = self.option(8).expect("timestamps");
        [0, 4].map(|at| u32::from_be_bytes(stamps[at..at + 4].try_into().unwrap()))
    }
}

pub fn seen(frame: &Frame) -> Seen {
    let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
    let Transport::Tcp(tcp) = network.transport else { panic!("no TCP: {network:?}") };
    assert!(checksum::verify_transport(frame.bytes(), &network), "checksum");
    let options = TcpOptions::new(of_segment(frame.bytes(), &network, &tcp));
    let options = options.map(|TcpOption { kind, body, .. }| (kind, body.to_vec())).collect();
    Seen { tcp, options, network }
}

/// Both ends, and the gateway between them.
pub struct Scene {
    pub rig: Rig,
    pub v6: bool,
    pub client: u8,
    settings: Settings,
    /// Frames that have come to the gateway.
    pub received: u64,
}

impl Scene {
    pub fn new(v6: bool, half_open: u64) -> Self {
        let mut scene = Self::with(&[("stateway_syn_proxy_half_open", half_open)]);
        scene.v6 = v6;
        scene
    }

    pub fn with(tunables: &[(&str, u64)]) -> Self {
        let mut config = Config::new(REPLAY_SECRET);
        for (tunable, value) in tunables {
            config.settings.set(tunable, *value).unwrap();
        }
        let rig = Rig::new(&config);
        Self { rig, v6: false, client: 1, settings: config.settings, received: 0 }
    }

    /// A scene without rules, and one with rules that accept everything.
    pub fn both(half_open: u64) -> [Self; 2] {
        Self::both_with(&[("stateway_syn_proxy_half_open", half_open)])
    }

    pub fn both_with(tunables: &[(&str, u64)]) -> [Self; 2] {
        let mut ruled = Self::with(tunables);
        ruled.load(&rules_of("accept"));
        [Self::with(tunables), ruled]
    }

    pub fn load(&mut self, rules: &str) {
        let ruleset = import(rules.as_bytes(), Options::default()).unwrap().ruleset;
        let unloaded = Rules::prepare(ruleset, Mode::Bridge, 7, &[]).unwrap();
        let rules = unloaded.load(1, self.rig.now).for_worker();
        assert!(self.rig.commands.push(Command::Rules(Some(rules))).is_ok());
        self.rig.exchange(0, []);
    }

    pub fn frame(&self, from: usize, tcp: &Tcp<'_>, payload: &[u8]) -> Vec<u8> {
        let v6 = |host| {
            let mut address = [0; 16];
            (address[0], address[1], address[2], address[3]) = (0x20, 1, 0x0d, 0xb8);
            address[15] = host;
            address
        };
        let stations = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        let client = [CLIENT[0], CLIENT[1], CLIENT[2], self.client];
        let (there, ports) = (from == OUTSIDE, (40_000, 80));
        let builder = match (self.v6, there) {
            (false, true) => PacketBuilder::v4(client, SERVER),
            (false, false) => PacketBuilder::v4(SERVER, client),
            (true, true) => PacketBuilder::v6(v6(self.client), v6(200)),
            (true, false) => PacketBuilder::v6(v6(200), v6(self.client)),
        };
        let (source_port, destination_port) = if there { ports } else { (ports.1, ports.0) };
        let mut bytes = Vec::new();
        let tcp = Tcp { source_port, destination_port, ..*tcp };
        builder.macs(stations[from], stations[1 - from]).tcp(&tcp, payload, &mut bytes);
        bytes
    }

    pub fn put(&mut self, from: usize, bytes: &[u8]) -> [Vec<Frame>; 2] {
        self.received += 1;
        self.rig.exchange(from, FramePool::new(0, 0).copy_of(bytes))
    }

    pub fn send(&mut self, from: usize, tcp: &Tcp<'_>) -> [Vec<Seen>; 2] {
        let bytes = self.frame(from, tcp, &[]);
        self.put(from, &bytes).map(|frames| frames.iter().map(seen).collect())
    }

    /// Sends the client's SYN. Returns the answer that the client gets.
    pub fn knock(&mut self, options: &[u8]) -> Seen {
        let syn = Tcp { sequence: 100, flags: SYN, window: 64_000, options, ..Tcp::default() };
        let [back, on] = self.send(OUTSIDE, &syn);
        assert!(on.is_empty(), "the server sees no SYN");
        assert_eq!(back.len(), 1);
        assert_eq!((back[0].tcp.flags, back[0].tcp.acknowledgment), (SYN_ACK, 101));
        assert_eq!(back[0].tcp.window, 0);
        back[0].clone()
    }

    /// Sends the client's ACK of an answer. Returns the segments that come out of each port.
    pub fn come_back(&mut self, answer: &Seen, options: &[u8]) -> [Vec<Seen>; 2] {
        let acknowledgment = answer.tcp.sequence.wrapping_add(1);
        let (flags, window) = (ACK, 500);
        self.send(
            OUTSIDE,
            &Tcp { sequence: 101, acknowledgment, flags, window, options, ..Tcp::default() },
        )
    }

    /// The server accepts the connection, with a sequence number and a window.
    pub fn accept(&mut self, sequence: u32, window: u16) -> [Vec<Seen>; 2] {
        let (acknowledgment, flags) = (101, SYN_ACK);
        self.send(INSIDE, &Tcp { sequence, acknowledgment, flags, window, ..Tcp::default() })
    }

    /// Opens a connection without options. Returns the server's sequence number as the client
    /// knows it.
    pub fn open(&mut self, server: u32) -> u32 {
        let answer = self.knock(&[]);
        let [_, syn] = self.come_back(&answer, &[]);
        assert_eq!(syn[0].tcp.flags, SYN);
        let [update, ack] = self.accept(server, 1000);
        assert_eq!((update.len(), ack.len()), (1, 1));
        answer.tcp.sequence
    }

    pub fn set(&mut self, tunable: &str, value: u64) {
        self.settings.set(tunable, value).unwrap();
        self.rig.commands.push(Command::Settings(Box::new(self.settings.clone()))).unwrap();
    }

    pub fn counts(&self) -> SynProxyCounters {
        self.rig.worker.path.counters().syn_proxy
    }

    pub fn dropped(&self) -> u64 {
        self.rig.worker.path.counters().dropped(DropReason::SynCookie)
    }
}

impl Drop for Scene {
    /// Checks that the counters balance after everything that was played.
    fn drop(&mut self) {
        let counters = self.rig.worker.path.counters();
        let made = counters.output.window_updates + counters.output.flood_copies;
        if !std::thread::panicking() {
            assert_eq!(self.received + made, counters.transmitted + counters.dropped_total());
        }
    }
}

/// Rules with this policy for everything.
pub fn rules_of(policy: &str) -> String {
    format!(
        r#"{{"nftables":[{{"table":{{"family":"inet","name":"t","handle":1}}}},
            {{"chain":{{"family":"inet","table":"t","name":"fwd","handle":2,"type":"filter",
             "hook":"forward","prio":0,"policy":"{policy}"}}}}]}}"#
    )
}

pub fn stamped(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
}
