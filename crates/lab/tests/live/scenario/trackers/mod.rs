//! Sends dialogues through both trackers, packet by packet, and compares them.

pub mod dialogue;
pub mod kernel;
pub mod outcome;
mod reason;
pub mod stateway;
mod transcript;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use conntrack::TrackingCause;
use lab::Result;

use self::dialogue::{Dialogue, Side, Step};
use self::kernel::{Answer, Kernel};
use self::outcome::{Class, Outcome};
use self::stateway::{Given, Ours};
use self::transcript::outline;
use crate::scenario::seeds;

/// The number of dialogues that are in the table together. They share its tunables.
pub const BATCH: u64 = 500;
/// A pause after which an entry with one second left has timed out.
pub const A_SECOND_IS_OVER: Duration = Duration::from_millis(1200);
/// The number of dialogues that a failure lists.
const MOST_LISTED: usize = 5;

/// The largest delay in seconds until the kernel lists its expectations.
const SLACK_S: u64 = 20;

/// The definition of a comparison.
pub struct Comparison {
    pub name: &'static str,
    /// The number of dialogues, unless `STATEWAY_SEEDS` gives another.
    pub seeds: u64,
    /// The pause of all dialogues of a batch.
    pub pause: fn(u64) -> Duration,
    /// A time after which a tracker treats an entry differently. If on a busy machine it may have
    /// passed for only one of both, the dialogue is not compared.
    pub turns_after: Option<Duration>,
    /// The tunables of a batch.
    pub tunables: fn(u64) -> Vec<(String, u64)>,
    /// The dialogue of a seed.
    pub generate: fn(u64) -> Dialogue,
    /// The rule that explains a difference in the last packet; none if it is a bug.
    pub rule: fn(&[Observation<'_>]) -> Option<&'static str>,
    /// All rules. A run has to meet each of them.
    pub rules: &'static [&'static str],
    /// False for a dialogue whose entries may differ although every packet was the same to both.
    pub lists_alike: fn(&[Observation<'_>]) -> bool,
    /// Explains differences between the expectations at the end. None if they are not compared.
    pub expected: Option<Expected>,
}

/// Gives the rule that explains a line in the list of expectations after a whole dialogue.
pub type Expected = fn(&[Observation<'_>], Unlike, &str) -> Option<&'static str>;

/// A difference between the expectations of the kernel and ours after a dialogue in which every
/// packet was the same to both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlike {
    OnlyKernel,
    OnlyOurs,
    /// Both expect it, with different times.
    Time,
}

impl Unlike {
    /// False if only the kernel expects it, `None` if both do.
    pub fn is_only_ours(self) -> Option<bool> {
        match self {
            Self::OnlyOurs => Some(true),
            Self::OnlyKernel => Some(false),
            Self::Time => None,
        }
    }
}

/// A packet and the results of both trackers.
pub struct Observation<'a> {
    pub from: Side,
    pub frame: &'a [u8],
    pub kernel: Outcome,
    /// The kernel's log message.
    pub log: &'a str,
    pub ours: Outcome,
    pub why: Option<TrackingCause>,
    at: Duration,
    took: Duration,
    /// A description of the change to the timer just before, for the transcript.
    aged: String,
}

impl Observation<'_> {
    /// False if only the kernel saw the connection announced, `None` for other differences of
    /// class.
    pub fn is_announced_only_to_us(&self) -> Option<bool> {
        match (self.kernel.class, self.ours.class) {
            (Class::New, Class::Related) => Some(true),
            (Class::Related, Class::New) => Some(false),
            _ => None,
        }
    }

    /// True if the packet may have come before `time` after the packet `before` for one tracker and
    /// after it for the other.
    fn straddles(&self, before: &Observation<'_>, time: Duration) -> bool {
        let shortest = self.at.saturating_sub(before.at + before.took);
        let longest = self.at + self.took - before.at;
        (shortest..=longest).contains(&time)
    }

    fn agrees(&self) -> bool {
        self.kernel.agrees(&self.ours, self.took) && reason::agree(self.why, self.log)
    }
}

#[derive(Default)]
struct Totals {
    dialogues: usize,
    packets: usize,
    /// The number of dialogues that were not compared because the machine was too busy.
    undecided: usize,
    rules: BTreeMap<&'static str, usize>,
    /// The transcripts of differences that no rule explains.
    unexplained: Vec<String>,
}

impl Comparison {
    pub fn run(&self) -> Result<()> {
        self.run_in(&Kernel::new()?)
    }

    pub fn run_in(&self, kernel: &Kernel) -> Result<()> {
        self.run_with(kernel, Given::default())
    }

    /// The same where rules on the kernel's side give timeouts or zones to connections.
    pub fn run_with(&self, kernel: &Kernel, given: Given) -> Result<()> {
        let mut totals = Totals::default();
        let seeds = seeds(self.seeds);
        let mut seed = seeds.start;
        while seed < seeds.end && totals.unexplained.len() < MOST_LISTED {
            let batch = seed / BATCH;
            let end = seeds.end.min((batch + 1) * BATCH);
            let dialogues: Vec<Dialogue> = (seed..end).map(self.generate).collect();
            kernel.tune(&(self.tunables)(batch))?;
            let answers = kernel.play(&dialogues, (self.pause)(batch))?;
            self.compare(
                Ours::new(&(self.tunables)(batch), given),
                &(self.tunables)(batch),
                &dialogues,
                &answers,
                &[kernel.list("conntrack")?, kernel.list("expect")?],
                &mut totals,
            );
            seed = end;
        }
        let Totals { dialogues, packets, undecided, rules, mut unexplained } = totals;
        println!(
            "{}: {dialogues} dialogues ({undecided} undecided), {packets} packets, known: {rules:#?}",
            self.name
        );
        assert!(undecided * 20 <= dialogues, "{undecided} of {dialogues} dialogues are undecided");
        unexplained.truncate(MOST_LISTED);
        assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
        // Seeds given by the caller need not meet all rules.
        for rule in self.rules.iter().filter(|_| std::env::var("STATEWAY_SEEDS").is_err()) {
            assert!(rules.contains_key(rule), "no dialogue shows: {rule}");
        }
        Ok(())
    }

    fn compare(
        &self,
        mut ours: Ours,
        tunables: &[(String, u64)],
        dialogues: &[Dialogue],
        answers: &[Answer],
        [listed, expected]: &[Vec<String>; 2],
        totals: &mut Totals,
    ) {
        let mut all = observe(dialogues, answers, &mut ours);
        totals.dialogues += dialogues.len();
        totals.packets += all.iter().map(Vec::len).sum::<usize>();
        let mut differ = HashSet::new();
        for (dialogue, observations) in dialogues.iter().zip(&mut all) {
            let ends = together(dialogue);
            if !(self.lists_alike)(observations) {
                differ.insert(ends.clone());
            }
            let Some(at) = observations.iter().position(|it| !it.agrees()) else { continue };
            // A difference causes further differences.
            observations.truncate(at + 1);
            differ.insert(ends);
            if let Some(time) = self.turns_after
                && let Some((last, before)) = observations.split_last()
                && before.iter().any(|before| last.straddles(before, time))
            {
                totals.undecided += 1;
                continue;
            }
            match (self.rule)(observations) {
                Some(rule) => *totals.rules.entry(rule).or_default() += 1,
                None => totals.unexplained.push(format!(
                    "{} seed {}, {tunables:?}\n{}",
                    self.name,
                    dialogue.seed,
                    transcript(observations)
                )),
            }
        }
        totals.unexplained.extend(only_in_one(listed, &ours.list(), &differ));
        let Some(rule) = self.expected else { return };
        for (ends, unlike, line) in expected_otherwise(expected, &ours.list_expected()) {
            let [one, other] = ends.map(|end| end.parse::<IpAddr>().expect("an address"));
            let is_between = |it: &Dialogue| {
                [[one, other], [other, one]].contains(&[it.ends.client, it.ends.server])
            };
            let number = dialogues.iter().position(is_between).expect("a dialogue");
            if differ.contains(&together(&dialogues[number])) {
                continue;
            }
            match rule(&all[number], unlike, line) {
                Some(rule) => *totals.rules.entry(rule).or_default() += 1,
                None => totals.unexplained.push(format!(
                    "{} seed {}, {unlike:?}: {line}\n{}",
                    self.name,
                    dialogues[number].seed,
                    transcript(&all[number])
                )),
            }
        }
    }
}

/// The addresses of a dialogue, as a key for the lists.
fn together(dialogue: &Dialogue) -> String {
    dialogue.ends.client.to_string() + &dialogue.ends.server.to_string()
}

/// Sends the packets that the kernel has answered through our tracker. Returns the results by
/// dialogue.
fn observe<'a>(
    dialogues: &'a [Dialogue],
    answers: &'a [Answer],
    ours: &mut Ours,
) -> Vec<Vec<Observation<'a>>> {
    let mut all: Vec<Vec<Observation<'_>>> = dialogues.iter().map(|_| Vec::new()).collect();
    let mut aged = vec![String::new(); dialogues.len()];
    let keys: Vec<_> = dialogues.iter().map(|dialogue| dialogue.key().0).collect();
    for answer in answers {
        let Answer { dialogue: number, step, at, until, said, log } = answer;
        let key = &keys[*number];
        match (&dialogues[*number].steps[*step], *said) {
            (Step::Send(from, frame), Some(kernel)) => {
                let (ours, why) = ours.track(frame, key, answer);
                let (took, aged) = (*until - *at, std::mem::take(&mut aged[*number]));
                let at = *at;
                all[*number].push(Observation {
                    from: *from,
                    frame,
                    kernel,
                    log,
                    ours,
                    why,
                    at,
                    took,
                    aged,
                });
            }
            (Step::Age(seconds), _) => {
                ours.age(key, *seconds, *at);
                writeln!(aged[*number], "    {seconds} s are left").unwrap();
            }
            (step, said) => panic!("{said:?} of {step:?}"),
        }
    }
    all
}

