//! PPTP calls in replays. Control connections and calls hash to buckets of several workers, and a
//! message that one worker reads has to hold for the others at once.

use conntrack::helper::Kind;
use flow::DropReason;
use proptest::prelude::*;
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, protocol};

use super::*;
use crate::testing::captures::{capture, config, play, with_workers};

/// Hosts that call one server, each by a control connection.
const CLIENTS: usize = 3;
const SERVER: [u8; 4] = [198, 51, 100, 2];

/// A step, with the number of a client and the id of its call. The server's id is one more.
#[derive(Clone, Copy, Debug)]
enum Step {
    Request(usize, u16),
    Reply(usize, u16),
    Disconnect(usize, u16),
    /// The control connection is reset.
    Reset(usize),
    /// A GRE packet, from the client if true, or else to it.
    Frame(usize, u16, bool),
}

#[derive(Default)]
struct Script {
    /// Next sequence numbers of each client and of the server towards it.
    next: [[u32; 2]; CLIENTS],
    frames: Vec<Vec<u8>>,
}

impl Script {
    fn of(steps: &[Step]) -> Vec<Vec<u8>> {
        let mut script = Self::default();
        for client in 0..CLIENTS {
            script.segment(client, true, TcpFlags::SYN, &[]);
            script.next[client][0] = 1;
            script.segment(client, false, TcpFlags::SYN.with(TcpFlags::ACK), &[]);
            script.next[client][1] = 1;
            script.say(client, true, 1, 156, &[]);
            script.say(client, false, 2, 156, &[1, 0, 1]);
        }
        for step in steps {
            match *step {
                Step::Request(client, id) => {
                    script.say(client, true, 7, 168, &id.to_be_bytes());
                }
                Step::Reply(client, id) => {
                    let ids = [(id + 1).to_be_bytes(), id.to_be_bytes(), [1, 0]].concat();
                    script.say(client, false, 8, 32, &ids);
                }
                Step::Disconnect(client, id) => {
                    script.say(client, false, 13, 148, &(id + 1).to_be_bytes());
                }
                Step::Reset(client) => script.segment(client, true, TcpFlags::RST, &[]),
                Step::Frame(client, id, from_client) => script.gre(client, id, from_client),
            }
        }
        script.frames
    }

    fn builder(client: usize, from_client: bool) -> PacketBuilder {
        let client = [192, 0, 2, 1 + client as u8];
        if from_client {
            PacketBuilder::v4(client, SERVER)
        } else {
            PacketBuilder::v4(SERVER, client)
        }
    }

    fn segment(&mut self, client: usize, from_client: bool, flags: TcpFlags, payload: &[u8]) {
        let [own, other] = if from_client { [0, 1] } else { [1, 0] };
        let ports = [40_000 + client as u16, 1723];
        let tcp = Tcp {
            source_port: ports[own],
            destination_port: ports[other],
            sequence: self.next[client][own],
            acknowledgment: self.next[client][other],
            window: 60_000,
            flags,
            ..Tcp::default()
        };
        let mut frame = Vec::new();
        Self::builder(client, from_client).tcp(&tcp, payload, &mut frame);
        self.frames.push(frame);
        self.next[client][own] += payload.len() as u32;
    }

    /// Adds a message of RFC 2637 that begins with these fields behind its header.
    fn say(&mut self, client: usize, from_client: bool, kind: u8, length: u8, fields: &[u8]) {
        let mut bytes = vec![0, length, 0, 1, 0x1a, 0x2b, 0x3c, 0x4d, 0, kind, 0, 0];
        bytes.extend(fields);
        bytes.resize(length.into(), 0);
        self.segment(client, from_client, TcpFlags::ACK, &bytes);
    }

    fn gre(&mut self, client: usize, id: u16, from_client: bool) {
        let [high, low] = (id + u16::from(from_client)).to_be_bytes();
        let header = [0x20, 1, 0x88, 0x0b, 0, 0, high, low];
        let mut frame = Vec::new();
        Self::builder(client, from_client).transport(protocol::GRE, &header, &mut frame);
        self.frames.push(frame);
    }
}

fn report(steps: &[Step], workers: u16) -> (ReplayReport, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let path = capture(directory.path(), &Script::of(steps));
    let mut config = config();
    config.settings.conntrack.helpers.attach(Kind::Pptp, 1723).unwrap();
    play(&path, &config, with_workers(workers))
}

#[test]
fn calls_are_announced_to_and_ended_by_other_workers() {
    use Step::{Disconnect, Frame, Reply, Request};
    let one = |client| {
        let call = [Request(client, 7), Reply(client, 7), Frame(client, 7, false)];
        [&call[..], &[Frame(client, 7, true), Disconnect(client, 7), Frame(client, 7, true)]]
            .concat()
    };
    let steps: Vec<Step> = (0..CLIENTS).flat_map(one).collect();
    for workers in [1, 2, 4] {
        let (report, _) = report(&steps, workers);
        let classes = report.counters.classes;
        // New are the segments that open, and the packet after the notice. Established are the
        // other six of each control connection, and the answer in the call.
        assert_eq!(classes, [6, 21, 3, 0, 0], "{workers} workers");
        assert_eq!(report.flows[&(protocol::GRE, "")], 6, "{workers} workers");
        assert_eq!(report.counters.dropped(DropReason::NewRefused), 0);
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let (client, id) = (0..CLIENTS, 5u16..8);
    prop_oneof![
        3 => (client.clone(), id.clone()).prop_map(|(client, id)| Step::Request(client, id)),
        3 => (client.clone(), id.clone()).prop_map(|(client, id)| Step::Reply(client, id)),
        2 => (client.clone(), id.clone()).prop_map(|(client, id)| Step::Disconnect(client, id)),
        1 => client.clone().prop_map(Step::Reset),
        8 => (client, id, any::<bool>()).prop_map(|(client, id, from)| Step::Frame(client, id, from)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_number_of_workers_never_shows(steps in prop::collection::vec(any_step(), 1..120)) {
        let one = report(&steps, 1);
        for workers in [2, 4] {
            prop_assert_eq!(&report(&steps, workers), &one);
        }
    }
}
