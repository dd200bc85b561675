use proptest::prelude::*;

use super::*;

const LONGEST: Duration = Duration::from_millis(12);
const SPIN: Manner = Manner::Spin { longest: LONGEST, budget: 100, gather: Duration::ZERO };
const NOTHING: Came = Came::Nothing;
const ONE: Came = Came::Work { packets: 1, is_more: false };
const MORE: Came = Came::Work { packets: 64, is_more: true };
const COMMAND: Came = Came::Work { packets: 0, is_more: false };
/// The time that a turn takes here.
const TURN: Duration = Duration::from_micros(1);
/// The longest sleep of a worker.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

fn waiting(manner: Manner) -> Waiting {
    let mut waiting = Waiting::new(Timestamp::ZERO);
    waiting.set(Policy::None, manner);
    waiting
}

/// One that sleeps for a while after each packet.
fn gathering(lingers: bool) -> Waiting {
    let longest = Duration::from_micros(64);
    let mut waiting = waiting(Manner::Gather { longest, lingers });
    let mut now = Timestamp::from_nanos(99_800_000_000);
    // Each turn brings many packets, however long they gather.
    while waiting.ladder.rung() < longest {
        now = now.after(Duration::from_micros(50));
        waiting.ladder.note(now, 1 + waiting.ladder.rung().as_micros() as u32);
    }
    waiting
}

/// A worker under virtual time. Packets come at certain times.
struct Worker {
    waiting: Waiting,
    now: Timestamp,
    /// Times when it was asleep as a packet came.
    woken_by: u64,
    turns: u64,
}

impl Worker {
    fn new(manner: Manner) -> Self {
        Self { waiting: waiting(manner), now: Timestamp::ZERO, woken_by: 0, turns: 0 }
    }

    /// Runs until `end`, while packets come at `arrivals`, in their order.
    fn run(&mut self, arrivals: &[Timestamp], end: Timestamp) {
        let mut arrivals = arrivals.iter().copied().peekable();
        while self.now < end {
            self.now = self.now.after(TURN);
            self.turns += 1;
            let mut packets = 0;
            while arrivals.next_if(|at| *at <= self.now).is_some() {
                packets += 1;
            }
            let came =
                if packets > 0 { Came::Work { packets, is_more: false } } else { Came::Nothing };
            match self.waiting.after_turn(self.now, came) {
                Step::Turn => continue,
                Step::Gather(time) => self.now = self.now.after(time),
                Step::Block => {
                    let next = arrivals.peek().copied().unwrap_or(Timestamp::NEVER);
                    let timer = self.now.after(LONGEST_SLEEP);
                    self.woken_by += u64::from(next < timer);
                    self.now = self.now.max(next.min(timer));
                }
            }
            self.waiting.woken(self.now);
        }
    }
}

/// A worker that stays awake, and that has found that more packets pass if it sleeps in between.
fn spinning_and_gathering() -> Waiting {
    let gather = Duration::from_micros(64);
    let mut waiting = waiting(Manner::Spin { longest: LONGEST, budget: 100, gather });
    waiting.budget.is_worth_it = true;
    let mut now = Timestamp::from_nanos(99_800_000_000);
    while waiting.ladder.rung() < gather {
        now = now.after(Duration::from_micros(50));
        waiting.ladder.note(now, 1 + waiting.ladder.rung().as_micros() as u32);
    }
    waiting
}

