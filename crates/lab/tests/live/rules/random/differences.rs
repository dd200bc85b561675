//! The differences in a case: verdicts, answers, translations, and nft's listing.

use std::fmt::Write;

use flow::Timestamp;
use ruleset::Step;

use super::generate::{Case, Traffic};
use super::kernel::CaseOutcome;
use super::stateway::{Ours, imported, segment_size};
use crate::scenario::{different_objects, hex};

/// None if nft could not list the case.
pub fn differences(case: &Case, outcome: &CaseOutcome, traffic: Traffic) -> Option<String> {
    let mut found = String::new();
    let [before, after] = outcome.listed.as_ref()?;
    let ruleset = match imported(before) {
        Ok(ruleset) => ruleset,
        Err(refused) => return Some(refused),
    };
    let begin = Timestamp::ZERO.after(outcome.answers[0].at);
    let mut indexed = Ours::new(ruleset.clone(), traffic, true, (outcome.wall, outcome.cpu), begin);
    let mut linear = Ours::new(ruleset, traffic, false, (outcome.wall, outcome.cpu), begin);
    assert_eq!(outcome.answers.len(), case.packets.len());
    let mut end = Timestamp::ZERO;
    for (number, (packet, answer)) in case.packets.iter().zip(&outcome.answers).enumerate() {
        end = Timestamp::ZERO.after(answer.at);
        let ours = indexed.evaluate(packet, answer, end);
        assert_eq!(linear.evaluate(packet, answer, end), ours, "with and without index");
        let mut different = Vec::new();
        match (&answer.out, ours.passes) {
            (Some(_), false) => different.push("the kernel's passes".to_owned()),
            (None, true) => different.push("ours passes".to_owned()),
            (Some((_, out)), true) if segment_size(out) != ours.segment_size => {
                let theirs = segment_size(out);
                different.push(format!("sizes are {theirs:?}, {:?}", ours.segment_size));
            }
            (None, false) if answer.refused != ours.refused => {
                different.push(format!("answers are {:?}, {:?}", answer.refused, ours.refused));
            }
            _ => {}
        }
        different.extend(ours.mistranslated);
        if different.is_empty() {
            continue;
        }
        let (what, frame) = (different.join(", "), hex(&packet.frame));
        writeln!(found, "packet {number} from {:?}: {what}; {frame}", packet.side).unwrap();
        for (hook, step) in ours.steps {
            let Step::Rule(rule) = step else { continue };
            let rule = &indexed.program().ruleset().rules()[rule.index()];
            writeln!(found, "    {} handle {:?}", hook.name(), rule.handle).unwrap();
        }
    }
    let ours = indexed.listed(before, end);
    let theirs = serde_json::from_str(after).expect("nft prints JSON");
    found += &different_objects(&ours, &theirs);
    Some(found)
}
