//! A gateway with connections of its own and copies of the peer's, as an owner of a session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use flow::Timestamp;

use super::random::Random;
use crate::{
    Applied, Batch, BulkId, Config, Event, Fault, Faults, HashSecret, Identity, Inflow, Likeness,
    Lineage, NodeId, NodeName, NotTaken, Outflow, PreSharedKey, Record, RecordKind, SecretRole,
    Seed, Session, Settings, Status, Verdict,
};

/// Keys of connections. They are few, so that each is used again and again.
const KEYS: u64 = 60;
const COMMON_BUCKETS: u32 = 256;

/// Kinds of greetings, and where their fields are.
const HELLO: u8 = 1;
const ANSWER: u8 = 2;
const CONFIRM: u8 = 3;
const INDEX: Range<usize> = 12..16;
const ECHO: Range<usize> = 16..20;

/// A record in a worker's ring.
#[derive(Clone, Debug)]
struct Queued {
    identity: Identity,
    kind: RecordKind,
    body: Vec<u8>,
}

impl Queued {
    fn record(&self) -> Record<'_> {
        Record { identity: self.identity, kind: self.kind, body: &self.body }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub identity: Identity,
    pub body: Vec<u8>,
}

pub struct Gateway {
    pub session: Session,
    /// The end of the link that it is at.
    pub side: usize,
    /// When its process ends, if that is known.
    pub ends_at: u64,
    /// Added to the virtual time: clocks differ by years.
    clock: u64,
    /// Connections of this gateway.
    pub own: BTreeMap<u64, Connection>,
    /// The peer's connections, as it has got them.
    pub copies: BTreeMap<u64, (Lineage, Vec<u8>)>,
    /// The newest state of each key that the copies ever had of the peer's process.
    newest: BTreeMap<u64, (u64, u32)>,
    incarnation: u64,
    /// The worker that each key belongs to.
    worker: BTreeMap<u64, usize>,
    /// The records of the workers.
    rings: [VecDeque<Queued>; 2],
    /// Changes for which there was no room: the newest of each key.
    waiting: BTreeMap<u64, Queued>,
    /// The states that the session has taken in last, with the time.
    taken: BTreeMap<u64, (Identity, Timestamp)>,
    /// Ends that the session has taken in, of the last connection of each key.
    ended: BTreeMap<u64, (Identity, Timestamp)>,
    /// The last bulk transfer that this gateway has got whole, if it has missed nothing since.
    level: Option<BulkId>,
    /// Keys that a bulk transfer has still to read.
    scan: Option<VecDeque<u64>>,
    is_asked: bool,
    applied: Applied,
    /// News of the peer's connections that are still to be applied.
    news: VecDeque<Event>,
    /// True if news are applied only now and then, and acknowledged then.
    is_slow: bool,
    faults: Faults,
    /// How many keys had been agreed when an answer of this index was given.
    answers: BTreeMap<[u8; 4], u64>,
    queue_bytes: usize,
    likeness: Likeness,
    /// How often there was no room for a change.
    pub found_full: u64,
}

/// The part that does not change when a gateway restarts.
#[derive(Clone)]
pub struct Plan {
    pub node: u16,
    pub settings: Settings,
    pub fault: Option<Fault>,
    pub likeness: Likeness,
    pub secret_role: SecretRole,
    pub is_slow: bool,
}

pub fn likeness() -> Likeness {
    Likeness {
        hash_kind: "sip".into(),
        hash_secret: HashSecret::new([1; 16]),
        buckets: COMMON_BUCKETS,
        translating_links: ["wan0".to_owned()].into(),
        fragment_mode: "reassemble".into(),
        tunnel_mode: "inside".into(),
        zones: Vec::new(),
        rules: Vec::new(),
    }
}