fn transcript(observations: &[Observation<'_>]) -> String {
    let mut text = String::new();
    for observation in observations {
        let Observation { from, frame, kernel, log, ours, why, aged, .. } = observation;
        let why = why.map_or(String::new(), |why| why.to_string());
        writeln!(text, "{aged}  {}", outline(*from, frame)).unwrap();
        if observation.agrees() {
            writeln!(text, "    {ours}. {why}").unwrap();
        } else {
            writeln!(text, "    kernel: {kernel}. {log}").unwrap();
            writeln!(text, "    ours:   {ours}. {why}").unwrap();
        }
    }
    text
}

/// The lines of one list that are missing in the other. Dialogues whose addresses are in `differ`
/// are left out.
fn only_in_one(kernel: &[String], ours: &[String], differ: &HashSet<String>) -> Vec<String> {
    let mut lines: HashMap<String, i32> = HashMap::new();
    for (line, weight) in kernel.iter().map(|line| (line, 1)).chain(ours.iter().map(|l| (l, -1))) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = |name| fields.iter().find_map(|field| field.strip_prefix(name));
        let (source, destination) = (address("src=").unwrap(), address("dst=").unwrap());
        let both = [source.to_owned() + destination, destination.to_owned() + source];
        if both.iter().all(|ends| !differ.contains(ends)) {
            // Without the remaining time, which was compared, and without the reference count: the
            // kernel's includes announced connections.
            let rest = [&fields[..2], &fields[3..fields.len() - 1]].concat().join(" ");
            *lines.entry(rest).or_default() += weight;
        }
    }
    // Our helper leaves a connection that speaks another protocol.
    let is_other = |field: &&str| !field.starts_with("helper=");
    let watched: Vec<String> =
        lines.keys().filter(|line| line.contains("helper=")).cloned().collect();
    for line in watched {
        let bare = line.split(' ').filter(is_other).collect::<Vec<_>>().join(" ");
        let left = lines[&line].min(-lines.get(&bare).copied().unwrap_or(0));
        if left > 0 {
            *lines.entry(line).or_default() -= left;
            *lines.entry(bare).or_default() += left;
        }
    }
    lines.retain(|_, weight| *weight != 0);
    let who = |weight| if weight > 0 { "the kernel" } else { "us" };
    lines
        .into_iter()
        .map(|(line, weight)| format!("only listed by {}: {line}", who(weight)))
        .collect()
}

