//! The differences in a case: verdicts, answers, translations, and nft's listing.

use std::fmt::Write;

use flow::Timestamp;
use ruleset::Step;
use serde_json::Value;

use super::generate::{Case, Traffic};
use super::kernel::{Judged, hex};
use super::ours::{Ours, imported, segment_size};

/// None if nft could not list the case.
pub fn differences(case: &Case, judged: &Judged, traffic: Traffic) -> Option<String> {
    let mut found = String::new();
    let [before, after] = judged.listed.as_ref()?;
    let ruleset = match imported(before) {
        Ok(ruleset) => ruleset,
        Err(refused) => return Some(refused),
    };
    let begin = Timestamp::ZERO.after(judged.answers[0].at);
    let mut indexed = Ours::new(ruleset.clone(), traffic, true, begin);
    let mut linear = Ours::new(ruleset, traffic, false, begin);
    assert_eq!(judged.answers.len(), case.packets.len());
    let mut end = Timestamp::ZERO;
    for (number, (packet, answer)) in case.packets.iter().zip(&judged.answers).enumerate() {
        end = Timestamp::ZERO.after(answer.at);
        let ours = indexed.judge(packet, answer, end);
        assert_eq!(linear.judge(packet, answer, end), ours, "with and without index");
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
        for (stage, step) in ours.steps {
            let Step::Rule(rule) = step else { continue };
            let rule = &indexed.program().ruleset().rules()[rule.index()];
            writeln!(found, "    {} handle {:?}", stage.name(), rule.handle).unwrap();
        }
    }
    let ours = indexed.listed(before, end);
    let theirs = serde_json::from_str(after).expect("nft prints JSON");
    found += &different_objects(&ours, &theirs);
    Some(found)
}

/// The differences between two listings, object by object, without the parts that depend on time.
pub fn different_objects(ours: &Value, theirs: &Value) -> String {
    let mut found = String::new();
    assert_eq!(objects(ours).count(), objects(theirs).count(), "objects are listed");
    for (ours, theirs) in objects(ours).zip(objects(theirs)) {
        let (ours, theirs) = (comparable(ours), comparable(theirs));
        if ours != theirs {
            writeln!(found, "kernel {theirs}\nours   {ours}").unwrap();
        }
    }
    found
}

/// All but rules about what comes for the host: only the kernel counts there.
fn objects(document: &Value) -> impl Iterator<Item = &Value> {
    let all = document["nftables"].as_array().expect("a list of objects").iter();
    all.filter(|object| object["rule"]["chain"] != "input")
}

/// An object without the parts that depend on time and without the order of elements.
fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    strip(&mut object);
    // The kernel also counts the packet that exceeded the quota.
    if let Some(Value::Object(quota)) = object.get_mut("quota") {
        quota.remove("used");
    }
    for kind in ["set", "map"] {
        if let Some(Value::Array(elements)) =
            object.get_mut(kind).and_then(|set| set.get_mut("elem"))
        {
            for element in elements.iter_mut() {
                if let Some(value) = element.get("elem").and_then(|it| it.get("val")).cloned() {
                    *element = value;
                }
            }
            elements.sort_by_key(Value::to_string);
        }
    }
    object
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("expires");
            if fields.contains_key("val_unit") {
                fields.remove("used");
                fields.remove("used_unit");
            }
            if fields.contains_key("val") && !fields.contains_key("stmt") {
                fields.retain(|name, _| name == "val");
            }
            fields.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}
