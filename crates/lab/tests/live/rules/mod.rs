//! Our rules beside the kernel's: the same ruleset, the same packets, and what became of
//! each of them and was counted.

mod gateways;
mod generate;
mod kernel;
mod ours;

use std::fmt::Write;

use flow::Timestamp;
use lab::Result;

use self::generate::{Case, case};
use self::kernel::{Answer, Kernel};
use self::ours::{Ours, imported};
use crate::scenario::alone;

/// Cases unless `STATEWAY_SEEDS` says otherwise.
const SEEDS: u64 = 60;
/// Differences that a failure tells of.
const TOLD: usize = 3;

#[test]
fn packets_are_judged_and_counted_as_by_the_kernel() {
    alone(|| compare(false));
}

#[test]
fn tracked_packets_are_judged_and_counted_as_by_the_kernel() {
    alone(|| compare(true));
}

/// Which seeds: `STATEWAY_SEEDS=N` is 0 to N - 1, `STATEWAY_SEEDS=A-B` is A to B.
fn seeds() -> std::ops::Range<u64> {
    let Ok(wanted) = std::env::var("STATEWAY_SEEDS") else { return 0..SEEDS };
    let number = |text: &str| text.parse::<u64>().expect("STATEWAY_SEEDS is N or A-B");
    match wanted.split_once('-') {
        Some((first, last)) => number(first)..number(last) + 1,
        None => 0..number(&wanted),
    }
}

fn compare(with_tracking: bool) -> Result<()> {
    let kernel = Kernel::new()?;
    let (mut told, mut packets, mut passed) = (Vec::new(), 0, 0);
    for seed in seeds() {
        let mut case = case(seed, with_tracking);
        case.rules = kernel.load(&case.rules)?;
        let Some(before) = kernel.list()? else { continue };
        let answers = kernel.play(&case.packets)?;
        let Some(after) = kernel.list()? else { continue };
        packets += answers.len();
        passed += answers.iter().filter(|answer| answer.passed).count();
        let differences = differences(&case, &before, &answers, &after, with_tracking);
        if !differences.is_empty() {
            told.push(format!("seed {seed}:\n{differences}\n{}", case.rules));
        }
        if told.len() >= TOLD {
            break;
        }
    }
    println!("{packets} packets, {passed} of them passed");
    assert!(told.is_empty(), "{}", told.join("\n"));
    // Neither all nor none, or the cases mean nothing.
    assert!(passed * 10 > packets && passed * 10 < packets * 9, "{passed} of {packets} passed");
    Ok(())
}

/// Packets that are judged, and rules that have counted, differently.
fn differences(
    case: &Case,
    before: &str,
    answers: &[Answer],
    after: &str,
    with_tracking: bool,
) -> String {
    let mut found = String::new();
    let ruleset = imported(before);
    let mut indexed = Ours::new(ruleset.clone(), with_tracking, true);
    let mut linear = Ours::new(ruleset.clone(), with_tracking, false);
    assert_eq!(answers.len(), case.packets.len());
    for (number, (packet, answer)) in case.packets.iter().zip(answers).enumerate() {
        let now = Timestamp::ZERO.after(answer.at);
        let (passes, steps) = indexed.judge(packet, now);
        assert_eq!(linear.judge(packet, now), (passes, steps.clone()), "with and without index");
        if passes != answer.passed {
            let ours = if passes { "passes" } else { "is dropped" };
            let frame: String = packet.frame.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(found, "packet {number} from {}: ours {ours}; {frame}", packet.side).unwrap();
            for step in steps {
                let ruleset::Step::Rule(rule) = step else { continue };
                let rule = &ruleset.rules()[rule.index()];
                writeln!(found, "    handle {:?}", rule.handle).unwrap();
            }
        }
    }
    let after = imported(after);
    for ((id, _), (_, counter)) in ruleset.counter_ids().zip(after.counter_ids()) {
        let ours = indexed.state().counted(id);
        if (ours.packets, ours.bytes) != (counter.packets, counter.bytes) {
            let theirs = (counter.packets, counter.bytes);
            let handle = ruleset.counting_rule(id).and_then(|rule| rule.handle);
            writeln!(found, "counter of {handle:?}: kernel {theirs:?}, ours {ours:?}").unwrap();
        }
    }
    let end = Timestamp::ZERO.after(answers.last().expect("packets were sent").at);
    for ((id, _), (_, set)) in ruleset.set_ids().zip(after.set_ids()) {
        let (theirs, ours) =
            (set.element_count(), indexed.state().elements(indexed.program(), id, end));
        if ours.is_some_and(|ours| ours != theirs) {
            writeln!(found, "set {:?}: kernel {theirs}, ours {ours:?}", set.name).unwrap();
        }
    }
    found
}