/// The port of the expectation in this line.
pub fn expected_port(line: &str) -> u16 {
    let mut ports = line.split(' ').filter_map(|field| field.strip_prefix("dport="));
    ports.next().and_then(|port| port.parse().ok()).expect("a port")
}

/// The expectations in which the two lists differ, with the addresses of the master.
fn expected_otherwise<'a>(
    kernel: &'a [String],
    ours: &'a [String],
) -> Vec<([&'a str; 2], Unlike, &'a str)> {
    let parts = |line: &'a String| {
        let (time, rest) = line.split_once(' ').expect("a time");
        (time.parse::<u64>().expect("seconds"), rest)
    };
    let mut left: HashMap<&str, u64> = HashMap::new();
    left.extend(ours.iter().map(parts).map(|(time, rest)| (rest, time)));
    let mut unlike = Vec::new();
    for (time, rest) in kernel.iter().map(parts) {
        match left.remove(rest) {
            None => unlike.push((Unlike::OnlyKernel, rest)),
            Some(other) if time.abs_diff(other) > SLACK_S => unlike.push((Unlike::Time, rest)),
            Some(_) => {}
        }
    }
    unlike.extend(left.into_keys().map(|rest| (Unlike::OnlyOurs, rest)));
    let ends = |line: &'a str| {
        ["master-src=", "master-dst="].map(|name| {
            line.split(' ').find_map(|field| field.strip_prefix(name)).expect("an address")
        })
    };
    unlike.into_iter().map(|(unlike, line)| (ends(line), unlike, line)).collect()
}
