//! Workers of the gateway in memory, from the queue that a frame comes from to the one that it
//! leaves by.

mod frames;
mod maker;
mod world;

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::{Config, Mode, OpenPort, PortOpener, PortSetup, Unthreaded, WorkerCount};
use flow::{DropReason, HashKey, Timestamp};
use netio::{FramePool, PortError, RxQueue, TxQueue, TxReport, clock};
use ruleset::{Options as ImportOptions, import_value};
use serde_json::Value;
use steer::{
    AddressSet, BucketCount, FragmentSteering, HashKind, SteeringConfig, SteeringHasher,
    TunnelSteering,
};

pub use self::frames::{Ends, Flow, Frame, Style, answer, check, headers};
pub use self::maker::Maker;
pub use self::world::MASQUERADE;
use self::world::Translates;
use crate::Error;
use crate::measure::Work;

/// Frames between two looks at the clock, as a worker takes them from a queue.
pub const BATCH: usize = 64;
/// Connections that each worker has open while others are opened.
pub const LAG: usize = 4096;
const SECRET: HashKey = HashKey(0x7472_616e_736c, 0x6174_696f_6e73);
/// With more flows than this, some clients would have more than their share of ports.
const MANY_FLOWS: u32 = 500_000;
/// Time from one turn to the next where time passes by turns: about as long as a worker takes.
const TURN: Duration = Duration::from_micros(50);

fn wrong(problem: String) -> Error {
    Error::Wrong { benchmark: "gateway", problem }
}

/// The work of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// It bridges and tracks.
    Bridge,
    /// It judges by rules as well.
    BridgeRules,
    /// Its rules let nobody open a connection.
    Refuse,
    /// It routes and tracks.
    Router,
    /// It judges by rules as well.
    RouterRules,
    /// It masquerades besides.
    Masquerade,
    /// It forwards a port besides.
    PortForward,
}

impl Case {
    const fn mode(self) -> Mode {
        match self {
            Self::Bridge | Self::BridgeRules | Self::Refuse => Mode::Bridge,
            Self::Router | Self::RouterRules | Self::Masquerade | Self::PortForward => Mode::Routed,
        }
    }

    fn ruleset(self) -> Option<Value> {
        let (to_clients, translates) = match self {
            Self::Bridge | Self::Router => return None,
            Self::BridgeRules | Self::RouterRules => ("accept", Translates::Nothing),
            Self::Refuse => ("drop", Translates::Nothing),
            Self::Masquerade => ("accept", Translates::Sources),
            Self::PortForward => ("accept", Translates::Destinations),
        };
        Some(world::ruleset(to_clients, translates))
    }

    const fn ends(self) -> Ends {
        match self {
            Self::Masquerade => Ends { client: Some(MASQUERADE), server: None },
            Self::PortForward => Ends { client: None, server: Some(world::FORWARDED) },
            _ => Ends { client: None, server: None },
        }
    }
}

/// How time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// As the system's clock says.
    Real,
    /// By the same step with each turn, so that every run is the same.
    Turns,
}

/// A gateway in memory and its traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The work of the gateway.
    pub case: Case,
    /// How packets look.
    pub style: Style,
    /// How time passes.
    pub time: Time,
    /// How many workers.
    pub workers: usize,
    /// How many flows, of all workers.
    pub flows: u32,
}

/// Each flow is opened in its turn, and behind it the one is ended that was opened [`LAG`]
/// before.
///
/// # Errors
/// [`Error::Wrong`] if there are not more flows than that.
pub fn churn(flows: &[Flow]) -> Result<Vec<Frame>, Error> {
    let count = flows.len();
    if count <= LAG {
        return Err(wrong(format!("{count} flows are too few")));
    }
    let pair = |at: usize| [flows[at].open(), flows[(at + count - LAG) % count].reset()];
    Ok((0..count).flat_map(pair).collect())
}

/// Steering as a gateway that translates nothing has it.
pub fn plain_steering() -> SteeringHasher {
    SteeringHasher::new(SteeringConfig {
        kind: HashKind::Sip,
        key: SECRET,
        buckets: BucketCount::DEFAULT,
        fragments: FragmentSteering::default(),
        tunnels: TunnelSteering::default(),
    })
}

/// Steering as a gateway that masquerades has it.
pub fn steering() -> SteeringHasher {
    let mut hasher = plain_steering();
    let range = |[first, last]: [Ipv4Addr; 2]| {
        first.to_ipv6_mapped().octets()..=last.to_ipv6_mapped().octets()
    };
    hasher.set_inside(AddressSet::new([[MASQUERADE; 2], world::CLIENTS].map(range)));
    hasher
}

