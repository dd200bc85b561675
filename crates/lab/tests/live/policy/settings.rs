//! Policies of a device are applied and taken back, whatever happens in between.

use lab::Result;
use serde_json::Value;

use super::device::Device;
use crate::scenario::beside_others;

/// The writes of an answer, without the values that they have left.
fn writes(answer: &Value) -> Vec<Value> {
    let mut actions = answer["actions"].as_array().unwrap().clone();
    for action in &mut actions {
        action.as_object_mut().unwrap().remove("applied");
    }
    actions
}

fn ids(answer: &Value) -> Vec<&str> {
    let actions = answer["actions"].as_array().unwrap();
    actions.iter().map(|action| action["id"].as_str().unwrap()).collect()
}

#[test]
fn a_plan_is_what_apply_writes_and_rollback_leaves_no_trace() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        for policy in ["bulk", "cpu", "latency", "mix"] {
            let plan = device.json(&["plan", "lan0", policy])?;
            let planned = writes(&plan);
            let done = device.json(&["apply", "lan0", policy])?;
            assert_eq!(planned, writes(&done));
            for action in done["actions"].as_array().unwrap() {
                assert_eq!(action["applied"], action["new"], "{action}");
            }
            let verified = device.policy(&["verify", "lan0"])?.check()?;
            assert_eq!(verified, format!("lan0: {policy} is in force\n"));
            let again = device.json(&["apply", "lan0", policy])?;
            assert_eq!(ids(&again), [""; 0], "{policy} needs no second write");
        }
        let mix = device.reading()?;
        assert!(mix.contains("napi-0 defer-hard-irqs=0 gro-flush-timeout=0"), "{mix}");
        assert!(mix.contains("napi-1 defer-hard-irqs=2 gro-flush-timeout=64000"), "{mix}");
        assert_eq!(device.journals().len(), 1);
        device.rollback()?;
        assert_eq!(device.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        let none = device.policy(&["verify", "lan0"])?.check()?;
        assert_eq!(none, "lan0: no policy applies; there are bulk, cpu, latency, mix\n");
        Ok(())
    });
}

/// Has a command die at each of its steps in turn, and then puts back what was there.
fn dies_at_each_step(prepare: impl Fn(&Device) -> Result<()>, words: &[&str]) -> Result<()> {
    let device = Device::veth()?;
    let before = device.reading()?;
    for step in 0.. {
        prepare(&device)?;
        let is_over = device.dies_at(step, words)?;
        device.rollback()?;
        assert_eq!(device.reading()?, before, "step {step} of {words:?}");
        assert_eq!(device.journals().len(), 0);
        if is_over {
            assert!(step > 4, "{words:?} had {step} steps");
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn a_process_that_dies_at_any_write_leaves_nothing_that_rollback_does_not_put_back() {
    beside_others(|| dies_at_each_step(|_| Ok(()), &["apply", "lan0", "bulk"]));
}

#[test]
fn a_second_policy_that_dies_keeps_the_first_values() {
    beside_others(|| {
        let bulk = |device: &Device| device.policy(&["apply", "lan0", "bulk"])?.check().map(drop);
        dies_at_each_step(bulk, &["apply", "lan0", "mix"])
    });
}

#[test]
fn a_rollback_that_dies_is_continued_by_the_next() {
    beside_others(|| {
        let mix = |device: &Device| device.policy(&["apply", "lan0", "mix"])?.check().map(drop);
        dies_at_each_step(mix, &["rollback", "lan0"])
    });
}

#[test]
fn a_device_that_becomes_another_between_any_two_writes_is_not_written() {
    beside_others(|| {
        let device = Device::veth()?;
        let again = |how: &str| -> Result<String> {
            device.ip(&["link del lan0"])?;
            device.make(how)?;
            device.reading()
        };
        let fresh = again("index 77")?;
        let replace = "ip link del lan0 && ip link add lan0 index 77 numrxqueues 2 numtxqueues 2 \
                       type veth peer name far0 && ip link set lan0 up && ip link set far0 up && \
                       ethtool -K lan0 gro on";
        for step in 0.. {
            let (output, has_run) = device.meanwhile(step, replace, &["apply", "lan0", "bulk"])?;
            if !has_run {
                assert_eq!(output.code, Some(0), "{output:?}");
                break;
            }
            assert_eq!(output.code, Some(1), "step {step}: {output:?}");
            assert_eq!(device.reading()?, fresh, "step {step}: {output:?}");
            device.rollback()?;
            assert_eq!(device.reading()?, fresh, "step {step}");
            device.delete_journals();
            again("index 77")?;
        }
        Ok(())
    });
}

#[test]
fn a_device_that_is_renamed_between_any_two_writes_is_followed() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        for step in 0.. {
            let rename = "ip link set lan0 name lan9 && ip link add lan0 type veth peer name far9";
            let (output, has_run) = device.meanwhile(step, rename, &["apply", "lan0", "bulk"])?;
            assert_eq!(output.code, Some(0), "step {step}: {output:?}");
            if !has_run {
                break;
            }
            device.policy(&["verify", "lan9"])?.check()?;
            device.policy(&["rollback", "lan9"])?.check()?;
            device.ip(&["link del lan0", "link set lan9 name lan0"])?;
            assert_eq!(device.reading()?, before, "step {step}");
        }
        Ok(())
    });
}

