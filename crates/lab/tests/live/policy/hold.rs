//! A policy that a process holds: it follows the device, and everything is put back when the holder or
//! the keeper dies.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::{Background, Error, Result};

use super::device::Device;
use crate::scenario::beside_others;

/// Longest wait for something that a keeper does.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until the settings are these.
fn wait_for(device: &Device, expected: &str, what: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        let reading = device.reading()?;
        if reading == expected {
            return Ok(());
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {reading} is not {expected}");
        sleep(Duration::from_millis(20));
    }
}

fn hold(device: &Device, words: &[&str]) -> Result<Background> {
    let mut holder = device.policy(&[&["hold"], words].concat())?.spawn()?;
    holder.wait_for_text(" is kept")?;
    Ok(holder)
}

/// Stops a holder, which is to succeed, and returns what it has said.
fn stop(holder: Background) -> Result<String> {
    let output = holder.terminate()?;
    assert_eq!(output.code, Some(0), "{output:?}");
    Ok(output.stdout)
}

#[test]
fn a_policy_is_held_until_a_signal_and_nobody_else_changes_it() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        let holder = hold(&device, &["lan0", "mix"])?;
        device.policy(&["verify", "lan0"])?.check()?;
        for words in
            [&["apply", "lan0", "bulk"][..], &["rollback", "lan0"], &["hold", "lan0", "cpu"]]
        {
            let refused = device.policy(words)?.run()?;
            assert_eq!(refused.code, Some(1), "{refused:?}");
            assert!(refused.stderr.contains("keeps lan0 at its policy"), "{refused:?}");
        }
        device.policy(&["verify", "lan0"])?.check()?;
        let said = stop(holder)?;
        assert!(said.ends_with("lan0: no policy, its settings are as they were found\n"), "{said}");
        assert_eq!(device.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        for (words, what) in
            [(["lan7", "bulk"], "the interfaces here are"), (["lan0", "fast"], "the policies are")]
        {
            let refused = device.policy(&["hold", words[0], words[1]])?.run()?;
            assert_eq!(refused.code, Some(2), "{refused:?}");
            assert!(refused.stderr.contains(what), "{refused:?}");
        }
        Ok(())
    });
}

#[test]
fn links_names_queues_and_cpus_are_followed_and_each_change_is_said() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        let mut holder = hold(&device, &["lan0", "mix"])?;
        let held = device.reading()?;
        // The new NAPIs have the device's values at first.
        device.ip(&["link set lan0 down"])?;
        device.ip(&["link set lan0 up"])?;
        wait_for(&device, &held, "link")?;
        holder.wait_for_text("mix again after news of the link")?;
        // One queue is too few for a mix.
        device.set_queues(1)?;
        holder.wait_for_text("lan0: no policy until that changes: mix needs two receive queues")?;
        device.set_queues(2)?;
        holder.wait_for_text("lan0: mix again after news of the link and the device")?;
        device.ip(&["link set lan0 name lan9"])?;
        holder.wait_for_text("lan9: mix is kept")?;
        device.ip(&["link set lan9 name lan0"])?;
        let said = stop(holder)?;
        assert!(said.ends_with("lan0: no policy, its settings are as they were found\n"), "{said}");
        // A channel that is made anew has no values of its own.
        let fresh = before.replace("gro-flush-timeout=7000", "gro-flush-timeout=0");
        assert_eq!(device.reading()?, fresh);
        Ok(())
    });
}

#[test]
fn a_cpu_that_goes_and_comes_back_changes_the_plan() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        if !std::fs::exists("/sys/devices/system/cpu/cpu1").unwrap() {
            return Err(Error::Unavailable { why: "the machine has one CPU".into() });
        }
        device.inject_cpus("0-1", "online")?;
        let mut holder = hold(&device, &["lan0", "bulk"])?;
        let held = device.reading()?;
        device.inject_cpus("0", "offline")?;
        holder.wait_for_text("lan0: bulk again after news of the CPUs")?;
        assert_ne!(device.reading()?, held);
        device.inject_cpus("0-1", "online")?;
        wait_for(&device, &held, "the CPU is back")?;
        stop(holder)?;
        // A request that names the CPU can not be met without it.
        let mut holder = hold(&device, &["lan0", "bulk", "--cpus", "1"])?;
        device.inject_cpus("0", "offline")?;
        holder.wait_for_text("no policy until that changes: CPU 1 is not online")?;
        wait_for(&device, &before, "no policy")?;
        device.inject_cpus("0-1", "online")?;
        holder.wait_for_text("lan0: bulk again after news of the CPUs")?;
        stop(holder)?;
        assert_eq!(device.reading()?, before);
        Ok(())
    });
}

#[test]
fn a_write_of_another_program_to_a_held_device_stays_and_is_named() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        let mut holder = hold(&device, &["lan0", "mix"])?;
        device.other_writes("queues/tx-1/xps_cpus", "3")?;
        device.other_writes("queues/rx-1/rps_cpus", "3")?;
        device.ip(&["link set lan0 mtu 1400"])?;
        for setting in ["tx-1/xps_cpus", "rx-1/rps_cpus"] {
            let line = format!("{setting} is left alone: another program has set it to CPUs 0-1");
            holder.wait_for_text(&line)?;
        }
        let said = stop(holder)?;
        assert!(said.ends_with("the others are as they were found\n"), "{said}");
        let expected = before.replace("tx-1/xps_cpus:0", "tx-1/xps_cpus:3");
        assert_eq!(device.reading()?, expected.replace("rx-1/rps_cpus:0", "rx-1/rps_cpus:3"));
        Ok(())
    });
}

