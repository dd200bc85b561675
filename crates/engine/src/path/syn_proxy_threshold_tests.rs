//! The times when the proxy answers, and the cookies that it takes.

use wire::build::{PacketBuilder, Tcp};

use super::*;
use crate::testing::syn_proxy::*;

#[test]
fn a_cookie_is_worth_nothing_where_none_was_given_lately() {
    let mut answering = Scene::new(false, 1);
    let answer = answering.knock(&[]);
    // A client may guess a cookie at a gateway that does not answer: it picks up a pure ACK.
    let mut idle = Scene::new(false, 1000);
    let [_, on] = idle.come_back(&answer, &[]);
    assert_eq!(on[0].tcp.flags, ACK);
    assert_eq!(idle.counts().cookie_valid, 0);
    // The flow has moved here from a worker that answers.
    let mut moved = Scene::new(false, 1000);
    let promises = answering.rig.worker.path.syn_proxy.promises(answering.rig.now);
    moved.rig.worker.path.learn_promises(promises);
    let [_, on] = moved.come_back(&answer, &[]);
    assert_eq!(on[0].tcp.flags, SYN);
    assert_eq!(moved.counts().cookie_valid, 1);
}

#[test]
fn connections_that_are_older_than_the_gateway_go_on() {
    let numbers = Tcp { sequence: 9, acknowledgment: 5, flags: ACK, window: 9, ..Tcp::default() };
    for (loose, age, from, passes) in [
        (1, 0, OUTSIDE, true),
        (1, 299, INSIDE, true),
        (1, 301, OUTSIDE, false),
        (0, 0, OUTSIDE, false),
    ] {
        for mut scene in Scene::both(1) {
            scene.set("nf_conntrack_tcp_loose", loose);
            scene.rig.wait(Duration::from_secs(age));
            assert!(scene.send(from, &numbers).iter().all(Vec::is_empty), "it may be an attack");
            let data = scene.frame(from, &numbers, b"GET");
            let came = scene.put(from, &data)[1 - from].len();
            assert_eq!(came == 1, passes, "{loose} {age}");
            let back = Tcp { sequence: 5, acknowledgment: 12, ..numbers };
            assert_eq!(scene.send(1 - from, &back)[from].len() == 1, passes, "and so on");
        }
    }
}

#[test]
fn a_proxy_that_is_switched_on_in_a_flood_knows_how_much_it_has_opened() {
    for mut scene in Scene::both(0) {
        let syn = Tcp { sequence: 100, flags: SYN, window: 9, ..Tcp::default() };
        for client in 1..=9 {
            scene.client = client;
            assert_eq!(scene.send(OUTSIDE, &syn)[INSIDE].len(), 1);
        }
        scene.set("stateway_syn_proxy_half_open", 10);
        scene.client = 10;
        assert_eq!(scene.send(OUTSIDE, &syn)[OUTSIDE].len(), 1, "the tenth is answered");
    }
}

#[test]
fn in_a_flood_servers_see_only_who_comes_back() {
    const THRESHOLD: u64 = 50;
    for mut scene in Scene::both(THRESHOLD) {
        let (mut reached, mut opened) = (0, 0);
        for round in 0..10u32 {
            for number in 0..500 {
                let syn = Tcp { sequence: number, flags: SYN, window: 9, ..Tcp::default() };
                let mut bytes = Vec::new();
                let source = (0x0a00_0000 + round * 500 + number).to_be_bytes();
                PacketBuilder::v4(source, SERVER).tcp(&syn, &[], &mut bytes);
                reached += scene.put(OUTSIDE, &bytes)[INSIDE].len();
            }
            scene.client = round as u8;
            scene.open(1000 * round);
            opened += 1;
            let half_open = scene.rig.worker.path.tracking.limits().half_open.get(Zone::default());
            assert!(half_open < THRESHOLD, "{half_open}");
            scene.rig.now = scene.rig.now.after(Duration::from_secs(1));
        }
        assert_eq!(reached, THRESHOLD as usize - 1);
        assert_eq!(scene.rig.connections(), reached + opened);
        // The flood is over. As soon as another connection would fit, servers are asked at once.
        scene.rig.wait(Duration::from_secs(300));
        scene.client = 100;
        let syn = Tcp { sequence: 100, flags: SYN, window: 9, ..Tcp::default() };
        let [back, on] = scene.send(OUTSIDE, &syn);
        assert_eq!((back.len(), on.len()), (0, 1));
    }
}

