//! Workers of the gateway, from a frame's input queue to its output queue.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{Config, Mode, OpenPort, PortOpener, PortSetup, Unthreaded, WorkerCount};
use flow::{DropReason, HashKey, Timestamp};
use netio::{Frame, FramePool, PortError, RxQueue, TxQueue, TxReport, clock};
use ruleset::{Options as ImportOptions, import_value};

use super::frames::{self, Flow};
use super::{LAG, wrong};
use crate::Error;
use crate::measure::Work;

/// The work of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// It routes and tracks.
    NoRules,
    /// It also judges by rules.
    Rules,
    /// It also masquerades.
    Masquerade,
}

impl Case {
    pub const ALL: [Self; 3] = [Self::NoRules, Self::Rules, Self::Masquerade];

    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRules => "gateway, no rules",
            Self::Rules => "gateway, rules",
            Self::Masquerade => "gateway, masquerade",
        }
    }
}

/// A port of one worker: the frames that come in by it, and those that have left.
#[derive(Clone, Default)]
struct Line(Arc<Mutex<Tape>>);

#[derive(Default)]
struct Tape {
    frames: Arc<Vec<frames::Frame>>,
    at: usize,
    /// Number of frames that are still to come.
    left: usize,
    sent: u64,
    /// The frames that have left, if they are wanted.
    kept: Option<Vec<Vec<u8>>>,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Tape> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets these frames come in turn, `count` frames in all.
    fn play(&self, frames: Vec<frames::Frame>, count: usize) {
        let mut tape = self.lock();
        let left = if frames.is_empty() { 0 } else { count };
        *tape = Tape { frames: Arc::new(frames), left, sent: tape.sent, ..Tape::default() };
    }
}

impl RxQueue for Line {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        pool: &mut FramePool,
    ) -> Result<usize, PortError> {
        let mut tape = self.lock();
        let count = max.min(tape.left);
        for _ in 0..count {
            frames.extend(pool.copy_of(&tape.frames[tape.at]));
            tape.at = (tape.at + 1) % tape.frames.len();
        }
        tape.left -= count;
        Ok(count)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl TxQueue for Line {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        pool: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let mut tape = self.lock();
        let sent = frames.len() as u64;
        tape.sent += sent;
        for frame in frames.drain(..) {
            if let Some(kept) = &mut tape.kept {
                kept.push(frame.bytes().to_vec());
            }
            pool.give_back(frame);
        }
        Ok(TxReport { sent, ..TxReport::default() })
    }
}

/// The queues of all workers at one port.
struct Lines(Vec<Line>);

impl PortOpener for Lines {
    fn open(&mut self, rx_queues: usize, tx_queues: usize) -> Result<OpenPort, PortError> {
        let rx = self.0.iter().take(rx_queues).map(|line| Box::new(line.clone()) as _);
        let tx = self.0.iter().take(tx_queues).map(|line| Box::new(line.clone()) as _);
        Ok(OpenPort { rx: rx.collect(), tx: tx.collect() })
    }

    fn open_tx(&mut self) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(netio::memory::Discard))
    }
}

/// One worker between two ports.
pub struct Gateway {
    worker: Unthreaded,
    /// The port towards the clients, and the one towards the servers.
    lines: [Line; 2],
    /// Frames of one unit of work.
    frames_each: u64,
    /// The least number of connections at any time, and how many more there may be.
    connections: (usize, usize),
}

impl Gateway {
    fn crew(case: Case, workers: usize) -> Result<Vec<Self>, Error> {
        let mut config = Config::new(HashKey(0x7472_616e_736c, 0x6174_696f_6e73));
        config.mode = Mode::Routed;
        config.workers = WorkerCount::fixed(workers)?;
        if case != Case::NoRules {
            let document = frames::ruleset(case == Case::Masquerade);
            let imported = import_value(&document, ImportOptions::default());
            let imported = imported.map_err(|refused| wrong(refused.to_string()))?;
            config.rules = Some(Arc::new(imported.ruleset));
        }
        let lines: [Vec<Line>; 2] =
            [(); 2].map(|()| (0..workers).map(|_| Line::default()).collect());
        let ports = frames::INTERFACES.iter().zip(&lines).map(|(name, lines)| PortSetup {
            rx_queues: workers,
            ..PortSetup::new(*name, Lines(lines.clone()))
        });
        let workers =
            Unthreaded::crew(&config, ports.collect(), &frames::kernel()?, Timestamp::ZERO)?;
        let [inside, outside] = lines;
        let lines = inside.into_iter().zip(outside).map(<[Line; 2]>::from);
        let gateway = |(worker, lines)| Self { worker, lines, frames_each: 1, connections: (0, 0) };
        Ok(workers.into_iter().zip(lines).map(gateway).collect())
    }

