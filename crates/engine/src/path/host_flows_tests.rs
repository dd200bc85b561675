use std::time::Duration;

use flow::{FlowKey, Zone};
use wire::build::{PacketBuilder, Tcp};
use wire::dissect;

use super::*;

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [203, 0, 113, 7];

/// A table, a clock, and packets of one client.
struct Rig {
    flows: HostFlows,
    settings: Settings,
    now: Timestamp,
}

impl Rig {
    fn new() -> Self {
        Self {
            flows: HostFlows::default(),
            settings: Settings::default(),
            now: Timestamp::from_secs(1000),
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        let (packet, sign) = seen(bytes);
        self.flows.remember(&packet, hash(&packet.key), sign, &self.settings, self.now);
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let (packet, sign) = seen(bytes);
        let hash = hash(&packet.key);
        let known = self.flows.knows(&packet, hash, sign, self.now);
        let taken = self.flows.take(&packet, hash, sign, &self.settings, self.now);
        assert_eq!(known, taken, "a question has the same answer");
        taken
    }

    fn wait(&mut self, seconds: u32) {
        self.now = self.now.after(Duration::from_secs(seconds.into()));
    }
}

fn seen(bytes: &[u8]) -> (KeyedPacket, Sign) {
    let network = dissect(bytes).unwrap().network.unwrap();
    let packet = FlowKey::of_packet(&network, Zone(0)).unwrap();
    (packet, Sign::of(&network.transport))
}

/// All flows of a test have the same place.
fn hash(_: &FlowKey) -> u64 {
    7
}

fn tcp(port: u16, flags: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header =
        Tcp { source_port: port, destination_port: 80, flags: TcpFlags(flags), ..Tcp::default() };
    PacketBuilder::v4(CLIENT, SERVER).tcp(&header, b"", &mut bytes);
    bytes
}

fn udp(from: [u8; 4], to: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::v4(from, to).udp(ports.0, ports.1, b"ask", &mut bytes);
    bytes
}

const SYN: u8 = 2;
const ACK: u8 = 0x10;
const FIN: u8 = 0x11;
const RST: u8 = 4;

#[test]
fn only_the_direction_that_was_left_to_the_host_is_its_own() {
    let mut rig = Rig::new();
    let asked = udp(CLIENT, SERVER, (5000, 53));
    assert!(rig.flows.is_empty() && !rig.take(&asked));
    rig.remember(&asked);
    assert!(!rig.flows.is_empty() && rig.take(&asked));
    for other in [
        udp(SERVER, CLIENT, (53, 5000)),
        udp(CLIENT, SERVER, (5001, 53)),
        udp(CLIENT, SERVER, (5000, 54)),
        tcp(5000, SYN),
    ] {
        assert!(!rig.take(&other));
    }
}

#[test]
fn a_flow_is_remembered_for_as_long_as_tracking_would_wait_for_it() {
    let Settings { timeouts, tcp: tcp_settings, .. } = Settings::default();
    let of = |state| tcp_settings.timeouts.of(state);
    for (packets, seconds) in [
        (vec![udp(CLIENT, SERVER, (5000, 53))], timeouts.udp_stream),
        (vec![tcp(5000, SYN)], of(TcpState::SynSent)),
        (vec![tcp(5000, SYN), tcp(5000, ACK)], of(TcpState::Established)),
        (vec![tcp(5000, ACK)], of(TcpState::Established)),
        (
            vec![tcp(5000, SYN), tcp(5000, ACK), tcp(5000, FIN), tcp(5000, ACK)],
            of(TcpState::TimeWait),
        ),
        (vec![tcp(5000, SYN), tcp(5000, RST)], of(TcpState::TimeWait)),
    ] {
        for (wait, is_known) in [(seconds - 1, true), (seconds, false)] {
            let mut rig = Rig::new();
            rig.remember(&packets[0]);
            assert!(packets[1..].iter().all(|packet| rig.take(packet)));
            rig.wait(wait);
            let next = if packets.len() == 1 { &packets[0] } else { &tcp(5000, ACK) };
            assert_eq!(rig.take(next), is_known, "{wait} s after {packets:?}");
        }
    }
}

#[test]
fn a_connection_that_is_opened_again_is_another() {
    let mut rig = Rig::new();
    rig.remember(&tcp(5000, SYN));
    // The first segment may be repeated.
    assert!(rig.take(&tcp(5000, SYN)) && rig.take(&tcp(5000, ACK)) && rig.take(&tcp(5000, SYN)));
    assert!(rig.take(&tcp(5000, FIN)) && rig.take(&tcp(5000, ACK)));
    assert!(!rig.take(&tcp(5000, SYN)) && !rig.take(&tcp(5000, ACK)));
}

#[test]
fn the_flow_with_the_least_time_left_gives_way_when_there_is_no_room() {
    let mut rig = Rig::new();
    let port = |way: usize| 5000 + way as u16;
    for way in 0..WAYS {
        rig.remember(&tcp(port(way), ACK));
        rig.wait(1);
    }
    rig.remember(&udp(CLIENT, SERVER, (5000, 53)));
    assert!(!rig.take(&tcp(port(0), ACK)));
    assert!((1..WAYS).all(|way| rig.take(&tcp(port(way), ACK))));
    // A flow with little time left goes first, even if it came later.
    rig.remember(&udp(CLIENT, SERVER, (5001, 53)));
    assert!(!rig.take(&udp(CLIENT, SERVER, (5000, 53))));
    assert!((1..WAYS).all(|way| rig.take(&tcp(port(way), ACK))));
    // A flow that is known takes no second place.
    for _ in 0..3 {
        rig.remember(&udp(CLIENT, SERVER, (5001, 53)));
    }
    assert!((1..WAYS).all(|way| rig.take(&tcp(port(way), ACK))));
}
