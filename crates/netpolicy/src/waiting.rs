//! How a worker of the gateway waits for packets: an automaton, and nothing else. The thread tells it
//! what a turn has brought and when, and does what it answers.

use std::time::Duration;

use flow::Timestamp;

use crate::Policy;
use crate::ladder::{Aim, Ladder};

/// Turns without work before a worker blocks. They take about as long as a wake-up, and they turn
/// the timers of all buckets.
const IDLE_TURNS: u32 = 50;
/// After a sleep as long as this the worker takes all of its idle turns, since timers may be due.
const LONG_SLEEP: Duration = Duration::from_millis(10);
/// The time over which the budget of a worker that stays awake is balanced.
const BUDGET_PERIOD: Duration = Duration::from_secs(1);

/// How to wait. The figures come from [`crate::WaitSettings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Blocks after some idle turns.
    Block,
    /// Sleeps after packets have come, so that several come together, then blocks.
    Gather {
        /// The longest of these sleeps.
        longest: Duration,
        /// It takes its idle turns before it blocks, where it has not slept.
        lingers: bool,
    },
    /// Stays awake after packets have come, then blocks.
    Spin {
        /// How long it stays awake without a packet.
        longest: Duration,
        /// Percentage of a CPU that this may take, 0 to 100.
        budget: u32,
        /// The longest sleep after packets have come, where that shortens their delay.
        gather: Duration,
    },
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// There was nothing to do.
    Nothing,
    /// Something.
    Work {
        /// Packets.
        packets: u32,
        /// A queue gave as many as it was asked for, so more may wait there.
        is_more: bool,
    },
}

/// The next step of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes the next turn at once.
    Turn,
    /// Sleeps for this time, whatever comes.
    Gather(Duration),
    /// Sleeps until something comes or a timer is due.
    Block,
}

/// The state of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has just had work.
    Working,
    /// It stays awake without work, since this time.
    Spinning { since: Timestamp },
    /// It had nothing to do for some turns, and will block.
    Idle { turns: u32 },
    /// It sleeps while packets gather, since this time.
    Gathering { since: Timestamp },
    /// Its sleep is over, and it has not looked yet.
    Gathered,
    /// It sleeps until something comes, since this time.
    Blocked { since: Timestamp },
}

/// The automaton of one worker.
#[derive(Clone, Debug)]
pub struct Waiting {
    policy: Policy,
    manner: Manner,
    state: State,
    ladder: Ladder,
    budget: Budget,
    began: Timestamp,
    counts: WaitCounts,
}

/// Counters of a worker since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// Time.
    pub time: Duration,
    /// The part of it in which the worker slept.
    pub asleep: Duration,
    /// How often it blocked until something came.
    pub blocked: u64,
    /// How often it slept while packets gathered.
    pub gathered: u64,
    /// The sleep while packets gather, at present.
    pub gather: Duration,
}

/// The time for which a worker may stay awake without work.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    /// Time that is left, at `counted`.
    left: Duration,
    counted: Timestamp,
    /// When the last packet had been served.
    last_packet: Option<Timestamp>,
    /// The last two packets came so close together that it is worth to wait for the next.
    is_worth_it: bool,
}

impl Waiting {
    /// A worker that begins now, without a policy.
    pub fn new(now: Timestamp) -> Self {
        Self {
            policy: Policy::None,
            manner: Manner::Block,
            state: State::Idle { turns: 0 },
            ladder: Ladder::new(Aim::LessWork, Duration::ZERO),
            budget: Budget::default(),
            began: now,
            counts: WaitCounts::default(),
        }
    }

    /// Waits in this manner, for this policy, from now on. Nothing is forgotten if it does so
    /// already.
    pub fn set(&mut self, policy: Policy, manner: Manner) {
        self.policy = policy;
        if manner == self.manner {
            return;
        }
        self.manner = manner;
        self.state = State::Idle { turns: 0 };
        self.ladder = match manner {
            Manner::Gather { longest, .. } => Ladder::new(Aim::LessWork, longest),
            Manner::Spin { gather, .. } => Ladder::new(Aim::LessDelay, gather),
            Manner::Block => Ladder::new(Aim::LessWork, Duration::ZERO),
        };
        self.budget = Budget::default();
    }

    /// The policy by which it waits.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// Its counters.
    pub fn counts(&self, now: Timestamp) -> WaitCounts {
        WaitCounts { time: now.since(self.began), gather: self.ladder.rung(), ..self.counts }
    }

    /// The step after a turn. `now` is a time of that turn.
    #[inline]
    pub fn after_turn(&mut self, now: Timestamp, came: Came) -> Step {
        match self.manner {
            Manner::Block => self.block_when_idle(now, came),
            Manner::Gather { lingers, .. } => self.gather(now, came, lingers),
            Manner::Spin { longest, budget, .. } => self.spin(now, came, longest, budget),
        }
    }

