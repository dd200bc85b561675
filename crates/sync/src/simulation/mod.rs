//! Two gateways and the link between them in virtual time. A seed decides all that happens.

mod gateway;
mod link;
mod random;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gateway::{Gateway, Plan};
use link::{Flying, Link, Weather};
use random::Random;

use crate::{Fault, Refusal, SecretRole, Settings};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;
/// Datagrams that carry no frame are not longer.
const SHORT_BYTES: usize = 50;
/// Lines of a trace that are shown.
const TRACE_LINES: usize = 60;
/// Seeds that fail, of which a run tells at most.
const FAILING_SHOWN: usize = 20;
/// Seeds of a run without `STATEWAY_SEEDS`.
const SEEDS: u64 = 500;
/// Longest time in which two gateways must be equal after quiet.
const QUIET: u64 = 60 * SECOND;

struct World {
    now: u64,
    random: Random,
    link: Link,
    plans: [Plan; 2],
    terms: [u64; 2],
    /// The two gateways, and behind them processes that go on beside a newer one of their node.
    gateways: Vec<Gateway>,
    /// Datagrams that each side has accepted, all processes together.
    accepted: [BTreeSet<Vec<u8>>; 2],
    trace: Option<VecDeque<String>>,
}

impl World {
    fn new(seed: u64, fault: Option<Fault>, traces: bool) -> Self {
        let mut random = Random(seed);
        let most = if random.percent(50) { 64 } else { 6 };
        let settings = Settings {
            datagram_bytes: 1400,
            queue_bytes: most.min(random.between(4, 64) as usize) * 1024,
            bulk_records_per_s: random.between(200, 20_000) as u32,
            rekey_after_frames: random.between(20, 500),
        };
        let likeness = gateway::likeness();
        let secret_role = SecretRole::Gives;
        let is_slow = random.percent(50);
        let plan = Plan { node: 1, settings, fault, likeness, secret_role, is_slow };
        let mut plans = [plan.clone(), Plan { node: 2, secret_role: SecretRole::Takes, ..plan }];
        if random.percent(20) {
            plans[1].likeness.hash_secret = crate::HashSecret::new([2; 16]);
        }
        let gateways = [0, 1].map(|at| Gateway::start(0, &mut random, &plans[at], 1)).into();
        let link = Link::new(Weather::any(&mut random));
        let trace = traces.then(VecDeque::new);
        let accepted = Default::default();
        Self { now: 0, random, link, plans, terms: [1; 2], gateways, accepted, trace }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let Some(trace) = &mut self.trace else { return };
        if trace.len() == TRACE_LINES {
            trace.pop_front();
        }
        trace.push_back(format!("{:>9} us  {}\n", self.now, line()));
    }

    /// Time goes on until then.
    fn run_until(&mut self, end: u64) -> Result<(), String> {
        let mut idle = 0;
        loop {
            let next = self.gateways.iter().map(Gateway::next_timeout).min().unwrap_or(u64::MAX);
            let next = next.min(self.link.next());
            if next > end {
                self.now = end;
                return Ok(());
            }
            // A session whose time-out has come must have something to do.
            idle = if next > self.now { 0 } else { idle + 1 };
            if idle > 1_000 {
                return Err("a session keeps its owner busy".into());
            }
            self.now = self.now.max(next);
            while let Some(flying) = self.link.arrive(self.now) {
                for at in 0..self.gateways.len() {
                    if self.gateways[at].side == flying.to {
                        self.deliver(at, &flying)?;
                    }
                }
            }
            for at in 0..self.gateways.len() {
                if self.gateways[at].next_timeout() <= self.now {
                    self.turn(at)?;
                }
            }
        }
    }

