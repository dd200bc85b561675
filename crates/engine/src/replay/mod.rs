//! Plays a capture through the production pipeline.
//!
//! The same [`Worker`]s run as in the live gateway, but in lockstep on one thread: one packet is
//! in flight at a time, at the time of its capture. So the result does not depend on the number of
//! workers, and a replay can be repeated exactly.

pub mod capture_clock;
pub mod fates;
mod passed_packets;
mod read_ahead;
mod slot;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;

use conntrack::EventKind;
use flow::{Counters, DropReason, HashKey, Timestamp, Zone};
use netio::capture::{CaptureReader, CaptureWriter, Captured};
use netio::{Checksum, Frame, FramePool, PortError, PortId, clock};
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
use crate::path::rules::ruleset::{Rules, Unloaded};
use crate::path::zones::Zones;
use crate::replay::capture_clock::CaptureClock;
use crate::replay::fates::{Classes, Fate};
use crate::replay::passed_packets::PassedPackets;
use crate::replay::read_ahead::{ReadAhead, Taken};
use crate::replay::slot::Slot;
use crate::worker::Worker;
use crate::worker::command::Command;
use crate::worker::queue::Queue;

/// The secret of every replay. It is known, so that a run can be repeated.
pub const REPLAY_SECRET: HashKey = HashKey(0x5374_6174_6577_6179, 0x7265_706c_6179_6564);

/// Ports by which frames leave. A frame that leaves by any of them has passed.
const OUTPUTS: usize = 2;
/// Most events that may wait.
const EVENTS: usize = 4096;
/// Packets that are played before events are read. Each has a few of them at most, but for those of
/// connections that end when timers are turned.
const PACKETS_BETWEEN_EVENTS: u64 = 64;

/// The timers of all connections are turned every time that this bit of the clock changes, every
/// 1.07 s.
const TIMERS_EVERY: u32 = 30;

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Packets read.
    pub packets: u64,
    /// Bytes read, link header included.
    pub bytes: u64,
    /// Packets that the capturing program had cut off.
    pub truncated: u64,
    /// Packets whose headers of IP were mended, see [`wire::mend_headers`].
    pub mended: u64,
    /// Packets that were not played, because their link type is not read, by its name. No other
    /// number counts them, except [`ReplayReport::truncated`].
    pub foreign: BTreeMap<String, u64>,
    /// Packets that came in by no port of the gateway.
    pub elsewhere: u64,
    /// Packets that passed.
    pub passed: u64,
    /// Packets that the output holds for sure; `None` without an output.
    pub written: Option<u64>,
    /// The time from the first to the last packet, nanoseconds of the replay's clock.
    pub span_ns: u64,
    /// Flows by protocol number and last state. The state is empty for protocols without states.
    pub flows: BTreeMap<(u8, &'static str), u64>,
    /// The counters of all workers together, without the counter of deleted connections: it would
    /// depend on when the memory of an expired connection is returned.
    pub counters: Counters,
    /// The reason why the capture could not be read to its end.
    pub problem: Option<String>,
    /// The reason why the output is not complete. The replay ended where this was noticed.
    pub output_problem: Option<String>,
}

/// A message during a replay.
#[derive(Debug)]
pub enum Seen {
    /// This many packets were played.
    Packets(u64),
    /// All packets that are there were played, and the next one is still on its way.
    Paused,
    /// A packet passed; told if [`ReplayOptions::tells_packets`] is set.
    Passed {
        /// Its number in the capture, from 1.
        number: u64,
        /// Its zone.
        zone: Zone,
        /// Its outermost VLAN, 0 for none.
        vlan: u16,
        /// Its length, bytes.
        length: u32,
        /// How tracking saw it.
        fate: Fate,
        /// Its headers in one line.
        summary: String,
    },
    /// A packet was dropped.
    Dropped {
        /// Its number in the capture, from 1.
        number: u64,
        /// Its zone.
        zone: Zone,
        /// Its outermost VLAN, 0 for none.
        vlan: u16,
        /// Its length, bytes.
        length: u32,
        /// The reason.
        why: DropCause,
        /// The rule or policy that refused it, by its place in the ruleset, or the check that its
        /// headers failed.
        refused_by: Option<String>,
        /// How tracking saw it; known if [`ReplayOptions::tells_packets`] is set.
        fate: Fate,
        /// Its headers in one line.
        summary: String,
    },
}

