//! `stateway rules`

mod check;
mod element;
mod explain;
pub mod host_rules;
mod list;
mod load;

pub use check::vague_warnings;
pub use explain::probe;

use super::remote::Remote;
use crate::print::Output;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A ruleset is a file in nft's own syntax, in its JSON (nft -j list ruleset > ruleset.json), or of \
iptables-save. Text is read by nft itself, in a network namespace of its own, so that nothing of \
this host changes. iif and oif may name the interfaces that this host has; write iifname and oifname \
for others. Rules of iptables-save go through iptables-restore-translate first.

Examples:
  stateway rules check rules.nft
  nft -j list ruleset | stateway rules check -
  stateway rules explain --file rules.nft tcp 192.0.2.1:1234 198.51.100.2:443 in lan0 out wan0
  stateway rules load rules.nft --confirm 60 && stateway rules confirm
  stateway rules list && stateway rules reset
  stateway rules element add inet filter banned 192.0.2.1 timeout 5m

[rules] in the configuration of a gateway names the ruleset that it runs \
from its start.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Check whether a ruleset can be loaded, and show everything that is wrong with it.
    Check(check::Args),
    /// Load a ruleset into the gateway, or try one.
    Load(load::Args),
    /// Keep the ruleset on trial.
    Confirm(Remote),
    /// End the trial and restore the ruleset before, at once.
    Rollback(Remote),
    /// Show the ruleset that the gateway runs, with its counters and sets.
    List(list::Args),
    /// Reset counters and quotas to zero, as `nft reset rules` does.
    Reset(Remote),
    /// Add, delete or list elements of a set of the ruleset that runs.
    Element(element::Args),
    /// Show which rules a packet meets, in order, and the verdict.
    Explain(explain::Args),
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    match &args.action {
        Action::Check(args) => check::run(args, out),
        Action::Load(args) => load::run(args, out),
        Action::Confirm(remote) => load::confirm(remote),
        Action::Rollback(remote) => load::roll_back(remote),
        Action::List(args) => list::run(args, out),
        Action::Reset(remote) => load::reset(remote),
        Action::Element(args) => element::run(args, out),
        Action::Explain(args) => explain::run(args, out),
    }
}