impl Gateway {
    /// Starts the process for the `term`th time.
    pub fn start(now: u64, random: &mut Random, plan: &Plan, term: u64) -> Self {
        let faults = plan.fault.map_or(Faults::default(), Faults::planted);
        let config = Config {
            node: NodeId(plan.node.try_into().unwrap()),
            name: NodeName::new(&format!("gateway{}", plan.node)).unwrap(),
            peer: None,
            follows: true,
            secret_role: plan.secret_role,
            likeness: plan.likeness.clone(),
            settings: plan.settings,
            faults,
        };
        let clock = random.between(0, 40 * 365 * 24 * 3600) * 1_000_000;
        let secret = PreSharedKey::new(b"a secret of both").unwrap();
        let at = Timestamp::from_nanos((clock + now) * 1000);
        let mut session = Session::new(at, config, secret, Seed::new(random.seed()));
        session.set_acknowledges_applied(at, plan.is_slow);
        Self {
            session,
            side: usize::from(plan.node - 1),
            ends_at: u64::MAX,
            clock,
            own: BTreeMap::new(),
            copies: BTreeMap::new(),
            newest: BTreeMap::new(),
            incarnation: term << 32,
            worker: BTreeMap::new(),
            rings: Default::default(),
            waiting: BTreeMap::new(),
            taken: BTreeMap::new(),
            ended: BTreeMap::new(),
            level: None,
            scan: None,
            is_asked: false,
            applied: Applied::new(faults),
            news: VecDeque::new(),
            is_slow: plan.is_slow,
            faults,
            answers: BTreeMap::new(),
            queue_bytes: plan.settings.queue_bytes,
            likeness: plan.likeness.clone(),
            found_full: 0,
        }
    }

    pub fn time(&self, now: u64) -> Timestamp {
        Timestamp::from_nanos((self.clock + now) * 1000)
    }

    /// When the session has to be looked at, in virtual time.
    pub fn next_timeout(&self) -> u64 {
        match self.session.next_timeout() {
            Timestamp::NEVER => u64::MAX,
            at => at.as_nanos().div_ceil(1000).saturating_sub(self.clock),
        }
    }

    /// Something happens to a connection.
    pub fn act(&mut self, random: &mut Random) {
        let key = random.between(0, KEYS - 1);
        match self.own.get(&key) {
            None => self.insert(random, key),
            Some(_) if random.percent(30) => {
                self.end(random, key);
                // The same ports are often used again at once.
                if random.percent(50) {
                    self.insert(random, key);
                }
            }
            Some(_) => self.change(random, key),
        }
    }

    fn insert(&mut self, random: &mut Random, key: u64) {
        self.incarnation += 1;
        let identity = Identity { key, incarnation: self.incarnation, version: 0 };
        self.set(random, identity, RecordKind::Insert);
    }

    fn change(&mut self, random: &mut Random, key: u64) {
        let before = self.own[&key].identity;
        let identity = Identity { version: before.version + 1, ..before };
        self.set(random, identity, RecordKind::Change);
    }

    fn set(&mut self, random: &mut Random, identity: Identity, kind: RecordKind) {
        let body = vec![random.next() as u8; random.between(1, 90) as usize];
        self.own.insert(identity.key, Connection { identity, body: body.clone() });
        self.queue(random, Queued { identity, kind, body });
    }

    fn end(&mut self, random: &mut Random, key: u64) {
        let Some(Connection { identity, .. }) = self.own.remove(&key) else { return };
        let identity = Identity { version: identity.version + 1, ..identity };
        self.queue(random, Queued { identity, kind: RecordKind::End, body: Vec::new() });
    }

    fn queue(&mut self, random: &mut Random, queued: Queued) {
        let worker = self.worker.entry(queued.identity.key).or_default();
        // Its bucket moves.
        if random.percent(20) {
            *worker = 1 - *worker;
        }
        self.rings[*worker].push_back(queued);
    }

