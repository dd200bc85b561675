//! The state that changes while packets are judged.
//!
//! | part | division among workers |
//! | --- | --- |
//! | counters | each worker counts; readers add up |
//! | rates | one number for all: packets over the limit read it, packets within it write it |
//! | quotas | one for all, of which each worker takes up to 64 KiB at a time |
//! | connections (`ct count`) | one number for all; connections hold their places in it |
//! | sets that rules fill, with the rates and quotas of their elements | one for all, behind locks |
//! | `numgen` | each worker counts, or draws, by itself |

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flow::{Tallied, Tally, Timestamp};
use serde_json::Value;

use super::dynamic::{Joining, Meeting};
use super::element_record::{ElementCursor, ElementRecord};
use super::generate::Numbers;
use super::interface::Interface;
use super::limit::{QuotaLease, QuotaProgress, SharedQuota, SharedRate};
use super::rewriting::Rewriting;
use super::shared_set::{Changed, NamedElement, SharedSet};
use super::view::Details;
use super::wall::WallClock;
use crate::compile::{PackedKey, Program};
use crate::contents::{ElementChange, ElementProblem};
use crate::elements::Element;
use crate::import::sets;
use crate::kind::Interval;
use crate::listing::{LiveElement, element_text};
use crate::model::{Bound, CounterId, Set, SetId, Update};
use crate::problem::Path;

/// How far the rates and quotas of rules are used, for another process with the same rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The cost that each rate could let pass, nanoseconds.
    pub rates: Vec<u64>,
    /// The quotas.
    pub quotas: Vec<QuotaProgress>,
}

/// The state that all workers share. Clones share it, too.
#[derive(Clone, Debug)]
pub struct SharedState {
    rates: Vec<Arc<SharedRate>>,
    quotas: Vec<Arc<SharedQuota>>,
    /// The bounds for connections, with the number of connections that each has counted.
    bounds: Arc<Vec<(Bound, Tally)>>,
    /// The sets that rules fill.
    pub(super) sets: Vec<Arc<SharedSet>>,
    /// The number of states that were made. Each draws other random numbers.
    made: Arc<AtomicU64>,
    wall: Arc<WallClock>,
}

impl SharedState {
    /// Sets the clock on the wall, for all workers: the nanoseconds from the time of packets to the
    /// time since 1970-01-01 00:00:00 UTC, and the seconds by which the local time is ahead of UTC.
    /// Without it, rules that ask for the time do not match.
    pub fn set_wall_clock(&self, ahead_ns: i64, zone_s: i32) {
        self.wall.set(ahead_ns, zone_s);
    }

    /// The shared state of a ruleset that is loaded `now`.
    pub fn new(program: &Program, now: Timestamp) -> Self {
        let ruleset = program.ruleset();
        let set =
            |id: &SetId| Arc::new(SharedSet::new(&ruleset.sets[id.index()], program.seed, now));
        Self {
            rates: ruleset.limits.iter().map(|it| Arc::new(SharedRate::new(&it.rate))).collect(),
            quotas: ruleset.quotas.iter().map(|it| Arc::new(SharedQuota::new(it))).collect(),
            bounds: Arc::new(ruleset.bounds.iter().map(|it| (*it, Tally::default())).collect()),
            sets: program.dynamic.iter().map(set).collect(),
            made: Arc::default(),
            wall: Arc::default(),
        }
    }

    /// A state of the same ruleset whose sets hold the same elements now, and share nothing with
    /// these. Rates and quotas begin anew.
    pub fn apart(&self, program: &Program, now: Timestamp) -> Self {
        let new = Self { wall: self.wall.clone(), ..Self::new(program, now) };
        if new.sets.len() != self.sets.len() || new.bounds.len() != self.bounds.len() {
            return new;
        }
        let sets = self.sets.iter().map(|set| Arc::new(set.copied())).collect();
        Self { sets, bounds: Arc::new((*self.bounds).clone()), ..new }
    }

