//! Two gateways under virtual time, over a link that loses, repeats and reorders packets.
//!
//! `STATEWAY_SEEDS=20000 cargo test -p sync pfsync::simulation` runs more seeds, and `17-17` one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flow::Timestamp;

use super::ends::{ARRIVAL, Ends, HERE, THERE, creator_of, id_of, tcp, udp};
use super::sample::Random;
use super::*;

const SEEDS: u64 = 50;
/// Time between two steps.
const STEP: Duration = Duration::from_millis(50);
/// Steps of trouble, and of quiet afterwards.
const TROUBLE: u64 = 600;

/// Packets on their way, by the time at which they arrive.
#[derive(Default)]
struct Link {
    flying: BTreeMap<(Timestamp, u64), (usize, Vec<u8>)>,
    sent: u64,
}

impl Link {
    /// Sends a packet, perhaps.
    fn send(&mut self, random: &mut Random, now: Timestamp, to: usize, packet: &[u8]) {
        let copies = match random.between(0, 9) {
            0 | 1 => 0,
            2 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = Duration::from_millis(random.between(0, 400));
            self.sent += 1;
            self.flying.insert((now.after(delay), self.sent), (to, packet.to_vec()));
        }
    }

    fn arrive(&mut self, now: Timestamp) -> Vec<(usize, Vec<u8>)> {
        let later = self.flying.split_off(&(now.after(Duration::from_nanos(1)), 0));
        std::mem::replace(&mut self.flying, later).into_values().collect()
    }
}

/// The truth about the connections of the first gateway, and the last account of each by its ends.
#[derive(Default)]
struct Truth {
    live: BTreeMap<StateId, State>,
    ended: BTreeSet<StateId>,
    opened: u64,
}

impl Truth {
    /// Something happens to a connection, as its owner sees it.
    fn happen(&mut self, random: &mut Random, ends: &mut Ends) {
        let any = random.between(0, self.live.len().max(1) as u64 - 1) as usize;
        let known = self.live.keys().nth(any).copied();
        match (random.between(0, 9), known) {
            (0, _) | (_, None) => {
                self.opened += 1;
                let id = id_of(HERE, self.opened);
                let state = match random.percent(70) {
                    true => tcp(id, TcpState::SynSent, [random.next() as u32, 0]),
                    false => udp(id, [FlowState::Single, FlowState::Silent]),
                };
                self.offer(ends, state);
            }
            (1, Some(id)) => {
                ends.end(HERE, id);
                self.live.remove(&id);
                self.ended.insert(id);
            }
            (_, Some(id)) => {
                let state = self.live[&id];
                self.offer(ends, later(random, &state));
            }
        }
    }

    fn heed(&mut self, ends: &Ends, event: Event) {
        if let Event::Updated(id) = event
            && let Some(state) = ends.ends[HERE].state(id)
        {
            self.live.insert(id, *state);
        }
        assert!(!matches!(event, Event::Inserted(_) | Event::Ended(_)), "{event:?}");
    }

    fn offer(&mut self, ends: &mut Ends, state: State) {
        ends.offer(HERE, state);
        self.live.insert(state.id(), state);
    }
}

/// A later account of a connection.
fn later(random: &mut Random, state: &State) -> State {
    let peers = match state.parts().peers {
        Peers::Tcp(peers) => Peers::Tcp(peers.map(|mut it| {
            let step = random.between(0, 1 << 20) as u32;
            it.numbers.sequence = it.numbers.sequence.wrapping_add(step);
            if random.percent(10) {
                let place = TcpState::ALL.iter().position(|state| *state == it.state).unwrap();
                it.state = TcpState::ALL[(place + 1).min(10)];
            }
            it
        })),
        Peers::Flow(_) => Peers::Flow([FlowState::Multiple; 2]),
        Peers::Sctp(peers) => Peers::Sctp(peers),
    };
    state.with_peers(peers).unwrap()
}

/// No end of a connection is older than before.
fn never_rolls_back(before: &BTreeMap<StateId, Peers>, after: &State) {
    let Some(before) = before.get(&after.id()) else { return };
    let merged = merge::merge(before, &after.parts().peers).unwrap();
    assert!(!merged.is_stale, "{before:?} became {:?}", after.parts().peers);
}