    /// Reads the rings, which may be in another order than that in which they were written.
    pub fn drain(&mut self, now: u64, random: &mut Random) -> Result<(), String> {
        let now = self.time(now);
        self.apply_news(now)?;
        if self.faults.is(Fault::EarlyExpiry) && random.percent(1) {
            self.copies.pop_first();
        }
        let first = usize::from(random.percent(50));
        // A change that has waited is a flag of its connection, so the state of now is read. A
        // connection that has ended since has no flag.
        let refreshed = |queued: Queued| match (queued.kind, self.own.get(&queued.identity.key)) {
            (RecordKind::End, _) => Some(queued),
            (kind, Some(Connection { identity, body })) => {
                Some(Queued { identity: *identity, kind, body: body.clone() })
            }
            (_, None) => None,
        };
        let waiting = std::mem::take(&mut self.waiting).into_values();
        let mut queued: VecDeque<Queued> = waiting.filter_map(refreshed).collect();
        for ring in [first, 1 - first] {
            queued.extend(self.rings[ring].drain(..));
        }
        let mut is_full = false;
        for queued in queued {
            // A change that has to wait is not overtaken by a later one of its connection.
            if !is_full {
                let offered = self.session.offer(now, &queued.record());
                is_full = offered == Err(NotTaken::Full);
                if offered == Ok(()) {
                    let is_end = queued.kind == RecordKind::End;
                    let taken = if is_end { &mut self.ended } else { &mut self.taken };
                    taken.insert(queued.identity.key, (queued.identity, now));
                }
            }
            if is_full {
                self.found_full += 1;
                // An end has no connection that could keep a flag.
                if queued.kind == RecordKind::End && random.percent(30) {
                    let is_flagged = |waits: &Queued| waits.identity < queued.identity;
                    if self.waiting.get(&queued.identity.key).is_some_and(is_flagged) {
                        self.waiting.remove(&queued.identity.key);
                    }
                    self.session.lost_change();
                    continue;
                }
                let waits = self.waiting.entry(queued.identity.key).or_insert(queued.clone());
                if queued.identity > waits.identity {
                    *waits = queued;
                }
            }
        }
        Ok(())
    }

    /// A worker's ring was too short for its changes.
    pub fn lose_ring(&mut self, random: &mut Random) {
        self.rings[usize::from(random.percent(50))].clear();
        self.session.lost_change();
    }

    /// Goes on with a bulk transfer.
    fn scan(&mut self, now: Timestamp) -> Result<(), String> {
        if self.is_asked {
            for ring in &mut self.rings {
                ring.clear();
            }
            self.waiting.clear();
            match self.session.begin_bulk(now, self.own.len() as u64) {
                Ok(()) => self.scan = Some(self.own.keys().copied().collect()),
                Err(NotTaken::NotFollowed) => {}
                Err(NotTaken::Full) => return Ok(()),
                Err(NotTaken::TooLong) => return Err("a bulk can not be too long".into()),
            }
            self.is_asked = false;
        }
        let Some(scan) = &mut self.scan else { return Ok(()) };
        while let Some(key) = scan.front().copied() {
            let offered = self.own.get(&key).map(|Connection { identity, body }| {
                let (identity, kind) = (*identity, RecordKind::Insert);
                let offered = self.session.offer_bulk(now, &Record { identity, kind, body });
                if offered == Ok(()) {
                    self.taken.insert(key, (identity, now));
                }
                offered
            });
            match offered {
                Some(Err(NotTaken::Full)) => return Ok(()),
                Some(Err(NotTaken::NotFollowed)) => {
                    self.scan = None;
                    return Ok(());
                }
                _ => scan.pop_front(),
            };
        }
        self.scan = None;
        match self.session.end_bulk(now) {
            // The peers came apart meanwhile.
            Ok(()) | Err(NotTaken::NotFollowed) => Ok(()),
            Err(error) => Err(format!("a bulk does not end: {error:?}")),
        }
    }

    /// True if its number of buckets is that of all gateways.
    pub fn has_common_buckets(&self) -> bool {
        self.likeness.buckets == COMMON_BUCKETS
    }

    /// Its number of buckets changes; true for that of all gateways.
    pub fn set_buckets(&mut self, is_common: bool) {
        self.likeness.buckets = if is_common { COMMON_BUCKETS } else { 2 * COMMON_BUCKETS };
        self.session.set_likeness(self.likeness.clone());
    }

