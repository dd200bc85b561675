//! A node: its lanes, its sync thread, and its peer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use flow::FlowKey;
use netio::cpu;

use super::clock::NodeClock;
use super::ends::{Sender, Standby, sockets};
use super::hub::{Hub, Way};
use super::lane::{Done, Lane, Part, RivalFeed, TurnGuard, split, stage};
use super::load::Load;
use super::rivals::{Locked, ring};
use super::wrong;
use crate::Error;
use crate::measure::Turn;

/// How a node follows what its peer has to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Design {
    /// It does not even track.
    ForwardOnly,
    /// It has no peer.
    NoSync,
    /// The gateway's.
    Stateway,
    /// Each packet takes one lock.
    CentralLock,
    /// Each packet goes into one ring.
    Ring,
    /// Each packet takes one of several locks.
    LockedBuckets,
}

impl Design {
    /// Its key in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForwardOnly => "forward_only",
            Self::NoSync => "no_sync",
            Self::Stateway => "stateway",
            Self::CentralLock => "central_lock",
            Self::Ring => "ring",
            Self::LockedBuckets => "locked_buckets",
        }
    }
}

/// The connections of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Population {
    /// So many are established, and speak.
    Established(u32),
    /// So many are open at any time, and others take their places.
    Changing(u32),
}

/// A node with its peer, if it has one.
pub struct Node {
    pub design: Design,
    pub lanes: Vec<Lane>,
    clock: Arc<NodeClock>,
    hub: Hub,
    ends: Option<(Sender, Standby)>,
}

/// When a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After so much CPU time of a lane.
    Worked(Duration),
    /// When the standby has all connections; lanes work meanwhile.
    Level,
    /// The same; lanes do nothing but answer.
    LevelAtRest,
}

/// The work of a node in a turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Units of the load.
    pub units: u64,
    /// CPU time of the lanes, nanoseconds.
    pub lanes_ns: u64,
    /// CPU time of the sync thread.
    pub sync_ns: u64,
    /// CPU time of the standby.
    pub standby_ns: u64,
    /// Records that were taken in to be sent.
    pub sent: u64,
    /// Records that the standby took.
    pub received: u64,
    /// Time of the node.
    pub node: Duration,
    /// The share of a CPU that the lane had that fared worst.
    pub share: f64,
    lanes: usize,
}

impl Outcome {
    /// Units in a second in which each lane has a CPU, if the work of the sync thread is done by the
    /// lanes in turn.
    pub fn turn(&self) -> Turn {
        let used = (self.lanes_ns + self.sync_ns).max(1) as f64;
        Turn { rate: self.units as f64 * self.lanes as f64 * 1e9 / used, share: self.share }
    }
}

impl Node {
    /// A node with established connections, and a standby that knows none of them yet.
    pub fn new(design: Design, lanes: usize, population: Population) -> Result<Self, Error> {
        let clock = Arc::new(NodeClock::new());
        let way = match design {
            Design::CentralLock | Design::Ring | Design::LockedBuckets => Way::Rival,
            Design::ForwardOnly | Design::NoSync | Design::Stateway => Way::Lanes,
        };
        let hub = Hub::new(clock.clone(), way, lanes)
            .map_err(|source| Error::System { what: "no event for a worker", source })?;
        let flows = match population {
            Population::Established(flows) => flows,
            Population::Changing(live) => 2 * live,
        };
        let (parts, source) = parts(design, lanes, flows);
        let pools = split(0..flows, lanes);
        let lanes =
            parts.into_iter().zip(pools).zip(&hub.mailboxes).map(|((part, pool), mailbox)| {
                let mut lane = Lane::new(part, clock.clone(), mailbox.clone());
                match population {
                    Population::Established(_) if design == Design::ForwardOnly => {
                        lane.set_load(Load::even(pool));
                    }
                    Population::Established(_) => {
                        lane.open(&pool, 3);
                        lane.set_load(Load::even(pool));
                    }
                    Population::Changing(_) => {
                        let (load, before) = Load::churn(pool);
                        lane.open(&before, 1);
                        lane.set_load(load);
                    }
                }
                lane
            });
        let lanes = lanes.collect();
        let ends = match design {
            Design::ForwardOnly | Design::NoSync => None,
            _ => {
                let [a, b] = sockets()?;
                Some((Sender::new(&hub, &clock, a, source)?, Standby::new(&clock, b)?))
            }
        };
        Ok(Self { design, lanes, clock, hub, ends })
    }