#[test]
fn only_a_threshold_of_one_means_always_however_many_workers_share_it() {
    for (threshold, answered) in [(1, 1), (2, 0), (64, 0)] {
        for mut scene in Scene::both(threshold) {
            scene.rig.worker.path.syn_proxy.set_workers(64);
            let syn = Tcp { sequence: 100, flags: SYN, window: 9, ..Tcp::default() };
            let [back, on] = scene.send(OUTSIDE, &syn);
            assert_eq!((back.len(), on.len()), (answered, 1 - answered), "{threshold}");
        }
    }
}

#[test]
fn a_connection_that_nobody_proxied_stays_as_it_is() {
    for mut scene in Scene::both(3) {
        let syn = Tcp { sequence: 100, flags: SYN, window: 9, ..Tcp::default() };
        let syn_ack =
            Tcp { sequence: 7, acknowledgment: 101, flags: SYN_ACK, window: 9, ..Tcp::default() };
        for client in 1..=2 {
            scene.client = client;
            assert_eq!(scene.send(OUTSIDE, &syn)[INSIDE].len(), 1);
        }
        scene.client = 3;
        assert_eq!(scene.send(OUTSIDE, &syn)[OUTSIDE].len(), 1, "from the third on");
        scene.client = 1;
        assert_eq!(scene.send(INSIDE, &syn_ack)[OUTSIDE][0].tcp.sequence, 7);
        let ack = Tcp { sequence: 101, acknowledgment: 8, flags: ACK, window: 9, ..Tcp::default() };
        assert_eq!(scene.send(OUTSIDE, &ack)[INSIDE][0].tcp.acknowledgment, 8);
        assert_eq!(scene.send(OUTSIDE, &syn)[INSIDE].len(), 1, "a late repetition");
        let reset = Tcp { flags: RST, acknowledgment: 0, ..ack };
        assert_eq!(scene.send(OUTSIDE, &reset)[INSIDE].len(), 1);
        assert_eq!(scene.send(OUTSIDE, &syn)[INSIDE].len(), 1, "who opens it anew is no flood");
    }
}

#[test]
fn cookies_stay_valid_when_the_proxy_is_switched_off() {
    for (from, to) in [(1, 0), (2, 0), (1, 1000)] {
        for mut scene in Scene::both(from) {
            if from > 1 {
                let syn = Tcp { sequence: 100, flags: SYN, window: 9, ..Tcp::default() };
                scene.client = 99;
                assert_eq!(scene.send(OUTSIDE, &syn)[INSIDE].len(), 1);
            }
            for (client, wait) in [(1, 0), (2, 62)] {
                scene.client = client;
                scene.set("stateway_syn_proxy_half_open", from);
                let answer = scene.knock(&[]);
                scene.set("stateway_syn_proxy_half_open", to);
                scene.rig.wait(Duration::from_secs(wait));
                let [_, on] = scene.come_back(&answer, &[]);
                assert_eq!(
                    (on[0].tcp.flags, on[0].tcp.sequence),
                    (SYN, 100),
                    "{from} {to} {client}"
                );
                let numbers = Tcp { sequence: 7, acknowledgment: 101, ..Tcp::default() };
                let [update, ack] =
                    scene.send(INSIDE, &Tcp { flags: SYN_ACK, window: 9, ..numbers });
                assert_eq!((update.len(), ack.len()), (1, 1));
                assert_eq!(scene.counts().cookie_valid, u64::from(client));
                if to == 0 {
                    // The proxy answers no more.
                    scene.client = 100 + client;
                    let syn = Tcp { sequence: 100, flags: SYN, window: 9, ..Tcp::default() };
                    let [back, on] = scene.send(OUTSIDE, &syn);
                    assert_eq!((back.len(), on.len()), (0, 1));
                }
            }
        }
    }
    // The promise is over after a minute, and an ACK is treated as without a proxy.
    let mut scene = Scene::new(false, 1);
    let answer = scene.knock(&[]);
    scene.set("stateway_syn_proxy_half_open", 0);
    scene.rig.wait(Duration::from_secs(65));
    let [_, on] = scene.come_back(&answer, &[]);
    assert_eq!(on[0].tcp.flags, ACK);
}