    /// A datagram arrives. `accepted` holds those that processes of this node have accepted.
    /// Returns whether this one is accepted.
    pub fn handle(
        &mut self,
        now: u64,
        datagram: &[u8],
        is_honest: bool,
        accepted: &mut BTreeSet<Vec<u8>>,
    ) -> Result<bool, String> {
        let now = self.time(now);
        let before = self.session.status(now);
        match self.session.handle(now, datagram) {
            Ok(()) => self.check_accepted(&before, datagram, accepted).map(|()| true),
            Err(_) if is_honest => Ok(false),
            Err(_) => {
                let mut after = self.session.status(now);
                after.refusals = before.refusals.clone();
                match before == after {
                    true => Ok(false),
                    false => Err(format!("a bad frame has changed {before:?} to {after:?}")),
                }
            }
        }
    }

    fn check_accepted(
        &self,
        before: &Status,
        datagram: &[u8],
        accepted: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), String> {
        let kind = datagram[1];
        // Any number of nodes may say hello, which leads to an answer and nothing else.
        if kind != HELLO && !accepted.insert(datagram.to_vec()) {
            return Err("a datagram was accepted twice".into());
        }
        let answered = self.answers.get(&datagram[ECHO]);
        match kind == CONFIRM && answered != Some(&before.counters.keys_agreed) {
            true => Err("a confirm from before the keys in force was accepted".into()),
            false => Ok(()),
        }
    }

    /// Does all that can be done now; `send` gets the datagrams.
    pub fn turn(&mut self, now: u64, mut send: impl FnMut(&[u8])) -> Result<(), String> {
        let at = self.time(now);
        while let Some(event) = self.session.poll_event(at) {
            self.follow(event);
        }
        if !self.is_slow {
            self.apply_news(at)?;
        }
        self.scan(at)?;
        let mut datagram = Vec::new();
        while self.session.poll_transmit(at, &mut datagram) {
            if datagram[1] == ANSWER {
                let index = std::array::from_fn(|at| datagram[INDEX.start + at]);
                let agreed = self.session.status(at).counters.keys_agreed;
                self.answers.insert(index, agreed);
            }
            send(&datagram);
        }
        let status = self.session.status(at);
        match status.inflow {
            Inflow::Level(bulk) => self.level = Some(bulk),
            // Changes of a peer that has not heard of the question yet are not lost.
            Inflow::Asked(_) | Inflow::Filling(_) => {}
            Inflow::Off | Inflow::Apart => self.level = None,
        }
        // One record may lie beyond the limit, and messages that are no records.
        let is_bounded = status.queue_bytes <= self.queue_bytes + 16 * 1024;
        match is_bounded && status.held_bytes <= crate::inbox::HELD_BYTES_MAX + 1400 {
            true => Ok(()),
            false => Err(format!("memory is not bounded: {status:?}")),
        }
    }

    fn follow(&mut self, event: Event) {
        match event {
            Event::Compared | Event::Words(_) => {}
            Event::Secret(secret) => {
                self.likeness.hash_secret = secret;
                self.session.set_likeness(self.likeness.clone());
            }
            Event::BulkAsked => (self.is_asked, self.scan) = (true, None),
            Event::Joined { .. }
            | Event::BulkBegan(_)
            | Event::Records(_)
            | Event::BulkEnded(_) => self.news.push_back(event),
        }
    }

    fn apply_news(&mut self, now: Timestamp) -> Result<(), String> {
        while let Some(event) = self.news.pop_front() {
            match event {
                // Another process of the peer's node has a history of its own.
                Event::Joined { .. } => self.newest.clear(),
                Event::BulkBegan(bulk) => self.applied.begin_bulk(bulk),
                Event::Records(batch) => {
                    self.apply(&batch)?;
                    self.session.applied(now, batch.mark());
                }
                Event::BulkEnded(bulk) => {
                    let applied = &self.applied;
                    self.copies.retain(|_, (lineage, _)| !applied.is_left_over(lineage, bulk));
                    self.session.bulk_applied(now, bulk);
                }
                other => return Err(format!("no news of connections: {other:?}")),
            }
        }
        Ok(())
    }

