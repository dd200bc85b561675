//! Plays a capture through the production pipeline.
//!
//! The same [`Worker`]s run as in the live gateway, but in lockstep on one thread: one packet is
//! in flight at a time, at the time of its capture. So the result does not depend on the number of
//! workers, and a replay can be repeated exactly.

pub mod capture_clock;
pub mod fates;
pub mod lockstep;
mod passed_frames;
mod passed_packets;
mod read_ahead;

use std::collections::BTreeMap;

use flow::{Counters, HashKey, Zone};
use netio::capture::{CaptureReader, CaptureWriter, Captured};
use netio::{Checksum, Frame, PortError};

use crate::control::config::{Config, StartError};
use crate::path::drop_cause::DropCause;
use crate::replay::fates::Fate;
use crate::replay::lockstep::{Lockstep, Played};
use crate::replay::passed_packets::PassedPackets;
use crate::replay::read_ahead::{ReadAhead, Taken};

/// The secret of every replay. It is known, so that a run can be repeated.
pub const REPLAY_SECRET: HashKey = HashKey(0x5374_6174_6577_6179, 0x7265_706c_6179_6564);

/// Packets that are played before events are read. Each has a few of them at most, but for those of
/// connections that end when timers are turned.
const PACKETS_BETWEEN_EVENTS: u64 = 64;

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
    let output = output.map(CaptureWriter::behind).transpose().map_err(StartError::Thread)?;
    let mut output = output.map(PassedPackets::new);
    let (mut first, mut passed) = (None, Vec::new());
    if !options.verify_checksums {
        input = input.with_headers_mended();
    }
    let finder = lockstep.packet_finder();
    let mut input = ReadAhead::new(input, finder).map_err(StartError::Thread)?;
    while report.output_problem.is_none() {
        if !input.is_ready() {
            tell(Seen::Paused);
            attempt(&mut output, &mut report, PassedPackets::flush);
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
        lockstep.look_ahead(&input);
        lockstep.play_found(frame, input.found());
        let now_ns = lockstep.clock.now();
        report.span_ns = now_ns - *first.get_or_insert(now_ns);
        let played = Played { number, classes: before, cut: input.length_before_cut() };
        let dropped = lockstep.tell_dropped(played, tell);
        lockstep.take_captured(&mut passed);
        report.passed += passed.len() as u64;
        let comment = before.map(|before| lockstep.tell_passed(&passed, before, tell));
        let comment = comment.unwrap_or_default();
        attempt(&mut output, &mut report, |it| it.settle(&input, &passed, &comment, &dropped));
        while let Some(frame) = passed.pop() {
            input.give_back(frame);
        }
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

/// Writes to the output, which ends with its first failure.
fn attempt(
    output: &mut Option<PassedPackets>,
    report: &mut ReplayReport,
    write: impl FnOnce(&mut PassedPackets) -> Result<(), PortError>,
) {
    if let Some(Err(error)) = output.as_mut().map(write) {
        report.note_output(Err(error));
        *output = None;
    }
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

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "clock_tests.rs"]
mod clock_tests;

#[cfg(test)]
#[path = "calls_tests.rs"]
mod calls_tests;