/// A command of the shell that kills the holder, the keeper or both. The file of the keeper has their
/// process ids.
const HOLDER: &str = "kill -KILL $(cut -d' ' -f1 /dev/shm/state/*.keeper)";
const KEEPER: &str = "kill -KILL $(cut -d' ' -f2 /dev/shm/state/*.keeper)";
const BOTH: &str = "kill -KILL $(cat /dev/shm/state/*.keeper)";

/// Holds a policy, and kills processes at each step of the keeper in turn. `end` is to see that
/// everything is back.
fn dies_at_each_step(victim: &str, end: impl Fn(&Device, Background) -> Result<()>) -> Result<()> {
    let device = Device::veth()?;
    let before = device.reading()?;
    for step in 0.. {
        let (mut holder, has_run) = device.holds_until(step, victim, &["hold", "lan0", "bulk"])?;
        if !has_run {
            holder.wait_for_text(" is kept")?;
            stop(holder)?;
            assert!(step > 4, "{step} steps");
            return Ok(());
        }
        end(&device, holder)?;
        assert_eq!(device.reading()?, before, "step {step}");
        assert_eq!(device.journals().len(), 0, "step {step}");
    }
    Ok(())
}

#[test]
fn a_holder_that_is_killed_at_any_write_leaves_a_keeper_that_puts_everything_back() {
    beside_others(|| {
        dies_at_each_step(HOLDER, |device, holder| {
            assert_eq!(holder.finish()?.code, None);
            device.wait_for_no_keeper()
        })
    });
}

#[test]
fn a_keeper_that_is_killed_at_any_write_is_noticed_by_its_holder() {
    beside_others(|| {
        dies_at_each_step(KEEPER, |_, holder| {
            let output = holder.finish()?;
            assert_eq!(output.code, Some(1), "{output:?}");
            assert!(output.stdout.contains("everything was put back"), "{output:?}");
            Ok(())
        })
    });
}

#[test]
fn the_next_holder_goes_on_where_both_were_killed() {
    beside_others(|| {
        dies_at_each_step(BOTH, |device, holder| {
            assert_eq!(holder.finish()?.code, None);
            let holder = hold(device, &["lan0", "mix"])?;
            device.policy(&["verify", "lan0"])?.check()?;
            stop(holder).map(drop)
        })
    });
}

/// A device with the name and the number of the former one takes its place at each step in turn.
#[test]
fn a_device_that_becomes_another_between_any_two_writes_of_a_keeper_is_not_written() {
    beside_others(|| {
        let device = Device::veth()?;
        let replace = "ip link del lan0 && ip link add lan0 index 77 numrxqueues 2 numtxqueues 2 \
                       type veth peer name far0 && ip link set lan0 up && ip link set far0 up && \
                       ethtool -K lan0 gro on";
        device.shell(replace)?;
        let fresh = device.reading()?;
        for step in 0.. {
            let words = ["hold", "lan0", "bulk"];
            let (mut holder, has_run) = device.holds_until(step, replace, &words)?;
            if !has_run {
                holder.wait_for_text(" is kept")?;
                return stop(holder).map(drop);
            }
            let output = holder.finish()?;
            assert_eq!(output.code, Some(1), "step {step}: {output:?}");
            assert_eq!(device.reading()?, fresh, "step {step}: {output:?}");
            assert_eq!(device.journals().len(), 0, "step {step}: {output:?}");
        }
        Ok(())
    });
}

#[test]
fn another_keeper_goes_on_for_one_that_was_killed() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        let mut holder = hold(&device, &["lan0", "mix"])?;
        let held = device.reading()?;
        device.ip(&["link set lan0 name lan9", "link add lan0 type veth peer name far9"])?;
        holder.wait_for_text("lan9: mix is kept")?;
        // One that dies young is not replaced.
        sleep(Duration::from_secs(1));
        device.shell(KEEPER)?;
        holder.wait_for_text("its keeper has died (signal: 9 (SIGKILL)); another one goes on")?;
        holder.wait_for("a second keeper", || device.has_keeper())?;
        // It keeps the same device, which has another name by now.
        device.ip(&["link del lan0", "link set lan9 name lan0"])?;
        wait_for(&device, &held, "nothing has changed")?;
        stop(holder)?;
        assert_eq!(device.reading()?, before);
        Ok(())
    });
}

#[test]
fn another_device_that_gets_the_name_is_held_too_and_one_that_goes_is_forgotten() {
    beside_others(|| {
        let device = Device::veth()?;
        let mut holder = hold(&device, &["lan0", "bulk"])?;
        device.ip(&["link del lan0"])?;
        holder.wait_for_text("lan0 is not here; the policy waits until it comes")?;
        assert_eq!(device.journals().len(), 0);
        device.make("")?;
        holder.wait_for("the second device", || {
            Ok(device.policy(&["verify", "lan0"])?.run()?.stdout == "lan0: bulk is in force\n")
        })?;
        stop(holder)?;
        assert_eq!(device.journals().len(), 0);
        Ok(())
    });
}

#[test]
fn a_device_that_moves_away_and_comes_back_is_held_again() {
    beside_others(|| {
        let device = Device::veth()?;
        let there = device.elsewhere()?;
        let before = device.reading()?;
        let mut holder = hold(&device, &["lan0", "mix"])?;
        let held = device.reading()?;
        device.move_to(&there)?;
        holder.wait_for_text("lan0 is not here; the policy waits until it comes")?;
        there.move_to(&device)?;
        wait_for(&device, &held, "it is back")?;
        device.move_to(&there)?;
        let stopped = holder.terminate()?;
        assert_eq!(stopped.code, Some(1), "{stopped:?}");
        assert!(stopped.stdout.contains("lan0: it is in another network namespace"), "{stopped:?}");
        there.rollback()?;
        assert_eq!(there.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        Ok(())
    });
}