    /// True if a program can go on with this state of the one `before`, because it differs only in
    /// the elements of sets that packets do not change.
    pub fn goes_on_with(&self, before: &Program, program: &Program) -> bool {
        let (old, new) = (before.ruleset(), program.ruleset());
        old.limits == new.limits
            && old.quotas.len() == new.quotas.len()
            && old.bounds == new.bounds
            && old.rules.len() == new.rules.len()
            && old.chains == new.chains
            && before.dynamic == program.dynamic
            && old.counters.len() == new.counters.len()
    }

    /// How far rates and quotas are used. No worker may judge packets meanwhile.
    pub fn progress(&self, now: Timestamp) -> Progress {
        Progress {
            rates: self.rates.iter().map(|rate| rate.credit(now)).collect(),
            quotas: self.quotas.iter().map(|quota| quota.progress()).collect(),
        }
    }

    /// Goes on from there. No worker may judge packets meanwhile. False if there are other numbers of
    /// rates or quotas; then nothing changes.
    pub fn go_on_from(&self, progress: &Progress, now: Timestamp) -> bool {
        let is_same =
            (self.rates.len(), self.quotas.len()) == (progress.rates.len(), progress.quotas.len());
        if is_same {
            self.rates.iter().zip(&progress.rates).for_each(|(it, from)| it.set_credit(*from, now));
            self.quotas.iter().zip(&progress.quotas).for_each(|(it, from)| it.go_on_from(from));
        }
        is_same
    }

    /// Begins each quota anew, behind the bytes that all workers have used of it.
    pub fn reset_quotas(&self, program: &Program, used: &[u64]) {
        for ((shared, quota), used) in self.quotas.iter().zip(&program.ruleset().quotas).zip(used) {
            shared.reset(quota.bytes, *used);
        }
    }

    /// The elements of the sets that rules fill, in no order.
    pub fn elements(&self, program: &Program, now: Timestamp) -> Vec<LiveElement> {
        let mut all = Vec::new();
        for (id, set) in program.dynamic.iter().zip(&self.sets) {
            let kinds = &program.ruleset().sets[id.index()].key;
            let usual = set.timeout();
            set.list(now, |key, life, element| {
                let mut halves = key.halves();
                let mut part = |words: usize| {
                    let halves = halves.by_ref().take(words);
                    halves.fold(0, |value: u128, half| value << 32 | u128::from(half))
                };
                let key = kinds.iter().map(|kind| part(kind.words())).collect();
                let ends = life.deadline != Timestamp::NEVER;
                let expires = ends.then(|| life.deadline.since(now));
                let timeout = life.timeout.filter(|_| ends && life.timeout != usual);
                all.push(LiveElement {
                    set: *id,
                    key,
                    timeout: timeout.map(Duration::from_nanos),
                    expires,
                    counted: element.counted,
                    is_bare: element.is_bare,
                    comment: element.comment.map(str::to_owned),
                });
            });
        }
        all
    }

    /// Changes the elements of a set that rules fill. Returns how many were added, put off or
    /// deleted; `None` for a set that rules do not fill.
    ///
    /// # Errors
    /// All elements that do not allow it; nothing changes.
    pub fn change_elements(
        &self,
        program: &Program,
        set: SetId,
        named: &NamedElements,
        now: Timestamp,
    ) -> Option<Result<usize, Vec<ElementProblem>>> {
        let at = program.dynamic.iter().position(|dynamic| *dynamic == set)?;
        let NamedElements { change, wanted, texts } = named;
        let problem =
            |(at, what): (usize, String)| ElementProblem { element: texts[at].clone(), what };
        let changed = self.sets[at].change(*change, wanted, now);
        Some(changed.map_err(|bad| bad.into_iter().map(problem).collect()))
    }