/// A write of another program between the last look and the write is lost, because the kernel can not
/// compare and write at once. The value of the NAPI is written twice, first with that of the device.
#[test]
fn a_write_of_another_program_between_any_two_writes_stays() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        let napi = device.napi_command("0 gro-flush-timeout 123456")?;
        let others = format!("{napi} && echo 3 >/sys/class/net/lan0/queues/tx-1/xps_cpus");
        let (mut steps, mut lost) = (0, 0);
        for step in 0.. {
            let (output, has_run) = device.meanwhile(step, &others, &["apply", "lan0", "bulk"])?;
            assert_eq!(output.code, Some(0), "step {step}: {output:?}");
            if !has_run {
                break;
            }
            device.rollback()?;
            let after = device.reading()?;
            let is_lost = |value| usize::from(!after.contains(value));
            lost += is_lost("gro-flush-timeout=123456") + is_lost("tx-1/xps_cpus:3");
            let own = after.replacen("=123456", "=0", 1);
            assert_eq!(own.replace("tx-1/xps_cpus:3", "tx-1/xps_cpus:0"), before, "step {step}");
            device.other_sets_napi(0, "gro-flush-timeout", 0)?;
            device.other_writes("queues/tx-1/xps_cpus", "0")?;
            steps = step;
        }
        assert!(steps > 10 && lost == 3, "{lost} lost at {steps} steps");
        Ok(())
    });
}

#[test]
fn values_of_others_are_left_and_named() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        device.policy(&["apply", "lan0", "bulk"])?.check()?;
        device.other_sets_napi(0, "gro-flush-timeout", 123_456)?;
        device.other_writes("queues/tx-1/xps_cpus", "3")?;
        let verified = device.policy(&["verify", "lan0"])?.run()?;
        assert_eq!(verified.code, Some(1), "{verified:?}");
        for part in ["napi-0/gro-flush-timeout", "123456", "tx-1/xps_cpus", "another program"] {
            assert!(verified.stdout.contains(part), "no {part}: {}", verified.stdout);
        }
        // Neither another policy nor its end writes them.
        for policy in ["cpu", "latency", "cpu"] {
            device.policy(&["apply", "lan0", policy])?.check()?;
            let reading = device.reading()?;
            assert!(reading.contains("gro-flush-timeout=123456"), "{reading}");
        }
        let output = device.rollback()?;
        assert!(output.stdout.contains("another program has set it to 123456"), "{output:?}");
        let expected = before
            .replacen("gro-flush-timeout=0", "gro-flush-timeout=123456", 1)
            .replace("tx-1/xps_cpus:0", "tx-1/xps_cpus:3");
        assert_eq!(device.reading()?, expected);
        assert_eq!(device.journals().len(), 0);
        Ok(())
    });
}

#[test]
fn a_link_that_goes_down_and_up_is_seen_and_its_new_napis_are_put_back() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        device.policy(&["apply", "lan0", "mix"])?.check()?;
        device.ip(&["link set lan0 down", "link set lan0 up"])?;
        // The new NAPIs have the device's values, so the first has lost its own.
        let verified = device.policy(&["verify", "lan0"])?.run()?;
        assert_eq!(verified.code, Some(1), "{verified:?}");
        assert!(verified.stdout.contains("napi-0/gro-flush-timeout"), "{verified:?}");
        device.policy(&["apply", "lan0", "mix"])?.check()?;
        device.policy(&["verify", "lan0"])?.check()?;
        device.rollback()?;
        assert_eq!(device.reading()?, before);
        Ok(())
    });
}

/// The kernel may keep the values of NAPIs while the device is down, so they are not forgotten.
#[test]
fn a_device_that_is_down_is_put_back_as_far_as_it_goes_and_the_rest_when_it_is_up() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        device.policy(&["apply", "lan0", "mix"])?.check()?;
        device.ip(&["link set lan0 down"])?;
        let output = device.policy(&["rollback", "lan0"])?.run()?;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(
            output.stderr.contains("napi-1/gro-flush-timeout: can not be read now"),
            "{output:?}"
        );
        assert_eq!(device.journals().len(), 1);
        device.ip(&["link set lan0 up"])?;
        device.other_sets_napi(1, "gro-flush-timeout", 64_000)?;
        device.rollback()?;
        assert_eq!(device.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        Ok(())
    });
}

