//! Rules that ask by which port a frame leaves, on a bridge of three ports with several workers.

use flow::HashKey;
use ruleset::ValidRuleset;
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

use super::*;
use crate::Config;
use crate::egress::Mode;
use crate::path::rules::ruleset::Rules;
use crate::rings::link::CONTROL_RESERVE;
use crate::testing::many_workers::TestGateway;
use crate::testing::rules::one_chain;
use crate::worker::Worker;
use crate::worker::command::Command;

const NAMES: [&str; 3] = ["wan0", "lan0", "dmz0"];
/// Hosts behind the first, the second and the third port, by number.
const HOSTS: [u8; 3] = [1, 2, 3];
/// Flows of one kind: they come to all workers.
const FLOWS: u16 = 64;
const COUNTER: &str = r#"{"counter":{"packets":0,"bytes":0}}"#;

fn by(key: &str, name: &str) -> String {
    format!(
        r#"{{"match":{{"op":"==","left":{{"meta":{{"key":"{key}"}}}},"right":"{name}"}}}},{COUNTER}"#
    )
}

fn gateway(workers: u16, ruleset: ValidRuleset) -> TestGateway {
    let mut gateway = TestGateway::between(3, &Config::new(HashKey(1, 2)), workers, false);
    let names = NAMES.map(str::to_owned);
    let rules = Rules::prepare(ruleset, Mode::Bridge, 7, &names).unwrap();
    let rules = rules.load(3, gateway.now);
    for handle in &mut gateway.handles {
        handle.tell(Command::Rules(Some(rules.for_worker()))).unwrap();
    }
    gateway.run_until_idle();
    gateway
}