    /// Shows the records of some elements of sets that rules fill to `each`, those of one shard.
    /// Returns the position to continue from, `None` at the end.
    pub fn element_records(
        &self,
        program: &Program,
        ElementCursor { set: at, shard, .. }: ElementCursor,
        now: Timestamp,
        each: &mut dyn FnMut(ElementRecord),
    ) -> Option<ElementCursor> {
        let (id, shared) = program.dynamic.get(at).zip(self.sets.get(at))?;
        let set = &program.ruleset().sets[id.index()];
        let has_more = shared.records_in(set, shard, now, each);
        let (set, shard) = if has_more { (at, shard + 1) } else { (at + 1, 0) };
        (set < self.sets.len()).then_some(ElementCursor { set, shard, place: 0 })
    }

    /// The number of elements of a set that rules fill; `None` for a set that does not change.
    pub fn element_count(&self, program: &Program, set: SetId, now: Timestamp) -> Option<usize> {
        let at = program.dynamic.iter().position(|dynamic| *dynamic == set)?;
        Some(self.sets[at].len(now))
    }
}

/// The counters of a program, each with its place among those of the program before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterMoves(Vec<Option<u32>>);

impl CounterMoves {
    /// Finds the counters of `program` among those of the one `before`, from which it differs only
    /// in the elements of sets that packets do not change. An element keeps its counter.
    pub fn between(before: &Program, program: &Program) -> Self {
        let rules = program.ruleset().counters.len();
        let mut places: Vec<Option<u32>> = (0..rules as u32).map(Some).collect();
        places.resize(program.counters.len(), None);
        let sets = program.sets.iter().zip(&program.ruleset().sets);
        for ((lookup, set), (old, old_set)) in
            sets.zip(before.sets.iter().zip(&before.ruleset().sets))
        {
            let (Some(first), Some(old_first)) = (lookup.counters, old.counters) else { continue };
            let key = |element: Element<'_>| element.key().collect::<Vec<Interval>>();
            let known: HashMap<Vec<Interval>, u32> =
                old_set.elements.iter().map(key).zip(old_first..).collect();
            for (element, place) in set.elements.iter().zip(first as usize..) {
                places[place] = known.get(&key(element)).copied();
            }
        }
        Self(places)
    }

    /// The counts in their new places.
    pub fn apply(&self, counts: &[Counted]) -> Vec<Counted> {
        let count = |place: &Option<u32>| {
            place.and_then(|place| counts.get(place as usize).copied()).unwrap_or_default()
        };
        self.0.iter().map(count).collect()
    }
}

/// Elements of a set that rules fill, and the change that they are named for.
#[derive(Debug)]
pub struct NamedElements {
    change: ElementChange,
    wanted: Vec<NamedElement>,
    /// Their texts.
    texts: Vec<String>,
}

impl NamedElements {
    /// Reads elements in nft's JSON.
    ///
    /// # Errors
    /// All elements that can not be in the set.
    pub fn read(
        change: ElementChange,
        values: &[Value],
        set: &Set,
    ) -> Result<Self, Vec<ElementProblem>> {
        let (mut wanted, mut problems) = (Vec::new(), Vec::new());
        let texts: Vec<String> = values.iter().map(element_text).collect();
        for (value, element) in values.iter().zip(&texts) {
            match named_element(value, set) {
                Ok(element) => wanted.push(element),
                Err(what) => problems.push(ElementProblem { element: element.clone(), what }),
            }
        }
        if problems.is_empty() { Ok(Self { change, wanted, texts }) } else { Err(problems) }
    }
}

