//! Network namespaces for tests: each test runs in a process and a namespace of its own. So nothing
//! is left behind, whatever happens.

use std::env;
use std::process::Command;

/// Set in the process that runs the test proper.
const INSIDE: &str = "STATEWAY_TEST_NAMESPACE";

/// Runs `body` in a fresh network namespace: this test program starts itself again
/// under unshare(1), with only the test called `name`.
pub fn isolated(name: &str, body: fn()) {
    if env::var_os(INSIDE).is_some() {
        return body();
    }
    let works = |flags: &&str| {
        let probe = Command::new("unshare").args([flags, "ip", "link"]).output();
        probe.is_ok_and(|probe| probe.status.success())
    };
    // As root, or as root of a user namespace.
    let Some(flags) = ["-n", "-rn"].iter().find(|flags| works(flags)) else {
        println!("SKIPPED: unshare(1) can not make a network namespace here, or there is no ip(8)");
        return;
    };
    let output = Command::new("unshare")
        .arg(flags)
        .arg(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (shown, problem) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "in its namespace:\n{shown}\n{problem}");
    assert!(shown.contains("1 passed"), "{name} is not the name of this test");
    // The message stands behind the name of the test.
    let skipped = shown.lines().filter_map(|line| line.find("SKIPPED").map(|at| &line[at..]));
    skipped.for_each(|line| println!("{line}"));
}