#[test]
fn another_device_of_the_same_name_or_number_is_never_written() {
    beside_others(|| {
        let device = Device::veth()?;
        let fresh = |how: &str| -> Result<()> {
            device.policy(&["apply", "lan0", "bulk"])?.check()?;
            device.ip(&["link del lan0"])?;
            device.make(how)?;
            // The same values, so that only the device tells that they are not Stateway's.
            device.other_writes("gro_flush_timeout", "64000")?;
            let before = device.reading()?;
            let output = device.rollback()?;
            assert_eq!(device.reading()?, before, "{how}: {output:?}");
            assert!(output.stderr.contains("If it is gone"), "{how}: {output:?}");
            assert_eq!(device.journals().len(), 1, "{how}");
            device.delete_journals();
            Ok(())
        };
        fresh("")?;
        // A device that takes over the number too.
        device.ip(&["link del lan0"])?;
        device.make("index 77")?;
        fresh("index 77")?;
        // A device that is gone.
        device.policy(&["apply", "lan0", "bulk"])?.check()?;
        device.ip(&["link del lan0"])?;
        let output = device.policy(&["rollback", "lan0"])?.run()?;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains("If it is gone"), "{output:?}");
        device.delete_journals();
        let missing = device.policy(&["rollback", "lan0"])?.run()?;
        assert_eq!(missing.code, Some(2), "{missing:?}");
        Ok(())
    });
}

#[test]
fn a_device_that_was_renamed_is_put_back_under_its_new_name() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        device.policy(&["apply", "lan0", "bulk"])?.check()?;
        device.ip(&["link set lan0 name lan9", "link add lan0 type veth peer name far9"])?;
        let named = device.rollback()?;
        assert!(named.stderr.contains("stateway policy rollback lan9"), "{named:?}");
        device.policy(&["rollback", "lan9"])?.check()?;
        device.ip(&["link del lan0", "link set lan9 name lan0"])?;
        assert_eq!(device.reading()?, before);
        Ok(())
    });
}

#[test]
fn a_device_that_has_moved_is_put_back_where_it_is() {
    beside_others(|| {
        let device = Device::veth()?;
        let there = device.elsewhere()?;
        let before = device.reading()?;
        device.policy(&["apply", "lan0", "bulk"])?.check()?;
        device.move_to(&there)?;
        let left = device.policy(&["rollback", "lan0"])?.run()?;
        assert_eq!(left.code, Some(1), "{left:?}");
        assert!(left.stderr.contains("run `stateway policy rollback` where it is"), "{left:?}");
        there.rollback()?;
        assert_eq!(there.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        Ok(())
    });
}

#[test]
fn a_journal_that_is_cut_damaged_or_foreign_changes_nothing() {
    beside_others(|| {
        let device = Device::veth()?;
        device.policy(&["apply", "lan0", "bulk"])?.check()?;
        let before = device.reading()?;
        let journal = device.journals().remove(0);
        let text = std::fs::read_to_string(&journal).unwrap();
        let cut = &text[..text.len() / 2];
        let damaged = text.replacen("64000", "64001", 1);
        let newer = text.replacen(" journal 1 ", " journal 2 ", 1);
        for (bad, reason) in [
            (cut, "it is cut or damaged"),
            (&damaged, "it is cut or damaged"),
            (&newer, "its format is version 2"),
            ("root:x:0:0", "this is no journal of Stateway"),
            ("", "this is no journal of Stateway"),
        ] {
            std::fs::write(&journal, bad).unwrap();
            for words in [&["rollback", "lan0"][..], &["apply", "lan0", "cpu"]] {
                let refused = device.policy(words)?.run()?;
                assert_eq!(refused.code, Some(1), "{refused:?}");
                assert!(refused.stderr.contains(reason), "no {reason}: {refused:?}");
            }
            assert_eq!(device.reading()?, before);
        }
        std::fs::write(&journal, &text).unwrap();
        device.rollback()?;
        Ok(())
    });
}

#[test]
fn bad_requests_say_what_is_possible_and_change_nothing() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        for (words, reason) in [
            (&["lan0", "fast"][..], "the policies are none, bulk, cpu, latency and mix"),
            (&["lan7", "bulk"], "the interfaces here are"),
            (&["lan0", "bulk", "--cpus", "900"], "CPU 900 is not online"),
            (&["lan0", "bulk", "--cpus", "3-1"], "runs backwards"),
            (&["lan0", "bulk", "--without", "rx-0"], "is no setting"),
        ] {
            let refused = device.policy(&[&["apply"], words].concat())?.run()?;
            assert_eq!(refused.code, Some(2), "{refused:?}");
            assert!(refused.stderr.contains(reason), "no {reason}: {refused:?}");
        }
        assert_eq!(device.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        Ok(())
    });
}

