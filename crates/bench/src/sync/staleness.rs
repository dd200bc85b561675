//! How old the standby's connections are: the time from a packet that opens, changes or ends a
//! connection until the standby has made the change.

use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flow::{FlowKey, Zone};
use netio::clock;
use serde::Serialize;

use super::lane::stage;
use super::node::{Design, Node, Population};
use super::{BATCH, PAYLOAD, REFRESH, wrong};
use crate::Error;
use crate::traffic::{Pen, Segment};

/// Connections that are opened, that change and that end in each millisecond.
const A_MILLISECOND: u32 = 50;
/// Milliseconds after which an opened connection changes, and then ends.
const LATER: usize = 200;
const MILLISECOND: Duration = Duration::from_millis(1);

/// The delays.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Staleness {
    /// Half of the changes were at the standby in this time, milliseconds.
    pub median_ms: f64,
    /// 99 % of them.
    pub p99_ms: f64,
    /// All of them.
    pub worst_ms: f64,
    /// Changes that were measured.
    pub changes: u64,
    /// Changes that the standby never made.
    pub missing: u64,
    /// Connections opened a second.
    pub opened_per_s: f64,
    /// Connections that differ afterwards.
    pub lost: u64,
    /// Frames that were sent, and those of them that were sent again.
    pub frames: [u64; 2],
}

/// Opens 50,000 connections a second for a while beside so many others, with one worker.
pub fn measure(connections: u32, time: Duration) -> Result<Staleness, Error> {
    let mut node = Node::new(Design::Stateway, 1, Population::Established(connections))?;
    node.join(&engine::system_cpus(), REFRESH)?;
    let began = Instant::now();
    let (events, opened) = pass(&mut node, connections, time)?;
    let opened_per_s = f64::from(opened) / began.elapsed().as_secs_f64();
    let lost = node.differences()?;
    let Some(standby) = node.standby() else { return Err(wrong("there is no standby")) };
    let frames = node.frames();
    let log = standby.copies.log.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut applied: HashMap<FlowKey, Vec<u64>> = HashMap::new();
    for change in log.unwrap_or_default() {
        applied.entry(change.original.key).or_default().push(change.at);
    }
    let (mut delays, mut missing) = (Vec::with_capacity(events.len()), 0);
    let pen = Pen::new(PAYLOAD);
    for (flow, at) in events {
        let network = pen.headers(&Segment::handshake(flow)[0]);
        let keyed = FlowKey::of_packet(&network, Zone::default());
        let times = keyed.and_then(|keyed| applied.get(&keyed.key));
        // The events of a connection are so far apart that the first change behind one contains it.
        match times.and_then(|times| times.iter().find(|time| **time >= at)) {
            Some(time) => delays.push(time - at),
            None => missing += 1,
        }
    }
    delays.sort_unstable();
    let share = |part: f64| {
        let place = (delays.len() as f64 * part) as usize;
        delays.get(place.min(delays.len().saturating_sub(1))).map_or(0.0, |it| *it as f64 / 1e6)
    };
    let (median_ms, p99_ms, worst_ms) = (share(0.5), share(0.99), share(1.0));
    let changes = delays.len() as u64;
    Ok(Staleness { median_ms, p99_ms, worst_ms, changes, missing, opened_per_s, lost, frames })
}

/// Packets with their times, and the number of connections that were opened.
type Events = (Vec<(u32, u64)>, u32);

fn pass(node: &mut Node, first: u32, time: Duration) -> Result<Events, Error> {
    let at = AtomicU8::new(stage::WORK);
    let (lanes, clock, hub, ends) = node.parts();
    let Some((sender, standby)) = ends else { return Err(wrong("there is no standby")) };
    let [lane] = lanes else { return Err(wrong("there is more than one lane")) };
    hub.mailboxes.iter().for_each(|it| it.is_clear.store(false, Ordering::Release));
    *standby.copies.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    let at = &at;
    let (mut events, mut next) = (Vec::new(), first);
    std::thread::scope(|scope| {
        let standby = scope.spawn(move || standby.run(clock, at, false));
        let sender = scope.spawn(move || sender.run(hub, clock, at, false));
        let (began, start) = (Instant::now(), clock.now());
        let mut waits: VecDeque<u32> = VecDeque::new();
        let pen = Pen::new(PAYLOAD);
        let mut due = Duration::ZERO;
        while due < time && at.load(Ordering::Relaxed) == stage::WORK {
            due += MILLISECOND;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            clock.pass_to(start.after(began.elapsed()));
            let mut note = |flow| events.push((flow, clock::monotonic_nanoseconds()));
            let changes = waits.len() >= LATER;
            let changed = changes.then(|| waits[waits.len() - LATER]);
            let ended = (waits.len() >= 2 * LATER).then(|| waits.pop_front()).flatten();
            for flow in ended.into_iter().flat_map(|from| from..from + A_MILLISECOND) {
                let now = clock.now();
                note(flow);
                if !lane.tables.delete(&pen.headers(&Segment::handshake(flow)[0]), now) {
                    return Err(wrong("a connection is not there"));
                }
            }
            let opened: Vec<u32> = (next..next + A_MILLISECOND).collect();
            next += A_MILLISECOND;
            waits.push_back(opened[0]);
            let mut segments = Vec::new();
            for flow in opened {
                note(flow);
                segments.extend_from_slice(&Segment::handshake(flow)[..2]);
            }
            for flow in changed.into_iter().flat_map(|from| from..from + A_MILLISECOND) {
                note(flow);
                segments.push(Segment::handshake(flow)[2]);
            }
            segments.chunks(BATCH).for_each(|chunk| lane.pass(chunk.iter().copied()));
        }
        at.fetch_max(stage::DRAIN, Ordering::Relaxed);
        let drained = lane.run(Duration::ZERO, at, 0, true);
        drained.map_err(|source| Error::System { what: "can not pin a thread", source })?;
        let panicked = |_| wrong("a thread panicked");
        sender.join().map_err(panicked)??;
        standby.join().map_err(panicked)??;
        Ok::<_, Error>(())
    })?;
    Ok((events, next - first))
}