/// The options of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// The number of workers. The result is the same for any number.
    pub workers: u16,
    /// Judge packets by their checksums, and by their headers as they are. Off by default: on the
    /// sending machine, packets are captured before the interface has filled the checksums in, and
    /// the lengths of packets that it cuts. Where they are wrong, they are written then.
    pub verify_checksums: bool,
    /// True for each port of the gateway that accepts no new connections. Packets of the port
    /// behind the last one came in by another interface.
    pub refuses_new: Vec<bool>,
    /// Names of these ports, for rules that ask for interfaces.
    pub interfaces: Vec<String>,
    /// Tell of each packet how tracking saw it, also in comments of a pcapng that is written.
    pub tells_packets: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            workers: 1,
            verify_checksums: false,
            refuses_new: Vec::new(),
            interfaces: Vec::new(),
            tells_packets: false,
        }
    }
}

/// Plays a capture through the pipeline and writes the packets that pass to `output`, as the
/// capture holds them. It reports through `tell` meanwhile.
///
/// A damaged capture is played up to the damage. If the output can not be written, the replay ends
/// there. The report tells of both.
///
/// # Errors
/// [`StartError`] if there are no workers, or no memory or descriptor for them.
pub fn replay(
    mut input: CaptureReader,
    output: Option<CaptureWriter>,
    config: &Config,
    options: ReplayOptions,
    tell: &mut dyn FnMut(Seen),
) -> Result<ReplayReport, StartError> {
    const PROGRESS_EVERY: u64 = 4096;
    let mut lockstep = Lockstep::new(config, options.workers, &options.refuses_new)?;
    lockstep.prepare_rules(config, &options.interfaces)?;
    let mut report = ReplayReport::default();
    let mut output = output.map(PassedPackets::new);
    let (mut first, mut passed) = (None, Vec::new());
    if !options.verify_checksums {
        input = input.with_headers_mended();
    }
    let mut input = ReadAhead::new(input, output.is_some()).map_err(StartError::Thread)?;
    while report.output_problem.is_none() {
        if !input.is_ready() {
            tell(Seen::Paused);
            if let Some(Err(error)) = output.as_mut().map(PassedPackets::flush) {
                report.note_output(Err(error));
                output = None;
            }
        }
        let mut frame = match input.next_packet() {
            Some(Captured::Frame(frame)) => frame,
            Some(Captured::TooLong(length)) => {
                report.packets += 1;
                report.bytes += length;
                lockstep.refuse_long(input.taken().packets, length, tell);
                continue;
            }
            Some(Captured::Foreign) => continue,
            None => break,
        };
        report.packets += 1;
        report.bytes += frame.len() as u64;
        report.elsewhere += u64::from(usize::from(frame.port.0) >= options.refuses_new.len());
        if !options.verify_checksums {
            trust_checksum(&mut frame);
        }
        let before = options.tells_packets.then(|| lockstep.classes());
        let number = input.taken().packets;
        frame.sequence = number;
        lockstep.play(frame);
        let now_ns = lockstep.clock.now();
        report.span_ns = now_ns - *first.get_or_insert(now_ns);
        let played = Played { number, classes: before, cut: input.length_before_cut() };
        let dropped = lockstep.tell_dropped(played, tell);
        lockstep.take_captured(&mut passed);
        report.passed += passed.len() as u64;
        let comment = before.map(|before| lockstep.tell_passed(&passed, before, tell));
        let comment = comment.unwrap_or_default();
        if let Some(writer) = &mut output
            && let Err(error) = writer.settle(&input, &passed, &comment, &dropped)
        {
            report.note_output(Err(error));
            output = None;
        }
        passed.drain(..).for_each(|frame| input.give_back(frame));
        if report.packets.is_multiple_of(PACKETS_BETWEEN_EVENTS) {
            lockstep.count_flows();
        }
        if report.packets.is_multiple_of(PROGRESS_EVERY) {
            tell(Seen::Packets(report.packets));
        }
    }
    report.problem = input.problem().map(str::to_owned);
    let Taken { truncated, mended, foreign, .. } = input.taken().clone();
    (report.truncated, report.mended, report.foreign) = (truncated, mended, foreign);
    report.counters = lockstep.finish(&mut report);
    lockstep.tell_dropped(Played::default(), tell);
    tell(Seen::Packets(report.packets));
    if let Some(output) = output {
        report.note_output(output.finish());
    }
    Ok(report)
}