fn station(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

/// A packet that opens a connection from a host to another, in a frame to a station.
fn opener(from: u8, to: u8, flow: u16, station_of: [u8; 6]) -> Vec<u8> {
    let mut frame = Vec::new();
    let header = Tcp {
        source_port: 1024 + flow,
        destination_port: 80,
        flags: TcpFlags(2),
        ..Tcp::default()
    };
    PacketBuilder::v4([192, 0, 2, from], [192, 0, 2, to]).macs(station(from), station_of).tcp(
        &header,
        &[],
        &mut frame,
    );
    frame
}

/// A frame that is no packet, from a host to all.
fn hello(host: u8) -> Vec<u8> {
    [&[0xff; 6][..], &station(host), &[8, 6], &[0; 46]].concat()
}

impl TestGateway {
    /// How many frames each port sends.
    fn leaves(&mut self) -> [usize; 3] {
        self.run_until_idle();
        [0, 1, 2].map(|port| self.sent(port).len())
    }

    fn open_connections(&self) -> usize {
        self.workers
            .iter()
            .flat_map(|it| it.path.buckets.owned())
            .map(|(_, it)| it.connections.len())
            .sum()
    }

    fn counted_by_all(&self) -> Vec<u64> {
        let counts = |worker: &Worker| -> Vec<u64> {
            let rules = worker.path.rules.as_ref().unwrap();
            rules.all_counted().iter().map(|counted| counted.packets).collect()
        };
        let each: Vec<_> = self.workers.iter().map(counts).collect();
        (0..each[0].len()).map(|at| each.iter().map(|counts| counts[at]).sum()).collect()
    }

    fn dropped_for(&self, reason: DropReason) -> u64 {
        self.workers.iter().map(|worker| worker.path.counters.dropped(reason)).sum()
    }
}

#[test]
fn a_flooded_packet_leaves_by_the_ports_for_which_rules_accept_it() {
    let to_dmz = format!(r#"{},{},{{"drop":null}}"#, by("iifname", "wan0"), by("oifname", "dmz0"));
    let from_wan = format!(r#"{},{{"accept":null}}"#, by("iifname", "wan0"));
    for workers in 1..=3 {
        for to in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], station(9)] {
            let mut gateway =
                gateway(workers, one_chain("forward", 0, "drop", &[&to_dmz, &from_wan]));
            (0..FLOWS).for_each(|flow| gateway.arrive(0, &opener(HOSTS[0], 2, flow, to)));
            let flows = usize::from(FLOWS);
            assert_eq!(gateway.leaves(), [0, flows, 0], "{workers} workers, to {to:?}");
            assert_eq!((gateway.open_connections(), gateway.dropped()), (flows, 0));
            // Each is asked about once for each port.
            let flows = u64::from(FLOWS);
            assert_eq!(gateway.counted_by_all(), [2 * flows, flows, flows]);
        }
    }
}

#[test]
fn a_flooded_packet_that_no_port_takes_is_refused_once_and_leaves_nothing() {
    let reject = format!(r#"{},{{"reject":{{"type":"tcp reset"}}}}"#, by("iifname", "wan0"));
    let mut gateway = gateway(2, one_chain("forward", 0, "accept", &[&reject]));
    (0..FLOWS).for_each(|flow| gateway.arrive(0, &opener(HOSTS[0], 2, flow, station(9))));
    let flows = usize::from(FLOWS);
    assert_eq!(gateway.leaves(), [flows, 0, 0], "each is answered once");
    assert_eq!(gateway.open_connections(), 0);
    assert_eq!(gateway.dropped_for(DropReason::RuleRefused), u64::from(FLOWS));
    // One that some port takes is not answered.
    let to_dmz = format!(r#"{},{{"reject":{{"type":"tcp reset"}}}}"#, by("oifname", "dmz0"));
    let mut gateway = self::gateway(2, one_chain("forward", 0, "accept", &[&to_dmz]));
    (0..FLOWS).for_each(|flow| gateway.arrive(0, &opener(HOSTS[0], 2, flow, station(9))));
    assert_eq!((gateway.leaves(), gateway.dropped()), ([0, flows, 0], 0));
}

#[test]
fn all_fragments_of_a_flooded_datagram_leave_by_the_ports_that_take_it() {
    let to_dmz = format!(r#"{},{{"drop":null}}"#, by("oifname", "dmz0"));
    let mut gateway = gateway(2, one_chain("forward", 0, "accept", &[&to_dmz]));
    // A station that is known, for the fragments behind the first.
    gateway.arrive(2, &hello(HOSTS[2]));
    gateway.leaves();
    let builder = PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 3]).macs(station(1), station(9));
    let mut datagram = vec![0x55; 2008];
    datagram[4..6].copy_from_slice(&2008_u16.to_be_bytes());
    datagram[6..8].fill(0);
    for (number, mut fragment) in builder.fragments(17, &datagram, 1000).into_iter().enumerate() {
        if number > 0 {
            fragment[..6].copy_from_slice(&station(HOSTS[2]));
        }
        gateway.arrive(0, &fragment);
    }
    let [wan, lan, dmz] = gateway.leaves();
    assert_eq!((wan, dmz), (0, 0));
    assert!(lan >= 2, "{lan}");
}

#[test]
fn packets_accepted_by_their_output_port_are_sent_whichever_worker_knows_the_station() {
    let to_dmz =
        format!(r#"{},{},{{"accept":null}}"#, by("iifname", "wan0"), by("oifname", "dmz0"));
    for workers in 1..=4 {
        let mut gateway = gateway(workers, one_chain("forward", 0, "drop", &[&to_dmz]));
        // Rules refuse the packet, but the station is there.
        gateway.arrive(2, &opener(HOSTS[2], 1, 0, station(1)));
        assert_eq!(gateway.leaves(), [0; 3]);
        (0..FLOWS)
            .for_each(|flow| gateway.arrive(0, &opener(HOSTS[0], 3, flow, station(HOSTS[2]))));
        assert_eq!(gateway.leaves(), [0, 0, usize::from(FLOWS)], "{workers} workers");
        let flooded: u64 =
            gateway.workers.iter().map(|it| it.path.counters.output.flood_copies).sum();
        assert_eq!(flooded, 0, "every worker knows where the station is");
        // It moves, and all know.
        gateway.arrive(1, &hello(HOSTS[2]));
        gateway.leaves();
        (0..FLOWS).for_each(|flow| {
            gateway.arrive(0, &opener(HOSTS[0], 3, 100 + flow, station(HOSTS[2])))
        });
        assert_eq!(gateway.leaves(), [0; 3], "nothing is allowed there");
    }
}

#[test]
fn a_flood_of_stations_fills_no_ring_and_hides_no_station_of_another_port() {
    let mut gateway = TestGateway::between(3, &Config::new(HashKey(1, 2)), 3, false);
    for number in 0..50_000_u32 {
        let [a, b, c, d] = number.to_be_bytes();
        gateway.arrive(0, &[&[0xff; 6][..], &[2, 9, a, b, c, d], &[8, 6], &[0; 46]].concat());
    }
    let queued = |gateway: &mut TestGateway, peer| {
        gateway.workers[0].path.buckets.link(peer).unwrap().queued()
    };
    assert_eq!([1, 2].map(|peer| queued(&mut gateway, peer)), [0, 0]);
    // The others sleep meanwhile.
    while gateway.turn(0) {
        assert!([1, 2].iter().all(|peer| queued(&mut gateway, *peer) <= CONTROL_RESERVE / 2));
    }
    gateway.arrive(2, &hello(HOSTS[2]));
    gateway.leaves();
    (0..FLOWS).for_each(|flow| gateway.arrive(1, &opener(HOSTS[1], 3, flow, station(HOSTS[2]))));
    assert_eq!(gateway.leaves(), [0, 0, usize::from(FLOWS)]);
}