/// A run; in some the copy sees packets of connections, too.
fn simulate(seed: u64) {
    let mut random = Random(seed);
    let dialect = random.one_of(&Dialect::ALL);
    let is_seen_by_both = random.percent(50);
    let mut ends = Ends::new(dialect, |_, config| config.defers = seed.is_multiple_of(3));
    let (mut link, mut truth) = (Link::default(), Truth::default());
    let mut known: [BTreeMap<StateId, Peers>; 2] = Default::default();
    for _ in 0..TROUBLE {
        for _ in 0..random.between(0, 3) {
            truth.happen(&mut random, &mut ends);
        }
        if is_seen_by_both && random.percent(20) {
            let copies: Vec<State> = ends.ends[THERE].states().map(|(state, _)| *state).collect();
            if !copies.is_empty() {
                let copy = random.one_of(&copies);
                let state = later(&mut random, &copy);
                ends.offer(THERE, state);
            }
        }
        if random.percent(1) {
            ends.ends[THERE].request_bulk(ends.now);
        }
        for end in [HERE, THERE] {
            for packet in ends.packets(end) {
                link.send(&mut random, ends.now, 1 - end, &packet);
            }
        }
        for (to, packet) in link.arrive(ends.now) {
            ends.deliver(to, &packet);
            // A packet that was cut or changed on its way changes nothing, or is right by chance.
            if random.percent(5) {
                let cut = random.between(0, packet.len() as u64 - 1) as usize;
                let taken = ends.ends[to].handle(ends.now, &ARRIVAL, &packet[..cut]);
                assert_eq!(taken, Err(Refusal::Truncated));
            }
        }
        // The owner of the first gateway heeds the events, perhaps a little late.
        if random.percent(80) {
            for event in ends.events(HERE) {
                truth.heed(&ends, event);
            }
        }
        ends.events(THERE);
        for end in [HERE, THERE] {
            ends.ends[end].states().for_each(|(state, _)| never_rolls_back(&known[end], state));
            known[end] =
                ends.ends[end].states().map(|(it, _)| (it.id(), it.parts().peers)).collect();
        }
        ends.wait(STEP);
    }
    settle(&mut ends, link);
    agree(&ends, &truth);
}

/// The link is well, and the second gateway asks for all states.
fn settle(ends: &mut Ends, mut link: Link) {
    for (to, packet) in link.arrive(Timestamp::NEVER) {
        ends.deliver(to, &packet);
    }
    ends.run(Duration::from_secs(15));
    ends.ends[THERE].request_bulk(ends.now);
    ends.run(Duration::from_secs(120));
    assert_eq!(ends.ends[THERE].bulk_in(), BulkIn::Level);
}

fn agree(ends: &Ends, truth: &Truth) {
    let tables = [HERE, THERE].map(|end| {
        let states = ends.ends[end].states();
        states.map(|(it, _)| (it.id(), it.parts().peers)).collect::<BTreeMap<_, _>>()
    });
    for (id, peers) in &tables[THERE] {
        assert_eq!(tables[HERE].get(id), Some(peers), "{id:?}, ended: {:?}", truth.ended.get(id));
    }
    assert_eq!(tables[THERE].len(), tables[HERE].len());
    assert!(tables[HERE].keys().eq(truth.live.keys()));
    for (state, is_owned) in ends.ends[THERE].states() {
        assert!(!is_owned && state.id().creator == creator_of(HERE));
    }
    for state in truth.live.values() {
        let held = tables[HERE][&state.id()];
        assert!(!merge::merge(&state.parts().peers, &held).unwrap().is_stale);
    }
}

#[test]
fn two_gateways_agree_after_loss_repetition_and_reordering() {
    let seeds = match std::env::var("STATEWAY_SEEDS") {
        Ok(text) => match text.split_once('-') {
            Some((from, to)) => from.parse().unwrap()..=to.parse().unwrap(),
            None => 1..=text.parse().unwrap(),
        },
        Err(_) => 1..=SEEDS,
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| simulate(seed));
        assert!(outcome.is_ok(), "seed {seed}: STATEWAY_SEEDS={seed}-{seed} runs it alone");
    }
}