#[test]
fn the_transition_matrix() {
    let now = Timestamp::from_secs(100);
    let since = |back: Duration| Timestamp::from_nanos(now.as_nanos() - back.as_nanos() as u64);
    let states = [
        ("Working", State::Working),
        ("Spinning, 1 ms", State::Spinning { since: since(Duration::from_millis(1)) }),
        ("Spinning, 12 ms", State::Spinning { since: since(LONGEST) }),
        ("Idle, 49 turns", State::Idle { turns: 49 }),
        ("Idle, 50 turns", State::Idle { turns: 50 }),
        ("Gathering", State::Gathering { since: since(TURN) }),
        ("Gathered", State::Gathered),
        ("Blocked, 1 ms", State::Blocked { since: since(Duration::from_millis(1)) }),
        ("Blocked, 200 ms", State::Blocked { since: since(LONGEST_SLEEP) }),
    ];
    let mut spinning = waiting(SPIN);
    spinning.budget.is_worth_it = true;
    let manners = [
        ("block", waiting(Manner::Block)),
        ("gather, lingers", gathering(true)),
        ("gather", gathering(false)),
        ("spin", spinning),
        ("spin, gathers", spinning_and_gathering()),
    ];
    let mut matrix = String::new();
    for (manner, waiting) in &manners {
        for (name, state) in states {
            let is_asleep = matches!(state, State::Gathering { .. } | State::Blocked { .. });
            let events: &[(&str, Option<Came>)] = if is_asleep {
                &[("woken", None)]
            } else {
                let [nothing, command] = [("nothing", NOTHING), ("command", COMMAND)];
                let [one, more] = [("packets", ONE), ("full batch", MORE)];
                &[nothing, command, one, more].map(|(name, came)| (name, Some(came)))
            };
            for (event, came) in events {
                let mut waiting = Waiting { state, ..waiting.clone() };
                let step = came.map(|came| waiting.after_turn(now, came));
                if came.is_none() {
                    waiting.woken(now);
                }
                let next = format!("{:?}", waiting.state);
                let next = next.replace("Timestamp(100000000000)", "now");
                let step = step.map_or("-".to_owned(), |step| format!("{step:?}"));
                matrix += &format!("{manner:15} | {name:15} | {event:10} | {next:30} | {step}\n");
            }
        }
    }
    insta::assert_snapshot!(matrix);
}

/// A worker without a policy, as it was before there were policies.
#[derive(Default)]
struct Plain {
    idle_turns: u32,
}

impl Plain {
    fn after_turn(&mut self, came: Came) -> Step {
        if came != Came::Nothing {
            self.idle_turns = 0;
            return Step::Turn;
        }
        self.idle_turns += 1;
        if self.idle_turns <= IDLE_TURNS {
            return Step::Turn;
        }
        self.idle_turns = 0;
        Step::Block
    }
}

fn came() -> impl Strategy<Value = Came> {
    prop_oneof![6 => Just(NOTHING), 2 => Just(ONE), 1 => Just(MORE), 1 => Just(COMMAND)]
}

fn manner() -> impl Strategy<Value = Manner> {
    prop_oneof![
        Just(Manner::Block),
        (0_u64..500, any::<bool>()).prop_map(|(us, lingers)| {
            Manner::Gather { longest: Duration::from_micros(us), lingers }
        }),
        (0_u64..50_000, 0_u32..=100, 0_u64..500).prop_map(|(us, budget, gather)| {
            let [longest, gather] = [us, gather].map(Duration::from_micros);
            Manner::Spin { longest, budget, gather }
        }),
    ]
}

