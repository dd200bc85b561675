//! The workers of a replay, in lockstep: one packet is in flight at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;

use conntrack::EventKind;
use flow::{Counters, DropReason, Timestamp, Zone};
use netio::{Frame, FramePool, PortId, clock};
use ruleset::ValidRuleset;
use steer::{
    FragmentSteering, IndirectionTable, SteeringConfig, SteeringHasher, WorkerId, WorkerSet,
};
use wire::Summary;

use crate::Bucket;
use crate::control::blueprint::{Blueprint, Post};
use crate::control::config::{Config, StartError};
use crate::control::rule_loading::LoadRulesError;
use crate::control::worker_handle::{WorkerHandle, introduce};
use crate::egress::Mode;
use crate::path::TimeSource;
use crate::path::drop_cause::DropCause;
use crate::path::events::{EventStream, Subscription};
use crate::path::packet::Packet;
use crate::path::rules::ruleset::{Rules, Unloaded};
use crate::path::zones::Zones;
use crate::replay::capture_clock::CaptureClock;
use crate::replay::fates::{Classes, Fate};
use crate::replay::passed_frames::PassedFrames;
use crate::replay::read_ahead::ReadAhead;
use crate::replay::{ReplayReport, Seen};
use crate::worker::Worker;
use crate::worker::command::Command;

/// Ports by which frames leave. A frame that leaves by any of them has passed.
const OUTPUTS: usize = 2;
/// Most events that may wait.
const EVENTS: usize = 4096;
/// The timers of all connections are turned every time that this bit of the clock changes, every
/// 1.07 s.
const TIMERS_EVERY: u32 = 30;
/// Packets between one that is played and the one whose place in the index is asked for.
const BEFORE_INDEX: usize = 6;
/// Packets between one that is played and the one whose connection is asked for.
const BEFORE_ENTRY: usize = 3;

/// The packet that was played last; none with the number 0.
#[derive(Clone, Copy, Default)]
pub(super) struct Played {
    /// Its number, from 1.
    pub number: u64,
    /// The classes before it, if fates are to be told.
    pub classes: Option<Classes>,
    /// Its length, bytes, if the capture has only a part of it.
    pub cut: Option<u32>,
}

/// Workers that take turns on one thread.
pub(crate) struct Lockstep {
    pub(super) workers: Vec<Worker>,
    handles: Vec<WorkerHandle>,
    /// The port behind all others.
    last_port: PortId,
    passed: PassedFrames,
    pool: FramePool,
    events: EventStream,
    /// As [`ReplayReport::flows`].
    flows: BTreeMap<(u8, &'static str), u64>,
    pub(super) clock: CaptureClock,
    tick: u64,
    /// Rules that take effect with the first packet.
    unloaded: Option<Unloaded>,
    rules: Option<Arc<Rules>>,
}

impl Lockstep {
    pub(crate) fn new(
        config: &Config,
        count: u16,
        refuses_new: &[bool],
    ) -> Result<Self, StartError> {
        let refuses_new = [refuses_new, &[false]].concat();
        let table = IndirectionTable::spread(config.buckets, WorkerSet::first(count.into()))
            .map_err(|_| StartError::NoWorkers)?;
        let zones = Zones::new(&config.zones, refuses_new.len())?;
        // All fragments meet at one worker, and it has all the memory. When memory runs short, the
        // fragments that are given up must not depend on the number of workers.
        let steering =
            SteeringConfig { fragments: FragmentSteering::OneBucket, ..config.steering() };
        let hasher = SteeringHasher::new(steering);
        let blueprint = Blueprint::new(config, channel().0, TimeSource::Frame)?;
        let passed = PassedFrames::default();
        let (subscription, events) = Subscription::new(EVENTS);
        let (mut workers, mut handles) = (Vec::new(), Vec::<WorkerHandle>::new());
        for id in (0..count).map(WorkerId) {
            let (mut handle, inbox) = WorkerHandle::new(id, None).map_err(StartError::Thread)?;
            let post = Post {
                id,
                hasher: &hasher,
                routes: table.iter().map(|(_, owner)| owner).collect(),
                zones: &zones,
                refuses_new: refuses_new.clone(),
                outputs: OUTPUTS,
                workers: count.into(),
                resolver: None,
                host_questions: None,
            };
            let tools = (inbox, &handle.wakeup);
            workers.push(Worker::new(blueprint.equipment(config, post, tools)));
            for other in &mut handles {
                introduce(other, &mut handle, &config.settings.steer)?;
            }
            for port in (0..OUTPUTS as u16).map(PortId) {
                handle.tell(Command::SetOutput(port, Some(Box::new(passed.clone()))))?;
            }
            if let Some(sender) = subscription.connect(id) {
                handle.tell(Command::Subscribe(sender))?;
            }
            handles.push(handle);
        }
        let pool = FramePool::new(64, 16);
        let (clock, tick, unloaded, rules) = (CaptureClock::default(), 0, None, None);
        let flows = BTreeMap::new();
        let last_port = PortId(refuses_new.len() as u16 - 1);
        let lockstep = Self {
            workers,
            handles,
            last_port,
            passed,
            pool,
            events,
            flows,
            clock,
            tick,
            unloaded,
            rules,
        };
        Ok(lockstep.with_buckets(&table))
    }