    /// The sleep that the last step asked for is over.
    pub fn woken(&mut self, now: Timestamp) {
        let (since, next) = match self.state {
            State::Gathering { since } => (since, State::Gathered),
            State::Blocked { since } => {
                let gathers = matches!(self.manner, Manner::Gather { .. });
                let has_time = !gathers || now.since(since) >= LONG_SLEEP;
                (since, if has_time { State::Idle { turns: 0 } } else { State::Gathered })
            }
            State::Working | State::Spinning { .. } | State::Idle { .. } | State::Gathered => {
                return;
            }
        };
        self.counts.asleep += now.since(since);
        self.state = next;
    }

    #[inline]
    fn block_when_idle(&mut self, now: Timestamp, came: Came) -> Step {
        match (came, self.state) {
            (Came::Work { .. }, _) => {
                self.state = State::Working;
                Step::Turn
            }
            (Came::Nothing, State::Idle { turns }) if turns >= IDLE_TURNS => self.block(now),
            (Came::Nothing, State::Gathered) => self.block(now),
            (Came::Nothing, State::Idle { turns }) => {
                self.state = State::Idle { turns: turns + 1 };
                Step::Turn
            }
            (Came::Nothing, _) => {
                self.state = State::Idle { turns: 1 };
                Step::Turn
            }
        }
    }

    fn block(&mut self, now: Timestamp) -> Step {
        self.state = State::Blocked { since: now };
        self.counts.blocked += 1;
        Step::Block
    }

    fn gather(&mut self, now: Timestamp, came: Came, lingers: bool) -> Step {
        match came {
            Came::Work { packets, is_more } => self.gather_more(now, packets, is_more),
            Came::Nothing if self.state == State::Working && !lingers => self.block(now),
            Came::Nothing => self.block_when_idle(now, came),
        }
    }

    /// Sleeps after work as long as the ladder says.
    fn gather_more(&mut self, now: Timestamp, packets: u32, is_more: bool) -> Step {
        if packets > 0 {
            self.ladder.note(now, packets);
        }
        let time = self.ladder.rung();
        if is_more || packets == 0 || time.is_zero() {
            self.state = State::Working;
            return Step::Turn;
        }
        self.state = State::Gathering { since: now };
        self.counts.gathered += 1;
        Step::Gather(time)
    }

    fn spin(&mut self, now: Timestamp, came: Came, longest: Duration, percent: u32) -> Step {
        match (came, self.state) {
            (Came::Nothing, State::Working | State::Gathered) => {
                self.budget.begin(now, percent);
                self.state = State::Spinning { since: now };
                Step::Turn
            }
            (Came::Nothing, State::Spinning { since }) => {
                if now.since(since) >= self.budget.limit(longest, percent) {
                    self.budget.spend(now, since, percent);
                    self.state = State::Idle { turns: 0 };
                }
                Step::Turn
            }
            // Commands and the like give no reason to expect a packet.
            (
                Came::Work { packets: 0, .. },
                State::Working | State::Gathered | State::Spinning { .. },
            ) => Step::Turn,
            (Came::Work { packets: 0, .. }, _) => {
                self.state = State::Idle { turns: 0 };
                Step::Turn
            }
            (Came::Work { packets, is_more }, state) => {
                if let State::Spinning { since } = state {
                    self.budget.spend(now, since, percent);
                }
                if !matches!(state, State::Working | State::Gathered) {
                    self.budget.judge(now, longest);
                }
                self.gather_more(now, packets, is_more)
            }
            (Came::Nothing, _) => self.block_when_idle(now, came),
        }
    }
}

impl Budget {
    /// Adds what has come in since it was last counted. The worker begins to stay awake.
    fn begin(&mut self, now: Timestamp, percent: u32) {
        let share = BUDGET_PERIOD * percent / 100;
        let earned = now.since(self.counted).min(BUDGET_PERIOD) * percent / 100;
        self.left = (self.left + earned).min(share);
        self.counted = now;
        self.last_packet = Some(now);
    }

    /// How long the worker may stay awake.
    fn limit(&self, longest: Duration, percent: u32) -> Duration {
        match (self.is_worth_it, 100_u32.checked_sub(percent)) {
            (false, _) => Duration::ZERO,
            (true, None | Some(0)) => longest,
            // The budget earns while it is spent.
            (true, Some(rest)) => longest.min(self.left * 100 / rest),
        }
    }

    fn spend(&mut self, now: Timestamp, since: Timestamp, percent: u32) {
        let time = now.since(since);
        self.left = (self.left + time * percent / 100).saturating_sub(time);
        self.counted = now;
    }

    /// A packet has come. It is worth to wait for the next one if this one was worth the wait.
    fn judge(&mut self, now: Timestamp, longest: Duration) {
        self.is_worth_it = self.last_packet.is_none_or(|last| now.since(last) <= longest);
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