    /// Workers with `flows` established flows in all: requests and answers come without end.
    pub fn established(case: Case, workers: usize, flows: u32) -> Result<Vec<Self>, Error> {
        let source = (case == Case::Masquerade).then_some(frames::MASQUERADE);
        let mut crew = Self::crew(case, workers)?;
        for gateway in &mut crew {
            let own = gateway.own(flows, Flow::request)?;
            let requests: Vec<_> =
                own.iter().map(|flow| flow.request()).collect::<Result<_, _>>()?;
            let arrived = gateway.pass(0, &requests)?;
            arrived.iter().try_for_each(|frame| frames::checked(frame, false, source).map(drop))?;
            let answers: Vec<_> =
                arrived.iter().map(|frame| frames::answer(frame)).collect::<Result<_, _>>()?;
            let answered = gateway.pass(1, &answers)?;
            answered.iter().try_for_each(|frame| frames::checked(frame, true, source).map(drop))?;
            gateway.connections = (own.len(), 0);
            gateway.lines[0].play(requests, usize::MAX);
            gateway.lines[1].play(answers, usize::MAX);
        }
        Ok(crew)
    }

    /// Workers whose clients open connections of `flows` flows in all, and give each up after
    /// [`LAG`] others were opened.
    pub fn churning(case: Case, workers: usize, flows: u32) -> Result<Vec<Self>, Error> {
        let mut crew = Self::crew(case, workers)?;
        for gateway in &mut crew {
            let own = gateway.own(flows, Flow::open)?;
            let last = &own[own.len() - LAG..];
            let opened: Vec<_> = last.iter().map(|flow| flow.open()).collect::<Result<_, _>>()?;
            gateway.pass(0, &opened)?;
            gateway.frames_each = 2;
            gateway.connections = (LAG, 1);
            gateway.lines[0].play(super::churn(&own)?, usize::MAX);
        }
        Ok(crew)
    }

    /// Those of `flows` flows that belong to this worker, with their first frames.
    fn own(
        &self,
        flows: u32,
        first: fn(Flow) -> Result<frames::Frame, Error>,
    ) -> Result<Vec<Flow>, Error> {
        let mut own = Vec::new();
        for flow in (0..flows).map(Flow) {
            if self.worker.owns(&frames::headers(&first(flow)?)?) {
                own.push(flow);
            }
        }
        Ok(own)
    }

    /// Lets frames come in by a port, and returns the frames that have left by the other.
    fn pass(&mut self, port: usize, frames: &[frames::Frame]) -> Result<Vec<Vec<u8>>, Error> {
        self.lines[port].play(frames.to_vec(), frames.len());
        self.lines[1 - port].lock().kept = Some(Vec::new());
        while self.worker.turn(now()) {}
        let sent = self.lines[1 - port].lock().kept.take().unwrap_or_default();
        if sent.len() == frames.len() {
            Ok(sent)
        } else {
            let (sent, count) = (sent.len(), frames.len());
            Err(wrong(format!("{sent} of {count} frames came out; dropped: {}", self.dropped())))
        }
    }

    /// Checks that everything came out, and that no connection was lost on the way.
    ///
    /// # Errors
    /// [`Error::Wrong`].
    pub fn check(&self) -> Result<(), Error> {
        let (least, more) = self.connections;
        let connections = self.worker.connections();
        let is_whole = self.worker.counters().dropped_total() == 0;
        if is_whole && (least..=least + more).contains(&connections) {
            return Ok(());
        }
        let dropped = self.dropped();
        Err(wrong(format!("dropped: {dropped}; {connections} connections in place of {least}")))
    }

    fn dropped(&self) -> String {
        let counters = self.worker.counters();
        let dropped = DropReason::ALL.iter().map(|reason| (*reason, counters.dropped(*reason)));
        let dropped: Vec<_> = dropped.filter(|(_, count)| *count > 0).collect();
        format!("{dropped:?}")
    }

    fn sent(&self) -> u64 {
        self.lines.iter().map(|line| line.lock().sent).sum()
    }
}

impl Work for Gateway {
    fn batch(&mut self) -> u64 {
        let before = self.sent();
        self.worker.turn(now());
        (self.sent() - before) / self.frames_each
    }
}

fn now() -> Timestamp {
    Timestamp::from_nanos(clock::monotonic_nanoseconds())
}
