//! The proxy attacked by clients that come back, and by others that only pretend to.

use wire::build::{PacketBuilder, Tcp};

use super::*;
use crate::testing::syn_proxy::*;

/// Tries of an attacker that guesses, unless `STATEWAY_SEEDS` says otherwise.
const GUESSES: u32 = 20_000;

fn tries(default: u32) -> u32 {
    std::env::var("STATEWAY_SEEDS").ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

/// Spreads numbers over the whole range.
fn spread(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1)
}

impl Scene {
    /// Sends a segment of an attacker, which has an address of its own. Returns the segments that
    /// come out of each port.
    fn attack(&mut self, attacker: u32, tcp: &Tcp<'_>, payload: &[u8]) -> [Vec<Seen>; 2] {
        let (source_port, destination_port) = (40_000, 80);
        let tcp = Tcp { source_port, destination_port, ..*tcp };
        let mut bytes = Vec::new();
        PacketBuilder::v4((0x0a00_0000 + attacker).to_be_bytes(), SERVER)
            .tcp(&tcp, payload, &mut bytes);
        self.put(OUTSIDE, &bytes).map(|frames| frames.iter().map(seen).collect())
    }

    /// Lets an attacker get a cookie and return it. The server sees a SYN.
    fn complete(&mut self, attacker: u32) {
        let syn = Tcp { sequence: 100, flags: SYN, window: 9, ..Tcp::default() };
        let [answer, _] = self.attack(attacker, &syn, &[]);
        let acknowledgment = answer[0].tcp.sequence.wrapping_add(1);
        let ack = Tcp { sequence: 101, acknowledgment, flags: ACK, window: 9, ..Tcp::default() };
        let [back, on] = self.attack(attacker, &ack, &[]);
        assert_eq!((back.len(), on.len(), on[0].tcp.flags), (0, 1, SYN));
    }

    /// Lets the client ask and the server answer. True if both get through.
    fn talks(&mut self, cookie: u32, server: u32) -> bool {
        let question = Tcp {
            sequence: 101,
            acknowledgment: cookie.wrapping_add(1),
            flags: ACK,
            window: 500,
            ..Tcp::default()
        };
        let question = self.frame(OUTSIDE, &question, b"GET");
        let answer = Tcp {
            sequence: server.wrapping_add(1),
            acknowledgment: 104,
            flags: ACK,
            window: 500,
            ..Tcp::default()
        };
        let answer = self.frame(INSIDE, &answer, b"200");
        self.put(OUTSIDE, &question)[INSIDE].len() == 1
            && self.put(INSIDE, &answer)[OUTSIDE].len() == 1
    }
}

#[test]
fn guessed_cookies_open_no_connection_and_honest_clients_are_served() {
    for mut scene in Scene::both(1) {
        // Soon after the start of a gateway, data may belong to an older connection.
        scene.rig.wait(Duration::from_secs(301));
        let first = scene.open(7000);
        for number in 0..tries(GUESSES) {
            let (sequence, acknowledgment) = (spread(number ^ 0x5555), spread(number));
            let ack = Tcp { sequence, acknowledgment, flags: ACK, window: 9, ..Tcp::default() };
            let payload = if number % 2 == 0 { &b"data"[..] } else { &[] };
            // The attacker has many addresses, or one.
            let attacker = if number % 4 < 2 { number } else { 0 };
            assert!(scene.attack(attacker, &ack, payload).iter().all(Vec::is_empty), "{number}");
        }
        let guesses = u64::from(tries(GUESSES));
        let counts = scene.counts();
        assert_eq!((counts.cookie_valid, counts.cookie_invalid), (1, guesses));
        assert_eq!((scene.dropped(), scene.rig.connections()), (guesses, 1));
        assert!(scene.talks(first, 7000));
        scene.client = 2;
        let second = scene.open(8000);
        assert!(scene.talks(second, 8000));
    }
}

/// Most connections. Between a handshake and its answer come other connections, and each of them
/// makes another one give way.
const MOST: usize = 1000;
const OTHERS: u32 = 3;