/// Times of packets with gaps of up to so many microseconds.
fn arrivals(gaps_us: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Timestamp>> {
    prop::collection::vec(gaps_us, 1..200).prop_map(|gaps| {
        let times = gaps.iter().scan(Timestamp::ZERO, |now, gap| {
            *now = now.after(Duration::from_micros(*gap));
            Some(*now)
        });
        times.collect()
    })
}

proptest! {
    #[test]
    fn without_a_policy_a_worker_waits_as_it_did_before(
        turns in prop::collection::vec((came(), 1_usize..80, 0_u64..300), 1..60),
    ) {
        let (mut plain, mut waiting) = (Plain::default(), waiting(Manner::Block));
        let mut now = Timestamp::ZERO;
        for (came, times, sleep_ms) in turns {
            for _ in 0..times {
                let step = waiting.after_turn(now, came);
                prop_assert_eq!(step, plain.after_turn(came));
                if step == Step::Block {
                    now = now.after(Duration::from_millis(sleep_ms));
                    waiting.woken(now);
                }
            }
        }
    }

    /// The promise of LATENCY: packets up to 10 ms apart find the worker awake.
    #[test]
    fn packets_close_together_find_the_worker_awake(arrivals in arrivals(1..10_000)) {
        let mut worker = Worker::new(SPIN);
        worker.run(&arrivals[..1], arrivals[0].after(TURN));
        let before = worker.woken_by;
        worker.run(&arrivals[1..], *arrivals.last().unwrap());
        prop_assert_eq!(worker.woken_by, before);
    }

    /// Whatever was before, a worker sleeps for nearly all of the time after a second of silence.
    #[test]
    fn silence_costs_nearly_nothing(manner in manner(), arrivals in arrivals(1..30_000)) {
        let mut worker = Worker::new(manner);
        let silent = arrivals.last().unwrap().after(Duration::from_secs(1));
        worker.run(&arrivals, silent);
        let (asleep, turns, then) = (worker.waiting.counts.asleep, worker.turns, worker.now);
        worker.run(&[], then.after(Duration::from_secs(10)));
        let time = worker.now.since(then);
        prop_assert!(worker.waiting.counts.asleep - asleep >= time * 98 / 100);
        // The timers of all buckets still turn.
        prop_assert!(worker.turns - turns >= 10 * 5 * u64::from(IDLE_TURNS) - 10);
    }

    #[test]
    fn staying_awake_keeps_within_the_budget(
        budget in 1_u32..100,
        arrivals in arrivals(100..30_000),
    ) {
        let mut worker = Worker::new(Manner::Spin { longest: LONGEST, budget, gather: Duration::from_micros(64) });
        worker.run(&arrivals, *arrivals.last().unwrap());
        let (time, asleep) = (worker.now.since(Timestamp::ZERO), worker.waiting.counts.asleep);
        // Each packet costs the turns that a worker without a policy takes, too.
        let turns = TURN * (arrivals.len() as u32 + worker.waiting.counts.blocked as u32 + 1);
        let base = turns * (IDLE_TURNS + 4);
        prop_assert!(time - asleep <= (time + BUDGET_PERIOD) * budget / 100 + base);
    }

    /// Gathering is bounded, no full batch waits for it, and a look follows each sleep.
    #[test]
    fn packets_gather_for_a_bounded_time_once(
        manner in manner(),
        turns in prop::collection::vec((came(), 1_u64..200), 1..5000),
    ) {
        let (mut waiting, mut now) = (waiting(manner), Timestamp::ZERO);
        for (came, gap) in turns {
            now = now.after(Duration::from_micros(gap));
            let step = waiting.after_turn(now, came);
            if let Step::Gather(time) = step {
                let longest = match manner {
                    Manner::Gather { longest, .. } | Manner::Spin { gather: longest, .. } => longest,
                    Manner::Block => Duration::ZERO,
                };
                prop_assert!(time <= longest && came == ONE && !time.is_zero());
            }
            prop_assert!(step != Step::Block || came == NOTHING);
            if step != Step::Turn {
                now = now.after(Duration::from_micros(gap));
                waiting.woken(now);
            }
        }
        let counts = waiting.counts(now);
        prop_assert!(counts.asleep <= counts.time);
    }
}

#[test]
fn packets_far_apart_are_not_waited_for() {
    let gap = Duration::from_millis(100);
    let arrivals: Vec<_> = (1..100).map(|at| Timestamp::ZERO.after(gap * at)).collect();
    let mut worker = Worker::new(SPIN);
    worker.run(&arrivals, *arrivals.last().unwrap());
    let asleep = worker.waiting.counts.asleep;
    assert!(asleep >= worker.now.since(Timestamp::ZERO) * 99 / 100, "{asleep:?}");
}

#[test]
fn the_strictest_policy_is_the_one_that_delays_least() {
    use Policy::{Bulk, Cpu, Latency, Mix, None};
    for (policies, strictest) in [
        (&[][..], None),
        (&[Cpu], Cpu),
        (&[Cpu, Bulk], Bulk),
        (&[Bulk, None], None),
        (&[None, Mix, Bulk], Mix),
        (&[Mix, Latency], Latency),
    ] {
        assert_eq!(Policy::strictest(policies.iter().copied()), strictest, "{policies:?}");
    }
}

#[test]
fn a_policy_that_is_set_again_forgets_nothing() {
    let manner = Manner::Gather { longest: Duration::from_micros(64), lingers: true };
    let mut waiting = gathering(true);
    waiting.set(Policy::Bulk, manner);
    assert_eq!(waiting.ladder.rung(), Duration::from_micros(64));
    waiting.set(Policy::None, Manner::Block);
    assert_eq!((waiting.policy(), waiting.ladder.rung()), (Policy::None, Duration::ZERO));
}