/// An element of a set that rules fill, or the reason why the set can not hold it.
fn named_element(value: &Value, set: &Set) -> Result<NamedElement, String> {
    let inside = value.get("elem").unwrap_or(&Value::Null);
    let key = inside.get("val").unwrap_or(value);
    let path = Path::root("elem");
    let intervals = sets::intervals(key, &set.key, &path).map_err(|it| it.what)?;
    let has_own = sets::check_own_parts(inside, set, &path).map_err(|it| it.what)?;
    let is_bare = !set.parts.is_empty() && !set.declares_parts && !has_own;
    let mut key = PackedKey::EMPTY;
    for (part, kind) in intervals.iter().zip(&set.key) {
        if !part.is_one() {
            return Err("is a range, and packets change the set: it holds single values".to_owned());
        }
        key.push(part.low, kind.words());
    }
    let seconds = |name| inside.get(name).and_then(Value::as_u64).map(Duration::from_secs);
    let timeout = seconds("timeout").map(|timeout| timeout.as_nanos() as u64);
    let comment = inside.get("comment").and_then(Value::as_str).map(str::to_owned);
    Ok(NamedElement { key, timeout, left: seconds("expires"), is_bare, comment })
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes from the network header on.
    pub bytes: u64,
}

/// One worker's state of a ruleset.
#[derive(Debug)]
pub struct RuleState {
    counters: Vec<Counted>,
    rates: Vec<Arc<SharedRate>>,
    quotas: Vec<QuotaLease>,
    bounds: Arc<Vec<(Bound, Tally)>>,
    /// The counts that the connection of the packet has joined since a hook was asked last.
    joined: Vec<Tallied>,
    pub(super) sets: Vec<Arc<SharedSet>>,
    pub(super) numbers: Numbers,
    /// Additions that were refused because a set was full.
    refused: u64,
    pub(super) rewriting: Rewriting,
    pub(super) wall: Arc<WallClock>,
    pub(super) interfaces: Arc<[Interface]>,
    /// The CPU on which the worker runs.
    pub(super) cpu: Option<u32>,
    loaded_at: Timestamp,
}

impl RuleState {
    /// The state of a worker. Counters begin at zero: [`RuleState::counted_before`] gives the
    /// values that they had when the ruleset was printed.
    pub fn new(program: &Program, shared: &SharedState, now: Timestamp) -> Self {
        let stream = shared.made.fetch_add(1, Ordering::Relaxed);
        Self {
            numbers: Numbers::new(program.ruleset().generators.len(), program.seed, stream),
            rewriting: Rewriting::default(),
            wall: shared.wall.clone(),
            counters: vec![Counted::default(); program.counters.len()],
            rates: shared.rates.clone(),
            quotas: shared.quotas.iter().cloned().map(QuotaLease::new).collect(),
            bounds: shared.bounds.clone(),
            joined: Vec::new(),
            sets: shared.sets.clone(),
            refused: 0,
            interfaces: Arc::default(),
            cpu: None,
            loaded_at: now,
        }
    }

    /// Sets the CPU that judges packets from now on. Without one, rules that ask for it match no
    /// packet.
    #[inline]
    pub const fn set_cpu(&mut self, cpu: u32) {
        self.cpu = Some(cpu);
    }

    /// Goes on with a program that differs only in the elements of sets that packets do not change.
    pub fn go_on_with(&mut self, moved: &CounterMoves) {
        self.counters = moved.apply(&self.counters);
    }

    /// The value that a counter had when the ruleset was printed.
    pub fn counted_before(program: &Program, counter: CounterId) -> Counted {
        let counter = &program.counters[counter.index()];
        Counted { packets: counter.packets, bytes: counter.bytes }
    }

    /// The packets and bytes that this worker has counted.
    pub fn counted(&self, counter: CounterId) -> Counted {
        self.counters[counter.index()]
    }

    /// All counters of this worker, by [`CounterId::index`]. Counters of elements of sets that do
    /// not change follow those of the ruleset.
    pub fn all_counted(&self) -> &[Counted] {
        &self.counters
    }

    /// Bytes that this worker has used of each quota.
    pub fn quotas_used(&self) -> Vec<u64> {
        self.quotas.iter().map(QuotaLease::used).collect()
    }

    /// Additions that this worker's packets asked for and that were refused because a set was full.
    pub fn refused_elements(&self) -> u64 {
        self.refused
    }