#[test]
fn a_refusal_shows_the_answer_of_the_kernel_and_takes_back_what_was_written() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        device.close("queues/tx-0/xps_cpus")?;
        let apply = ["apply", "lan0", "bulk"];
        let refused = device.policy_without_rights(&apply)?.run()?;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        for part in [
            "tx-0/xps_cpus = CPUs 0: the kernel answers: Permission denied",
            "all settings are as they were before this command",
            "--without tx-0/xps_cpus",
        ] {
            assert!(refused.stderr.contains(part), "no {part}: {refused:?}");
        }
        assert_eq!(device.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        let without = [&apply[..], &["--without", "tx-0/xps_cpus"]].concat();
        device.policy_without_rights(&without)?.check()?;
        device.rollback()?;
        device.close("queues/rx-0/rps_cpus")?;
        let skipped = [&apply[..], &["--skip-refused"]].concat();
        let output = device.policy_without_rights(&skipped)?.check()?;
        for setting in ["tx-0/xps_cpus", "rx-0/rps_cpus"] {
            let line = output.lines().find(|line| line.starts_with(setting));
            assert!(line.is_some_and(|it| it.contains("Permission denied")), "{output}");
        }
        device.policy_without_rights(&["verify", "lan0"])?.check()?;
        // A second policy that is refused leaves the first.
        let refused = device.policy_without_rights(&["apply", "lan0", "cpu"])?.run()?;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        device.policy_without_rights(&["verify", "lan0"])?.check()?;
        device.rollback()?;
        assert_eq!(device.reading()?, before);
        Ok(())
    });
}

#[test]
fn a_setting_that_the_request_leaves_out_stays() {
    beside_others(|| {
        let device = Device::veth()?;
        let done = device.json(&["apply", "lan0", "bulk", "--without", "tx-0/xps_cpus"])?;
        assert!(!ids(&done).contains(&"tx-0/xps_cpus"), "{done}");
        assert!(device.reading()?.contains("tx-0/xps_cpus:2"));
        Ok(())
    });
}

#[test]
fn a_tap_device_rounds_and_is_in_force_all_the_same() {
    beside_others(|| {
        let device = Device::tap()?;
        let done = device.json(&["apply", "lan0", "cpu"])?;
        let actions = done["actions"].as_array().unwrap();
        let frames = actions.iter().find(|it| it["id"] == "coalesce/rx-frames").unwrap();
        assert_eq!((&frames["new"], &frames["applied"]), (&256.into(), &64.into()));
        device.policy(&["verify", "lan0"])?.check()?;
        let plan = device.json(&["plan", "lan0", "cpu"])?;
        assert_eq!(ids(&plan), [""; 0]);
        device.rollback()?;
        let plan = device.json(&["plan", "lan0", "cpu"])?;
        let frames = plan["actions"].as_array().unwrap();
        let frames = frames.iter().find(|it| it["id"] == "coalesce/rx-frames").unwrap();
        assert_eq!(frames["old"], 0);
        Ok(())
    });
}

#[test]
fn a_full_directory_of_journals_blocks_no_rollback() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        device.fill_state()?;
        let full = device.policy(&["apply", "lan0", "bulk"])?.run()?;
        assert_eq!(full.code, Some(1), "{full:?}");
        for part in ["No space left", "all settings are as they were before this command"] {
            assert!(full.stderr.contains(part), "no {part}: {full:?}");
        }
        assert_eq!(device.reading()?, before);
        device.empty_state()?;
        device.policy(&["apply", "lan0", "bulk"])?.check()?;
        device.fill_state()?;
        device.rollback()?;
        assert_eq!(device.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        Ok(())
    });
}

#[test]
fn a_rollback_puts_back_all_but_the_refused() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        device.policy(&["apply", "lan0", "bulk"])?.check()?;
        device.close("queues/tx-0/xps_cpus")?;
        let output = device.policy_without_rights(&["rollback", "lan0"])?.run()?;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(
            output.stderr.contains("tx-0/xps_cpus = CPUs 1: the kernel answers: Permission denied"),
            "{output:?}"
        );
        assert!(!output.stderr.contains("--without"), "{output:?}");
        let partly = device.reading()?;
        let differs: Vec<&str> = partly.lines().filter(|line| !before.contains(line)).collect();
        assert_eq!(differs, ["queues/tx-0/xps_cpus:1"]);
        device.reopen("queues/tx-0/xps_cpus")?;
        device.rollback()?;
        assert_eq!(device.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        Ok(())
    });
}