    /// Prepares the rules of the configuration. They are loaded with the first packet, so that
    /// times in sets count from there.
    pub(super) fn prepare_rules(
        &mut self,
        config: &Config,
        interfaces: &[String],
    ) -> Result<(), StartError> {
        if let Some(ruleset) = &config.rules {
            let ruleset = ValidRuleset::clone(ruleset);
            // A capture is played as in a bridge, even if a router recorded it.
            let unloaded = Rules::prepare(ruleset, Mode::Bridge, config.secret.0, interfaces)
                .map_err(LoadRulesError::from)?;
            self.unloaded = Some(unloaded);
        }
        Ok(())
    }

    fn start_rules(&mut self, now: Timestamp) {
        let Some(unloaded) = self.unloaded.take() else { return };
        // The rules are loaded as for one worker, so that no limit is divided and the number of
        // workers does not show.
        let rules = unloaded.load(1, now);
        // The time is that of the capture, which counts from 1970.
        rules.set_wall_clock((0, clock::wall_clock().1));
        for worker in &mut self.workers {
            worker.path.set_rules(&rules);
        }
        self.rules = Some(rules);
    }

    fn with_buckets(mut self, table: &IndirectionTable) -> Self {
        for (bucket, owner) in table.iter() {
            let content = Box::new(Bucket::new(Timestamp::ZERO));
            self.workers[owner.index()].install(bucket, content);
        }
        self
    }

    /// The packet of a frame that the first worker would find in it, as a function of the frame and
    /// its port. `None` if the worker has to see the frame itself.
    pub(super) fn packet_finder(
        &self,
    ) -> impl Fn(&[u8], PortId) -> Option<Packet> + Send + 'static {
        let (finder, last_port) = (self.workers[0].path.packet_finder(), self.last_port);
        move |frame, port| finder.packet_of(frame, port.min(last_port))
    }

    /// Asks for the memory of packets that are played soon: first the index by which a connection is
    /// found, and then the connection.
    #[inline]
    pub(super) fn look_ahead(&self, input: &ReadAhead) {
        if let Some(packet) = input.upcoming(BEFORE_INDEX) {
            self.workers.iter().for_each(|worker| worker.path.prefetch_index(packet));
        }
        if let Some(packet) = input.upcoming(BEFORE_ENTRY) {
            for worker in &self.workers {
                worker.path.prefetch_entry(packet);
            }
        }
    }

    /// Plays one frame to its end. Time never runs backwards, even if the capture's time stamps
    /// do.
    #[cfg(test)]
    pub(crate) fn play(&mut self, frame: Frame) {
        self.play_found(frame, None);
    }