#[test]
fn handshakes_with_a_silent_server_take_the_room_of_each_other() {
    let tunables = [("stateway_syn_proxy_half_open", 1), ("nf_conntrack_max", MOST as u64)];
    for mut scene in Scene::both_with(&tunables) {
        let mut honest = Vec::new();
        for attacker in 0..4000 {
            scene.complete(attacker);
            assert!(scene.rig.connections() <= MOST);
            // Between the handshake of an honest client and the answer to it, there are other
            // attackers.
            if attacker % 200 == 100 {
                scene.client = 1 + honest.len() as u8;
                let answer = scene.knock(&[]);
                for other in 0..OTHERS {
                    scene.complete(10_000 + attacker + other);
                }
                assert_eq!(scene.come_back(&answer, &[])[INSIDE].len(), 1);
                for other in 0..OTHERS {
                    scene.complete(20_000 + attacker + other);
                }
                let server = 1000 * attacker;
                let [update, ack] = scene.accept(server, 1000);
                assert_eq!((update.len(), ack.len()), (1, 1), "{attacker}");
                assert!(scene.talks(answer.tcp.sequence, server), "{attacker}");
                honest.push((answer.tcp.sequence, server));
            }
        }
        assert_eq!(honest.len(), 20);
        for (client, (cookie, server)) in (1..).zip(honest) {
            scene.client = client;
            assert!(scene.talks(cookie, server), "{client}");
        }
    }
}

#[test]
fn early_data_or_a_closed_window_costs_the_server_at_most_a_syn_per_packet() {
    for mut scene in Scene::both(1) {
        let answer = scene.knock(&[]);
        let acknowledgment = answer.tcp.sequence.wrapping_add(1);
        let closed = Tcp { sequence: 101, acknowledgment, flags: ACK, window: 0, ..Tcp::default() };
        let [back, on] = scene.send(OUTSIDE, &closed);
        assert_eq!((back.len(), on[0].tcp.flags, on[0].tcp.window), (0, SYN, 0));
        // The data comes before anybody takes it, inside and far behind any window.
        for number in 0..500u32 {
            let sequence = 101 + number * 100_000;
            let data = scene.frame(OUTSIDE, &Tcp { sequence, ..closed }, &[7; 100]);
            let [back, on] = scene.put(OUTSIDE, &data);
            assert!(back.is_empty() && on.len() <= 1);
            for frame in &on {
                let syn = seen(frame);
                assert_eq!((syn.tcp.flags, syn.tcp.sequence), (SYN, 100), "no data");
            }
        }
        assert_eq!(scene.rig.connections(), 1);
        let [update, ack] = scene.accept(900, 1000);
        assert_eq!((update.len(), ack[0].tcp.sequence, ack[0].tcp.window), (1, 101, 0));
        let open = Tcp { window: 500, ..closed };
        assert_eq!(scene.send(OUTSIDE, &open)[INSIDE].len(), 1);
        assert!(scene.talks(answer.tcp.sequence, 900));
    }
}

#[test]
fn resets_behind_cookies_leave_nothing() {
    for mut scene in Scene::both(1) {
        for attacker in 0..2000 {
            scene.complete(attacker);
            let reset = Tcp { sequence: 101, flags: RST, ..Tcp::default() };
            let [back, on] = scene.attack(attacker, &reset, &[]);
            assert_eq!((back.len(), on.len(), on[0].tcp.flags), (0, 1, RST));
        }
        assert_eq!(scene.rig.connections(), 0);
        let cookie = scene.open(900);
        assert!(scene.talks(cookie, 900));
    }
}

/// An attacker knows the ends of a connection and none of its numbers. It sends in the name of
/// either end while the server has not answered.
#[test]
fn a_blind_attacker_ends_no_connection_that_is_being_opened() {
    for mut scene in Scene::both(1) {
        let answer = scene.knock(&[]);
        scene.come_back(&answer, &[]);
        for number in 0..200 {
            let numbers = Tcp {
                sequence: spread(number).wrapping_add(200_000),
                acknowledgment: spread(!number),
                window: 9,
                ..Tcp::default()
            };
            for flags in [RST, RST.with(ACK), TcpFlags::FIN.with(ACK), ACK, SYN_ACK] {
                for from in [OUTSIDE, INSIDE] {
                    scene.send(from, &Tcp { flags, ..numbers });
                }
            }
            scene.send(OUTSIDE, &Tcp { flags: SYN, ..numbers });
            assert_eq!(scene.rig.connections(), 1, "{number}");
        }
        let [update, ack] = scene.accept(900, 1000);
        assert_eq!((update.len(), ack.len()), (1, 1));
        assert!(scene.talks(answer.tcp.sequence, 900));
    }
}