    fn apply(&mut self, batch: &Batch) -> Result<(), String> {
        for record in batch.records() {
            let Identity { key, incarnation, version } = record.identity;
            let held = self.copies.get(&key).map(|(lineage, _)| *lineage);
            let state = match self.applied.decide(batch.time(), held, &record) {
                Verdict::Insert(state) | Verdict::Replace(state) | Verdict::Update(state) => state,
                Verdict::End => {
                    if held.is_some_and(|held| held.incarnation > incarnation) {
                        return Err(format!("an old end has hit {held:?}: {record:?}"));
                    }
                    self.copies.remove(&key);
                    self.newest.insert(key, (incarnation, u32::MAX));
                    continue;
                }
                Verdict::Keep(lineage) => {
                    self.copies.entry(key).and_modify(|(held, _)| *held = lineage);
                    continue;
                }
                Verdict::Ignore => continue,
            };
            let newest = self.newest.insert(key, (incarnation, version));
            // A bulk transfer may bring back what another one has left out.
            if newest.is_some_and(|newest| newest > (incarnation, version)) {
                return Err(format!("{newest:?} was rolled back by {record:?}"));
            }
            self.copies.insert(key, (state, record.body.to_vec()));
        }
        Ok(())
    }

    /// A connection that this gateway has and the peer lacks, or the other way round, although its
    /// last change was taken in longer ago than the announced staleness.
    pub fn lost_at(&self, now: u64, peer: &Self) -> Option<String> {
        let at = self.time(now);
        let status = self.session.status(at);
        let staleness = status.staleness?;
        // The peer follows another process of this node, or has not heard of an end yet.
        if peer.level.map(Outflow::Live) != Some(status.outflow) {
            return None;
        }
        let is_kept = |(key, (end, taken)): &(&u64, &(Identity, Timestamp))| {
            let held = peer.copies.get(key).map(|(lineage, _)| lineage.incarnation);
            at.since(*taken) > staleness && held == Some(end.incarnation)
        };
        if let Some(kept) = self.ended.iter().find(is_kept) {
            return Some(format!("kept although ended long ago: {kept:?}, {status:?}"));
        }
        let lost = self.own.iter().find(|(key, own)| {
            let taken = self.taken.get(key).filter(|(identity, _)| *identity == own.identity);
            let is_due = taken.is_some_and(|(_, taken)| at.since(*taken) > staleness);
            let has_it = |(lineage, body): &(Lineage, Vec<u8>)| {
                let identity = own.identity;
                (lineage.incarnation, lineage.version) == (identity.incarnation, identity.version)
                    && *body == own.body
            };
            is_due && !peer.copies.get(key).is_some_and(has_it)
        });
        lost.map(|lost| format!("lost although taken in long ago: {lost:?}, {status:?}"))
    }

    /// Why the copies are not what the peer has.
    pub fn differs_from(&self, now: u64, peer: &Self) -> Option<String> {
        let status = self.session.status(self.time(now));
        let is_level = matches!(status.inflow, Inflow::Level(_));
        let is_followed = status.staleness == Some(Duration::ZERO);
        if !is_level || !is_followed || status.unacknowledged_records > 0 || status.queue_bytes > 0
        {
            return Some(format!("not level: {status:?}"));
        }
        let copied = self.copies.iter().map(|(key, (lineage, body))| {
            let Lineage { incarnation, version, .. } = *lineage;
            let identity = Identity { key: *key, incarnation, version };
            (*key, Connection { identity, body: body.clone() })
        });
        let copied: BTreeMap<_, _> = copied.collect();
        let keys: BTreeSet<u64> = copied.keys().chain(peer.own.keys()).copied().collect();
        let pairs = keys.iter().map(|key| (copied.get(key), peer.own.get(key)));
        let different: Vec<_> = pairs.filter(|(copy, own)| copy != own).collect();
        (!different.is_empty()).then(|| format!("copies and originals: {different:?}"))
    }
}