    fn deliver(&mut self, at: usize, flying: &Flying) -> Result<(), String> {
        let gateway = &mut self.gateways[at];
        let accepted = &mut self.accepted[gateway.side];
        let result = gateway.handle(self.now, &flying.datagram, flying.is_honest, accepted);
        let (kind, length) = (flying.datagram.get(1), flying.datagram.len());
        match result {
            // A trace does without datagrams that carry no frame or were refused.
            Ok(is_accepted) if is_accepted && length > SHORT_BYTES => {
                self.note(|| format!("-> {at}: kind {kind:?}, {length} bytes"));
            }
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        self.turn(at)
    }

    fn turn(&mut self, at: usize) -> Result<(), String> {
        let (now, random, link) = (self.now, &mut self.random, &mut self.link);
        let to = 1 - self.gateways[at].side;
        self.gateways[at].turn(now, |datagram| link.send(now, random, to, datagram))
    }

    /// A process begins, and the one before ends, or goes on for a while.
    fn restart(&mut self, at: usize) {
        self.terms[at] += 1;
        let (plan, term) = (self.plans[at].clone(), self.terms[at]);
        let next = Gateway::start(self.now, &mut self.random, &plan, term);
        let mut before = std::mem::replace(&mut self.gateways[at], next);
        let goes_on = self.random.percent(40);
        self.note(|| format!("{at} restarts; the process before goes on: {goes_on}"));
        if goes_on {
            before.ends_at = self.now + self.random.between(10, 3_000) * MS;
            self.gateways.push(before);
        }
    }

    fn chaos(&mut self) -> Result<(), String> {
        let end = self.random.between(1_500, 5_000) * MS;
        let pause = self.random.between(2, 20) * MS;
        while self.now < end {
            let until = self.now + self.random.between(1, pause);
            self.run_until(until)?;
            self.gateways.retain(|gateway| gateway.ends_at > self.now);
            let at = self.random.between(0, self.gateways.len() as u64 - 1) as usize;
            match self.random.between(0, 249) {
                0 => self.cut(self.gateways[at].side),
                1 => self.restart(self.gateways[at].side),
                2 => self.link.weather = Weather::any(&mut self.random),
                3 => self.gateways[at].session.ask_again(),
                4 => {
                    self.gateways[at].session.set_follows(false);
                    self.turn(at)?;
                    self.gateways[at].session.set_follows(true);
                }
                5 => {
                    let is_common = self.random.percent(60);
                    self.note(|| format!("{at} has the common number of buckets: {is_common}"));
                    // Two changes at once, of which the peer sees but the last.
                    self.gateways[at].set_buckets(!is_common);
                    self.gateways[at].set_buckets(is_common);
                    self.turn(at)?;
                }
                6 => {
                    self.gateways[at].lose_ring(&mut self.random);
                    self.turn(at)?;
                }
                7..75 => {
                    self.gateways[at].drain(self.now, &mut self.random)?;
                    self.turn(at)?;
                }
                _ => (0..4).for_each(|_| self.gateways[at].act(&mut self.random)),
            }
            let (one, other) = (&self.gateways[0], &self.gateways[1]);
            let lost = one.lost_at(self.now, other).or_else(|| other.lost_at(self.now, one));
            lost.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// The link is cut, often in one direction, and often for longer than a peer counts as there.
    fn cut(&mut self, at: usize) {
        let until = self.now + self.random.between(10, 2_500) * MS;
        self.link.cut_until[at] = until;
        if self.random.percent(60) {
            self.link.cut_until[1 - at] = until;
        }
        self.note(|| format!("cut until {until}"));
    }

    /// The link gets well, and people repair what they have broken. All else heals by itself, also
    /// while an attacker goes on.
    fn quiet(&mut self) -> Result<(), String> {
        let attack_percent = if self.random.percent(50) { 5 } else { 0 };
        self.link.weather = Weather { attack_percent, ..Weather::FINE };
        self.link.cut_until = [0; 2];
        self.note(|| "quiet".into());
        self.gateways.truncate(2);
        let is_other = |gateway: &&mut Gateway| !gateway.has_common_buckets();
        let others = self.gateways.iter_mut().filter(is_other);
        others.for_each(|gateway| gateway.set_buckets(true));
        let end = self.now + QUIET;
        loop {
            for at in [0, 1] {
                self.gateways[at].drain(self.now, &mut self.random)?;
                self.turn(at)?;
            }
            self.run_until(self.now + 20 * MS)?;
            let (one, other) = (&self.gateways[0], &self.gateways[1]);
            let difference =
                one.differs_from(self.now, other).or_else(|| other.differs_from(self.now, one));
            match difference {
                None => return Ok(()),
                Some(difference) if self.now >= end => {
                    return Err(format!("not equal after quiet: {difference}"));
                }
                Some(_) => {}
            }
        }
    }

    fn run(&mut self) -> Result<(), String> {
        self.chaos()?;
        self.quiet()
    }
}

fn run(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    World::new(seed, fault, false).run()
}

/// Runs a seed that has failed once more, for its trace.
fn explain(seed: u64, fault: Option<Fault>) -> String {
    let mut world = World::new(seed, fault, true);
    let result = world.run();
    let trace: String = world.trace.into_iter().flatten().collect();
    format!("seed {seed}: {result:?}\n{trace}")
}

/// `STATEWAY_SEEDS` is the number of seeds, or a range like `17-17`.
fn seeds() -> std::ops::RangeInclusive<u64> {
    let Ok(given) = std::env::var("STATEWAY_SEEDS") else { return 1..=SEEDS };
    match given.split_once('-') {
        Some((first, last)) => first.parse().unwrap()..=last.parse().unwrap(),
        None => 1..=given.parse().unwrap(),
    }
}

#[test]
fn gateways_are_equal_after_quiet_whatever_happened() {
    let failing = seeds().filter_map(|seed| Some((seed, run(seed, None).err()?)));
    let failing: Vec<_> = failing.take(FAILING_SHOWN).collect();
    let Some((first, _)) = failing.first() else { return };
    let short = |(seed, error): &(u64, String)| format!("{seed}: {error:.60}\n");
    let all: String = failing.iter().map(short).collect();
    panic!("{}\nFailing seeds:\n{all}", explain(*first, None));
}

/// The simulation shows something only if all this happens in it.
#[test]
fn everything_happens_in_the_simulation() {
    let mut refusals = BTreeMap::new();
    let mut counts = [0; 10];
    for seed in 1..=SEEDS / 2 {
        let mut world = World::new(seed, None, false);
        world.run().unwrap();
        for gateway in &world.gateways {
            let status = gateway.session.status(gateway.time(world.now));
            for (refusal, count) in status.refusals.iter() {
                *refusals.entry(refusal).or_insert(0) += count;
            }
            let it = status.counters;
            let seen = [
                it.resent_frames,
                it.repeated_frames,
                it.unwanted_records,
                it.out_of_place,
                it.forgotten_queues,
                it.forgotten_records,
                it.lost_changes,
                it.bulks_received.saturating_sub(1),
                it.keys_agreed.saturating_sub(1),
                gateway.found_full,
            ];
            counts.iter_mut().zip(seen).for_each(|(sum, count)| *sum += count);
        }
    }
    println!("{counts:?} {refusals:?}");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    // A link hardly ever makes these two of what it changes.
    let rare = [Refusal::OtherNode, Refusal::ImpossibleAck, Refusal::BeyondWindow];
    refusals.retain(|refusal, count| *count == 0 && !rare.contains(refusal));
    assert!(refusals.is_empty(), "{refusals:?}");
}

/// The first seed of 500 that shows a fault.
fn caught(fault: Fault) -> String {
    let failing = (1..=SEEDS).find_map(|seed| Some((seed, run(seed, Some(fault)).err()?)));
    let (seed, error) = failing.unwrap_or_else(|| panic!("no seed shows {fault:?}"));
    let error: String = error.chars().take(60).collect();
    println!("{fault:?}: seed {seed}: {error}");
    error
}

#[test]
fn a_lost_end_of_bulk_is_caught() {
    assert!(caught(Fault::LostBulkEnd).starts_with("not equal after quiet"));
}

#[test]
fn a_replayed_frame_is_caught() {
    assert_eq!(caught(Fault::ReplayedFrame), "a datagram was accepted twice");
}

#[test]
fn the_end_of_an_old_connection_that_hits_a_new_one_is_caught() {
    assert!(caught(Fault::OldEnd).starts_with("an old end has hit"));
}

#[test]
fn an_end_that_begins_anew_alone_is_caught() {
    assert!(caught(Fault::LonelyRestart).starts_with("not equal after quiet"));
}

#[test]
fn a_confirm_that_stays_valid_is_caught() {
    assert!(caught(Fault::OldConfirm).contains("accepted"));
}

#[test]
fn a_change_that_is_lost_for_good_is_caught() {
    assert!(caught(Fault::KeptHole).contains("not equal after quiet"));
}

#[test]
fn changes_that_are_dropped_while_a_bulk_is_asked_for_are_caught() {
    assert!(caught(Fault::DroppedChanges).contains("long ago"));
}

#[test]
fn an_acknowledgment_before_records_are_applied_is_caught() {
    assert!(caught(Fault::EarlyAck).contains("long ago"));
}

#[test]
fn a_copy_that_a_standby_expires_is_caught() {
    assert!(caught(Fault::EarlyExpiry).starts_with("lost although"));
}

#[test]
fn a_stale_update_is_caught() {
    assert!(caught(Fault::StaleUpdate).contains("rolled back"));
}
