//! The tunables in docs/tunables.md, which is generated whole from the code.

use std::fmt::Write as _;
use std::path::Path;

use flow::{Tunable, Unit};

use crate::problem::Problem;

const DOCUMENT: &str = "docs/tunables.md";

const INTRODUCTION: &str = "\
# Tunables

Settings that can change while the gateway runs, under the kernel's names without
their `net.` prefixes. `stateway tunable list` shows their values, `stateway tunable
set NAME VALUE` changes one until the process ends, and the section `[tunables]` of
the configuration file sets them at the start. A value out of range is refused and
changes nothing. Mode, interfaces and the number of buckets are no tunables: they
are in the configuration file and need a restart.

A change while packets flow:

- Each worker takes the new value between two batches, so no packet sees half of a
  change. If a worker hangs, the others have the value already, and `set` says so;
  that worker gets the value when it answers again.
- A change of any tunable makes all recorded decisions of the [fast
  path](internals/fast-path.md) void. The next packet of each flow takes all stages
  again and records a new decision. Nothing is lost, but for a moment packets cost more.
- A changed timeout counts for a connection from its next packet on. Until then the
  connection has the time that its last packet gave it.
- A higher limit holds at once.
- A lower `nf_conntrack_max` holds as soon as all workers have returned the units that
  they hold in reserve. If there are still more connections than the limit, those that
  [may give way](internals/capacity.md) end, 64 in a turn of each worker at most.
  Assured connections stay, and new connections are dropped as `table_full` while no
  connection gives way.
- A lower `ipfrag_high_thresh` or `ip6frag_high_thresh` holds in the same way: workers
  evict incomplete datagrams.
- A lower `nf_conntrack_expect_max` ends no expectation. A new one takes the place of
  another or is refused.
- A lower `netdev_max_backlog` drops no packet that waits already. New ones are dropped
  until fewer wait.
- A switch of tracking, such as `nf_conntrack_acct`, holds for connections that open
  later where its row says so, and otherwise for the next packet.

Generated from the code by `cargo xtask tunables --write`.
";

/// Compares the document with the code.
pub fn check(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let document = crate::read(root, DOCUMENT)?;
    Ok(compare(&document, &in_code()).into_iter().collect())
}

/// Writes the document anew.
pub fn update(root: &Path) -> anyhow::Result<()> {
    Ok(std::fs::write(root.join(DOCUMENT), in_code())?)
}

fn in_code() -> String {
    let mut text = INTRODUCTION.to_owned();
    section(&mut text, "Connection tracking", conntrack::Settings::tunables());
    section(&mut text, "Reassembly", defrag::Settings::tunables());
    section(&mut text, "Next hops", fib::Settings::tunables());
    section(&mut text, "Steering", steer::TUNABLES.iter());
    section(&mut text, "Policies", netpolicy::WaitSettings::tunables());
    text
}

fn section<'a>(text: &mut String, title: &str, tunables: impl Iterator<Item = &'a Tunable>) {
    let mut rows = String::new();
    for Tunable { name, unit, default, min, max, meaning } in tunables {
        let (unit, range) = match unit {
            Unit::Switch => ("", "0 or 1".to_owned()),
            unit if (*min, *max) == (0, u64::MAX) => (unit.symbol(), "any".to_owned()),
            unit => (unit.symbol(), format!("{min} to {max}")),
        };
        // Writing to a string can not fail.
        let _ = writeln!(rows, "| `{name}` | {default} | {unit} | {range} | {meaning} |");
    }
    let header = "| name | default | unit | range | meaning |\n| --- | --- | --- | --- | --- |";
    let _ = write!(text, "\n## {title}\n\n{header}\n{rows}");
}

/// The first line that differs.
fn compare(document: &str, code: &str) -> Option<Problem> {
    Problem::of_generated(DOCUMENT, document, code, "run `cargo xtask tunables --write`")
}

#[cfg(test)]
#[path = "tunables_tests.rs"]
mod tests;