    /// Plays one frame to its end, with its packet if that was found before. Time never runs
    /// backwards, even if the capture's time stamps do.
    pub(super) fn play_found(&mut self, mut frame: Frame, found: Option<&mut Packet>) {
        let now_ns = self.clock.tick(frame.timestamp);
        let now = Timestamp::from_nanos(now_ns);
        self.start_rules(now);
        if now_ns >> TIMERS_EVERY != self.tick {
            self.tick = now_ns >> TIMERS_EVERY;
            // Any number of connections may end now, so no other events are to wait.
            self.count_flows();
            self.workers.iter_mut().for_each(|worker| worker.path.expire_all(now));
            self.count_flows();
        }
        frame.timestamp = now_ns;
        frame.port = frame.port.min(self.last_port);
        let Some((first, others)) = self.workers.split_first_mut() else { return };
        first.turn_with(now, |worker| {
            match found {
                Some(packet) => worker.path.take_found(packet, frame, now),
                None => worker.path.take_alone(frame, now),
            }
            true
        });
        others.iter_mut().for_each(|worker| {
            worker.turn(now);
        });
        // A turn without work is not needed to see that nothing is left.
        while self.workers.iter().any(Worker::has_work) {
            for worker in &mut self.workers {
                worker.turn(now);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn take_passed(&self) -> Vec<Frame> {
        std::mem::take(&mut *self.passed.lock())
    }

    /// Swaps an empty list for the frames that have passed, without those that the gateway has made,
    /// such as resets. It numbers none of them, and the packets of a capture have numbers from 1.
    pub(super) fn take_captured(&mut self, passed: &mut Vec<Frame>) {
        std::mem::swap(&mut *self.passed.lock(), passed);
        for made in passed.extract_if(.., |frame| frame.sequence == 0) {
            self.pool.give_back(made);
        }
    }

    /// Drops a packet whose frame no worker takes.
    pub(super) fn refuse_long(&mut self, number: u64, length: u64, tell: &mut dyn FnMut(Seen)) {
        let reason = DropReason::FrameTooLong;
        self.workers[0].path.count_drop(reason);
        tell(Seen::Dropped {
            number,
            zone: Zone::default(),
            vlan: 0,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            why: reason.into(),
            refused_by: None,
            fate: Fate::default(),
            summary: format!("a frame of {length} bytes"),
        });
    }

    /// Reports the packets that were dropped since the last call; returns their numbers.
    pub(super) fn tell_dropped(&mut self, played: Played, tell: &mut dyn FnMut(Seen)) -> Vec<u64> {
        if !self.workers.iter().any(|worker| worker.path.has_drops()) {
            return Vec::new();
        }
        let take = |worker: &mut Worker| worker.path.take_drops();
        let drops: Vec<_> = self.workers.iter_mut().flat_map(take).collect();
        for dropped in &drops {
            let bytes = dropped.bytes();
            // The last packet says nothing of fragments that have waited too long.
            let is_last = played.number == dropped.sequence;
            let before = played.classes.map(|classes| is_last.then_some(classes));
            let cut = played.cut.filter(|_| is_last);
            let fate = before.map(|before| self.fate(before, [(dropped.port, &bytes[..])]));
            tell(Seen::Dropped {
                number: dropped.sequence,
                zone: dropped.zone,
                vlan: dropped.vlan,
                length: dropped.length,
                why: dropped.why,
                refused_by: self.refused_by(&dropped.why, &bytes, cut),
                fate: fate.unwrap_or_default(),
                summary: Summary { frame: &bytes }.to_string(),
            });
        }
        drops.iter().map(|dropped| dropped.sequence).collect()
    }

    /// The rule or policy that refused a packet, or the check that its headers failed. `cut` is its
    /// length if the capture has only a part of it.
    fn refused_by(&self, why: &DropCause, packet: &[u8], cut: Option<u32>) -> Option<String> {
        let rules = self.rules.as_ref();
        rules.and_then(|rules| rules.tell(why)).or_else(|| match why.reason() {
            DropReason::MalformedLink
            | DropReason::MalformedIpv4
            | DropReason::MalformedIpv6
            | DropReason::MalformedExtension
            | DropReason::MalformedTcp
            | DropReason::MalformedUdp
            | DropReason::MalformedIcmp
            | DropReason::MalformedSctp
            | DropReason::MalformedDccp
            | DropReason::MalformedGre => {
                let fault = wire::fault(packet);
                let Some(length) = cut else { return fault };
                let fault = fault.unwrap_or_else(|| why.to_string());
                Some(format!(
                    "{fault}; the capture has cut off the rest of its {length} bytes: capture with a \
                     longer snap length"
                ))
            }
            _ => None,
        })
    }

    /// Reports the packets that passed when the last packet was played; returns what there is to
    /// say of them.
    pub(super) fn tell_passed(
        &self,
        passed: &[Frame],
        before: Classes,
        tell: &mut dyn FnMut(Seen),
    ) -> String {
        let fate = self.fate(Some(before), passed.iter().map(|it| (it.port, it.bytes())));
        for frame in passed {
            let vlan = wire::vlan_of(frame.bytes());
            tell(Seen::Passed {
                number: frame.sequence,
                zone: self.workers[0].path.link_zone(frame.port, vlan),
                vlan,
                length: frame.len() as u32,
                fate: fate.clone(),
                summary: Summary { frame: frame.bytes() }.to_string(),
            });
        }
        fate.to_string()
    }

    /// Counts the flows that have ended.
    pub(super) fn count_flows(&mut self) {
        while let Some(numbered) = self.events.try_next() {
            if numbered.event.kind == EventKind::Destroy {
                let connection = numbered.event.connection;
                let state = connection.state.unwrap_or_default();
                *self.flows.entry((connection.protocol, state)).or_default() += 1;
            }
        }
    }

    /// Ends all flows, so that they are counted too. Returns the counters.
    pub(crate) fn finish(&mut self, report: &mut ReplayReport) -> Counters {
        let mut totals = Counters::default();
        for index in 0..self.workers.len() {
            let now = Timestamp::from_nanos(self.clock.now());
            self.workers[index].path.end_capture(now);
            totals.add(self.workers[index].path.counters());
            while self.workers[index].path.end_connections(EVENTS / 2, now) > 0 {
                self.count_flows();
            }
        }
        self.count_flows();
        report.flows = std::mem::take(&mut self.flows);
        totals.conntrack.delete = 0;
        self.handles.clear();
        totals
    }
}