    /// The fields of headers that the rules have set in the last hook, each once. They are those of
    /// a packet only if its outcome [says so](crate::Outcome::is_rewritten).
    pub fn writes(&self) -> &[wire::FieldWrite] {
        self.rewriting.writes()
    }

    #[inline]
    pub(super) fn count(&mut self, counter: CounterId, bytes: u64) {
        let counted = &mut self.counters[counter.index()];
        counted.packets += 1;
        counted.bytes += bytes;
    }

    #[inline]
    pub(super) fn within_rate(
        &mut self,
        limit: usize,
        bytes: u64,
        now: Timestamp,
        uses: bool,
    ) -> bool {
        let rate = &self.rates[limit];
        if uses { rate.matches(bytes, now) } else { rate.would_match(bytes, now) }
    }

    #[inline]
    pub(super) fn within_quota(&mut self, quota: usize, bytes: u64, uses: bool) -> bool {
        let quota = &mut self.quotas[quota];
        if uses { quota.matches(bytes) } else { quota.would_match() }
    }

    /// Nanoseconds since loading.
    pub(super) fn age(&self, now: Timestamp) -> u64 {
        now.as_nanos().saturating_sub(self.loaded_at.as_nanos())
    }

    /// Changes a set for a packet; false if the rule ends.
    pub(super) fn update(
        &mut self,
        at: usize,
        update: &Update,
        key: &PackedKey,
        facts: PacketFacts<'_>,
    ) -> bool {
        let Self { sets, joined, .. } = self;
        let changed = sets[at].update(update, key, &mut facts.meeting(joined));
        self.refused += u64::from(changed == Changed::Full);
        changed == Changed::GoesOn
    }

    /// True if the rule of a statement that changes a set would go on; changes nothing.
    pub(super) fn would_update(
        &mut self,
        at: usize,
        update: &Update,
        key: &PackedKey,
        facts: PacketFacts<'_>,
    ) -> bool {
        let Self { sets, joined, .. } = self;
        sets[at].would_update(update, key, &facts.meeting(joined))
    }

    /// Looks for an element; true if the rule goes on with it.
    pub(super) fn meet(
        &mut self,
        at: usize,
        key: &PackedKey,
        facts: PacketFacts<'_>,
        uses: bool,
    ) -> bool {
        let Self { sets, joined, .. } = self;
        sets[at].meet(key, &mut facts.meeting(joined), uses)
    }

    /// Counts the connection of a packet; true if the rule goes on.
    pub(super) fn within_bound(
        &mut self,
        bound: usize,
        facts: PacketFacts<'_>,
        uses: bool,
    ) -> bool {
        let Self { bounds, joined, .. } = self;
        let (bound, tally) = &bounds[bound];
        let mut connection = facts.meeting(joined).connection;
        match uses {
            true => connection.join(tally, *bound),
            false => connection.would_join(Some(tally), *bound),
        }
    }

    /// Takes the counts of connections that the packet's connection has joined since a hook was
    /// asked last. They belong to the connection as long as it lives.
    pub fn take_joined(&mut self) -> impl Iterator<Item = Tallied> {
        self.joined.drain(..)
    }

    /// True if there are [any](Self::take_joined).
    #[inline]
    pub fn has_joined(&self) -> bool {
        !self.joined.is_empty()
    }

    /// Drops those that nobody took.
    #[inline]
    pub(super) fn forget_joined(&mut self) {
        self.joined.clear();
    }
}

/// A packet that statements with a state meet.
#[derive(Clone, Copy)]
pub(super) struct PacketFacts<'m> {
    pub bytes: u64,
    pub now: Timestamp,
    pub details: Option<&'m dyn Details>,
}

impl<'m> PacketFacts<'m> {
    fn meeting(self, joined: &'m mut Vec<Tallied>) -> Meeting<'m> {
        let Self { bytes, now, details } = self;
        Meeting { bytes, now, connection: Joining { details, joined } }
    }
}
