//! Policies of the host for the devices of a gateway: they hold while it runs.

use std::thread::sleep;
use std::time::Duration;

use lab::{Lab, Result, StatewaySpec};

use crate::scenario::{
    beside_others, bridge_spec, gateway_and_children, kill as kill_process, ready, soon, start,
    start_in, stateway, stop_cleanly,
};

/// The values of a policy `bulk`, and those without a policy.
const BULK: &str = "2 64000 2 64000";
const NONE: &str = "0 0 0 0";
const END: &str = "/dev/shm/end";

/// Reads a setting of `lan0` until the file exists, and prints all values that were seen.
const WATCH: &str = "
import os, sys
seen = set()
print('ready', flush=True)
while not os.path.exists(sys.argv[1]):
    seen.add(open('/sys/class/net/lan0/gro_flush_timeout').read().strip())
print('seen:', *sorted(seen), flush=True)
";

fn with_policy(interface: &str) -> Result<StatewaySpec> {
    Ok(StatewaySpec { interface: interface.to_owned(), ..bridge_spec(1)? })
}

fn start_again(lab: &mut Lab, spec: &StatewaySpec) -> Result<()> {
    let stateway = start_in(lab.gateway(), spec)?;
    lab.put_stateway(stateway);
    Ok(())
}

/// Two settings of both devices.
fn settings(lab: &Lab) -> Result<String> {
    let script = "cd /sys/class/net && echo $(cat lan0/napi_defer_hard_irqs lan0/gro_flush_timeout \
                  wan0/napi_defer_hard_irqs wan0/gro_flush_timeout)";
    let text = lab.gateway().program("sh").args(["-c", script]).check()?;
    Ok(text.trim().to_owned())
}

fn become_soon(lab: &Lab, expected: &str) -> Result<()> {
    soon(expected, || Ok(settings(lab)? == expected))
}

/// Kills the gateway or a keeper. The files of keepers have the process ids in these fields.
fn kill(lab: &Lab, field: u32) -> Result<()> {
    let script = format!("kill -KILL $(cut -d' ' -f{field} /dev/shm/state/*.keeper | head -n 1)");
    lab.gateway().program("sh").args(["-c", &script]).check().map(drop)
}

#[test]
fn policies_of_the_host_end_with_the_gateway_however_it_ends() {
    beside_others(|| {
        let spec = with_policy("host_policy = \"bulk\"\n")?;
        let mut lab = start(spec.clone())?;
        become_soon(&lab, BULK)?;
        soon("the status tells it", || {
            let status = stateway(&lab).command(&["status"]).check()?;
            Ok(["lan0", "wan0"]
                .iter()
                .all(|device| status.contains(&format!("host policy {device}: bulk is kept\n"))))
        })?;
        // A keeper that dies is replaced.
        sleep(Duration::from_secs(1));
        kill(&lab, 2)?;
        soon("another keeper", || Ok(stateway(&lab).log().contains("another one goes on")))?;
        assert_eq!(settings(&lab)?, BULK);
        stop_cleanly(&mut lab)?;
        assert_eq!(settings(&lab)?, NONE);
        start_again(&mut lab, &spec)?;
        become_soon(&lab, BULK)?;
        kill(&lab, 1)?;
        become_soon(&lab, NONE)?;
        assert_eq!(lab.take_stateway().unwrap().finish()?.code, None);
        Ok(())
    });
}

#[test]
fn a_policy_of_the_host_stays_after_an_orderly_end_on_request_and_else_the_next_start_ends_it() {
    beside_others(|| {
        let keep = with_policy("host_policy = \"bulk\"\nhost_policy_on_stop = \"keep\"\n")?;
        let mut lab = start(keep.clone())?;
        become_soon(&lab, BULK)?;
        stop_cleanly(&mut lab)?;
        assert_eq!(settings(&lab)?, BULK);
        // The next gateway goes on with it. All processes die, and the one after has no such policy.
        start_again(&mut lab, &keep)?;
        soon("the policy is kept", || Ok(stateway(&lab).log().contains("wan0: bulk is kept")))?;
        soon("the policy is kept", || Ok(stateway(&lab).log().contains("lan0: bulk is kept")))?;
        let script = "cd /dev/shm/state; keepers=$(cut -d' ' -f2 *.keeper); kill -STOP $keepers; \
                      kill -KILL $(cut -d' ' -f1 *.keeper | head -n 1); kill -KILL $keepers";
        lab.gateway().program("sh").args(["-c", script]).check()?;
        assert_eq!(lab.take_stateway().unwrap().finish()?.code, None);
        assert_eq!(settings(&lab)?, BULK);
        start_again(&mut lab, &with_policy("")?)?;
        become_soon(&lab, NONE)?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn an_upgrade_leaves_the_settings_of_the_host_as_they_are() {
    beside_others(|| {
        let lab = start(with_policy("host_policy = \"bulk\"\n")?)?;
        become_soon(&lab, BULK)?;
        let watching = ready(lab.gateway().program("python3").args(["-c", WATCH, END]))?;
        for _ in 0..2 {
            stateway(&lab).query(&["upgrade"])?;
            soon("the next keepers", || {
                let status = stateway(&lab).command(&["status"]).check()?;
                Ok(status.matches(": bulk is kept\n").count() == 2)
            })?;
        }
        lab.gateway().write_file("end", b"")?;
        assert_eq!(watching.finish()?.stdout, "ready\nseen: 64000\n");
        kill(&lab, 1)?;
        become_soon(&lab, NONE)
    });
}

/// Upgrades the gateway by a file with these interfaces.
fn upgrade_to(lab: &Lab, spec: &StatewaySpec) -> Result<()> {
    let config = spec.config(&["lan0", "wan0"]);
    lab.gateway().write_file("stateway.toml", config.as_bytes())?;
    // It is refused while the gateway finds out that an interface has gone.
    soon("the upgrade", || Ok(stateway(lab).command(&["upgrade"]).run()?.code == Some(0)))
}

#[test]
fn an_upgrade_ends_the_policies_that_its_file_lacks_and_waits_for_devices_that_are_missing() {
    beside_others(|| {
        let spec = with_policy("host_policy = \"bulk\"\n")?;
        let lab = start(spec.clone())?;
        become_soon(&lab, BULK)?;
        lab.gateway().ip(&["link delete lan0"])?;
        let waits = |lab: &Lab| -> Result<bool> {
            let status = stateway(lab).command(&["status"]).check()?;
            Ok(status.contains("lan0: lan0 is not here; the policy waits until it comes")
                && status.contains("wan0: bulk is kept"))
        };
        soon("a missing device", || waits(&lab))?;
        upgrade_to(&lab, &spec)?;
        soon("the next keeper waits, too", || waits(&lab))?;
        lab.gateway().ip(&["link add lan0 type veth peer name far0", "link set lan0 up"])?;
        become_soon(&lab, BULK)?;
        upgrade_to(&lab, &with_policy("")?)?;
        become_soon(&lab, NONE)?;
        kill_process(gateway_and_children(&lab)?.0);
        Ok(())
    });
}