    /// Lets the node work. `is_peer_dead`: nobody is at the other end.
    pub fn run(
        &mut self,
        until: Until,
        cpus: &[usize],
        is_peer_dead: bool,
    ) -> Result<Outcome, Error> {
        let Self { design, lanes, clock, hub, ends } = self;
        let name = design.name();
        let at = AtomicU8::new(match until {
            Until::LevelAtRest => stage::DRAIN,
            Until::Worked(_) | Until::Level => stage::WORK,
        });
        let time = match until {
            Until::Worked(time) => time,
            Until::Level | Until::LevelAtRest => Duration::MAX,
        };
        let level = !matches!(until, Until::Worked(_));
        let before = (clock.now(), ends.as_ref().map(|(a, b)| (a.records(), b.records())));
        let count = lanes.len();
        // They may be clear since the last turn.
        hub.mailboxes.iter().for_each(|it| it.is_clear.store(false, Ordering::Release));
        let (at, hub, clock) = (&at, &*hub, &**clock);
        let (sender, standby) = ends.as_mut().map(|(a, b)| (a, b)).unzip();
        let has_sender = sender.is_some();
        let mut result = std::thread::scope(|scope| {
            let standby = standby.filter(|_| !is_peer_dead);
            let standby = standby.map(|it| {
                scope.spawn(move || {
                    let _guard = TurnGuard(at);
                    it.run(clock, at, level)
                })
            });
            let sender = sender.map(|it| {
                scope.spawn(move || {
                    let _guard = TurnGuard(at);
                    it.run(hub, clock, at, is_peer_dead)
                })
            });
            let lanes: Vec<_> = lanes
                .iter_mut()
                .zip(cpus)
                .map(|(lane, &cpu)| {
                    scope.spawn(move || {
                        let _guard = TurnGuard(at);
                        cpu::name_current_thread(name);
                        lane.run(time, at, cpu, has_sender)
                    })
                })
                .collect();
            let mut result = Outcome { share: 1.0, lanes: count, ..Outcome::default() };
            let panicked = |_| wrong("a thread panicked");
            for lane in lanes {
                let done = lane.join().map_err(panicked)?;
                let Done { units, used, share } =
                    done.map_err(|source| Error::System { what: "can not pin a thread", source })?;
                result.units += units;
                result.lanes_ns += used;
                result.share = result.share.min(share);
            }
            if let Some(sender) = sender {
                result.sync_ns = sender.join().map_err(panicked)??;
            }
            if let Some(standby) = standby {
                result.standby_ns = standby.join().map_err(panicked)??;
            }
            Ok::<_, Error>(result)
        })?;
        result.node = clock.now().since(before.0);
        if let (Some((a, b)), Some((sent, received))) = (&self.ends, before.1) {
            (result.sent, result.received) = (a.records() - sent, b.records() - received);
        }
        self.check()?;
        Ok(result)
    }

    /// Lets time pass in which nothing happens.
    pub fn skip(&self, time: Duration) {
        self.clock.pass(time);
    }

    /// Brings the standby level while the lanes are at rest, and then spreads what is due.
    pub fn join(&mut self, cpus: &[usize], refresh: Duration) -> Result<(), Error> {
        if self.ends.is_none() {
            return Ok(());
        }
        self.run(Until::LevelAtRest, cpus, false)?;
        self.set_refresh(refresh);
        Ok(())
    }

    /// Another refresh, which has been in force for long.
    pub fn set_refresh(&mut self, refresh: Duration) {
        self.lanes.iter_mut().for_each(|lane| lane.spread_refresh(refresh));
    }

    /// Memory of the connections, bytes.
    pub fn memory_bytes(&self) -> usize {
        use crate::conntrack::designs::Lane as _;
        self.lanes.iter().map(|lane| lane.tables.memory_bytes()).sum()
    }

    /// The standby.
    pub fn standby(&self) -> Option<&Standby> {
        self.ends.as_ref().map(|(_, standby)| standby)
    }

    /// Frames that the node has sent, and those of them that it has sent again.
    pub fn frames(&self) -> [u64; 2] {
        self.ends.as_ref().map_or([0; 2], |(sender, _)| sender.frames())
    }

    /// The ends, its lanes and its time, for a run of another kind.
    pub fn parts(&mut self) -> (&mut [Lane], &NodeClock, &Hub, Option<&mut (Sender, Standby)>) {
        (&mut self.lanes, &self.clock, &self.hub, self.ends.as_mut())
    }

    fn check(&self) -> Result<(), Error> {
        use crate::conntrack::designs::Lane as _;
        let refused: u64 = self.lanes.iter().map(|lane| lane.tables.wrong()).sum();
        match refused {
            0 => Ok(()),
            _ => Err(wrong(format!("{}: {refused} packets were refused", self.design.name()))),
        }
    }

    /// Connections that are not the same at the standby, but for timers.
    pub fn differences(&self) -> Result<u64, Error> {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let Some(standby) = self.standby() else { return Ok(0) };
        let digest = |connection: conntrack::Connection| {
            let key = connection.key;
            let plain = conntrack::Connection { timeout_s: 0, ..connection };
            let mut hasher = DefaultHasher::new();
            format!("{plain:?}").hash(&mut hasher);
            (key, hasher.finish())
        };
        let mut here: BTreeMap<FlowKey, u64> = BTreeMap::new();
        for lane in &self.lanes {
            lane.tables.list(self.clock.now(), |connection| {
                let (key, digest) = digest(connection);
                here.insert(key, digest);
            });
        }
        let mut differences = 0;
        let mut each = |connection| {
            let (key, digest) = digest(connection);
            differences += u64::from(here.remove(&key) != Some(digest));
            std::ops::ControlFlow::Continue(())
        };
        standby.gateway().connections(&conntrack::Filter::default(), &mut each)?;
        Ok(differences + here.len() as u64)
    }
}

type Parts = (Vec<Part>, Option<Box<dyn super::rivals::ChangeSource>>);

fn parts(design: Design, lanes: usize, flows: u32) -> Parts {
    /// Parts of pfsync's states: two for each CPU by default.
    const PARTS_PER_LANE: usize = 2;
    let plain = |part: fn() -> Part| (0..lanes).map(|_| part()).collect();
    match design {
        Design::ForwardOnly => (plain(|| Part::Forward), None),
        Design::NoSync => (plain(|| Part::Track), None),
        Design::Stateway => (plain(|| Part::Replicate(None)), None),
        Design::CentralLock | Design::LockedBuckets => {
            let parts = if design == Design::CentralLock { 1 } else { PARTS_PER_LANE * lanes };
            let locked = Locked::new(parts);
            let lane = |_| Part::Rival(RivalFeed::new(locked.clone(), flows));
            ((0..lanes).map(lane).collect(), Some(Box::new(locked.clone())))
        }
        Design::Ring => {
            let (sink, source) = ring(flows);
            let lane = |_| Part::Rival(RivalFeed::new(sink.clone(), flows));
            ((0..lanes).map(lane).collect(), Some(Box::new(source)))
        }
    }
}
