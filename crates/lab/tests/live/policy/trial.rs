//! Policies on trial. A queue that sends slowly behind the link delays replies by far more than other
//! programs of the machine do.

use lab::{Background, Result};

use super::device::Device;
use crate::scenario::{beside_others, stateway_binary};

/// Has the other end of the link send 26 replies to probes a second, of 100, and takes that away.
const SLOW: &str = "tc qdisc add dev far0 root tbf rate 12kbit burst 100 limit 200";
const FAST: &str = "tc qdisc del dev far0 root";

fn begin(device: &Device, words: &[&str]) -> Result<Background> {
    let mut trial = device.policy(&[words, &["--trial", "1s"]].concat())?.spawn()?;
    trial.wait_for_text("lan0: tried for 1 second; `stateway policy confirm lan0` keeps it")?;
    Ok(trial)
}

fn end(trial: Background, code: i32, reason: &str) -> Result<()> {
    let output = trial.finish()?;
    assert_eq!(output.code, Some(code), "{output:?}");
    assert!(output.stdout.contains(reason), "no {reason}: {}", output.stdout);
    Ok(())
}

/// Tries `latency` with probes. The command runs between the two measurements.
fn latency(device: &Device, host: &Device, command: &str) -> Result<Background> {
    let words = ["apply", "lan0", "latency", "--trial", "2s", "--probe", "192.0.2.2"];
    device.policy_after(&host.entered(command), &words)?.spawn()
}

#[test]
fn a_trial_that_makes_things_worse_ends_by_itself() {
    beside_others(|| {
        let device = Device::veth()?;
        let host = device.add_host()?;
        let before = device.reading()?;
        let mut trial = latency(&device, &host, SLOW)?;
        trial.wait_for_text("lan0: latency is kept")?;
        assert_ne!(device.reading()?, before);
        end(trial, 1, "lan0: latency was taken back: it is worse: delay of probes")?;
        assert_eq!(device.reading()?, before);
        assert_eq!(device.journals().len(), 0);
        // Without probes nobody can tell whether it is better.
        let trial = begin(&device, &["apply", "lan0", "latency"])?;
        end(trial, 1, "lan0: latency was taken back: ")?;
        assert_eq!(device.reading()?, before);
        Ok(())
    });
}

#[test]
fn a_trial_that_makes_things_better_stays() {
    beside_others(|| {
        let device = Device::veth()?;
        let host = device.add_host()?;
        let before = device.reading()?;
        host.shell(SLOW)?;
        end(latency(&device, &host, FAST)?, 0, "lan0: latency stays: delay of probes")?;
        device.policy(&["verify", "lan0"])?.check()?;
        // The next trial returns to it.
        let held = device.reading()?;
        end(begin(&device, &["apply", "lan0", "bulk"])?, 1, "lan0: latency again")?;
        assert_eq!(device.reading()?, held);
        device.rollback()?;
        assert_eq!(device.reading()?, before);
        Ok(())
    });
}

#[test]
fn a_trial_that_is_confirmed_stays_and_one_that_is_stopped_or_killed_does_not() {
    beside_others(|| {
        let device = Device::veth()?;
        let before = device.reading()?;
        let none = device.policy(&["confirm", "lan0"])?.run()?;
        assert!(none.stderr.contains("no policy of lan0 is on trial"), "{none:?}");
        let long = ["apply", "lan0", "bulk", "--trial", "2s"];
        let mut stopped = device.policy(&long)?.spawn()?;
        stopped.wait_for_text("lan0: bulk is kept")?;
        let output = stopped.terminate()?;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stdout.contains("lan0: bulk was taken back: "), "{output:?}");
        assert_eq!(device.reading()?, before);
        // A program that is dropped is killed.
        drop(begin(&device, &long[..3])?);
        device.wait_for_no_keeper()?;
        assert_eq!(device.reading()?, before);
        let confirm = format!("{} policy confirm lan0", stateway_binary()?.display());
        let trial = device.policy_after(&confirm, &long)?.spawn()?;
        end(trial, 0, "lan0: bulk stays: it was confirmed")?;
        device.policy(&["verify", "lan0"])?.check()?;
        device.rollback()?;
        assert_eq!(device.reading()?, before);
        Ok(())
    });
}