/// The connections that fill a table.
const MOST: u8 = 40;
const FULL_TABLE: [(&str, u64); 2] =
    [("stateway_syn_proxy_half_open", 1), ("nf_conntrack_max", MOST as u64)];

impl Scene {
    /// Lets many hosts send a SYN each. Returns how many segments came out of each port.
    fn flood(&mut self) -> [usize; 2] {
        let mut came = [0, 0];
        for number in 0..500u32 {
            let syn = Tcp { sequence: number, flags: SYN, window: 9, ..Tcp::default() };
            let mut bytes = Vec::new();
            let source = (0x0a00_0000 + number).to_be_bytes();
            PacketBuilder::v4(source, SERVER).tcp(&syn, &[], &mut bytes);
            for (came, frames) in came.iter_mut().zip(self.put(OUTSIDE, &bytes)) {
                *came += frames.len();
            }
        }
        came
    }

    /// Fills the table up to one place, and opens one connection whose server has not answered.
    fn fill(&mut self) {
        for client in 2..=MOST {
            self.client = client;
            self.open(700);
        }
        self.client = 1;
        let answer = self.knock(&[]);
        assert_eq!(self.come_back(&answer, &[])[INSIDE].len(), 1);
        assert_eq!(self.rig.connections(), usize::from(MOST));
    }

    /// Lets the server of that connection answer, which shows that the connection was not
    /// forgotten.
    fn is_served(&mut self) {
        let syn_ack =
            Tcp { sequence: 900, acknowledgment: 101, flags: SYN_ACK, window: 9, ..Tcp::default() };
        let [update, ack] = self.send(INSIDE, &syn_ack);
        assert_eq!((update.len(), ack.len()), (1, 1));
    }
}

#[test]
fn answered_syns_need_no_room_and_evict_no_connection() {
    for mut scene in Scene::both_with(&FULL_TABLE) {
        scene.fill();
        let before = scene.rig.worker.path.counters.conntrack;
        assert_eq!(scene.flood(), [500, 0]);
        assert_eq!(scene.rig.worker.path.counters.conntrack, before, "nothing has come or gone");
        scene.is_served();
        // No connection is left that would give way.
        assert_eq!(scene.flood(), [500, 0]);
        assert_eq!(scene.rig.worker.path.counters.conntrack.insert_failed, 0);
        assert_eq!(scene.rig.connections(), usize::from(MOST));
    }
}

#[test]
fn an_answered_syn_does_not_count_for_its_source() {
    let tunables = [("stateway_syn_proxy_half_open", 1), ("stateway_half_open_per_source", 1)];
    for mut scene in Scene::both_with(&tunables) {
        let answer = scene.knock(&[]);
        scene.come_back(&answer, &[]);
        let syn = Tcp {
            sequence: 9,
            source_port: 50_000,
            destination_port: 80,
            flags: SYN,
            window: 9,
            ..Tcp::default()
        };
        let mut bytes = Vec::new();
        PacketBuilder::v4([192, 0, 2, 1], SERVER).tcp(&syn, &[], &mut bytes);
        let [back, on] = scene.put(OUTSIDE, &bytes);
        assert_eq!((back.len(), on.len()), (1, 0));
        scene.is_served();
    }
}

#[test]
fn syns_that_rules_refuse_are_not_answered_and_evict_no_connection() {
    let mut scene = Scene::with(&FULL_TABLE);
    scene.fill();
    let before = scene.rig.worker.path.counters.conntrack;
    scene.load(&rules_of("drop"));
    assert_eq!(scene.flood(), [0, 0]);
    assert_eq!(scene.rig.worker.path.counters.conntrack, before, "nothing has come or gone");
    assert_eq!(scene.rig.worker.path.counters.dropped(DropReason::PolicyRefused), 500);
    scene.load(&rules_of("accept"));
    scene.is_served();
}
