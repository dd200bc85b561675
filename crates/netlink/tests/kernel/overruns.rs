//! More changes at once than the kernel's buffer for news holds.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::*;

/// Changes of each family in a round.
const CHANGES: usize = 4000;
/// Other routes that come and go; the news of these alone overflow the buffer.
const OTHERS: usize = 20_000;
const ROUNDS: u64 = 4;

/// Starts changes in the kernel, of which it may refuse some, as "file exists".
fn begin(v6: bool, orders: &[String]) -> Child {
    let mut ip = Command::new("ip")
        .args([if v6 { "-6" } else { "-4" }, "-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stdin, text) = (ip.stdin.take().unwrap(), orders.join("\n"));
    std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    ip
}

fn change(random: &mut Random, v6: bool, with_rules: bool) -> String {
    // Rules change seldom, because everything is listed again after a change.
    if with_rules && random.below(2000) == 0 {
        return format!("rule {} {}", random.pick(&["add", "del"]), rule(random, v6));
    }
    let route = loop {
        // After removals, the kernel does not always find routes with a source.
        let route = route(random, v6);
        if !route.contains(" from ") {
            break route;
        }
    };
    // The kernel follows no rule for IPv6 routes that differ only in their kind.
    let verbs: &[&str] = match v6 {
        true => &["add", "add", "del", "replace"],
        false => &["add", "add", "del", "del", "replace", "append", "prepend"],
    };
    let verb = random.pick(verbs);
    format!("route {verb} {route}")
}

/// The mirror is slow: in some rounds it takes no news while thousands of routes change, in others
/// it lists routes meanwhile.
#[test]
fn routes_that_change_faster_than_anybody_hears_are_those_of_the_kernel() {
    isolated(
        "overruns::routes_that_change_faster_than_anybody_hears_are_those_of_the_kernel",
        || {
            set_up();
            let mut mirror = Mirror::open().unwrap();
            let mut kernel = Kernel::open();
            let mut forwarded = 0;
            for round in 1..=ROUNDS {
                let mut random = Random(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let before = mirror.picture().overruns;
                let mut changers = [false, true].map(|v6| {
                    // In the first round, only lost news cause a new listing.
                    let changes = if v6 && round == 1 { 0 } else { CHANGES };
                    let mut orders: Vec<_> =
                        (0..changes).map(|_| change(&mut random, v6, round > 2)).collect();
                    // The routes are added in one round and deleted in the next.
                    let verb = if round % 2 == 1 { "add" } else { "del" };
                    let other =
                        |n| format!("route {verb} 198.18.{}.{}/32 dev a0", n / 256, n % 256);
                    let others = if v6 { 0 } else { OTHERS };
                    orders.splice(changes / 2..changes / 2, (0..others).map(other));
                    begin(v6, &orders)
                });
                // In the first two rounds the mirror takes no news before the end.
                let mut at_work = true;
                while at_work {
                    at_work = changers.iter_mut().any(|it| it.try_wait().unwrap().is_none());
                    if round > 2 {
                        // A listing may not succeed during the changes; the next call goes on.
                        let _ = mirror.refresh();
                    }
                    sleep(Duration::from_millis(random.below(20) as u64));
                }
                forwarded += compare(&mut random, &mut mirror, &mut kernel);
                let overruns = mirror.picture().overruns - before;
                println!("round {round}: {overruns} overruns");
                assert!(overruns > 0 || round > 2);
                assert!(!mirror.refresh().unwrap(), "no news, and no doubt is left");
            }
            assert!(forwarded > 0);
        },
    );
}