/// A port of one worker: the frames that come in by it, and those that have left.
#[derive(Clone, Default)]
struct Line(Arc<Mutex<Tape>>);

#[derive(Default)]
struct Tape {
    frames: Vec<Frame>,
    at: usize,
    /// Frames that are still to come.
    left: usize,
    came: u64,
    sent: u64,
    /// The frames that have left, if they are wanted.
    kept: Option<Vec<Vec<u8>>>,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Tape> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has these frames come, one after the other, so many in all.
    fn play(&self, frames: Vec<Frame>, count: usize) {
        let mut tape = self.lock();
        let left = if frames.is_empty() { 0 } else { count };
        *tape = Tape { frames, left, came: tape.came, sent: tape.sent, ..Tape::default() };
    }
}

impl RxQueue for Line {
    fn receive(
        &mut self,
        frames: &mut Vec<netio::Frame>,
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
        tape.came += count as u64;
        Ok(count)
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl TxQueue for Line {
    fn transmit(
        &mut self,
        frames: &mut Vec<netio::Frame>,
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

/// The way on which the frames of a worker should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// All leave; there are so many connections at any time, and at most so many more.
    Pass { connections: usize, more: usize },
    /// A rule drops them all, and no connection is opened.
    Refused,
}

/// One worker between two ports.
pub struct Gateway {
    worker: Unthreaded,
    /// Towards the clients, and towards the servers.
    lines: [Line; 2],
    /// The time of the last turn, where it does not pass by itself.
    turns: Option<Timestamp>,
    /// Frames that are one unit of work.
    frames_each: u64,
    fate: Fate,
}

impl Gateway {
    fn with_flows(setup: Setup) -> Result<Vec<Self>, Error> {
        let Setup { case, workers, flows, .. } = setup;
        let mut config = Config::new(SECRET);
        let mut set = |name: &str, value: u64| {
            config.settings.set(name, value).map_err(|error| wrong(error.to_string()))
        };
        set("nf_conntrack_max", u64::from(flows.max(1 << 16)) * 2)?;
        if flows > MANY_FLOWS {
            // Few clients share so many flows that some would have more than their share of ports.
            set("stateway_nat_source_share", 100)?;
        }
        config.mode = case.mode();
        config.workers = WorkerCount::fixed(workers)?;
        if let Some(document) = case.ruleset() {
            let imported = import_value(&document, ImportOptions::default());
            let imported = imported.map_err(|refused| wrong(refused.to_string()))?;
            config.rules = Some(Arc::new(imported.ruleset));
        }
        let lines: [Vec<Line>; 2] =
            [(); 2].map(|()| (0..workers).map(|_| Line::default()).collect());
        let ports = world::INTERFACES.iter().zip(&lines).map(|(name, lines)| PortSetup {
            rx_queues: workers,
            ..PortSetup::new(*name, Lines(lines.clone()))
        });
        let workers =
            Unthreaded::gateway(config, ports.collect(), &world::kernel()?, Timestamp::ZERO)?;
        let [inside, outside] = lines;
        let lines = inside.into_iter().zip(outside).map(<[Line; 2]>::from);
        let turns = (setup.time == Time::Turns).then_some(Timestamp::ZERO);
        let fate = Fate::Pass { connections: 0, more: 0 };
        let gateway = |(worker, lines)| Self { worker, lines, turns, frames_each: 1, fate };
        Ok(workers.into_iter().zip(lines).map(gateway).collect())
    }

    /// Workers whose flows are established: requests and answers come without end.
    ///
    /// # Errors
    /// [`Error`].
    pub fn established(setup: Setup) -> Result<Vec<Self>, Error> {
        let mut gateway = Self::with_flows(setup)?;
        for gateway in &mut gateway {
            let own = gateway.own(setup, |flow| flow.request().swap_remove(0))?;
            let requests: Vec<_> = own.iter().flat_map(|flow| flow.request()).collect();
            let arrived = gateway.pass_checked(setup, 0, &requests)?;
            let answers: Vec<_> =
                arrived.iter().map(|frame| answer(frame)).collect::<Result<_, _>>()?;
            gateway.pass_checked(setup, 1, &answers)?;
            gateway.fate = Fate::Pass { connections: own.len(), more: 0 };
            gateway.lines[0].play(requests, usize::MAX);
            gateway.lines[1].play(answers, usize::MAX);
        }
        Ok(gateway)
    }

    /// Workers whose clients open connections, and give each up when [`LAG`] others were
    /// opened.
    ///
    /// # Errors
    /// [`Error`].
    pub fn churning(setup: Setup) -> Result<Vec<Self>, Error> {
        let mut gateway = Self::with_flows(setup)?;
        for gateway in &mut gateway {
            let own = gateway.own(setup, Flow::open)?;
            let frames = churn(&own)?;
            let last = &own[own.len() - LAG..];
            let opened: Vec<_> = last.iter().map(|flow| flow.open()).collect();
            gateway.pass(0, &opened)?;
            gateway.frames_each = 2;
            gateway.fate = Fate::Pass { connections: LAG, more: 1 };
            gateway.lines[0].play(frames, usize::MAX);
        }
        Ok(gateway)
    }

    /// Workers whose clients try in vain to open connections.
    ///
    /// # Errors
    /// [`Error`].
    pub fn refusing(setup: Setup) -> Result<Vec<Self>, Error> {
        let mut gateway = Self::with_flows(setup)?;
        for gateway in &mut gateway {
            let own = gateway.own(setup, Flow::open)?;
            gateway.fate = Fate::Refused;
            gateway.lines[0].play(own.iter().map(|flow| flow.open()).collect(), usize::MAX);
        }
        Ok(gateway)
    }

    /// The flows that are this worker's, by their first frames.
    fn own(&self, setup: Setup, first: fn(Flow) -> Frame) -> Result<Vec<Flow>, Error> {
        let mut own = Vec::new();
        for number in 0..setup.flows {
            let flow = Flow { number, style: setup.style };
            if self.worker.owns(&headers(&first(flow))?) {
                own.push(flow);
            }
        }
        Ok(own)
    }

    /// As [`Gateway::pass`], and checks the frames that have left.
    fn pass_checked(
        &mut self,
        setup: Setup,
        port: usize,
        frames: &[Frame],
    ) -> Result<Vec<Frame>, Error> {
        let sent = self.pass(port, frames)?;
        if setup.case.mode() == Mode::Routed {
            let ends = setup.case.ends();
            sent.iter().try_for_each(|frame| check(frame, setup.style, port == 1, ends))?;
        } else if sent != frames {
            return Err(wrong("the bridge changed frames, or their order".to_owned()));
        }
        Ok(sent)
    }

    /// Has frames come in by a port, and returns those that have left by the other.
    fn pass(&mut self, port: usize, frames: &[Frame]) -> Result<Vec<Frame>, Error> {
        self.lines[port].play(frames.to_vec(), frames.len());
        self.lines[1 - port].lock().kept = Some(Vec::new());
        while self.turn() {}
        let sent = self.lines[1 - port].lock().kept.take().unwrap_or_default();
        if sent.len() == frames.len() {
            Ok(sent)
        } else {
            let (sent, count) = (sent.len(), frames.len());
            Err(wrong(format!("{sent} of {count} frames came out; dropped: {}", self.dropped())))
        }
    }

    /// Every frame has gone where it should, and no connection was forgotten on the way.
    ///
    /// # Errors
    /// [`Error::Wrong`].
    pub fn check(&self) -> Result<(), Error> {
        let counters = self.worker.counters();
        let connections = self.worker.connections();
        let came = self.came();
        let sent: u64 = self.lines.iter().map(|line| line.lock().sent).sum();
        let is_right = match self.fate {
            Fate::Pass { connections: least, more } => {
                sent == came && (least..=least + more).contains(&connections)
            }
            Fate::Refused => {
                counters.dropped(DropReason::RuleRefused) == came && sent + connections as u64 == 0
            }
        };
        if is_right {
            return Ok(());
        }
        let (fate, dropped) = (self.fate, self.dropped());
        Err(wrong(format!(
            "of {came} frames {sent} were sent and {dropped} dropped, and there are              {connections} connections in place of {fate:?}"
        )))
    }

    fn dropped(&self) -> String {
        let counters = self.worker.counters();
        let dropped = DropReason::ALL.iter().map(|reason| (*reason, counters.dropped(*reason)));
        let dropped: Vec<_> = dropped.filter(|(_, count)| *count > 0).collect();
        format!("{dropped:?}")
    }

    fn came(&self) -> u64 {
        self.lines.iter().map(|line| line.lock().came).sum()
    }

    fn turn(&mut self) -> bool {
        let now = match &mut self.turns {
            Some(last) => {
                *last = last.after(TURN);
                *last
            }
            None => Timestamp::from_nanos(clock::monotonic_nanoseconds()),
        };
        self.worker.turn(now)
    }
}

impl Work for Gateway {
    fn batch(&mut self) -> u64 {
        let before = self.came();
        self.turn();
        (self.came() - before) / self.frames_each
    }
}