impl ReplayReport {
    /// Notes the result of writing the output: the number of packets that it holds, or its
    /// failure.
    fn note_output(&mut self, result: Result<u64, PortError>) {
        self.written = Some(match &result {
            Ok(packets) => *packets,
            // Only the packets before the first one that may be missing are there for sure.
            Err(PortError::Capture { packet, .. }) => packet - 1,
            Err(_) => 0,
        });
        self.output_problem = result.err().map(|error| error.to_string());
    }
}

/// Marks a transport checksum as verified.
fn trust_checksum(frame: &mut Frame) {
    if frame.offload.checksum != Checksum::Cut {
        frame.offload.checksum = Checksum::Verified;
    }
}

/// The packet that was played last; none with the number 0.
#[derive(Clone, Copy, Default)]
struct Played {
    /// Its number, from 1.
    number: u64,
    /// The classes before it, if fates are to be told.
    classes: Option<Classes>,
    /// Its length, bytes, if the capture has only a part of it.
    cut: Option<u32>,
}

/// Workers that take turns on one thread.
pub(crate) struct Lockstep {
    workers: Vec<Worker>,
    handles: Vec<WorkerHandle>,
    /// The received frames, by port.
    input: Vec<Slot>,
    passed: Slot,
    pool: FramePool,
    events: EventStream,
    /// As [`ReplayReport::flows`].
    flows: BTreeMap<(u8, &'static str), u64>,
    clock: CaptureClock,
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
        let passed = Slot::default();
        let input = refuses_new.iter().map(|_| Slot::default()).collect::<Vec<_>>();
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
        for (port, source) in (0..).map(PortId).zip(&input) {
            let queue = Queue::new(port.0.into(), port, Box::new(source.clone()));
            handles[0].tell(Command::AddQueue(queue))?;
        }
        let pool = FramePool::new(64, 16);
        let (clock, tick, unloaded, rules) = (CaptureClock::default(), 0, None, None);
        let flows = BTreeMap::new();
        let lockstep = Self {
            workers,
            handles,
            input,
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
    fn prepare_rules(&mut self, config: &Config, interfaces: &[String]) -> Result<(), StartError> {
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

    /// Plays one frame to its end. Time never runs backwards, even if the capture's time stamps
    /// do.
    pub(crate) fn play(&mut self, mut frame: Frame) {
        let now_ns = self.clock.tick(frame.timestamp);
        let captured = std::mem::replace(&mut frame.timestamp, now_ns);
        let now = Timestamp::from_nanos(now_ns);
        self.start_rules(now);
        if now_ns >> TIMERS_EVERY != self.tick {
            self.tick = now_ns >> TIMERS_EVERY;
            // Any number of connections may end now, so no other events are to wait.
            self.count_flows();
            self.workers.iter_mut().for_each(|worker| worker.path.expire_all(now));
            self.count_flows();
        }
        let port = usize::from(frame.port.0).min(self.input.len() - 1);
        self.input[port].frames().push(frame);
        // A turn without work is not needed to see that nothing is left.
        loop {
            for worker in &mut self.workers {
                worker.turn(now);
            }
            if !self.workers.iter().any(Worker::has_work) {
                break;
            }
        }
        self.passed.frames().iter_mut().for_each(|frame| frame.timestamp = captured);
    }

    #[cfg(test)]
    pub(crate) fn take_passed(&self) -> Vec<Frame> {
        std::mem::take(&mut self.passed.frames())
    }

    /// Adds the frames that have passed, without those that the gateway has made, such as resets. It
    /// numbers none of them, and the packets of a capture have numbers from 1.
    fn take_captured(&mut self, passed: &mut Vec<Frame>) {
        for frame in self.passed.frames().drain(..) {
            if frame.sequence == 0 {
                self.pool.give_back(frame);
            } else {
                passed.push(frame);
            }
        }
    }

    /// Drops a packet whose frame no worker takes.
    fn refuse_long(&mut self, number: u64, length: u64, tell: &mut dyn FnMut(Seen)) {
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
    fn tell_dropped(&mut self, played: Played, tell: &mut dyn FnMut(Seen)) -> Vec<u64> {
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
    fn tell_passed(&self, passed: &[Frame], before: Classes, tell: &mut dyn FnMut(Seen)) -> String {
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
    fn count_flows(&mut self) {
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

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "clock_tests.rs"]
mod clock_tests;

#[cfg(test)]
#[path = "calls_tests.rs"]
mod calls_tests;
